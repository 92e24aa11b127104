//! Memory that is lent to the kernel: the ring of receive buffers, and the scratch that sends go out of.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use io_uring::types::BufRingEntry;

use super::sys::Pages;
use crate::limits::{SCRATCH_BYTES, SEND_BYTES, SEND_CHUNK};

/// Receive buffers of a core; a power of two, at most 32,768.
pub const RECEIVE_BUFFERS: u16 = 2048;
/// Size of one, bytes. A message that does not fit takes several, in order.
pub const RECEIVE_BYTES: usize = 2048;

const ENTRY_BYTES: usize = size_of::<BufRingEntry>();
const RING_BYTES: usize = RECEIVE_BUFFERS as usize * ENTRY_BYTES;

const _: () = assert!(RECEIVE_BUFFERS.is_power_of_two() && RECEIVE_BUFFERS <= 32_768);
const _: () = assert!(RECEIVE_BYTES <= u16::MAX as usize);
const _: () = assert!(RING_BYTES.is_multiple_of(4096), "the buffers begin on a page");

/// A receive buffer that the kernel has filled and given to us. There is one such value per buffer, and only while the
/// buffer is ours: it is made from a completion, and giving the buffer back consumes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Intake {
    id: u16,
    bytes: u16,
}

impl Intake {
    /// Bytes received.
    pub fn len(&self) -> usize {
        usize::from(self.bytes)
    }
}

/// The buffers that receives are answered from: one mapping of `[ring of entries | buffers]`.
///
/// The kernel takes entries at its own head up to `tail`, and writes to the buffer of an entry that it took before it
/// publishes the completion with that buffer's number. So a buffer is the kernel's from `publish` on, and ours from
/// its completion on.
#[derive(Debug)]
pub struct ReceiveBuffers {
    pages: Pages,
    tail: u16,
    published: u16,
}

impl ReceiveBuffers {
    /// Maps and touches the memory. Nothing is lent before [`lend_all`](Self::lend_all).
    pub fn new() -> io::Result<ReceiveBuffers> {
        let pages = Pages::new(RING_BYTES + usize::from(RECEIVE_BUFFERS) * RECEIVE_BYTES)?;
        Ok(ReceiveBuffers { pages, tail: 0, published: 0 })
    }

    /// Address of the ring, for registration.
    pub fn ring_address(&self) -> u64 {
        self.pages.start().as_ptr() as u64
    }

    /// Lends every buffer. To be called once, when none is lent.
    pub fn lend_all(&mut self) {
        assert!(self.tail == 0, "buffers are lent as a whole only once");
        for id in 0..RECEIVE_BUFFERS {
            self.give_back(Intake { id, bytes: 0 });
        }
        self.publish();
    }

    /// The proof that a buffer is ours.
    ///
    /// # Safety
    /// A completion of the kernel named `id` as a buffer holding `bytes`, and this is called once for that completion.
    pub unsafe fn intake(&self, id: u16, bytes: u16) -> Intake {
        assert!(id < RECEIVE_BUFFERS && usize::from(bytes) <= RECEIVE_BYTES);
        Intake { id, bytes }
    }

    /// What was received.
    pub fn bytes<'a>(&'a mut self, intake: &'a mut Intake) -> &'a mut [u8] {
        let start = self.buffer(intake.id);
        // SAFETY: the buffer lies within the mapping, was zeroed when it was made, and is ours as `intake` proves; the
        // borrows of `self` and of `intake` keep both the mapping and the possession for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), intake.len()) }
    }

    /// Lends a buffer again; the kernel sees it after [`publish`](Self::publish).
    pub fn give_back(&mut self, intake: Intake) {
        let address = self.buffer(intake.id).as_ptr() as u64;
        let index = usize::from(self.tail & (RECEIVE_BUFFERS - 1));
        let ring = self.pages.start().cast::<BufRingEntry>();
        // SAFETY: `index` is below the number of entries, all of which lie within the mapping.
        let mut entry = unsafe { ring.add(index) };
        // SAFETY: the entry lies within the mapping, page-aligned and initialised with zeroes. The kernel does not read
        // it before the tail passes it, so the reference is unique. (The tail shares the last two bytes of entry 0,
        // which none of the calls below touch.)
        let entry = unsafe { entry.as_mut() };
        entry.set_addr(address);
        entry.set_len(RECEIVE_BYTES as u32);
        entry.set_bid(intake.id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel the buffers that were given back.
    pub fn publish(&mut self) {
        if self.tail == self.published {
            return;
        }
        // SAFETY: the start of the mapping is the first entry of the ring, initialised.
        let tail = unsafe { BufRingEntry::tail(self.pages.start().as_ptr().cast()) };
        // SAFETY: the tail is a 16-bit integer within the mapping, aligned, which we alone write and the kernel reads.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // Release: the entries are written before the tail that covers them.
        tail.store(self.tail, Ordering::Release);
        self.published = self.tail;
    }

    fn buffer(&self, id: u16) -> NonNull<u8> {
        let offset = RING_BYTES + usize::from(id) * RECEIVE_BYTES;
        assert!(offset + RECEIVE_BYTES <= self.pages.size());
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.pages.start().add(offset) }
    }
}

/// One send of a chunk: where its bytes lie in the arena, and what became of it.
#[derive(Debug, Default)]
struct Slot {
    /// Bytes in the arena.
    copied: usize,
    /// Goes out behind them.
    body: Option<Bytes>,
    /// Result of the kernel, when it was an exception: bytes taken, or a negative errno.
    exception: Option<i32>,
}

/// What the kernel made of one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Taken whole: so many bytes.
    All(usize),
    /// The socket is full; it took so many bytes, perhaps none.
    Part(usize),
    /// The socket is broken: errno.
    Failed(i32),
}

