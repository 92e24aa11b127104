//! The seam: what goes into a [`Shard`](super::Shard) and what comes out of it. Plain values, no I/O.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::metrics::Counters;

/// Monotonic time, nanoseconds since an origin that all cores of a process share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Instant(pub u64);

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Number of a core within the process, from 0.
pub type CoreId = u16;

/// One socket, as the driver of this core numbers it. The driver never reuses a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    /// Slot of the driver's table; small and dense.
    pub index: u32,
    /// Counts the uses of the slot; 24 bits.
    pub generation: u32,
}

/// One session of this core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    /// Slot of the session table.
    pub index: u32,
    /// Counts the uses of the slot.
    pub generation: u32,
}

/// The other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// TCP.
    Ip(IpAddr),
    /// A unix socket.
    Unix,
}

/// Why a connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// FIN without a close frame.
    Eof,
    /// Reset or another error of the socket.
    Error,
}

/// What happens to a shard. Every input is followed by [`Shard::poll`](super::Shard::poll) until it is empty.
#[derive(Debug)]
pub enum Input<'a> {
    /// A socket was accepted; its handshake begins.
    Opened {
        /// Chosen by the driver.
        conn: ConnId,
        /// The other end.
        peer: Peer,
        /// Its listener has one queue for all cores, and this core takes from it for all of them.
        is_shared: bool,
    },
    /// A connection that another core handed over ([`Output::Transfer`]).
    Transferred {
        /// Chosen by the driver of this core.
        conn: ConnId,
        /// As that core gave it.
        transfer: Box<Transfer>,
    },
    /// Bytes arrived; they are unmasked in place.
    Received {
        /// From whom.
        conn: ConnId,
        /// Never empty.
        bytes: &'a mut [u8],
    },
    /// The socket ended without our doing. The driver closes it; the shard has forgotten the connection afterwards.
    Lost {
        /// Which.
        conn: ConnId,
        /// Bytes that the peer's TCP had not acknowledged (SIOCOUTQ), where the kernel could tell.
        unacked: Option<u32>,
        /// How.
        loss: Loss,
    },
    /// A socket that had refused bytes takes some again.
    Writable {
        /// Which.
        conn: ConnId,
    },
    /// The peer's TCP acknowledged at least one event of this session (answer to [`Output::Finish`]).
    Acknowledged {
        /// Which.
        session: SessionId,
    },
    /// From the control thread.
    Command(Command),
    /// From another core; those of one core arrive in the order in which they left it.
    Handoff {
        /// Who sent it.
        from: CoreId,
        /// What.
        handoff: super::handoff::Handoff<'a>,
    },
    /// Time passed: due timers run. Not before what has already arrived was handled: who has just been heard from is
    /// not idle.
    Tick,
}

/// What the shard wants done.
#[derive(Debug)]
pub enum Output {
    /// The upgrade was answered 101: from now on a multishot receive may be armed.
    Established {
        /// Which.
        conn: ConnId,
    },
    /// Stop receiving: cancel the receive so that the TCP window closes. What had arrived already is still given to
    /// the shard.
    Pause {
        /// Which.
        conn: ConnId,
    },
    /// Receive again.
    Resume {
        /// Which.
        conn: ConnId,
    },
    /// All bytes of this connection were written; the shard has forgotten it. Ask SIOCOUTQ, shut the write side down,
    /// read and discard until FIN or a deadline, close.
    Finish {
        /// Which.
        conn: ConnId,
        /// `Some((session, n))`: when SIOCOUTQ says at most `n`, answer [`Input::Acknowledged`].
        acknowledged: Option<(SessionId, u64)>,
    },
    /// Close at once; the shard has forgotten it.
    Abort {
        /// Which.
        conn: ConnId,
        /// As for [`Output::Finish`].
        acknowledged: Option<(SessionId, u64)>,
    },
    /// The session leaves this connection: when SIOCOUTQ says at most so many bytes, answer [`Input::Acknowledged`].
    AskAcknowledged {
        /// Which.
        conn: ConnId,
        /// Of whom.
        session: SessionId,
        /// Bytes.
        most: u64,
    },
    /// Hand the descriptor to another core, which gets [`Input::Transferred`]; the shard has forgotten the connection.
    Transfer {
        /// Which.
        conn: ConnId,
        /// The core that owns the client id, or has less to do.
        to: CoreId,
        /// Goes with the descriptor.
        transfer: Box<Transfer>,
    },
    /// Answer to a command.
    Reply(Reply),
    /// A line for the log; rate-limited by the shard.
    Log(LogLine),
    /// A drain has ended: no connection is left.
    Drained,
}

