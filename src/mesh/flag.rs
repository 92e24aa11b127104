//! The flag of a sleeper: who has work for it rings exactly when it sleeps.
//!
//! The owner raises the flag, fences, and looks at all its rings once more. A sender fills a ring, fences, and reads
//! the flag. Each writes its own word before it reads the other's, with a fence between, so at least one of them sees
//! the other: the owner finds the entry, or the sender finds the flag. `loom/` tries every interleaving of it.

// By way of the parent, so that the model can put its own atomics in their place.
use super::atomic::{AtomicBool, Ordering, fence};

/// Whether the owner sleeps, or is about to.
#[derive(Debug)]
pub struct Flag {
    asleep: AtomicBool,
}

impl Flag {
    /// Its owner is awake.
    pub fn new() -> Flag {
        Flag { asleep: AtomicBool::new(false) }
    }

    /// Owner: from now on whoever fills a ring rings. Look at every ring once more before waiting.
    pub fn raise(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Owner: back at work, nobody needs to ring.
    pub fn lower(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Owner, before waiting: true when it may, with the flag raised. False: there is work, and the flag is down.
    /// `is_idle` looks at every ring.
    pub fn may_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        self.raise();
        let is_idle = is_idle();
        if !is_idle {
            self.lower();
        }
        is_idle
    }

    /// Sender, after filling a ring: whether this sender has to wake the owner. Of several senders one does.
    /// Costs a fence and a load when the owner is awake.
    ///
    /// The flag comes down only by the owner or by a sender that wakes it: a sender that was too late writes nothing.
    pub fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        let (up, down) = (true, false);
        self.asleep.load(Ordering::Relaxed)
            && self.asleep.compare_exchange(up, down, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
