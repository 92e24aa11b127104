//! The one place where bytes leave: [`Shard::fill`] writes the next bytes of a connection into memory that the driver
//! gives, [`Shard::sent`] says how many the kernel took.
//!
//! Order on one connection: the rest of a partly written frame, the control lane, then the stream: a running replay,
//! the job that is due, the queue up to the next job. `fill` only looks; `sent` moves.

use std::cmp::Reverse;
use std::num::NonZeroU32;

use bytes::Bytes;

use crate::limits;
use crate::wire::envelope::{self, FLAGS_AT, HEADER_BYTES};

use super::Shard;
use super::lane::Lane;
use super::session::{Conn, Flow, Job, NONE, Partial, Replay, Session, State, pause};
use super::step::{ConnId, Filled, Instant, Output};
use super::store::{self, Slot, Store};

/// A frame of the stream.
#[derive(Debug, Clone, Copy)]
struct Piece {
    slot: Slot,
    /// 0 = unsequenced.
    seq: u64,
    part: Part,
}

/// Which part of the stream a frame comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Replay,
    Snapshot,
    Queue,
    /// The rest of a partly written frame.
    Partial,
}

/// A place in a session's stream.
#[derive(Debug, Clone, Copy)]
struct Place {
    replay: Option<Replay>,
    snapshot: usize,
    cursor: u64,
}

impl Shard {
    /// A connection with something to send; it leaves the list. Those with control frames come first.
    pub fn next_dirty(&mut self) -> Option<ConnId> {
        loop {
            let (index, control) = match self.control_list.pop_front() {
                Some(index) => (index, true),
                None => match self.list.pop() {
                    Some(index) => (index, false),
                    None => {
                        self.wants_flush = false;
                        return None;
                    }
                },
            };
            let Some(conn) = self.conns.get_mut(index as usize).and_then(Option::as_mut) else { continue };
            let session = self.sessions.get_mut(conn.session as usize);
            let session = session.filter(|session| session.flow == Flow::Listed);
            let is_listed = if control { conn.in_control_list } else { conn.in_list || session.is_some() };
            if !is_listed {
                continue;
            }
            let coalesce = self.config.server.coalesce;
            if !control && !coalesce.is_zero() && conn.last_send + coalesce > self.now && !self.wants_flush {
                self.coalescing.push(Reverse((conn.last_send + coalesce, index)));
                continue;
            }
            conn.in_control_list = false;
            conn.in_list = false;
            if let Some(session) = session {
                session.flow = Flow::Sending;
            }
            if !conn.blocked {
                return Some(conn.id);
            }
        }
    }

    /// An outbox whose connection takes bytes is half full: send before anything else is taken in.
    pub fn wants_flush(&self) -> bool {
        self.wants_flush
    }

    /// Writes the next bytes of a connection. [`Shard::sent`] must follow before anything else happens to it.
    pub fn fill(&mut self, id: ConnId, buf: &mut [u8]) -> Filled {
        let Some(index) = self.find_conn(id) else { return Filled::default() };
        let conn = self.conn(index);
        let mut n = 0;
        if let Some(partial) = conn.partial {
            let piece = Piece { slot: partial.slot, seq: partial.seq, part: Part::Partial };
            match self.copy_piece(piece, partial.offset.get() as usize, buf) {
                Copied::Whole(bytes) => n = bytes,
                Copied::Part(bytes) => return Filled { bytes, body: None },
                Copied::Body(bytes, body) => return Filled { bytes, body: Some(body) },
            }
        }
        if let Some(lane) = &conn.lane {
            let unsent = lane.unsent();
            let bytes = unsent.len().min(buf.len() - n);
            buf[n..n + bytes].copy_from_slice(&unsent[..bytes]);
            n += bytes;
            if bytes < unsent.len() {
                return Filled { bytes: n, body: None };
            }
        }
        match self.sessions.get(conn.session as usize) {
            Some(session) if session.flow == Flow::Sending => self.fill_queue(session, buf, n),
            Some(session) if session.open => self.fill_stream(session, buf, n),
            _ => Filled { bytes: n, body: None },
        }
    }

    /// The short way of `fill_stream`: nothing but the queue.
    fn fill_queue(&self, session: &Session, buf: &mut [u8], mut n: usize) -> Filled {
        for seq in session.outbox.cursor()..session.outbox.next() {
            let entry = session.outbox.entry(seq);
            if entry.is_skipped() {
                continue;
            }
            let Some((frame, head)) = self.store.copied(entry.slot()) else {
                // It has left, or is not to be copied.
                return self.fill_from(session, Place { cursor: seq, ..Place::of(session) }, buf, n);
            };
            let Some(place) = buf.get_mut(n..n + frame.len()) else { break };
            place.copy_from_slice(frame);
            if session.stamps {
                envelope::stamp(&mut place[head + FLAGS_AT..head + HEADER_BYTES], seq);
            }
            n += frame.len();
        }
        Filled { bytes: n, body: None }
    }

