//! Tests in which clients and memory nodes with index replicas fail, under the interleavings of thousands of seeds.
//!
//! A failure prints its seed; `FUSEE_SIM_SEED=<seed>` runs only that seed again.

use std::cell::Cell;

use fusee_core::error::{Error, FailedWriteOutcome};
use fusee_core::verbs::MnId;
use fusee_sim::{ClusterOptions, Stepper};

use crate::support::crash::{cut_off, idle};
use crate::support::failures::{client_crash, for_all, index_node_loss, insert_crash};
use crate::support::steered_recovery::{late_insert_crash, recovery_overtaken};
use crate::support::{alone, index, stepwise};

/// Clients die and are recovered (P §5.3) while other clients run.
// Promise REC-1
#[test]
fn dead_clients_are_recovered_beside_living_ones() {
    let Some(events) = for_all(2_000, client_crash) else { return };
    let often =
        [events.crashed, events.cut_off, events.committed, events.withdrawn, events.dropped];
    assert!(often.iter().all(|n| *n > 10), "{events:?}");
    assert!(events.handed_on > 1_500, "{events:?}");
}

/// INSERTs die while they are tentative, confirming or withdrawing, which are cases that the paper does not have. They
/// are recovered while other clients run.
#[test]
fn dead_inserts_are_recovered_beside_living_ones() {
    let Some(events) = for_all(1_500, insert_crash) else { return };
    assert!(events.withdrawn > 100 && events.committed > 100, "{events:?}");
}

/// Clients die and a memory node with index replicas is lost. First the slots are settled (P §5.2), then the clients
/// are recovered (P §5.3): this is the order of P §5.4.
#[test]
fn what_dead_clients_left_survives_the_loss_of_an_index_node() {
    let Some(events) = for_all(2_000, index_node_loss) else { return };
    assert!(events.crashed > 900, "{events:?}");
    assert!(events.slots_settled > 200 && events.cut_off > 100, "{events:?}");
}

/// A tentative word alone does not tell whether its INSERT would have confirmed or withdrawn. Recovery withdraws it.
// Promise REC-4: An INSERT that died tentative is withdrawn, not committed.
#[test]
fn an_insert_that_died_before_it_withdrew_is_withdrawn() {
    let Some(events) = for_all(2_000, late_insert_crash) else { return };
    assert!(events.withdrawn > 75, "{events:?}");
}

/// A recovery that decides by Rule 3 READs the primary again, and gives up if another writer has replaced the word.
// Promise REC-3: Recovery READs the primary before it applies Rule 3.
#[test]
fn a_recovery_that_was_overtaken_gives_up_its_round() {
    let Some(events) = for_all(2_000, recovery_overtaken) else { return };
    assert!(events.dropped > 75, "recovery is hardly ever held up within the round: {events:?}");
}

/// A session knows whether it has left a write half-way. If a session's write is dropped after any number of steps, the
/// session reports that it needs recovery, unless the write has not changed the index.
// Promise REC-6: A session knows whether it left a write half-way.
#[test]
fn a_session_knows_whether_it_left_a_round_half_way() {
    let mut half_way = 0;
    for seed in 0..3_000 {
        let index_replicas = 1 + seed as u8 % 5;
        let options =
            ClusterOptions { memory_nodes: 5, index_replicas, ..ClusterOptions::default() };
        let (rng, cluster) = stepwise(seed, &options);
        let [helper, store] = [cluster.client(), cluster.client()];
        alone(&rng, async {
            helper.insert(b"key", b"old").await.unwrap();
            store.insert(b"other", b"value").await.unwrap();
            assert_eq!(store.update(b"none", b"", None).await, Err(Error::NotFound));
        });
        assert!(!store.needs_recovery(), "every operation came to its end");
        let before = index(&cluster);
        let ended = alone(&rng, async {
            cut_off(rng.below(30) as u64, async {
                match rng.below(3) {
                    0 => store.update(b"key", b"new", None).await.map(drop),
                    1 => store.delete(b"key", None).await.map(drop),
                    _ => store.insert(b"new", b"value").await.map(drop),
                }
            })
            .await
        });
        match ended {
            Some(result) => assert_eq!((result, store.needs_recovery()), (Ok(()), false)),
            None => assert!(store.needs_recovery() || before == index(&cluster)),
        }
        half_way += usize::from(store.needs_recovery());
    }
    assert!((400..2_500).contains(&half_way), "{half_way}");
}

/// A memory node fails during a write. A write with an unknown outcome needs recovery. A write with a known outcome
/// leaves nothing in the index, but needs recovery as well if the WRITE of its object had no answer.
#[test]
fn a_write_with_an_unknown_outcome_needs_recovery() {
    let mut known = 0;
    let mut unanswered = 0;
    let mut unknown = 0;
    for seed in 0..2_000 {
        let (rng, cluster) = stepwise(seed, &ClusterOptions::default());
        let store = cluster.client();
        alone(&rng, async { store.insert(b"key", b"old").await.map(drop).unwrap() });
        let result = Cell::new(None);
        let mut stepper = Stepper::new(&rng);
        stepper.spawn(async { result.set(Some(store.update(b"key", b"new", None).await)) });
        stepper.spawn(async {
            idle(rng.below(40)).await;
            cluster.nodes().crash(MnId(rng.below(3) as u16));
        });
        stepper.run(1_000_000, || ());
        let Some(Err(error)) = result.into_inner() else { continue };
        let is_unknown = error.outcome() == FailedWriteOutcome::Unknown;
        *match (is_unknown, store.needs_recovery()) {
            (true, true) => &mut unknown,
            (true, false) => panic!("{error}"),
            (false, true) => &mut unanswered,
            (false, false) => &mut known,
        } += 1;
    }
    let often = known > 10 && unanswered > 50 && unknown > 100;
    assert!(often, "{known}, {unanswered}, {unknown}");
}
