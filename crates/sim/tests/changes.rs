//! Memory nodes are lost, and replicas added, while clients work and die: thousands of seeds.
//!
//! A failure prints its seed; `FUSEE_SIM_SEED=<seed>` runs nothing but that seed again.

use crate::support::changes::{
    cut_off_primary, cut_off_single, cut_off_single_of, moves, node_loss, node_loss_and_return,
    splits,
};
use crate::support::failures::{Events, for_all};
use crate::support::reuse::reuse;
use crate::support::steered_changes::{doubtful_backups, left_behind, settler_dies};

/// Some of the clusters shared their memory: SEARCHes were answered on the spot, and proofs crossed
/// nodes.
fn assert_immediate(events: &Events) {
    assert!(events.searches_now > 300 && events.proofs_across_nodes > 1_000, "{events:?}");
}

/// The paper's §5.2 beside clients that work: nobody loses a write, and nobody is stuck.
#[test]
fn operations_go_on_when_memory_nodes_are_lost() {
    let Some(events) = for_all(2_000, node_loss) else { return };
    assert!(events.crashed > 500 && events.begun_anew > 100, "{events:?}");
    assert!(events.slots_settled > 200 && events.stopped > 500, "{events:?}");
    assert_immediate(&events);
}

/// Redundancy is restored beside clients that write.
#[test]
fn replicas_are_added_beside_writers() {
    let Some(events) = for_all(1_500, node_loss_and_return) else { return };
    assert!(events.crashed > 500 && events.slots_settled > 100, "{events:?}");
    assert_immediate(&events);
}

/// The index grows beside working clients, and while memory nodes are lost.
#[test]
fn the_index_grows_beside_working_clients() {
    let Some(events) = for_all(2_000, splits) else { return };
    assert!(events.moved > 1_000 && events.stopped > 100, "{events:?}");
    assert!(events.begun_anew > 100 && events.crashed > 500, "{events:?}");
    assert_immediate(&events);
}

/// Replicas move beside working clients, and while memory nodes are lost.
#[test]
fn replicas_move_beside_working_clients() {
    let Some(events) = for_all(2_000, moves) else { return };
    assert!(events.moved > 2_000 && events.stopped > 100, "{events:?}");
    assert!(events.begun_anew > 100 && events.crashed > 500, "{events:?}");
    assert_immediate(&events);
}

/// A node that only the master has lost is still read by those who have not heard of it.
#[test]
fn nobody_reads_an_older_value_after_a_newer_one() {
    for_all(2_000, cut_off_primary);
}

/// A key without redundancy is gone for all at once when its node is lost, and can be inserted anew.
#[test]
fn pairs_without_redundancy_go_with_their_node() {
    let Some(events) = for_all(400, cut_off_single) else { return };
    assert!(events.gone > 400 && events.crashed > 150, "{events:?}");
}

/// A pair that is lost, and should not be, is noticed.
#[test]
fn a_loss_that_may_not_be_is_noticed() {
    let is_noticed =
        |seed: &u64| std::panic::catch_unwind(|| cut_off_single_of(*seed, false)).is_err();
    // Where all that is lost is written anew before anybody reads it, nobody can tell.
    assert!((0..10).filter(is_noticed).count() > 5);
}

/// Who still reads where a replica has left a region finds all that he learns of.
#[test]
fn nobody_is_left_behind_at_the_old_place() {
    for_all(1_000, left_behind);
}

/// What the backups of a lost primary have not agreed on is read by nobody.
#[test]
fn nobody_reads_what_a_second_loss_may_undo() {
    let Some(events) = for_all(1_500, doubtful_backups) else { return };
    assert!(events.slots_settled > 100 && events.crashed > 700, "{events:?}");
}

/// What readers saw while a master settled, and died within it, stays when the primary is lost.
#[test]
fn nobody_reads_what_a_settler_that_died_leaves_in_doubt() {
    let Some(events) = for_all(1_000, settler_dies) else { return };
    assert!(events.crashed > 300 && events.cut_off > 500, "{events:?}");
}

/// Memory is used again beside those who still know what it was.
#[test]
fn memory_is_used_again_beside_who_knows_it() {
    let Some(events) = for_all(1_500, reuse) else { return };
    assert!(events.crashed > 500, "{events:?}");
    assert_immediate(&events);
}
