//! `fusee-bench churn`: checks on real processes that freed memory is used again.
//!
//! Two loads run on small pools, each on a cluster of its own. The first load updates all pairs, and writes many times
//! as much as there is memory for ([`updates`]). The second load fills a pool until memory is used up, deletes half of
//! the pairs, and fills the pool again ([`rounds`]). Several sessions run each load, so that most objects that one
//! session frees lie in blocks of another session. Every value that is read is checked ([`model`]), and at the end new
//! sessions with empty caches read all keys.

pub mod model;
mod plan;
mod report;
mod rounds;
mod updates;
mod usage;
pub mod workers;

use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{BlockingClient, Redundancy};
use serde::Serialize;

use crate::process_cluster::{self, ProcessClusterArgs};
use crate::report::{BenchInvocation, BenchOutputArgs, BenchVerdict, MeasuredSetup};
use crate::tally::OperationTally;
use plan::ChurnClusterSizes;
use report::{ChurnMemorySizes, ChurnReport};
use workers::ChurnLoad;

/// The interval at which memory nodes are asked for their memory use while sessions work.
const LOOK_PERIOD: Duration = Duration::from_millis(25);

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(mut_arg("pool", |pool| {
    pool.help("Memory of each node, like 1GiB").default_value("256MiB")
}))]
#[command(after_help = "Examples:\n  \
    fusee-bench churn\n  \
    fusee-bench churn --fabric tcp --passes 20 --rounds 5 --json\n  \
    fusee-bench churn --rounds 0 --fill 0.8 --pool 1GiB      updates only\n\n\
    Regions and blocks are smaller than elsewhere, as the pools are.\n\n\
    Exit code 1 if an operation failed (in updates and deletes also for want of memory), a read\n\
    was wrong, or less than --least-share of the pairs of the first round fitted in a later one.")]
pub struct ChurnArgs {
    /// Sessions, each a thread
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    sessions: u16,

    /// Share of the data memory that pairs, with all that belongs to them, take while they are
    /// updated
    #[arg(long, default_value_t = 0.7, value_name = "SHARE")]
    fill: f64,

    /// Times that every pair is updated; 0: not at all
    #[arg(long, default_value_t = 100, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    passes: u32,

    /// Report every so many passes
    #[arg(long, default_value_t = 10, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip)]
    every: u32,

    /// Times that memory is filled and half of the pairs are deleted; 0: not at all
    #[arg(long, default_value_t = 20, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    rounds: u32,

    /// Share of the data memory that pairs are to take in every round; 1: until every session is
    /// out of memory
    #[arg(long, default_value_t = 1.0, value_name = "SHARE")]
    fill_up: f64,

    /// Share of the pairs of the first round that must fit in every later one
    #[arg(long, default_value_t = 0.9, value_name = "SHARE")]
    least_share: f64,

    #[command(flatten)]
    #[serde(flatten)]
    cluster: ProcessClusterArgs,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

impl ChurnArgs {
    fn check(&self) -> Result<(), Failure> {
        let shares =
            [("fill", self.fill), ("fill-up", self.fill_up), ("least-share", self.least_share)];
        for (name, share) in shares {
            if !(share > 0.0 && share <= 1.0) {
                return Err(Failure::usage(format!("--{name} must be more than 0 and at most 1")));
            }
        }
        process_cluster::load(self.cluster.pair_bytes, self.sessions, self.cluster.seed).map(drop)
    }

    fn load(&self) -> ChurnLoad {
        ChurnLoad {
            sessions: self.sessions,
            value_bytes: self.cluster.value_bytes(),
            seed: self.cluster.seed,
            redundancy: Redundancy::default(),
        }
    }
}

/// Sums over both loads.
#[derive(Default)]
struct ChurnTotals {
    /// Errors and mismatches.
    tally: OperationTally,
    /// Number of keys that were read back.
    read_back: u64,
    problems: Vec<String>,
    setup: Option<MeasuredSetup>,
}

impl ChurnTotals {
    /// Describes the cluster of one load; the cluster of the other load has the same sizes.
    fn describe(&mut self, client: &BlockingClient) {
        self.setup = Some(MeasuredSetup::of(client, true, false));
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &ChurnArgs) -> Result<(), Failure> {
    args.check()?;
    let sizes = ChurnClusterSizes::new(&args.cluster)?;
    if args.passes == 0 && args.rounds == 0 {
        return Err(Failure::usage("with --passes 0 and --rounds 0 there is nothing to do"));
    }
    let shell = BenchInvocation::begin("churn", &args.output);
    sizes.check_memory(&args.cluster, shell.available())?;
    interrupt::watch()?;
    let start = Instant::now();
    let mut sum = ChurnTotals::default();
    let updates = (args.passes > 0).then(|| updates::run(args, &sizes, &mut sum)).transpose()?;
    let goes_on = args.rounds > 0 && !interrupt::is_requested();
    let rounds = goes_on.then(|| rounds::run(args, &sizes, &mut sum)).transpose()?;
    let found = ChurnReport {
        memory: ChurnMemorySizes::new(&sizes),
        duration_s: start.elapsed().as_secs_f64(),
        updates,
        rounds,
    };
    let verdict = BenchVerdict::new(&sum.tally, sum.read_back, sum.problems);
    shell.print_results(args, sum.setup, found, Some(verdict))
}
