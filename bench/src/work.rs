//! What can be measured: each work with the arguments of the generator, the servers that it is for, and the suites that
//! hold it.

use crate::figure::scenario;
use crate::subject::{SUBJECTS, Subject};
use anyhow::{Result, bail};

/// A scenario with its sizes.
#[derive(Debug)]
pub struct Work {
    /// Scenario first, then its sizes: `fanout-1000x100-w1`.
    pub name: &'static str,
    /// One sentence for the reader of a report.
    pub about: &'static str,
    /// Arguments of the generator after the scenario's name.
    pub arguments: &'static str,
    /// Measured time, seconds; nothing for works that end by themselves.
    pub seconds: Option<f64>,
    /// Everybody who can do the scenario, or these alone.
    pub only: Option<&'static [&'static str]>,
    /// Most rounds that it takes part in: what hardly varies is not measured nine times.
    pub rounds: u32,
    /// Cores of the server. More than one: the server has the first processors, the generator the one after them. A
    /// machine without one more leaves the work out; only what measures nothing lets both share.
    pub cores: usize,
    pub suites: &'static [&'static str],
}

/// The suites that a run can be asked for.
pub const SUITES: [&str; 3] = ["full", "headline", "tiny"];

const FULL: &[&str] = &["full"];
const FULL_AND_HEADLINE: &[&str] = &["full", "headline"];
const TINY: &[&str] = &["tiny"];
/// Servers of the suites that have to be short.
const OURS: Option<&[&str]> = Some(&["seqcast"]);
const OURS_AND_FLOOR: Option<&[&str]> = Some(&["seqcast", "floor"]);
const QUICK: Option<&[&str]> = Some(&["seqcast", "floor", "bun-publish", "ws"]);

const fn full(name: &'static str, about: &'static str, arguments: &'static str, seconds: f64) -> Work {
    let seconds = Some(seconds);
    Work { name, about, arguments, seconds, only: None, rounds: u32::MAX, cores: 1, suites: FULL }
}
const fn headline(work: Work) -> Work {
    Work { suites: FULL_AND_HEADLINE, ..work }
}
const fn only(work: Work, only: Option<&'static [&'static str]>) -> Work {
    Work { only, ..work }
}
const fn by_itself(work: Work) -> Work {
    Work { seconds: None, ..work }
}
const fn tiny(name: &'static str, arguments: &'static str) -> Work {
    let about = "Small and short: shows that the scenario works, measures nothing.";
    Work { name, about, arguments, seconds: Some(0.3), only: QUICK, rounds: 1, cores: 1, suites: TINY }
}

