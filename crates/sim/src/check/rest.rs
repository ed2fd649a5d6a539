//! When nothing runs: replicas are equal, free memory is not referenced, nothing is lost.
//!
//! Nothing is free and referenced: a live object lies before the first free one of its block, if
//! somebody may go on there. And where nothing went wrong, nothing is lost: every block that has an
//! owner is full, or its rest is known to the master. (What updates and deletes replace is garbage
//! by design until it can be reclaimed.)
//!
//! A block that live entries refer into has an owner in the tables of all replicas of its region: else
//! it could be given out again. It need not be the same owner everywhere, where a message got lost or
//! a client crashed while the block was handed on.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::node::BlockId;
use fusee_core::layout::{Address, BLOCK_HEADER_BYTES, BlockHeader, BlockShape, Object, Slot};
use fusee_core::verbs::ClientId;
use fusee_core::view::{Place, TABLE_ENTRY_BYTES, View};

use super::entries::all_slots;
use crate::cluster::Cluster;

/// Checks a cluster in which nothing runs, and in which every session has ended, by `rests`: the
/// first free object of each block that somebody may go on with.
///
/// # Panics
/// If a promise is broken.
pub fn at_rest(cluster: &Cluster, rests: &BTreeMap<BlockId, u32>) {
    let view = cluster.view().clone();
    replicas_agree(cluster);
    for slot in all_slots(&view) {
        let place = view.slot_places(slot).next().expect("a primary");
        let word = cluster.network().word_at(place);
        if !word.is_free() {
            let (region, block) = block_of(&view, word.address());
            let owners = owners_of(cluster, &view, region, block);
            let owned = !owners.contains(&ClientId::NOBODY);
            assert!(owned, "{slot:?} refers into block {block} of region {region} of {owners:?}");
            let class = word.class().expect("a live entry has one");
            let shape = BlockShape::new(view.geometry.block_bytes, class).expect("it fits");
            let start = view.geometry.block_address(region, block).bytes() + shape.offset(0);
            let number = (word.address().bytes() - start) / shape.object_bytes;
            let free = rests.get(&BlockId { region, block });
            assert!(
                free.is_none_or(|first| number < u64::from(*first)),
                "{slot:?} refers to object {number} of a block that is free from {free:?} on"
            );
        }
    }
}

/// Checks that every block with an owner is full, or has its rest among `rests`. To be asked where
/// no message was lost and nobody crashed.
///
/// # Panics
/// If one is lost.
pub fn nothing_is_lost(cluster: &Cluster, rests: &BTreeMap<BlockId, u32>) {
    let view = cluster.view().clone();
    let geometry = &view.geometry;
    for (number, region) in view.regions.iter().enumerate() {
        for block in 0..geometry.blocks_per_region() {
            let id = BlockId { region: number as u32, block };
            let owners = owners_of(cluster, &view, id.region, block);
            assert_eq!(owners.len(), 1, "{id:?} is half-way between {owners:?}");
            if owners.contains(&ClientId::NOBODY) || rests.contains_key(&id) {
                continue;
            }
            let place = region.places[0];
            let at = (place.offset + geometry.block_offset(block)) as usize;
            cluster.network().with(place.node, |memory| {
                let bytes = &memory.pool[at..][..geometry.block_bytes as usize];
                let header = bytes[..BLOCK_HEADER_BYTES as usize].try_into().expect("so long");
                let header = BlockHeader::decode(header);
                let header = header.unwrap_or_else(|| panic!("{id:?} of {owners:?} is lost"));
                let shape = BlockShape::new(geometry.block_bytes, header.class).expect("it fits");
                let last = shape.offset(shape.objects - 1) as usize;
                let last = &bytes[last..][..shape.object_bytes as usize];
                assert!(Object::decode(last).is_ok(), "the rest of {id:?} of {owners:?} is lost");
            });
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

/// Who owns a block, by the tables of all replicas.
fn owners_of(cluster: &Cluster, view: &View, region: u32, block: u32) -> BTreeSet<ClientId> {
    let entry = |place: &Place| {
        let at = place.offset + u64::from(block) * TABLE_ENTRY_BYTES;
        let owner = cluster.network().with(place.node, |memory| {
            let bytes = &memory.pool[at as usize..][..TABLE_ENTRY_BYTES as usize];
            ClientId(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
        });
        owner.expect("the nodes of the view are there")
    };
    view.regions[region as usize].places.iter().map(entry).collect()
}
