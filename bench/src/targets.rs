//! What seqcast has to reach, as data, and whether a run shows that it does.

use crate::figure::{Better, of_scenario, scenario};
use crate::results::Results;
use crate::statistics::{Estimate, estimate, estimate_of, ratios};
use crate::subject::{Kind, SUBJECTS};
use std::collections::BTreeMap;

/// The server that has to reach them.
pub const OURS: &str = "seqcast";

/// One row: it is met when each of its checks is.
#[derive(Debug)]
pub struct Row {
    pub title: &'static str,
    pub checks: &'static [Check],
}

/// One number and its bound.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    pub work: &'static str,
    pub figure: &'static str,
    pub against: Against,
    pub bound: Bound,
}

/// What a figure is divided by, round by round.
#[derive(Debug, Clone, Copy)]
pub enum Against {
    /// Nothing: the figure itself.
    One,
    /// The same figure of another server.
    Subject(&'static str),
    /// The same figure of whichever server of others is best in this run.
    BestPeer,
    /// The same figure of seqcast at another work.
    Work(&'static str),
    /// Both works are first divided by the kernel's floor at the same work.
    FloorsOf(&'static str),
    /// Nothing: instructions per delivery of a row of the pure core's record.
    Instructions,
    /// Instructions per delivery of another case of that record; all of an event: publish, send, and the fill of the
    /// buffer.
    InstructionsOf(&'static str),
}

/// What a median has to keep.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Both ways: within this share of 1.
    Within(f64),
}

/// What became of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Met,
    Missed,
    NotMeasured,
}

/// A check with its number.
#[derive(Debug)]
pub struct Verdict {
    /// What was compared, in words.
    pub what: String,
    pub bound: Bound,
    pub estimate: Option<Estimate>,
    pub outcome: Outcome,
    /// The interval lies on both sides of the bound: another run may say the opposite.
    pub close: bool,
}

const fn check(work: &'static str, figure: &'static str, against: Against, bound: Bound) -> Check {
    Check { work, figure, against, bound }
}
const fn cost(work: &'static str, subject: &'static str, most: f64) -> Check {
    check(work, "server_us_per_delivery", Against::Subject(subject), Bound::AtMost(most))
}
const fn throughput(work: &'static str) -> Check {
    check(work, "deliveries_per_s", Against::BestPeer, Bound::AtLeast(1.0))
}
const fn latency(work: &'static str, figure: &'static str) -> Check {
    check(work, figure, Against::BestPeer, Bound::AtMost(0.9))
}
const fn growth(work: &'static str, other: &'static str) -> Check {
    check(work, "server_us_per_delivery", Against::FloorsOf(other), Bound::Within(0.15))
}
const fn instructions(case: &'static str, other: &'static str) -> Check {
    check(case, "publish, send and fill", Against::InstructionsOf(other), Bound::Within(0.05))
}

const W1: &str = "fanout-1000x100-w1";
const W1_LARGE: &str = "fanout-1000x1024-w1";
const W1_MANY: &str = "fanout-5000x100-w1";
const W16: &str = "fanout-1000x100-w16";
const W16_LARGE: &str = "fanout-1000x1024-w16";
const W16_FEW: &str = "fanout-100x100-w16";
const GROWTH: [&str; 3] = ["fanout-100x100-w1", W1, "fanout-10000x100-w1"];
const RATE_MANY: &str = "latency-1000x100-r100";
const RATE_FEW: &str = "latency-100x100-r997";

/// Every target.
pub const ROWS: [Row; 11] = [
    Row {
        title: "one publish in flight: at most 0.85 of Bun's CPU per delivery, more deliveries/s than every peer",
        checks: &[
            cost(W1, "bun-publish", 0.85),
            cost(W1, "bun-rewrite", 0.85),
            throughput(W1),
            cost(W1_LARGE, "bun-publish", 0.85),
            cost(W1_LARGE, "bun-rewrite", 0.85),
            throughput(W1_LARGE),
            cost(W1_MANY, "bun-publish", 0.85),
            cost(W1_MANY, "bun-rewrite", 0.85),
            throughput(W1_MANY),
        ],
    },
    Row {
        title: "16 in flight, 1,000 x 100 B: at most 0.75 of Bun publish, 1/12 of Bun rewrite",
        checks: &[cost(W16, "bun-publish", 0.75), cost(W16, "bun-rewrite", 1.0 / 12.0)],
    },
    Row {
        title: "16 in flight, 1,000 x 1 KiB and 100 x 100 B: at most 0.8 of Bun publish",
        checks: &[cost(W16_LARGE, "bun-publish", 0.8), cost(W16_FEW, "bun-publish", 0.8)],
    },
    Row {
        title: "latency at a given rate: at most 0.9 of the best peer",
        checks: &[
            latency(RATE_MANY, "p50_us"),
            latency(RATE_MANY, "p99_us"),
            latency(RATE_MANY, "p999_us"),
            latency(RATE_FEW, "p50_us"),
            latency(RATE_FEW, "p99_us"),
            latency(RATE_FEW, "p999_us"),
        ],
    },
    Row {
        title: "echo and rpc, 100 connections: at least 1.1 of the best peer's echo",
        checks: &[
            check("echo-100x100", "round_trips_per_s", Against::BestPeer, Bound::AtLeast(1.1)),
            check("rpc-100x100", "round_trips_per_s", Against::BestPeer, Bound::AtLeast(1.1)),
        ],
    },
    Row {
        // The rate itself is the generator's: it is full, the servers are not.
        title: "connect storm: at least 1.2 of Bun's handshakes for the same processor time of the server",
        checks: &[check(
            "connect-1000",
            "server_us_per_handshake",
            Against::Subject("bun-publish"),
            Bound::AtMost(1.0 / 1.2),
        )],
    },
    Row {
        title: "idle, 10,000 connections, one topic, resume on: at most 400 bytes a connection",
        checks: &[check("idle-10000", "bytes_per_connection", Against::One, Bound::AtMost(400.0))],
    },
    Row {
        title: "growth: CPU per delivery over the floor's, the same at 100, 1,000 and 10,000; no cost of idle topics",
        checks: &[
            growth(GROWTH[0], GROWTH[1]),
            growth(GROWTH[2], GROWTH[1]),
            growth(GROWTH[2], GROWTH[0]),
            instructions("command, 100 subscribers", "command, 1000 subscribers"),
            instructions("command, 10000 subscribers", "command, 1000 subscribers"),
            check(
                "fanout-10x100-w1-topics",
                "server_us_per_delivery",
                Against::Work("fanout-10x100-w1"),
                Bound::AtMost(1.1),
            ),
        ],
    },
    Row {
        title: "1,000 resumes, 100 missed events each: at most 1.3 of the time that the same events take live",
        checks: &[check("resume-1000x100", "caught_up_to_live", Against::One, Bound::AtMost(1.3))],
    },
    Row {
        title: "one stalled reader of 1,000: p99 of the others within 10 % of the run without it",
        checks: &[check(
            "slow-1000x100-r100",
            "p99_us",
            Against::Work("slow-1000x100-r100-none"),
            Bound::AtMost(1.1),
        )],
    },
    Row {
        title: "the pure core: at most 60 instructions per delivery at 1,000 subscribers, without the copy",
        checks: &[check(
            "command, 1000 subscribers: publish",
            "instructions",
            Against::Instructions,
            Bound::AtMost(60.0),
        )],
    },
];

impl Row {
    /// Its checks in a run.
    pub fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        self.checks.iter().map(|check| check.verdict(results)).collect()
    }
}

/// A row is missed when a check is, and not measured when one is not and none is missed.
pub fn outcome(verdicts: &[Verdict]) -> Outcome {
    let any = |outcome| verdicts.iter().any(|verdict| verdict.outcome == outcome);
    [Outcome::Missed, Outcome::NotMeasured].into_iter().find(|outcome| any(*outcome)).unwrap_or(Outcome::Met)
}

impl Check {
    fn verdict(&self, results: &Results) -> Verdict {
        let (what, estimate) = self.measured(results);
        let outcome = match &estimate {
            None => Outcome::NotMeasured,
            Some(estimate) if self.bound.keeps(estimate.median) => Outcome::Met,
            Some(_) => Outcome::Missed,
        };
        let close = estimate
            .and_then(|estimate| estimate.interval)
            .is_some_and(|(low, high)| self.bound.keeps(low) != self.bound.keeps(high));
        Verdict { what, bound: self.bound, estimate, outcome, close }
    }

