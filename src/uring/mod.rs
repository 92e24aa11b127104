//! The driver of a core: one thread that moves bytes between the kernel and a state machine, turn by turn.
//!
//! # One turn, and why in this order
//!
//! 1. **Read the clock**, once. Everything in the turn happens at that time; only sends look again.
//! 2. **Reap.** Every completion is taken out of the kernel's queue.
//! 3. **Handoffs** of other cores, for half a millisecond. They come between reaping and acting: whatever another core
//!    did before one of these completions came about is taken before it. When completions are left over, the next turn
//!    begins with those instead, so that neither starves the other.
//! 4. **Act** on the completions, in order. Received bytes go to the core where they lie, and the buffer goes straight
//!    back, because a kernel without buffers ends receives. When the core says that what waits for someone should be
//!    sent first ([`Core::wants_flush`]), or when [`INPUT_TIME`] is over, the rest stays where it is until the next
//!    turn: input is taken no faster than output leaves. Then the **commands** of the control thread,
//!    one at least.
//! 5. **Timers**, after input: who has just been heard from is not idle. Then what there is for other cores is
//!    **handed over**, and those that sleep are woken, once for all that they were told: they work while this core
//!    sends.
//! 6. **Sends**, after everything that makes work for them, so that one send takes along all that came together in this
//!    turn: with 16 events in a send each costs a fourteenth. At most [`SEND_TIME`] of them; the rest stays on the
//!    core's list for the next turn, and a wide topic does not make input wait. The control thread is told last.
//! 7. **Wait**, only if nothing is left to do, at most until the next deadline; under load for more than the first
//!    completion, or for a moment although some are there (`gather.rs`). Every system call that submits also
//!    lets the kernel do its deferred work, so that a turn without waiting still sees new completions in the next one.
//!
//! # A send
//!
//! A chunk of connections is filled into scratch, one send each is queued, and one system call makes them all. What the
//! kernel took whole has no completion; what it did not is an exception, and the core is told at once how much is left.
//! Nothing is copied for later: the connection waits for writability, and scratch is filled again from there.
//! So there are never two sends in flight on one socket, and the kernel holds no memory of ours between turns.
//!
//! # Files
//!
//! | file | owns |
//! | --- | --- |
//! | `mod.rs` | the turn: what is done when |
//! | `accept.rs`, `close.rs` | how a connection begins and ends |
//! | `neighbours.rs` | what comes from other cores and goes to them |
//! | `sockets.rs` | the sockets and their operations in flight |
//! | `core.rs` | the state machine behind the seam |
//! | `pace.rs` | how long turns take |
//! | `gather.rs` | how much is waited for |
//! | `ring.rs`, `buffers.rs`, `sys.rs` | operations, memory lent to the kernel, system calls: all `unsafe` there is |
//! | `listen.rs`, `inherit.rs` | addresses; sockets that somebody else opened |
//! | `start.rs` | whether io_uring can be had |
//! | `echo.rs` | the driver around an echo server |

mod accept;
mod buffers;
mod close;
mod core;
mod echo;
mod gather;
mod inherit;
mod listen;
mod neighbours;
mod pace;
mod places;
mod ring;
mod sockets;
mod start;
mod sys;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

pub use self::core::Core;
pub use self::echo::{raise_open_files, run_echo};
pub use self::inherit::{InheritError, Inherited, InheritedSocket};
pub use self::listen::{ListenError, Listener};
pub use self::places::Places;
pub use self::start::{Finding, Grade, StartError, findings};
pub use self::sys::now;

use self::accept::Accepting;
use self::buffers::{Intake, Sent};
use self::gather::Gather;
use self::neighbours::Mesh;
use self::pace::{Pace, Phase};
use self::ring::{Done, Ended, Ring};
use self::sockets::{Sockets, State};
use crate::limits::SEND_CHUNK;
use crate::mesh::CorePort;
use crate::shard::step::{Ask, ConnId, Input, Instant, Level, LogLine, Loss, Output, SessionId};

