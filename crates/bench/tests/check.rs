//! `fusee-bench ycsb --check` with real processes: every operation is checked.

// Promise LIN-2: Operations of real client processes are linearizable.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use fusee_testing::{Scratch, UpCluster, eventually, finish, fusee_bench, is_alive, signal, wait};
use serde_json::Value;

/// There are few keys, so that most operations overlap another one on the same key.
const HOT: [&str; 8] =
    ["ycsb", "--check", "--keys", "5", "--operations", "6000", "--json", "--seed=3"];

/// Returns the report of a run, which must have no error and must have checked every operation.
#[track_caller]
fn checked(more: &[&str]) -> Value {
    let report = finish(fusee_bench(&HOT).args(more)).expect_code(0).json();
    assert_eq!(report["errors"]["total"], 0, "{report:#}");
    assert_eq!(report["mismatches"], 0, "{report:#}");
    let check = &report["check"];
    assert_eq!((&check["violations"], &check["undecided_keys"]), (&0.into(), &0.into()));
    assert_eq!((&check["pending"], &check["explanation"]), (&0.into(), &Value::Null));
    // The check includes the operations of the loading, of the run, and of the final reads.
    let operations = report["operations"].as_u64().unwrap() + 5 + check["keys"].as_u64().unwrap();
    assert_eq!(check["operations"], operations, "{report:#}");
    report
}

#[test]
fn two_processes_on_shared_memory_are_linearizable() {
    for workload in ["a", "churn"] {
        let report = checked(&["--workload", workload, "--processes", "2"]);
        assert_eq!((&report["operations"], &report["check"]["keys"]), (&6000.into(), &5.into()));
        assert_eq!(report["fabric"], "shm");
        assert_eq!(report["cluster"]["started"], true);
        assert_eq!(report["settings"]["processes"], 2);
        assert!(report["check"]["overlapping"].as_u64().unwrap() > 100, "{report:#}");
    }
}

#[test]
fn two_processes_over_tcp_are_linearizable() {
    for workload in ["a", "churn"] {
        let report = checked(&["--workload", workload, "--processes", "2", "--fabric", "tcp"]);
        assert_eq!((&report["operations"], &report["fabric"]), (&6000.into(), &"tcp".into()));
    }
}

/// Threads of one process share a work table; processes do not.
#[test]
fn two_processes_with_strict_work_tables_are_linearizable() {
    for workload in ["a", "churn"] {
        let tcp = ["--processes", "2", "--fabric", "tcp", "--work-table", "strict"];
        let report = checked(&[&["--workload", workload][..], &tcp].concat());
        assert_eq!(report["settings"]["work_table"], "strict", "{report:#}");
    }
    let refused = fusee_bench(&["ycsb", "--keys", "5", "--work-table", "strict"]).output();
    let says = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(says.contains("a work table is not for shared memory"), "{says}");
}

#[test]
fn one_process_is_checked_too() {
    for more in [&["--workload", "churn"][..], &["--workload", "d"]] {
        let report = checked(more);
        assert_eq!(report["cluster"]["embedded"], true);
    }
}

#[test]
fn processes_on_an_existing_cluster_leave_it_as_it_was() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    up.run(&["put", "mine", "kept"]).expect_code(0);
    for workload in ["churn", "d"] {
        let more = ["--master", &up.master, "--workload", workload, "--processes", "3"];
        assert_eq!(checked(&more)["cluster"]["started"], false);
    }
    up.run(&["get", "user000000000001"]).expect_code(1);
    assert_eq!(up.run(&["get", "mine"]).expect_code(0).stdout, b"kept");
}

#[test]
fn several_processes_verify_the_final_state_without_a_check() {
    let line = ["ycsb", "--keys", "30", "--operations", "3000", "--json"];
    for workload in ["a", "d", "churn"] {
        let more = ["--workload", workload, "--processes", "2", "--threads", "3"];
        let report = finish(fusee_bench(&line).args(more)).expect_code(0).json();
        assert_eq!((&report["mismatches"], &report["check"]), (&0.into(), &Value::Null));
        assert_eq!(report["operations"], 3000, "{report:#}");
        assert!(report["verified_keys"].as_u64().unwrap() >= 30, "{report:#}");
    }
}

#[test]
fn a_run_ends_when_no_more_is_recorded() {
    let report = checked(&["--check-ops", "1000", "--processes", "2", "--workload", "b"]);
    assert_eq!((&report["ended_by"], &report["operations"]), (&"check_ops".into(), &990.into()));
    assert_eq!(report["check"]["operations"], 1000);
}

