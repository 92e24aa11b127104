//! Messages that come back: each connection has one on its way.

use super::load::now;
use super::protocol::{Adapter, Role, Said};
use super::swarm::{Came, Swarm};
use super::{Arguments, Found, latencies};
use anyhow::Result;
use hdrhistogram::Histogram;

/// What is on its way on one connection.
#[derive(Debug, Default, Clone)]
struct Trip {
    /// When the last message was sent, and its index: an echo has to have both.
    sent: u64,
    index: u64,
    /// The number of the last answer.
    number: u64,
    in_flight: bool,
}

/// What has come back, checked answer by answer.
struct Ledger {
    of: Vec<Trip>,
    /// Connections that have nothing on their way any more.
    back: Vec<usize>,
    /// Right answers.
    trips: u64,
    latencies: Histogram<u64>,
    measured: bool,
    role: Role,
    numbered: bool,
    doubled: u64,
    wrong: u64,
    wrong_seq: u64,
    refused: u64,
    closed: u64,
}

impl Ledger {
    fn new(arguments: &Arguments, role: Role) -> Result<Ledger> {
        Ok(Ledger {
            of: vec![Trip::default(); arguments.connections],
            back: Vec::new(),
            trips: 0,
            latencies: latencies()?,
            measured: false,
            role,
            numbered: arguments.numbered,
            doubled: 0,
            wrong: 0,
            wrong_seq: 0,
            refused: 0,
            closed: 0,
        })
    }

    #[inline]
    fn came(&mut self, connection: usize, came: &Came, at: u64) {
        let trip = &mut self.of[connection];
        let is_right = match came {
            Came::Said(Said::Event { due, index, number }) => {
                if self.numbered {
                    self.wrong_seq += u64::from(*number != Some(trip.number + 1));
                    trip.number = number.unwrap_or(0);
                }
                if trip.in_flight && *index < trip.index {
                    // One that was answered before: the right answer is still to come.
                    self.doubled += 1;
                    return;
                }
                self.role == Role::Echo && (*due, *index) == (trip.sent, trip.index)
            }
            Came::Said(Said::Result) => self.role == Role::Rpc,
            Came::Said(Said::Wrong) => false,
            Came::Said(Said::Refused) => {
                self.refused += 1;
                trip.in_flight = false;
                self.back.push(connection);
                return;
            }
            Came::Said(_) => return,
            Came::Closed => {
                self.closed += 1;
                return;
            }
        };
        if !trip.in_flight {
            self.doubled += 1;
            return;
        }
        trip.in_flight = false;
        self.back.push(connection);
        if !is_right {
            self.wrong += 1;
            return;
        }
        self.trips += 1;
        if self.measured {
            self.latencies.saturating_record(at.saturating_sub(trip.sent).max(1));
        }
    }

    fn missing(&self) -> u64 {
        self.of.iter().filter(|trip| trip.in_flight).count() as u64
    }

    fn add_up(self, found: &mut Found) {
        found.fault("missing", self.missing());
        found.fault("doubled", self.doubled);
        found.fault("wrong", self.wrong);
        found.fault("wrong_seq", self.wrong_seq);
        found.fault("refused", self.refused);
        found.fault("closed", self.closed);
        found.latencies(self.latencies);
    }
}

/// The connections, and what they send.
struct Stage {
    swarm: Swarm,
    adapter: Adapter,
    ledger: Ledger,
    role: Role,
    frame: Vec<u8>,
}

impl Stage {
    /// The next message of a connection. Requests are all the same: making one costs more than the trip leaves.
    fn send(&mut self, connection: usize) -> Result<()> {
        let trip = &mut self.ledger.of[connection];
        trip.sent = now();
        trip.index += 1;
        trip.in_flight = true;
        if self.role == Role::Echo || self.frame.is_empty() {
            self.frame.clear();
            self.adapter.event(&mut self.frame, trip.sent, trip.index, self.role);
        }
        self.swarm.send(connection, &self.frame)
    }

    fn turn(&mut self) -> Result<()> {
        let ledger = &mut self.ledger;
        self.swarm
            .turn(&self.adapter, Some(20), |connection, came, at| ledger.came(connection, &came, at))?;
        Ok(())
    }

    /// Waits for what is still on its way, and once more for what nobody waits for.
    fn end(mut self, found: &mut Found) -> Result<()> {
        let until = now() + 2_000_000_000;
        while self.ledger.missing() > 0 && now() < until {
            self.turn()?;
        }
        self.turn()?;
        self.ledger.add_up(found);
        Ok(())
    }
}