/// How long a turn may send before it looks for input again.
const SEND_TIME: Duration = Duration::from_millis(1);
/// How long a turn may take input before it sends: one event may have ten thousand receivers.
const INPUT_TIME: Duration = Duration::from_millis(1);
/// How long a drained core waits for its peers to close too, within the time of the drain. Peers do so as soon as they
/// have our close frame, so this is for the frame to arrive.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a core with a processor of its own goes on turning after a handoff, because another one may follow: less
/// than the sender's system call costs that wakes a sleeper.
const SPIN: Duration = Duration::from_micros(5);
/// How long timers wait for completions that are left over.
const TIMER_PATIENCE: Duration = Duration::from_millis(100);
/// Commands of a turn.
const COMMANDS: usize = 64;

/// Drives one core. It is made, run and dropped on one thread: the kernel serves the ring to no other.
pub struct Driver {
    core: Core,
    ring: Ring,
    sockets: Sockets,
    accepting: Accepting,
    /// The links to the control thread and to other cores, where there are any.
    port: Option<CorePort>,
    mesh: Mesh,
    /// How long it goes on turning after a handoff.
    spin: Duration,
    /// Time of this turn.
    now: Instant,
    pace: Pace,
    gather: Gather,
    /// Events sent before this turn.
    events_before: u64,
    /// Connections whose receive ended for want of buffers.
    starved: Vec<ConnId>,
    /// Connections of the chunk that is being sent, by slot.
    chunk: Vec<ConnId>,
    /// Those of them whose socket is broken.
    broken: Vec<ConnId>,
    /// Closing connections and when we stop to wait for them: in order, as all wait equally long.
    closing: VecDeque<(Instant, ConnId)>,
    /// Sessions of which the core is to be told that something of theirs was acknowledged.
    acknowledged: Vec<SessionId>,
    /// When the drain that was ordered ends at the latest.
    drain_by: Instant,
    /// Completions are left over by a turn that took handoffs first.
    are_completions_first: bool,
    /// The core has no connections any more.
    is_drained: bool,
    /// The control thread has no more questions.
    is_dismissed: bool,
}

impl Driver {
    /// A driver for `core` that accepts on `listeners`. `files`: sockets that get a place in the table of registered
    /// files, which is bounded by the limit of open files; others work too, a little slower. `places`: for
    /// the sockets of all cores; more wait to be accepted.
    ///
    /// # Errors
    /// The kernel gives no ring.
    pub fn new(
        core: Core,
        listeners: Vec<Listener>,
        port: Option<CorePort>,
        files: u32,
        places: Arc<Places>,
    ) -> Result<Driver, StartError> {
        Ok(Driver {
            core,
            ring: Ring::new(files)?,
            sockets: Sockets::default(),
            accepting: Accepting::new(listeners, places),
            port,
            mesh: Mesh::default(),
            spin: Duration::ZERO,
            now: sys::now(),
            pace: Pace::new(),
            gather: Gather::default(),
            events_before: 0,
            starved: Vec::new(),
            chunk: Vec::with_capacity(SEND_CHUNK),
            broken: Vec::with_capacity(SEND_CHUNK),
            closing: VecDeque::new(),
            acknowledged: Vec::new(),
            drain_by: Instant(0),
            are_completions_first: false,
            is_drained: false,
            is_dismissed: false,
        })
    }

    /// This core has a processor of its own: for a short while after a handoff it waits for the next one awake.
    pub fn own_processor(&mut self) {
        self.spin = SPIN;
    }

    /// What this kernel lacks and the driver does without.
    pub fn missing(&self) -> &[&'static str] {
        self.ring.missing()
    }

    /// Turns until the core has drained and the control thread has let it go ([`Ask::End`]), and until the connections
    /// that it has closed are closed by their peers too or [`FAREWELL`] is over.
    pub fn run(mut self) {
        self.arm_accepts();
        self.arm_bell();
        while !self.may_end() {
            self.turn();
        }
    }

    fn may_end(&self) -> bool {
        let is_over = self.sockets.is_empty() || self.now >= self.drain_by;
        self.is_drained && self.is_dismissed && is_over && self.accepting.is_idle()
    }

