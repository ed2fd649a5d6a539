//! A pool that grows and shrinks under load: regions are added when needed, a memory node joins, and another is
//! drained.

// Promise CHG-11: Regions and nodes come and go in clusters of processes.

use std::collections::BTreeMap;

use fusee_client::{BlockingClient, Client, FabricChoice, Options, Status, View};
use fusee_control::master::MemberState;
use fusee_core::verbs::MnId;

use super::cluster::FaultyCluster;
use super::common::fusee;

/// Number of keys in addition to the load's keys. Their values have the largest length, and do not fit into the first
/// regions.
const KEYS: u32 = 800;
const VALUE_BYTES: usize = 60 << 10;

fn value(key: u32) -> Vec<u8> {
    key.to_le_bytes().repeat(VALUE_BYTES / 4)
}

fn check_values(client: &BlockingClient) {
    for key in 0..KEYS {
        let found = client.get(&key.to_le_bytes()).unwrap();
        assert!(found.as_deref() == Some(&value(key)[..]), "key {key}");
    }
}

/// Returns the number of region replicas on each member.
fn shares(view: &View) -> BTreeMap<MnId, usize> {
    let places = || view.regions.iter().flat_map(|region| region.places());
    let count = |node| places().filter(|place| place.node == node).count();
    view.members.iter().map(|member| (member.node, count(member.node))).collect()
}

fn is_quiescent(status: &Status) -> bool {
    let stable = status.view.as_ref().is_some_and(|view| view.change.is_none());
    stable && !status.rebalancing && status.missing_replicas == 0
}

fn grow_and_shrink(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_long_leases(fabric);
    cluster.load(2, 2);
    let regions = |status: &Status| status.view.as_ref().map_or(0, |view| view.regions.len());
    let options = Options::default().with_fabric(fabric.parse::<FabricChoice>().unwrap());
    let client = Client::connect_with(cluster.address(), options).unwrap().blocking();
    for key in 0..KEYS {
        client.insert(&key.to_le_bytes(), &value(key)).unwrap();
    }
    assert!(regions(&cluster.status().unwrap()) > 3, "the pool has grown");
    cluster.all_get_on("with more regions");

    cluster.start_node();
    let status = cluster.until("the fourth has its share", |status| {
        let view = status.view.as_ref().unwrap();
        view.members.len() == 4 && is_quiescent(status)
    });
    let counts = shares(status.view.as_ref().unwrap());
    let least = counts.values().min().unwrap();
    let most = counts.values().max().unwrap();
    assert!(most - least <= 1, "{counts:?}");
    cluster.all_get_on("with a fourth memory node");
    check_values(&client);

    // The drained node is any but the one that joined last.
    let leaves = cluster.choose(3);
    let name = cluster.name_of(leaves).unwrap();
    cluster.drain(leaves);
    let status = cluster.status().unwrap();
    assert!(status.view.unwrap().member(name).is_none());
    let state = status.members.iter().find(|member| member.node == name).unwrap().state;
    assert_eq!(state, MemberState::Drained);
    cluster.all_get_on("after the drain");
    check_values(&client);
    drop(client);

    // Three replicas of the index need three memory nodes, so no further node can be drained.
    let name = cluster.name_of(3).unwrap().to_string();
    let output = fusee(&["drain", &name, "--master", cluster.address()]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("start another memory node first"), "{errors}");
    cluster.finish();
}

#[test]
fn the_pool_grows_and_shrinks_on_shared_memory() {
    grow_and_shrink("shm");
}

#[test]
fn the_pool_grows_and_shrinks_over_tcp() {
    grow_and_shrink("tcp");
}
