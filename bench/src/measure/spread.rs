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

/// Always the same number of publishes in flight: one is over when everybody has it.
pub fn in_flight(arguments: &Arguments) -> Result<Found> {
    let (mut found, mut stage, watch) = (Found::default(), Stage::set(arguments)?, arguments.watch());
    let subscribers = arguments.subscribers.max(1) as u64;
    let begin = now() + (arguments.warm_up * 1e9) as u64;
    let end = begin + (arguments.seconds * 1e9) as u64;
    (stage.ledger.from, stage.ledger.to) = (begin, end);
    let mut first = None;
    let (mut progress, mut stuck) = ((0, now()), 0);
    loop {
        let time = now();
        if first.is_none() && time >= begin {
            first = Some((watch.look(0), stage.ledger.delivered));
        }
        if time >= end {
            break;
        }
        while stage.published - (stage.ledger.delivered + stuck) / subscribers < arguments.window {
            stage.publish(now())?;
        }
        stage.turn(Some(20))?;
        if stage.ledger.delivered != progress.0 {
            progress = (stage.ledger.delivered, time);
        } else if time - progress.1 > 1_000_000_000 {
            // Something was lost: it is missing in the end, and must not stop the rest.
            stuck = stage.published * subscribers - stage.ledger.delivered;
            progress.1 = time;
        }
    }
    if let Some((moment, before)) = first {
        let deliveries = stage.ledger.delivered - before;
        measured(&mut found, arguments, [moment, watch.look(0)], deliveries);
    }
    stage.end(arguments, &mut found)?;
    Ok(found)
}

/// How late the generator itself may be with a publish, nanoseconds, at its worst but one in a thousand.
const LATE: u64 = 2_000_000;

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
        if due <= time {
            late.saturating_record((time - due).max(1));
            stage.publish(due)?;
            if churns {
                // Each publish finds one more who has just come, and one less.
                stage.swarm.close_from(stayers);
                stage.swarm.begin(&stage.adapter, Role::Subscriber, &opening)?;
            }
        }
        if stage.turn(None)? == 0 {
            polled += now() - time;
        }
    }
    if let Some((moment, before)) = first {
        let deliveries = stage.ledger.delivered - before;
        measured(&mut found, arguments, [moment, watch.look(polled)], deliveries);
    }
    found.figure("generator_late_p999_us", late.value_at_quantile(0.999) as f64 / 1e3);
    if arguments.protocol != Protocol::SocketIo && late.value_at_quantile(0.5) > LATE {
        found.late = Some("the generator was late with every other publish".to_owned());
    }
    stage.end(arguments, &mut found)?;
    Ok(found)
}
