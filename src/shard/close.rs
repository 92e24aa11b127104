//! The end of connections and sessions: closing, losing, parking, taking up again; and the probe that finds out whether
//! the owner of an id still lives.

use std::time::Duration;

use crate::limits;
use crate::wire::frame;

use super::admit::Access;
use super::session::{Aside, ClientId, Flow, Job, NONE, State};
use super::step::{ConnId, Instant, Level, Output, SessionId};
use super::timer::Owner;
use super::{Overdue, Shard};

/// A ping is on its way to the owner of an id; these requests want the id.
#[derive(Debug)]
pub(super) struct Probe {
    owner: SessionId,
    deadline: Instant,
    waiting: Vec<ConnId>,
}

impl Shard {
    /// Closes a connection: its session leaves it at once; the close frame goes out behind what is begun and what is in
    /// the control lane.
    pub(super) fn close(&mut self, index: u32, code: Option<u16>, reason: &str) {
        if !self.conn(index).is_open() {
            return;
        }
        self.detach(index);
        frame::push_close(self.lane_mut(index).tail(), code, reason);
        let now = self.now;
        let conn = self.conn_mut(index);
        conn.state = State::Closing;
        conn.since = now;
        let unfinished = conn.unfinished();
        let acknowledges = conn.acknowledges();
        conn.aside = acknowledges.map(|_| Box::new(Aside { acknowledges, ..Aside::default() }));
        self.inbound_bytes -= u64::from(unfinished);
        self.mark_control(index);
        self.arm_conn(index);
    }

    pub(super) fn close_overdue(&mut self, overdue: Overdue) {
        match overdue {
            Overdue::Slow(conn) => self.close(conn, Some(1013), "slow consumer"),
            Overdue::Exhausted(conn) => {
                let session = self.conn(conn).session;
                if session == NONE {
                    return;
                }
                let id = self.session_id(session);
                self.close(conn, Some(1008), "numbering exhausted");
                if let Some(session) = self.find_generation(id) {
                    self.end_session(session);
                }
            }
        }
    }

    /// The peer has gone without our doing.
    pub(super) fn on_lost(&mut self, id: ConnId, unacked: Option<u32>) {
        let Some(index) = self.find_conn(id) else { return };
        let conn = self.conn(index);
        let acknowledged = unacked.is_some_and(|unacked| conn.first_event_acknowledged(unacked.into()));
        let session = match conn.session {
            NONE => conn.acknowledges(),
            session => Some(self.session_id(session)),
        };
        if acknowledged && let Some(session) = session {
            self.on_acknowledged(session);
        }
        if self.conn(index).is_open() {
            self.counters.closed_lost += 1;
            self.detach(index);
        }
        self.discard(index);
        self.forget(index);
    }

    /// Ends a connection at once.
    pub(super) fn abort(&mut self, index: u32) {
        if self.conn(index).is_open() {
            self.detach(index);
        }
        self.discard(index);
        let (conn, acknowledged) = (self.conn(index).id, self.conn(index).acknowledgement());
        self.forget(index);
        self.outputs.push_back(Output::Abort { conn, acknowledged });
    }

    /// Counts what a connection did not get out any more.
    fn discard(&mut self, index: u32) {
        let conn = self.conn(index);
        if conn.lane.is_some() || conn.partial.is_some() {
            self.counters.closed_unflushed += 1;
        }
    }

    /// Frees a connection that has no session.
    pub(super) fn forget(&mut self, index: u32) {
        let conn = self.conns[index as usize].take().expect("a connection in use exists");
        self.live_conns -= 1;
        self.census.leave(self.core);
        assert!(conn.session == NONE, "a session leaves its connection first");
        if let Some(partial) = conn.partial {
            self.store.unpin(partial.slot);
        }
        self.inbound_bytes -= u64::from(conn.unfinished());
        if let Some(lane) = conn.lane {
            self.spare_lane(*lane);
        }
    }

    /// Takes the session off an open connection and parks or ends it.
    fn detach(&mut self, index: u32) {
        let session = self.session_of(index);
        let id = self.session_id(session);
        let found = &mut self.sessions[session as usize];
        let conn = self.conns[index as usize].as_mut().expect("a connection in use exists");
        if !found.acknowledged {
            conn.aside_mut().acknowledges = Some(id);
            if let Some((session, most)) = conn.acknowledgement() {
                self.outputs.push_back(Output::AskAcknowledged { conn: conn.id, session, most });
            }
        }
        if let Some(partial) = conn.partial.filter(|partial| partial.seq >= found.outbox.oldest().max(1)) {
            found.outbox.mark_unsent(partial.seq);
        }
        conn.session = NONE;
        self.connected -= 1;
        self.census.release();
        self.drop_jobs(session);
        if self.probes.iter().any(|probe| probe.owner == id) {
            self.orphaned.push(id);
        }
        let is_pinned = matches!(self.sessions[session as usize].known().id, ClientId::Pinned(_));
        if is_pinned && self.config.resume.enabled && self.config.resume.max_parked > 0 {
            self.park(session);
        } else {
            self.end_session(session);
        }
    }

    fn drop_jobs(&mut self, session: u32) {
        let Some(jobs) = self.sessions[session as usize].jobs.take() else { return };
        for (_, job) in jobs.stream {
            if let Job::Snapshot { slots, done } = job {
                for slot in &slots[done..] {
                    self.store.release_live(*slot);
                }
            }
        }
    }

