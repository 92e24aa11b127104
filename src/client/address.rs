//! Where a client connects to: a `ws://` URL in its parts.

use super::error::ClientError;

/// A parsed `ws://host[:port][/path][?query]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
    target: String,
}

impl Address {
    /// Parses a URL. Without a port it is 80, without a path `/ws`.
    ///
    /// # Errors
    /// Another scheme, no host, a port that is no number, characters that no request may have.
    pub fn parse(url: &str) -> Result<Address, ClientError> {
        let fail = |what: &str| Err(ClientError::Address(format!("URL {url:?}: {what}")));
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return fail("blanks and characters beyond ASCII must be percent-encoded");
        }
        let rest = match url.split_once("://") {
            Some(("ws", rest)) => rest,
            Some(("wss", _)) => {
                return fail("TLS is not supported here; connect to the ws:// port behind the proxy");
            }
            _ => return fail("it must begin with ws://"),
        };
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return fail("user names are not supported; give a token");
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port),
            _ => (authority, "80"),
        };
        let Ok(port) = port.parse() else { return fail("the port must be a number up to 65535") };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() || bare.contains(['[', ']']) || (bare == host && host.contains(':')) {
            return fail("the host is missing or malformed; an IPv6 address stands in brackets");
        }
        let target = match target.chars().next() {
            None => "/ws".to_owned(),
            Some('?') => format!("/ws{target}"),
            Some(_) => target.to_owned(),
        };
        Ok(Address { host: bare.to_owned(), port, target })
    }

    /// Name or address of the host, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// `host:port` as the Host header and messages say it.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}
