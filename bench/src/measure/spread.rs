//! One publisher, many subscribers: with a number of publishes in flight, or at a rate.

use super::load::now;
use super::protocol::{Adapter, Protocol, Role, Said};
use super::swarm::{Came, Swarm};
use super::{Arguments, Found, latencies};
use anyhow::Result;
use hdrhistogram::Histogram;
use std::thread::sleep;
use std::time::Duration;

/// What each subscriber has to have got, checked event by event.
struct Ledger {
    /// Next index of each connection, and the number of its last event.
    next: Vec<(u64, Option<u64>)>,
    delivered: u64,
    gaps: u64,
    wrong_seq: u64,
    closed: u64,
    numbered: bool,
    latencies: Histogram<u64>,
    /// Events that were due in this time are measured.
    from: u64,
    to: u64,
}

impl Ledger {
    #[inline]
    fn event(&mut self, connection: usize, due: u64, index: u64, number: Option<u64>, at: u64) {
        let (next, last) = &mut self.next[connection];
        self.gaps += u64::from(index != *next);
        *next = index + 1;
        if self.numbered {
            let expected = last.map(|last| last + 1);
            self.wrong_seq +=
                u64::from(number.is_none() || expected.is_some_and(|expected| number != Some(expected)));
            *last = number;
        }
        self.delivered += 1;
        if due >= self.from && due < self.to {
            self.latencies.saturating_record(at.saturating_sub(due).max(1));
        }
    }

    fn came(&mut self, connection: usize, came: &Came, at: u64) {
        match came {
            Came::Said(Said::Event { due, index, number }) if connection < self.next.len() => {
                self.event(connection, *due, *index, *number, at);
            }
            Came::Closed => self.closed += u64::from(connection < self.next.len()),
            Came::Said(_) => {}
        }
    }
}

/// Subscribers first, in the order of their indices, then the stalled ones, then the publisher.
struct Stage {
    swarm: Swarm,
    adapter: Adapter,
    publisher: usize,
    ledger: Ledger,
    published: u64,
    frame: Vec<u8>,
}

impl Stage {
    fn set(arguments: &Arguments) -> Result<Stage> {
        let adapter = Adapter::new(arguments.protocol, arguments.size, Role::Publisher);
        let mut swarm = Swarm::new(arguments.address)?;
        let topic = ["t".to_owned()];
        swarm.open(&adapter, Role::Subscriber, arguments.subscribers, &topic)?;
        swarm.open(&adapter, Role::Subscriber, arguments.stalled, &topic)?;
        for index in arguments.subscribers..arguments.subscribers + arguments.stalled {
            swarm.stall(index)?;
        }
        // A client may be in 100 topics or so: as many clients as that takes.
        let idle: Vec<String> = (0..arguments.idle_topics).map(|number| format!("idle.{number}")).collect();
        for topics in idle.chunks(100) {
            swarm.open(&adapter, Role::Subscriber, 1, topics)?;
        }
        swarm.open(&adapter, Role::Publisher, 1, &[])?;
        let publisher = swarm.connections.len() - 1;
        // A server without a word of its own for it has entered its subscribers by then.
        sleep(Duration::from_millis(200));
        let ledger = Ledger {
            next: vec![(0, None); arguments.subscribers],
            delivered: 0,
            gaps: 0,
            wrong_seq: 0,
            closed: 0,
            numbered: arguments.numbered,
            latencies: latencies()?,
            from: u64::MAX,
            to: u64::MAX,
        };
        Ok(Stage { swarm, adapter, publisher, ledger, published: 0, frame: Vec::new() })
    }

    fn publish(&mut self, due: u64) -> Result<()> {
        self.frame.clear();
        self.adapter.event(&mut self.frame, due, self.published, Role::Publisher);
        self.published += 1;
        self.swarm.send(self.publisher, &self.frame)
    }

    fn turn(&mut self, millis: Option<i64>) -> Result<usize> {
        let ledger = &mut self.ledger;
        self.swarm.turn(&self.adapter, millis, |connection, came, at| ledger.came(connection, &came, at))
    }

    /// Waits for what is still on its way, and adds up.
    fn end(mut self, arguments: &Arguments, found: &mut Found) -> Result<()> {
        let all = self.published * arguments.subscribers as u64;
        let until = now() + 3_000_000_000;
        while self.ledger.delivered < all && now() < until {
            self.turn(Some(20))?;
        }
        found.fault("missing", all.saturating_sub(self.ledger.delivered));
        found.fault("gaps", self.ledger.gaps);
        found.fault("wrong_seq", self.ledger.wrong_seq);
        found.fault("closed", self.ledger.closed);
        found.latencies(self.ledger.latencies);
        Ok(())
    }
}

/// The figures of a stretch of time.
fn measured(found: &mut Found, arguments: &Arguments, moments: [super::load::Moment; 2], deliveries: u64) {
    let [begin, end] = moments;
    found.load = begin.until(&end);
    found.seconds = begin.elapsed(&end).as_secs_f64();
    found.figure("deliveries_per_s", deliveries as f64 / found.seconds);
    found.figure("server_us_per_delivery", begin.server_us(&end) / deliveries.max(1) as f64);
    found.figure("publishes_per_s", deliveries as f64 / found.seconds / arguments.subscribers.max(1) as f64);
}

/// How long nothing may come before what is on its way counts as lost, nanoseconds.
const STALLED: u64 = 1_000_000_000;

/// What is on its way, as far as the next publishes depend on it.
struct Flight {
    subscribers: u64,
    /// Deliveries that are not waited for any more. They may come all the same, so sums with them may exceed the whole.
    stuck: u64,
    stalls: u64,
    /// How many deliveries there were when something last came, and when that was.
    progress: (u64, u64),
}

