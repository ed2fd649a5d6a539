//! Searches for the smallest seed with which a scenario fails.
//!
//! Two threads share the seeds: one takes the even seeds, the other the odd ones. Each thread stops at the smallest
//! failing seed that either thread has found, so the answer does not depend on the speed of the threads. A run fails if
//! it panics, whether in an assertion of the simulator, of the workload or of the store itself.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use fusee_core::mutant::{Mutant, activate};

use crate::scenarios::MutantScenario;

const THREADS: u64 = 2;

/// A seed with which a scenario fails, and the first line of the failure.
pub struct FailingSeed {
    pub seed: u64,
    pub noticed: String,
}

/// Locks the mutant switch, of which a process has only one. Only the holder of this lock is allowed to set the switch.
pub fn switch() -> MutexGuard<'static, ()> {
    static SWITCH: Mutex<()> = Mutex::new(());
    SWITCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the smallest of these seeds with which `scenario` fails under `mutant`.
pub fn hunt(
    mutant: Option<Mutant>,
    scenario: &MutantScenario,
    seeds: Range<u64>,
) -> Option<FailingSeed> {
    silence_expected_panics();
    activate(mutant);
    let bound = AtomicU64::new(seeds.end);
    let bound = &bound;
    let found = thread::scope(|scope| {
        let begin = seeds.start;
        let every = |nth| spawn(scope, move || hunt_every(scenario, begin + nth, bound));
        let threads: Vec<_> = (0..THREADS).map(every).collect();
        let found = threads.into_iter().filter_map(|t| t.join().expect("a hunt never panics"));
        found.min_by_key(|caught: &FailingSeed| caught.seed)
    });
    activate(None);
    found
}

/// Spawns a thread with a stack as large as that of a main thread, because the checks recurse deeply.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    task: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let thread = Builder::new().stack_size(8 << 20).spawn_scoped(scope, task);
    thread.expect("there is room for a thread")
}

fn hunt_every(scenario: &MutantScenario, first: u64, bound: &AtomicU64) -> Option<FailingSeed> {
    let mut seed = first;
    // Relaxed is enough, because a bound that is read too late only costs a few more seeds.
    while seed < bound.load(Ordering::Relaxed) {
        if let Err(noticed) = attempt(scenario, seed) {
            bound.fetch_min(seed, Ordering::Relaxed);
            return Some(FailingSeed { seed, noticed });
        }
        seed += THREADS;
    }
    None
}

/// Returns the number of seeds below `seeds` with which the scenario fails.
pub fn count(mutant: Option<Mutant>, scenario: &MutantScenario, seeds: u64) -> usize {
    silence_expected_panics();
    activate(mutant);
    let every = |first| {
        move || {
            let all = (first..seeds).step_by(THREADS as usize);
            all.filter(|seed| attempt(scenario, *seed).is_err()).count()
        }
    };
    let failing = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| spawn(scope, every(first))).collect();
        threads.into_iter().map(|t| t.join().expect("a count never panics")).sum()
    });
    activate(None);
    failing
}

/// Runs one seed under the active mutant. If the run panics, returns the first line of the panic's message.
pub fn attempt(scenario: &MutantScenario, seed: u64) -> Result<(), String> {
    EXPECTED.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(|| (scenario.run)(seed)));
    EXPECTED.set(false);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.and_then(|text| text.lines().next()).unwrap_or("a panic without words").to_string()
    })
}

thread_local! {
    /// Whether a panic of this thread is expected, because the thread runs a scenario.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

fn silence_expected_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                usual(info);
            }
        }));
    });
}