    fn turn(&mut self) {
        self.now = sys::now();
        self.pace.begin(self.now);
        self.gather.begin();
        self.events_before = self.core.counters().events_sent;
        self.ring.collect();
        if self.are_completions_first {
            self.act_on_completions();
            self.take_handoffs();
        } else {
            self.take_handoffs();
            self.act_on_completions();
        }
        // Neither keeps the other waiting for longer than a turn.
        self.are_completions_first = !self.are_completions_first && self.ring.has_next();
        self.take_commands();
        self.fire_timers();
        self.send_handoffs();
        let is_rest = self.send_dirty();
        self.pace.pass(Phase::Sends, self.now);
        self.ring_bells();
        self.pace.pass(Phase::HandOver, sys::now());
        if let Some(line) = self.pace.end(self.core.counters()) {
            self.log(line);
            self.ring_bells();
        }
        self.submit_or_wait(is_rest);
    }

    fn ring_bells(&mut self) {
        if let Some(port) = &mut self.port {
            port.flush();
        }
    }

    fn act_on_completions(&mut self) {
        while self.takes_input() {
            let Some(done) = self.ring.next() else { break };
            self.gather.completed();
            match done {
                Done::Accepted { listener, socket, armed } => self.on_accepted(listener, socket, armed),
                Done::AcceptFailed { listener, errno } => self.on_accept_failed(listener, errno),
                Done::Received { conn, intake, armed } => self.on_received(conn, intake, armed),
                Done::ReceiveEnded { conn, why } => self.on_receive_ended(conn, why),
                Done::Writable { conn } => self.on_writable(conn),
                Done::Bell => self.arm_bell(),
            }
        }
        self.pace.pass(Phase::Reap, sys::now());
        self.ring.buffers().publish();
        // Only now, behind the buffers that were given back: armed without a buffer, a receive ends at once.
        while let Some(conn) = self.starved.pop() {
            self.keep_receiving(conn);
        }
    }

    /// Whether this turn may take more input: nobody has to be sent to first, and it did not take long yet.
    fn takes_input(&self) -> bool {
        self.takes_input_until(self.now + INPUT_TIME)
    }

    fn takes_input_until(&self, until: Instant) -> bool {
        !self.core.wants_flush() && sys::now() < until
    }

    fn on_received(&mut self, conn: ConnId, mut intake: Intake, armed: bool) {
        let Some(socket) = self.sockets.get(conn) else { return self.on_stale(Some(intake)) };
        socket.is_receiving = armed;
        if socket.state == State::Leaving {
            let bytes = self.ring.buffers().bytes(&mut intake).to_vec();
            self.ring.buffers().give_back(intake);
            return self.leave(conn, &bytes);
        }
        let (is_known, is_end) = (socket.is_known(), intake.len() == 0);
        if is_known && !is_end {
            let bytes = self.ring.buffers().bytes(&mut intake);
            self.core.handle(self.now, Input::Received { conn, bytes });
        }
        self.ring.buffers().give_back(intake);
        match (is_known, is_end) {
            (true, false) => self.settle(),
            (_, true) => return self.on_receive_ended(conn, Ended::Eof),
            (false, false) => {}
        }
        self.keep_receiving(conn);
    }

    fn on_receive_ended(&mut self, conn: ConnId, why: Ended) {
        let Some(socket) = self.sockets.get(conn) else { return self.on_stale(None) };
        socket.is_receiving = false;
        match (socket.state, why) {
            (State::Ending, _) => self.close_if_over(conn),
            // Whatever ended it, the other core's first receive says so too.
            (State::Leaving, _) => self.leave(conn, &[]),
            (_, Ended::Starved) => self.starved.push(conn),
            // The pause for which it was cancelled may be over.
            (_, Ended::Cancelled) => self.keep_receiving(conn),
            (State::Closing, _) => self.end(conn),
            (_, Ended::Eof) => self.lose(conn, Loss::Eof),
            (_, Ended::Failed(_)) => self.lose(conn, Loss::Error),
        }
    }

    fn on_writable(&mut self, conn: ConnId) {
        let Some(socket) = self.sockets.get(conn) else { return self.on_stale(None) };
        socket.is_waiting = false;
        if socket.is_known() {
            self.step(Input::Writable { conn });
        } else {
            self.close_if_over(conn);
        }
    }

