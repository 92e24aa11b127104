//! Work between cores: what leaves for them, what they hand over, and who pauses when they take no more.
//!
//! A core never waits for another one. What the other does not take stays here, and over
//! [`Setup::staged_bytes`](super::Setup) the connections that feed it are not read until half is gone. A home
//! core that has too much to spread tells those that feed it to hold, and they pause their connections.

use std::collections::VecDeque;

use super::Shard;
use super::handoff::{Batch, Body, Crossing, Handoff, History, Outgoing, Receipt, Receivers, home};
use super::publish::To;
use super::session::pause;
use super::step::{ConnId, CoreId, RoomKind};
use super::store::{Slot, Store};

/// The other cores, as this one sees them.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// By core.
    outgoing: Box<[Outgoing]>,
    /// Bytes that may wait for one core before its feeders pause.
    most_bytes: usize,
    /// By core: it told us to hold.
    holds: Box<[bool]>,
    /// By core: we told it to hold.
    held: Box<[bool]>,
    /// Something was handed to a core that takes no more for now.
    pressed: bool,
    /// Paused connections that fed such a core, in order of pausing.
    feeding: VecDeque<ConnId>,
    /// Some connection is paused, or some core was told to hold.
    is_anyone_waiting: bool,
}

impl Neighbours {
    pub fn new(cores: CoreId, most_bytes: usize) -> Neighbours {
        let cores = usize::from(cores);
        Neighbours {
            outgoing: (0..cores).map(|_| Outgoing::default()).collect(),
            most_bytes,
            holds: vec![false; cores].into(),
            held: vec![false; cores].into(),
            pressed: false,
            feeding: VecDeque::new(),
            is_anyone_waiting: false,
        }
    }

    pub fn hand(&mut self, to: CoreId, handoff: &Handoff<'_>) {
        let to = usize::from(to);
        self.outgoing[to].push(handoff);
        self.pressed |= self.holds[to] || self.outgoing[to].bytes() > self.most_bytes;
    }

    fn is_any_half_full(&self) -> bool {
        self.outgoing.iter().any(|outgoing| outgoing.bytes() > self.most_bytes / 2)
    }
}

impl Shard {
    /// The next batch of handoffs for another core.
    pub fn take_batch(&mut self, to: CoreId) -> Option<Batch> {
        self.neighbours.outgoing[usize::from(to)].take()
    }

    /// Whether there is a batch for another core.
    pub fn has_batch(&self, to: CoreId) -> bool {
        !self.neighbours.outgoing[usize::from(to)].is_empty()
    }

    /// A batch that went to another core and was read there.
    pub fn return_batch(&mut self, to: CoreId, batch: Batch) {
        self.neighbours.outgoing[usize::from(to)].give_back(batch);
    }

    pub(super) fn hand(&mut self, to: CoreId, handoff: &Handoff<'_>) {
        assert!(to != self.core, "a core hands nothing to itself");
        self.neighbours.hand(to, handoff);
    }

    pub(super) fn home_of(&self, topic: &str) -> CoreId {
        home(self.seed, self.cores, RoomKind::Topic, topic)
    }

    /// Before a message of a connection is handled; [`end_feeding`](Self::end_feeding) follows.
    pub(super) fn begin_feeding(&mut self) {
        self.neighbours.pressed = false;
    }

    /// Pauses the connection if its message went to a core that takes no more for now.
    pub(super) fn end_feeding(&mut self, index: u32) {
        if !std::mem::take(&mut self.neighbours.pressed) {
            return;
        }
        let Some(conn) = self.conns[index as usize].as_ref().filter(|conn| conn.is_open()) else { return };
        if conn.paused & pause::MESH == 0 {
            self.neighbours.feeding.push_back(conn.id);
            self.neighbours.is_anyone_waiting = true;
            self.counters.mesh_pauses += 1;
            self.pause(index, pause::MESH);
        }
    }

    /// Lets those go on that paused because other cores took no more. True: somebody goes on.
    #[inline(always)]
    pub(super) fn relieve_feeders(&mut self) -> bool {
        // This is asked after every send.
        self.neighbours.is_anyone_waiting && self.let_feeders_go()
    }

    fn let_feeders_go(&mut self) -> bool {
        if self.neighbours.is_any_half_full() {
            return false;
        }
        for core in 0..self.cores {
            if std::mem::take(&mut self.neighbours.held[usize::from(core)]) {
                self.hand(core, &Handoff::Release);
            }
        }
        self.neighbours.is_anyone_waiting = !self.neighbours.feeding.is_empty();
        if self.neighbours.feeding.is_empty() || self.neighbours.holds.contains(&true) {
            return false;
        }
        // One at a time: what it has held goes out before the next one is let go, and may be enough.
        if let Some(conn) = self.neighbours.feeding.pop_front()
            && let Some(index) = self.find_conn(conn).filter(|index| self.conn(*index).is_open())
        {
            self.unpause(index, pause::MESH);
        }
        true
    }

