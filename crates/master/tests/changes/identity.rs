//! Tests of a master that is not the cluster's own: over an empty store, over another cluster's store, or over an old
//! one. Such a master can start at any time, and must not harm the data on memory nodes.

// Promise MST-3: A wrong or empty master gets no node and erases nothing.

use std::collections::BTreeMap;

use fusee_control::master::{MasterReply, MasterRequest, NOT_KNOWN_YET};
use fusee_control::rpc::Caller;
use fusee_core::layout::PoolHeader;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_master::record::MasterRecord;

use super::world::{CLUSTER, LEASE_MS, POOL, TickCluster, settings};
use super::{OTHER, check_contents, fill};

/// Returns a cluster with data whose master was replaced by one with these records, and the records of the cluster's
/// own master.
fn usurped(records: Vec<MasterRecord>) -> (TickCluster, BTreeMap<String, MasterRecord>) {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    fill(&world, MnId(9));
    world.open();
    world.pass(300);
    let own = world.disk.clone();
    world.usurp(records);
    world.pass(5 * LEASE_MS);
    for node in world.nodes.borrow().iter() {
        assert!(!node.expelled && !node.drained, "{:#?}", world.log);
        assert!(node.strangers > 10, "it goes on asking");
        let header = node.pool[..PoolHeader::BYTES].try_into().unwrap();
        assert_eq!(PoolHeader::decode(header).and_then(|header| header.cluster), Some(CLUSTER));
    }
    (world, own)
}

/// Brings the cluster's own master back, and checks that view and data are as before.
fn comes_back(mut world: TickCluster, own: BTreeMap<String, MasterRecord>) {
    let view = own.values().find_map(|record| match record {
        MasterRecord::View(view) => Some(view.clone()),
        _ => None,
    });
    world.usurp(own.into_values());
    world.pass(3 * LEASE_MS);
    assert!(world.is_whole(), "{:#?}", world.log);
    assert_eq!(Some(world.view()), view);
    check_contents(&world, &world.view());
    assert!(!world.sessions[0].expelled);
}

#[test]
fn a_master_over_an_empty_store_erases_nothing_and_stores_nothing() {
    let (mut world, own) = usurped(vec![]);
    assert!(world.disk.is_empty(), "{:?}", world.disk);
    assert!(world.said(&format!("of cluster {CLUSTER} come here, but this master has no cluster")));
    // A caller that names no cluster, or another cluster, gets no session.
    for cluster in [None, Some(CLUSTER)] {
        let token = world
            .send_of(Caller { connection: 77, cluster, ..Caller::default() }, MasterRequest::Open);
        let refusal = MasterReply::WrongCluster { cluster: None };
        assert_eq!(world.replies.remove(&token), Some(refusal));
    }
    comes_back(world, own);
}

#[test]
fn a_master_of_another_cluster_gets_nobody_of_this_one() {
    let (mut world, own) = usurped(vec![MasterRecord::Cluster(OTHER)]);
    assert_eq!(world.disk.len(), 1, "{:?}", world.disk);
    assert!(world.said(&format!("this master leads cluster {OTHER}")));
    let asking = Caller { connection: 77, cluster: Some(CLUSTER), ..Caller::default() };
    let token = world.send_of(asking, MasterRequest::Open);
    let refusal = MasterReply::WrongCluster { cluster: Some(OTHER) };
    assert_eq!(world.replies.remove(&token), Some(refusal));
    comes_back(world, own);
}

#[test]
fn a_master_that_has_forgotten_its_nodes_erases_nothing() {
    // The store was restored from a copy that was made before the nodes joined.
    let (world, own) = usurped(vec![MasterRecord::Cluster(CLUSTER)]);
    comes_back(world, own);
}

/// Asks a master over an empty store to form a cluster with the number of a cluster whose nodes are present.
fn formed_again(forms_after_ms: u64) -> TickCluster {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    fill(&world, MnId(9));
    world.open();
    world.pass(300);
    world.usurp([]);
    world.pass(forms_after_ms);
    let reply = world.ask(MasterRequest::Form { cluster: CLUSTER });
    if forms_after_ms == 0 {
        assert_eq!(reply, Some(MasterReply::Done));
        // New nodes that could form the cluster are present as well.
        (0..3).for_each(|_| world.add_node());
        world.pass(300);
    } else {
        assert!(matches!(reply, Some(MasterReply::Refused { .. })), "{reply:?}");
    }
    world
}

