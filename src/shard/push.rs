//! One event into outboxes: the short way of those whose connections take bytes, once for each delivery; the policies
//! that judge an outbox whose connection cannot take more; what parked sessions record.

use crate::config::Policy;
use crate::limits::MAX_SEQ;

use super::outbox::Outbox;
use super::publish::To;
use super::session::{Flow, NONE};
use super::store::{Slot, Store};
use super::timer::Owner;
use super::{Overdue, Shard};

/// An event on its way into outboxes, with what is the same for all of them.
#[derive(Debug, Clone, Copy)]
struct Delivery {
    slot: Slot,
    /// Bytes of its frame.
    len: u32,
    /// One less than the events that a session keeps, 0 of them wrapped: more than that is as many at least, of which
    /// one can go.
    below_history: u64,
    /// An outbox that has more events than this, or more bytes than that, is sent first.
    half_queue: u32,
    half_mark: u64,
}

impl Delivery {
    /// Into the ring, in which room is made first. `all_sent` = nothing waits in it.
    #[inline(always)]
    fn append(&self, outbox: &mut Outbox, all_sent: bool, tally: &mut Tally, store: &mut Store) {
        if outbox.is_full() && outbox.retained() > self.below_history && (all_sent || outbox.has_sent()) {
            tally.release(store, outbox.replace_oldest(self.slot));
        } else if let Some(oldest) = outbox.append(self.slot, self.below_history.wrapping_add(1)) {
            tally.release(store, oldest);
        }
    }

    #[inline(always)]
    fn is_half(&self, outbox: &Outbox) -> bool {
        outbox.waiting() > self.half_queue || outbox.waiting_bytes() > self.half_mark
    }
}

/// What a delivery to many adds up; the store and the counters hear of it once.
#[derive(Debug, Default)]
struct Tally {
    /// Sessions that went the long way and told the store themselves.
    slowly: u32,
    /// An event that as many histories one after the other have let go: mostly it is the same for all.
    released: Slot,
    times: u32,
}

impl Tally {
    #[inline(always)]
    fn release(&mut self, store: &mut Store, slot: Slot) {
        if slot == self.released {
            self.times += 1;
        } else {
            self.told(store);
            (self.released, self.times) = (slot, 1);
        }
    }

    /// The store knows of everything that was let go.
    #[inline(never)]
    fn told(&mut self, store: &mut Store) {
        if self.times > 0 {
            store.release_many(self.released, self.times);
            self.times = 0;
        }
    }
}

impl Shard {
    /// To the receivers of this core.
    pub(super) fn deliver(&mut self, to: To<'_>, slot: Slot) {
        match to {
            To::All => {
                let (event, mut tally) = (self.delivery(slot), Tally::default());
                for session in 0..self.session_places {
                    if self.sessions.contains(session as usize) {
                        self.push(session, &event, &mut tally);
                    }
                }
                self.add_up(self.sessions.len(), &event, tally);
            }
            To::Room(kind, name) => {
                if let Some(room) = self.rooms.find(kind, name) {
                    self.deliver_room(room, slot);
                }
            }
        }
    }

    pub(super) fn deliver_room(&mut self, room: u32, slot: Slot) {
        let members = std::mem::take(&mut self.rooms.room_mut(room).members);
        let (event, mut tally) = (self.delivery(slot), Tally::default());
        for session in &members {
            self.push(*session, &event, &mut tally);
        }
        self.add_up(members.len(), &event, tally);
        self.rooms.room_mut(room).members = members;
    }

    pub(super) fn deliver_session(&mut self, session: u32, slot: Slot) {
        let (event, mut tally) = (self.delivery(slot), Tally::default());
        self.push(session, &event, &mut tally);
        self.add_up(1, &event, tally);
    }

    fn delivery(&self, slot: Slot) -> Delivery {
        let limits = &self.config.backpressure;
        Delivery {
            slot,
            len: self.store.len(slot),
            below_history: self.history.wrapping_sub(1),
            half_queue: limits.max_queue / 2,
            half_mark: limits.high_water_mark / 2,
        }
    }

    fn add_up(&mut self, receivers: usize, event: &Delivery, mut tally: Tally) {
        tally.told(&mut self.store);
        let held = u32::try_from(receivers).expect("sessions are counted in 32 bits") - tally.slowly;
        self.store.hold_live(event.slot, held);
        self.counters.stamped_seq += u64::from(held) * u64::from(self.config.resume.enabled);
        // One event may be more than half of an outbox.
        let is_half = event.half_queue == 0 || u64::from(event.len) > event.half_mark;
        self.wants_flush |= held > 0 && is_half;
    }

