//! How many sockets a process may have at one time, shared by its cores.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

/// Places for sockets. What is left of the descriptors is for the rest of the process.
#[derive(Debug)]
pub struct Places {
    taken: AtomicUsize,
    most: usize,
}

impl Places {
    /// So many places, all of them free.
    pub fn new(most: usize) -> Places {
        Places { taken: AtomicUsize::new(0), most }
    }

    /// Takes a place; false: there is none.
    pub(super) fn take(&self) -> bool {
        let take = |taken: usize| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives a place back.
    pub(super) fn release(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether all are taken.
    pub(super) fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.most
    }
}
