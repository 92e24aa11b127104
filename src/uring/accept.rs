//! How connections begin: accepting, and what happens when there is no descriptor or memory for another one.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::Driver;
use super::listen::Listener;
use super::places::Places;
use crate::shard::step::{Input, Instant, Level, LogLine};

/// How long accepting pauses for want of descriptors or memory, unless a connection closes sooner.
const PAUSE: Duration = Duration::from_millis(100);

/// A shortage is logged at most so often: it may come with every connection that takes the place of another.
const QUIET: Duration = Duration::from_secs(60);

/// The listeners of a core.
#[derive(Debug)]
pub(super) struct Accepting {
    listeners: Vec<Listener>,
    /// By listener: true exactly when an accept is in flight.
    armed: Vec<bool>,
    /// When to try again, during a pause.
    again: Option<Instant>,
    /// When a shortage may be logged again.
    quiet_until: Instant,
    /// Each socket takes one, whichever core it is on.
    places: Arc<Places>,
    /// By listener: nothing is accepted on it any more.
    is_over: Vec<bool>,
}

impl Accepting {
    pub(super) fn new(listeners: Vec<Listener>, places: Arc<Places>) -> Accepting {
        let (armed, is_over) = (vec![false; listeners.len()], vec![false; listeners.len()]);
        Accepting { listeners, armed, again: None, quiet_until: Instant(0), places, is_over }
    }

    /// No accept is in flight. One that is keeps its listener alive after the process has gone, and the address taken.
    pub(super) fn is_idle(&self) -> bool {
        !self.armed.contains(&true)
    }

    /// A socket was closed.
    pub(super) fn closed(&self) {
        self.places.release();
    }

    pub(super) fn again(&self) -> Option<Instant> {
        self.again
    }
}

impl Driver {
    /// Arms the accept of every listener that has none in flight.
    pub(super) fn arm_accepts(&mut self) {
        self.accepting.again = None;
        if self.accepting.places.is_full() {
            self.accepting.again = Some(self.now + PAUSE);
            return;
        }
        for (index, armed) in self.accepting.armed.iter_mut().enumerate() {
            if !self.accepting.is_over[index] && !std::mem::replace(armed, true) {
                self.ring.accept(index as u32, self.accepting.listeners[index].descriptor());
            }
        }
    }

    /// Accepts nothing on these listeners from now on. Who has connected to one and was not accepted waits for another
    /// process that has it too, or is reset with it.
    pub(super) fn stop_accepting(&mut self, is_meant: impl Fn(&Listener) -> bool) {
        for (index, listener) in self.accepting.listeners.iter().enumerate() {
            let was_over = self.accepting.is_over[index];
            self.accepting.is_over[index] |= is_meant(listener);
            if self.accepting.is_over[index] && !was_over && self.accepting.armed[index] {
                self.ring.cancel_accept(index as u32);
            }
        }
    }

    fn cancel_accepts(&mut self) {
        for (index, armed) in self.accepting.armed.iter().enumerate() {
            if *armed {
                self.ring.cancel_accept(index as u32);
            }
        }
    }

    /// Ends a pause whose time has come.
    pub(super) fn accept_again(&mut self) {
        if self.accepting.again.is_some_and(|when| when <= self.now) {
            self.arm_accepts();
        }
    }

    /// Ends a pause because a connection was closed, which may have been what was missing.
    pub(super) fn accept_after_close(&mut self) {
        if self.accepting.again.is_some() {
            self.arm_accepts();
        }
    }

    pub(super) fn on_accepted(&mut self, listener: u32, socket: OwnedFd, armed: bool) {
        self.accepting.armed[listener as usize] = armed;
        if !self.accepting.places.take() {
            // Dropped: what is left of the descriptors is for the rest of the process. Others wait to be accepted.
            return self.pause_accepting(libc::EMFILE);
        }
        if !armed && self.accepting.again.is_none() {
            self.arm_accepts();
        }
        let listener = &self.accepting.listeners[listener as usize];
        let (peer, is_shared) = (listener.peer_of(&socket), listener.is_shared());
        let conn = self.sockets.insert(socket);
        self.step(Input::Opened { conn, peer, is_shared });
        self.keep_receiving(conn);
    }

    pub(super) fn on_accept_failed(&mut self, listener: u32, errno: i32) {
        self.accepting.armed[listener as usize] = false;
        match errno {
            // The connection went before it was accepted; others wait.
            libc::ECONNABORTED | libc::EPROTO | libc::EINTR | libc::ECANCELED => {
                if self.accepting.again.is_none() {
                    self.arm_accepts();
                }
            }
            _ => self.pause_accepting(errno),
        }
    }

    fn pause_accepting(&mut self, errno: i32) {
        if self.accepting.again.is_none() {
            self.cancel_accepts();
        }
        self.accepting.again = Some(self.now + PAUSE);
        self.core.counters().accept_pauses += 1;
        if self.now < self.accepting.quiet_until {
            return;
        }
        self.accepting.quiet_until = self.now + QUIET;
        let remedy = match errno {
            libc::EMFILE => "raise the limit of open files (`ulimit -n`, systemd: LimitNOFILE)",
            libc::ENFILE => "raise the system's limit of open files (sysctl fs.file-max)",
            _ => "give the machine or the container more memory",
        };
        let error = io::Error::from_raw_os_error(errno);
        self.log(LogLine {
            level: Level::Error,
            text: format!("no more connections can be accepted: {error}; open ones go on; {remedy}"),
        });
    }
}
