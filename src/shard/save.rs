//! From a core that has drained to what of it outlives the process.
//!
//! Handoffs may still be on their way between cores when the order comes. Each core that gets it hands a *flush* to
//! all others; with one of each of them it hands a second, and with those it is done. Between two cores things arrive
//! in order, so behind the first flush of a core lies whatever that core had for the homes of topics, numbered by the
//! time a home hands its second one; and behind the second lies whatever was numbered, delivered or answered. The same
//! order brings a publish before the order to save that the control thread gave behind it. So nothing has to be waited
//! for by time, and whoever publishes has his answer before the core's state is out of its hands.

use bytes::Bytes;

use super::Shard;
use super::handoff::Handoff;
use super::saved::{Saved, SavedEntry, SavedEvent, SavedRoom, SavedSession, SavedTopic};
use super::session::{ClientId, Session};
use super::step::{Answer, RoomKind};
use super::store::{Slot, Store};
use crate::wire::envelope::HEADER_BYTES;

/// How far a core has come on the way to a saved state.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// The order.
    ticket: Option<u64>,
    /// Flushes handed to each other core.
    handed: u8,
    /// Flushes that have come, by round.
    come: [u16; 2],
}

impl Shard {
    pub(super) fn on_save(&mut self, ticket: u64) {
        assert!(self.saving.ticket.is_none() && self.saving.handed == 0, "a state is saved once");
        self.saving.ticket = Some(ticket);
        self.hand_flush(1);
        self.go_on_saving();
    }

    pub(super) fn on_flush(&mut self, round: u8) {
        self.saving.come[usize::from(round == 2)] += 1;
        self.go_on_saving();
    }

    fn hand_flush(&mut self, round: u8) {
        self.saving.handed = round;
        for core in self.other_cores() {
            self.hand(core, &Handoff::Flush { round });
        }
    }

    fn go_on_saving(&mut self) {
        let others = self.cores - 1;
        if self.saving.handed == 1 && self.saving.come[0] == others {
            self.hand_flush(2);
        }
        if self.saving.handed == 2
            && self.saving.come[1] == others
            && let Some(ticket) = self.saving.ticket.take()
        {
            let saved = Box::new(self.save());
            self.reply(ticket, Answer::Saved(saved));
        }
    }

    /// What of this core outlives it.
    fn save(&self) -> Saved {
        assert!(self.connected == 0, "a core is saved when it has drained");
        let mut topics: Vec<u32> = self.rooms.topics().filter(|room| self.is_worth_keeping(*room)).collect();
        topics.sort_by_key(|room| self.rooms.topic(*room).idle);
        let mut places = Places::new(&self.store);
        for room in &topics {
            self.rooms.topic(*room).history.iter().for_each(|(_, slot)| places.mark(*slot));
        }
        for (_, session) in &self.sessions {
            slots_of(session).for_each(|slot| places.mark(slot));
        }
        let slots = places.number(&self.store);
        Saved {
            events: slots.iter().filter_map(|slot| self.save_event(*slot)).collect(),
            topics: topics.iter().map(|room| self.save_topic(*room, &places)).collect(),
            sessions: self.sessions.iter().filter_map(|(_, s)| self.save_session(s, &places)).collect(),
        }
    }

    fn is_worth_keeping(&self, room: u32) -> bool {
        self.rooms.topic(room).seq > 0 && self.is_home(RoomKind::Topic, &self.rooms.room(room).name)
    }

    fn save_event(&self, slot: Slot) -> Option<SavedEvent> {
        let payload = match self.store.large(slot) {
            Some(frame) => frame.slice(self.store.head(slot) + HEADER_BYTES..),
            None => Bytes::copy_from_slice(self.store.payload(slot)?),
        };
        Some(SavedEvent { id: self.schema.id(self.store.event(slot)), payload })
    }

    fn save_topic(&self, room: u32, places: &Places) -> SavedTopic {
        let topic = self.rooms.topic(room);
        let history = topic.history.iter().filter_map(|(seq, slot)| Some((*seq, places.get(*slot)?)));
        let name = self.rooms.room(room).name.clone();
        SavedTopic { name, epoch: topic.epoch, seq: topic.seq, history: history.collect() }
    }

    fn save_session(&self, session: &Session, places: &Places) -> Option<SavedSession> {
        let ClientId::Pinned(id) = &session.known().id else { return None };
        let outbox = &session.outbox;
        let entries = (outbox.oldest()..outbox.next()).map(|seq| outbox.entry(seq));
        let entries = entries
            .map(|entry| SavedEntry::new(places.get(entry.slot()), entry.is_unsent(), entry.is_skipped()));
        let rooms = session.rooms.iter().map(|joined| {
            let room = self.rooms.room(joined.room);
            SavedRoom { kind: room.kind, name: room.name.clone(), origin: joined.origin }
        });
        Some(SavedSession {
            id: id.clone(),
            parked_at: self.wall(session.last_event),
            acknowledged: session.acknowledged,
            greeted: session.greeted,
            first_seq: session.known().first_seq,
            declared: session.known().declared,
            dropped: outbox.dropped(),
            oldest: outbox.oldest(),
            cursor: outbox.cursor(),
            lost_to: outbox.lost_to(),
            entries: entries.collect(),
            rooms: rooms.collect(),
        })
    }
}

fn slots_of(session: &Session) -> impl Iterator<Item = Slot> {
    let outbox = &session.outbox;
    (outbox.oldest()..outbox.next()).map(|seq| outbox.entry(seq).slot())
}

/// Where the events of a store stand among the saved ones.
struct Places(Vec<u32>);

/// Nobody holds it, or it has left.
const NOWHERE: u32 = u32::MAX;
/// It has no number yet.
const SOMEWHERE: u32 = u32::MAX - 1;

impl Places {
    fn new(store: &Store) -> Places {
        Places(vec![NOWHERE; store.places()])
    }

    fn mark(&mut self, slot: Slot) {
        self.0[slot as usize] = SOMEWHERE;
    }

    /// Numbers what was marked and is still stored, in order of age; the slots in that order.
    fn number(&mut self, store: &Store) -> Vec<Slot> {
        let marked = (0..self.0.len() as Slot).filter(|slot| self.0[*slot as usize] == SOMEWHERE);
        let mut slots: Vec<Slot> = marked.filter(|slot| !store.is_empty_slot(*slot)).collect();
        slots.sort_unstable_by_key(|slot| store.age(*slot));
        self.0.fill(NOWHERE);
        for (place, slot) in (0..).zip(&slots) {
            self.0[*slot as usize] = place;
        }
        slots
    }

    fn get(&self, slot: Slot) -> Option<u32> {
        Some(self.0[slot as usize]).filter(|place| *place != NOWHERE)
    }
}
