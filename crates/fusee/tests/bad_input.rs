//! Invalid input of users and other processes, and the errors that it causes.

// Promise SEC-7: Bad keys and values are typed errors.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{UpCluster, finish, finish_with, fusee};

#[test]
fn keys_and_values_over_the_limits_are_refused() {
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "1"]);
    for line in [&["put", "", "v"][..], &["get", ""], &["insert", "", "v"], &["delete", ""]] {
        up.run(line).expect_error(1, "the key is empty");
    }
    // A block of 4 MiB has room for values of up to 2 MiB.
    const MOST: usize = 2 << 20;
    let most = up.scratch.file("most", &vec![7; MOST]);
    up.run(&["put", "k", "--value-file", &most]).expect_code(0);
    assert_eq!(up.run(&["get", "k"]).expect_code(0).stdout.len(), MOST);
    let over = up.scratch.file("over", &vec![7; MOST + 1]);
    let output = up.run(&["put", "k", "--value-file", &over]);
    output.expect_error(1, "the value has 2097153 bytes, the cluster's maximum is 2097152");
    // The command reads endless input only up to the maximum length of a value.
    up.run(&["put", "k", "--value-file", "/dev/zero"])
        .expect_error(1, "/dev/zero has more than 2097152 bytes");
    let much = finish_with(&mut up.command(&["put", "k", "-"]), &vec![7; 4 << 20]);
    much.expect_error(1, "standard input has more than 2097152 bytes");
    // Keys are bytes, and a shell can pass nearly all byte strings.
    let bytes = std::ffi::OsStr::from_bytes(b"k\xff\xfe");
    finish(up.command(&["put"]).arg(bytes).arg("raw")).expect_code(0);
    assert_eq!(up.run(&["get", "--hex", "6bfffe"]).expect_code(0).stdout, b"raw");
    let key = "k".repeat((64 << 10) + 1);
    up.run(&["put", &key, "v"]).expect_error(1, "the key has 65537 bytes");
    // The refused commands have changed nothing.
    assert_eq!(up.run(&["get", "k"]).expect_code(0).stdout, vec![7; MOST]);
}

#[test]
fn a_full_pool_is_an_error_and_earlier_pairs_stay() {
    let up = UpCluster::start(&["--pool", "160MiB", "--memory-nodes", "1", "--index-keys", "1000"]);
    let value = |number: usize| vec![number as u8; 1 << 20];
    let mut stored = 0;
    let refused = loop {
        assert!(stored < 200, "a pool of 160 MiB took {stored} values of 1 MiB");
        let file = up.scratch.file("value", &value(stored));
        let output = up.run(&["put", &format!("key{stored}"), "--value-file", &file]);
        if output.code != Some(0) {
            break output;
        }
        stored += 1;
    };
    refused.expect_error(1, "out of memory");
    assert!(stored > 60, "only {stored} values of 1 MiB fit into 160 MiB");
    for number in 0..stored {
        let found = up.run(&["get", &format!("key{number}")]).expect_code(0).stdout;
        assert!(found == value(number), "key{number}");
    }
    up.run(&["get", &format!("key{stored}")]).expect_error(1, "not found");
}

fn expect_unreachable(master: &str, says: &str) {
    let start = Instant::now();
    for line in [&["get", "k"][..], &["put", "k", "v"], &["status"], &["shell"]] {
        let output = finish(fusee(line).args(["--master", master]));
        assert!(output.stderr.contains(master), "{}", output.stderr);
        output.expect_error(3, says);
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_master_that_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    expect_unreachable(&free.to_string(), "refused");
    finish(&mut fusee(&["get", "k", "--master", "no.such.host.invalid:7400"]))
        .expect_error(3, "no.such.host.invalid");
    for line in [&["get", "k"][..], &["status"], &["shell"]] {
        for address in ["nonsense", "host:", ":7400", "host:70000"] {
            let output = finish(fusee(line).args(["--master", address]));
            output.expect_error(2, &format!("`{address}` is no address of a master"));
        }
    }
}

#[test]
fn a_listener_that_says_nothing_is_no_master() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    expect_unreachable(&silent.local_addr().unwrap().to_string(), "");
}

#[test]
fn a_listener_that_says_something_else_is_no_master() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        // The connections stay open, because closed ones would cause another error.
        let mut streams = Vec::new();
        for mut stream in listener.incoming().flatten() {
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
fn servers_name_a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let scratch = crate::common::Scratch::new();
    let data_dir = scratch.path().to_str().unwrap();
    let master = finish(&mut fusee(&["master", "--listen", &address, "--data-dir", data_dir]));
    master.expect_error(1, &format!("{address} is in use"));
    for option in ["--listen", "--tcp"] {
        let node = finish(&mut fusee(&["memory-node", option, &address, "--pool", "1MiB"]));
        node.expect_error(1, &address);
    }
}

#[test]
fn wrong_command_lines_are_usage_errors() {
    for line in [&["put"][..], &["frobnicate"], &["get"], &["up", "--prt", "7000"]] {
        finish(&mut fusee(line)).expect_error(2, "Usage");
    }
    finish(&mut fusee(&["up", "--port", "70000"])).expect_error(2, "0..=65535");
    for (more, says) in [
        (&["--index-replicas", "6"][..], "--index-replicas is 6"),
        (&["--data-replicas", "4", "--memory-nodes", "3"], "lower --data-replicas"),
    ] {
        finish(fusee(&["up", "--port", "0"]).args(more)).expect_error(2, says);
    }
    finish(&mut fusee(&["get", "k", "--fabric", "pigeon"]))
        .expect_error(2, "auto, shm, tcp or verbs");
    finish(&mut fusee(&[])).expect_code(2);
    let help = finish(&mut fusee(&["--help"])).expect_code(0).text();
    assert!(help.contains("Exit codes: 0 done; 1 "), "{help}");
}
