//! `fusee status --memory` on clusters of real processes: the numbers are consistent, and change with what clients
//! write, replace and delete.

use std::path::{Path, PathBuf};
use std::process::Command;

use fusee_client::{BlockingClient, Client, FabricKind, Options, Session};
use serde_json::Value;

use crate::common::{UpCluster, eventually, finish, fusee, signal};

/// Bytes of an object in addition to key and value.
const OVERHEAD: u64 = 33;
const KEY: u64 = 16;
/// Sizes of the test's objects, which its pairs fill without padding.
const SMALL: u64 = 128;
const LARGE: u64 = (64 << 10) + 64;

fn connect(up: &UpCluster, fabric: FabricKind) -> BlockingClient {
    let options = Options::default().with_fabric(fabric);
    Client::connect_with(&up.master, options).unwrap().blocking()
}

fn key(of: &str, n: u64) -> Vec<u8> {
    format!("{of:<6}{n:010}").into_bytes()
}

fn value(object: u64, n: u64) -> Vec<u8> {
    vec![n as u8; (object - OVERHEAD - KEY) as usize]
}

fn write(session: &Session, what: &str, keys: std::ops::Range<u64>, object: u64) {
    for n in keys {
        let key = key(what, n);
        let value = value(object, n);
        session.block_on(session.put(&key, &value)).unwrap();
    }
}

fn delete(session: &Session, what: &str, keys: std::ops::Range<u64>) {
    for n in keys {
        session.block_on(session.delete(&key(what, n))).unwrap();
    }
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("{field} in {of}"))
}

fn sum(of: &Value, list: &str, field: &str) -> u64 {
    of[list].as_array().unwrap().iter().map(|one| number(one, field)).sum()
}

/// Returns the report of `--memory` over one fabric, after a check of the report's sums.
#[track_caller]
fn memory(up: &UpCluster, fabric: &str) -> Value {
    let line = ["status", "--memory", "--json", "--fabric", fabric];
    let memory = up.run(&line).expect_code(0).json();
    let of = |field| number(&memory, field);
    let used = of("blocks") - of("free_blocks");
    let in_classes = sum(&memory, "size_classes", "blocks") + of("blank_blocks");
    assert_eq!(in_classes, used, "{memory}");
    assert_eq!(sum(&memory, "owners", "blocks"), used, "{memory}");
    let used_bytes = used_bytes(&memory);
    assert!(sum(&memory, "size_classes", "block_bytes") <= used_bytes, "{memory}");
    assert_eq!(sum(&memory, "owners", "block_bytes"), used_bytes, "{memory}");
    let all = ["led_bytes", "free_block_bytes"];
    assert_eq!(all.map(|field| sum(&memory, "memory_nodes", field)), all.map(of), "{memory}");
    let bad = of("unreadable_headers") + of("unreadable_owners") + of("stray_marks");
    assert_eq!(bad, 0, "{memory}");
    let marked = sum(&memory, "size_classes", "marked_bytes");
    assert_eq!(sum(&memory, "owners", "marked_bytes"), marked, "{memory}");
    for node in memory["memory_nodes"].as_array().unwrap() {
        let reserved = number(node, "reserved_bytes");
        assert!(number(node, "subtable_bytes") + number(node, "region_bytes") <= reserved);
        assert_eq!(reserved + number(node, "free_bytes"), number(node, "pool_bytes"));
    }
    let uses = memory["pool_use"].as_object().unwrap();
    let used: u64 = uses.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(used, sum(&memory, "memory_nodes", "pool_bytes"), "{memory}");
    assert_eq!(uses["pairs"], sum(&memory, "redundancies", "memory_bytes"), "{memory}");
    memory
}

/// Returns the bytes of all blocks that have an owner.
fn used_bytes(memory: &Value) -> u64 {
    number(memory, "led_bytes") - number(memory, "free_block_bytes")
}

fn class(memory: &Value, object: u64) -> &Value {
    let classes = memory["size_classes"].as_array().unwrap();
    let found = classes.iter().find(|class| class["object_bytes"] == object);
    found.unwrap_or_else(|| panic!("no objects of {object} bytes in {memory}"))
}

