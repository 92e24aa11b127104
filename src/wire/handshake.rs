//! The HTTP/1.1 side: request heads, the upgrade of RFC 6455 4.2, refusals. Every answer but 101 closes.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::GeneralPurposeConfig;

use crate::limits;

/// An answer that ends the connection: a status and one line of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The body, without its line end.
    pub reason: Cow<'static, str>,
}

impl Refusal {
    /// 401: no or a wrong token.
    pub const UNAUTHORIZED: Refusal = Refusal::new(401, "unauthorized");
    /// 403: the origin is not in the list.
    pub const ORIGIN: Refusal = Refusal::new(403, "origin not allowed");
    /// 404: no such path.
    pub const NOT_FOUND: Refusal = Refusal::new(404, "not found");
    /// 409: the client id is connected.
    pub const DUPLICATE_ID: Refusal = Refusal::new(409, "client id already in use");
    /// 426: the upgrade path without an upgrade.
    pub const UPGRADE_REQUIRED: Refusal = Refusal::new(426, "upgrade required: this is a WebSocket address");
    /// 426: another version than 13.
    pub const VERSION: Refusal = Refusal::new(426, "upgrade required: Sec-WebSocket-Version must be 13");
    /// 431: the head is longer than [`limits::HEAD_BYTES`].
    pub const HEAD_BYTES: Refusal = Refusal::new(431, "request head is too long");
    /// 431: the head has more lines than [`limits::HEAD_LINES`].
    pub const HEAD_LINES: Refusal = Refusal::new(431, "request head has too many lines");
    /// 503: no place for another connection.
    pub const FULL: Refusal = Refusal::new(503, "too many connections");
    /// 503: the server is about to end.
    pub const DRAINING: Refusal = Refusal::new(503, "server is draining");

    /// 503: `GET /clients` would be longer than [`limits::LISTING_BYTES`].
    pub const LONG_LISTING: Refusal =
        Refusal::new(503, "too many clients for one answer: ask the admin API, page by page");

    /// Any refusal; the reason is one line.
    pub const fn new(status: u16, reason: &'static str) -> Refusal {
        Refusal { status, reason: Cow::Borrowed(reason) }
    }

    /// 400 with what is wrong.
    pub const fn bad_request(reason: &'static str) -> Refusal {
        Refusal::new(400, reason)
    }

    /// Appends the response.
    pub fn write(&self, out: &mut Vec<u8>) {
        let more = match self.status {
            401 => "WWW-Authenticate: Bearer\r\n",
            426 => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            _ => "",
        };
        let connection = if self.status == 426 { "Upgrade, close" } else { "close" };
        write_head(out, self.status, connection, "text/plain; charset=utf-8", self.reason.len() + 1, more);
        out.extend_from_slice(self.reason.as_bytes());
        out.push(b'\n');
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.status, self.reason)
    }
}

impl std::error::Error for Refusal {}

/// Appends a JSON response.
pub fn write_json(out: &mut Vec<u8>, status: u16, body: &[u8]) {
    write_head(out, status, "close", "application/json", body.len(), "");
    out.extend_from_slice(body);
}

fn write_head(out: &mut Vec<u8>, status: u16, connection: &str, kind: &str, length: usize, more: &str) {
    let phrase = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        426 => "Upgrade Required",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "",
    };
    write!(
        out,
        "HTTP/1.1 {status} {phrase}\r\nConnection: {connection}\r\nContent-Type: {kind}\r\n\
         Content-Length: {length}\r\n{more}\r\n"
    )
    .expect("a Vec takes every write");
}

/// A complete request head. It borrows the buffer it was parsed from.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// As sent; methods are case-sensitive.
    pub method: &'a str,
    /// As sent, not decoded: up to the `?`. Of an absolute URL the part behind the authority.
    pub path: &'a str,
    /// Behind the `?`, not decoded.
    pub query: Option<&'a str>,
    /// Length of the head with its empty line; what follows in the buffer are frames.
    pub head_bytes: usize,
    /// The Origin header.
    pub origin: Option<&'a [u8]>,
    /// The Authorization header.
    pub authorization: Option<&'a [u8]>,
    /// Minor version of HTTP.
    version: u8,
    /// As checked by the parser.
    head: &'a [u8],
    fields: Fields<'a>,
}

