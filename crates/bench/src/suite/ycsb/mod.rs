//! The YCSB benchmark (P §6.3).
//!
//! In the load phase all workers insert the keys. In the run phase every worker draws operations and keys at random, or
//! runs its lines of a file ([`fusee_workload::YcsbTrace`]), until the operations or the seconds are used up. Then all
//! keys are read back and checked. The default settings are the paper's: 100,000 keys, pairs of 1024 bytes, Zipfian
//! with theta 0.99.

mod args;
mod drivers;
mod report;
mod task;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_workload::{Frontier, KeyNaming, WorkloadShare};

use crate::check::check;
use crate::clock::{BenchClock, monotonic_ns};
use crate::cluster::{self, MeasuredCluster};
use crate::driver::{self, DriverOutcome, PhaseResult, WorkerLayout};
use crate::message::RunSpec;
use crate::processes;
use crate::record::RecordScope;
use crate::report::{BenchFindings, BenchInvocation, BenchVerdict, PhaseReport, attempt};
use crate::tally::OperationTally;
use crate::worker::WorkerContext;
pub use args::YcsbArgs;
use drivers::YcsbDrivers;
use report::YcsbReport;
use task::YcsbRunPlan;

/// The results of a workload.
struct YcsbRunResult {
    outcome: DriverOutcome,
    /// The state that the workers shared, with the keys that exist.
    board: WorkerContext,
    /// Whether the run ended early because of errors.
    broken: bool,
    /// Maximum number of unused key numbers in a row before another existing key.
    holes: u64,
    /// The work of each driver, if several drivers ran the workload.
    together: Option<YcsbDrivers>,
}

/// Runs the workload, in this process or in several processes of this host.
fn measure(
    task: &YcsbRunPlan,
    target: &MeasuredCluster,
    run: &RunSpec,
) -> Result<YcsbRunResult, Failure> {
    let args = &task.args;
    let mut board = WorkerContext::new(args.load.pair_bytes, args.load.seed);
    let origin_ns = monotonic_ns();
    if args.keep() != RecordScope::Nothing {
        board.clock = BenchClock::shared(origin_ns);
    }
    board.keep = args.keep();
    board.keys = task.names();
    board.keys_come_and_go = task.keys_come_and_go();
    let crew = WorkerLayout {
        threads: args.load.threads.into(),
        coroutines: args.load.coroutines.into(),
        first_thread: 0,
    };
    let (outcome, broken) = if args.processes == 1 {
        let phases = run.phases(WorkloadShare::WHOLE, task.trace.as_ref());
        let outcome = driver::run(&target.client, &board, crew, &phases, &mut ())?;
        (outcome, board.is_broken())
    } else {
        let started = target.servers.as_ref().map(|servers| servers.master());
        let master = started.or(args.cluster.master.as_deref()).unwrap_or_default();
        let specs = task.specs(run, master, target.client.fabric().to_string(), origin_ns);
        let gathered = processes::run(&specs, crew.threads * crew.coroutines)?;
        board.frontier = Frontier::new(gathered.keys);
        (gathered.outcome, gathered.broken)
    };
    Ok(YcsbRunResult { outcome, board, broken, holes: args.workers(), together: None })
}

/// Runs the benchmark and prints its report.
pub fn run(args: &YcsbArgs) -> Result<(), Failure> {
    let task = YcsbRunPlan::new(args)?;
    let args = &task.args;
    let shell = BenchInvocation::begin("ycsb", &args.output);
    let operations = task.operations(&shell.machine);
    interrupt::watch()?;
    let demand = task.demand(operations);
    let target = cluster::open(demand, &args.load, &args.cluster, shell.available())?;
    if args.join.is_some() {
        return drivers::run(&task, shell, &target, operations);
    }
    if args.cluster.master.is_some() {
        driver::clean_up_named(&target.client, &task.names(), task.keys(), args.workers())?;
    }
    let measured = measure(&task, &target, &task.run(operations))?;
    verify_and_report(&task, shell, &target, operations, measured)
}

/// Reads all keys back, removes them, and reports the results.
fn verify_and_report(
    task: &YcsbRunPlan,
    shell: BenchInvocation,
    target: &MeasuredCluster,
    operations: u64,
    measured: YcsbRunResult,
) -> Result<(), Failure> {
    let args = &task.args;
    let client = &target.client;
    let YcsbRunResult { outcome, mut board, broken, holes, together } = measured;
    if let KeyNaming::Named(trace) = &board.keys {
        board.frontier = Frontier::new(trace.keys());
    }
    let DriverOutcome { results, logs, mut entries } = outcome;
    let mut problems = Vec::new();
    let verified = attempt(&mut problems, driver::verify(client, &board, logs));
    entries.extend(verified.entries);
    let mut tally: OperationTally = verified.tally;
    for result in &results {
        tally.merge_failures(&result.tally);
    }
    if args.cluster.master.is_some() && !args.keep {
        let keys = board.frontier.claimed();
        attempt(&mut problems, driver::clean_up_named(client, &board.keys, keys, holes));
    }
    let check = args.check.then(|| check(&entries));
    let [load, run] = &results[..] else { unreachable!("two phases give two results") };
    let mut found = YcsbReport {
        workload: task.name(),
        file_operations: task.trace.as_ref().map(|trace| trace.operations()),
        ended_by: ended_by(task, run, operations, broken),
        load: PhaseReport::new(load, false),
        run: PhaseReport::new(run, false),
        check,
        together,
    };
    if found.was_interrupted() {
        found.ended_by = "interrupted";
    }
    let setup = target.describe(&args.cluster);
    let verdict = BenchVerdict::new(&tally, verified.keys, problems);
    shell.print_results(&task.settings(operations), Some(setup), found, Some(verdict))
}

fn ended_by(task: &YcsbRunPlan, run: &PhaseResult, operations: u64, broken: bool) -> &'static str {
    let args = &task.args;
    let done = run.tally.operations() + run.tally.error_count();
    match (broken, done < operations, args.operations) {
        (true, ..) => "errors",
        _ if interrupt::is_requested() => "interrupted",
        (false, true, _) => "seconds",
        (false, false, wanted) if args.check && wanted.is_none_or(|n| n > operations) => {
            let limit = operations == task.checked_operations();
            if limit { "check_ops" } else { "operations" }
        }
        (false, false, None) if args.seconds.is_some() => "memory",
        (false, false, _) => "operations",
    }
}
