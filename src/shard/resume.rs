//! hello and resume: what a client says it has against what its session knows, and the answers. docs/PROTOCOL.md
//! states the rules; every answer is `resumed{ok, from}`, after the events it speaks of.

use crate::limits::MAX_SEQ;

use super::session::{Job, NONE, Replay, ReplayAnswer};
use super::{Overdue, Shard};

impl Shard {
    pub(super) fn on_hello(&mut self, index: u32, version: i64, last_seq: i64) {
        if version != 2 {
            self.counters.closed_protocol += 1;
            self.close(index, Some(1002), "wire version mismatch");
            return;
        }
        let last_seq = self.position(last_seq);
        let session = self.session_of(index);
        let is_first = !std::mem::replace(&mut self.conn_mut(index).said_hello, true);
        let found = &self.sessions[session as usize];
        if !found.stamps {
            if last_seq > 0 {
                self.counters.resumes_served += 1;
                self.answer(session, false, 0);
            }
        } else if !is_first {
            if last_seq > 0 {
                self.counters.resumes_served += 1;
                self.resume(session, last_seq);
            }
        } else {
            if found.adopted && !(last_seq > 0 && found.is_untouched()) {
                self.hello_to_adopted(session, last_seq);
            } else {
                self.hello_to_fresh(session, last_seq);
            }
            // A drain may have closed the connection behind the last event, and ended the session.
            if let Some(found) = self.sessions.get_mut(session as usize) {
                found.greeted = true;
            }
        }
        self.open_gate(index);
    }

    /// The first hello of a session that no connection has written from. What it was numbered so far moves behind the
    /// client's position, so that its gate takes it.
    fn hello_to_fresh(&mut self, session: u32, last_seq: u64) {
        if last_seq == 0 {
            return;
        }
        self.counters.resumes_served += 1;
        let found = &mut self.sessions[session as usize];
        let stamped = found.outbox.next() - found.known().first_seq;
        let has_left = found.open && stamped > 0;
        let mut first_behind = found.outbox.cursor();
        if !has_left || last_seq >= stamped {
            if self.is_exhausted_by(session, last_seq) {
                return;
            }
            let found = &mut self.sessions[session as usize];
            let (first, cursor) = (found.outbox.oldest(), found.outbox.cursor());
            found.outbox.renumber(last_seq);
            let known = found.known_mut();
            known.first_seq += last_seq;
            first_behind = known.first_seq;
            for seq in first + last_seq..cursor + last_seq {
                found.outbox.mark_unsent(seq);
            }
            if found.outbox.oldest() > first_behind {
                found.outbox.lose_what_left();
            }
            found.jobs_moved(last_seq);
        }
        self.declare_lost(session, first_behind);
        if has_left && last_seq >= stamped {
            self.start_replay(session, last_seq, u64::MAX, true, ReplayAnswer::None);
        }
    }

    /// Numbers that are `by` higher would pass the last one there is: the session ends.
    fn is_exhausted_by(&mut self, session: u32, by: u64) -> bool {
        let found = &self.sessions[session as usize];
        let is_exhausted = found.outbox.newest() + by > MAX_SEQ;
        if is_exhausted {
            self.overdue.push(Overdue::Exhausted(found.conn));
        }
        is_exhausted
    }

    /// Tells the client that it misses something, nobody knows what. Until it has `first`, the first event behind this
    /// answer, it is told so again: the answer may be lost with the connection.
    fn declare_lost(&mut self, session: u32, first: u64) {
        self.sessions[session as usize].known_mut().declared = first;
        self.answer(session, false, 0);
    }

    /// The first hello to a session that was parked, or taken over.
    fn hello_to_adopted(&mut self, session: u32, last_seq: u64) {
        let found = &mut self.sessions[session as usize];
        let is_open = found.open;
        if last_seq > found.outbox.newest() {
            self.counters.resumes_served += 1;
            found.acknowledged = true;
            self.forget_history(session);
            let outbox = &mut self.sessions[session as usize].outbox;
            let by = last_seq + 1 - outbox.cursor();
            if self.is_exhausted_by(session, by) {
                return;
            }
            self.sessions[session as usize].outbox.renumber(by);
            self.sessions[session as usize].jobs_moved(by);
            self.sessions[session as usize].known_mut().first_seq = last_seq + 1;
            self.declare_lost(session, last_seq + 1);
        } else if last_seq == 0 && found.acknowledged {
            if !is_open {
                self.restart_session(session);
            }
        } else if is_open {
            self.catch_up(session, last_seq);
        } else {
            self.continue_adopted(session, last_seq);
        }
    }

