//! The machine that a benchmark runs on: what a result means nothing without.

use std::fs;
use std::thread::available_parallelism;

use fusee_cli::memory;
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
            available_memory_bytes: memory::available(),
        }
    }
}

/// The commit that a release build was made of.
pub fn commit() -> Option<&'static str> {
    option_env!("FUSEE_COMMIT")
}

impl Machine {
    /// In one line, with the program that ran there.
    pub fn in_words(&self) -> String {
        let commit = commit().map(|commit| format!(" ({commit})"));
        let version = env!("CARGO_PKG_VERSION");
        let commit = commit.unwrap_or_default();
        let Machine { cpu, cores, .. } = self;
        format!("fusee {version}{commit} on {cores} processors: {cpu}")
    }
}
