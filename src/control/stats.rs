//! `GET /v1/stats`: counters and gauges, summed over the cores and by core.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::admin::{Admin, Refusal};
use crate::metrics::Histogram;
use crate::shard::step::{Answer, Ask, Stats};

/// A value that goes up and down.
pub struct Gauge {
    /// In `/v1/stats`.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Of one core.
    pub of: fn(&Stats) -> u64,
}

/// All gauges of a core.
pub const GAUGES: [Gauge; 9] = [
    Gauge { name: "connectedClients", help: "Open upgraded connections.", of: |s| s.connected_clients },
    Gauge { name: "parkedSessions", help: "Sessions that wait for their client.", of: |s| s.parked_sessions },
    Gauge {
        name: "parkedBytes",
        help: "Bytes of events that only parked sessions hold.",
        of: |s| s.parked_bytes,
    },
    Gauge { name: "queueDepth", help: "Events waiting on all connections.", of: |s| s.queue_depth },
    Gauge { name: "queueBytes", help: "Bytes waiting on all connections.", of: |s| s.queue_bytes },
    Gauge { name: "historyBytes", help: "Bytes held by session histories.", of: |s| s.history_bytes },
    Gauge { name: "topicBytes", help: "Bytes held by topic histories.", of: |s| s.topic_bytes },
    Gauge { name: "inboundBytes", help: "Bytes of unfinished inbound messages.", of: |s| s.inbound_bytes },
    Gauge { name: "storedEvents", help: "Events in the stores.", of: |s| s.stored_events },
];

/// The numbers of all cores.
///
/// # Errors
/// A core does not answer.
pub async fn gather(admin: &Admin) -> Result<Vec<Stats>, Refusal> {
    let answers = admin.hub.ask_all(|| Ask::Stats).await?.into_iter();
    let stats = answers.map(|(core, answer)| match answer {
        Answer::Stats(stats) => Ok(Stats { core, ..*stats }),
        _ => Err(Refusal::confused()),
    });
    stats.collect()
}

/// The handler.
pub async fn stats(State(admin): State<Arc<Admin>>) -> Result<Json<Value>, Refusal> {
    let uptime = admin.started.elapsed().as_millis() as u64;
    Ok(Json(render(&gather(&admin).await?, uptime)))
}

fn render(cores: &[Stats], uptime: u64) -> Value {
    let mut sum = Map::new();
    let mut paths = Map::new();
    let mut per_core = Vec::with_capacity(cores.len());
    for stats in cores {
        let mut row = Map::new();
        row.insert("core".into(), stats.core.into());
        for (name, value) in values(stats) {
            row.insert(name.into(), value.into());
            add(&mut sum, name, value);
        }
        row.insert("turnMicros".into(), turns(&stats.counters.turns));
        row.insert("maxTurnMicros".into(), (stats.counters.turns.longest_nanos() / 1_000).into());
        per_core.push(Value::Object(row));
        for (name, count) in &stats.encoded {
            let path = paths.entry(&**name).or_insert_with(|| json!({ "direct": 0, "json": 0, "js": 0 }));
            path["direct"] = (path["direct"].as_u64().unwrap_or(0) + count).into();
        }
    }
    sum.insert("uptimeMs".into(), uptime.into());
    sum.insert("pathCounts".into(), paths.into());
    sum.insert("perCore".into(), per_core.into());
    sum.into()
}

fn values(stats: &Stats) -> impl Iterator<Item = (&'static str, u64)> {
    let counters = stats.counters.rows().into_iter().map(|(name, _, value)| (name, value));
    counters.chain(GAUGES.iter().map(|gauge| (gauge.name, (gauge.of)(stats))))
}

/// How many turns took up to so many microseconds: `le50` those of up to 50, `le100` these and those of up to 100.
fn turns(histogram: &Histogram) -> Value {
    let mut json = Map::new();
    let mut so_far = 0;
    for (bound, count) in histogram.buckets() {
        so_far += count;
        let name = bound.map_or("leInf".to_owned(), |micros| format!("le{micros}"));
        json.insert(name, so_far.into());
    }
    json.insert("sum".into(), (histogram.sum_nanos() / 1_000).into());
    json.into()
}

fn add(sum: &mut Map<String, Value>, name: &str, value: u64) {
    let before = sum.get(name).and_then(Value::as_u64).unwrap_or(0);
    sum.insert(name.into(), (before + value).into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Counters;

    #[test]
    fn the_sum_is_that_of_all_cores() {
        let core = |core, n| Stats {
            core,
            counters: Counters { sent: n, ..Counters::default() },
            encoded: vec![("quote".into(), n)],
            queue_depth: 10 * n,
            ..Stats::default()
        };
        let json = render(&[core(0, 1), core(1, 4)], 7);
        assert_eq!(
            (&json["sent"], &json["queueDepth"], &json["published"]),
            (&json!(5), &json!(50), &json!(0))
        );
        assert_eq!(json["pathCounts"], json!({ "quote": { "direct": 5, "json": 0, "js": 0 } }));
        assert_eq!(json["uptimeMs"], 7);
        assert_eq!(json["perCore"][1]["core"], 1);
        assert_eq!(json["perCore"][1]["sent"], 4);
        assert_eq!(json["perCore"][0]["queueDepth"], 10);
    }

    #[test]
    fn turns_are_shown_by_core() {
        let mut counters = Counters::default();
        for micros in [7, 60, 200_000] {
            counters.turns.record(micros * 1_000);
        }
        let json = render(&[Stats { counters, ..Stats::default() }], 7);
        let row = &json["perCore"][0];
        let shown =
            ["le50", "le100", "le100000", "leInf", "sum"].map(|name| row["turnMicros"][name].as_u64());
        assert_eq!(shown, [1, 2, 2, 3, 200_067].map(Some));
        assert_eq!((&row["maxTurnMicros"], &json["turnMicros"]), (&json!(200_000), &Value::Null));
    }
}
