//! Tests of the master's logic when sessions and memory nodes die: views in stages, recovery of clients, and replicas
//! that are restored. In many tests the master crashes at every possible step.

#[path = "changes/away.rs"]
mod away;
#[path = "changes/bars.rs"]
mod bars;
#[path = "changes/elastic.rs"]
mod elastic;
#[path = "changes/epochs.rs"]
mod epochs;
#[path = "changes/identity.rs"]
mod identity;
#[path = "changes/jobs.rs"]
mod jobs;
#[path = "changes/joins.rs"]
mod joins;
#[path = "changes/problems.rs"]
mod problems;
#[path = "changes/standing.rs"]
mod standing;
mod world;

use std::collections::BTreeSet;

use fusee_control::master::{
    ClusterEpochs, MasterReply, MasterRequest, MemberState, Orphan, SessionHeartbeat,
};
use fusee_control::node::{
    AcceptedOrders, BlockId, JobRequest, MemberBars, NodeReply, NodeRequest,
};
use fusee_core::data::{Redundancy, Region};
use fusee_core::erasure::Coding;
use fusee_core::layout::{Address, SizeClass, Slot, TableEntry};
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::change::ChangeStage;
use fusee_core::view::update::ViewUpdate;
use fusee_core::view::{Geometry, PoolPlace, View};
use fusee_master::ClusterSettings;
use fusee_master::logic::MasterEvent;
use fusee_master::record::MasterRecord;
use world::{LEASE_MS, TickCluster, settings};

/// Returns the word for a slot. Each slot gets a different word.
fn word(subtable: usize, slot: u64) -> u64 {
    let address = Address::new((subtable as u64 * 1000 + slot + 1) * 64);
    Slot::new(7, SizeClass::from_code(3).unwrap(), address, 0).0
}