    /// The owner of an id publishes more than other cores take: it lives, although nothing is read of it.
    pub(super) fn is_feeding(&self, session: u32) -> bool {
        let conn = self.sessions[session as usize].conn;
        self.conn(conn).paused & pause::MESH != 0
    }

    pub(super) fn on_handoff(&mut self, from: CoreId, handoff: Handoff<'_>) {
        match handoff {
            Handoff::Number { topic, event, payload } => {
                self.number(topic, event, payload, None);
                self.hold_feeder(from);
            }
            Handoff::Numbered { topic, topic_seq, event, receipt } => {
                self.follow(topic, topic_seq, event);
                self.confirm(from, receipt);
            }
            Handoff::Deliver { to, event, receipt } => {
                self.deliver_crossing(to, event);
                self.confirm(from, receipt);
            }
            Handoff::Delivered { receipt } => self.on_delivered(receipt),
            Handoff::Interest { topic } => self.on_interest(from, topic),
            Handoff::Interested { topic, topic_seq, history } => {
                self.on_interested(topic, topic_seq, history);
            }
            Handoff::Disinterest { topic } => self.on_disinterest(from, topic),
            Handoff::List => self.on_list(from),
            Handoff::Listed { rows } => self.on_listed(rows),
            Handoff::Hold => self.neighbours.holds[usize::from(from)] = true,
            Handoff::Release => self.neighbours.holds[usize::from(from)] = false,
            Handoff::Flush { round } => self.on_flush(round),
        }
    }

    /// A core that feeds this one is told to hold if this one has too much to spread.
    fn hold_feeder(&mut self, from: CoreId) {
        let held = &mut self.neighbours.held[usize::from(from)];
        if !*held && self.neighbours.pressed {
            *held = true;
            self.neighbours.is_anyone_waiting = true;
            self.hand(from, &Handoff::Hold);
        }
        self.neighbours.pressed = false;
    }

    fn confirm(&mut self, from: CoreId, receipt: Option<Receipt>) {
        if let Some(receipt) = receipt {
            self.hand(from, &Handoff::Delivered { receipt });
        }
    }

    fn on_interest(&mut self, from: CoreId, topic: &str) {
        let room = self.rooms.find_or_make(RoomKind::Topic, topic);
        let found = self.rooms.topic_mut(room);
        if !found.interested.contains(&from) {
            found.interested.push(from);
        }
        let topic_seq = found.seq;
        let history = self.history_of(topic);
        self.settle_room(room);
        self.hand(from, &Handoff::Interested { topic, topic_seq, history: history.past() });
    }

    fn on_disinterest(&mut self, from: CoreId, topic: &str) {
        let Some(room) = self.rooms.find(RoomKind::Topic, topic) else { return };
        self.rooms.topic_mut(room).interested.retain(|core| *core != from);
        self.settle_room(room);
    }

    /// A topic's history, for another core.
    fn history_of(&self, topic: &str) -> History {
        let mut history = History::default();
        let Some(room) = self.rooms.find(RoomKind::Topic, topic) else { return history };
        for (seq, slot) in &self.rooms.topic(room).history {
            if let Some(event) = crossing(&self.store, *slot) {
                history.push(*seq, &event);
            }
        }
        history
    }

    /// Stores an event of another core, pinned.
    pub(super) fn store_crossing(&mut self, event: Crossing<'_>) -> Slot {
        match event.body {
            Body::Payload(payload) => self.store.insert(event.event, self.schema.id(event.event), payload),
            Body::Frame(frame) => self.store.insert_frame(event.event, frame.clone()),
        }
    }

    fn deliver_crossing(&mut self, to: Receivers<'_>, event: Crossing<'_>) {
        let to = match to {
            Receivers::All => To::All,
            Receivers::Room(kind, name) => To::Room(kind, name),
        };
        let slot = self.store_crossing(event);
        self.deliver(to, slot);
        self.store.unpin(slot);
    }
}

/// A stored event, for another core; none when it is gone.
pub(super) fn crossing(store: &Store, slot: Slot) -> Option<Crossing<'_>> {
    let body = match store.large(slot) {
        Some(frame) => Body::Frame(frame),
        None => Body::Payload(store.payload(slot)?),
    };
    Some(Crossing { event: store.event(slot), body })
}
