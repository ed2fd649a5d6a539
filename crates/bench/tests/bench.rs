//! YCSB and micro run without errors and mismatches, and their reports have the promised form.

// Promise API-4: YCSB and micro find no wrong value, at every replication factor.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use fusee_testing::{CommandOutput, UpCluster, finish, fusee_bench};
use serde_json::Value;

/// Many clients use few keys, so that most operations overlap another one on the same key.
const HOT: [&str; 10] = [
    "--keys",
    "20",
    "--operations",
    "8000",
    "--threads",
    "4",
    "--coroutines",
    "4",
    "--json",
    "--seed=7",
];

fn ycsb(workload: &str, more: &[&str]) -> Value {
    let output = finish(fusee_bench(&["ycsb", "--workload", workload]).args(HOT).args(more));
    let report = output.expect_code(0).json();
    assert_eq!(report["errors"]["total"], 0, "{report:#}");
    assert_eq!(report["mismatches"], 0, "{report:#}");
    assert!(report["verified_keys"].as_u64().unwrap() >= 20, "{report:#}");
    assert_eq!(report["operations"], 8000, "{report:#}");
    report
}

#[test]
fn ycsb_keeps_every_acknowledged_write_on_shared_memory() {
    for workload in ["a", "b", "c", "d", "upd100"] {
        let report = ycsb(workload, &[]);
        assert_eq!((&report["fabric"], &report["workload"]), (&"shm".into(), &workload.into()));
    }
}

#[test]
fn ycsb_keeps_every_acknowledged_write_over_tcp() {
    for workload in ["a", "b", "c", "d"] {
        assert_eq!(ycsb(workload, &["--fabric", "tcp"])["fabric"], "tcp");
    }
}

#[test]
fn ycsb_keeps_every_acknowledged_write_with_other_replication() {
    for replicas in ["1", "2"] {
        for workload in ["a", "d"] {
            let report = ycsb(workload, &["--index-replicas", replicas, "--data-replicas", "1"]);
            assert_eq!(report["cluster"]["index_replicas"].to_string(), replicas);
        }
    }
    ycsb("a", &["--memory-nodes", "5", "--index-replicas", "5", "--data-replicas", "3"]);
    // By default there are as many replicas as memory nodes, if there are only one or two memory nodes.
    for nodes in [1, 2] {
        let report = ycsb("a", &["--memory-nodes", &nodes.to_string()]);
        assert_eq!(report["cluster"]["index_replicas"], nodes);
        assert_eq!(report["cluster"]["data_replicas"], nodes);
    }
}

#[test]
fn ycsb_works_without_a_cache_and_with_other_distributions() {
    ycsb("a", &["--cache-entries", "0", "--distribution", "uniform"]);
    ycsb("upd30", &["--theta", "0.5", "--pair-bytes", "40"]);
    ycsb("b", &["--distribution", "latest", "--pair-bytes", "9000", "--threads", "1"]);
}

#[track_caller]
fn expect_fields(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value.get(name).is_some(), "{name} is missing in {value:#}");
    }
}

const OPERATION_FIELDS: [&str; 10] = [
    "count",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "phases_mean",
    "phases_max",
    "verbs_mean",
    "atomics_mean",
    "bytes_mean",
];

#[test]
fn the_ycsb_report_says_what_was_measured() {
    let report = ycsb("a", &[]);
    let fields = [
        "benchmark",
        "version",
        "workload",
        "settings",
        "machine",
        "fabric",
        "cluster",
        "load",
        "ended_by",
        "operations",
        "duration_s",
        "throughput_ops_per_s",
        "per_operation",
        "errors",
        "verified_keys",
        "mismatches",
    ];
    expect_fields(&report, &fields);
    expect_fields(&report["machine"], &["cpu", "cores"]);
    let settings = ["keys", "pair_bytes", "threads", "coroutines", "distribution", "theta", "seed"];
    expect_fields(&report["settings"], &settings);
    expect_fields(&report["errors"], &["total", "by_kind"]);
    assert_eq!(report["ended_by"], "operations");
    let mut count = 0;
    for name in ["search", "update"] {
        let operation = &report["per_operation"][name];
        expect_fields(operation, &OPERATION_FIELDS);
        count += operation["count"].as_u64().unwrap();
        let us = |field: &str| operation[field].as_f64().unwrap();
        assert!(us("p50_us") > 0.0 && us("p50_us") <= us("p99_us"), "{operation:#}");
        assert!(us("p99_us") <= us("p999_us") && us("p999_us") <= us("max_us"), "{operation:#}");
    }
    assert_eq!(count, 8000);
    // An operation costs at least one round trip to read, and three to update.
    assert!(report["per_operation"]["search"]["phases_mean"].as_f64().unwrap() >= 1.0);
    assert!(report["per_operation"]["update"]["phases_mean"].as_f64().unwrap() >= 3.0);
    assert_eq!(report["load"]["per_operation"]["insert"]["count"], 20);
}

