//! A master that a signal ends in the middle of a view change.

// Promise CHG-19

use std::time::{Duration, Instant};

use super::cluster::{ClusterShape, FaultyCluster, LONG_LEASE_MS};
use super::writer::WriterMode;

/// A client and a memory node are killed together, so the view change waits until the client's lease has run out.
/// Meanwhile the master is ended, and restarted after more time than any write waits. No other client notices.
fn stop_in_a_change(fabric: &'static str) {
    let shape =
        ClusterShape { fabric, nodes: 4, lease_ms: LONG_LEASE_MS, ..ClusterShape::default() };
    let mut cluster = FaultyCluster::of(shape);
    cluster.load(2, 2);
    let mut victim = cluster.victim(WriterMode::Load);
    super::common::eventually("it works", || victim.progress() > 1);
    victim.kill();
    cluster.dead.push(victim);
    cluster.nodes[3].kill();
    let is_frozen = |status: &fusee_client::Status| {
        status.view.as_ref().is_some_and(|view| view.members.len() == 3)
    };
    let status = cluster.until("the change", is_frozen);
    assert!(status.view.is_some_and(|view| view.change.is_some()), "it waits for a lease");
    let begun = Instant::now();
    cluster.stop_master();
    println!("the master took {:?} to end", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(15));
    cluster.all_get_on("without a master");
    cluster.pause(6_000..6_500);
    cluster.all_get_on("without a master");
    cluster.restart_master();
    cluster.until_stable(3, true);
    cluster.nodes.remove(3);
    cluster.all_get_on("with the next master");
    cluster.finish();
}

#[test]
fn a_master_ends_its_change_before_it_ends_over_tcp() {
    if super::common::is_long_and_left_out() {
        return;
    }
    stop_in_a_change("tcp");
}

#[test]
fn a_master_ends_its_change_before_it_ends_on_shared_memory() {
    if super::common::is_long_and_left_out() {
        return;
    }
    stop_in_a_change("shm");
}
