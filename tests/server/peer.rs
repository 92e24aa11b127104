//! A client that can misbehave: every byte it sends is the test's choice.

use crate::process::{PATIENCE, Server};
use seqcast::wire::control::{self, Control, Encoder};
use seqcast::wire::{envelope, frame};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a peer received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A quote: its sequence number (0 = none) and the number that was published.
    Event(u64, u64),
    /// Answer to hello or resume.
    Resumed(bool, i64),
    /// Answer to a ping of the protocol.
    Pong(i64),
    /// Another control message.
    Control,
    /// WebSocket pong, its length.
    FramePong(usize),
    /// WebSocket ping.
    FramePing,
    /// Close frame.
    Close(u16, String),
    /// The socket ended.
    Gone,
}

/// A raw connection.
pub struct Peer {
    socket: Socket,
    received: Vec<u8>,
    encoder: Encoder,
}

impl Peer {
    /// A TCP connection on which nothing was said yet. A receive buffer bounds what the kernel takes for it.
    pub fn tcp(address: SocketAddr, receive_buffer: Option<usize>) -> std::io::Result<Peer> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.connect_timeout(&address.into(), PATIENCE)?;
        socket.set_tcp_nodelay(true)?;
        Ok(Peer { socket, received: Vec::new(), encoder: Encoder::new() })
    }

    /// A connection to a unix socket on which nothing was said yet.
    pub fn unix_raw(path: &Path) -> Peer {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        socket.connect(&SockAddr::unix(path).expect("a path")).expect("the server listens");
        Peer { socket, received: Vec::new(), encoder: Encoder::new() }
    }

    /// A client on a unix socket that is through the upgrade.
    pub fn unix(path: &Path) -> Peer {
        let mut peer = Peer::unix_raw(path);
        peer.upgrade(None).expect("the server accepts");
        peer
    }

    /// Everything until the server closes.
    pub fn read_to_end(&mut self) -> String {
        let end = Instant::now() + PATIENCE;
        while self.read(end) && Instant::now() < end {}
        String::from_utf8_lossy(&self.received).into_owned()
    }

    /// Upgrades; an error holds the status of a refusal, or none when the connection ended.
    pub fn upgrade(&mut self, token: Option<&str>) -> Result<(), Option<u16>> {
        let _ = self.send(request(token).as_bytes());
        match self.answer_within(PATIENCE) {
            Some(101) => Ok(()),
            other => Err(other),
        }
    }

    /// The status that answers a request which was sent, unless the connection ends or the time does.
    pub fn answer_within(&mut self, patience: Duration) -> Option<u16> {
        let end = Instant::now() + patience;
        loop {
            if let Some(at) = self.received.windows(4).position(|w| w == b"\r\n\r\n") {
                let head: Vec<u8> = self.received.drain(..at + 4).collect();
                return std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok();
            }
            if !self.read(end) || Instant::now() >= end {
                return None;
            }
        }
    }

    /// A client that is through the upgrade.
    pub fn connect(server: &Server, token: Option<&str>, receive_buffer: Option<usize>) -> Peer {
        let mut peer = Peer::tcp(server.listen, receive_buffer).expect("the server listens");
        peer.upgrade(token).expect("the server accepts");
        peer
    }

    /// Says hello, subscribes, and returns when the subscription is in effect. What came before is dropped.
    pub fn subscribe(&mut self, last_seq: i64, topic: &str) {
        self.control(|e| e.hello(&[], last_seq));
        self.control(|e| e.subscribe(topic));
        self.control(|e| e.ping(-1));
        while self.next() != Message::Pong(-1) {}
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.set_write_timeout(Some(PATIENCE))?;
        (&self.socket).write_all(bytes)
    }

    /// Sends bytes for as long as the socket takes them at once. False when it did not take all.
    pub fn flood(&mut self, bytes: &[u8]) -> bool {
        self.socket.set_write_timeout(Some(Duration::from_millis(50))).expect("a socket option");
        (&self.socket).write_all(bytes).is_ok()
    }

    /// Sends a control message.
    pub fn control(&mut self, write: impl FnOnce(&mut Encoder) -> &[u8]) {
        let mut out = Vec::new();
        frame::push_masked_frame(&mut out, frame::BINARY, [1, 2, 3, 4], write(&mut self.encoder));
        self.send(&out).expect("the server reads");
    }

    /// The next message.
    pub fn next(&mut self) -> Message {
        self.next_within(PATIENCE).unwrap_or_else(|| panic!("nothing came within {PATIENCE:?}"))
    }

    /// The next message, unless nothing comes for so long.
    pub fn next_within(&mut self, patience: Duration) -> Option<Message> {
        let end = Instant::now() + patience;
        loop {
            if let Some(message) = self.parse() {
                return Some(message);
            }
            let before = self.received.len();
            if !self.read(end) {
                return Some(Message::Gone);
            }
            if self.received.len() == before && Instant::now() >= end {
                return None;
            }
        }
    }

    /// Everything up to the answer of a resume, which is sent first.
    pub fn resume(&mut self, last_seq: i64) -> (Vec<(u64, u64)>, (bool, i64)) {
        self.control(|e| e.resume(last_seq));
        let mut events = Vec::new();
        loop {
            match self.next() {
                Message::Event(seq, number) => events.push((seq, number)),
                Message::Resumed(ok, from) => return (events, (ok, from)),
                Message::Gone => panic!("the connection ended before the answer"),
                _ => {}
            }
        }
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        self.socket.set_linger(Some(Duration::ZERO)).expect("a socket option");
    }

    /// Has the server ended the connection? Takes what was there to read.
    pub fn is_ended(&mut self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket option");
        let mut buffer = [0; 1024];
        let answer = (&self.socket).read(&mut buffer);
        self.socket.set_nonblocking(false).expect("a socket option");
        !matches!(&answer, Ok(1..)) && !matches!(&answer, Err(e) if e.kind() == ErrorKind::WouldBlock)
    }

    /// Reads what there is; false when the connection has ended.
    fn read(&mut self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.socket.set_read_timeout(Some(left)).expect("a socket option");
        let mut buffer = [0; 16 * 1024];
        match (&self.socket).read(&mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.received.extend_from_slice(&buffer[..n]);
                true
            }
            Err(e) => {
                matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
            }
        }
    }

    /// Takes one frame off what was received. A server's frame is whole and not masked.
    fn parse(&mut self) -> Option<Message> {
        let [first, second] = *self.received.first_chunk::<2>()?;
        assert_eq!(first & 0x70, 0, "reserved bits");
        assert_eq!((first & 0x80, second & 0x80), (0x80, 0), "a server's frame is final and not masked");
        let (header, length) = match second {
            126 => (4, u16::from_be_bytes(*self.received[2..].first_chunk()?) as usize),
            127 => (10, u64::from_be_bytes(*self.received[2..].first_chunk()?) as usize),
            short => (2, short as usize),
        };
        if self.received.len() < header + length {
            return None;
        }
        let bytes: Vec<u8> = self.received.drain(..header + length).skip(header).collect();
        Some(message(first & 0x0F, &bytes))
    }
}

