//! The measurements of a run, as reports ask for them: by work, server, figure and round.

use crate::machine::Run;
use crate::measurement::Measurement;
use anyhow::{Context, Result};
use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use std::collections::{BTreeMap, BTreeSet};

/// A run and all that was measured in it, disturbed measurements included.
#[derive(Debug, Default)]
pub struct Results {
    pub run: Run,
    pub measurements: Vec<Measurement>,
}

impl Results {
    /// Works, in the order in which they were first measured.
    pub fn works(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        let works = self.measurements.iter().map(|m| m.work.as_str());
        works.filter(|work| seen.insert(*work)).collect()
    }

    /// Servers of a work, in the table's order; those that the table does not know follow.
    pub fn subjects(&self, work: &str) -> Vec<&str> {
        let place = |name: &str| crate::subject::SUBJECTS.iter().position(|subject| subject.name == name);
        let measured: BTreeSet<&str> = self.of_work(work).map(|m| m.subject.as_str()).collect();
        let mut names: Vec<&str> = measured.into_iter().collect();
        names.sort_by_key(|name| place(name).unwrap_or(usize::MAX));
        names
    }

    fn of_work<'a>(&'a self, work: &str) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |m| m.work == work)
    }

    /// Every try of a server at a work.
    pub fn tries<'a>(&'a self, work: &str, subject: &str) -> impl Iterator<Item = &'a Measurement> {
        self.of_work(work).filter(move |m| m.subject == subject)
    }

    /// The measurements that count: of each round the last that nothing disturbed.
    pub fn usable(&self, work: &str, subject: &str) -> BTreeMap<u32, &Measurement> {
        let good = self.tries(work, subject).filter(|m| m.refused.is_none());
        good.map(|m| (m.round, m)).collect()
    }

    /// A figure by round.
    pub fn values(&self, work: &str, subject: &str, figure: &str) -> BTreeMap<u32, f64> {
        let usable = self.usable(work, subject).into_iter();
        usable.filter_map(|(round, m)| Some((round, *m.figures.get(figure)?))).collect()
    }

    /// Wrong answers of a server at a work, disturbed measurements included: numbers by name.
    pub fn faults(&self, work: &str, subject: &str) -> BTreeMap<&str, u64> {
        let mut sums = BTreeMap::new();
        for (name, count) in self.tries(work, subject).flat_map(|m| &m.faults) {
            *sums.entry(name.as_str()).or_default() += count;
        }
        sums
    }

    /// All latencies of the measurements that count, in nanoseconds. `None` when the work has none.
    pub fn latencies(&self, work: &str, subject: &str) -> Result<Option<Histogram<u64>>> {
        let mut merged: Option<Histogram<u64>> = None;
        for measurement in self.usable(work, subject).values() {
            let Some(one) = histogram(measurement)? else { continue };
            match &mut merged {
                None => merged = Some(one),
                Some(sum) => sum.add(&one).context("histograms of different precision")?,
            }
        }
        Ok(merged)
    }
}

/// The latencies of a measurement.
pub fn histogram(measurement: &Measurement) -> Result<Option<Histogram<u64>>> {
    let Some(text) = &measurement.histogram else { return Ok(None) };
    let what = || format!("the histogram of {} for {}", measurement.work, measurement.subject);
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).with_context(what)?;
    let mut histogram: Histogram<u64> =
        Deserializer::new().deserialize(&mut bytes.as_slice()).with_context(what)?;
    histogram.auto(true);
    Ok(Some(histogram))
}

/// Made-up measurements for the tests of the reports.
#[cfg(test)]
pub mod example {
    use super::*;
    use crate::measurement::Load;
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

    /// A measurement with these figures, and with latencies around one of them.
    pub fn measurement(work: &str, subject: &str, round: u32, figures: &[(&str, f64)]) -> Measurement {
        let mut latencies = Histogram::<u64>::new(3).expect("three digits");
        for step in 1..=1000_u64 {
            latencies.record(step * 1000 * u64::from(round + 1)).expect("it grows");
        }
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&latencies, &mut bytes).expect("into memory");
        Measurement {
            work: work.to_owned(),
            subject: subject.to_owned(),
            round,
            at: 1_700_000_000 + u64::from(round),
            seconds: 1.5,
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            faults: BTreeMap::new(),
            load: Load { server: 0.99, server_system: 0.8, generator: 0.5, others: 0.01, steal: 0.0 },
            histogram: Some(base64::engine::general_purpose::STANDARD.encode(bytes)),
            refused: None,
        }
    }

    /// Nine rounds in which seqcast needs half of what bun-publish needs, and has 0.8 of its latency.
    pub fn results() -> Results {
        let mut measurements = Vec::new();
        for round in 0..9 {
            let drift = 1.0 + f64::from(round) / 10.0;
            for (subject, cost, latency) in
                [("seqcast", 2.0, 800.0), ("bun-publish", 4.0, 1000.0), ("ws", 8.0, 3000.0)]
            {
                let fanout = [
                    ("deliveries_per_s", 1e6 / cost / drift),
                    ("server_us_per_delivery", cost * drift),
                    ("p99_us", 5.0 * latency),
                ];
                measurements.push(measurement("fanout-1000x100-w1", subject, round, &fanout));
                let figures =
                    [("p50_us", latency * drift), ("p99_us", 2.0 * latency), ("p999_us", 3.0 * latency)];
                measurements.push(measurement("latency-1000x100-r100", subject, round, &figures));
            }
        }
        Results { run: Run { rounds: 9, ..Run::default() }, measurements }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_round_the_last_undisturbed_try_counts() {
        let mut results = Results::default();
        for (round, value, refused) in
            [(0, 1.0, Some("busy")), (0, 2.0, None), (1, 3.0, None), (2, 4.0, Some("busy"))]
        {
            let mut one = example::measurement("fanout-1", "ws", round, &[("deliveries_per_s", value)]);
            one.refused = refused.map(str::to_owned);
            one.faults.insert("gaps".to_owned(), 1);
            results.measurements.push(one);
        }
        let values = results.values("fanout-1", "ws", "deliveries_per_s");
        assert_eq!(values, BTreeMap::from([(0, 2.0), (1, 3.0)]));
        assert_eq!(results.faults("fanout-1", "ws"), BTreeMap::from([("gaps", 4)]));
        assert!(results.values("fanout-1", "ws", "absent").is_empty());
    }

    #[test]
    fn latencies_of_rounds_are_merged() {
        let results = example::results();
        let merged =
            results.latencies("latency-1000x100-r100", "ws").expect("readable").expect("there are some");
        assert_eq!(merged.len(), 9000);
        assert!(merged.max() >= 9_000_000, "the last round is the slowest: {}", merged.max());
    }

    #[test]
    fn a_broken_histogram_says_whose_it_is() {
        let mut one = example::measurement("latency-1", "ws", 0, &[]);
        one.histogram = Some("AAAA".to_owned());
        let error = histogram(&one).expect_err("four zeros are no histogram").to_string();
        assert!(error.contains("latency-1 for ws"), "{error}");
    }
}