    fn fill_stream(&self, session: &Session, buf: &mut [u8], n: usize) -> Filled {
        self.fill_from(session, Place::of(session), buf, n)
    }

    fn fill_from(&self, session: &Session, mut place: Place, buf: &mut [u8], mut n: usize) -> Filled {
        while let Some(piece) = place.next(session, &self.store) {
            let len = self.store.len(piece.slot) as usize;
            if self.store.large(piece.slot).is_none() {
                if len > buf.len() - n {
                    break;
                }
            } else if buf.len() - n < limits::CONTROL_FRAME_BYTES {
                break;
            }
            match self.copy_piece(piece, 0, &mut buf[n..]) {
                Copied::Whole(bytes) => n += bytes,
                Copied::Part(_) => unreachable!("there was room"),
                Copied::Body(bytes, body) => return Filled { bytes: n + bytes, body: Some(body) },
            }
        }
        Filled { bytes: n, body: None }
    }

    /// Copies a frame from an offset, stamped with its number.
    fn copy_piece(&self, piece: Piece, offset: usize, out: &mut [u8]) -> Copied {
        let frame = self.store.frame(piece.slot).expect("what is sent is stored");
        let head = self.store.head(piece.slot) + HEADER_BYTES;
        let mut n = 0;
        if offset < head {
            let mut stamped = [0; 10 + HEADER_BYTES];
            stamped[..head].copy_from_slice(&frame[..head]);
            if piece.seq > 0 {
                envelope::stamp(&mut stamped[head - 9..head], piece.seq);
            }
            n = (head - offset).min(out.len());
            out[..n].copy_from_slice(&stamped[offset..offset + n]);
            if n < head - offset {
                return Copied::Part(n);
            }
        }
        let body = offset + n;
        if let Some(large) = self.store.large(piece.slot) {
            return Copied::Body(n, large.slice(body..));
        }
        let rest = &frame[body..];
        let fits = rest.len().min(out.len() - n);
        out[n..n + fits].copy_from_slice(&rest[..fits]);
        if fits < rest.len() { Copied::Part(n + fits) } else { Copied::Whole(n + fits) }
    }

    /// The kernel took `written` of the bytes that `fill` gave; `refused` = it took fewer than given, and
    /// [`Input::Writable`](super::step::Input::Writable) will follow. Outputs may be waiting afterwards.
    pub fn sent(&mut self, now: Instant, id: ConnId, written: usize, refused: bool) {
        self.now = self.now.max(now);
        let Some(index) = self.find_conn(id) else { return };
        let now = self.now;
        let conn = self.conn_mut(index);
        if written > 0 {
            conn.last_send = now;
            if conn.told_pause {
                // Its bytes are not read, so what it takes is its sign of life.
                conn.last_received = now;
            }
        }
        let session = conn.session;
        let has_sent_event = conn.behind_first > 0;
        let is_plain = session != NONE && conn.is_between_frames() && has_sent_event;
        if has_sent_event {
            conn.behind_first += written as u64;
        }
        conn.blocked |= refused;
        if !is_plain && let Some(session) = self.sessions.get_mut(session as usize) {
            session.flow = Flow::Special;
        }
        let mut rest = written;
        if is_plain {
            rest = self.sent_queue(session, rest);
            if rest == 0 && !refused {
                self.slide(session);
                let found = &mut self.sessions[session as usize];
                let is_drained = found.is_drained();
                if found.flow == Flow::Sending {
                    found.flow = if is_drained && found.is_plain() { Flow::Idle } else { Flow::Special };
                }
                if is_drained {
                    return;
                }
            } else if let Some(session) = self.sessions.get_mut(session as usize) {
                // Refused, or something in its queue is not plain.
                session.flow = Flow::Special;
            }
        }
        let rest = self.sent_partial(index, rest);
        let rest = self.sent_lane(index, rest);
        if rest > 0 {
            self.sent_stream(index, rest);
        }
        let session = self.conn(index).session;
        if session != NONE {
            self.slide(session);
            self.advance_stream(session);
        }
        if self.finish_if_done(index) {
            return;
        }
        if !self.conn(index).blocked && self.has_more(index) {
            self.mark(index);
        }
    }

