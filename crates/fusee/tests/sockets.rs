//! The sockets of shared memory, when they are removed under a living memory node or when a user has no right to them.

// Promise FAB-25

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use crate::common::{UpCluster, eventually, finish};

fn sockets(up: &UpCluster) -> Vec<PathBuf> {
    let nodes = up.report["memory_nodes"].as_array().unwrap();
    nodes.iter().map(|node| node["shm"].as_str().unwrap().into()).collect()
}

#[test]
fn a_socket_that_is_removed_comes_back_and_is_missed_meanwhile() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let sockets = sockets(&up);
    up.run(&["put", "key", "value", "--fabric", "shm"]).expect_code(0);
    fs::remove_file(&sockets[0]).unwrap();
    eventually("it is made again", || sockets[0].exists());
    assert_eq!(up.run(&["get", "key", "--fabric", "shm"]).expect_code(0).stdout, b"value");
    assert_eq!(up.run(&["get", "key"]).expect_code(0).stderr, "");

    // The node cannot create the socket again while another file has the same name.
    fs::remove_file(&sockets[0]).unwrap();
    fs::write(&sockets[0], "other").unwrap();
    eventually("the status says so", || {
        let status = up.run(&["status", "--json"]).json();
        status["memory_nodes"].as_array().unwrap().iter().any(|node| node["socket_gone"] == true)
    });
    let got = up.run(&["get", "key"]).expect_code(0);
    assert_eq!(got.stdout, b"value");
    assert!(got.stderr.contains("shared memory is not used"), "{}", got.stderr);
    let table = up.run(&["status"]).text();
    assert!(table.contains("SOCKET HAS GONE") && table.contains("degraded: the socket"), "{table}");
    fs::remove_file(&sockets[0]).unwrap();
    eventually("it is made again", || sockets[0].exists());
    eventually("the status is good again", || {
        up.run(&["status", "--json"]).json()["health"] == "whole"
    });
}

/// If a client could expect shared memory but does not use it, `auto` says so once, with the reason.
#[test]
fn a_client_without_a_socket_takes_tcp_and_says_so() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    up.run(&["put", "key", "value"]).expect_code(0);
    let sockets = sockets(&up);
    let directory = sockets[0].parent().unwrap();
    let hidden = directory.with_extension("hidden");
    fs::rename(directory, &hidden).unwrap();
    let got = up.run(&["get", "key"]).expect_code(0);
    assert_eq!(got.stdout, b"value");
    assert_eq!(got.stderr.matches("shared memory is not used").count(), 1, "{}", got.stderr);
    assert!(got.stderr.contains("its socket"), "{}", got.stderr);
    up.run(&["get", "key", "--fabric", "shm"]).expect_error(3, "unreachable");
    fs::rename(&hidden, directory).unwrap();
    eventually("they are made again", || sockets.iter().all(|socket| socket.exists()));
    assert_eq!(up.run(&["get", "key"]).expect_code(0).stderr, "");
}

/// A user takes TCP if the sockets are not accessible, or if the memory node has no right to kill the user's processes.
#[test]
fn another_user_takes_tcp_and_is_told() {
    let is_root = fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    if !is_root {
        eprintln!("SKIPPED: only root runs processes of other users");
        return;
    }
    let up = UpCluster::start(&["--pool", "512MiB"]);
    up.run(&["put", "key", "value"]).expect_code(0);
    let directory = sockets(&up)[0].parent().unwrap().to_owned();
    for directory in directory.ancestors().take_while(|path| path.starts_with(up.scratch.path())) {
        fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    }
    // The test copies the program to where this user can execute it.
    let program = up.scratch.path().join("fusee");
    fs::copy(env!("CARGO_BIN_EXE_fusee"), &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let get = |fabric: &str| {
        let mut command = std::process::Command::new(&program);
        command.args(["get", "key", "--fabric", fabric]).env_clear().current_dir("/");
        finish(command.env("FUSEE_MASTER", &up.master).uid(65_534).gid(65_534))
    };
    let got = get("auto").expect_code(0);
    assert_eq!(got.stdout, b"value");
    assert_eq!(got.stderr.matches("shared memory is not used").count(), 1, "{}", got.stderr);
    assert_eq!(get("tcp").expect_code(0).stderr, "");
    get("shm").expect_error(3, "Permission denied");
    // The failed attempts were not reported as failures of memory nodes.
    let status = up.run(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["health"], "whole", "{status}");
}
