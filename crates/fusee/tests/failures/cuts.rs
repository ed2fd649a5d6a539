//! Clients and memory nodes that the network cuts off, in one direction or both, and slow and lossy links. Each process
//! is in its own network namespace ([`super::net`]).
//!
//! *The double cut-off.* A client and a memory node are both cut off from the master, but reach each other. The cluster
//! continues without the node, and other clients write. The client that is cut off must not read outdated values from
//! the node (docs/decisions/0029). This client only reads, because its writes would end for other reasons. The
//! histories of all clients are judged together.

// Promise SIL-7: A client that a real network cuts off reads nothing old.

use std::thread::sleep;
use std::time::Duration;

use super::cluster::{ClusterShape, FaultyCluster};
use super::common::eventually;
use super::net::{NetNamespace, is_inside};
use super::writer::WriterProcess;

/// The direction in which no packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutOffDirection {
    Both,
    ToTheMaster,
    FromTheMaster,
}

/// The memory nodes that the client reaches while it is cut off from the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReachableNodes {
    /// Only the memory node that is cut off with the client.
    ThatNode,
    /// All memory nodes. The nodes that are not cut off are at a newer view, so the client learns of the newer view
    /// when it asks them.
    AllNodes,
}

const KEYS: u64 = 40;
/// A time longer than a lease.
const LEASES: Duration = Duration::from_millis(1500);

/// Starts a cluster with clients that write, and with a client that reads in a namespace of its own.
fn cluster_and_reader(shape: ClusterShape) -> (FaultyCluster, WriterProcess, NetNamespace) {
    let mut cluster = FaultyCluster::of(ClusterShape { apart: true, ..shape });
    // There are so many keys that some can be read from the isolated node alone, whichever node that is.
    cluster.keys = 0..KEYS;
    cluster.load(1, 2);
    let (reader, place) = cluster.readers();
    (cluster, reader, place)
}

/// Cuts off a memory node and the reader. Waits until the cluster has continued without the node, if it can, and other
/// clients have written. Then heals the network.
fn cut_off(
    cluster: &mut FaultyCluster,
    reader: (&WriterProcess, NetNamespace),
    way: CutOffDirection,
    reaches: ReachableNodes,
    goes_on: bool,
) {
    println!("cut off: {way:?}, and the client reaches {reaches:?}");
    let members = cluster.nodes.len();
    let node = cluster.choose(members);
    let lost = cluster.nodes[node].at.unwrap();
    let others = cluster.nodes.iter().filter_map(|node| node.at).filter(|place| *place != lost);
    let others: Vec<NetNamespace> = others.collect();
    let client = reader.1;
    let master = cluster.master_at.unwrap();
    let net = cluster.net();
    let both = [client, lost];
    if way != CutOffDirection::FromTheMaster {
        net.cut(&both, &[master]);
    }
    if way != CutOffDirection::ToTheMaster {
        net.cut(&[master], &both);
    }
    // No other process is allowed to reach the node, not even a job of the master on another node.
    net.part(&[lost], &others);
    net.part(&[lost], &[cluster.client_at.unwrap()]);
    if reaches == ReachableNodes::ThatNode {
        net.part(&[client], &others);
    }
    if goes_on {
        cluster.until_stable(members - 1, false);
        cluster.all_get_on("without the node");
    } else {
        sleep(2 * LEASES);
    }
    // After this the reader's lease has run out too, and the reader still tries to read.
    sleep(LEASES);
    let dropped: u64 = cluster.net().dropped().iter().sum();
    assert!(dropped > 0, "nothing was cut off");
    let before = reader.0.progress();
    cluster.net().heal();
    cluster.until_stable(members, true);
    cluster.all_get_on("all hear each other again");
    eventually("the client reads again", || reader.0.progress() > before + 50);
}

