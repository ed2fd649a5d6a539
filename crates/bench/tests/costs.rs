//! Benchmarks that compare operations with their raw verbs, with other stores and with other transports. Each runs
//! once, with little work, to show that it works. The results are not judged.

// Promise API-6

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fusee_testing::{Scratch, fusee_bench};

fn bench(args: &str) -> Output {
    fusee_bench(&[]).args(args.split_whitespace()).output().unwrap()
}

#[test]
fn limit_measures_everything() {
    let output = bench("limit --keys 100 --rounds 3 --operations 50 --json");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for what in ["memcpy_ns", "raw_get_ns", "get_ns", "raw_update_ns", "update_ns"] {
        assert!(report[what]["median"].as_f64().unwrap() > 0.0, "{what}: {report}");
    }
    // Raw verbs damage no pair, so there is no warning.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let table = bench("limit --keys 100 --rounds 1 --operations 50 --pair-bytes 64");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("get over raw"), "{table}");
}

#[test]
fn correlated_requests_are_measured_with_every_table() {
    let output = bench("correlated --rounds 5 --json");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["wrong_values"], 0, "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "two cases, two redundancies, three tables: {report}");
    let verbs = |case: &str, table: &str| {
        let is_it = |row: &&serde_json::Value| {
            (row["case"] == case, row["table"] == table) == (true, true)
                && row["redundancy"] == "ec:4+1"
        };
        rows.iter().find(is_it).expect("it is there")["verbs"].as_f64().unwrap()
    };
    // A get READs the slot and four chunks. A follower READs the slot (strict) or nothing (relaxed).
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
fn time_is_told_apart_by_parts() {
    // perf is possibly missing or forbidden.
    let home = Scratch::new();
    let mut command = fusee_bench(&["profile", "--keys=2000", "--operations=20000", "--json"]);
    let output = command.env("HOME", home.path()).output().unwrap();
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "it leaves {left:?} at home");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("perf"), "{said}");
        return;
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kinds = report["kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), 4, "{report}");
    for kind in kinds {
        let parts = kind["parts"].as_array().unwrap();
        let sum: f64 = parts.iter().map(|part| part["ns"].as_f64().unwrap()).sum();
        assert!((sum - kind["ns"].as_f64().unwrap()).abs() < 1.0, "{kind}");
        assert!(parts.iter().any(|part| part["part"] == "protocol"), "{kind}");
    }
}

#[test]
fn cold_starts_are_measured_step_by_step() {
    let output = bench("cold --rounds 2 --json");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
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
fn peers_do_the_same_work() {
    // The report names the peers that are not installed.
    let output = bench("peers --keys 100 --rounds 2 --operations 60 --depths 1,16 --json");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6, "three workloads, each with 1 and with 16 in flight: {report}");
    let absent = report["absent"].as_array().unwrap().len();
    for run in runs {
        assert_eq!(run["ns"].as_object().unwrap().len() + absent, 7, "{report}");
        // These stores have a server of their own, whose processor time is measured.
        for name in ["fusee-tcp", "redis-tcp", "memcached-unix"] {
            let is_there = !run["ns"][name].is_null();
            assert_eq!(run["server_cpu_ns"][name].is_object(), is_there, "{report}");
        }
        assert!(run["server_cpu_ns"]["lmdb"].is_null(), "{report}");
        assert!(run["times_of"]["fusee-shm"]["lmdb"]["median"].as_f64().unwrap() > 0.0, "{report}");
    }
    let table =
        bench("peers --keys 50 --rounds 1 --operations 20 --threads 1,3 --only lmdb,fusee-tcp");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("YCSB A, 3 threads, 16 in flight") && table.contains("x fusee-tcp"),
        "{table}"
    );
    // Depths can be below the number of connections, and need not be a multiple of it.
    let one_node = bench(
        "peers --keys 50 --rounds 1 --operations 20 --depths 1,4 --connections 3 --memory-nodes 1 \
         --index-replicas 1 --data-replicas 1",
    );
    assert!(one_node.status.success(), "{one_node:?}");
    let one_node = String::from_utf8(one_node.stdout).unwrap();
    assert!(one_node.contains("on 1 memory nodes, others by 3 connections"), "{one_node}");
    let many_lengths = bench(
        "peers --keys 300 --rounds 1 --operations 200 --values log-uniform:1-5000 --workloads upd30",
    );
    assert!(many_lengths.status.success(), "{many_lengths:?}");
    let many_lengths = String::from_utf8(many_lengths.stdout).unwrap();
    assert!(many_lengths.contains("300 pairs with values of log-uniform:1-5000"), "{many_lengths}");
    let too_long = bench("peers --values fixed:70000");
    assert_eq!(too_long.status.code(), Some(2), "{too_long:?}");
    let unknown = bench("peers --only mongodb");
    assert!(!unknown.status.success());
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("mongodb"));
}

