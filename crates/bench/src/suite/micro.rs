//! The microbenchmark (P §6.2).
//!
//! Latency: one client does each of INSERT, UPDATE, SEARCH and DELETE a number of times, one after the other, on
//! distinct keys. Throughput: all clients insert distinct keys for half a second; then each client updates and then
//! reads its own keys for some seconds each, and at last deletes them for half a second. After each of these two parts
//! all keys are read back: keys that were not deleted must have the value written last, and deleted keys must be
//! absent.

use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;
use serde::Serialize;

use crate::args::{ClusterArgs, LoadArgs};
use crate::cluster::{self, ClusterDemand};
use crate::driver::{self, WorkerLayout};
use crate::phase::{BenchPhase, PhaseJob};
use crate::report::{
    BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport, BenchVerdict, OperationReport,
    PhaseReport, attempt, operations_table,
};
use crate::tally::OperationTally;
use crate::worker::WorkerContext;
use fusee_report::machine::HostMachine;

/// The duration of the phase of inserts, and of the phase of deletes.
const INSERT_TIME: Duration = Duration::from_millis(500);
/// An upper bound of the inserts that one core can do in [`INSERT_TIME`].
const MOST_INSERTS_PER_CORE: u64 = 150_000;
/// An upper bound of the updates that one core can do in a second.
const MOST_UPDATES_PER_CORE_AND_SECOND: f64 = 400_000.0;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench micro\n  \
    fusee-bench micro --index-replicas 1 --memory-nodes 2 --json\n  \
    fusee-bench micro --master 127.0.0.1:7400 --fabric tcp\n\n\
    Exit code 1 if an operation failed or a value was not what it must be.")]
pub struct MicroArgs {
    /// Operations of each kind to measure the latency of
    #[arg(long, default_value_t = 10_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    #[serde(rename = "latency_operations")]
    operations: u64,

    /// Seconds to measure the throughput of updates for, and of searches
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    seconds: f64,

    #[command(flatten)]
    #[serde(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    #[serde(skip)]
    cluster: ClusterArgs,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

/// The numbers of writes of all clients together that fit into the memory.
struct MicroWriteLimits {
    keys: u64,
    updates: u64,
}

impl MicroArgs {
    fn limits(&self, machine: &HostMachine) -> MicroWriteLimits {
        let cores = machine.cores as u64;
        let keys = cores * MOST_INSERTS_PER_CORE;
        let updates = self.seconds * MOST_UPDATES_PER_CORE_AND_SECOND * cores as f64;
        if self.cluster.master.is_some() {
            return MicroWriteLimits { keys, updates: u64::MAX };
        }
        let available = machine.available_memory_bytes;
        let pairs = cluster::affordable_pairs(&self.load, &self.cluster, available);
        let keys = keys.min(pairs / 4).max(1);
        MicroWriteLimits { keys, updates: (updates as u64).min(pairs.saturating_sub(keys)).max(1) }
    }

    fn demand(&self, limits: &MicroWriteLimits) -> ClusterDemand {
        let keys = limits.keys.max(self.operations);
        ClusterDemand {
            keys,
            index_keys: keys,
            pairs: limits.keys + limits.updates.min(1 << 40) + 2 * self.operations,
            ..ClusterDemand::default()
        }
    }

    fn latency_phases(&self) -> [BenchPhase; 4] {
        let phase = |job| BenchPhase { job, operations: self.operations, time: None };
        let insert = PhaseJob::Insert { keys: self.operations };
        [phase(insert), phase(PhaseJob::Update), phase(PhaseJob::Search), phase(PhaseJob::Delete)]
    }

