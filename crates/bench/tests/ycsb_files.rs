//! `fusee-bench ycsb` with files of operations, as YCSB prints them.

// Promise API-13: Files of operations run, or are refused with the line.

use std::fmt::Write as _;

use fusee_testing::{Scratch, UpCluster, finish, fusee_bench};
use serde_json::Value;

const KEYS: usize = 50;

/// Returns a key in YCSB's form. Key 7 is longer than any key of the paper's prototype.
fn name(number: usize) -> String {
    match number {
        7 => format!("user{}", "7".repeat(300)),
        _ => format!("user{}", 6_284_781_860_667_377_211u64 + number as u64),
    }
}

/// Writes a file to load, and a file with searches and updates of all keys, and inserts and deletes of a few keys.
fn files(scratch: &Scratch) -> [String; 4] {
    let mut load = "\"recordcount\"=\"50\"\n".to_owned();
    let mut trans = String::new();
    for number in 0..KEYS {
        let _ = writeln!(load, "INSERT usertable {} [ field0=x[ ]", name(number));
        let _ = writeln!(trans, "READ usertable {} [ <all fields>]", name(number));
        let _ = writeln!(trans, "UPDATE {}", name((number * 7) % KEYS));
        if number % 10 == 3 {
            let _ = writeln!(trans, "INSERT new{number}\nDELETE usertable {}", name(number));
        }
    }
    let [load, trans] = [("a.load", load), ("a.trans", trans)]
        .map(|(file, text)| scratch.file(file, text.as_bytes()));
    ["--load-file".into(), load, "--trans-file".into(), trans]
}

const LINES: u64 = 2 * KEYS as u64 + 10;

#[track_caller]
fn run(files: &[String], more: &[&str]) -> Value {
    let output = finish(fusee_bench(&["ycsb", "--json"]).args(files).args(more));
    let report = output.expect_code(0).json();
    assert_eq!((&report["mismatches"], &report["errors"]["total"]), (&0.into(), &0.into()));
    assert_eq!((&report["workload"], &report["file_operations"]), (&"files".into(), &LINES.into()));
    assert_eq!(report["load"]["per_operation"]["insert"]["count"], KEYS);
    report
}

#[track_caller]
fn counts(report: &Value, expected: [u64; 4]) {
    let count = |name: &str| report["per_operation"][name]["count"].as_u64().unwrap_or(0);
    let counted = ["search", "update", "insert", "delete"].map(count);
    assert_eq!(counted, expected, "{report:#}");
}

#[test]
fn every_line_is_done_once() {
    let scratch = Scratch::new();
    let files = files(&scratch);
    for more in [&["--pair-bytes", "400"][..], &["--processes", "2", "--fabric", "tcp"]] {
        let report = run(&files, more);
        counts(&report, [50, 50, 5, 5]);
        assert_eq!(report["ended_by"], "operations");
        // Keys that the run inserted are verified as well.
        assert_eq!(report["verified_keys"], KEYS + 5);
        assert_eq!(report["settings"]["keys"], KEYS);
    }
}

#[test]
fn the_file_is_done_over_and_over_if_more_is_asked_for() {
    let scratch = Scratch::new();
    let files = files(&scratch);
    let report = run(&files, &["--operations", "330", "--threads", "3", "--coroutines", "2"]);
    counts(&report, [150, 150, 15, 15]);
    // 55 operations are half of the file.
    assert_eq!(run(&files, &["--operations", "55"])["operations"], 55);
    let report = run(&files, &["--seconds", "0.5"]);
    assert!(report["operations"].as_u64().unwrap() > LINES, "{report:#}");
    assert_eq!(report["ended_by"], "seconds");
    let text = finish(fusee_bench(&["ycsb", "--operations", "165"]).args(&files)).text();
    assert!(text.contains("1.50 times the file") && text.contains("a.load"), "{text}");
}