#[test]
fn a_run_by_time_ends_in_time() {
    let line = ["ycsb", "--workload", "c", "--keys", "100", "--seconds", "0.5", "--json"];
    let report = finish(&mut fusee_bench(&line)).expect_code(0).json();
    assert_eq!(report["ended_by"], "seconds");
    let seconds = report["duration_s"].as_f64().unwrap();
    assert!((0.4..10.0).contains(&seconds), "{seconds}");
}

#[test]
fn the_microbenchmark_measures_all_four_operations() {
    let line = ["micro", "--operations", "300", "--seconds", "0.2", "--json"];
    let report = finish(&mut fusee_bench(&line)).expect_code(0).json();
    assert_eq!((&report["mismatches"], &report["errors"]["total"]), (&0.into(), &0.into()));
    for part in ["latency", "throughput"] {
        let phases = report[part].as_array().unwrap();
        let names: Vec<&str> = phases.iter().map(|p| p["operation"].as_str().unwrap()).collect();
        assert_eq!(names, ["insert", "update", "search", "delete"]);
        for (phase, name) in phases.iter().zip(names) {
            expect_fields(phase, &["duration_s", "throughput_ops_per_s", "operations"]);
            expect_fields(&phase["per_operation"][name], &OPERATION_FIELDS);
        }
    }
    let latency = &report["latency"][0];
    assert_eq!(latency["operations"], 300);
    let cdf = latency["per_operation"]["insert"]["cdf"].as_array().unwrap();
    assert_eq!(cdf.last().unwrap()[1], 1.0);
    assert!(cdf.windows(2).all(|w| w[0][0].as_f64() <= w[1][0].as_f64()), "{cdf:?}");
}

#[test]
fn tables_are_for_people() {
    let line = ["ycsb", "--workload", "b", "--keys", "50", "--operations", "500"];
    let text = finish(&mut fusee_bench(&line)).expect_code(0).text();
    assert!(text.contains("50 keys read back, 0 mismatches, 0 errors"), "{text}");
    assert!(text.contains("search") && text.contains("kops/s"), "{text}");
}

fn run_against(up: &UpCluster, more: &[&str]) -> CommandOutput {
    let line = ["ycsb", "--master", &up.master, "--keys", "50", "--json"];
    finish(fusee_bench(&line).args(more))
}

#[test]
fn an_existing_cluster_is_measured_and_left_as_it_was() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    up.run(&["put", "mine", "kept"]).expect_code(0);
    for workload in ["a", "d", "a"] {
        let report = run_against(&up, &["--workload", workload, "--operations", "2000"])
            .expect_code(0)
            .json();
        assert_eq!((&report["fabric"], &report["mismatches"]), (&"shm".into(), &0.into()));
        assert_eq!(report["cluster"]["embedded"], false);
    }
    up.run(&["get", "user000000000001"]).expect_code(1);
    assert_eq!(up.run(&["get", "mine"]).expect_code(0).stdout, b"kept");
    run_against(&up, &["--operations", "100", "--keep"]).expect_code(0);
    assert_eq!(up.run(&["get", "user000000000001"]).expect_code(0).stdout.len(), 1008);
    // Pairs that an earlier run has left do not disturb a run.
    run_against(&up, &["--operations", "100", "--fabric", "tcp"]).expect_code(0);
}

// Promise CHK-7
#[test]
fn writes_of_others_are_noticed() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    for (interference, kind) in [
        (&["put", "user000000000007", "garbage"][..], "torn"),
        (&["delete", "user000000000007"][..], "missing"),
    ] {
        // On a busy machine the run has possibly ended before the other process writes.
        let disturbed = || {
            let line = ["--workload", "c", "--seconds", "3"];
            thread::scope(|scope| {
                let running = scope.spawn(|| (run_against(&up, &line), Instant::now()));
                thread::sleep(Duration::from_millis(1500));
                let is_written = up.run(interference).code == Some(0);
                let written = Instant::now();
                let (output, ended) = running.join().unwrap();
                let in_time = is_written && written + Duration::from_millis(500) < ended;
                if !in_time {
                    up.run(&["delete", "user000000000007"]);
                }
                in_time.then_some(output)
            })
        };
        let output = (0..10).find_map(|_| disturbed()).expect("one of ten writes comes in time");
        let report = output.expect_code(1).json();
        assert!(report["mismatches"].as_u64().unwrap() > 0, "{report:#}");
        assert!(report["mismatches_by_kind"][kind].as_u64().unwrap() > 0, "{report:#}");
    }
}