    fn on_stale(&mut self, intake: Option<Intake>) {
        self.core.counters().stale_completions += 1;
        if let Some(intake) = intake {
            self.ring.buffers().give_back(intake);
        }
    }

    /// Arms the receive of a connection if it should be receiving and is not.
    fn keep_receiving(&mut self, conn: ConnId) {
        let Some(socket) = self.sockets.get(conn) else { return };
        if socket.state == State::Ending {
            return self.close_if_over(conn);
        }
        if socket.is_receiving || !socket.wants_receive() {
            return;
        }
        socket.is_receiving = true;
        let (target, state) = (socket.target(conn), socket.state);
        match state {
            // Behind the request the connection may move to another core, with a receive of this one on it.
            State::Opening => self.ring.receive_once(target, conn),
            _ => self.ring.receive(target, conn),
        }
    }

    fn take_commands(&mut self) {
        for taken in 0..COMMANDS {
            // One at least: a core that is busy is still asked, told to drain, and known to live.
            if taken > 0 && !self.takes_input() {
                return;
            }
            let Some(command) = self.port.as_mut().and_then(CorePort::take) else { return };
            match command.ask {
                Ask::Drain { deadline } => {
                    self.drain_by = deadline;
                    // Whoever comes at its own listeners is refused until the end.
                    self.stop_accepting(Listener::is_inherited);
                }
                Ask::End => {
                    self.is_dismissed = true;
                    self.stop_accepting(|_| true);
                }
                _ => {}
            }
            self.step(Input::Command(command));
            self.pace.pass(Phase::Commands, sys::now());
        }
    }

    fn fire_timers(&mut self) {
        // Who has been heard from and was not handled yet is not idle; but no backlog keeps timers out for long.
        let patience = if self.ring.has_next() { TIMER_PATIENCE } else { Duration::ZERO };
        if self.core.next_deadline().is_some_and(|when| when + patience <= self.now) {
            self.step(Input::Tick);
            self.pace.pass(Phase::Timers, sys::now());
        }
        self.give_up_closing();
        self.accept_again();
    }

