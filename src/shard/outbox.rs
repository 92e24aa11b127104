//! What a session still has to be sent, and what it was sent: one ring of entries indexed by sequence number.
//!
//! ```text
//! oldest retained ........ cursor ........ next seq to assign
//!     (history)             (queue)
//! ```
//!
//! An entry is a slot of the store and two bits. *Unsent*: never written on the present connection. *Skipped*: dropped
//! from inside the queue, the cursor steps over it. A drop leaves the unsent bit set, so that the session knows exactly
//! what it never wrote. The cursor never moves back; what lies behind it is sent again by a replay with a position of
//! its own.

use super::store::Slot;

const UNSENT: u32 = 1 << 31;
const SKIPPED: u32 = 1 << 30;
const SLOT_BITS: u32 = SKIPPED - 1;

/// One place of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(u32);

impl Entry {
    /// Where the event is stored.
    pub fn slot(self) -> Slot {
        self.0 & SLOT_BITS
    }

    /// Never written on the present connection.
    pub fn is_unsent(self) -> bool {
        self.0 & UNSENT != 0
    }

    /// Dropped from inside the queue.
    pub fn is_skipped(self) -> bool {
        self.0 & SKIPPED != 0
    }
}

/// The ring of one session.
///
/// Invariants: `oldest <= cursor <= next`; entries exist for `oldest..next`; `waiting` and `waiting_bytes` describe the
/// entries of `max(cursor, shield)..next` that are not skipped.
#[derive(Debug)]
pub struct Outbox {
    ring: Box<[u32]>,
    oldest: u64,
    cursor: u64,
    next: u64,
    waiting_bytes: u64,
    waiting: u32,
    /// Made when one of them is no longer what it is by default.
    rare: Option<Box<Rare>>,
}

/// What an outbox has that did not send every event as it came.
#[derive(Debug, Default)]
struct Rare {
    /// Entries below it belong to a replay: no policy counts or drops them.
    shield: u64,
    /// The highest number that left the ring unsent; 0 = none.
    lost_to: u64,
    /// Events dropped over the session's life.
    dropped: u64,
    /// Entries of the queue that were dropped from inside it.
    skipped: u32,
}

const _: () = assert!(size_of::<Outbox>() <= 64, "part of every session");

const FIRST_CAPACITY: usize = 8;

impl Outbox {
    /// An empty outbox whose first event gets number 1.
    pub fn new() -> Outbox {
        Outbox {
            ring: Box::default(),
            oldest: 1,
            cursor: 1,
            next: 1,
            waiting_bytes: 0,
            waiting: 0,
            rare: None,
        }
    }

    /// The outbox of a parked session as it was; entries as (slot, unsent, skipped). The next connection begins with
    /// all that waits behind a replay, so nothing is counted as waiting.
    pub fn restored(
        oldest: u64,
        cursor: u64,
        lost_to: u64,
        dropped: u64,
        entries: impl Iterator<Item = (Slot, bool, bool)>,
    ) -> Outbox {
        let mut outbox = Outbox { oldest, cursor: oldest, next: oldest, ..Outbox::new() };
        if lost_to > 0 || dropped > 0 {
            outbox.rare = Some(Box::new(Rare { lost_to, dropped, ..Rare::default() }));
        }
        for (slot, unsent, skipped) in entries {
            let seq = outbox.push(slot, 0);
            let place = outbox.place(seq);
            outbox.ring[place] = slot | if unsent { UNSENT } else { 0 } | if skipped { SKIPPED } else { 0 };
            if skipped && seq >= cursor {
                outbox.rare_mut().skipped += 1;
            }
        }
        outbox.cursor = cursor;
        outbox.shield_all();
        outbox
    }

