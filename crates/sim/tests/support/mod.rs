//! Random and steered histories for tests. Most take no time and count steps; some take virtual time, such as
//! [`late_repairs`].
//!
//! The histories without time run on a [stepwise](SimCluster::stepwise) cluster: each poll of an operation executes one
//! piece of one verb, so every interleaving of steps follows from some seed. The runs of `fusee_sim::run`, in virtual
//! time, are longer and have all faults. The histories here are shorter and more numerous, and do what sessions do not
//! do: they use hints of any age, and stop clients at a given step.
//!
//! At every change of a primary's slot, the cluster itself checks that no key is live twice and that every live entry
//! leads to a complete object.
#![allow(dead_code, reason = "every test takes what it needs")]

pub mod bars;
pub mod block_bases;
pub mod changes;
pub mod copy_words;
pub mod crash;
pub mod crowded;
pub mod failures;
pub mod frozen_grant;
pub mod gone;
pub mod in_doubt;
pub mod late_repairs;
pub mod moved_pairs;
pub mod placements;
pub mod rates;
pub mod refill;
pub mod reuse;
pub mod scenarios;
pub mod scripted;
pub mod scrub;
pub mod seeds;
pub mod settled_set;
pub mod silent_column;
pub mod speculations;
pub mod stale_moves;
pub mod stale_orphan;
pub mod steered;
pub mod steered_changes;
pub mod steered_recovery;
pub mod steered_reuse;
pub mod suspended;
pub mod turns;
pub mod unheard;
pub mod workload;

use std::cell::Cell;
use std::collections::BTreeSet;

use fusee_control::node::{BlockId, NodeReply, NodeRequest};
use fusee_core::conflict_rules::settled_word;
use fusee_core::data::Region;
use fusee_core::error::Error;
use fusee_core::layout::{Address, Slot};
use fusee_core::recovery::BlockSpan;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Geometry, PoolPlace, SlotRef, Subtable, View};
use fusee_sim::{
    ClusterOptions, NetworkOptions, Rng, Sim, SimClient, SimCluster, SimFabric, Stepper,
};

/// The greatest number of steps of a run; a run with more steps is stuck.
pub const MAX_STEPS: u64 = 300_000;

/// The client id that tests use to recover clients and to settle slots. No session has this id.
const OPERATOR: ClientId = ClientId(u32::MAX - 1);

/// Makes a stepwise cluster, in which no time passes. Returns the cluster and the random numbers of its schedule.
pub fn stepwise(seed: u64, options: &ClusterOptions) -> (Rng, SimCluster) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::stepwise(&sim, options);
    (sim.rng().clone(), cluster)
}

/// Makes a cluster as [`stepwise`] does. In one of three such clusters, clients execute verbs themselves, as over
/// shared memory.
pub fn stepwise_or_immediate(seed: u64, options: &ClusterOptions) -> (Rng, SimCluster) {
    let (rng, cluster) = stepwise(seed, options);
    let network = cluster.network();
    let drawn = Rng::named(seed, "fabric");
    let immediate = drawn.one_in(3);
    let cards = !immediate && drawn.one_in(2);
    network.set_options(NetworkOptions { immediate, cards, ..network.options() });
    (rng, cluster)
}

/// Returns options for five nodes and an index of 6 or 12 slots, of which every key's two buckets are half.
pub fn small(seed: u64, index_replicas: u8) -> ClusterOptions {
    let geometry = Geometry {
        slots_per_bucket: 1 + Rng::named(seed, "shape").below(2) as u8,
        max_value_bytes: 512,
        ..ClusterOptions::default().geometry
    };
    let pool_bytes = 3 << 17;
    let defaults = ClusterOptions::default();
    ClusterOptions { memory_nodes: 5, index_replicas, geometry, pool_bytes, ..defaults }
}

/// Runs a task without any other task, and returns its result.
pub fn alone<T>(rng: &Rng, task: impl Future<Output = T>) -> T {
    let result = Cell::new(None);
    let mut stepper = Stepper::new(rng);
    stepper.spawn(async { result.set(Some(task.await)) });
    stepper.run(MAX_STEPS, || ());
    result.into_inner().expect("it ended")
}

/// Returns a fabric that belongs to no client.
pub fn operator_fabric(cluster: &SimCluster) -> SimFabric {
    SimFabric::new(cluster.network(), OPERATOR)
}

/// Makes clients, each with a block for small objects. Later clients in the list have larger addresses, and therefore
/// larger identities.
pub fn clients_in_order<const N: usize>(rng: &Rng, cluster: &SimCluster) -> [SimClient; N] {
    let mut clients = [(); N].map(|()| cluster.client());
    for client in &clients {
        let nothing = alone(rng, client.update(b"none", b"", None));
        assert_eq!(nothing, Err(Error::NotFound));
    }
    clients.sort_by_cached_key(|client| blocks_of(cluster, client.client()));
    clients
}

/// Returns the largest block with this number in a region.
pub fn largest_block(geometry: &Geometry, region: u32, number: u32) -> BlockSpan {
    let order = geometry.max_order();
    let address = geometry.frame_address(region, number << order);
    BlockSpan { address, bytes: geometry.order_bytes(order) }
}

