//! A writer's CAS of a backup is delayed for long, and the writer gives it up. While the CAS can still execute, the
//! view changes because another node is lost.
//!
//! The run takes virtual time, with the real logic of the master. If the writer reported that it has stopped, the
//! replicas would be made equal without the late CAS, which would execute later without any session noticing. Therefore
//! the writer does not report that it has stopped, and is fenced before the replicas are made equal.

use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_core::race::Buckets;
use fusee_sim::check::check_replicas_agree;
use fusee_sim::{ClusterOptions, Nanos, NetworkOptions, Sim, SimCluster};

use super::late_repairs::wait_for_all_replicas;

const KEY: &[u8] = b"key";
/// Delay of the CAS, much longer than everything else takes.
const LATE_NS: Nanos = 400_000_000;
const LEASE: Duration = Duration::from_millis(20);

/// Delays the writer's link to the first backup, and crashes the node of another replica. Returns whether the delayed
/// CAS on the first backup was refused.
pub fn in_doubt(seed: u64) -> bool {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let session = LogicOptions { op_timeout: Duration::from_millis(60), ..defaults.session };
    let options = ClusterOptions {
        memory_nodes: 4,
        data_replicas: 3,
        lease_ms: Some(LEASE.as_millis() as u64),
        session,
        ..defaults
    };
    let network = NetworkOptions { late_verbs: true, ..NetworkOptions::default() };
    let cluster = SimCluster::with_network(&sim, &options, network);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open(process, session).await.expect("a master leads");
        keeper.open(session.gate().clone());
        session.put(KEY, b"first").await.expect("all nodes answer");
        let subtable = Buckets::of(KEY, &cluster.view()).subtable;
        let places = cluster.view().subtables[subtable as usize].replicas().to_vec();
        let far = places[1].node;
        let dies = places[sim.rng().pick(&[0, 2])].node;
        cluster.network().links().hold(session.id(), far, LATE_NS);
        let writing = async { drop(session.update(KEY, b"second").await) };
        let number = cluster.view().number;
        let dying = async {
            sim.sleep(sim.rng().below_u64(2_000_000)).await;
            cluster.nodes().crash(dies);
            // This releases the link as soon as possible after the job that makes the replicas equal has begun.
            while cluster.view().number < number + 2 {
                sim.sleep(1_000).await;
            }
            assert_eq!(sim.counts().late_verbs.get(), 0, "it was held");
            cluster.network().links().release(session.id(), far);
        };
        futures_util::future::join(writing, dying).await;
        if let Some(leaving) = session.leave().await {
            assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
        } else {
            let request = MasterRequest::Abandon { client: session.id() };
            assert_eq!(cluster.peek_master(request), Some(MasterReply::Done));
        }
        keeper.close(session.id());
        wait_for_all_replicas(&cluster).await;
        assert_eq!(sim.counts().late_verbs.get(), 0, "it comes when the replicas are made equal");
        check_replicas_agree(&cluster);
        let session = cluster.open(process, options.session).await.expect("a master leads");
        let value = session.get(KEY).await.expect("all nodes answer");
        let is_known = value.as_deref().is_some_and(|v| v == b"first" || v == b"second");
        assert!(is_known, "{value:?}");
    });
    sim.counts().late_batches.get() > 0 && sim.counts().fenced_verbs.get() > 0
}
