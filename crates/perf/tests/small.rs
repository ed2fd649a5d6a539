//! Each command once, tiny, so that none rots. What it measures is not judged.

use std::process::{Command, Output};

fn fusee_perf(args: &str) -> Output {
    let args = args.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_fusee-perf")).args(args).output().unwrap()
}

#[test]
fn limit_measures_everything() {
    let output = fusee_perf("limit --keys 100 --rounds 3 --operations 50 --json");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for what in ["memcpy_ns", "raw_get_ns", "get_ns", "raw_update_ns", "update_ns"] {
        assert!(report[what]["median"].as_f64().unwrap() > 0.0, "{what}: {report}");
    }
    let table = fusee_perf("limit --keys 100 --rounds 1 --operations 50 --pair-bytes 64");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("get over raw"), "{table}");
}

#[test]
fn peers_do_the_same_work() {
    // Those that are not installed are named.
    let output = fusee_perf("peers --keys 100 --rounds 2 --operations 60 --depths 1,16 --json");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6, "three workloads, each with 1 and with 16 in flight: {report}");
    let absent = report["absent"].as_array().unwrap().len();
    for run in runs {
        assert_eq!(run["ns"].as_object().unwrap().len() + absent, 7, "{report}");
        assert!(run["times_of"]["fusee-shm"]["lmdb"]["median"].as_f64().unwrap() > 0.0, "{report}");
    }
    let table = fusee_perf("peers --keys 50 --rounds 1 --operations 20 --only lmdb,fusee-tcp");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("YCSB A, 16 in flight") && table.contains("x fusee-tcp"), "{table}");
    let unknown = fusee_perf("peers --only mongodb");
    assert!(!unknown.status.success());
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("mongodb"));
}

#[test]
fn the_work_that_counts_counts_is_done() {
    for kind in ["get", "update"] {
        let work = format!("work --kind {kind} --keys 100 --operations 50");
        let output = fusee_perf(&work);
        assert!(output.status.success(), "{output:?}");
    }
}