/// Writes of other processes are not in the history. So the history cannot be explained, and the report says that.
#[test]
fn what_others_write_is_a_violation() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let line = ["ycsb", "--check", "--workload", "c", "--keys", "5", "--json"];
    let more = ["--master", &up.master, "--seconds", "3", "--processes", "2"];
    let output = thread::scope(|scope| {
        let running = scope.spawn(|| finish(fusee_bench(&line).args(more)));
        // The key is deleted as soon as the run has inserted it. How long that takes depends on the load of the
        // machine.
        while up.run(&["delete", "user000000000002"]).code != Some(0) {
            assert!(!running.is_finished(), "{}", running.join().unwrap().stderr);
            thread::sleep(Duration::from_millis(50));
        }
        running.join().unwrap()
    });
    let output = output.expect_code(1);
    let report = output.json();
    assert_eq!(report["check"]["violations"], 1, "{report:#}");
    let explanation = report["check"]["explanation"].as_str().unwrap();
    let lines: Vec<&str> = explanation.lines().collect();
    assert_eq!(lines.len(), 3, "{explanation}");
    assert!(lines[0].starts_with("key number 2: of "), "{explanation}");
    assert!(lines[1].contains("INSERT w") && lines[1].contains("-> done"), "{explanation}");
    assert!(lines[2].contains("SEARCH") && lines[2].contains("-> no such key   <-"));
    assert!(output.stderr.contains("1 keys are not linearizable"), "{}", output.stderr);
}

#[test]
fn the_table_says_that_a_checked_run_is_no_measurement() {
    let line = ["ycsb", "--check", "--keys", "5", "--operations", "500"];
    let text = finish(fusee_bench(&line).args(["--processes", "2"])).expect_code(0).text();
    assert!(text.contains("checked     510 operations on 5 keys"), "{text}");
    assert!(text.contains("0 pending: 0 violations"), "{text}");
    assert!(text.contains("do not quote") && text.contains("started for this run"), "{text}");
    assert!(text.contains("2 processes, together 4 threads"), "{text}");
}

/// Returns the children of a process, and in turn their children.
fn descendants(parent: u32) -> Vec<u32> {
    let started_by = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parent.and_then(|parent| parent.parse::<u32>().ok())
    };
    let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let children: Vec<u32> = pids.filter(|pid| started_by(pid) == Some(parent)).collect();
    let further = children.iter().flat_map(|pid| descendants(*pid));
    further.chain(children.iter().copied()).collect()
}

#[test]
fn ctrl_c_prints_what_was_measured_and_leaves_nothing_behind() {
    for more in [&["--processes", "1"][..], &["--processes", "2"]] {
        let scratch = Scratch::new();
        let mut command = fusee_bench(&["ycsb", "--check", "--keys", "9", "--json"]);
        command.args(["--check-ops", "100000000", "--operations", "90000000"]);
        command.args(["--pair-bytes", "40"]).args(more);
        command.env("XDG_RUNTIME_DIR", scratch.path()).env("TMPDIR", scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        thread::sleep(Duration::from_secs(3));
        let pids = descendants(child.id());
        signal("INT", child.id());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert_eq!(report["ended_by"], "interrupted");
        assert_eq!((&report["check"]["violations"], &report["mismatches"]), (&0.into(), &0.into()));
        assert!(report["operations"].as_u64().unwrap() > 0, "{report:#}");
        eventually("all processes are gone", || pids.iter().all(|pid| !is_alive(*pid)));
        assert_eq!(scratch.entries(), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn a_client_process_that_dies_ends_the_benchmark() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let line = ["ycsb", "--workload", "c", "--keys", "5", "--seconds", "60"];
    let mut command = fusee_bench(&line);
    command.args(["--processes", "2", "--master", &up.master]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    eventually("there are two", || descendants(child.id()).len() == 2);
    thread::sleep(Duration::from_millis(500));
    let pids = descendants(child.id());
    signal("KILL", pids[0]);
    assert_eq!(wait(&mut child).code(), Some(1));
    assert!(!is_alive(pids[1]), "the other goes on");
}

#[test]
fn impossible_checks_are_refused() {
    for (more, says) in [
        (&["--processes", "5"][..], "only 4 --threads"),
        (&["--check", "--check-ops", "50", "--keys", "30"], "--check-ops is 50"),
        (&["--check-ops", "50"], "--check"),
        (&["--processes", "0"], "1..=256"),
    ] {
        finish(fusee_bench(&["ycsb"]).args(more)).expect_error(2, says);
    }
    // The command `client` is not for people, and says so.
    finish(&mut fusee_bench(&["client"])).expect_error(2, "for the benchmark itself");
    let help = finish(&mut fusee_bench(&["--help"])).expect_code(0).text();
    let lists = |line: &str| line.trim_start().starts_with("client ");
    assert!(!help.lines().any(lists), "{help}");
}
