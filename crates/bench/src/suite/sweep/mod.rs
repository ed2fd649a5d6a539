//! `fusee-bench sweep`: throughput for several values of one setting, with all other settings unchanged.
//!
//! Every point of the axis has a cluster of its own in this process, loaded and warmed up. In every round each point
//! has its turn with every share of updates, while the other points wait ([`turns`]). The results are the median of the
//! rounds and their spread, as a table, as JSON and as a chart.
//!
//! Pools have room for twice the pairs and for some blocks of each session, so that memory of replaced pairs is used
//! again. The index caches have room for all keys, because the cost of a small cache is another question (`ycsb
//! --cache-entries`). Values are made and checked as in every benchmark here. This lowers the throughput, and the more
//! so the larger the values are; latencies do not include it.

mod axis;
mod report;
mod turns;

use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::{interrupt, stderr};
use fusee_client::{EmbeddedOptions, FabricChoice, FabricKind};

use crate::args::{ClusterArgs, LoadArgs};
use crate::cluster::{self, ClusterDemand, MeasuredCluster, check_memory};
use crate::driver::{self, DriverOutcome, WorkerLayout};
use crate::phase::{BenchPhase, PhaseJob};
use crate::report::{
    BenchInvocation, BenchPlotArgs, BenchVerdict, ClusterReport, MeasuredSetup, attempt,
};
use crate::tally::OperationTally;
use crate::worker::WorkerContext;
use axis::{SweepAxis, SweepPoint};
use fusee_workload::{Distribution, KeyChooser, MAX_KEYS, YcsbWorkload};
use report::{SweepPointReport, SweepReport, SweepSettings, UpdateMixReport};
use turns::{BEFORE, SweepPointTurns, SweepTurns};

/// The skew of YCSB.
const THETA: f64 = 0.99;
/// Number of index cache entries of a session for each key. More than one, because a key cannot use every entry.
const CACHE_PER_KEY: u64 = 2;
/// Pools have room for this multiple of the pairs.
const ROOM: u64 = 2;
/// Pools also have room for this number of blocks of each session, because memory that a session has replaced comes
/// back to that session, and other sessions cannot use it meanwhile.
const BLOCKS_PER_SESSION: u64 = 8;
/// The options that a user can lower to make the sweep fit.
const LESS: &str = "--keys, --pair-bytes, --data-replicas or the --points";

/// The arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee-bench sweep --axis value-bytes --plot value-bytes.svg\n  \
    fusee-bench sweep --axis sessions --points 1,2,3,4 --updates 5 --json\n  \
    fusee-bench sweep --axis updates --fabric tcp --keys 20000 --coroutines 4\n  \
    fusee-bench sweep --axis data-replicas --seconds 0.1 --rounds 3 --keys 1000\n\n\
    Exit code 1 if an operation failed or a key does not hold what was acknowledged, 130 after\n\
    Ctrl-C, with a report of the rounds until then.")]
pub struct SweepArgs {
    /// Setting to vary
    #[arg(long)]
    axis: SweepAxis,

    /// Values of the setting [default: 64 B to 64 KiB, 1 to 16 sessions, 1 to 5 replicas, 0 to 100 %, 100,000 to
    /// 10,000,000 keys]
    #[arg(long, value_delimiter = ',', value_name = "N,N")]
    points: Vec<u64>,

    /// Shares of updates, in percent, each measured at every point; the others are reads
    /// [default: 0,50; for keys 0,100]
    #[arg(long, value_delimiter = ',', value_name = "N,N",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    updates: Vec<u8>,

    /// Keys [default: 100000; for value-bytes 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_KEYS / 2))]
    keys: Option<u64>,

    /// Bytes of key and value together; keys have 16 [default: 1024; for keys 64]
    #[arg(long, value_name = "BYTES")]
    pair_bytes: Option<usize>,

    /// Sessions, each on a thread of its own [default: 2; for keys 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    sessions: Option<u16>,

    /// Requests that a session has in flight
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    coroutines: u16,

    /// Replicas of the index, 1 to 5 [default: 3]
    #[arg(long, value_name = "N")]
    index_replicas: Option<u8>,

    /// Replicas of keys and values, 1 to 5 [default: 2]
    #[arg(long, value_name = "N")]
    data_replicas: Option<u8>,

    /// Memory nodes of every point [default: 3; for replicas 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    memory_nodes: Option<u16>,

    /// Distribution of the requests: uniform, zipfian [default: zipfian; for keys uniform]
    #[arg(long)]
    distribution: Option<Distribution>,

    /// shm, tcp, verbs, or auto, which means shm
    #[arg(long, default_value = "auto")]
    fabric: FabricChoice,

    /// Rounds
    #[arg(long, default_value_t = 7, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Seconds of each turn
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    seconds: f64,

    /// Seconds that each point works before the first round
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    warm_up: f64,

    /// Start of all random sequences
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    drawing: BenchPlotArgs,
}

