//! Processor time of both sides, and of everybody else on their processors.

use crate::measurement::Load;
use std::time::Duration;

/// Time of the clock that does not jump, nanoseconds.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times of one moment, nanoseconds each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moment {
    at: u64,
    server: u64,
    server_user: u64,
    server_system: u64,
    generator: u64,
    processors: u64,
    steal: u64,
    /// Time in which the generator polled and found nothing.
    polled: u64,
}

/// Who is watched.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    pub pid: u32,
    /// The first processor of the server, and how many it has from there on.
    pub server_cpu: usize,
    pub server_cores: usize,
    pub cpu: usize,
}

impl Watch {
    /// Reads all the clocks.
    pub fn look(&self, polled: u64) -> Moment {
        let (server_user, server_system) = ticks(self.pid);
        let (mut processors, mut steal) = (0, 0);
        for cpu in self.processors() {
            processors += run_time(cpu);
            steal += stolen(cpu);
        }
        Moment {
            at: now(),
            server: task_time(self.pid),
            server_user,
            server_system,
            generator: task_time(std::process::id()),
            processors,
            steal,
            polled,
        }
    }

    /// The processors of both sides. One that they share counts once: its run time is theirs together.
    fn processors(&self) -> impl Iterator<Item = usize> {
        let servers = self.server_cpu..self.server_cpu + self.server_cores;
        let own = Some(self.cpu).filter(|cpu| !servers.contains(cpu));
        servers.chain(own)
    }
}

impl Moment {
    /// Shares between two moments.
    pub fn until(&self, end: &Moment) -> Load {
        let whole = (end.at - self.at).max(1) as f64;
        let share = |of: fn(&Moment) -> u64| of(end).saturating_sub(of(self)) as f64 / whole;
        let (server, generator) = (share(|m| m.server), share(|m| m.generator));
        let (user, system) = (share(|m| m.server_user), share(|m| m.server_system));
        Load {
            server,
            server_system: if user + system > 0.0 { server * system / (user + system) } else { 0.0 },
            generator: generator - share(|m| m.polled).min(generator),
            others: (share(|m| m.processors) - server - generator).max(0.0),
            steal: share(|m| m.steal),
        }
    }

    /// Server time between two moments, microseconds.
    pub fn server_us(&self, end: &Moment) -> f64 {
        end.server.saturating_sub(self.server) as f64 / 1e3
    }

    /// Time between them.
    pub fn elapsed(&self, end: &Moment) -> Duration {
        Duration::from_nanos(end.at - self.at)
    }
}

/// Resident memory of a process that is its own, bytes.
pub fn resident(pid: u32) -> u64 {
    let text = read(&format!("/proc/{pid}/status"));
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    kib("VmRSS:") * 1024
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn number(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Run time of all threads, to the nanosecond.
fn task_time(pid: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let one = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        number(text.split_whitespace().next())
    };
    threads.flatten().map(one).sum()
}

/// User and system time by the clock's ticks.
fn ticks(pid: u32) -> (u64, u64) {
    let text = read(&format!("/proc/{pid}/stat"));
    let mut fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let mut next = || number(fields.next()) * 10_000_000;
    (next(), next())
}

/// Time in which a processor ran tasks.
fn run_time(cpu: usize) -> u64 {
    let text = read("/proc/schedstat");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&format!("cpu{cpu}")));
    line.map_or(0, |line| number(line.split_whitespace().nth(7)))
}

fn stolen(cpu: usize) -> u64 {
    let text = read("/proc/stat");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&format!("cpu{cpu}")));
    line.map_or(0, |line| number(line.split_whitespace().nth(8)) * 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_of_both_is_watched_once() {
        let of = |server_cores, cpu| {
            Watch { pid: 1, server_cpu: 0, server_cores, cpu }.processors().collect::<Vec<_>>()
        };
        assert_eq!(of(1, 1), [0, 1]);
        assert_eq!(of(3, 3), [0, 1, 2, 3]);
        assert_eq!(of(2, 1), [0, 1], "shared");
    }

    /// Not this process: its threads are tests, and what has ended is in no sum.
    #[test]
    fn work_of_a_process_is_seen() {
        let mut child =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        let watch = Watch { pid: child.id(), server_cpu: 0, server_cores: 1, cpu: 1 };
        let (before, until) = (watch.look(0), now() + 20_000_000_000);
        let mut last = before;
        while before.server_us(&last) < 50_000.0 && now() < until {
            last = watch.look(0);
        }
        child.kill().and_then(|()| child.wait()).expect("it runs until then");
        let load = before.until(&last);
        assert!(before.server_us(&last) >= 50_000.0 && load.server > 0.0, "{load:?}");
        assert!(task_time(std::process::id()) > 0 && resident(std::process::id()) > 100_000);
    }
}
