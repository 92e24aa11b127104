//! `GET /metrics`: the same numbers as Prometheus text.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text};
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
        self.encode_events(&mut encoder)?;
        let help = "Seconds since the start.";
        let uptime = encoder.encode_descriptor("uptime_seconds", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.uptime).encode(uptime)
    }
}

impl Scrape {
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
        let core = |core, n| Stats {
            core,
            counters: Counters { bytes_sent: n, ..Counters::default() },
            encoded: vec![("quote \"x\"".into(), n)],
            parked_sessions: n,
            ..Stats::default()
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
            "seqcast_uptime_seconds 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
