//! Allowed dependencies between crates: servers and tools have neither benchmarks nor the simulator.

// Promise API-11: Servers, tools and clients need neither benchmarks nor simulator.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::lines::{collect, root};

/// Crates of servers, clients and tools.
const PRODUCTION: [&str; 13] = [
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
    "fusee",
];
/// Crates for measurements and tests.
const LABORATORY: [&str; 8] = [
    "fusee-bench",
    "fusee-lab",
    "fusee-sim",
    "fusee-linearizability",
    "fusee-workload",
    "fusee-baselines",
    "fusee-report",
    "fusee-testing",
];

/// Returns the dependencies of a crate, without those of its tests only.
fn dependencies(name: &str) -> Table {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates lie side by side");
    let text = read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
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
    assert!(!dependencies("sim").contains_key("fusee-bench"));
    assert!(!dependencies("lab").contains_key("fusee-bench"));
    // Baselines run over any fabric, so they do not need the simulated one.
    assert!(!dependencies("baselines").contains_key("fusee-sim"));
    // In the package of benchmarks, only the program uses both the benchmarks and the simulator.
    let mut files = Vec::new();
    collect(&root().join("crates/bench/src"), &mut files);
    let (program, library): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| file.components().any(|part| part.as_os_str() == "bin"));
    let needs = |file: &PathBuf| {
        let text = read_to_string(file).unwrap();
        ["fusee_sim", "fusee_lab"].iter().any(|name| text.contains(name))
    };
    assert!(program.iter().any(needs));
    assert_eq!(library.iter().find(|file| needs(file)), None);
}
