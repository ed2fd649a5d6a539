//! The YCSB benchmark (P §6.3).
//!
//! Load: all workers insert the keys. Run: every worker draws operations and keys until the
//! operations or the seconds are used up. Then all keys are read back and judged. Settings are
//! those of the paper by default: 100,000 keys, pairs of 1024 bytes, Zipfian with theta 0.99.

use std::time::Duration;

use serde::Serialize;

use super::args::{ClusterArgs, LoadArgs};
use super::cluster::{self, Demand};
use super::driver::{self, Crew, PhaseResult};
use super::machine::Machine;
use super::phase::{Job, Phase};
use super::report::{ClusterReport, OperationReport, PhaseReport, Verdict, operations_table};
use super::worker::Board;
use super::workload::{MAX_KEYS, Workload};
use super::zipf::{Chooser, Distribution};
use super::{describe, judge, print_json};
use crate::failure::Failure;
use crate::output;

/// Operations of a run that is not limited by time.
const DEFAULT_OPERATIONS: u64 = 1_000_000;
/// More operations a second than a processor can do: what a run limited by time is sized for.
const OPERATIONS_PER_CORE_AND_SECOND: f64 = 600_000.0;

/// How to run a YCSB workload.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee bench ycsb --workload a\n  \
    fusee bench ycsb --workload upd100 --fabric tcp --seconds 5 --json\n  \
    fusee bench ycsb --workload c --master 127.0.0.1:7400 --threads 2\n\n\
    Exit code 1 if an operation failed or a value was not what it must be.")]
