//! Figures about switches (Grant and Snoeren): for Clover, both as published and in a safe form, and for our store.

use fusee_workload::{KEY_BYTES, YcsbWorkload};

use super::{Figure, FigurePoint, Medians, Quantity, Statement, StatementCondition, StatementKind};
use crate::setup::{LabLoad, LabSetup, LabSwitch, LabSystem};

/// All figures about switches.
pub const ALL: &[Figure] = &[S2, S3, S4, S5];

const KEYS: u64 = 1_024;
const WITHOUT: &str = "Clover";
const PUBLISHED: &str = "Clover, switch as published";
const ANSWERED: &str = "Clover, switch that waits for answers";
const ALL_KEYS: usize = 1 << 20;

/// Returns a setup of Clover with one memory node and a metadata server, and clients on two other machines, each with
/// one operation at a time (S §4).
fn clover(clients: usize, switch: Option<LabSwitch>) -> LabSetup {
    LabSetup {
        system: LabSystem::Clover,
        testbed: "connectx-5",
        memory_nodes: 1,
        machines: 2,
        clients,
        coroutines: 1,
        data_replicas: 1,
        keys: KEYS,
        pair_bytes: 1024 + KEY_BYTES,
        theta: 0.75,
        load: LabLoad::Ycsb(YcsbWorkload::A),
        operations: 60_000,
        switch,
        ..LabSetup::default()
    }
}

fn published(keys: usize) -> Option<LabSwitch> {
    Some(LabSwitch::Sent { keys })
}

fn answered(keys: usize) -> Option<LabSwitch> {
    Some(LabSwitch::Answered { keys })
}

