//! Metrics of this process from the operating system, under the usual names.

use std::fs;

use fusee_cli::stderr;
use fusee_client::prometheus::{MetricKind, Metrics};

use fusee_cli::logging::limit;

/// Adds the metrics of this process that `/proc` has.
pub fn add(metrics: &mut Metrics) {
    let missing = stderr::missing();
    let left_out = limit::omitted_lines();
    let name = "fusee_log_lines_missing_total";
    let help = "Lines that standard error did not take.";
    metrics.one(MetricKind::Counter, name, help, missing);
    let name = "fusee_log_lines_left_out_total";
    let help = "Lines of the log that were left out, since there were many of their kind.";
    metrics.one(MetricKind::Counter, name, help, left_out);
    let mut version =
        metrics.family(MetricKind::Gauge, "fusee_build_info", "The program; always 1.");
    version.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    if let Some(ProcessUsage { cpu_s, resident_bytes, started_s }) = usage() {
        let cpu = "process_cpu_seconds_total";
        let resident = "process_resident_memory_bytes";
        metrics.one(MetricKind::Counter, cpu, "Processor time, in seconds.", cpu_s);
        metrics.one(MetricKind::Gauge, resident, "Memory that it has, in bytes.", resident_bytes);
        let name = "process_start_time_seconds";
        metrics.one(MetricKind::Gauge, name, "When it started, in seconds since 1970.", started_s);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        metrics.one(MetricKind::Gauge, "process_open_fds", "Open file descriptors.", open.count());
    }
}

struct ProcessUsage {
    cpu_s: f64,
    resident_bytes: u64,
    started_s: f64,
}

/// Reads `/proc/self/stat` (`proc(5)`) behind the name of the program, which can contain any characters.
fn usage() -> Option<ProcessUsage> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    // `n` is the number of the field in `proc(5)`, which counts from 1. The first two fields are cut off.
    let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?.parse::<f64>().ok()?;
    Some(ProcessUsage {
        cpu_s: (field(14)? + field(15)?) as f64 / per_second,
        resident_bytes: field(24)? * rustix::param::page_size() as u64,
        started_s: boot + field(22)? as f64 / per_second,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_began_in_the_past() {
        let ProcessUsage { resident_bytes, started_s, .. } = usage().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(resident_bytes > 1 << 20, "{resident_bytes}");
        let age = now.as_secs_f64() - started_s;
        assert!((-2.0..3600.0).contains(&age), "{age}");
    }
}
