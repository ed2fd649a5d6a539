//! Shortening of failing runs.
//!
//! Faults are left out kind by kind, the number of operations is bisected, and the number of clients is reduced, as
//! long as the run still breaks a promise (not necessarily the same promise). Every decision has a random stream of its
//! own, and a run with fewer operations begins exactly like the longer run, so much can be left out. The result is
//! again a run of the same seed: the command that replays it has a few more flags.

use crate::run::{RunOptions, SimOutcome, run};

/// Shortens a failing run, with at most `budget` further runs. Returns the shortened options and the outcome of their
/// run. The outcome has no failure if the run was stopped at once.
pub fn shrink(options: &RunOptions, budget: usize) -> (RunOptions, SimOutcome) {
    let mut shrinking = Shrinker { options: options.clone(), outcome: run(options), left: budget };
    while shrinking.left > 0 && shrinking.outcome.failure.is_some() && !(options.stop)() {
        let before = shrinking.left;
        let shorter = shrinking.fewer_operations() | shrinking.fewer_faults();
        if !(shorter | shrinking.fewer_clients()) || before == shrinking.left {
            break;
        }
    }
    (shrinking.options, shrinking.outcome)
}

struct Shrinker {
    options: RunOptions,
    outcome: SimOutcome,
    left: usize,
}

impl Shrinker {
    /// Runs the simulation with these options. If this run fails, adopts the options. Returns whether this run fails.
    fn try_out(&mut self, options: RunOptions) -> bool {
        if self.left == 0 || (options.stop)() {
            return false;
        }
        self.left -= 1;
        let outcome = run(&options);
        let fails = outcome.failure.is_some();
        if fails {
            (self.options, self.outcome) = (options, outcome);
        }
        fails
    }

    /// Finds a small number of operations by bisection, because a run with fewer operations is a prefix of the longer
    /// run.
    fn fewer_operations(&mut self) -> bool {
        let mut low = 0;
        let mut high = self.options.operations.unwrap_or(1 << 11);
        let begun = high;
        while low + 1 < high && self.left > 0 {
            let middle = low + (high - low) / 2;
            let options = RunOptions { operations: Some(middle), ..self.options.clone() };
            if self.try_out(options) { high = middle } else { low = middle }
        }
        high < begun
    }

    fn fewer_faults(&mut self) -> bool {
        let mut fewer = false;
        let scenario = self.options.scenario;
        for fault in scenario.faults().iter().chain(scenario.seldom()) {
            if !self.options.without.contains(fault) {
                let mut options = self.options.clone();
                options.without.insert(*fault);
                fewer |= self.try_out(options);
            }
        }
        fewer
    }

    fn fewer_clients(&mut self) -> bool {
        let clients = self.options.clients.unwrap_or(5);
        (1..clients).any(|n| {
            let options = RunOptions { clients: Some(n), ..self.options.clone() };
            self.try_out(options)
        })
    }
}
