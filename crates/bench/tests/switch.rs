//! Benchmarks with `fusee switch` in the path: hot keys, and the end of a switch.

// Promise API-15

use std::process::Stdio;
use std::time::Duration;

use fusee_testing::switch::SwitchUnderTest;
use fusee_testing::{UpCluster, finish, fusee_bench, signal, wait};
use serde_json::Value;

/// All sessions change the same few keys, each with hints of its own as if it were a process, so hints are nearly
/// always stale. A stale hint costs no additional phase if the switch knows where the slot leads.
#[test]
fn hot_keys_take_fewer_phases_behind_a_switch() {
    let up = UpCluster::start(&["--memory-nodes", "2", "--fabric", "tcp", "--switch"]);
    let switch = up.report["switch"]["tcp"].as_str().expect("a switch").to_owned();
    let phases = |more: &[&str]| {
        let workload =
            ["--workload", "a", "--keys", "4", "--operations", "20000", "--pair-bytes", "64"];
        let clients = [
            "--master",
            &up.master,
            "--threads",
            "4",
            "--coroutines",
            "8",
            "--fabric",
            "tcp",
            "--cache-per-session",
            "--json",
        ];
        let line = [&["ycsb"], &workload[..], &clients, more].concat();
        let output = finish(&mut fusee_bench(&line));
        let report = output.expect_code(0).json();
        ["search", "update"].map(|kind| {
            let counts = &report["per_operation"][kind];
            counts["phases_mean"].as_f64().unwrap_or_else(|| panic!("{report:#}"))
        })
    };
    let without = phases(&[]);
    let with = phases(&["--switch", &switch]);
    println!("phases of a SEARCH and an UPDATE: {without:?} without, {with:?} with the switch");
    assert!(with[0] < without[0] - 0.2, "{with:?} with the switch, {without:?} without");
    assert!(with[1] < without[1], "{with:?} with the switch, {without:?} without");
}

/// If a switch is told to stop, or is killed, during a benchmark, then the operations that are cut off fail, and the
/// history is linearizable.
#[test]
fn a_switch_that_ends_under_load_loses_nothing() {
    for name in ["TERM", "KILL"] {
        let up = UpCluster::start(&["--memory-nodes", "2", "--fabric", "tcp"]);
        let mut switch = SwitchUnderTest::start(&up, "127.0.0.1:0");
        up.run(&["put", "--switch", &switch.address, "before", "1"]).expect_code(0);
        let load = ["ycsb", "--workload", "churn", "--keys", "8", "--seconds", "6", "--check"];
        let mut bench = fusee_bench(&load);
        bench.args(["--json", "--master", &up.master, "--switch", &switch.address]);
        bench.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let bench = bench.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(3));
        signal(name, switch.child.id());
        wait(&mut switch.child);
        let output = bench.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("{name}: {:?}\n{text}\n{errors}", output.status);
        assert_eq!(output.status.code(), Some(1), "{text} {errors}");
        let report: Value = serde_json::from_str(&text).expect("a report");
        assert_eq!(report["check"]["violations"], 0, "{report:#}");
        assert_eq!(up.run(&["get", "before"]).expect_code(0).text().trim(), "1");
        // Another switch serves at the same address.
        let again = SwitchUnderTest::start(&up, &switch.address);
        up.run(&["get", "--switch", &again.address, "before"]).expect_code(0);
    }
}