    /// The short way of a session that has nothing but its queue: passes the events at its front that were written
    /// whole. The bytes that are left.
    fn sent_queue(&mut self, session: u32, written: usize) -> usize {
        let Some(found) = self.sessions.get_mut(session as usize).filter(|found| found.jobs.is_none()) else {
            return written;
        };
        let (mut left, mut frames, mut heads) = (written, 0, 0);
        while let Some(entry) = found.outbox.front().filter(|entry| left > 0 && !entry.is_skipped()) {
            let slot = entry.slot();
            let len = self.store.len(slot);
            if left < len as usize || self.store.is_empty_slot(slot) {
                break;
            }
            found.outbox.pass_sent(len);
            left -= len as usize;
            frames += 1;
            heads += store::head(len);
        }
        if frames > 0 {
            found.last_event = self.now;
        }
        self.counters.events_sent += frames;
        self.counters.sent += frames;
        self.counters.bytes_sent += (written - left - heads) as u64;
        left
    }

    fn sent_partial(&mut self, index: u32, written: usize) -> usize {
        let conn = self.conns[index as usize].as_mut().expect("a connection in use exists");
        let Some(partial) = &mut conn.partial else { return written };
        let left = (self.store.len(partial.slot) - partial.offset.get()) as usize;
        if written < left {
            let written = u32::try_from(written).expect("less than a frame");
            partial.offset = partial.offset.checked_add(written).expect("less than a frame");
            return 0;
        }
        let (slot, seq) = (partial.slot, partial.seq);
        conn.partial = None;
        if seq > 0 && conn.behind_first == 0 {
            conn.behind_first = 1 + (written - left) as u64;
        }
        self.store.unpin(slot);
        written - left
    }

    fn sent_lane(&mut self, index: u32, written: usize) -> usize {
        let conn = self.conns[index as usize].as_mut().expect("a connection in use exists");
        let Some(lane) = &mut conn.lane else { return written };
        let bytes = lane.len().min(written);
        lane.advance(bytes);
        let len = lane.len();
        if len == 0
            && let Some(lane) = conn.lane.take()
        {
            self.spare_lane(*lane);
        }
        if len < limits::CONTROL_LANE_BYTES / 2 {
            self.unpause(index, pause::LANE);
        }
        written - bytes
    }

    /// Moves the stream on by so many bytes.
    fn sent_stream(&mut self, index: u32, mut bytes: usize) {
        let session = self.session_of(index);
        while bytes > 0 {
            let piece = self.front_of_queue(session).unwrap_or_else(|| self.front_of_stream(session));
            let len = self.store.len(piece.slot) as usize;
            if bytes < len {
                self.store.pin(piece.slot);
                let offset = u32::try_from(bytes).ok().and_then(NonZeroU32::new).expect("a part of a frame");
                self.conn_mut(index).partial = Some(Partial { slot: piece.slot, seq: piece.seq, offset });
            } else {
                let conn = self.conn_mut(index);
                if piece.seq > 0 && conn.behind_first == 0 {
                    conn.behind_first = 1 + (bytes - len) as u64;
                }
            }
            self.consume(session, piece);
            bytes = bytes.saturating_sub(len);
        }
    }

    /// The next frame of a session that has nothing to send but its queue.
    fn front_of_queue(&self, session: u32) -> Option<Piece> {
        let session = self.sessions.get(session as usize).filter(|session| session.jobs.is_none())?;
        let (outbox, seq) = (&session.outbox, session.outbox.cursor());
        let entry = (seq < outbox.next()).then(|| outbox.entry(seq)).filter(|entry| !entry.is_skipped())?;
        let seq = if session.stamps { seq } else { 0 };
        let piece = Piece { slot: entry.slot(), seq, part: Part::Queue };
        (!self.store.is_empty_slot(piece.slot)).then_some(piece)
    }

    fn front_of_stream(&mut self, session: u32) -> Piece {
        self.advance_stream(session);
        let mut place = Place::of(&self.sessions[session as usize]);
        let piece = place.next(&self.sessions[session as usize], &self.store);
        piece.expect("no more is sent than was given")
    }

