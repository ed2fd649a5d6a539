//! Tests with full pools. The memory of killed clients becomes usable again, and DELETEs are never refused.

use crate::support::refill;

// Promise MEM-20: Killed clients cost no memory in full pools.
#[test]
fn what_fitted_fits_again_when_clients_were_killed() {
    (0..3).for_each(refill::refill);
}

/// Fills a larger pool and kills the clients 50 times, either always with the same pairs or each time with other pairs.
/// Takes a minute.
#[test]
#[ignore = "takes long; prints how many pairs fit"]
fn fill_and_kill_fifty_times() {
    for first_key in [|_| 0, |round| round << 32] {
        let fits = refill::fits(1, 16, 50, first_key);
        println!("{fits:?}");
        assert!(fits[49] * 100 >= fits[0] * 99, "{fits:?}");
    }
}

// Promise MEM-19: A full pool is emptied by DELETEs, and all of it is used again.
#[test]
fn a_full_pool_is_emptied_by_deletes() {
    let slowest = (0..5).map(refill::empty).max();
    println!("the slowest delete took {} ms", slowest.unwrap_or(0) / 1_000_000);
    assert!(slowest < Some(100_000_000), "{slowest:?} ns");
}

// Promise MEM-33: Memory of one length serves every other.
#[test]
fn memory_of_one_length_serves_every_other() {
    (0..3).for_each(refill::lengths);
    (0..3).for_each(refill::small_blocks);
}

// Promise MEM-35: Sparse blocks are emptied for values of other lengths.
#[test]
fn memory_of_deleted_pairs_serves_other_lengths_although_no_block_is_empty() {
    (0..3).for_each(|seed| refill::sparse(seed, true));
    (0..3).for_each(|seed| refill::sparse(seed, false));
}

// Promise MEM-34: A session that writes little takes little memory.
#[test]
fn many_sessions_with_a_pair_each_fit_in_a_small_pool() {
    (0..3).for_each(refill::sessions);
}

// Promise MEM-17: Full pools refuse soon.
#[test]
fn who_is_refused_in_a_full_pool_hears_so_soon() {
    let slowest = (0..5).map(refill::refuse).max();
    println!("the slowest refusal took {} ms", slowest.unwrap_or(0) / 1_000_000);
    assert!(slowest < Some(150_000_000), "{slowest:?} ns");
}

#[test]
fn who_waits_for_memory_keeps_nothing_that_others_wait_for() {
    (0..5).for_each(refill::swap);
}

// Promise MEM-18: No update is refused while pairs take half of a pool.
#[test]
fn nobody_is_refused_an_update_while_others_make_room() {
    let slowest = (0..3).map(refill::update).max();
    println!("the slowest update took {} ms", slowest.unwrap_or(0) / 1_000_000);
}
