//! `fusee-bench sim` from the command line.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fusee_testing::{CommandOutput, Scratch, finish, fusee_bench};
use serde_json::Value;

fn sim(args: &[&str]) -> CommandOutput {
    finish(fusee_bench(&["sim"]).args(args))
}

fn json(args: &[&str]) -> Value {
    sim(args).expect_code(0).json()
}

#[test]
fn seeds_of_all_scenarios_keep_every_promise() {
    let report = json(&["--seed", "5000", "--seeds", "160", "--json"]);
    assert_eq!(report["violations"], 0);
    assert_eq!(report["runs"], 160);
    assert!(report["operations"].as_u64().unwrap() > 60_000);
    for (what, count) in report["happened"].as_object().unwrap() {
        assert!(count.as_u64().unwrap() > 0, "{what} never happened");
    }
    for scenario in [
        "mixed",
        "inserts",
        "unsteady",
        "crashes",
        "losses",
        "growth",
        "elastic",
        "reuse",
        "damage",
        "cuts",
        "redundancy",
        "oriented",
        "none",
        "correlated",
        "storm",
        "scans",
    ] {
        assert_eq!(report["scenarios"][scenario]["runs"], 10, "{scenario}");
    }
}

#[test]
fn a_seed_is_the_same_run_every_time_whatever_runs_beside_it() {
    let digest = |args: &[&str]| json(args)["digest"].as_str().unwrap().to_string();
    let alone = digest(&["--seeds", "12", "--seed", "5", "--jobs", "1", "--json"]);
    let side_by_side = digest(&["--seeds", "12", "--seed", "5", "--jobs", "4", "--json"]);
    assert_eq!(alone, side_by_side);
    assert_ne!(alone, digest(&["--seeds", "12", "--seed", "6", "--json"]));
}

#[test]
fn a_trace_is_written_and_repeats_byte_for_byte() {
    let scratch = Scratch::new();
    let trace = |name: &str| {
        let path = scratch.path().join(name);
        let file = path.to_str().unwrap();
        let args = ["--scenario", "storm", "--seed", "3", "--ops", "100", "--trace", file];
        sim(&args).expect_code(0);
        fs::read(&path).unwrap()
    };
    let first = trace("first");
    let second = trace("second");
    assert!(first.len() > 10_000);
    assert!(first == second, "two traces of one seed differ");
}

#[test]
fn a_result_is_short_and_counts_are_listed_if_they_are_asked_for() {
    let args = ["--scenario", "mixed", "--seeds", "2", "--ops", "50"];
    let short = sim(&args).expect_code(0).text();
    assert!(short.lines().count() <= 5 && short.contains("--counts lists them"), "{short}");
    assert!(short.lines().all(|line| line.len() <= 120), "{short}");
    let long = sim(&[&args[..], &["--counts"]].concat()).expect_code(0).text();
    assert!(long.lines().count() > 40 && long.contains("0 violations"), "{long}");
}

#[test]
fn mistakes_are_told_with_what_would_be_right() {
    for (args, says) in [
        (&["--scenario", "calm"][..], "use one of mixed, inserts"),
        (&["--without", "rain"], "use one of delay, tear"),
        (&["--minutes", "0"], "--minutes"),
        (&["--clients", "0"], "--clients"),
        (&["--seeds", "5", "--minutes", "1"], "cannot be used with"),
    ] {
        sim(args).expect_error(2, says);
    }
}

#[test]
fn the_scenarios_are_listed_with_their_faults() {
    let text = sim(&["--list"]).expect_code(0).text();
    for name in ["mixed", "inserts", "unsteady", "crashes", "losses", "storm", "lost-completion"] {
        assert!(text.contains(name), "{text}");
    }
}

/// A signal ends a run in the middle, however long the run would have taken.
#[test]
fn a_signal_stops_a_run_that_has_begun() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let args = ["sim", "--scenario", "mixed", "--seed", "3", "--ops", "100000000"];
        let child =
            fusee_bench(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let begun = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("interrupted") || text.contains("0 runs"), "{text}");
    }
}

#[test]
fn a_run_with_many_clients_ends() {
    sim(&["--scenario", "mixed", "--seed", "0", "--clients", "128"]).expect_code(0);
}
