//! What of a core outlives a process, as plain values.
//!
//! # What is kept, and what need not be
//!
//! All sessions are parked when this is made, so whatever belongs to a connection is gone already.
//!
//! - *Session*: id, first number, `greeted`, `declared`, `acknowledged`, rooms with their origin, and the time
//!   when it was parked are kept. Access, jobs, `adopted`, `adopted_at`, `written_from` and `kept`
//!   are not: the next connection sets them. Nor is the generation, which names a session within a
//!   process, nor `stamps`: only numbered sessions are parked.
//! - *Outbox*: oldest, cursor, entries with both bits, `lost_to` and the count of drops are kept. `waiting` and
//!   `shield` are not: the next connection begins with all that waits behind a replay. `skipped` is counted from
//!   the bits.
//! - *Event*: id and payload, once, in order of age. An entry whose event left under a budget says so. Counts,
//!   lists and pins follow from who holds it.
//! - *Topic*: epoch, number and history. Who follows it comes from where the sessions go. A topic that was never
//!   published to is not kept: nobody has seen a number of it.
//! - *Core*: nothing else. The ids of anonymous sessions end with their connections; counters and trace are those
//!   of a process.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

pub use super::session::Origin;
use super::step::RoomKind;
use super::store::SLOT_LIMIT;
use crate::limits::{MAX_SEQ, SAVED_EVENT_BYTES};
use crate::schema::Schema;

/// One core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Oldest first. Others name an event by its place here.
    pub events: Vec<SavedEvent>,
    /// Topics that this core numbers, those that nobody is in for longest first.
    pub topics: Vec<SavedTopic>,
    /// Parked sessions.
    pub sessions: Vec<SavedSession>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedEvent {
    /// Id on the wire.
    pub id: u32,
    /// Size-prefixed FlatBuffer.
    pub payload: Bytes,
}

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTopic {
    /// Name.
    pub name: Box<str>,
    /// Of its numbering.
    pub epoch: u64,
    /// Number of its newest event.
    pub seq: u64,
    /// Recent numbers, rising, with the places of their events. No event is in two of them.
    pub history: Vec<(u64, u32)>,
}

/// A parked session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    /// Pinned id.
    pub id: Box<str>,
    /// Unix milliseconds.
    pub parked_at: u64,
    /// A peer has acknowledged an event of it.
    pub acknowledged: bool,
    /// A first hello was handled in it.
    pub greeted: bool,
    /// First number of its numbering.
    pub first_seq: u64,
    /// First number behind a loss that numbers do not show; 0 = there was none.
    pub declared: u64,
    /// Events dropped over its life.
    pub dropped: u64,
    /// Number of the first entry.
    pub oldest: u64,
    /// First number of the queue.
    pub cursor: u64,
    /// The highest number that left unsent; 0 = none.
    pub lost_to: u64,
    /// Oldest first, without holes.
    pub entries: Vec<SavedEntry>,
    /// In joining order.
    pub rooms: Vec<SavedRoom>,
}

/// One number of an outbox, in four bytes: there may be millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SavedEntry(u32);

const UNSENT: u32 = 1;
const SKIPPED: u32 = 2;

impl SavedEntry {
    /// `event`: its place, none when it left under a byte budget.
    pub fn new(event: Option<u32>, unsent: bool, skipped: bool) -> SavedEntry {
        let place = event.map_or(0, |event| event + 1);
        assert!(place < SLOT_LIMIT, "places are 30 bits");
        SavedEntry(place << 2 | if skipped { SKIPPED } else { 0 } | if unsent { UNSENT } else { 0 })
    }

    /// Place of its event.
    pub fn event(self) -> Option<u32> {
        (self.0 >> 2).checked_sub(1)
    }

    /// Never written.
    pub fn is_unsent(self) -> bool {
        self.0 & UNSENT != 0
    }

    /// Dropped from inside the queue.
    pub fn is_skipped(self) -> bool {
        self.0 & SKIPPED != 0
    }

    /// The same entry where its event has another place.
    pub fn moved(self, to: impl FnOnce(u32) -> u32) -> SavedEntry {
        SavedEntry::new(self.event().map(to), self.is_unsent(), self.is_skipped())
    }
}

/// A membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRoom {
    /// Topic, group or user.
    pub kind: RoomKind,
    /// Name.
    pub name: Box<str>,
    /// How it came about.
    pub origin: Origin,
}

/// Whether all cores of a process can have been like this, and can be again: whoever restores what passes needs no
/// other checks.
///
/// # Errors
/// What cannot be.
pub fn check(cores: &[Saved], schema: &Schema) -> Result<(), &'static str> {
    let mut ids = HashSet::new();
    let mut names = HashSet::new();
    for saved in cores {
        if saved.events.len() >= SLOT_LIMIT as usize - 1 {
            return Err("there are more events than a core can hold");
        }
        saved.events.iter().try_for_each(|event| check_event(event, schema))?;
        let mut taken = vec![false; saved.events.len()];
        for topic in &saved.topics {
            check_topic(topic, &mut taken)?;
            if !names.insert(&*topic.name) {
                return Err("a topic is there twice");
            }
        }
        for session in &saved.sessions {
            check_session(session, saved.events.len())?;
            if !ids.insert(&*session.id) {
                return Err("a session is there twice");
            }
        }
    }
    Ok(())
}

/// An event that the schema does not know any more is one that has left.
fn check_event(event: &SavedEvent, schema: &Schema) -> Result<(), &'static str> {
    if event.payload.len() > SAVED_EVENT_BYTES {
        return Err("an event is too large");
    }
    match schema.by_id(event.id) {
        Some(known) if schema.verify(known, &event.payload).is_err() => Err("an event is malformed"),
        _ => Ok(()),
    }
}

/// `taken`: events that are in a history.
fn check_topic(topic: &SavedTopic, taken: &mut [bool]) -> Result<(), &'static str> {
    let mut last = 0;
    for (seq, event) in &topic.history {
        let Some(taken) = taken.get_mut(*event as usize) else {
            return Err("a topic has an event that is not there");
        };
        if *seq <= last || std::mem::replace(taken, true) {
            return Err("a topic has an event twice");
        }
        last = *seq;
    }
    if last > topic.seq || topic.seq > MAX_SEQ { Err("a topic has impossible numbers") } else { Ok(()) }
}

fn check_session(session: &SavedSession, events: usize) -> Result<(), &'static str> {
    let next = session.oldest.saturating_add(session.entries.len() as u64);
    let is_possible = session.oldest >= 1
        && next <= MAX_SEQ + 1
        && (session.oldest..=next).contains(&session.cursor)
        && session.lost_to < session.oldest
        && (1..=next).contains(&session.first_seq)
        && session.declared <= MAX_SEQ + 1;
    if !is_possible {
        return Err("a session has impossible numbers");
    }
    let is_there = |event: u32| (event as usize) < events;
    if !session.entries.iter().filter_map(|entry| entry.event()).all(is_there) {
        return Err("a session has an event that is not there");
    }
    let mut rooms = HashSet::new();
    match session.rooms.iter().all(|room| rooms.insert((room.kind, &*room.name))) {
        true => Ok(()),
        false => Err("a session is in a room twice"),
    }
}
