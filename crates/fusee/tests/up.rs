//! `fusee up`, and commands that use its cluster. Each command is a process of its own.

// Promise API-3: A cluster of processes leaves nothing behind.

use std::time::Duration;

use crate::common::{UpCluster, eventually, finish, finish_with, fusee, is_alive, signal, wait};

/// Asserts that the servers have ended, and that the cluster's directory is removed.
#[track_caller]
fn expect_nothing_left(up: &UpCluster, pids: &[u32]) {
    for pid in pids {
        assert!(!is_alive(*pid), "process {pid} is left");
    }
    assert_eq!(up.scratch.entries(), Vec::<std::path::PathBuf>::new());
}

fn use_every_operation(up: &UpCluster, fabric: &str) {
    let fabric = ["--fabric", fabric];
    let run = |line: &[&str]| finish(up.command(line).args(fabric));
    run(&["put", "k", "v1"]).expect_code(0);
    assert_eq!(run(&["get", "k"]).expect_code(0).stdout, b"v1");
    run(&["insert", "k", "v2"]).expect_error(1, "already exists");
    run(&["update", "k", "v3"]).expect_code(0);
    assert_eq!(run(&["get", "k"]).expect_code(0).stdout, b"v3");
    run(&["delete", "k"]).expect_code(0);
    run(&["get", "k"]).expect_error(1, "key `k` not found");
    run(&["update", "k", "v"]).expect_error(1, "not found");
    run(&["delete", "k"]).expect_error(1, "not found");
    run(&["insert", "k", ""]).expect_code(0);
    assert_eq!(run(&["get", "k"]).expect_code(0).stdout, b"");
    run(&["delete", "k"]).expect_code(0);
}

#[test]
fn other_processes_put_and_get_on_both_fabrics() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    use_every_operation(&up, "shm");
    use_every_operation(&up, "tcp");
    use_every_operation(&up, "auto");
    // Pairs that were written over one fabric can be read over another.
    up.run(&["put", "k", "v", "--fabric", "shm"]).expect_code(0);
    assert_eq!(up.run(&["get", "k", "--fabric", "tcp"]).expect_code(0).stdout, b"v");
}

#[test]
fn values_go_through_byte_by_byte() {
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "1"]);
    let value: Vec<u8> = (0..100_000u32).flat_map(|i| i.to_le_bytes()).collect();
    let file = up.scratch.file("value", &value);
    up.run(&["put", "--hex", "00ff", "--value-file", &file]).expect_code(0);
    assert_eq!(up.run(&["get", "--hex", "00FF"]).expect_code(0).stdout, value);
    finish_with(&mut up.command(&["put", "k", "-"]), &value).expect_code(0);
    assert_eq!(up.run(&["get", "k"]).expect_code(0).stdout, value);
    up.run(&["get", "--hex", "0"]).expect_error(2, "hexadecimal");
    up.run(&["put", "k", "--value-file", "/nowhere"]).expect_error(1, "cannot read /nowhere");
    up.run(&["put", "k"]).expect_error(2, "VALUE");
}

#[test]
fn status_shows_the_cluster() {
    // The scrubber is turned off, because it would open sessions.
    let up = UpCluster::start(&["--pool=512MiB", "--memory-nodes=2", "--scrub-bytes-per-s=0"]);
    up.run(&["put", "k", "v"]).expect_code(0);
    let status = up.run(&["status", "--json"]).expect_code(0).json();
    assert_eq!((&status["ready"], &status["index_replicas"]), (&true.into(), &2.into()));
    assert_eq!((&status["open_sessions"], &status["sessions_opened"]), (&0.into(), &1.into()));
    let nodes = status["memory_nodes"].as_array().unwrap();
    let reported = up.report["memory_nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    for (node, reported) in nodes.iter().zip(reported) {
        for field in ["node", "control", "tcp", "shm"] {
            assert_eq!(node[field], reported[field]);
        }
        assert_eq!(
            (&node["reachable"], &node["pool_bytes"]),
            (&true.into(), &(512u64 << 20).into())
        );
    }
    let owned: u64 = nodes.iter().map(|n| n["led_bytes_owned"].as_u64().unwrap()).sum();
    assert_eq!(owned, 16 << 10, "a pair takes one small block");
    let table = up.run(&["status"]).expect_code(0).text();
    assert!(table.contains("mn1") && table.contains("ready, view 1"), "{table}");
    // The status shows a lost memory node as lost.
    signal("KILL", up.pids()[2]);
    eventually("the cluster goes on without mn1", || {
        let status = up.run(&["status", "--json"]).json();
        status["memory_nodes"][1]["state"] == "lost" && status["change"].is_null()
    });
    let output = up.run(&["status", "--json"]).expect_code(1);
    assert!(output.stderr.contains("no answer from mn1"), "{}", output.stderr);
    let status = output.json();
    assert_eq!(
        (&status["ready"], &status["memory_nodes"][1]["reachable"]),
        (&true.into(), &false.into())
    );
    assert!(status["memory_nodes"][1]["attached_clients"].is_null());
    assert!(status["memory_nodes"][0]["attached_clients"].is_u64());
    let table = up.run(&["status"]).expect_code(1).text();
    assert!(table.contains("ready, view ") && table.contains("lack a replica"), "{table}");
    let line = table.lines().find(|line| line.starts_with("mn1 ")).unwrap();
    assert!(line.contains(" - ") && line.contains("no answer"), "{table}");
}

