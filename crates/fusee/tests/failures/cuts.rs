//! Clients and memory nodes that the network cuts off, one way or both, and slow and lossy links. Each process
//! is in a namespace of its own ([`super::net`]).
//!
//! *The double cut-off.* A client and a memory node are both cut off from the master, and reach each other. The
//! cluster goes on without the node, and others write; the client must not read outdated values there
//! (docs/decisions/0029). The client that is cut off only reads, since its writes would end for other reasons.
//! The histories of all clients are judged together.

// Promise SIL-7: SIL-2, with cuts of a real network.

use std::thread::sleep;
use std::time::Duration;

use super::cluster::{ClusterShape, FaultyCluster};
use super::common::eventually;
use super::net::{NetNamespace, is_inside};
use super::writer::WriterProcess;

/// The direction in which nothing arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutOffDirection {
    Both,
    ToTheMaster,
    FromTheMaster,
}

/// Memory nodes that the client still reaches when it is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReachableNodes {
    /// The memory node that is cut off with it.
    ThatNode,
    /// All memory nodes; the others are at a newer view, and the client has to ask them.
    AllNodes,
}

const KEYS: u64 = 40;
/// Longer than a lease.
const LEASES: Duration = Duration::from_millis(1500);

/// Starts a cluster with clients that write, and a client that reads, in a place of its own.
fn cluster_and_reader(shape: ClusterShape) -> (FaultyCluster, WriterProcess, NetNamespace) {
    let mut cluster = FaultyCluster::of(ClusterShape { apart: true, ..shape });
    // So many that some can be read from the isolated node alone, whichever node that is.
    cluster.keys = 0..KEYS;
    cluster.load(1, 2);
    let (reader, place) = cluster.readers();
    (cluster, reader, place)
}

/// Cuts off a memory node and the reader. Waits until the cluster goes on without the node, if it can, and
/// others have written; then heals the network.
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
    // No other process may reach the node, or a job of the master's might.
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
    // The reader's lease has run out as well, and the reader goes on, or tries.
    sleep(LEASES);
    let dropped: u64 = cluster.net().dropped().iter().sum();
    assert!(dropped > 0, "nothing was cut off");
    let before = reader.0.progress();
    cluster.net().heal();
    cluster.until_stable(members, true);
    cluster.all_get_on("all hear each other again");
    eventually("the client reads again", || reader.0.progress() > before + 50);
}

/// Ends a test. Other clients must have met no error, unless `all_excused`; but a busy machine may have kept
/// them from running for a lease.
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

/// No view loses the last replica of anything, so the cluster waits for the node. Until it is back, keys that
/// it alone has cannot be written.
#[test]
fn who_is_cut_off_with_the_only_replica_reads_nothing_old() {
    if !is_inside("cuts::who_is_cut_off_with_the_only_replica_reads_nothing_old") {
        return;
    }
    let shape = ClusterShape { index_replicas: 1, data_replicas: 1, ..ClusterShape::default() };
    let (mut cluster, reader, at) = cluster_and_reader(shape);
    cut_off(&mut cluster, (&reader, at), CutOffDirection::Both, ReachableNodes::ThatNode, false);
    finish(cluster, reader, true);
}

/// Short cuts, one way each, with lost packets, and with a master and clients far away. Clients notice only
/// delays, or errors that say so.
#[test]
fn slow_and_lossy_links_break_nothing() {
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
