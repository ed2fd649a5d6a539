//! `fusee bench elasticity`: sessions come and go, a memory node joins; what throughput makes of
//! it.
//!
//! P Fig. 21 shows YCSB C while 16 clients become 32 and 16 again. Here a `Script` says what
//! happens when; sessions work at an even pace (or as fast as they can), so that what is shown is
//! whether the store follows, not how many processors there are. What comes out is a time series, a
//! summary of every phase between two steps, and what every memory node holds at its end. Every
//! value that is read is checked, and in the end every key is.
//!
//! A further kind of step is a variant of [`Step`] and its line in [`Steering::take`].

mod load;
mod report;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use fusee_client::Client;

use super::cluster::Demand;
use super::driver::{self, Crew, Outcome, Verified};
use super::machine::Machine;
use super::own::OwnCluster;
use super::phase::{Job, Phase};
use super::progress::bar;
use super::report::Verdict;
use super::series::{Meter, Sample, take_all};
use super::tally::Tally;
use super::worker::Board;
use super::workload::Workload;
use super::zipf::{Chooser, Distribution};
use super::{attempt, describe, judge, print};
use crate::failure::Failure;
use crate::interrupt;
use crate::up::Servers;
use load::{Done, Load};
use report::{Interval, PhaseRow, Report, Settings};

/// The skew of YCSB.
const THETA: f64 = 0.99;
/// Threads that load the keys.
const LOADERS: usize = 2;
/// How often to look at the clock.
const POLL: Duration = Duration::from_millis(2);

/// How to run it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee bench elasticity --plot elasticity.svg\n  \
    fusee bench elasticity --sessions 4 --more 4 --rate 0 --phase 10 --json\n\n\
    Exit code 1 if an operation failed or a key does not hold what was acknowledged.")]
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
    phase: f64,

    /// Seconds between two rows of the time series
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    interval: f64,

    /// Draw the time series into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    cluster: OwnCluster,
}

/// Something that changes the cluster or its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// So many sessions work from now on.
    Sessions(u16),
    /// One more memory node is started.
    Join,
}

impl Step {
    fn text(self) -> String {
        match self {
            Step::Sessions(n) => format!("{n} sessions"),
            Step::Join => "a memory node joins".into(),
        }
    }
}