/// The headers that decide, gathered in one pass.
#[derive(Debug, Clone, Copy, Default)]
struct Fields<'a> {
    host: Field<'a>,
    origin: Field<'a>,
    authorization: Field<'a>,
    content_length: Field<'a>,
    version: Field<'a>,
    key: Field<'a>,
    has_transfer_encoding: bool,
    upgrades_to_websocket: bool,
    connection_upgrades: bool,
}

/// A header that may be there once.
#[derive(Debug, Clone, Copy, Default)]
struct Field<'a> {
    first: Option<&'a [u8]>,
    is_repeated: bool,
}

impl<'a> Field<'a> {
    fn add(&mut self, value: &'a [u8]) {
        self.is_repeated = self.first.is_some();
        self.first = self.first.or(Some(value));
    }

    fn once(self, repeated: &'static str) -> Result<Option<&'a [u8]>, Refusal> {
        if self.is_repeated { Err(Refusal::bad_request(repeated)) } else { Ok(self.first) }
    }
}

impl<'a> Fields<'a> {
    fn gather(headers: &[httparse::Header<'a>]) -> Self {
        let mut fields = Fields::default();
        for &httparse::Header { name, value } in headers {
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
            if is("host") {
                fields.host.add(value);
            } else if is("origin") {
                fields.origin.add(value);
            } else if is("authorization") {
                fields.authorization.add(value);
            } else if is("content-length") {
                fields.content_length.add(value);
            } else if is("sec-websocket-version") {
                fields.version.add(value);
            } else if is("sec-websocket-key") {
                fields.key.add(value);
            } else if is("transfer-encoding") {
                fields.has_transfer_encoding = true;
            } else if is("upgrade") {
                fields.upgrades_to_websocket |= lists(value, "websocket");
            } else if is("connection") {
                fields.connection_upgrades |= lists(value, "upgrade");
            }
        }
        fields
    }
}

/// Members of a comma-separated list.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|m| !m.is_empty())
}

/// True if a comma-separated list has this member, in whatever case.
fn lists(value: &[u8], member: &str) -> bool {
    members(value).any(|m| m.eq_ignore_ascii_case(member.as_bytes()))
}

/// A request that may be answered 101.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade {
    accept: String,
}

/// Parses a request head at the start of `buf`. None: it is incomplete.
///
/// # Errors
/// 400 if it is malformed, 431 if it is over [`limits::HEAD_BYTES`] or [`limits::HEAD_LINES`].
pub fn parse(buf: &[u8]) -> Result<Option<Request<'_>>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; limits::HEAD_LINES];
    let mut parsed = httparse::Request::new(&mut headers);
    let within = &buf[..buf.len().min(limits::HEAD_BYTES)];
    let head_bytes = match parsed.parse(within) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) if buf.len() >= limits::HEAD_BYTES => return Err(Refusal::HEAD_BYTES),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::HEAD_LINES),
        Err(_) => return Err(Refusal::bad_request("malformed request head")),
    };
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(Refusal::bad_request("malformed request head"));
    };
    let (path, query) = split_target(target)?;
    let fields = Fields::gather(parsed.headers);
    if fields.host.once("more than one Host header")?.is_none() && version > 0 {
        return Err(Refusal::bad_request("no Host header"));
    }
    Ok(Some(Request {
        method,
        path,
        query,
        head_bytes,
        origin: fields.origin.once("more than one Origin header")?,
        authorization: fields.authorization.once("more than one Authorization header")?,
        version,
        head: &within[..head_bytes],
        fields,
    }))
}

/// Path and query of a request target in origin form or absolute form (RFC 9112 3.2).
fn split_target(target: &str) -> Result<(&str, Option<&str>), Refusal> {
    let (front, query) = match target.split_once('?') {
        Some((front, query)) => (front, Some(query)),
        None => (target, None),
    };
    if front.starts_with('/') || front == "*" {
        return Ok((front, query));
    }
    match front.split_once("://") {
        Some((scheme, rest)) if ["http", "https"].iter().any(|s| s.eq_ignore_ascii_case(scheme)) => {
            Ok((rest.find('/').map_or("/", |at| &rest[at..]), query))
        }
        _ => Err(Refusal::bad_request("malformed request target")),
    }
}

