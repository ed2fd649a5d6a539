//! A rolling restart under load, as `docs/operations/upgrades.md` describes it. Each memory node is drained and ends,
//! and another one replaces it. Then the master is restarted. Other processes must notice no more than a delay.
//!
//! The tests that cargo runs restart the same build. `tests/upgrade/run` builds two versions, and changes from the
//! first to the second and back.

// Promise DUR-7: Servers restarted in turn under load: linearizable, no session ends.

use std::time::Instant;

use super::cluster::{ClusterShape, FaultyCluster, LONG_LEASE_MS};

/// Number of memory nodes: one more than replicas of the index, so that one can be drained before another joins.
const NODES: u32 = 4;
/// A long lease. No process is killed here, so none has to wait for a lease to run out. A short lease could run out
/// while a busy machine does not run a client.
const LEASE_MS: u32 = 5 * LONG_LEASE_MS;
/// Number of client processes, and of writers in each.
const CLIENTS: (usize, u32) = (2, 2);

/// Replaces each server by one that runs the program `to`, one after the other.
fn roll(cluster: &mut FaultyCluster, to: Option<&'static str>) {
    cluster.shape.program = to;
    let members = |cluster: &FaultyCluster| {
        let view = cluster.status().unwrap().view.unwrap();
        view.members.iter().map(|member| member.node).collect::<Vec<_>>()
    };
    let before = members(cluster);
    for number in 0..NODES {
        let begun = Instant::now();
        cluster.drain(0);
        cluster.nodes.remove(0);
        cluster.all_get_on("while one memory node is away");
        cluster.start_node();
        cluster.until_stable(NODES as usize, true);
        cluster.all_get_on("with the memory node that took its place");
        println!("memory node {number}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    assert!(members(cluster).iter().all(|node| !before.contains(node)), "all are new");
    let begun = Instant::now();
    cluster.stop_master();
    cluster.all_get_on("while the master is away");
    cluster.restart_master();
    cluster.until_stable(NODES as usize, true);
    cluster.all_get_on("with the master that goes on");
    println!("the master: {:.1} s", begun.elapsed().as_secs_f64());
}

fn rolling(fabric: &'static str, programs: [Option<&'static str>; 3]) {
    let [first, rest @ ..] = programs;
    let lease_ms = LEASE_MS;
    let mut cluster = FaultyCluster::of(ClusterShape {
        fabric,
        nodes: NODES,
        lease_ms,
        program: first,
        ..ClusterShape::default()
    });
    cluster.load(CLIENTS.0, CLIENTS.1);
    let sessions = cluster.status().unwrap().open_sessions;
    for to in rest {
        roll(&mut cluster, to);
    }
    // The sessions are still the first ones: no client has opened another session, and none has lost one.
    let status = cluster.status().unwrap();
    assert_eq!((status.open_sessions, status.recoveries), (sessions, 0), "{status:#?}");
    cluster.finish();
}

#[test]
fn servers_are_restarted_in_turn_on_shared_memory() {
    rolling("shm", [None; 3]);
}

#[test]
fn servers_are_restarted_in_turn_over_tcp() {
    rolling("tcp", [None; 3]);
}

/// Run by hand: changes from the program `FUSEE_UPGRADE_FROM` to `FUSEE_UPGRADE_TO` and back.
#[test]
#[ignore = "tests/upgrade/run builds what it needs"]
fn servers_are_upgraded_in_turn() {
    let program = |name| {
        let path = std::env::var(name).unwrap_or_else(|_| panic!("{name} names no program"));
        Some(&*path.leak())
    };
    let from = program("FUSEE_UPGRADE_FROM");
    let to = program("FUSEE_UPGRADE_TO");
    for fabric in ["tcp", "shm"] {
        println!("== {fabric}");
        rolling(fabric, [from, to, from]);
    }
}
