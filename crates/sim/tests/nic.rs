//! The RNIC of the simulator: latency, bandwidth, message rate and atomics rate are what they are
//! set to, and the slowest of them decides.

use fusee_core::verbs::{Batch, Fabric, MnId, Ticket};
use fusee_sim::{Cluster, ClusterOptions, Executor, NetworkOptions, Nic, Sim};

/// Virtual nanoseconds that `batches` batches take, each made by `fill`, all posted at once.
fn time(nic: Nic, batches: usize, fill: impl Fn(&mut Batch) -> Ticket) -> u64 {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, &ClusterOptions::default());
    let options = NetworkOptions { nic, delays: false, tearing: false, ..Default::default() };
    // Far more than the queues are long.
    cluster.network().set_options(NetworkOptions { verb_timeout_ns: 1 << 40, ..options });
    let clients: Vec<_> = (0..8).map(|_| cluster.client()).collect();
    let begun = sim.now();
    let mut executor = Executor::new(&sim);
    for i in 0..batches {
        let client = &clients[i % clients.len()];
        let mut batch = Batch::new();
        fill(&mut batch);
        executor.spawn(client.process, async move {
            client.fabric().execute(batch).await.check().unwrap();
        });
    }
    executor.run(10_000_000, || ());
    sim.now() - begun
}

fn about(got: u64, expected: u64) {
    assert!(got >= expected && got < expected + expected / 5 + 30_000, "{got}, not {expected}");
}

const NODE: MnId = MnId(0);
/// Behind the pool's header, which only its node writes to.
const WORD: u64 = 1 << 16;

#[test]
fn one_phase_takes_two_ways() {
    let nic = Nic { latency_ns: 100_000, ..Nic::UNLIMITED };
    about(time(nic, 1, |batch| batch.read(NODE, 0, 8)), 200_000);
}

#[test]
fn atomics_have_a_rate_of_their_own() {
    let nic = Nic { atomics_per_s: 1_000_000, ..Nic::UNLIMITED };
    let cas = |batch: &mut Batch| batch.cas(NODE, WORD, 1, 1);
    about(time(nic, 2_000, cas), 2_000_000);
    let reads = time(nic, 2_000, |batch| batch.read(NODE, 0, 8));
    assert!(reads < 100_000, "{reads}");
}

#[test]
fn messages_have_a_rate() {
    let nic = Nic { messages_per_s: 2_000_000, ..Nic::UNLIMITED };
    about(time(nic, 4_000, |batch| batch.read(NODE, 0, 8)), 2_000_000);
}

#[test]
fn bytes_take_their_time_on_the_wire() {
    // 1 Gbit/s: 8 ns a byte.
    let nic = Nic { bandwidth_bps: 1_000_000_000, ..Nic::UNLIMITED };
    about(time(nic, 500, |batch| batch.read(NODE, 0, 1000)), 500 * 8_000);
}

#[test]
fn nodes_work_side_by_side() {
    let nic = Nic { atomics_per_s: 1_000_000, ..Nic::UNLIMITED };
    let spread = |batch: &mut Batch| {
        batch.cas(MnId(0), WORD, 1, 1);
        batch.cas(MnId(1), WORD, 1, 1);
        batch.cas(MnId(2), WORD, 1, 1)
    };
    // The clients' NICs are limited as well: 8 of them post 3 atomics per batch.
    about(time(nic, 2_000, spread), 2_000_000);
}
