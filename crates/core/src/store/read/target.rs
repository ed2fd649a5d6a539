//! The places to READ for slot words and hints.
//!
//! Slot words come from memory that other sessions write, and hints come from a cache, so neither is certain to be
//! right.

use crate::data::Fetch;
use crate::host::Host;
use crate::layout::{Address, SizeClass, Slot};
use crate::mutant::{Mutant, removed, right_or};
use crate::race::{BucketWords, Key};
use crate::store::session::SilentNodes;
use crate::store::{Hint, StoreOp};
use crate::verbs::{Fabric, MnId, Ticket, VerbBatch};
use crate::view::{PoolPlace, SlotRef, View};

/// Returns whether a word that the primary shows possibly refers to the key.
#[inline]
pub(in crate::store) fn may_hold(word: Slot, key: Key<'_>) -> bool {
    !word.is_free() && !word.is_tentative() && word.fingerprint() == key.fingerprint()
}

/// Returns the slots that possibly refer to the key. Skips tentative words, as a writer does.
pub(in crate::store) fn live(words: &BucketWords) -> impl Iterator<Item = (SlotRef, Slot)> + '_ {
    let shown = removed(Mutant::WritersSeeTentative);
    words.matching().filter(move |(_, w)| !w.is_tentative() || shown)
}

/// Returns the size class of the object that a word refers to, if a client of this cluster can have written such an
/// object.
#[inline]
pub(in crate::store) fn class_of(view: &View, word: Slot) -> Option<SizeClass> {
    word.class().filter(|class| view.geometry.has_class(*class))
}

/// Returns the replica from which an object of this class is read, preferably the one on the node `near`
/// ([`data`](crate::data)). Returns `None` if there can be no such object.
#[inline]
pub(in crate::store) fn replica(
    view: &View,
    silent: &SilentNodes,
    address: Address,
    class: SizeClass,
    near: MnId,
) -> Option<PoolPlace> {
    let object = view.object(address, class.bytes())?;
    Some(object.read_at(near, |node| silent.has(node)))
}

/// The slot and the object to which a hint leads.
pub(in crate::store) struct HintTarget {
    pub hint: Hint,
    /// The slot on its primary.
    pub slot: PoolPlace,
    /// The replica of the object to read, or the chunk that shows its key.
    pub object: PoolPlace,
    pub class: SizeClass,
    /// Whether the whole object lies at the place `object`.
    is_whole: bool,
}

impl HintTarget {
    /// Returns the target of a hint; `None` if the hint is certainly wrong.
    pub fn new(view: &View, silent: &SilentNodes, hint: Hint, key: Key<'_>) -> Option<HintTarget> {
        let is_possible = view.has_slot(hint.slot)
            && !view.is_without_primary(hint.slot.subtable)
            && may_hold(hint.word, key);
        let class = class_of(view, hint.word).filter(|_| is_possible)?;
        let slot = view.slot_on_primary(hint.slot);
        let object = view.object(hint.word.address(), class.bytes())?;
        let is_whole = object.columns().is_none();
        let object = object.read_at(slot.node, |node| silent.has(node));
        Some(HintTarget { hint, slot, object, class, is_whole })
    }

    /// Returns the target of a hint for a reader; `None` if the hint is certainly wrong, or if its slot is read from
    /// backups.
    #[inline]
    pub fn of_reader<F: Fabric, H: Host>(
        op: &StoreOp<'_, F, H>,
        hint: Hint,
        key: Key<'_>,
    ) -> Option<HintTarget> {
        let target = HintTarget::new(&op.view, &op.store.silent, hint, key)?;
        (!op.store.reads.backups.has(&op.view, hint.slot.subtable)).then_some(target)
    }

    /// Posts the READ of the slot to which the hint leads.
    pub fn read_slot(&self, batch: &mut VerbBatch) -> Ticket {
        batch.read(self.slot.node, self.slot.offset, 8)
    }

    /// Posts the READs of the object for its value.
    #[inline]
    pub fn fetch(&self, view: &View, silent: &SilentNodes, batch: &mut VerbBatch) -> Fetch {
        if self.is_whole {
            Fetch::whole(self.read_object(batch))
        } else {
            self.fetch_chunks(view, silent, batch)
        }
    }

    #[cold]
    fn fetch_chunks(&self, view: &View, silent: &SilentNodes, batch: &mut VerbBatch) -> Fetch {
        let word = self.hint.word;
        let object = view.object(word.address(), self.class.bytes());
        let object = object.expect("the target was made of it");
        // The word tells whether the object's parity is possibly not written. If so, parity of an earlier object is
        // possibly in its place.
        let object = right_or(Mutant::HintedReadsTrustParity, object.of_word(word), object);
        object.fetch(batch, self.object, |node| silent.has(node))
    }

    /// Returns the size of the object if one READ fetches the whole object, otherwise `None`.
    #[inline]
    pub fn whole_bytes(&self) -> Option<u64> {
        self.is_whole.then(|| self.class.bytes())
    }

    /// Returns whether all of the object lies on the node of its slot.
    pub fn is_beside_its_slot(&self) -> bool {
        self.is_whole && self.object.node == self.slot.node
    }

    /// Posts the READ of the object's replica, or of the whole chunk that shows its key.
    pub fn read_object(&self, batch: &mut VerbBatch) -> Ticket {
        batch.read(self.object.node, self.object.offset, self.class.bytes() as u32)
    }
}
