//! When nothing runs: replicas are equal, free memory is not referenced, nothing is lost.
//!
//! A block that live entries refer into has one owner, the same in the tables of all replicas of
//! its region. Other blocks may be half-way between owners, where a message got lost or a client
//! crashed on the way.

use std::collections::BTreeSet;

use fusee_core::layout::{Address, Slot};
use fusee_core::verbs::ClientId;
use fusee_core::view::{Place, TABLE_ENTRY_BYTES, View};

use super::entries::all_slots;
use crate::cluster::Cluster;

/// Checks a cluster in which nothing runs.
///
/// # Panics
/// If a promise is broken.
pub fn at_rest(cluster: &Cluster) {
    let view = cluster.view().clone();
    replicas_agree(cluster);
    for slot in all_slots(&view) {
        let place = view.slot_places(slot).next().expect("a primary");
        let word = cluster.network().word_at(place);
        if !word.is_free() {
            let (region, block) = block_of(&view, word.address());
            let owners = owners_of(cluster, &view, region, block);
            let owned = owners.len() == 1 && !owners.contains(&ClientId::NOBODY);
            assert!(owned, "{slot:?} refers into block {block} of region {region} of {owners:?}");
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
