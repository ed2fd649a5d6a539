//! Values without redundancy on real processes: a loss of a memory node loses its values, and no others.

// Promise RED-13

use std::collections::BTreeSet;
use std::time::Instant;

use fusee_client::{
    BlockingClient, Client, FabricChoice, Options, PutOptions, Redundancy, Transition, WriteError,
};

use super::cluster::{ClusterShape, FaultyCluster, patience};

const KEYS: u32 = 120;
const CODED: &str = "ec:2+1";
/// Length of a value. A block has room for a dozen values.
const VALUE_BYTES: u32 = 20_000;

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u32, version: u32) -> Vec<u8> {
    (0..VALUE_BYTES + n).map(|at| (at * 31 + n * 7 + version * 13) as u8).collect()
}

fn redundancy(n: u32) -> Redundancy {
    [Redundancy::None, Redundancy::Replicated, CODED.parse().unwrap()][n as usize % 3]
}

fn single() -> impl Iterator<Item = u32> {
    (0..KEYS).filter(|n| redundancy(*n) == Redundancy::None)
}

fn named(redundancy: Redundancy) -> PutOptions {
    PutOptions::default().with_redundancy(redundancy)
}

/// Reads all keys, each within half the patience. Returns the missing keys, and asserts that they have no redundancy.
fn missing(client: &BlockingClient) -> BTreeSet<u32> {
    let mut missing = BTreeSet::new();
    for n in 0..KEYS {
        let begun = Instant::now();
        let found = client.get(&key(n)).unwrap();
        assert!(begun.elapsed() < patience() / 2, "key {n} took {:?}", begun.elapsed());
        match found {
            Some(found) => assert!(found == value(n, 0), "key {n}"),
            None => assert!(missing.insert(n)),
        }
    }
    assert!(missing.iter().all(|n| redundancy(*n) == Redundancy::None), "{missing:?}");
    let found = client.get_many(&(0..KEYS).map(key).collect::<Vec<_>>()).unwrap();
    let absent = (0..).zip(found).filter(|(_, value)| value.is_none()).map(|(n, _)| n);
    assert_eq!(absent.collect::<BTreeSet<u32>>(), missing);
    missing
}

#[test]
fn values_without_redundancy_go_with_their_node_and_nothing_else_does() {
    let shape = ClusterShape {
        fabric: "tcp",
        nodes: 4,
        index_replicas: 2,
        data_replicas: 2,
        ..ClusterShape::default()
    };
    let mut cluster = FaultyCluster::of(shape);
    let fabric: FabricChoice = cluster.fabric().parse().unwrap();
    let client = Client::connect_with(cluster.address(), Options::default().with_fabric(fabric))
        .unwrap()
        .blocking();
    for n in 0..KEYS {
        client.put_with(&key(n), &value(n, 0), named(redundancy(n))).unwrap();
    }
    assert_eq!(missing(&client), BTreeSet::new());
    assert_eq!(client.redundancy_of(&key(0)).unwrap(), Some(Redundancy::None));

    // The test removes a node that has some of the values without redundancy. Other nodes have the other values without
    // redundancy.
    let view = cluster.status().unwrap().view.unwrap();
    let regions = view.regions.iter().filter(|region| region.redundancy() == Redundancy::None);
    let lost = regions.filter_map(|region| region.leader()).next().expect("there are such regions");
    let at = (0..cluster.nodes.len()).find(|at| cluster.name_of(*at) == Some(lost)).unwrap();
    drop(cluster.nodes.remove(at));
    let gone = missing(&client);
    cluster.until_stable(3, false);
    assert!(!gone.is_empty() && gone.len() < single().count(), "{gone:?}");
    assert_eq!(missing(&client), gone, "no more and no fewer");
    let first = *gone.first().unwrap();
    for failed in [
        client.update(&key(first), b"x").unwrap_err(),
        client.delete(&key(first)).unwrap_err(),
        client.set_redundancy(&key(first), Redundancy::Replicated).unwrap_err(),
    ] {
        assert_eq!(failed, WriteError::NotFound);
    }

    // The status reports the loss, by node.
    let report = cluster.run(&["status", "--json"]).json();
    assert_eq!(report["lost_without_redundancy"][0]["node"], lost.to_string());
    let text = cluster.run(&["status"]).text();
    assert!(
        text.contains("lost without redundancy:") && text.contains(&format!("with {lost}")),
        "{text}"
    );
    let text = cluster.run(&["status", "--memory"]).expect_code(0).text();
    assert!(text.contains(&format!("lost without redundancy, with {lost}: ")), "{text}");

    // Lost keys can be inserted again, into the remaining regions.
    for n in &gone {
        client.put_with(&key(*n), &value(*n, 0), named(Redundancy::None).if_absent()).unwrap();
        assert_eq!(client.insert(&key(*n), b"x").unwrap_err(), WriteError::AlreadyExists);
    }
    assert_eq!(missing(&client), BTreeSet::new());

    // A key changes its redundancy from none to replicated, and back. Then a drain moves the node's values to other
    // nodes.
    cluster.start_node();
    cluster.until_stable(4, true);
    for wanted in [Redundancy::Replicated, Redundancy::None] {
        assert_eq!(client.set_redundancy(&key(first), wanted).unwrap(), Transition::Moved);
        assert_eq!(client.redundancy_of(&key(first)).unwrap(), Some(wanted));
    }
    cluster.drain(0);
    assert_eq!(missing(&client), BTreeSet::new());
    assert_eq!(cluster.run(&["put", "mine", "x", "--redundancy", "none"]).code, Some(0));
    assert_eq!(cluster.run(&["redundancy", "get", "mine"]).expect_code(0).text(), "none\n");
}
