//! `fusee-bench elasticity`: throughput while sessions come and go, a memory node joins and another memory node is
//! drained.
//!
//! P Fig. 21 shows YCSB C while 16 clients become 32 and then 16 again. Here a script contains the steps and their
//! times. Sessions work at a steady pace (or as fast as they can), so that the result shows whether the store follows,
//! and not how many processors there are. The results are a time series, a summary of every phase between two steps,
//! and the replicas on every memory node at the end of every phase. Every value that is read is checked, and at the end
//! every key is read back.
//!
//! A new kind of step needs a variant of [`ElasticityStep`], and a case in `ElasticityStepRunner::begin`. If the effect
//! of a step takes time, the step's phase lasts until a [`goal`](goal::StepGoal) is reached.

mod goal;
mod load;
mod report;
mod steps;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;
use fusee_launch::Servers;
use serde::Serialize;

use crate::cluster::ClusterDemand;
use crate::driver::{self, DriverOutcome, ReadBackResult, WorkerLayout};
use crate::phase::{BenchPhase, PhaseJob};
use crate::process_cluster::ProcessClusterArgs;
use crate::report::{BenchInvocation, BenchPlotArgs, BenchVerdict, MeasuredSetup, attempt};
use crate::series::OperationMeter;
use crate::tally::OperationTally;
use crate::worker::WorkerContext;
use fusee_workload::{Distribution, KeyChooser, YcsbWorkload};
use load::{ElasticityLoad, ElasticitySessionResult};
use report::ElasticityReport;
use steps::{ElasticityStep, ElasticityStepRunner, ElasticityTimeline};

/// The skew of YCSB's key distribution.
const THETA: f64 = 0.99;
/// Number of threads that load the keys.
const LOADERS: usize = 2;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench elasticity --plot elasticity.svg\n  \
    fusee-bench elasticity --sessions 4 --more 4 --rate 0 --phase 10 --json\n\n\
    Exit code 1 if an operation failed, a key does not hold what was acknowledged, or a memory\n\
    node did not join or was not drained in time (--limit).")]
pub struct ElasticityArgs {
    /// Sessions in the beginning and in the end
    #[arg(long, default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    sessions: u16,

    /// Sessions that come in addition, and go again
    #[arg(long, default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u16).range(0..=256))]
    more: u16,

    /// Operations a second of each session; 0: as fast as it can (workload c only)
    #[arg(long, default_value_t = 1000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    rate: u64,

    /// YCSB workload: a, b, c, or upd0..upd100
    #[arg(long, default_value = "c", value_name = "W")]
    workload: YcsbWorkload,

    /// Keys
    #[arg(long, default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,

    /// Seconds from one step to the next
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    #[serde(rename = "phase_s")]
    phase: f64,

    /// Seconds after which a memory node has to be a member, or has to be drained; their phases
    /// last until then if that is more than --phase
    #[arg(long, default_value_t = 60.0, value_name = "S")]
    #[serde(rename = "limit_s")]
    limit: f64,

    /// Seconds between two rows of the time series
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    #[serde(rename = "interval_s")]
    interval: f64,

    #[command(flatten)]
    #[serde(flatten)]
    cluster: ProcessClusterArgs,

    #[command(flatten)]
    #[serde(skip)]
    drawing: BenchPlotArgs,
}

impl ElasticityArgs {
    fn check(&self) -> Result<(), Failure> {
        let times = [("phase", self.phase), ("interval", self.interval), ("limit", self.limit)];
        for (name, seconds) in times {
            if !(seconds > 0.0 && seconds < 1e6) {
                return Err(Failure::usage(format!("--{name} must be more than 0")));
            }
        }
        if self.workload.adds_keys() || self.workload.removes_keys() {
            return Err(Failure::usage("--workload is one that adds or removes keys"));
        }
        if self.rate == 0 && self.workload.updates_percent() > 0 {
            return Err(Failure::usage("--rate 0 is for workload c: updates need memory"));
        }
        Ok(())
    }

    /// Returns the steps, one for each phase.
    fn script(&self) -> Vec<ElasticityStep> {
        let all = self.sessions + self.more;
        vec![
            ElasticityStep::Sessions(self.sessions),
            ElasticityStep::Sessions(all),
            ElasticityStep::Sessions(self.sessions),
            ElasticityStep::Join,
            ElasticityStep::Drain,
        ]
    }

