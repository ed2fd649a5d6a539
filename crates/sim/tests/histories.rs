//! Tests that run random operations of random clients on a few keys, step by step. Every history must be linearizable,
//! and no key must be live twice at any step.
//!
//! A failure prints its seed; `FUSEE_SIM_SEED=<seed>` runs only that seed again.

// Promise LIN-1

use crate::support::scenarios;
use crate::support::seeds::Seeds;

fn for_all(seeds: u64, scenario: fn(u64)) {
    Seeds::of(seeds).for_each(scenario);
}

#[test]
fn operations_of_all_kinds_are_linearizable() {
    for_all(5_000, scenarios::mixed);
}

/// In the hard case for INSERT, several clients insert one key into different free slots, while DELETEs and other keys
/// change which slots are free.
#[test]
fn inserts_of_one_key_among_moving_slots_are_linearizable() {
    for_all(5_000, scenarios::fight);
}

/// All clients crash together after a random number of steps, and then a memory node with index replicas is lost. Each
/// slot that the node held is settled in a random way that P §5.2 allows. New clients see every write that was
/// acknowledged or observed.
#[test]
fn what_crashed_clients_leave_survives_the_loss_of_an_index_node() {
    for_all(3_000, scenarios::crash);
}
