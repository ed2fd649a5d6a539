//! Tests in which clients and memory nodes are cut off from the master together. Histories stay linearizable. Reads
//! without a lease succeed if more than half of the memory nodes vouch for them. With a valid lease, reads cost nothing
//! extra.

use fusee_sim::{Fault, RunOptions, Scenario, SimOutcome, run};

/// Number of runs, unless `FUSEE_SIM_SEEDS` names another number.
const SEEDS: u64 = 60;

fn count(outcome: &SimOutcome, name: &str) -> u64 {
    let found = outcome.counts.iter().find(|(counted, _)| *counted == name);
    found.expect("it is counted").1
}

fn outcome(options: &RunOptions) -> SimOutcome {
    let scenario = options.scenario;
    let seed = options.seed;
    let outcome = run(options);
    if let Some(failure) = &outcome.failure {
        panic!("{} {seed}: {}: {:#?}", scenario.name(), failure.what, failure.history);
    }
    outcome
}

// Promise SIL-2: A client cut off with a memory node reads nothing old.
#[test]
fn who_is_cut_off_with_a_memory_node_reads_nothing_old() {
    let seeds = std::env::var("FUSEE_SIM_SEEDS").map_or(SEEDS, |n| n.parse().expect("a number"));
    let mut cut = 0;
    let mut asked = 0;
    let mut silences = 0;
    let mut bars = 0;
    for seed in 0..seeds {
        let outcome = outcome(&RunOptions::new(Scenario::Cuts, seed));
        cut += count(&outcome, "common_partitions");
        asked += count(&outcome, "views_asked");
        silences += count(&outcome, "silences");
        bars += count(&outcome, "bars");
    }
    println!(
        "{seeds} seeds: {cut} common partitions, {asked} questions to memory nodes, {silences} times without \
         a master and a primary, {bars} bars"
    );
    assert!(cut > seeds / 2 && asked > seeds, "{cut} cuts, {asked} questions");
    assert!(silences > seeds / 2 && bars > seeds / 4, "{silences} silences, {bars} bars");
}

// Promise SIL-3: A session with a valid lease asks no memory node.
#[test]
fn who_is_heard_asks_nobody() {
    // In some other runs of the last scenario, nodes that join are lost so often that leases run out.
    for (scenario, first) in [(Scenario::Mixed, 0), (Scenario::Crashes, 0), (Scenario::Damage, 7)] {
        for seed in first..first + 5 {
            // These runs leave out crashes of the master during jobs. A restarted master grants leases only when it has
            // heard from more than half of the memory nodes, and leases run out meanwhile.
            let without = [Fault::RecoveryCrash].into();
            let outcome = outcome(&RunOptions { without, ..RunOptions::new(scenario, seed) });
            assert_eq!(count(&outcome, "views_asked"), 0, "{} {seed}", scenario.name());
        }
    }
}

#[test]
fn an_answer_from_reads_needs_more_than_half_of_all_members() {
    (0..20).for_each(crate::support::unheard::unheard);
}

// Promise SIL-4: Without the master, objects are read from any replica.
#[test]
fn without_a_master_objects_are_read_from_the_replicas_that_are_left() {
    let read = crate::support::unheard::objects_are_read_from_the_replicas_that_are_left;
    let exposed: usize = (0..20).map(read).sum();
    assert!(exposed > 10, "{exposed} objects");
}
