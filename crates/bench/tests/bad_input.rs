//! Benchmarks against addresses at which no master answers.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use fusee_testing::{UpCluster, finish, fusee_bench};

fn expect_unreachable(master: &str, says: &str) {
    let start = Instant::now();
    let line = ["ycsb", "--workload", "c", "--master", master];
    let output = finish(&mut fusee_bench(&line));
    assert!(output.stderr.contains(master), "{}", output.stderr);
    output.expect_error(3, says);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_master_that_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    expect_unreachable(&free.to_string(), "refused");
    for address in ["nonsense", "host:", ":7400", "host:70000"] {
        let output = finish(&mut fusee_bench(&["micro", "--master", address]));
        output.expect_error(2, &format!("`{address}` is no address of a master"));
    }
}

#[test]
fn a_listener_that_is_no_master_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    expect_unreachable(&silent.local_addr().unwrap().to_string(), "");
    let talks = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = talks.local_addr().unwrap().to_string();
    thread::spawn(move || {
        // The connections are kept open, because closed connections would be another case.
        let mut streams = Vec::new();
        for mut stream in talks.incoming().flatten() {
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
            streams.push(stream);
        }
    });
    expect_unreachable(&address, "");
}

#[test]
fn a_memory_node_is_no_master() {
    let up = UpCluster::start(&["--pool", "256MiB", "--memory-nodes", "1"]);
    let node = &up.report["memory_nodes"][0];
    expect_unreachable(node["control"].as_str().unwrap(), "memory node");
    expect_unreachable(node["tcp"].as_str().unwrap(), "");
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    for line in [&["frobnicate"][..], &["ycsb", "--wrkload", "a"], &["lab", "figure"]] {
        finish(&mut fusee_bench(line)).expect_error(2, "Usage");
    }
    finish(&mut fusee_bench(&[])).expect_code(2);
    let help = finish(&mut fusee_bench(&["--help"])).expect_code(0).text();
    assert!(help.contains("Exit codes: 0 done; 1 "), "{help}");
}
