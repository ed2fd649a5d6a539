//! Messages between the benchmark and its client processes.
//!
//! The standard input of a client process carries its [`ClientSpec`] as one line of JSON, then a line `go` for every
//! phase, and a line `stop` if the client is to end early. Its standard output carries one line of JSON for every
//! [`BenchClientMessage`]; the message `Results` announces a number of packed entries, which follow it. A client ends
//! at the end of its input, so that no client outlives the benchmark. Nothing is left on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_client::{KindStats, OpKind};
use serde::{Deserialize, Serialize};

use super::driver::{PhaseCosts, PhaseResult};
use super::phase::{BenchPhase, PhaseJob};
use super::record::RecordScope;
use super::tally::OperationTally;
use fusee_workload::{Distribution, KeyChooser, WorkloadShare, YcsbTrace, YcsbWorkload};

/// The line that starts a phase.
pub const GO: &str = "go";
/// The line that ends a phase early.
pub const STOP: &str = "stop";

/// The operations to run. Processes differ only in their share of the operations.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RunSpec {
    /// The workload.
    pub workload: YcsbWorkload,
    /// Number of keys that all processes together load.
    pub keys: u64,
    /// The distribution of the requests over the keys.
    pub distribution: Distribution,
    /// The skew of the distribution.
    pub theta: f64,
    /// The start of all random sequences.
    pub seed: u64,
    /// Number of operations of the run phase: those of this process, or those of all processes if the operations come
    /// from files.
    pub operations: u64,
    /// Maximum length of the run phase, in seconds.
    pub seconds: Option<f64>,
    /// The files of keys and operations, if keys and operations are not drawn at random.
    pub files: Option<TraceFiles>,
    /// Number of workers of all processes together.
    pub workers: u64,
    /// Whether each process requests only keys that it has loaded itself.
    pub own_keys: bool,
}

/// The files of a trace.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct TraceFiles {
    /// The file of keys to load.
    pub load: PathBuf,
    /// The file of operations to run.
    pub trans: PathBuf,
    /// The maximum length of a key; longer keys are refused.
    pub max_key_bytes: usize,
}

impl TraceFiles {
    /// Reads the files.
    pub fn read(&self) -> Result<Arc<YcsbTrace>, Failure> {
        let trace = YcsbTrace::open(&self.load, &self.trans, self.max_key_bytes);
        trace.map(Arc::new).map_err(|error| Failure::usage(error.to_string()))
    }
}

impl RunSpec {
    /// Returns the two phases, loading and running. `trace` is the content of the files, if there are any.
    pub fn phases(&self, part: WorkloadShare, trace: Option<&Arc<YcsbTrace>>) -> [BenchPhase; 2] {
        let workers = self.workers;
        let operations = self.operations;
        let (run, budget) = match trace {
            // The trace tells every worker its own operations, so no budget limits them.
            Some(trace) => {
                (PhaseJob::Trace { trace: trace.clone(), workers, operations }, u64::MAX)
            }
            None => {
                let keys = self.keys;
                let own = self.own_keys;
                let asked = if own { part.count(keys) } else { keys };
                let chooser = KeyChooser::new(self.distribution, asked, self.theta, self.seed);
                (PhaseJob::Ycsb { workload: self.workload, chooser, keys, own }, operations)
            }
        };
        let time = self.seconds.map(Duration::from_secs_f64);
        let load = PhaseJob::Insert { keys: part.count(self.keys) };
        [
            BenchPhase { job: load, operations: u64::MAX, time: None },
            BenchPhase { job: run, operations: budget, time },
        ]
    }
}

/// The task of a client process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ClientSpec {
    /// The address of the master.
    pub master: String,
    /// The fabric: shm, tcp, verbs or auto.
    pub fabric: String,
    /// The switch in the path to the memory nodes, if any.
    pub switch: Option<String>,
    /// Number of entries of an index cache.
    pub cache_entries: usize,
    /// Whether each session has an index cache of its own, instead of one cache for the process.
    pub cache_per_session: bool,
    /// The share of wrong hints above which a key bypasses the index cache.
    pub cache_threshold: f64,
    /// The work table: off, strict or relaxed.
    pub work_table: String,
    /// Bytes of key and value together.
    pub pair_bytes: usize,
    /// Number of threads of this process.
    pub threads: usize,
    /// Number of threads of the processes before this one.
    pub first_thread: usize,
    /// Number of workers per thread.
    pub coroutines: usize,
    /// The share of the workload that this process runs.
    pub part: WorkloadShare,
    /// The operations, with the share of this process.
    pub run: RunSpec,
    /// The records to hand over at the end.
    pub keep: RecordScope,
    /// The origin of all recorded times, by the monotonic clock.
    pub origin_ns: u64,
}

/// A message of a client process.
#[derive(Debug, Deserialize, Serialize)]
pub enum BenchClientMessage {
    /// The process is ready for the next phase.
    Ready,
    /// The phase has ended. The times are those of the monotonic clock.
    Ended {
        /// The begin of the phase.
        from_ns: u64,
        /// The end of the phase.
        to_ns: u64,
    },
    /// All phases have ended, with these results.
    Results(ResultsMessage),
    /// The process ends early, with this exit code.
    Failed {
        /// The exit code of the process.
        code: u8,
        /// The reason for the failure.
        message: String,
    },
}

/// The results of all phases.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ResultsMessage {
    /// The counts, by phase.
    pub phases: Vec<PhaseCounts>,
    /// Number of keys of the process's share of the workload that exist or were chosen for an INSERT.
    pub claimed: u64,
    /// Whether the process ended early because of errors.
    pub broken: bool,
    /// Number of packed entries that follow this message.
    pub entries: u64,
}

/// The results of one phase.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PhaseCounts {
    tally: OperationTally,
    /// Costs by kind of operation: the fields of [`KindStats`] in their order.
    costs: [[u64; 6]; OpKind::ALL.len()],
}

impl PhaseCounts {
    /// Converts the result of a phase of this process.
    pub fn new(result: &PhaseResult) -> PhaseCounts {
        let costs = result
            .costs
            .map(|c| [c.operations, c.phases, c.max_phases.into(), c.verbs, c.atomics, c.bytes]);
        PhaseCounts { tally: result.tally.clone(), costs }
    }

    /// Returns the latencies, errors and mismatches.
    pub fn tally(&self) -> &OperationTally {
        &self.tally
    }

    /// Adds these counts to the sum over processes.
    pub fn add_to(self, sum: &mut PhaseResult) {
        sum.tally.merge(&self.tally);
        let costs: &mut PhaseCosts = &mut sum.costs;
        for (sum, cost) in costs.iter_mut().zip(self.costs) {
            let [operations, phases, max_phases, verbs, atomics, bytes] = cost;
            *sum = KindStats {
                operations: sum.operations + operations,
                phases: sum.phases + phases,
                max_phases: sum.max_phases.max(max_phases as u32),
                verbs: sum.verbs + verbs,
                atomics: sum.atomics + atomics,
                bytes: sum.bytes + bytes,
            };
        }
    }
}
