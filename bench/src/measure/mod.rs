//! One measurement of one server: the load generator's command.
//!
//! Latencies count from the time at which a publish was due, whether or not it could be sent then. What was begun
//! before the measured time, and what is warm-up, is in no figure.

mod load;
pub mod protocol;
mod recovery;
mod spread;
mod swarm;
mod trips;

use crate::measurement::{Load, Measurement};
use anyhow::{Context, Result};
use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use load::Watch;
use protocol::Protocol;
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::SystemTime;

/// What to measure, and whom.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// latency, fanout, echo, rpc, connect, idle, resume, slow, churn or cores
    #[arg(value_parser = ["latency", "fanout", "echo", "rpc", "connect", "idle", "resume", "slow", "churn", "cores"])]
    pub scenario: String,
    /// How many get each publish
    #[arg(long, default_value_t = 100)]
    pub subscribers: usize,
    /// Bytes of an event
    #[arg(long, default_value_t = 100)]
    pub size: usize,
    /// Publishes in flight
    #[arg(long, default_value_t = 1)]
    pub window: u64,
    /// Publishes a second
    #[arg(long, default_value_t = 100.0)]
    pub rate: f64,
    /// Connections that ask, connect, or do nothing
    #[arg(long, default_value_t = 100)]
    pub connections: usize,
    /// Clients that are cut and come back
    #[arg(long, default_value_t = 100)]
    pub clients: usize,
    /// Events that each of them misses
    #[arg(long, default_value_t = 100)]
    pub missed: u64,
    /// Subscribers that read nothing
    #[arg(long, default_value_t = 0)]
    pub stalled: usize,
    /// Topics that others subscribe to and nobody publishes to
    #[arg(long, default_value_t = 0)]
    pub idle_topics: usize,
    /// Measured time
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Load before it, in no figure
    #[arg(long, default_value_t = 0.4)]
    pub warm_up: f64,
    #[arg(long)]
    pub protocol: Protocol,
    /// Each connection's events have numbers of its own: check them
    #[arg(long)]
    pub numbered: bool,
    /// Where the server listens
    #[arg(long)]
    pub address: SocketAddrV4,
    /// Process id of the server
    #[arg(long)]
    pub pid: u32,
    /// Processor of the generator
    #[arg(long, default_value_t = 1)]
    pub cpu: usize,
    /// First processor of the server
    #[arg(long, default_value_t = 0)]
    pub server_cpu: usize,
    /// Processors of the server, from that one on
    #[arg(long, default_value_t = 1)]
    pub server_cores: usize,
    /// Name of the work in the record
    #[arg(long, default_value = "")]
    pub work_name: String,
    /// Name of the server in the record
    #[arg(long, default_value = "")]
    pub subject: String,
    /// Round in the record
    #[arg(long, default_value_t = 0)]
    pub round: u32,
}

/// What a scenario found.
#[derive(Debug, Default)]
struct Found {
    seconds: f64,
    figures: BTreeMap<String, f64>,
    faults: BTreeMap<String, u64>,
    load: Load,
    latencies: Option<Histogram<u64>>,
    /// The generator's own part was too slow for the figures to be believed.
    late: Option<String>,
    /// The figure that is judged is the server's own time: it stays what it is when the generator is full.
    any_generator_share: bool,
}

/// A share of one processor that others may use, of all processors of both sides together.
const OTHERS: f64 = 0.12;
/// The generator's share above which it may have been the limit, and the server's share of each of its cores below
/// which that was not the limit.
const GENERATOR_BUSY: f64 = 0.985;
const SERVER_IDLE: f64 = 0.90;

