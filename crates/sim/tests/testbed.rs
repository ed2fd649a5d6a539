//! Tests of the testbed: verbs take exactly the time that follows from the configured times, bandwidth and rates; the
//! slowest station decides the throughput; and equal runs are equal.

// Promise CHK-9: Modelled hardware keeps its parameters, to the nanosecond.

use fusee_core::verbs::{Fabric, MnId, Ticket, VerbBatch};
use fusee_sim::{BusyTime, ClusterOptions, Executor, NetworkOptions, Sim, SimCluster, Testbed};

/// Makes a cluster on this hardware, and returns it with its simulator run.
fn cluster(testbed: Testbed) -> (Sim, SimCluster) {
    let sim = Sim::steady();
    let network = NetworkOptions { testbed: Some(testbed), ..NetworkOptions::default() };
    let cluster = SimCluster::with_network(&sim, &ClusterOptions::default(), network);
    // The tests write to arbitrary words, which the checkers would not allow.
    cluster.checks().never_watch();
    (sim, cluster)
}

/// Returns the virtual nanoseconds that `batches` batches take, which `fill` makes and eight clients post at one time.
fn time(testbed: Testbed, batches: usize, fill: impl Fn(&mut VerbBatch) -> Ticket) -> u64 {
    let (sim, cluster) = cluster(testbed);
    let clients: Vec<_> = (0..8).map(|_| cluster.client()).collect();
    cluster.network().hardware().take_busy();
    let begun = sim.now();
    let mut executor = Executor::new(&sim);
    for i in 0..batches {
        let client = &clients[i % clients.len()];
        let mut batch = VerbBatch::new();
        fill(&mut batch);
        executor.spawn(client.process, async move {
            client.fabric().execute(batch).await.check().unwrap();
        });
    }
    executor.run(10_000_000, || ());
    sim.now() - begun
}

/// Asserts that a time is as expected or slightly longer. The queues are full except while the first request and the
/// last answer are on the wire.
fn about(got: u64, expected: u64) {
    assert!(got >= expected && got < expected + expected / 50 + 2_000, "{got}, not {expected}");
}

const NODE: MnId = MnId(0);
/// An offset behind the pool's header. Only the pool's node writes to the header.
const WORD: u64 = 1 << 16;
const FREE: Testbed = Testbed::UNLIMITED;

#[test]
fn one_phase_takes_two_ways() {
    let testbed = Testbed { one_way_ns: 100_000, ..FREE };
    assert_eq!(time(testbed, 1, |batch| batch.read(NODE, 0, 8)), 200_000);
    assert_eq!(time(testbed, 100, |batch| batch.read(NODE, 0, 8)), 200_000);
}

#[test]
fn atomics_have_a_rate_of_their_own() {
    let testbed = Testbed { atomics_per_s: 1_000_000, ..FREE };
    let cas = |batch: &mut VerbBatch| batch.cas(NODE, WORD, 1, 1);
    about(time(testbed, 2_000, cas), 2_000_000);
    assert_eq!(time(testbed, 2_000, |batch| batch.read(NODE, 0, 8)), 1_600);
    // Words at different addresses use different atomic units.
    let units = Testbed { atomic_units: 512, ..testbed };
    about(time(units, 2_000, cas), 2_000_000);
    let both = |batch: &mut VerbBatch| {
        batch.cas(NODE, WORD, 1, 1);
        batch.cas(NODE, WORD + 8, 1, 1)
    };
    about(time(testbed, 1_000, both), 2_000_000);
    about(time(units, 1_000, both), 1_000_000);
}

#[test]
fn verbs_have_a_rate() {
    let testbed = Testbed { verbs_per_s: 2_000_000, ..FREE };
    about(time(testbed, 4_000, |batch| batch.read(NODE, 0, 8)), 2_000_000);
}

