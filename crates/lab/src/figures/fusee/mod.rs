//! The figures of FUSEE (FAST '23).

mod change;
mod micro;
mod replicas;
mod ycsb;

use fusee_workload::YcsbWorkload;

use super::{Figure, FigurePoint, Medians, Quantity, Statement, StatementCondition, StatementKind};
use crate::setup::{LabLoad, LabSetup, LabSystem};

/// All figures of FUSEE's paper, and one of larger clusters.
pub const ALL: &[Figure] = &[
    micro::F2,
    micro::F3,
    micro::F10,
    micro::F11,
    ycsb::F12,
    ycsb::F13,
    ycsb::F14,
    ycsb::F15,
    ycsb::F16,
    ycsb::F17,
    replicas::F18,
    replicas::F19,
    change::F20,
    change::F21,
    change::X1,
];

/// The systems for which a statement about FUSEE is judged: FUSEE as published, and our store, which corrects FUSEE.
const FUSEE: &[&str] = &["as published", "ours"];

/// Our store, and FUSEE as published.
const BOTH: &[LabSystem] = &[LabSystem::Fusee, LabSystem::Published];

/// All stores: our store, FUSEE as published, and the two that the paper compares FUSEE with.
const EVERYBODY: &[LabSystem] =
    &[LabSystem::Fusee, LabSystem::Published, LabSystem::Clover, LabSystem::PdpmDirect];

/// Adapts a setup to its system. Clients of Clover, of pDPM-Direct and of a single object execute one operation at a
/// time. Clients of pDPM-Direct mostly spin, so fewer operations give the same result.
fn as_it_is(setup: LabSetup) -> LabSetup {
    let (one_at_a_time, fewer) = match setup.system {
        LabSystem::Clover => (true, 1),
        LabSystem::PdpmDirect => (true, 10),
        LabSystem::Lock | LabSystem::Sequencer => (true, 1),
        _ => (false, 1),
    };
    let coroutines = if one_at_a_time { 1 } else { setup.coroutines };
    LabSetup { coroutines, operations: setup.operations / fewer, ..setup }
}

fn series(load: LabLoad, system: LabSystem) -> String {
    match load {
        LabLoad::Ycsb(workload) => {
            format!("YCSB-{}, {}", workload.to_string().to_uppercase(), system.name())
        }
        other => format!("{other}, {}", system.name()),
    }
}

/// Returns points of the throughput of these systems with these workloads, for each horizontal position in `places`.
/// `at` changes the paper's setup to that of a position.
fn throughput(
    systems: &[LabSystem],
    workloads: &[YcsbWorkload],
    places: &[f64],
    at: impl Fn(&mut LabSetup, f64),
) -> Vec<FigurePoint> {
    let mut points = Vec::new();
    for system in systems {
        for workload in workloads {
            for x in places {
                let load = LabLoad::Ycsb(*workload);
                let mut setup = LabSetup { system: *system, load, ..LabSetup::default() };
                at(&mut setup, *x);
                let series = series(load, *system);
                let setup = as_it_is(setup);
                points.push(FigurePoint { series, x: *x, setup, quantity: Quantity::Throughput });
            }
        }
    }
    points
}

/// Returns the value of the system `of` divided by that of the system `over`.
fn over(medians: &Medians, what: &str, of: &str, over: &str, x: f64) -> Option<f64> {
    Some(medians.at(&format!("{what}, {of}"), x)? / medians.at(&format!("{what}, {over}"), x)?)
}

/// Returns the ratio of two values of one series: at `x`, and at `over`.
fn ratio(medians: &Medians, what: &str, of: &str, x: f64, over: f64) -> Option<f64> {
    medians.ratio(&format!("{what}, {of}"), x, over)
}