    /// Gives the core one input and does what it asks for.
    fn step(&mut self, input: Input<'_>) {
        self.core.handle(self.now, input);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            while let Some(output) = self.core.poll() {
                self.act(output);
            }
            let Some(session) = self.acknowledged.pop() else { return };
            self.core.handle(self.now, Input::Acknowledged { session });
        }
    }

    fn act(&mut self, output: Output) {
        match output {
            Output::Established { conn } => self.establish(conn),
            Output::Pause { conn } => self.pause(conn),
            Output::Resume { conn } => {
                if let Some(socket) = self.sockets.get(conn) {
                    socket.is_paused = false;
                    self.keep_receiving(conn);
                }
            }
            Output::Finish { conn, acknowledged } => self.finish(conn, acknowledged),
            Output::Abort { conn, acknowledged } => self.abort(conn, acknowledged),
            Output::AskAcknowledged { conn, session, most } => {
                self.ask_acknowledged(conn, Some((session, most)))
            }
            Output::Reply(reply) => {
                let port = self.port.as_mut().expect("only the control thread sends commands");
                port.reply(reply);
            }
            Output::Log(line) => self.log(line),
            Output::Drained => {
                self.is_drained = true;
                self.drain_by = self.drain_by.min(self.now + FAREWELL);
            }
            Output::Transfer { conn, to, transfer } => self.transfer(conn, to, transfer),
        }
    }

    fn establish(&mut self, conn: ConnId) {
        if let Some(socket) = self.sockets.get(conn).filter(|socket| socket.is_known()) {
            socket.state = State::Open;
            socket.is_registered = self.ring.register(conn.index, socket.as_fd().as_raw_fd());
            self.keep_receiving(conn);
        }
    }

    fn pause(&mut self, conn: ConnId) {
        if let Some(socket) = self.sockets.get(conn) {
            socket.is_paused = true;
            if socket.is_receiving {
                self.ring.cancel_receive(conn);
            }
        }
    }

    /// Sends what is due, for a while. True: there is more.
    fn send_dirty(&mut self) -> bool {
        let mut until = None;
        loop {
            if !self.fill_chunk() {
                // A connection without bytes to send may have got others going.
                self.settle();
                if !self.fill_chunk() {
                    self.settle();
                    return false;
                }
            }
            let until = *until.get_or_insert_with(|| {
                self.now = sys::now();
                self.now + SEND_TIME
            });
            self.send_chunk();
            let before = std::mem::replace(&mut self.now, sys::now());
            self.gather.sent(self.chunk.len(), Duration::from_nanos(self.now.0 - before.0));
            if self.now >= until {
                return true;
            }
        }
    }

    /// False: nothing is due.
    fn fill_chunk(&mut self) -> bool {
        self.chunk.clear();
        self.ring.clear_chunk();
        self.core.look_ahead();
        while self.ring.has_room() {
            let Some(conn) = self.core.next_dirty() else { break };
            let filled = self.core.fill(conn, self.ring.scratch());
            if filled.bytes == 0 && filled.body.is_none() {
                self.core.sent(self.now, conn, 0, false);
                continue;
            }
            let socket = self.sockets.get(conn).expect("the core sends only to connections that it has");
            self.ring.send(socket.target(conn), filled.bytes, filled.body);
            self.chunk.push(conn);
        }
        !self.chunk.is_empty()
    }

    fn send_chunk(&mut self) {
        self.ring.submit_chunk();
        for (slot, &conn) in self.chunk.iter().enumerate() {
            match self.ring.outcome(slot) {
                Sent::All(bytes) => self.core.sent(self.now, conn, bytes, false),
                Sent::Part(bytes) => {
                    self.core.sent(self.now, conn, bytes, true);
                    let socket = self.sockets.get(conn).expect("it was just sent to");
                    socket.is_waiting = true;
                    self.ring.writable(socket.target(conn), conn);
                }
                Sent::Failed(_) => {
                    self.core.sent(self.now, conn, 0, true);
                    self.broken.push(conn);
                }
            }
        }
        // The core is told about the whole chunk before anything is done, so that no connection goes between its
        // `fill` and its `sent`.
        self.settle();
        while let Some(conn) = self.broken.pop() {
            self.lose(conn, Loss::Error);
        }
    }

    fn submit_or_wait(&mut self, is_rest: bool) {
        let events = self.core.counters().events_sent - self.events_before;
        let wait = self.gather.wait(events);
        if !is_rest && wait.is_for_events() && self.ring.has_next() {
            return self.ring.wait(Some(wait.patience), wait);
        }
        let is_busy = is_rest || self.ring.has_next() || self.mesh.is_reading() || self.is_spinning();
        // What this turn did may have been the last thing to wait for.
        if is_busy || self.may_end() || !self.may_sleep() {
            return self.ring.submit();
        }
        let drained = (self.is_drained && self.is_dismissed).then_some(self.drain_by);
        let deadlines = [self.core.next_deadline(), self.next_closing(), self.accepting.again(), drained];
        let limit = deadlines.iter().flatten().min().map(|when| when.0.saturating_sub(self.now.0));
        self.ring.wait(limit.map(Duration::from_nanos), wait);
        if let Some(port) = &self.port {
            port.awake();
        }
    }

    fn is_spinning(&self) -> bool {
        self.mesh.last_handoff().is_some_and(|last| self.now < last + self.spin)
    }

    fn may_sleep(&self) -> bool {
        self.port.as_ref().is_none_or(|port| port.may_sleep(|core| self.waits_for(core)))
    }

    fn arm_bell(&mut self) {
        if let Some(port) = &self.port {
            port.silence();
            self.ring.bell(port.bell().as_raw_fd());
        }
    }

    fn log(&mut self, line: LogLine) {
        match &mut self.port {
            Some(port) => self.core.counters().log_lost += u64::from(!port.log(line)),
            None => match line.level {
                Level::Error => tracing::error!("{}", line.text),
                Level::Warn => tracing::warn!("{}", line.text),
                Level::Info => tracing::info!("{}", line.text),
                Level::Debug => tracing::debug!("{}", line.text),
            },
        }
    }
}