fn write(world: &TickCluster, place: PoolPlace, offset: u64, value: u64) {
    let at = (place.offset + offset) as usize;
    let node = &mut world.nodes.borrow_mut()[usize::from(place.node.0)];
    node.pool[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn bytes(world: &TickCluster, place: PoolPlace, length: u64) -> Vec<u8> {
    let node = &world.nodes.borrow()[usize::from(place.node.0)];
    node.pool[place.offset as usize..][..length as usize].to_vec()
}

/// Returns one of the largest blocks of region 0, by its number.
fn block(number: u32) -> BlockId {
    let order = settings(1, 1, 1).geometry.max_order();
    BlockId { region: 0, frame: number << order, order }
}

/// The offset, in each region, of the bytes that [`fill`] writes: inside of the largest block with the number 3.
fn filled_offset(geometry: &Geometry) -> u64 {
    geometry.frame_offset(block(3).frame) + 4096
}

/// Fills all slots with words that are the same on all replicas. In each subtable with a replica on `loses`, one slot
/// gets the words of an unfinished write. Each region gets some bytes.
fn fill(world: &TickCluster, loses: MnId) {
    let view = world.view();
    for (number, subtable) in view.subtables.iter().enumerate() {
        let torn = subtable.lies_on(loses);
        for slot in 0..view.geometry.subtable_slots() {
            for (at, place) in subtable.replicas().iter().enumerate() {
                let newer = if torn && slot == 5 && at > 0 { 500 } else { 0 };
                write(world, *place, slot * 8, word(number, slot + newer));
            }
        }
    }
    for (number, region) in view.regions.iter().enumerate() {
        for place in region.places() {
            write(world, *place, filled_offset(&view.geometry), 77 + number as u64);
        }
    }
}

/// Checks that the replicas of each subtable and region are equal, and hold what [`fill`] wrote.
fn check_contents(world: &TickCluster, view: &View) {
    let geometry = view.geometry;
    for (number, subtable) in view.subtables.iter().enumerate() {
        let first = bytes(world, subtable.primary(), geometry.subtable_bytes());
        for place in subtable.replicas() {
            assert_eq!(bytes(world, *place, geometry.subtable_bytes()), first);
        }
        for (slot, found) in (0u64..).zip(first.chunks(8)) {
            let found = u64::from_le_bytes(found.try_into().unwrap());
            let newer = slot == 5 && found == word(number, 505);
            assert!(newer || found == word(number, slot), "slot {slot} of {number}: {found:x}");
        }
    }
    for (number, region) in view.regions.iter().enumerate() {
        let first = bytes(world, region.primary(), geometry.region_bytes);
        let at = filled_offset(&geometry) as usize;
        assert_eq!(first[at..at + 8], (77 + number as u64).to_le_bytes());
        for place in region.places() {
            assert!(bytes(world, *place, geometry.region_bytes) == first, "region {number}");
        }
    }
}

fn set_owner(world: &TickCluster, node: MnId, block: BlockId, from: ClientId, to: ClientId) {
    let (base, unless_fenced, once) = (Some(0), false, false);
    let request = NodeRequest::SetOwner { block, from, to, base, unless_fenced, once };
    assert_eq!(world.ask_node(node.0.into(), request), NodeReply::Done);
}

/// Makes a client the owner of a block, on all replicas (`everywhere`) or only on the primary.
fn give_block(world: &TickCluster, client: ClientId, everywhere: bool) -> BlockId {
    let view = world.view();
    let order = view.geometry.max_order();
    for member in &view.members {
        let alloc = NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            orders: AcceptedOrders { least: order, most: order, mixed: true },
            client,
            frozen: vec![],
            spare_of: vec![],
        };
        let reply = world.ask_node(member.node.0.into(), alloc);
        let NodeReply::Allocated { block, base } = reply else { continue };
        assert_eq!(base, Some(0), "never used");
        let backups = view.regions[block.region as usize].backups();
        for place in backups.iter().filter(|_| everywhere) {
            set_owner(world, place.node, block, ClientId::NOBODY, client);
        }
        return block;
    }
    panic!("no block");
}

/// Returns the blocks of a region, free ones included, by the table of a replica: each one's first frame and entry.
fn owners(world: &TickCluster, place: PoolPlace, region: u32) -> Vec<(u32, TableEntry)> {
    match world.ask_node(place.node.0.into(), NodeRequest::OwnersOf { region }) {
        NodeReply::Owners(owners) => owners,
        other => panic!("unexpected {other:?}"),
    }
}

/// Checks that the block tables of each region's replicas agree, that the first replica hands out blocks, and that
/// `client` owns no block.
fn check_tables(world: &TickCluster, view: &View, client: ClientId) {
    for (number, region) in (0u32..).zip(&view.regions) {
        let first = owners(world, region.primary(), number);
        let is_owner = first.iter().any(|(_, entry)| entry.owner == client);
        assert!(!is_owner, "{client} still owns a block of region {number}");
        for place in region.places() {
            assert_eq!(owners(world, *place, number), first, "region {number}");
        }
    }
    for member in &view.members {
        let led = view.regions.iter().filter(|r| r.primary().node == member.node).count() as u64;
        match world.ask_node(member.node.0.into(), NodeRequest::Usage) {
            NodeReply::Usage(usage) => {
                let frames = u64::from(view.geometry.frames_per_region());
                let led_bytes = led * frames * view.geometry.frame_bytes();
                assert_eq!(usage.led_bytes, led_bytes, "{}", member.node);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Runs three nodes, a spare node, a session that acknowledges views, and a session that dies. Then node 1 dies.
/// Returns the number of ticks from that death until everything is repaired.
fn lose_a_node_and_a_client(crash_after: Option<usize>) -> (TickCluster, usize) {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    fill(&world, MnId(1));
    let alive = world.open();
    let dead = world.open();
    give_block(&world, dead, true);
    give_block(&world, dead, false);
    // The new node has to learn of this block when its replica joins.
    give_block(&world, alive, true);
    world.add_node();
    world.pass(100);
    world.sessions[1].renews = false;
    let begun = world.ticks.get();
    world.crash_after.set(crash_after.map(|ticks| begun + ticks));
    world.kill(1);
    world.until("redundancy", |world| {
        let gone = world.view().member(MnId(1)).is_none();
        gone && world.is_whole()
            && !world
                .disk
                .values()
                .any(|r| matches!(r, MasterRecord::Session { expired: true, .. }))
            && world.disk.values().filter(|r| matches!(r, MasterRecord::Session { .. })).count()
                == 1
    });
    let view = world.view();
    view.check().unwrap();
    assert!(view.subtables.iter().all(|subtable| subtable.replicas().len() == 2));
    assert!(view.regions.iter().all(|region| region.places().len() == 2));
    assert!(!world.nodes.borrow()[1].alive && view.member(MnId(3)).is_some());
    check_contents(&world, &view);
    check_tables(&world, &view, dead);
    for at in [0, 2] {
        assert!(world.nodes.borrow()[at].fenced.contains(&dead));
    }
    assert!(!world.sessions[0].expelled, "{alive} did nothing wrong: {:#?}", world.log);
    world.pass(2 * LEASE_MS);
    assert_eq!(world.view(), view, "nothing is left to be done");
    assert_eq!(world.sessions[0].view, view.number);
    let ticks = world.ticks.get() - begun;
    (world, ticks)
}

/// The reply that the master has no orphaned block for the session.
const NO_ORPHAN: MasterReply = MasterReply::Orphan { orphan: None, owner_lives: false };

// Promise CHG-6: A copied region comes with its table of owners.
#[test]
fn a_lost_node_and_a_dead_client_are_put_right() {
    let (mut world, _) = lose_a_node_and_a_client(None);
    let status = world.status();
    assert_eq!(status.members[1].state, MemberState::Lost);
    assert_eq!((status.recoveries, status.open_sessions), (1, 1));
    let recovery = status.last_recoveries[0];
    assert!(recovery.blocks >= 1 && recovery.freed == recovery.blocks, "{recovery:?}");
    let loss = status.last_reconfigurations.iter().find(|change| change.lost == [MnId(1)]);
    let loss = loss.expect("it is noted");
    assert!(loss.whole_after_ms.is_some_and(|ms| ms > 0), "{loss:?}");
    assert_eq!(status.problem, None);
}

// Promise CHG-2: Losses are put right, whenever the master crashes.
#[test]
fn a_master_that_crashes_anywhere_in_between_goes_on() {
    let (_, ticks) = lose_a_node_and_a_client(None);
    let mut crashed = 0;
    for crash_after in 0..ticks {
        let (world, _) = lose_a_node_and_a_client(Some(crash_after));
        crashed += world.crashes;
    }
    assert!(ticks > 150 && crashed == ticks, "{crashed} of {ticks}");
}

#[test]
fn a_session_that_ends_half_way_is_recovered_and_its_orphan_returns() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let first = world.open();
    let second = world.open();
    let block = give_block(&world, first, true);
    let class = SizeClass::from_code(2).unwrap();
    let orphan = Orphan { block, owner: first, class, first: 3, base: Some(0), marked: Some(1) };
    let close =
        MasterRequest::Close { client: first, orphans: vec![orphan], work: Default::default() };
    assert_eq!(world.ask(close), Some(MasterReply::Done));
    let number = world.view().number;
    let take = |client| MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        turn: 0,
        adopted: vec![],
        client,
        class: Some(class),
        full: false,
        view: number,
    };
    assert_eq!(
        world.ask(take(second)),
        Some(MasterReply::Orphan { orphan: Some(orphan), owner_lives: false })
    );
    // The session has taken the block over on only one of two replicas.
    let view = world.view();
    set_owner(&world, view.regions[block.region as usize].backups()[0].node, block, first, second);
    world.sessions[0].renews = false;
    assert_eq!(world.ask(MasterRequest::Abandon { client: second }), Some(MasterReply::Done));
    world.until("the recovery", TickCluster::is_whole);
    world.pass(LEASE_MS / 2);
    assert!(world.sessions[1].expelled);
    check_tables(&world, &world.view(), second);
    let third = world.open();
    // A session with an older view would not know replicas that were added since that view.
    let late = MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        client: third,
        turn: 0,
        adopted: vec![],
        class: None,
        full: true,
        view: number - 1,
    };
    assert_eq!(world.ask(late), Some(NO_ORPHAN));
    assert_eq!(
        world.ask(take(third)),
        Some(MasterReply::Orphan { orphan: Some(orphan), owner_lives: false })
    );
    assert_eq!(world.ask(take(third)), Some(NO_ORPHAN));
    assert_eq!(world.view(), view, "no view has to change for a client");
}

/// One session had begun to take over a block that the other session had handed on. One job recovers both sessions.
// Promise REC-7: Sessions that die together leave no block half-way.
#[test]
fn sessions_that_die_together_leave_no_block_half_way() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let first = world.open();
    let second = world.open();
    let block = give_block(&world, first, true);
    let class = SizeClass::from_code(2).unwrap();
    let orphans =
        vec![Orphan { block, owner: first, class, first: 3, base: Some(0), marked: Some(1) }];
    let hand_on = MasterRequest::HandOn { client: first, serial: 1, orphans, used: vec![] };
    assert_eq!(world.ask(hand_on), Some(MasterReply::Done));
    let view = world.view();
    let take = MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        turn: 0,
        adopted: vec![],
        client: second,
        class: Some(class),
        full: false,
        view: view.number,
    };
    assert!(matches!(world.ask(take), Some(MasterReply::Orphan { orphan: Some(_), .. })));
    set_owner(&world, view.regions[block.region as usize].primary().node, block, first, second);
    world.sessions.iter_mut().for_each(|session| session.renews = false);
    world.pass(2 * LEASE_MS);
    world.until("the recovery", TickCluster::is_whole);
    check_tables(&world, &world.view(), first);
    check_tables(&world, &world.view(), second);
}

