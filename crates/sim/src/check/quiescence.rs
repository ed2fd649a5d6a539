//! Checks of a cluster at rest: replicas are equal, no referenced object is free, no memory is lost.
//!
//! *Replicas are equal.* The replicas of the index are equal word for word, and so are the replicas of each live
//! entry's object. Free bitmaps are an exception: only the bitmap on the first replica of a region is used. The bitmaps
//! on its other replicas must be zeros, so that no object seems free when another replica becomes the first.
//!
//! *No referenced object is free.* A word of the index keeps the pair that the word refers to, or the object of an
//! INSERT that has withdrawn. No two words keep one object. The object's free bit is not set, and the object is not in
//! the block's remainder, which was never allocated. The tables of all replicas of the region show an owner for the
//! block, because a block without an owner could be allocated again. The owner is allowed to differ between replicas,
//! because a message is possibly lost, or a client crashes, while the block is handed on. But each memory node must use
//! the owners of its own table.
//!
//! *No memory is lost*, if there were no faults: the master knows every block with an owner, and every object of the
//! block is kept by a word, or is free, or was never allocated. After faults this holds only for blocks whose free
//! objects are all marked, and except for objects that recovered sessions had taken ([`lost_objects`]).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fusee_control::master::Orphan;
use fusee_control::node::{BlockId, NodeReply, NodeRequest};
use fusee_core::layout::{
    Address, BlockShape, Chunk, Identity, Object, Slot, TableEntry, bitmap_bytes, copy_of,
};
use fusee_core::race::Buckets;
use fusee_core::verbs::ClientId;
use fusee_core::view::{PoolPlace, SlotRef, TABLE_ENTRY_BYTES, View};

use super::entries::{all_slots, copies_kept_by, object_of};
use crate::cluster::SimCluster;

/// Checks a cluster in which no operation runs and every session has ended. `orphans` are the blocks that the sessions
/// have left to the master.
///
/// # Panics
/// If a promise is broken.
pub fn check_quiescent(cluster: &SimCluster, orphans: &BTreeMap<BlockId, Orphan>) {
    let view = cluster.view().clone();
    check_replicas_agree(cluster);
    check_owner_tables(cluster, &view);
    check_free_blocks(cluster, &view);
    for (object, (slot, word)) in kept(cluster, &view) {
        let blocks = blocks_with(cluster, &view, object);
        let id = blocks[0].0;
        let is_owned =
            blocks.iter().all(|(block, owner)| *block == id && *owner != ClientId::NOBODY);
        assert!(is_owned, "{slot:?} keeps an object of {blocks:?}");
        assert!(!is_marked(cluster, &view, object), "{slot:?} with {word:?} keeps what is free");
        if let Some(Orphan { class, first, .. }) = orphans.get(&id) {
            let shape = BlockShape::new(id.bytes(&view.geometry), *class).expect("it fits");
            let offset = object.bytes() - id.address(&view.geometry).bytes();
            let number = shape.object_at(offset);
            let number = number.unwrap_or_else(|| panic!("{slot:?} keeps no object with {word:?}"));
            let is_copy = word.object() != Some(object);
            let of_its_class = word.is_free() || is_copy || word.class() == Some(*class);
            assert!(of_its_class, "{slot:?} with {word:?} refers into a block of {class:?}");
            assert!(
                number < *first,
                "{slot:?} keeps object {number} of a block, new from {first} on"
            );
        }
    }
}

/// Checks that every object of every block is kept in use by a word, marked as free, or never allocated. This is true
/// only in runs without lost messages and crashes.
///
/// # Panics
/// If an object is lost.
pub fn check_nothing_lost(cluster: &SimCluster, orphans: &BTreeMap<BlockId, Orphan>) {
    let view = cluster.view().clone();
    let geometry = &view.geometry;
    let kept = kept(cluster, &view);
    let there = (0u32..).zip(&view.regions).filter(|(_, region)| region.is_there());
    for (number, _) in there {
        let places = view.regions[number as usize].places();
        let owned = places.iter().map(|place| owned_at(cluster, &view, number, place));
        let owned: BTreeSet<BTreeMap<BlockId, ClientId>> = owned.collect();
        assert_eq!(owned.len(), 1, "blocks of region {number} are half-way between owners");
        for (id, owner) in owned.into_iter().flatten() {
            let Some(Orphan { class, first, marked, .. }) = orphans.get(&id) else {
                panic!("{id:?} of {owner} is lost");
            };
            let primary_since = view.regions[number as usize].primary_since();
            assert_eq!(*marked, Some(primary_since), "nobody has crashed: what is free is marked");
            let shape = BlockShape::new(id.bytes(geometry), *class).expect("it fits");
            let start = id.address(geometry).bytes();
            for object in 0..*first {
                let object = Address::new(start + shape.offset(object));
                let is_free = is_marked(cluster, &view, object);
                assert!(is_free || kept.contains_key(&object), "{object} of {id:?} is lost");
            }
        }
    }
}

