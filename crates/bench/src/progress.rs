//! A progress bar, which appears only on a terminal.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::driver::PaddedCounter;
use super::phase::{BenchPhase, PhaseJob};

/// The interval at which the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// Returns an empty bar on standard error, if `shown` and standard error is a terminal.
pub fn bar(name: &'static str, total: u64, shown: bool) -> ProgressBar {
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{prefix:7} {wide_bar} {percent:3} % {msg}");
    ProgressBar::with_draw_target(Some(total), target)
        .with_style(style.expect("the template is a constant"))
        .with_prefix(name)
}

/// The bar of one phase.
pub struct PhaseProgress<'a> {
    bar: ProgressBar,
    counters: &'a [PaddedCounter],
    /// The length of the phase, if a time limit ends the phase.
    time: Option<Duration>,
}

impl<'a> PhaseProgress<'a> {
    /// Draws an empty bar on standard error, if `shown` and standard error is a terminal.
    pub fn start(
        phase: &BenchPhase,
        counters: &'a [PaddedCounter],
        shown: bool,
    ) -> PhaseProgress<'a> {
        let name = match &phase.job {
            PhaseJob::Insert { .. } => "insert",
            PhaseJob::Update => "update",
            PhaseJob::Search => "search",
            PhaseJob::Delete => "delete",
            PhaseJob::Ycsb { .. } | PhaseJob::Trace { .. } => "run",
        };
        let operations = match &phase.job {
            PhaseJob::Insert { keys } => phase.operations.min(*keys),
            PhaseJob::Trace { operations, .. } => *operations,
            _ => phase.operations,
        };
        let total = phase.time.map_or(operations, |time| time.as_millis() as u64);
        PhaseProgress { bar: bar(name, total, shown), counters, time: phase.time }
    }

    /// Moves the bar until `wait` returns, and returns the result of `wait`.
    pub fn watch<T>(&self, wait: impl FnOnce() -> T) -> T {
        if self.bar.is_hidden() {
            return wait();
        }
        let (stop, stopped) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let start = Instant::now();
                while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    self.tick(start.elapsed());
                }
            });
            let result = wait();
            drop(stop);
            result
        })
    }

    fn tick(&self, elapsed: Duration) {
        let done: u64 = self.counters.iter().map(|c| c.0.load(Ordering::Relaxed)).sum();
        let rate = done as f64 / elapsed.as_secs_f64() / 1000.0;
        self.bar.set_message(format!("{rate:.0} kops/s"));
        self.bar.set_position(self.time.map_or(done, |_| elapsed.as_millis() as u64));
    }
}

impl Drop for PhaseProgress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
