//! The policy for redundancy on real processes: the cluster's rules, demotion on request or automatically, and
//! promotion.

// Promise RED-16

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Scratch, UpCluster, eventually, finish, fusee};
use fusee_client::{BlockingClient, Client, Options, PutOptions, Redundancy, WriteError};
use serde_json::Value;

const KEYS: u32 = 40;

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u32, bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at * 31 + n * 7) as u8).collect()
}

fn redundancy(text: &str) -> Redundancy {
    text.parse().unwrap()
}

/// Returns the number of pairs that have a redundancy, and the bytes of their memory.
fn memory_of(up: &UpCluster, redundancy: &str) -> (u64, u64) {
    let report = up.run(&["status", "--memory", "--json"]).expect_code(0).json();
    let all = report["redundancies"].as_array().unwrap().clone();
    let of = all.iter().find(|of| of["redundancy"] == redundancy);
    let number = |name: &str| of.map_or(0, |of| of[name].as_u64().unwrap());
    (number("pairs"), number("memory_bytes"))
}

#[test]
fn demotion_on_request_saves_memory_and_keeps_every_value() {
    let up = UpCluster::start(&["--pool", "1GiB"]);
    let client = Client::connect(&up.master).unwrap().blocking();
    for n in 0..KEYS {
        let bytes = if n % 4 == 0 { 2_000 } else { 40_000 };
        client.put(&key(n), &value(n, bytes)).unwrap();
    }
    let demote = |more: &[&str]| {
        let line = ["redundancy", "demote", "--to", "ec:2+1", "--from-size", "16KiB", "--json"];
        up.run(&[&line[..], more].concat()).expect_code(0).json()
    };
    let would = demote(&["--dry-run"]);
    assert_eq!((&would["moved"], &would["skipped"]["short"]), (&30.into(), &10.into()), "{would}");
    assert_eq!(memory_of(&up, "ec:2+1").0, 0, "nothing has changed");
    let before = memory_of(&up, "replicated");
    assert_eq!(before.0, u64::from(KEYS));
    assert_eq!(demote(&["--limit", "7"])["moved"], 7);
    let report = demote(&["--limit", "1GiB", "--rate", "1GiB"]);
    let of = |name: &str| report[name].as_i64().unwrap();
    assert_eq!((of("found"), of("moved"), of("overtaken"), of("failed")), (33, 23, 0, 0));
    let left = memory_of(&up, "replicated");
    let coded = memory_of(&up, "ec:2+1");
    assert_eq!((left.0, coded.0), (10, 30));
    let saved = before.1 - left.1 - coded.1;
    assert_eq!(
        Some(saved),
        would["saved_bytes"].as_u64(),
        "{would}: {before:?} {left:?} {coded:?}"
    );
    assert!(saved > 30 * 40_000 / 4, "a copy less, and half of one more: {saved}");
    for n in 0..KEYS {
        let bytes = if n % 4 == 0 { 2_000 } else { 40_000 };
        assert_eq!(client.get(&key(n)).unwrap(), Some(value(n, bytes)), "key {n}");
    }
    let again = demote(&[]);
    assert_eq!((&again["moved"], &again["skipped"]["short"]), (&0.into(), &10.into()));
    let text = up.run(&["redundancy", "demote", "--to", "ec:2+1"]).expect_code(0).text();
    assert!(text.starts_with("10 pairs of 10 found demoted"), "{text}");
    up.run(&["redundancy", "demote", "--to", "ec:4+2"]).expect_error(1, "takes 6 memory nodes");
    up.run(&["redundancy", "demote", "--to", "replicated"]).expect_error(2, "no erasure code");
    up.run(&["redundancy", "demote", "--rate", "0"]).expect_error(2, "at least 1");
}

