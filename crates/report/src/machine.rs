//! The machine on which a benchmark ran. Without it a result means nothing.

use std::fs;
use std::thread::available_parallelism;

use fusee_cli::memory;
use serde::Serialize;

/// The properties of a machine that a reader of a result has to know.
#[derive(Clone, Debug, Serialize)]
pub struct HostMachine {
    /// Model name of the processor.
    pub cpu: String,
    /// Number of processors that this process is allowed to use.
    pub cores: usize,
    /// Memory that is available, in bytes; `None` if the system does not tell.
    pub available_memory_bytes: Option<u64>,
}

impl HostMachine {
    /// Returns the properties of this machine.
    pub fn here() -> HostMachine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        HostMachine {
            cpu: model.map_or("unknown", |(_, name)| name.trim()).to_string(),
            cores: available_parallelism().map_or(1, usize::from),
            available_memory_bytes: memory::available(),
        }
    }
}

/// Returns the commit from which a release build was made; `None` if unknown or in debug builds.
pub fn commit() -> Option<&'static str> {
    option_env!("FUSEE_COMMIT")
}

impl HostMachine {
    /// Returns the properties in one line, with the version of the program.
    pub fn in_words(&self) -> String {
        let commit = commit().map(|commit| format!(" ({commit})"));
        let version = env!("CARGO_PKG_VERSION");
        let commit = commit.unwrap_or_default();
        let HostMachine { cpu, cores, .. } = self;
        format!("fusee {version}{commit} on {cores} processors: {cpu}")
    }
}
