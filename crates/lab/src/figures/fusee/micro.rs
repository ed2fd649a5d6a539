//! Figures of systems with one object, of Clover's metadata server, and of the microbenchmark.

use fusee_workload::{WorkloadOperation, YcsbWorkload};

use super::{
    EVERYBODY, FUSEE, Figure, FigurePoint, Medians, Quantity, Statement, StatementCondition,
    StatementKind,
};
use super::{as_it_is, over, throughput};
use crate::setup::{LabLoad, LabSetup, LabSystem};

pub const F2: Figure = Figure {
    id: "F2",
    about: "throughput of Clover over the cores of its metadata server, with 64 clients",
    x: "cores",
    points: || {
        let cores: Vec<f64> = (1..=8).map(f64::from).collect();
        throughput(&[LabSystem::Clover], &[YcsbWorkload::A], &cores, |setup, cores| {
            (setup.clients, setup.metadata_cores) = (64, cores as usize);
        })
    },
    statements: &[
        Statement {
            says: "with five cores the metadata server limits it still: six give more",
            section: "P 2.2",
            kind: StatementKind::Calibrated,
            of: &["Clover"],
            value: |medians, _| medians.ratio("YCSB-A, Clover", 6.0, 5.0),
            expected: StatementCondition::AtLeast(1.05),
        },
        Statement {
            says: "with six or more it does not: eight give hardly more than six",
            section: "P 2.2",
            kind: StatementKind::Calibrated,
            of: &["Clover"],
            value: |medians, _| medians.ratio("YCSB-A, Clover", 8.0, 6.0),
            expected: StatementCondition::AtMost(1.1),
        },
        Statement {
            says: "with one it is low",
            section: "P 2.2",
            kind: StatementKind::Predicted,
            of: &["Clover"],
            value: |medians, _| medians.ratio("YCSB-A, Clover", 1.0, 8.0),
            expected: StatementCondition::AtMost(0.5),
        },
    ],
    remarks: &["the paper does not say which workload it was; here it is YCSB-A"],
};