impl Args {
    fn check(&self) -> Result<(), Failure> {
        for (name, seconds) in [("phase", self.phase), ("interval", self.interval)] {
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

    /// What happens, one phase after the other.
    fn script(&self) -> Vec<Step> {
        let all = self.sessions + self.more;
        vec![
            Step::Sessions(self.sessions),
            Step::Sessions(all),
            Step::Sessions(self.sessions),
            Step::Join,
        ]
    }

    fn demand(&self) -> Demand {
        let phases = self.script().len() as f64;
        let operations = f64::from(self.sessions + self.more) * self.rate as f64;
        let operations = (operations * self.phase * phases).ceil() as u64;
        let updates = operations * self.workload.updates_percent() / 100;
        // Every session may come twice, each time with a block of its own.
        let processes = 2 * u64::from(self.sessions + self.more);
        let pairs = self.keys + updates;
        Demand { keys: self.keys, index_keys: self.keys, pairs, deletes: 0, processes }
    }

    fn settings(&self) -> Settings {
        Settings {
            workload: self.workload.to_string(),
            keys: self.keys,
            pair_bytes: self.cluster.pair_bytes,
            sessions: self.sessions,
            more: self.more,
            rate: self.rate,
            phase_s: self.phase,
            interval_s: self.interval,
            seed: self.cluster.seed,
        }
    }
}

/// Runs it and prints a report.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let machine = Machine::here();
    interrupt::watch()?;
    let threads = args.sessions + args.more;
    let (target, mut servers) = args.cluster.open(args.demand(), threads, &machine)?;
    let client = &target.client;
    let cluster = describe(client, true, false);
    let board = Board::new(args.cluster.pair_bytes, args.cluster.seed);
    let crew = Crew { threads: LOADERS, coroutines: 1, first_thread: 0 };
    let insert = Job::Insert { keys: args.keys };
    let insert = Phase { job: insert, operations: u64::MAX, time: None };
    let loaded: Outcome = driver::run(client, &board, crew, &[insert], &mut ())?;
    let mut tally = Tally::default();
    loaded.results.iter().for_each(|result| tally.merge_failures(&result.tally));
    let elastic = stretch(args, client, &board, &mut servers)?;
    let mut logs = loaded.logs;
    let mut done = elastic.done;
    done.sort_by_key(|done| done.writer);
    for done in done {
        tally.merge_failures(&done.tally);
        logs.push(done.log);
    }
    let mut problems = Vec::new();
    let verified: Verified = attempt(&mut problems, driver::verify(client, &board, logs));
    tally.merge_failures(&verified.tally);
    let report = Report {
        benchmark: "elasticity",
        version: env!("CARGO_PKG_VERSION"),
        settings: args.settings(),
        machine,
        fabric: client.fabric().to_string(),
        cluster,
        phases: elastic.phases,
        intervals: elastic.intervals,
        interrupted: interrupt::requested(),
        verdict: Verdict::new(&tally, verified.keys, problems),
    };
    if let Some(path) = &args.plot {
        report.chart().write(path)?;
    }
    print(&report, args.cluster.json, Report::table)?;
    judge(&report.verdict, None)
}

/// What the run gave.
struct Elastic {
    done: Vec<Done>,
    phases: Vec<PhaseRow>,
    intervals: Vec<Interval>,
}

/// Runs the load through the script.
fn stretch(
    args: &Args,
    client: &Client,
    board: &Board,
    servers: &mut Servers,
) -> Result<Elastic, Failure> {
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
        let steered = args.script().into_iter().try_for_each(|step| steering.take(step));
        let Steering { phases, intervals, .. } = steering;
        load.over.store(true, Ordering::Relaxed);
        let done = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let done: Vec<Vec<Done>> = done.collect::<Result<_, _>>()?;
        steered?;
        Ok(Elastic { done: done.into_iter().flatten().collect(), phases, intervals })
    })
}

/// What happens beside the threads.
struct Steering<'a> {
    args: &'a Args,
    load: &'a Load<'a>,
    meters: &'a [Meter],
    servers: &'a mut Servers,
    start: Instant,
    phases: Vec<PhaseRow>,
    intervals: Vec<Interval>,
}

impl<'a> Steering<'a> {
    fn new(
        args: &'a Args,
        load: &'a Load<'a>,
        meters: &'a [Meter],
        servers: &'a mut Servers,
    ) -> Steering<'a> {
        let (start, phases, intervals) = (Instant::now(), Vec::new(), Vec::new());
        Steering { args, load, meters, servers, start, phases, intervals }
    }

    /// Takes a step, and watches the phase that begins with it.
    fn take(&mut self, step: Step) -> Result<(), Failure> {
        if !self.load.goes_on() {
            return Ok(());
        }
        let from = self.start.elapsed();
        match step {
            Step::Sessions(count) => self.load.wanted.store(count, Ordering::Relaxed),
            Step::Join => self.servers.add_memory_node()?,
        }
        self.watch(step, from);
        Ok(())
    }

    fn watch(&mut self, step: Step, from: Duration) {
        let end = from + Duration::from_secs_f64(self.args.phase);
        let bar = bar("run", (self.args.phase * 1000.0) as u64, true);
        bar.set_message(step.text());
        let (mut all, mut begun, mut goes_on) = (Sample::default(), from, true);
        while goes_on {
            sleep(POLL);
            let now = self.start.elapsed();
            goes_on = now < end && self.load.goes_on();
            bar.set_position((now - from).as_millis() as u64);
            if (now - begun).as_secs_f64() < self.args.interval && goes_on {
                continue;
            }
            let sample = take_all(self.meters);
            self.intervals.push(Interval::new(self.load, begun, now, &sample));
            all.merge(&sample);
            begun = now;
        }
        bar.finish_and_clear();
        self.phases.push(PhaseRow::new(step.text(), &self.load.client.view(), from, begun, &all));
    }
}
