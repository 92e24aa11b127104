//! How much memory this machine gives the process.

use std::path::{Path, PathBuf};

/// Bytes of memory, and what sets that bound.
pub fn memory() -> Option<(u64, String)> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| mem_total(&text));
    let machine = machine.map(|bytes| (bytes, "memory of this machine".to_owned()));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let group = limit_files(&groups).into_iter().filter_map(|file| {
        let bytes = read(&file)?.trim().parse().ok()?;
        Some((bytes, format!("limit of the cgroup, {}", file.display())))
    });
    group.chain(machine).min_by_key(|(bytes, _)| *bytes)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Files with the limits of the process's cgroup and of all above it, in both versions of the interface.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|above| Path::new(root).join(above).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_memory() {
        assert_eq!(mem_total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn limits_of_both_interfaces_up_to_the_root() {
        let files = limit_files("0::/system.slice/seqcast.service\n3:cpu,memory:/x\n4:cpu:/y\n");
        let files: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/system.slice/seqcast.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
    }

    #[test]
    fn this_machine_has_some() {
        assert!(memory().is_some_and(|(bytes, _)| bytes > 1 << 20));
    }
}