fn renew(client: ClientId, pinned_by: u64, newer_than: u64) -> MasterRequest {
    let heartbeat = SessionHeartbeat {
        client,
        pinned_by,
        pinned_in: 0,
        frees_in: 0,
        has_suspended: false,
        damage: Damage::default(),
        transitions: Default::default(),
        work: Default::default(),
        stirs: true,
    };
    let known = ClusterEpochs::default();
    MasterRequest::Heartbeat {
        sessions: vec![heartbeat],
        newer_than,
        known,
        reclaims: false,
        acked: 0,
    }
}

#[test]
fn an_answer_waits_for_news_or_for_a_quarter_of_a_lease() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    world.sessions[0].renews = false;
    let first = world.view().number;
    let told = world.send(9, renew(client, first, 0));
    let Some(MasterReply::Heartbeat { view: Some(view), expelled, .. }) =
        world.replies.remove(&told)
    else {
        panic!("the view is news");
    };
    assert_eq!((view.number(), expelled), (first, vec![]));

    let waits = world.send(9, renew(client, first, first));
    world.pass(LEASE_MS / 4 - 50);
    assert_eq!(world.replies.get(&waits), None);
    world.pass(50);
    let late = renewed(vec![], 0);
    assert_eq!(world.replies.remove(&waits), Some(late));

    let waits = world.send(9, renew(client, first, first));
    world.ask(MasterRequest::Abandon { client });
    let expelled = renewed(vec![client], 201);
    assert_eq!(world.replies.remove(&waits), Some(expelled));
    let strange = world.send(9, renew(ClientId(4000), first, first));
    let expelled = renewed(vec![ClientId(4000)], 201);
    assert_eq!(world.replies.remove(&strange), Some(expelled));
}