#[test]
fn rules_of_the_cluster_count_for_everybody_and_are_shown() {
    let scratch = Scratch::new();
    let config = scratch.file(
        "redundancy.toml",
        b"[redundancy]\nfallback = \"replicated\"\ndemote-above = 0.9\n\
          [[redundancy.rules]]\nfrom = \"4KiB\"\nredundancy = \"ec:2+1\"\n\
          [[redundancy.rules]]\nfrom = \"16KiB\"\nredundancy = \"ec:4+2\"\n",
    );
    let up = UpCluster::start(&["--pool", "1GiB", "--config", &config]);
    let has = |key: &str| up.run(&["redundancy", "get", key]).expect_code(0).text();
    for (key, bytes, says) in
        [("a", 100, "replicated\n"), ("b", 5000, "ec:2+1\n"), ("c", 20_000, "replicated\n")]
    {
        up.run(&["put", key, &"x".repeat(bytes)]).expect_code(0);
        assert_eq!(has(key), says, "{key}");
    }
    up.run(&["update", "b", &"y".repeat(20_000)]).expect_code(0);
    assert_eq!(has("b"), "ec:2+1\n", "it keeps what it has");
    let status = || up.run(&["status", "--json"]).expect_code(0).json();
    // Sessions report with their heartbeats. The commands above ended before their first heartbeat.
    let report = status();
    assert_eq!(report["redundancy"]["fallback"], "replicated");
    assert_eq!(report["redundancy"]["rules"][1]["from"], 16384);
    assert_eq!(report["redundancy"]["demote_above"], 0.9);
    let client = Client::connect(&up.master).unwrap().blocking();
    client.put(b"d", &[7; 20_000]).unwrap();
    eventually("the fallback is counted", || status()["transitions"]["fallbacks"] != 0);
    let text = up.run(&["status"]).expect_code(0).text();
    assert!(text.contains("from 16.0 KiB on ec:4+2; fallback: replicated"), "{text}");
    drop(client);

    let refused = |text: &[u8], says: &str| {
        let config = scratch.file("bad.toml", text);
        finish(&mut fusee(&["up", "--port", "0", "--config", &config])).expect_error(2, says);
    };
    refused(b"[redundancy]\ndemote-above = 2.0", "demote-above: it is 2, and must be 0.01..=0.99");
    refused(b"[redundancy]\ndefault = \"ec:1+1\"", "k is at least 2");
    refused(b"memory-nodes = 3", "unknown field `memory-nodes`");
    let bad = ["up", "--port", "0", "--redundancy", "64KiB=ec:4+2,4KiB=ec:2+1"];
    finish(&mut fusee(&bad)).expect_error(2, "rules[1].from is 4096");
}

/// A master, and memory nodes with small regions.
struct PolicyServers {
    scratch: Scratch,
    children: Vec<Child>,
    master: String,
}

impl PolicyServers {
    fn start(table: &str, pool: &str) -> PolicyServers {
        let scratch = Scratch::new();
        let mut small = PolicyServers { scratch, children: Vec::new(), master: String::new() };
        let config = small.scratch.file("master.toml", table.as_bytes());
        let data_dir = small.scratch.path().join("master").display().to_string();
        let line =
            ["master", "--listen=127.0.0.1:0", "--region-bytes=256KiB", "--block-bytes=64KiB"];
        let more = [
            "--index-keys=10000",
            "--max-key-bytes=1KiB",
            "--max-value-bytes=40KiB",
            "--config",
            &config,
            "--data-dir",
            &data_dir,
        ];
        let announced = small.server(&[&line[..], &more].concat());
        small.master = announced["control"].as_str().unwrap().to_owned();
        finish(fusee(&["form", "--no-wait"]).env("FUSEE_MASTER", &small.master)).expect_code(0);
        let master = small.master.clone();
        let sockets = small.scratch.path().display().to_string();
        for _ in 0..3 {
            small.server(&[
                "memory-node",
                "--master",
                &master,
                "--pool",
                pool,
                "--shm-dir",
                &sockets,
            ]);
        }
        small
    }

