//! What the benchmark and its client processes say to each other.
//!
//! On the client's standard input: its [`Spec`], one line of JSON; then `go` once for every phase,
//! and `stop` if it is to end early. On its standard output one line of JSON for every [`Said`],
//! and after `Results` so many packed entries. The end of its input ends a client, so none
//! outlives the benchmark; nothing is left on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_client::{KindStats, OpKind};
use serde::{Deserialize, Serialize};

use super::driver::{Costs, PhaseResult};
use super::phase::{Job, Phase};
use super::record::Keep;
use super::tally::Tally;
use fusee_workload::{Chooser, Distribution, Part, Trace, Workload};

/// The line that starts a phase.
pub const GO: &str = "go";
/// The line that ends one early.
pub const STOP: &str = "stop";

/// Which operations to run; the same for all processes but for the share.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Run {
    /// The name of the workload.
    pub workload: Workload,
    /// Keys that are loaded, by all.
    pub keys: u64,
    /// Which of them are asked for.
    pub distribution: Distribution,
    /// Its skew.
    pub theta: f64,
    /// Start of all random sequences.
    pub seed: u64,
    /// Operations of the run phase: the process's own, or those of all if they come from files.
    pub operations: u64,
    /// Its length, if it is limited.
    pub seconds: Option<f64>,
    /// Where keys and operations come from, if they are not drawn.
    pub files: Option<Files>,
    /// Workers of all processes.
    pub workers: u64,
    /// Whether each process asks for the keys that it has loaded alone.
    pub own_keys: bool,
}

/// Files of operations.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Files {
    /// The keys to load.
    pub load: PathBuf,
    /// The operations to run.
    pub trans: PathBuf,
    /// Longer keys are refused.
    pub max_key_bytes: usize,
}

impl Files {
    /// Reads them.
    pub fn read(&self) -> Result<Arc<Trace>, Failure> {
        let trace = Trace::open(&self.load, &self.trans, self.max_key_bytes);
        trace.map(Arc::new).map_err(|error| Failure::usage(error.to_string()))
    }
}

impl Run {
    /// Loading and running, of what was read of the files if there are some.
    pub fn phases(&self, part: Part, trace: Option<&Arc<Trace>>) -> [Phase; 2] {
        let workers = self.workers;
        let operations = self.operations;
        let (run, budget) = match trace {
            // Every worker knows its own operations.
            Some(trace) => (Job::Trace { trace: trace.clone(), workers, operations }, u64::MAX),
            None => {
                let keys = self.keys;
                let own = self.own_keys;
                let asked = if own { part.count(keys) } else { keys };
                let chooser = Chooser::new(self.distribution, asked, self.theta, self.seed);
                (Job::Ycsb { workload: self.workload, chooser, keys, own }, operations)
            }
        };
        let time = self.seconds.map(Duration::from_secs_f64);
        let load = Job::Insert { keys: part.count(self.keys) };
        [
            Phase { job: load, operations: u64::MAX, time: None },
            Phase { job: run, operations: budget, time },
        ]
    }
}

/// What a client process is to do.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Spec {
    /// Address of the master.
    pub master: String,
    /// shm, tcp, verbs or auto.
    pub fabric: String,
    /// Which switch is in the path, if any.
    pub switch: Option<String>,
    /// Keys whose place a process remembers, or a session.
    pub cache_entries: usize,
    /// Whether it is a session.
    pub cache_per_session: bool,
    /// When the cache is bypassed.
    pub cache_threshold: f64,
    /// off, strict or relaxed.
    pub work_table: String,
    /// Bytes of key and value together.
    pub pair_bytes: usize,
    /// Its own threads.
    pub threads: usize,
    /// Those of the processes before it.
    pub first_thread: usize,
    /// Workers of a thread.
    pub coroutines: usize,
    /// Which process it is.
    pub part: Part,
    /// With its own share of the operations.
    pub run: Run,
    /// What to hand over in the end.
    pub keep: Keep,
    /// Where all their times begin.
    pub origin_ns: u64,
}

/// What a client process tells.
#[derive(Debug, Deserialize, Serialize)]
pub enum Said {
    /// The next phase may begin.
    Ready,
    /// It has ended, and took this time of the monotonic clock.
    Ended {
        /// When it began.
        from_ns: u64,
        /// When it ended.
        to_ns: u64,
    },
    /// All have ended.
    Results(Results),
    /// The process ends with this code.
    Failed {
        /// The exit code.
        code: u8,
        /// Why.
        message: String,
    },
}

/// What all phases gave.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Results {
    /// By phase.
    pub phases: Vec<PhaseCounts>,
    /// Keys that it has claimed, of its own.
    pub claimed: u64,
    /// Whether it ended early, because of errors.
    pub broken: bool,
    /// How many packed entries follow.
    pub entries: u64,
}

/// What a phase gave.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PhaseCounts {
    tally: Tally,
    /// By kind, the fields of [`KindStats`] in their order.
    costs: [[u64; 6]; OpKind::ALL.len()],
}

impl PhaseCounts {
    /// Of a phase of this process.
    pub fn new(result: &PhaseResult) -> PhaseCounts {
        let costs = result
            .costs
            .map(|c| [c.operations, c.phases, c.max_phases.into(), c.verbs, c.atomics, c.bytes]);
        PhaseCounts { tally: result.tally.clone(), costs }
    }

    /// Errors and successes.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Adds it to those of other processes.
    pub fn add_to(self, sum: &mut PhaseResult) {
        sum.tally.merge(&self.tally);
        let costs: &mut Costs = &mut sum.costs;
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
