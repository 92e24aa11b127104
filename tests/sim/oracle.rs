//! The judge. It knows what publishers were told and what the clients' gates handed out, and no type of the shard but
//! the counters that an operator sees.
//!
//! - An event that was accepted before another was issued comes before it in every session (one order for all).
//! - A topic's events come in the order of their topic numbers, a client's own events per topic in the order in which
//!   it sent them.
//! - Nobody gets what is not for him; nobody gets an event twice, but for the history of a topic subscribed to anew.
//! - Whoever was a member, as confirmed by the pong of a ping behind the join, before an event was issued, gets the
//!   event, or a declared gap at a place where it can have been.
//! - Declared gaps are no larger than what is missing.

use std::collections::{HashMap, HashSet};

use seqcast::client::gate::Generation;
use seqcast::shard::step::RoomKind;

use crate::chaos::{Person, Plan, SECOND};

pub type PublishId = usize;
pub type LogId = usize;

/// To whom a publish goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Room {
    All,
    In(RoomKind, u64),
    /// An actor; the oracle also knows which process of it.
    Client(usize),
}

#[derive(Debug)]
pub struct Publish {
    pub room: Room,
    /// The process that a publish to a client was meant for.
    pub to: Option<LogId>,
    /// The client that sent it; none = the control thread.
    pub sender: Option<Sender>,
    pub issued: u64,
    pub accepted: Option<u64>,
    pub topic: Option<(Box<str>, u64)>,
    pub refused: bool,
}

