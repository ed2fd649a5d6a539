//! Processes that are stopped by `SIGSTOP` and continued by `SIGCONT`. If the cluster has given a process up because it
//! was silent for a lease, that process cannot change anything any more. Other processes continue as before.

// Promise CHG-29
// Promise DUR-3

use fusee_linearizability::HistoryAnswer;

use super::cluster::FaultyCluster;
use super::writer::{self, WriterMode};

/// A client process is stopped while it writes, and other clients continue. After it runs again, every key still has
/// another client's value.
fn stop_a_client(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 1);
    let mut victim = cluster.victim(WriterMode::LoadUntilError);
    super::common::eventually("it works", || victim.progress() > 200);
    cluster.pause(0..50);
    victim.signal("STOP");
    cluster.all_get_on("while it is stopped");
    let sessions = 3;
    cluster.until("it is recovered", |status| status.recoveries == sessions);
    cluster.all_get_on("without it");
    cluster.end_load();
    let sweep = cluster.sweep(WriterMode::Sweep);
    if fabric == "shm" {
        // Over shared memory the fence has to kill the process, because mapped memory cannot be taken away from it.
        super::common::eventually("the fence kills it", || !victim.is_alive());
    } else {
        assert!(victim.is_alive());
        victim.tell_to_end();
        victim.signal("CONT");
        victim.wait();
        println!("what it met: {}", victim.complaints());
    }
    let look = cluster.sweep(WriterMode::Look);
    for record in writer::read_all([&look]) {
        let Some((_, HistoryAnswer::Found(value))) = record.operation.returned else {
            panic!("key {} is gone", record.key);
        };
        assert_eq!(value >> 40, u64::from(sweep.task.first), "key {}", record.key);
    }
    cluster.dead.push(victim);
    cluster.clients.extend([sweep, look]);
    cluster.finish_excusing(|complaint| complaint.contains("fenced this session"));
}

// Promise DUR-4: A stopped process that resumes changes nothing.
#[test]
fn a_client_is_stopped_on_shared_memory() {
    stop_a_client("shm");
}

// Promise DUR-4
#[test]
fn a_client_is_stopped_over_tcp() {
    stop_a_client("tcp");
}

/// Clients that are stopped for less than a lease keep their sessions.
fn stop_clients_shortly(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 2);
    for round in 0..4 {
        let client = &cluster.clients[round % 2];
        client.signal("STOP");
        cluster.pause(200..400);
        client.signal("CONT");
        cluster.all_get_on("after a pause");
    }
    cluster.pause(100..200);
    let status = cluster.until("the master is there", |_| true);
    // Each process has one session for each of its writers, and one for its main thread.
    assert_eq!((status.open_sessions, status.recoveries), (6, 0), "{status:#?}");
    cluster.finish();
}

#[test]
fn clients_are_stopped_shortly_on_shared_memory() {
    stop_clients_shortly("shm");
}

#[test]
fn clients_are_stopped_shortly_over_tcp() {
    stop_clients_shortly("tcp");
}

/// A memory node is stopped, and the cluster continues without it. When the node runs again, it joins again with an
/// empty pool, and gets replicas.
fn stop_a_memory_node(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 2);
    let victim = cluster.choose(3);
    let before = cluster.name_of(victim);
    assert!(before.is_some());
    cluster.nodes[victim].signal("STOP");
    cluster.until_stable(2, false);
    assert_eq!(cluster.name_of(victim), None);
    cluster.all_get_on("without the node");
    cluster.nodes[victim].signal("CONT");
    cluster.until_stable(3, true);
    let after = cluster.name_of(victim);
    assert!(after.is_some() && after != before, "{before:?} came back as {after:?}");
    cluster.all_get_on("with the node");
    cluster.finish();
}

#[test]
fn a_memory_node_is_stopped_on_shared_memory() {
    stop_a_memory_node("shm");
}

#[test]
fn a_memory_node_is_stopped_over_tcp() {
    stop_a_memory_node("tcp");
}

/// The master is stopped for times shorter and longer than a lease. It must not regard a process as dead whose
/// heartbeats it could not receive in that time.
fn stop_the_master(fabric: &'static str) {
    let mut cluster = FaultyCluster::start(fabric);
    cluster.load(2, 2);
    for ms in [300, 450, 600, 900, 1300] {
        cluster.master.as_ref().unwrap().signal("STOP");
        cluster.all_get_on("without a master");
        cluster.pause(ms..ms + 100);
        cluster.master.as_ref().unwrap().signal("CONT");
        cluster.pause(100..400);
    }
    let status = cluster.until("the master is back", |_| true);
    // Each process has one session for each of its writers, and one for its main thread.
    let counts = (status.open_sessions, status.recoveries, status.reconfigurations);
    assert_eq!(counts, (6, 0, 0), "{status:#?}");
    cluster.finish();
}

#[test]
fn the_master_is_stopped_on_shared_memory() {
    stop_the_master("shm");
}

#[test]
fn the_master_is_stopped_over_tcp() {
    stop_the_master("tcp");
}

/// The master is stopped for so long that all processes close their connections. When it continues, it finds the old
/// connections closed, and requests waiting on new connections.
fn stop_the_master_for_long(fabric: &'static str) {
    if super::common::is_long_and_left_out() {
        return;
    }
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 2);
    for _ in 0..2 {
        cluster.master.as_ref().unwrap().signal("STOP");
        cluster.pause(8_000..8_500);
        cluster.master.as_ref().unwrap().signal("CONT");
        // This pause is longer than a lease.
        cluster.pause(5_500..6_000);
        cluster.all_get_on("with the master");
    }
    let status = cluster.until("the master is back", |_| true);
    let counts = (status.open_sessions, status.recoveries, status.reconfigurations);
    assert_eq!(counts, (6, 0, 0), "{status:#?}");
    cluster.finish();
}

#[test]
fn the_master_is_stopped_for_long_on_shared_memory() {
    stop_the_master_for_long("shm");
}

#[test]
fn the_master_is_stopped_for_long_over_tcp() {
    stop_the_master_for_long("tcp");
}
