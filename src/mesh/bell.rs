//! Waking a sleeper exactly when it sleeps.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2, write};

use super::flag::Flag;

/// An eventfd with a [`Flag`] that says whether its owner sleeps.
///
/// The owner calls [`say_asleep`](Bell::say_asleep), looks at all its rings once more, and only then waits for the
/// descriptor to become readable; [`may_sleep`](Bell::may_sleep) does the first two. A sender fills the ring first and
/// calls [`ring`](Bell::ring) afterwards.
#[derive(Debug)]
pub struct Bell {
    flag: Flag,
    fd: OwnedFd,
}

impl Bell {
    /// A bell whose owner is awake.
    ///
    /// # Errors
    /// The process or the system has no descriptors left.
    pub fn new() -> io::Result<Bell> {
        // Not O_NONBLOCK: a read through io_uring waits for the ring then, instead of answering EAGAIN.
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Bell { flag: Flag::new(), fd })
    }

    /// Owner: from now on whoever fills a ring rings. Look at every ring once more before waiting.
    pub fn say_asleep(&self) {
        self.flag.raise();
    }

    /// Owner: back at work, nobody needs to ring.
    pub fn say_awake(&self) {
        self.flag.lower();
    }

    /// Owner, before waiting: says that it sleeps and lets `is_idle` look at every ring once more. False: there is
    /// work, and the owner counts as awake again.
    #[must_use]
    pub fn may_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        self.flag.may_sleep(is_idle)
    }

    /// Sender, after filling a ring: wakes the owner if it sleeps. Costs a fence and a load if it does not.
    pub fn ring(&self) {
        if self.flag.take() {
            // It would block at 2^64 - 1 rings that nobody has heard; there is one for each sleep.
            let written = write(&self.fd, &1u64.to_ne_bytes());
            debug_assert_eq!(written, Ok(8));
        }
    }

    /// Owner: makes the descriptor unreadable until the next ring. Never blocks.
    pub fn silence(&self) {
        /// An eventfd has no position.
        const NOWHERE: u64 = u64::MAX;
        let mut count = [0u8; 8];
        let read = preadv2(&self.fd, &mut [IoSliceMut::new(&mut count)], NOWHERE, ReadWriteFlags::NOWAIT);
        debug_assert!(
            matches!(read, Ok(8) | Err(Errno::AGAIN | Errno::INTR)),
            "reading an eventfd: {read:?}"
        );
    }

    /// Owner: the descriptor as a file. A read of 8 bytes waits for a ring and silences the bell.
    ///
    /// # Errors
    /// The process or the system has no descriptors left.
    pub fn to_file(&self) -> io::Result<File> {
        Ok(File::from(self.fd.try_clone()?))
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
