//! Reads without the master and without some memory nodes: docs/decisions/0030.
//!
//! A client that joined while the master lived continues to read everything for which more than half of the memory
//! nodes vouch. If more than half of the memory nodes bar the primary, the client reads values on which all backups
//! agree.

// Promise SIL-5

use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use fusee_client::{BlockingClient, Client, FabricKind, Options, ReadError};
use fusee_core::view::{PoolPlace, View};
use futures_util::future::join_all;

use super::cluster::{ClusterShape, FaultyCluster};

const KEYS: u32 = 200;

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    format!("value of {n}").repeat(20).into_bytes()
}

fn client(cluster: &FaultyCluster) -> BlockingClient {
    let options = Options::default().with_fabric(FabricKind::Tcp);
    Client::connect_with(cluster.address(), options).unwrap().blocking()
}

fn put_all(client: &BlockingClient) {
    (0..KEYS).for_each(|n| client.put(&key(n), &value(n)).unwrap());
}

/// Reads all keys, first one by one and then together. Returns the time of the slowest single read.
fn read_all(client: &BlockingClient) -> Duration {
    let mut longest = Duration::ZERO;
    for n in 0..KEYS {
        let begun = Instant::now();
        assert_eq!(client.get(&key(n)).unwrap(), Some(value(n)), "key {n}");
        longest = longest.max(begun.elapsed());
    }
    assert_eq!(client.get(b"absent").unwrap(), None);
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let found = client.get_many(&keys).unwrap();
    assert!(found.into_iter().zip(0..).all(|(found, n)| found == Some(value(n))));
    longest
}

/// The master is killed, and then one of the three memory nodes. The test repeats this for each node, in a new cluster.
/// Some keys have their primary on the killed node.
#[test]
fn without_master_and_primary_every_get_answers_over_tcp() {
    for victim in 0..3 {
        let mut cluster =
            FaultyCluster::of(ClusterShape { index_replicas: 2, ..ClusterShape::default() });
        let client = client(&cluster);
        put_all(&client);
        cluster.kill_master();
        cluster.nodes[victim].kill();
        let longest = read_all(&client);
        println!("node {victim} and the master gone: the longest get took {longest:?}");
        // The restarted master removes the node from the view. From then on writes succeed again.
        cluster.restart_master();
        cluster.until_stable(2, false);
        client.put(&key(0), b"another").unwrap();
        assert_eq!(client.get(&key(0)).unwrap(), Some(b"another".to_vec()));
        cluster.start_node();
        cluster.until_stable(3, true);
        assert_eq!(client.get(&key(1)).unwrap(), Some(value(1)));
    }
}

/// The master and two of five memory nodes are lost. Keys that still have their primary, or all of their backups, can
/// be read. Keys that have lost the primary and a backup cannot be read until the master is back.
#[test]
fn without_master_and_two_of_five_nodes_what_is_certain_is_read() {
    let shape =
        ClusterShape { nodes: 5, index_replicas: 3, data_replicas: 3, ..ClusterShape::default() };
    let mut cluster = FaultyCluster::of(shape);
    let options =
        Options::default().with_fabric(FabricKind::Tcp).with_op_timeout(Duration::from_secs(6));
    let client = Client::connect_with(cluster.address(), options).unwrap().blocking();
    put_all(&client);
    let session = client.session().unwrap();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let read = || session.block_on(join_all(keys.iter().map(|key| session.get(key))));
    assert!(read().into_iter().all(|found| found.is_ok()));
    let view: View = cluster.until("a view", |status| status.view.is_some()).view.unwrap();
    cluster.kill_master();
    let gone = [0, 1].map(|at| view.members[at].node);
    let controls = [0, 1].map(|at| view.members[at].control.clone());
    cluster.nodes.retain_mut(|node| {
        let is_gone = controls.contains(&node.control());
        if is_gone {
            node.kill();
        }
        !is_gone
    });
    let is_lost = |place: &PoolPlace| gone.contains(&place.node);
    let is_readable =
        |places: &[PoolPlace]| !is_lost(&places[0]) || !places[1..].iter().any(is_lost);
    let readable = view.subtables.iter().filter(|table| is_readable(table.replicas())).count();
    let mut found = 0;
    let mut waited = 0;
    for (n, answer) in (0..).zip(read()) {
        match answer {
            Ok(answer) => {
                assert_eq!(answer, Some(value(n)), "key {n}");
                found += 1;
            }
            Err(ReadError::Unreachable { .. } | ReadError::GaveUp { .. }) => waited += 1,
            Err(other) => panic!("key {n}: {other}"),
        }
    }
    let all = view.subtables.len();
    println!("{found} keys found, {waited} not; of {all} subtables {readable} can be read");
    assert_eq!((found > 0, waited > 0), (readable > 0, readable < all));
    drop(session);
    cluster.restart_master();
    cluster.until_stable(3, false);
    read_all(&Client::connect(cluster.address()).unwrap().blocking());
}

