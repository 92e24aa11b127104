//! The io_uring instance of a core: the few operations that the server knows, typed, and what comes back.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use bytes::Bytes;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::buffers::{Chunk, Intake, Lent, ReceiveBuffers, Sent};
use super::gather::Wait;
use super::start::{self, StartError};
use super::sys;
use crate::limits::SEND_CHUNK;
use crate::shard::step::ConnId;

/// Entries of the submission queue. A whole chunk of sends fits.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue: every send of a chunk may be an exception while every receive buffer comes back.
/// What does not fit even so waits in the kernel and is fetched by [`Ring::collect`].
const COMPLETIONS: u32 = 4096;
/// Number of the group of receive buffers.
const BUFFER_GROUP: u16 = 0;

const _: () = assert!(SEND_CHUNK <= SUBMISSIONS as usize);
const _: () = assert!(SEND_CHUNK + super::buffers::RECEIVE_BUFFERS as usize <= COMPLETIONS as usize);

/// Uses of a slot are counted in 24 bits, which is what user_data has room for.
pub const GENERATIONS: u32 = 1 << 24;

/// What an operation is, in the top 8 bits of its user_data; the other 24 + 32 hold generation and index of whom it
/// concerns. Never a pointer: a completion that comes too late then meets another generation, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Op {
    Accept = 1,
    Receive = 2,
    Writable = 3,
    Send = 4,
    Cancel = 5,
    Bell = 6,
}

impl Op {
    fn of(user_data: u64) -> Op {
        match user_data >> 56 {
            1 => Op::Accept,
            2 => Op::Receive,
            3 => Op::Writable,
            4 => Op::Send,
            5 => Op::Cancel,
            6 => Op::Bell,
            other => unreachable!("no operation {other} was ever submitted"),
        }
    }

    fn with(self, conn: ConnId) -> u64 {
        debug_assert!(conn.generation < GENERATIONS);
        u64::from(self as u8) << 56 | u64::from(conn.generation) << 32 | u64::from(conn.index)
    }
}

fn conn_of(user_data: u64) -> ConnId {
    ConnId { index: user_data as u32, generation: (user_data >> 32) as u32 & (GENERATIONS - 1) }
}

/// How an operation names a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// By descriptor.
    Plain(RawFd),
    /// By its place in the table of registered files, which saves the kernel a look-up.
    Registered(u32),
}

impl Target {
    fn number(self) -> Fd {
        match self {
            Target::Plain(fd) => Fd(fd),
            Target::Registered(index) => Fd(index as RawFd),
        }
    }

    fn flags(self) -> squeue::Flags {
        match self {
            Target::Plain(_) => squeue::Flags::empty(),
            Target::Registered(_) => squeue::Flags::FIXED_FILE,
        }
    }
}

/// Why a receive brought nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// FIN.
    Eof,
    /// Every receive buffer is in use. Nothing is lost: arm it again.
    Starved,
    /// By [`Ring::cancel_receive`].
    Cancelled,
    /// Errno of the socket.
    Failed(i32),
}

/// What came back from the kernel. `armed` = the operation goes on and more will follow.
#[derive(Debug)]
pub enum Done {
    /// A connection on a listener.
    Accepted {
        /// Number given to [`Ring::accept`].
        listener: u32,
        /// Ours now.
        socket: OwnedFd,
        /// See above.
        armed: bool,
    },
    /// Accepting ended.
    AcceptFailed {
        /// Number given to [`Ring::accept`].
        listener: u32,
        /// Why.
        errno: i32,
    },
    /// Bytes.
    Received {
        /// From whom.
        conn: ConnId,
        /// The buffer, ours until it is given back.
        intake: Intake,
        /// See above.
        armed: bool,
    },
    /// A receive brought nothing and has ended.
    ReceiveEnded {
        /// Whose.
        conn: ConnId,
        /// Why.
        why: Ended,
    },
    /// The wait for writability ended: it takes bytes, or it is broken, or the wait was cancelled.
    Writable {
        /// Whose.
        conn: ConnId,
    },
    /// The bell was rung, or the wait for it failed: silence it and wait again.
    Bell,
}

/// One io_uring with the memory that it lends to the kernel.
pub struct Ring {
    io: IoUring,
    buffers: ReceiveBuffers,
    chunk: Chunk,
    /// Counts the chunks, so that a completion of an old one cannot be taken for one of this.
    chunk_number: u32,
    /// True while the kernel may not have taken every send of the chunk.
    is_chunk_lent: bool,
    /// Completions in order, except those of sends.
    arrived: VecDeque<Done>,
    registered: u32,
    /// The kernel can wait for several completions without waiting for all of them (Linux 6.12).
    can_gather: bool,
    missing: Vec<&'static str>,
}

