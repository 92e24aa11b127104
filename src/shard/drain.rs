//! The end of a core in good order: who is turned away, when whose connection is closed, and when all that is done.
//!
//! Clients whose connection closes come back, here or elsewhere. So they are not sent away all at once: connections
//! are closed in slots, spread over the first half of the time that the drain has. Who has not had his slot goes on
//! receiving. The other half is for those who read slowly.

use std::time::Duration;

use super::Shard;
use super::session::{Job, State};
use super::step::{Answer, Instant, Output};
use super::timer::Owner;

/// Time from slot to slot.
const SLOT: Duration = Duration::from_millis(50);
/// Connections that are always closed at once.
const SLOT_CONNECTIONS: usize = 64;

/// A drain.
#[derive(Debug)]
pub(super) struct Drain {
    stage: Stage,
    /// When what is left is cut.
    deadline: Instant,
    /// When the next slot is.
    slot_at: Instant,
    /// Connections of a slot.
    slot: usize,
    /// Connections before this place have had their slot.
    place: u32,
    /// Commands to be answered at the end.
    tickets: Vec<u64>,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Outboxes are being flushed.
    Flushing,
    /// The deadline has passed: whoever comes is turned away.
    Over,
    /// The driver was told.
    Done,
}

impl Drain {
    /// `open` connections are to be closed.
    fn new(now: Instant, deadline: Instant, open: usize) -> Drain {
        let spread = Duration::from_nanos(deadline.0.saturating_sub(now.0)) / 2;
        let slots = usize::try_from(spread.as_nanos() / SLOT.as_nanos()).unwrap_or(usize::MAX).max(1);
        let slot = open.div_ceil(slots).max(SLOT_CONNECTIONS);
        Drain { stage: Stage::Flushing, deadline, slot_at: now, slot, place: 0, tickets: Vec::new() }
    }
}

impl Shard {
    /// No new connection; every outbox is flushed, then closed 1001. A second order can only make it shorter.
    pub(super) fn on_drain(&mut self, ticket: u64, deadline: Instant) {
        let is_first = self.draining.is_none();
        let open = self.connected as usize;
        let drain = self.draining.get_or_insert_with(|| Drain::new(self.now, deadline, open));
        drain.tickets.push(ticket);
        drain.deadline = drain.deadline.min(deadline);
        self.timers.wake(deadline, Owner::Drain);
        if is_first {
            self.turn_newcomers_away();
            self.close_due_slots();
        }
    }

    /// Requests that were not answered yet.
    fn turn_newcomers_away(&mut self) {
        for index in 0..self.conns.len() as u32 {
            let Some(conn) = self.conns[index as usize].as_ref() else { continue };
            match conn.state {
                State::Handshake => self.abort(index),
                State::Waiting => {
                    let id = conn.id;
                    self.judge_again(id);
                }
                State::Listing | State::Open | State::Closing => {}
            }
        }
    }

    /// Closes the connections whose slot has come. A core that is late catches up.
    fn close_due_slots(&mut self) {
        let places = self.conns.len() as u32;
        while let Some(drain) = self.draining.as_mut().filter(|drain| drain.slot_at <= self.now) {
            if drain.place >= places {
                return;
            }
            drain.slot_at = drain.slot_at + SLOT;
            let (next, mut left) = (drain.slot_at, drain.slot);
            let mut place = drain.place;
            while left > 0 && place < places {
                left -= usize::from(self.close_behind_stream(place));
                place += 1;
            }
            if let Some(drain) = &mut self.draining {
                drain.place = place;
            }
            if place < places {
                self.timers.wake(next, Owner::Drain);
            }
        }
    }

    /// Closes an open connection behind everything that its outbox holds; false if there is none at this place.
    fn close_behind_stream(&mut self, index: u32) -> bool {
        let Some(conn) = self.conns[index as usize].as_ref().filter(|conn| conn.is_open()) else {
            return false;
        };
        let session = conn.session;
        self.open_gate(index);
        self.add_job(session, Job::Close);
        true
    }

    pub(super) fn on_drain_timer(&mut self) {
        let Some(drain) = &mut self.draining else { return };
        if drain.deadline > self.now {
            return self.close_due_slots();
        }
        if drain.stage == Stage::Flushing {
            drain.stage = Stage::Over;
        }
        for index in 0..self.conns.len() as u32 {
            if self.conns[index as usize].is_some() {
                self.abort(index);
            }
        }
    }

    /// The time of a drain is over, and the last connections are still there.
    pub(super) fn is_drain_over(&self) -> bool {
        self.draining.as_ref().is_some_and(|drain| drain.stage == Stage::Over)
    }

    /// Says that a drain has ended: to the driver once, and to whoever ordered it.
    pub(super) fn check_drained(&mut self) {
        let Some(drain) = &mut self.draining else { return };
        if drain.stage != Stage::Done {
            if self.live_conns > 0 {
                return;
            }
            drain.stage = Stage::Done;
            self.outputs.push_back(Output::Drained);
        }
        for ticket in std::mem::take(&mut drain.tickets) {
            self.reply(ticket, Answer::Ok);
        }
    }
}