/// A process's membership in a room.
#[derive(Debug, Clone, Copy)]
pub struct Stay {
    pub sent: u64,
    pub confirmed: Option<u64>,
    pub left_sent: Option<u64>,
    pub left_confirmed: Option<u64>,
    /// By the operator.
    pub ordered: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub publish: PublishId,
    /// May be of a topic's history: the subscribe came later than the event.
    pub late: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Gap {
    Exact {
        place: usize,
        size: u64,
    },
    /// The server lost the session: anything issued until then, from the entries of this connection on.
    Unknown {
        opened: usize,
        until: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub struct Connection {
    pub at: u64,
    /// Length of the log when it began.
    pub place: usize,
    pub first_pong: Option<u64>,
    /// The client had no position, or heard what the server knows of it.
    pub answered: bool,
    pub unknown: bool,
}

/// When a topic was subscribed to: on which connection, and whether as its first words.
#[derive(Debug, Clone, Copy)]
pub struct Subscribed {
    /// The server had handled it at this time at the latest.
    pub handled: Option<u64>,
    pub connection: usize,
    pub greeting: bool,
}

impl Subscribed {
    pub fn latest(&self) -> u64 {
        self.handled.unwrap_or(u64::MAX)
    }
}

/// What one process of a client saw.
#[derive(Debug)]
pub struct Log {
    pub person: Person,
    /// First process of the same person.
    pub first: LogId,
    pub before: Option<LogId>,
    pub born: u64,
    pub entries: Vec<Entry>,
    /// By publish: how often.
    pub seen: HashMap<PublishId, usize>,
    pub snapshots: Vec<Room>,
    pub gaps: Vec<Gap>,
    pub stays: HashMap<Room, Vec<Stay>>,
    pub subscribed: HashMap<Room, Vec<Subscribed>>,
    pub left: HashMap<Room, u64>,
    /// Rooms of which the client's leave may still be on its way.
    pub leaving: HashSet<Room>,
    pub connections: Vec<Connection>,
    /// The session may have been lost without a word, because this client has no position: from these entries on.
    pub excuse: Option<usize>,
    pub dialed_at: u64,
    /// When the server was last known to have the connection.
    pub heard_at: u64,
    /// How long it had heard nothing when it connected.
    pub away: u64,
    pub acknowledged: bool,
    /// When the latest of what it has was issued, and which publish that was.
    pub last_issued: (u64, PublishId),
    pub topic_seqs: HashMap<u64, (Box<str>, u64)>,
    pub rewinds: HashMap<u64, usize>,
    pub sender_last: HashMap<Sender, PublishId>,
    pub last_seq: u64,
    pub skip: Option<u64>,
    /// A duplicate that is all right if the server says that the session was lost.
    pub suspect: Option<String>,
    /// Events came on this connection before its hello was answered.
    pub is_late: bool,
    /// An event came on this connection.
    pub heard: bool,
    pub is_loose: bool,
    pub retired: bool,
}

/// The numbers that publishers were told for one topic.
#[derive(Debug, Default)]
pub struct Numbering {
    pub given: HashSet<u64>,
    /// The highest number told until then.
    pub highest: Vec<(u64, u64)>,
}

/// Whose publishes to one topic keep their order: a client, on one connection if its next one may be on another core.
pub type Sender = (LogId, usize);

pub struct Oracle {
    pub numberings: HashMap<(Room, Box<str>), Numbering>,
    pub publishes: Vec<Publish>,
    pub logs: Vec<Log>,
    pub cores: u16,
    /// With sequence numbers.
    pub resume: bool,
    /// Without sequence numbers: drops cannot happen.
    pub dropless: bool,
    pub history: usize,
    pub keeps_parked: bool,
    pub ttl: u64,
    pub killed_at: Option<u64>,
    /// When the server was last started with the state of the one before it.
    pub restored_at: Option<u64>,
    /// A session keeps more than anybody misses in a restart.
    pub keeps_all: bool,
    pub error: Option<String>,
    pub now: u64,
}

impl Oracle {
    pub fn new(plan: &Plan) -> Oracle {
        let resume = &plan.config.resume;
        let large = 1 << 20;
        Oracle {
            numberings: HashMap::new(),
            publishes: Vec::new(),
            logs: Vec::new(),
            cores: plan.cores,
            resume: resume.enabled,
            dropless: plan.config.backpressure.max_queue >= large,
            history: plan.config.replay.history_size as usize,
            keeps_parked: resume.max_parked > 10
                && resume.parked_bytes > u64::from(large)
                && resume.history_bytes > u64::from(large),
            ttl: resume.ttl.as_nanos() as u64,
            killed_at: None,
            restored_at: None,
            keeps_all: resume.history_size >= 4096,
            error: None,
            now: 0,
        }
    }

    pub fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    pub fn verdict(&mut self) -> Result<(), String> {
        self.error.take().map_or(Ok(()), Err)
    }

    pub fn fail(&mut self, what: String) {
        self.error.get_or_insert(format!("at {:.6} s: {what}", self.now as f64 / 1e9));
    }

    // What publishers know.

    pub fn published(&mut self, room: Room, to: Option<LogId>, now: u64) -> PublishId {
        self.add(room, to, None, now)
    }

    pub fn sent_by_client(&mut self, room: Room, sender: LogId, now: u64) -> PublishId {
        let to = matches!(room, Room::Client(_)).then_some(sender);
        let found = &self.logs[sender];
        // An anonymous client may send on one core what overtakes what it had sent on another.
        let is_moving = self.cores > 1 && found.person.id.is_none();
        let connection = if is_moving { found.connections.len() } else { 0 };
        self.add(room, to, Some((sender, connection)), now)
    }

    fn add(&mut self, room: Room, to: Option<LogId>, sender: Option<Sender>, now: u64) -> PublishId {
        let publish = Publish { room, to, sender, issued: now, accepted: None, topic: None, refused: false };
        self.publishes.push(publish);
        self.publishes.len() - 1
    }

    pub fn accepted(&mut self, publish: PublishId, topic: Option<(Box<str>, u64)>, now: u64) {
        self.now = now;
        let is_topic = matches!(self.publishes[publish].room, Room::In(RoomKind::Topic, _));
        if is_topic != topic.is_some() {
            self.fail(format!("publish {publish}: topic number {topic:?}"));
        }
        if let Some((epoch, number)) = &topic {
            let (room, issued) = (self.publishes[publish].room, self.publishes[publish].issued);
            let numbering = self.numberings.entry((room, epoch.clone())).or_default();
            let is_new = numbering.given.insert(*number);
            let before = numbering.highest.partition_point(|(at, _)| *at < issued);
            let highest = before.checked_sub(1).map_or(0, |last| numbering.highest[last].1);
            let so_far = numbering.highest.last().map_or(0, |(_, highest)| *highest);
            numbering.highest.push((now, so_far.max(*number)));
            if !is_new || highest > *number {
                self.fail(format!("publish {publish} has number {number} of {room:?}, behind {highest}"));
            }
        }
        self.publishes[publish].topic = topic;
        self.publishes[publish].accepted = Some(now);
    }

    pub fn refused(&mut self, publish: PublishId) {
        self.publishes[publish].refused = true;
    }

    pub fn killed(&mut self, now: u64) {
        self.killed_at = Some(now);
    }

    pub fn restored(&mut self, now: u64) {
        self.restored_at = Some(now);
    }

    /// The server says that this client's session is lost. A restart alone is no reason.
    fn judge_loss(&mut self, log: LogId, away: u64) {
        let found = &self.logs[log];
        let [.., before, last] = &found.connections[..] else { return };
        let Some(restored_at) = self.restored_at.filter(|at| (before.at..last.at).contains(at)) else {
            return;
        };
        let is_reason = found.person.id.is_none()
            || found.before.is_some()
            || !self.keeps_parked
            || !self.keeps_all
            || !before.answered
            // It is told so again until it has an event behind the loss.
            || found.connections.iter().any(|one| one.unknown)
            || before.first_pong.is_none()
            || away + 4 * SECOND >= self.ttl
            || self.killed_at.is_some_and(|at| at > before.at);
        if !is_reason {
            let what = format!(
                "log {log} is told that its session is lost, of a restart at {restored_at}: {before:?}"
            );
            self.fail(what);
        }
    }

    // What clients do and see.

    pub fn new_log(&mut self, person: &Person, before: Option<LogId>) -> LogId {
        let id = self.logs.len();
        let before = before.filter(|_| person.id.is_some());
        self.logs.push(Log {
            person: person.clone(),
            first: before.map_or(id, |before| self.logs[before].first),
            before,
            born: self.now,
            entries: Vec::new(),
            seen: HashMap::new(),
            snapshots: Vec::new(),
            gaps: Vec::new(),
            stays: HashMap::new(),
            subscribed: HashMap::new(),
            left: HashMap::new(),
            leaving: HashSet::new(),
            connections: Vec::new(),
            excuse: None,
            dialed_at: 0,
            heard_at: 0,
            away: 0,
            acknowledged: false,
            last_issued: (0, 0),
            topic_seqs: HashMap::new(),
            rewinds: HashMap::new(),
            sender_last: HashMap::new(),
            last_seq: 0,
            skip: None,
            suspect: None,
            is_late: false,
            heard: false,
            is_loose: false,
            retired: false,
        });
        id
    }

    pub fn dialed(&mut self, log: LogId, now: u64) {
        self.logs[log].dialed_at = now;
    }

    pub fn opened(&mut self, log: LogId, last: u64, now: u64) {
        self.now = now;
        let killed_at = self.killed_at;
        let is_kept = |log: &Log| {
            let away = now - log.heard_at;
            log.person.id.is_some()
                && self.keeps_parked
                && !log.acknowledged
                && away + 4 * SECOND < self.ttl
                && killed_at.is_none_or(|at| log.connections.last().is_some_and(|last| last.at > at))
        };
        let found = &self.logs[log];
        let is_excused = !found.connections.is_empty() && (!self.resume || last == 0 && !is_kept(found));
        let found = &mut self.logs[log];
        found.suspect = None;
        found.away = now - found.heard_at;
        found.heard_at = now;
        (found.is_late, found.heard) = (false, false);
        let place = found.entries.len();
        if is_excused {
            found.excuse.get_or_insert(place);
        }
        found.connections.push(Connection {
            at: now,
            place,
            first_pong: None,
            answered: last == 0,
            unknown: false,
        });
    }

    pub fn lost(&mut self, log: LogId, acknowledged: bool, now: u64) {
        self.now = now;
        let found = &mut self.logs[log];
        found.acknowledged |= acknowledged;
    }

    /// A client reads a message.
    pub fn heard(&mut self, log: LogId, now: u64) {
        self.logs[log].heard_at = now;
    }

    pub fn resumed(&mut self, log: LogId, ok: bool, from: i64, answers_hello: bool, now: u64) {
        self.now = now;
        if answers_hello && !ok && from == 0 {
            let away = self.logs[log].away;
            self.judge_loss(log, away);
            self.session_lost(log, now);
        }
        if !answers_hello {
            return;
        }
        if let Some(connection) = self.logs[log].connections.last_mut() {
            connection.answered = true;
        }
        if let Some(what) = self.logs[log].suspect.take().filter(|_| ok) {
            self.fail(format!("{what}; and the session was not lost"));
        }
    }

    /// From this connection on, or from one before it that ended before the server could say so, the session may be
    /// another one.
    fn session_lost(&mut self, log: LogId, now: u64) {
        let found = &mut self.logs[log];
        let Some((last, before)) = found.connections.split_last_mut() else { return };
        last.unknown = true;
        let until = last.first_pong.unwrap_or(now);
        let unheard = before.iter_mut().rev().take_while(|one| !one.answered || one.first_pong.is_none());
        unheard.for_each(|one| one.unknown = true);
        let unanswered = before.iter().rev().take_while(|connection| !connection.answered).last();
        let place = unanswered.map_or(last.place, |first| first.place);
        let opened = last.at;
        found.gaps.push(Gap::Unknown { opened: place.min(last.place), until });
        for stay in found.stays.values_mut().flatten() {
            if stay.confirmed.is_none_or(|at| at < opened) && stay.sent < opened {
                stay.left_sent.get_or_insert(opened);
            }
        }
        // A server that numbers from our position on numbers other events.
        found.last_issued = (0, 0);
    }

    pub fn confirmed_connection(&mut self, log: LogId, now: u64) {
        self.now = now;
        if let Some(place) = self.logs[log].excuse.take() {
            let connection = self.logs[log].connections.last_mut().expect("a pong comes on a connection");
            connection.place = connection.place.min(place);
            self.session_lost(log, now);
        }
        let found = &mut self.logs[log];
        let connection = found.connections.last_mut().expect("a pong comes on a connection");
        connection.first_pong = Some(now);
        let sent = found.dialed_at;
        let mut rooms = vec![Room::All, Room::Client(0)];
        rooms.extend(found.person.user.iter().map(|user| Room::In(RoomKind::User, number(user))));
        rooms.extend(found.person.groups.iter().map(|group| Room::In(RoomKind::Group, number(group))));
        for room in rooms {
            let stays = found.stays.entry(room).or_default();
            let has_left = found.left.get(&room).is_some_and(|at| *at >= sent);
            if stays.last().is_none_or(|stay| stay.left_sent.is_some()) && !has_left {
                stays.push(Stay {
                    sent,
                    confirmed: Some(now),
                    left_sent: None,
                    left_confirmed: None,
                    ordered: false,
                });
            }
        }
    }

    pub fn membership_sent(&mut self, log: LogId, room: Room, joins: bool, now: u64) {
        self.now = now;
        let found = &mut self.logs[log];
        let stays = found.stays.entry(room).or_default();
        if !joins {
            found.left.insert(room, now);
            found.leaving.insert(room);
            stays.iter_mut().for_each(|stay| _ = stay.left_sent.get_or_insert(now));
            return;
        }
        if stays.last().is_none_or(|stay| stay.left_sent.is_some()) {
            stays.push(Stay {
                sent: now,
                confirmed: None,
                left_sent: None,
                left_confirmed: None,
                ordered: false,
            });
        }
        let connection = found.connections.len() - 1;
        let greeting = found.connections[connection].at == now;
        found.subscribed.entry(room).or_default().push(Subscribed { handled: None, connection, greeting });
    }

    /// The server has handled a join or leave that was sent then.
    pub fn membership_confirmed(&mut self, log: LogId, room: Room, joins: bool, sent: u64, now: u64) {
        self.now = now;
        let found = &mut self.logs[log];
        let stays = found.stays.entry(room).or_default();
        if joins {
            found
                .subscribed
                .entry(room)
                .or_default()
                .iter_mut()
                .for_each(|time| _ = time.handled.get_or_insert(now));
            if let Some(stay) = stays.last_mut().filter(|stay| stay.left_sent.is_none()) {
                stay.confirmed.get_or_insert(now);
            }
            return;
        }
        found.leaving.remove(&room);
        for stay in stays.iter_mut().filter(|stay| stay.sent <= sent) {
            // The operator's order may have been carried out behind the leave.
            if !stay.ordered || stay.confirmed.is_some_and(|at| at <= sent) {
                stay.left_sent.get_or_insert(sent);
                stay.left_confirmed.get_or_insert(now);
            }
        }
    }

    /// The client's connection, if a pong has come on it.
    pub fn answered_connection(&self, log: LogId) -> Option<usize> {
        let connections = &self.logs[log].connections;
        connections.last().filter(|last| last.first_pong.is_some()).map(|_| connections.len())
    }

    /// The operator asks for a membership, or for its end.
    pub fn ordering(&mut self, log: LogId, room: Room, on: bool, now: u64) {
        let found = &mut self.logs[log];
        let stays = found.stays.entry(room).or_default();
        if on {
            stays.push(Stay {
                sent: now,
                confirmed: None,
                left_sent: None,
                left_confirmed: None,
                ordered: true,
            });
            let connection = found.connections.len().saturating_sub(1);
            let asked = Subscribed { handled: None, connection, greeting: false };
            found.subscribed.entry(room).or_default().push(asked);
        } else {
            stays.iter_mut().for_each(|stay| _ = stay.left_sent.get_or_insert(now));
            found.left.insert(room, now);
        }
    }

    /// It was done. It holds for what the client has now only if this is still the connection that it was asked on.
    pub fn ordered(
        &mut self,
        log: LogId,
        room: Room,
        on: bool,
        asked: u64,
        connection: Option<usize>,
        now: u64,
    ) {
        self.now = now;
        let is_leaving = self.logs[log].leaving.contains(&room);
        let is_same = connection.is_some() && self.answered_connection(log) == connection;
        let stays = self.logs[log].stays.entry(room).or_default();
        if on {
            let stay = stays.iter_mut().find(|stay| stay.sent == asked && stay.left_sent.is_none());
            if let Some(stay) = stay.filter(|_| is_same && !is_leaving) {
                stay.confirmed.get_or_insert(now);
            }
        } else {
            // A join of the client's own may have overtaken the order.
            for stay in stays.iter_mut().filter(|stay| stay.sent <= now) {
                stay.left_sent = Some(stay.left_sent.map_or(asked, |at| at.min(asked)));
            }
        }
    }

    pub fn snapshot_asked(&mut self, log: LogId, room: Room) {
        self.logs[log].snapshots.push(room);
    }

    pub fn retired(&mut self, log: LogId, now: u64) {
        self.now = now;
        self.logs[log].retired = true;
    }

    pub fn missed(&mut self, log: LogId, from: u64, to: Option<u64>, by_timer: bool, now: u64) {
        self.now = now;
        let Some(to) = to else { return self.session_lost(log, now) };
        let found = &mut self.logs[log];
        let place = found.entries.len();
        found.gaps.push(Gap::Exact { place, size: to + 1 - from });
        // What comes late after all is delivered out of order by the oldest clients.
        found.is_loose |= by_timer && found.person.generation == Generation::V015;
    }
}

pub fn number(name: &str) -> u64 {
    name[1..].parse().expect("a letter and a number")
}
