//! `fusee-bench growth`: an index of one subtable takes many keys, while other sessions read and write.
//!
//! Some sessions insert as fast as they can; others read and update existing keys at a steady pace ([`load`]).
//! Meanwhile the index is split again and again. The results are a time series, the latencies of operations while the
//! view was changing and while it was not ([`crate::series`] defines this), the load factor of the index at each
//! growth, and the durations of the stages of the changes. At the end every key is read back.
//!
//! The load factor is the number of the benchmark's keys divided by the slots of all subtables.

mod load;
mod report;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;
use serde::Serialize;

use crate::args::{ClusterArgs, LoadArgs};
use crate::cluster::{self, ClusterDemand};
use crate::driver::{self, ReadBackResult};
use crate::process_cluster;
use crate::progress::bar;
use crate::report::{BenchInvocation, BenchPlotArgs, BenchVerdict, attempt};
use crate::series::{IntervalSample, OperationMeter, operations, take_all};
use crate::tally::OperationTally;
use crate::worker::WorkerContext;
use load::{GrowthLoad, GrowthRole, GrowthThreadResult};
use report::{GrowthInterval, GrowthReport};
use watch::{GrowthMonitor, GrowthStageTimes};

/// The interval between looks for the next view.
const POLL: Duration = Duration::from_micros(500);
/// The interval at which the progress bar moves.
const SHOWN: Duration = Duration::from_millis(100);

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench growth --plot growth.svg\n  \
    fusee-bench growth --keys 10000000 --json > growth.json\n\n\
    Exit code 1 if an operation failed or a key does not hold what was acknowledged.")]
pub struct GrowthArgs {
    /// Keys to insert
    #[arg(long, default_value_t = 1_000_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,

    /// Sessions that insert, as fast as they can
    #[arg(long, default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    inserters: u16,

    /// Sessions that read keys which are there
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(0..=256))]
    readers: u16,

    /// Sessions that update keys which are there, half as often as keys are inserted at most
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(0..=256))]
    writers: u16,

    /// Reads and updates a second of all sessions together
    #[arg(long, default_value_t = 10_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: u64,

    /// Bytes of key and value together; keys have 16
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    pair_bytes: usize,

    /// Seconds between two rows of the time series
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    #[serde(rename = "interval_s")]
    interval: f64,

    /// Start of all random sequences
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Keep the keys in the cluster of --master
    #[arg(long, requires = "master")]
    #[serde(skip)]
    keep: bool,

    #[command(flatten)]
    #[serde(skip)]
    drawing: BenchPlotArgs,

    #[command(flatten)]
    #[serde(skip)]
    cluster: ClusterArgs,
}

impl GrowthArgs {
    fn check(&self) -> Result<(), Failure> {
        if self.interval > 0.0 && self.interval < 1e6 {
            Ok(())
        } else {
            Err(Failure::usage("--interval must be more than 0"))
        }
    }

    fn sessions(&self) -> u16 {
        self.inserters + self.readers + self.writers
    }

    fn load(&self) -> Result<LoadArgs, Failure> {
        process_cluster::load(self.pair_bytes, self.sessions(), self.seed)
    }

    fn demand(&self) -> ClusterDemand {
        let pairs = self.keys + self.keys / load::INSERTS_PER_UPDATE;
        // An index for one key has one subtable. The servers are processes, because the master's messages to clients
        // are a part of the cost of growth.
        ClusterDemand {
            keys: self.keys,
            index_keys: 1,
            pairs,
            processes: 1,
            ..ClusterDemand::default()
        }
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &GrowthArgs) -> Result<(), Failure> {
    args.check()?;
    let shell = BenchInvocation::begin_drawing("growth", &args.drawing)?;
    interrupt::watch()?;
    let load = args.load()?;
    let target = cluster::open(args.demand(), &load, &args.cluster, shell.available())?;
    let client = &target.client;
    if args.cluster.master.is_some() {
        driver::clean_up(client, args.keys)?;
    }
    let board = WorkerContext::new(args.pair_bytes, args.seed);
    let mut grown = run_load(args, client, &board)?;
    let mut tally = OperationTally::default();
    let mut logs = Vec::new();
    grown.done.sort_by_key(|done| done.writer);
    for done in grown.done {
        tally.merge_failures(&done.tally);
        logs.push(done.log);
    }
    let mut problems = Vec::new();
    let verified: ReadBackResult = attempt(&mut problems, driver::verify(client, &board, logs));
    tally.merge_failures(&verified.tally);
    if args.cluster.master.is_some() && !args.keep {
        attempt(&mut problems, driver::clean_up(client, board.frontier.claimed()));
    }
    let view = client.view();
    let found = GrowthReport {
        duration_s: grown.duration.as_secs_f64(),
        slots_per_bucket: view.geometry.slots_per_bucket,
        subtable_slots: view.geometry.subtable_slots(),
        subtables_at_start: grown.subtables_at_start,
        intervals: grown.intervals,
        growth: grown.watch.growth,
        stages: grown.stages,
        calm: operations(&grown.all.calm, grown.duration.as_secs_f64()),
        changing: operations(&grown.all.changing, grown.duration.as_secs_f64()),
    };
    let verdict = BenchVerdict::new(&tally, verified.keys, problems);
    shell.print_results(args, Some(target.describe(&args.cluster)), found, Some(verdict))
}

/// The results of the run.
struct GrowthRun<'a> {
    done: Vec<GrowthThreadResult>,
    duration: Duration,
    subtables_at_start: usize,
    intervals: Vec<GrowthInterval>,
    all: IntervalSample,
    watch: GrowthMonitor<'a>,
    stages: GrowthStageTimes,
}

