//! What one core tells another. Between two cores handoffs arrive in the order in which they were sent.

use bytes::Bytes;

use super::step::{ConnId, CoreId, EventIndex, RoomKind, Target};

/// An event on its way to another core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crossing {
    /// Which event.
    pub event: EventIndex,
    /// Size-prefixed FlatBuffer.
    pub payload: Bytes,
}

/// An accepted publish that waits until every core has the event: its number at the core that counts.
pub type Receipt = u64;

/// Work for another core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handoff {
    /// To the home of a topic: number this event and spread it.
    Number {
        /// The topic.
        topic: Box<str>,
        /// The event.
        event: Crossing,
    },
    /// From the home of a topic to a core that is interested: the next event.
    Numbered {
        /// The topic.
        topic: Box<str>,
        /// Its number.
        topic_seq: u64,
        /// The event.
        event: Crossing,
        /// To be confirmed.
        receipt: Option<Receipt>,
    },
    /// Deliver to the members of a group or user, to a client, or to all, on your core.
    Deliver {
        /// To whom.
        target: Target,
        /// The event.
        event: Crossing,
        /// To be confirmed.
        receipt: Option<Receipt>,
    },
    /// The event is in the outbox of every receiver here.
    Delivered {
        /// Which.
        receipt: Receipt,
    },
    /// To the home of a topic: from now on this core wants its events.
    Interest {
        /// The topic.
        topic: Box<str>,
    },
    /// Answer to `Interest`: the recent entries; what is numbered later follows behind this.
    Interested {
        /// The topic.
        topic: Box<str>,
        /// Number of the newest event.
        topic_seq: u64,
        /// Recent events with their numbers, oldest first.
        history: Vec<(u64, Crossing)>,
    },
    /// To the home of a topic: this core has no member left.
    Disinterest {
        /// The topic.
        topic: Box<str>,
    },
    /// To the home of a topic: its recent entries, for a core that is not interested.
    Snapshot {
        /// The topic.
        topic: Box<str>,
        /// Numbers above this.
        after: u64,
        /// Who asked.
        conn: ConnId,
    },
    /// Answer to `Snapshot`.
    Snapshotted {
        /// Who asked.
        conn: ConnId,
        /// Oldest first.
        history: Vec<Crossing>,
    },
}

/// The core of a name: the same on every core of a process.
pub fn home(seed: u64, cores: CoreId, kind: RoomKind, name: &str) -> CoreId {
    let hasher = ahash::RandomState::with_seeds(seed, kind as u64, 0x5eca_5701, 1);
    let spread = hasher.hash_one(name) % u64::from(cores.max(1));
    CoreId::try_from(spread).expect("below the number of cores")
}
