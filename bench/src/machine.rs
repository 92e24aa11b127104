//! What a run was made on and with: processor, kernel, memory, versions, commit, exact commands. The machine has no
//! name here.

use crate::subject::output;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The machine and the run, as `machine.json` keeps them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processors.
    pub processor: String,
    /// How many there are.
    pub processors: usize,
    /// Size of the last level of cache, as the kernel says it.
    pub cache: String,
    /// What scales their clock; `none` in most virtual machines.
    pub governor: String,
    /// Running under a hypervisor.
    pub virtual_machine: bool,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Release and build of the kernel.
    pub kernel: String,
    /// What the kernel takes the time from.
    pub clock: String,
    /// Compiler of the server and of the harness.
    pub compiler: String,
    /// Commit of the repository, with `-dirty` when files differ from it.
    pub commit: String,
}

/// One run: what was asked for, by which commands, with which servers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Run {
    /// When it began, Unix seconds.
    pub at: u64,
    /// The harness's own command line.
    pub command: String,
    pub suite: String,
    pub rounds: u32,
    /// Version of each server that was measured.
    pub versions: BTreeMap<String, String>,
    /// How each server was started.
    pub servers: BTreeMap<String, String>,
    /// How the generator was called for each work, the server's name and process id left open.
    pub works: BTreeMap<String, String>,
    /// Servers that could not be had, and why.
    pub absent: BTreeMap<String, String>,
    /// Instructions per delivery of the pure core, by row of `bench/instructions.json` at that commit.
    pub instructions: BTreeMap<String, f64>,
    pub machine: Machine,
}

impl Machine {
    /// Of this machine. What cannot be found out stays `unknown`.
    pub fn here() -> Machine {
        let processors = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = processors.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let memory = read("/proc/meminfo");
        let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let system = "/sys/devices/system";
        Machine {
            processor: field("model name").unwrap_or_else(unknown),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            cache: first(&format!("{system}/cpu/cpu0/cache/index3/size")),
            governor: match first(&format!("{system}/cpu/cpu0/cpufreq/scaling_governor")) {
                none if none == unknown() => "none".to_owned(),
                governor => governor,
            },
            virtual_machine: field("flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_mib: kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) / 1024,
            kernel: format!("{} {}", first("/proc/sys/kernel/osrelease"), first("/proc/sys/kernel/version")),
            clock: first(&format!("{system}/clocksource/clocksource0/current_clocksource")),
            compiler: output(Path::new("rustc"), &["--version"]).unwrap_or_else(|_| unknown()),
            commit: output(
                Path::new("git"),
                &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            )
            .ok()
            .filter(|line| !line.contains("fatal"))
            .unwrap_or_else(unknown),
        }
    }

    /// What makes figures of two machines incomparable: (what, here, there).
    pub fn differences(&self, other: &Machine) -> Vec<(&'static str, String, String)> {
        let pairs = [
            ("processor", self.processor.clone(), other.processor.clone()),
            ("processors", self.processors.to_string(), other.processors.to_string()),
            ("governor", self.governor.clone(), other.governor.clone()),
            ("memory, MiB", self.memory_mib.to_string(), other.memory_mib.to_string()),
            ("kernel", self.kernel.clone(), other.kernel.clone()),
            ("clock", self.clock.clone(), other.clock.clone()),
            ("compiler", self.compiler.clone(), other.compiler.clone()),
        ];
        pairs.into_iter().filter(|(_, here, there)| here != there).collect()
    }

    /// As lines of "name: value" for a report.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let cloud = if self.virtual_machine { ", a virtual machine" } else { "" };
        vec![
            (
                "processor",
                format!("{} x {}, last cache {}{cloud}", self.processors, self.processor, self.cache),
            ),
            ("governor", self.governor.clone()),
            ("memory", format!("{} MiB", self.memory_mib)),
            ("kernel", self.kernel.clone()),
            ("clock", self.clock.clone()),
            ("compiler", self.compiler.clone()),
            ("commit", self.commit.clone()),
        ]
    }
}

/// Instructions per delivery, from the text of `bench/instructions.json`, which `scripts/instructions.py` checks.
pub fn instructions(text: &str) -> Result<BTreeMap<String, f64>> {
    let parsed: serde_json::Value = serde_json::from_str(text).context("bench/instructions.json")?;
    let rows = parsed["rows"].as_object().context("bench/instructions.json has no rows")?;
    let per = |row: &serde_json::Value| Some(row["instructions"].as_f64()? / row["deliveries"].as_f64()?);
    Ok(rows.iter().filter_map(|(name, row)| Some((name.clone(), per(row)?))).collect())
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// First line of a file.
fn first(path: &str) -> String {
    read(path).lines().next().map_or_else(unknown, |line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_and_a_kernel() {
        let here = Machine::here();
        assert!(here.processors > 0 && here.memory_mib > 0 && here.kernel != unknown(), "{here:?}");
        assert_eq!(here.differences(&here), []);
        let other = Machine { kernel: "another".to_owned(), ..here.clone() };
        assert_eq!(here.differences(&other).len(), 1);
    }

    #[test]
    fn instructions_are_divided_by_deliveries() {
        let rows = instructions(include_str!("../instructions.json")).expect("it has rows");
        let publish = rows.iter().find(|(name, _)| name.ends_with(": publish"));
        assert!(publish.is_some_and(|(_, per)| *per > 1.0 && *per < 100_000.0), "{rows:?}");
        assert!(instructions("{}").is_err());
    }
}
