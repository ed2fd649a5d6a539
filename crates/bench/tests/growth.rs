//! `fusee-bench growth`: the index grows under load, no key is missing, and nothing is left behind.

// Promise CHG-8
// Promise API-6

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use fusee_testing::{Scratch, UpCluster, finish, fusee_bench, signal};
use serde_json::Value;

/// More keys than fit into the 24,576 slots of one subtable.
const KEYS: u64 = 40_000;

/// Checks what all reports must show.
fn check(report: &Value, keys: u64) {
    assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
    assert_eq!((&report["verified_keys"], &report["interrupted"]), (&keys.into(), &false.into()));
    let intervals = report["intervals"].as_array().unwrap();
    let last = intervals.last().unwrap();
    assert_eq!(last["keys"], keys);
    let sum = |kind: &str| -> u64 {
        let counts = intervals.iter().map(|row| row["operations"][kind]["count"].as_u64());
        counts.map(Option::unwrap_or_default).sum()
    };
    let both = |kind: &str| -> u64 {
        let parts = ["calm", "changing"].map(|part| report[part][kind]["count"].as_u64());
        parts.into_iter().map(Option::unwrap_or_default).sum()
    };
    assert_eq!((sum("insert"), both("insert")), (keys, keys), "{report:#}");
    for kind in ["search", "update"] {
        assert!(sum(kind) > 10 && both(kind) >= sum(kind), "{kind}: {report:#}");
    }
    for pair in intervals.windows(2) {
        assert_eq!(pair[0]["to_s"], pair[1]["from_s"]);
        assert!(pair[0]["subtables"].as_u64() <= pair[1]["subtables"].as_u64());
    }
}

#[test]
fn an_index_of_one_subtable_grows_under_load() {
    let scratch = Scratch::new();
    for fabric in ["shm", "tcp"] {
        let plot = scratch.path().join(format!("{fabric}.svg"));
        let mut command = fusee_bench(&["growth", "--interval=0.1", "--rate=4000", "--json"]);
        command.args([&format!("--keys={KEYS}"), "--fabric", fabric, "--plot"]).arg(&plot);
        let report = finish(&mut command).expect_code(0).json();
        check(&report, KEYS);
        assert_eq!((&report["fabric"], &report["subtables_at_start"]), (&fabric.into(), &1.into()));
        let growth = report["growth"].as_array().unwrap();
        let grown: u64 = growth
            .iter()
            .map(|g| g["subtables_after"].as_u64().unwrap() - g["subtables"].as_u64().unwrap())
            .sum();
        let last = report["intervals"].as_array().unwrap().last().unwrap();
        assert_eq!(last["subtables"], 1 + grown, "{report:#}");
        assert!(grown > 0 && report["stages"]["changes"].as_u64().unwrap() > 0, "{report:#}");
        let full = growth[0]["load_factor"].as_f64().unwrap();
        assert!((0.3..1.0).contains(&full), "{full}");
        // Inserts that find no room wait for the change.
        assert!(report["changing"]["insert"]["max_us"].as_f64() > Some(0.0), "{report:#}");
        let svg = fs::read_to_string(&plot).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("subtables") && svg.contains("insert p99"), "{svg}");
    }
}

#[test]
fn the_table_tells_of_growth() {
    let line = ["growth", "--keys=30000", "--readers=0", "--writers=0", "--interval=9"];
    let text = finish(&mut fusee_bench(&line)).expect_code(0).text();
    for says in ["30000 keys read back, 0 mismatches", "when it grew", "insert, changing"] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[test]
fn an_existing_cluster_is_left_as_it_was() {
    let up = UpCluster::start(&["--pool", "512MiB", "--index-keys", "1000"]);
    up.run(&["put", "mine", "kept"]).expect_code(0);
    let line = ["growth", "--master", &up.master, "--keys=2000", "--rate=50000"];
    let report = finish(fusee_bench(&line).args(["--inserters=1", "--json"])).expect_code(0).json();
    assert_eq!(
        (&report["verified_keys"], &report["cluster"]["started"]),
        (&2000.into(), &false.into())
    );
    assert_eq!(report["growth"], Value::Array(Vec::new()), "there is room for so few");
    assert_eq!(up.run(&["get", "mine"]).expect_code(0).stdout, b"kept");
    up.run(&["get", "user000000000001"]).expect_code(1);
}

#[test]
fn ctrl_c_ends_it_with_its_report_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let mut command = fusee_bench(&["growth", "--keys", "5000000", "--json"]);
    command.env("XDG_RUNTIME_DIR", scratch.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(scratch.entries().len(), 1, "the servers' directory");
    signal("INT", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["interrupted"], &report["mismatches"]), (&true.into(), &0.into()));
    assert!(report["verified_keys"].as_u64().unwrap() > 0);
    assert!(scratch.entries().is_empty(), "{:?}", scratch.entries());
}

#[test]
fn impossible_growth_is_refused_before_it_starts() {
    for (more, says) in [
        (&["--interval", "0"][..], "--interval must be more than 0"),
        (&["--pair-bytes", "39"], "at least 40 bytes"),
        (&["--keys", "1000000000", "--pair-bytes", "100000"], "lower"),
        (&["--keep"], "--master"),
    ] {
        finish(fusee_bench(&["growth"]).args(more)).expect_error(2, says);
    }
}
