//! Tests of the gate: freed objects that wait for their free bits, and their revocation; and the sign that a session
//! possibly frees memory soon.

// Promise MEM-4

use std::sync::Arc;

use fusee_control::master::Orphan;
use fusee_control::node::BlockId;
use fusee_core::host::PinnedOperations;
use fusee_core::layout::SizeClass;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_core::view::{Geometry, View};

use super::SessionGate;

/// Copy of the gate's private constant: number of epochs after which waiting objects are revoked.
const REVOKED_AFTER: u64 = 16;

fn gate() -> SessionGate {
    let view = View {
        number: 1,
        cluster: ClusterId::from_word(1).expect("it is not 0"),
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry::default(),
        members: Vec::new(),
        regions: Vec::new(),
        directory: Vec::new(),
        subtables: Vec::new(),
        change: None,
    };
    SessionGate::new(ClientId(1), Arc::new(view), 0)
}

fn frees_in(gate: &SessionGate) -> u64 {
    gate.heartbeat().frees_in
}

fn pass_epochs(gate: &SessionGate, until: u64) {
    for epoch in gate.epoch() + 1..=until {
        gate.publish_epoch(epoch);
        gate.heartbeat();
    }
}

/// An operation that began early can free an object after a later operation has freed one.
#[test]
fn what_waits_is_as_old_as_the_oldest_operation_that_freed_it() {
    let gate = gate();
    let older = gate.local_epoch();
    gate.publish(PinnedOperations { oldest: Some(older), suspended: 0 });
    pass_epochs(&gate, 2);
    gate.freed.publish_older(gate.local_epoch());
    assert_eq!(frees_in(&gate), 0, "the older one still acts");
    gate.freed.publish_older(older);
    gate.publish(PinnedOperations { oldest: None, suspended: 0 });
    assert_eq!(frees_in(&gate), 0);
    gate.freed.publish_older(gate.local_epoch());
    assert_eq!(frees_in(&gate), 0, "a newer one changes nothing");
    assert!(gate.freed.may_set_free());
    assert_eq!(frees_in(&gate), 0, "it is not set free yet");
    gate.freed.publish(None);
    assert_eq!(frees_in(&gate), 2);
}

#[test]
fn what_waits_for_long_is_revoked_and_never_marked() {
    let gate = gate();
    gate.freed.publish_older(gate.local_epoch());
    pass_epochs(&gate, REVOKED_AFTER);
    assert_eq!(frees_in(&gate), 0);
    pass_epochs(&gate, REVOKED_AFTER + 1);
    assert_eq!(frees_in(&gate), REVOKED_AFTER + 1);
    gate.freed.publish_older(gate.local_epoch());
    assert!(!gate.freed.may_set_free(), "all of it is revoked");
    gate.freed.publish_older(gate.local_epoch());
    assert!(gate.freed.may_set_free(), "that was freed since");
}

/// If objects were revoked while the session sets their free bits, a comparison would take them for garbage and set
/// their bits a second time.
#[test]
fn what_is_being_marked_is_not_revoked() {
    let gate = gate();
    gate.freed.publish_older(gate.local_epoch());
    assert!(gate.freed.may_set_free());
    pass_epochs(&gate, 3 * REVOKED_AFTER);
    assert_eq!(frees_in(&gate), 0);
    gate.freed.publish_older(gate.local_epoch());
    assert_eq!(frees_in(&gate), 0);
    gate.freed.publish(None);
    assert_eq!(frees_in(&gate), 3 * REVOKED_AFTER);
}

/// A mark passes only with the answer to a heartbeat that the keeper sent after the mark was taken.
#[test]
fn a_mark_has_passed_when_a_later_question_has() {
    let gate = gate();
    gate.questions.asks(3);
    let mark = gate.mark();
    gate.questions.tell_passed(3, 3);
    assert!(!gate.questions.has_passed(mark) && !gate.questions.is_settled(mark));
    assert!(gate.questions.are_awaited() && gate.questions.are_wanted());
    gate.questions.tell_passed(4, 3);
    assert!(gate.questions.has_passed(mark) && !gate.questions.is_settled(mark));
    gate.questions.tell_passed(4, 4);
    assert!(gate.questions.is_settled(mark));
}

/// A session that is short of memory is allowed to ask again as long as the heartbeat of some session says that the
/// session possibly frees memory soon (`stirs`).
#[test]
fn a_session_stirs_while_it_may_free_something_or_looks_for_memory() {
    let gate = gate();
    let stirs = || gate.heartbeat().stirs;
    assert!(!stirs());
    gate.publish(PinnedOperations { oldest: Some(0), suspended: 0 });
    assert!(stirs(), "an operation runs");
    gate.publish(PinnedOperations { oldest: None, suspended: 0 });
    gate.freed.publish(Some(0));
    assert!(stirs(), "something waits to be set free");
    gate.freed.publish(None);
    gate.offers.take_back();
    assert!(
        gate.offers.withholds(1) && stirs(),
        "it looks for memory, and others have called for some"
    );
    gate.publish(PinnedOperations { oldest: Some(0), suspended: 0 });
    gate.offer(vec![], vec![]);
    assert!(stirs(), "an operation runs");
    gate.offers.take_back();
    assert!(!gate.offers.withholds(1) && !stirs(), "it had nothing, and goes on looking");
    gate.publish(PinnedOperations { oldest: None, suspended: 0 });
    gate.offers.tell_frees_soon(true);
    assert!(stirs(), "a block is on its way to the pool");
    gate.offers.tell_frees_soon(false);
    assert!(!stirs());
}

/// Returns a block as a session offers it.
fn left(number: u32) -> Orphan {
    let order = Geometry::default().max_order();
    Orphan {
        block: BlockId { region: 0, frame: number << order, order },
        owner: ClientId(1),
        class: SizeClass::from_code(1).expect("there is one"),
        first: 0,
        base: Some(0),
        marked: None,
    }
}

/// The master would not give the session its own blocks again.
#[test]
fn a_spared_session_keeps_its_surplus_blocks() {
    let gate = gate();
    assert_eq!(gate.offers.hand_on(0, true), None);
    gate.offer(vec![left(1)], vec![left(2)]);
    assert!(!gate.offers.are_pressing());
    assert_eq!(gate.offers.hand_on(0, true), None);
    // Now another session is short, too.
    let batch = gate.offers.hand_on(8, false).expect("it hands on all");
    assert_eq!((batch.orphans, batch.used), (vec![left(1), left(2)], vec![left(2).block]));
}

/// A session that looks for memory offers its blocks only for moments, so blocks for a call for memory must be put into
/// a batch when it makes the offer.
#[test]
fn a_call_gets_its_part_at_the_moment_of_the_offer() {
    let gate = gate();
    gate.offers.take_back();
    assert!(gate.offers.withholds(7) && !gate.offers.are_pressing());
    gate.offer(vec![left(1), left(2)], vec![]);
    assert!(gate.offers.are_pressing());
    assert_eq!(gate.offers.take_back(), [left(1).block]);
    // The keeper need not wait for the session any more, and the session hands on nothing more for this call.
    assert!(!gate.offers.withholds(7));
    gate.offer(vec![left(2)], vec![]);
    let batch = gate.offers.hand_on(7, false).expect("the master does not know of it yet");
    assert_eq!(batch.orphans, [left(1)]);
    gate.offers.handed_on(batch.serial);
    assert_eq!(gate.offers.hand_on(7, false), None);
    assert!(!gate.offers.are_pressing());
}