// Promise MST-10: No cluster number is formed again while a node or client lives.
#[test]
fn a_number_whose_nodes_or_clients_live_is_not_formed_again() {
    for forms_after_ms in [0, 300] {
        let mut world = formed_again(forms_after_ms);
        world.pass(5 * LEASE_MS);
        assert!(world.master.view().is_none(), "{:#?}", world.log);
        let form = MasterRequest::Form { cluster: CLUSTER };
        let Some(MasterReply::Refused { reason }) = world.ask(form) else { panic!("it is formed") };
        for text in ["exists already", "--data-dir", "fusee destroy"] {
            assert!(reason.contains(text), "{reason}");
        }
        for node in world.nodes.borrow().iter().take(3) {
            assert!(!node.expelled && node.holds_data(), "{:#?}", world.log);
        }
        assert!(!world.sessions[0].expelled);
        if forms_after_ms == 0 {
            // Clients that wait for the cluster get the reason, and the cluster is not destroyed by mistake.
            let waits = world.ask(MasterRequest::GetView { newer_than: 0 });
            assert!(matches!(waits, Some(MasterReply::Refused { .. })), "{waits:?}");
            let destroyed = destroy(&mut world, CLUSTER, false);
            assert!(matches!(destroyed, Some(MasterReply::Refused { .. })), "{destroyed:?}");
        }
    }
}

/// The process of the master that got the request ends before any member or client has reported to it, or afterwards.
#[test]
fn a_number_that_is_alive_is_not_formed_by_the_next_process_either() {
    for is_found_out in [false, true] {
        let mut world = TickCluster::formed(settings(3, 2, 2));
        fill(&world, MnId(9));
        world.open();
        world.pass(300);
        world.nodes.borrow_mut().iter_mut().for_each(|node| node.alive = false);
        world.usurp([]);
        world.sessions[0].renews = false;
        assert_eq!(world.ask(MasterRequest::Form { cluster: CLUSTER }), Some(MasterReply::Done));
        // New nodes that could form the cluster are present, and report first.
        (0..3).for_each(|_| world.add_node());
        world.pass(100);
        assert_eq!(world.status().members.len(), 3);
        if is_found_out {
            world.sessions[0].renews = true;
            world.pass(100);
        } else {
            assert!(world.disk.values().any(|record| *record == MasterRecord::Cluster(CLUSTER)));
        }
        world.restart_master();
        world.pass(100);
        assert!(world.master.view().is_none(), "{:#?}", world.log);
        world.sessions[0].renews = true;
        world.nodes.borrow_mut().iter_mut().for_each(|node| node.alive = true);
        world.pass(5 * LEASE_MS);
        assert!(world.master.view().is_none(), "{:#?}", world.log);
        assert!(!world.disk.values().any(|record| *record == MasterRecord::Cluster(CLUSTER)));
        assert!(!world.sessions[0].expelled);
        world.restart_master();
        world.pass(5 * LEASE_MS);
        assert_eq!((world.master.cluster(), world.sessions[0].expelled), (None, false));
        // The stored records of nodes that had joined are not used for another cluster.
        assert!(world.disk.values().any(|record| matches!(record, MasterRecord::Member(_))));
        assert_eq!(world.ask(MasterRequest::Form { cluster: OTHER }), Some(MasterReply::Done));
        assert!(!world.disk.values().any(|record| matches!(record, MasterRecord::Member(_))));
    }
}

#[test]
fn clients_alone_keep_a_number_from_being_formed_again() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(300);
    world.usurp([]);
    world.nodes.borrow_mut().clear();
    assert_eq!(world.ask(MasterRequest::Form { cluster: CLUSTER }), Some(MasterReply::Done));
    (0..3).for_each(|_| world.add_node());
    world.pass(3 * LEASE_MS);
    assert!(world.master.view().is_none() && !world.sessions[0].expelled, "{:#?}", world.log);
}

/// A node has been bound to the cluster that is to be formed. While its heartbeat is under way, another node joins at
/// its address, so that the master forgets it.
#[test]
fn a_node_whose_place_was_taken_does_not_show_that_the_cluster_exists() {
    let mut world = TickCluster::formed(settings(2, 1, 1));
    world.nodes.borrow_mut().clear();
    world.usurp([MasterRecord::Cluster(CLUSTER)]);
    world.holds_calls = true;
    (0..2).for_each(|_| world.add_node());
    world.pass(100);
    let format = world.held_calls.remove(0);
    assert_eq!(format.node, MnId(0));
    world.answer(format);
    let (identity, control) = {
        let node = &world.nodes.borrow()[0];
        assert_eq!(node.logic.cluster(), Some(CLUSTER));
        (node.identity, node.control.clone())
    };
    let join = MasterRequest::Join {
        identity: 999,
        control,
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: POOL,
    };
    assert!(matches!(world.ask(join), Some(MasterReply::Joined { .. })));
    let (heard, bars) = world.nodes.borrow()[0].logic.heartbeat_report();
    let token = world.send(77, MasterRequest::Alive { identity, heard, bars });
    assert_eq!(world.replies.remove(&token), Some(MasterReply::Unknown));
    let is_known = |record: &MasterRecord| *record == MasterRecord::Cluster(CLUSTER);
    assert!(world.disk.values().any(is_known), "{:#?}", world.log);
    // The node joins again, and the cluster is formed.
    world.holds_calls = false;
    world.until("the cluster", |world| world.master.view().is_some());
}

