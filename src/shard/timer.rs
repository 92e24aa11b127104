//! Deadlines. Each owner has at most one entry that counts: the one whose time equals its `armed` field; others are
//! stale and are skipped when they fire. So moving a deadline later costs nothing: the owner looks again when its
//! entry fires.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::step::Instant;

/// No deadline.
pub const NEVER: Instant = Instant(u64::MAX);

/// Who is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A connection, by index.
    Conn(u32),
    /// A session, by index.
    Session(u32),
    /// The probes.
    Probe,
    /// The drain.
    Drain,
}

/// All deadlines of a shard.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Owner)>>,
    /// Entries at which stale ones are sorted out.
    full: usize,
}

impl Timers {
    /// Wakes `owner` at `at`, unless `armed` says that it is woken earlier anyway.
    pub fn arm(&mut self, armed: &mut Instant, at: Instant, owner: Owner) {
        if at < *armed {
            *armed = at;
            self.heap.push(Reverse((at, owner)));
        }
    }

    /// Wakes an owner that looks itself whether something is due.
    pub fn wake(&mut self, at: Instant, owner: Owner) {
        self.heap.push(Reverse((at, owner)));
    }

    /// Sorts out the stale entries when they may be half of all: owners come and go, and an entry may be for a time far
    /// away. `counts` compares an entry with its owner's `armed`. Amortised over the entries made since.
    pub fn sort_out(&mut self, counts: impl Fn(Instant, Owner) -> bool) {
        if self.heap.len() < self.full.max(1024) {
            return;
        }
        self.heap.retain(|Reverse((at, owner))| counts(*at, *owner));
        self.full = 2 * self.heap.len();
        self.heap.shrink_to(self.full);
    }

    /// Entries, stale or not.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest entry, stale or not.
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes one entry that is due. The caller compares its time with the owner's `armed`.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, Owner)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_earlier_deadlines_are_entered() {
        let mut timers = Timers::default();
        let mut armed = NEVER;
        timers.arm(&mut armed, Instant(50), Owner::Conn(1));
        timers.arm(&mut armed, Instant(70), Owner::Conn(1));
        timers.arm(&mut armed, Instant(20), Owner::Conn(1));
        assert_eq!((armed, timers.next()), (Instant(20), Some(Instant(20))));
        assert_eq!(timers.pop_due(Instant(19)), None);
        assert_eq!(timers.pop_due(Instant(60)), Some((Instant(20), Owner::Conn(1))));
        assert_eq!(timers.pop_due(Instant(60)), Some((Instant(50), Owner::Conn(1))));
        assert_eq!(timers.pop_due(Instant(60)), None);
    }
}
