//! A checker of the index that runs after every step. It requires that no key is live twice in the primaries of the
//! index, that every live entry refers to an object that is complete on all replicas, and that no verb changes such an
//! object.
//!
//! The checker keeps the live entries in a map, and updates the map at every change of a primary's slot. Therefore a
//! check costs one object per change, whatever the size of the index.
//!
//! If memory was damaged, only one replica of a live object must be complete, and WRITEs to its other replicas must
//! write the original bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fusee_core::data::{Columns, ObjectLocation};
use fusee_core::erasure::ReedSolomon;
use fusee_core::layout::{Chunk, Identity, Object, Opcode, SizeClass, Slot, Stripe, copy_of};
use fusee_core::race::Buckets;
use fusee_core::verbs::MnId;
use fusee_core::view::{PoolPlace, SlotRef, View};

use crate::memories::SimMemories;

/// The place where a replica of an object starts.
type ReplicaStart = (MnId, u64);

/// The live entries of the index, and the objects to which they lead.
#[derive(Default)]
pub(crate) struct LiveEntries {
    view: Option<View>,
    live: BTreeMap<Vec<u8>, SlotRef>,
    /// The live objects, by the starts of their replicas, each with the bytes that belong there.
    objects: BTreeMap<ReplicaStart, (Rc<[u8]>, SlotRef)>,
}

impl LiveEntries {
    /// Returns the entries that are now in the primaries of a view.
    ///
    /// # Panics
    /// If a key is live twice, or if an entry leads to no object.
    pub fn new(memories: &SimMemories, view: &View) -> LiveEntries {
        let mut entries = LiveEntries { view: Some(view.clone()), ..LiveEntries::default() };
        // Subtables whose primary is lost are left out until the change has switched, because backups are not checked.
        for slot in all_slots(view).filter(|slot| !view.is_without_primary(slot.subtable)) {
            let primary = view.slot_on_primary(slot);
            if !memories.has(primary.node) {
                continue;
            }
            entries.add(memories, slot, memories.word_at(primary));
        }
        entries
    }