    fn throughput_phases(&self, limits: &MicroWriteLimits) -> [BenchPhase; 4] {
        let time = Some(Duration::from_secs_f64(self.seconds));
        let insert = PhaseJob::Insert { keys: limits.keys };
        let most = u64::MAX;
        [
            BenchPhase { job: insert, operations: most, time: Some(INSERT_TIME) },
            BenchPhase { job: PhaseJob::Update, operations: limits.updates, time },
            BenchPhase { job: PhaseJob::Search, operations: most, time },
            BenchPhase { job: PhaseJob::Delete, operations: most, time: Some(INSERT_TIME) },
        ]
    }
}

/// The names of the phases, in order.
const NAMES: [&str; 4] = ["insert", "update", "search", "delete"];

/// The results: the phases in the order in which they ran. A phase has 0 operations if the user interrupted the run
/// before it.
#[derive(Serialize)]
struct MicroReport {
    latency: Vec<NamedPhase>,
    throughput: Vec<NamedPhase>,
}

#[derive(Serialize)]
struct NamedPhase {
    operation: &'static str,
    #[serde(flatten)]
    phase: PhaseReport,
}

impl BenchFindings for MicroReport {
    type Settings = MicroArgs;

    fn title(report: &BenchReport<'_, MicroReport>) -> String {
        let pair_bytes = report.settings.load.pair_bytes;
        format!("microbenchmark: pairs of {pair_bytes} bytes{}", report.ended_early())
    }

    fn rows(report: &BenchReport<'_, MicroReport>) -> String {
        let load = &report.settings.load;
        let found = &report.findings;
        format!(
            "\nlatency, 1 client\n{}\nthroughput, {} threads x {} coroutines\n{}",
            operations_table(rows(&found.latency)),
            load.threads,
            load.coroutines,
            operations_table(rows(&found.throughput)),
        )
    }
}

fn rows(phases: &[NamedPhase]) -> impl Iterator<Item = (&str, &OperationReport, Option<f64>)> {
    phases.iter().filter_map(|named| {
        let operation = named.phase.per_operation.get(named.operation)?;
        Some((named.operation, operation, Some(named.phase.throughput_ops_per_s)))
    })
}

/// Runs one part of the benchmark, on keys of its own.
fn run_part(
    client: &BlockingClient,
    args: &MicroArgs,
    crew: WorkerLayout,
    phases: &[BenchPhase],
    total: &mut MicroTotals,
    with_cdf: bool,
) -> Result<Vec<NamedPhase>, Failure> {
    if args.cluster.master.is_some() {
        driver::clean_up(client, args.operations)?;
    }
    let board = WorkerContext::new(args.load.pair_bytes, args.load.seed);
    let outcome = driver::run(client, &board, crew, phases, &mut ())?;
    let problems = &mut total.problems;
    let verified = attempt(problems, driver::verify(client, &board, outcome.logs));
    total.tally.merge_failures(&verified.tally);
    total.verified_keys += verified.keys;
    // Removes the keys that the phase of deletes did not reach in time.
    attempt(problems, driver::clean_up(client, board.frontier.claimed()));
    let mut named = Vec::new();
    for (operation, result) in NAMES.into_iter().zip(&outcome.results) {
        total.tally.merge_failures(&result.tally);
        named.push(NamedPhase { operation, phase: PhaseReport::new(result, with_cdf) });
    }
    Ok(named)
}

/// Sums over both parts, in addition to the measurements of each part.
#[derive(Default)]
struct MicroTotals {
    tally: OperationTally,
    verified_keys: u64,
    problems: Vec<String>,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &MicroArgs) -> Result<(), Failure> {
    args.load.check()?;
    if !(args.seconds > 0.0 && args.seconds < 1e9) {
        return Err(Failure::usage("--seconds must be more than 0"));
    }
    let shell = BenchInvocation::begin("micro", &args.output);
    let limits = args.limits(&shell.machine);
    interrupt::watch()?;
    let demand = args.demand(&limits);
    let target = cluster::open(demand, &args.load, &args.cluster, shell.available())?;
    let client = &target.client;
    let mut total = MicroTotals::default();
    let one = WorkerLayout { threads: 1, coroutines: 1, first_thread: 0 };
    let latency = run_part(client, args, one, &args.latency_phases(), &mut total, true)?;
    let all = WorkerLayout {
        threads: args.load.threads.into(),
        coroutines: args.load.coroutines.into(),
        first_thread: 0,
    };
    let phases = args.throughput_phases(&limits);
    let throughput = run_part(client, args, all, &phases, &mut total, false)?;
    let verdict = BenchVerdict::new(&total.tally, total.verified_keys, total.problems);
    let setup = target.describe(&args.cluster);
    shell.print_results(args, Some(setup), MicroReport { latency, throughput }, Some(verdict))
}
