//! `fusee-bench elasticity` and `fusee-bench sizes`: runs with little work, and their reports.

// Promise CHG-11

use std::fs;

use fusee_testing::{Scratch, finish, fusee_bench};
use serde_json::Value;

#[test]
fn sessions_and_memory_nodes_come_and_go() {
    if fusee_testing::is_long_and_left_out() {
        return;
    }
    let scratch = Scratch::new();
    for (fabric, workload) in [("shm", "a"), ("tcp", "c")] {
        let plot = scratch.path().join(format!("{fabric}.svg"));
        let line = ["elasticity", "--sessions=2", "--more=2", "--rate=200", "--keys=200"];
        let mut command = fusee_bench(&line);
        command.args(["--phase=1.5", "--interval=0.25", "--json", "--fabric", fabric]);
        command.args(["--workload", workload, "--plot"]).arg(&plot);
        let report = finish(&mut command).expect_code(0).json();
        assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
        assert_eq!((&report["verified_keys"], &report["fabric"]), (&200.into(), &fabric.into()));
        let phases = report["phases"].as_array().unwrap();
        let steps: Vec<&str> = phases.iter().map(|p| p["step"].as_str().unwrap()).collect();
        let all = ["2 sessions", "4 sessions", "2 sessions", "a memory node joins"];
        assert_eq!(steps, [&all[..], &["a memory node is drained"]].concat());
        let rate = |phase: usize| phases[phase]["ops_per_s"].as_f64().unwrap();
        // The pace limits the rate from above; on a busy machine the rate is possibly lower.
        assert!(
            rate(1) < 900.0 && [0, 2, 3, 4].iter().all(|phase| rate(*phase) < 450.0),
            "{report:#}"
        );
        assert!((0..phases.len()).all(|phase| rate(phase) > 0.0), "{report:#}");
        let keep_their_pace = [0, 2].iter().all(|phase| rate(*phase) > 360.0);
        assert!(!keep_their_pace || rate(1) > 1.3 * rate(0), "{report:#}");
        joined_and_drained(&report);
        for (number, phase) in phases.iter().enumerate() {
            let held = &phase["nodes"]["mn0"]["subtables"];
            assert_eq!(held, &if number < 4 { 1.into() } else { Value::Null }, "{phase:#}");
            let updates = &phase["operations"]["update"];
            assert_eq!(updates == &Value::Null, workload == "c", "{phase:#}");
        }
        let intervals = report["intervals"].as_array().unwrap();
        assert!(intervals.iter().any(|row| row["sessions"] == 4), "{report:#}");
        assert_eq!(intervals.last().unwrap()["sessions"], 2);
        let svg = fs::read_to_string(&plot).unwrap();
        for mark in ["a memory node joins", "mn3 is a member", "is drained", "mn0 is gone"] {
            assert!(svg.contains(mark), "{mark}: {svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
    }
}

/// Asserts that a fourth memory node joined, that the first was drained, and that the master's states of the nodes
/// agree.
fn joined_and_drained(report: &Value) {
    let members = ["drained", "in_view", "in_view", "in_view"].into_iter().enumerate();
    let members: serde_json::Map<String, Value> =
        members.map(|(n, state)| (format!("mn{n}"), state.into())).collect();
    assert_eq!(report["members"], Value::Object(members), "{report:#}");
    let joined = &report["joined"];
    let drained = &report["drained"];
    assert_eq!((&joined["node"], &drained["node"]), (&"mn3".into(), &"mn0".into()));
    // The index has one subtable with three replicas, one of them on the first memory node.
    assert_eq!(drained["subtables"], 1, "{report:#}");
    // The run has a time limit of its own, so this test does not limit the time.
    assert!(drained["took_s"].as_f64().unwrap() > 0.0, "{report:#}");
    let moved = &drained["moved_bytes"];
    let regions = drained["regions"].as_u64().unwrap();
    assert!(moved.as_u64().unwrap() > regions * (128 << 20), "{report:#}");
    let events = report["events"].as_array().unwrap();
    let at = |what: &str| {
        let event = events.iter().find(|event| event["what"] == what);
        event.unwrap_or_else(|| panic!("{what}: {report:#}"))["at_s"].as_f64().unwrap()
    };
    let marks = ["a memory node joins", "mn3 is a member", "a memory node is drained"].map(at);
    assert!(marks.is_sorted() && marks[2] < at("mn0 is gone"), "{report:#}");
    let intervals = report["intervals"].as_array().unwrap();
    let counts: Vec<u64> = intervals.iter().map(|row| row["members"].as_u64().unwrap()).collect();
    assert_eq!((counts[0], counts.iter().max(), counts.last()), (3, Some(&4), Some(&3)));
}

#[test]
fn a_memory_node_that_does_not_come_or_go_in_time_is_a_problem() {
    let line = ["elasticity", "--sessions=1", "--more=0", "--rate=100", "--keys=100"];
    let output = finish(fusee_bench(&line).args(["--phase=0.2", "--limit=0.001", "--json"]));
    let report = output.expect_code(1).json();
    let problems = report["problems"].as_array().unwrap();
    let is_told = |says| problems.iter().any(|problem| problem.as_str().unwrap().contains(says));
    // A region cannot move within the limit of a millisecond, but a memory node possibly becomes a member.
    assert!(is_told("mn0 is"), "{report:#}");
    let in_time = !report["joined"].is_null();
    assert!(is_told("no memory node became a member in 0.001 s") || in_time, "{report:#}");
    assert_eq!((&report["drained"], &report["mismatches"]), (&Value::Null, &0.into()));
}

#[test]
fn impossible_elasticity_is_refused_before_it_starts() {
    for (more, says) in [
        (&["--phase", "0"][..], "--phase must be more than 0"),
        (&["--limit", "0"], "--limit must be more than 0"),
        (&["--workload", "d"], "adds or removes keys"),
        (&["--workload", "a", "--rate", "0"], "updates need memory"),
    ] {
        finish(fusee_bench(&["elasticity"]).args(more)).expect_error(2, says);
    }
}

#[test]
fn sizes_are_told_for_every_distribution() {
    let report = finish(&mut fusee_bench(&["sizes", "--pairs=2000", "--json"]));
    let report = report.expect_code(0).json();
    let rows = report["distributions"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["values"].as_str().unwrap()).collect();
    let all = ["fixed:48", "fixed:1008", "uniform:1024-4096", "log-uniform:1-1048576"];
    assert_eq!(names, all);
    for row in rows {
        let ratio = |name: &str| row[name].as_f64().unwrap();
        assert!(ratio("object_per_user") > 1.0 && ratio("block_per_object") > 1.0, "{row:#}");
        let whole = ratio("object_per_user") * ratio("block_per_object");
        assert!((whole / ratio("block_per_user") - 1.0).abs() < 1e-9, "{row:#}");
    }
    // Pairs of 64 bytes take objects of 128 bytes. 16 + 1008 bytes of a pair and 40 bytes of the object take 17 units
    // of 64 bytes, which are a class.
    assert_eq!(rows[0]["object_per_user"], 2.0);
    assert_eq!(rows[1]["object_per_user"], 1088.0 / 1024.0);
    let text = finish(&mut fusee_bench(&["sizes", "--pairs=10", "--values=uniform:1-9"]));
    assert!(text.expect_code(0).text().contains("uniform:1-9"));
    let wrong = finish(&mut fusee_bench(&["sizes", "--values", "normal:3"]));
    wrong.expect_error(2, "none of fixed:BYTES");
    let large = finish(&mut fusee_bench(&["sizes", "--values", "fixed:16777216"]));
    large.expect_error(2, "does not fit into a block");
}