/// Returns the objects that are neither kept in use by a word, nor free, nor never allocated, in blocks that need no
/// comparison with the index. Can be called even after memory nodes and clients were lost.
pub fn lost_objects(cluster: &SimCluster, orphans: &BTreeMap<BlockId, Orphan>) -> Vec<Address> {
    let view = cluster.view().clone();
    let kept = kept(cluster, &view);
    let mut lost = Vec::new();
    for (id, Orphan { owner, class, first, marked, .. }) in orphans {
        let region = &view.regions[id.region as usize];
        if !region.is_there() || *marked != Some(region.primary_since()) {
            continue;
        }
        // The owner table takes precedence over the master's record: the master possibly still has a record of a block
        // that was given back, and a session that relies on the record is refused.
        if owned_at(cluster, &view, id.region, &region.places()[0]).get(id) != Some(owner) {
            continue;
        }
        let shape = BlockShape::new(id.bytes(&view.geometry), *class).expect("it fits");
        let start = id.address(&view.geometry).bytes();
        let objects = (0..*first).map(|object| Address::new(start + shape.offset(object)));
        let is_lost = |at: &Address| !kept.contains_key(at) && !is_marked(cluster, &view, *at);
        lost.extend(objects.filter(is_lost));
    }
    lost
}

/// Returns the objects that the words of the index keep in use, each with its slot.
///
/// # Panics
/// If two words keep the same object.
fn kept(cluster: &SimCluster, view: &View) -> BTreeMap<Address, (SlotRef, Slot)> {
    let mut kept = BTreeMap::new();
    for slot in all_slots(view) {
        let place = view.slot_on_primary(slot);
        let word = cluster.network().memories().word_at(place);
        let Some(object) = word.object() else { continue };
        let copies = copies_kept_by(cluster.network().memories(), view, word).into_iter();
        let copies = copies.map(|copy| copy.address());
        // An object that was lost with its only node does not count as kept.
        let is_there = |at: &Address| view.object(*at, 1).is_some();
        for object in core::iter::once(object).chain(copies).filter(is_there) {
            let before = kept.insert(object, (slot, word));
            assert_eq!(before, None, "{slot:?} keeps it as well, with {word:?}");
        }
    }
    kept
}

/// Returns whether an object is marked as free.
fn is_marked(cluster: &SimCluster, view: &View, object: Address) -> bool {
    let (place, bit) = view.free_bit(object).expect("an object in a block");
    cluster.network().memories().word_at(place).0 & bit != 0
}

/// Returns the block of an object and its owner, as each replica of the block table shows them.
fn blocks_with(cluster: &SimCluster, view: &View, object: Address) -> Vec<(BlockId, ClientId)> {
    let geometry = &view.geometry;
    let (region, frame) = geometry.frame_of(object).expect("a word leads into a block");
    let places = view.regions[region as usize].places().iter();
    let at = |place: &PoolPlace| {
        let entry_at = |frame: u32| entry_at(cluster, place, frame);
        let found = TableEntry::of_block_with(frame, geometry.max_order(), entry_at);
        let (frame, TableEntry { order, owner, .. }) = found.expect("a table covers its region");
        (BlockId { region, frame, order }, owner)
    };
    places.map(at).collect()
}

/// Checks that every slot holds one word on all replicas, that no word is tentative, that every entry leads to an
/// object that is equal on all its replicas, and that only the first replicas of regions have bits set in free bitmaps.
///
/// # Panics
/// If one of these does not hold.
// Promise LIN-8: At rest all replicas agree, and lookups find every entry.
pub fn check_replicas_agree(cluster: &SimCluster) {
    let view = cluster.view();
    for slot in all_slots(&view) {
        let words: Vec<Slot> =
            view.slot_places(slot).map(|p| cluster.network().memories().word_at(p)).collect();
        assert!(words.iter().all(|w| *w == words[0]), "{slot:?} differs at rest: {words:x?}");
        assert!(words[0].is_free() || !words[0].is_tentative(), "{slot:?} stays tentative");
        if !words[0].is_free() && !view.is_gone(words[0]) {
            check_entry_objects(cluster, &view, slot, words[0]);
        }
    }
    check_marks(cluster, &view);
}

