//! Tests that measurements reach the limits of the hardware, and that equal setups give equal results.

// Promise CHK-9

use fusee_lab::{LabLoad, LabResults, LabSetup, LabSystem, MeasurementError, measure};
use fusee_sim::Testbed;
use fusee_workload::{WorkloadOperation, YcsbWorkload};

/// Returns a setup that is small enough for a test.
fn small() -> LabSetup {
    LabSetup { machines: 2, clients: 16, keys: 2_000, operations: 20_000, ..LabSetup::default() }
}

fn measured(setup: &LabSetup) -> LabResults {
    measure(setup, &|| false).unwrap_or_else(|why| panic!("{setup:?}: {why:?}"))
}

#[test]
fn equal_setups_measure_the_same() {
    let setup = LabSetup { load: LabLoad::Ycsb(YcsbWorkload::A), operations: 5_000, ..small() };
    let first = measured(&setup);
    assert_eq!(first, measured(&setup));
    let other = measured(&LabSetup { seed: 2, ..setup });
    assert_ne!(first.latencies, other.latencies, "other keys and operations");
    let counts: u64 = first.latencies.iter().map(|latency| latency.count).sum();
    assert_eq!((counts, first.operations), (5_000, 5_000));
}

#[test]
fn clients_are_the_limit_where_nothing_else_is() {
    let setup = LabSetup { pair_bytes: 64, theta: 0.0, ..small() };
    let measured = measured(&setup);
    // A SEARCH with a hint READs the key's slot and pair in one phase.
    let Testbed { operation_ns, post_ns, .. } = Testbed::CONNECTX_3;
    let limit = 16.0 * 1e9 / (operation_ns + 2 * post_ns) as f64;
    let share = measured.ops_per_s / limit;
    assert!((0.98..=1.01).contains(&share), "{share} of what 16 threads can do");
    assert_eq!(measured.busiest.part, "cores");
}

#[test]
fn bandwidth_is_the_limit_of_long_pairs() {
    let setup = LabSetup { pair_bytes: 16_384, theta: 0.0, coroutines: 32, ..small() };
    let measured = measured(&setup);
    // Two nodes send pairs. The bandwidth carries whole objects, whose length is that of their size class.
    let limit = 2.0 * Testbed::CONNECTX_3.bandwidth_bps as f64 / (8.0 * 16_500.0);
    let share = measured.ops_per_s / limit;
    assert!((0.9..=1.0).contains(&share), "{share} of what two NICs can send");
    assert_eq!(measured.busiest.part, "transmit");
    assert!(measured.busiest.machine.starts_with("mn"), "{:?}", measured.busiest);
}

#[test]
fn a_lone_client_waits_for_its_verbs_alone() {
    let setup = LabSetup {
        clients: 1,
        machines: 1,
        coroutines: 1,
        pair_bytes: 64,
        theta: 0.0,
        operations: 2_000,
        ..small()
    };
    let search = |cached| {
        let measured = measured(&LabSetup { cached, ..setup.clone() });
        measured.latencies[0].p50_ns
    };
    let Testbed { one_way_ns, post_ns, .. } = Testbed::CONNECTX_3;
    // With a hint, a SEARCH READs the slot and the pair in one phase. Without a hint, it READs two buckets, then the
    // pair.
    let one = 2 * one_way_ns + 2 * post_ns;
    let two = 4 * one_way_ns + 3 * post_ns;
    let cached = search(true);
    let not = search(false);
    assert!((one..one + one / 4).contains(&cached), "{cached} ns, one phase");
    assert!((two..two + two / 4).contains(&not), "{not} ns, two phases");
}

#[test]
fn every_workload_runs() {
    for workload in [YcsbWorkload::B, YcsbWorkload::D, YcsbWorkload::Updates(100)] {
        let setup = LabSetup { load: LabLoad::Ycsb(workload), operations: 3_000, ..small() };
        assert_eq!(measured(&setup).operations, 3_000, "{workload}");
    }
}

#[test]
fn an_operation_that_fails_is_no_measurement() {
    // The Churn workload deletes keys, and then fails to find them.
    let setup = LabSetup { load: LabLoad::Ycsb(YcsbWorkload::Churn), operations: 3_000, ..small() };
    assert!(matches!(measure(&setup, &|| false), Err(MeasurementError::Operation(_))));
    assert_eq!(measure(&small(), &|| true), Err(MeasurementError::Stopped));
}

#[test]
fn one_kind_of_operation_is_a_load() {
    for request in [
        WorkloadOperation::Search,
        WorkloadOperation::Update,
        WorkloadOperation::Insert,
        WorkloadOperation::Delete,
    ] {
        let setup = LabSetup { load: LabLoad::Only(request), operations: 1_000, ..small() };
        let latencies = measured(&setup).latencies;
        assert_eq!(latencies.iter().map(|of| of.count).collect::<Vec<_>>(), [1_000], "{request:?}");
    }
    // Only 2,000 keys exist, so the 2,001st DELETE fails.
    let setup =
        LabSetup { load: LabLoad::Only(WorkloadOperation::Delete), operations: 3_000, ..small() };
    assert!(matches!(measure(&setup, &|| false), Err(MeasurementError::Operation(_))));
}

#[test]
fn one_object_is_updated_by_one_client_at_a_time() {
    let update = LabLoad::Only(WorkloadOperation::Update);
    let alone = LabSetup { load: update, keys: 1, operations: 1_000, cached: false, ..small() };
    for system in [LabSystem::Lock, LabSystem::Sequencer] {
        let measured = measured(&LabSetup { system, ..alone.clone() });
        // An admitted client takes two phases: it WRITEs the object, then the word that admits the next client.
        let most = 1e9 / (4.0 * Testbed::CONNECTX_3.one_way_ns as f64);
        assert!(measured.ops_per_s < most, "{system:?}: {}", measured.ops_per_s);
    }
}

/// A block holds few long values. When a session's only block is full, the session orphans it, and takes it back for a
/// Move.
#[test]
fn long_values_move_in_place_as_short_ones_do() {
    let [oriented, coded] = ["eor:2:5+1", "ec:5+1"].map(|text| text.parse().unwrap());
    for kib in [64, 256] {
        let setup = LabSetup {
            testbed: "tcp-10g",
            memory_nodes: 6,
            machines: 1,
            clients: 1,
            coroutines: 1,
            index_replicas: 2,
            redundancy: oriented,
            keys: 200,
            pair_bytes: kib << 10,
            operations: 100,
            load: LabLoad::Moves { from: oriented, to: coded },
            ..LabSetup::default()
        };
        let moves = measured(&setup);
        let moves = moves.latency("move").expect("there are such");
        assert_eq!(moves.phases, Some(4.0), "{kib} KiB");
        // A Move touches all chunks once, and writes parity of the length of one chunk.
        let lengths = moves.bytes.expect("they are counted") / (kib << 10) as f64;
        assert!((1.2..1.35).contains(&lengths), "{lengths} lengths of {kib} KiB");
    }
}
