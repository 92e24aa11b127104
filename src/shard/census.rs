//! How many connections each core has: the only thing that cores know of each other without being told.

use std::sync::atomic::{AtomicU32, Ordering};

use super::step::CoreId;

/// A new connection goes to another core when this one has more than so many sockets above the other's and a quarter.
const SKEW: u32 = 16;

/// Shared by the cores of a process. The counts are exact; who reads them reads a moment of the past.
#[derive(Debug)]
pub struct Census {
    /// Sockets by core, those on their way to it included.
    sockets: Box<[AtomicU32]>,
    /// Upgraded connections of all cores.
    upgraded: AtomicU32,
}

impl Census {
    /// Nobody is there.
    pub fn new(cores: CoreId) -> Census {
        Census {
            sockets: (0..cores.max(1)).map(|_| AtomicU32::new(0)).collect(),
            upgraded: AtomicU32::new(0),
        }
    }

    pub(super) fn enter(&self, core: CoreId) {
        self.sockets[usize::from(core)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self, core: CoreId) {
        self.sockets[usize::from(core)].fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes one of `most` places for an upgraded connection; false: there is none.
    pub(super) fn reserve(&self, most: u32) -> bool {
        let take = |taken: u32| (taken < most).then_some(taken + 1);
        self.upgraded.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives a place back.
    pub(super) fn release(&self) {
        self.upgraded.fetch_sub(1, Ordering::Relaxed);
    }

    /// Upgraded connections of all cores.
    pub(super) fn upgraded(&self) -> u32 {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Whether no place is left.
    pub(super) fn is_full(&self, most: u32) -> bool {
        self.upgraded.load(Ordering::Relaxed) >= most
    }

    /// The core with the fewest sockets; `core` itself if none has fewer.
    pub(super) fn least(&self, core: CoreId) -> CoreId {
        let mut least = (self.count(core), core);
        for other in 0..self.sockets.len() as CoreId {
            let sockets = self.count(other);
            if sockets < least.0 {
                least = (sockets, other);
            }
        }
        least.1
    }

    /// A core with so many fewer sockets than this one that a connection had better go there.
    pub(super) fn relief(&self, core: CoreId) -> Option<CoreId> {
        let least = self.least(core);
        let fewest = self.count(least);
        (self.count(core) > fewest + fewest / 4 + SKEW).then_some(least)
    }

    fn count(&self, core: CoreId) -> u32 {
        self.sockets[usize::from(core)].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_out_once() {
        let census = Census::new(2);
        assert!(census.reserve(2) && census.reserve(2) && !census.reserve(2));
        assert!(census.is_full(2));
        census.release();
        assert!(census.reserve(2));
    }

    #[test]
    fn a_skew_is_relieved_only_when_it_is_one() {
        let census = Census::new(3);
        for _ in 0..SKEW {
            census.enter(0);
        }
        assert_eq!((census.relief(0), census.least(0), census.least(1)), (None, 1, 1));
        census.enter(0);
        census.enter(1);
        assert_eq!((census.relief(0), census.relief(1)), (Some(2), None));
        census.leave(0);
        assert_eq!(census.relief(0), None);
    }
}