/// Every work.
pub const WORKS: &[Work] = &[
    headline(full(
        "fanout-1000x100-w1",
        "1,000 subscribers, 100 bytes, one publish in flight: nothing can be coalesced.",
        "--subscribers 1000 --size 100 --window 1",
        1.5,
    )),
    full(
        "fanout-1000x1024-w1",
        "1,000 subscribers, 1 KiB, one publish in flight.",
        "--subscribers 1000 --size 1024 --window 1",
        1.5,
    ),
    full(
        "fanout-5000x100-w1",
        "5,000 subscribers, 100 bytes, one publish in flight.",
        "--subscribers 5000 --size 100 --window 1",
        1.5,
    ),
    headline(full(
        "fanout-1000x100-w16",
        "1,000 subscribers, 100 bytes, 16 publishes in flight: what a server may coalesce, it does.",
        "--subscribers 1000 --size 100 --window 16",
        1.5,
    )),
    full(
        "fanout-1000x1024-w16",
        "1,000 subscribers, 1 KiB, 16 publishes in flight.",
        "--subscribers 1000 --size 1024 --window 16",
        1.5,
    ),
    full(
        "fanout-100x100-w16",
        "100 subscribers, 100 bytes, 16 publishes in flight.",
        "--subscribers 100 --size 100 --window 16",
        1.5,
    ),
    only(
        headline(full(
            "fanout-100x100-w1",
            "100 subscribers, 100 bytes, one publish in flight: with the next one, how the cost grows.",
            "--subscribers 100 --size 100 --window 1",
            1.5,
        )),
        OURS_AND_FLOOR,
    ),
    only(
        headline(full(
            "fanout-10000x100-w1",
            "10,000 subscribers, 100 bytes, one publish in flight.",
            "--subscribers 10000 --size 100 --window 1",
            1.5,
        )),
        OURS_AND_FLOOR,
    ),
    only(
        full(
            "fanout-10x100-w1",
            "10 subscribers, 100 bytes, one publish in flight.",
            "--subscribers 10 --size 100 --window 1",
            1.5,
        ),
        OURS,
    ),
    only(
        full(
            "fanout-10x100-w1-topics",
            "The same beside 100,000 topics that others have subscribed to and nobody publishes to.",
            "--subscribers 10 --size 100 --window 1 --idle-topics 100000",
            1.5,
        ),
        OURS,
    ),
    headline(full(
        "latency-1000x100-r100",
        "1,000 subscribers, 100 bytes, 100 publishes a second, from the time at which each was due.",
        "--subscribers 1000 --size 100 --rate 100",
        2.5,
    )),
    full(
        "latency-100x100-r997",
        "100 subscribers, 100 bytes, 997 publishes a second, from the time at which each was due.",
        "--subscribers 100 --size 100 --rate 997",
        2.5,
    ),
    headline(full(
        "echo-100x100",
        "100 connections, each with one message of 100 bytes on its way there and back.",
        "--connections 100 --size 100",
        1.5,
    )),
    headline(full(
        "rpc-100x100",
        "The same as a request of the protocol, answered by the server.",
        "--connections 100 --size 100",
        1.5,
    )),
    headline(by_itself(full(
        "connect-1000",
        "1,000 connections, 256 of them at a time, each until its upgrade is answered; ten times.",
        "--connections 1000",
        0.0,
    ))),
    Work {
        rounds: 3,
        ..by_itself(full(
            "idle-10000",
            "10,000 idle connections on one topic: resident memory, less what the server had before.",
            "--connections 10000",
            0.0,
        ))
    },
    by_itself(full(
        "resume-1000x100",
        "1,000 clients cut at once and back, each 100 events behind, against the same events sent live.",
        "--clients 1000 --missed 100 --size 100",
        0.0,
    )),
    full(
        "slow-1000x100-r100-none",
        "1,000 subscribers, 100 publishes a second, nobody stalls.",
        "--subscribers 1000 --size 100 --rate 100 --stalled 0",
        2.0,
    ),
    full(
        "slow-1000x100-r100",
        "The same with one subscriber that reads nothing: latencies of the others.",
        "--subscribers 1000 --size 100 --rate 100 --stalled 1",
        2.0,
    ),
    full(
        "churn-1000x100-r100",
        "1,000 subscribers, 100 publishes a second, while others come and go: latencies of those who stay.",
        "--subscribers 1000 --size 100 --rate 100",
        2.0,
    ),
    Work {
        rounds: 3,
        ..full(
            "cores-1",
            "One core, as many subscribers as a core gets below.",
            "--subscribers 500 --window 16",
            1.5,
        )
    },
    Work { rounds: 3, cores: 2, ..full("cores-2", "Two cores.", "--subscribers 1000 --window 16", 1.5) },
    Work { rounds: 3, cores: 4, ..full("cores-4", "Four cores.", "--subscribers 2000 --window 16", 1.5) },
    tiny("fanout-50x100-w1", "--subscribers 50 --size 100 --window 1"),
    tiny("fanout-50x100-w16", "--subscribers 50 --size 100 --window 16"),
    tiny("latency-50x100-r200", "--subscribers 50 --size 100 --rate 200"),
    tiny("echo-10x100", "--connections 10 --size 100"),
    tiny("rpc-10x100", "--connections 10 --size 100"),
    by_itself(tiny("connect-50", "--connections 50")),
    by_itself(tiny("idle-200", "--connections 200")),
    by_itself(tiny("resume-20x10", "--clients 20 --missed 10 --size 100")),
    tiny("slow-50x100-r200", "--subscribers 50 --size 100 --rate 200 --stalled 1"),
    tiny("churn-50x100-r200", "--subscribers 50 --size 100 --rate 200"),
    tiny("cores-1-small", "--subscribers 50 --window 16"),
    Work { cores: 2, ..tiny("cores-2-small", "--subscribers 50 --window 16") },
];

