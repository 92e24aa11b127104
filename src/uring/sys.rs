//! The system calls that need `unsafe`, each behind a safe function, and the clock.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use libc::{c_int, socklen_t};
use rustix::time::{ClockId, clock_gettime};

use crate::shard::step::Instant;

/// The monotonic clock. All threads and processes of a machine share its origin.
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Turns the -1 of the C library into the error behind it.
fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Anonymous memory, page-aligned, zeroed and resident. It is given back when this is dropped.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    /// Maps `bytes` (above 0) and touches every page, so that no fault waits on the data path.
    ///
    /// # Errors
    /// The system has no memory left for this process.
    pub fn new(bytes: usize) -> io::Result<Pages> {
        assert!(bytes > 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap gives page 0 to nobody who did not ask for it");
        Ok(Pages { start, bytes })
    }

    /// First byte; aligned to a page.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Size of the mapping.
    pub fn size(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this start and length. Whoever made references into it has bound
        // them to a borrow of the `Pages`, so there is none left.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        assert!(result == 0, "unmapping one's own mapping cannot fail");
    }
}

/// Takes possession of a descriptor that the kernel has just made for us.
///
/// # Safety
/// `fd` is open and nobody else owns it.
pub unsafe fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller promises just that.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Another descriptor for what `fd` stands for, closed on exec.
///
/// # Errors
/// `fd` is not open, or no descriptor is left.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC touches no memory, and a number that is not open is an error.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    checked(copy)?;
    // SAFETY: the kernel has just made it, for this caller.
    Ok(unsafe { own(copy) })
}

/// `TCP_NOTSENT_LOWAT`: a socket with more than so many bytes unsent takes no more, and is not writable.
///
/// # Errors
/// `fd` is no TCP socket.
pub fn set_unsent_low_water(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set_tcp_option(fd, libc::TCP_NOTSENT_LOWAT, bytes)
}

/// `TCP_DEFER_ACCEPT`: a connection is accepted with its first bytes, or after about this time without any.
///
/// # Errors
/// `fd` is no TCP socket.
pub fn defer_accept(fd: BorrowedFd<'_>, time: Duration) -> io::Result<()> {
    set_tcp_option(fd, libc::TCP_DEFER_ACCEPT, u32::try_from(time.as_secs()).unwrap_or(u32::MAX))
}

fn set_tcp_option(fd: BorrowedFd<'_>, option: c_int, number: u32) -> io::Result<()> {
    let size = size_of_val(&number) as socklen_t;
    let value = (&raw const number).cast();
    // SAFETY: `value` points to `size` readable bytes for the time of the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, option, value, size) };
    checked(result)
}

/// Bytes that the other end has not acknowledged (TCP) or not read (unix). It answers after a reset too.
pub fn unacked(fd: BorrowedFd<'_>) -> Option<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ by its number, writes one int, to which the pointer points.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    checked(result).ok().and_then(|()| u32::try_from(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn unacked_tells_what_the_other_end_has_not_taken() {
        let (mut ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(unacked(ours.as_fd()), Some(0));
        ours.write_all(b"unread").unwrap();
        assert!(unacked(ours.as_fd()).unwrap() > 0);
    }

    #[test]
    fn pages_are_zeroed_and_aligned() {
        let pages = Pages::new(10_000).unwrap();
        assert_eq!((pages.size(), pages.start().as_ptr() as usize % 4096), (10_000, 0));
    }

    #[test]
    fn the_clock_goes_forward() {
        let earlier = now();
        assert!(now() >= earlier);
    }
}