impl SweepArgs {
    fn check(&self) -> Result<(), Failure> {
        for (name, seconds) in [("seconds", self.seconds), ("warm-up", self.warm_up)] {
            if !(seconds > 0.0 && seconds < 1e6) {
                return Err(Failure::usage(format!("--{name} must be more than 0")));
            }
        }
        let varied = [
            (SweepAxis::Updates, "updates", self.updates.is_empty()),
            (SweepAxis::Keys, "keys", self.keys.is_none()),
            (SweepAxis::ValueBytes, "pair-bytes", self.pair_bytes.is_none()),
            (SweepAxis::Sessions, "sessions", self.sessions.is_none()),
            (SweepAxis::IndexReplicas, "index-replicas", self.index_replicas.is_none()),
            (SweepAxis::DataReplicas, "data-replicas", self.data_replicas.is_none()),
        ];
        if let Some((_, name, _)) = varied.iter().find(|(a, _, left)| *a == self.axis && !left) {
            let axis = self.axis.name();
            let why = format!("--{name} is what --axis {axis} varies; give its --points");
            return Err(Failure::usage(why));
        }
        if self.distribution == Some(Distribution::Latest) {
            return Err(Failure::usage("--distribution is uniform or zipfian"));
        }
        self.axis.check(&self.values())?;
        self.points().iter().try_for_each(|point| self.load(point).check())
    }

    /// Returns the values of the setting that is varied.
    fn values(&self) -> Vec<u64> {
        if self.points.is_empty() { self.axis.points().to_vec() } else { self.points.clone() }
    }

    fn base(&self) -> SweepPoint {
        let base = self.axis.base();
        SweepPoint {
            keys: self.keys.unwrap_or(base.keys),
            pair_bytes: self.pair_bytes.unwrap_or(base.pair_bytes),
            sessions: self.sessions.unwrap_or(base.sessions),
            index_replicas: self.index_replicas.unwrap_or(base.index_replicas),
            data_replicas: self.data_replicas.unwrap_or(base.data_replicas),
        }
    }

    /// Returns a point for each value of the setting that is varied.
    fn points(&self) -> Vec<SweepPoint> {
        self.values().iter().map(|value| self.axis.at(*value, self.base())).collect()
    }

    /// Returns the shares of updates to measure at a point with this value of the varied setting.
    fn updates(&self, value: u64) -> Vec<u8> {
        match self.updates.as_slice() {
            _ if self.axis == SweepAxis::Updates => vec![value as u8],
            [] => self.axis.updates().to_vec(),
            updates => updates.to_vec(),
        }
    }

    fn distribution(&self) -> Distribution {
        self.distribution.unwrap_or(self.axis.distribution())
    }

    fn load(&self, point: &SweepPoint) -> LoadArgs {
        LoadArgs {
            pair_bytes: point.pair_bytes,
            threads: point.sessions,
            coroutines: self.coroutines,
            seed: self.seed,
            cache_entries: (CACHE_PER_KEY * point.keys) as usize,
            cache_per_session: false,
            cache_threshold: fusee_client::Options::default().cache_threshold,
            work_table: fusee_client::WorkTable::Off,
        }
    }

    fn cluster(&self, point: &SweepPoint) -> ClusterArgs {
        point.cluster(&ClusterArgs {
            master: None,
            fabric: match self.fabric {
                FabricChoice::Auto => FabricChoice::Only(FabricKind::Shm),
                fabric => fabric,
            },
            switch: None,
            memory_nodes: self.memory_nodes.unwrap_or(self.axis.memory_nodes()),
            index_replicas: None,
            data_replicas: None,
            pool: None,
        })
    }

    fn settings(&self) -> SweepSettings {
        let first = self.points()[0];
        SweepSettings {
            keys: first.keys,
            pair_bytes: first.pair_bytes,
            sessions: first.sessions,
            coroutines: self.coroutines,
            distribution: self.distribution(),
            theta: THETA,
            cache_per_key: CACHE_PER_KEY,
            rounds: self.rounds,
            round_s: self.seconds,
            warm_up_s: self.warm_up,
            seed: self.seed,
        }
    }

    /// Returns the phases of a point: loading, warming up, and in every round a turn for each share of updates.
    fn phases(&self, point: &SweepPoint, updates: &[u8]) -> Vec<BenchPhase> {
        let chooser = KeyChooser::new(self.distribution(), point.keys, THETA, self.seed);
        let phase = |updates: u8, seconds: f64| {
            let workload = YcsbWorkload::Updates(updates);
            let chooser = chooser.clone();
            BenchPhase {
                job: PhaseJob::Ycsb { workload, chooser, keys: point.keys, own: false },
                operations: u64::MAX,
                time: Some(Duration::from_secs_f64(seconds)),
            }
        };
        let load = PhaseJob::Insert { keys: point.keys };
        let most = updates.iter().copied().max().unwrap_or(0);
        let before =
            [BenchPhase { job: load, operations: u64::MAX, time: None }, phase(most, self.warm_up)];
        let round = || updates.iter().map(|updates| phase(*updates, self.seconds));
        before.into_iter().chain((0..self.rounds).flat_map(|_| round())).collect()
    }
}