/// Measures and prints one line of JSON.
pub fn run(arguments: &Arguments) -> Result<()> {
    pin(arguments.cpu)?;
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let found = match arguments.scenario.as_str() {
        "echo" | "rpc" => trips::round_trips(arguments)?,
        "connect" => recovery::storm(arguments)?,
        "idle" => recovery::idle(arguments)?,
        "resume" => recovery::resume(arguments)?,
        "latency" | "slow" | "churn" => spread::at_rate(arguments)?,
        _ => spread::in_flight(arguments)?,
    };
    let measurement = Measurement {
        work: arguments.work_name.clone(),
        subject: arguments.subject.clone(),
        round: arguments.round,
        at,
        seconds: found.seconds,
        refused: refusal(&found, arguments.server_cores),
        histogram: found.latencies.as_ref().map(encoded).transpose()?,
        figures: found.figures,
        faults: found.faults,
        load: found.load,
    };
    println!("{}", serde_json::to_string(&measurement)?);
    Ok(())
}

impl Arguments {
    fn watch(&self) -> Watch {
        Watch { pid: self.pid, server_cpu: self.server_cpu, server_cores: self.server_cores, cpu: self.cpu }
    }
}

impl Found {
    /// Percentiles as figures; the histogram itself goes into the record.
    fn latencies(&mut self, latencies: Histogram<u64>) {
        if latencies.is_empty() {
            return;
        }
        let quantiles =
            [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999), ("p9999_us", 0.9999)];
        for (name, quantile) in quantiles {
            self.figure(name, latencies.value_at_quantile(quantile) as f64 / 1e3);
        }
        self.figure("max_us", latencies.max() as f64 / 1e3);
        self.latencies = Some(latencies);
    }

    fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value);
    }

    fn fault(&mut self, name: &str, count: u64) {
        if count > 0 {
            self.faults.insert(name.to_owned(), count);
        }
    }
}

/// Why the figures are not to be believed, of a server with so many cores.
fn refusal(found: &Found, cores: usize) -> Option<String> {
    let load = &found.load;
    let had_time_left = load.server < SERVER_IDLE * cores as f64;
    if load.generator > GENERATOR_BUSY && had_time_left && !found.any_generator_share {
        return Some(format!(
            "the generator was the limit: it used {:.2}, the server {:.2} of {cores}",
            load.generator, load.server
        ));
    }
    if load.others + load.steal > OTHERS {
        return Some(format!(
            "others used {:.2} of a processor, the host took {:.2}",
            load.others, load.steal
        ));
    }
    found.late.clone()
}

/// A histogram for latencies: nanoseconds up to a minute, three digits.
fn latencies() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn encoded(latencies: &Histogram<u64>) -> Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    serializer.serialize(latencies, &mut bytes).map_err(|error| anyhow::anyhow!("histogram: {error:?}"))?;
    Ok(base64::engine::general_purpose::STANDARD.encode(bytes))
}

fn pin(cpu: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("processor {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_generator_beside_an_idle_server_is_refused() {
        let load = |server, generator, others| Load { server, generator, others, ..Load::default() };
        let refused = |load| refusal(&Found { load, ..Found::default() }, 1);
        assert!(refused(load(0.7, 0.99, 0.0)).is_some_and(|why| why.contains("the generator was the limit")));
        assert!(refused(load(0.99, 0.99, 0.0)).is_none(), "both at their end: the server was the limit too");
        assert!(refused(load(0.99, 0.7, 0.3)).is_some_and(|why| why.contains("others used 0.30")));
    }

    #[test]
    fn the_servers_share_is_judged_by_its_cores() {
        let load = |server| Load { server, generator: 0.99, ..Load::default() };
        let refused = |server, cores| refusal(&Found { load: load(server), ..Found::default() }, cores);
        assert!(refused(1.75, 2).is_some(), "a quarter of a core was left");
        assert!(refused(1.85, 2).is_none());
        assert!(refused(1.0, 4).is_some());
    }

    #[test]
    fn where_server_time_is_judged_a_full_generator_is_not_refused() {
        let load = Load { server: 0.4, generator: 0.99, ..Load::default() };
        let mut found = Found { load, any_generator_share: true, ..Found::default() };
        assert!(refusal(&found, 1).is_none());
        found.load.others = 0.3;
        assert!(refusal(&found, 1).is_some(), "others disturb it all the same");
    }
}
