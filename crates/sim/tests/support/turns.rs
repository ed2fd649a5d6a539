//! The master's handling of requests for view changes: many requests for one change, a kind of change that is requested
//! all the time, a master that forgets requests, and a master that seldom runs.

use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_control::master::MasterRequest;
use fusee_core::verbs::MnId;
use fusee_sim::{ClusterOptions, Nanos, Sim, SimCluster};

use super::late_repairs::wait_for_all_replicas;

const LEASE: Duration = Duration::from_millis(50);
const MS: Nanos = 1_000_000;
/// Number of successive view changes that include each requested kind of change at least once.
const PATIENT_CHANGES: usize = 5;
/// Number of sessions that die together.
const DYING: usize = 20;
/// Number of keys, which is more than the index has room for at first.
const KEYS: u32 = 400;

fn options() -> ClusterOptions {
    ClusterOptions { lease_ms: Some(LEASE.as_millis() as u64), ..ClusterOptions::default() }
}

/// Asks for the split of a subtable, with the number of the newest view.
fn ask_for_split(cluster: &SimCluster, subtable: u32) {
    let view = cluster.view().number;
    cluster.peek_master(MasterRequest::Split { subtable, view });
}

/// Many sessions find one subtable full, some of them while it is being split. The subtable is split once.
pub fn split_once(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = sim.process("observer");
    cluster.block_on(process, async {
        let before = cluster.view().clone();
        ask_for_split(&cluster, 0);
        while cluster.view().number == before.number || cluster.view().change.is_some() {
            sim.sleep(sim.rng().below_u64(MS / 10)).await;
            if cluster.view().number == before.number || cluster.view().change.is_some() {
                ask_for_split(&cluster, 0);
            }
        }
        sim.sleep(100 * MS).await;
        assert_eq!(cluster.view().subtables.len(), before.subtables.len() + 1);
    });
}

/// Splits are requested all the time while replicas are missing. The replicas are added nevertheless.
// Promise CHG-30: Splits, regions and repairs take turns; late requests are served once.
pub fn replicas_have_turns(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = sim.process("observer");
    cluster.block_on(process, async {
        cluster.start_node();
        wait_for_all_replicas(&cluster).await;
        let gone = cluster.view().subtables[0].primary().node;
        cluster.nodes().crash(gone);
        while cluster.view().member(gone).is_some() {
            sim.sleep(MS / 50).await;
        }
        let lacked = missing_replicas(&cluster);
        let mut number = 0;
        let mut changes = 0;
        while changes < PATIENT_CHANGES {
            let view = cluster.view().clone();
            (0..view.subtables.len() as u32).for_each(|subtable| ask_for_split(&cluster, subtable));
            changes += usize::from(view.number > number && view.change.is_none());
            number = view.number;
            sim.sleep(MS / 50).await;
        }
        assert!(lacked > 0, "it held something");
        assert!(missing_replicas(&cluster) < lacked, "none came in {changes} changes");
    });
}

/// Returns the number of replicas that the index and the regions lack.
fn missing_replicas(cluster: &SimCluster) -> usize {
    let view = cluster.view();
    let index = usize::from(cluster.options().index_replicas);
    let data = usize::from(cluster.options().data_replicas);
    let subtables = view.subtables.iter().map(|subtable| (index, subtable.replicas().len()));
    let regions = view.regions.iter().map(|region| (data, region.places().len()));
    subtables.chain(regions).map(|(wanted, there)| wanted.saturating_sub(there)).sum()
}

/// A restarted master forgets the requests for a larger index. The writer asks again, and so does not wait in vain.
// Promise CHG-30
pub fn forgotten_split(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = LogicOptions { op_timeout: Duration::from_secs(5), ..options().session };
        let session = cluster.open(process, session).await.expect("a master leads");
        keeper.open(session.gate().clone());
        let before = cluster.view().subtables.len();
        for number in 0..KEYS {
            // The master is away for less than a lease each time.
            if number % 8 == 0 {
                cluster.restart_master(10 * MS);
            }
            let key = format!("key {number}").into_bytes();
            session.put(&key, b"value").await.expect("the index grows");
        }
        assert!(cluster.view().subtables.len() > before, "it was too large");
    });
}

/// Many sessions die while one lives. Memory nodes forget the dead sessions, and still serve the live one.
// Promise FAB-29
pub fn many_deaths(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        for _ in 0..8 {
            for _ in 0..DYING {
                // No keeper renews the lease of this session.
                let dying = cluster.open(cluster.client_process(), options().session).await;
                dying.expect("a master leads").put(b"key", b"value").await.expect("it lives yet");
            }
            sim.sleep(4 * LEASE.as_nanos() as Nanos).await;
            for number in 0..KEYS / 4 {
                let key = format!("key {number}").into_bytes();
                session.put(&key, &[1; 200]).await.expect("it is served");
            }
        }
        for (node, _) in cluster.nodes().processes() {
            let remembered = cluster.network().memories().remembered(node);
            // The node still remembers the sessions of the last rounds, which were not recovered yet when the node last
            // learnt which sessions live.
            assert!(remembered < 4 * DYING, "{node} remembers {remembered} clients");
        }
    });
}

/// A master that runs only for moments still notices that a memory node is lost, and does not expel the other nodes.
// Promise CHG-21: A master that keeps being held up notices losses.
pub fn starved_master(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = sim.process("observer");
    cluster.block_on(process, async {
        let nodes = cluster.nodes().processes();
        let gone: MnId = sim.rng().pick(&nodes).0;
        cluster.nodes().crash(gone);
        for _ in 0..500 {
            has_a_moment(&sim, &cluster).await;
            if cluster.view().member(gone).is_none() {
                break;
            }
        }
        let view = cluster.view();
        assert!(view.member(gone).is_none(), "it is still a member");
        assert_eq!(view.members.len(), nodes.len() - 1, "one that lives was taken for gone");
    });
}

/// Stops the master for most of a lease, and then lets it run for a moment.
async fn has_a_moment(sim: &Sim, cluster: &SimCluster) {
    cluster.stop_master();
    sim.sleep(3 * LEASE.as_nanos() as Nanos / 4).await;
    cluster.resume_master();
    sim.sleep(3 * MS).await;
}

/// A master is stopped nearly all the time, and the moments in which it runs are too short for heartbeats of memory
/// nodes, as if the nodes had to connect again each time. The master does not treat the nodes as silent.
// Promise CHG-25: Heartbeats that a starved master cannot hear are not silence.
pub fn unheard_nodes(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = sim.process("observer");
    cluster.block_on(process, async {
        let nodes = cluster.nodes().processes();
        nodes.iter().for_each(|(node, _)| cluster.nodes().cut_off(*node));
        for _ in 0..40 {
            has_a_moment(&sim, &cluster).await;
        }
        nodes.iter().for_each(|(node, _)| cluster.nodes().reconnect(*node));
        sim.sleep(4 * LEASE.as_nanos() as Nanos).await;
        // An expelled node would come back with another id.
        let is_member = |node: &MnId| cluster.view().member(*node).is_some();
        assert!(nodes.iter().all(|(node, _)| is_member(node)), "one that lives was taken for gone");
    });
}
