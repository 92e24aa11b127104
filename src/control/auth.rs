//! Who may use the admin API.

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
    if !headers.contains_key(header::ORIGIN) && site.is_none_or(|site| site == b"none") {
        return Ok(());
    }
    let message = "requests of web pages need a token; set [admin] token";
    Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", message))
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
}
