//! `kill -9` of memory nodes, clients and masters, and of all of them at nearly the same time.

// Promise DUR-3: Others meet no error when processes are killed or stopped.

use std::thread::sleep;
use std::time::Duration;

use super::cluster::FaultyCluster;
use super::writer::{WriterMode, WriterProcess};

/// Number of client processes that a test kills.
const VICTIMS: usize = 8;

/// A memory node is lost, and writes continue without it. A node that is started later replaces it.
fn lose_a_memory_node(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 2);
    let victim = cluster.choose(3);
    cluster.pause(0..300);
    cluster.nodes[victim].kill();
    cluster.all_get_on("after the loss");
    cluster.until_stable(2, false);
    cluster.all_get_on("without the node");
    let shows = |cluster: &FaultyCluster, code, text: &str| {
        let line = ["status", "--master", cluster.address()];
        let shown =
            super::common::finish(&mut super::common::fusee(&line)).expect_code(code).text();
        assert!(shown.contains(text), "{shown}");
    };
    shows(&cluster, 1, "lost, the cluster goes on without it");
    cluster.start_node();
    let status = cluster.until_stable(3, true);
    shows(&cluster, 0, "lost, others hold what it held");
    assert!(status.reconfigurations >= 2, "{status:#?}");
    cluster.all_get_on("with another node");
    cluster.finish();
}

#[test]
fn a_memory_node_is_killed_on_shared_memory() {
    lose_a_memory_node("shm");
}

#[test]
fn a_memory_node_is_killed_over_tcp() {
    lose_a_memory_node("tcp");
}

/// Clients that write the same keys are killed while they write. At most two of them run at a time.
fn lose_clients(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 1);
    let mut victims = Vec::new();
    for _ in 0..VICTIMS {
        let victim = cluster.victim(WriterMode::Load);
        // After this each writer has ended an operation, so all sessions are open.
        super::common::eventually("it works", || victim.progress() > 1);
        victims.push(victim);
        cluster.pause(0..200);
        if victims.len() == 2 {
            kill_one(&mut cluster, &mut victims);
        }
    }
    kill_one(&mut cluster, &mut victims);
    cluster.all_get_on("after the deaths");
    // Each client had three sessions: one of its main thread, and one for each of its two writers.
    let sessions = 3 * VICTIMS as u64;
    cluster.until("they are recovered", |status| status.recoveries >= sessions);
    cluster.finish();
}

fn kill_one(cluster: &mut FaultyCluster, victims: &mut Vec<WriterProcess>) {
    let at = cluster.choose(victims.len());
    let mut victim = victims.swap_remove(at);
    victim.kill();
    cluster.dead.push(victim);
}

#[test]
fn clients_are_killed_on_shared_memory() {
    lose_clients("shm");
}

#[test]
fn clients_are_killed_over_tcp() {
    lose_clients("tcp");
}

/// The master is killed and restarted several times, one of these times together with a memory node.
fn lose_the_master(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 2);
    for _ in 0..2 {
        cluster.kill_master();
        cluster.all_get_on("without a master");
        cluster.pause(0..500);
        cluster.restart_master();
        cluster.until("the master is back", |_| true);
        cluster.pause(0..300);
    }
    // The sessions are still the first ones. Each process has one for each of its writers, and one for its main thread.
    let status = cluster.status().unwrap();
    assert_eq!((status.open_sessions, status.recoveries), (6, 0), "{status:#?}");
    let victim = cluster.choose(3);
    if cluster.choose(2) == 0 {
        cluster.kill_master();
        cluster.pause(0..30);
        cluster.nodes[victim].kill();
    } else {
        cluster.nodes[victim].kill();
        // The change of the view takes some milliseconds, so it has possibly begun.
        cluster.pause(0..30);
        cluster.kill_master();
    }
    cluster.pause(0..500);
    cluster.restart_master();
    cluster.until_stable(2, false);
    cluster.all_get_on("after the loss");
    cluster.finish();
}

#[test]
fn the_master_is_killed_on_shared_memory() {
    lose_the_master("shm");
}

#[test]
fn the_master_is_killed_over_tcp() {
    lose_the_master("tcp");
}

/// A client, a memory node and the master are killed shortly after each other, in any order.
fn lose_everything_at_once(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 2);
    let mut victims = vec![cluster.victim(WriterMode::Load)];
    super::common::eventually("it works", || victims[0].progress() > 50);
    let node = cluster.choose(3);
    let mut order = ["client", "node", "master"];
    order.swap(0, cluster.choose(3));
    order.swap(1, 1 + cluster.choose(2));
    for who in order {
        match who {
            "client" => kill_one(&mut cluster, &mut victims),
            "node" => cluster.nodes[node].kill(),
            _ => cluster.kill_master(),
        }
        cluster.pause(0..20);
    }
    println!("killed in this order: {order:?}");
    sleep(Duration::from_millis(200));
    cluster.restart_master();
    cluster.until_stable(2, false);
    cluster.all_get_on("after the losses");
    cluster.start_node();
    cluster.until_stable(3, true);
    cluster.finish();
}

#[test]
fn a_client_a_memory_node_and_the_master_are_killed_on_shared_memory() {
    lose_everything_at_once("shm");
}

#[test]
fn a_client_a_memory_node_and_the_master_are_killed_over_tcp() {
    lose_everything_at_once("tcp");
}
