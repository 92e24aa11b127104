//! The client's half of the WebSocket handshake (RFC 6455 4.1): the request as bytes, the answer judged.

use tungstenite::handshake::derive_accept_key;

use super::address::Address;
use super::error::ClientError;
use crate::limits;

/// One attempt to upgrade.
#[derive(Debug)]
pub struct Upgrade {
    key: String,
}

/// What the server answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// 101: what follows these bytes are frames.
    Accepted {
        /// Length of the response head.
        head_bytes: usize,
    },
    /// Anything else.
    Refused {
        /// HTTP status.
        status: u16,
        /// Length of the response head; the body follows.
        head_bytes: usize,
        /// Length of the body, where the response says it.
        body_bytes: Option<usize>,
    },
}

impl Upgrade {
    /// An attempt with this nonce, which must differ from attempt to attempt.
    pub fn new(nonce: [u8; 16]) -> Self {
        use base64::Engine as _;
        Upgrade { key: base64::engine::general_purpose::STANDARD.encode(nonce) }
    }

    /// The request head.
    ///
    /// # Errors
    /// A token that no header line can carry.
    pub fn request(&self, address: &Address, token: Option<&str>) -> Result<Vec<u8>, ClientError> {
        let authorization = match token {
            None => String::new(),
            Some(token) if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                format!("Authorization: Bearer {token}\r\n")
            }
            Some(_) => {
                let what = "the token is empty or has characters that a header cannot carry";
                return Err(ClientError::Address(what.to_owned()));
            }
        };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n{authorization}\r\n",
            address.target(),
            address.authority(),
            self.key,
        );
        Ok(request.into_bytes())
    }

    /// Judges the beginning of the response. None: its head is incomplete.
    ///
    /// # Errors
    /// No HTTP, a head over [`limits::HEAD_BYTES`], or a 101 that does not answer this request.
    pub fn answer(&self, response: &[u8]) -> Result<Option<Answer>, ClientError> {
        let fail = |what: &str| Err(ClientError::Handshake(what.to_owned()));
        let mut headers = [httparse::EMPTY_HEADER; limits::HEAD_LINES];
        let mut parsed = httparse::Response::new(&mut headers);
        let head_bytes = match parsed.parse(response) {
            Ok(httparse::Status::Complete(head_bytes)) => head_bytes,
            Ok(httparse::Status::Partial) if response.len() < limits::HEAD_BYTES => return Ok(None),
            Ok(httparse::Status::Partial) => return fail("the response head is too long"),
            Err(error) => return fail(&format!("the response is not HTTP ({error})")),
        };
        let status = parsed.code.unwrap_or(0);
        let values = |name: &str| {
            let lines = parsed.headers.iter().filter(move |line| line.name.eq_ignore_ascii_case(name));
            lines.map(|line| line.value.trim_ascii()).collect::<Vec<_>>()
        };
        if status != 101 {
            let length = values("content-length");
            let length = length.first().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            return Ok(Some(Answer::Refused { status, head_bytes, body_bytes: length }));
        }
        if !values("upgrade").iter().any(|value| value.eq_ignore_ascii_case(b"websocket")) {
            return fail("the 101 response does not say Upgrade: websocket");
        }
        let mut connection =
            values("connection").into_iter().flat_map(|value| value.split(|&byte| byte == b','));
        if !connection.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade")) {
            return fail("the 101 response does not say Connection: Upgrade");
        }
        if values("sec-websocket-accept") != [derive_accept_key(self.key.as_bytes()).as_bytes()] {
            return fail("the 101 response answers another request (Sec-WebSocket-Accept)");
        }
        if !values("sec-websocket-extensions").is_empty() || !values("sec-websocket-protocol").is_empty() {
            return fail("the 101 response names an extension or subprotocol that was not offered");
        }
        Ok(Some(Answer::Accepted { head_bytes }))
    }
}