    /// The hello comes after the gate has opened: everything behind the position. A client without one gets what this
    /// connection began behind.
    fn catch_up(&mut self, session: u32, last_seq: u64) {
        let end = self.sessions[session as usize].known().written_from;
        let was_replaying = self.sessions[session as usize].replay().is_some();
        self.counters.resumes_served += u64::from(last_seq > 0);
        if last_seq > 0 && !self.doubt_position(session, last_seq) {
            self.resume(session, last_seq);
        } else if !self.is_behind_replay(session, last_seq) {
            self.start_replay(session, last_seq, end, true, ReplayAnswer::None);
        }
        // A drain may have closed the connection behind the last event.
        let conn = self.sessions[session as usize].conn;
        if !was_replaying && conn != NONE {
            self.conn_mut(conn).aside_mut().late_hello = Some(last_seq);
        }
    }

    /// A position that comes with the first hello of all is of an older session, as is one before a declared loss.
    /// True: the client was told so, ahead of everything that is sent again.
    fn doubt_position(&mut self, session: u32, last_seq: u64) -> bool {
        let found = &self.sessions[session as usize];
        let first = if found.greeted { found.known().declared } else { last_seq + 1 };
        let is_strange = last_seq > 0 && last_seq < first;
        if is_strange {
            self.declare_lost(session, first);
        }
        is_strange
    }

    /// The client comes back with a position that the session knows: everything behind it, then the answer.
    fn continue_adopted(&mut self, session: u32, last_seq: u64) {
        let found = &mut self.sessions[session as usize];
        found.acknowledged |= last_seq > 0;
        let (had, requeued) = found.outbox.adopt(last_seq);
        self.counters.send_discarded += had;
        self.counters.events_requeued += requeued;
        let is_answered = self.doubt_position(session, last_seq);
        let found = &mut self.sessions[session as usize];
        let from = found.outbox.oldest().max(last_seq + 1);
        let from = if from < found.outbox.next() { from } else { 0 };
        self.start_replay(session, last_seq, u64::MAX, true, ReplayAnswer::None);
        if last_seq > 0 {
            self.counters.resumes_served += 1;
        }
        if last_seq > 0 && !is_answered {
            self.add_job(session, Job::Resumed { after: last_seq, from });
        }
    }

    /// The end of everything that an adopted session had for its client.
    pub(super) fn answer_adoption(&mut self, session: u32, after: u64, from: u64) {
        let outbox = &self.sessions[session as usize].outbox;
        if outbox.has_lost(after) || outbox.has_unsent(after, outbox.cursor()) {
            self.answer(session, false, 0);
        } else {
            self.answer(session, true, from);
        }
    }

    /// A new process came with the id of an old one: numbering begins at 1, with what came since it is connected.
    fn restart_session(&mut self, session: u32) {
        self.counters.sessions_restarted += 1;
        let found = &mut self.sessions[session as usize];
        let adopted_at = found.known().adopted_at;
        while found.outbox.cursor() < adopted_at {
            let was_dropped = found.outbox.entry(found.outbox.cursor()).is_skipped();
            found.outbox.pass_parked();
            self.counters.send_discarded += u64::from(!was_dropped);
        }
        found.acknowledged = false;
        self.forget_history(session);
        let found = &mut self.sessions[session as usize];
        let down = found.outbox.cursor() - 1;
        found.outbox.restart();
        found.jobs_restarted(down);
        let known = found.known_mut();
        (known.first_seq, known.declared) = (1, 0);
        self.leave_old_rooms(session, true);
    }

    /// Lets go of everything behind the cursor.
    fn forget_history(&mut self, session: u32) {
        let found = &mut self.sessions[session as usize];
        while found.outbox.oldest() < found.outbox.cursor() {
            let slot = found.outbox.pop_oldest().slot();
            self.store.release_live(slot);
        }
    }

    /// Frees an idle session's ring; false when something waits in it.
    pub(super) fn free_history(&mut self, session: u32) -> bool {
        let found = &self.sessions[session as usize];
        if found.outbox.cursor() < found.outbox.next() || found.jobs.is_some() {
            return false;
        }
        self.forget_history(session);
        self.sessions[session as usize].outbox.shrink();
        true
    }