    /// Returns the keys of all live entries, in order.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.live.keys().cloned().collect()
    }

    /// Updates the entries after a word of a pool has changed from `old` to `new`.
    ///
    /// # Panics
    /// If a key is now live twice, or if the new entry leads to no object.
    pub fn changed(&mut self, memories: &SimMemories, place: PoolPlace, old: Slot, new: Slot) {
        let Some(slot) = self.slot_at(place) else { return };
        if is_live(old) {
            self.live.retain(|_, at| *at != slot);
            self.objects.retain(|_, (_, at)| *at != slot);
        }
        self.add(memories, slot, new);
    }

    fn add(&mut self, memories: &SimMemories, slot: SlotRef, word: Slot) {
        if !is_live(word) {
            return;
        }
        let view = self.view.as_ref().expect("there are slots only with a view");
        // The word's pair is lost, or will be lost once the view drops the pair's only node.
        if view.leads_to_lost(word) || goes_with_its_node(memories, view, word) {
            return;
        }
        let (key, parts) = object_of(memories, view, word);
        // A split leaves a moved entry here until the entry is cleared, but no reader uses the entry any more.
        if Buckets::of(&key, view).subtable != slot.subtable {
            return;
        }
        if let Some(other) = self.live.insert(key.clone(), slot) {
            panic!("{key:02x?} is live twice, in {other:?} and in {slot:?} as {:#x}", word.0);
        }
        for (place, bytes) in parts {
            self.objects.insert((place.node, place.offset), (bytes, slot));
        }
    }

    /// Checks a WRITE to a memory node's memory. If `rots`, memory was damaged in this run, so that the WRITE is
    /// allowed to repair an object.
    ///
    /// # Panics
    /// If a live object is there and the WRITE changes it.
    pub fn written(&self, node: MnId, offset: u64, data: &[u8], rots: bool) {
        let end = offset + data.len() as u64;
        let before = self.objects.range(..(node, end)).next_back();
        if let Some(((on, start), (object, slot))) = before
            && *on == node
            && start + object.len() as u64 > offset
        {
            // If two Moves in place run for one object, the later one writes parity that is already there. Copy words
            // come from any chunk that has them, so their bytes are not compared.
            let regions = self.view.iter().flat_map(|view| &view.regions);
            let is_moved = regions.into_iter().any(|region| region.is_oriented());
            // The WRITE must lie within the live object and write the bytes that belong there. A job that copies many
            // objects at once never writes over live ones.
            let inside = offset.checked_sub(*start).and_then(|at| object.get(at as usize..));
            let belongs = inside.is_some_and(|rest| {
                let words = rest.len().saturating_sub(40)..rest.len().saturating_sub(8);
                let counts = |at: &usize| !(is_moved && words.contains(at));
                let is_same = |at: usize| rest.get(at) == Some(&data[at]);
                (0..data.len()).filter(counts).all(is_same)
            });
            // A copy word for another turn of the object is allowed as well.
            let at_end = start + object.len() as u64 - offset;
            let is_copy_word = data.len() == 8 && (8..=40).contains(&at_end);
            assert!(
                (rots || is_moved) && belongs || is_copy_word,
                "{} bytes are written to {node}+{offset:#x}, to the live object of {slot:?}",
                data.len()
            );
        }
    }

    /// Returns the replicas of live objects: their places, and the bytes that belong there.
    pub fn replicas(&self) -> impl Iterator<Item = (PoolPlace, &Rc<[u8]>, SlotRef)> {
        let place = |(node, offset): &ReplicaStart| PoolPlace { node: *node, offset: *offset };
        self.objects.iter().map(move |(at, (object, slot))| (place(at), object, *slot))
    }

    /// Returns the slot whose primary is at this place.
    fn slot_at(&self, place: PoolPlace) -> Option<SlotRef> {
        let view = self.view.as_ref()?;
        let bytes = view.geometry.subtable_bytes();
        view.subtables.iter().zip(0u32..).find_map(|(subtable, number)| {
            let primary = subtable.primary();
            if view.is_without_primary(number) {
                return None;
            }
            let at = place.offset.checked_sub(primary.offset)?;
            let hit = primary.node == place.node && at < bytes;
            hit.then_some(SlotRef { subtable: number, slot: (at / 8) as u32 })
        })
    }
}

/// Returns whether readers treat a word of a primary as an entry.
fn is_live(word: Slot) -> bool {
    !word.is_free() && !word.is_tentative()
}

/// Returns whether a word leads to a pair without redundancy whose only memory node is lost.
fn goes_with_its_node(memories: &SimMemories, view: &View, word: Slot) -> bool {
    let region = view.region_of(word.address()).map(|(region, _)| region);
    region.is_some_and(|region| {
        region.has_single_pairs() && !region.places().iter().any(|at| memories.has(at.node))
    })
}

/// Returns every slot of a view.
pub(crate) fn all_slots(view: &View) -> impl Iterator<Item = SlotRef> + use<> {
    let slots = view.geometry.subtable_slots() as u32;
    (0..view.subtables.len() as u32)
        .flat_map(move |subtable| (0..slots).map(move |slot| SlotRef { subtable, slot }))
}

/// The bytes that belong at each place of an object.
pub(crate) type ObjectParts = Vec<(PoolPlace, Rc<[u8]>)>;

/// Returns the copies that a word keeps in use beside the stripe of its object. The first remaining data chunk with a
/// valid copy word names each copy.
pub(crate) fn copies_kept_by(memories: &SimMemories, view: &View, word: Slot) -> Vec<Identity> {
    let object = view.object_of(word).filter(|object| object.has_copy(word));
    let Some(object) = object else { return Vec::new() };
    let identity = object.identity_of(word);
    let named = |number: usize| {
        let at = |place: PoolPlace| place.plus(8 * number as u64);
        let mut words = object.copy_words(word).map(at);
        words.find_map(|place| copy_of(identity, number, memories.number_at(place)?))
    };
    // Several words name one copy if there are fewer copies than copy words.
    let named: BTreeSet<Identity> = (0..object.copies()).filter_map(named).collect();
    named.into_iter().collect()
}