/// Ends a test. Asserts that other clients met no error, unless `all_excused`. An exception is a session that was
/// fenced because a busy machine did not run the client for a lease.
fn finish(mut cluster: FaultyCluster, mut reader: WriterProcess, all_excused: bool) {
    reader.finish();
    let excused = reader.complaints();
    assert!(!excused.contains("torn") && !excused.contains("backwards"), "{excused}");
    println!("the reader: {} notes, {} errors", reader.notes(), excused.lines().count());
    cluster.dead.push(reader);
    cluster.finish_excusing(|line| {
        excused.contains(line)
            || line.contains("fenced this session")
            || (all_excused && line.contains("error: "))
    });
}

#[test]
fn who_is_cut_off_with_a_memory_node_reads_nothing_old() {
    if !is_inside("cuts::who_is_cut_off_with_a_memory_node_reads_nothing_old") {
        return;
    }
    let (mut cluster, reader, at) = cluster_and_reader(ClusterShape::default());
    let cuts = [
        (CutOffDirection::Both, ReachableNodes::AllNodes),
        (CutOffDirection::ToTheMaster, ReachableNodes::ThatNode),
        (CutOffDirection::FromTheMaster, ReachableNodes::AllNodes),
    ];
    for (way, reaches) in cuts {
        cut_off(&mut cluster, (&reader, at), way, reaches, true);
    }
    finish(cluster, reader, false);
}

#[test]
fn who_is_cut_off_with_one_of_two_memory_nodes_reads_nothing_old() {
    if !is_inside("cuts::who_is_cut_off_with_one_of_two_memory_nodes_reads_nothing_old") {
        return;
    }
    let shape = ClusterShape { nodes: 2, index_replicas: 2, ..ClusterShape::default() };
    let (mut cluster, reader, at) = cluster_and_reader(shape);
    cut_off(&mut cluster, (&reader, at), CutOffDirection::Both, ReachableNodes::ThatNode, true);
    cut_off(
        &mut cluster,
        (&reader, at),
        CutOffDirection::ToTheMaster,
        ReachableNodes::AllNodes,
        true,
    );
    finish(cluster, reader, false);
}

/// A view never gives up the last replica of anything, so the cluster waits for the node. Until it is back, keys whose
/// only replica is on the node cannot be written.
#[test]
fn who_is_cut_off_with_the_only_replica_reads_nothing_old() {
    if super::common::is_long_and_left_out() {
        return;
    }
    if !is_inside("cuts::who_is_cut_off_with_the_only_replica_reads_nothing_old") {
        return;
    }
    let shape = ClusterShape { index_replicas: 1, data_replicas: 1, ..ClusterShape::default() };
    let (mut cluster, reader, at) = cluster_and_reader(shape);
    cut_off(&mut cluster, (&reader, at), CutOffDirection::Both, ReachableNodes::ThatNode, false);
    finish(cluster, reader, true);
}

/// The test cuts one direction at a time for a short while, loses packets, and makes the links of the master and of
/// clients slow. Clients must notice only delays, or errors that name the cause.
#[test]
fn slow_and_lossy_links_break_nothing() {
    if super::common::is_long_and_left_out() {
        return;
    }
    if !is_inside("cuts::slow_and_lossy_links_break_nothing") {
        return;
    }
    let mut cluster = FaultyCluster::of(ClusterShape { apart: true, ..ClusterShape::default() });
    cluster.load(2, 2);
    let clients = cluster.client_at.unwrap();
    for round in 0..4 {
        let places: Vec<NetNamespace> = cluster.nodes.iter().filter_map(|node| node.at).collect();
        let node = places[cluster.choose(places.len())];
        let master = cluster.master_at.unwrap();
        let net = cluster.net();
        net.slow(master);
        net.slow(clients);
        net.lose(3);
        let (from, to) = [(node, master), (clients, node), (master, node), (node, clients)][round];
        net.cut(&[from], &[to]);
        cluster.pause(100..600);
        cluster.net().heal();
        cluster.net().lose(3);
        cluster.all_get_on("packets are lost");
    }
    let dropped: u64 = cluster.net().dropped().iter().sum();
    assert!(dropped > 0, "nothing was lost");
    cluster.net().heal();
    cluster.until_stable(3, true);
    cluster.all_get_on("nothing is lost any more");
    cluster.finish_excusing(|line| line.contains("error: "));
}
