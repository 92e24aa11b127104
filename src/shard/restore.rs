//! A fresh core takes up what another process left: parked sessions, topics and their events, under the limits of the
//! present configuration.

use std::sync::Arc;

use super::Shard;
use super::admit::Access;
use super::outbox::Outbox;
use super::saved::SavedSession;
use super::session::{ClientId, Known, NONE, Session};
use super::split::{Restored, RestoredTopic};
use super::step::{Instant, RoomKind};
use super::store::Slot;
use super::timer::Owner;

/// What sessions and topics are made of.
struct Basis {
    /// By place of the event, pinned.
    slots: Vec<Slot>,
    /// Stands for every event that has left.
    gone: Slot,
    /// Nothing is allowed; the next connection brings its own.
    access: Access,
}

impl Shard {
    /// Takes up what a process before this one left. To be called before the first step; handoffs may be among the
    /// outputs afterwards. Time goes on for sessions while no process runs. What is over a limit leaves as it would
    /// have in a running core: the oldest first.
    ///
    /// # Panics
    /// When this core has taken a step, or `restored` did not pass [`check`](super::saved::check).
    pub fn restore(&mut self, now: Instant, restored: &Restored) {
        assert!(self.started.is_none() && self.sessions.is_empty(), "only a fresh core is filled");
        self.now = self.now.max(now);
        let basis = self.restore_events(restored);
        for topic in &restored.topics {
            self.restore_topic(topic, &basis);
        }
        for session in &restored.sessions {
            self.restore_session(session, &basis);
        }
        // In order of age, and so they leave when there is not room for all.
        for slot in basis.slots.into_iter().chain([basis.gone]) {
            self.store.unpin(slot);
        }
        self.end_parked_over_limit();
        for topic in &restored.topics {
            if let Some(room) = self.rooms.find(RoomKind::Topic, &topic.topic.name) {
                self.settle_room(room);
            }
        }
        self.relieve();
    }

    fn restore_events(&mut self, restored: &Restored) -> Basis {
        let gone = self.store.insert_gone();
        let slots = restored.events.iter().map(|event| match self.schema.by_id(event.id) {
            Some(known) => self.store.insert(known, event.id, &event.payload),
            None => self.store.insert_gone(),
        });
        Basis { slots: slots.collect(), gone, access: Access::Identity(Arc::default()) }
    }

    fn restore_topic(&mut self, restored: &RestoredTopic, events: &Basis) {
        let saved = &restored.topic;
        let room = self.rooms.find_or_make(RoomKind::Topic, &saved.name);
        self.rooms.keep_off(saved.epoch);
        let is_home = self.is_home(RoomKind::Topic, &saved.name);
        let topic = self.rooms.topic_mut(room);
        topic.seq = saved.seq;
        topic.epoch = saved.epoch;
        topic.interested.clone_from(&restored.interested);
        topic.follows = !is_home;
        for (seq, event) in &saved.history {
            let slot = events.slots[*event as usize];
            if !self.store.is_empty_slot(slot) {
                self.remember(room, *seq, slot);
            }
        }
    }

    fn restore_session(&mut self, saved: &SavedSession, events: &Basis) {
        let parked_at = self.instant(saved.parked_at);
        let end = parked_at + self.config.resume.ttl;
        if !self.config.resume.enabled || end <= self.now {
            self.counters.parked_expired += 1;
            return;
        }
        let entries = saved.entries.iter().map(|entry| {
            let slot = entry.event().map_or(events.gone, |event| events.slots[event as usize]);
            self.store.hold_parked(slot);
            (slot, entry.is_unsent(), entry.is_skipped())
        });
        let outbox = Outbox::restored(saved.oldest, saved.cursor, saved.lost_to, saved.dropped, entries);
        self.next_generation = self.next_generation.wrapping_add(1);
        let known = Known {
            first_seq: saved.first_seq,
            declared: saved.declared,
            ..Known::new(ClientId::Pinned(saved.id.clone()), events.access.clone())
        };
        let mut session = Session::new(self.next_generation, NONE, outbox, true, known, parked_at);
        session.acknowledged = saved.acknowledged;
        session.greeted = saved.greeted;
        let index = u32::try_from(self.sessions.insert(session)).expect("checked when it was read");
        self.session_places = self.session_places.max(index + 1);
        self.pinned.insert(saved.id.clone(), index);
        for joined in &saved.rooms {
            let room = self.rooms.find_or_make(joined.kind, &joined.name);
            self.enter(index, room, joined.origin);
        }
        self.count_parked(index, true);
        self.parked += 1;
        self.counters.sessions_restored += 1;
        self.parked_order.push_back((self.session_id(index), parked_at));
        self.timers.arm(&mut self.sessions[index as usize].armed, end, Owner::Session(index));
        self.slide(index);
    }

    /// The monotonic time of a wall clock's; what lies before the first or in the future is moved there.
    fn instant(&self, wall_ms: u64) -> Instant {
        Instant(wall_ms.saturating_sub(self.wall_ms).saturating_mul(1_000_000)).min(self.now)
    }
}