/// Returns the copies that a word keeps in use, with their places. Copies on lost nodes are left out. `class` is the
/// size class of each copy.
///
/// # Panics
/// If another object is at the place of a copy and no memory was damaged.
fn copies_of_entry(
    memories: &SimMemories,
    view: &View,
    word: Slot,
    class: SizeClass,
) -> Vec<(PoolPlace, Vec<u8>)> {
    let copies = copies_kept_by(memories, view, word).into_iter();
    copies.filter_map(|copy| copy_of_entry(memories, view, word, copy, class)).collect()
}

fn copy_of_entry(
    memories: &SimMemories,
    view: &View,
    word: Slot,
    copy: Identity,
    class: SizeClass,
) -> Option<(PoolPlace, Vec<u8>)> {
    let region = view.region_of(copy.address()).map(|(region, _)| region);
    region.filter(|region| region.is_there())?;
    let place = view.object(copy.address(), class.bytes())?.places().next()?;
    let bytes = memories.with(place.node, |memory| {
        memory.pool[place.offset as usize..][..class.bytes() as usize].to_vec()
    })?;
    match Object::decode_of(&bytes, copy) {
        Ok(object) if object.opcode() == Some(Opcode::Copy) => {}
        other => {
            assert!(memories.rots(), "the copy of {:#x} is {other:?}", word.0);
            return None;
        }
    }
    Some((place, bytes))
}

/// Returns the key of a live word's object, and the bytes that belong at each place of the object and of its copies.
///
/// # Panics
/// If the object is incomplete on a remaining place; after damage to memory, only if too few places are complete.
pub(crate) fn object_of(memories: &SimMemories, view: &View, word: Slot) -> (Vec<u8>, ObjectParts) {
    let object = view.object_of(word).expect("a live entry leads into a region");
    match object.columns() {
        None => replicated_object_of(memories, &object, word),
        Some(columns) => chunked_object_of(memories, view, &object, columns, word),
    }
}

/// Returns the bytes of a word's object at one of its places, or `None` if the node is lost.
fn object_bytes_at(memories: &SimMemories, word: Slot, place: PoolPlace) -> Option<Vec<u8>> {
    let bytes = word.class().map_or(0, |class| class.bytes());
    memories
        .with(place.node, |memory| memory.pool[place.offset as usize..][..bytes as usize].to_vec())
}

/// Panics unless memory was damaged: only then is a live entry allowed to lead to a broken object.
fn check_damaged(memories: &SimMemories, word: Slot, why: &dyn std::fmt::Display) {
    assert!(memories.rots(), "the live entry {:#x} leads to no object: {why}", word.0);
}

/// Does the same as [`object_of`] for a replicated object.
fn replicated_object_of(
    memories: &SimMemories,
    object: &ObjectLocation<'_>,
    word: Slot,
) -> (Vec<u8>, ObjectParts) {
    let shown = object.places().filter_map(|place| object_bytes_at(memories, word, place));
    let mut good = shown.filter(|bytes| match Object::decode_of(bytes, word.object_identity()) {
        Ok(_) => true,
        Err(why) => {
            check_damaged(memories, word, &why);
            false
        }
    });
    let first = good.next().expect("some replica is left");
    // A difference in the padding is allowed if memory was damaged.
    let differ = good.any(|object| object != first);
    assert!(!differ || memories.rots(), "replicas of one object differ");
    let key = Object::decode(&first).expect("it is good").key().to_vec();
    let first: Rc<[u8]> = Rc::from(first);
    (key, object.places().map(|place| (place, Rc::clone(&first))).collect())
}

