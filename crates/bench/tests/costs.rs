//! Benchmarks that compare operations with their raw verbs, with other stores and with other transports. Each runs with
//! little work, to show that it works. The measured times are not judged.

// Promise API-6

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fusee_testing::{Scratch, eventually, fusee_bench};
use serde_json::Value;

fn bench(args: &str) -> Output {
    fusee_bench(&[]).args(args.split_whitespace()).output().unwrap()
}

fn compare(args: &str) -> Value {
    let output = bench(&format!("compare --json {args}"));
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a row of the table of a task, if there is one.
fn row<'r>(report: &'r Value, task: &str, subject: &str) -> Option<&'r Value> {
    let tables = report["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| table["task"] == task);
    let rows = table.unwrap_or_else(|| panic!("{task}: {report}"))["rows"].as_array().unwrap();
    rows.iter().find(|row| row["subject"] == subject)
}

#[test]
fn operations_are_measured_beside_their_raw_verbs() {
    let output = bench("compare --keys 100 --rounds 3 --operations 50 --json");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["unit"], &report["settings"]["measure"]), (&"ns".into(), &"time".into()));
    for (task, subjects) in [
        ("get", &["memcpy", "raw-shm", "raw-tcp", "fusee-shm", "fusee-tcp"][..]),
        ("update", &["raw-shm", "raw-tcp", "fusee-shm", "fusee-tcp"]),
        ("insert", &["fusee-shm", "fusee-tcp"]),
        ("delete", &["fusee-shm", "fusee-tcp"]),
    ] {
        for subject in subjects {
            let row = row(&report, task, subject).unwrap_or_else(|| panic!("{subject}: {report}"));
            assert!(row["value"]["median"].as_f64().unwrap() > 0.0, "{row}");
            let times = &row["over"]["raw-shm"]["median"];
            let has_times = *subject != "raw-shm" && subjects.contains(&"raw-shm");
            assert_eq!(times.as_f64().is_some_and(|times| times > 0.0), has_times, "{row}");
        }
    }
    assert!(row(&report, "update", "memcpy").is_none(), "{report}");
    // Raw verbs damage no pair, so there is no warning.
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_progress = |line: &str| line.starts_with("loading ") || line.starts_with("measuring ");
    assert!(told.lines().all(is_progress), "{told}");
    let table = bench(
        "compare --keys 100 --rounds 1 --operations 50 --pair-bytes 64 --tasks get,update \
         --subjects raw-shm,fusee-shm",
    );
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("x raw-shm") && !table.contains("tcp"), "{table}");
}

