//! The YCSB benchmark (P §6.3).
//!
//! Load: all workers insert the keys. Run: every worker draws operations and keys until the
//! operations or the seconds are used up. Then all keys are read back and judged. Settings are
//! those of the paper by default: 100,000 keys, pairs of 1024 bytes, Zipfian with theta 0.99.

mod report;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use serde::Serialize;

use crate::args::{ClusterArgs, LoadArgs};
use crate::check::check;
use crate::clock::{Clock, monotonic_ns};
use crate::cluster::{self, Demand, Target};
use crate::driver::{self, Crew, Outcome, PhaseResult};
use crate::message::{Run, Spec};
use crate::processes;
use crate::record::{self, Keep};
use crate::report::{Output, PhaseReport, Shell, Verdict, attempt};
use crate::tally::Tally;
use crate::worker::Board;
use fusee_report::machine::Machine;
use fusee_workload::{Distribution, Frontier, MAX_KEYS, Part, Workload};
use report::Found;

/// Operations of a run that is not limited by time.
const DEFAULT_OPERATIONS: u64 = 1_000_000;
/// Operations that are recorded at most.
const DEFAULT_CHECK_OPS: u64 = 2_000_000;
/// More operations a second than a processor can do: what a run limited by time is sized for.
const OPERATIONS_PER_CORE_AND_SECOND: f64 = 2_000_000.0;

/// How to run a YCSB workload.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee bench ycsb --workload a\n  \
    fusee bench ycsb --workload upd100 --fabric tcp --seconds 5 --json\n  \
    fusee bench ycsb --workload c --master 127.0.0.1:7400 --threads 2\n  \
    fusee bench ycsb --workload churn --keys 4 --check --processes 2\n\n\
    Exit code 1 if an operation failed, a value was not what it must be, or the history is not\n\
    linearizable.")]
pub struct Args {
    /// a (50 % updates), b (5 %), c (none), d (5 % inserts, reads of the latest), upd0 to upd100
    /// (that percentage of updates), or churn (20 % updates, 25 % inserts and 25 % deletes of the
    /// same keys)
    #[arg(long, default_value = "a", value_name = "NAME")]
    #[serde(skip)]
    workload: Workload,

    /// Keys to load
    #[arg(long, default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=MAX_KEYS / 2))]
    keys: u64,

    /// Operations of the run phase [default: 1000000, or no limit with --seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,

    /// End the run phase after so many seconds
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,

    /// Which keys are asked for [default: zipfian, and latest for workload d]
    #[arg(long)]
    distribution: Option<Distribution>,

    /// Skew of zipfian and latest, from 0 (none) to below 1
    #[arg(long, default_value_t = 0.99)]
    theta: f64,

    /// Leave the keys in the cluster of --master
    #[arg(long, requires = "master")]
    #[serde(skip)]
    keep: bool,

    /// Client processes, which share the threads
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: u16,

    /// Record every operation, and check in the end that the history of every key is
    /// linearizable. This costs throughput: the figures of such a run are not to be quoted
    #[arg(long)]
    #[serde(skip)]
    check: bool,

    /// Operations that are recorded at most, loading included; the run ends there [default: 2000000]
    #[arg(long, requires = "check", value_name = "N")]
    check_ops: Option<u64>,

    #[command(flatten)]
    #[serde(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    #[serde(skip)]
    cluster: ClusterArgs,

    #[command(flatten)]
    #[serde(skip)]
    output: Output,
}

impl Args {
    fn check(&self) -> Result<(), Failure> {
        self.load.check()?;
        if !(0.0..1.0).contains(&self.theta) {
            return Err(Failure::usage("--theta must be at least 0 and below 1"));
        }
        if self.processes > self.load.threads {
            return Err(Failure::usage(format!(
                "--processes is {}, but there are only {} --threads to share",
                self.processes, self.load.threads
            )));
        }
        let workers = u64::from(self.load.threads) * u64::from(self.load.coroutines);
        let recorded = self.keep() != Keep::Nothing;
        if recorded && (self.keys >= record::MAX_KEYS / 2 || workers >= record::MAX_WORKERS) {
            return Err(Failure::usage(format!(
                "--check and --processes take less than {} --keys and {} clients",
                record::MAX_KEYS / 2,
                record::MAX_WORKERS
            )));
        }
        if self.check && self.checked_operations() == 0 {
            return Err(Failure::usage(format!(
                "--check-ops is {}; loading and reading back {} --keys takes all of them",
                self.check_ops(),
                self.keys
            )));
        }
        match self.seconds {
            Some(seconds) if !(seconds > 0.0 && seconds < 1e9) => {
                Err(Failure::usage("--seconds must be more than 0"))
            }
            _ => Ok(()),
        }
    }

