//! When nothing runs: replicas are equal, free memory is not referenced, nothing is lost.
//!
//! Every block of every region is accounted for. A block has one owner, the same on all replicas
//! of its region's table; the owner is a session that has it, a session that left and whose rest
//! of it the master or another session knows, or one that crashed and was recovered. Objects that
//! slots refer to lie in owned blocks, before the first unused object of whoever goes on there.

use std::collections::{BTreeMap, BTreeSet};

use fusee_core::layout::{Address, Slot};
use fusee_core::verbs::ClientId;
use fusee_core::view::{Place, TABLE_ENTRY_BYTES, View};

use super::entries::all_slots;
use crate::cluster::Cluster;

/// Checks a cluster in which nothing runs. `dead` are the clients that crashed and whose block
/// table entries may differ between replicas: they crashed before they used the block.
///
/// # Panics
/// If a promise is broken.
pub fn at_rest(cluster: &Cluster, dead: &BTreeSet<ClientId>) {
    let view = cluster.view().clone();
    replicas_agree(cluster);
    let owners = block_owners(cluster, &view, dead);
    for slot in all_slots(&view) {
        let place = view.slot_places(slot).next().expect("a primary");
        let word = cluster.network().word_at(place);
        if !word.is_free() {
            let block = block_of(&view, word.address());
            let owner = owners.get(&block).copied().unwrap_or(ClientId::NOBODY);
            assert_ne!(owner, ClientId::NOBODY, "{slot:?} refers into the free block {block:?}");
        }
    }
}

/// The block that an object lies in.
fn block_of(view: &View, object: Address) -> (u32, u32) {
    let geometry = &view.geometry;
    let (_, offset) = view.region_of(object).expect("a live entry leads into a region");
    let region = (object.bytes() / geometry.region_bytes) as u32;
    let into_blocks = offset.checked_sub(geometry.block_offset(0));
    let block = into_blocks.expect("a live entry leads into a block") / geometry.block_bytes;
    (region, block as u32)
}

/// Checks that every slot holds the same word on all replicas, and none is tentative.
///
/// # Panics
/// If not.
pub fn replicas_agree(cluster: &Cluster) {
    let view = cluster.view();
    for slot in all_slots(&view) {
        let words: Vec<Slot> =
            view.slot_places(slot).map(|p| cluster.network().word_at(p)).collect();
        assert!(words.iter().all(|w| *w == words[0]), "{slot:?} differs at rest: {words:x?}");
        assert!(words[0].is_free() || !words[0].is_tentative(), "{slot:?} stays tentative");
    }
}

/// The owner of every block, by region and number.
fn block_owners(
    cluster: &Cluster,
    view: &View,
    dead: &BTreeSet<ClientId>,
) -> BTreeMap<(u32, u32), ClientId> {
    let mut owners = BTreeMap::new();
    for (region, number) in view.regions.iter().zip(0u32..) {
        for block in 0..view.geometry.blocks_per_region() {
            let entry = |place: &Place| {
                let at = place.offset + u64::from(block) * TABLE_ENTRY_BYTES;
                cluster.network().with(place.node, |memory| {
                    let bytes = &memory.pool[at as usize..][..4];
                    ClientId(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
                })
            };
            let seen: BTreeSet<ClientId> = region.places.iter().filter_map(entry).collect();
            let crashed = seen.iter().any(|owner| dead.contains(owner));
            assert!(
                seen.len() <= 1 || crashed,
                "block {block} of region {number} has several owners: {seen:?}"
            );
            if let Some(owner) = seen.last() {
                owners.insert((number, block), *owner);
            }
        }
    }
    owners
}
