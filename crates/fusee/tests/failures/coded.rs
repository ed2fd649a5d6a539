//! Erasure-coded values on real processes. While a client reads and writes, the tests kill as many memory nodes as the
//! code has parity chunks, at the same time or one after the other.

// Promise RED-4
// Promise RED-10

use std::thread::sleep;
use std::time::Duration;

use fusee_client::{
    BlockingClient, Client, FabricChoice, Options, RedundancyRules, Transition, WriteError,
};

use super::cluster::{ClusterShape, FaultyCluster};

const KEYS: u32 = 60;

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Returns a value. For every third key it is too short to be coded.
fn value(n: u32, version: u32) -> Vec<u8> {
    let bytes = [300, 16 << 10, 60_000][n as usize % 3] + n as usize;
    (0..bytes).map(|at| (at as u32 * 31 + n * 7 + version * 13) as u8).collect()
}

fn client(cluster: &FaultyCluster) -> BlockingClient {
    client_with(cluster, "ec:4+2")
}

fn client_with(cluster: &FaultyCluster, redundancy: &str) -> BlockingClient {
    let redundancy = redundancy.parse().unwrap();
    let fabric: FabricChoice = cluster.fabric().parse().unwrap();
    let options = Options::default()
        .with_fabric(fabric)
        .with_redundancy(RedundancyRules::from_length(4 << 10, redundancy));
    Client::connect_with(cluster.address(), options).unwrap().blocking()
}

fn check(client: &BlockingClient, version: u32) {
    for n in 0..KEYS {
        assert!(client.get(&key(n)).unwrap() == Some(value(n, version)), "key {n}");
    }
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let found = client.get_many(&keys).unwrap();
    assert!(found.into_iter().zip(0..).all(|(found, n)| found == Some(value(n, version))));
}

fn put_all(client: &BlockingClient, version: u32) {
    (0..KEYS).for_each(|n| client.put(&key(n), &value(n, version)).unwrap());
}

fn survives_losses(fabric: &'static str) {
    let shape = ClusterShape {
        fabric,
        nodes: 6,
        index_replicas: 3,
        data_replicas: 3,
        ..ClusterShape::default()
    };
    let mut cluster = FaultyCluster::of(shape);
    let client = client(&cluster);
    put_all(&client, 0);
    check(&client, 0);
    assert_eq!(client.insert(&key(1), &value(1, 9)).unwrap_err(), WriteError::AlreadyExists);
    client.delete(&key(1)).unwrap();
    assert_eq!(client.get(&key(1)).unwrap(), None);
    client.insert(&key(1), &value(1, 0)).unwrap();

    // Two nodes are lost at the same time. Reads wait until the view has changed, and no longer.
    for node in cluster.nodes.drain(4..) {
        drop(node);
    }
    check(&client, 0);
    cluster.until_stable(4, false);
    put_all(&client, 1);
    check(&client, 1);

    // Other nodes replace the lost nodes. After that, two of the first nodes are lost, one after the other.
    cluster.start_node();
    cluster.start_node();
    cluster.until_stable(6, true);
    for left in [5, 4] {
        cluster.nodes.remove(0);
        check(&client, 1);
        cluster.until_stable(left, false);
    }
    check(&client, 1);
    put_all(&client, 2);
    check(&client, 2);
    // A new client finds all values.
    sleep(Duration::from_millis(10));
    check(&self::client(&cluster), 2);
}

#[test]
fn coded_values_survive_the_loss_of_as_many_nodes_as_there_is_parity_over_tcp() {
    survives_losses("tcp");
}

#[test]
fn coded_values_survive_the_loss_of_as_many_nodes_as_there_is_parity_over_shm() {
    survives_losses("shm");
}

/// Two nodes are lost and replaced, one after the other. Before the losses and after them, values change their
/// redundancy, in place where possible.
#[test]
fn ec_oriented_values_survive_losses_and_become_coded() {
    ec_oriented_values_survive("eor:2:4+2", &[5, 4]);
}

/// Values with two copies survive the loss of two nodes at the same time.
#[test]
fn ec_oriented_values_with_two_copies_survive_two_losses_at_once() {
    ec_oriented_values_survive("eor:3:4+2", &[4]);
}

