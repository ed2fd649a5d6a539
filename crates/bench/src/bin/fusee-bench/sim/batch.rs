//! Many runs on a few threads.

use std::collections::BTreeMap;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_cli::interrupt;
use fusee_cli::progress::ProgressLines;
use fusee_sim::{RunOptions, Scenario, SimOutcome, run, shrink};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::SimPlan;

/// Maximum number of runs that the search for a shorter failed run makes.
const SHRINK_RUNS: usize = 200;
/// Maximum number of failed runs that are shortened; further ones are reported as they were found.
const MAX_SHRUNK: usize = 3;

/// Sums over several runs.
#[derive(Clone, Debug, Default)]
pub struct RunSums {
    /// Number of runs.
    pub runs: u64,
    /// Number of operations that were checked.
    pub operations: u64,
    /// Number of events in the simulator.
    pub events: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_ns: u64,
}

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct BrokenRun {
    /// The run as it was found.
    pub found: RunOptions,
    /// The shortened run.
    pub short: RunOptions,
    /// The outcome of the shortened run.
    pub outcome: SimOutcome,
}

/// The result of many runs.
#[derive(Clone, Debug, Default)]
pub struct SimBatch {
    /// Number of runs that were done.
    pub runs: u64,
    /// Sums by scenario.
    pub scenarios: BTreeMap<Scenario, RunSums>,
    /// Counts of faults and events, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Digest of all traces, independent of the order of the runs.
    pub digest: u64,
    /// Failed runs.
    pub failures: Vec<BrokenRun>,
    /// Real time that the runs took.
    pub elapsed: Duration,
    /// Whether a signal asked to stop.
    pub interrupted: bool,
}

impl SimBatch {
    /// Does the runs of a plan, until a signal asks to stop.
    pub fn run(plan: &SimPlan) -> SimBatch {
        let begun = Instant::now();
        let bar = progress(plan);
        let lines = ProgressLines::begin();
        let next = AtomicU64::new(0);
        let batch = Mutex::new(SimBatch::default());
        // A panic is a broken promise: the batch reports it as a failed run, so the panic hook prints nothing.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| ()));
        std::thread::scope(|scope| {
            for _ in 0..plan.jobs {
                scope.spawn(|| {
                    while !interrupt::is_requested() {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let over = plan.time.is_some_and(|time| begun.elapsed() >= time);
                        if over || plan.seeds.is_some_and(|seeds| number >= seeds) {
                            return;
                        }
                        let options = plan.options(plan.first.wrapping_add(number));
                        let outcome = run(&options);
                        if outcome.is_stopped {
                            return;
                        }
                        let locked = || batch.lock().unwrap_or_else(PoisonError::into_inner);
                        let failed = locked().add(&options, &outcome);
                        if failed {
                            let few = locked().failures.len() < MAX_SHRUNK;
                            let shortened = few.then(|| shrink(&options, SHRINK_RUNS));
                            // If a signal came before the search for a shorter run began, the result has no failure and
                            // is dropped.
                            let shortened = shortened.filter(|(_, short)| short.failure.is_some());
                            let (short, outcome) =
                                shortened.unwrap_or_else(|| (options.clone(), outcome));
                            locked().failures.push(BrokenRun { found: options, short, outcome });
                        }
                        bar.set_position(match plan.time {
                            Some(_) => begun.elapsed().as_secs(),
                            None => bar.position() + 1,
                        });
                        lines.tell(|| {
                            let runs = locked().runs;
                            let of = plan.seeds.map(|seeds| format!(" of {seeds}"));
                            format!("sim: {runs}{} runs", of.unwrap_or_default())
                        });
                    }
                });
            }
        });
        panic::set_hook(hook);
        bar.finish_and_clear();
        let mut batch = batch.into_inner().unwrap_or_else(PoisonError::into_inner);
        batch.failures.sort_by_key(|broken| broken.found.seed);
        batch.elapsed = begun.elapsed();
        batch.interrupted = interrupt::is_requested();
        batch
    }

    /// Adds a run. Returns whether the run failed.
    fn add(&mut self, options: &RunOptions, outcome: &SimOutcome) -> bool {
        self.runs += 1;
        let sums = self.scenarios.entry(options.scenario).or_default();
        sums.runs += 1;
        sums.operations += outcome.operations;
        sums.events += outcome.events;
        sums.virtual_ns += outcome.virtual_ns;
        for (name, n) in &outcome.counts {
            *self.counts.entry(name).or_default() += n;
        }
        self.digest = self.digest.wrapping_add(outcome.trace.digest() ^ options.seed);
        outcome.failure.is_some()
    }
}

fn progress(plan: &SimPlan) -> ProgressBar {
    let (total, unit) = match (plan.time, plan.seeds) {
        (Some(time), _) => (time.as_secs(), "s"),
        (None, seeds) => (seeds.unwrap_or(0), "runs"),
    };
    let template = format!("sim {{wide_bar}} {{pos}}/{{len}} {unit}");
    let style = ProgressStyle::with_template(&template).expect("the template is a constant");
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}
