//! When nothing runs: replicas are equal, nothing that is referenced is free, nothing is lost.
//!
//! *Nothing referenced is free.* Every word of the index keeps an object: the pair that it refers to,
//! or the log object of whoever freed the slot. No two words keep one. Its free bit is not set, and it
//! lies before the part of its block that was never allocated. The block has an owner in the tables
//! of all replicas of its region: else it could be given out again. It need not be the same owner
//! everywhere, where a message got lost or a client crashed while the block was handed on.
//!
//! *Nothing is lost*, where nothing went wrong: every block with an owner is known to the master, and
//! every object of it is kept by a word, or marked as free, or was never allocated.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::Leftover;
use fusee_control::node::BlockId;
use fusee_core::layout::{Address, BLOCK_HEADER_BYTES, BlockShape, Slot};
use fusee_core::verbs::ClientId;
use fusee_core::view::{Place, SlotRef, TABLE_ENTRY_BYTES, View};

use super::entries::all_slots;
use crate::cluster::Cluster;

/// Checks a cluster in which nothing runs, and in which every session has ended, by what they left
/// to the master.
///
/// # Panics
/// If a promise is broken.
pub fn at_rest(cluster: &Cluster, leftovers: &BTreeMap<BlockId, Leftover>) {
    let view = cluster.view().clone();
    replicas_agree(cluster);
    for (object, (slot, word)) in kept(cluster, &view) {
        let (region, block) = block_of(&view, object);
        let owners = owners_of(cluster, &view, region, block);
        let owned = !owners.contains(&ClientId::NOBODY);
        assert!(
            owned,
            "{slot:?} keeps an object of block {block} of region {region} of {owners:?}"
        );
        assert!(!is_marked(cluster, &view, object), "{slot:?} with {word:?} keeps what is free");
        if let Some(Leftover { class, first, .. }) = leftovers.get(&BlockId { region, block }) {
            let shape = BlockShape::new(view.geometry.block_bytes, *class).expect("it fits");
            let (_, offset) = view.geometry.block_of(object).expect("it is in a block");
            let number = shape.object_at(offset);
            let number = number.unwrap_or_else(|| panic!("{slot:?} keeps no object with {word:?}"));
            let of_its_class = word.is_free() || word.class() == Some(*class);
            assert!(of_its_class, "{slot:?} with {word:?} refers into a block of {class:?}");
            assert!(
                number < *first,
                "{slot:?} keeps object {number} of a block, new from {first} on"
            );
        }
    }
}

/// Checks that every object of every block is kept, marked or new. To be asked where no message was
/// lost and nobody crashed.
///
/// # Panics
/// If one is lost.
pub fn nothing_is_lost(cluster: &Cluster, leftovers: &BTreeMap<BlockId, Leftover>) {
    let view = cluster.view().clone();
    let geometry = &view.geometry;
    let kept = kept(cluster, &view);
    for number in 0..view.regions.len() as u32 {
        for block in 0..geometry.blocks_per_region() {
            let id = BlockId { region: number, block };
            let owners = owners_of(cluster, &view, id.region, block);
            assert_eq!(owners.len(), 1, "{id:?} is half-way between {owners:?}");
            if owners.contains(&ClientId::NOBODY) {
                continue;
            }
            let Some(Leftover { class, first, marked, .. }) = leftovers.get(&id) else {
                panic!("{id:?} of {owners:?} is lost");
            };
            let led_since = view.regions[number as usize].led_since;
            assert_eq!(*marked, Some(led_since), "nobody has crashed: what is free is marked");
            let shape = BlockShape::new(geometry.block_bytes, *class).expect("it fits");
            let start = geometry.block_address(number, block).bytes();
            for object in 0..*first {
                let object = Address::new(start + shape.offset(object));
                let is_free = is_marked(cluster, &view, object);
                assert!(is_free || kept.contains_key(&object), "{object} of {id:?} is lost");
            }
        }
    }
}

/// The objects that the words of the index keep, each with its slot.
///
/// # Panics
/// If two keep the same.
fn kept(cluster: &Cluster, view: &View) -> BTreeMap<Address, (SlotRef, Slot)> {
    let mut kept = BTreeMap::new();
    for slot in all_slots(view) {
        let place = view.slot_places(slot).next().expect("a primary");
        let word = cluster.network().word_at(place);
        let Some(object) = word.object() else { continue };
        let before = kept.insert(object, (slot, word));
        assert_eq!(before, None, "{slot:?} keeps it as well, with {word:?}");
    }
    kept
}

/// Whether an object is marked as free.
fn is_marked(cluster: &Cluster, view: &View, object: Address) -> bool {
    let (block, word, bit) = view.geometry.free_bit(object).expect("an object in a block");
    let (region, offset) = view.region_of(block).expect("a block lies in a region");
    let Place { node, offset: start } = region.places[0];
    let bitmap = start + offset + BLOCK_HEADER_BYTES;
    let place = Place { node, offset: bitmap + u64::from(word) * 8 };
    cluster.network().word_at(place).0 & bit != 0
}

/// The block that an object lies in.
fn block_of(view: &View, object: Address) -> (u32, u32) {
    let (block, _) = view.geometry.block_of(object).expect("a word leads into a block");
    view.geometry.block_at(block).expect("a block begins there")
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
