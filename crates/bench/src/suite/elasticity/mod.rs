//! `fusee bench elasticity`: throughput while sessions come and go, a memory node joins and another
//! one is drained.
//!
//! P Fig. 21 shows YCSB C while 16 clients become 32 and 16 again. Here a script contains the steps
//! and their times; sessions work at a steady pace (or as fast as they can), so that the result
//! shows whether the store follows, not how many processors there are. The results are a time
//! series, a summary of every phase between two steps, and the replicas of every memory node at its
//! end. Every value that is read is checked, and in the end every key is.
//!
//! A new kind of step needs a variant of [`Step`] and its line in [`Steering::take`]. If the effect
//! of a step takes time, its phase lasts until a [`goal`](goal::Goal) is reached.

mod goal;
mod load;
mod report;
mod steering;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::Client;
use fusee_launch::Servers;
use serde::Serialize;

use crate::cluster::Demand;
use crate::driver::{self, Crew, Outcome, Verified};
use crate::own::OwnCluster;
use crate::phase::{Job, Phase};
use crate::report::{Drawing, Setup, Shell, Verdict, attempt};
use crate::series::Meter;
use crate::tally::Tally;
use crate::worker::Board;
use fusee_workload::{Chooser, Distribution, Workload};
use load::{Done, Load};
use report::Found;
use steering::{Steering, Step, Timeline};

/// The skew of YCSB.
const THETA: f64 = 0.99;
/// Threads that load the keys.
const LOADERS: usize = 2;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee bench elasticity --plot elasticity.svg\n  \
    fusee bench elasticity --sessions 4 --more 4 --rate 0 --phase 10 --json\n\n\
    Exit code 1 if an operation failed, a key does not hold what was acknowledged, or a memory\n\
    node did not join or was not drained in time (--limit).")]
pub struct Args {
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
    workload: Workload,

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
    cluster: OwnCluster,

    #[command(flatten)]
    #[serde(skip)]
    drawing: Drawing,
}

impl Args {
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
    fn script(&self) -> Vec<Step> {
        let all = self.sessions + self.more;
        vec![
            Step::Sessions(self.sessions),
            Step::Sessions(all),
            Step::Sessions(self.sessions),
            Step::Join,
            Step::Drain,
        ]
    }

    fn demand(&self) -> Demand {
        let phases = self.script().len() as f64;
        let operations = f64::from(self.sessions + self.more) * self.rate as f64;
        let operations = (operations * self.phase * phases).ceil() as u64;
        let updates = operations * self.workload.updates_percent() / 100;
        // Every session may exist twice, each time with a block of its own.
        let processes = 2 * u64::from(self.sessions + self.more);
        let pairs = self.keys + updates;
        Demand { keys: self.keys, index_keys: self.keys, pairs, processes, ..Demand::default() }
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let shell = Shell::begin_drawing("elasticity", &args.drawing)?;
    interrupt::watch()?;
    let threads = args.sessions + args.more;
    let (target, mut servers) = args.cluster.open(args.demand(), threads, shell.available())?;
    let client = &target.client;
    // Described before memory nodes come and go.
    let setup = Setup::of(client, true, false);
    let board = Board::new(args.cluster.pair_bytes, args.cluster.seed);
    let crew = Crew { threads: LOADERS, coroutines: 1, first_thread: 0 };
    let insert = Job::Insert { keys: args.keys };
    let insert = Phase { job: insert, operations: u64::MAX, time: None };
    let loaded: Outcome = driver::run(client, &board, crew, &[insert], &mut ())?;
    let mut tally = Tally::default();
    loaded.results.iter().for_each(|result| tally.merge_failures(&result.tally));
    let (mut done, timeline) = stretch(args, client, &board, &mut servers)?;
    let mut logs = loaded.logs;
    done.sort_by_key(|done| done.writer);
    for done in done {
        tally.merge_failures(&done.tally);
        logs.push(done.log);
    }
    let mut problems = timeline.problems;
    let verified: Verified = attempt(&mut problems, driver::verify(client, &board, logs));
    tally.merge_failures(&verified.tally);
    let members = attempt(&mut problems, report::members(client));
    let found = Found {
        joined: timeline.joined,
        drained: timeline.drained,
        members,
        events: timeline.events,
        phases: timeline.phases,
        intervals: timeline.intervals,
    };
    shell.tell(args, Some(setup), found, Some(Verdict::new(&tally, verified.keys, problems)))
}

/// Runs the load through the script.
fn stretch(
    args: &Args,
    client: &Client,
    board: &Board,
    servers: &mut Servers,
) -> Result<(Vec<Done>, Timeline), Failure> {
    let load = Load {
        client,
        board,
        workload: args.workload,
        chooser: &Chooser::new(Distribution::Zipfian, args.keys, THETA, args.cluster.seed),
        keys: args.keys,
        interval: (args.rate > 0).then(|| Duration::from_secs_f64(1.0 / args.rate as f64)),
        writers: AtomicU64::new(LOADERS as u64),
        wanted: AtomicU16::new(0),
        working: AtomicU16::new(0),
        over: AtomicBool::new(false),
    };
    let threads = args.sessions + args.more;
    let meters: Vec<Meter> = (0..threads).map(|_| Meter::default()).collect();
    scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .zip(&meters)
            .map(|(number, meter)| {
                let load = &load;
                scope.spawn(move || load.thread(number, meter))
            })
            .collect();
        let mut steering = Steering::new(args, &load, &meters, servers);
        args.script().into_iter().for_each(|step| steering.take(step));
        let timeline = steering.timeline;
        load.over.store(true, Ordering::Relaxed);
        let done = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let done: Vec<Vec<Done>> = done.collect::<Result<_, _>>()?;
        Ok((done.into_iter().flatten().collect(), timeline))
    })
}