#[test]
fn bytes_take_their_time_on_the_wire() {
    // At 1 Gbit/s a byte takes 8 ns. Each of the eight clients has a NIC of its own. The node's NIC sends and receives
    // at the same time.
    let testbed = Testbed { bandwidth_bps: 1_000_000_000, ..FREE };
    let read = |batch: &mut VerbBatch| batch.read(NODE, 0, 1000);
    about(time(testbed, 500, read), 500 * 8_000);
    let both = |batch: &mut VerbBatch| {
        let span = batch.stage(1000);
        batch.write(NODE, WORD, span);
        batch.read(NODE, 0, 1000)
    };
    // The first request arrives with its WRITE, after 8 us. From then on the node's NIC sends and receives all the
    // time.
    about(time(testbed, 500, both), 501 * 8_000);
    let testbed = Testbed { header_bytes: 1000, ..testbed };
    about(time(testbed, 500, read), 8_000 + 500 * 16_000);
}

#[test]
fn a_thread_of_the_node_may_execute_verbs() {
    let testbed = Testbed { verb_ns: 1_000, node_cores: 1, ..FREE };
    about(time(testbed, 2_000, |batch| batch.read(NODE, 0, 8)), 2_000_000);
    let two = Testbed { node_cores: 2, ..testbed };
    about(time(two, 2_000, |batch| batch.read(NODE, 0, 8)), 1_000_000);
}

#[test]
fn nodes_work_side_by_side() {
    let testbed = Testbed { atomics_per_s: 1_000_000, ..FREE };
    let spread = |batch: &mut VerbBatch| {
        batch.cas(MnId(0), WORD, 1, 1);
        batch.cas(MnId(1), WORD, 1, 1);
        batch.cas(MnId(2), WORD, 1, 1)
    };
    about(time(testbed, 2_000, spread), 2_000_000);
}

/// Runs operations of a few clients with several coroutines on the paper's hardware. Returns the total time, the busy
/// time of each part, and the time at which each operation ended.
fn operations() -> (u64, Vec<BusyTime>, Vec<u64>) {
    let (sim, cluster) = cluster(Testbed::CONNECTX_3);
    let machine = cluster.network().hardware().machine();
    let clients: Vec<_> = (0..4).map(|_| cluster.client_on(machine)).collect();
    cluster.network().hardware().take_busy();
    let begun = sim.now();
    let ended = std::cell::RefCell::new(Vec::new());
    let mut executor = Executor::new(&sim);
    for (number, client) in clients.iter().enumerate() {
        for coroutine in 0..3 {
            let cluster = &cluster;
            let ended = &ended;
            let sim = &sim;
            executor.spawn(client.process, async move {
                let key = [number as u8, coroutine];
                for _ in 0..20 {
                    cluster.network().hardware().work(client.session.id()).await;
                    client.session.put(&key, &[7; 100]).await.unwrap();
                    cluster.network().hardware().work(client.session.id()).await;
                    assert!(client.session.get(&key).await.unwrap().is_some());
                    ended.borrow_mut().push(sim.now());
                }
            });
        }
    }
    executor.run(10_000_000, || ());
    drop(executor);
    (sim.now() - begun, cluster.network().hardware().take_busy(), ended.into_inner())
}

#[test]
fn equal_runs_are_equal_to_the_nanosecond() {
    let (took, busy, ended) = operations();
    assert_eq!((took, busy.clone(), ended), operations());
    // Four threads run 120 operations each, and post their verbs.
    let Testbed { operation_ns, post_ns, .. } = Testbed::CONNECTX_3;
    assert!(took >= 120 * operation_ns, "{took}");
    let cores =
        busy.iter().find(|busy| busy.machine.starts_with("clients") && busy.part == "cores");
    let posting = cores.unwrap().ns - 4 * 120 * operation_ns;
    assert_eq!(posting % post_ns, 0);
    // A cached get posts two verbs, and no operation posts fewer.
    assert!(posting >= 4 * 120 * 2 * post_ns, "{posting} ns");
    let atomics = busy.iter().find(|busy| busy.machine == "mn0" && busy.part == "atomics").unwrap();
    assert!(atomics.ns > 0 && atomics.ns < took, "{atomics:?}");
}
