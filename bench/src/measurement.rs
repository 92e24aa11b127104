//! What one run of one work against one server gave: the record that the results folder keeps and every report is made
//! of.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One run of one work against one subject.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the work, with its size in it: `fanout-1000x100-w16`.
    pub work: String,
    /// Name of the server and its configuration: `seqcast`, `bun-publish`.
    pub subject: String,
    /// Which round of interleaved runs it belongs to, from 0.
    pub round: u32,
    /// When it began, Unix seconds.
    pub at: u64,
    /// Measured time, warm-up not included, seconds.
    pub seconds: f64,
    /// Named figures, with the unit in the name: `deliveries_per_s`, `server_us_per_delivery`, `p99_us`,
    /// `bytes_per_connection`.
    pub figures: BTreeMap<String, f64>,
    /// What was wrong with the answers: names such as `missing`, `gaps`, `wrong_seq`, `closed`; absent = none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub faults: BTreeMap<String, u64>,
    /// Processors and processes while it was measured.
    pub load: Load,
    /// Latencies in nanoseconds: a histogram in the V2 + deflate format, base64, as HdrHistogram tools read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
    /// Why the figures are not to be used: the generator was the bottleneck, others used the processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Shares of processor time, 1.0 = one processor all the time.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Load {
    /// Server, user and system.
    pub server: f64,
    /// Its system part.
    pub server_system: f64,
    /// Generator, user and system. A generator that polls without sleeping counts only the time in which it had work.
    pub generator: f64,
    /// What neither used, on the processors of both.
    pub others: f64,
    /// Taken away by the host of a virtual machine.
    pub steal: f64,
}
