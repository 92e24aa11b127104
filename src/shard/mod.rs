//! The pure state machine of one core: [`Shard::handle`] takes an [`Input`], [`Shard::poll`] gives [`Output`]s until it
//! is empty. No sockets, no clock, no threads: the driver, the tests and the simulator drive the same value.
//!
//! This file decides; the others compute, each its part:
//!
//! | file | part |
//! |---|---|
//! | `step` | the seam: inputs, outputs, questions, answers |
//! | `upgrade` | from a request to a session: routing, admission, duplicates |
//! | `receive` | messages of clients |
//! | `member` | joining and leaving rooms, topic histories |
//! | `neighbours` | work between cores: what leaves for them, what they hand over, who pauses when they take no more |
//! | `publish` | an event to its receivers; policies |
//! | `send` | the one place where bytes leave: `fill` and `sent` |
//! | `resume` | hello, resume, replays, adoption |
//! | `close` | closing, losing, parking, ending |
//! | `drain` | the end of the core in good order |
//! | `save`, `saved`, `split`, `restore` | what outlives the process |
//! | `query`, `listing` | answers to the control thread, and to `GET /health` and `/clients` |
//! | `store`, `outbox`, `session`, `topic`, `lane`, `admit`, `timer`, `trace`, `handoff`, `census` | what they hold |

#![forbid(unsafe_code)]

pub mod admit;
mod ahead;
pub mod census;
pub mod handoff;
pub mod saved;
pub mod split;
pub mod step;

mod close;
mod drain;
mod fifo;
mod lane;
mod listing;
mod member;
mod memberships;
mod neighbours;
mod outbox;
mod publish;
mod push;
mod query;
mod receive;
mod restore;
mod resume;
mod save;
mod send;
mod session;
mod store;
mod timer;
mod topic;
mod trace;
mod upgrade;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, InboundRule};
use crate::limits;
use crate::metrics::Counters;
use crate::schema::Schema;
use crate::wire::control::Encoder;
use crate::wire::frame::Bounds;

use admit::Admission;
use census::Census;
use close::Probe;
use drain::Drain;
use fifo::Fifo;
use listing::Listings;
use neighbours::Neighbours;
use publish::Receipts;
use save::Saving;
use session::{Conn, Flow, NONE, Session, State};
pub use step::Filled;
use step::{ConnId, CoreId, EventIndex, Input, Instant, Level, LogLine, Output, Peer, RoomKind, SessionId};
use store::{Budgets, Relief, Store};
use timer::{NEVER, Owner, Timers};
use topic::Rooms;
use trace::Trace;

/// What a shard is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its number.
    pub core: CoreId,
    /// How many there are.
    pub cores: CoreId,
    /// Random, the same for all cores of a process, another at every start.
    pub seed: u64,
    /// Validated.
    pub config: Arc<Config>,
    /// With the names of `[inbound]` that it has no model of.
    pub schema: Arc<Schema>,
    /// Replaced by a reload.
    pub admission: Arc<Admission>,
    /// Unix milliseconds at `Instant(0)`.
    pub wall_ms: u64,
    /// Shared by all cores.
    pub census: Arc<Census>,
    /// Bytes that wait to leave for one core past which whoever feeds it pauses until half is gone.
    pub staged_bytes: usize,
}

/// One core.
#[derive(Debug)]
pub struct Shard {
    core: CoreId,
    cores: CoreId,
    seed: u64,
    config: Arc<Config>,
    schema: Arc<Schema>,
    admission: Arc<Admission>,
    wall_ms: u64,
    census: Arc<Census>,
    /// By event: what happens with it when a client sends it.
    inbound: Arc<[Option<InboundRule>]>,
    /// By event: requests are answered.
    rpc: Box<[bool]>,
    bounds: Bounds,
    budgets: Budgets,
    /// Events that a session keeps besides unsent ones; 0 without resume.
    history: u64,

