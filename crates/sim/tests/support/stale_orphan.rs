//! A block has come back to the pool while the master still records it as orphaned, and a session asks both for memory.
//!
//! One operation of the session gets the block from the pool, while the master gives the block to another operation of
//! the session, as a block of an earlier owner. Only one of the two operations must take the block, because otherwise
//! the session would have it twice in its slabs.

use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest, Orphan};
use fusee_control::node::BlockId;
use fusee_core::layout::Object;
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Sim, SimCluster};
use futures_util::future::join;

const LEASE: Duration = Duration::from_secs(1);
/// Lengths of two values of different size classes.
const LENGTHS: [usize; 2] = [10, 300];

/// Two operations of a session look for memory at one time. If `is_own`, the orphaned block was the same session's.
pub fn stale_orphan(seed: u64, is_own: bool) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let options = ClusterOptions {
        memory_nodes: 1,
        index_replicas: 1,
        data_replicas: 1,
        geometry: Geometry { slots_per_bucket: 7, ..defaults.geometry },
        lease_ms: Some(LEASE.as_millis() as u64),
        ..defaults
    };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let earlier = cluster.open(process, options.session).await.expect("a master leads");
        let owner = if is_own { session.id() } else { earlier.id() };
        let class = Object::class(4, LENGTHS[1]).expect("there is one");
        let left = Orphan {
            block: BlockId { region: 0, frame: 0, order: cluster.view().geometry.max_order() },
            base: None,
            owner,
            class,
            first: 2,
            marked: Some(cluster.view().regions[0].primary_since()),
        };
        let request =
            MasterRequest::HandOn { client: owner, serial: 1, orphans: vec![left], used: vec![] };
        assert_eq!(cluster.peek_master(request), Some(MasterReply::Done));
        let values = LENGTHS.map(|bytes| vec![7; bytes]);
        let (short, long) = join(
            async {
                sim.sleep(sim.rng().below_u64(40_000)).await;
                session.insert(b"shrt", &values[0]).await
            },
            async {
                sim.sleep(sim.rng().below_u64(40_000)).await;
                session.insert(b"long", &values[1]).await
            },
        )
        .await;
        assert_eq!((short, long), (Ok(()), Ok(())));
        for (key, value) in [b"shrt", b"long"].into_iter().zip(&values) {
            assert_eq!(session.get(key).await.expect("it is there").as_ref(), Some(value));
        }
    });
}
