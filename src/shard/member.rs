//! Joining and leaving rooms; a topic's history for those who come late, also from its home on another core.

use crate::limits;

use super::Shard;
use super::handoff::{Handoff, Past, home};
use super::session::{Job, Membership, Origin, Session, pause};
use super::step::{Answer, RoomKind, SessionId};
use super::store::Slot;
use super::topic::Waiter;

impl Shard {
    pub(super) fn on_subscribe(&mut self, index: u32, topic: &str) {
        let session = self.session_of(index);
        let is_new = !self.is_member(session, RoomKind::Topic, topic);
        let is_full = self.count_of(session, RoomKind::Topic) >= self.config.limits.topics_per_connection;
        if !self.may_read(session, topic) || (is_new && is_full) {
            self.counters.rejected_joins += 1;
            return;
        }
        let room = self.rooms.find_or_make(RoomKind::Topic, topic);
        if self.knows_topic(room) {
            self.subscribe(session, room);
        } else {
            let conn = self.conn(index).id;
            self.ask_home(room, Waiter::Subscribe(conn));
            self.pause(index, pause::HOME);
        }
    }

    /// The gate of subscribe and snapshotRequest.
    fn may_read(&self, session: u32, topic: &str) -> bool {
        topic.len() <= self.config.limits.topic_name_bytes as usize
            && self.sessions[session as usize].known().access.may_subscribe(topic)
    }

    /// This core numbers the topic, or follows its home without a gap.
    fn knows_topic(&self, room: u32) -> bool {
        self.rooms.topic(room).follows || self.is_home(RoomKind::Topic, &self.rooms.room(room).name)
    }

    /// Makes a session a member and gives it the topic's history as part of its stream. A topic that it kept from an
    /// earlier connection gives none: what it missed is in its outbox.
    fn subscribe(&mut self, session: u32, room: u32) {
        let kept =
            self.sessions[session as usize].rooms.iter_mut().find(|membership| membership.room == room);
        match kept {
            Some(membership) => {
                membership.origin = Origin::Connection;
                if std::mem::take(&mut membership.kept) {
                    return;
                }
            }
            None => self.enter(session, room, Origin::Connection),
        }
        self.push_topic_history(session, room);
    }

    fn push_topic_history(&mut self, session: u32, room: u32) {
        let history = std::mem::take(&mut self.rooms.topic_mut(room).history);
        for (_, slot) in &history {
            self.push_unjudged(session, *slot);
        }
        let is_empty = history.is_empty();
        self.rooms.topic_mut(room).history = history;
        if !is_empty {
            self.sessions[session as usize].outbox.shield_all();
            self.add_job(session, Job::HistoryEnd);
        }
    }

    pub(super) fn on_snapshot_request(&mut self, index: u32, topic: &str, from_seq: i64) {
        let session = self.session_of(index);
        if !self.may_read(session, topic) {
            self.counters.rejected_joins += 1;
            return;
        }
        if self.config.replay.history_size == 0 {
            return;
        }
        let after = u64::try_from(from_seq).unwrap_or(0);
        match self.rooms.find(RoomKind::Topic, topic).filter(|room| self.knows_topic(*room)) {
            Some(room) => self.answer_snapshot(session, room, after),
            None if self.is_home(RoomKind::Topic, topic) => {}
            None => {
                let (conn, room) = (self.conn(index).id, self.rooms.find_or_make(RoomKind::Topic, topic));
                self.ask_home(room, Waiter::Snapshot { conn, after });
                self.pause(index, pause::HOME);
            }
        }
    }

    /// What the topic has above a number.
    fn answer_snapshot(&mut self, session: u32, room: u32, after: u64) {
        let newer = self.rooms.topic(room).history.iter().filter(|(seq, _)| *seq > after);
        let slots: Vec<Slot> = newer.map(|(_, slot)| *slot).collect();
        self.push_snapshot(session, slots);
    }

    /// Unsequenced events in stream order. They are held like a session's history: over the byte budget they leave.
    fn push_snapshot(&mut self, session: u32, slots: Vec<Slot>) {
        if slots.is_empty() {
            return;
        }
        for slot in &slots {
            self.store.hold_live(*slot, 1);
        }
        self.add_job(session, Job::Snapshot { slots, done: 0 });
    }

    /// Adds a job behind everything that waits now.
    pub(super) fn add_job(&mut self, session: u32, job: Job) {
        let found = &mut self.sessions[session as usize];
        let (at, conn) = (found.outbox.next(), found.conn);
        found.jobs_mut().stream.push_back((at, job));
        if found.jobs_mut().unfinished() >= limits::UNFINISHED_REPLAYS {
            self.pause(conn, pause::HISTORY);
        }
        self.advance_stream(session);
        self.mark(conn);
    }