fn owner<'m>(memory: &'m Value, session: &str) -> &'m Value {
    let owners = memory["owners"].as_array().unwrap();
    let found = owners.iter().find(|owner| owner["owner"] == session);
    found.unwrap_or_else(|| panic!("{session} owns nothing in {memory}"))
}

/// Returns the number of objects that are neither freed (marked) nor never allocated (new).
fn in_use(class: &Value) -> u64 {
    number(class, "objects") - number(class, "marked_objects") - number(class, "new_objects")
}

#[test]
fn the_numbers_add_up_and_follow_what_is_written() {
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "2"]);
    let empty = memory(&up, "tcp");
    assert_eq!(
        (&empty["free_blocks"], &empty["owners"]),
        (&empty["blocks"], &Value::Array(vec![]))
    );
    let clients = [connect(&up, FabricKind::Shm), connect(&up, FabricKind::Tcp)];
    let [small, large] = clients.each_ref().map(|client| client.session().unwrap());
    write(&small, "small", 0..1000, SMALL);
    write(&large, "large", 0..50, LARGE);
    let full = memory(&up, "tcp");
    assert_eq!(full, memory(&up, "shm"));
    for (session, object) in [(&small, SMALL), (&large, LARGE)] {
        let id = session.id().to_string();
        let class = class(&full, object);
        assert_eq!(class["marked_objects"], 0);
        let owner = owner(&full, &id);
        assert_eq!((&owner["state"], &owner["handed_on"]), (&"open".into(), &0.into()));
        for field in ["blocks", "block_bytes"] {
            assert_eq!(owner[field], class[field], "{full}");
        }
    }

    // All replaced objects are marked, except for up to 15, because sessions set 16 bits at a time.
    write(&small, "small", 0..300, SMALL);
    let replaced = memory(&up, "tcp");
    let marked = number(class(&replaced, SMALL), "marked_objects");
    assert!((300 - 15..=300).contains(&marked), "{replaced}");
    // A session that ends marks all freed objects and records the objects that it never allocated. All others are in
    // use.
    delete(&small, "small", 900..1000);
    let id = small.id().to_string();
    drop(small);
    let left = memory(&up, "tcp");
    assert_eq!(in_use(class(&left, SMALL)), 900, "{left}");
    assert_eq!(number(class(&left, SMALL), "marked_objects"), 400, "{left}");
    assert_eq!(used_bytes(&left), used_bytes(&replaced), "DELETEs take no memory");
    let departed = owner(&left, &id);
    assert_eq!(departed["state"], "departed");
    assert_eq!(departed["handed_on"], departed["blocks"], "{left}");

    // The writes need many times the memory of the blocks, so objects are reused.
    let writes = 3000;
    for _ in 0..writes / 50 {
        write(&large, "large", 0..50, LARGE);
    }
    let reused = memory(&up, "shm");
    let objects = number(class(&reused, LARGE), "objects");
    assert!(objects < writes && in_use(class(&reused, LARGE)) >= 50, "{reused}");
    drop(large);
    let left = memory(&up, "tcp");
    assert_eq!(left, memory(&up, "shm"));
    assert!(number(class(&left, LARGE), "marked_objects") > 0, "{left}");
    assert_eq!(sum(&left, "owners", "handed_on"), sum(&left, "owners", "blocks"));
    let text = up.run(&["status", "--memory"]).expect_code(0).text();
    for says in ["mn1 ", "64.1 KiB", "departed", "wait to be used again", "pools ", "free blocks "]
    {
        assert!(text.contains(says), "{says} is not in:\n{text}");
    }
}

#[test]
fn a_lost_memory_node_is_surveyed_around() {
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "2"]);
    for n in 0..4 {
        up.run(&["put", &format!("key{n}"), "value"]).expect_code(0);
    }
    let before = memory(&up, "tcp");
    signal("KILL", up.pids()[2]);
    eventually("the cluster goes on without mn1", || {
        let status = up.run(&["status", "--json"]).json();
        status["memory_nodes"][1]["state"] == "lost" && status["change"].is_null()
    });
    for fabric in ["tcp", "shm"] {
        let after = memory(&up, fabric);
        for field in ["blocks", "free_blocks", "owners"] {
            assert_eq!(after[field], before[field], "{field}");
        }
        let nodes = after["memory_nodes"].as_array().unwrap();
        assert_eq!((nodes.len(), &nodes[0]["led_bytes"]), (1, &after["led_bytes"]));
    }
}