#[test]
fn the_shell_reads_commands_from_a_pipe() {
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "1"]);
    let shell = |input: &str| finish_with(&mut up.command(&["shell"]), input.as_bytes());
    let output = shell(
        "# a remark\nput 'my key' \"a \\\"b\\\" \\x00\"\nget \"my key\"\n\ninsert k 1\nupdate k 2\n\
         get k\ndelete k\nquit\nget k\n",
    );
    let output = output.expect_code(0);
    assert_eq!(output.text(), "ok\na \"b\" \\x00\nok\nok\n2\nok\n");
    let output = shell("get none\nput k v\nnonsense\nget k\n");
    assert_eq!(output.text(), "ok\nv\n");
    assert!(output.stderr.contains("key `none` not found"), "{}", output.stderr);
    assert!(output.stderr.contains("no command is called `nonsense`"), "{}", output.stderr);
    output.expect_error(1, "2 commands failed");
    assert!(shell("help\nstatus\n").expect_code(0).text().contains("view 1"));
    let timed = finish_with(&mut up.command(&["shell", "--timing"]), b"put k v\n");
    assert!(timed.text().contains(" us)"), "{}", timed.text());
}

#[test]
fn ctrl_c_leaves_no_process_and_no_file() {
    for name in ["INT", "TERM", "HUP"] {
        let mut up = UpCluster::start(&["--pool", "256MiB"]);
        let pids = up.pids();
        assert!(pids.len() == 4 && pids.iter().all(|pid| is_alive(*pid)));
        assert_eq!(up.scratch.entries().len(), 1);
        up.run(&["put", "k", "v"]).expect_code(0);
        signal(name, up.child.id());
        assert_eq!(wait(&mut up.child).code(), Some(0));
        expect_nothing_left(&up, &pids);
    }
}

#[test]
fn servers_that_hang_are_killed() {
    let mut up = UpCluster::start(&["--pool", "256MiB", "--memory-nodes", "1"]);
    let pids = up.pids();
    signal("STOP", pids[1]);
    signal("INT", up.child.id());
    assert_eq!(wait(&mut up.child).code(), Some(0));
    expect_nothing_left(&up, &pids);
}

#[test]
fn killing_up_leaves_no_process_and_the_next_up_removes_its_files() {
    let mut up = UpCluster::start(&["--pool", "256MiB"]);
    let pids = up.pids();
    signal("KILL", up.child.id());
    wait(&mut up.child);
    eventually("the servers have ended", || pids.iter().all(|pid| !is_alive(*pid)));
    let mut next = fusee(&["up", "--port", "0", "--memory-nodes", "1", "--pool", "256MiB"]);
    let mut next = next.env("XDG_RUNTIME_DIR", up.scratch.path()).spawn().unwrap();
    let own = format!("fusee-up-{}", next.id());
    eventually("only the new directory is there", || {
        let entries = up.scratch.entries();
        entries.len() == 1 && entries[0].ends_with(&own)
    });
    signal("TERM", next.id());
    wait(&mut next);
    expect_nothing_left(&up, &pids);
}

#[test]
fn up_outlives_a_memory_node_but_not_its_master() {
    let mut up = UpCluster::start(&["--pool", "256MiB"]);
    let pids = up.pids();
    signal("KILL", pids[3]);
    eventually("the memory node is gone", || !is_alive(pids[3]));
    std::thread::sleep(Duration::from_millis(200));
    assert!(up.child.try_wait().unwrap().is_none());
    signal("KILL", pids[0]);
    assert_eq!(wait(&mut up.child).code(), Some(1));
    expect_nothing_left(&up, &pids);
}

