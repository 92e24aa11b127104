//! An event to its receivers: stored once, numbered by its topic, pushed into every outbox; the policies that judge an
//! outbox whose connection cannot take more.

use std::collections::HashMap;

use crate::config::Policy;
use crate::limits::MAX_SEQ;
use crate::wire::envelope::HEADER_BYTES;

use super::handoff::{Crossing, Handoff, Receipt, Receivers};
use super::neighbours::crossing;
use super::session::{NONE, Session};
use super::step::{Answer, Direction, EventIndex, Instant, RoomKind};
use super::store::{Slot, Store};
use super::timer::Owner;
use super::trace::Record;
use super::{Overdue, Shard};

/// Whom an event goes to, a single client apart.
#[derive(Debug, Clone, Copy)]
pub(super) enum To<'a> {
    All,
    Room(RoomKind, &'a str),
}

impl<'a> To<'a> {
    /// As the trace shows it.
    fn shown(self) -> (&'static str, &'a str) {
        match self {
            To::All => ("broadcast", ""),
            To::Room(RoomKind::Topic, name) => ("topic", name),
            To::Room(RoomKind::Group, name) => ("group", name),
            To::Room(RoomKind::User, name) => ("user", name),
        }
    }
}

/// An event on its way into outboxes, with what is the same for all of them.
#[derive(Debug, Clone, Copy)]
struct Delivery {
    slot: Slot,
    /// Bytes of its frame.
    len: u32,
    /// When a history that it is the last event of ends.
    expires: Instant,
    /// An outbox that has more events than this, or more bytes than that, is sent first.
    half_queue: u32,
    half_mark: u64,
}

/// Publishes whose answer waits for other cores.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    waiting: HashMap<Receipt, Waiting>,
    last: Receipt,
}

#[derive(Debug)]
struct Waiting {
    cores: usize,
    ticket: u64,
    answer: Answer,
}

impl Shard {
    /// Publishes a verified payload. With a ticket, the answer goes out when every core has the event.
    pub(super) fn publish(&mut self, event: EventIndex, payload: &[u8], to: To<'_>, ticket: Option<u64>) {
        let receivers = match to {
            To::Room(RoomKind::Topic, topic) if self.is_home(RoomKind::Topic, topic) => {
                return self.number(topic, event, payload, ticket);
            }
            To::Room(RoomKind::Topic, topic) => {
                assert!(ticket.is_none(), "the control thread asks the home of a topic");
                return self.hand(self.home_of(topic), &Handoff::Number { topic, event, payload });
            }
            To::Room(kind, name) => Receivers::Room(kind, name),
            To::All => Receivers::All,
        };
        self.account(event, payload, to.shown());
        let slot = self.store.insert(event, self.schema.id(event), payload);
        self.deliver(to, slot);
        let others = usize::from(self.cores) - 1;
        let receipt = self.open_receipt(ticket, others, Answer::Published { topic: None, parked: false });
        if let Some(event) = crossing(&self.store, slot) {
            for core in self.other_cores() {
                self.neighbours.hand(core, &Handoff::Deliver { to: receivers, event, receipt });
            }
        }
        self.store.unpin(slot);
    }