/// A client that has one of the last views receives the difference, any other client the whole view.
#[test]
fn views_are_told_as_differences_to_those_who_are_not_far_behind() {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    let client = world.open();
    let mut seen = vec![world.view()];
    // A member is lost, and its replicas move, so the view changes several times.
    world.kill(1);
    world.until("the view is stable, and all is there again", |world| {
        let view = world.view();
        if view.number > seen.last().unwrap().number {
            seen.push(view.clone());
        }
        view.change.is_none() && view.member(MnId(1)).is_none() && view.number > 8
    });
    world.sessions[0].renews = false;
    let newest = world.view();
    let mut ask = |newer_than: u64| {
        let told = world.send(9, renew(client, newest.number, newer_than));
        match world.replies.remove(&told) {
            Some(MasterReply::Heartbeat { view: Some(update), .. }) => update,
            other => panic!("the view is news: {other:?}"),
        }
    };
    let from = &seen[seen.len() - 2];
    let update = ask(from.number);
    assert!(matches!(update, ViewUpdate::Difference(_)), "{update:?}");
    assert_eq!(update.apply(from), Ok(newest.clone()));
    for forgotten in [0, 1] {
        assert_eq!(ask(forgotten), ViewUpdate::from(newest.clone()));
    }
    // A new master process does not know the views of the earlier process.
    world.restart_master();
    let told = world.send(9, renew(client, newest.number, from.number));
    assert!(matches!(
        world.replies.remove(&told),
        Some(MasterReply::Heartbeat { view: Some(ViewUpdate::Whole(_)), .. })
    ));
}