fn is_installed(program: &str) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs).any(|dir| dir.join(program).is_file())
}

/// Measures the verbs of these transports, and checks the report.
fn raw(transports: &str) {
    let small = "raw --rounds 2 --operations 500 --trips 20 --bytes 8,65536 --json --only";
    let output = bench(&format!("{small} {transports}"));
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    for (transport, beside) in [("shm", "ucx-posix"), ("tcp", "libfabric-tcp")] {
        let runs: Vec<_> = runs.iter().filter(|run| run["transport"] == transport).collect();
        assert_eq!(runs.len(), 6, "two READs, two WRITEs, CAS and FAA: {report}");
        for run in runs {
            assert!(run["ns"]["median"].as_f64().unwrap() > 0.0, "{report}");
            assert_eq!(!run["times"].is_null(), transports.contains(beside), "{report}");
        }
    }
}

#[test]
#[ignore = "fi_pingpong is needed, and listens on all addresses"]
fn raw_measures_libfabric() {
    raw("shm,tcp,libfabric-tcp");
}

#[test]
fn raw_measures_every_verb() {
    raw(if is_installed("ucx_perftest") { "shm,ucx-posix,tcp" } else { "shm,tcp" });
    let table = bench("raw --rounds 1 --operations 50 --bytes 64 --only shm");
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("FAA") && !table.contains("tcp "), "{table}");
}

#[test]
fn what_is_not_installed_is_named_with_a_way_out() {
    for (name, program) in [("ucx-posix", "ucx_perftest"), ("libfabric-tcp", "fi_pingpong")] {
        let mut command = fusee_bench(&["raw", "--only", name]);
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

#[test]
fn a_signal_leaves_no_process_behind() {
    let mut command = fusee_bench(&["peers"]);
    command.args(["--keys=1000", "--rounds=1000000", "--only=redis-unix,memcached-unix"]);
    let mut perf = command.stderr(Stdio::piped()).spawn().unwrap();
    // This line comes once all servers are loaded, or known to be missing.
    let lines = BufReader::new(perf.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = lines.skip_while(|line| !line.starts_with("YCSB"));
    assert!(lines.next().is_some());
    let servers = children(perf.id());
    let installed = ["redis-server", "memcached"].into_iter().filter(|name| is_installed(name));
    assert_eq!(servers.len(), installed.count(), "a process each: {servers:?}");
    let kill = Command::new("kill").args(["-TERM", &perf.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(perf.wait().unwrap().code(), Some(143));
    for server in servers {
        assert!(!Path::new("/proc").join(&server).exists(), "{server} is left");
    }
}

#[test]
fn the_work_that_counts_counts_is_done() {
    for kind in ["get", "update", "insert", "delete"] {
        let work = format!("work --kind {kind} --keys 100 --operations 50");
        let output = bench(&work);
        assert!(output.status.success(), "{output:?}");
    }
}