    fn check_ops(&self) -> u64 {
        self.check_ops.unwrap_or(DEFAULT_CHECK_OPS)
    }

    fn distribution(&self) -> Distribution {
        self.distribution.unwrap_or(self.workload.distribution())
    }

    /// What to record. Whoever puts the logs of several processes together needs the writes.
    fn keep(&self) -> Keep {
        match (self.check, self.processes) {
            (true, _) => Keep::All,
            (false, 1) => Keep::Nothing,
            (false, _) => Keep::Writes,
        }
    }

    /// Operations of the run that are recorded at most; the rest is for loading and reading back.
    fn checked_operations(&self) -> u64 {
        self.check_ops().saturating_sub(2 * self.keys)
    }

    /// The most operations that the run may take.
    fn operations(&self, machine: &Machine) -> u64 {
        let operations = self.unrecorded_operations(machine);
        if self.check { operations.min(self.checked_operations()) } else { operations }
    }

    /// The same without a check. A run that is limited by time alone also ends
    /// when it has used up the memory of an embedded cluster.
    fn unrecorded_operations(&self, machine: &Machine) -> u64 {
        let Some(seconds) = self.seconds else {
            return self.operations.unwrap_or(DEFAULT_OPERATIONS);
        };
        if let Some(operations) = self.operations {
            return operations;
        }
        if self.cluster.master.is_some() {
            return MAX_KEYS / 2;
        }
        let possible = seconds * OPERATIONS_PER_CORE_AND_SECOND * machine.cores as f64;
        let pairs =
            cluster::affordable_pairs(&self.load, &self.cluster, machine.available_memory_bytes);
        let writes_percent = self.workload.updates_percent()
            + self.workload.inserts_percent()
            + self.workload.deletes_percent();
        let affordable = (pairs.saturating_sub(self.keys)).saturating_mul(100);
        // Reads need no memory: where there is nothing else, only the time is a limit.
        match affordable.checked_div(writes_percent) {
            Some(affordable) => (possible as u64).min(affordable).max(1),
            None => MAX_KEYS / 2,
        }
    }

    fn demand(&self, operations: u64) -> Demand {
        // The shares are drawn by chance: three standard deviations more than the mean.
        let drawn = |percent: u64| {
            let mean = operations as f64 * percent as f64 / 100.0;
            if percent == 0 { 0 } else { (mean + 3.0 * mean.sqrt()).ceil() as u64 }
        };
        let inserts = drawn(self.workload.inserts_percent());
        let updates = drawn(self.workload.updates_percent());
        let deletes = drawn(self.workload.deletes_percent());
        let new_keys = if self.workload.adds_keys() { inserts } else { 0 };
        let processes = if self.processes > 1 { self.processes.into() } else { 0 };
        let pairs = self.keys + inserts + updates;
        let keys = self.keys + new_keys;
        Demand { keys, index_keys: keys, pairs, deletes, processes, ..Demand::default() }
    }

    fn run(&self, operations: u64) -> Run {
        Run {
            workload: self.workload,
            keys: self.keys,
            distribution: self.distribution(),
            theta: self.theta,
            seed: self.load.seed,
            operations,
            seconds: self.seconds,
        }
    }

    /// What each process does.
    fn specs(&self, run: &Run, master: &str, fabric: String, origin_ns: u64) -> Vec<Spec> {
        let (processes, threads) = (u64::from(self.processes), u64::from(self.load.threads));
        let share =
            |of: u64, number: u64| of / processes * number + of % processes * number / processes;
        let spec = |number: u64| {
            let part = Part { number, of: processes };
            let between = |of: u64| share(of, number + 1) - share(of, number);
            Spec {
                master: master.to_string(),
                fabric: fabric.clone(),
                cache_entries: self.load.cache_entries,
                cache_threshold: self.load.cache_threshold,
                work_table: self.load.work_table.to_string(),
                pair_bytes: self.load.pair_bytes,
                threads: between(threads) as usize,
                first_thread: share(threads, number) as usize,
                coroutines: self.load.coroutines.into(),
                part,
                run: Run { operations: between(run.operations), ..run.clone() },
                keep: self.keep(),
                origin_ns,
            }
        };
        (0..processes).map(spec).collect()
    }