/// While a session's process fetches a view, it sends no heartbeat and cannot acknowledge the view. The session does
/// not expire for that.
// Promise CHG-27: Fetching a long view fences no session, and ends.
#[test]
fn who_fetches_a_long_view_is_there() {
    let mut world = with_a_session_that_says_nothing();
    fetch(&mut world, OWN, 10);
    assert_eq!(world.status().open_sessions, 1, "{:#?}", world.log);
    assert!(world.view().change.is_some(), "it has not followed");
    // The time for fetching a view is limited, because all other sessions wait.
    fetch(&mut world, OWN, 40);
    assert_eq!(world.status().open_sessions, 0);
    assert!(world.said("it does not leave old views behind"), "{:#?}", world.log);
}

#[test]
fn pieces_that_another_process_fetches_say_nothing_of_a_session() {
    let mut world = with_a_session_that_says_nothing();
    fetch(&mut world, OWN, 4);
    assert_eq!(world.status().open_sessions, 1, "{:#?}", world.log);
    fetch(&mut world, OWN + 50, 4);
    assert_eq!(world.status().open_sessions, 0);
    assert!(world.said("it is silent") || world.said("it does not leave old views behind"));
}

/// The number of the first session's connection.
const OWN: u64 = 1;

/// Returns a cluster in which a change has begun because a node died. The only session sends no heartbeats.
fn with_a_session_that_says_nothing() -> TickCluster {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(100);
    world.sessions[0].renews = false;
    world.kill(2);
    world
}

/// Fetches a piece of a view over a connection, once in each half lease.
fn fetch(world: &mut TickCluster, connection: u64, pieces: u32) {
    for _ in 0..pieces {
        world.pass(LEASE_MS / 2);
        world.feed(MasterEvent::Fetching { connection });
    }
}

#[test]
fn a_closed_connection_is_a_suspicion_that_another_connection_refutes() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let refutes = world.open();
    let gone = world.open();
    world.pass(100);
    for connection in [1, 2, 1_000_000] {
        world.feed(MasterEvent::ConnectionClosed { connection });
    }
    world.send(77, renew(refutes, 1, 1));
    world.send(78, alive(100));
    world.sessions.iter_mut().for_each(|session| session.renews = false);
    world.now_ms += 9;
    world.feed(MasterEvent::Tick);
    assert_eq!(world.status().open_sessions, 2);
    world.now_ms += 1;
    world.feed(MasterEvent::Tick);
    let status = world.status();
    assert_eq!(status.open_sessions, 1);
    assert!(world.said(&format!("{gone} has expired: its connection was closed")));
    assert!(!world.disk.values().any(
        |r| matches!(r, MasterRecord::Session { client, expired: false, .. } if *client == gone)
    ));
    assert!(status.members.iter().all(|member| member.state == MemberState::InView));
    world.until("the recovery", TickCluster::is_whole);
}

