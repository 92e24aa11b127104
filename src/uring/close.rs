//! How connections end. Whatever the reason, a socket is closed and its slot free only when the kernel has given back
//! every operation on it.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::Shutdown;
use rustix::net::sockopt::set_socket_linger;

use super::Driver;
use super::sockets::State;
use super::sys;
use crate::limits::CLOSE_SECONDS;
use crate::shard::step::{ConnId, Input, Instant, Loss, SessionId};

/// How long we wait for the peer's FIN behind our own.
const PATIENCE: Duration = Duration::from_secs(CLOSE_SECONDS);

impl Driver {
    /// Everything is written: sends FIN and waits for the peer's.
    pub(super) fn finish(&mut self, conn: ConnId, acknowledged: Option<(SessionId, u64)>) {
        self.ask_acknowledged(conn, acknowledged);
        let Some(socket) = self.sockets.get(conn).filter(|socket| socket.is_known()) else { return };
        socket.state = State::Closing;
        if rustix::net::shutdown(socket.as_fd(), Shutdown::Write).is_err() {
            // The peer has reset the connection already.
            return self.end(conn);
        }
        self.closing.push_back((self.now + PATIENCE, conn));
        self.keep_receiving(conn);
    }

    /// Closes at once; what the peer has not taken yet is dropped.
    pub(super) fn abort(&mut self, conn: ConnId, acknowledged: Option<(SessionId, u64)>) {
        self.ask_acknowledged(conn, acknowledged);
        let Some(socket) = self.sockets.get(conn).filter(|socket| socket.is_known()) else { return };
        // Close then sends a reset, and the kernel does not keep unsent bytes for a peer that may never take them.
        // Where it fails (a unix socket), close does as it always does.
        let _ = set_socket_linger(socket.as_fd(), Some(Duration::ZERO));
        self.end(conn);
    }

    /// The socket ended without our doing.
    pub(super) fn lose(&mut self, conn: ConnId, loss: Loss) {
        let Some(socket) = self.sockets.get(conn).filter(|socket| socket.is_known()) else { return };
        let unacked = sys::unacked(socket.as_fd());
        socket.state = State::Ending;
        self.step(Input::Lost { conn, unacked, loss });
        self.end(conn);
    }

    /// Cancels what is in flight; the last of it to come back closes the socket.
    pub(super) fn end(&mut self, conn: ConnId) {
        let Some(socket) = self.sockets.get(conn) else { return };
        socket.state = State::Ending;
        if socket.is_receiving {
            self.ring.cancel_receive(conn);
        }
        if socket.is_waiting {
            self.ring.cancel_writable(conn);
        }
        self.close_if_over(conn);
    }

    /// Closes a socket that has ended, once no operation is in flight on it any more.
    pub(super) fn close_if_over(&mut self, conn: ConnId) {
        let Some(socket) = self.sockets.get(conn).filter(|socket| socket.is_over()) else { return };
        if socket.is_registered {
            // The table holds a reference to the socket too: without this it would stay open.
            self.ring.unregister(conn.index);
        }
        drop(self.sockets.remove(conn));
        self.accepting.closed();
        self.accept_after_close();
    }

    /// Ends connections whose peer has not closed in time.
    pub(super) fn give_up_closing(&mut self) {
        while let Some(&(_, conn)) = self.closing.front().filter(|(when, _)| *when <= self.now) {
            self.closing.pop_front();
            if self.sockets.get(conn).is_some_and(|socket| socket.state == State::Closing) {
                self.end(conn);
            }
        }
    }

    /// When [`give_up_closing`](Self::give_up_closing) has something to do at the latest.
    pub(super) fn next_closing(&self) -> Option<Instant> {
        self.closing.front().map(|&(when, _)| when)
    }

    /// Tells the core when the peer's TCP has acknowledged the first event of a session.
    pub(super) fn ask_acknowledged(&mut self, conn: ConnId, acknowledged: Option<(SessionId, u64)>) {
        let Some((session, most)) = acknowledged else { return };
        let Some(socket) = self.sockets.get(conn) else { return };
        if sys::unacked(socket.as_fd()).is_some_and(|unacked| u64::from(unacked) <= most) {
            self.acknowledged.push(session);
        }
    }
}