#[test]
fn correlated_requests_are_measured_with_every_table() {
    let output = bench("correlated --rounds 5 --json");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["wrong_values"], 0, "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "two cases, two redundancies, three tables: {report}");
    let verbs = |case: &str, table: &str| {
        let is_it = |row: &&Value| {
            (row["case"] == case, row["table"] == table) == (true, true)
                && row["redundancy"] == "ec:4+1"
        };
        rows.iter().find(is_it).expect("it is there")["verbs"].as_f64().unwrap()
    };
    // A get READs the slot and four chunks. A get that waits for another request READs the slot with a strict work
    // table, and nothing with a relaxed one.
    assert!(verbs("get_after_get", "off") > 19.0, "{report}");
    assert!(verbs("get_after_get", "strict") < 10.0, "{report}");
    assert!(verbs("get_after_get", "relaxed") < 6.0, "{report}");
    assert!(verbs("get_after_set", "strict") < verbs("get_after_set", "off"), "{report}");
    let table = bench("correlated --rounds 2 --redundancy replicated");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("the paper"), "{table}");
    let refused = bench("correlated --rounds 2 --fabric shm");
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
fn instructions_and_samples_are_told_apart_by_parts() {
    for (measure, tool) in [("instructions", "valgrind"), ("samples", "perf")] {
        // The tools are possibly missing or forbidden.
        let home = Scratch::new();
        let tasks = if measure == "samples" { "get,update,insert,delete" } else { "get,insert" };
        let operations = if measure == "samples" { 20_000 } else { 100 };
        let keys = if measure == "samples" { "--keys=2000" } else { "--keys=200" };
        let mut command = fusee_bench(&["compare", keys, "--json", "--measure", measure]);
        command.args(["--tasks", tasks, &format!("--operations={operations}")]);
        let output = command.env("HOME", home.path()).output().unwrap();
        let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "it leaves {left:?} at home");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(tool), "{said}");
            continue;
        }
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        for task in tasks.split(',') {
            let row = row(&report, task, "fusee-shm").unwrap();
            let value = row["value"]["median"].as_f64().unwrap();
            let parts = row["parts"].as_object().unwrap();
            let sum: f64 = parts.values().map(|part| part.as_f64().unwrap()).sum();
            // Each part of instructions is rounded down.
            assert!(value > 0.0 && (sum - value).abs() < parts.len() as f64 + 1.0, "{row}");
            assert!(parts["protocol"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn cold_starts_are_measured_step_by_step() {
    let output = bench("cold --rounds 2 --json");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 20, "ten steps over two fabrics: {report}");
    for row in rows {
        let of = |what: &str| row["us"][what].as_f64().unwrap();
        assert!(0.0 < of("least") && of("least") <= of("most"), "{report}");
    }
    let table = String::from_utf8(bench("cold --rounds 1 --fabric tcp").stdout).unwrap();
    assert!(table.contains("another session opens") && !table.contains("shm  "), "{table}");
}

#[test]
fn stores_do_the_same_work() {
    // The report names the stores that are not installed.
    let report = compare("--tasks a,b,c --keys 100 --rounds 2 --operations 60 --depths 1,16");
    let tables = report["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 6, "three workloads, each with 1 and with 16 in flight: {report}");
    let absent = report["absent"].as_array().unwrap().len();
    for table in tables {
        let task = table["task"].as_str().unwrap();
        assert_eq!(table["rows"].as_array().unwrap().len() + absent, 7, "{report}");
        // These stores have a server of their own, whose processor time is measured.
        for name in ["fusee-tcp", "redis-tcp", "memcached-unix"] {
            if let Some(row) = row(&report, task, name) {
                assert!(row["server_cpu_ns"].is_object(), "{report}");
            }
        }
        let lmdb = row(&report, task, "lmdb").unwrap();
        assert!(lmdb["server_cpu_ns"].is_null(), "{report}");
        assert!(lmdb["over"]["fusee-shm"]["median"].as_f64().unwrap() > 0.0, "{report}");
    }
    let table = bench(
        "compare --tasks a --keys 50 --rounds 1 --operations 20 --threads 1,3 --depths 16 \
         --subjects lmdb,fusee-tcp",
    );
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("YCSB A, 3 threads, 16 in flight") && table.contains("x fusee-tcp"),
        "{table}"
    );
    // The number of requests in flight is allowed to be below the number of connections, and need not be a multiple of
    // it.
    let one_node = bench(
        "compare --tasks a,c --keys 50 --rounds 1 --operations 20 --depths 1,4 --connections 3 \
         --memory-nodes 1 --index-replicas 1 --data-replicas 1",
    );
    assert!(one_node.status.success(), "{one_node:?}");
    let one_node = String::from_utf8(one_node.stdout).unwrap();
    assert!(one_node.contains("on 1 memory nodes, others by 3 connections"), "{one_node}");
    let many_lengths = bench(
        "compare --keys 300 --rounds 1 --operations 200 --values log-uniform:1-5000 --tasks upd30",
    );
    assert!(many_lengths.status.success(), "{many_lengths:?}");
    let many_lengths = String::from_utf8(many_lengths.stdout).unwrap();
    assert!(many_lengths.contains("300 pairs with values of log-uniform:1-5000"), "{many_lengths}");
    for (wrong, says) in [
        ("--tasks a --values fixed:70000", "at most 65536 bytes"),
        ("--subjects mongodb", "mongodb"),
        ("--tasks read", "none of"),
        ("--tasks a --subjects raw-shm", "no subject that takes part can do YCSB A"),
        ("--measure instructions --tasks cas", "of FUSEE only"),
    ] {
        let refused = bench(&format!("compare {wrong}"));
        assert_eq!(refused.status.code(), Some(2), "{wrong}: {refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(says), "{wrong}: {said}");
    }
}

fn is_installed(program: &str) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs).any(|dir| dir.join(program).is_file())
}

/// Measures verbs by these subjects, and checks the report.
fn verbs(subjects: &str) {
    let tasks = "read:8,read:65536,write:8,write:65536,cas,faa";
    let small = format!("--rounds 2 --operations 100 --tasks {tasks} --subjects {subjects}");
    let report = compare(&small);
    for (subject, beside) in [("raw-shm", "ucx-posix"), ("raw-tcp", "libfabric-tcp")] {
        for task in [
            "READ of 8 bytes",
            "READ of 65536 bytes",
            "WRITE of 8 bytes",
            "WRITE of 65536 bytes",
            "CAS",
            "FAA",
        ] {
            let row = row(&report, task, subject).unwrap();
            assert!(row["value"]["median"].as_f64().unwrap() > 0.0, "{report}");
            assert_eq!(row["over"][beside].is_object(), subjects.contains(beside), "{report}");
        }
    }
}

#[test]
#[ignore = "fi_pingpong is needed, and listens on all addresses"]
fn verbs_are_measured_beside_libfabric() {
    verbs("raw-shm,raw-tcp,libfabric-tcp");
}

#[test]
fn every_verb_is_measured() {
    let has_ucx = is_installed("ucx_perftest");
    verbs(if has_ucx { "raw-shm,ucx-posix,raw-tcp" } else { "raw-shm,raw-tcp" });
    let table = bench("compare --rounds 1 --operations 50 --tasks read:64,faa --subjects raw-shm");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("FAA") && !table.contains("tcp"), "{table}");
}

