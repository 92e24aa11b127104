//! The sockets of a core, and for each the operations that the kernel still has on it.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::ring::{GENERATIONS, Target};
use crate::limits::SOCKET_BYTES;
use crate::shard::step::ConnId;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Handshake: received from once at a time.
    Opening,
    /// Upgraded: received from until paused.
    Open,
    /// Everything is written and FIN is sent; what still arrives is discarded until the peer's FIN. Unread input would
    /// turn our close into a reset, and the close frame would be lost with it.
    Closing,
    /// Waits for the kernel to give its receive back; then the socket moves to another core.
    Leaving,
    /// Waits for the kernel to give its operations back; then the socket is closed.
    Ending,
}

/// One socket. Its slot is free again only when both operations are back.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// How far it has come.
    pub state: State,
    /// True exactly when a receive is in flight.
    pub is_receiving: bool,
    /// True exactly when a wait for writability is in flight.
    pub is_waiting: bool,
    /// The core wants nothing received.
    pub is_paused: bool,
    /// It has its place in the ring's table.
    pub is_registered: bool,
}

impl Socket {
    /// How operations name it.
    pub fn target(&self, conn: ConnId) -> Target {
        if self.is_registered { Target::Registered(conn.index) } else { Target::Plain(self.fd.as_raw_fd()) }
    }

    /// Whether a receive should be in flight.
    pub fn wants_receive(&self) -> bool {
        match self.state {
            State::Opening | State::Open => !self.is_paused,
            State::Closing => true,
            State::Leaving | State::Ending => false,
        }
    }

    /// Whether the core still knows it.
    pub fn is_known(&self) -> bool {
        matches!(self.state, State::Opening | State::Open)
    }

    /// Whether it can be closed.
    pub fn is_over(&self) -> bool {
        self.state == State::Ending && !self.is_receiving && !self.is_waiting
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    socket: Option<Socket>,
}

const _: () = assert!(size_of::<Slot>() <= SOCKET_BYTES as usize, "memory per connection");

/// All sockets of a core.
#[derive(Debug, Default)]
pub struct Sockets {
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
}

impl Sockets {
    /// Takes a socket in. Indices are dense and small: the one given up last comes first.
    pub fn insert(&mut self, fd: OwnedFd) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, socket: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        assert!(slot.socket.is_none(), "a free slot is empty");
        slot.socket = Some(Socket {
            fd,
            state: State::Opening,
            is_receiving: false,
            is_waiting: false,
            is_paused: false,
            is_registered: false,
        });
        self.open += 1;
        ConnId { index, generation: slot.generation }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// A socket, unless it is gone.
    pub fn get(&mut self, conn: ConnId) -> Option<&mut Socket> {
        let slot = self.slots.get_mut(conn.index as usize)?;
        slot.socket.as_mut().filter(|_| slot.generation == conn.generation)
    }

    /// Gives a socket up; dropping the descriptor closes it.
    pub fn remove(&mut self, conn: ConnId) -> Option<OwnedFd> {
        self.get(conn)?;
        let slot = &mut self.slots[conn.index as usize];
        let socket = slot.socket.take()?;
        assert!(!socket.is_receiving && !socket.is_waiting, "the kernel still has an operation on it");
        self.open -= 1;
        slot.generation += 1;
        // A slot whose generations are used up is left alone, so that no pair of index and generation comes twice.
        if slot.generation < GENERATIONS {
            self.free.push(conn.index);
        }
        Some(socket.fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any_fd() -> OwnedFd {
        OwnedFd::from(std::fs::File::open("/dev/null").unwrap())
    }

    #[test]
    fn a_slot_is_used_again_under_another_generation() {
        let mut sockets = Sockets::default();
        let first = sockets.insert(any_fd());
        let other = sockets.insert(any_fd());
        assert!(sockets.remove(first).is_some());
        assert!(sockets.get(first).is_none() && sockets.remove(first).is_none());
        let again = sockets.insert(any_fd());
        assert_eq!((again.index, again.generation), (first.index, first.generation + 1));
        assert!(sockets.get(other).is_some() && sockets.get(first).is_none());
        assert!(sockets.remove(other).is_some() && !sockets.is_empty());
        assert!(sockets.remove(again).is_some() && sockets.is_empty());
    }

    #[test]
    fn a_slot_that_is_used_up_is_left_alone() {
        let mut sockets = Sockets::default();
        sockets.insert(any_fd());
        sockets.slots[0].generation = GENERATIONS - 1;
        sockets.remove(ConnId { index: 0, generation: GENERATIONS - 1 }).unwrap();
        assert_eq!(sockets.insert(any_fd()).index, 1);
    }

    #[test]
    #[should_panic(expected = "the kernel still has an operation on it")]
    fn a_socket_is_not_given_up_under_an_operation() {
        let mut sockets = Sockets::default();
        let conn = sockets.insert(any_fd());
        sockets.get(conn).unwrap().is_receiving = true;
        sockets.remove(conn);
    }
}