    /// Makes a session a member of a group or user.
    pub(super) fn join(&mut self, session: u32, kind: RoomKind, name: &str, origin: Origin) {
        let room = self.rooms.find_or_make(kind, name);
        let known =
            self.sessions[session as usize].rooms.iter_mut().find(|membership| membership.room == room);
        match known {
            Some(membership) if membership.origin != Origin::Identity => membership.origin = origin,
            Some(_) => {}
            None => self.enter(session, room, origin),
        }
    }

    /// Membership by the operator; `None` = the answer comes when the topic's home has answered.
    pub(super) fn order_member(
        &mut self,
        ticket: u64,
        session: u32,
        kind: RoomKind,
        name: &str,
    ) -> Option<Answer> {
        if kind != RoomKind::Topic {
            self.join(session, kind, name, Origin::Operator);
            return Some(Answer::Ok);
        }
        let room = self.rooms.find_or_make(kind, name);
        if self.is_member(session, kind, name) {
            return Some(Answer::Ok);
        }
        if self.knows_topic(room) {
            self.enter(session, room, Origin::Operator);
            self.push_topic_history(session, room);
            return Some(Answer::Ok);
        }
        let id = self.sessions[session as usize].id_at(session);
        self.ask_home(room, Waiter::Order { ticket, session: id });
        None
    }

    pub(super) fn enter(&mut self, session: u32, room: u32, origin: Origin) {
        let members = &mut self.rooms.room_mut(room).members;
        let place = u32::try_from(members.len()).expect("members are bounded by sessions");
        members.push(session);
        let joined = Membership { room, place, origin, kept: false };
        self.sessions[session as usize].rooms.push(joined);
        self.settle_room(room);
    }

    /// Takes a session out of a room, if it is in it.
    pub(super) fn leave(&mut self, session: u32, room: u32) {
        let found = &mut self.sessions[session as usize];
        let Some(at) = found.rooms.iter().position(|membership| membership.room == room) else { return };
        let place = found.rooms.remove(at).place;
        let was_parked = found.is_parked();
        let left = self.rooms.room_mut(room);
        left.members.swap_remove(place as usize);
        left.parked -= u32::from(was_parked);
        if let Some(&moved) = left.members.get(place as usize) {
            let theirs = self.sessions[moved as usize].rooms.iter_mut();
            let theirs = theirs.rev().find(|membership| membership.room == room);
            theirs.expect("a member knows its rooms").place = place;
        }
        self.settle_room(room);
    }

    /// A room may have become needless, or needed.
    pub(super) fn settle_room(&mut self, room: u32) {
        let found = self.rooms.room(room);
        let is_topic = found.kind == RoomKind::Topic;
        if is_topic && !self.is_home(RoomKind::Topic, &found.name) {
            self.settle_followed(room);
            return;
        }
        while let Some(victim) = self.rooms.settle(room) {
            self.release_topic_history(victim);
            self.rooms.remove(victim);
            if victim == room {
                return;
            }
        }
    }

    /// A topic of another core, whose last member here has gone.
    fn settle_followed(&mut self, room: u32) {
        let (found, topic) = (self.rooms.room(room), self.rooms.topic(room));
        if !found.members.is_empty() || !topic.waiting.is_empty() || topic.asked {
            return;
        }
        if topic.follows {
            let (home, topic) = (self.home_of(&found.name), &found.name);
            self.neighbours.hand(home, &Handoff::Disinterest { topic });
        }
        self.release_topic_history(room);
        self.rooms.remove(room);
    }

    fn release_topic_history(&mut self, room: u32) {
        let history = std::mem::take(&mut self.rooms.topic_mut(room).history);
        for (_, slot) in history {
            self.store.release_topic(slot);
        }
    }

    fn ask_home(&mut self, room: u32, waiter: Waiter) {
        let topic = self.rooms.topic_mut(room);
        topic.waiting.push(waiter);
        if !std::mem::replace(&mut topic.asked, true) {
            let topic = &self.rooms.room(room).name;
            let home = home(self.seed, self.cores, RoomKind::Topic, topic);
            self.neighbours.hand(home, &Handoff::Interest { topic });
        }
    }

    /// The home answered: from here on this core follows the topic without a gap.
    pub(super) fn on_interested(&mut self, topic: &str, topic_seq: u64, history: Past<'_>) {
        let Some(room) = self.rooms.find(RoomKind::Topic, topic) else { return };
        let found = self.rooms.topic_mut(room);
        found.asked = false;
        found.follows = true;
        found.seq = topic_seq;
        let waiting = std::mem::take(&mut found.waiting);
        for (seq, event) in history {
            let slot = self.store_crossing(event);
            self.remember(room, seq, slot);
            self.store.unpin(slot);
        }
        for waiter in waiting {
            self.serve_waiter(room, waiter);
        }
        self.settle_room(room);
    }

