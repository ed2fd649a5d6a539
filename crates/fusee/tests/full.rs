//! Full memory, and too few memory nodes for all replicas. Status, page, metrics and errors report both with the
//! reason.

// Promise API-29: Status, page, metrics and errors tell full and degraded clusters.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use fusee_client::{BlockingClient, Client, WriteError};
use serde_json::Value;

use crate::common::http::{get, json};
use crate::common::{Scratch, eventually, finish, fusee};

/// A master, and memory nodes with small regions.
struct FullPoolServers {
    master: String,
    http: SocketAddr,
    /// The processes of all servers, the master first.
    children: Vec<Child>,
    scratch: Scratch,
}

impl Drop for FullPoolServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a server. Returns its announcement.
fn start(line: &[&str]) -> (Child, Value) {
    let mut command = fusee(line);
    command.args(["--announce", "--stop-with-stdin"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap())
}

impl FullPoolServers {
    fn start(replicas: &str, pool: &str) -> FullPoolServers {
        let scratch = Scratch::new();
        let directory = scratch.path().to_str().unwrap();
        let (master, announced) = start(&[
            "master",
            "--listen=127.0.0.1:0",
            "--http=127.0.0.1:0",
            &format!("--data-dir={directory}"),
            "--memory-nodes=3",
            &format!("--index-replicas={replicas}"),
            &format!("--data-replicas={replicas}"),
            "--region-bytes=4MiB",
            "--block-bytes=256KiB",
            "--max-value-bytes=128KiB",
            "--index-keys=1000",
        ]);
        let address = announced["control"].as_str().unwrap().to_owned();
        let http = announced["http"].as_str().unwrap().parse().unwrap();
        let node = |_| {
            let pool = format!("--pool={pool}");
            let shm = format!("--shm-dir={directory}");
            start(&["memory-node", "--master", &address, &pool, "--populate=false", &shm]).0
        };
        let children = std::iter::once(master).chain((0..3).map(node)).collect();
        finish(&mut fusee(&["form", "--master", &address])).expect_code(0);
        FullPoolServers { master: address, http, children, scratch }
    }

    fn status(&self) -> Value {
        json(self.http, "/status.json")
    }

    /// Puts pairs until a put fails, and returns that error.
    fn fill(&self, client: &BlockingClient) -> WriteError {
        let value = vec![7; 100_000];
        let failed =
            (0..5_000).find_map(|n| client.put(format!("key{n}").as_bytes(), &value).err());
        failed.expect("the memory is full by now")
    }
}

/// Returns the value of a metric's sample.
fn sample(metrics: &str, name: &str) -> f64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in:\n{metrics}")).parse().unwrap()
}

#[test]
fn a_full_store_says_that_it_is_full() {
    let servers = FullPoolServers::start("2", "32MiB");
    let status = servers.status();
    assert_eq!((&status["health"], &status["reasons"]), (&"whole".into(), &Value::Array(vec![])));
    assert!(status["memory"]["more_regions"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(get(servers.http, "/readyz"), "ok\n");
    let empty = status["memory"]["used_bytes"].as_u64().unwrap();

    let client = Client::connect(&servers.master).unwrap().blocking();
    let error = servers.fill(&client);
    assert!(matches!(error, WriteError::OutOfMemory), "{error:?}");
    assert!(error.to_string().contains("fusee status"), "{error}");
    eventually("the status says so", || servers.status()["health"] == "full");
    let status = servers.status();
    let memory = &status["memory"];
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    assert!(bytes("used_bytes") > empty + (32 << 20), "{memory}");
    assert!(bytes("used_bytes") <= bytes("reserved_bytes"), "{memory}");
    assert_eq!(bytes("more_regions"), 0);
    assert!(bytes("free_block_bytes") * 32 < bytes("led_bytes"), "{memory}");
    let why = status["reasons"][0].as_str().unwrap();
    assert!(why.contains("full") && why.contains("on 2 memory nodes"), "{why}");
    let metrics = get(servers.http, "/metrics");
    for (name, value) in [
        ("fusee_memory_full", 1.0),
        ("fusee_memory_short", 1.0),
        ("fusee_cluster_health{state=\"full\"}", 1.0),
        ("fusee_cluster_health{state=\"whole\"}", 0.0),
    ] {
        assert_eq!(sample(&metrics, name), value, "{name}");
    }
    assert!(get(servers.http, "/readyz").contains("full: memory is full"));
    let table = finish(&mut fusee(&["status", "--master", &servers.master])).expect_code(0).text();
    assert!(table.contains("full: memory is full") && table.contains("used"), "{table}");
    drop(client);
}

#[test]
fn a_store_that_lacks_memory_nodes_says_how_many_and_goes_on() {
    let mut servers = FullPoolServers::start("3", "256MiB");
    let client = Client::connect(&servers.master).unwrap().blocking();
    client.put(b"key", b"value").unwrap();
    let mut lost = servers.children.pop().unwrap();
    lost.kill().unwrap();
    lost.wait().unwrap();
    let wanted = "they are to be on 3 memory nodes each, and there are 2";
    let says = |servers: &FullPoolServers| servers.status()["reasons"].to_string().contains(wanted);
    eventually("the status says why", || says(&servers));
    let status = servers.status();
    assert_eq!(status["health"], "degraded", "{status}");
    assert!(!status["reasons"].to_string().contains("room"), "{status}");
    assert!(get(servers.http, "/readyz").contains(wanted));
    // The memory has room, so writes succeed although replicas are missing.
    for n in 0..200 {
        client.put(format!("key{n}").as_bytes(), &[7; 100_000]).unwrap();
    }
    assert!(servers.scratch.path().exists());
}
