//! A master dies in the middle of a repair, while the repair's verbs are delayed for long. They arrive after the next
//! master has repaired everything and clients have written again.
//!
//! The run takes virtual time, with the real logic of the master. A late WRITE of a copy would bring back, on one
//! replica, the contents from before the clients' writes. Therefore memory nodes must refuse the late verbs of the
//! earlier repairs.

use fusee_control::master::MasterReply;
use fusee_core::verbs::ClientId;
use fusee_sim::check::{check_quiescent, check_replicas_agree};
use fusee_sim::{ClusterOptions, Nanos, NetworkOptions, ProcessId, Sim, SimCluster};

const KEYS: [&[u8]; 3] = [b"one", b"two", b"three"];
/// The greatest delay of verbs, much longer than everything else takes.
const LATE_NS: Nanos = 60_000_000;
/// Time within which the master must have repaired everything.
const REPAIR_LIMIT_NS: Nanos = 5_000_000_000;

/// A memory node is lost and another one joins. The master dies in one of the repairs that follow. Returns whether a
/// verb of the dead master was refused.
pub fn late_repairs(seed: u64) -> bool {
    let sim = Sim::new(seed);
    let options = ClusterOptions { lease_ms: Some(20), ..ClusterOptions::default() };
    let network = NetworkOptions { verb_timeout_ns: 2 * LATE_NS, ..NetworkOptions::default() };
    let cluster = SimCluster::with_network(&sim, &options, network);
    let process = sim.process("observer");
    cluster.block_on(process, async {
        put_all(&cluster, process, b"first").await;
        let nodes = cluster.nodes().processes();
        cluster.nodes().crash(sim.rng().pick(&nodes).0);
        cluster.start_node();
        if let Some(repairer) = one_of_the_repairs(&cluster).await {
            hold_some_links(&cluster, repairer);
            sim.sleep(sim.rng().below_u64(50_000)).await;
            cluster.restart_master(1_000);
        }
        wait_for_all_replicas(&cluster).await;
        put_all(&cluster, process, b"second").await;
        sim.sleep(LATE_NS).await;
        check_replicas_agree(&cluster);
        let session = cluster.open(process, options.session).await.expect("a master leads");
        for key in KEYS {
            let value = session.get(key).await.expect("all nodes answer");
            assert_eq!(value.as_deref(), Some(&b"second"[..]), "of {key:?}");
        }
    });
    sim.counts().fenced_verbs.get() > 0
}

/// Number of pairs, which fill some blocks of every region.
const MANY: u8 = 60;

/// A memory node is lost and another one joins. Requests of one of the repairs to memory nodes arrive late: after the
/// repair was given up and repeated, by this master or another one, and after a session has got blocks. Returns whether
/// any request was late.
// Promise MEM-27
pub fn late_orders(seed: u64) -> bool {
    let sim = Sim::new(seed);
    let options =
        ClusterOptions { lease_ms: Some(20), index_keys: 200, ..ClusterOptions::default() };
    let cluster = SimCluster::new(&sim, &options);
    let process = sim.process("observer");
    cluster.block_on(process, async {
        put_all(&cluster, process, b"first").await;
        let nodes = cluster.nodes().processes();
        cluster.nodes().crash(sim.rng().pick(&nodes).0);
        cluster.start_node();
        for _ in 0..sim.rng().below(8) {
            wait_for(&cluster, |cluster| cluster.repairer().is_some()).await;
            wait_for(&cluster, |cluster| cluster.repairer().is_none()).await;
        }
        wait_for(&cluster, |cluster| cluster.repairer().is_some()).await;
        for (node, _) in cluster.nodes().processes() {
            if sim.rng().one_in(2) {
                cluster.nodes().hold_orders(node, LATE_NS / 2 + sim.rng().below_u64(2 * LATE_NS));
            }
        }
        wait_for(&cluster, |cluster| cluster.sim().counts().late_orders.get() > 0).await;
        if sim.rng().one_in(2) {
            cluster.restart_master(1_000);
        }
        for (node, _) in cluster.nodes().processes() {
            cluster.nodes().hold_orders(node, 0);
        }
        wait_for_all_replicas(&cluster).await;
        // The master has possibly restarted just before this.
        let session = loop {
            match cluster.open(process, options.session).await {
                Ok(session) => break session,
                Err(_) => sim.sleep(100_000).await,
            }
        };
        for key in 0..MANY {
            session.put(&[key], &[key; 600]).await.expect("all nodes answer");
        }
        let goodbye = session.leave().await.expect("nothing is left half-way").request();
        assert_eq!(cluster.peek_master(goodbye), Some(MasterReply::Done));
        sim.sleep(4 * LATE_NS).await;
    });
    let orphans = cluster.take_orphans();
    check_quiescent(&cluster, &orphans);
    sim.counts().late_orders.get() > 0
}

/// Writes all keys in a new session, and then ends the session.
async fn put_all(cluster: &SimCluster, process: ProcessId, value: &[u8]) {
    let session = cluster.open(process, cluster.options().session).await;
    let session = session.expect("a master leads");
    for key in KEYS {
        session.put(key, value).await.expect("all nodes answer");
    }
    let goodbye = session.leave().await.expect("nothing is left half-way").request();
    assert_eq!(cluster.peek_master(goodbye), Some(MasterReply::Done));
}

/// Waits for one of the master's next repairs, and returns its client id. Returns `None` if the master makes fewer
/// repairs.
async fn one_of_the_repairs(cluster: &SimCluster) -> Option<ClientId> {
    let skipped = cluster.sim().rng().below(4);
    for _ in 0..skipped {
        wait_for(cluster, |cluster| cluster.repairer().is_some()).await;
        wait_for(cluster, |cluster| cluster.repairer().is_none()).await;
    }
    wait_for(cluster, |cluster| cluster.repairer().is_some()).await;
    cluster.repairer()
}

/// Polls a condition every microsecond, for at most a lease.
async fn wait_for(cluster: &SimCluster, is_so: impl Fn(&SimCluster) -> bool) {
    let until = cluster.sim().now() + 20_000_000;
    while !is_so(cluster) && cluster.sim().now() < until {
        cluster.sim().sleep(1_000).await;
    }
}

fn hold_some_links(cluster: &SimCluster, repairer: ClientId) {
    let rng = cluster.sim().rng();
    for (node, _) in cluster.nodes().processes() {
        if rng.one_in(2) {
            cluster.network().links().hold(
                repairer,
                node,
                LATE_NS / 2 + rng.below_u64(LATE_NS / 2),
            );
        }
    }
}

/// Waits until the view is stable and every subtable and region has all its replicas.
pub async fn wait_for_all_replicas(cluster: &SimCluster) {
    let until = cluster.sim().now() + REPAIR_LIMIT_NS;
    let options = cluster.options();
    let is_whole = || {
        let view = cluster.view();
        view.change.is_none()
            && view.subtables.iter().all(|s| s.replicas().len() == options.index_replicas.into())
            && view.regions.iter().all(|r| r.places().len() == options.data_replicas.into())
    };
    while !is_whole() {
        assert!(cluster.sim().now() < until, "not put right: {:?}", *cluster.view());
        cluster.sim().sleep(100_000).await;
    }
}