#[test]
fn who_does_not_leave_old_views_behind_expires() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    fill(&world, MnId(1));
    world.open();
    world.open();
    world.sessions[1].follows = false;
    world.pass(100);
    world.kill(1);
    world.pass(LEASE_MS / 2);
    let stage = world.view().change.map(|change| change.stage);
    assert_eq!(stage, Some(ChangeStage::Frozen), "one has not left the old view");
    world.until("going on", |world| world.view().change.is_none());
    world.pass(LEASE_MS);
    assert!(world.sessions[1].expelled && !world.sessions[0].expelled);
}

/// A session has expired before it acknowledged the frozen view. Its verbs can still arrive at nodes that have not
/// confirmed its fence, so the change waits.
// Promise CHG-4: A change waits for the fences of expired sessions.
#[test]
fn a_change_waits_until_all_nodes_have_fenced_who_has_expired() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    fill(&world, MnId(1));
    world.open();
    let dead = world.open();
    world.pass(100);
    world.sessions[1].renews = false;
    world.nodes.borrow_mut()[2].withholds_fences = true;
    world.kill(1);
    let is_expired = |world: &TickCluster| {
        let is_it = |record: &MasterRecord| match record {
            MasterRecord::Session { client, expired, .. } => *expired && *client == dead,
            _ => false,
        };
        world.disk.values().any(is_it)
    };
    world.until("it has expired", |world| is_expired(world));
    let fenced_at =
        |world: &TickCluster, at: usize| world.nodes.borrow()[at].fenced.contains(&dead);
    for _ in 0..5 {
        world.pass(LEASE_MS);
        let stage = world.view().change.map(|change| change.stage);
        assert_eq!(stage, Some(ChangeStage::Frozen), "one node has not confirmed it");
        assert!(is_expired(&world) && fenced_at(&world, 0) && !fenced_at(&world, 2));
    }
    assert!(world.repairers.is_empty(), "nothing was put right meanwhile");
    world.nodes.borrow_mut()[2].withholds_fences = false;
    world.until("going on", |world| world.view().change.is_none() && !is_expired(world));
    assert!(fenced_at(&world, 2) && world.view().member(MnId(2)).is_some());
}

#[test]
fn without_its_last_replica_the_cluster_goes_on_with_what_it_has() {
    let mut world = TickCluster::formed(settings(2, 1, 1));
    let view = world.view();
    world.open();
    world.nodes.borrow_mut()[1].alive = false;
    world.ask(MasterRequest::Unreachable { node: MnId(1) });
    world.pass(100);
    let problem = world.status().problem.expect("something is lost");
    assert!(problem.contains("no replica left"), "{problem}");
    assert_eq!(world.view(), view);
    world.open();
    world.nodes.borrow_mut()[1].alive = true;
    world.pass(LEASE_MS);
    let status = world.status();
    assert_eq!((status.problem, status.open_sessions), (None, 2));
    assert_eq!(status.members[1].state, MemberState::InView);
}

#[test]
fn a_lost_node_stays_lost_and_a_node_that_answers_is_kept() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.ask(MasterRequest::Unreachable { node: MnId(1) });
    world.pass(1_000);
    assert_eq!(world.view().number, 1, "it answered");
    // The node's connection breaks, and it is silent for a while, but it did not die.
    world.feed(MasterEvent::ConnectionClosed { connection: 1_000_001 });
    world.nodes.borrow_mut()[1].alive = false;
    world.pass(100);
    world.nodes.borrow_mut()[1].alive = true;
    world.until("the loss", |world| world.view().change.is_none() && world.view().number > 3);
    world.pass(LEASE_MS);
    assert!(world.nodes.borrow()[1].expelled);
    world.restart_master();
    let join = MasterRequest::Join {
        identity: 101,
        control: "node1:1".into(),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: world::POOL,
    };
    assert!(matches!(world.ask(join), Some(MasterReply::Refused { .. })));
    let problem = world.status().problem;
    assert!(problem.is_none_or(|problem| problem.contains("another memory node")));
}