    /// The highest number that left the ring unsent; 0 = none.
    pub fn lost_to(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.lost_to)
    }

    /// Events dropped over the session's life.
    pub fn dropped(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.dropped)
    }

    /// An event was dropped.
    pub fn count_dropped(&mut self) {
        self.rare_mut().dropped += 1;
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    fn shield(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.shield)
    }

    /// The oldest retained number; equal to [`Outbox::next`] when nothing is retained.
    pub fn oldest(&self) -> u64 {
        self.oldest
    }

    /// The first number of the queue.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The number that the next event gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Entries in the ring.
    pub fn retained(&self) -> u64 {
        self.next - self.oldest
    }

    /// The last number given out; 0 = none.
    pub fn newest(&self) -> u64 {
        self.next - 1
    }

    /// Events that a policy counts.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Their bytes.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Reads the memory of the entry at the cursor.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        self.ring.get(self.place(self.cursor)).map_or(0, |entry| u64::from(*entry))
    }

    /// The entry of a retained number.
    pub fn entry(&self, seq: u64) -> Entry {
        assert!(self.oldest <= seq && seq < self.next, "{seq} is not retained");
        Entry(self.ring[self.place(seq)])
    }

    /// The entry at the cursor.
    #[inline]
    pub fn front(&self) -> Option<Entry> {
        (self.cursor < self.next).then(|| Entry(self.ring[self.place(self.cursor)]))
    }

    #[inline]
    fn place(&self, seq: u64) -> usize {
        seq as usize & self.ring.len().wrapping_sub(1)
    }

    /// Appends an unsent event of `bytes` bytes; returns its number.
    #[inline]
    pub fn push(&mut self, slot: Slot, bytes: u32) -> u64 {
        self.append(slot, u64::MAX);
        self.one_more_waits(bytes);
        self.newest()
    }

    /// The ring has no place left.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.retained() == self.ring.len() as u64
    }

    /// The oldest entry is behind the cursor.
    #[inline(always)]
    pub fn has_sent(&self) -> bool {
        self.oldest < self.cursor
    }

    /// An unsent event takes the place of the oldest entry, which is behind the cursor and leaves; counted by the
    /// caller. Only if [`Outbox::is_full`].
    #[inline(always)]
    pub fn replace_oldest(&mut self, slot: Slot) -> Slot {
        let place = self.place(self.next);
        let oldest = std::mem::replace(&mut self.ring[place], slot | UNSENT);
        self.next += 1;
        self.oldest += 1;
        if oldest >= SKIPPED { self.left_marked(Entry(oldest)) } else { oldest }
    }

    /// The oldest entry has left, dropped or unsent. Its slot.
    #[cold]
    #[inline(never)]
    fn left_marked(&mut self, entry: Entry) -> Slot {
        if entry.is_unsent() {
            self.rare_mut().lost_to = self.oldest - 1;
        }
        entry.slot()
    }

    /// Appends an unsent event, counted by the caller, and makes room for it first: of a history of `keep` events the
    /// oldest leaves. Returns what left. A ring is mostly full, so this is out of the way of `replace_oldest`.
    #[cold]
    #[inline(never)]
    pub fn append(&mut self, slot: Slot, keep: u64) -> Option<Slot> {
        let oldest =
            if self.retained() >= keep && self.has_sent() { Some(self.pop_oldest().slot()) } else { None };
        if self.retained() as usize == self.ring.len() {
            self.grow();
        }
        let place = self.place(self.next);
        self.ring[place] = slot | UNSENT;
        self.next += 1;
        oldest
    }

    /// The event just appended is the only one that waits.
    #[inline(always)]
    pub fn first_waits(&mut self, bytes: u32) {
        debug_assert!(self.cursor + 1 == self.next && self.waiting == 0 && self.waiting_bytes == 0);
        (self.waiting, self.waiting_bytes) = (1, u64::from(bytes));
    }

    /// The event just appended waits too.
    #[inline(always)]
    pub fn one_more_waits(&mut self, bytes: u32) {
        self.waiting += 1;
        self.waiting_bytes += u64::from(bytes);
    }

    #[cold]
    fn grow(&mut self) {
        let capacity = (self.ring.len() * 2).max(FIRST_CAPACITY);
        self.lay_out(capacity, 0);
    }

    /// Puts every entry where a number `by` higher belongs, in a ring of so many places.
    fn lay_out(&mut self, capacity: usize, by: u64) {
        let mut ring = vec![0; capacity].into_boxed_slice();
        for seq in self.oldest..self.next {
            ring[seq.wrapping_add(by) as usize & (capacity - 1)] = self.ring[self.place(seq)];
        }
        self.ring = ring;
    }

    /// The cursor passes the entry, written. `bytes` are the event's.
    pub fn pass_sent(&mut self, bytes: u32) {
        let place = self.place(self.cursor);
        self.ring[place] &= !UNSENT;
        self.uncount(bytes);
        self.cursor += 1;
    }

    /// The cursor passes the entry without writing it: it was skipped, or its event is gone. Its unsent bit stays.
    pub fn pass_unsent(&mut self, bytes: u32) {
        if self.entry(self.cursor).is_skipped() {
            self.rare_mut().skipped -= 1;
        } else {
            self.uncount(bytes);
        }
        self.cursor += 1;
    }

    /// The cursor of a parked session passes an entry that it cannot keep. What waits is counted anew by `adopt`.
    pub fn pass_parked(&mut self) {
        if self.entry(self.cursor).is_skipped() {
            self.rare_mut().skipped -= 1;
        }
        self.cursor += 1;
    }

    fn uncount(&mut self, bytes: u32) {
        if self.cursor >= self.shield() {
            self.waiting -= 1;
            self.waiting_bytes -= u64::from(bytes);
        }
    }

    /// The event that drop-oldest would drop: the first that a policy counts.
    pub fn droppable(&self) -> Option<u64> {
        (self.waiting > 0).then(|| self.cursor.max(self.shield()))
    }

    /// Drops the event that [`Outbox::droppable`] names; `bytes` are its. It stays in the ring, unsent.
    pub fn drop_oldest(&mut self, bytes: u32) {
        let shield = self.shield();
        if self.cursor >= shield {
            self.pass_unsent(bytes);
        } else {
            self.skip(shield, bytes);
            self.rare_mut().shield += 1;
        }
        self.count_dropped();
        self.step_over_skipped();
    }

    /// Entries of the queue that were dropped from inside it.
    pub fn skipped(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.skipped)
    }

    /// Drops the entry at the cursor, whatever it is; true = it was an event that would have been sent.
    pub fn drop_front(&mut self, bytes: u32) -> bool {
        let is_event = !self.entry(self.cursor).is_skipped();
        self.pass_unsent(bytes);
        self.rare_mut().dropped += u64::from(is_event);
        self.step_over_skipped();
        is_event
    }

    /// Drops the newest event from the queue; it stays in the ring, unsent.
    pub fn drop_newest(&mut self, bytes: u32) {
        self.skip(self.next - 1, bytes);
        self.count_dropped();
    }

    fn skip(&mut self, seq: u64, bytes: u32) {
        let place = self.place(seq);
        self.ring[place] |= SKIPPED;
        self.rare_mut().skipped += 1;
        self.waiting -= 1;
        self.waiting_bytes -= u64::from(bytes);
    }

    /// The first counted entry is never a skipped one, so that `droppable` finds it at once.
    fn step_over_skipped(&mut self) {
        let mut seq = self.cursor.max(self.shield());
        while seq < self.next && self.entry(seq).is_skipped() {
            seq += 1;
            let is_shielded = self.cursor < self.shield();
            let rare = self.rare_mut();
            if is_shielded {
                rare.shield = seq;
            } else {
                rare.skipped -= 1;
                self.cursor = seq;
            }
        }
    }

    /// All that waits now belongs to a replay.
    pub fn shield_all(&mut self) {
        if self.cursor < self.next || self.rare.is_some() {
            self.rare_mut().shield = self.next;
        }
        self.waiting = 0;
        self.waiting_bytes = 0;
    }

    /// Takes the oldest entry out of the history. Not allowed at the cursor.
    pub fn pop_oldest(&mut self) -> Entry {
        assert!(self.oldest < self.cursor, "the queue is not history");
        let entry = self.entry(self.oldest);
        if entry.is_unsent() {
            self.rare_mut().lost_to = self.oldest;
        }
        self.oldest += 1;
        entry
    }

    /// A replay wrote this event.
    pub fn mark_sent(&mut self, seq: u64) {
        let place = self.place(seq);
        self.ring[place] &= !(UNSENT | SKIPPED);
    }

    /// This event is to be sent again; behind the cursor by a replay.
    pub fn mark_unsent(&mut self, seq: u64) {
        let place = self.place(seq);
        self.ring[place] |= UNSENT;
    }

    /// What left the ring counts as lost from now on, also what was written: the client is known not to have it.
    pub fn lose_what_left(&mut self) {
        let left_to = self.oldest - 1;
        if left_to > self.lost_to() {
            self.rare_mut().lost_to = left_to;
        }
    }

    /// A connection takes the session up: nothing of the history was written on it.
    pub fn unsend_history(&mut self) {
        for seq in self.oldest..self.cursor {
            self.mark_unsent(seq);
        }
        self.lose_what_left();
    }

    /// A connection takes the session up: everything after `after` counts as unsent, whatever was dropped before is in
    /// line again, and nothing of it may be dropped by a policy.
    /// Returns how many waiting events the client has already, by its own word, and how many dropped ones wait again.
    pub fn adopt(&mut self, after: u64) -> (u64, u64) {
        let mut had = 0;
        while self.cursor <= after && self.cursor < self.next {
            had += u64::from(!self.entry(self.cursor).is_skipped());
            self.mark_sent(self.cursor);
            self.cursor += 1;
        }
        let requeued = (self.cursor..self.next).filter(|&seq| self.entry(seq).is_skipped()).count() as u64;
        for seq in self.oldest.max(after + 1)..self.next {
            let place = self.place(seq);
            self.ring[place] = (self.ring[place] | UNSENT) & !SKIPPED;
        }
        if let Some(rare) = &mut self.rare {
            rare.skipped = 0;
        }
        self.shield_all();
        (had, requeued)
    }

    /// True when an event after `after` was never written and can no longer be.
    pub fn has_lost(&self, after: u64) -> bool {
        self.lost_to() > after
    }

    /// Something after `after` and before `end` is in the ring and was never written.
    pub fn has_unsent(&self, after: u64, end: u64) -> bool {
        (self.oldest.max(after + 1)..end.min(self.next)).any(|seq| self.entry(seq).is_unsent())
    }

    /// Numbers everything `by` higher.
    pub fn renumber(&mut self, by: u64) {
        self.move_entries(by);
        self.oldest += by;
        self.cursor += by;
        self.next += by;
        if let Some(rare) = &mut self.rare {
            rare.shield += by;
            if rare.lost_to > 0 {
                rare.lost_to += by;
            }
        }
    }

    fn move_entries(&mut self, by: u64) {
        if self.oldest < self.next {
            self.lay_out(self.ring.len(), by);
        }
    }

    /// Begins anew: the entry at the cursor, or the next one, gets number 1. The history must have been taken out.
    pub fn restart(&mut self) {
        assert!(self.oldest == self.cursor, "history is taken out before a restart");
        let down = self.cursor - 1;
        self.move_entries(down.wrapping_neg());
        self.oldest = 1;
        self.cursor = 1;
        self.next -= down;
        if let Some(rare) = &mut self.rare {
            rare.shield = rare.shield.saturating_sub(down);
            rare.lost_to = 0;
        }
    }

    /// Gives the ring's memory back. It must be empty.
    pub fn shrink(&mut self) {
        assert!(self.oldest == self.next, "a ring with entries is needed");
        self.ring = Box::default();
    }

    /// Entries of the queue that will be written, replays included. Walks the queue.
    pub fn queued(&self) -> u64 {
        (self.cursor..self.next).filter(|&seq| !self.entry(seq).is_skipped()).count() as u64
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Outbox::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(n: u32) -> Outbox {
        let mut outbox = Outbox::new();
        for slot in 0..n {
            outbox.push(slot, 10);
        }
        outbox
    }

    #[test]
    fn entries_keep_their_numbers_while_the_ring_grows_and_wraps() {
        let mut outbox = Outbox::new();
        for i in 0..1000u32 {
            assert_eq!(outbox.push(i, 1), u64::from(i) + 1);
            outbox.pass_sent(1);
            if i >= 100 {
                assert_eq!(outbox.pop_oldest().slot(), i - 100);
            }
        }
        for seq in outbox.oldest()..outbox.next() {
            assert_eq!(u64::from(outbox.entry(seq).slot()), seq - 1);
        }
        assert_eq!(outbox.ring.len(), 128);
    }

    #[test]
    fn a_drop_steps_over_and_leaves_the_bit() {
        let mut outbox = filled(3);
        outbox.pass_sent(10);
        outbox.drop_oldest(10);
        assert_eq!(
            (outbox.cursor(), outbox.waiting(), outbox.waiting_bytes(), outbox.dropped()),
            (3, 1, 10, 1)
        );
        assert!(outbox.has_unsent(0, 3) && !outbox.has_unsent(2, 3));
        outbox.pop_oldest();
        assert!(!outbox.has_lost(0));
        outbox.pop_oldest();
        assert!(outbox.has_lost(1) && !outbox.has_lost(2));
    }

    #[test]
    fn behind_a_replay_drops_happen_inside_the_queue() {
        let mut outbox = filled(2);
        outbox.shield_all();
        outbox.push(2, 10);
        outbox.push(3, 10);
        assert_eq!((outbox.waiting(), outbox.droppable()), (2, Some(3)));
        outbox.drop_oldest(10);
        assert!(outbox.entry(3).is_skipped() && outbox.entry(3).is_unsent());
        assert_eq!((outbox.cursor(), outbox.waiting(), outbox.queued()), (1, 1, 3));
        outbox.pass_sent(10);
        outbox.pass_sent(10);
        outbox.pass_unsent(10);
        outbox.pass_sent(10);
        assert_eq!((outbox.waiting(), outbox.waiting_bytes()), (0, 0));
    }

    #[test]
    fn a_dropped_tail_is_in_line_again_after_adoption() {
        let mut outbox = filled(3);
        outbox.drop_newest(10);
        assert_eq!((outbox.waiting(), outbox.queued()), (2, 2));
        outbox.adopt(1);
        assert_eq!((outbox.cursor(), outbox.queued(), outbox.waiting()), (2, 2, 0));
        assert!(!outbox.entry(1).is_unsent() && outbox.entry(3).is_unsent());
    }

    #[test]
    fn renumbering_and_restarting_keep_the_entries() {
        let mut outbox = filled(3);
        outbox.renumber(41);
        assert_eq!((outbox.oldest(), outbox.newest(), outbox.entry(42).slot()), (42, 44, 0));
        outbox.pass_sent(10);
        outbox.pop_oldest();
        outbox.restart();
        assert_eq!((outbox.oldest(), outbox.newest(), outbox.entry(1).slot()), (1, 2, 1));
    }
}
