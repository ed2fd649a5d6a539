//! The experiments of ElasticMem whose times depend on hardware.

use fusee_core::data::Redundancy;
use fusee_workload::{KEY_BYTES, WorkloadOperation};

use super::{Figure, FigurePoint, Medians, Quantity, Statement, StatementCondition, StatementKind};
use crate::setup::{LabLoad, LabSetup};

/// All figures and tables of ElasticMem.
pub const ALL: &[Figure] = &[E1, E2, ET1];

const KIB: usize = 1 << 10;

fn redundancy(text: &str) -> Redundancy {
    text.parse().expect("a constant")
}

/// Returns a setup with one client and six memory nodes (E 6.2). The network has 10 Gbit/s, as on most of the paper's
/// machines.
fn setup(redundancy: Redundancy, data_replicas: u8, value_bytes: usize, load: LabLoad) -> LabSetup {
    LabSetup {
        testbed: "tcp-10g",
        memory_nodes: 6,
        machines: 1,
        clients: 1,
        coroutines: 1,
        index_replicas: 2,
        data_replicas,
        redundancy,
        keys: 200,
        pair_bytes: value_bytes + KEY_BYTES,
        theta: 0.0,
        operations: 100,
        load,
        ..LabSetup::default()
    }
}

const E1: Figure = Figure {
    id: "E1",
    about: "median latency of reads and writes over the length of the value, (k, m, r) = (4, 2, 3)",
    x: "KiB",
    points: || {
        let kinds = [("Rep(3)", "replicated"), ("EOR(3,4)", "eor:3:4+2"), ("EC(4,2)", "ec:4+2")];
        let mut points = Vec::new();
        for (kind, request) in
            [("search", WorkloadOperation::Search), ("update", WorkloadOperation::Update)]
        {
            for (name, kept) in kinds {
                for kib in [1usize, 4, 16, 64, 256, 1024] {
                    let setup = setup(redundancy(kept), 3, kib * KIB, LabLoad::Only(request));
                    let series = format!("{kind}, {name}");
                    let x = kib as f64;
                    points.push(FigurePoint { series, x, setup, quantity: Quantity::Median(kind) });
                }
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "writes of EC are notably faster than those of Rep(3) for large values",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |m, _| over(m, "update, EC(4,2)", "update, Rep(3)", 1024.0),
            expected: StatementCondition::AtMost(0.8),
        },
        Statement {
            says: "reads of EC tend to be faster than those of Rep(3) as values grow",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |m, _| over(m, "search, EC(4,2)", "search, Rep(3)", 1024.0),
            expected: StatementCondition::AtMost(1.0),
        },
        Statement {
            says: "reads of EOR take as long as those of Rep(3)",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |m, _| over(m, "search, EOR(3,4)", "search, Rep(3)", 64.0),
            expected: StatementCondition::About(1.0),
        },
    ],
    remarks: &["encoding and decoding take no time in the model"],
};

fn over(medians: &Medians, of: &str, over: &str, x: f64) -> Option<f64> {
    Some(medians.at(of, x)? / medians.at(over, x)?)
}

/// Lengths of values in the figures, in KiB.
const LENGTHS: [usize; 5] = [4, 16, 64, 256, 1024];

/// Settings (k, m, r) of the paper.
const SETTINGS: [(u8, u8, u8); 3] = [(4, 1, 2), (4, 2, 3), (5, 1, 2)];

/// Returns the points of all transitions, for values of these lengths in KiB.
fn transitions(lengths: &[usize], quantity: fn(usize) -> Quantity) -> Vec<FigurePoint> {
    let mut points = Vec::new();
    for (k, m, r) in SETTINGS {
        let [coded, oriented] =
            [format!("ec:{k}+{m}"), format!("eor:{r}:{k}+{m}")].map(|text| redundancy(&text));
        let replicated = Redundancy::Replicated;
        // Each transition has three redundancies: that of values when they are loaded, that right before the
        // transition, and that after it.
        let transitions = [
            ("naive, to EC", [replicated, replicated, coded]),
            ("EOR, to EC", [oriented, oriented, coded]),
            ("naive, back", [coded, coded, replicated]),
            ("EOR, back", [oriented, coded, oriented]),
        ];
        for (name, [written, from, to]) in transitions {
            for kib in lengths {
                let setup = setup(written, r, kib * KIB, LabLoad::Moves { from, to });
                let series = format!("({k},{m},{r}) {name}");
                let x = *kib as f64;
                points.push(FigurePoint { series, x, setup, quantity: quantity(kib * KIB) });
            }
        }
    }
    points
}

const E2: Figure = Figure {
    id: "E2",
    about: "median time of transitions over the length of the value: naive, and of EC-oriented pairs in place",
    x: "KiB",
    points: || transitions(&LENGTHS, |_| Quantity::Median("move")),
    statements: &[
        Statement {
            says: "EOR reduces the time to EC by up to 35 %",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| left(medians, "to EC", &SETTINGS, f64::min),
            expected: StatementCondition::AtMost(0.65),
        },
        Statement {
            says: "and by at least 8 %",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| left(medians, "to EC", &SETTINGS, f64::max),
            expected: StatementCondition::AtMost(0.92),
        },
        Statement {
            says: "the time back by up to 26 %",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| left(medians, "back", &SETTINGS, f64::min),
            expected: StatementCondition::AtMost(0.74),
        },
        Statement {
            says: "and by at least 3 %",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| left(medians, "back", &SETTINGS, f64::max),
            expected: StatementCondition::AtMost(0.97),
        },
        Statement {
            says: "(4,2,3) gains less than (4,1,2) on the way to EC",
            section: "E 6.2",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| {
                let of =
                    |setting: usize| left(medians, "to EC", &SETTINGS[setting..][..1], f64::min);
                Some(of(1)? / of(0)?)
            },
            expected: StatementCondition::AtLeast(1.0),
        },
    ],
    remarks: &["encoding and decoding take no time in the model"],
};

/// Returns the time of an EC-oriented transition, divided by that of the naive one. Of the ratios for these settings
/// and all lengths, `most` selects the smallest or the largest.
fn left(
    medians: &Medians,
    way: &str,
    settings: &[(u8, u8, u8)],
    most: fn(f64, f64) -> f64,
) -> Option<f64> {
    let mut ratios = Vec::new();
    for (k, m, r) in settings {
        for x in LENGTHS {
            let of = |which: &str| medians.at(&format!("({k},{m},{r}) {which}, {way}"), x as f64);
            ratios.push(of("EOR")? / of("naive")?);
        }
    }
    ratios.into_iter().reduce(most)
}

const ET1: Figure = Figure {
    id: "ET1",
    about: "Table 1: what a transition reads and writes, of values of 64 KiB",
    x: "KiB",
    points: || transitions(&[64], Quantity::Lengths),
    statements: &[
        saved("(4,1,2), to EC: 44.4 % less", |m, _| saving(m, "(4,1,2)", "to EC"), 0.444),
        saved("(4,2,3), to EC: 40 % less", |m, _| saving(m, "(4,2,3)", "to EC"), 0.4),
        saved("(5,1,2), to EC: 45.5 % less", |m, _| saving(m, "(5,1,2)", "to EC"), 0.455),
        saved("(4,1,2), back: 33.3 % less", |m, _| saving(m, "(4,1,2)", "back"), 0.333),
        saved("(4,2,3), back: 25 % less", |m, _| saving(m, "(4,2,3)", "back"), 0.25),
        saved("(5,1,2), back: 33.3 % less", |m, _| saving(m, "(5,1,2)", "back"), 0.333),
    ],
    remarks: &[
        "our objects are as long as their size class, up to an eighth longer than their value",
    ],
};

const fn saved(
    says: &'static str,
    value: fn(&Medians, &str) -> Option<f64>,
    expected: f64,
) -> Statement {
    let expected = StatementCondition::About(expected);
    Statement {
        says,
        section: "E 6.1",
        kind: StatementKind::Predicted,
        of: &["ours"],
        value,
        expected,
    }
}

/// Returns the share of the naive transition's bytes that an EC-oriented transition saves.
fn saving(medians: &Medians, setting: &str, way: &str) -> Option<f64> {
    let of = |which: &str| medians.at(&format!("{setting} {which}, {way}"), 64.0);
    Some(1.0 - of("EOR")? / of("naive")?)
}