/// The next bytes of a connection, as `fill` lays them out: first what was written to the memory given, then the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filled {
    /// Bytes written to the memory given.
    pub bytes: usize,
    /// Goes out behind them, from where it is stored; never empty.
    pub body: Option<Bytes>,
}

/// A connection on its way to another core before the 101: the one that owns its client id, or one with less to do.
#[derive(Debug)]
pub struct Transfer {
    /// The other end.
    pub peer: Peer,
    /// When the handshake began.
    pub opened: Instant,
    /// What was received of it: nothing, or the complete request head and whatever bytes followed it.
    pub received: Vec<u8>,
}

/// Severity of a [`LogLine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something is wrong with this server.
    Error,
    /// An operator wants to know.
    Warn,
    /// Good to know.
    Info,
    /// For the curious.
    Debug,
}

/// A line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Severity.
    pub level: Level,
    /// What happened, why, what to do.
    pub text: String,
}

pub use crate::schema::EventIndex;

/// Kind of a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RoomKind {
    /// Clients subscribe; may have a history.
    Topic,
    /// A targeting set.
    Group,
    /// All connections of one user.
    User,
}

/// Who gets an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Every client.
    All,
    /// Members of a topic, group or user.
    Room(RoomKind, Box<str>),
    /// One client id.
    Client(Box<str>),
}

/// A question or order of the control thread.
#[derive(Debug)]
pub struct Command {
    /// Comes back in the [`Reply`].
    pub ticket: u64,
    /// What is asked.
    pub ask: Ask,
}

/// What the control thread asks. Nearly everything concerns this core alone, and the control thread asks all cores, or
/// the home of an id ([`home_of_client`](super::home_of_client)), and merges; `Publish`, `Member` of a topic and `Save`
/// are answered when other cores have done their part.
#[derive(Debug)]
pub enum Ask {
    /// Publish; answered when the event is in the outbox of every receiver on every core. Topics: ask the home core
    /// of the topic; a client: the core of the id; else any.
    Publish {
        /// Event.
        event: EventIndex,
        /// Size-prefixed FlatBuffer, verified.
        payload: Bytes,
        /// To whom.
        target: Target,
    },
    /// Rows of connected clients in order of their ids, at most [`LISTING_ROWS`](crate::limits::LISTING_ROWS).
    Clients {
        /// Ids greater than this one.
        after: Option<Box<str>>,
        /// Most rows.
        limit: usize,
    },
    /// One connected client.
    Client {
        /// Id.
        id: Box<str>,
    },
    /// Close a connected client.
    Disconnect {
        /// Id.
        id: Box<str>,
        /// Close code, 1000 or 3000-4999.
        code: u16,
        /// Close reason, at most 123 bytes.
        reason: Box<str>,
    },
    /// Membership by the operator (topic or group).
    Member {
        /// Client id.
        id: Box<str>,
        /// Topic or group.
        kind: RoomKind,
        /// Name.
        room: Box<str>,
        /// Join or leave.
        on: bool,
    },
    /// Rooms with members, in order of their names, at most [`LISTING_ROWS`](crate::limits::LISTING_ROWS).
    Rooms {
        /// Topic or group.
        kind: RoomKind,
        /// Names greater than this one.
        after: Option<Box<str>>,
        /// Most rows.
        limit: usize,
    },
    /// One room with its connected members.
    Room {
        /// Topic or group.
        kind: RoomKind,
        /// Name.
        room: Box<str>,
    },
    /// Nothing; the answer shows that the core turns.
    Turn,
    /// Counters.
    Stats,
    /// The rows of the trace.
    Trace,
    /// Forget the rows of the trace.
    ClearTrace,
    /// New authentication and rate settings.
    Reload(Arc<super::admit::Admission>),
    /// Refuse upgrades, flush every outbox, close 1001, in slots spread over the first half of the time. Abort what is
    /// left at the deadline. Answered at the end, which [`Output::Drained`] tells the driver. Again: with a deadline
    /// that may be earlier.
    Drain {
        /// When to give up.
        deadline: Instant,
    },
    /// What of this core outlives the process. To be asked of all cores, once, when all of them have drained; behind it
    /// nothing may be published.
    Save,
    /// Nothing more will be asked. For the driver: it ends once the core has drained.
    End,
}

