//! Seeds of `fusee sim` that once broke a promise, and keep all of them now.
//!
//! What a seed does changes with everything that a run draws from; so each of these defects has a test of
//! its own besides, by which it can be told apart.

use fusee_sim::{Fault, RunOptions, Scenario, run};

/// Runs a seed, shortened if it was.
fn holds(scenario: Scenario, seed: u64, operations: Option<usize>, clients: Option<usize>) {
    let outcome = run(&RunOptions { operations, clients, ..RunOptions::new(scenario, seed) });
    assert!(outcome.failure.is_none(), "{} {seed}: {:?}", scenario.name(), outcome.failure);
}

/// A block was granted again before its return had been acknowledged, and forgotten.
#[test]
fn a_block_granted_again_while_it_is_given_back_is_not_lost() {
    holds(Scenario::Mixed, 666, Some(1246), Some(4));
    holds(Scenario::Mixed, 666, None, None);
    holds(Scenario::Mixed, 7_773_660, None, None);
    holds(Scenario::Mixed, 7_782_417, None, None);
}

/// A block was found in the tables by one request while another one was being granted it.
#[test]
fn a_block_is_granted_to_one_request() {
    holds(Scenario::Elastic, 70_060_316, Some(697), None);
    holds(Scenario::Elastic, 70_060_316, None, None);
}

/// A fault struck when all clients had ended, while the last reads and checks were under way.
#[test]
fn nothing_goes_wrong_any_more_when_a_run_is_judged() {
    holds(Scenario::Reuse, 7_797_399, None, None);
    holds(Scenario::Elastic, 7_808_785, None, None);
    holds(Scenario::Elastic, 7_804_564, None, None);
}

/// A block whose header could not be read, since a memory node was silent, was no reason not to ask for the next
/// one: regions were added without an end.
#[test]
fn a_session_asks_for_no_block_before_it_knows_the_last_one() {
    holds(Scenario::Unsteady, 94, None, None);
}

/// Recovery took zeros in a block for objects that had never been allocated, though their bits were set. With
/// two of these what was seen of it was a pair that was set free.
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

/// Two operations posted different headers of one block side by side, and the client died within both.
#[test]
fn headers_of_one_use_make_one_header() {
    holds(Scenario::Crashes, 90_000_267, Some(1380), Some(4));
    holds(Scenario::Crashes, 90_000_471, Some(687), Some(2));
    holds(Scenario::Crashes, 90_001_713, None, None);
    holds(Scenario::Crashes, 90_001_948, None, None);
}

/// The master was crashed every 7 ms until the operations were through, which they never were.
#[test]
fn a_run_that_is_disturbed_for_too_long_is_left_alone() {
    holds(Scenario::Unsteady, 80_000_318, None, None);
}

/// An identity that stood on a lost node alone counted until zeros were written there.
#[test]
fn what_is_lost_with_its_node_does_not_stand_any_more() {
    holds(Scenario::Reuse, 90_003_370, None, Some(3));
    holds(Scenario::Reuse, 90_003_370, None, None);
}

/// The WRITE of an object was on its way for long. Its session had left, and another one had the block.
#[test]
fn who_waits_for_an_answer_does_not_leave() {
    holds(Scenario::Unsteady, 120_019_748, None, None);
}

/// After a switch one replica was damaged, and a session that had not heard of the new one found no other.
#[test]
fn a_good_replica_is_one_that_everybody_knows() {
    holds(Scenario::Damage, 110_000_250, Some(782), Some(2));
    holds(Scenario::Damage, 110_000_250, None, None);
}

/// A session took a block over by what the master still had of an earlier owner, and got it from the pool as well.
#[test]
fn a_block_from_the_pool_is_not_taken_over_as_well() {
    holds(Scenario::Reuse, 140_076_338, None, Some(2));
    holds(Scenario::Reuse, 140_076_338, None, None);
}

/// A client died after it had written one data chunk of the next life of an EC-oriented object. The parity that was
/// made then was that of the life before, which still stood: nobody uses either, and the check knew no such case.
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

/// Where leases have no end, the time until fences are sent again has one: the sum ran over.
#[test]
fn many_clients_fence_their_repairers() {
    holds(Scenario::Mixed, 2, Some(3158), Some(122));
    holds(Scenario::Mixed, 12, Some(2732), Some(128));
}

/// A session that lends a block leaves to a comparison what it has reclaimed of it, and did not say so.
#[test]
fn a_block_that_is_lent_is_compared() {
    holds(Scenario::Mixed, 20, Some(1474), Some(128));
    holds(Scenario::Mixed, 28, Some(5000), Some(128));
}

/// The block of a copy was sealed when a memory node was lost, and a part of the new header stood. The check took from
/// there how long the copy is, as no reader does.
#[test]
fn a_copy_is_there_whatever_the_header_of_its_block_shows() {
    holds(Scenario::Oriented, 400_008_746, Some(937), None);
    holds(Scenario::Oriented, 400_008_746, None, None);
}

/// A pair of three replicas had lost a data chunk, so that its two copies alone were left. One of them was damaged, and
/// then the node of the other one was lost: more than is promised.
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

/// An INSERT looked on a backup, by a view in which a region had no replica on that node yet. By the next view it had,
/// and a speculative word stood there, whose object was whole on that node alone.
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

/// A session had followed a view that a joining memory node was no member of yet, and never reached it afterwards. A
/// chunk was there of a pair of which another one was damaged: the pair counted as lost, as if nobody could read it.
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

/// A session was fenced while it overwrote an emptied block by zeros: on one replica they were there, and on the others
/// what had been there before. A repair put that beside, and the check took it for a life that came back.
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

/// The log object of a dead client's speculative DELETE stood on one memory node when a change gave the slot its word.
/// That node was lost: the object seemed new to recovery, and whoever replaced the word freed it beside its next life.
#[test]
fn a_log_object_is_completed_before_its_word_is_settled() {
    let options = RunOptions {
        operations: Some(650),
        clients: Some(3),
        without: [Fault::ForeignMaster, Fault::Damage].into(),
        switches: true,
        ..RunOptions::new(Scenario::Storm, 820_037_144)
    };
    let outcome = run(&options);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
}

/// A block was given back by one session while the master still had a record of it, from another one before. Whoever
/// goes by the record is refused: nothing of the block is lost.
#[test]
fn a_record_of_a_block_that_was_given_back_is_no_loss() {
    holds(Scenario::Reuse, 1_000_018_166, None, None);
    holds(Scenario::None, 1_000_021_084, None, None);
}
