//! Virtual sockets. Each direction is a byte stream with a bounded kernel buffer; both may end at any byte.

use std::collections::VecDeque;

use seqcast::client::upgrade::{Answer, Upgrade};
use seqcast::shard::step::{ConnId, CoreId};
use seqcast::wire::envelope::{self, FLAG_SEQ};
use seqcast::wire::frame::{Bounds, Decoder, Item, Role};

pub type SocketId = usize;

const BOUNDS: Bounds = Bounds { message_bytes: 1 << 24, message_frames: 1 };

/// What lies in the client's kernel, or has been made of it.
#[derive(Debug)]
pub enum Unread {
    Upgraded,
    Refused(u16),
    Message(Vec<u8>),
    Ping(Vec<u8>),
    Closed(u16),
    Eof,
}

/// Where the server's end of a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// Not accepted yet, or on its way to another core.
    Between,
    /// A core has it.
    At(CoreId, ConnId),
    /// The core has forgotten it; what it wrote still travels, then FIN.
    Finished,
    /// Nothing travels any more.
    Gone,
}

#[derive(Debug)]
pub struct Socket {
    pub client: usize,
    pub server: Server,
    /// Written by the server, not acknowledged by the client's kernel.
    pub flight: VecDeque<u8>,
    pub flight_room: usize,
    decoder: Decoder,
    upgrade: Option<(Upgrade, Vec<u8>)>,
    /// What follows is the text of a refusal.
    is_refused: bool,
    pub unread: VecDeque<Unread>,
    unread_bytes: usize,
    unread_room: usize,
    pub wants_writable: bool,
    /// Written by the client, not yet at the server.
    pub up: VecDeque<u8>,
    pub paused: bool,
    pub client_open: bool,
    /// The client has closed its end: FIN follows what is in `up`.
    pub client_fin: bool,
    /// The server's kernel knows that the connection is broken.
    pub broken: bool,
    /// Nothing passes any more and nobody is told.
    pub silent: bool,
    /// Events with a sequence number that the client's kernel has acknowledged.
    pub stamped_acknowledged: u64,
    pub down_scheduled: bool,
    pub read_scheduled: bool,
    pub up_scheduled: bool,
}

/// The first `n` bytes.
pub fn take_front(queue: &mut VecDeque<u8>, n: usize) -> Vec<u8> {
    let (a, b) = queue.as_slices();
    let mut bytes = a[..n.min(a.len())].to_vec();
    bytes.extend_from_slice(&b[..n - bytes.len()]);
    queue.drain(..n);
    bytes
}

impl Socket {
    pub fn new(client: usize, upgrade: Upgrade, flight_room: usize, unread_room: usize) -> Socket {
        Socket {
            client,
            server: Server::Between,
            flight: VecDeque::new(),
            flight_room,
            decoder: Decoder::new(Role::Client),
            upgrade: Some((upgrade, Vec::new())),
            is_refused: false,
            unread: VecDeque::new(),
            unread_bytes: 0,
            unread_room,
            wants_writable: false,
            up: VecDeque::new(),
            paused: false,
            client_open: true,
            client_fin: false,
            broken: false,
            silent: false,
            stamped_acknowledged: 0,
            down_scheduled: false,
            read_scheduled: false,
            up_scheduled: false,
        }
    }

    /// The server writes; none: the connection is broken.
    pub fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.broken {
            return None;
        }
        let taken = bytes.len().min(self.flight_room.saturating_sub(self.flight.len()));
        self.flight.extend(&bytes[..taken]);
        Some(taken)
    }

    /// The upgrade is not answered yet.
    pub fn is_upgrading(&self) -> bool {
        self.upgrade.is_some()
    }

    /// Bytes may travel to the client.
    pub fn can_arrive(&self) -> bool {
        self.client_open && !self.silent && self.unread_bytes < self.unread_room
    }

    /// Up to `n` bytes arrive in the client's kernel.
    pub fn arrive(&mut self, n: usize) {
        let n = n.min(self.flight.len());
        let mut bytes = take_front(&mut self.flight, n);
        if let Some((upgrade, head)) = &mut self.upgrade {
            head.extend_from_slice(&bytes);
            match upgrade.answer(head).expect("the server speaks HTTP") {
                None => return,
                Some(Answer::Accepted { head_bytes }) => {
                    bytes = head.split_off(head_bytes);
                    self.upgrade = None;
                    self.unread.push_back(Unread::Upgraded);
                }
                Some(Answer::Refused { status, .. }) => {
                    self.upgrade = None;
                    self.is_refused = true;
                    self.unread.push_back(Unread::Refused(status));
                    return;
                }
            }
        }
        if !self.is_refused {
            self.decode(&mut bytes);
        }
    }

    fn decode(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        loop {
            let item = self.decoder.next(&mut rest, &BOUNDS);
            let unread = match item.expect("the server sends well-formed frames") {
                None => return,
                Some(Item::Message { text, payload }) => {
                    assert!(!text, "the server sent text");
                    let header = envelope::parse(payload).expect("the server sends envelopes");
                    assert!(header.flags & !FLAG_SEQ == 0, "reserved flags are set");
                    self.stamped_acknowledged += u64::from(header.flags & FLAG_SEQ);
                    self.unread_bytes += payload.len();
                    Unread::Message(payload.to_vec())
                }
                Some(Item::Ping(payload)) => Unread::Ping(payload.to_vec()),
                Some(Item::Pong(_)) => continue,
                Some(Item::Close { code, .. }) => Unread::Closed(code.unwrap_or(1005)),
            };
            self.unread.push_back(unread);
        }
    }

    /// The client reads one thing.
    pub fn read(&mut self) -> Option<Unread> {
        let unread = self.unread.pop_front();
        if let Some(Unread::Message(message)) = &unread {
            self.unread_bytes -= message.len();
        }
        unread
    }
}