/// Runs the load until all keys have been inserted.
fn run_load<'a>(
    args: &GrowthArgs,
    client: &'a BlockingClient,
    board: &'a WorkerContext,
) -> Result<GrowthRun<'a>, Failure> {
    let roles = [
        (GrowthRole::Insert, args.inserters),
        (GrowthRole::Read, args.readers),
        (GrowthRole::Update, args.writers),
    ];
    let roles = roles.into_iter().flat_map(|(role, n)| std::iter::repeat_n(role, n.into()));
    let roles: Vec<GrowthRole> = roles.collect();
    let paced = f64::from(args.readers + args.writers);
    let load = GrowthLoad {
        client,
        board,
        keys: args.keys,
        interval: Duration::from_secs_f64(paced / args.rate as f64),
        writers: args.writers.max(1).into(),
        inserters_left: AtomicUsize::new(args.inserters.into()),
        over: AtomicBool::new(false),
    };
    let meters: Vec<OperationMeter> = roles.iter().map(|_| OperationMeter::default()).collect();
    scope(|scope| {
        let threads: Vec<_> = (0u64..)
            .zip(roles.iter().zip(&meters))
            .map(|(writer, (role, meter))| {
                let load = &load;
                scope.spawn(move || load.thread(*role, writer, meter))
            })
            .collect();
        let steered = watch_load(args, &load, &meters);
        load.over.store(true, Ordering::Relaxed);
        let done = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let done: Vec<GrowthThreadResult> = done.collect::<Result<_, _>>()?;
        let mut grown = steered?;
        // Adds the operations that ended after the last interval.
        grown.all.merge(&take_all(&meters));
        grown.done = done;
        Ok(grown)
    })
}

/// Observes the load while its threads work, and collects the time series.
fn watch_load<'a>(
    args: &GrowthArgs,
    load: &GrowthLoad<'a>,
    meters: &[OperationMeter],
) -> Result<GrowthRun<'a>, Failure> {
    let client = load.client;
    let board = load.board;
    let start = Instant::now();
    let mut watch = GrowthMonitor::start(client, board, start);
    let mut stages = GrowthStageTimes::start(&client.admin().status()?);
    let subtables_at_start = client.view().subtables.len();
    let mut intervals = Vec::new();
    let mut all = IntervalSample::default();
    let mut from = Duration::ZERO;
    let mut shown = Duration::ZERO;
    let bar = bar("insert", args.keys, true);
    let mut goes_on = true;
    while goes_on {
        sleep(POLL);
        watch.look();
        goes_on = load.goes_on();
        let now = start.elapsed();
        if now - shown >= SHOWN {
            shown = now;
            bar.set_position(board.frontier.acknowledged());
            bar.set_message(format!("{} subtables", client.view().subtables.len()));
        }
        if (now - from).as_secs_f64() < args.interval && goes_on {
            continue;
        }
        stages.add(&client.admin().status()?);
        let sample = take_all(meters);
        intervals.push(GrowthInterval::new(&client.view(), board, from, now, &sample));
        all.merge(&sample);
        from = now;
    }
    bar.finish_and_clear();
    let done = Vec::new();
    let duration = start.elapsed();
    Ok(GrowthRun { done, duration, subtables_at_start, intervals, all, watch, stages })
}