    now: Instant,
    /// When the first step was.
    started: Option<Instant>,
    conns: Vec<Option<Conn>>,
    sessions: slab::Slab<Session>,
    /// One more than the highest place in use so far.
    session_places: u32,
    next_generation: u32,
    pinned: HashMap<Box<str>, u32, ahash::RandomState>,
    id_key: ahash::RandomState,
    rooms: Rooms,
    store: Store,
    trace: Trace,
    timers: Timers,
    probes: Vec<Probe>,
    receipts: Receipts,
    /// Parked sessions in order of parking; those that were taken up since are stale.
    parked_order: VecDeque<(SessionId, Instant)>,
    parked: u32,
    connected: u32,
    inbound_bytes: u64,
    draining: Option<Drain>,
    saving: Saving,
    /// Connections in whatever state.
    live_conns: u32,

    encoder: Encoder,
    /// The request that is being answered, decoded.
    request: Vec<u8>,
    lane_buffers: Vec<Vec<u8>>,
    control_list: VecDeque<u32>,
    list: Fifo,
    /// Busy connections that wait for their time (`[server] coalesce`).
    coalescing: BinaryHeap<Reverse<(Instant, u32)>>,
    wants_flush: bool,
    /// Connections to close as slow consumers, or because their numbering is exhausted.
    overdue: Vec<Overdue>,
    /// Connections whose held bytes can go on.
    resumable: Vec<u32>,
    /// Sessions that lost their connection while a probe ran.
    orphaned: Vec<SessionId>,
    neighbours: Neighbours,
    listings: Listings,
    outputs: VecDeque<Output>,
    counters: Counters,
    encoded: Box<[u64]>,
    log_second: u64,
    log_lines: u32,
}

/// Why a connection is to be closed once a delivery is over.
#[derive(Debug, Clone, Copy)]
enum Overdue {
    Slow(u32),
    Exhausted(u32),
}

/// The extension that the server's hello names; a client that names it too may get its messages.
const NAMED_EXTENSION: &str = "seqcast.1";

/// Log lines of one shard in one second; more are counted.
const LOG_LINES_PER_SECOND: u32 = 20;

impl Shard {
    /// A shard without connections.
    pub fn new(setup: Setup) -> Shard {
        let config = &setup.config;
        let hasher = ahash::RandomState::with_seeds(setup.seed, u64::from(setup.core), 0x5eed, 2);
        let events = setup.schema.len();
        let names = || (0..events).map(|event| setup.schema.name(event as EventIndex));
        Shard {
            core: setup.core,
            cores: setup.cores.max(1),
            seed: setup.seed,
            inbound: names().map(|name| config.inbound.get(name).cloned()).collect(),
            rpc: names().map(|name| config.rpc.contains_key(name)).collect(),
            bounds: Bounds {
                message_bytes: config.server.max_message_size,
                message_frames: crate::limits::MESSAGE_FRAMES,
            },
            budgets: Budgets {
                topic: config.replay.history_bytes,
                session: config.resume.history_bytes,
                parked: config.resume.parked_bytes,
            },
            history: if config.resume.enabled { u64::from(config.resume.history_size) } else { 0 },
            now: Instant(0),
            started: None,
            conns: Vec::new(),
            sessions: slab::Slab::new(),
            session_places: 0,
            next_generation: 0,
            pinned: HashMap::with_hasher(hasher.clone()),
            id_key: ahash::RandomState::with_seeds(setup.seed, 0x1d, 0x5eed, 3),
            rooms: Rooms::new(&hasher, hasher.hash_one("epoch")),
            store: Store::new(),
            trace: Trace::new(config.trace.capacity as usize, config.trace.capture_bytes as usize),
            timers: Timers::default(),
            probes: Vec::new(),
            receipts: Receipts::default(),
            parked_order: VecDeque::new(),
            parked: 0,
            connected: 0,
            inbound_bytes: 0,
            draining: None,
            saving: Saving::default(),
            live_conns: 0,
            encoder: Encoder::new(),
            request: Vec::new(),
            lane_buffers: Vec::new(),
            control_list: VecDeque::new(),
            list: Fifo::default(),
            coalescing: BinaryHeap::new(),
            wants_flush: false,
            overdue: Vec::new(),
            resumable: Vec::new(),
            orphaned: Vec::new(),
            neighbours: Neighbours::new(setup.cores.max(1), setup.staged_bytes),
            listings: Listings::default(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
            encoded: vec![0; events].into_boxed_slice(),
            log_second: 0,
            log_lines: 0,
            config: setup.config,
            schema: setup.schema,
            admission: setup.admission,
            wall_ms: setup.wall_ms,
            census: setup.census,
        }
    }

    /// One step. A clock that goes back is taken as one that stands still.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        self.now = self.now.max(now);
        self.started.get_or_insert(now);
        match input {
            Input::Opened { conn, peer, is_shared } => self.on_accepted(conn, peer, is_shared),
            Input::Transferred { conn, transfer } => self.on_transferred(conn, *transfer),
            Input::Received { conn, bytes } => self.on_received(conn, bytes),
            Input::Lost { conn, unacked, .. } => self.on_lost(conn, unacked),
            Input::Writable { conn } => self.on_writable(conn),
            Input::Acknowledged { session } => self.on_acknowledged(session),
            Input::Command(command) => self.on_command(command),
            Input::Handoff { from, handoff } => {
                self.counters.handoffs += 1;
                self.on_handoff(from, handoff);
            }
            Input::Tick => self.run_timers(),
        }
        self.settle();
    }