/// The node is stopped instead of killed. It is silent, and runs again after all keys have been read.
#[test]
fn a_primary_that_is_silent_and_comes_back_is_settled() {
    let mut cluster =
        FaultyCluster::of(ClusterShape { index_replicas: 2, ..ClusterShape::default() });
    let client = client(&cluster);
    put_all(&client);
    cluster.kill_master();
    cluster.nodes[0].signal("STOP");
    let longest = read_all(&client);
    println!("silent, and no master: the longest get took {longest:?}");
    cluster.nodes[0].signal("CONT");
    cluster.restart_master();
    cluster.until("it is settled", |status| {
        status.view.as_ref().is_some_and(|view| view.change.is_none() && view.number > 1)
    });
    // The session has closed its connection to the stopped node. At most one call reports that; the next call uses a
    // new session.
    for n in 0..KEYS {
        match client.get(&key(n)) {
            Ok(found) => assert_eq!(found, Some(value(n)), "key {n}"),
            Err(error) => {
                println!("{error}");
                break;
            }
        }
    }
    read_all(&client);
    client.put(&key(0), b"another").unwrap();
    assert_eq!(client.get(&key(0)).unwrap(), Some(b"another".to_vec()));
}

/// With a lease of a tenth of a second, clients that only read and write lose no session. A silent node delays no read
/// by more than two seconds, which allows for a busy machine.
///
/// On a machine that runs a thread 25 ms late, such a lease possibly runs out. An attempt that fails there is repeated.
// Promise SIL-6: Leases of 100 ms work.
#[test]
fn short_leases_can_be_used() {
    for _ in 0..20 {
        let meter = LatenessMeter::start();
        let outcome = catch_unwind(use_short_leases);
        let lateness = meter.end();
        match outcome {
            Ok(()) => return,
            Err(panic) if lateness < Duration::from_millis(25) => resume_unwind(panic),
            Err(_) => println!("a thread ran {lateness:?} late: again"),
        }
    }
    panic!("the machine is too busy in each of 20 attempts");
}

fn use_short_leases() {
    let mut cluster = FaultyCluster::of(ClusterShape { lease_ms: 100, ..ClusterShape::default() });
    let client = client(&cluster);
    put_all(&client);
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        read_all(&client);
    }
    cluster.nodes[0].signal("STOP");
    let longest = read_all(&client);
    println!("a silent node: the longest get took {longest:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    cluster.nodes[0].signal("CONT");
    sleep(Duration::from_millis(300));
    read_all(&client);
    cluster.end_load();
}

/// Measures how late this machine runs a thread that sleeps.
struct LatenessMeter {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl LatenessMeter {
    fn start() -> LatenessMeter {
        const STEP: Duration = Duration::from_millis(2);
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let measure = move || {
            let mut longest = Duration::ZERO;
            while !flag.load(Ordering::Relaxed) {
                let begun = Instant::now();
                sleep(STEP);
                longest = longest.max(begun.elapsed().saturating_sub(STEP));
            }
            longest
        };
        LatenessMeter { ended, thread: spawn(measure) }
    }

    /// Returns the longest delay since the start.
    fn end(self) -> Duration {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