/// The scratch of a core: one chunk of sends is filled into it, submitted, and forgotten.
pub struct Chunk {
    arena: Box<[u8; SCRATCH_BYTES]>,
    used: usize,
    slots: Vec<Slot>,
    /// Scatter lists of the sends with a body, `[copied bytes, body]`, by slot.
    lists: Box<[[libc::iovec; 2]; SEND_CHUNK]>,
    /// Headers that point to those lists, by slot.
    headers: Box<[libc::msghdr; SEND_CHUNK]>,
}

/// Where the bytes of a send lie. Valid until the chunk is cleared.
#[derive(Debug, Clone, Copy)]
pub enum Lent {
    /// Contiguous.
    Bytes(*const u8, u32),
    /// A scatter list.
    List(*const libc::msghdr),
}

impl Chunk {
    /// An empty chunk.
    pub fn new() -> Chunk {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: a message header is pointers and integers, for all of which zeroes are a value.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut slots = Vec::new();
        slots.reserve_exact(SEND_CHUNK);
        Chunk {
            arena: vec![0; SCRATCH_BYTES].try_into().expect("the length is that of the array"),
            used: 0,
            slots,
            lists: Box::new([[empty; 2]; SEND_CHUNK]),
            headers: Box::new([header; SEND_CHUNK]),
        }
    }

    /// Whether one more send of [`SEND_BYTES`] fits.
    pub fn has_room(&self) -> bool {
        self.slots.len() < SEND_CHUNK && self.used + SEND_BYTES <= SCRATCH_BYTES
    }

    /// Where to write the bytes of the next send: [`SEND_BYTES`] of scratch. Needs [`has_room`](Self::has_room).
    pub fn scratch(&mut self) -> &mut [u8] {
        &mut self.arena[self.used..self.used + SEND_BYTES]
    }

    /// Adds a send of the first `copied` bytes of [`scratch`](Self::scratch) and the body behind them; returns its
    /// slot.
    pub fn add(&mut self, copied: usize, body: Option<Bytes>) -> usize {
        assert!(copied <= SEND_BYTES && self.has_room());
        assert!(copied > 0 || body.is_some(), "an empty send");
        let slot = self.slots.len();
        self.used += copied;
        self.slots.push(Slot { copied, body, exception: None });
        slot
    }

    /// Where the kernel finds the bytes of the newest send.
    pub fn lend_newest(&mut self) -> Lent {
        let at = self.slots.len() - 1;
        let slot = &self.slots[at];
        let start = self.arena[self.used - slot.copied..].as_ptr();
        let Some(body) = &slot.body else {
            return Lent::Bytes(start, slot.copied as u32);
        };
        let list = &mut self.lists[at];
        list[0] = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: slot.copied };
        list[1] = libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() };
        self.headers[at].msg_iov = list.as_mut_ptr();
        self.headers[at].msg_iovlen = list.len();
        Lent::List(&raw const self.headers[at])
    }

    /// Notes that the send of `slot` did not simply succeed.
    pub fn note_exception(&mut self, slot: usize, result: i32) {
        self.slots[slot].exception = Some(result);
    }

    /// What became of the send of `slot`, once the kernel is through with the chunk.
    pub fn outcome(&self, slot: usize) -> Sent {
        let slot = &self.slots[slot];
        let all = slot.copied + slot.body.as_ref().map_or(0, Bytes::len);
        match slot.exception {
            None => Sent::All(all),
            Some(result) if result >= 0 => {
                let taken = result as usize;
                assert!(taken <= all, "the kernel took more than it was given");
                if taken == all { Sent::All(all) } else { Sent::Part(taken) }
            }
            // ENOBUFS and ENOMEM: the kernel is short of memory for this socket; it asks to try again later.
            Some(result) if [-libc::EAGAIN, -libc::ENOBUFS, -libc::ENOMEM].contains(&result) => Sent::Part(0),
            Some(result) => Sent::Failed(-result),
        }
    }

    /// Forgets all sends; none may be in the kernel's hands.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.used = 0;
    }
}