    /// The next output of the steps so far. What `sent` left over is done here, when nothing is between a `fill`
    /// and its `sent` any more.
    pub fn poll(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.settle();
        }
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        let coalescing = self.coalescing.peek().map(|Reverse((at, _))| *at);
        [self.timers.next(), coalescing].into_iter().flatten().min()
    }

    /// The counters, for the driver's own.
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Brings everything that a step left over to its end.
    fn settle(&mut self) {
        loop {
            if let Some(overdue) = self.overdue.pop() {
                self.close_overdue(overdue);
            } else if let Some(owner) = self.orphaned.pop() {
                self.on_orphaned(owner);
            } else if let Some(conn) = self.resumable.pop() {
                self.read_held(conn);
            } else if !self.relieve_feeders() {
                break;
            }
        }
        self.relieve();
        self.sort_out_timers();
        self.check_drained();
    }

    /// Owners come and go: deadlines of those that have gone are sorted out now and then.
    fn sort_out_timers(&mut self) {
        let (conns, sessions) = (&self.conns, &self.sessions);
        self.timers.sort_out(|at, owner| match owner {
            Owner::Conn(index) => {
                conns.get(index as usize).and_then(Option::as_ref).is_some_and(|conn| conn.armed == at)
            }
            Owner::Session(index) => sessions.get(index as usize).is_some_and(|session| session.armed == at),
            Owner::Probe | Owner::Drain => true,
        });
    }

    /// Brings the store within its budgets.
    fn relieve(&mut self) {
        loop {
            match self.store.relieve(&self.budgets) {
                Relief::Done => break,
                Relief::Topic(room) => {
                    let oldest = self.rooms.topic_mut(room).history.pop_front();
                    let (_, slot) = oldest.expect("the store says that this topic holds an event");
                    self.store.release_topic(slot);
                }
                Relief::Emptied => {}
            }
        }
    }

    fn run_timers(&mut self) {
        while self.coalescing.peek().is_some_and(|Reverse((at, _))| *at <= self.now) {
            if let Some(Reverse((_, conn))) = self.coalescing.pop() {
                self.list.push(conn);
            }
        }
        while let Some((at, owner)) = self.timers.pop_due(self.now) {
            match owner {
                Owner::Conn(index) => {
                    let conn = self.conns.get_mut(index as usize).and_then(Option::as_mut);
                    if let Some(conn) = conn.filter(|conn| conn.armed == at) {
                        conn.armed = NEVER;
                        self.on_conn_timer(index);
                    }
                }
                Owner::Session(index) => {
                    let session = self.sessions.get_mut(index as usize);
                    if let Some(session) = session.filter(|session| session.armed == at) {
                        session.armed = NEVER;
                        self.on_session_timer(index);
                        self.without_timer(index);
                    }
                }
                Owner::Probe => self.on_probe_timer(),
                Owner::Drain => self.on_drain_timer(),
            }
        }
    }

    fn on_conn_timer(&mut self, index: u32) {
        let server = &self.config.server;
        let conn = self.conn(index);
        let due = |since: Instant, after: Duration| since + after <= self.now;
        match &conn.state {
            State::Handshake | State::Listing if due(conn.since, server.handshake_timeout) => {
                self.counters.handshake_timeouts += 1;
                self.abort(index);
                return;
            }
            State::Closing if due(conn.since, Duration::from_secs(limits::CLOSE_SECONDS)) => {
                self.abort(index);
                return;
            }
            State::Open => {
                if due(conn.last_received, server.idle_timeout) {
                    self.counters.closed_idle += 1;
                    self.close(index, Some(1001), "idle timeout");
                    return;
                }
                if due(conn.unfinished_since(), Duration::from_secs(limits::MESSAGE_SECONDS)) {
                    self.counters.closed_inbound_bytes += 1;
                    self.close(index, Some(1013), "message takes too long");
                    return;
                }
                if !self.sessions[conn.session as usize].open && due(conn.since, server.hello_wait) {
                    self.open_gate(index);
                }
                self.ping_if_due(index);
            }
            _ => {}
        }
        self.arm_conn(index);
    }

    fn ping_if_due(&mut self, index: u32) {
        let (interval, now) = (self.config.server.ping_interval, self.now);
        let conn = self.conn_mut(index);
        if !interval.is_zero() && conn.last_received.max(conn.last_ping) + interval <= now {
            conn.last_ping = now;
            self.push_ping(index);
        }
    }

    /// Enters the earliest deadline of a connection.
    fn arm_conn(&mut self, index: u32) {
        let server = &self.config.server;
        let Some(conn) = self.conns[index as usize].as_mut() else { return };
        let at = match &conn.state {
            State::Handshake | State::Listing => conn.since + server.handshake_timeout,
            State::Waiting => NEVER,
            State::Closing => conn.since + Duration::from_secs(limits::CLOSE_SECONDS),
            State::Open => {
                let mut at = conn.last_received + server.idle_timeout;
                if !server.ping_interval.is_zero() {
                    at = at.min(conn.last_received.max(conn.last_ping) + server.ping_interval);
                }
                let unfinished_since = conn.unfinished_since();
                if unfinished_since != NEVER {
                    at = at.min(unfinished_since + Duration::from_secs(limits::MESSAGE_SECONDS));
                }
                if !self.sessions[conn.session as usize].open {
                    at = at.min(conn.since + server.hello_wait);
                }
                at
            }
        };
        self.timers.arm(&mut conn.armed, at, Owner::Conn(index));
    }

    fn on_session_timer(&mut self, index: u32) {
        let ttl = self.config.resume.ttl;
        let session = &mut self.sessions[index as usize];
        let at = session.last_event + ttl;
        if at > self.now {
            self.timers.arm(&mut session.armed, at, Owner::Session(index));
        } else if session.is_parked() {
            self.counters.parked_expired += 1;
            self.end_session(index);
        } else if !self.free_history(index) {
            let session = &mut self.sessions[index as usize];
            self.timers.arm(&mut session.armed, self.now + ttl, Owner::Session(index));
        }
    }

    /// A session without a timer gets one with its next event. It has freed its history, so nothing waits in it and it
    /// is on no list.
    fn without_timer(&mut self, index: u32) {
        if let Some(session) = self.sessions.get_mut(index as usize).filter(|session| session.armed == NEVER)
        {
            session.flow = Flow::Special;
        }
    }

    fn on_accepted(&mut self, conn: ConnId, peer: Peer, is_shared: bool) {
        self.counters.accepted += 1;
        self.census.enter(self.core);
        self.on_opened(Conn::new(conn, peer, self.now));
        let least = self.census.least(self.core);
        if is_shared && least != self.core && self.find_conn(conn).is_some() {
            self.transfer(conn.index, least, Vec::new());
        }
    }

    fn on_opened(&mut self, conn: Conn) {
        let index = conn.id.index;
        if self.conns.len() <= index as usize {
            self.conns.resize_with(index as usize + 1, || None);
        }
        assert!(self.conns[index as usize].is_none(), "the driver reuses a place that is not free");
        self.conns[index as usize] = Some(conn);
        self.live_conns += 1;
        if self.is_drain_over() {
            self.abort(index);
            return;
        }
        self.arm_conn(index);
        self.account_unfinished(index);
    }

    fn on_writable(&mut self, id: ConnId) {
        let Some(index) = self.find_conn(id) else { return };
        let conn = self.conn_mut(index);
        conn.blocked = false;
        if conn.lane.is_some() {
            self.mark_control(index);
        } else {
            self.mark(index);
        }
    }

    fn on_acknowledged(&mut self, id: SessionId) {
        if let Some(session) = self.find_generation(id) {
            self.sessions[session as usize].acknowledged = true;
        }
    }

    /// Index of a connection that still exists.
    fn find_conn(&self, id: ConnId) -> Option<u32> {
        let conn = self.conns.get(id.index as usize)?.as_ref()?;
        (conn.id == id).then_some(id.index)
    }

    /// Index of a session that still exists.
    fn find_generation(&self, id: SessionId) -> Option<u32> {
        let session = self.sessions.get(id.index as usize)?;
        (session.generation == id.generation).then_some(id.index)
    }

    fn conn(&self, index: u32) -> &Conn {
        self.conns[index as usize].as_ref().expect("a connection in use exists")
    }

    fn conn_mut(&mut self, index: u32) -> &mut Conn {
        self.conns[index as usize].as_mut().expect("a connection in use exists")
    }

    /// The session of an open connection.
    fn session_of(&self, conn: u32) -> u32 {
        let session = self.conn(conn).session;
        assert!(session != NONE, "an open connection has a session");
        session
    }

    fn wall(&self, at: Instant) -> u64 {
        self.wall_ms + at.0 / 1_000_000
    }

    fn is_home(&self, kind: RoomKind, name: &str) -> bool {
        self.cores == 1 || handoff::home(self.seed, self.cores, kind, name) == self.core
    }

    fn other_cores(&self) -> impl Iterator<Item = CoreId> + use<> {
        let core = self.core;
        (0..self.cores).filter(move |other| *other != core)
    }

    fn log(&mut self, level: Level, text: String) {
        let second = self.now.0 / 1_000_000_000;
        if second != self.log_second {
            self.log_second = second;
            self.log_lines = 0;
        }
        self.log_lines += 1;
        if self.log_lines <= LOG_LINES_PER_SECOND {
            self.outputs.push_back(Output::Log(LogLine { level, text }));
        } else {
            self.counters.log_lost += 1;
        }
    }
}

/// The core that a client id belongs to: pinned ids by their hash, anonymous ones by their text.
pub fn home_of_client(seed: u64, cores: CoreId, id: &str) -> CoreId {
    match session::parse_anonymous_id(id) {
        Some((core, _)) if core < cores => core,
        _ => handoff::home(seed, cores, RoomKind::User, id),
    }
}

/// The core that numbers a topic.
pub fn home_of_topic(seed: u64, cores: CoreId, topic: &str) -> CoreId {
    handoff::home(seed, cores, RoomKind::Topic, topic)
}