/// Checks that the entry in a slot is found by its key, and that its object is complete on all replicas, or on at least
/// one if memory was damaged.
fn check_entry_objects(cluster: &SimCluster, view: &View, slot: SlotRef, word: Slot) {
    let class = word.class().unwrap_or_else(|| panic!("{slot:?} leads nowhere: {word:x?}"));
    let object = view.object(word.address(), class.bytes());
    let object = object.unwrap_or_else(|| panic!("{slot:?} leads out of the regions: {word:x?}"));
    if object.columns().is_some() {
        let (key, parts) = object_of(cluster.network().memories(), view, word);
        check_redundancy(cluster, view, word, &parts);
        check_copy_words(cluster, view, slot, word);
        let buckets = Buckets::of(&key, view);
        let is_here = buckets.covers(slot) && buckets.fingerprint == word.fingerprint();
        assert!(is_here, "{slot:?} with {word:x?} is not where its key is looked for");
        return;
    }
    let rots = cluster.network().memories().rots();
    let mut first: Option<(Vec<u8>, Vec<u8>)> = None;
    for place in object.places() {
        let bytes = bytes_at(cluster, place, class.bytes());
        let object = match Object::decode_of(&bytes, word.object_identity()) {
            Ok(object) => object,
            Err(_) if rots => continue,
            Err(why) => panic!("{slot:?} with {word:x?} leads to no object at {place:?}: {why}"),
        };
        let buckets = Buckets::of(object.key(), view);
        let is_here = buckets.covers(slot) && buckets.fingerprint == word.fingerprint();
        assert!(is_here, "{slot:?} with {word:x?} is not where its key is looked for");
        let pair = (object.key().to_vec(), object.value().to_vec());
        let is_same = first.as_ref().is_none_or(|first| *first == pair);
        assert!(is_same, "the object of {slot:?} with {word:x?} differs at {place:?}");
        first.get_or_insert(pair);
    }
    assert!(first.is_some(), "{slot:?} with {word:x?} leads to no object that is whole");
}

/// Checks that an object which is allowed to lack parity survives the loss of as many nodes as the object has copies.
/// For this the object needs all data chunks, and either the parity or all copies, each copy on a node of its own.
fn check_redundancy(
    cluster: &SimCluster,
    view: &View,
    word: Slot,
    parts: &[(PoolPlace, Rc<[u8]>)],
) {
    let object = view.object_of(word).expect("it was there");
    let columns = object.columns().expect("it has chunks");
    if !columns.may_lack_parity() || !object.has_copy(word) || cluster.network().memories().rots() {
        return;
    }
    let identity = object.identity_of(word);
    let coding = columns.coding();
    let columns: Vec<(PoolPlace, usize)> =
        object.places().zip(columns.chunks().iter().map(|n| usize::from(*n))).collect();
    let has_parity = columns.iter().filter(|(_, n)| *n >= coding.k()).all(|(place, number)| {
        let bytes = bytes_at(cluster, *place, object.bytes());
        Chunk::decode_of(&bytes, identity, coding, *number).is_ok()
    });
    let copies = parts.iter().filter(|(place, _)| {
        let is_beside = |(part, n): &(PoolPlace, usize)| *n < coding.k() && part.node == place.node;
        !columns.iter().any(|(part, _)| part == place) && !columns.iter().any(is_beside)
    });
    let nodes: BTreeSet<_> = copies.map(|(place, _)| place.node).collect();
    let has_copies = nodes.len() == object.copies();
    assert!(has_parity || has_copies, "{word:?} has neither parity nor its copies beside its data");
}

/// Checks that every data chunk of an object names all copies of the word's turn, and that all data chunks name the
/// same copies, because all chunks but one can be lost.
// Promise RED-19: At rest, data chunks name all copies of the turn.
fn check_copy_words(cluster: &SimCluster, view: &View, slot: SlotRef, word: Slot) {
    let object = view.object_of(word).expect("it was there");
    let columns = object.columns().expect("it has chunks");
    if !object.has_copy(word) || cluster.network().memories().rots() {
        return;
    }
    let identity = object.identity_of(word);
    let data = object.copy_words(word).zip(columns.chunks());
    let data = data.filter(|(_, chunk)| usize::from(**chunk) < columns.coding().k());
    let named = |(place, _): (PoolPlace, &u8)| -> Vec<Option<Identity>> {
        let word =
            |number: usize| cluster.network().memories().word_at(place.plus(8 * number as u64)).0;
        (0..object.copies()).map(|number| copy_of(identity, number, word(number))).collect()
    };
    let named: Vec<Vec<Option<Identity>>> = data.map(named).collect();
    let is_whole = |of_chunk: &Vec<Option<Identity>>| {
        of_chunk.iter().all(Option::is_some) && *of_chunk == named[0]
    };
    assert!(named.iter().all(is_whole), "{slot:?} with {word:?}: data chunks name {named:?}");
}

