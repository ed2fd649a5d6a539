//! The YCSB benchmark (P §6.3).
//!
//! Load: all workers insert the keys. Run: every worker draws operations and keys until the
//! operations or the seconds are used up, or does its lines of a file ([`fusee_workload::Trace`]).
//! Then all keys are read back and judged. Settings are those of the paper by default: 100,000
//! keys, pairs of 1024 bytes, Zipfian with theta 0.99.

mod args;
mod drivers;
mod report;
mod task;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_workload::{Frontier, Keys, Part};

use crate::check::check;
use crate::clock::{Clock, monotonic_ns};
use crate::cluster::{self, Target};
use crate::driver::{self, Crew, Outcome, PhaseResult};
use crate::message::Run;
use crate::processes;
use crate::record::Keep;
use crate::report::{Findings, PhaseReport, Shell, Verdict, attempt};
use crate::tally::Tally;
use crate::worker::Board;
pub use args::Args;
use drivers::Together;
use report::Found;
use task::Task;

/// The results of a workload.
struct Measured {
    outcome: Outcome,
    /// The board, with the keys that exist.
    board: Board,
    /// Whether the run ended early because of errors.
    broken: bool,
    /// The number of keys beyond the known ones among which one may have been inserted.
    holes: u64,
    /// The drivers, if drivers ran it.
    together: Option<Together>,
}

/// Runs the workload, in this process or in others of this host.
fn measure(task: &Task, target: &Target, run: &Run) -> Result<Measured, Failure> {
    let args = &task.args;
    let mut board = Board::new(args.load.pair_bytes, args.load.seed);
    let origin_ns = monotonic_ns();
    if args.keep() != Keep::Nothing {
        board.clock = Clock::shared(origin_ns);
    }
    board.keep = args.keep();
    board.keys = task.names();
    board.keys_come_and_go = task.keys_come_and_go();
    let crew = Crew {
        threads: args.load.threads.into(),
        coroutines: args.load.coroutines.into(),
        first_thread: 0,
    };
    let (outcome, broken) = if args.processes == 1 {
        let phases = run.phases(Part::WHOLE, task.trace.as_ref());
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
    Ok(Measured { outcome, board, broken, holes: args.workers(), together: None })
}

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> Result<(), Failure> {
    let task = Task::new(args)?;
    let args = &task.args;
    let shell = Shell::begin("ycsb", &args.output);
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
    report_of(&task, shell, &target, operations, measured)
}

/// Reads all keys back, removes them, and reports the results.
fn report_of(
    task: &Task,
    shell: Shell,
    target: &Target,
    operations: u64,
    measured: Measured,
) -> Result<(), Failure> {
    let args = &task.args;
    let client = &target.client;
    let Measured { outcome, mut board, broken, holes, together } = measured;
    if let Keys::Named(trace) = &board.keys {
        board.frontier = Frontier::new(trace.keys());
    }
    let Outcome { results, logs, mut entries } = outcome;
    let mut problems = Vec::new();
    let verified = attempt(&mut problems, driver::verify(client, &board, logs));
    entries.extend(verified.entries);
    let mut tally: Tally = verified.tally;
    for result in &results {
        tally.merge_failures(&result.tally);
    }
    if args.cluster.master.is_some() && !args.keep {
        let keys = board.frontier.claimed();
        attempt(&mut problems, driver::clean_up_named(client, &board.keys, keys, holes));
    }
    let check = args.check.then(|| check(&entries));
    let [load, run] = &results[..] else { unreachable!("two phases give two results") };
    let mut found = Found {
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
    let verdict = Verdict::new(&tally, verified.keys, problems);
    shell.tell(&task.settings(operations), Some(setup), found, Some(verdict))
}

fn ended_by(task: &Task, run: &PhaseResult, operations: u64, broken: bool) -> &'static str {
    let args = &task.args;
    let done = run.tally.operations() + run.tally.error_count();
    match (broken, done < operations, args.operations) {
        (true, ..) => "errors",
        _ if interrupt::requested() => "interrupted",
        (false, true, _) => "seconds",
        (false, false, wanted) if args.check && wanted.is_none_or(|n| n > operations) => {
            let limit = operations == task.checked_operations();
            if limit { "check_ops" } else { "operations" }
        }
        (false, false, None) if args.seconds.is_some() => "memory",
        (false, false, _) => "operations",
    }
}