#[test]
fn after_a_job_that_failed_another_repairer_works() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.failing_jobs = 2;
    let client = world.open();
    world.ask(MasterRequest::Abandon { client });
    world.until("the recovery", TickCluster::is_whole);
    assert_eq!(world.repairers.len(), 3);
    let last = *world.repairers.last().unwrap();
    for node in world.nodes.borrow().iter() {
        for repairer in &world.repairers {
            assert_eq!(node.fenced.contains(repairer), *repairer != last);
        }
    }
}

#[test]
fn a_repairer_of_which_nothing_can_linger_goes_on() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    (world.failing_jobs, world.verbs_linger) = (2, false);
    let client = world.open();
    world.ask(MasterRequest::Abandon { client });
    world.until("the recovery", TickCluster::is_whole);
    assert_eq!((world.failing_jobs, world.repairers.len()), (0, 1));
    let repairer = *world.repairers.first().unwrap();
    assert!(world.nodes.borrow().iter().all(|node| !node.fenced.contains(&repairer)));
    // The repair session ends together with the master's process.
    world.restart_master();
    world.until("the fence", |world| {
        world.nodes.borrow().iter().all(|node| node.fenced.contains(&repairer))
    });
}

const OTHER: ClusterId = ClusterId::from_word(5).unwrap();

#[test]
fn a_spare_node_of_another_cluster_is_passed_over() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    for _ in 0..2 {
        world.add_node();
    }
    // The node has become a member of another cluster while it was joining this cluster.
    world.nodes.borrow_mut()[3].anonymous = true;
    let foreign = NodeRequest::Format { cluster: OTHER, attempt: 1 };
    assert_eq!(world.ask_node(3, foreign), NodeReply::Done);
    world.pass(100);
    assert_eq!(world.status().members[3].state, MemberState::Waiting);
    assert!(world.said("restart it to empty it"));
    world.kill(1);
    world.until("redundancy", |world| {
        let view = world.view();
        view.member(MnId(1)).is_none() && view.member(MnId(4)).is_some() && world.is_whole()
    });
    let view = world.view();
    assert!(view.member(MnId(3)).is_none());
    check_tables(&world, &view, ClientId(1));
}

#[test]
fn memory_nodes_are_lost_one_after_the_other_in_any_stage() {
    // Node 2 dies some ticks after node 1: in every stage of the change that removes node 1, and of the changes that
    // restore replicas.
    for ticks in 0..120 {
        let mut world = TickCluster::formed(settings(4, 3, 3));
        fill(&world, MnId(1));
        world.open();
        world.add_node();
        world.add_node();
        world.pass(100);
        world.dies_after = Some((world.ticks.get() + 4 + ticks, 2));
        world.kill(1);
        world.until("two losses", |world| {
            let view = world.view();
            view.member(MnId(1)).is_none()
                && (world.dies_after.is_some() || view.member(MnId(2)).is_none())
                && world.is_whole()
        });
        let view = world.view();
        check_contents(&world, &view);
        check_tables(&world, &view, ClientId(4000));
        assert!(!world.sessions[0].expelled);
        if world.dies_after.is_some() {
            assert!(ticks > 50, "only {ticks} ticks: the test does not reach the growth");
            return;
        }
    }
}

/// Returns an answer to a [`MasterRequest::Heartbeat`] that tells nothing new. The lease begins `behind_ms` before the
/// heartbeat arrived.
fn renewed(expelled: Vec<ClientId>, behind_ms: u64) -> MasterReply {
    MasterReply::Heartbeat {
        view: None,
        expelled,
        epochs: ClusterEpochs::default(),
        mark: 0,
        short: 0,
        spared: None,
        lease_ms: 1_000,
        behind_ms,
    }
}

/// Returns the heartbeat of a node that has received no answer yet.
fn alive(identity: u64) -> MasterRequest {
    MasterRequest::Alive { identity, heard: None, bars: MemberBars::default() }
}