impl Ring {
    /// Sets the ring up, registers the receive buffers and a table for `files` sockets.
    /// To be called on the thread that will use it: the kernel serves no other.
    pub fn new(files: u32) -> Result<Ring, StartError> {
        let (io, missing) = start::set_up(SUBMISSIONS, COMPLETIONS)?;
        let mut buffers = ReceiveBuffers::new().map_err(|e| StartError::of("map the receive buffers", e))?;
        buffers.lend_all();
        // SAFETY: the ring of entries lies at that address, page-aligned, as long as `buffers` lives, and `buffers`
        // lives in this value, which takes the registration back before it is dropped.
        let registration = unsafe {
            let entries = super::buffers::RECEIVE_BUFFERS;
            io.submitter().register_buf_ring_with_flags(buffers.ring_address(), entries, BUFFER_GROUP, 0)
        };
        registration.map_err(|e| StartError::of("register the receive buffers", e))?;
        // The table only saves time: without it every socket is named by its descriptor.
        let registered = if io.submitter().register_files_sparse(files).is_ok() { files } else { 0 };
        let arrived = VecDeque::with_capacity(COMPLETIONS as usize);
        Ok(Ring {
            can_gather: io.params().is_feature_min_timeout(),
            io,
            buffers,
            chunk: Chunk::new(),
            chunk_number: 0,
            is_chunk_lent: false,
            arrived,
            registered,
            missing,
        })
    }

    /// What this kernel lacks and the ring does without.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// The receive buffers.
    pub fn buffers(&mut self) -> &mut ReceiveBuffers {
        &mut self.buffers
    }

    /// Puts a socket at `index` of the table. False: there is no such place, or the kernel has no memory for it.
    pub fn register(&mut self, index: u32, fd: RawFd) -> bool {
        index < self.registered && self.io.submitter().register_files_update(index, &[fd]).is_ok()
    }

    /// Takes it out again; no operation on it may be in flight.
    pub fn unregister(&mut self, index: u32) {
        let result = self.io.submitter().register_files_update(index, &[-1]);
        assert!(result.is_ok(), "emptying a place of the table cannot fail: {result:?}");
    }

