//! Waking a sleeper exactly when it sleeps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd with a flag that says whether its owner sleeps.
///
/// The owner calls [`say_asleep`](Bell::say_asleep), looks at all its rings once more, and only then waits for the
/// descriptor to become readable. A sender fills the ring first and calls [`ring`](Bell::ring) afterwards. Each side
/// writes its own word, fences, and reads the other's; so at least one of them sees the other: either the owner finds
/// the entry, or the sender finds the flag.
#[derive(Debug)]
pub struct Bell {
    asleep: AtomicBool,
    fd: OwnedFd,
}

impl Bell {
    /// A bell whose owner is awake.
    ///
    /// # Errors
    /// The process or the system has no descriptors left.
    pub fn new() -> io::Result<Bell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { asleep: AtomicBool::new(false), fd })
    }

    /// Owner: from now on whoever fills a ring rings. Look at every ring once more before waiting.
    pub fn say_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Owner: back at work, nobody needs to ring.
    pub fn say_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Sender, after filling a ring: wakes the owner if it sleeps. Costs a fence and a load if it does not.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // The counter cannot overflow: one increment per sleep. A full or interrupted write is impossible here.
            let written = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
            debug_assert_eq!(written, Ok(8));
        }
    }

    /// Owner: makes the descriptor unreadable until the next ring.
    pub fn silence(&self) {
        let mut count = [0u8; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(e) => debug_assert!(false, "reading an eventfd: {e}"),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn rings_only_for_a_sleeper_and_once() {
        let bell = Bell::new().unwrap();
        bell.ring();
        assert!(!is_readable(&bell), "nobody sleeps");
        bell.say_asleep();
        bell.ring();
        bell.ring();
        assert!(is_readable(&bell));
        bell.silence();
        assert!(!is_readable(&bell));
        bell.ring();
        assert!(!is_readable(&bell), "a bell that rang has woken its owner");
    }

    #[test]
    fn an_owner_that_found_work_is_not_rung() {
        let bell = Bell::new().unwrap();
        bell.say_asleep();
        bell.say_awake();
        bell.ring();
        assert!(!is_readable(&bell));
        bell.silence();
    }
}
