//! Figures over the number of replicas.

use fusee_workload::{WorkloadOperation, YcsbWorkload};

use super::{
    BOTH, FUSEE, Figure, FigurePoint, Quantity, Statement, StatementCondition, StatementKind,
};
use super::{over, ratio, throughput};
use crate::setup::{LabLoad, LabSetup, LabSystem};

pub const F18: Figure = Figure {
    id: "F18",
    about: "throughput over the replication factor",
    x: "replicas of index and pairs",
    points: || {
        let workloads = [YcsbWorkload::A, YcsbWorkload::B, YcsbWorkload::C, YcsbWorkload::D];
        throughput(BOTH, &workloads, &[1.0, 2.0, 3.0, 4.0, 5.0], |setup, replicas| {
            // Five replicas need five nodes.
            setup.memory_nodes = 5;
            (setup.index_replicas, setup.data_replicas) = (replicas as u8, replicas as u8);
        })
    },
    statements: &[
        Statement {
            says: "with one replica YCSB-D reaches 8.8 million operations a second",
            section: "P 6.4",
            kind: StatementKind::Calibrated,
            of: FUSEE,
            value: |medians, system| medians.at(&format!("YCSB-D, {system}"), 1.0),
            expected: StatementCondition::About(8.8),
        },
        Statement {
            says: "YCSB-D falls slightly, from 8.8 to 8.6",
            section: "P 6.4",
            kind: StatementKind::Calibrated,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-D", system, 5.0, 1.0),
            expected: StatementCondition::AtLeast(0.95),
        },
        Statement {
            says: "YCSB-C stays the same",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-C", system, 5.0, 1.0),
            expected: StatementCondition::AtLeast(0.98),
        },
        Statement {
            says: "YCSB-A falls",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-A", system, 5.0, 1.0),
            expected: StatementCondition::AtMost(0.99),
        },
        Statement {
            says: "YCSB-B falls",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-B", system, 5.0, 1.0),
            expected: StatementCondition::AtMost(0.99),
        },
    ],
    remarks: &["the paper does not say how many memory nodes there were"],
};

/// Variants of FUSEE: name, system, and whether the variant has an index cache.
const VARIANTS: [(&str, LabSystem, bool); 5] = [
    ("ours", LabSystem::Fusee, true),
    ("ours without cache", LabSystem::Fusee, false),
    ("as published", LabSystem::Published, true),
    ("FUSEE-NC", LabSystem::Published, false),
    ("FUSEE-CR", LabSystem::OneByOne, true),
];

pub const F19: Figure = Figure {
    id: "F19",
    about: "median latency over the replication factor, with variants",
    x: "replicas of index and pairs",
    points: || {
        let mut points = Vec::new();
        for (name, system, cached) in VARIANTS {
            for (kind, request) in [
                ("search", WorkloadOperation::Search),
                ("update", WorkloadOperation::Update),
                ("insert", WorkloadOperation::Insert),
                ("delete", WorkloadOperation::Delete),
            ] {
                for replicas in 1..=5u8 {
                    let setup = LabSetup {
                        system,
                        load: LabLoad::Only(request),
                        memory_nodes: 5,
                        index_replicas: replicas,
                        data_replicas: replicas,
                        machines: 1,
                        clients: 1,
                        coroutines: 1,
                        keys: 10_000,
                        operations: 5_000,
                        theta: 0.0,
                        cached,
                        ..LabSetup::default()
                    };
                    let series = format!("{kind}, {name}");
                    let x = f64::from(replicas);
                    points.push(FigurePoint { series, x, setup, quantity: Quantity::Median(kind) });
                }
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "an UPDATE takes slightly longer with more replicas: from two to five by less than half of what \
                   FUSEE-CR does",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| {
                let grows = |system: &str| {
                    let at = |x| medians.at(&format!("update, {system}"), x);
                    Some(at(5.0)? - at(2.0)?)
                };
                Some(grows(system)? / grows("FUSEE-CR")?)
            },
            expected: StatementCondition::AtMost(0.5),
        },
        Statement {
            says: "that of FUSEE-CR grows linearly: by three more CAS from two to five replicas",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: &["FUSEE-CR"],
            value: |medians, _| {
                let at = |x| medians.at("update, FUSEE-CR", x);
                let slow = at(5.0)? - at(3.0)?;
                let fast = at(3.0)? - at(2.0)?;
                Some(slow / fast)
            },
            expected: StatementCondition::About(2.0),
        },
        Statement {
            says: "a SEARCH takes as long as one of FUSEE-CR",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "search", system, "FUSEE-CR", 3.0),
            expected: StatementCondition::About(1.0),
        },
        Statement {
            says: "an UPDATE is faster than one of FUSEE-NC",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "update", system, "FUSEE-NC", 3.0),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "so is a DELETE",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "delete", system, "FUSEE-NC", 3.0),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "and a SEARCH",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "search", system, "FUSEE-NC", 3.0),
            expected: StatementCondition::AtMost(1.0),
        },
    ],
    remarks: &[
        "the time that an operation takes its client's processor, beside its verbs, is not part of a latency here",
    ],
};
