//! Seeds of `fusee sim` that once broke a promise, and keep all of them now.
//!
//! What a seed does changes with everything that a run draws from; so each of these defects has a test of
//! its own besides, by which it can be told apart.

use fusee_sim::{RunOptions, Scenario, run};

/// Runs a seed, shortened if it was.
fn holds(scenario: Scenario, seed: u64, operations: Option<usize>, clients: Option<usize>) {
    let outcome = run(&RunOptions { operations, clients, ..RunOptions::new(scenario, seed) });
    assert!(outcome.failure.is_none(), "{} {seed}: {:?}", scenario.name(), outcome.failure);
}

/// A block was granted again before its return had been acknowledged, and forgotten.
#[test]
fn a_block_granted_again_while_it_is_given_back_is_not_lost() {
    holds(Scenario::Mixed, 666, Some(1246), Some(4));
    holds(Scenario::Mixed, 666, None, None);
    holds(Scenario::Mixed, 7_773_660, None, None);
    holds(Scenario::Mixed, 7_782_417, None, None);
}

/// A block was found in the tables by one request while another one was being granted it.
#[test]
fn a_block_is_granted_to_one_request() {
    holds(Scenario::Elastic, 70_060_316, Some(697), None);
    holds(Scenario::Elastic, 70_060_316, None, None);
}

/// A fault struck when all clients had ended, while the last reads and checks were under way.
#[test]
fn nothing_goes_wrong_any_more_when_a_run_is_judged() {
    holds(Scenario::Reuse, 7_797_399, None, None);
    holds(Scenario::Elastic, 7_808_785, None, None);
    holds(Scenario::Elastic, 7_804_564, None, None);
}

/// A block whose header could not be read, since a memory node was silent, was no reason not to ask for the next
/// one: regions were added without an end.
#[test]
fn a_session_asks_for_no_block_before_it_knows_the_last_one() {
    holds(Scenario::Unsteady, 94, None, None);
}
