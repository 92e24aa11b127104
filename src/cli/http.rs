//! A small HTTP/1.1 client: one kept connection, one request at a time, over TCP or a unix socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// How long connecting, and each read or write, may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest head of an answer, bytes.
const HEAD_BYTES: usize = 64 * 1024;
/// Longest body of an answer, bytes.
const BODY_BYTES: usize = 16 << 20;

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// A connection to one server, opened when it is needed.
pub struct Http {
    target: Target,
    /// What stands before the path of every request.
    prefix: String,
    stream: Option<Stream>,
}

#[derive(Debug, PartialEq, Eq)]
enum Target {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Http {
    /// To `http://HOST[:PORT][/PREFIX]` or `unix:/path`.
    ///
    /// # Errors
    /// What is wrong with the URL, and what to write.
    pub fn new(url: &str) -> Result<Http, String> {
        let (target, prefix) = parse_url(url)?;
        Ok(Http { target, prefix, stream: None })
    }

    /// Posts JSON. A request is never sent twice: if its answer does not come, it may have been carried out.
    ///
    /// # Errors
    /// No connection, no answer in time, no HTTP.
    pub fn post(&mut self, path: &str, token: Option<&str>, body: &str) -> io::Result<Answer> {
        let mut stream = match self.stream.take().and_then(Stream::if_quiet) {
            Some(kept) => kept,
            None => self.open()?,
        };
        let authorization = token.map_or_else(String::new, |t| format!("Authorization: Bearer {t}\r\n"));
        let head = format!(
            "POST {}{path} HTTP/1.1\r\nHost: {}\r\n{authorization}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            self.prefix,
            self.host(),
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let (answer, keep) = read_answer(&mut stream)?;
        self.stream = keep.then_some(stream);
        Ok(answer)
    }

    fn host(&self) -> String {
        match &self.target {
            Target::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Target::Tcp { host, port } => format!("{host}:{port}"),
            Target::Unix(_) => "localhost".into(),
        }
    }

    fn open(&self) -> io::Result<Stream> {
        let stream = match &self.target {
            Target::Tcp { host, port } => Stream::Tcp(dial((host.as_str(), *port).to_socket_addrs()?)?),
            Target::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        };
        match &stream {
            Stream::Tcp(s) => {
                s.set_nodelay(true)?;
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_write_timeout(Some(PATIENCE))?;
            }
            Stream::Unix(s) => {
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_write_timeout(Some(PATIENCE))?;
            }
        }
        Ok(stream)
    }
}

/// The first of several addresses that answers.
fn dial(addresses: impl Iterator<Item = std::net::SocketAddr>) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

fn parse_url(url: &str) -> Result<(Target, String), String> {
    let fault = |why: &str| format!("{url:?} {why}; write \"http://HOST:PORT\" or \"unix:/path\"");
    if let Some(path) = url.strip_prefix("unix:") {
        return match path.is_empty() {
            true => Err(fault("names no socket")),
            false => Ok((Target::Unix(path.into()), String::new())),
        };
    }
    if url.starts_with("https://") {
        return Err(fault("needs TLS, which this command does not speak"));
    }
    let rest = url.strip_prefix("http://").ok_or_else(|| fault("is no address of an admin API"))?;
    let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let prefix = prefix.trim_end_matches('/');
    if !prefix.bytes().all(|b| b.is_ascii_graphic() && !b"?#".contains(&b)) {
        return Err(fault("has a path that cannot be requested"));
    }
    let after_host = authority.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match authority[after_host..].rfind(':') {
        Some(colon) => {
            let (host, port) = authority.split_at(after_host + colon);
            (host, port[1..].parse().map_err(|_| fault("has no valid port"))?)
        }
        None => (authority, 80),
    };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if bare.is_empty() || !bare.bytes().all(|b| b.is_ascii_graphic()) || bare.contains('@') {
        return Err(fault("names no host"));
    }
    Ok((Target::Tcp { host: bare.into(), port }, prefix.into()))
}

impl Stream {
    /// The kept connection, unless the server has closed it or said anything unasked.
    fn if_quiet(mut self) -> Option<Stream> {
        let blocking = |stream: &Stream, on: bool| match stream {
            Stream::Tcp(s) => s.set_nonblocking(!on),
            Stream::Unix(s) => s.set_nonblocking(!on),
        };
        let asked = blocking(&self, false).and_then(|()| self.read(&mut [0]));
        let quiet =
            matches!(asked, Err(e) if e.kind() == ErrorKind::WouldBlock) && blocking(&self, true).is_ok();
        quiet.then_some(self)
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.read(bytes),
            Stream::Unix(s) => s.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.write(bytes),
            Stream::Unix(s) => s.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What comes after a head.
enum Body {
    Length(usize),
    Chunked,
    ToTheEnd,
}

/// An answer, and whether the connection may be used again.
fn read_answer(stream: &mut impl Read) -> io::Result<(Answer, bool)> {
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&bytes).map_err(|e| bad(&format!("the answer is no HTTP: {e}")))? {
            httparse::Status::Partial if bytes.len() > HEAD_BYTES => {
                return Err(bad("the answer's head is too long"));
            }
            httparse::Status::Partial => more(stream, &mut bytes)?,
            httparse::Status::Complete(head) => {
                let status = response.code.unwrap_or_default();
                let (framing, keep) = framing(&response)?;
                let mut rest = bytes.split_off(head);
                if (100..200).contains(&status) {
                    bytes = rest;
                    continue;
                }
                let body = match framing {
                    Body::Length(length) => read_length(stream, &mut rest, length)?,
                    Body::Chunked => read_chunks(stream, &mut rest)?,
                    Body::ToTheEnd => read_to_the_end(stream, rest)?,
                };
                return Ok((Answer { status, body }, keep));
            }
        }
    }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

fn framing(response: &httparse::Response<'_, '_>) -> io::Result<(Body, bool)> {
    let value = |name: &str| {
        let header = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let close = value("Connection").is_some_and(|v| v.to_ascii_lowercase().contains("close"));
    let keep = response.version == Some(1) && !close;
    if value("Transfer-Encoding").is_some_and(|v| v.to_ascii_lowercase().contains("chunked")) {
        return Ok((Body::Chunked, keep));
    }
    match value("Content-Length").map(|v| v.trim().parse()) {
        Some(Ok(length)) if length <= BODY_BYTES => Ok((Body::Length(length), keep)),
        Some(_) => Err(bad("the answer's length is invalid or too large")),
        None if matches!(response.code, Some(204 | 304 | 100..200)) => Ok((Body::Length(0), keep)),
        None => Ok((Body::ToTheEnd, false)),
    }
}

/// Reads something more; the end is an error.
fn more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    match stream.read(&mut buffer) {
        Ok(0) => Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "the server closed the connection without an answer",
        )),
        Ok(n) => {
            bytes.extend_from_slice(&buffer[..n]);
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            let why = format!("no answer within {} s", PATIENCE.as_secs());
            Err(io::Error::new(ErrorKind::TimedOut, why))
        }
        Err(e) => Err(e),
    }
}

/// Takes `length` bytes off `rest`, reading until they are there.
fn read_length(stream: &mut impl Read, rest: &mut Vec<u8>, length: usize) -> io::Result<Vec<u8>> {
    while rest.len() < length {
        more(stream, rest)?;
    }
    let after = rest.split_off(length);
    Ok(std::mem::replace(rest, after))
}

fn read_chunks(stream: &mut impl Read, rest: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let (line, length) = loop {
            match httparse::parse_chunk_size(rest).map_err(|_| bad("the answer has an invalid chunk"))? {
                httparse::Status::Complete((line, length)) => break (line, length),
                httparse::Status::Partial if rest.len() > HEAD_BYTES => {
                    return Err(bad("a chunk's head is too long"));
                }
                httparse::Status::Partial => more(stream, rest)?,
            }
        };
        let length = usize::try_from(length).ok().filter(|n| body.len() + n <= BODY_BYTES);
        let length = length.ok_or_else(|| bad("the answer is too large"))?;
        rest.drain(..line);
        if length == 0 {
            return read_trailer(stream, rest).map(|()| body);
        }
        body.append(&mut read_length(stream, rest, length)?);
        if read_length(stream, rest, 2)? != b"\r\n" {
            return Err(bad("a chunk does not end where it should"));
        }
    }
}

