//! Tests that a run depends only on its seed, so that a failure can be replayed any number of times.
//!
//! Two runs of one seed in two threads are compared event by event, because seeds of hash maps and addresses of memory
//! differ between threads. A run is allowed to break a promise here, but then both runs must break it in the same way.

// Promise CHK-1: Equal seeds give equal runs.

use std::collections::BTreeSet;
use std::thread;

use fusee_sim::{RunOptions, Scenario, SimOutcome, run};

const SEEDS: u64 = 6;
const OPERATIONS: usize = 400;

fn run_once(scenario: Scenario, seed: u64) -> SimOutcome {
    let mut options = RunOptions::new(scenario, seed);
    (options.trace, options.operations) = (true, Some(OPERATIONS));
    // The stack is as large as that of a main thread, because the checks recurse deeply.
    let thread = thread::Builder::new().stack_size(8 << 20);
    let running = thread.spawn(move || run(&options)).expect("a thread starts");
    running.join().expect("a run answers, also when a promise is broken")
}

fn text(outcome: &SimOutcome) -> &str {
    outcome.trace.text().expect("the trace was asked for")
}

/// Asserts that two traces are equal. Otherwise shows the first line in which they differ.
fn assert_same_text(first: &str, second: &str, which: &str) {
    let lines = first.lines().zip(second.lines()).enumerate();
    for (n, (a, b)) in lines {
        assert_eq!(a, b, "{which}: line {n} differs");
    }
    assert_eq!(first.len(), second.len(), "{which}: one trace goes on");
}

fn check(scenario: Scenario) {
    let mut digests = BTreeSet::new();
    let mut texts = BTreeSet::new();
    for seed in 0..SEEDS {
        let which = format!("{}, seed {seed}", scenario.name());
        let first = run_once(scenario, seed);
        let second = run_once(scenario, seed);
        assert!(text(&first).lines().count() > OPERATIONS, "{which}: hardly anything happened");
        assert_same_text(text(&first), text(&second), &which);
        assert_eq!(first.trace, second.trace, "{which}: the digests differ");
        assert_eq!(first.counts, second.counts, "{which}");
        assert_eq!(first.operations, second.operations, "{which}");
        assert_eq!((first.events, first.virtual_ns), (second.events, second.virtual_ns), "{which}");
        let failure = |outcome: &SimOutcome| outcome.failure.clone().map(|f| (f.what, f.history));
        assert_eq!(failure(&first), failure(&second), "{which}");
        digests.insert(first.trace.digest());
        texts.insert(text(&first).to_owned());
    }
    assert_eq!((digests.len(), texts.len()), (SEEDS as usize, SEEDS as usize), "seeds differ");
}

#[test]
fn mixed_runs_can_be_repeated() {
    check(Scenario::Mixed);
}

#[test]
fn inserts_can_be_repeated() {
    check(Scenario::Inserts);
}

#[test]
fn unsteady_runs_can_be_repeated() {
    check(Scenario::Unsteady);
}

#[test]
fn crashes_can_be_repeated() {
    check(Scenario::Crashes);
}

#[test]
fn losses_can_be_repeated() {
    check(Scenario::Losses);
}

#[test]
fn storms_can_be_repeated() {
    check(Scenario::Storm);
}

/// A run that does not record the text of its trace has the same digest as a run that does: recording changes nothing.
#[test]
fn recording_changes_nothing() {
    for scenario in Scenario::ALL {
        let mut options = RunOptions::new(scenario, 3);
        options.operations = Some(OPERATIONS);
        let silent = run(&options);
        assert!(silent.trace.text().is_none());
        assert_eq!(silent.trace.digest(), run_once(scenario, 3).trace.digest(), "{scenario:?}");
    }
}
