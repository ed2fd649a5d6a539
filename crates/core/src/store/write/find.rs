//! The search of a writer for its key: which of the key's slots leads to an object of the key.
//!
//! ```text
//! KeyProof       READ the object of the hint's word, in the phase that READs the slot
//! WriterSearch   READ the objects of the matching slots, as one node has shown them      (1 phase)
//!                re-read those that prove nothing (read/damage.rs)                       (1 phase or 2 each, rare)
//! ```
//!
//! A writer needs no value, so it reads no more of a large object than shows the key.

use alloc::boxed::Box;

use arrayvec::ArrayVec;

use crate::error::Error;
use crate::host::Host;
use crate::layout::{HEADER_BYTES, Identity, Object, SizeClass, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, passes, removed, right_or};
use crate::race::{BucketWords, Buckets, Key, MAX_CANDIDATES};
use crate::store::read::{
    HintTarget, KeyReread, SteeredRead, class_of, live, may_hold, replica, reread_for_key,
};
use crate::store::{BROKEN_WORD, Hint, HintTrust, StoreOp};
use crate::verbs::{Fabric, FailedVerb, MnId, Ticket, VerbBatch};
use crate::view::{SlotRef, View};

/// The READ that proves whether the object of a hint's word has the key. If the slot shows the hint's word, the object
/// is complete at that moment, and stays unchanged until the operation ends.
#[derive(Clone, Copy)]
pub(in crate::store) enum KeyProof {
    /// A READ of the object's start, up to the end of its key. The start is enough, because this READ executes after
    /// the READ of the slot.
    Prefix(Ticket),
    /// A READ of the whole object, before or after the READ of the slot. When it executes, another object that was at
    /// this address is possibly being overwritten. The good CRC shows that no part of that other object was read.
    Whole(Ticket),
    /// A steered READ of a doubted hint's slot: possibly brings the object that the slot leads to.
    Steered(SteeredRead),
}

impl KeyProof {
    /// Posts, behind the READ of the slot, the READ that shows whether the hint's word leads to the key if the slot
    /// holds it.
    #[inline]
    pub fn post(
        target: &HintTarget,
        key: Key<'_>,
        fabric: &impl Fabric,
        batch: &mut VerbBatch,
    ) -> KeyProof {
        let in_order = target.slot.node == target.object.node || fabric.is_immediate();
        if passes(Mutant::PrefixReadEarly, in_order) {
            let bytes = prefix_bytes(target.class, key);
            KeyProof::Prefix(batch.read(target.object.node, target.object.offset, bytes))
        } else {
            KeyProof::Whole(target.read_object(batch))
        }
    }

    /// Returns whether the word that the slot of a hint has shown leads to the key. The result is valid only if the
    /// shown word is the hint's, because the proof is a READ of the object of the hint's word.
    #[inline]
    pub fn is_of(
        self,
        word: Slot,
        key: Key<'_>,
        view: &View,
        batch: &VerbBatch,
    ) -> Result<bool, FailedVerb> {
        Ok(match self {
            KeyProof::Prefix(ticket) => {
                let prefix = batch.data(ticket)?;
                let shows = |identity| starts_with_key(prefix, identity, key);
                shows(word.object_identity()) || first_turn(view, word).is_some_and(shows)
            }
            KeyProof::Steered(_) => false,
            KeyProof::Whole(ticket) => {
                let bytes = batch.data(ticket)?;
                let shows = |identity| matches!(whole_key(bytes, identity, key), KeyCheck::Same);
                shows(word.object_identity()) || first_turn(view, word).is_some_and(shows)
            }
        })
    }
}

/// The result of the search for the key of a write.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
pub(super) enum KeyLocation {
    /// The key is in this slot, which held this word when it was read.
    Slot(Hint),
    /// The key is in none of the slots in which it can be. Contains the words of these slots.
    Absent(BucketWords),
    /// It is not known where the key is, because one of the slots has changed since it was read.
    Unknown,
}

/// The result of a search for a key among some slots.
pub(super) enum KeySlot {
    /// The key is in this slot, and the slot held this word.
    Found(Hint),
    /// None of the slots refers to the key.
    Absent,
    /// One of the slots has changed since it was read, so that the search has to start again.
    Stale,
}

