//! The two rings between a core and the control thread.
//!
//! Commands go one way, replies and log lines the other. A core can always reply: the control thread keeps at most
//! [`UNANSWERED_COMMANDS`] (and a reserve) unanswered, and the ring of notices has room for a reply to each of them;
//! log lines may only use what is left, the rest of them is dropped and counted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Bell;
use super::cores::{Neighbours, link};
use crate::limits::{RESERVED_COMMANDS, UNANSWERED_COMMANDS, WAITING_LOG_LINES};
use crate::shard::step::{Command, CoreId, LogLine, Reply};

/// Commands that may be without an answer at one time, the reserve included.
const OUTSTANDING: usize = UNANSWERED_COMMANDS + RESERVED_COMMANDS;

/// What a core tells the control thread.
#[derive(Debug)]
pub enum Notice {
    /// Answer to a command.
    Reply(Reply),
    /// A line for the log.
    Log(LogLine),
}

/// Connects the control thread with `cores` cores, and these with each other.
///
/// # Errors
/// No descriptors are left for the bells.
pub fn connect(cores: usize) -> io::Result<(ControlPort, Vec<CorePort>)> {
    let control = Arc::new(Bell::new()?);
    let bells = (0..cores).map(|_| Bell::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
    let neighbours = link(&bells);
    let mut links = Vec::with_capacity(cores);
    let mut ports = Vec::with_capacity(cores);
    for (own, neighbours) in bells.into_iter().zip(neighbours) {
        let (command_in, command_out) = rtrb::RingBuffer::new(OUTSTANDING);
        let (notice_in, notice_out) = rtrb::RingBuffer::new(OUTSTANDING + WAITING_LOG_LINES);
        links.push(CoreLink {
            commands: Commands { ring: command_in, bell: Arc::clone(&own) },
            notices: Notices { ring: notice_out },
        });
        ports.push(CorePort {
            commands: command_out,
            notices: notice_in,
            own,
            neighbours,
            untold: false,
            control: RungAtLast(Arc::clone(&control)),
        });
    }
    Ok((ControlPort { bell: control, links }, ports))
}

/// The control thread's end of all its links.
#[derive(Debug)]
pub struct ControlPort {
    /// Rung by every core.
    pub bell: Arc<Bell>,
    /// By number of the core.
    pub links: Vec<CoreLink>,
}

/// The control thread's end of the link to one core.
#[derive(Debug)]
pub struct CoreLink {
    /// To the core.
    pub commands: Commands,
    /// From the core.
    pub notices: Notices,
}

/// Sends commands to one core.
#[derive(Debug)]
pub struct Commands {
    ring: rtrb::Producer<Command>,
    bell: Arc<Bell>,
}

impl Commands {
    /// Tells the core; never waits.
    ///
    /// # Errors
    /// The ring is full: the command comes back.
    pub fn send(&mut self, command: Command) -> Result<(), Command> {
        match self.ring.push(command) {
            Ok(()) => {
                self.bell.ring();
                Ok(())
            }
            Err(rtrb::PushError::Full(command)) => Err(command),
        }
    }
}

/// Takes what one core says.
#[derive(Debug)]
pub struct Notices {
    ring: rtrb::Consumer<Notice>,
}

impl Notices {
    /// The next notice, if there is one.
    pub fn take(&mut self) -> Option<Notice> {
        self.ring.pop().ok()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// True when the core has ended and everything it said was taken.
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned() && self.ring.is_empty()
    }
}

/// Rings when it is dropped.
#[derive(Debug)]
struct RungAtLast(Arc<Bell>);

impl Drop for RungAtLast {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// A core's end of its link to the control thread. No call ever blocks.
#[derive(Debug)]
pub struct CorePort {
    commands: rtrb::Consumer<Command>,
    notices: rtrb::Producer<Notice>,
    own: Arc<Bell>,
    neighbours: Neighbours,
    /// Something was put into the ring since the last [`flush`](Self::flush).
    untold: bool,
    /// Last, so that the control thread wakes up when the rings are gone.
    control: RungAtLast,
}

impl CorePort {
    /// The next command, if there is one.
    pub fn take(&mut self) -> Option<Command> {
        self.commands.pop().ok()
    }

    /// Answers a command; [`flush`](Self::flush) tells the control thread.
    ///
    /// # Panics
    /// When a command is answered more often than once.
    pub fn reply(&mut self, reply: Reply) {
        let pushed = self.notices.push(Notice::Reply(reply));
        assert!(pushed.is_ok(), "the ring has room for a reply to every unanswered command");
        self.untold = true;
    }

    /// Passes a line on to the log. False: the control thread is behind and the line is lost; count it.
    #[must_use]
    pub fn log(&mut self, line: LogLine) -> bool {
        if self.notices.slots() <= OUTSTANDING {
            return false;
        }
        let pushed = self.notices.push(Notice::Log(line));
        assert!(pushed.is_ok(), "this thread alone fills the ring, and there was room");
        self.untold = true;
        true
    }

    /// The rings to the other cores.
    pub fn neighbours(&mut self) -> &mut Neighbours {
        &mut self.neighbours
    }

    /// At the end of a turn: wakes the control thread and the other cores if there is something for them and they
    /// sleep.
    pub fn flush(&mut self) {
        self.neighbours.flush();
        if std::mem::take(&mut self.untold) {
            self.control.0.ring();
        }
    }

    /// Before waiting: says that this core sleeps and looks once more. `is_waiting`: whether something waits for room
    /// in the ring to this core. False: there is work, do not wait; the core counts as awake again. True: wait for
    /// [`bell`](Self::bell) among other things, then call [`awake`](Self::awake).
    #[must_use]
    pub fn may_sleep(&self, is_waiting: impl Fn(CoreId) -> bool) -> bool {
        debug_assert!(!self.untold, "flush before sleeping");
        let has_room = |place| is_waiting(self.neighbours.core(place)) && self.neighbours.has_room(place);
        self.own.may_sleep(|| {
            let is_sendable = (0..self.neighbours.len()).any(has_room);
            self.commands.is_empty() && !self.neighbours.has_arrivals() && !is_sendable
        })
    }

    /// After waiting, for whatever reason the wait ended.
    pub fn awake(&self) {
        self.own.say_awake();
    }

    /// Readable when somebody woke this core; then call [`silence`](Self::silence).
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// Makes the bell's descriptor unreadable again.
    pub fn silence(&self) {
        self.own.silence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::step::{Answer, Ask, Level};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::thread;

    fn line() -> LogLine {
        LogLine { level: Level::Info, text: String::new() }
    }

    fn stats(ticket: u64) -> Command {
        Command { ticket, ask: Ask::Stats }
    }

    /// Waits until the bell rings. A lost wake-up shows here: the wait ends with a panic, not with the test hanging.
    fn wait(bell: BorrowedFd<'_>) {
        let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
        assert_eq!(ready, 1, "a wake-up was lost");
    }

    #[test]
    fn a_full_ring_gives_the_command_back() {
        let (mut control, _ports) = connect(1).unwrap();
        let commands = &mut control.links[0].commands;
        for ticket in 0..OUTSTANDING as u64 {
            assert!(commands.send(stats(ticket)).is_ok());
        }
        assert_eq!(commands.send(stats(9999)).unwrap_err().ticket, 9999);
    }

    #[test]
    fn log_lines_leave_room_for_every_reply() {
        let (mut control, mut ports) = connect(1).unwrap();
        let port = &mut ports[0];
        let kept = (0..4 * WAITING_LOG_LINES).filter(|_| port.log(line())).count();
        assert_eq!(kept, WAITING_LOG_LINES);
        for ticket in 0..OUTSTANDING as u64 {
            port.reply(Reply { ticket, answer: Answer::Ok });
        }
        let mut replies = 0;
        while let Some(notice) = control.links[0].notices.take() {
            replies += usize::from(matches!(notice, Notice::Reply(_)));
        }
        assert_eq!(replies, OUTSTANDING);
    }

    #[test]
    fn the_end_of_a_core_wakes_the_control_thread() {
        let (mut control, mut ports) = connect(1).unwrap();
        ports[0].reply(Reply { ticket: 1, answer: Answer::Ok });
        control.bell.say_asleep();
        drop(ports);
        wait(control.bell.as_fd());
        let notices = &mut control.links[0].notices;
        assert!(!notices.is_over(), "its last word was not taken yet");
        assert!(notices.take().is_some());
        assert!(notices.is_over());
    }

    #[test]
    fn a_core_does_not_sleep_over_a_command() {
        let (mut control, mut ports) = connect(1).unwrap();
        assert!(ports[0].may_sleep(|_| false));
        ports[0].awake();
        control.links[0].commands.send(stats(1)).unwrap();
        assert!(!ports[0].may_sleep(|_| false));
        assert_eq!(ports[0].take().map(|c| c.ticket), Some(1));
        assert!(ports[0].may_sleep(|_| false));
    }

    /// One core for the stress test: answers everything, sleeps whenever it may, ends at ticket `last`.
    fn answer_until(mut port: CorePort, last: u64) -> u64 {
        let mut naps = 0;
        loop {
            let mut ended = false;
            while let Some(command) = port.take() {
                ended = command.ticket == last;
                port.reply(Reply { ticket: command.ticket, answer: Answer::Ok });
            }
            port.flush();
            if ended {
                return naps;
            }
            if port.may_sleep(|_| false) {
                naps += 1;
                wait(port.bell());
                port.silence();
            }
            port.awake();
        }
    }

    /// Takes replies of all cores in order, sleeping whenever none is there.
    fn collect(bell: &Bell, notices: &mut [Notices], seen: &mut [u64], until: u64) {
        while seen.iter().any(|&n| n < until) {
            let mut found = false;
            for (core, notices) in notices.iter_mut().enumerate() {
                while let Some(Notice::Reply(reply)) = notices.take() {
                    assert_eq!(reply.ticket, seen[core] + 1, "replies of one core keep their order");
                    seen[core] = reply.ticket;
                    found = true;
                }
            }
            if found {
                continue;
            }
            bell.say_asleep();
            if notices.iter().all(Notices::is_empty) {
                wait(bell.as_fd());
                bell.silence();
            }
            bell.say_awake();
        }
    }

    /// Ping-pong in bursts of changing length, so that both sides fall asleep at every possible moment.
    #[test]
    fn no_wake_up_is_lost() {
        const CORES: usize = 2;
        let rounds: u64 = if cfg!(debug_assertions) { 20_000 } else { 100_000 };
        let (control, ports) = connect(CORES).unwrap();
        let (mut commands, mut notices): (Vec<_>, Vec<_>) =
            control.links.into_iter().map(|link| (link.commands, link.notices)).unzip();
        let cores: Vec<_> =
            ports.into_iter().map(|port| thread::spawn(move || answer_until(port, rounds))).collect();
        let mut seen = [0u64; CORES];
        let mut sent = 0;
        while sent < rounds {
            let burst = (sent % 7 + 1).min(rounds - sent);
            for ticket in sent + 1..=sent + burst {
                for to in &mut commands {
                    to.send(stats(ticket)).unwrap();
                }
            }
            sent += burst;
            collect(&control.bell, &mut notices, &mut seen, sent);
        }
        for core in cores {
            assert!(core.join().unwrap() > 0, "the core never slept: the test shows nothing");
        }
    }
}
