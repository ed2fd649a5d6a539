//! A view without a member takes effect only when no session can read from the members of an earlier view. That depends
//! on the view numbers that members show, on the number of members, and on leases.

// Promise SIL-1: A view without a member waits for other members and leases.

use fusee_core::verbs::MnId;
use fusee_core::view::change::ChangeStage;
use fusee_master::logic::MasterEvent;
use fusee_master::record::MasterRecord;

use super::world::{LEASE_MS, TickCluster, settings};

fn stage(world: &TickCluster) -> Option<ChangeStage> {
    world.view().change.map(|change| change.stage)
}

fn shown(world: &TickCluster) -> Vec<u64> {
    world.nodes.borrow().iter().map(|node| node.header().view).collect()
}

/// Returns for how long the change that removed this node was frozen, in milliseconds.
fn frozen_ms(world: &mut TickCluster, lost: MnId) -> u64 {
    let status = world.status();
    let mut losses = status.last_reconfigurations.into_iter();
    losses.find(|change| change.lost.contains(&lost)).expect("it was lost").frozen_ms
}

#[test]
fn members_show_the_view_that_they_stand_at() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.pass(100);
    assert_eq!(shown(&world), [1, 1, 1], "the first view");
    world.kill(1);
    world.until("redundancy", TickCluster::is_whole);
    let shows = shown(&world);
    assert!(shows[0] > 1 && shows[0] == shows[2] && shows[1] == 1, "{shows:?}");
    world.add_node();
    world.until("a member", |world| world.view().member(MnId(3)).is_some() && world.is_whole());
    assert!(shown(&world)[3] > shows[0], "a new member stands at its first view");
    assert!(!world.disk.contains_key("former"), "nobody reads by an earlier view");
}

#[test]
fn a_view_without_a_member_waits_until_all_others_show_it() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(100);
    world.nodes.borrow_mut()[2].is_deaf = true;
    world.kill(1);
    for restarts in 0..3 {
        world.pass(3 * LEASE_MS);
        assert_eq!(
            stage(&world),
            Some(ChangeStage::Frozen),
            "{restarts}: node 2 shows the first view"
        );
        assert_eq!(shown(&world)[1..], [1, 1]);
        world.restart_master();
    }
    world.nodes.borrow_mut()[2].is_deaf = false;
    world.until("redundancy", TickCluster::is_whole);
    assert!(shown(&world)[2] > 1);
    assert!(!world.sessions[0].expelled, "{:#?}", world.log);
}

#[test]
fn half_of_the_members_may_be_lost_at_once_and_more_only_after_a_lease() {
    let mut two = TickCluster::formed(settings(2, 2, 2));
    two.open();
    two.pass(100);
    two.kill(1);
    let is_over =
        |world: &mut TickCluster| world.view().members.len() == 1 && stage(world).is_none();
    two.until("the end of the change", is_over);
    assert!(frozen_ms(&mut two, MnId(1)) < LEASE_MS / 2, "{:#?}", two.log);

    let mut three = TickCluster::formed(settings(3, 3, 3));
    three.open();
    three.pass(100);
    three.kill(1);
    three.kill(2);
    three.until("the end of the change", is_over);
    assert!(frozen_ms(&mut three, MnId(2)) > LEASE_MS, "{:#?}", three.log);
}

/// The session's connection broke right after a heartbeat, so the session possibly reads for another lease from the
/// members of its view.
#[test]
fn a_session_that_was_heard_a_moment_ago_is_waited_for() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.open();
    world.pass(100);
    world.sessions[1].renews = false;
    world.feed(MasterEvent::ConnectionClosed { connection: 2 });
    world.kill(1);
    world.pass(LEASE_MS / 2);
    assert_eq!(world.status().expired_sessions, 1, "{:#?}", world.log);
    assert_eq!(stage(&world), Some(ChangeStage::Frozen), "{:#?}", world.log);
    world.until("redundancy", TickCluster::is_whole);
    assert!(frozen_ms(&mut world, MnId(1)) > LEASE_MS / 2);
    assert_eq!(world.status().recoveries, 1);
}

/// When a member is lost, some session possibly does not know yet of a member that joined shortly before.
#[test]
fn the_members_before_are_remembered_until_all_show_the_next_view() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(100);
    world.nodes.borrow_mut()[0].is_deaf = true;
    world.add_node();
    world.until("a member", |world| world.view().member(MnId(3)).is_some());
    let before = MasterRecord::Former(vec![vec![MnId(0), MnId(1), MnId(2)]]);
    assert_eq!(world.disk.get("former"), Some(&before));
    world.nodes.borrow_mut()[0].is_deaf = false;
    world.until("its share", TickCluster::is_whole);
    assert_eq!(world.disk.get("former"), None);
}
