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
fn the_work_that_counts_counts_is_done() {
    for kind in ["get", "update"] {
        let work = format!("work --kind {kind} --keys 100 --operations 50");
        let output = fusee_perf(&work);
        assert!(output.status.success(), "{output:?}");
    }
}
