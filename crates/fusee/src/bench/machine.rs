//! The machine that a benchmark runs on: what a result means nothing without.

use std::fs;
use std::thread::available_parallelism;

use serde::Serialize;

/// What a reader of a result must know.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory that is available, in bytes; `None` if the system does not tell.
    pub available_memory_bytes: Option<u64>,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        Machine {
            cpu: model.map_or("unknown", |(_, name)| name.trim()).to_string(),
            cores: available_parallelism().map_or(1, usize::from),
            available_memory_bytes: available_memory(),
        }
    }
}

/// The smaller of what the machine and the control group still give.
fn available_memory() -> Option<u64> {
    let machine = available_in(&fs::read_to_string("/proc/meminfo").ok()?);
    let number = |file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(max, current)| max.saturating_sub(current));
    machine.into_iter().chain(group).min()
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
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
    }
}