    /// Queues an operation; a full queue is handed to the kernel first.
    ///
    /// # Safety
    /// Memory that the operation points to stays valid until the operation is complete.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        loop {
            let mut queue = self.io.submission();
            // SAFETY: as promised by the caller.
            if unsafe { queue.push(entry) }.is_ok() {
                return;
            }
            drop(queue);
            self.enter();
        }
    }

    /// Accepts connections until it fails.
    pub fn accept(&mut self, listener: u32, fd: RawFd) {
        let flags = libc::SOCK_CLOEXEC;
        let user_data = Op::Accept.with(ConnId { index: listener, generation: 0 });
        let entry = opcode::AcceptMulti::new(Fd(fd)).flags(flags).build().user_data(user_data);
        // SAFETY: points to no memory.
        unsafe { self.push(&entry) };
    }

    /// Ends accepting on a listener. Its last completion follows.
    pub fn cancel_accept(&mut self, listener: u32) {
        self.cancel(Op::Accept.with(ConnId { index: listener, generation: 0 }));
    }

    /// Receives once, into a receive buffer.
    pub fn receive_once(&mut self, target: Target, conn: ConnId) {
        let entry = opcode::Recv::new(target.number(), std::ptr::null_mut(), 0)
            .buf_group(BUFFER_GROUP)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT | target.flags())
            .user_data(Op::Receive.with(conn));
        // SAFETY: points to no memory; the kernel takes a receive buffer, which this value keeps.
        unsafe { self.push(&entry) };
    }

    /// Receives until cancelled, into receive buffers.
    pub fn receive(&mut self, target: Target, conn: ConnId) {
        let entry = opcode::RecvMulti::new(target.number(), BUFFER_GROUP)
            .build()
            .flags(target.flags())
            .user_data(Op::Receive.with(conn));
        // SAFETY: points to no memory; the kernel takes receive buffers, which this value keeps.
        unsafe { self.push(&entry) };
    }

    /// Waits until the socket takes bytes, once.
    pub fn writable(&mut self, target: Target, conn: ConnId) {
        let entry = opcode::PollAdd::new(target.number(), libc::POLLOUT as u32)
            .build()
            .flags(target.flags())
            .user_data(Op::Writable.with(conn));
        // SAFETY: points to no memory.
        unsafe { self.push(&entry) };
    }

    /// Waits until the bell, an eventfd, is rung, once.
    pub fn bell(&mut self, fd: RawFd) {
        let user_data = Op::Bell.with(ConnId { index: 0, generation: 0 });
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build().user_data(user_data);
        // SAFETY: points to no memory.
        unsafe { self.push(&entry) };
    }

    /// Ends the receive of a connection. Its last completion follows, unless it was under way already.
    pub fn cancel_receive(&mut self, conn: ConnId) {
        self.cancel(Op::Receive.with(conn));
    }

    /// Ends the wait for writability of a connection. Its completion follows, unless it was under way already.
    pub fn cancel_writable(&mut self, conn: ConnId) {
        self.cancel(Op::Writable.with(conn));
    }

    fn cancel(&mut self, user_data: u64) {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::user_data(user_data))
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(Op::Cancel.with(ConnId { index: 0, generation: 0 }));
        // SAFETY: points to no memory.
        unsafe { self.push(&entry) };
    }

    /// Whether one more send fits into the chunk.
    pub fn has_room(&self) -> bool {
        self.chunk.has_room()
    }

    /// Where to write the bytes of the next send, [`SEND_BYTES`](crate::limits::SEND_BYTES) of them. Needs
    /// [`has_room`](Self::has_room).
    pub fn scratch(&mut self) -> &mut [u8] {
        self.chunk.scratch()
    }

    /// Queues a send of the first `copied` bytes of the chunk's scratch and of `body` behind them. It is tried once,
    /// by [`submit_chunk`](Self::submit_chunk), and never waits.
    pub fn send(&mut self, target: Target, copied: usize, body: Option<Bytes>) {
        let slot = self.chunk.add(copied, body);
        self.is_chunk_lent = true;
        // WAITALL makes the kernel report a short send even though successes are skipped: without it a short count is
        // a success.
        let how = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let entry = match self.chunk.lend_newest() {
            Lent::Bytes(start, bytes) => opcode::Send::new(target.number(), start, bytes).flags(how).build(),
            Lent::List(header) => opcode::SendMsg::new(target.number(), header).flags(how as u32).build(),
        };
        let user_data = Op::Send.with(ConnId { index: slot as u32, generation: self.chunk_number });
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS | target.flags()).user_data(user_data);
        // SAFETY: the bytes, the list and the body belong to the chunk, which this value keeps and does not change
        // before `submit_chunk` has seen the kernel take every queued operation. A send that the kernel has taken is
        // complete, because MSG_DONTWAIT forbids it to wait.
        unsafe { self.push(&entry) };
    }

    /// Makes the queued sends; afterwards [`outcome`](Self::outcome) tells what became of each.
    pub fn submit_chunk(&mut self) {
        self.submit();
        assert!(self.io.submission().is_empty(), "the kernel has taken every send");
        self.is_chunk_lent = false;
        self.collect();
    }

    /// What became of the send of `slot`, after [`submit_chunk`](Self::submit_chunk).
    pub fn outcome(&self, slot: usize) -> Sent {
        self.chunk.outcome(slot)
    }

    /// Empties the chunk, after [`submit_chunk`](Self::submit_chunk).
    pub fn clear_chunk(&mut self) {
        assert!(!self.is_chunk_lent, "a send may still point into the chunk");
        self.chunk.clear();
        self.chunk_number = (self.chunk_number + 1) % GENERATIONS;
    }

    /// Hands every queued operation to the kernel and lets it do its own deferred work, without waiting.
    pub fn submit(&mut self) {
        loop {
            let queue = self.io.submission();
            if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                return;
            }
            drop(queue);
            self.enter();
            if self.io.submission().is_empty() {
                return;
            }
            // It took fewer: the completion queue was full, or the kernel is out of memory for a moment.
            std::thread::yield_now();
        }
    }

    /// One system call without waiting. What it did not submit is left to the caller's next try.
    fn enter(&mut self) {
        match self.io.submit() {
            Ok(_) => {}
            Err(error) if passes(&error) => self.collect_queue(),
            Err(error) => panic!("io_uring_enter: {error}"),
        }
    }

    /// Hands every queued operation to the kernel and waits for a completion, at most for `limit`.
    pub fn wait(&mut self, limit: Option<Duration>, wait: Wait) {
        let time = limit.map(Timespec::from);
        let args = time.as_ref().map_or(SubmitArgs::new(), |time| SubmitArgs::new().timespec(time));
        // A kernel without it takes the time for a wrong argument.
        let patience = limit.map_or(wait.patience, |limit| limit.min(wait.patience)).as_micros() as u32;
        let (completions, args) = if self.can_gather && patience > 0 {
            (wait.completions.min(COMPLETIONS / 2), args.min_wait_usec(patience))
        } else {
            (1, args)
        };
        match self.io.submitter().submit_with_args(completions as usize, &args) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) || passes(&error) => {}
            Err(error) => panic!("io_uring_enter: {error}"),
        }
    }

    /// Takes everything that the kernel has completed; [`next`](Self::next) then hands it out.
    pub fn collect(&mut self) {
        self.collect_queue();
        while self.io.submission().cq_overflow() {
            self.enter();
            self.collect_queue();
        }
    }

    /// Exceptions of sends are noted in the chunk, all else is kept in order.
    fn collect_queue(&mut self) {
        for entry in self.io.completion() {
            if Op::of(entry.user_data()) != Op::Send {
                self.arrived.extend(done(&mut self.buffers, &entry));
            } else if conn_of(entry.user_data()).generation == self.chunk_number {
                self.chunk.note_exception(entry.user_data() as u32 as usize, entry.result());
            }
        }
    }

    /// The oldest completion that was collected.
    pub fn next(&mut self) -> Option<Done> {
        self.arrived.pop_front()
    }

    /// Whether [`next`](Self::next) has one.
    pub fn has_next(&self) -> bool {
        !self.arrived.is_empty()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A receive that is still armed must find no buffer any more once the mapping is gone.
        if let Err(error) = self.io.submitter().unregister_buf_ring(BUFFER_GROUP) {
            panic!("the receive buffers stay with the kernel: {error}");
        }
    }
}

fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

/// A completion as a value; none for one that nobody waits for.
fn done(buffers: &mut ReceiveBuffers, entry: &cqueue::Entry) -> Option<Done> {
    let (user_data, result, flags) = (entry.user_data(), entry.result(), entry.flags());
    let conn = conn_of(user_data);
    let armed = cqueue::more(flags);
    // SAFETY: the kernel names this buffer in this completion, which is looked at only here, once.
    let intake = cqueue::buffer_select(flags).map(|id| unsafe { buffers.intake(id, result.max(0) as u16) });
    match Op::of(user_data) {
        Op::Accept if result >= 0 => {
            // SAFETY: the kernel has just made this descriptor and told only us.
            let socket = unsafe { sys::own(result) };
            Some(Done::Accepted { listener: conn.index, socket, armed })
        }
        Op::Accept => Some(Done::AcceptFailed { listener: conn.index, errno: -result }),
        Op::Receive if result >= 0 => Some(match intake {
            // It may be empty: some kernels deliver FIN with a buffer, which has to go back like any other.
            Some(intake) => Done::Received { conn, intake, armed },
            None => Done::ReceiveEnded { conn, why: Ended::Eof },
        }),
        Op::Receive => {
            if let Some(intake) = intake {
                buffers.give_back(intake);
            }
            let why = match -result {
                libc::ENOBUFS => Ended::Starved,
                libc::ECANCELED => Ended::Cancelled,
                errno => Ended::Failed(errno),
            };
            Some(Done::ReceiveEnded { conn, why })
        }
        Op::Writable => Some(Done::Writable { conn }),
        Op::Bell => Some(Done::Bell),
        Op::Send => unreachable!("sends are sorted out before"),
        // It found nothing to cancel: the operation had just completed.
        Op::Cancel => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    const CONN: ConnId = ConnId { index: 5, generation: 9 };

    fn pair() -> (UnixStream, UnixStream, Target) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let target = Target::Plain(ours.as_raw_fd());
        (ours, theirs, target)
    }

    /// The next completion; waits for it.
    fn next(ring: &mut Ring) -> Done {
        loop {
            ring.collect();
            if let Some(done) = ring.next() {
                return done;
            }
            ring.wait(Some(Duration::from_secs(20)), Wait { completions: 1, patience: Duration::ZERO });
        }
    }

    fn send(ring: &mut Ring, target: Target, bytes: usize, body: Option<Bytes>) {
        ring.scratch()[..bytes].fill(b's');
        ring.send(target, bytes, body);
    }

    #[test]
    fn user_data_holds_operation_generation_and_index() {
        let conn = ConnId { index: u32::MAX, generation: GENERATIONS - 1 };
        for op in [Op::Accept, Op::Receive, Op::Writable, Op::Send, Op::Cancel, Op::Bell] {
            assert_eq!((Op::of(op.with(conn)), conn_of(op.with(conn))), (op, conn));
        }
    }

    #[test]
    fn a_chunk_reports_exactly_what_was_not_taken_whole() {
        let mut ring = Ring::new(16).unwrap();
        let (_a, mut whole, to_whole) = pair();
        let (_b, full, to_full) = pair();
        let (_c, gone, to_gone) = pair();
        drop(gone);
        let body = Bytes::from(vec![b'b'; 4 << 20]);
        send(&mut ring, to_whole, 100, Some(Bytes::from_static(b"body")));
        send(&mut ring, to_full, 10, Some(body));
        send(&mut ring, to_gone, 10, None);
        ring.submit_chunk();
        let Sent::Part(taken) = ring.outcome(1) else { panic!("4 MiB do not fit into a socket") };
        assert!(taken > 10 && taken < 4 << 20, "{taken}");
        assert_eq!((ring.outcome(0), ring.outcome(2)), (Sent::All(104), Sent::Failed(libc::EPIPE)));
        ring.clear_chunk();
        let mut received = [0; 104];
        whole.read_exact(&mut received).unwrap();
        assert_eq!((&received[..100], &received[100..]), (&[b's'; 100][..], &b"body"[..]));

        send(&mut ring, to_full, 10, None);
        ring.submit_chunk();
        assert_eq!(ring.outcome(0), Sent::Part(0));
        ring.clear_chunk();
        ring.writable(to_full, CONN);
        drop(full);
        assert!(matches!(next(&mut ring), Done::Writable { conn: CONN }));
    }

    #[test]
    fn a_receive_without_buffers_ends_and_loses_nothing() {
        let mut ring = Ring::new(16).unwrap();
        let payload: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        let pairs: Vec<_> = (0..50).map(|_| pair()).collect();
        for (index, (_, theirs, target)) in pairs.iter().enumerate() {
            let mut theirs = theirs;
            theirs.write_all(&payload).unwrap();
            ring.receive(*target, ConnId { index: index as u32, generation: 0 });
        }
        let (mut held, mut starved, mut received) = (Vec::new(), Vec::new(), vec![Vec::new(); pairs.len()]);
        while received.iter().any(|bytes| bytes.len() < payload.len()) {
            match next(&mut ring) {
                Done::Received { conn, mut intake, armed } => {
                    received[conn.index as usize].extend_from_slice(ring.buffers().bytes(&mut intake));
                    // All are kept until the first receive starves.
                    if starved.is_empty() {
                        held.push(intake)
                    } else {
                        ring.buffers().give_back(intake)
                    }
                    assert!(armed, "bytes alone do not end a receive");
                }
                Done::ReceiveEnded { conn, why: Ended::Starved } => {
                    starved.push(conn);
                    held.drain(..).for_each(|intake| ring.buffers().give_back(intake));
                    ring.buffers().publish();
                    ring.receive(pairs[conn.index as usize].2, conn);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(!starved.is_empty(), "5 MB did not use up 4 MiB of buffers");
        assert!(received.iter().all(|bytes| *bytes == payload));
    }

    #[test]
    fn a_cancelled_receive_hands_out_what_had_arrived() {
        let mut ring = Ring::new(16).unwrap();
        let (ours, mut theirs, _) = pair();
        assert!(ring.register(3, ours.as_raw_fd()) && !ring.register(16, ours.as_raw_fd()));
        ring.receive(Target::Registered(3), CONN);
        ring.submit();
        theirs.write_all(b"before").unwrap();
        ring.cancel_receive(CONN);
        let mut bytes = Vec::new();
        loop {
            match next(&mut ring) {
                Done::Received { mut intake, .. } => {
                    bytes.extend_from_slice(ring.buffers().bytes(&mut intake));
                    ring.buffers().give_back(intake);
                }
                Done::ReceiveEnded { conn: CONN, why: Ended::Cancelled } => break,
                other => panic!("{other:?}"),
            }
        }
        // The rest is still in the socket, and a receive that is armed again finds it.
        ring.receive_once(Target::Registered(3), CONN);
        if bytes.is_empty() {
            let Done::Received { mut intake, armed: false, .. } = next(&mut ring) else { panic!("no bytes") };
            bytes.extend_from_slice(ring.buffers().bytes(&mut intake));
            ring.buffers().give_back(intake);
        } else {
            drop(theirs);
            assert!(matches!(next(&mut ring), Done::ReceiveEnded { conn: CONN, why: Ended::Eof }));
        }
        assert_eq!(bytes, b"before");
        ring.unregister(3);
    }
}
