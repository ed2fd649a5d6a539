//! `fusee-bench cache`: a tiny run, and its report.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use fusee_testing::{Scratch, finish, fusee_bench};
use serde_json::Value;

const TINY: [&str; 6] =
    ["--keys=50", "--operations=8000", "--threads=4", "--coroutines=2", "--seed=3", "--json"];

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} is missing in {row:#}"))
}

#[test]
fn the_threshold_trades_wasted_reads_for_round_trips() {
    let scratch = Scratch::new();
    let plot = scratch.path().join("cache.svg");
    let mut command = fusee_bench(&["cache", "--workloads=a,c", "--thresholds=0,0.3,1,off"]);
    command.args(["--rounds=2"]).args(TINY).arg("--plot").arg(&plot);
    let report = finish(&mut command).expect_code(0).json();
    assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
    // Each of two rounds has 8 runs on each of two fabrics, and each run verifies 50 keys.
    assert_eq!(report["verified_keys"], 50 * 16 * 2);
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.len(), 16);
    for row in rows {
        assert!(number(row, "throughput_ops_per_s") > 0.0, "{row:#}");
        let low = "throughput_min_ops_per_s";
        let high = "throughput_max_ops_per_s";
        assert!(number(row, low) <= number(row, high), "{row:#}");
    }
    for rows in rows.chunks(4) {
        let [never, some, always, off] = rows else { unreachable!("four thresholds") };
        assert_eq!((number(never, "threshold"), &off["threshold"]), (0.0, &Value::Null));
        let wasted = |row| number(row, "wasted_reads_mean");
        assert_eq!((wasted(off), number(off, "unknown_mean")), (0.0, 1.0), "{off:#}");
        assert_eq!(number(always, "bypassed_mean"), 0.0, "{always:#}");
        let phases = |row| number(row, "phases_mean");
        if always["workload"] == "c" {
            // Without writes, a session reads the index once for every key that it did not insert.
            assert_eq!((wasted(always), wasted(never)), (0.0, 0.0), "{always:#}");
            assert!(phases(always) < 1.1 && phases(off) >= 2.0, "{always:#}, {off:#}");
            continue;
        }
        assert!(phases(always) < phases(off), "{always:#}, {off:#}");
        if always["fabric"] == "shm" {
            // A run this short has possibly ended before a second thread gets a processor.
            continue;
        }
        // Four sessions write the same keys, so hints become wrong.
        assert!(wasted(never) < wasted(some) && wasted(some) < wasted(always), "{rows:#?}");
        assert!(wasted(some) < 0.35, "{some:#}");
        assert!(number(some, "bypassed_mean") > 0.0, "{some:#}");
    }
    let svg = fs::read_to_string(&plot).unwrap();
    for text in ["threshold", "shm a", "tcp c, no cache", "phases per operation", "kops/s, tcp"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

#[test]
fn the_table_is_for_people_and_nonsense_is_refused() {
    let line = ["cache", "--workloads=upd100", "--thresholds=0.5", "--fabrics=shm"];
    let text = finish(fusee_bench(&line).args(&TINY[..5])).expect_code(0).text();
    assert!(text.contains("shm, workload upd100") && text.contains("wasted"), "{text}");
    assert!(text.contains("0 mismatches, 0 errors"), "{text}");
    for (more, says) in [
        ("--thresholds=2", "neither off nor from 0 to 1"),
        ("--workloads=d", "only reads and updates"),
        ("--theta=1", "below 1"),
        ("--pair-bytes=10", "at least 40 bytes"),
        ("--fabrics=rdma", "there are shm, tcp and verbs"),
        ("--cache-entries=0", "0 is not in"),
    ] {
        finish(&mut fusee_bench(&["cache", more])).expect_error(2, says);
    }
}

/// If a run is interrupted, the results so far are drawn, and the chart is marked as incomplete.
#[test]
fn a_picture_of_an_interrupted_run_says_so() {
    let scratch = Scratch::new();
    let plot = scratch.path().join("cache.svg");
    let mut command = fusee_bench(&["cache", "--rounds=1000", "--fabrics=shm"]);
    command.args(TINY).arg("--plot").arg(&plot).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    fusee_testing::signal("INT", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    let svg = fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("INTERRUPTED"), "{svg}");
}