    /// One pinned event into one outbox: the short way, part of the loop that calls it.
    #[inline(always)]
    fn push(&mut self, index: u32, event: &Delivery, tally: &mut Tally) {
        let session = &mut self.sessions[index as usize];
        if session.flow == Flow::Idle {
            session.flow = Flow::Listed;
            self.list.push(session.conn);
            event.append(&mut session.outbox, true, tally, &mut self.store);
            session.outbox.first_waits(event.len);
        } else if session.flow != Flow::Special {
            event.append(&mut session.outbox, false, tally, &mut self.store);
            session.outbox.one_more_waits(event.len);
            if event.is_half(&session.outbox) {
                let conn = session.conn;
                self.send_first(conn);
            }
        } else {
            self.push_slowly(index, event, tally);
        }
    }

    /// An outbox is half full: sending comes before anything else.
    #[cold]
    fn send_first(&mut self, conn: u32) {
        self.wants_flush = true;
        if !self.coalescing.is_empty() {
            // It waits for its time no longer.
            self.list.push(conn);
        }
    }

    /// The long way: the policy judges the event if the kernel has refused bytes of the connection, or if events wait
    /// there for a hello.
    #[cold]
    fn push_slowly(&mut self, index: u32, event: &Delivery, tally: &mut Tally) {
        tally.slowly += 1;
        let session = &self.sessions[index as usize];
        if session.conn == NONE {
            return self.push_parked(index, event.slot);
        }
        if session.outbox.next() > MAX_SEQ {
            return self.overdue.push(Overdue::Exhausted(session.conn));
        }
        if !session.open || self.conn(session.conn).blocked {
            return self.push_judged(index, event.slot);
        }
        self.make_room(index);
        let session = &mut self.sessions[index as usize];
        session.outbox.push(event.slot, event.len);
        self.store.hold_live(event.slot, 1);
        let (is_half, conn) = (event.is_half(&session.outbox), session.conn);
        if is_half {
            self.send_first(conn);
        }
        self.stamped(index);
        let session = &mut self.sessions[index as usize];
        if session.is_plain() {
            session.flow = Flow::Listed;
            self.list.push(conn);
        } else {
            self.mark(conn);
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
        self.make_room(index);
        let outbox = &mut self.sessions[index as usize].outbox;
        let is_over = outbox.waiting() > 0 && outbox.waiting_bytes() > mark;
        match policy {
            Policy::DropNewest if is_over => {
                self.counters.dropped_newest += 1;
                if !self.config.resume.enabled {
                    outbox.count_dropped();
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
            outbox.count_dropped();
            return;
        }
        let waited = outbox.next() - outbox.cursor();
        if waited > 0 && waited >= self.history {
            self.drop_parked(index);
        }
        self.make_room(index);
        let len = self.store.len(slot);
        self.sessions[index as usize].outbox.push(slot, len);
        self.store.hold_parked(slot);
        if waited == 0 && self.history == 0 {
            self.drop_parked(index);
        }
        self.counters.stamped_seq += 1;
        self.slide(index);
    }

    /// The queue of a parked session gives up its first event.
    fn drop_parked(&mut self, index: u32) {
        let outbox = &mut self.sessions[index as usize].outbox;
        if !outbox.entry(outbox.cursor()).is_skipped() {
            outbox.count_dropped();
            self.counters.dropped_parked += 1;
        }
        outbox.pass_parked();
    }

    /// History of a topic: part of the stream, paced by the socket, judged by no policy.
    pub(super) fn push_unjudged(&mut self, index: u32, slot: Slot) {
        let len = self.store.len(slot);
        let session = &mut self.sessions[index as usize];
        if session.outbox.next() > MAX_SEQ {
            self.overdue.push(Overdue::Exhausted(session.conn));
            return;
        }
        let conn = session.conn;
        session.flow = Flow::Special;
        self.make_room(index);
        self.sessions[index as usize].outbox.push(slot, len);
        self.store.hold_live(slot, 1);
        self.stamped(index);
        self.mark(conn);
    }

    /// A session's history gives up what is more than it keeps.
    pub(super) fn slide(&mut self, index: u32) {
        self.slide_to(index, self.history);
    }

    /// A session's history makes room for one event more, so that its ring does not grow for it.
    fn make_room(&mut self, index: u32) {
        self.slide_to(index, self.history.saturating_sub(1));
    }

    /// Retains the newest `keep` events and all that wait. What a running replay still has to send stays too, within
    /// twice the history and `max_queue`: a reader that stalls in a replay does not hold memory without end.
    fn slide_to(&mut self, index: u32, keep: u64) {
        let session = &mut self.sessions[index as usize];
        if session.outbox.retained() <= keep {
            return;
        }
        let mut floor = session.outbox.cursor();
        if let Some(replay) = session.replay() {
            let most = 2 * self.history + u64::from(self.config.backpressure.max_queue);
            if session.outbox.next() - replay.position.min(session.outbox.next()) <= most {
                floor = floor.min(replay.position);
            }
        }
        let is_parked = session.is_parked();
        let outbox = &mut session.outbox;
        while outbox.oldest() < floor && outbox.retained() > keep {
            let slot = outbox.pop_oldest().slot();
            if is_parked {
                self.store.release_parked(slot);
            } else {
                self.store.release_live(slot);
            }
        }
    }
}