    /// A piece counts as sent with its first byte: it is in the kernel, or pinned as partly written.
    fn consume(&mut self, session: u32, piece: Piece) {
        let len = self.store.len(piece.slot);
        let bytes = u64::from(len) - self.store.head(piece.slot) as u64;
        let found = &mut self.sessions[session as usize];
        match piece.part {
            Part::Queue => {
                found.outbox.pass_sent(len);
                found.last_event = self.now;
                self.counters.events_sent += 1;
            }
            Part::Replay => {
                let replay = found.jobs_mut().replay.as_mut().expect("the piece is of a replay");
                assert!(replay.position == piece.seq, "what has nothing to send was passed");
                replay.position += 1;
                if replay.first == 0 {
                    replay.first = piece.seq;
                }
                found.outbox.mark_sent(piece.seq);
                self.counters.frames_replayed += 1;
                self.counters.bytes_replayed += bytes;
                return;
            }
            Part::Snapshot => {
                let job = found.jobs_mut().stream.front_mut();
                let Some((_, Job::Snapshot { done, .. })) = job else {
                    unreachable!("the piece is of a snapshot")
                };
                *done += 1;
                self.store.release_live(piece.slot);
            }
            Part::Partial => unreachable!("a partly written frame was counted when it began"),
        }
        self.counters.sent += 1;
        self.counters.bytes_sent += bytes;
    }

    /// Takes a session's stream over everything that needs no byte: entries with nothing to send, replays and jobs that
    /// have ended.
    pub(super) fn advance_stream(&mut self, session: u32) {
        if self.sessions.get(session as usize).is_some_and(Session::is_drained) {
            return;
        }
        loop {
            self.pass_unsendable(session);
            let Some(found) = self.sessions.get_mut(session as usize) else { return };
            let (cursor, conn) = (found.outbox.cursor(), found.conn);
            if conn == NONE || !found.open {
                return;
            }
            let Some(jobs) = found.jobs.as_mut() else { return };
            if let Some(replay) = &mut jobs.replay {
                while replay.position < replay.end && !replay.is_sendable(&found.outbox, &self.store) {
                    replay.pass(&found.outbox);
                }
                if replay.position < replay.end {
                    return;
                }
                self.finish_replay(session);
                continue;
            }
            let due = jobs.stream.front_mut().filter(|(at, _)| *at <= cursor);
            let Some((_, job)) = due else { return };
            if let Job::Snapshot { slots, done } = job {
                while *done < slots.len() && self.store.is_empty_slot(slots[*done]) {
                    self.store.release_live(slots[*done]);
                    *done += 1;
                }
                if *done < slots.len() {
                    return;
                }
            }
            let (_, job) = jobs.stream.pop_front().expect("it was there");
            if jobs.unfinished() < limits::UNFINISHED_REPLAYS {
                self.unpause(conn, pause::HISTORY);
            }
            self.finish_job(session, job);
        }
    }

    /// The cursor passes what was dropped from inside the queue and what left under a byte budget.
    fn pass_unsendable(&mut self, session: u32) {
        let Some(found) = self.sessions.get_mut(session as usize) else { return };
        if found.replay().is_some() {
            return;
        }
        let limit = found.queue_limit();
        while found.outbox.cursor() < limit {
            let entry = found.outbox.entry(found.outbox.cursor());
            if !entry.is_skipped() {
                if !self.store.is_empty_slot(entry.slot()) {
                    break;
                }
                found.outbox.count_dropped();
                self.counters.dropped_evicted += 1;
            }
            found.outbox.pass_unsent(self.store.len(entry.slot()));
        }
        if found.jobs.as_ref().is_some_and(|jobs| jobs.is_empty()) {
            found.jobs = None;
        }
    }

    fn finish_job(&mut self, session: u32, job: Job) {
        match job {
            Job::Snapshot { .. } | Job::HistoryEnd => {}
            Job::Resumed { after, from } => self.answer_adoption(session, after, from),
            Job::Close => {
                let conn = self.sessions[session as usize].conn;
                self.counters.closed_drain += 1;
                self.close(conn, Some(1001), "server is draining");
            }
        }
    }

    /// A closing connection with nothing left to write is done.
    pub(super) fn finish_if_done(&mut self, index: u32) -> bool {
        let conn = self.conn(index);
        if !matches!(conn.state, State::Closing) || conn.partial.is_some() || conn.lane.is_some() {
            return false;
        }
        let (conn, acknowledged) = (conn.id, conn.acknowledgement());
        self.forget(index);
        self.outputs.push_back(Output::Finish { conn, acknowledged });
        true
    }

    fn has_more(&self, index: u32) -> bool {
        let conn = self.conn(index);
        if !conn.is_between_frames() {
            return true;
        }
        let Some(session) = self.sessions.get(conn.session as usize).filter(|_| conn.session != NONE) else {
            return false;
        };
        session.open && !session.is_drained() && Place::of(session).next(session, &self.store).is_some()
    }

