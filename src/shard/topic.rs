//! Rooms: topics, groups and users, who is in them, and what a topic remembers.

use std::collections::{HashMap, VecDeque};

use super::step::{ConnId, CoreId, RoomKind, SessionId};
use super::store::Slot;
use crate::limits::{IDLE_NAME_BYTES, IDLE_TOPICS};

/// A set of sessions of this core.
#[derive(Debug)]
pub struct Room {
    /// Topic, group or user.
    pub kind: RoomKind,
    /// Name.
    pub name: Box<str>,
    /// Sessions by index, connected and parked ones.
    pub members: Vec<u32>,
    /// How many of them are parked.
    pub parked: u32,
    /// Only topics have it.
    pub topic: Option<Box<Topic>>,
}

/// What a topic has beside its members. At its home core it counts; elsewhere it follows.
#[derive(Debug, Default)]
pub struct Topic {
    /// Number of the newest event.
    pub seq: u64,
    /// Opaque: numbers of different epochs cannot be compared.
    pub epoch: u64,
    /// Recent events with their numbers.
    pub history: VecDeque<(u64, Slot)>,
    /// At the home: cores with members.
    pub interested: Vec<CoreId>,
    /// Elsewhere: the home answered, so that the history here is gapless up to `seq`.
    pub follows: bool,
    /// Elsewhere: the home was asked and has not answered.
    pub asked: bool,
    /// Elsewhere: these wait for the home.
    pub waiting: Vec<Waiter>,
    /// Its place among the idle topics, 0 = it is not one.
    pub idle: u64,
}

/// Who waits for a topic's home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiter {
    /// A subscribe of this connection.
    Subscribe(ConnId),
    /// A request of this connection for the events above a number.
    Snapshot {
        /// Who asked.
        conn: ConnId,
        /// The number.
        after: u64,
    },
    /// An order of the operator.
    Order {
        /// Of the command.
        ticket: u64,
        /// Who is to become a member.
        session: SessionId,
    },
}

/// All rooms of a core.
#[derive(Debug)]
pub struct Rooms {
    rooms: slab::Slab<Room>,
    names: [HashMap<Box<str>, u32, ahash::RandomState>; 3],
    /// Topics that nobody is in, oldest first; entries whose stamp differs from the topic's are stale.
    idle: VecDeque<(u64, u32)>,
    idle_stamp: u64,
    idle_count: usize,
    /// Bytes of their names.
    idle_bytes: usize,
    epoch: u64,
}

impl Rooms {
    /// No rooms. `epoch` differs from start to start.
    pub fn new(hasher: &ahash::RandomState, epoch: u64) -> Rooms {
        let names = [0; 3].map(|_| HashMap::with_hasher(hasher.clone()));
        let (rooms, idle) = (slab::Slab::new(), VecDeque::new());
        Rooms { rooms, names, idle, idle_stamp: 0, idle_count: 0, idle_bytes: 0, epoch }
    }

    /// The room of that name.
    pub fn find(&self, kind: RoomKind, name: &str) -> Option<u32> {
        self.names[kind as usize].get(name).copied()
    }

    /// The room of that name, made if there is none.
    pub fn find_or_make(&mut self, kind: RoomKind, name: &str) -> u32 {
        if let Some(room) = self.find(kind, name) {
            return room;
        }
        self.epoch = self.epoch.wrapping_add(1);
        let topic = Topic { epoch: self.epoch, ..Topic::default() };
        let topic = (kind == RoomKind::Topic).then(|| Box::new(topic));
        let room = Room { kind, name: name.into(), members: Vec::new(), parked: 0, topic };
        let index = u32::try_from(self.rooms.insert(room)).expect("rooms are bounded by memberships");
        self.names[kind as usize].insert(name.into(), index);
        index
    }

    /// Topics, whoever numbers them.
    pub fn topics(&self) -> impl Iterator<Item = u32> {
        self.rooms.iter().filter(|(_, room)| room.kind == RoomKind::Topic).map(|(index, _)| index as u32)
    }

