//! The figures of FUSEE (FAST '23), as far as the store itself draws them.

use fusee_workload::Workload;

use super::{Expected, Figure, Kind, Point, Quantity, Statement};
use crate::setup::Setup;

/// All of them.
pub const ALL: &[Figure] = &[F12, F14, F15, F16, F18, F19, X1];

/// Of these workloads, at each of these places: the setup that the place makes of the paper's.
fn throughput(workloads: &[Workload], places: &[f64], at: impl Fn(&mut Setup, f64)) -> Vec<Point> {
    let of = |workload: Workload, x: f64| {
        let mut setup = Setup { workload, ..Setup::default() };
        at(&mut setup, x);
        let series = format!("YCSB-{}", workload.to_string().to_uppercase());
        Point { series, x, setup, quantity: Quantity::Throughput }
    };
    workloads.iter().flat_map(|w| places.iter().map(move |x| of(*w, *x))).collect()
}

const F12: Figure = Figure {
    id: "F12",
    about: "throughput with smaller pairs",
    x: "bytes of a pair",
    points: || {
        throughput(&[Workload::A, Workload::C], &[256.0, 512.0, 1024.0], |setup, bytes| {
            setup.pair_bytes = bytes as usize;
        })
    },
    statements: &[
        Statement {
            says: "with 512 bytes YCSB-C gains 44.1 %",
            section: "P 6.3",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-C", 512.0, 1024.0),
            expected: Expected::About(1.441),
        },
        Statement {
            says: "with 256 bytes YCSB-C gains 55.9 %",
            section: "P 6.3",
            kind: Kind::Calibrated,
            value: |medians| medians.ratio("YCSB-C", 256.0, 1024.0),
            expected: Expected::About(1.559),
        },
    ],
    remarks: &["no cost that is linear in the size gives both numbers"],
};

const F14: Figure = Figure {
    id: "F14",
    about: "throughput over memory nodes",
    x: "memory nodes",
    points: || {
        throughput(&[Workload::A, Workload::C], &[2.0, 3.0, 4.0, 5.0], |setup, nodes| {
            setup.memory_nodes = nodes as u16;
        })
    },
    statements: &[
        Statement {
            says: "a third memory node raises the throughput of YCSB-C",
            section: "P 6.3",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-C", 3.0, 2.0),
            expected: Expected::AtLeast(1.1),
        },
        Statement {
            says: "and of YCSB-A",
            section: "P 6.3",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-A", 3.0, 2.0),
            expected: Expected::AtLeast(1.1),
        },
        Statement {
            says: "more than three do not raise that of YCSB-C any further",
            section: "P 6.3",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-C", 5.0, 3.0),
            expected: Expected::AtMost(1.1),
        },
        Statement {
            says: "nor that of YCSB-A",
            section: "P 6.3",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-A", 5.0, 3.0),
            expected: Expected::AtMost(1.1),
        },
    ],
    remarks: &["without Clover and pDPM-Direct"],
};

const F15: Figure = Figure {
    id: "F15",
    about: "throughput over the share of UPDATEs",
    x: "percent of UPDATEs",
    points: || {
        let shares = [0u8, 25, 50, 75, 100];
        let point = |percent: &u8| {
            let setup = Setup { workload: Workload::Updates(*percent), ..Setup::default() };
            let (series, x) = ("ours".into(), f64::from(*percent));
            Point { series, x, setup, quantity: Quantity::Throughput }
        };
        shares.iter().map(point).collect()
    },
    statements: &[Statement {
        says: "throughput falls as the share of UPDATEs grows",
        section: "P 6.3",
        kind: Kind::Predicted,
        value: |medians| {
            let steps = [(25.0, 0.0), (50.0, 25.0), (75.0, 50.0), (100.0, 75.0)];
            let ratios = steps.iter().map(|(x, over)| medians.ratio("ours", *x, *over));
            ratios.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
        },
        expected: Expected::AtMost(1.0),
    }],
    remarks: &["without Clover and pDPM-Direct"],
};

const F16: Figure = Figure {
    id: "F16",
    about: "throughput over the threshold of the adaptive index cache",
    x: "threshold",
    points: || {
        throughput(&[Workload::A], &[0.0, 0.25, 0.5, 0.75, 1.0], |setup, threshold| {
            setup.cache_threshold = threshold;
        })
    },
    statements: &[Statement {
        says: "throughput falls as the threshold grows",
        section: "P 6.3",
        kind: Kind::Predicted,
        value: |medians| medians.ratio("YCSB-A", 1.0, 0.0),
        expected: Expected::AtMost(1.0),
    }],
    remarks: &[],
};