#[test]
fn a_node_that_no_cluster_has_taken_in_joins_whoever_is_there() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    drop(world.nodes.take());
    // Two nodes joined a master whose cluster needs three. Then the master's store is lost, before the nodes were used.
    world.usurp([MasterRecord::Cluster(OTHER)]);
    (0..2).for_each(|_| world.add_node());
    world.pass(300);
    assert_eq!(world.status().members.len(), 2);
    world.usurp([MasterRecord::Cluster(ClusterId::from_word(6).unwrap())]);
    world.pass(300);
    assert_eq!(world.status().members.len(), 2);
}

fn destroy(
    world: &mut TickCluster,
    cluster: ClusterId,
    with_living_data: bool,
) -> Option<MasterReply> {
    world.ask(MasterRequest::Destroy { cluster, with_living_data })
}

#[test]
fn a_cluster_is_destroyed_by_its_name_and_with_living_data_only_if_told_so() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(300);
    let before = world.disk.clone();
    let wrong = MasterReply::WrongCluster { cluster: Some(CLUSTER) };
    assert_eq!(destroy(&mut world, OTHER, true), Some(wrong));
    let Some(MasterReply::Refused { reason }) = destroy(&mut world, CLUSTER, false) else {
        panic!("living data are destroyed");
    };
    assert!(reason.contains("mn0, mn1, mn2"), "{reason}");
    assert_eq!(world.disk, before);
    // A node that is down learns of the destruction when it comes back.
    let connection = 77;
    world.nodes.borrow_mut()[2].alive = false;
    assert_eq!(destroy(&mut world, CLUSTER, true), Some(MasterReply::Done));
    assert_eq!(destroy(&mut world, CLUSTER, false), Some(MasterReply::Done), "again");
    assert_eq!(world.disk.values().collect::<Vec<_>>(), [&MasterRecord::Destroyed(CLUSTER)]);
    world.pass(LEASE_MS);
    let expelled: Vec<bool> = world.nodes.borrow().iter().map(|node| node.expelled).collect();
    assert_eq!(expelled, [true, true, false]);
    assert!(world.sessions[0].expelled);
    world.restart_master();
    world.nodes.borrow_mut()[2].alive = true;
    world.pass(LEASE_MS);
    assert!(world.nodes.borrow()[2].expelled);
    let asking = Caller { connection, cluster: None, ..Caller::default() };
    let token = world.send_of(asking, MasterRequest::Open);
    let nobody = MasterReply::WrongCluster { cluster: None };
    assert_eq!(world.replies.remove(&token), Some(nobody));
    // After the destruction another cluster can be formed, of new nodes.
    assert_eq!(world.ask(MasterRequest::Form { cluster: OTHER }), Some(MasterReply::Done));
    world.nodes.borrow_mut().clear();
    (0..3).for_each(|_| world.add_node());
    world.pass(300);
    assert_eq!(world.view().cluster, OTHER);
    assert_eq!(world.status().sessions_opened, 0);
}

#[test]
fn a_cluster_is_destroyed_wholly_or_not_at_all() {
    let mut ends = [0, 0];
    for ticks in 0..40 {
        let mut world = TickCluster::formed(settings(3, 2, 2));
        world.open();
        world.pass(300);
        world.crash_after.set(Some(world.ticks.get() + ticks));
        let reply = destroy(&mut world, CLUSTER, true);
        world.crash_after.set(None);
        world.pass(3 * LEASE_MS);
        let is_gone = world.master.cluster().is_none();
        ends[usize::from(is_gone)] += 1;
        assert!(is_gone || reply.is_none(), "it said so");
        assert_eq!(is_gone, world.nodes.borrow().iter().all(|node| node.expelled));
        assert_eq!(is_gone, world.sessions[0].expelled);
        assert!(is_gone || world.is_whole());
    }
    assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
}

#[test]
fn what_is_gone_is_said_with_the_way_out() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.pass(300);
    // All processes were stopped and started again. The memory nodes are new processes with empty pools.
    for node in world.nodes.borrow_mut().iter_mut() {
        node.alive = false;
    }
    world.restart_master();
    // A master that has just started has received no heartbeat, so it does not know whether the nodes have ended.
    let Some(MasterReply::Refused { reason }) = destroy(&mut world, CLUSTER, false) else {
        panic!("data are destroyed that may be there");
    };
    assert!(reason.starts_with(NOT_KNOWN_YET) && reason.contains("mn0, mn1, mn2"), "{reason}");
    world.pass(3 * LEASE_MS);
    let problem = world.status().problem.expect("nothing is left");
    for text in ["4 of 4 index subtables", "3 of 3 regions", "fusee destroy", "fusee form"] {
        assert!(problem.contains(text), "{problem}");
    }
    // By now it is known that no node with data is present.
    assert_eq!(destroy(&mut world, CLUSTER, false), Some(MasterReply::Done));
}
