//! Many connections in one thread: opened in batches, read when they have something, never waited for one by one.

use super::load::now;
use super::protocol::{Adapter, Protocol, Role, Said};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::time::Timespec;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

/// Connections that are being opened at once: below every server's backlog.
const BATCH: usize = 256;
/// Connections of one source address: below the number of ports that a system hands out.
const OF_ONE_ADDRESS: usize = 20_000;
/// How long opening may take.
const OPENING: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 256 * 1024;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// Bytes of an unfinished frame, or of the response head.
    held: Vec<u8>,
    /// Bytes of an unfinished NATS message.
    stream: Vec<u8>,
    /// Bytes that the socket has not taken.
    unsent: Vec<u8>,
    /// The upgrade request, and what is said first.
    request: String,
    opening: Vec<u8>,
    stage: Stage,
    /// When it was begun, and when it was ready.
    pub began: u64,
    pub ready_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stage {
    Connecting,
    Head,
    Opening,
    Ready,
    Closed,
}

/// Something that came on one connection.
#[derive(Debug)]
pub enum Came {
    Said(Said),
    Closed,
}

/// All connections of the generator.
pub struct Swarm {
    pub connections: Vec<Connection>,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    address: SocketAddrV4,
    /// Connections that have become ready.
    ready: usize,
    /// Number in the token of the first connection, where connections have tokens.
    pub first_token: usize,
}

impl Swarm {
    pub fn new(address: SocketAddrV4) -> Result<Swarm> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let events = Vec::with_capacity(512);
        let buffer = vec![0; READ_BYTES];
        Ok(Swarm { connections: Vec::new(), epoll, events, buffer, address, ready: 0, first_token: 0 })
    }

    /// Opens so many more, and returns when each is ready.
    pub fn open(&mut self, adapter: &Adapter, role: Role, count: usize, topics: &[String]) -> Result<()> {
        self.open_with(adapter, role, count, &adapter.opening(role, topics))
    }

    /// The same with another opening; without one, a connection is ready when it is accepted.
    pub fn open_with(&mut self, adapter: &Adapter, role: Role, count: usize, opening: &[u8]) -> Result<()> {
        let until = now() + OPENING.as_nanos() as u64;
        let (first, before) = (self.connections.len(), self.ready);
        loop {
            let ready = self.ready - before;
            if ready == count {
                return Ok(());
            }
            for _ in self.connections.len() - first..count.min(ready + BATCH) {
                self.begin(adapter, role, opening)?;
            }
            self.turn(adapter, Some(50), |_, _, _| {})?;
            ensure!(
                now() < until,
                "only {ready} of {count} connections were ready in {} s",
                OPENING.as_secs()
            );
        }
    }

    /// Begins to connect.
    pub fn begin(&mut self, adapter: &Adapter, role: Role, opening: &[u8]) -> Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        // Ends with a reset: no port stays taken behind it.
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        let index = self.connections.len();
        let source = Ipv4Addr::new(127, 0, 0, 2 + (index / OF_ONE_ADDRESS) as u8);
        rustix::net::bind(&socket, &SocketAddrV4::new(source, 0))?;
        match rustix::net::connect(&socket, &self.address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error).context("connect"),
        }
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), flags)?;
        let request = request(adapter.path(role), adapter.tokens.then_some(self.first_token + index));
        self.connections.push(Connection {
            socket,
            held: Vec::new(),
            stream: Vec::new(),
            unsent: Vec::new(),
            request,
            opening: opening.to_vec(),
            stage: Stage::Connecting,
            began: now(),
            ready_at: 0,
        });
        Ok(())
    }

    /// Ends all connections from this one on.
    pub fn close_from(&mut self, index: usize) {
        self.connections.truncate(index);
    }

    /// Connections that have something: (index, something to read). `None`: does not wait.
    fn wait(&mut self, millis: Option<i64>) -> Result<Vec<(usize, bool)>> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: millis.unwrap_or(0) * 1_000_000 };
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("epoll"),
        }
        let readable =
            |flags: EventFlags| flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
        Ok(self.events.iter().map(|event| ({ event.data }.u64() as usize, readable(event.flags))).collect())
    }

    /// One wait and everything that came: (connection, what, when it was read). How many connections had something.
    pub fn turn(
        &mut self,
        adapter: &Adapter,
        millis: Option<i64>,
        mut came: impl FnMut(usize, Came, u64),
    ) -> Result<usize> {
        let ready = self.wait(millis)?;
        for &(index, readable) in &ready {
            let connection = &mut self.connections[index];
            if connection.stage < Stage::Ready {
                self.ready += usize::from(connection.opens(readable, &mut self.buffer, adapter)?);
            }
            connection.flush()?;
            while readable && connection.stage == Stage::Ready {
                let Some(read) = connection.receive(&mut self.buffer)? else { break };
                if read == 0 {
                    connection.stage = Stage::Closed;
                    came(index, Came::Closed, now());
                    break;
                }
                let at = now();
                connection.take(&self.buffer[..read], adapter, |said| came(index, Came::Said(said), at))?;
                if read < self.buffer.len() {
                    break;
                }
            }
        }
        Ok(ready.len())
    }

    /// Sends bytes on a connection; what the socket does not take goes later.
    pub fn send(&mut self, index: usize, bytes: &[u8]) -> Result<()> {
        self.connections[index].send(bytes)
    }

    /// Does not read a connection any more.
    pub fn stall(&mut self, index: usize) -> Result<()> {
        epoll::delete(&self.epoll, &self.connections[index].socket).context("epoll")
    }

    /// Bytes that a connection's socket has not taken.
    pub fn unsent(&self, index: usize) -> usize {
        self.connections[index].unsent.len()
    }
}

