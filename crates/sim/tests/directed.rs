//! Tests that run the steered histories, each under some thousand schedules.

use crate::support::seeds::Seeds;
use crate::support::{
    crowded, gone, in_doubt, late_repairs, placements, scripted, steered, steered_changes,
    steered_reuse, turns,
};

/// Runs a history for every seed. Asserts that the intended schedule occurs often enough for the test to be meaningful.
fn for_all(seeds: u64, history: fn(u64) -> bool) {
    let seeds = Seeds::of(seeds);
    let are_all = seeds.are_all;
    let mut steered = 0;
    seeds.for_each(|seed| steered += u64::from(history(seed)));
    assert!(!are_all || steered > 100, "the schedule is hardly ever the intended one: {steered}");
}

// Promise LIN-9: An INSERT's look counts only behind its own CAS.
#[test]
fn a_look_before_the_own_word_stands_proves_nothing() {
    for_all(4000, steered::early_look);
}

// Promise LIN-10: A slot free on a backup may be live on the primary.
#[test]
fn a_slot_that_is_free_on_a_backup_may_be_live_on_the_primary() {
    for_all(4000, steered::freed_slot);
}

#[test]
fn what_a_look_sees_is_read_where_it_was_seen() {
    for_all(4000, steered::speculated_entry);
}

// Promise LIN-14: The start of an object proves nothing if read before the slot.
#[test]
fn the_start_of_an_object_proves_nothing_if_it_was_read_before_the_slot() {
    for_all(4000, steered::early_prefix);
}

#[test]
fn inserts_beside_one_that_stands_still_go_on_when_it_does() {
    for_all(1000, steered::standstill);
}

// Promise CHG-13: A dead master's repair executes nothing among its successor's.
#[test]
fn nothing_of_a_dead_masters_repairs_comes_between_the_next_ones() {
    for_all(1000, late_repairs::late_repairs);
}

#[test]
fn what_jobs_have_asked_for_changes_nothing_when_it_comes_late() {
    for_all(500, late_repairs::late_orders);
}

// Promise CHG-14: No writer is suspended while its verbs may execute.
#[test]
fn nothing_that_a_writer_has_given_up_comes_after_the_replicas_are_equal() {
    for_all(1000, in_doubt::in_doubt);
}

// Promise CHG-22: Keys that hash alike get their own error; depth is bounded.
#[test]
fn keys_that_hash_alike_are_refused_by_an_error_of_their_own() {
    (0..10).for_each(crowded::crowded);
}

// Promise CHG-22
#[test]
fn the_index_is_no_deeper_than_its_subtables_deserve() {
    (0..10).for_each(crowded::asks_too_much);
}

#[test]
fn masters_serve_all_who_wish_for_a_change() {
    for seed in 0..20 {
        turns::split_once(seed);
        turns::replicas_have_turns(seed);
        turns::forgotten_split(seed);
        turns::starved_master(seed);
        turns::unheard_nodes(seed);
        turns::many_deaths(seed);
    }
}

// Promise API-28
#[test]
fn operations_end_by_their_own_clocks_when_all_are_gone() {
    (0..200).for_each(gone::gone);
}

// Promise CHG-15: No write bypasses a replica that is still read.
#[test]
fn nobody_writes_beside_a_replica_that_others_still_read() {
    for_all(1000, steered_changes::beside_lost_replica);
}

// Promise MEM-6: Free bits count as seen when their READ ends.
#[test]
fn what_a_look_sees_is_as_old_as_its_end() {
    for_all(1000, steered_reuse::early_mark);
}

#[test]
fn a_write_without_a_named_redundancy_gets_the_pairs_or_the_rules() {
    for seed in 0..20 {
        placements::stale_hint(seed);
        placements::newer_view(seed);
        placements::lost_column(seed);
        placements::wrong_hint(seed);
        placements::ignored_options(seed);
        placements::unheard_refusal(seed);
        placements::grown_cluster(seed);
        placements::barred_primary(seed);
    }
    for seed in 0..200 {
        placements::vanishing_pair(seed);
        placements::vanishing_found(seed);
        placements::named_loser(seed);
        placements::short_loser(seed);
        placements::loser_by_other_rule(seed);
        placements::named_as_it_was(seed);
        placements::moved_meanwhile(seed);
    }
}

/// Runs the scripts without any mutant.
// Promise MEM-7: Late free bits, objects and repairs, and replaced bitmaps, do no harm.
#[test]
fn sessions_promise_what_their_surroundings_rely_on() {
    let scripts: [fn(u64); 24] = [
        scripted::marks::left_behind,
        scripted::marks::seen_elsewhere,
        scripted::marks::late_mark,
        scripted::doubts::beside_a_write,
        scripted::doubts::lost_word,
        scripted::doubts::late_repair,
        scripted::doubts::region_to_come,
        scripted::doubts::own_memory_first,
        scripted::doubts::unanswered_read,
        scripted::doubts::dropped_write,
        scripted::speculations::half_written,
        scripted::speculations::of_a_newer_view,
        scripted::generations::given_back,
        scripted::generations::emptied,
        scripted::generations::laggard,
        scripted::generations::takeover,
        scripted::generations::dies_when_it_is_empty,
        scripted::generations::inherited_while_it_waits,
        scripted::generations::wrapped,
        scripted::seals::half_sealed,
        scripted::seals::leaves,
        scripted::seals::zeros,
        scripted::seals::torn,
        scripted::seals::unread,
    ];
    scripts.into_iter().for_each(|script| (0..10).for_each(script));
}
