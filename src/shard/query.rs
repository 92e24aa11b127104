//! Commands of the control thread: what the shard tells about itself. Listings are in order of ids or names, a slice at
//! a time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::limits::LISTING_ROWS;

use super::Shard;
use super::publish::To;
use super::session::{ClientId, NONE, Session};
use super::step::{
    Answer, Ask, ClientRow, Command, EventIndex, Output, Peer, Reply, RoomKind, RoomRow, Stats, Target,
};
use super::topic::Room;

impl Shard {
    pub(super) fn on_command(&mut self, command: Command) {
        let Command { ticket, ask } = command;
        let answer = match ask {
            Ask::Publish { event, payload, target } => match &target {
                Target::Client(id) => self.publish_to_client(event, &payload, id),
                Target::All => return self.publish(event, &payload, To::All, Some(ticket)),
                Target::Room(kind, name) => {
                    return self.publish(event, &payload, To::Room(*kind, name), Some(ticket));
                }
            },
            Ask::Clients { after, limit } => self.client_rows(after.as_deref(), limit),
            Ask::Client { id } => match self.find_connected(&id) {
                Some(session) => Answer::Client(Box::new(self.client_row(session))),
                None => Answer::NotFound,
            },
            Ask::Disconnect { id, code, reason } => self.disconnect(&id, code, &reason),
            Ask::Member { id, kind, room, on } => match self.on_member(ticket, &id, kind, &room, on) {
                Some(answer) => answer,
                None => return,
            },
            Ask::Rooms { kind, after, limit } => self.room_rows(kind, after.as_deref(), limit),
            Ask::Room { kind, room } => self.room_row(kind, &room),
            Ask::Turn => Answer::Ok,
            Ask::Stats => Answer::Stats(Box::new(self.stats())),
            Ask::Trace => Answer::Trace(Box::new(self.trace.page(&self.schema))),
            Ask::ClearTrace => {
                self.trace.clear();
                Answer::Ok
            }
            Ask::Reload(admission) => {
                self.admission = admission;
                Answer::Ok
            }
            Ask::Drain { deadline } => {
                self.on_drain(ticket, deadline);
                return;
            }
            Ask::Save => {
                self.on_save(ticket);
                return;
            }
            Ask::End => Answer::Ok,
        };
        self.reply(ticket, answer);
    }

    pub(super) fn reply(&mut self, ticket: u64, answer: Answer) {
        self.outputs.push_back(Output::Reply(Reply { ticket, answer }));
    }

    fn disconnect(&mut self, id: &str, code: u16, reason: &str) -> Answer {
        let Some(session) = self.find_connected(id) else { return Answer::NotFound };
        self.counters.closed_by_operator += 1;
        self.close(self.sessions[session as usize].conn, Some(code), reason);
        Answer::Ok
    }

    fn on_member(&mut self, ticket: u64, id: &str, kind: RoomKind, room: &str, on: bool) -> Option<Answer> {
        let Some(session) = self.find_connected(id) else { return Some(Answer::NotFound) };
        if on {
            return self.order_member(ticket, session, kind, room);
        }
        if let Some(room) = self.rooms.find(kind, room) {
            self.leave(session, room);
        }
        Some(Answer::Ok)
    }

    fn client_rows(&self, after: Option<&str>, limit: usize) -> Answer {
        let connected = self.sessions.iter().filter(|(_, session)| session.conn != NONE);
        let ids = connected.map(|(index, _)| self.client_id(index as u32));
        let (ids, more) = smallest_after(ids, after, limit.min(LISTING_ROWS));
        let rows =
            ids.iter().filter_map(|id| self.find_connected(id)).map(|session| self.client_row(session));
        Answer::Clients { rows: rows.collect(), more }
    }

    pub(super) fn client_row(&self, index: u32) -> ClientRow {
        let session = &self.sessions[index as usize];
        let identity = session.known().access.identity();
        ClientRow {
            id: self.client_id(index),
            user: identity.and_then(|identity| identity.user.as_deref()).map(Into::into),
            meta: identity.and_then(|identity| identity.meta.clone()),
            groups: self.names_of(index, RoomKind::Group),
            topics: self.names_of(index, RoomKind::Topic),
            connected_at: self.connected_at(session),
            ip: match self.conn(session.conn).peer.into() {
                Peer::Ip(ip) => ip.to_string(),
                Peer::Unix => "unix".into(),
            },
            core: self.core,
            seq: if session.stamps { session.outbox.newest() } else { 0 },
            queued: session.outbox.queued(),
            dropped: session.outbox.dropped(),
        }
    }

    /// Unix milliseconds at which its connection was upgraded.
    pub(super) fn connected_at(&self, session: &Session) -> u64 {
        self.wall(self.conn(session.conn).since)
    }