const F18: Figure = Figure {
    id: "F18",
    about: "throughput over the replication factor",
    x: "replicas of index and pairs",
    points: || {
        let workloads = [Workload::A, Workload::B, Workload::C, Workload::D];
        throughput(&workloads, &[1.0, 2.0, 3.0, 4.0, 5.0], |setup, replicas| {
            // Five replicas take five nodes.
            setup.memory_nodes = 5;
            (setup.index_replicas, setup.data_replicas) = (replicas as u8, replicas as u8);
        })
    },
    statements: &[
        Statement {
            says: "with one replica YCSB-D reaches 8.8 million operations a second",
            section: "P 6.4",
            kind: Kind::Calibrated,
            value: |medians| medians.at("YCSB-D", 1.0),
            expected: Expected::About(8.8),
        },
        Statement {
            says: "YCSB-D falls slightly, from 8.8 to 8.6",
            section: "P 6.4",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-D", 5.0, 1.0),
            expected: Expected::AtLeast(0.95),
        },
        Statement {
            says: "YCSB-C stays the same",
            section: "P 6.4",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-C", 5.0, 1.0),
            expected: Expected::AtLeast(0.98),
        },
        Statement {
            says: "YCSB-A falls",
            section: "P 6.4",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-A", 5.0, 1.0),
            expected: Expected::AtMost(0.98),
        },
        Statement {
            says: "YCSB-B falls",
            section: "P 6.4",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("YCSB-B", 5.0, 1.0),
            expected: Expected::AtMost(0.98),
        },
    ],
    remarks: &["the paper does not say how many memory nodes there were"],
};

const F19: Figure = Figure {
    id: "F19",
    about: "median latency over the replication factor, with and without an index cache",
    x: "replicas of index and pairs",
    points: || {
        let mut points = Vec::new();
        for (name, cached) in [("cached", true), ("NC", false)] {
            for (kind, workload) in [
                ("search", Workload::C),
                ("update", Workload::Updates(100)),
                ("insert", Workload::D),
            ] {
                for replicas in 1..=5u8 {
                    let setup = Setup {
                        workload,
                        memory_nodes: 5,
                        index_replicas: replicas,
                        data_replicas: replicas,
                        machines: 1,
                        clients: 1,
                        coroutines: 1,
                        keys: 10_000,
                        operations: 10_000,
                        theta: 0.0,
                        cached,
                        ..Setup::default()
                    };
                    let (series, x) = (format!("{kind}, {name}"), f64::from(replicas));
                    points.push(Point { series, x, setup, quantity: Quantity::Median(kind) });
                }
            }
        }
        points
    },
    statements: &[
        Statement {
            says: "an UPDATE takes slightly longer with more replicas",
            section: "P 6.4",
            kind: Kind::Predicted,
            value: |medians| medians.ratio("update, cached", 5.0, 2.0),
            expected: Expected::AtMost(1.25),
        },
        Statement {
            says: "an UPDATE is faster with a cache than without",
            section: "P 6.4",
            kind: Kind::Predicted,
            value: |m| Some(m.at("update, cached", 3.0)? / m.at("update, NC", 3.0)?),
            expected: Expected::AtMost(1.0),
        },
        Statement {
            says: "and so is a SEARCH",
            section: "P 6.4",
            kind: Kind::Predicted,
            value: |m| Some(m.at("search, cached", 3.0)? / m.at("search, NC", 3.0)?),
            expected: Expected::AtMost(1.0),
        },
    ],
    remarks: &[
        "without FUSEE-CR",
        "the time of the client's processor is not part of a latency here",
    ],
};

const X1: Figure = Figure {
    id: "X1",
    about: "YCSB-A and C with more clients and memory nodes than the papers had",
    x: "clients",
    points: || {
        let mut points = Vec::new();
        for (clients, nodes) in [(128, 2u16), (256, 8), (512, 25), (1024, 100)] {
            for workload in [Workload::A, Workload::C] {
                let setup = Setup {
                    workload,
                    clients,
                    machines: clients / 8,
                    memory_nodes: nodes,
                    index_replicas: 2,
                    // Caches of all clients are memory of this one machine.
                    keys: 20_000,
                    ..Setup::default()
                };
                let series = format!("YCSB-{}", workload.to_string().to_uppercase());
                let quantity = Quantity::Throughput;
                points.push(Point { series, x: clients as f64, setup, quantity });
            }
        }
        points
    },
    statements: &[],
    remarks: &["2, 8, 25 and 100 memory nodes; beyond the papers, which state nothing of it"],
};