impl Flight {
    /// Publishes that not everybody has.
    fn publishes(&self, published: u64, delivered: u64) -> u64 {
        published.saturating_sub((delivered + self.stuck) / self.subscribers)
    }

    /// Sees whether something came. After a while without, it is given up: the rest has to go on.
    fn look(&mut self, published: u64, delivered: u64, time: u64) {
        if delivered != self.progress.0 {
            self.progress = (delivered, time);
        } else if time.saturating_sub(self.progress.1) > STALLED {
            self.stuck = (published * self.subscribers).saturating_sub(delivered);
            self.stalls += 1;
            self.progress.1 = time;
        }
    }
}

/// Always the same number of publishes in flight: one is over when everybody has it.
pub fn in_flight(arguments: &Arguments) -> Result<Found> {
    let (mut found, mut stage, watch) = (Found::default(), Stage::set(arguments)?, arguments.watch());
    let begin = now() + (arguments.warm_up * 1e9) as u64;
    let end = begin + (arguments.seconds * 1e9) as u64;
    (stage.ledger.from, stage.ledger.to) = (begin, end);
    let mut first = None;
    let subscribers = arguments.subscribers.max(1) as u64;
    let mut flight = Flight { subscribers, stuck: 0, stalls: 0, progress: (0, now()) };
    loop {
        let time = now();
        if first.is_none() && time >= begin {
            first = Some((watch.look(0), stage.ledger.delivered));
        }
        if time >= end {
            break;
        }
        while flight.publishes(stage.published, stage.ledger.delivered) < arguments.window {
            stage.publish(now())?;
        }
        stage.turn(Some(20))?;
        flight.look(stage.published, stage.ledger.delivered, time);
    }
    if let Some((moment, before)) = first {
        let deliveries = stage.ledger.delivered - before;
        measured(&mut found, arguments, [moment, watch.look(0)], deliveries);
    }
    found.fault("stalled", flight.stalls);
    stage.end(arguments, &mut found)?;
    Ok(found)
}

/// How late the generator itself may be with its publishes, nanoseconds, at their 90th percentile.
const LATE: u64 = 2_000_000;

/// Why a generator that was so late is not believed.
fn lateness(late: &Histogram<u64>) -> Option<String> {
    let p90 = late.value_at_quantile(0.9);
    let why = || {
        format!(
            "the generator was late: the 90th percentile of its own lateness is {:.1} ms, over {} ms",
            p90 as f64 / 1e6,
            LATE / 1_000_000
        )
    };
    (p90 > LATE).then(why)
}

/// A publish whenever one is due, whatever has become of the last.
pub fn at_rate(arguments: &Arguments) -> Result<Found> {
    let (mut found, mut stage, watch) = (Found::default(), Stage::set(arguments)?, arguments.watch());
    let start = now();
    let begin = start + (arguments.warm_up * 1e9) as u64;
    let end = begin + (arguments.seconds * 1e9) as u64;
    (stage.ledger.from, stage.ledger.to) = (begin, end);
    let interval = 1e9 / arguments.rate;
    let churns = arguments.scenario == "churn";
    let (mut polled, mut first, mut late) = (0, None, latencies()?);
    let stayers = stage.swarm.connections.len();
    let opening = stage.adapter.opening(Role::Subscriber, &["t".to_owned()]);
    loop {
        let time = now();
        if first.is_none() && time >= begin {
            first = Some((watch.look(polled), stage.ledger.delivered));
        }
        if time >= end {
            break;
        }
        let due = start + (stage.published as f64 * interval) as u64;
        let mut polling = time;
        if due <= time {
            late.saturating_record((time - due).max(1));
            stage.publish(due)?;
            if churns {
                // Each publish finds one more who has just come, and one less.
                stage.swarm.close_from(stayers);
                stage.swarm.begin(&stage.adapter, Role::Subscriber, &opening)?;
            }
            // A publish is work, whether or not the poll after it finds something.
            polling = now();
        }
        if stage.turn(None)? == 0 {
            polled += now() - polling;
        }
    }
    if let Some((moment, before)) = first {
        let deliveries = stage.ledger.delivered - before;
        measured(&mut found, arguments, [moment, watch.look(polled)], deliveries);
    }
    found.figure("generator_late_p999_us", late.value_at_quantile(0.999) as f64 / 1e3);
    if arguments.protocol != Protocol::SocketIo {
        found.late = lateness(&late);
    }
    stage.end(arguments, &mut found)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_it_was_given_up_does_not_break_the_count() {
        let mut flight = Flight { subscribers: 10, stuck: 0, stalls: 0, progress: (0, 0) };
        assert_eq!(flight.publishes(3, 15), 2);
        flight.look(3, 15, 1);
        flight.look(3, 15, STALLED + 1);
        assert_eq!((flight.stalls, flight.stuck), (0, 0), "not long enough");
        flight.look(3, 15, STALLED + 2);
        assert_eq!((flight.stalls, flight.publishes(3, 15)), (1, 0));
        assert_eq!(flight.publishes(3, 30), 0, "all of it came late");
        flight.look(3, 40, STALLED + 3);
        flight.look(3, 40, 2 * STALLED + 4);
        assert_eq!((flight.stalls, flight.stuck), (2, 0), "more came than there was");
    }

    #[test]
    fn lateness_is_judged_at_the_90th_percentile() {
        let late = |of_a_hundred: u64| {
            let mut late = latencies().expect("fixed bounds");
            (0..100).for_each(|one| late.saturating_record(if one < of_a_hundred { 2 * LATE } else { 1000 }));
            lateness(&late)
        };
        assert_eq!(late(10), None);
        let why = late(11).expect("more than a tenth");
        assert!(why.contains("4.0 ms, over 2 ms"), "{why}");
    }
}
