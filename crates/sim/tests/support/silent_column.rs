//! A coded pair is read while the node of one of its chunks does not answer, and the view does not change.

// Promise RED-18: A coded pair is readable while a chunk's node is silent.

use std::time::Duration;

use fusee_core::data::{Orientation, Redundancy};
use fusee_core::erasure::Coding;
use fusee_sim::{ClusterOptions, NetworkOptions, Sim, SimCluster};

use super::stale_moves::pair_apart;

const LEASE: Duration = Duration::from_millis(20);
/// A time longer than the run, in nanoseconds.
const HELD_NS: u64 = 10_000_000_000;

/// An erasure-coded or EC-oriented pair is read with and without a hint. The node is silent only for the session: the
/// master still receives its heartbeats.
pub fn silent_column(seed: u64) {
    let sim = Sim::new(seed);
    let lease_ms = Some(LEASE.as_millis() as u64);
    let options = ClusterOptions { memory_nodes: 9, lease_ms, ..ClusterOptions::default() };
    let network = NetworkOptions { verb_timeout_ns: 100_000, ..NetworkOptions::default() };
    let cluster = SimCluster::with_network(&sim, &options, network);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let coding = Coding::new(2, 1).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    let redundancy = if seed.is_multiple_of(2) { Redundancy::Coded(coding) } else { oriented };
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let (key, hint, silent) = pair_apart(&cluster, &session, redundancy).await;
        let view = cluster.view().number;
        cluster.network().links().hold(session.id(), silent, HELD_NS);
        for hint in [None, Some(hint), None] {
            let found = session.store().search(&key[..], hint).await.expect("enough is left");
            assert_eq!(found.value(), Some(&[1; 900][..]));
        }
        assert_eq!(cluster.view().number, view, "nobody is lost");
    });
}