impl Work {
    /// The generator's name of what it does.
    pub fn scenario(&self) -> &'static str {
        scenario(self.name)
    }

    /// Whether a machine of so many processors can do it: one for each core of the server and one for the generator.
    pub fn fits(&self, processors: usize) -> bool {
        let measures = self.suites.iter().any(|suite| *suite != "tiny");
        self.cores + usize::from(measures) <= processors
    }

    /// Servers that have a counterpart for it, in the table's order.
    pub fn subjects(&self) -> impl Iterator<Item = &'static Subject> {
        let named = |name| self.only.is_none_or(|only| only.contains(&name));
        let wanted =
            move |subject: &&Subject| named(if subject.is_seqcast() { "seqcast" } else { subject.name });
        // With one publish in flight there is nothing to coalesce.
        let idle = |subject: &&Subject| subject.name == "floor-coalesce" && !self.name.ends_with("-w16");
        let can = move |subject: &&Subject| subject.scenarios.contains(&self.scenario()) && !idle(subject);
        SUBJECTS.iter().filter(wanted).filter(can)
    }
}

/// The works of a suite, or those of these names.
pub fn select(suite: &str, names: &[String]) -> Result<Vec<&'static Work>> {
    for name in names {
        if !WORKS.iter().any(|work| work.name == name) {
            let known: Vec<&str> = WORKS.iter().map(|work| work.name).collect();
            bail!("no work '{name}'; there are: {}", known.join(", "));
        }
    }
    let named = |work: &&Work| names.iter().any(|name| name == work.name);
    let of_suite = |work: &&Work| work.suites.contains(&suite);
    Ok(WORKS.iter().filter(|work| if names.is_empty() { of_suite(work) } else { named(work) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_suite_has_works_and_every_work_has_both_builds_of_ours() {
        for suite in SUITES {
            let works = select(suite, &[]).expect("no names");
            assert!(works.len() > 5, "{suite}");
        }
        for work in WORKS {
            for ours in ["seqcast", "before"] {
                assert!(work.subjects().any(|subject| subject.name == ours), "{}: {ours}", work.name);
            }
        }
        let names: BTreeSet<&str> = WORKS.iter().map(|work| work.name).collect();
        assert_eq!(names.len(), WORKS.len(), "names are told apart");
    }

    #[test]
    fn the_tiny_suite_has_every_scenario() {
        let of = |suite| {
            select(suite, &[]).expect("no names").iter().map(|w| w.scenario()).collect::<BTreeSet<_>>()
        };
        assert_eq!(of("tiny"), of("full"));
    }

    #[test]
    fn what_is_measured_leaves_the_generator_a_processor() {
        let fits = |name: &str, processors| {
            WORKS.iter().find(|work| work.name == name).expect("it exists").fits(processors)
        };
        assert!(fits("cores-1", 2) && !fits("cores-2", 2) && fits("cores-2", 3));
        assert!(!fits("cores-4", 4) && fits("cores-4", 5));
        assert!(fits("cores-2-small", 2) && !fits("cores-2-small", 1));
        assert!(WORKS.iter().filter(|work| work.cores == 1).all(|work| work.fits(2)));
    }

    #[test]
    fn an_unknown_work_is_an_error() {
        assert!(select("full", &["fanout-7".to_owned()]).is_err());
        assert_eq!(select("full", &["echo-10x100".to_owned()]).expect("it exists").len(), 1);
    }
}