pub const F3: Figure = Figure {
    id: "F3",
    about: "updates of one object by many clients: a remote lock, a sequencer, and a replicated slot",
    x: "clients",
    points: || {
        let mut points = Vec::new();
        for system in
            [LabSystem::Lock, LabSystem::Sequencer, LabSystem::Fusee, LabSystem::Published]
        {
            for clients in [1, 2, 4, 8, 16, 32, 64] {
                let setup = LabSetup {
                    system,
                    load: LabLoad::Only(WorkloadOperation::Update),
                    clients,
                    coroutines: 1,
                    keys: 1,
                    index_replicas: 2,
                    operations: 10_000,
                    ..LabSetup::default()
                };
                let series = system.name().into();
                let quantity = Quantity::Throughput;
                points.push(FigurePoint { series, x: clients as f64, setup, quantity });
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "the throughput of a lock does not grow with the clients",
            section: "P 3.1",
            kind: StatementKind::Predicted,
            of: &["lock"],
            value: |medians, _| medians.ratio("lock", 64.0, 4.0),
            expected: StatementCondition::AtMost(1.1),
        },
        Statement {
            says: "nor does that of consensus, which orders all updates",
            section: "P 3.1",
            kind: StatementKind::Predicted,
            of: &["sequencer"],
            value: |medians, _| medians.ratio("sequencer", 64.0, 4.0),
            expected: StatementCondition::AtMost(1.1),
        },
    ],
    remarks: &[
        "the sequencer is a stand-in: it has the order of a replicated state machine, not its protocol",
        "of a replicated slot, updates that lose to another one end with it: they are in the count",
    ],
};

const KINDS: [(&str, WorkloadOperation); 4] = [
    ("search", WorkloadOperation::Search),
    ("update", WorkloadOperation::Update),
    ("insert", WorkloadOperation::Insert),
    ("delete", WorkloadOperation::Delete),
];

/// Returns the kinds of operations that a system implements.
fn kinds(system: LabSystem) -> impl Iterator<Item = (&'static str, WorkloadOperation)> {
    KINDS.into_iter().filter(move |(_, request)| {
        system != LabSystem::Clover || *request != WorkloadOperation::Delete
    })
}

pub const F10: Figure = Figure {
    id: "F10",
    about: "latency of one client's operations: medians at 50, and what one of a hundred exceeds at 99",
    x: "percentile",
    points: || {
        let mut points = Vec::new();
        for system in EVERYBODY {
            for (kind, request) in kinds(*system) {
                let setup = LabSetup {
                    system: *system,
                    load: LabLoad::Only(request),
                    machines: 1,
                    clients: 1,
                    coroutines: 1,
                    keys: 20_000,
                    operations: 10_000,
                    theta: 0.0,
                    ..LabSetup::default()
                };
                for (x, quantity) in [(50.0, Quantity::Median(kind)), (99.0, Quantity::Tail(kind))]
                {
                    let series = format!("{kind}, {}", system.name());
                    points.push(FigurePoint { series, x, setup: setup.clone(), quantity });
                }
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "its INSERT is faster than those of the others",
            section: "P 6.2",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over_best(medians, "insert", system),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "and so is its UPDATE",
            section: "P 6.2",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over_best(medians, "update", system),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "its SEARCH takes a little longer than Clover's",
            section: "P 6.2",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "search", system, "Clover", 50.0),
            expected: StatementCondition::AtLeast(1.0),
        },
        Statement {
            says: "its DELETE takes slightly longer than that of pDPM-Direct",
            section: "P 6.2",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "delete", system, "pDPM-Direct", 50.0),
            expected: StatementCondition::AtLeast(1.0),
        },
    ],
    remarks: &[
        "the time that an operation takes its client's processor, beside its verbs, is not part of a latency here",
        "Clover has no DELETE",
    ],
};

/// Returns the median of a system divided by the better median of Clover and pDPM-Direct.
fn over_best(medians: &Medians, kind: &str, system: &str) -> Option<f64> {
    let [clover, direct] =
        ["Clover", "pDPM-Direct"].map(|other| over(medians, kind, system, other, 50.0));
    Some(clover?.max(direct?))
}

pub const F11: Figure = Figure {
    id: "F11",
    about: "throughput of each operation, 128 clients",
    x: "operation",
    points: || {
        let mut points = Vec::new();
        for system in EVERYBODY {
            for (kind, request) in kinds(*system) {
                let setup = LabSetup {
                    system: *system,
                    load: LabLoad::Only(request),
                    // DELETEs need more than 40,000 keys, because each deletes another key.
                    keys: if request == WorkloadOperation::Delete { 60_000 } else { 100_000 },
                    operations: 40_000,
                    ..LabSetup::default()
                };
                let series = format!("{kind}, {}", system.name());
                let at = KINDS.iter().position(|(name, _)| *name == kind);
                let x = at.expect("it is one of them") as f64;
                let setup = as_it_is(setup);
                points.push(FigurePoint { series, x, setup, quantity: Quantity::Throughput });
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "its UPDATEs reach more than those of the others",
            section: "P 6.2",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| least_over(medians, "update", system, 1.0),
            expected: StatementCondition::AtLeast(1.0),
        },
        Statement {
            says: "and so do its INSERTs",
            section: "P 6.2",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| least_over(medians, "insert", system, 2.0),
            expected: StatementCondition::AtLeast(1.0),
        },
    ],
    remarks: &["0: search, 1: update, 2: insert, 3: delete"],
};

fn least_over(medians: &Medians, kind: &str, system: &str, x: f64) -> Option<f64> {
    let [clover, direct] =
        ["Clover", "pDPM-Direct"].map(|other| over(medians, kind, system, other, x));
    Some(clover?.min(direct?))
}
