//! Figures about events in the middle of a run, and about larger clusters.

use fusee_workload::Workload;

use super::{Expected, Figure, Kind, Point, Quantity, Statement};
use crate::setup::{Happening, Load, Setup, Timeline};

/// Returns the points of the throughput over time, one for each window.
fn over_time(setup: Setup, timeline: Timeline) -> Vec<Point> {
    let setup = Setup { timeline: Some(timeline), load: Load::Ycsb(Workload::C), ..setup };
    (0..timeline.windows)
        .map(|window| Point {
            series: "ours".into(),
            x: window as f64 * timeline.window_us as f64 / 1e3,
            setup: setup.clone(),
            quantity: Quantity::Window(window),
        })
        .collect()
}

pub const F20: Figure = Figure {
    id: "F20",
    about: "throughput of YCSB-C over time; after 50 ms one of two memory nodes dies",
    x: "ms",
    points: || {
        let what = Happening::NodeCrashes(1);
        let setup = Setup { index_replicas: 2, ..Setup::default() };
        over_time(setup, Timeline { window_us: 2_000, windows: 45, what, at: 25 })
    },
    statements: &[Statement {
        says: "the throughput drops to half: one NIC's bandwidth is left",
        section: "P 6.4",
        kind: Kind::Predicted,
        of: &["ours"],
        value: |medians, _| medians.mean_ratio("ours", 70.0..90.0, 10.0..50.0),
        expected: Expected::About(0.5),
    }],
    remarks: &["a second of the paper is 10 ms here, also of the lease"],
};

pub const F21: Figure = Figure {
    id: "F21",
    about: "throughput of YCSB-C over time; 16 clients more from 30 to 60 ms",
    x: "ms",
    points: || {
        let what = Happening::Guests { clients: 16, until: 30 };
        let setup = Setup { clients: 16, ..Setup::default() };
        over_time(setup, Timeline { window_us: 2_000, windows: 45, what, at: 15 })
    },
    statements: &[
        Statement {
            says: "the throughput grows when 16 clients become 32",
            section: "P 6.4",
            kind: Kind::Predicted,
            of: &["ours"],
            value: |medians, _| medians.mean_ratio("ours", 36.0..58.0, 10.0..30.0),
            expected: Expected::AtLeast(1.25),
        },
        Statement {
            says: "and is what it was before when they have gone",
            section: "P 6.4",
            kind: Kind::Predicted,
            of: &["ours"],
            value: |medians, _| medians.mean_ratio("ours", 64.0..90.0, 10.0..30.0),
            expected: Expected::About(1.0),
        },
    ],
    remarks: &["who comes knows where keys are from one that was there"],
};

pub const X1: Figure = Figure {
    id: "X1",
    about: "YCSB-A and C with more clients and memory nodes than the papers had",
    x: "clients",
    points: || {
        let mut points = Vec::new();
        for (clients, nodes) in [(128, 2u16), (256, 8), (512, 25), (1024, 100)] {
            for workload in [Workload::A, Workload::C] {
                let setup = Setup {
                    load: Load::Ycsb(workload),
                    clients,
                    machines: clients / 8,
                    memory_nodes: nodes,
                    index_replicas: 2,
                    // The caches of all clients are memory of the one machine that simulates.
                    keys: 20_000,
                    operations: 200 * clients as u64,
                    ..Setup::default()
                };
                let series = format!("YCSB-{}, ours", workload.to_string().to_uppercase());
                let quantity = Quantity::Throughput;
                points.push(Point { series, x: clients as f64, setup, quantity });
            }
        }
        points
    },
    statements: &[],
    remarks: &["2, 8, 25 and 100 memory nodes; beyond the papers, which state nothing of it"],
};