    /// Counts and traces a publish, at the core that accepts it.
    fn account(&mut self, event: EventIndex, payload: &[u8], (target, key): (&'static str, &str)) {
        self.counters.published += 1;
        self.encoded[usize::from(event)] += 1;
        self.trace.record(&Record {
            at: self.now,
            ts: self.wall(self.now),
            direction: Direction::Publish,
            event,
            bytes: HEADER_BYTES + payload.len(),
            target: Some(target),
            key: format_args!("{key}"),
            payload,
        });
    }

    /// At the topic's home.
    pub(super) fn number(&mut self, topic: &str, event: EventIndex, payload: &[u8], ticket: Option<u64>) {
        self.account(event, payload, To::Room(RoomKind::Topic, topic).shown());
        let slot = self.store.insert(event, self.schema.id(event), payload);
        self.number_stored(topic, slot, ticket);
    }

    /// At the topic's home: the next number, the history, the members here, the cores with members.
    fn number_stored(&mut self, topic: &str, slot: Slot, ticket: Option<u64>) {
        let room = self.rooms.find_or_make(RoomKind::Topic, topic);
        let found = self.rooms.topic_mut(room);
        found.seq += 1;
        let (topic_seq, epoch) = (found.seq, found.epoch);
        self.remember(room, topic_seq, slot);
        self.deliver_room(room, slot);
        let others = self.rooms.topic(room).interested.len();
        let receipt = ticket.and_then(|ticket| {
            let topic_at = Some((format!("{epoch:016x}").into(), topic_seq));
            self.open_receipt(Some(ticket), others, Answer::Published { topic: topic_at, parked: false })
        });
        if let Some(event) = crossing(&self.store, slot) {
            for core in &self.rooms.topic(room).interested {
                self.neighbours.hand(*core, &Handoff::Numbered { topic, topic_seq, event, receipt });
            }
        }
        self.store.unpin(slot);
        if self.rooms.room(room).members.is_empty() {
            self.settle_room(room);
        }
    }

    /// On a core that follows the topic.
    pub(super) fn follow(&mut self, topic: &str, topic_seq: u64, event: Crossing<'_>) {
        let Some(room) = self.rooms.find(RoomKind::Topic, topic) else { return };
        let found = self.rooms.topic_mut(room);
        if !found.follows {
            return;
        }
        assert!(topic_seq == found.seq + 1, "handoffs of one core arrive in order");
        found.seq = topic_seq;
        let slot = self.store_crossing(event);
        self.remember(room, topic_seq, slot);
        self.deliver_room(room, slot);
        self.store.unpin(slot);
    }

    /// Puts an event into its topic's history.
    pub(super) fn remember(&mut self, room: u32, topic_seq: u64, slot: Slot) {
        let size = self.config.replay.history_size as usize;
        if size == 0 {
            return;
        }
        self.store.hold_topic(slot, room);
        let history = &mut self.rooms.topic_mut(room).history;
        history.push_back((topic_seq, slot));
        if history.len() > size
            && let Some((_, oldest)) = history.pop_front()
        {
            self.store.release_topic(oldest);
        }
    }

    fn open_receipt(&mut self, ticket: Option<u64>, cores: usize, answer: Answer) -> Option<Receipt> {
        let ticket = ticket?;
        if cores == 0 {
            self.reply(ticket, answer);
            return None;
        }
        self.receipts.last += 1;
        let receipt = self.receipts.last;
        self.receipts.waiting.insert(receipt, Waiting { cores, ticket, answer });
        Some(receipt)
    }

    pub(super) fn on_delivered(&mut self, receipt: Receipt) {
        let waiting = self.receipts.waiting.get_mut(&receipt).expect("each core confirms once");
        waiting.cores -= 1;
        if waiting.cores == 0
            && let Some(done) = self.receipts.waiting.remove(&receipt)
        {
            self.reply(done.ticket, done.answer);
        }
    }

    /// An order to publish to one client.
    pub(super) fn publish_to_client(&mut self, event: EventIndex, payload: &[u8], id: &str) -> Answer {
        let Some(session) = self.find_client(id) else { return Answer::NotFound };
        self.account(event, payload, ("client", id));
        self.push_payload(event, payload, session);
        Answer::Published { topic: None, parked: self.sessions[session as usize].is_parked() }
    }

    /// A client's event back to itself.
    pub(super) fn publish_to_session(&mut self, event: EventIndex, payload: &[u8], session: u32) {
        self.counters.published += 1;
        self.encoded[usize::from(event)] += 1;
        self.push_payload(event, payload, session);
    }

    fn push_payload(&mut self, event: EventIndex, payload: &[u8], session: u32) {
        let slot = self.store.insert(event, self.schema.id(event), payload);
        self.deliver_session(session, slot);
        self.store.unpin(slot);
    }

    /// To the receivers of this core.
    pub(super) fn deliver(&mut self, to: To<'_>, slot: Slot) {
        match to {
            To::All => {
                let event = self.delivery(slot);
                let mut held = 0;
                for session in 0..self.session_places {
                    if self.sessions.contains(session as usize) {
                        held += u32::from(self.push(session, &event));
                    }
                }
                self.store.hold_live(slot, held);
            }
            To::Room(kind, name) => {
                if let Some(room) = self.rooms.find(kind, name) {
                    self.deliver_room(room, slot);
                }
            }
        }
    }

    fn deliver_room(&mut self, room: u32, slot: Slot) {
        let members = std::mem::take(&mut self.rooms.room_mut(room).members);
        let event = self.delivery(slot);
        let held = members.iter().map(|session| u32::from(self.push(*session, &event))).sum();
        self.store.hold_live(slot, held);
        self.rooms.room_mut(room).members = members;
    }

    fn deliver_session(&mut self, session: u32, slot: Slot) {
        let event = self.delivery(slot);
        let held = self.push(session, &event);
        self.store.hold_live(slot, u32::from(held));
    }

    fn delivery(&self, slot: Slot) -> Delivery {
        let limits = &self.config.backpressure;
        Delivery {
            slot,
            len: self.store.len(slot),
            expires: self.now + self.config.resume.ttl,
            half_queue: limits.max_queue / 2,
            half_mark: limits.high_water_mark / 2,
        }
    }

    /// One pinned event into one outbox. The policy judges it if the kernel has refused bytes of the connection, or if
    /// events wait there for a hello. True: the outbox holds it, and the caller tells the store.
    fn push(&mut self, index: u32, event: &Delivery) -> bool {
        let session = &mut self.sessions[index as usize];
        let conn = self.conns.get_mut(session.conn as usize).and_then(Option::as_mut);
        let is_plain = session.open && session.outbox.next() <= MAX_SEQ;
        let Some(conn) = conn.filter(|conn| is_plain && !conn.blocked) else {
            self.push_specially(index, event.slot);
            return false;
        };
        let outbox = &mut session.outbox;
        outbox.push(event.slot, event.len);
        if outbox.waiting() > event.half_queue || outbox.waiting_bytes() > event.half_mark {
            self.wants_flush = true;
            if !self.coalescing.is_empty() {
                // It waits for its time no longer.
                self.list.push_back(conn.id.index);
            }
        }
        if !conn.in_list {
            conn.in_list = true;
            self.list.push_back(conn.id.index);
        }
        self.counters.stamped_seq += u64::from(self.config.resume.enabled);
        session.last_event = self.now;
        self.timers.arm(&mut session.armed, event.expires, Owner::Session(index));
        slide(session, &mut self.store, self.history, self.config.backpressure.max_queue);
        true
    }

    fn push_specially(&mut self, index: u32, slot: Slot) {
        let session = &self.sessions[index as usize];
        if session.conn == NONE {
            self.push_parked(index, slot);
        } else if session.outbox.next() > MAX_SEQ {
            self.overdue.push(Overdue::Exhausted(session.conn));
        } else {
            self.push_judged(index, slot);
        }
    }

    /// A number was given out: the history makes room, its lifetime begins anew.
    fn stamped(&mut self, index: u32) {
        if self.config.resume.enabled {
            self.counters.stamped_seq += 1;
        }
        let session = &mut self.sessions[index as usize];
        session.last_event = self.now;
        let at = self.now + self.config.resume.ttl;
        self.timers.arm(&mut session.armed, at, Owner::Session(index));
        self.slide(index);
    }

    /// A connection that cannot take it now, or is not to get it yet.
    fn push_judged(&mut self, index: u32, slot: Slot) {
        let (policy, mark, most) = {
            let config = &self.config.backpressure;
            (config.policy, config.high_water_mark, config.max_queue.max(1))
        };
        let len = self.store.len(slot);
        let outbox = &mut self.sessions[index as usize].outbox;
        let is_over = outbox.waiting() > 0 && outbox.waiting_bytes() > mark;
        match policy {
            Policy::DropNewest if is_over => {
                self.counters.dropped_newest += 1;
                if !self.config.resume.enabled {
                    outbox.dropped += 1;
                    return;
                }
                outbox.push(slot, len);
                outbox.drop_newest(len);
                self.store.hold_live(slot, 1);
            }
            Policy::Disconnect if is_over => {
                self.counters.disconnected_slow += 1;
                outbox.push(slot, len);
                self.store.hold_live(slot, 1);
                let conn = self.sessions[index as usize].conn;
                self.overdue.push(Overdue::Slow(conn));
            }
            Policy::DropOldest => {
                while self.sessions[index as usize].outbox.waiting_bytes() > mark && self.drop_oldest(index) {
                }
                self.sessions[index as usize].outbox.push(slot, len);
                self.store.hold_live(slot, 1);
                while self.sessions[index as usize].outbox.waiting() > most && self.drop_oldest(index) {}
            }
            Policy::DropNewest | Policy::Disconnect => {
                outbox.push(slot, len);
                self.store.hold_live(slot, 1);
            }
        }
        self.bound_skipped(index);
        self.stamped(index);
    }

    /// Events dropped from inside a queue leave the ring only with what is before them: when there are too many of
    /// them, the queue gives up its front.
    fn bound_skipped(&mut self, index: u32) {
        let most = self.history + u64::from(self.config.backpressure.max_queue);
        loop {
            let outbox = &mut self.sessions[index as usize].outbox;
            if u64::from(outbox.skipped()) <= most {
                return;
            }
            let bytes = self.store.len(outbox.entry(outbox.cursor()).slot());
            self.counters.dropped_oldest += u64::from(outbox.drop_front(bytes));
        }
    }

    fn drop_oldest(&mut self, index: u32) -> bool {
        let outbox = &mut self.sessions[index as usize].outbox;
        let Some(seq) = outbox.droppable() else { return false };
        outbox.drop_oldest(self.store.len(outbox.entry(seq).slot()));
        self.counters.dropped_oldest += 1;
        true
    }

    /// A parked session records what it would have got: its newest `history_size` events, or as many as waited when it
    /// was parked, if those were more.
    fn push_parked(&mut self, index: u32, slot: Slot) {
        let outbox = &mut self.sessions[index as usize].outbox;
        if outbox.next() > MAX_SEQ {
            outbox.dropped += 1;
            return;
        }
        let waited = outbox.next() - outbox.cursor();
        let len = self.store.len(slot);
        outbox.push(slot, len);
        self.store.hold_parked(slot);
        if waited >= self.history {
            if !outbox.entry(outbox.cursor()).is_skipped() {
                outbox.dropped += 1;
                self.counters.dropped_parked += 1;
            }
            outbox.pass_parked();
        }
        self.counters.stamped_seq += 1;
        self.slide(index);
    }

    /// History of a topic: part of the stream, paced by the socket, judged by no policy.
    pub(super) fn push_unjudged(&mut self, index: u32, slot: Slot) {
        let len = self.store.len(slot);
        let session = &mut self.sessions[index as usize];
        if session.outbox.next() > MAX_SEQ {
            self.overdue.push(Overdue::Exhausted(session.conn));
            return;
        }
        session.outbox.push(slot, len);
        self.store.hold_live(slot, 1);
        let conn = session.conn;
        self.stamped(index);
        self.mark(conn);
    }

    /// A session's history makes room.
    pub(super) fn slide(&mut self, index: u32) {
        let most = self.config.backpressure.max_queue;
        slide(&mut self.sessions[index as usize], &mut self.store, self.history, most);
    }
}

/// Retains the newest `history` events and all that wait. What a running replay still has to send stays too, within
/// twice the history and `max_queue`: a reader that stalls in a replay does not hold memory without end.
///
/// Part of `push`, once for each delivery; left to the compiler, changes elsewhere decide whether it is a call.
#[inline(always)]
fn slide(session: &mut Session, store: &mut Store, history: u64, max_queue: u32) {
    if session.outbox.retained() <= history {
        return;
    }
    let mut floor = session.outbox.cursor();
    if let Some(replay) = session.replay() {
        let most = 2 * history + u64::from(max_queue);
        if session.outbox.next() - replay.position.min(session.outbox.next()) <= most {
            floor = floor.min(replay.position);
        }
    }
    let is_parked = session.is_parked();
    let outbox = &mut session.outbox;
    while outbox.oldest() < floor && outbox.retained() > history {
        let slot = outbox.pop_oldest().slot();
        if is_parked {
            store.release_parked(slot);
        } else {
            store.release_live(slot);
        }
    }
}