    /// As they are, with what was left open.
    fn settings(&self, operations: u64) -> Args {
        Args {
            operations: self.operations.or(self.seconds.is_none().then_some(operations)),
            distribution: Some(self.distribution()),
            check_ops: self.check.then(|| self.check_ops()),
            ..self.clone()
        }
    }
}

/// Runs the workload, in this process or in others. Returns what came of it, the board with the
/// keys that there are, and whether it ended early because of errors.
fn measure(args: &Args, target: &Target, run: &Run) -> Result<(Outcome, Board, bool), Failure> {
    let mut board = Board::new(args.load.pair_bytes, args.load.seed);
    let origin_ns = monotonic_ns();
    if args.keep() != Keep::Nothing {
        board.clock = Clock::shared(origin_ns);
    }
    board.keep = args.keep();
    board.keys_come_and_go = args.workload.removes_keys();
    let crew = Crew {
        threads: args.load.threads.into(),
        coroutines: args.load.coroutines.into(),
        first_thread: 0,
    };
    if args.processes == 1 {
        let phases = run.phases(Part::WHOLE);
        let outcome = driver::run(&target.client, &board, crew, &phases, &mut ())?;
        let broken = board.is_broken();
        return Ok((outcome, board, broken));
    }
    let started = target.servers.as_ref().map(|servers| servers.master());
    let master = started.or(args.cluster.master.as_deref()).unwrap_or_default();
    let specs = args.specs(run, master, target.client.fabric().to_string(), origin_ns);
    let gathered = processes::run(&specs, crew.threads * crew.coroutines)?;
    board.frontier = Frontier::new(gathered.keys);
    Ok((gathered.outcome, board, gathered.broken))
}

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let shell = Shell::begin("ycsb", &args.output);
    let operations = args.operations(&shell.machine);
    interrupt::watch()?;
    let demand = args.demand(operations);
    let target = cluster::open(demand, &args.load, &args.cluster, shell.available())?;
    let client = &target.client;
    if args.cluster.master.is_some() {
        driver::clean_up(client, args.keys)?;
    }
    let (outcome, board, broken) = measure(args, &target, &args.run(operations))?;
    let Outcome { results, logs, mut entries } = outcome;
    let mut problems = Vec::new();
    let verified = attempt(&mut problems, driver::verify(client, &board, logs));
    entries.extend(verified.entries);
    let mut tally: Tally = verified.tally;
    for result in &results {
        tally.merge_failures(&result.tally);
    }
    if args.cluster.master.is_some() && !args.keep {
        attempt(&mut problems, driver::clean_up(client, board.frontier.claimed()));
    }
    let check = args.check.then(|| check(&entries));
    let [load, run] = &results[..] else { unreachable!("two phases give two results") };
    let found = Found {
        workload: args.workload.to_string(),
        ended_by: ended_by(args, run, operations, broken),
        load: PhaseReport::new(load, false),
        run: PhaseReport::new(run, false),
        check,
    };
    let setup = target.describe(&args.cluster);
    let verdict = Verdict::new(&tally, verified.keys, problems);
    shell.tell(&args.settings(operations), Some(setup), found, Some(verdict))
}

fn ended_by(args: &Args, run: &PhaseResult, operations: u64, broken: bool) -> &'static str {
    let done = run.tally.operations() + run.tally.error_count();
    match (broken, done < operations, args.operations) {
        (true, ..) => "errors",
        _ if interrupt::requested() => "interrupted",
        (false, true, _) => "seconds",
        (false, false, wanted) if args.check && wanted.is_none_or(|n| n > operations) => {
            let limit = operations == args.checked_operations();
            if limit { "check_ops" } else { "operations" }
        }
        (false, false, None) if args.seconds.is_some() => "memory",
        (false, false, _) => "operations",
    }
}