    fn demand(&self) -> ClusterDemand {
        let phases = self.script().len() as f64;
        let operations = f64::from(self.sessions + self.more) * self.rate as f64;
        let operations = (operations * self.phase * phases).ceil() as u64;
        let updates = operations * self.workload.updates_percent() / 100;
        // Each thread is counted for two sessions, each with a block of its own.
        let processes = 2 * u64::from(self.sessions + self.more);
        let pairs = self.keys + updates;
        ClusterDemand {
            keys: self.keys,
            index_keys: self.keys,
            pairs,
            processes,
            ..ClusterDemand::default()
        }
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &ElasticityArgs) -> Result<(), Failure> {
    args.check()?;
    let shell = BenchInvocation::begin_drawing("elasticity", &args.drawing)?;
    interrupt::watch()?;
    let threads = args.sessions + args.more;
    let (target, mut servers) = args.cluster.open(args.demand(), threads, shell.available())?;
    let client = &target.client;
    // The cluster is described before memory nodes come and go.
    let setup = MeasuredSetup::of(client, true, false);
    let board = WorkerContext::new(args.cluster.pair_bytes, args.cluster.seed);
    let crew = WorkerLayout { threads: LOADERS, coroutines: 1, first_thread: 0 };
    let insert = PhaseJob::Insert { keys: args.keys };
    let insert = BenchPhase { job: insert, operations: u64::MAX, time: None };
    let loaded: DriverOutcome = driver::run(client, &board, crew, &[insert], &mut ())?;
    let mut tally = OperationTally::default();
    loaded.results.iter().for_each(|result| tally.merge_failures(&result.tally));
    let (mut done, timeline) = run_script(args, client, &board, &mut servers)?;
    let mut logs = loaded.logs;
    done.sort_by_key(|done| done.writer);
    for done in done {
        tally.merge_failures(&done.tally);
        logs.push(done.log);
    }
    let mut problems = timeline.problems;
    let verified: ReadBackResult = attempt(&mut problems, driver::verify(client, &board, logs));
    tally.merge_failures(&verified.tally);
    let members = attempt(&mut problems, report::members(client));
    let found = ElasticityReport {
        joined: timeline.joined,
        drained: timeline.drained,
        members,
        events: timeline.events,
        phases: timeline.phases,
        intervals: timeline.intervals,
    };
    shell.print_results(
        args,
        Some(setup),
        found,
        Some(BenchVerdict::new(&tally, verified.keys, problems)),
    )
}

/// Runs the load while the script's steps are taken.
fn run_script(
    args: &ElasticityArgs,
    client: &BlockingClient,
    board: &WorkerContext,
    servers: &mut Servers,
) -> Result<(Vec<ElasticitySessionResult>, ElasticityTimeline), Failure> {
    let load = ElasticityLoad {
        client,
        board,
        workload: args.workload,
        chooser: &KeyChooser::new(Distribution::Zipfian, args.keys, THETA, args.cluster.seed),
        keys: args.keys,
        interval: (args.rate > 0).then(|| Duration::from_secs_f64(1.0 / args.rate as f64)),
        writers: AtomicU64::new(LOADERS as u64),
        wanted: AtomicU16::new(0),
        working: AtomicU16::new(0),
        over: AtomicBool::new(false),
    };
    let threads = args.sessions + args.more;
    let meters: Vec<OperationMeter> = (0..threads).map(|_| OperationMeter::default()).collect();
    scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .zip(&meters)
            .map(|(number, meter)| {
                let load = &load;
                scope.spawn(move || load.thread(number, meter))
            })
            .collect();
        let mut steering = ElasticityStepRunner::new(args, &load, &meters, servers);
        args.script().into_iter().for_each(|step| steering.run_step(step));
        let timeline = steering.timeline;
        load.over.store(true, Ordering::Relaxed);
        let done = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let done: Vec<Vec<ElasticitySessionResult>> = done.collect::<Result<_, _>>()?;
        Ok((done.into_iter().flatten().collect(), timeline))
    })
}
