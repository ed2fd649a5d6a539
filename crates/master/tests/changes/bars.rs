//! Tests of bars, which members set while no master answers: the changes by which the next master settles them, and the
//! beginning of leases.

// Promise SIL-5

use std::sync::atomic::{AtomicU64, Ordering};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;

use super::world::{LEASE_MS, TickCluster, settings};

/// Has a session ask a member to bar another member. By the first member's clock, no master has answered for a long
/// time.
fn bar(world: &TickCluster, at: usize, node: MnId, view: u64) -> NodeReply {
    static LEAPS: AtomicU64 = AtomicU64::new(1);
    let leap = LEAPS.fetch_add(1, Ordering::Relaxed);
    world.nodes.borrow_mut()[at].logic.pass(leap << 40);
    world.ask_node(at, NodeRequest::Bar { client: ClientId(77), node, view })
}

fn is_barred(world: &TickCluster, at: usize) -> bool {
    let (_, bars) = world.nodes.borrow()[at].logic.heartbeat_report();
    !bars.bars.is_empty()
}

fn led_by(view: &View, node: MnId) -> Vec<u32> {
    let led = (0..).zip(&view.subtables).filter(|(_, subtable)| subtable.primary().node == node);
    led.map(|(number, _)| number).collect()
}

/// Returns how long before its request the lease of a new session begins, in milliseconds.
fn behind_ms(world: &mut TickCluster) -> u64 {
    match world.ask(MasterRequest::Open) {
        Some(MasterReply::Opened { behind_ms, client, .. }) => {
            world.ask(MasterRequest::Close { client, orphans: vec![], work: Default::default() });
            behind_ms
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_read_beside_a_primary_is_settled_and_then_bars_are_taken_back() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(LEASE_MS);
    let before = world.view();
    let barred = before.subtables[0].primary().node;
    let at = usize::from(before.subtables[0].backups()[0].node.0);
    let lease_ms = LEASE_MS;
    assert_eq!(bar(&world, at, barred, before.number), NodeReply::Barred { lease_ms });
    world.until("a change", |world| world.view().change.is_some() || !is_barred(world, at));
    world.until("all is settled", |world| !is_barred(world, at));
    let after = world.view();
    assert!(after.change.is_none(), "bars stand until the change is through");
    assert_eq!((after.members.len(), after.number), (3, before.number + 4), "{:#?}", world.log);
    world.pass(LEASE_MS);
    assert_eq!(world.view().number, after.number, "once");
    // The member bars the same node again, in the view that settled the first bar: this is another bar.
    bar(&world, at, barred, after.number);
    world.until("it is settled again", |world| !is_barred(world, at));
    assert!(world.view().number > after.number);
}

#[test]
fn a_master_that_restarts_anywhere_settles_bars_all_the_same() {
    for ticks in 0..60 {
        let mut world = TickCluster::formed(settings(3, 2, 2));
        world.open();
        world.pass(100);
        let view = world.view();
        let barred = view.subtables[0].primary().node;
        let at = usize::from(view.subtables[0].backups()[0].node.0);
        bar(&world, at, barred, view.number);
        world.crash_after.set(Some(world.ticks.get() + ticks));
        world.until("all is settled", |world| !is_barred(world, at));
        assert_eq!(world.view().number, view.number + 4, "{ticks}: once; {:#?}", world.log);
    }
}

/// A change that loses one member also settles the subtables whose primaries are barred.
#[test]
fn a_loss_settles_what_was_read_beside_others() {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    world.open();
    world.pass(100);
    let view = world.view();
    let barred = view.subtables[0].primary().node;
    let backup = view.subtables[0].backups()[0].node;
    let others = view.members.iter().map(|member| member.node);
    let lost = others.clone().find(|node| ![barred, backup].contains(node)).unwrap();
    bar(&world, usize::from(backup.0), barred, view.number);
    world.kill(usize::from(lost.0));
    let mut seen = false;
    world.until("all is settled", |world| {
        let view = world.view();
        if let Some(change) = &view.change
            && change.stage == ChangeStage::Transforming
            && view.member(lost).is_none()
            && is_barred(world, usize::from(backup.0))
        {
            let scope: Vec<u32> = change.subtables.iter().map(|s| s.subtable).collect();
            assert!(led_by(&view, barred).iter().all(|subtable| scope.contains(subtable)));
            seen = true;
        }
        !is_barred(world, usize::from(backup.0)) && world.is_whole()
    });
    assert!(seen || world.view().member(lost).is_none());
}

#[test]
fn nobody_is_admitted_while_there_are_bars() {
    let mut world = TickCluster::formed(settings(2, 2, 2));
    world.pass(100);
    let view = world.view();
    let gone = MnId(900);
    // A bar of a node that no view lists needs no settlement.
    bar(&world, 0, gone, view.number);
    world.until("it is taken back", |world| !is_barred(world, 0));
    assert_eq!(world.view().number, view.number);
    bar(&world, 0, MnId(1), view.number);
    world.add_node();
    world.until("a member", |world| world.view().members.len() == 3);
    assert!(!is_barred(&world, 0), "settled before");
}

#[test]
fn leases_rest_on_contact_with_more_than_half_of_the_members() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.pass(LEASE_MS);
    let behind = behind_ms(&mut world);
    assert!(behind <= LEASE_MS / 4 + 100, "{behind}");
    // A master that has just started has not heard from any member.
    world.restart_master();
    assert_eq!(behind_ms(&mut world), u64::MAX);
    world.pass(LEASE_MS);
    assert!(behind_ms(&mut world) <= LEASE_MS / 4 + 100);
}