/// The search for the key of a write, as a part of an operation.
pub(super) struct WriterSearch<'o, 's, 'k, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    key: Key<'k>,
}

impl<'o, 's, 'k, F: Fabric, H: Host> WriterSearch<'o, 's, 'k, F, H> {
    /// Returns a search for a key, as a part of this operation.
    pub fn new(op: &'o mut StoreOp<'s, F, H>, key: Key<'k>) -> WriterSearch<'o, 's, 'k, F, H> {
        WriterSearch { op, key }
    }

    /// Follows the word that the slot of a wrong hint has shown.
    pub async fn follow(&mut self, shown: Hint) -> Result<KeyLocation, Error> {
        if may_hold(shown.word, self.key) {
            let shown_on = self.op.primary(shown.slot).node;
            let only = [(shown.slot, shown.word)].into_iter();
            if let KeySlot::Found(found) = Box::pin(self.find(only, shown_on)).await? {
                return Ok(KeyLocation::Slot(found));
            }
        }
        Box::pin(self.find_anew()).await
    }

    async fn find_anew(&mut self) -> Result<KeyLocation, Error> {
        let buckets = Buckets::of(self.key, &self.op.view);
        let words = self.op.fetch_words(&buckets).await.map_err(|f| self.op.failed(f))?;
        self.find_in(words).await
    }

    /// Finds the key in its buckets, as the primary has shown them.
    pub async fn find_in(&mut self, words: BucketWords) -> Result<KeyLocation, Error> {
        let shown_on = self.op.view.subtables[words.subtable() as usize].primary().node;
        Ok(match self.find(live(&words), shown_on).await? {
            KeySlot::Found(found) => KeyLocation::Slot(found),
            KeySlot::Absent => KeyLocation::Absent(words),
            KeySlot::Stale => KeyLocation::Unknown,
        })
    }

    /// Finds which of these slots, as a node has shown them, refers to the key. Takes one phase, or none if there are
    /// no candidates. Each object that does not tell its key is re-read, in one or two phases. A word that can refer to
    /// no object, or only to damaged replicas, is an error only if no other word refers to the key.
    pub async fn find(
        &mut self,
        candidates: impl Iterator<Item = (SlotRef, Slot)>,
        shown_on: MnId,
    ) -> Result<KeySlot, Error> {
        self.op.batch.next_phase();
        let mut reads = Candidates::new();
        let mut broken = None;
        for (slot, word) in candidates {
            match self.read_key_of(word, shown_on) {
                Some(ticket) => {
                    reads.push((Hint { slot, word, seen: HintTrust::Unverified }, ticket));
                }
                None if self.op.view.is_being_lost(word) => return Ok(KeySlot::Stale),
                None if self.op.is_gone(word) => {}
                None => broken = Some(BROKEN_WORD),
            }
        }
        if !reads.is_empty() {
            self.op.phase().await;
        }
        let mut unproved = ArrayVec::<Hint, MAX_CANDIDATES>::new();
        for (hint, ticket) in reads {
            match self.check_key_of(ticket, hint.word).map_err(|f| self.op.failed(f))? {
                KeyCheck::Same => return Ok(KeySlot::Found(hint)),
                KeyCheck::Other => {}
                KeyCheck::Unproved => unproved.push(hint),
            }
        }
        if !unproved.is_empty() {
            // The future is on the heap, because this case is rare and futures of operations should stay small.
            return Box::pin(self.find_among(unproved, broken, shown_on)).await;
        }
        broken.map_or(Ok(KeySlot::Absent), Err)
    }

    /// Posts a READ of as much of a word's object as comparing the key needs; `None` if the word refers to no object.
    /// Reads the replica on the node that has shown the word, if there is one there: if a speculative write has put
    /// the word on a backup, its object is complete there, and perhaps nowhere else (`speculation.rs`).
    ///
    /// The slot was read earlier in this operation, and an object that was complete then stays untouched until the
    /// operation ends. So if the start of a large object shows the key, the object is the key's.
    fn read_key_of(&mut self, word: Slot, shown_on: MnId) -> Option<Ticket> {
        let op = &mut *self.op;
        let class = class_of(&op.view, word)?;
        let place = replica(&op.view, &op.store.silent, word.address(), class, shown_on)?;
        let bytes = match class.bytes() {
            bytes @ ..=COMPARED_WHOLE_BYTES => bytes as u32,
            _ => prefix_bytes(class, self.key),
        };
        Some(op.batch.read(place.node, place.offset, bytes))
    }

    /// Compares the key with an object of which the whole, or the start, was read.
    fn check_key_of(&self, ticket: Ticket, word: Slot) -> Result<KeyCheck, FailedVerb> {
        let bytes = self.op.batch.data(ticket)?;
        let identity = first_turn(&self.op.view, word).unwrap_or_else(|| word.object_identity());
        let is_whole = word.class().is_some_and(|class| class.bytes() == bytes.len() as u64);
        if is_whole && !removed(Mutant::OtherKeyByItsStart) {
            return Ok(whole_key(bytes, identity, self.key));
        }
        let is_same = starts_with_key(bytes, identity, self.key);
        let other = right_or(Mutant::OtherKeyByItsStart, KeyCheck::Unproved, KeyCheck::Other);
        Ok(if is_same { KeyCheck::Same } else { other })
    }

    /// Finds the key among slots whose objects have proved nothing, by re-reading these objects.
    async fn find_among(
        &mut self,
        unproved: ArrayVec<Hint, MAX_CANDIDATES>,
        mut broken: Option<Error>,
        shown_on: MnId,
    ) -> Result<KeySlot, Error> {
        for hint in unproved {
            match reread_for_key(self.op, hint, shown_on, self.key).await {
                Ok(KeyReread::Value(_)) => return Ok(KeySlot::Found(hint)),
                Ok(KeyReread::OtherKey) => {}
                Ok(KeyReread::Stale) => return Ok(KeySlot::Stale),
                Err(error @ Error::Corrupt { .. }) => broken = Some(error),
                Err(error) => return Err(error),
            }
        }
        broken.map_or(Ok(KeySlot::Absent), Err)
    }
}

/// Slots that possibly refer to a key, each with the READ of its object.
type Candidates = ArrayVec<(Hint, Ticket), MAX_CANDIDATES>;

/// The size, in bytes, up to which objects are read whole to compare their keys. The CRC of a whole object can prove
/// that the object has another key, and such a READ costs hardly more than one of the object's start.
const COMPARED_WHOLE_BYTES: u64 = 2048 + UNIT_BYTES;

/// Returns the number of bytes of an object that have to be read to compare its key.
fn prefix_bytes(class: SizeClass, key: Key<'_>) -> u32 {
    let needed = (HEADER_BYTES + key.len() as u64).next_multiple_of(UNIT_BYTES);
    needed.min(class.bytes()) as u32
}

/// The result of comparing the key of an object with the key of an operation.
enum KeyCheck {
    Same,
    /// The object belongs to another key: it was read whole, and its CRC is right.
    Other,
    /// The object is damaged, or only its start was read, so that it possibly is the key's.
    Unproved,
}

/// Returns the identity that the header of a word's object contains, if it differs from the word's.
#[cold]
fn first_turn(view: &View, word: Slot) -> Option<Identity> {
    let object = view.object_of(word)?;
    object.is_turned(word).then(|| object.identity_of(word))
}

/// Compares the key with all bytes of an object's replica or chunk.
fn whole_key(bytes: &[u8], identity: Identity, key: Key<'_>) -> KeyCheck {
    match Object::decode_of(bytes, identity) {
        Ok(object) if object.key() == &*key || removed(Mutant::KeysNotCompared) => KeyCheck::Same,
        Ok(_) => KeyCheck::Other,
        Err(_) if removed(Mutant::DamagedIsAnotherKeys) => KeyCheck::Other,
        Err(_) => KeyCheck::Unproved,
    }
}

/// Returns whether the start of an object shows the key and the identity to which the slot word led. If not, the object
/// has another key or is damaged.
fn starts_with_key(prefix: &[u8], identity: Identity, key: Key<'_>) -> bool {
    match Object::prefix_has_key(prefix, identity, &key) {
        Ok(same) => same || removed(Mutant::KeysNotCompared),
        Err(_) => false,
    }
}