/// Echo, or the same as a request that the server answers.
pub fn round_trips(arguments: &Arguments) -> Result<Found> {
    let role = if arguments.scenario == "rpc" { Role::Rpc } else { Role::Echo };
    let adapter = Adapter::new(arguments.protocol, arguments.size, role);
    let mut swarm = Swarm::new(arguments.address)?;
    swarm.open(&adapter, role, arguments.connections, &[])?;
    let ledger = Ledger::new(arguments, role)?;
    let mut stage = Stage { swarm, adapter, ledger, role, frame: Vec::new() };
    let watch = arguments.watch();
    let begin = now() + (arguments.warm_up * 1e9) as u64;
    let end = begin + (arguments.seconds * 1e9) as u64;
    for connection in 0..arguments.connections {
        stage.send(connection)?;
    }
    let mut found = Found::default();
    let mut first = None;
    let mut back: Vec<usize> = Vec::new();
    while now() < end {
        if first.is_none() && now() >= begin {
            first = Some((watch.look(0), stage.ledger.trips));
            stage.ledger.measured = true;
        }
        stage.turn()?;
        std::mem::swap(&mut back, &mut stage.ledger.back);
        for connection in back.drain(..) {
            stage.send(connection)?;
        }
    }
    if let Some((moment, before)) = first {
        let last = watch.look(0);
        let measured = stage.ledger.trips - before;
        found.load = moment.until(&last);
        found.seconds = moment.elapsed(&last).as_secs_f64();
        found.figure("round_trips_per_s", measured as f64 / found.seconds);
        found.figure("server_us_per_round_trip", moment.server_us(&last) / measured.max(1) as f64);
    }
    // What comes after the measured time is checked, and in no figure.
    stage.ledger.measured = false;
    stage.end(&mut found)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two connections with message 3, sent at 100, on its way, and two answers before it.
    fn ledger(role: Role, numbered: bool) -> Ledger {
        Ledger {
            of: vec![Trip { sent: 100, index: 3, number: 2, in_flight: true }; 2],
            back: Vec::new(),
            trips: 0,
            latencies: latencies().expect("fixed bounds"),
            measured: true,
            role,
            numbered,
            doubled: 0,
            wrong: 0,
            wrong_seq: 0,
            refused: 0,
            closed: 0,
        }
    }

    fn event(due: u64, index: u64, number: Option<u64>) -> Came {
        Came::Said(Said::Event { due, index, number })
    }

    /// The faults by name, after all of this came on the first connection and the right answer on the second.
    fn faults(role: Role, numbered: bool, came: &[Came]) -> Vec<(String, u64)> {
        let mut ledger = ledger(role, numbered);
        came.iter().for_each(|one| ledger.came(0, one, 150));
        let right = if role == Role::Rpc { Came::Said(Said::Result) } else { event(100, 3, Some(3)) };
        ledger.came(1, &right, 150);
        let mut found = Found::default();
        ledger.add_up(&mut found);
        found.faults.into_iter().collect()
    }

    #[test]
    fn right_answers_are_trips_and_nothing_else() {
        let mut ledger = ledger(Role::Echo, true);
        ledger.came(0, &event(100, 3, Some(3)), 150);
        ledger.came(1, &event(100, 4, Some(3)), 150);
        assert_eq!((ledger.trips, ledger.latencies.len(), ledger.latencies.max()), (1, 1, 50));
        assert_eq!(ledger.back, [0, 1], "after a wrong answer the connection goes on");
        assert_eq!((ledger.missing(), ledger.wrong), (0, 1));
    }

    #[test]
    fn each_wrong_answer_has_its_name() {
        let one = |name: &str| vec![(name.to_owned(), 1)];
        let echo = |came: &[Came]| faults(Role::Echo, true, came);
        let right = || event(100, 3, Some(3));
        assert_eq!(echo(&[right()]), []);
        assert_eq!(echo(&[]), one("missing"));
        assert_eq!(echo(&[right(), event(100, 3, Some(4))]), one("doubled"));
        assert_eq!(echo(&[event(90, 2, Some(3)), event(100, 3, Some(4))]), one("doubled"));
        assert_eq!(echo(&[event(101, 3, Some(3))]), one("wrong"));
        assert_eq!(echo(&[event(100, 3, Some(5))]), one("wrong_seq"));
        assert_eq!(echo(&[event(100, 3, None)]), one("wrong_seq"));
        assert_eq!(echo(&[right(), Came::Closed]), one("closed"));
        assert_eq!(faults(Role::Echo, false, &[event(100, 3, None)]), []);
    }

    #[test]
    fn requests_are_answered_once_and_with_yes() {
        let rpc = |said: Vec<Said>| {
            let came: Vec<Came> = said.into_iter().map(Came::Said).collect();
            faults(Role::Rpc, true, &came)
        };
        let one = |name: &str| vec![(name.to_owned(), 1)];
        assert_eq!(rpc(vec![Said::Result]), []);
        assert_eq!(rpc(vec![Said::Result, Said::Result]), one("doubled"));
        assert_eq!(rpc(vec![Said::Wrong]), one("wrong"));
        assert_eq!(rpc(vec![Said::Refused]), one("refused"));
        assert_eq!(rpc(vec![]), one("missing"));
    }
}
