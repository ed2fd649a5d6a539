//! Messages between the benchmark and its client processes.
//!
//! The client's standard input carries its [`ClientSpec`], one line of JSON; then `go` once for every
//! phase, and `stop` if the client is to end early. Its standard output carries one line of JSON
//! for every [`BenchClientMessage`], and after `Results` the packed entries, as many as it announces. A client
//! ends at the end of its input, so none outlives the benchmark; nothing is left on disk.

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

/// The operations to run; the same for all processes except for the share.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RunSpec {
    /// The name of the workload.
    pub workload: YcsbWorkload,
    /// Keys that are loaded, by all processes.
    pub keys: u64,
    /// The distribution of the requests over the keys.
    pub distribution: Distribution,
    /// The skew of the distribution.
    pub theta: f64,
    /// Start of all random sequences.
    pub seed: u64,
    /// Operations of the run phase: the process's own, or those of all if they come from files.
    pub operations: u64,
    /// Length of the run phase, if it is limited.
    pub seconds: Option<f64>,
    /// The files of keys and operations, if these are not drawn at random.
    pub files: Option<TraceFiles>,
    /// Workers of all processes.
    pub workers: u64,
    /// Whether each process requests only the keys that it has loaded.
    pub own_keys: bool,
}

/// Files of operations.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct TraceFiles {
    /// The keys to load.
    pub load: PathBuf,
    /// The operations to run.
    pub trans: PathBuf,
    /// The length above which keys are refused.
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
    /// Returns the phases: loading, and running. `trace` is the content of the files, if there are
    /// any.
    pub fn phases(&self, part: WorkloadShare, trace: Option<&Arc<YcsbTrace>>) -> [BenchPhase; 2] {
        let workers = self.workers;
        let operations = self.operations;
        let (run, budget) = match trace {
            // Every worker knows its own operations.
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
    /// Address of the master.
    pub master: String,
    /// shm, tcp, verbs or auto.
    pub fabric: String,
    /// The switch in the path, if any.
    pub switch: Option<String>,
    /// Entries of the index cache of a process or of a session.
    pub cache_entries: usize,
    /// Whether the cache belongs to a session.
    pub cache_per_session: bool,
    /// The threshold above which a key bypasses the cache.
    pub cache_threshold: f64,
    /// off, strict or relaxed.
    pub work_table: String,
    /// Bytes of key and value together.
    pub pair_bytes: usize,
    /// Threads of this process.
    pub threads: usize,
    /// Threads of the processes before this one.
    pub first_thread: usize,
    /// Workers of a thread.
    pub coroutines: usize,
    /// The part of this process.
    pub part: WorkloadShare,
    /// The operations, with the share of this process.
    pub run: RunSpec,
    /// The records to hand over in the end.
    pub keep: RecordScope,
    /// The time from which all recorded times are counted.
    pub origin_ns: u64,
}

/// A message of a client process.
#[derive(Debug, Deserialize, Serialize)]
pub enum BenchClientMessage {
    /// The process is ready for the next phase.
    Ready,
    /// The phase has ended. Times are of the monotonic clock.
    Ended {
        /// When it began.
        from_ns: u64,
        /// When it ended.
        to_ns: u64,
    },
    /// All phases have ended.
    Results(ResultsMessage),
    /// The process ends with this code.
    Failed {
        /// The exit code.
        code: u8,
        /// The reason.
        message: String,
    },
}

/// The results of all phases.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ResultsMessage {
    /// By phase.
    pub phases: Vec<PhaseCounts>,
    /// Keys that the process has claimed of its own.
    pub claimed: u64,
    /// Whether the process ended early because of errors.
    pub broken: bool,
    /// The number of packed entries that follow.
    pub entries: u64,
}

/// The results of one phase.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PhaseCounts {
    tally: OperationTally,
    /// By kind, the fields of [`KindStats`] in their order.
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

    /// Returns the errors and successes.
    pub fn tally(&self) -> &OperationTally {
        &self.tally
    }

    /// Adds the counts to those of other processes.
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