/// Runs a test of EC-oriented values. `losses` has, for each loss, the number of nodes that remain.
fn ec_oriented_values_survive(oriented: &str, losses: &[usize]) {
    let shape = ClusterShape {
        fabric: "tcp",
        // Memory of one redundancy serves no other one, and this test uses three.
        pool: "256MiB",
        nodes: 6,
        index_replicas: 3,
        data_replicas: 3,
        ..ClusterShape::default()
    };
    let mut cluster = FaultyCluster::of(shape);
    let client = client_with(&cluster, oriented);
    put_all(&client, 0);
    check(&client, 0);
    let oriented = oriented.parse().unwrap();
    let coded = "ec:4+2".parse().unwrap();
    let long = || (0..KEYS).filter(|n| n % 3 > 0);
    let set = |keys: &mut dyn Iterator<Item = u32>, redundancy| {
        for n in keys {
            let went = client.set_redundancy(&key(n), redundancy).unwrap();
            assert_eq!(went, Transition::Moved, "key {n}");
            assert_eq!(client.redundancy_of(&key(n)).unwrap(), Some(redundancy));
        }
    };
    assert_eq!(client.redundancy_of(&key(1)).unwrap(), Some(oriented));
    set(&mut long().filter(|n| n % 2 == 0), coded);
    check(&client, 0);

    let mut version = 0;
    for left in losses {
        let lost: Vec<_> = cluster.nodes.drain(..cluster.nodes.len() - left).collect();
        drop(lost);
        check(&client, version);
        cluster.until_stable(*left, false);
        check(&client, version);
        version += 1;
        put_all(&client, version);
        check(&client, version);
    }
    cluster.start_node();
    cluster.start_node();
    cluster.until_stable(6, true);
    check(&client, version);
    put_all(&client, 3);
    // Values that were coded before have another redundancy now, because they were written while there were too few
    // memory nodes for the columns of the code.
    let has = |n: u32| client.redundancy_of(&key(n)).unwrap();
    assert!(long().all(|n| has(n) == Some(oriented)));
    for redundancy in [coded, oriented, coded] {
        set(&mut long(), redundancy);
        check(&client, 3);
    }
    put_all(&client, 4);
    assert!(long().all(|n| has(n) == Some(coded)), "now they can");
    check(&self::client(&cluster), 4);
}

#[test]
fn the_redundancy_of_a_value_is_asked_for_and_told() {
    let cluster = FaultyCluster::of(ClusterShape { nodes: 3, ..ClusterShape::default() });
    let value = "x".repeat(2000);
    let run = |arguments: &[&str]| cluster.run(arguments);
    let told = |key: &str| String::from_utf8(run(&["redundancy", "get", key]).stdout).unwrap();
    assert!(run(&["put", "coded", &value, "--redundancy", "ec:2+1"]).code == Some(0));
    assert!(run(&["put", "plain", &value]).code == Some(0));
    assert_eq!((&*told("coded"), &*told("plain")), ("ec:2+1\n", "replicated\n"));
    assert!(run(&["update", "coded", "short"]).code == Some(0));
    assert_eq!(told("coded"), "replicated\n");
    assert_eq!(run(&["redundancy", "get", "absent"]).code, Some(1));
    for (value, redundancy, why) in [
        (&*value, "ec:4+2", "takes 6 memory nodes"),
        ("short", "ec:2+1", "for values of at least 512"),
        (&*value, "ec:1+1", "k is at least 2"),
        (&*value, "raid", "is no redundancy"),
        (&*value, "eor:2:4+2", "takes 6 memory nodes"),
        (&*value, "eor:4:4+4", "it has 2 to 3"),
        (&*value, "eor:3:4+1", "at least 2 parity chunks"),
        (&*value, "eor:3:2+2", "at least 3 data chunks"),
    ] {
        let refused = run(&["put", "plain", value, "--redundancy", redundancy]);
        let error = refused.stderr;
        assert!(refused.code != Some(0) && error.contains(why), "{redundancy}: {error}");
    }
    assert_eq!(told("plain"), "replicated\n", "nothing has changed");
}

#[test]
fn the_redundancy_of_a_value_is_changed_and_the_value_stays() {
    let cluster = FaultyCluster::of(ClusterShape { nodes: 3, ..ClusterShape::default() });
    let value = "x".repeat(2000);
    let run = |arguments: &[&str]| cluster.run(arguments);
    let said = |arguments: &[&str]| String::from_utf8(run(arguments).stdout).unwrap();
    assert!(run(&["put", "key", &value]).code == Some(0));
    for (redundancy, answer) in [
        ("ec:2+1", "moved\n"),
        ("ec:2+1", "unchanged\n"),
        ("eor:2:2+1", "moved\n"),
        ("ec:2+1", "moved\n"),
        ("replicated", "moved\n"),
    ] {
        assert_eq!(said(&["redundancy", "set", "key", redundancy]), answer);
        assert_eq!(said(&["redundancy", "get", "key"]), format!("{redundancy}\n"));
        assert_eq!(said(&["get", "key"]), value);
    }
    for (key, redundancy, why) in [
        ("absent", "ec:2+1", "not found"),
        ("key", "ec:4+2", "takes 6 memory nodes"),
        ("key", "ec:9+1", "for values of at least 2304"),
    ] {
        let refused = run(&["redundancy", "set", key, redundancy]);
        let error = refused.stderr;
        assert!(refused.code == Some(1) && error.contains(why), "{redundancy}: {error}");
    }
    assert_eq!(said(&["redundancy", "get", "key"]), "replicated\n");
}