fn demand(point: &SweepPoint) -> ClusterDemand {
    let keys = point.keys;
    let block_bytes = EmbeddedOptions::default().geometry.block_bytes;
    let in_block = block_bytes / cluster::bytes_per_pair(point.pair_bytes, 1).max(1);
    let spare = u64::from(point.sessions) * BLOCKS_PER_SESSION * in_block;
    ClusterDemand { keys, index_keys: keys, pairs: ROOM * keys + spare, ..ClusterDemand::default() }
}

/// Starts the clusters of all points, if they fit.
fn open(args: &SweepArgs, available: Option<u64>) -> Result<Vec<MeasuredCluster>, Failure> {
    let points = args.points();
    let mut touched_bytes: u64 = 0;
    for point in &points {
        let plan = cluster::plan(demand(point), &args.load(point), &args.cluster(point))?;
        touched_bytes = touched_bytes.saturating_add(plan.touched_bytes);
    }
    check_memory(touched_bytes, LESS, available)?;
    let open = |point| cluster::open(demand(point), &args.load(point), &args.cluster(point), None);
    points.iter().map(open).collect()
}

/// The results of one point.
struct SweepPointResult {
    outcome: DriverOutcome,
    /// For each phase, whether it ran to its end.
    whole: Vec<bool>,
}

/// Runs all points, which take turns.
fn measure(
    args: &SweepArgs,
    targets: &[MeasuredCluster],
    boards: &[WorkerContext],
) -> Result<Vec<SweepPointResult>, Failure> {
    let values = args.values();
    let points = args.points();
    let names: Vec<String> = values
        .iter()
        .map(|value| format!("{} {}", args.axis.name(), args.axis.tick(*value)))
        .collect();
    let turns = SweepTurns::new(points.len(), args.rounds as usize, args.updates(values[0]).len());
    let run = |number: usize| {
        let mut seat = SweepPointTurns::new(&turns, number, &names[number]);
        let phases = args.phases(&points[number], &args.updates(values[number]));
        let crew = WorkerLayout {
            threads: points[number].sessions.into(),
            coroutines: args.coroutines.into(),
            first_thread: 0,
        };
        let client = &targets[number].client;
        let outcome = driver::run(client, &boards[number], crew, &phases, &mut seat)?;
        Ok(SweepPointResult { outcome, whole: std::mem::take(&mut seat.whole) })
    };
    let done = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> =
            (0..points.len()).map(|number| scope.spawn(move || run(number))).collect();
        let done = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        done.collect::<Vec<Result<SweepPointResult, Failure>>>()
    });
    stderr::tell("");
    done.into_iter().collect()
}

/// Returns the results of a point by share of updates, from the rounds that ran to their end.
fn mixes(updates: &[u8], done: &SweepPointResult) -> Vec<UpdateMixReport> {
    let of = |number: usize| {
        let phases = done.outcome.results.iter().zip(&done.whole).skip(BEFORE + number);
        let whole = phases.step_by(updates.len()).filter(|(_, is_whole)| **is_whole);
        let rounds: Vec<_> = whole.map(|(result, _)| result).collect();
        UpdateMixReport::new(updates[number], &rounds)
    };
    (0..updates.len()).filter_map(of).collect()
}

/// Runs the sweep and prints its report.
pub fn run(args: &SweepArgs) -> Result<(), Failure> {
    args.check()?;
    let shell = BenchInvocation::begin_drawing("sweep", &args.drawing)?;
    interrupt::watch()?;
    let targets = open(args, shell.available())?;
    let boards: Vec<WorkerContext> =
        args.points().iter().map(|point| WorkerContext::new(point.pair_bytes, args.seed)).collect();
    let done = measure(args, &targets, &boards)?;
    let mut tally = OperationTally::default();
    let mut keys = 0;
    let mut problems = Vec::new();
    let mut points = Vec::new();
    for (((value, target), board), done) in
        args.values().into_iter().zip(&targets).zip(&boards).zip(done)
    {
        let mixes = mixes(&args.updates(value), &done);
        let cluster = ClusterReport::of(&target.client, false, true);
        points.push(SweepPointReport { value, cluster, mixes });
        done.outcome.results.iter().for_each(|result| tally.merge_failures(&result.tally));
        let verified = driver::verify(&target.client, board, done.outcome.logs);
        let verified = attempt(&mut problems, verified);
        tally.merge_failures(&verified.tally);
        keys += verified.keys;
    }
    // Every point has a cluster of its own, so no single cluster is described here.
    let setup = MeasuredSetup { fabric: targets[0].client.fabric().to_string(), cluster: None };
    let found = SweepReport { axis: args.axis.name(), varied: args.axis, points };
    let verdict = BenchVerdict::new(&tally, keys, problems);
    shell.print_results(&args.settings(), Some(setup), found, Some(verdict))
}