fn check_marks(cluster: &SimCluster, view: &View) {
    let bytes = bitmap_bytes(view.geometry.region_bytes);
    for (number, region) in view.regions.iter().enumerate() {
        for place in region.backups() {
            let bitmap = bytes_at(cluster, place.plus(view.geometry.table_bytes()), bytes);
            let is_clear = bitmap.iter().all(|byte| *byte == 0);
            assert!(is_clear, "region {number} has marks at {place:?}");
        }
    }
}

/// # Panics
/// If the node is lost.
fn bytes_at(cluster: &SimCluster, place: PoolPlace, bytes: u64) -> Vec<u8> {
    let at = place.offset as usize;
    let found = cluster
        .network()
        .memories()
        .with(place.node, |memory| memory.pool[at..at + bytes as usize].to_vec());
    found.expect("the nodes of the view are there")
}

/// Checks that each memory node knows the owners that the table in its pool shows, because a node that becomes the
/// primary of a region hands out the blocks that its own table shows as free.
// Promise MEM-16: Memory nodes go by the owner tables in their pools.
fn check_owner_tables(cluster: &SimCluster, view: &View) {
    for (region, places) in (0u32..).zip(view.regions.iter().map(|region| region.places())) {
        for place in places {
            let known = cluster.peek_node(place.node, NodeRequest::OwnersOf { region });
            let Some(NodeReply::Owners(known)) = known else {
                panic!("{} does not know region {region}: {known:?}", place.node);
            };
            let shown: Vec<(u32, TableEntry)> = table_at(cluster, view, place);
            assert_eq!(known, shown, "whose the blocks of region {region} are, at {place:?}");
        }
    }
}

/// Checks that free blocks contain only zeros on all replicas, headers included: the next owner of a block takes a
/// header for that of an earlier owner that handed the block on.
fn check_free_blocks(cluster: &SimCluster, view: &View) {
    for (number, region) in view.regions.iter().enumerate() {
        for place in region.places() {
            let table = table_at(cluster, view, place).into_iter();
            for (frame, entry) in table.filter(|(_, entry)| entry.owner == ClientId::NOBODY) {
                let at = place.plus(view.geometry.frame_offset(frame));
                let bytes = bytes_at(cluster, at, view.geometry.order_bytes(entry.order));
                let is_clear = bytes.iter().all(|byte| *byte == 0);
                assert!(
                    is_clear,
                    "frame {frame} of region {number} is free and not empty at {place:?}"
                );
            }
        }
    }
}

/// Returns all blocks that the table on one replica of a region shows.
fn table_at(cluster: &SimCluster, view: &View, place: &PoolPlace) -> Vec<(u32, TableEntry)> {
    let geometry = &view.geometry;
    let frames = u64::from(geometry.frames_per_region());
    let bytes = bytes_at(cluster, *place, frames * TABLE_ENTRY_BYTES);
    let words = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes);
    TableEntry::all(words, |frame, order| geometry.is_block(frame, order)).collect()
}

/// Returns the blocks with owners that the table on one replica of a region shows.
fn owned_at(
    cluster: &SimCluster,
    view: &View,
    region: u32,
    place: &PoolPlace,
) -> BTreeMap<BlockId, ClientId> {
    let owned = table_at(cluster, view, place).into_iter();
    let owned = owned.filter(|(_, entry)| entry.owner != ClientId::NOBODY);
    let id = |(frame, entry): (u32, TableEntry)| {
        (BlockId { region, frame, order: entry.order }, entry.owner)
    };
    owned.map(id).collect()
}

/// Returns the entry of a frame in the table on one replica of a region.
fn entry_at(cluster: &SimCluster, place: &PoolPlace, frame: u32) -> Option<TableEntry> {
    let place = place.plus(u64::from(frame) * TABLE_ENTRY_BYTES);
    let bytes = bytes_at(cluster, place, TABLE_ENTRY_BYTES);
    TableEntry::decode(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests;
