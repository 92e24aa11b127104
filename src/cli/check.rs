//! `seqcast check`: the effective configuration, and what it can cost.

use std::fmt::Write;

use seqcast::config::{Config, MemoryTerm, memory_sum};
use seqcast::server;

use super::{ConfigArgs, Failure, host, print};

/// Column at which the sources of values begin, where the values leave room.
const SOURCE_COLUMN: usize = 52;

pub fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let loaded = args.load()?;
    let plan = server::plan(loaded.config.clone())?;
    let mut out = String::new();
    for line in loaded.lines() {
        let setting = format!("{} = {}", line.key, line.value);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{setting:SOURCE_COLUMN$}  # {}", line.source);
    }
    out += "\n";
    out += &memory(plan.config(), plan.processors().len() as u64);
    for warning in plan.warnings() {
        let _ = writeln!(out, "# warning: {warning}");
    }
    print(&out)
}

/// The sum of limits, one line a term, beside what there is.
fn memory(config: &Config, cores: u64) -> String {
    let terms = memory_sum(config, cores);
    let (stalled, usual): (Vec<_>, Vec<_>) = terms.into_iter().partition(|t| t.stalled);
    let sum = |terms: &[MemoryTerm]| terms.iter().map(|t| t.bytes).sum::<u64>();
    let row = |t: &MemoryTerm| format!("# {:>10}  {}\n", size(t.bytes), t.label);
    let mut out = format!("# memory at most, {cores} core{}:\n", if cores == 1 { "" } else { "s" });
    out.extend(usual.iter().map(row));
    let total = sum(&usual);
    let _ = writeln!(out, "# {:>10}  in all", size(total));
    let _ = writeln!(out, "# and if every peer stops reading, or finishes nothing, at the same time:");
    out.extend(stalled.iter().map(row));
    if let Some((limit, what)) = host::memory() {
        let _ = writeln!(out, "# {:>10}  {what}", size(limit));
        out += &verdict(total, limit);
    }
    out
}

/// A warning when the sum is more than there is.
fn verdict(total: u64, limit: u64) -> String {
    if total <= limit {
        return String::new();
    }
    let (total, limit) = (size(total), size(limit));
    format!(
        "# warning: these limits allow {total}, the memory is {limit}; lower server.max_connections, resume.max_parked \
         or the byte budgets, or give more memory\n"
    )
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}
