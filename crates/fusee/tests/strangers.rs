//! The cost that strangers and broken peers cause for real servers, by silent connections and by frames that never
//! become complete. The tests read the servers' resources from `/proc`.

// Promise SEC-3

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use fusee_auth::NodeKey;
use fusee_client::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::{UpCluster, nic};

/// The first bytes that a client sends to the master.
const HELLO: &[u8] =
    b"FUSEE\x0d\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const MIB: u64 = 1 << 20;

/// Returns a value of a process's `/proc` status, in bytes.
fn held(pid: u32, what: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

fn greet(master: &str) -> TcpStream {
    let mut stream = TcpStream::connect(master).unwrap();
    stream.write_all(HELLO).unwrap();
    stream
}

#[track_caller]
fn is_served(up: &UpCluster) {
    up.run(&["put", "key", "value"]).expect_code(0);
    let value = up.run(&["get", "key"]).expect_code(0);
    assert_eq!(value.text().trim(), "value");
}

/// Raises the limit of file descriptors. Returns `wanted`, or a smaller number that leaves 200 descriptors.
fn descriptors(wanted: usize) -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    maximum.map_or(wanted, |most| wanted.min(most.saturating_sub(200) as usize))
}

/// Clients announce 640 MiB of frames to a master whose address space is limited to 200 MiB more than it has.
#[test]
fn an_announced_frame_costs_a_master_nothing() {
    let up =
        UpCluster::start(&["--memory-nodes", "1", "--index-replicas", "1", "--data-replicas", "1"]);
    let pid = up.pids()[0];
    let most = held(pid, "VmSize") + 200 * MIB;
    let limited = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), &format!("--as={most}:{most}")])
        .status()
        .unwrap();
    assert!(limited.success());
    let before = held(pid, "VmData");
    let mut half = Vec::new();
    for _ in 0..40 {
        let mut stream = greet(&up.master);
        stream.write_all(&(16u32 << 20).to_be_bytes()).unwrap();
        stream.write_all(&[0]).unwrap();
        half.push(stream);
    }
    is_served(&up);
    let more = held(pid, "VmData").saturating_sub(before);
    assert!(more < 40 * MIB, "{} MiB more", more / MIB);
}

#[test]
fn silent_connections_do_not_keep_others_from_a_master() {
    let up =
        UpCluster::start(&["--memory-nodes", "1", "--index-replicas", "1", "--data-replicas", "1"]);
    let count = descriptors(4500);
    let silent: Vec<TcpStream> = (0..count).map(|_| greet(&up.master)).collect();
    is_served(&up);
    drop(silent);
}

/// A hundred WRITEs of 16 MiB lack their last bytes: 1.6 GiB have arrived, or wait in sockets.
#[test]
fn half_received_writes_cost_a_memory_node_a_bounded_part() {
    let up =
        UpCluster::start(&["--memory-nodes", "1", "--index-replicas", "1", "--data-replicas", "1"]);
    let pid = up.pids()[1];
    let client = Client::connect(&up.master).unwrap().blocking();
    let member = client.view().members[0].clone();
    // This makes the memory node allocate what it needs for requests, before its memory is measured.
    is_served(&up);
    let before = held(pid, "RssAnon");
    let mut half = Vec::new();
    for number in 0..100u32 {
        let key = NodeKey::new(None, member.identity);
        let tcp = member.tcp.as_ref().unwrap();
        let mut stream = nic::attach(tcp, &key, 3_000_000_000 + number);
        // A request begins with the length of its body, the number of verbs, and an id. Then comes one WRITE of 16 MiB.
        let body = 16 + (16u32 << 20);
        let head = [&body.to_le_bytes()[..], &1u32.to_le_bytes(), &[0; 8], &[2, 0, 0, 0]].concat();
        stream.set_nonblocking(true).unwrap();
        let bytes = [head, vec![0; (16 << 20) - 100]].concat();
        let mut sent = 0;
        // The memory node stops reading, so after a while no more bytes can be sent.
        for _ in 0..20 {
            match stream.write(&bytes[sent..]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    sleep(Duration::from_millis(1));
                }
                // The memory node has closed the connection, because other connections wait for the memory that this
                // one holds.
                Err(_) => break,
            }
        }
        half.push(stream);
        let more = held(pid, "RssAnon").saturating_sub(before);
        assert!(more < 160 * MIB, "{} MiB more", more / MIB);
    }
    is_served(&up);
    let long = "x".repeat(100_000);
    up.run(&["put", "long", &long, "--fabric", "tcp"]).expect_code(0);
    let more = held(pid, "RssAnon").saturating_sub(before);
    assert!(more < 160 * MIB, "{} MiB more", more / MIB);
}
