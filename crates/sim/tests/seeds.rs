//! Seeds of `fusee-bench sim` that once broke a promise, and keep all promises now. The comment of each test says what
//! went wrong at that time.
//!
//! The run of a seed changes with every change to the random draws. Therefore each of these defects also has a test of
//! its own.

// Promise CHK-8: Seeds that once broke a promise hold.

use fusee_sim::{Fault, RunOptions, Scenario, run};

/// Runs a seed, shortened if options are given, and asserts that it keeps all promises.
fn holds(scenario: Scenario, seed: u64, operations: Option<usize>, clients: Option<usize>) {
    let outcome = run(&RunOptions { operations, clients, ..RunOptions::new(scenario, seed) });
    assert!(outcome.failure.is_none(), "{} {seed}: {:?}", scenario.name(), outcome.failure);
}

/// A block was granted again before its return had been acknowledged, and no record of the block remained.
#[test]
fn a_block_granted_again_while_it_is_given_back_is_not_lost() {
    holds(Scenario::Mixed, 666, Some(1246), Some(4));
    holds(Scenario::Mixed, 666, None, None);
    holds(Scenario::Mixed, 7_773_660, None, None);
    holds(Scenario::Mixed, 7_782_417, None, None);
}

/// One request found a block in the tables while the same block was being granted to another request.
#[test]
fn a_block_is_granted_to_one_request() {
    holds(Scenario::Elastic, 70_060_316, Some(697), None);
    holds(Scenario::Elastic, 70_060_316, None, None);
}

/// A fault was injected after all clients had ended, during the last reads and checks.
#[test]
fn nothing_goes_wrong_any_more_when_a_run_is_judged() {
    holds(Scenario::Reuse, 7_797_399, None, None);
    holds(Scenario::Elastic, 7_808_785, None, None);
    holds(Scenario::Elastic, 7_804_564, None, None);
}

/// A session could not read the header of its block, because a memory node was silent, and still asked for the next
/// block. Regions were added without end.
#[test]
fn a_session_asks_for_no_block_before_it_knows_the_last_one() {
    holds(Scenario::Unsteady, 94, None, None);
}

/// Recovery treated zeros in a block as objects that had never been allocated, although their bits were set. With two
/// such objects, recovery treated a freed pair as the last object.
#[test]
fn what_had_been_allocated_is_not_new() {
    for seed in [80_000_091, 80_000_245, 80_000_850, 80_003_105, 80_003_435] {
        holds(Scenario::Reuse, seed, None, None);
    }
}

/// A session sealed a block whose header it had not read.
#[test]
fn the_base_of_a_block_is_not_lost() {
    holds(Scenario::Reuse, 80_001_829, None, Some(2));
    holds(Scenario::Reuse, 80_001_829, None, None);
}

/// Two operations posted different headers of one block at one time, and the client died during both WRITEs.
#[test]
fn headers_of_one_use_make_one_header() {
    holds(Scenario::Crashes, 90_000_267, Some(1380), Some(4));
    holds(Scenario::Crashes, 90_000_471, Some(687), Some(2));
    holds(Scenario::Crashes, 90_001_713, None, None);
    holds(Scenario::Crashes, 90_001_948, None, None);
}

/// The master crashed every 7 ms until the operations would have ended, and therefore they never ended.
#[test]
fn a_run_that_is_disturbed_for_too_long_is_left_alone() {
    holds(Scenario::Unsteady, 80_000_318, None, None);
}

/// An identity that was only on a lost node was treated as present until zeros were written there.
#[test]
fn what_is_lost_with_its_node_does_not_stand_any_more() {
    holds(Scenario::Reuse, 90_003_370, None, Some(3));
    holds(Scenario::Reuse, 90_003_370, None, None);
}

/// The WRITE of an object was delayed for a long time. Meanwhile its session left, and another session got the block.
#[test]
fn who_waits_for_an_answer_does_not_leave() {
    holds(Scenario::Unsteady, 120_019_748, None, None);
}

/// After a change had switched, one replica was damaged. A session that did not know the new replica yet found no whole
/// replica.
#[test]
fn a_good_replica_is_one_that_everybody_knows() {
    holds(Scenario::Damage, 110_000_250, Some(782), Some(2));
    holds(Scenario::Damage, 110_000_250, None, None);
}

