//! Allowed dependencies between crates: a server ships neither benchmarks nor the simulator.

// Promise API-11: Servers and clients need neither benchmarks nor simulator.

use std::path::Path;

use toml::{Table, Value};

/// Crates that servers and clients consist of.
const PRODUCTION: [&str; 12] = [
    "core",
    "control",
    "fabric",
    "memory-node",
    "master",
    "client",
    "cli",
    "launch",
    "auth",
    "tls",
    "export",
    "switch",
];
/// Crates that measure and test.
const LABORATORY: [&str; 7] = [
    "fusee-bench",
    "fusee-lab",
    "fusee-sim",
    "fusee-linearizability",
    "fusee-workload",
    "fusee-baselines",
    "fusee-report",
];

/// Returns the dependencies of a crate, without those of its tests.
fn dependencies(name: &str) -> Table {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates lie side by side");
    let text = std::fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
    match text.parse::<Table>().unwrap().remove("dependencies") {
        Some(Value::Table(dependencies)) => dependencies,
        other => panic!("{name} has dependencies: {other:?}"),
    }
}

#[test]
fn production_crates_need_no_benchmark_and_no_simulator() {
    for name in PRODUCTION {
        let dependencies = dependencies(name);
        assert!(!dependencies.is_empty(), "{name}");
        for other in LABORATORY {
            assert!(!dependencies.contains_key(other), "{name} needs {other}");
        }
    }
}

#[test]
fn benchmarks_and_simulator_do_not_need_each_other() {
    assert!(!dependencies("bench").contains_key("fusee-sim"));
    assert!(!dependencies("sim").contains_key("fusee-bench"));
    assert!(!dependencies("lab").contains_key("fusee-bench"));
    // Baselines run over any fabric, not only over the simulated one.
    assert!(!dependencies("baselines").contains_key("fusee-sim"));
}

#[test]
fn the_program_can_be_built_without_them() {
    let dependencies = dependencies("fusee");
    for other in LABORATORY {
        let optional =
            dependencies.get(other).is_none_or(|d| d["optional"] == Value::Boolean(true));
        assert!(optional, "{other} is a part of every server");
    }
}
