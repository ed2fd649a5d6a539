//! Figures of YCSB workloads.

use fusee_workload::YcsbWorkload;

use super::{
    BOTH, EVERYBODY, FUSEE, Figure, FigurePoint, Medians, Quantity, Statement, StatementCondition,
    StatementKind,
};
use super::{as_it_is, over, ratio, throughput};
use crate::setup::{LabLoad, LabSetup, LabSystem};

pub const F12: Figure = Figure {
    id: "F12",
    about: "throughput with smaller pairs",
    x: "bytes of a pair",
    points: || {
        let bytes = [256.0, 512.0, 1024.0];
        throughput(BOTH, &[YcsbWorkload::A, YcsbWorkload::C], &bytes, |setup, bytes| {
            setup.pair_bytes = bytes as usize;
        })
    },
    statements: &[
        Statement {
            says: "with 512 bytes YCSB-C gains 44.1 %",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-C", system, 512.0, 1024.0),
            expected: StatementCondition::About(1.441),
        },
        Statement {
            says: "with 256 bytes YCSB-C gains 55.9 %",
            section: "P 6.3",
            kind: StatementKind::Calibrated,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-C", system, 256.0, 1024.0),
            expected: StatementCondition::About(1.559),
        },
    ],
    remarks: &["no cost that is linear in the size gives both numbers"],
};

pub const F13: Figure = Figure {
    id: "F13",
    about: "throughput over clients",
    x: "clients",
    points: || {
        let workloads = [YcsbWorkload::A, YcsbWorkload::B, YcsbWorkload::C, YcsbWorkload::D];
        throughput(EVERYBODY, &workloads, &[8.0, 32.0, 64.0, 128.0], |setup, clients| {
            setup.clients = clients as usize;
        })
    },
    statements: &[
        Statement {
            says: "with 128 clients it reaches 4.9 times what Clover does",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "YCSB-A", system, "Clover", 128.0),
            expected: StatementCondition::About(4.9),
        },
        Statement {
            says: "and 117 times what pDPM-Direct does",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "YCSB-A", system, "pDPM-Direct", 128.0),
            expected: StatementCondition::About(117.0),
        },
        Statement {
            says: "Clover does not grow any more as clients do: its metadata server limits it",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: &["Clover"],
            value: |medians, _| medians.ratio("YCSB-A, Clover", 128.0, 64.0),
            expected: StatementCondition::AtMost(1.1),
        },
        Statement {
            says: "nor does pDPM-Direct: its locks limit it",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: &["pDPM-Direct"],
            value: |medians, _| medians.ratio("YCSB-A, pDPM-Direct", 128.0, 64.0),
            expected: StatementCondition::AtMost(1.1),
        },
        Statement {
            says: "with few clients Clover is best",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| over(medians, "YCSB-A", system, "Clover", 8.0),
            expected: StatementCondition::AtMost(1.0),
        },
    ],
    remarks: &[
        "the paper does not say which workload 4.9 and 117 times are of: here they are YCSB-A's",
        "clients of Clover and of pDPM-Direct do one operation at a time, those of FUSEE eight",
    ],
};

pub const F14: Figure = Figure {
    id: "F14",
    about: "throughput over memory nodes",
    x: "memory nodes",
    points: || {
        let nodes = [2.0, 3.0, 4.0, 5.0];
        throughput(EVERYBODY, &[YcsbWorkload::A, YcsbWorkload::C], &nodes, |setup, nodes| {
            setup.memory_nodes = nodes as u16;
        })
    },
    statements: &[
        Statement {
            says: "a third memory node raises the throughput of YCSB-C",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-C", system, 3.0, 2.0),
            expected: StatementCondition::AtLeast(1.1),
        },
        Statement {
            says: "and of YCSB-A",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-A", system, 3.0, 2.0),
            expected: StatementCondition::AtLeast(1.1),
        },
        Statement {
            says: "more than three do not raise that of YCSB-C any further",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-C", system, 5.0, 3.0),
            expected: StatementCondition::AtMost(1.1),
        },
        Statement {
            says: "nor that of YCSB-A",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| ratio(medians, "YCSB-A", system, 5.0, 3.0),
            expected: StatementCondition::AtMost(1.1),
        },
        Statement {
            says: "they do not raise that of Clover",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: &["Clover"],
            value: |medians, _| medians.ratio("YCSB-A, Clover", 5.0, 2.0),
            expected: StatementCondition::AtMost(1.1),
        },
        Statement {
            says: "nor that of pDPM-Direct",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: &["pDPM-Direct"],
            value: |medians, _| medians.ratio("YCSB-A, pDPM-Direct", 5.0, 2.0),
            expected: StatementCondition::AtMost(1.1),
        },
    ],
    remarks: &[],
};