#[test]
fn impossible_benchmarks_are_refused_before_they_start() {
    for (more, says) in [
        (&["--pair-bytes", "39"][..], "at least 40 bytes"),
        (&["--pair-bytes", "3000000"], "values have at most 2097152"),
        (&["--theta", "1"], "below 1"),
        (&["--seconds", "0"], "more than 0"),
        (&["--operations", "100000000000"], "lower --operations"),
        (&["--memory-nodes", "1", "--index-replicas", "2"], "lower --index-replicas"),
        (&["--pool", "10MiB"], "--pool is 10.0 MiB"),
        (&["--master", "nonsense"], "`nonsense` is no address"),
        (&["--workload", "e"], "upd0..upd100"),
        (&["--master", "x:1", "--memory-nodes", "3"], "cannot be used with"),
    ] {
        finish(fusee_bench(&["ycsb"]).args(more)).expect_error(2, says);
    }
}

/// If a memory node dies during the run, nothing can be verified or removed any more, but the measurements are still
/// reported.
#[test]
fn a_memory_node_that_dies_does_not_take_the_report_with_it() {
    if fusee_testing::is_long_and_left_out() {
        return;
    }
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "1"]);
    let output = thread::scope(|scope| {
        let more = ["--workload", "c", "--seconds", "3", "--threads", "1", "--coroutines", "1"];
        let more = [&more[..], &["--fabric", "tcp"]].concat();
        let up = &up;
        let running = scope.spawn(move || run_against(up, &more));
        thread::sleep(Duration::from_millis(1500));
        fusee_testing::signal("KILL", up.pids()[1]);
        running.join().unwrap()
    });
    let output = output.expect_code(1);
    let report = output.json();
    assert!(report["operations"].as_u64().unwrap() > 0, "{report:#}");
    let problems = report["problems"].as_array().unwrap();
    let says = |what: &str| problems.iter().any(|p| p.as_str().unwrap().contains(what));
    assert!(says("cannot start a session to verify"), "{report:#}");
    assert!(says("cannot remove the benchmark's keys"), "{report:#}");
    assert!(output.stderr.contains("the benchmark failed"), "{}", output.stderr);
}

#[test]
fn ctrl_c_ends_the_microbenchmark_with_its_report() {
    let mut command = fusee_bench(&["micro", "--operations", "300", "--seconds", "100"]);
    command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    thread::sleep(Duration::from_secs(3));
    fusee_testing::signal("INT", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["interrupted"], &report["mismatches"]), (&true.into(), &0.into()));
}

#[test]
fn updates_go_on_in_a_pool_that_holds_less_than_they_write() {
    let line = ["ycsb", "--workload", "upd100", "--keys", "100", "--pool", "300MiB", "--json"];
    let more = ["--pair-bytes", "50000", "--operations", "12000"];
    let report = finish(fusee_bench(&line).args(more)).expect_code(0).json();
    assert_eq!(report["errors"]["total"], 0, "{report:#}");
    assert_eq!((&report["mismatches"], &report["verified_keys"]), (&0.into(), &100.into()));
}

#[test]
fn pairs_that_a_running_cluster_cannot_hold_are_refused_first() {
    let up = UpCluster::start(&["--pool", "160MiB", "--memory-nodes", "2"]);
    let line = ["ycsb", "--workload", "c", "--keys", "1000000", "--master", &up.master];
    let begun = Instant::now();
    finish(&mut fusee_bench(&line))
        .expect_error(2, "the memory nodes of the cluster lend 320.0 MiB");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_run_out_of_memory_stops_soon() {
    let up = UpCluster::start(&["--pool", "160MiB", "--memory-nodes", "3"]);
    // The pairs would fit into the pools, but not into the whole regions in them.
    let line = ["ycsb", "--workload", "c", "--keys", "200000", "--operations", "1000"];
    let mut command = fusee_bench(&line);
    let output = finish(command.args(["--json", "--master", &up.master])).expect_code(1);
    let report = output.json();
    let errors = report["errors"]["total"].as_u64().unwrap();
    // Each session ends at its first refusals, and does not try the tens of thousands of remaining pairs.
    assert!((1..200).contains(&errors), "{report:#}");
    assert_eq!(report["errors"]["by_kind"]["out_of_memory"], errors, "{report:#}");
}

/// The run succeeds, because the system provides memory only as it is used.
#[test]
fn a_pool_above_the_machines_memory_is_warned_of() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let kib: u64 = total.trim().trim_end_matches(" kB").parse().unwrap();
    let pool = format!("{}GiB", (kib >> 20) + 1);
    let one = ["--memory-nodes", "1", "--index-replicas", "1", "--data-replicas", "1"];
    let run = ["ycsb", "--workload", "a", "--pool", &pool];
    let output = finish(fusee_bench(&run).args(one).args(HOT)).expect_code(0);
    assert!(output.stderr.contains("lower --pool"), "{}", output.stderr);
}