pub struct Args {
    /// a (50 % updates), b (5 %), c (none), d (5 % inserts, reads of the latest), or upd0 to
    /// upd100 (that percentage of updates)
    #[arg(long, default_value = "a", value_name = "NAME")]
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
    keep: bool,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Args {
    fn check(&self) -> Result<(), Failure> {
        self.load.check()?;
        if !(0.0..1.0).contains(&self.theta) {
            return Err(Failure::usage("--theta must be at least 0 and below 1"));
        }
        match self.seconds {
            Some(seconds) if !(seconds > 0.0 && seconds < 1e9) => {
                Err(Failure::usage("--seconds must be more than 0"))
            }
            _ => Ok(()),
        }
    }

    fn distribution(&self) -> Distribution {
        self.distribution.unwrap_or(self.workload.distribution())
    }

    /// The most operations that the run may take. A run that is limited by time alone also ends
    /// when it has used up the memory of an embedded cluster.
    fn operations(&self, machine: &Machine) -> u64 {
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
        let writes_percent = self.workload.updates_percent() + self.workload.inserts_percent();
        let affordable = (pairs.saturating_sub(self.keys)).saturating_mul(100);
        let affordable = affordable.checked_div(writes_percent).unwrap_or(u64::MAX);
        (possible as u64).min(affordable).max(1)
    }

    fn demand(&self, operations: u64) -> Demand {
        // The shares are drawn by chance: three standard deviations more than the mean.
        let drawn = |percent: u64| {
            let mean = operations as f64 * percent as f64 / 100.0;
            if percent == 0 { 0 } else { (mean + 3.0 * mean.sqrt()).ceil() as u64 }
        };
        let inserts = drawn(self.workload.inserts_percent());
        let updates = drawn(self.workload.updates_percent());
        Demand { keys: self.keys + inserts, pairs: self.keys + inserts + updates, deletes: 0 }
    }

    fn phases(&self, operations: u64) -> [Phase; 2] {
        let chooser = Chooser::new(self.distribution(), self.keys, self.theta, self.load.seed);
        let run = Job::Ycsb { workload: self.workload, chooser };
        let time = self.seconds.map(Duration::from_secs_f64);
        [
            Phase { job: Job::Insert { keys: self.keys }, operations: u64::MAX, time: None },
            Phase { job: run, operations, time },
        ]
    }
}

#[derive(Serialize)]
struct Settings {
    keys: u64,
    pair_bytes: usize,
    operations: Option<u64>,
    seconds: Option<f64>,
    threads: u16,
    coroutines: u16,
    distribution: Distribution,
    theta: f64,
    seed: u64,
    cache_entries: usize,
    cache_threshold: f64,
}

#[derive(Serialize)]
struct Report {
    benchmark: &'static str,
    version: &'static str,
    workload: String,
    settings: Settings,
    machine: Machine,
    fabric: String,
    cluster: ClusterReport,
    load: PhaseReport,
    /// `operations`, `seconds`, `memory` (of an embedded cluster) or `errors`.
    ended_by: &'static str,
    #[serde(flatten)]
    run: PhaseReport,
    #[serde(flatten)]
    verdict: Verdict,
}

impl Report {
    fn table(&self) -> String {
        let settings = &self.settings;
        let ended = match self.ended_by {
            "memory" => ", ended early: the memory for writes was used up",
            "errors" => ", ended early: too many errors",
            _ => "",
        };
        let rows = self.run.per_operation.iter();
        let rows = rows.map(|(name, op)| (*name, op, Some(op.count as f64 / self.run.duration_s)));
        let rows: Vec<(&str, &OperationReport, Option<f64>)> = rows.collect();
        format!(
            "YCSB {}: {} keys, pairs of {} bytes, {} threads x {} coroutines\n\n{}\
             load        {} keys in {:.2} s\n\
             run         {} operations in {:.2} s: {:.1} kops/s{ended}\n{}\n{}",
            self.workload,
            settings.keys,
            settings.pair_bytes,
            settings.threads,
            settings.coroutines,
            self.cluster.line(&self.fabric, &self.machine),
            self.load.operations,
            self.load.duration_s,
            self.run.operations,
            self.run.duration_s,
            self.run.throughput_ops_per_s / 1000.0,
            self.verdict.table(),
            operations_table(rows),
        )
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let machine = Machine::here();
    let operations = args.operations(&machine);
    let available = machine.available_memory_bytes;
    let client = cluster::open(args.demand(operations), &args.load, &args.cluster, available)?;
    if args.cluster.master.is_some() {
        driver::clean_up(&client, args.keys)?;
    }
    let board = Board::new(args.load.pair_bytes, args.load.seed);
    let crew = Crew { threads: args.load.threads.into(), coroutines: args.load.coroutines.into() };
    let (results, logs) = driver::run(&client, &board, crew, &args.phases(operations))?;
    let (mut tally, verified_keys) = driver::verify(&client, &board, logs)?;
    for result in &results {
        tally.merge_failures(&result.tally);
    }
    if args.cluster.master.is_some() && !args.keep {
        driver::clean_up(&client, board.frontier.claimed())?;
    }
    let [load, run] = &results[..] else { unreachable!("two phases give two results") };
    let report = Report {
        benchmark: "ycsb",
        version: env!("CARGO_PKG_VERSION"),
        workload: args.workload.to_string(),
        settings: Settings {
            keys: args.keys,
            pair_bytes: args.load.pair_bytes,
            operations: args.operations.or(args.seconds.is_none().then_some(operations)),
            seconds: args.seconds,
            threads: args.load.threads,
            coroutines: args.load.coroutines,
            distribution: args.distribution(),
            theta: args.theta,
            seed: args.load.seed,
            cache_entries: args.load.cache_entries,
            cache_threshold: args.load.cache_threshold,
        },
        fabric: client.fabric().to_string(),
        cluster: describe(&client, &args.cluster),
        machine,
        load: PhaseReport::new(load, false),
        ended_by: ended_by(args, run, operations, board.is_broken()),
        run: PhaseReport::new(run, false),
        verdict: Verdict::new(&tally, verified_keys),
    };
    if args.load.json {
        print_json(&report)?;
    } else {
        output::text(&report.table())?;
    }
    judge(&report.verdict)
}

fn ended_by(args: &Args, run: &PhaseResult, operations: u64, broken: bool) -> &'static str {
    let done = run.tally.operations() + run.tally.error_count();
    match (broken, done < operations, args.operations) {
        (true, ..) => "errors",
        (false, true, _) => "seconds",
        (false, false, None) if args.seconds.is_some() => "memory",
        (false, false, _) => "operations",
    }
}