    fn server(&mut self, line: &[&str]) -> Value {
        let mut command = fusee(line);
        command.args(["--announce", "--stop-with-stdin"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { out }, &mut said).unwrap();
        self.children.push(child);
        serde_json::from_str(&said).unwrap()
    }
}

impl Drop for PolicyServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
            let _ended = crate::common::wait(child);
        }
    }
}

/// Length of the values that fill a cluster, in bytes.
const BYTES: usize = 7_000;

/// Fills the cluster with EC-oriented pairs until a put fails for the time `patience`. Returns the number of pairs.
fn fill(client: &BlockingClient, patience: Duration) -> u32 {
    let end = Instant::now() + patience;
    for n in 0.. {
        // Sessions check the used share of the memory nodes only some times per second.
        std::thread::sleep(Duration::from_millis(4));
        while let Err(error) = client.put(&key(n), &value(n, BYTES)) {
            // On a busy machine a put gives up before all memory nodes have refused a block.
            let has_no_room = matches!(error, WriteError::OutOfMemory | WriteError::GaveUp { .. });
            assert!(has_no_room, "{error}");
            if Instant::now() > end {
                return n;
            }
        }
    }
    unreachable!("memory has an end")
}

#[test]
fn demotion_makes_room_where_memory_is_short() {
    const RULES: &str =
        "[[redundancy.rules]]\nfrom = \"4KiB\"\nredundancy = \"eor:2:2+1\"\n[redundancy]\n";
    let options = || Options::default().with_op_timeout(Duration::from_millis(500));
    let small = PolicyServers::start(RULES, "6MiB");
    let client = Client::connect_with(&small.master, options()).unwrap().blocking();
    let without = fill(&client, Duration::from_secs(1));
    assert_eq!(client.admin().status().unwrap().transitions.demoted_pairs, 0, "off by default");
    drop((client, small));

    let table = format!("{RULES}demote-above = 0.2\ndemote-bytes-per-s = \"64MiB\"\n");
    let small = PolicyServers::start(&table, "6MiB");
    let client = Client::connect_with(&small.master, options()).unwrap().blocking();
    let with = fill(&client, Duration::from_secs(2));
    assert!(f64::from(with) > 1.1 * f64::from(without), "{with} pairs instead of {without}");
    let done = || client.admin().status().unwrap().transitions;
    assert!(
        done().demoted_pairs > 0 && done().demoted_bytes == BYTES as u64 * done().demoted_pairs
    );
    let is_coded = |n: &u32| client.redundancy_of(&key(*n)).unwrap() == Some(redundancy("ec:2+1"));
    let coded = (0..with).filter(is_coded).count() as u64;
    assert_eq!(coded, done().demoted_pairs, "what was demoted stays so");
    for n in 0..with {
        assert_eq!(client.get(&key(n)).unwrap(), Some(value(n, BYTES)), "key {n}");
    }
}

#[test]
fn pairs_that_are_read_often_are_promoted_if_it_is_configured() {
    let table = "[redundancy]\npromote-after = 3\npromote-window-ms = 60000\n\
                 promote-bytes-per-s = \"64MiB\"\n";
    let small = PolicyServers::start(table, "24MiB");
    let client = Client::connect(&small.master).unwrap().blocking();
    let coded = redundancy("ec:2+1");
    for n in 0..2 {
        client
            .put_with(&key(n), &value(n, 30_000), PutOptions::default().with_redundancy(coded))
            .unwrap();
    }
    let has = |n: u32| client.redundancy_of(&key(n)).unwrap().unwrap();
    client.get(&key(1)).unwrap();
    eventually("it is promoted", || {
        assert_eq!(client.get(&key(0)).unwrap(), Some(value(0, 30_000)));
        has(0) == redundancy("eor:2:2+1")
    });
    assert_eq!(has(1), coded, "read once");
    eventually("it is counted", || {
        client.admin().status().unwrap().transitions.promoted_bytes == 30_000
    });
    assert_eq!(client.get(&key(0)).unwrap(), Some(value(0, 30_000)));
}