/// A complete request head.
pub fn request(token: Option<&str>) -> String {
    let token = token.map(|t| format!("Authorization: Bearer {t}\r\n")).unwrap_or_default();
    let fixed = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n";
    format!(
        "GET /ws HTTP/1.1\r\nHost: test\r\n{fixed}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{token}\r\n"
    )
}

fn message(opcode: u8, payload: &[u8]) -> Message {
    match opcode {
        frame::BINARY => envelope_message(payload),
        frame::CLOSE => {
            let code = payload.first_chunk().map_or(1005, |c| u16::from_be_bytes(*c));
            Message::Close(code, String::from_utf8_lossy(payload.get(2..).unwrap_or_default()).into_owned())
        }
        frame::PING => Message::FramePing,
        frame::PONG => Message::FramePong(payload.len()),
        other => panic!("unexpected opcode {other}"),
    }
}

fn envelope_message(bytes: &[u8]) -> Message {
    let header = envelope::parse(bytes).expect("an envelope");
    let payload = &bytes[envelope::HEADER_BYTES..];
    if header.id == envelope::fnv1a32("quote") {
        let seq = if header.flags & envelope::FLAG_SEQ == 0 { 0 } else { header.seq };
        return Message::Event(seq, slot_i64(payload, 3));
    }
    match control::decode(header.id, payload).expect("a control message") {
        Control::Resumed { ok, from } => Message::Resumed(ok, from),
        Control::Pong { ts } => Message::Pong(ts),
        _ => Message::Control,
    }
}

/// An int64 slot of a FlatBuffer, read by hand.
fn slot_i64(payload: &[u8], slot: usize) -> u64 {
    let u16_at = |at: usize| u16::from_le_bytes(*payload[at..].first_chunk().expect("inside")) as usize;
    let i32_at = |at: usize| i32::from_le_bytes(*payload[at..].first_chunk().expect("inside"));
    let table = 4 + i32_at(4) as usize;
    let vtable = (table as i64 - i64::from(i32_at(table))) as usize;
    let offset = if 4 + 2 * slot < u16_at(vtable) { u16_at(vtable + 4 + 2 * slot) } else { 0 };
    if offset == 0 {
        0
    } else {
        u64::from_le_bytes(*payload[table + offset..].first_chunk().expect("inside"))
    }
}
