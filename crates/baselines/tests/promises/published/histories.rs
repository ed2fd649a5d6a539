//! Random histories over an adversarial network. UPDATE and SEARCH are linearizable in every variant, also when memory
//! is reused soon. INSERT and DELETE are not linearizable.

use fusee_baselines::published::PublishedParameters;

use super::{open, parameters};
use crate::support::{HistoryLoad, findings};

fn load(parameters: &PublishedParameters, inserts_and_deletes: bool) -> HistoryLoad {
    let memory_nodes = parameters.index_replicas.max(3);
    HistoryLoad {
        memory_nodes: memory_nodes as u16,
        pool_bytes: parameters.pool_bytes(memory_nodes),
        clients: 4,
        coroutines: 2,
        operations: 50,
        keys: 4,
        inserts: inserts_and_deletes,
        deletes: inserts_and_deletes,
    }
}

fn updates_are_linearizable(variant: impl Fn(PublishedParameters) -> PublishedParameters) {
    for (replicas, seeds) in [(1, 0..20), (2, 20..40), (3, 40..60), (5, 60..70)] {
        for seed in seeds {
            let parameters = variant(parameters(replicas));
            let findings = findings(seed, load(&parameters, false), open(parameters));
            assert!(findings.is_clean(), "{replicas} replicas, seed {seed}: {findings:?}");
            assert!(findings.overlapping > 100, "{findings:?}");
        }
    }
}

#[test]
fn updates_as_published_are_linearizable() {
    updates_are_linearizable(|parameters| parameters);
}

#[test]
fn updates_without_the_cache_are_linearizable() {
    updates_are_linearizable(PublishedParameters::without_cache);
}

#[test]
fn updates_one_by_one_are_linearizable() {
    updates_are_linearizable(PublishedParameters::one_by_one);
}

#[test]
fn updates_in_objects_that_nodes_allocate_are_linearizable() {
    updates_are_linearizable(PublishedParameters::allocated_by_nodes);
}

/// Returns how many random histories of all four operations are not linearizable. Blocks are so large that no memory is
/// reused.
fn broken(seeds: u64, variant: impl Fn(usize) -> PublishedParameters) -> usize {
    let is_broken = |seed: &u64| {
        let parameters = variant(1 + *seed as usize % 3).with_blocks(1 << 18, 1 << 18);
        let parameters = PublishedParameters { regions: 12, ..parameters };
        !findings(*seed, load(&parameters, true), open(parameters)).is_clean()
    };
    (0..seeds).filter(is_broken).count()
}

/// The [anomalies](super::anomalies) of losers are so frequent that every history has one.
#[test]
fn inserts_and_deletes_as_published_break_every_history() {
    assert_eq!(broken(6, parameters), 6);
}

/// FUSEE-CR has only one of the [anomalies](super::anomalies) of losers: a key in two slots.
#[test]
fn inserts_and_deletes_one_by_one_break_some_histories() {
    let broken = broken(60, |replicas| parameters(replicas).one_by_one());
    assert!((1..30).contains(&broken), "{broken} of 60");
}