/// A session adopted a block because of the master's record of an earlier owner, and also got this block from the pool.
#[test]
fn a_block_from_the_pool_is_not_taken_over_as_well() {
    holds(Scenario::Reuse, 140_076_338, None, Some(2));
    holds(Scenario::Reuse, 140_076_338, None, None);
}

/// A client died after it had written one data chunk of the next object at the address of an EC-oriented object. Parity
/// was then made of the earlier object, which was still there. No session uses either object, but the checker did not
/// allow this case.
#[test]
fn what_stands_may_be_put_beside_what_was_left() {
    let options = RunOptions {
        operations: Some(1261),
        clients: Some(4),
        without: [Fault::Damage].into(),
        ..RunOptions::new(Scenario::Oriented, 70_063)
    };
    let outcome = run(&options);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
}

/// With endless leases, the time at which fences are sent again overflowed.
#[test]
fn many_clients_fence_their_repairers() {
    holds(Scenario::Mixed, 2, Some(3158), Some(122));
    holds(Scenario::Mixed, 12, Some(2732), Some(128));
}

/// A session that lends a block leaves the block's reclaimed objects to a comparison. The session did not count these
/// objects.
#[test]
fn a_block_that_is_lent_is_compared() {
    holds(Scenario::Mixed, 20, Some(1474), Some(128));
    holds(Scenario::Mixed, 28, Some(5000), Some(128));
}

/// The block of a copy was being sealed when a memory node was lost, and only a part of the new header was written. The
/// checker took the copy's length from this header, which no reader does.
#[test]
fn a_copy_is_there_whatever_the_header_of_its_block_shows() {
    holds(Scenario::Oriented, 400_008_746, Some(937), None);
    holds(Scenario::Oriented, 400_008_746, None, None);
}

/// A pair of three replicas had lost a data chunk, so only its two copies were left. One copy was damaged, and the node
/// of the other copy was lost. These are more faults than the promise covers.
#[test]
fn nothing_is_damaged_where_copies_alone_are_left() {
    let options = RunOptions {
        operations: Some(311),
        clients: Some(4),
        without: [Fault::Stop].into(),
        switches: true,
        ..RunOptions::new(Scenario::Oriented, 800_004_101)
    };
    let outcome = run(&options);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
}

/// An INSERT looked on a backup, in a view in which a region had no replica on that node. In the next view the region
/// had such a replica, and a speculative word there led to an object that was whole only on that node.
#[test]
fn what_a_newer_view_has_written_is_no_damage() {
    let options = RunOptions {
        clients: Some(3),
        without: [Fault::ForeignMaster].into(),
        switches: true,
        ..RunOptions::new(Scenario::Cuts, 810_001_149)
    };
    let outcome = run(&options);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
}

/// A session had followed a view without a joining memory node, and could not reach that node later. The node had one
/// chunk of a pair, and another chunk was damaged. The pair was treated as lost, as if no session could read it.
#[test]
fn what_a_silent_node_has_is_not_lost() {
    let options = RunOptions {
        operations: Some(824),
        clients: Some(4),
        without: [Fault::Stop].into(),
        switches: true,
        ..RunOptions::new(Scenario::Oriented, 820_004_801)
    };
    let outcome = run(&options);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
}

/// A session was fenced while it overwrote an emptied block with zeros: one replica had zeros, the other ones the
/// earlier contents. A repair copied the earlier contents over the zeros, and the checker treated this as an identity
/// that recurred.
#[test]
fn what_is_zero_on_one_replica_has_not_gone() {
    use Fault::*;
    for (seed, operations, clients, without) in [
        (820_016_966, 356, 4, vec![ClientCrash, Stop, MasterRestart, RecoveryCrash, Drain, Damage]),
        (820_020_581, 600, 3, vec![Stop, LateVerb, Damage]),
    ] {
        let options = RunOptions {
            operations: Some(operations),
            clients: Some(clients),
            without: without.into_iter().collect(),
            switches: true,
            ..RunOptions::new(Scenario::Oriented, seed)
        };
        let outcome = run(&options);
        assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    }
}

/// One session gave a block back while the master still had the record of an earlier owner. This is no loss, because a
/// session that relies on the record is refused.
#[test]
fn a_record_of_a_block_that_was_given_back_is_no_loss() {
    holds(Scenario::Reuse, 1_000_018_166, None, None);
    holds(Scenario::None, 1_000_021_084, None, None);
}
