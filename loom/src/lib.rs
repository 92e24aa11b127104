//! Every interleaving of a sleeper and its senders, in loom's model of memory: no wake-up is lost.
//!
//! The flag is the file that the server is built from. Around it are models: a ring is a count of entries with the
//! orderings of a ring's tail, the eventfd is a count behind a lock, and a lost wake-up is an owner that waits while
//! nobody is left to wake it, which loom reports as a deadlock.
//!
//! With one sender the search is complete. With two it takes at most [`PREEMPTIONS`] switches away from a thread that
//! could go on: without a bound it takes minutes, and a protocol that is broken shows with two or three.

#![forbid(unsafe_code)]
#![cfg(test)]

#[path = "../../src/mesh/flag.rs"]
mod flag;

// What the flag is made of, here.
use loom::sync::atomic;

use atomic::{AtomicUsize, Ordering};
use flag::Flag;
use loom::sync::{Arc, Condvar, Mutex};

/// Bound of the search with two senders.
const PREEMPTIONS: usize = 4;

/// A ring from one sender: how many entries were ever put in.
struct Ring(AtomicUsize);

impl Ring {
    fn put(&self) {
        let filled = self.0.load(Ordering::Relaxed);
        self.0.store(filled + 1, Ordering::Release);
    }

    fn filled(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// An eventfd.
#[derive(Default)]
struct Descriptor {
    count: Mutex<u64>,
    readable: Condvar,
}

impl Descriptor {
    fn write(&self) {
        *self.count.lock().unwrap() += 1;
        self.readable.notify_one();
    }

    fn read(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.readable.wait(count).unwrap();
        }
        *count = 0;
    }
}

struct Link {
    flag: Flag,
    descriptor: Descriptor,
    rings: Vec<Ring>,
}

impl Link {
    fn new(senders: usize) -> Arc<Link> {
        let rings = (0..senders).map(|_| Ring(AtomicUsize::new(0))).collect();
        Arc::new(Link { flag: Flag::new(), descriptor: Descriptor::default(), rings })
    }

    fn send(&self, sender: usize) {
        self.rings[sender].put();
        if self.flag.take() {
            self.descriptor.write();
        }
    }

    fn filled(&self) -> usize {
        self.rings.iter().map(Ring::filled).sum()
    }

    /// The owner's loop until it has seen so many entries.
    fn own(&self, entries: usize) {
        let mut seen = 0;
        while seen < entries {
            let filled = self.filled();
            if filled > seen {
                seen = filled;
                continue;
            }
            let mut found = seen;
            let may_sleep = self.flag.may_sleep(|| {
                found = self.filled();
                found == seen
            });
            assert_eq!(may_sleep, found == seen, "an owner that found work sleeps");
            if may_sleep {
                self.descriptor.read();
                self.flag.lower();
            }
        }
    }
}

/// So many senders put so many entries each.
fn model(senders: usize, entries: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = (senders > 1).then_some(PREEMPTIONS);
    builder.check(move || {
        let link = Link::new(senders);
        let threads: Vec<_> = (0..senders)
            .map(|sender| {
                let link = Arc::clone(&link);
                loom::thread::spawn(move || (0..entries).for_each(|_| link.send(sender)))
            })
            .collect();
        link.own(senders * entries);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn one_sender_and_one_entry() {
    model(1, 1);
}

#[test]
fn an_owner_that_sleeps_again_is_woken_again() {
    model(1, 2);
}

#[test]
fn two_senders() {
    model(2, 1);
}

/// Of two senders that find the owner asleep one rings, and none when it has found work itself.
#[test]
fn one_sender_rings() {
    loom::model(|| {
        let flag = Arc::new(Flag::new());
        flag.raise();
        let other = Arc::clone(&flag);
        let thread = loom::thread::spawn(move || other.take());
        let mine = flag.take();
        assert!(mine ^ thread.join().unwrap(), "the owner is woken once");
        assert!(!flag.may_sleep(|| false) && !flag.take(), "an owner that found work is not woken");
    });
}

/// A sender whose ring is full sleeps until there is room. One of two places is taken; the sender fills the other and
/// has one entry more, while the receiver takes one. A receiver that looks before it takes loses the wake-up.
#[test]
fn a_sender_that_waits_for_room_is_woken() {
    const PLACES: usize = 2;
    loom::model(|| {
        let ends = Arc::new((Link::new(0), AtomicUsize::new(1), AtomicUsize::new(0)));
        let other = Arc::clone(&ends);
        let sender = loom::thread::spawn(move || {
            let (link, tail, head) = &*other;
            tail.store(2, Ordering::Release);
            if link.flag.may_sleep(|| 2 - head.load(Ordering::Acquire) == PLACES) {
                link.descriptor.read();
                link.flag.lower();
            }
        });
        let (link, tail, head) = &*ends;
        head.store(1, Ordering::Release);
        atomic::fence(Ordering::SeqCst);
        if tail.load(Ordering::Acquire) == PLACES && link.flag.take() {
            link.descriptor.write();
        }
        sender.join().unwrap();
    });
}