#[test]
fn what_is_not_installed_is_named_with_a_way_out() {
    for (args, program) in [
        ("--tasks cas --subjects ucx-posix", "ucx_perftest"),
        ("--tasks cas --subjects libfabric-tcp", "fi_pingpong"),
        ("--tasks a --subjects memcached-unix", "memcached"),
        ("--tasks a --subjects redis-tcp", "redis-server"),
        ("--measure instructions", "valgrind"),
        ("--measure samples", "perf"),
    ] {
        let mut command = fusee_bench(&["compare"]);
        command.args(args.split_whitespace());
        let output = command.env("PATH", "/nowhere").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let says = String::from_utf8(output.stderr).unwrap();
        assert!(says.contains(program) && says.contains("apt-get install"), "{says}");
    }
}

/// Returns the children of a process.
fn children(parent: u32) -> Vec<String> {
    let tasks = format!("/proc/{parent}/task");
    let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
    let children = children.map(Result::unwrap_or_default).collect::<Vec<_>>().join(" ");
    children.split_whitespace().map(str::to_owned).collect()
}

/// Starts a comparison, ends it by a signal while it measures, and asserts that it leaves no process and no directory.
#[track_caller]
fn expect_nothing_left(args: &[&str], processes: usize) {
    let temporary = Scratch::new();
    let mut command = fusee_bench(&["compare"]);
    command.args(args).env("TMPDIR", temporary.path());
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    // This line comes once all servers are loaded, or known to be missing.
    let lines = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = lines.skip_while(|line| !line.starts_with("measuring"));
    assert!(lines.next().is_some());
    eventually("every process has started", || children(running.id()).len() == processes);
    let servers = children(running.id());
    let kill = Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(running.wait().unwrap().code(), Some(143));
    for server in servers {
        assert!(!Path::new("/proc").join(&server).exists(), "{server} is left");
    }
    let left = std::fs::read_dir(temporary.path()).unwrap().flatten();
    // valgrind leaves this file if it is killed while it starts.
    let is_ours = |name: &OsStr| !name.as_encoded_bytes().starts_with(b"valgrind_proc_");
    let left: Vec<_> = left.filter(|entry| is_ours(&entry.file_name())).collect();
    assert!(left.is_empty(), "{left:?} is left");
}

#[test]
fn a_signal_leaves_nothing_behind() {
    let servers = [("redis-server", "redis-unix"), ("memcached", "memcached-unix")];
    let installed: Vec<_> = servers.iter().filter(|(program, _)| is_installed(program)).collect();
    let subjects: Vec<_> = installed.iter().map(|(_, subject)| *subject).chain(["lmdb"]).collect();
    let subjects = format!("--subjects={}", subjects.join(","));
    let workload = ["--tasks=a", "--keys=1000", "--rounds=1000000", &subjects];
    expect_nothing_left(&workload, installed.len());
    if is_installed("valgrind") {
        expect_nothing_left(&["--measure=instructions", "--rounds=1000000", "--tasks=get"], 1);
    }
}

#[test]
fn the_work_that_is_counted_is_done() {
    for kind in ["get", "update", "insert", "delete"] {
        let work = format!("work --kind {kind} --keys 100 --operations 50");
        let output = bench(&work);
        assert!(output.status.success(), "{output:?}");
    }
}