    fn serve_waiter(&mut self, room: u32, waiter: Waiter) {
        match waiter {
            Waiter::Subscribe(conn) => {
                let Some(index) = self.find_conn(conn).filter(|index| self.conn(*index).is_open()) else {
                    return;
                };
                self.subscribe(self.session_of(index), room);
                self.unpause(index, pause::HOME);
            }
            Waiter::Snapshot { conn, after } => {
                if let Some(index) = self.find_conn(conn).filter(|index| self.conn(*index).is_open()) {
                    self.answer_snapshot(self.session_of(index), room, after);
                    self.unpause(index, pause::HOME);
                }
            }
            Waiter::Order { ticket, session } => {
                let found = self.find_generation(session);
                let found = found.filter(|session| !self.sessions[*session as usize].is_parked());
                let answer = match found {
                    Some(session) => {
                        if !self.sessions[session as usize].rooms.iter().any(|joined| joined.room == room) {
                            self.enter(session, room, Origin::Operator);
                            self.push_topic_history(session, room);
                        }
                        Answer::Ok
                    }
                    None => Answer::NotFound,
                };
                self.reply(ticket, answer);
            }
        }
    }

    pub(super) fn is_member(&self, session: u32, kind: RoomKind, name: &str) -> bool {
        let room = self.rooms.find(kind, name);
        room.is_some_and(|room| {
            self.sessions[session as usize].rooms.iter().any(|joined| joined.room == room)
        })
    }

    pub(super) fn count_of(&self, session: u32, kind: RoomKind) -> u32 {
        self.rooms_of(session, kind).count() as u32
    }

    /// Names of a session's rooms, in joining order.
    pub(super) fn names_of(&self, session: u32, kind: RoomKind) -> Vec<Box<str>> {
        self.rooms_of(session, kind).map(|joined| self.rooms.room(joined.room).name.clone()).collect()
    }

    fn rooms_of(&self, session: u32, kind: RoomKind) -> impl Iterator<Item = &Membership> {
        let joined = self.sessions[session as usize].rooms.iter();
        joined.filter(move |joined| self.rooms.room(joined.room).kind == kind)
    }

    /// Counts a session's memberships as those of a parked session, or of a connected one again.
    pub(super) fn count_parked(&mut self, session: u32, parked: bool) {
        for joined in self.sessions[session as usize].rooms.iter() {
            let room = self.rooms.room_mut(joined.room);
            if parked {
                room.parked += 1;
            } else {
                room.parked -= 1;
            }
        }
    }

    /// Rooms that an earlier connection or the operator gave and that the present access does not allow are left. With
    /// `all`, everything that neither the identity nor this connection gave.
    pub(super) fn leave_old_rooms(&mut self, session: u32, all: bool) {
        let doomed: Vec<u32> = {
            let found = &self.sessions[session as usize];
            found.rooms.iter().filter(|joined| self.is_doomed(found, joined, all)).map(|joined| joined.room)
        }
        .collect();
        for room in doomed {
            self.leave(session, room);
        }
    }

    fn is_doomed(&self, session: &Session, joined: &Membership, all: bool) -> bool {
        let room = self.rooms.room(joined.room);
        match (joined.origin, room.kind) {
            (Origin::Connection | Origin::Operator, _) => false,
            (Origin::Identity, kind) => {
                let identity = session.known().access.identity();
                let given = match kind {
                    RoomKind::Group => {
                        identity.is_some_and(|id| id.groups.iter().any(|name| **name == *room.name))
                    }
                    RoomKind::User => identity.is_some_and(|id| id.user.as_deref() == Some(&*room.name)),
                    RoomKind::Topic => false,
                };
                !given
            }
            (Origin::EarlierOperator, _) => all,
            (Origin::EarlierConnection, RoomKind::Topic) => {
                all || !session.known().access.may_subscribe(&room.name)
            }
            (Origin::EarlierConnection, _) => all || !session.known().access.may_join(&room.name),
        }
    }

    /// What present connections and the operator gave was given by earlier ones from now on.
    pub(super) fn age_rooms(&mut self, session: u32) {
        let rooms = &self.rooms;
        for joined in self.sessions[session as usize].rooms.iter_mut() {
            joined.origin = joined.origin.aged();
            joined.kept = rooms.room(joined.room).kind == RoomKind::Topic;
        }
    }

    /// The id of a session in use.
    pub(super) fn session_id(&self, session: u32) -> SessionId {
        self.sessions[session as usize].id_at(session)
    }
}
