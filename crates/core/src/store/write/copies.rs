//! The copies of EC-oriented objects, which are allocated, written and freed together with their objects.
//!
//! A slot word at an even turn protects the stripe and its copies from reuse ([`data`](crate::data)).
//!
//! * A *writer* allocates the stripe and all copies before it writes any of them, and has written all of them before it
//!   posts any CAS. If its word is not in the slot in the end, the writer frees its copies itself.
//! * The session that *replaces* such a word frees the stripe and the copies. It finds the copies by the copy words in
//!   the stripe. It reads these copy words before it sets the stripe's free bit, because the stripe is not reused until
//!   then.
//! * A Move *in place* ([`moving`](super::moving)) frees only the copies, when its word is committed. The new word
//!   protects the stripe.
//!
//! Copies that a crash leaves are found by the comparison with the index, which follows words to copies as well.

use alloc::vec::Vec;

use super::intent::{CannotBegin, Intent};
use crate::data::{MAX_PLACES, Redundancy, RedundancyError};
use crate::error::Error;
use crate::host::Host;
use crate::layout::{Identity, MAX_COPIES, Slot};
use crate::mutant::{Mutant, guard, right_or};
use crate::slab::{Allocation, SlabKind};
use crate::store::{Store, StoreOp};
use crate::verbs::{Fabric, MAX_BATCH_VERBS, MnId};
use crate::view::View;

/// The allocation of the copies of an EC-oriented object.
pub(super) struct CopyAllocation<'a, F, H> {
    pub store: &'a Store<F, H>,
    pub intent: &'a Intent<'a>,
    /// A block that is not in use is taken into use if at least one in `least` of its objects is free.
    pub least: u32,
    pub view: &'a View,
}

impl<F: Fabric, H: Host> CopyAllocation<'_, F, H> {
    /// Allocates the copies of an EC-oriented object, one on each node where a copy belongs. If there are too few such
    /// nodes, there are fewer copies; without any such node this fails.
    #[cold]
    pub fn for_object(&self, object: &Allocation) -> Result<Vec<Allocation>, CannotBegin> {
        let Self { store, intent, view, .. } = *self;
        let at = view.object(object.address, object.kind.class.bytes());
        let at =
            at.ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })?;
        let nodes = at.copies_go_to(view.members.iter().map(|member| member.node));
        if nodes.is_empty() {
            let coding = intent.slab.redundancy.coding().expect("it is EC-oriented");
            let members = view.members.len();
            return Err(Error::Redundancy(RedundancyError::TooFewNodes { coding, members }).into());
        }
        let mut copies = Vec::new();
        for node in nodes {
            match self.allocate_on(node) {
                Ok(copy) => copies.push(copy),
                Err(why) => {
                    copies.iter().for_each(|copy| store.memory.give_back(&store.host, copy));
                    return Err(why);
                }
            }
        }
        Ok(copies)
    }

    /// Allocates room for a copy of an object on this node.
    fn allocate_on(&self, node: MnId) -> Result<Allocation, CannotBegin> {
        let Self { store, intent, least, view } = *self;
        let key = intent.key.len();
        let value = intent.value.len();
        let slab = SlabKind::of(Redundancy::Copies(node), key, value);
        let slab = slab.ok_or(Error::ValueTooLarge {
            bytes: value,
            max_bytes: view.geometry.max_value_bytes as usize,
        })?;
        store.memory.allocate(slab, least, view, None).ok_or(CannotBegin::NoRoom(slab))
    }
}

/// Frees a copy that no slot word needs any more.
pub(super) fn free_copy<F: Fabric, H: Host>(op: &mut StoreOp<'_, F, H>, copy: Identity) {
    // `free` expects a slot word. A withdrawal leads to no pair, and names the copy as the object to free.
    op.pin.free(Slot::withdrawal(copy));
}

/// Returns those of the given slot words that lead to objects with copies.
pub(in crate::store) fn with_copies(view: &View, words: &[Slot]) -> Vec<Slot> {
    let is_oriented = view.regions.iter().any(|region| region.is_oriented());
    if !guard(Mutant::CopiesLeak, is_oriented) {
        return Vec::new();
    }
    let has_copy =
        |word: &&Slot| view.object_of(**word).is_some_and(|object| object.has_copy(**word));
    words.iter().filter(has_copy).copied().collect()
}

/// Returns the copies that belong to these words, from the copy words in their stripes. Takes one phase or a few. Does
/// not find a copy that no column's copy word names. Returns `None` if some column did not answer.
pub(in crate::store) async fn find_copies<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    words: &[Slot],
) -> Option<Vec<Identity>> {
    let view = op.view.clone();
    let mut found = Vec::new();
    let objects: Vec<_> =
        words.iter().filter_map(|word| Some((*word, view.object_of(*word)?))).collect();
    for objects in objects.chunks(MAX_BATCH_VERBS / MAX_PLACES) {
        op.batch.clear();
        let reads: Vec<_> = objects
            .iter()
            .map(|(word, object)| object.read_copy_words(&mut op.batch, *word))
            .collect();
        op.phase().await;
        let is_there = |copy: &Identity| {
            let region = view.region_of(copy.address());
            region.is_some_and(|(region, _)| region.copies_on().is_some())
        };
        for read in reads {
            let copies = read.named(&op.batch).all().ok()?;
            found.extend(copies.into_iter().take(copies_found()).filter(is_there));
        }
    }
    Some(found)
}

/// Returns the largest number of copies of one object that a write finds and frees.
pub(super) fn copies_found() -> usize {
    right_or(Mutant::SecondCopyLeaks, MAX_COPIES, 1)
}