    fn measured(&self, results: &Results) -> (String, Option<Estimate>) {
        let (work, figure) = (self.work, self.figure);
        let ours = results.values(work, OURS, figure);
        let title = format!("{work}: {figure}");
        let (other, theirs) = match self.against {
            Against::Subject(subject) => (subject.to_owned(), results.values(work, subject, figure)),
            Against::BestPeer => {
                // No peer has requests of its own: their echo is what ours are held against.
                let peers_work = work.replacen("rpc-", "echo-", 1);
                match best_peer(results, &peers_work, figure) {
                    Some((name, values)) => (format!("{name}, the best peer"), values),
                    None => ("the best peer".to_owned(), BTreeMap::new()),
                }
            }
            Against::Work(other) => (other.to_owned(), results.values(other, OURS, figure)),
            Against::FloorsOf(other) => {
                let over_floor = |work| {
                    ratios(&results.values(work, OURS, figure), &results.values(work, "floor", figure))
                };
                let estimate = estimate_of(&ratios(&over_floor(work), &over_floor(other)));
                return (format!("{title}, over the floor, / {other}, over the floor"), estimate);
            }
            Against::One => return (title, estimate_of(&ours)),
            Against::Instructions | Against::InstructionsOf(_) => {
                return self.instructions(&results.run.instructions);
            }
        };
        (format!("{title} / {other}"), estimate_of(&ratios(&ours, &theirs)))
    }