#[test]
fn operations_of_files_are_checked() {
    let scratch = Scratch::new();
    let files = files(&scratch);
    for more in [&["--operations", "3300"][..], &["--operations", "2200", "--processes", "2"]] {
        let report = run(&files, &[&["--check"], more].concat());
        let check = &report["check"];
        assert_eq!((&check["violations"], &check["undecided_keys"]), (&0.into(), &0.into()));
        assert_eq!(check["keys"], KEYS + 5);
    }
}

#[test]
fn nothing_of_the_files_is_left_in_a_cluster() {
    let scratch = Scratch::new();
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let files = files(&scratch);
    run(&files, &["--master", &up.master]);
    for key in [name(0), name(7), "new3".into()] {
        up.run(&["get", &key]).expect_code(1);
    }
    run(&files, &["--master", &up.master, "--keep", "--operations", "1"]);
    assert_eq!(up.run(&["get", &name(0)]).expect_code(0).stdout.len(), 1024 - name(0).len());
    // Pairs that an earlier run has left do not disturb a run.
    run(&files, &["--master", &up.master]);
}

#[test]
fn a_pair_that_somebody_else_wrote_is_noticed() {
    let scratch = Scratch::new();
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let files = files(&scratch);
    let load = scratch.file("b.load", b"INSERT a\nINSERT b\n");
    let trans = scratch.file("b.trans", "READ a\nREAD b\n".repeat(20).as_bytes());
    // Long enough for the processes below on a loaded machine.
    let line = ["ycsb", "--json", "--master", &up.master, "--seconds", "12"];
    let line = [&line[..], &["--threads", "1", "--coroutines", "1"]].concat();
    let output = std::thread::scope(|scope| {
        let line = [&line[..], &["--load-file", &load, "--trans-file", &trans]].concat();
        let running = scope.spawn(move || finish(&mut fusee_bench(&line)));
        // Loading possibly takes a while; `get` finds the key once it is loaded.
        fusee_testing::eventually("it is loaded", || up.run(&["get", "a"]).code == Some(0));
        up.run(&["put", "a", "garbage"]).expect_code(0);
        running.join().unwrap()
    });
    let report = output.expect_code(1).json();
    assert!(report["mismatches_by_kind"]["torn"].as_u64().unwrap() > 0, "{report:#}");
    run(&files, &["--master", &up.master]);
}

#[test]
fn files_that_cannot_be_run_are_refused_with_the_line() {
    let scratch = Scratch::new();
    let good = scratch.file("good.load", b"INSERT usertable user1\n");
    let reads = scratch.file("good.trans", b"READ usertable user1\n");
    let scan = scratch.file("scan", b"READ user1\nSCAN usertable user1 10 [ <all fields>]\n");
    let stranger = scratch.file("stranger", b"READ user1\nREAD user2\n");
    let long = format!("INSERT user1\nINSERT {}\n", "x".repeat((64 << 10) + 1));
    let long = scratch.file("long", long.as_bytes());
    let pair = scratch.file("pair", format!("INSERT {}", "x".repeat(1001)).as_bytes());
    for (load, trans, says) in [
        (&good, &scan, format!("{scan}:2: SCAN is no operation of this store")),
        (&good, &stranger, format!("{stranger}:2: expected a key that one of the files inserts")),
        (&reads, &reads, format!("{reads}:1: expected INSERTs alone in the file to load")),
        (&long, &reads, format!("{long}:2: the key has 65537 bytes; expected at most 65536")),
        (&pair, &pair, "with a value that can be verified its pair needs 1025".into()),
        (&good, &"nowhere".into(), "cannot read nowhere".into()),
    ] {
        let line = ["ycsb", "--load-file", load, "--trans-file", trans];
        finish(&mut fusee_bench(&line)).expect_error(2, &says);
    }
    for more in [&["--workload", "a"][..], &["--keys", "5"], &["--theta", "0.5"]] {
        let line = ["ycsb", "--load-file", &good, "--trans-file", &reads];
        finish(fusee_bench(&line).args(more)).expect_error(2, "cannot be used with");
    }
    finish(&mut fusee_bench(&["ycsb", "--load-file", &good])).expect_error(2, "--trans-file");
}
