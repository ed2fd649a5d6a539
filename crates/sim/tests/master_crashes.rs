//! Tests in which the master dies at a step of its reaction to a lost memory node, and another master continues from
//! the dead one's store. For some runs every step is tried.

// Promise CHG-3: Losses are put right while clients work and masters crash.

use std::collections::BTreeSet;

use fusee_sim::{Fault, RunOptions, Scenario, SimOutcome, run};

const SEEDS: u64 = 16;
/// A number of steps that none of these runs reaches.
const MOST_STEPS: u32 = 5_000;

fn count(outcome: &SimOutcome, name: &str) -> u64 {
    let found = outcome.counts.iter().find(|(counted, _)| *counted == name);
    found.expect("it is counted").1
}

#[test]
fn a_master_may_die_at_any_step_after_a_loss() {
    let mut runs = 0;
    for seed in 0..SEEDS {
        let mut steps = 0;
        for step in 0..MOST_STEPS {
            let options = RunOptions {
                operations: Some(60),
                without: BTreeSet::from([Fault::Delay, Fault::Tear, Fault::RecoveryCrash]),
                master_crash: Some(step),
                ..RunOptions::new(Scenario::Losses, seed)
            };
            let outcome = run(&options);
            if let Some(failure) = outcome.failure {
                panic!("seed {seed}, before action {step}: {}", failure.what);
            }
            if count(&outcome, "master_restarts") == 0 {
                steps = step;
                break;
            }
        }
        println!("seed {seed}: {steps} steps");
        assert!(steps < MOST_STEPS - 1);
        runs += steps;
    }
    assert!(runs > 1_000, "in most runs no memory node is lost: {runs} steps in all");
}