    fn instructions(&self, rows: &BTreeMap<String, f64>) -> (String, Option<Estimate>) {
        let whole = |case: &str| {
            let parts = ["publish", "send", "fill"].map(|part| rows.get(&format!("{case}: {part}")).copied());
            parts.into_iter().sum::<Option<f64>>()
        };
        let (what, value) = match self.against {
            Against::InstructionsOf(other) => {
                let ratio = whole(self.work).zip(whole(other)).map(|(one, other)| one / other);
                (format!("{}: {} / {other}", self.figure, self.work), ratio)
            }
            _ => (self.work.to_owned(), rows.get(self.work).copied()),
        };
        (format!("instructions per delivery, {what}"), value.and_then(|value| estimate(&[value])))
    }
}

/// The peer with the best median of a figure, and its values by round. Whoever answered wrongly is not in it: losing
/// messages is a way to be fast.
fn best_peer(results: &Results, work: &str, figure: &str) -> Option<(&'static str, BTreeMap<u32, f64>)> {
    let known = of_scenario(scenario(work)).into_iter().find(|one| one.name == figure);
    let sign = if known.is_some_and(|one| one.better == Better::Higher) { -1.0 } else { 1.0 };
    let peers = SUBJECTS.iter().filter(|subject| subject.kind == Kind::Peer);
    let right = peers.filter(|peer| results.faults(work, peer.name).is_empty());
    let values = right.filter_map(|peer| {
        let values = results.values(work, peer.name, figure);
        Some((sign * estimate_of(&values)?.median, peer.name, values))
    });
    let best = values.min_by(|(one, ..), (other, ..)| one.total_cmp(other));
    best.map(|(_, name, values)| (name, values))
}

impl Bound {
    fn keeps(self, value: f64) -> bool {
        match self {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
            Bound::Within(share) => value <= 1.0 + share && value >= 1.0 / (1.0 + share),
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtMost(most) => write!(f, "at most {}", crate::figure::short(*most)),
            Bound::AtLeast(least) => write!(f, "at least {}", crate::figure::short(*least)),
            Bound::Within(share) => {
                write!(
                    f,
                    "{} to {}",
                    crate::figure::short(1.0 / (1.0 + share)),
                    crate::figure::short(1.0 + share)
                )
            }
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Outcome::Met => "met",
            Outcome::Missed => "missed",
            Outcome::NotMeasured => "not measured",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    #[test]
    fn ratios_are_by_pairs_and_judged_by_their_median() {
        let results = example::results();
        let verdict = cost(W1, "bun-publish", 0.85).verdict(&results);
        let estimate = verdict.estimate.expect("nine pairs");
        assert_eq!((estimate.median, estimate.count, verdict.outcome), (0.5, 9, Outcome::Met));
        assert!(!verdict.close, "each pair has the same ratio, though each round is slower");
        assert_eq!(cost(W1, "bun-publish", 0.4).verdict(&results).outcome, Outcome::Missed);
        assert_eq!(cost(W1, "bun-rewrite", 0.85).verdict(&results).outcome, Outcome::NotMeasured);
    }

    #[test]
    fn the_best_peer_is_the_best_in_this_run() {
        let results = example::results();
        let verdict = throughput(W1).verdict(&results);
        assert!(verdict.what.ends_with("/ bun-publish, the best peer"), "{}", verdict.what);
        assert_eq!(verdict.estimate.expect("nine pairs").median, 2.0);
        let verdict = latency(RATE_MANY, "p50_us").verdict(&results);
        assert_eq!(verdict.estimate.expect("nine pairs").median, 0.8);
    }

    #[test]
    fn a_peer_with_wrong_answers_is_not_the_best() {
        let mut results = example::results();
        let mut bun = results.measurements.iter_mut().filter(|m| m.subject == "bun-publish" && m.work == W1);
        bun.next().expect("it is there").faults.insert("missing".to_owned(), 1);
        let verdict = throughput(W1).verdict(&results);
        assert!(verdict.what.ends_with("/ ws, the best peer"), "{}", verdict.what);
        let verdict = latency(RATE_MANY, "p50_us").verdict(&results);
        assert!(
            verdict.what.ends_with("/ bun-publish, the best peer"),
            "right at this work: {}",
            verdict.what
        );
    }

    #[test]
    fn an_interval_across_the_bound_is_close() {
        let mut results = Results::default();
        for round in 0..9 {
            let value = 380.0 + 5.0 * f64::from(round);
            let one = example::measurement("idle-10000", OURS, round, &[("bytes_per_connection", value)]);
            results.measurements.push(one);
        }
        let row = ROWS.iter().find(|row| row.title.starts_with("idle")).expect("there is one");
        let verdicts = row.verdicts(&results);
        assert_eq!((verdicts[0].outcome, verdicts[0].close), (Outcome::Met, true));
    }

    #[test]
    fn one_missed_check_misses_the_row() {
        let results = example::results();
        let verdicts = ROWS[0].verdicts(&results);
        assert_eq!(outcome(&verdicts), Outcome::NotMeasured);
        let missed = cost(W1, "bun-publish", 0.1).verdict(&results);
        assert_eq!(outcome(&[missed, cost(W1, "bun-rewrite", 1.0).verdict(&results)]), Outcome::Missed);
        assert_eq!(outcome(&[cost(W1, "bun-publish", 0.85).verdict(&results)]), Outcome::Met);
    }

    #[test]
    fn rows_of_the_core_are_those_that_are_counted() {
        let instructions =
            crate::machine::instructions(include_str!("../instructions.json")).expect("it has rows");
        let run = crate::machine::Run { instructions, ..Default::default() };
        let results = Results { run, measurements: Vec::new() };
        for check in ROWS.iter().flat_map(|row| row.checks) {
            if matches!(check.against, Against::Instructions | Against::InstructionsOf(_)) {
                let verdict = check.verdict(&results);
                assert_ne!(verdict.outcome, Outcome::NotMeasured, "{}", verdict.what);
            }
        }
    }

    #[test]
    fn every_work_of_a_check_is_in_the_full_suite() {
        let full: Vec<&str> =
            crate::work::WORKS.iter().filter(|w| w.suites.contains(&"full")).map(|w| w.name).collect();
        for check in ROWS.iter().flat_map(|row| row.checks) {
            if matches!(check.against, Against::Instructions | Against::InstructionsOf(_)) {
                continue;
            }
            assert!(full.contains(&check.work), "{}", check.work);
            if let Against::Work(other) | Against::FloorsOf(other) = check.against {
                assert!(full.contains(&other), "{other}");
            }
        }
    }
}