    /// No topic gets this epoch: it is in use for one that comes from another process.
    pub fn keep_off(&mut self, epoch: u64) {
        /// Topics that this process may make, by far.
        const AHEAD: u64 = 1 << 48;
        if epoch.wrapping_sub(self.epoch) < AHEAD {
            self.epoch = epoch;
        }
    }

    /// A room that exists.
    pub fn room(&self, index: u32) -> &Room {
        &self.rooms[index as usize]
    }

    /// A room that exists.
    pub fn room_mut(&mut self, index: u32) -> &mut Room {
        &mut self.rooms[index as usize]
    }

    /// A room that is a topic.
    pub fn topic(&self, index: u32) -> &Topic {
        self.rooms[index as usize].topic.as_ref().expect("the room is a topic")
    }

    /// A room that is a topic.
    pub fn topic_mut(&mut self, index: u32) -> &mut Topic {
        self.rooms[index as usize].topic.as_mut().expect("the room is a topic")
    }

    /// Rooms of a kind with at least one member, parked ones included.
    pub fn inhabited(&self, kind: RoomKind) -> impl Iterator<Item = &Room> {
        self.rooms
            .iter()
            .map(|(_, room)| room)
            .filter(move |room| room.kind == kind && !room.members.is_empty())
    }

    /// To be called when a room may have become needless or needed: removes an empty group or user, and keeps account
    /// of idle topics. A topic that must go is returned: its history is still to be released with [`Rooms::remove`].
    pub fn settle(&mut self, index: u32) -> Option<u32> {
        let room = &self.rooms[index as usize];
        let Some(topic) = &room.topic else {
            if room.members.is_empty() {
                self.remove(index);
            }
            return None;
        };
        let name_bytes = room.name.len();
        let is_idle = room.members.is_empty() && topic.interested.is_empty() && topic.waiting.is_empty();
        match (is_idle, topic.idle != 0) {
            (true, false) => {
                self.idle_stamp += 1;
                self.idle_count += 1;
                self.idle_bytes += name_bytes;
                let stamp = self.idle_stamp;
                self.topic_mut(index).idle = stamp;
                self.idle.push_back((stamp, index));
                self.forget_stale_stamps();
            }
            (false, true) => {
                self.idle_count -= 1;
                self.idle_bytes -= name_bytes;
                self.topic_mut(index).idle = 0;
            }
            _ => {}
        }
        self.oldest_idle()
    }

    /// Amortised: topics that come and go do not make the queue of stamps grow.
    fn forget_stale_stamps(&mut self) {
        if self.idle.len() > 2 * self.idle_count + 64 {
            let rooms = &self.rooms;
            self.idle.retain(|&(stamp, index)| {
                let topic = rooms.get(index as usize).and_then(|room| room.topic.as_ref());
                topic.is_some_and(|topic| topic.idle == stamp)
            });
        }
    }

    fn oldest_idle(&mut self) -> Option<u32> {
        while let Some(&(stamp, index)) = self.idle.front() {
            let topic = self.rooms.get(index as usize).and_then(|room| room.topic.as_ref());
            if topic.is_some_and(|topic| topic.idle == stamp) {
                let are_many = self.idle_count > IDLE_TOPICS || self.idle_bytes > IDLE_NAME_BYTES;
                return are_many.then_some(index);
            }
            self.idle.pop_front();
        }
        None
    }

    /// Forgets a room without members; a topic's history must be empty.
    pub fn remove(&mut self, index: u32) {
        let room = self.rooms.remove(index as usize);
        assert!(room.members.is_empty(), "a room with members is needed");
        if let Some(topic) = &room.topic {
            assert!(topic.history.is_empty(), "a topic's history is released first");
            if topic.idle != 0 {
                self.idle_count -= 1;
                self.idle_bytes -= room.name.len();
            }
        }
        self.names[room.kind as usize].remove(&room.name);
    }
}