const S2: Figure = Figure {
    id: "S2",
    about: "throughput of YCSB-A over client threads: Clover, and with a switch that steers its CASes",
    x: "client threads",
    points: || {
        let mut points = Vec::new();
        for clients in [2, 4, 8, 16, 32, 64] {
            let kinds =
                [(WITHOUT, None), (PUBLISHED, published(ALL_KEYS)), (ANSWERED, answered(ALL_KEYS))];
            for (series, switch) in kinds {
                let series = series.into();
                let setup = clover(clients, switch);
                points.push(FigurePoint {
                    series,
                    x: clients as f64,
                    setup,
                    quantity: Quantity::Throughput,
                });
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "with 64 threads the switch brings 1.42 times the throughput",
            section: "S 4.1",
            kind: StatementKind::Predicted,
            of: &[PUBLISHED, ANSWERED],
            value: |medians, of| Some(medians.at(of, 64.0)? / medians.at(WITHOUT, 64.0)?),
            expected: StatementCondition::About(1.42),
        },
        Statement {
            says: "what it brings grows with the threads",
            section: "S 4.1",
            kind: StatementKind::Predicted,
            of: &[PUBLISHED, ANSWERED],
            value: |medians, of| {
                let brings = |x| Some(medians.at(of, x)? / medians.at(WITHOUT, x)?);
                Some(brings(64.0)? / brings(4.0)?)
            },
            expected: StatementCondition::AtLeast(1.0),
        },
    ],
    remarks: &["1,024 keys, as the text says of the third figure alone"],
};

const S3: Figure = Figure {
    id: "S3",
    about: "memory of the switch over the keys that it knows",
    x: "keys",
    points: || {
        let of = |keys: u64| {
            let setup = clover(64, published(ALL_KEYS));
            // The switch learns all keys when they are inserted, so a few operations are enough.
            let setup = LabSetup { keys, operations: 2_000, cached: false, ..setup };
            let quantity = Quantity::SwitchBytes;
            FigurePoint { series: PUBLISHED.into(), x: keys as f64, setup, quantity }
        };
        [1_000, 10_000, 100_000].into_iter().map(of).collect()
    },
    statements: &[
        Statement {
            says: "10,000 keys take 80 kB",
            section: "S 3.1",
            kind: StatementKind::Predicted,
            of: &[PUBLISHED],
            value: |medians, of| medians.at(of, 10_000.0),
            expected: StatementCondition::About(80.0),
        },
        Statement {
            says: "100,000 keys take at most 2.5 % of 64 MB",
            section: "S 4.2",
            kind: StatementKind::Predicted,
            of: &[PUBLISHED],
            value: |medians, of| medians.at(of, 100_000.0),
            expected: StatementCondition::AtMost(1_600.0),
        },
    ],
    remarks: &[
        "a key is 16 bytes here, and 8 are where its last entry is: the text has 8 for both together, and elsewhere 64 \
         or 16 for a key",
        "with what is remembered of each connection, and without what it takes to find a key",
    ],
};

/// Numbers of keys for which the switch has room.
const ROOM: [usize; 8] = [0, 1, 2, 4, 8, 32, 128, 1_024];

const S4: Figure = Figure {
    id: "S4",
    about: "throughput of YCSB-A with 64 client threads over the keys that the switch has room for, of 1,024",
    x: "keys",
    points: || {
        let mut points = Vec::new();
        for keys in ROOM {
            for (series, switch) in [(PUBLISHED, published(keys)), (ANSWERED, answered(keys))] {
                let series = series.into();
                let setup = clover(64, switch);
                points.push(FigurePoint {
                    series,
                    x: keys as f64,
                    setup,
                    quantity: Quantity::Throughput,
                });
            }
        }
        points
    },
    statements: &[Statement {
        says: "the eight keys that are used most bring 1.3 times the throughput, or 1.34",
        section: "S 1, 4.2",
        kind: StatementKind::Predicted,
        of: &[PUBLISHED, ANSWERED],
        value: |medians, of| medians.ratio(of, 8.0, 0.0),
        expected: StatementCondition::About(1.32),
    }],
    remarks: &["as published, the switch knows which keys are used most; the other one finds out"],
};

/// Numbers of slots for which the switch has room, with 100,000 keys.
const ROOM_OF_OURS: &[usize] = &[0, 1_024, 100_000];

fn ours(slots: usize, rounds: usize, replicas: u8) -> LabSetup {
    let switch = (slots + rounds > 0).then_some(LabSwitch::Ours { slots, rounds });
    LabSetup {
        memory_nodes: replicas.into(),
        index_replicas: replicas,
        load: LabLoad::Ycsb(YcsbWorkload::A),
        // There are many operations, because a client uses most keys again only after many other keys.
        operations: 300_000,
        switch,
        ..LabSetup::default()
    }
}

const S5: Figure = Figure {
    id: "S5",
    about: "YCSB-A on our store over the slots that the switch knows, of 100,000 keys",
    x: "slots",
    points: || {
        let mut points = Vec::new();
        let quantities = [
            ("throughput", Quantity::Throughput),
            ("phases of a SEARCH", Quantity::Phases("search")),
            ("phases of an UPDATE", Quantity::Phases("update")),
        ];
        let kinds = [
            ("2 index replicas", ROOM_OF_OURS, 0, 2),
            ("3 index replicas", &[0, 100_000], 0, 3),
            ("3 index replicas, rounds ordered", &[0, 100_000], 1_024, 3),
        ];
        for (name, room, rounds, replicas) in kinds {
            for slots in room.iter().copied() {
                let setup = ours(slots, rounds, replicas);
                for (what, quantity) in quantities {
                    let series = format!("{what}, {name}");
                    let setup = setup.clone();
                    points.push(FigurePoint { series, x: slots as f64, setup, quantity });
                }
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "the 1,024 slots that are used most save a fifth of the phases",
            section: "our estimate",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| saved(medians, 1_024.0),
            expected: StatementCondition::AtMost(0.85),
        },
        Statement {
            says: "all slots save a third",
            section: "our estimate",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| saved(medians, 100_000.0),
            expected: StatementCondition::About(0.67),
        },
    ],
    remarks: &["beyond the paper, which has no such switch"],
};

/// Returns the phases of a SEARCH and an UPDATE with a switch for `slots` slots, divided by those without a switch.
fn saved(medians: &Medians, slots: f64) -> Option<f64> {
    let phases = |x| {
        let of = |what: &str| medians.at(&format!("phases of {what}, 2 index replicas"), x);
        Some(of("a SEARCH")? + of("an UPDATE")?)
    };
    Some(phases(slots)? / phases(0.0)?)
}
