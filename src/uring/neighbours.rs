//! What comes from other cores and goes to them: handoffs and connections.

#![forbid(unsafe_code)]

use super::pace::Phase;
use super::sockets::State;
use super::{Driver, INPUT_TIME, sys};
use crate::mesh::{Moving, Parcel};
use crate::shard::handoff::Batch;
use crate::shard::step::{ConnId, CoreId, Input, Instant, Transfer};

/// Handoffs of a turn.
const HANDOFFS: usize = 4096;

/// What has left its ring, or has not entered one yet.
#[derive(Debug, Default)]
pub(super) struct Mesh {
    /// The batch that is being read, and the place of its core.
    reading: Option<(usize, Batch)>,
    /// Connections that wait for their last receive to end.
    leaving: Vec<(ConnId, CoreId, Box<Transfer>)>,
    /// Connections that leave at the end of the turn.
    moving: Vec<(CoreId, Moving)>,
    /// Time of the turn that took one last.
    last_handoff: Option<Instant>,
}

impl Mesh {
    /// A batch is half read.
    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Time of the turn that took a handoff last.
    pub fn last_handoff(&self) -> Option<Instant> {
        self.last_handoff
    }
}

impl Driver {
    /// Takes what other cores have sent, as long as what waits for someone need not be sent first, and for half of the
    /// time for input at most.
    pub(super) fn take_handoffs(&mut self) {
        let mut budget = HANDOFFS;
        let until = (sys::now() + INPUT_TIME / 2).min(self.now + INPUT_TIME);
        while budget > 0 && self.takes_input_until(until) {
            let Some((place, mut batch)) = self.mesh.reading.take().or_else(|| self.next_batch()) else {
                return;
            };
            let from = self.neighbour(place);
            self.mesh.last_handoff = Some(self.now);
            while budget > 0
                && self.takes_input_until(until)
                && let Some(handoff) = batch.take()
            {
                budget -= 1;
                self.core.handle(self.now, Input::Handoff { from, handoff });
                self.settle();
            }
            self.pace.pass(Phase::Handoffs, sys::now());
            if !batch.is_read() {
                self.mesh.reading = Some((place, batch));
            } else if let Some(port) = &mut self.port {
                // Here, not where it was written: that core may sleep, and large events would live on in it.
                batch.clear();
                port.neighbours().give_back(place, batch);
            }
        }
    }

    fn neighbour(&mut self, place: usize) -> CoreId {
        self.port.as_mut().expect("neighbours come with the port").neighbours().core(place)
    }

    /// Takes a parcel: its connections at once, its handoffs are what is read next.
    fn next_batch(&mut self) -> Option<(usize, Batch)> {
        let (place, parcel) = self.port.as_mut()?.neighbours().take()?;
        for Moving { socket, transfer } in parcel.moving {
            let conn = self.sockets.insert(socket);
            self.step(Input::Transferred { conn, transfer });
            self.keep_receiving(conn);
        }
        Some((place, parcel.batch))
    }

    /// Hands a connection to another core, once nothing of it is in flight here.
    pub(super) fn transfer(&mut self, conn: ConnId, to: CoreId, transfer: Box<Transfer>) {
        let Some(socket) = self.sockets.get(conn) else { return };
        if socket.is_receiving {
            socket.state = State::Leaving;
            self.ring.cancel_receive(conn);
            self.mesh.leaving.push((conn, to, transfer));
            return;
        }
        let socket = self.sockets.remove(conn).expect("just found");
        self.mesh.moving.push((to, Moving { socket, transfer }));
    }

    /// The receive of a connection that leaves has ended, or brought its last bytes.
    pub(super) fn leave(&mut self, conn: ConnId, bytes: &[u8]) {
        let at = self.mesh.leaving.iter().position(|(leaving, ..)| *leaving == conn);
        let (_, to, mut transfer) = self.mesh.leaving.swap_remove(at.expect("it leaves"));
        transfer.received.extend_from_slice(bytes);
        self.transfer(conn, to, transfer);
    }

    /// Sends other cores what there is for them, as far as their rings have room.
    pub(super) fn send_handoffs(&mut self) {
        let Some(port) = &mut self.port else { return };
        let neighbours = port.neighbours();
        let mut is_relieved = false;
        for place in 0..neighbours.len() {
            let to = neighbours.core(place);
            while let Some(batch) = neighbours.returned(place) {
                self.core.return_batch(to, batch);
            }
            while neighbours.has_room(place) {
                let moving =
                    self.mesh.moving.extract_if(.., |(core, _)| *core == to).map(|(_, moving)| moving);
                let moving: Vec<Moving> = moving.collect();
                let batch = self.core.take_batch(to);
                if batch.is_none() && moving.is_empty() {
                    break;
                }
                is_relieved = true;
                neighbours.send(place, Parcel { batch: batch.unwrap_or_default(), moving });
            }
        }
        if is_relieved {
            neighbours.flush();
            // Connections that paused because of what waited here may go on.
            self.settle();
            self.pace.pass(Phase::HandOver, sys::now());
        }
    }

    /// Whether something waits for room to the core at this place.
    pub(super) fn waits_for(&self, to: CoreId) -> bool {
        self.core.has_batch(to) || self.mesh.moving.iter().any(|(core, _)| *core == to)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::mesh::{self, Notice};
    use crate::schema::Schema;
    use crate::shard::admit::Admission;
    use crate::shard::census::Census;
    use crate::shard::handoff::{Body, Crossing, Handoff, Receivers};
    use crate::shard::step::{Ask, Command};
    use crate::shard::{Setup, Shard};
    use crate::uring::Core;
    use crate::uring::Places;

    #[test]
    fn a_flood_of_handoffs_does_not_keep_the_control_thread_waiting() {
        let config = Config::default();
        let schema = Arc::new(Schema::builtin());
        let quote = schema.by_name("quote").unwrap();
        let data = serde_json::json!({"symbol": "x".repeat(64), "bid": 1.0, "ask": 2.0, "bidSize": 1,
            "askSize": 4, "ts": 5});
        let mut payload = Vec::new();
        schema.encode_json(quote, &data, &mut payload).unwrap();
        let (mut control, mut ports) = mesh::connect(2).unwrap();
        let mut other = ports.pop().unwrap();
        let setup = Setup {
            core: 0,
            cores: 2,
            seed: 7,
            admission: Arc::new(Admission::new(&config.auth, config.limits.rate)),
            config: Arc::new(config),
            schema,
            wall_ms: 0,
            census: Arc::new(Census::new(2)),
            staged_bytes: 1 << 20,
        };
        let core = Core::Shard(Box::new(Shard::new(setup)));
        let mut driver = Driver::new(core, Vec::new(), ports.pop(), 16, Arc::new(Places::new(16))).unwrap();
        control.links[0].commands.send(Command { ticket: 1, ask: Ask::Turn }).unwrap();
        for turn in 0..500 {
            let ring = other.neighbours();
            while ring.has_room(0) {
                let mut batch = ring.returned(0).unwrap_or_default();
                batch.clear();
                while batch.weight() < crate::limits::BATCH_BYTES {
                    let event = Crossing { event: quote, body: Body::Payload(&payload) };
                    batch.push(&Handoff::Deliver { to: Receivers::All, event, receipt: None });
                }
                ring.send(0, Parcel { batch, moving: Vec::new() });
            }
            driver.turn();
            if matches!(control.links[0].notices.take(), Some(Notice::Reply(_))) {
                println!("answered in turn {turn}");
                return;
            }
        }
        panic!("no command was taken in 500 turns");
    }
}
