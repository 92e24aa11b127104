//! `GET /metrics`: the same numbers as Prometheus text.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::admin::{Admin, Refusal};
use super::stats::{self, GAUGES};
use crate::shard::step::Stats;

/// The handler.
pub async fn metrics(State(admin): State<Arc<Admin>>) -> Result<impl IntoResponse, Refusal> {
    let cores = stats::gather(&admin).await?;
    let text = render(Scrape { cores, uptime: admin.started.elapsed().as_secs_f64() });
    Ok(([(header::CONTENT_TYPE, prometheus_text::CONTENT_TYPE)], text))
}

fn render(scrape: Scrape) -> String {
    let mut registry = Registry::with_prefix("seqcast");
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).expect("writing to a String cannot fail");
    text
}

/// The numbers of one scrape.
#[derive(Debug)]
struct Scrape {
    cores: Vec<Stats>,
    uptime: f64,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counters: Vec<_> = self.cores.iter().map(|stats| stats.counters.rows()).collect();
        for (at, &(name, help, _)) in counters.first().into_iter().flatten().enumerate() {
            let name = snake(name);
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for (stats, rows) in self.cores.iter().zip(&counters) {
                let value = ConstCounter::new(rows[at].2);
                value.encode(family.encode_family(&[("core", stats.core)])?)?;
            }
        }
        for gauge in &GAUGES {
            let name = snake(gauge.name);
            let mut family = encoder.encode_descriptor(&name, gauge.help, None, MetricType::Gauge)?;
            for stats in &self.cores {
                let value = ConstGauge::new(i64::try_from((gauge.of)(stats)).unwrap_or(i64::MAX));
                value.encode(family.encode_family(&[("core", stats.core)])?)?;
            }
        }
        self.encode_turns(&mut encoder)?;
        self.encode_events(&mut encoder)?;
        let help = "Seconds since the start.";
        let uptime = encoder.encode_descriptor("uptime_seconds", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.uptime).encode(uptime)
    }
}

impl Scrape {
    fn encode_turns(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Length of a core's turns, time asleep not counted.";
        let mut family = encoder.encode_descriptor("turn_seconds", help, None, MetricType::Histogram)?;
        for stats in &self.cores {
            let turns = &stats.counters.turns;
            let seconds = |bound: Option<u64>| bound.map_or(f64::INFINITY, |micros| micros as f64 / 1e6);
            let buckets: Vec<_> = turns.buckets().map(|(bound, count)| (seconds(bound), count)).collect();
            let sum = turns.sum_nanos() as f64 / 1e9;
            let core = [("core", stats.core)];
            let mut metric = family.encode_family(&core)?;
            metric.encode_histogram::<NoLabelSet>(sum, turns.count(), &buckets, None)?;
        }
        let help = "The longest of a core's turns so far.";
        let mut family = encoder.encode_descriptor("max_turn_seconds", help, None, MetricType::Gauge)?;
        for stats in &self.cores {
            let longest = ConstGauge::new(stats.counters.turns.longest_nanos() as f64 / 1e9);
            longest.encode(family.encode_family(&[("core", stats.core)])?)?;
        }
        Ok(())
    }

    fn encode_events(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Events encoded, by name.";
        let mut family = encoder.encode_descriptor("encoded", help, None, MetricType::Counter)?;
        for stats in &self.cores {
            for (event, count) in &stats.encoded {
                let labels = [("core", stats.core.to_string()), ("event", event.to_string())];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// `bytesSent` is `bytes_sent`.
fn snake(camel: &str) -> String {
    let mut snake = String::with_capacity(camel.len() + 4);
    for c in camel.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Counters;

    #[test]
    fn text_as_prometheus_reads_it() {
        let core = |core, n| {
            let mut counters = Counters { bytes_sent: n, ..Counters::default() };
            counters.turns.record(60_000);
            counters.turns.record(2_000_000_000);
            let encoded = vec![("quote \"x\"".into(), n)];
            Stats { core, counters, encoded, parked_sessions: n, ..Stats::default() }
        };
        let text = render(Scrape { cores: vec![core(0, 1), core(1, 1 << 60)], uptime: 1.5 });
        for line in [
            "# TYPE seqcast_bytes_sent_total counter",
            "# HELP seqcast_bytes_sent_total Bytes of those frames, envelope and payload.",
            "seqcast_bytes_sent_total{core=\"0\"} 1",
            "seqcast_bytes_sent_total{core=\"1\"} 1152921504606846976",
            "# TYPE seqcast_parked_sessions gauge",
            "seqcast_parked_sessions{core=\"0\"} 1",
            "seqcast_encoded_total{core=\"0\",event=\"quote \\\"x\\\"\"} 1",
            "# TYPE seqcast_turn_seconds histogram",
            "seqcast_turn_seconds_bucket{core=\"1\",le=\"5e-05\"} 0",
            "seqcast_turn_seconds_bucket{core=\"1\",le=\"0.0001\"} 1",
            "seqcast_turn_seconds_bucket{core=\"1\",le=\"0.1\"} 1",
            "seqcast_turn_seconds_bucket{core=\"1\",le=\"+Inf\"} 2",
            "seqcast_turn_seconds_sum{core=\"1\"} 2.00006",
            "seqcast_turn_seconds_count{core=\"1\"} 2",
            "seqcast_max_turn_seconds{core=\"1\"} 2.0",
            "seqcast_uptime_seconds 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