    pub(super) fn on_resume(&mut self, index: u32, last_seq: i64) {
        let last_seq = self.position(last_seq);
        self.counters.resumes_served += 1;
        let session = self.session_of(index);
        self.resume(session, last_seq);
    }

    /// Everything after a position, on the same connection.
    pub(super) fn resume(&mut self, session: u32, after: u64) {
        let found = &mut self.sessions[session as usize];
        if !found.stamps || !found.has_stamped() {
            self.answer(session, false, 0);
            return;
        }
        if after >= found.outbox.newest() {
            found.acknowledged = true;
            self.answer(session, true, 0);
            return;
        }
        if self.is_behind_replay(session, after) {
            return;
        }
        let found = &mut self.sessions[session as usize];
        found.acknowledged |= after > 0;
        let unsent_only =
            found.outbox.has_lost(after) || found.outbox.has_unsent(after, found.outbox.cursor());
        let conn = found.conn;
        let late = self.conn_mut(conn).aside.as_mut().map(|aside| &mut aside.late_hello);
        if !unsent_only && late.is_some_and(|late| late.take_if(|position| *position == after).is_some()) {
            self.answer(session, true, after + 1);
            return;
        }
        self.start_replay(session, after, u64::MAX, unsent_only, ReplayAnswer::Resumed);
    }

    /// True: a replay is running, and another one from this position follows it.
    fn is_behind_replay(&mut self, session: u32, after: u64) -> bool {
        let jobs = self.sessions[session as usize].jobs.as_mut();
        let Some(jobs) = jobs.filter(|jobs| jobs.replay.is_some()) else { return false };
        jobs.again = Some(jobs.again.map_or(after, |other| other.min(after)));
        true
    }

    /// Sends again what lies between a position and `end`, up to the cursor.
    fn start_replay(&mut self, session: u32, after: u64, end: u64, unsent_only: bool, answer: ReplayAnswer) {
        let found = &mut self.sessions[session as usize];
        let position = found.outbox.oldest().max(after + 1);
        let end = found.outbox.cursor().min(end).max(position);
        let incomplete = !unsent_only && position > after + 1;
        let replay = Replay { position, end, unsent_only, after, first: 0, incomplete, answer };
        found.jobs_mut().replay = Some(replay);
        let conn = found.conn;
        self.advance_stream(session);
        self.mark(conn);
    }

    pub(super) fn finish_replay(&mut self, session: u32) {
        let jobs = self.sessions[session as usize].jobs_mut();
        let replay = jobs.replay.take().expect("a replay has ended");
        let again = jobs.again.take();
        if replay.answer == ReplayAnswer::Resumed {
            self.answer_resume(session, &replay);
        }
        if let Some(after) = again {
            self.resume(session, after);
        }
    }

    fn answer_resume(&mut self, session: u32, replay: &Replay) {
        let outbox = &self.sessions[session as usize].outbox;
        if replay.unsent_only {
            let is_missing = replay.incomplete
                || outbox.has_lost(replay.after)
                || outbox.has_unsent(replay.after, replay.end);
            match is_missing {
                true => self.answer(session, false, 0),
                false => self.answer(session, true, replay.first),
            }
        } else if replay.incomplete {
            self.answer(session, false, replay.first);
            if replay.first > 0 {
                self.answer(session, false, 0);
            }
        } else {
            let from = if replay.first > 0 { replay.first } else { replay.after + 1 };
            self.answer(session, true, from);
        }
    }

    fn answer(&mut self, session: u32, ok: bool, from: u64) {
        if !ok {
            self.counters.resume_misses += 1;
        }
        let conn = self.sessions[session as usize].conn;
        let from = i64::try_from(from).expect("numbers are below 2^53");
        self.push_control(conn, |encoder| encoder.resumed(ok, from));
    }

    /// A position that a client names: below 0 or above 2^53-1 it is an error, and counts as 0.
    fn position(&mut self, last_seq: i64) -> u64 {
        match u64::try_from(last_seq) {
            Ok(seq) if seq <= MAX_SEQ => seq,
            _ => {
                self.counters.protocol_errors += 1;
                0
            }
        }
    }

    /// Events may leave from now on.
    pub(super) fn open_gate(&mut self, index: u32) {
        let Some(conn) = self.conns[index as usize].as_ref().filter(|conn| conn.is_open()) else { return };
        let session = conn.session;
        let found = &mut self.sessions[session as usize];
        if !std::mem::replace(&mut found.open, true) {
            self.advance_stream(session);
            self.mark(index);
        }
    }
}