impl<'a> Request<'a> {
    /// The value of the first query parameter of this name, percent-decoded; `+` stays a plus. None if there
    /// is none or it is not UTF-8. Broken escapes are kept as they are.
    pub fn query_value(&self, name: &str) -> Option<Cow<'a, str>> {
        self.query?.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decoded(key)? == name).then(|| percent_decoded(value))
        })?
    }

    /// The offered subprotocols, in order of preference. What is not a token is left out.
    pub fn subprotocols(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        // The request line passes for no header: it has a blank in front of its first colon.
        let lines = self.head.split(|&b| b == b'\n').filter_map(|line| {
            let colon = line.iter().position(|&b| b == b':')?;
            Some((&line[..colon], &line[colon + 1..]))
        });
        let values = lines.filter(|(name, _)| name.eq_ignore_ascii_case(b"sec-websocket-protocol"));
        values.flat_map(|(_, value)| members(value)).filter_map(token)
    }

    /// Checks of RFC 6455 4.2.1.
    ///
    /// # Errors
    /// 426 without an upgrade or with another version than 13, else 400.
    pub fn upgrade(&self) -> Result<Upgrade, Refusal> {
        let refuse = |reason| Err(Refusal::bad_request(reason));
        let fields = &self.fields;
        if self.method != "GET" {
            return refuse("upgrade failed: the method must be GET");
        }
        let length = fields.content_length.once("more than one Content-Length header")?;
        if length.is_some_and(|n| n != b"0") || fields.has_transfer_encoding {
            return refuse("upgrade failed: the request has a body");
        }
        if !fields.upgrades_to_websocket {
            return Err(Refusal::UPGRADE_REQUIRED);
        }
        if self.version < 1 {
            return refuse("upgrade failed: HTTP/1.1 is needed");
        }
        if !fields.connection_upgrades {
            return refuse("upgrade failed: no Connection: Upgrade (a proxy must pass it on)");
        }
        if fields.version.once("more than one Sec-WebSocket-Version header")? != Some(b"13") {
            return Err(Refusal::VERSION);
        }
        match fields.key.once("more than one Sec-WebSocket-Key header")? {
            Some(key) if is_key(key) => {
                Ok(Upgrade { accept: tungstenite::handshake::derive_accept_key(key) })
            }
            Some(_) => refuse("upgrade failed: Sec-WebSocket-Key is not base64 of 16 bytes"),
            None => refuse("upgrade failed: no Sec-WebSocket-Key"),
        }
    }
}

/// Base64 of 16 bytes. The four bits that base64 has too many may be anything: some clients make keys of
/// random letters.
fn is_key(key: &[u8]) -> bool {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
    );
    let mut nonce = [0; 18];
    key.len() == 24 && BASE64.decode_slice(key, &mut nonce) == Ok(16)
}

/// A token of RFC 9110 5.6.2.
fn token(bytes: &[u8]) -> Option<&str> {
    let is_token = bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b));
    std::str::from_utf8(bytes).ok().filter(|_| is_token)
}

fn percent_decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        let escape = match behind {
            [high, low, ..] if first == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escape {
            Some((high, low)) => {
                out.push(high << 4 | low);
                rest = &behind[2..];
            }
            None => out.push(first),
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|d| d as u8)
}

/// Appends the 101. No extension is ever accepted; a subprotocol is named only if given, and must be one of
/// [`Request::subprotocols`].
pub fn write_accept(out: &mut Vec<u8>, upgrade: &Upgrade, subprotocol: Option<&str>) {
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    );
    write!(out, "Sec-WebSocket-Accept: {}\r\n", upgrade.accept).expect("a Vec takes every write");
    if let Some(name) = subprotocol {
        write!(out, "Sec-WebSocket-Protocol: {name}\r\n").expect("a Vec takes every write");
    }
    out.extend_from_slice(b"\r\n");
}