impl Connection {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.held).lines().next().unwrap_or("nothing said").to_owned()
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.unsent.extend_from_slice(bytes);
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.socket, &self.unsent, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error).context("send"),
            }
        }
        Ok(())
    }

    /// Bytes that came; 0 at the end of the connection; nothing when there is nothing.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match rustix::net::recv(&self.socket, buffer, rustix::net::RecvFlags::empty()) {
            Ok((read, _)) => Ok(Some(read)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(rustix::io::Errno::CONNRESET) => Ok(Some(0)),
            Err(error) => Err(error).context("receive"),
        }
    }

    /// Goes on with opening; whether it is ready now.
    fn opens(&mut self, readable: bool, buffer: &mut [u8], adapter: &Adapter) -> Result<bool> {
        if self.stage == Stage::Connecting {
            sockopt::socket_error(&self.socket)?.context("connect")?;
            let request = std::mem::take(&mut self.request);
            self.send(request.as_bytes())?;
            self.stage = Stage::Head;
        }
        let mut closed = false;
        while readable && let Some(read) = self.receive(buffer)? {
            self.held.extend_from_slice(&buffer[..read]);
            closed = read == 0;
            if closed {
                break;
            }
        }
        if self.stage == Stage::Head
            && let Some(end) = self.held.windows(4).position(|four| four == b"\r\n\r\n")
        {
            if !self.held.starts_with(b"HTTP/1.1 101") {
                bail!("the server refused the upgrade: {}", self.text());
            }
            self.held.drain(..end + 4);
            let opening = std::mem::take(&mut self.opening);
            self.send(&opening)?;
            self.stage = if opening.is_empty() { Stage::Ready } else { Stage::Opening };
        }
        if self.stage == Stage::Opening {
            let mut ready = false;
            let held = std::mem::take(&mut self.held);
            self.take(&held, adapter, |said| ready |= said == Said::Ready)?;
            if ready {
                self.stage = Stage::Ready;
            }
        }
        ensure!(!closed, "the server closed a connection that was opening: {}", self.text());
        if self.stage == Stage::Ready {
            self.ready_at = now();
        }
        Ok(self.stage == Stage::Ready)
    }

    /// Bytes into messages.
    #[inline]
    fn take(&mut self, bytes: &[u8], adapter: &Adapter, mut said: impl FnMut(Said)) -> Result<()> {
        let mut held = std::mem::take(&mut self.held);
        let whole = if held.is_empty() {
            bytes
        } else {
            held.extend_from_slice(bytes);
            &held
        };
        let mut at = 0;
        while let Some((opcode, from, to)) = frame(&whole[at..]) {
            let message = &whole[at + from..at + to];
            at += to;
            match opcode {
                0..=2 => self.message(message, adapter, &mut said)?,
                9 => {
                    let mut pong = Vec::new();
                    seqcast::wire::frame::push_masked_frame(
                        &mut pong,
                        seqcast::wire::frame::PONG,
                        [1, 2, 3, 4],
                        message,
                    );
                    self.send(&pong)?;
                }
                _ => {}
            }
        }
        let rest = whole.len() - at;
        if held.is_empty() {
            held.extend_from_slice(&bytes[at..]);
        } else {
            held.copy_within(at.., 0);
            held.truncate(rest);
        }
        self.held = held;
        Ok(())
    }

    #[inline]
    fn message(&mut self, message: &[u8], adapter: &Adapter, said: &mut impl FnMut(Said)) -> Result<()> {
        let mut answer = None;
        let mut hear = |one: Said| match one {
            Said::Answer(bytes) => answer = Some(bytes),
            other => said(other),
        };
        if adapter.protocol != Protocol::Nats {
            adapter.read(message, hear);
        } else if self.stream.is_empty() {
            let done = Adapter::read_nats(message, &mut hear);
            self.stream.extend_from_slice(&message[done..]);
        } else {
            self.stream.extend_from_slice(message);
            let done = Adapter::read_nats(&self.stream, &mut hear);
            self.stream.drain(..done);
        }
        if let Some(bytes) = answer {
            let mut out = Vec::new();
            let opcode = if adapter.protocol == Protocol::Nats { 2 } else { 1 };
            seqcast::wire::frame::push_masked_frame(&mut out, opcode, [1, 2, 3, 4], bytes);
            self.send(&out)?;
        }
        Ok(())
    }
}

/// The first frame of a server: (opcode, where its payload begins, where it ends).
#[inline]
fn frame(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    let (from, length) = match second & 127 {
        126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize),
        short => (2, usize::from(short)),
    };
    (bytes.len() >= from + length).then_some((first & 15, from, from + length))
}

fn request(path: &str, token: Option<usize>) -> String {
    let token = token.map_or(String::new(), |number| format!("Authorization: Bearer client-{number}\r\n"));
    format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{token}\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
}
