//! One WebSocket connection of a client over TCP, blocking.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::address::Address;
use super::error::ClientError;
use super::upgrade::{Answer, Upgrade};
use crate::limits;
use crate::wire::frame::{self, Bounds, Decoder, Item, Role};

/// How much one read takes.
const READ_BYTES: usize = 64 * 1024;
/// Most bytes of a refusal's body that are read.
const REFUSAL_BYTES: usize = 1024;

/// What [`Connection::receive`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A binary message.
    Message(Vec<u8>),
    /// Nothing came in time.
    Quiet,
    /// The server closed; the connection is of no use any more.
    Closed {
        /// Close code; 1005 = none.
        code: u16,
        /// Close reason.
        reason: String,
    },
}

/// An upgraded connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    decoder: Decoder,
    /// Bytes read; those before `at` are decoded.
    input: Vec<u8>,
    at: usize,
    /// Source of masks: a keyed hash, keyed anew by the system for each connection, of a counter.
    random: RandomState,
    frames_sent: u64,
}

impl Connection {
    /// Connects and upgrades, within `patience`.
    ///
    /// # Errors
    /// No connection, a refusal, or something that is no WebSocket server.
    pub fn open(address: &Address, token: Option<&str>, patience: Duration) -> Result<Self, ClientError> {
        let until = Instant::now() + patience;
        let random = RandomState::new();
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&random.hash_one("nonce").to_ne_bytes());
        nonce[8..].copy_from_slice(&RandomState::new().hash_one("nonce").to_ne_bytes());
        let upgrade = Upgrade::new(nonce);
        let request = upgrade.request(address, token)?;
        let dial_error = |error| ClientError::Dial { to: address.authority(), error };
        let stream = dial(address, until).map_err(dial_error)?;
        let mut connection = Connection {
            stream,
            decoder: Decoder::new(Role::Client),
            input: Vec::new(),
            at: 0,
            random,
            frames_sent: 0,
        };
        connection.stream.write_all(&request).map_err(dial_error)?;
        loop {
            match upgrade.answer(&connection.input)? {
                Some(Answer::Accepted { head_bytes }) => {
                    connection.at = head_bytes;
                    return Ok(connection);
                }
                Some(Answer::Refused { status, head_bytes, body_bytes }) => {
                    let text = connection.refusal(head_bytes, body_bytes, until);
                    return Err(ClientError::Refused { status, text });
                }
                None => {}
            }
            match connection.fill(Some(until)) {
                Ok(0) => return Err(ClientError::Handshake("it closed without an answer".to_owned())),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {
                    return Err(ClientError::Handshake("it did not answer in time".to_owned()));
                }
                Err(error) => return Err(dial_error(error)),
            }
        }
    }

    /// Sends one binary message.
    ///
    /// # Errors
    /// The socket's; the connection is of no use then.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_frame(frame::BINARY, message)
    }

    /// True when bytes wait that were read and not yet looked at.
    pub fn has_input(&self) -> bool {
        self.at < self.input.len()
    }

    /// The next message, at the latest at `until`; none: whenever it comes. Pings are answered on the way.
    ///
    /// # Errors
    /// The socket's, or a server that breaks RFC 6455; the connection is of no use then.
    pub fn receive(&mut self, until: Option<Instant>) -> io::Result<Received> {
        loop {
            if let Some(received) = self.decode()? {
                return Ok(received);
            }
            match self.fill(until) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => return Ok(Received::Quiet),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a close frame and waits a little for the server's.
    pub fn close(mut self, code: u16) {
        if self.send_frame(frame::CLOSE, &code.to_be_bytes()).is_err()
            || self.stream.shutdown(Shutdown::Write).is_err()
        {
            return;
        }
        let until = Instant::now() + Duration::from_secs(limits::CLIENT_CLOSE_SECONDS);
        while Instant::now() < until {
            match self.receive(Some(until)) {
                Ok(Received::Message(_)) => {}
                _ => return,
            }
        }
    }

    fn decode(&mut self) -> io::Result<Option<Received>> {
        let bounds = Bounds {
            message_bytes: limits::CLIENT_MESSAGE_BYTES,
            message_frames: crate::limits::MESSAGE_FRAMES,
        };
        while self.at < self.input.len() {
            let mut rest = &mut self.input[self.at..];
            let item = self.decoder.next(&mut rest, &bounds);
            let found = match item.map_err(|violation| io::Error::new(ErrorKind::InvalidData, violation))? {
                None | Some(Item::Pong(_) | Item::Message { text: true, .. }) => Found::Nothing,
                Some(Item::Message { payload, .. }) => Found::Message(payload.to_vec()),
                Some(Item::Ping(payload)) => Found::Ping(payload.to_vec()),
                Some(Item::Close { code, reason }) => Found::Close(code, reason.to_owned()),
            };
            let left = rest.len();
            self.at = self.input.len() - left;
            match found {
                Found::Nothing => {}
                Found::Message(message) => return Ok(Some(Received::Message(message))),
                Found::Ping(payload) => self.send_frame(frame::PONG, &payload)?,
                Found::Close(code, reason) => {
                    let echo = code.map(u16::to_be_bytes);
                    // Its answer matters to nobody but the server's log.
                    let _ = self.send_frame(frame::CLOSE, echo.as_ref().map_or(&[], |code| code));
                    return Ok(Some(Received::Closed { code: code.unwrap_or(1005), reason }));
                }
            }
        }
        Ok(None)
    }

    /// Reads once; 0 = the peer has finished. A time-out is an error of kind `WouldBlock` or `TimedOut`.
    fn fill(&mut self, until: Option<Instant>) -> io::Result<usize> {
        self.input.drain(..self.at);
        self.at = 0;
        let start = self.input.len();
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // A zero time-out would mean none at all.
            self.stream.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1))))?;
            self.input.resize(start + READ_BYTES, 0);
            let read = self.stream.read(&mut self.input[start..]);
            self.input.truncate(start + *read.as_ref().unwrap_or(&0));
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn send_frame(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        self.frames_sent += 1;
        let [key @ .., _, _, _, _] = self.random.hash_one(self.frames_sent).to_ne_bytes();
        let mut out = Vec::with_capacity(payload.len() + 14);
        frame::push_masked_frame(&mut out, opcode, key, payload);
        self.stream.write_all(&out)
    }

    /// First line of a refusal's body.
    fn refusal(&mut self, head_bytes: usize, body_bytes: Option<usize>, until: Instant) -> String {
        let wanted = head_bytes + body_bytes.unwrap_or(REFUSAL_BYTES).min(REFUSAL_BYTES);
        while self.input.len() < wanted && matches!(self.fill(Some(until)), Ok(1..)) {}
        let body = &self.input[head_bytes..wanted.min(self.input.len())];
        String::from_utf8_lossy(body).lines().next().unwrap_or_default().trim().to_owned()
    }
}

/// What was decoded, free of the decoder's memory.
enum Found {
    Nothing,
    Message(Vec<u8>),
    Ping(Vec<u8>),
    Close(Option<u16>, String),
}

fn dial(address: &Address, until: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for to in (address.host(), address.port()).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&to, left.max(Duration::from_millis(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(Duration::from_secs(limits::CLIENT_WRITE_SECONDS)))?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

const _: () = assert!(limits::HEAD_BYTES <= READ_BYTES);