pub const F15: Figure = Figure {
    id: "F15",
    about: "throughput over the share of UPDATEs",
    x: "percent of UPDATEs",
    points: || {
        let mut points = Vec::new();
        for system in EVERYBODY {
            for percent in [0u8, 25, 50, 75, 100] {
                let load = LabLoad::Ycsb(YcsbWorkload::Updates(percent));
                let setup = as_it_is(LabSetup { system: *system, load, ..LabSetup::default() });
                let series = format!("mix, {}", system.name());
                let x = f64::from(percent);
                points.push(FigurePoint { series, x, setup, quantity: Quantity::Throughput });
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "throughput falls as the share of UPDATEs grows",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| most_of_steps(medians, system),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "that of Clover as well",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: &["Clover"],
            value: |medians, _| most_of_steps(medians, "Clover"),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "that of pDPM-Direct as well",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: &["pDPM-Direct"],
            value: |medians, _| most_of_steps(medians, "pDPM-Direct"),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "it is better than Clover with every share",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: FUSEE,
            value: |medians, system| {
                let at = |x| over(medians, "mix", system, "Clover", x);
                let all = [0.0, 25.0, 50.0, 75.0, 100.0].map(at);
                all.into_iter().collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
            },
            expected: StatementCondition::AtLeast(1.0),
        },
    ],
    remarks: &[],
};

/// Returns the largest ratio of the throughput of a mix to that of the mix to its left in the figure. A ratio of at
/// most 1 shows that no step raises the throughput.
fn most_of_steps(medians: &Medians, system: &str) -> Option<f64> {
    let steps = [(25.0, 0.0), (50.0, 25.0), (75.0, 50.0), (100.0, 75.0)];
    let ratios = steps.iter().map(|(x, over)| ratio(medians, "mix", system, *x, *over));
    ratios.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
}

pub const F16: Figure = Figure {
    id: "F16",
    about: "throughput over the threshold of the adaptive index cache",
    x: "threshold",
    points: || {
        let thresholds = [0.0, 0.25, 0.5, 0.75, 1.0];
        throughput(BOTH, &[YcsbWorkload::A], &thresholds, |setup, threshold| {
            setup.cache_threshold = threshold;
        })
    },
    statements: &[Statement {
        says: "throughput falls as the threshold grows",
        section: "P 6.3",
        kind: StatementKind::Predicted,
        of: FUSEE,
        value: |medians, system| ratio(medians, "YCSB-A", system, 1.0, 0.0),
        expected: StatementCondition::AtMost(1.0),
    }],
    remarks: &[],
};

pub const F17: Figure = Figure {
    id: "F17",
    about: "throughput where memory nodes allocate every object (1), and where clients do (2)",
    x: "levels of allocation",
    points: || {
        let mut points = Vec::new();
        for (system, x) in
            [(LabSystem::NodesAllocate, 1.0), (LabSystem::Published, 2.0), (LabSystem::Fusee, 2.0)]
        {
            for workload in [YcsbWorkload::A, YcsbWorkload::C] {
                let setup =
                    LabSetup { system, load: LabLoad::Ycsb(workload), ..LabSetup::default() };
                let name = if system == LabSystem::Fusee { "ours" } else { "as published" };
                let series = format!("YCSB-{}, {name}", workload.to_string().to_uppercase());
                points.push(FigurePoint { series, x, setup, quantity: Quantity::Throughput });
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "YCSB-A loses 90.9 % where memory nodes allocate",
            section: "P 6.3",
            kind: StatementKind::Calibrated,
            of: &["as published"],
            value: |medians, _| medians.ratio("YCSB-A, as published", 1.0, 2.0),
            expected: StatementCondition::About(0.091),
        },
        Statement {
            says: "YCSB-C stays the same",
            section: "P 6.3",
            kind: StatementKind::Predicted,
            of: &["as published"],
            value: |medians, _| medians.ratio("YCSB-C, as published", 1.0, 2.0),
            expected: StatementCondition::About(1.0),
        },
    ],
    remarks: &["our store has no such variant"],
};