    fn room_rows(&self, kind: RoomKind, after: Option<&str>, limit: usize) -> Answer {
        let names = self.rooms.inhabited(kind).map(|room| room.name.clone());
        let (names, more) = smallest_after(names, after, limit.min(LISTING_ROWS));
        let rows = names.iter().filter_map(|name| self.rooms.find(kind, name));
        let rows = rows.map(|room| self.summary(self.rooms.room(room))).collect();
        Answer::Rooms { rows, more }
    }

    fn summary(&self, room: &Room) -> RoomRow {
        let topic = room.topic.as_ref().filter(|_| self.is_home(RoomKind::Topic, &room.name));
        RoomRow {
            name: room.name.clone(),
            members: room.members.len() as u64 - u64::from(room.parked),
            parked: u64::from(room.parked),
            topic_seq: topic.map_or(0, |topic| topic.seq),
        }
    }

    fn room_row(&self, kind: RoomKind, name: &str) -> Answer {
        let Some(room) = self.rooms.find(kind, name).map(|room| self.rooms.room(room)) else {
            return Answer::NotFound;
        };
        if room.members.is_empty() {
            return Answer::NotFound;
        }
        let connected = room.members.iter().filter(|session| !self.sessions[**session as usize].is_parked());
        let mut clients: Vec<Box<str>> = connected.map(|session| self.client_id(*session)).collect();
        clients.sort_unstable();
        Answer::Room { row: self.summary(room), clients }
    }

    fn stats(&self) -> Stats {
        let connected =
            || self.sessions.iter().map(|(_, session)| session).filter(|session| !session.is_parked());
        let (topic_bytes, session_bytes, parked_bytes) = self.store.bytes();
        let encoded = self.encoded.iter().enumerate().filter(|(_, count)| **count > 0);
        Stats {
            core: self.core,
            counters: self.counters.clone(),
            encoded: encoded
                .map(|(event, count)| (self.schema.name(event as EventIndex).into(), *count))
                .collect(),
            connected_clients: u64::from(self.connected),
            parked_sessions: u64::from(self.parked),
            parked_bytes,
            queue_depth: connected().map(|session| session.outbox.queued()).sum(),
            queue_bytes: connected().map(|session| self.queued_bytes(session)).sum(),
            history_bytes: session_bytes + parked_bytes,
            topic_bytes,
            inbound_bytes: self.inbound_bytes,
            stored_events: self.store.stored(),
        }
    }

    fn queued_bytes(&self, session: &Session) -> u64 {
        let outbox = &session.outbox;
        let entries = (outbox.cursor()..outbox.next()).map(|seq| outbox.entry(seq));
        entries.filter(|entry| !entry.is_skipped()).map(|entry| u64::from(self.store.len(entry.slot()))).sum()
    }

    /// Every count agrees with what it counts. For tests: walks everything.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let parked = self.sessions.iter().filter(|(_, session)| session.is_parked()).count();
        assert_eq!(parked, self.parked as usize, "parked sessions");
        let open = self.conns.iter().flatten().filter(|conn| conn.is_open()).count();
        assert_eq!(open, self.connected as usize, "open connections");
        for (index, session) in &self.sessions {
            if session.conn != NONE {
                assert_eq!(self.conn(session.conn).session, index as u32, "session and connection");
            }
            for joined in session.rooms.iter() {
                let member = self.rooms.room(joined.room).members[joined.place as usize];
                assert_eq!(member, index as u32, "membership");
            }
            if let ClientId::Pinned(id) = &session.known().id {
                assert_eq!(self.pinned.get(id), Some(&(index as u32)), "pinned id");
            }
        }
        let unfinished: u64 = self.conns.iter().flatten().map(|conn| u64::from(conn.unfinished())).sum();
        assert_eq!(unfinished, self.inbound_bytes, "bytes of unfinished messages");
    }

    /// Deadlines entered, stale ones included. For tests.
    #[doc(hidden)]
    pub fn deadlines(&self) -> usize {
        self.timers.len()
    }

    /// Slots of the store in use. For tests.
    #[doc(hidden)]
    pub fn store_slots(&self) -> usize {
        self.store.slots()
    }
}

/// The `limit` smallest names above `after`, in order, and whether there are more.
fn smallest_after(
    names: impl Iterator<Item = Box<str>>,
    after: Option<&str>,
    limit: usize,
) -> (Vec<Box<str>>, bool) {
    let mut smallest = BinaryHeap::with_capacity(limit + 2);
    for name in names {
        if after.is_some_and(|after| (*name).cmp(after) != Ordering::Greater) {
            continue;
        }
        if smallest.len() <= limit {
            smallest.push(name);
        } else if smallest.peek().is_some_and(|largest| name < *largest) {
            smallest.push(name);
            smallest.pop();
        }
    }
    let mut sorted = smallest.into_sorted_vec();
    let more = sorted.len() > limit;
    sorted.truncate(limit);
    (sorted, more)
}
