//! `fusee-bench sweep`: every axis once, with little work. The results are not judged.

// Promise API-5: `fusee-bench sweep` measures and draws every axis.
// Promise API-6: Ctrl-C ends a benchmark with a report, and leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use fusee_testing::{Scratch, finish, fusee_bench};
use serde_json::Value;

const TINY: [&str; 5] = ["sweep", "--rounds=2", "--seconds=0.02", "--warm-up=0.02", "--json"];

fn keys(axis: &str) -> &'static [&'static str] {
    if axis == "keys" { &[] } else { &["--keys=100"] }
}

#[test]
fn every_axis_is_swept_and_drawn() {
    let scratch = Scratch::new();
    for (axis, points, fabric, mixes) in [
        ("value-bytes", "64,65536", "shm", 2),
        ("sessions", "1,3", "tcp", 2),
        ("index-replicas", "1,5", "shm", 2),
        ("data-replicas", "1,5", "tcp", 2),
        ("updates", "0,100", "shm", 1),
        ("keys", "50,500", "shm", 2),
    ] {
        let plot = scratch.path().join(format!("{axis}.svg"));
        let mut command = fusee_bench(&TINY);
        command.args(["--axis", axis, "--points", points, "--fabric", fabric]).args(keys(axis));
        let output = finish(command.arg("--plot").arg(&plot)).expect_code(0);
        assert!(output.stderr.contains(&format!("loading {axis}")), "{}", output.stderr);
        let report = output.json();
        assert_eq!((&report["axis"], &report["fabric"]), (&axis.into(), &fabric.into()));
        assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
        let points: Vec<u64> = points.split(',').map(|point| point.parse().unwrap()).collect();
        let loaded = if axis == "keys" { 550 } else { 200 };
        assert_eq!(report["verified_keys"], loaded, "{report:#}");
        for (point, value) in report["points"].as_array().unwrap().iter().zip(points) {
            assert_eq!(point["value"], value);
            let all = point["mixes"].as_array().unwrap();
            assert_eq!(all.len(), mixes, "{report:#}");
            for mix in all {
                assert_eq!(mix["rounds"], 2, "{report:#}");
                let rate = |which: &str| mix["ops_per_s"][which].as_f64().unwrap();
                assert!(rate("least") > 0.0 && rate("least") <= rate("median"), "{report:#}");
                assert!(rate("median") <= rate("most"), "{report:#}");
                let updates = mix["updates_percent"].as_u64().unwrap();
                assert_eq!(mix["update_p50_us"] == Value::Null, updates == 0, "{report:#}");
                assert_eq!(mix["search_p50_us"] == Value::Null, updates == 100, "{report:#}");
            }
        }
        let replicas = |point: usize, of: &str| report["points"][point]["cluster"][of].clone();
        match axis {
            "index-replicas" | "data-replicas" => {
                let field = axis.replace('-', "_");
                assert_eq!((replicas(0, &field), replicas(1, &field)), (1.into(), 5.into()));
            }
            _ => assert_eq!(replicas(1, "index_replicas"), 3),
        }
        let svg = fs::read_to_string(&plot).unwrap();
        assert!(svg.contains("1000 operations/s") && svg.trim_end().ends_with("</svg>"), "{svg}");
    }
}

#[test]
fn the_table_has_a_row_for_each_share_of_updates() {
    let mut command = fusee_bench(&TINY[..4]);
    command.args(["--axis=sessions", "--points=2", "--updates=0,5,100", "--keys=50"]);
    let text = finish(&mut command).expect_code(0).text();
    for share in ["0 %", "5 %", "100 %"] {
        assert!(text.contains(share), "{share}: {text}");
    }
    assert!(text.contains("50 keys read back, 0 mismatches, 0 errors"), "{text}");
}

#[test]
fn an_interrupted_sweep_reports_and_leaves() {
    let line = ["sweep", "--axis=sessions", "--points=1,2", "--keys=50", "--json"];
    let mut command = fusee_bench(&line);
    command.args(["--rounds=1000", "--seconds=0.05", "--warm-up=0.05"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    // The line appears once the command listens for signals. After it the command loads, or runs rounds.
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("loading"), "{said}");
    sleep(Duration::from_millis(500));
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["interrupted"], &report["mismatches"]), (&true.into(), &0.into()));
}

#[test]
fn impossible_sweeps_are_refused_before_they_start() {
    for (more, says) in [
        (&["--axis=weather"][..], "value-bytes"),
        (&[], "--axis"),
        (&["--axis=data-replicas", "--points=1,6"], "--points has 6"),
        (&["--axis=value-bytes", "--points=8"], "--points has 8"),
        (&["--axis=keys", "--keys=5"], "--keys is what --axis keys varies"),
        (&["--axis=updates", "--updates=5"], "--updates is what --axis updates varies"),
        (&["--axis=sessions", "--seconds=0"], "--seconds must be more than 0"),
        (&["--axis=sessions", "--distribution=latest"], "--distribution is uniform or zipfian"),
        (&["--axis=sessions", "--keys=1000000000000"], "--keys"),
        (&["--axis=keys", "--points=1000000000"], "lower --keys"),
        (&["--axis=data-replicas", "--memory-nodes=3"], "--data-replicas is 4"),
    ] {
        finish(fusee_bench(&["sweep"]).args(more)).expect_error(2, says);
    }
}
