//! Figures of events in the middle of a run, and of larger clusters.

use fusee_workload::YcsbWorkload;

use super::{Figure, FigurePoint, Quantity, Statement, StatementCondition, StatementKind};
use crate::setup::{LabLoad, LabSetup, LabTimeline, TimelineEvent};

/// Returns the points of throughput over time: one point for each window of the timeline.
fn over_time(setup: LabSetup, timeline: LabTimeline) -> Vec<FigurePoint> {
    let setup =
        LabSetup { timeline: Some(timeline), load: LabLoad::Ycsb(YcsbWorkload::C), ..setup };
    (0..timeline.windows)
        .map(|window| FigurePoint {
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
        let what = TimelineEvent::NodeCrashes(1);
        let setup = LabSetup { index_replicas: 2, ..LabSetup::default() };
        over_time(setup, LabTimeline { window_us: 2_000, windows: 45, what, at: 25 })
    },
    statements: &[Statement {
        says: "the throughput drops to half: one NIC's bandwidth is left",
        section: "P 6.4",
        kind: StatementKind::Predicted,
        of: &["ours"],
        value: |medians, _| medians.mean_ratio("ours", 70.0..90.0, 10.0..50.0),
        expected: StatementCondition::About(0.5),
    }],
    remarks: &["a second of the paper is 10 ms here, also of the lease"],
};

pub const F21: Figure = Figure {
    id: "F21",
    about: "throughput of YCSB-C over time; 16 clients more from 30 to 60 ms",
    x: "ms",
    points: || {
        let what = TimelineEvent::Guests { clients: 16, until: 30 };
        let setup = LabSetup { clients: 16, ..LabSetup::default() };
        over_time(setup, LabTimeline { window_us: 2_000, windows: 45, what, at: 15 })
    },
    statements: &[
        Statement {
            says: "the throughput grows when 16 clients become 32",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| medians.mean_ratio("ours", 36.0..58.0, 10.0..30.0),
            expected: StatementCondition::AtLeast(1.25),
        },
        Statement {
            says: "and is what it was before when they have gone",
            section: "P 6.4",
            kind: StatementKind::Predicted,
            of: &["ours"],
            value: |medians, _| medians.mean_ratio("ours", 64.0..90.0, 10.0..30.0),
            expected: StatementCondition::About(1.0),
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
            for workload in [YcsbWorkload::A, YcsbWorkload::C] {
                let setup = LabSetup {
                    load: LabLoad::Ycsb(workload),
                    clients,
                    machines: clients / 8,
                    memory_nodes: nodes,
                    index_replicas: 2,
                    // There are few keys, because the memory of the machine that runs the lab has to hold all clients'
                    // caches.
                    keys: 20_000,
                    operations: 200 * clients as u64,
                    ..LabSetup::default()
                };
                let series = format!("YCSB-{}, ours", workload.to_string().to_uppercase());
                let quantity = Quantity::Throughput;
                points.push(FigurePoint { series, x: clients as f64, setup, quantity });
            }
        }
        points
    },
    statements: &[],
    remarks: &["2, 8, 25 and 100 memory nodes; beyond the papers, which state nothing of it"],
};
