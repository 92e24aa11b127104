//! Who may use the admin API.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::admin::{Admin, Refusal};

/// Lets a request pass that has the token, or, where no token is set, one that no web page has made.
pub async fn check(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let verdict = if admin.token.is_empty() {
        from_no_web_page(request.headers())
    } else {
        has_token(request.headers(), &admin.token)
    };
    match verdict {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            let mut response = refusal.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                response = (challenge, response).into_response();
            }
            response
        }
    }
}

/// RFC 6750 2.1, in one spelling: `Bearer`, one space, the token.
fn has_token(headers: &HeaderMap, token: &str) -> Result<(), Refusal> {
    let given = headers.get(header::AUTHORIZATION).and_then(|v| v.as_bytes().strip_prefix(b"Bearer "));
    if given.is_some_and(|given| bool::from(given.ct_eq(token.as_bytes()))) {
        return Ok(());
    }
    let message = "the admin API wants the header Authorization: Bearer with the token of [admin] token";
    Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
}

/// Without a token the address is loopback or a unix socket, so that only this machine reaches it. So does a browser
/// that runs on it, on behalf of any page; its requests say so (Fetch, "Origin header"; Fetch Metadata).
fn from_no_web_page(headers: &HeaderMap) -> Result<(), Refusal> {
    let site = headers.get("sec-fetch-site").map(|v| v.as_bytes());
    if headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != b"none") {
        let message = "requests of web pages need a token; set [admin] token";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    if headers.get(header::HOST).is_some_and(|host| !is_own_address(host.as_bytes())) {
        let message =
            "without a token the admin API is asked by its address or as localhost; set [admin] token";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    Ok(())
}

/// Whether a Host header names an address, or localhost. Any other name may be one of a page whose owner lets it point
/// to this machine: to the browser the admin API is then a part of that page, and says nothing of it in its requests.
fn is_own_address(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        rows.iter().map(pair).collect()
    }

    #[test]
    fn only_the_exact_token_passes() {
        let rows = [
            "Bearer adm",
            "Bearer ad",
            "Bearer admi",
            "bearer adm",
            "Bearer  adm",
            "Basic adm",
            "Bearer ",
            "adm",
            "",
        ];
        let passes = |value| has_token(&headers(&[("authorization", value)]), "adm").is_ok();
        assert_eq!(rows.map(passes), [true, false, false, false, false, false, false, false, false]);
        assert!(has_token(&headers(&[]), "adm").is_err());
    }

    #[test]
    fn web_pages_are_refused_without_a_token() {
        let passes = |rows: &[_]| from_no_web_page(&headers(rows)).is_ok();
        assert!(passes(&[]));
        assert!(passes(&[("sec-fetch-site", "none")]));
        assert!(!passes(&[("origin", "https://example.com")]));
        assert!(!passes(&[("origin", "null")]));
        assert!(!passes(&[("sec-fetch-site", "same-origin")]));
    }

    #[test]
    fn without_a_token_only_addresses_are_asked() {
        let passes = |host| from_no_web_page(&headers(&[("host", host)])).is_ok();
        for own in ["127.0.0.1:9401", "127.0.0.1", "[::1]:9401", "[::1]", "localhost:9401", "LocalHost", ""] {
            assert!(passes(own), "{own}");
        }
        for other in
            ["example.com:9401", "localhost.example.com", "127.0.0.1.example.com:9401", "::1.x", "a:b"]
        {
            assert!(!passes(other), "{other}");
        }
    }
}
