//! The figures of FUSEE (FAST '23).

mod change;
mod micro;
mod replicas;
mod ycsb;

use fusee_workload::Workload;

use super::{Expected, Figure, Kind, Medians, Point, Quantity, Statement};
use crate::setup::{Load, Setup, System};

/// All figures of the paper.
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

/// Systems for which statements about FUSEE are judged: FUSEE as published, and ours, which corrects it.
const FUSEE: &[&str] = &["as published", "ours"];

/// Our store, and the published system that it corrects.
const BOTH: &[System] = &[System::Fusee, System::Published];

/// All systems: those two, and those that the paper compares with.
const EVERYBODY: &[System] =
    &[System::Fusee, System::Published, System::Clover, System::PdpmDirect];

/// Adapts a setup to its system: clients of Clover, of pDPM-Direct and of one object do one operation at a
/// time, and a run that mostly spins gives the same result with fewer operations.
fn as_it_is(setup: Setup) -> Setup {
    let (one_at_a_time, fewer) = match setup.system {
        System::Clover => (true, 1),
        System::PdpmDirect => (true, 10),
        System::Lock | System::Sequencer => (true, 1),
        _ => (false, 1),
    };
    let coroutines = if one_at_a_time { 1 } else { setup.coroutines };
    Setup { coroutines, operations: setup.operations / fewer, ..setup }
}

fn series(load: Load, system: System) -> String {
    match load {
        Load::Ycsb(workload) => {
            format!("YCSB-{}, {}", workload.to_string().to_uppercase(), system.name())
        }
        other => format!("{other}, {}", system.name()),
    }
}

/// Returns points of the throughput of these systems with these workloads, at each of these places; `at` makes
/// the setup of a place from the paper's.
fn throughput(
    systems: &[System],
    workloads: &[Workload],
    places: &[f64],
    at: impl Fn(&mut Setup, f64),
) -> Vec<Point> {
    let mut points = Vec::new();
    for system in systems {
        for workload in workloads {
            for x in places {
                let load = Load::Ycsb(*workload);
                let mut setup = Setup { system: *system, load, ..Setup::default() };
                at(&mut setup, *x);
                let series = series(load, *system);
                let setup = as_it_is(setup);
                points.push(Point { series, x: *x, setup, quantity: Quantity::Throughput });
            }
        }
    }
    points
}

/// Returns a value of one system over that of another one.
fn over(medians: &Medians, what: &str, of: &str, over: &str, x: f64) -> Option<f64> {
    Some(medians.at(&format!("{what}, {of}"), x)? / medians.at(&format!("{what}, {over}"), x)?)
}

/// Returns the ratio of two values of one line.
fn ratio(medians: &Medians, what: &str, of: &str, x: f64, over: f64) -> Option<f64> {
    medians.ratio(&format!("{what}, {of}"), x, over)
}
