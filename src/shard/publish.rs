//! An event to its receivers: stored once, counted and traced, numbered by its topic, handed to the cores that have
//! receivers.

use std::collections::HashMap;

use crate::wire::envelope::HEADER_BYTES;

use super::Shard;
use super::handoff::{Crossing, Handoff, Receipt, Receivers};
use super::neighbours::crossing;
use super::step::{Answer, Direction, EventIndex, RoomKind};
use super::store::Slot;
use super::trace::{Key, Record};

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
            key: Key::Name(key),
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
}
