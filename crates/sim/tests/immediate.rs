//! Tests of clusters that share their memory. In one of three runs of the simulator, the fabric executes verbs
//! immediately. Every run checks its promises; these tests assert that the special events of such fabrics happen.

// Promise LIN-11: Operations that never wait are linearizable.

use std::collections::BTreeMap;

use fusee_sim::{RunOptions, Scenario, run};

/// Runs some seeds. Returns the number of runs in which clients execute verbs at once, as over shared memory, and the
/// summed counts of those runs.
fn sum(
    scenario: Scenario,
    seeds: u64,
    operations: Option<usize>,
) -> (BTreeMap<&'static str, u64>, u64) {
    let mut sums = BTreeMap::new();
    let mut immediate = 0;
    for seed in 0..seeds {
        let outcome = run(&RunOptions { operations, ..RunOptions::new(scenario, seed) });
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
        let counts: BTreeMap<_, _> = outcome.counts.into_iter().collect();
        if counts["interrupted_batches"] > 0 {
            assert_eq!(counts["reordered_batches"], 0, "seed {seed}: {counts:?}");
            immediate += 1;
            counts.iter().for_each(|(name, n)| *sums.entry(*name).or_insert(0) += n);
        } else {
            assert_eq!(counts["searches_now"] + counts["writes_now"], 0, "seed {seed}: {counts:?}");
        }
    }
    assert!(immediate > seeds / 8 && immediate < seeds / 2, "{immediate} of {seeds}");
    println!("{}: {immediate} of {seeds} runs: {sums:?}", scenario.name());
    (sums, immediate)
}

#[test]
fn operations_need_not_wait_and_proofs_cross_nodes() {
    for scenario in [Scenario::Mixed, Scenario::Crashes, Scenario::Losses, Scenario::Elastic] {
        let (sums, immediate) = sum(scenario, 30, Some(400));
        let per_run = |name| sums[name] / immediate;
        assert!(per_run("searches_now") >= 5, "{}: {sums:?}", scenario.name());
        assert!(per_run("writes_now") >= 5, "{}: {sums:?}", scenario.name());
        assert!(per_run("proofs_across_nodes") >= 5, "{}: {sums:?}", scenario.name());
        assert!(per_run("interrupted_batches") >= 500, "{}: {sums:?}", scenario.name());
    }
}

/// A client dies in the middle of a batch. No further verb of the batch executes.
#[test]
fn clients_die_in_the_middle_of_a_batch() {
    let (sums, _) = sum(Scenario::Crashes, 100, None);
    assert!(sums["cut_batches"] > 20, "{sums:?}");
}

#[test]
fn fences_kill() {
    let (sums, _) = sum(Scenario::Cuts, 200, None);
    assert!(sums["killed_by_fences"] > 2 && sums["fenced_verbs"] > 0, "{sums:?}");
}
