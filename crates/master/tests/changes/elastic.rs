//! The pool grows and shrinks: regions on demand.

use super::*;

fn more_room(world: &mut World, client: ClientId) -> MasterReply {
    loop {
        let view = world.view().number;
        // `None`: the master crashed before it replied.
        if let Some(reply) = world.ask(MasterRequest::MoreRoom { client, view }) {
            return reply;
        }
    }
}

/// Every replica is where the view says, and nothing more is reserved than that.
fn check_reserved(world: &World, view: &View) {
    let count = |places: &[Place], node| places.iter().filter(|p| p.node == node).count() as u64;
    for member in &view.members {
        let NodeReply::Usage(usage) = world.ask_node(member.node.0.into(), NodeRequest::Usage)
        else {
            panic!("no usage");
        };
        let subtables: u64 = view.subtables.iter().map(|s| count(&s.places, member.node)).sum();
        let regions: u64 = view.regions.iter().map(|r| count(&r.places, member.node)).sum();
        let bytes =
            subtables * view.geometry.subtable_bytes() + regions * view.geometry.region_bytes;
        assert_eq!(usage.reserved_bytes, bytes, "{}", member.node);
    }
}

#[test]
fn regions_come_when_clients_ask_until_the_pools_are_full() {
    let mut world = World::formed(settings(3, 2, 2));
    world.open();
    let client = world.open();
    let view = world.view();
    assert_eq!(view.regions.len(), 3, "one for each to lead");
    let late = MasterRequest::MoreRoom { client, view: view.number - 1 };
    assert_eq!(world.ask(late), Some(MasterReply::Done));
    world.pass(LEASE_MS);
    assert_eq!(world.view(), view, "the asker has not seen the newest view");
    let mut counts = vec![3];
    while more_room(&mut world, client) == MasterReply::Done {
        let before = world.view().number;
        world.until("another region", |world| {
            world.view().number > before && world.view().change.is_none()
        });
        counts.push(world.view().regions.len());
    }
    // 1 MiB holds 3 regions of 256 KiB beside the index, twice replicated over three nodes.
    assert_eq!(counts, [3, 4]);
    let Some(MasterReply::Refused { reason }) =
        world.ask(MasterRequest::MoreRoom { client, view: world.view().number })
    else {
        panic!("there is no room");
    };
    assert!(reason.contains("start another memory node"), "{reason}");
    let view = world.view();
    assert!(view.regions.iter().all(|region| region.places.len() == 2));
    check_tables(&world, &view, client);
    check_reserved(&world, &view);
    assert!(world.sessions.iter().all(|session| !session.expelled));
}

#[test]
fn nobody_hands_out_blocks_of_a_region_that_not_everybody_knows() {
    let mut world = World::formed(settings(3, 2, 2));
    let client = world.open();
    world.open();
    world.sessions[1].follows = false;
    world.pass(100);
    assert_eq!(more_room(&mut world, client), MasterReply::Done);
    world.pass(LEASE_MS / 2);
    let view = world.view();
    assert_eq!((view.regions.len(), view.change.unwrap().stage), (4, Stage::Frozen));
    let blocks = |world: &World| -> u64 {
        let usage = |node| match world.ask_node(node, NodeRequest::Usage) {
            NodeReply::Usage(usage) => usage.primary_blocks,
            other => panic!("unexpected {other:?}"),
        };
        (0..3).map(usage).sum()
    };
    let per_region = u64::from(view.geometry.blocks_per_region());
    assert_eq!(blocks(&world), 3 * per_region);
    world.sessions[1].follows = true;
    world.until("the new region", |world| world.view().change.is_none());
    assert_eq!(blocks(&world), 4 * per_region);
    assert!(!world.sessions[1].expelled);
}

/// A region is added; the master crashes after so many ticks, or node 2 dies.
fn add_a_region(crash_after: Option<usize>, dies_after: Option<usize>) -> (World, usize) {
    let mut world = World::formed(settings(3, 2, 2));
    fill(&world, MnId(2));
    let client = world.open();
    world.pass(100);
    let begun = world.ticks.get();
    world.crash_after.set(crash_after.map(|ticks| begun + ticks));
    world.dies_after = dies_after.map(|ticks| (begun + ticks, 2));
    for _ in 0..600 {
        let view = world.view();
        if view.regions.len() > 3 && view.change.is_none() {
            break;
        }
        if view.change.is_none() {
            let reply = more_room(&mut world, client);
            if world.view().members.len() == 2 && reply != MasterReply::Done {
                break;
            }
        }
        world.step();
    }
    let ticks = world.ticks.get() - begun;
    world.until("rest", |world| {
        let died = !world.nodes.borrow()[2].alive;
        world.view().change.is_none() && died == world.view().member(MnId(2)).is_none()
    });
    let view = world.view();
    view.check().unwrap();
    check_tables(&world, &view, ClientId(4000));
    assert!(!world.sessions[0].expelled);
    (world, ticks)
}

#[test]
fn a_master_that_crashes_while_a_region_comes_goes_on() {
    let (_, ticks) = add_a_region(None, None);
    for crash_after in 0..ticks {
        let (world, _) = add_a_region(Some(crash_after), None);
        let view = world.view();
        assert_eq!((world.crashes, view.regions.len()), (1, 4), "{crash_after}");
        check_reserved(&world, &view);
    }
    assert!(ticks > 15, "{ticks}");
}

#[test]
fn a_member_that_is_lost_while_a_region_comes_takes_nothing_along() {
    let (_, ticks) = add_a_region(None, None);
    for dies_after in 0..ticks {
        let (world, _) = add_a_region(None, Some(dies_after));
        let view = world.view();
        assert!(view.regions.iter().all(|region| !region.places.is_empty()), "{dies_after}");
    }
}
