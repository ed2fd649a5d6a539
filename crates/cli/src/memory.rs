//! The memory of this machine and of this process's control group.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::quantity::ByteSize;

/// The memory that memory nodes on this machine are to lend.
#[derive(Clone, Copy, Debug)]
pub struct PoolMemory {
    /// Size of the pool of each node, in bytes.
    pub pool_bytes: u64,
    /// Number of memory nodes.
    pub nodes: u64,
    /// Whether the pools have huge pages, which limits of control groups do not count.
    pub huge_pages: bool,
}

impl PoolMemory {
    /// Compares the pools with the memory of the machine and of the control group. Pools that are larger are refused,
    /// because the system would kill processes when that memory is used. If `overcommits`, they cause only a warning.
    pub fn check(self, overcommits: bool) -> Result<(), Failure> {
        let machine = machine_bytes().and_then(|bytes| {
            self.excess(bytes, || format!("this machine has {}", ByteSize(bytes)))
        });
        let group = group_limit(Path::new("/sys/fs/cgroup")).filter(|_| !self.huge_pages);
        let group = group.and_then(|bytes| {
            let for_pools = bytes.saturating_sub(self.nodes.saturating_mul(NODE_BYTES));
            self.excess(for_pools, || {
                format!("the limit of this control group is {}", ByteSize(bytes))
            })
        });
        let Some(text) = machine.or(group) else { return Ok(()) };
        if overcommits {
            tracing::warn!("{text}; lower --pool");
            return Ok(());
        }
        Err(Failure::operation(format!(
            "{text}; lower --pool, or start with --overcommit if most of it will stay unused"
        )))
    }

    fn excess(self, for_pools_bytes: u64, memory: impl FnOnce() -> String) -> Option<String> {
        let pools = self.pool_bytes.saturating_mul(self.nodes);
        (pools > for_pools_bytes).then(|| {
            format!(
                "--pool makes {} of memory to lend, and {}: when more than that is in use the system kills processes",
                ByteSize(pools),
                memory()
            )
        })
    }
}

/// Memory of a memory node beside its pool, in bytes.
const NODE_BYTES: u64 = 64 << 20;

fn machine_bytes() -> Option<u64> {
    kib_in(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Returns the smallest limit of the control groups to which this process belongs; `None` without a limit. `root` is
/// the directory of all control groups.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limit = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    limit_files(root, &groups).iter().filter_map(limit).min()
}

/// Returns the files with the limits of a process's control groups, by the text of its `/proc/self/cgroup`.
fn limit_files(root: &Path, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (directory, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            some if some.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the path of the group is possibly that of the host, and only the last directories exist.
        for ancestor in Path::new(group.trim_start_matches('/')).ancestors() {
            files.push(directory.join(ancestor).join(file));
        }
    }
    files
}

/// Returns the available memory in bytes: the machine's or the control group's, whichever is smaller; `None` if the
/// system does not tell.
pub fn available() -> Option<u64> {
    let machine = available_in(&fs::read_to_string("/proc/meminfo").ok()?);
    let number = |file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(max, current)| max.saturating_sub(current));
    machine.into_iter().chain(group).min()
}

fn available_in(meminfo: &str) -> Option<u64> {
    kib_in(meminfo, "MemAvailable:")
}

/// Returns the value of a line of `/proc/meminfo`, in bytes.
fn kib_in(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_available_memory_is_found() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 5 kB\nMemAvailable:   12345 kB\n";
        assert_eq!(available_in(meminfo), Some(12_345 << 10));
        assert_eq!(available_in("MemTotal: 100 kB\n"), None);
        assert_eq!(kib_in(meminfo, "MemTotal:"), Some(100 << 10));
    }

    #[test]
    fn pools_larger_than_the_memory_are_refused() {
        let pool = PoolMemory { pool_bytes: 23 << 30, nodes: 1, huge_pages: false };
        assert_eq!(pool.excess(23 << 30, String::new), None);
        let text = PoolMemory { nodes: 3, ..pool }.excess(23 << 30, || "it has 23".into());
        let text = text.unwrap();
        assert!(text.contains("69.0 GiB") && text.contains("it has 23"), "{text}");
        let pool = PoolMemory { pool_bytes: 1 << 60, ..pool };
        let refused = pool.check(false).unwrap_err();
        assert!(refused.to_string().contains("--overcommit"), "{refused}");
        assert_eq!(pool.check(true), Ok(()));
    }

    #[test]
    fn the_limits_of_control_groups_are_found() {
        let files = |groups| {
            let files = limit_files(Path::new("/g"), groups);
            files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(files("0::/a/b\n"), ["/g/a/b/memory.max", "/g/a/memory.max", "/g/memory.max"]);
        assert_eq!(
            files("5:cpu,cpuacct:/x\n4:memory:/x\n"),
            ["/g/memory/x/memory.limit_in_bytes", "/g/memory/memory.limit_in_bytes"]
        );
        assert_eq!(files("nonsense"), Vec::<String>::new());
    }
}