    /// A connection that takes bytes and has some to send, and that nobody would send to before something else
    /// happens to it. There is none: tests ask when [`next_dirty`](Self::next_dirty) finds nothing.
    pub fn forgotten(&self) -> Option<ConnId> {
        let waits_for_its_time = |conn: &Conn| {
            let session = self.sessions.get(conn.session as usize);
            let is_listed = conn.in_list || session.is_some_and(|session| session.flow == Flow::Listed);
            is_listed && !self.config.server.coalesce.is_zero()
        };
        let is_forgotten = |conn: &&Conn| {
            !conn.blocked
                && !conn.in_control_list
                && !waits_for_its_time(conn)
                && self.has_more(conn.id.index)
        };
        self.conns.iter().flatten().find(is_forgotten).map(|conn| conn.id)
    }

    /// Puts a connection on the list of those with something to send.
    pub(super) fn mark(&mut self, index: u32) {
        let Some(conn) = self.conns.get_mut(index as usize).and_then(Option::as_mut) else { return };
        if !conn.in_list && !conn.blocked {
            conn.in_list = true;
            self.list.push(index);
        }
    }

    /// Puts a connection on the list of those with control frames to send.
    pub(super) fn mark_control(&mut self, index: u32) {
        let conn = self.conns[index as usize].as_mut().expect("a connection in use exists");
        if !conn.in_control_list && !conn.blocked {
            conn.in_control_list = true;
            self.control_list.push_back(index);
        }
    }

    /// Keeps the buffer of a lane for another one, unless there are enough or it has grown large.
    pub(super) fn spare_lane(&mut self, lane: Lane) {
        let buffer = lane.into_buffer();
        if self.lane_buffers.len() < SPARE_LANES && buffer.capacity() <= limits::CONTROL_LANE_BYTES {
            self.lane_buffers.push(buffer);
        }
    }

    /// A connection's control lane, made if there is none.
    pub(super) fn lane_mut(&mut self, index: u32) -> &mut Lane {
        let conn = self.conns[index as usize].as_mut().expect("a connection in use exists");
        if conn.lane.is_none() {
            let buffer = self.lane_buffers.pop().unwrap_or_default();
            conn.lane = Some(Box::new(Lane::over(buffer)));
        }
        conn.lane.as_mut().expect("made above")
    }
}

/// Lane buffers kept for reuse.
const SPARE_LANES: usize = 256;

enum Copied {
    /// To its end.
    Whole(usize),
    /// The buffer was too small.
    Part(usize),
    /// The rest is sent from where it is stored.
    Body(usize, Bytes),
}

impl Place {
    fn of(session: &Session) -> Place {
        let replay = session.replay().copied();
        let snapshot = match session.jobs.as_ref().and_then(|jobs| jobs.stream.front()) {
            Some((_, Job::Snapshot { done, .. })) => *done,
            _ => 0,
        };
        Place { replay, snapshot, cursor: session.outbox.cursor() }
    }

    /// The next frame to send. None at the end of a replay or snapshot and before a job: what follows is decided when
    /// that has ended.
    fn next(&mut self, session: &Session, store: &Store) -> Option<Piece> {
        if let Some(replay) = &mut self.replay {
            while replay.position < replay.end {
                let seq = replay.position;
                let is_sendable = replay.is_sendable(&session.outbox, store);
                replay.position += 1;
                if is_sendable {
                    let slot = session.outbox.entry(seq).slot();
                    return Some(Piece { slot, seq, part: Part::Replay });
                }
            }
            return None;
        }
        if let Some((at, job)) = session.jobs.as_ref().and_then(|jobs| jobs.stream.front())
            && *at <= self.cursor
        {
            let Job::Snapshot { slots, .. } = job else { return None };
            while let Some(slot) = slots.get(self.snapshot) {
                self.snapshot += 1;
                if !store.is_empty_slot(*slot) {
                    return Some(Piece { slot: *slot, seq: 0, part: Part::Snapshot });
                }
            }
            return None;
        }
        let limit = session.queue_limit();
        while self.cursor < limit {
            let (seq, entry) = (self.cursor, session.outbox.entry(self.cursor));
            self.cursor += 1;
            if !entry.is_skipped() && !store.is_empty_slot(entry.slot()) {
                let seq = if session.stamps { seq } else { 0 };
                return Some(Piece { slot: entry.slot(), seq, part: Part::Queue });
            }
        }
        None
    }
}

impl Conn {
    /// What to ask the kernel about the session's first event.
    pub(super) fn acknowledgement(&self) -> Option<(super::step::SessionId, u64)> {
        let session = self.acknowledges()?;
        (self.behind_first > 0).then(|| (session, self.behind_first - 1))
    }
}
