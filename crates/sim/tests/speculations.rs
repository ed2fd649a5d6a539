//! Tests of UPDATEs and DELETEs that begin with a speculative write, under all possible interruptions, with thousands
//! of seeds.
//!
//! A failure prints its seed; `FUSEE_SIM_SEED=<seed>` runs only that seed again.

// Promise LIN-13: Speculative writes are linearizable, whatever becomes of their verbs.

use crate::support::failures::{FailureCounts, for_all};
use crate::support::speculations::{
    crash, half_moved, index_loss, loss, lost_single, moves, recurring_turn, recurring_word,
    used_again,
};

/// Returns the number of seeds to run.
fn seeds(usual: u64) -> u64 {
    std::env::var("FUSEE_SIM_SEEDS")
        .map_or(usual, |n| n.parse().expect("FUSEE_SIM_SEEDS is a number"))
}

fn assert_hard(events: &FailureCounts, speculations: u64, crashed: u64) {
    assert!(events.speculations > speculations && events.crashed > crashed, "{events:?}");
}

/// Clients die within speculative writes. Recovery finds objects that are complete on only some replicas, and completes
/// them.
#[test]
fn dead_speculations_are_recovered_beside_living_ones() {
    let Some(events) = for_all(seeds(2_000), crash) else { return };
    assert_hard(&events, 3_000, 1_000);
    assert!(events.committed > 50, "{events:?}");
}

/// Clients die within speculative writes, and a memory node with index replicas is lost. Settling completes the objects
/// of the words that it chooses.
#[test]
fn what_dead_speculations_left_survives_the_loss_of_an_index_node() {
    let Some(events) = for_all(seeds(2_000), index_loss) else { return };
    assert_hard(&events, 2_000, 900);
    assert!(events.slots_settled > 100, "{events:?}");
}

/// View changes stop speculative writes, which then start again.
#[test]
fn speculations_go_on_when_memory_nodes_are_lost() {
    let Some(events) = for_all(seeds(2_000), loss) else { return };
    assert_hard(&events, 3_000, 500);
    assert!(events.stopped > 300 && events.slots_settled > 100, "{events:?}");
}

/// Replicas move, so that objects are on the nodes of their slots' backups at first, and elsewhere later.
#[test]
fn replicas_move_beside_speculations() {
    let Some(events) = for_all(seeds(2_000), moves) else { return };
    assert_hard(&events, 2_000, 500);
    assert!(events.moved > 1_000, "{events:?}");
}

/// Addresses are reused, and therefore slot words recur that a session possibly remembers.
#[test]
fn memory_is_used_again_beside_speculations() {
    let Some(events) = for_all(seeds(1_500), used_again) else { return };
    assert_hard(&events, 4_000, 500);
}

/// A session makes no speculative write from a word that it saw a whole window of epochs ago.
#[test]
fn a_word_that_comes_back_is_not_taken_for_the_one_that_was() {
    let steered = (0..seeds(2_000)).filter(|seed| recurring_word(*seed)).count();
    assert!(steered > 300, "{steered}");
}

/// The words of EC-oriented pairs recur sooner than other words. A session makes no speculative write from a word of an
/// EC-oriented pair that it saw half a window of epochs ago.
#[test]
fn the_word_of_a_turn_is_not_taken_for_the_one_that_was() {
    (0..seeds(1_000)).for_each(recurring_turn);
}

/// A speculative write with an old hint does not bring back a key that was lost with its only memory node.
#[test]
fn a_lost_pair_is_not_written_by_an_old_hint() {
    (0..seeds(200)).for_each(lost_single);
}

/// A replica of a region moves while it has the only complete object of a dead client's word. The object survives.
#[test]
fn what_a_dead_speculation_left_survives_a_move() {
    let Some(events) = for_all(seeds(1_000), half_moved) else { return };
    assert!(events.committed > 100, "{events:?}");
}