/// Does the same as [`object_of`] for an object of chunks.
fn chunked_object_of(
    memories: &SimMemories,
    view: &View,
    object: &ObjectLocation<'_>,
    columns: &Columns,
    word: Slot,
) -> (Vec<u8>, ObjectParts) {
    let bytes = word.class().map_or(0, |class| class.bytes());
    let shown = |place: PoolPlace| object_bytes_at(memories, word, place);
    let coding = columns.coding();
    let numbers = columns.chunks().iter().map(|n| usize::from(*n));
    let shown: Vec<(PoolPlace, usize, Option<Vec<u8>>)> =
        object.places().zip(numbers).map(|(place, number)| (place, number, shown(place))).collect();
    let mut stripe = Stripe::default();
    // The length of a copy follows from a chunk, as it does for readers and repairs, because the header of the copy's
    // block is possibly half written. A data chunk is preferred, because parity possibly belongs to an earlier object
    // at this address.
    let mut sized: Option<(usize, SizeClass)> = None;
    for (_, number, bytes) in &shown {
        let Some(bytes) = bytes else { continue };
        match Chunk::decode_of(bytes, object.identity_of(word), coding, *number) {
            Ok(chunk) => {
                let class = Object::class(chunk.key().len(), chunk.value_bytes());
                let size = class.map(|class| (*number, class));
                sized = sized.into_iter().chain(size).min_by_key(|(number, _)| *number);
                stripe.add(chunk);
            }
            Err(_) if object.may_lack(*number) => {}
            Err(why) => check_damaged(memories, word, &why),
        }
    }
    let copies = sized.map(|(_, class)| copies_of_entry(memories, view, word, class));
    let copies = copies.unwrap_or_default();
    let Some(room) = stripe.room() else {
        let (_, bytes) = copies.first().unwrap_or_else(|| {
            let chunks: Vec<(PoolPlace, usize)> =
                shown.iter().map(|(at, n, _)| (*at, *n)).collect();
            let kept = copies_kept_by(memories, view, word);
            panic!("{:#x} is lost: chunks on {chunks:?}, copies {kept:?}", word.0)
        });
        let key = Object::decode(bytes).expect("it was decoded before").key().to_vec();
        return (key, copies.into_iter().map(|(place, bytes)| (place, Rc::from(bytes))).collect());
    };
    let mut room = vec![0; room];
    let code = ReedSolomon::new(coding);
    let whole = stripe.restore(&code, &mut room).expect("it is what was written");
    for (_, bytes) in &copies {
        let copy = Object::decode(bytes).expect("it was decoded before");
        let is_same = (copy.key(), copy.value()) == (whole.key(), whole.value());
        assert!(is_same, "the copy of {:#x} is of another pair", word.0);
    }
    let part = |(place, number, standing): &(PoolPlace, usize, Option<Vec<u8>>)| {
        let mut belongs = vec![0; bytes as usize];
        whole.chunk(&code, *number, &mut belongs);
        // A copy word is written after its chunk, so the copy words that are in memory count as right.
        let copies = bytes as usize - 40..bytes as usize - 8;
        if let Some(standing) =
            standing.as_ref().filter(|_| object.columns().is_some_and(|c| c.is_oriented()))
        {
            belongs[copies.clone()].copy_from_slice(&standing[copies]);
        }
        let is_right = standing.as_ref().is_none_or(|standing| *standing == belongs)
            || object.may_lack(*number);
        assert!(is_right || memories.rots(), "chunk {number} of {:#x} is another one", word.0);
        (*place, Rc::from(belongs))
    };
    let parts = shown.iter().filter(|(_, number, _)| !object.may_lack(*number));
    let copies = copies.into_iter().map(|(place, bytes)| (place, Rc::from(bytes)));
    (whole.key().to_vec(), parts.map(part).chain(copies).collect())
}