/// Returns the blocks of a client, according to the owner tables of the memory nodes.
pub fn blocks_of(cluster: &SimCluster, client: ClientId) -> Vec<BlockSpan> {
    let at = |node| match cluster.peek_node(node, NodeRequest::BlocksOf { clients: vec![client] }) {
        Some(NodeReply::Blocks(blocks)) => blocks,
        None => Vec::new(),
        other => panic!("{node} answers {other:?}"),
    };
    let nodes = cluster.nodes().processes();
    let owned = nodes.into_iter().flat_map(|(node, _)| at(node));
    let blocks: BTreeSet<BlockId> = owned.map(|owned| owned.block).collect();
    let geometry = cluster.view().geometry;
    let span = |b: &BlockId| BlockSpan { address: b.address(&geometry), bytes: b.bytes(&geometry) };
    blocks.iter().map(span).collect()
}

/// Returns the address of the block that has this address, according to the table of the region's primary.
pub fn block_with(cluster: &SimCluster, address: Address) -> Address {
    let view = cluster.view();
    let (region, frame) = view.geometry.frame_of(address).expect("it lies in a frame");
    let node = view.regions[region as usize].primary().node;
    let Some(NodeReply::Owners(table)) = cluster.peek_node(node, NodeRequest::OwnersOf { region })
    else {
        panic!("{node} does not know region {region}");
    };
    let before = table.iter().rfind(|(first, _)| *first <= frame);
    view.geometry.frame_address(region, before.expect("blocks cover the region").0)
}

/// Returns the log areas of a client on all memory nodes that are left.
pub fn log_areas_of(cluster: &SimCluster, client: ClientId) -> Vec<(MnId, u32)> {
    let nodes = cluster.nodes().processes().into_iter();
    let areas = nodes.flat_map(|(node, _)| {
        match cluster.peek_node(node, NodeRequest::LogAreasOf { clients: vec![client] }) {
            Some(NodeReply::LogAreas(areas)) => {
                areas.into_iter().map(|(_, area)| (node, area)).collect()
            }
            None => Vec::new(),
            other => panic!("{node} answers {other:?}"),
        }
    });
    areas.collect()
}

/// Returns every slot of a view.
pub fn all_slots(view: &View) -> impl Iterator<Item = SlotRef> + use<> {
    let slots = view.geometry.subtable_slots() as u32;
    (0..view.subtables.len() as u32)
        .flat_map(move |subtable| (0..slots).map(move |slot| SlotRef { subtable, slot }))
}

/// Returns the words of a slot on the live nodes.
fn words_of(cluster: &SimCluster, view: &View, slot: SlotRef) -> Vec<Slot> {
    let lives = |place: &PoolPlace| cluster.network().memories().has(place.node);
    view.slot_places(slot)
        .filter(lives)
        .map(|place| cluster.network().memories().word_at(place))
        .collect()
}

/// Returns the words of all slots on all replicas.
pub fn index(cluster: &SimCluster) -> Vec<Slot> {
    let view = cluster.view();
    all_slots(&view).flat_map(|slot| words_of(cluster, &view, slot)).collect()
}

/// Returns whether the replicas of any slot differ, which means that some client is in the middle of a conflict round.
pub fn replicas_differ(cluster: &SimCluster) -> bool {
    let view = cluster.view();
    all_slots(&view).any(|slot| {
        let words = words_of(cluster, &view, slot);
        words.iter().any(|word| *word != words[0])
    })
}

/// Publishes the next view, without a lost node.
pub fn forget(cluster: &SimCluster, lost: MnId) {
    let mut view = cluster.view().clone();
    view.number += 1;
    view.members.retain(|m| m.node != lost);
    let left = |places: &[PoolPlace]| places.iter().copied().filter(|p| p.node != lost).collect();
    for subtable in &mut view.subtables {
        *subtable = Subtable::new(subtable.local_depth, left(subtable.replicas()));
    }
    for region in &mut view.regions {
        *region = Region::replicated(left(region.places()), region.primary_since());
    }
    view.check().expect("every subtable and region has a replica left");
    cluster.checks().follow(&view);
}

/// Loses the node of an index replica, settles every slot in a random way that P §5.2 allows, and publishes the next
/// view. To be called only while no client runs. Clients of the old view must not be used again.
pub fn lose_index_replica(rng: &Rng, cluster: &SimCluster) {
    let lost = {
        let view = cluster.view();
        let replicas = view.subtables[0].replicas();
        replicas[rng.below(replicas.len())].node
    };
    lose_node(rng, cluster, lost);
}

/// Loses a given node, as [`lose_index_replica`] does.
pub fn lose_node(rng: &Rng, cluster: &SimCluster, lost: MnId) {
    let view = cluster.view().clone();
    cluster.nodes().crash(lost);
    for slot in all_slots(&view) {
        let places: Vec<PoolPlace> = view.slot_places(slot).collect();
        let word_of = |i: usize| {
            (places[i].node != lost).then(|| cluster.network().memories().word_at(places[i]))
        };
        let backups: Vec<Slot> = (1..places.len()).filter_map(word_of).collect();
        let word = settled_word(word_of(0), &backups, rng.below(backups.len().max(1)));
        for place in places.iter().filter(|p| p.node != lost) {
            cluster.network().memories().overwrite(*place, word.0);
        }
    }
    forget(cluster, lost);
}