#[test]
fn without_a_cluster_the_next_step_is_named() {
    let line = ["status", "--memory", "--master", "127.0.0.1:1"];
    finish(&mut fusee(&line)).expect_error(3, "start a cluster with `fusee up`");
    let line = ["status", "--memory", "--recoveries"];
    finish(&mut fusee(&line)).expect_error(2, "cannot be used with");
    let line = ["status", "--memory", "--fabric", "rdma"];
    finish(&mut fusee(&line)).expect_error(2, "use auto, shm, tcp or verbs");
}

/// Returns the bytes of the pool's pages that are mapped in a memory node.
fn pool_bytes(pid: u64) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut is_pool = false;
    let mut kib = 0;
    for line in maps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            // The addresses, and the name of the mapping.
            is_pool = line.contains("memfd:fusee-pool");
        } else if is_pool && first == "Rss:" {
            kib += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    kib << 10
}

#[test]
fn a_memory_node_takes_its_pages_before_clients_write_to_them() {
    let cluster = |populate| {
        let options = ["--pool=160MiB", "--memory-nodes=1", "--index-keys=10000", populate];
        let up = UpCluster::start(&options);
        let node = &up.report["memory_nodes"][0];
        let taken = pool_bytes(node["pid"].as_u64().unwrap_or_else(|| panic!("{node}")));
        let memory = memory(&up, "shm");
        (taken, sum(&memory, "memory_nodes", "reserved_bytes"))
    };
    let (taken, reserved) = cluster("--populate=true");
    assert!(taken >= reserved && reserved > 0, "{taken} of {reserved} bytes");
    let (taken, reserved) = cluster("--populate=false");
    assert!(taken < reserved / 2, "{taken} of {reserved} bytes");
}

#[test]
fn a_pool_larger_than_the_memory_is_refused() {
    finish(&mut fusee(&["memory-node", "--pool=100000GiB"])).expect_error(1, "--overcommit");
    finish(&mut fusee(&["up", "--port=0", "--pool=100000GiB"])).expect_error(1, "--overcommit");
}

/// A control group for memory, which is removed at the end.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group; `None` if there is no memory controller, or this process must not use it.
    fn new() -> Option<ControlGroup> {
        let name = format!("fusee-test-{}", std::process::id());
        ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].into_iter().find_map(|root| {
            let group = ControlGroup(Path::new(root).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            group.bytes().is_some().then_some(group)
        })
    }

    /// Returns the bytes that are charged to the group now.
    fn bytes(&self) -> Option<u64> {
        let read = |file| std::fs::read_to_string(self.0.join(file)).ok();
        let text = read("memory.usage_in_bytes").or_else(|| read("memory.current"))?;
        text.trim().parse().ok()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Clients in a control group of their own write 40 MiB to each of two nodes.
#[test]
fn pages_of_the_pool_are_not_charged_to_clients() {
    const PAIRS: u64 = 40;
    let charged = |populate| {
        let group = ControlGroup::new()?;
        let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=2", populate]);
        let file = up.scratch.file("value", &vec![1; 1 << 20]);
        let line = "echo $$ > $GROUP/cgroup.procs || exit 9; \
                    for i in $(seq $PAIRS); do $FUSEE put k$i --value-file $FILE --fabric shm || exit 8; done";
        let mut clients = Command::new("sh");
        clients.args(["-c", line]).env("GROUP", &group.0).env("PAIRS", PAIRS.to_string());
        clients.env("FUSEE", fusee(&[]).get_program()).env("FILE", &file);
        clients.env("FUSEE_MASTER", &up.master);
        let done = finish(&mut clients);
        if done.code == Some(9) {
            return None;
        }
        done.expect_code(0);
        group.bytes()
    };
    let (Some(populated), Some(not)) = (charged("--populate=true"), charged("--populate=false"))
    else {
        println!("SKIPPED: no control groups for memory that this process may use");
        return;
    };
    assert!(not > PAIRS << 20, "the clients wrote first, and {not} bytes are charged to them");
    assert!(populated < (PAIRS << 20) / 2, "{populated} bytes of the pool are charged to clients");
}