/// Answer to a [`Command`].
#[derive(Debug)]
pub struct Reply {
    /// Of the command.
    pub ticket: u64,
    /// The answer.
    pub answer: Answer,
}

/// What a core answers.
#[derive(Debug)]
pub enum Answer {
    /// Done.
    Ok,
    /// No such client or room here.
    NotFound,
    /// Published.
    Published {
        /// For a topic: opaque epoch and number within it.
        topic: Option<(Box<str>, u64)>,
        /// To a client that is parked.
        parked: bool,
    },
    /// Rows.
    Clients {
        /// In order of ids.
        rows: Vec<ClientRow>,
        /// There are more behind the last row.
        more: bool,
    },
    /// One row.
    Client(Box<ClientRow>),
    /// Rows.
    Rooms {
        /// In order of names.
        rows: Vec<RoomRow>,
        /// There are more behind the last row.
        more: bool,
    },
    /// One room.
    Room {
        /// Its row.
        row: RoomRow,
        /// Connected members, sorted.
        clients: Vec<Box<str>>,
    },
    /// Counters.
    Stats(Box<Stats>),
    /// Trace.
    Trace(Box<TracePage>),
    /// What outlives the process.
    Saved(Box<super::saved::Saved>),
}

/// A connected client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRow {
    /// Client id.
    pub id: Box<str>,
    /// User id.
    pub user: Option<Box<str>>,
    /// Of the identity.
    pub meta: Option<serde_json::Map<String, serde_json::Value>>,
    /// In joining order.
    pub groups: Vec<Box<str>>,
    /// In joining order.
    pub topics: Vec<Box<str>>,
    /// Unix milliseconds.
    pub connected_at: u64,
    /// Address of the peer; "unix" for a unix socket.
    pub ip: String,
    /// Core that holds it.
    pub core: CoreId,
    /// Last sequence number given out.
    pub seq: u64,
    /// Events waiting.
    pub queued: u64,
    /// Events dropped, over the session's life.
    pub dropped: u64,
}

/// A topic or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomRow {
    /// Name.
    pub name: Box<str>,
    /// Connected members on this core.
    pub members: u64,
    /// Parked members on this core.
    pub parked: u64,
    /// Newest number of a topic; known at its home core, else 0.
    pub topic_seq: u64,
}

/// Counters and gauges of one core.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Which core.
    pub core: CoreId,
    /// Counters.
    pub counters: Counters,
    /// Events encoded by name, in schema order; only those above 0.
    pub encoded: Vec<(Box<str>, u64)>,
    /// Open upgraded connections.
    pub connected_clients: u64,
    /// Parked sessions.
    pub parked_sessions: u64,
    /// Bytes that only parked sessions hold.
    pub parked_bytes: u64,
    /// Events waiting on all connections.
    pub queue_depth: u64,
    /// Bytes waiting on all connections.
    pub queue_bytes: u64,
    /// Bytes held by session histories.
    pub history_bytes: u64,
    /// Bytes held by topic histories.
    pub topic_bytes: u64,
    /// Bytes of unfinished inbound messages.
    pub inbound_bytes: u64,
    /// Events in the store.
    pub stored_events: u64,
}

/// Direction of a trace row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// `out.publish`
    Publish,
    /// `in.client`
    Client,
}

/// The trace of one core.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TracePage {
    /// Most rows kept; 0 = off.
    pub capacity: usize,
    /// Rows ever recorded.
    pub total: u64,
    /// Those that are kept, newest first.
    pub rows: Vec<TraceRow>,
}

/// One row of the trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceRow {
    /// When it happened.
    pub at: Instant,
    /// Unix milliseconds.
    pub ts: u64,
    /// Direction.
    pub direction: Direction,
    /// Event name.
    pub name: Box<str>,
    /// Bytes of the whole envelope.
    pub bytes: u64,
    /// "broadcast", "topic", "group", "user" or "client"; none for `in.client`.
    pub target: Option<&'static str>,
    /// Topic, group, user or client id; the sender's id for `in.client`.
    pub key: Option<Box<str>>,
    /// First bytes of the payload, when captured.
    pub payload: Option<Vec<u8>>,
}