/// Skips the lines behind the last chunk, up to the empty one.
fn read_trailer(stream: &mut impl Read, rest: &mut Vec<u8>) -> io::Result<()> {
    let mut skipped = 0;
    loop {
        match rest.windows(2).position(|w| w == b"\r\n") {
            Some(0) => {
                rest.drain(..2);
                return Ok(());
            }
            Some(line) => {
                skipped += line;
                rest.drain(..line + 2);
            }
            None => more(stream, rest)?,
        }
        if skipped + rest.len() > HEAD_BYTES {
            return Err(bad("the answer's trailer is too long"));
        }
    }
}

fn read_to_the_end(stream: &mut impl Read, mut rest: Vec<u8>) -> io::Result<Vec<u8>> {
    let room = (BODY_BYTES - rest.len().min(BODY_BYTES)) as u64;
    stream.take(room + 1).read_to_end(&mut rest)?;
    if rest.len() > BODY_BYTES { Err(bad("the answer is too large")) } else { Ok(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out its bytes in pieces of a given size.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(bytes.len());
            bytes[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn answers_in_every_framing_and_every_piece() {
        for (text, status, body, keep) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, "", true),
            ("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 401 No\r\nContent-Length: 1\r\n\r\nx", 401, "x", true),
            ("HTTP/1.1 500 No\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx", 500, "x", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, "x", false),
            ("HTTP/1.1 200 OK\r\n\r\nto the end", 200, "to the end", false),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\n, w\r\n0\r\nA: b\r\n\r\n",
                200,
                "hello, w",
                true,
            ),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let (answer, kept) = read_answer(&mut Pieces(text.as_bytes(), size)).unwrap();
                assert_eq!(
                    (answer.status, &*answer.body, kept),
                    (status, body.as_bytes(), keep),
                    "{text:?} {size}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for text in [
            "",
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        ] {
            assert!(read_answer(&mut Pieces(text.as_bytes(), 7)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn urls() {
        let tcp = |host: &str, port| Target::Tcp { host: host.into(), port };
        for (url, target, prefix) in [
            ("http://127.0.0.1:9401", tcp("127.0.0.1", 9401), ""),
            ("http://host/", tcp("host", 80), ""),
            ("http://[::1]:1/a/b/", tcp("::1", 1), "/a/b"),
            ("unix:/run/x", Target::Unix("/run/x".into()), ""),
        ] {
            assert_eq!(parse_url(url), Ok((target, prefix.into())), "{url}");
        }
        for url in [
            "",
            "host:1",
            "https://host",
            "http://",
            "http://:1",
            "http://h:x",
            "http://h:70000",
            "http://u@h",
            "http://h/a b",
            "unix:",
        ] {
            assert!(parse_url(url).is_err(), "{url}");
        }
    }
}
