//! The memory of this machine.

use std::fs;

use crate::quantity::ByteSize;

/// Warns if memory nodes lend more memory than the machine has. This is no error, because the system allocates memory
/// only when it is used, and possibly has swap space.
pub fn warn_of_pools(pool_bytes: u64, nodes: u64) {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(total) = kib_in(&meminfo, "MemTotal:") else { return };
    if let Some(text) = too_much(pool_bytes.saturating_mul(nodes), total) {
        tracing::warn!("{text}");
    }
}

fn too_much(pool_bytes: u64, memory_bytes: u64) -> Option<String> {
    let pool = ByteSize(pool_bytes);
    let memory = ByteSize(memory_bytes);
    (pool_bytes > memory_bytes).then(|| {
        format!(
            "--pool makes {pool} of memory to lend, and this machine has {memory}: when more than that is in \
             use the system kills processes; lower --pool"
        )
    })
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
    fn pools_larger_than_the_memory_are_told() {
        assert_eq!(too_much(23 << 30, 23 << 30), None);
        let text = too_much(64 << 30, 23 << 30).unwrap();
        assert!(text.contains("64.0 GiB") && text.contains("23.0 GiB"), "{text}");
    }
}