#[test]
fn a_second_up_at_the_same_port_says_what_to_do() {
    let up = UpCluster::start(&["--pool", "256MiB", "--memory-nodes", "1"]);
    let port = up.master.rsplit_once(':').unwrap().1;
    let second = finish(&mut fusee(&["up", "--port", port]));
    second.expect_error(1, &format!("port {port} is in use"));
    finish(&mut fusee(&["up", "--port", port])).expect_error(1, "--port");
}

#[test]
fn a_small_pool_is_enough_for_few_keys() {
    let up = UpCluster::start(&["--pool", "64MiB", "--index-keys", "1000"]);
    up.run(&["put", "k", "v"]).expect_code(0);
}

/// The page has the same address in each run, if possible.
#[test]
fn the_page_is_beside_the_master() {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = free();
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=1", &format!("--port={port}")]);
    let page = up.report["master"]["http"].as_str().unwrap().to_owned();
    // Another process has possibly taken the port.
    let is_free = || std::net::TcpListener::bind(("127.0.0.1", port + 10)).is_ok();
    drop(up);
    assert!(page == format!("127.0.0.1:{}", port + 10) || !is_free(), "{page}, master at {port}");
}

/// Keys and values are bytes, also in lines from a pipe.
#[test]
fn a_shell_takes_lines_that_are_no_text() {
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=1"]);
    let mut shell = up.command(&["shell"]);
    let lines = b"put k\xff1 v\nput k2 \xc3\nget k\\xff1\ncount k\nkeys k2\nset a b\n";
    let output = finish_with(&mut shell, lines).expect_code(1);
    assert_eq!(output.text(), "ok\nok\nv\n2 pairs\nk2\n");
    assert!(output.stderr.contains("did you mean `put`?"), "{}", output.stderr);
    assert_eq!(up.run(&["get", "--hex", "6bff31"]).expect_code(0).stdout, b"v");
    assert_eq!(up.run(&["get", "k2"]).expect_code(0).stdout, b"\xc3");
    up.run(&["stats"]).expect_error(2, "'status'");
}

/// An empty environment variable counts as unset, for every setting.
#[test]
fn variables_without_a_value_say_nothing() {
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=1"]);
    let names =
        ["SECRET", "TLS_CA", "TLS_CERT", "TLS_KEY", "FABRIC", "SWITCH", "CONFIG", "HTTP", "LEASE"];
    let empty = |command: &mut std::process::Command| {
        command.envs(names.map(|name| (format!("FUSEE_{name}"), "")));
    };
    let mut put = up.command(&["put", "k", "v"]);
    empty(&mut put);
    finish(&mut put).expect_code(0);
    let mut show = fusee(&["config", "show", "master"]);
    empty(&mut show);
    let shown = finish(show.env("FUSEE_MASTER", "")).expect_code(0).text();
    assert!(shown.contains("# secret is not set"), "{shown}");
    // Without an address, the default address is used.
    finish(fusee(&["status"]).env("FUSEE_MASTER", "")).expect_code(3);
}

#[test]
fn clusters_that_cannot_be_are_refused_and_leave_nothing() {
    let scratch = crate::common::Scratch::new();
    for (line, code, says) in [
        (&["--memory-nodes", "1", "--index-replicas", "2"][..], 2, "lower --index-replicas"),
        (&["--data-replicas", "6"], 2, "--data-replicas is 6"),
        (&["--memory-nodes", "0"], 2, "1..=100"),
        (&["--pool", "1MiB", "--memory-nodes", "1"], 1, "raise --pool"),
        (&["--redundancy", "16KiB=ec:4+2"], 2, "need 6 memory nodes, and --memory-nodes is 3"),
        (&["--pool", "lots"], 2, "512MiB"),
        (&["--fabric", "pigeon"], 2, "possible values: shm, tcp, verbs"),
    ] {
        let mut command = fusee(&["up", "--port", "0"]);
        let output = finish(command.args(line).env("XDG_RUNTIME_DIR", scratch.path()));
        assert_eq!(output.code, Some(code), "{output:?}");
        assert!(output.stderr.contains(says), "{}", output.stderr);
        assert!(scratch.entries().is_empty());
    }
}

#[test]
fn one_fabric_can_be_served_alone() {
    for (fabric, other) in [("shm", "tcp"), ("tcp", "shm")] {
        let up = UpCluster::start(&["--pool", "256MiB", "--memory-nodes", "1", "--fabric", fabric]);
        use_every_operation(&up, "auto");
        use_every_operation(&up, fabric);
        assert!(up.report["memory_nodes"][0][other].is_null());
        up.run(&["get", "k", "--fabric", other]).expect_code(3);
    }
}