    fn park(&mut self, session: u32) {
        let now = self.now;
        let found = &mut self.sessions[session as usize];
        found.conn = NONE;
        found.open = false;
        found.flow = Flow::Special;
        found.adopted = false;
        found.last_event = now;
        for seq in found.outbox.oldest()..found.outbox.next() {
            self.store.park(found.outbox.entry(seq).slot());
        }
        self.timers.arm(&mut found.armed, now + self.config.resume.ttl, Owner::Session(session));
        self.count_parked(session, true);
        self.parked += 1;
        self.counters.parked += 1;
        self.parked_order.push_back((self.session_id(session), now));
        self.end_parked_over_limit();
        if self.parked_order.len() > 2 * self.parked as usize + 64 {
            let sessions = &self.sessions;
            self.parked_order.retain(|(id, at)| {
                let found = sessions.get(id.index as usize);
                found.is_some_and(|found| {
                    found.generation == id.generation && found.is_parked() && found.last_event == *at
                })
            });
        }
    }

    pub(super) fn end_parked_over_limit(&mut self) {
        while self.parked > self.config.resume.max_parked {
            self.end_oldest_parked();
        }
    }

    fn end_oldest_parked(&mut self) {
        while let Some((id, at)) = self.parked_order.pop_front() {
            let Some(session) = self.find_generation(id) else { continue };
            let found = &self.sessions[session as usize];
            if found.is_parked() && found.last_event == at {
                self.counters.parked_expired += 1;
                self.end_session(session);
                return;
            }
        }
        unreachable!("every parked session is in the order of parking");
    }

    /// Forgets a session that has no connection any more.
    pub(super) fn end_session(&mut self, session: u32) {
        let was_parked = self.sessions[session as usize].is_parked();
        while let Some(joined) = self.sessions[session as usize].rooms.last() {
            self.leave(session, joined.room);
        }
        let found = self.sessions.remove(session as usize);
        self.counters.send_discarded += found.outbox.queued();
        for seq in found.outbox.oldest()..found.outbox.next() {
            let slot = found.outbox.entry(seq).slot();
            if was_parked {
                self.store.release_parked(slot);
            } else {
                self.store.release_live(slot);
            }
        }
        self.parked -= u32::from(was_parked);
        if let ClientId::Pinned(id) = &found.known().id {
            self.pinned.remove(id);
        }
    }

    /// A connection takes a parked session up. Its first hello decides what of the outbox it gets.
    pub(super) fn adopt_session(&mut self, session: u32, conn: u32, access: Access) {
        self.count_parked(session, false);
        self.parked -= 1;
        self.counters.adopted += 1;
        let found = &mut self.sessions[session as usize];
        assert!(found.is_parked(), "a connected session is not taken up");
        for seq in found.outbox.oldest()..found.outbox.next() {
            self.store.unpark(found.outbox.entry(seq).slot());
        }
        found.conn = conn;
        found.adopted = true;
        let (adopted_at, written_from) = (found.outbox.next(), found.outbox.cursor());
        let known = found.known_mut();
        known.adopted_at = adopted_at;
        known.written_from = written_from;
        known.access = access;
        found.outbox.unsend_history();
        found.outbox.shield_all();
        found.last_event = self.now;
        self.age_rooms(session);
        self.leave_old_rooms(session, false);
        self.join_given_rooms(session);
    }

    /// A ping to the owner of an id that another connection wants.
    pub(super) fn probe(&mut self, owner: u32, waiting: ConnId) {
        let id = self.session_id(owner);
        if let Some(probe) = self.probes.iter_mut().find(|probe| probe.owner == id) {
            probe.waiting.push(waiting);
            return;
        }
        let deadline = self.now + Duration::from_secs(limits::PROBE_SECONDS);
        self.probes.push(Probe { owner: id, deadline, waiting: vec![waiting] });
        self.timers.wake(deadline, Owner::Probe);
        let conn = self.sessions[owner as usize].conn;
        self.conn_mut(conn).probed = true;
        self.push_ping(conn);
    }

    /// The owner lives: whoever wants its id is refused.
    pub(super) fn on_probe_answered(&mut self, owner: u32) {
        if owner == NONE {
            return;
        }
        let id = self.session_id(owner);
        for conn in self.take_probe(id) {
            self.refuse_duplicate(conn);
        }
    }

    /// The owner's connection has ended: whoever wants its id is looked at again, in order.
    pub(super) fn on_orphaned(&mut self, owner: SessionId) {
        for conn in self.take_probe(owner) {
            self.judge_again(conn);
        }
    }

    /// Owners that did not answer lose their session to the first who wants it.
    pub(super) fn on_probe_timer(&mut self) {
        let now = self.now;
        // An owner whose connection has ended in this very step is no more to be taken over: `settle` sees to it.
        let is_due = |probe: &&Probe, orphaned: &[SessionId]| {
            probe.deadline <= now && !orphaned.contains(&probe.owner)
        };
        while let Some(probe) = self.probes.iter().find(|probe| is_due(probe, &self.orphaned)) {
            let owner = probe.owner;
            let waiting = self.take_probe(owner);
            if let Some(session) = self.find_generation(owner)
                && !self.sessions[session as usize].is_parked()
                && !waiting.is_empty()
            {
                let id = self.client_id(session);
                self.log(
                    Level::Info,
                    format!("client {id} did not answer a probe: a newer connection takes over"),
                );
                self.take_over(session);
            }
            for (place, conn) in waiting.into_iter().enumerate() {
                if place == 0 {
                    self.judge_again(conn);
                } else {
                    self.refuse_duplicate(conn);
                }
            }
        }
    }

    /// Ends a probe; the requests that waited for it. Each may be gone, also on account of the one before.
    fn take_probe(&mut self, owner: SessionId) -> Vec<ConnId> {
        let Some(at) = self.probes.iter().position(|probe| probe.owner == owner) else { return Vec::new() };
        self.probes.swap_remove(at).waiting
    }
}
