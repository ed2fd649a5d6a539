//! A session needs a block while more regions are being copied than one ALLOC message names.
//!
//! A memory node that is not told of a region would grant a block of it. At that time the owner table on the new
//! replica is already filled, and shows the block as free. If that replica later became the primary of the region, it
//! would grant the block to another session.

use std::collections::BTreeMap;
use std::sync::Arc;

use fusee_control::node::{Extent, JobRequest, MAX_ALLOC_REGIONS, NodeReply, NodeRequest};
use fusee_core::data::Redundancy;
use fusee_core::verbs::MnId;
use fusee_core::view::change::NewReplica;
use fusee_core::view::{PoolPlace, View};
use fusee_sim::check::check_quiescent;
use fusee_sim::{ClusterOptions, SimClient, SimCluster};

use super::{OPERATOR, alone, stepwise};

/// A session inserts a pair while all regions but one are being copied to a third memory node. After the copies it
/// inserts more pairs.
pub fn frozen_grant(seed: u64) {
    let options = ClusterOptions {
        memory_nodes: 3,
        index_replicas: 1,
        data_replicas: 2,
        index_keys: 200,
        pool_bytes: 24 << 20,
        ..ClusterOptions::default()
    };
    let (rng, cluster) = stepwise(seed, &options);
    let client = cluster.client();
    let formed = cluster.view().clone();
    let nodes: Vec<MnId> = formed.members.iter().map(|member| member.node).collect();
    let leader = rng.below(nodes.len());
    let lies_on = [nodes[leader], nodes[(leader + 1) % nodes.len()]];
    let first = formed.regions.len() as u32;
    let new = first..first + MAX_ALLOC_REGIONS as u32 + 4 + rng.below(8) as u32;
    let left_out = first + rng.below(new.len()) as u32;
    let places = |region| lies_on.map(|node| room(&cluster, &formed, region, node)).to_vec();
    let regions: Vec<(Redundancy, Vec<PoolPlace>)> =
        new.clone().map(|region| (Redundancy::Replicated, places(region))).collect();
    let mut view = formed.with_new_regions(&regions);
    (0..3).for_each(|_| view = view.advanced());
    let lead = JobRequest::Lead { regions: new.collect(), view: view.number };
    ask(&cluster, nodes[leader], lead);
    publish(&cluster, &client, &view);
    let gain = |region: u32| {
        let places = view.regions[region as usize].places();
        let joins = |node: &&MnId| places.iter().all(|place| place.node != **node);
        let node = *nodes.iter().find(joins).expect("two of three hold it");
        NewReplica { of: region, joining: room(&cluster, &view, region, node), leaving: None }
    };
    let all = 0..view.regions.len() as u32;
    let gains: Vec<NewReplica> = all.filter(|region| *region != left_out).map(gain).collect();
    view = view.growing(&[], &gains).advanced();
    publish(&cluster, &client, &view);
    // The regions are empty, so only the owner tables must be copied.
    for NewReplica { of: region, joining, .. } in gains {
        let source = view.regions[region as usize].primary().node;
        let asked = ask(&cluster, source, JobRequest::OwnersOf { region });
        let NodeReply::Owners(owners) = asked else { panic!("{asked:?}") };
        ask(&cluster, joining.node, JobRequest::SetOwners { region, owners });
    }
    let value = [7; 600];
    alone(&rng, client.insert(b"key", &value)).expect("one region has room");
    for _ in 0..2 {
        view = view.advanced();
        publish(&cluster, &client, &view);
    }
    // The session has possibly got blocks meanwhile that are still empty. These writes fill them, because the check
    // looks only at objects.
    for key in 0..30 {
        alone(&rng, client.insert(&[key], &value)).expect("there is room");
    }
    check_quiescent(&cluster, &BTreeMap::new());
}

fn ask(cluster: &SimCluster, node: MnId, request: JobRequest) -> NodeReply {
    let request = NodeRequest::OfJob { repairer: OPERATOR, job: 1, request };
    let reply = cluster.peek_node(node, request).expect("it lives");
    assert!(!matches!(reply, NodeReply::Refused(_)), "{reply:?}");
    reply
}

fn publish(cluster: &SimCluster, client: &SimClient, view: &View) {
    view.check().expect("it follows from a view that is right");
    cluster.checks().follow(view);
    client.session.gate().publish_view(&Arc::new(view.clone()));
}

fn room(cluster: &SimCluster, view: &View, region: u32, node: MnId) -> PoolPlace {
    let request = NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster: view.cluster,
        attempt: 1,
        view: view.number,
        extent: Extent::Region { region, primary: false },
        bytes: view.geometry.region_bytes,
        block_bytes: view.geometry.block_bytes,
    };
    match cluster.peek_node(node, request) {
        Some(NodeReply::Reserved { offset }) => PoolPlace { node, offset },
        other => panic!("{node} answers {other:?}"),
    }
}
