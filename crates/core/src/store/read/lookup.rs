//! The lookup of a key through one slot: follow a hint, compare the slot, check the key.
//!
//! ```text
//! of_hint     READ the slot, READ the object of the hint's word                       (1 phase)
//! of_switch   READ the slot, steered READ of the object that the slot leads to        (1 phase)
//! of_word     READ the object of a word that the slot has shown                       (1 phase)
//! ```
//!
//! A [`Lookup`] records the READs that it has posted. [`Lookup::advance`] evaluates their answers. `advance` executes
//! no phase, so that callers can execute phases in their own way: on the spot, awaited, or together with those of other
//! keys.
//!
//! *A hint is right if the slot still shows the hint's word*: then the object that was read in the same phase is the
//! key's current pair. If the slot shows another word, this word possibly leads to the key, and the next phase follows
//! it.

use super::steered::SteeredRead;
use super::target::{HintTarget, may_hold};
use crate::data::{Fetch, FetchResult};
use crate::host::Host;
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::store::{Hint, HintTrust, Store, StoreOp, slot_word};
use crate::verbs::{Fabric, FailedVerb, MnId, Span, Ticket, VerbBatch};
use crate::view::{SlotRef, View};

/// A pair that was found: its place, and its value in the batch of the phase.
#[derive(Clone, Copy)]
pub(in crate::store) struct LocatedPair {
    pub place: Hint,
    pub value: Span,
}

/// A lookup of one key, with the READs that it has posted.
#[derive(Clone, Copy)]
pub(super) enum Lookup {
    /// The READs of a hint's slot, and of the object to which the hint's word leads.
    Hint { hint: Hint, slot: Ticket, object: Fetch },
    /// READs of the slot of a probably outdated hint, and of the object that a switch finds there.
    Switch { at: SlotRef, slot: Ticket, object: SteeredRead },
    /// The READs of the object to which a word leads that a slot has shown.
    Word { shown: Hint, object: Fetch },
}

/// The result that one phase of a lookup brings.
pub(super) enum LookupResult {
    /// The lookup has found the key's pair.
    Found(LocatedPair),
    /// The slot shows this word instead of the hint's, and the word possibly leads to the key.
    Follow(Hint),
    /// The slot shows a word that cannot be the key's, or the object that was read belongs to another key.
    OtherKey,
    /// The object of this word proves nothing, because it is reused, being written, or damaged.
    Unproved(Hint),
}

impl Lookup {
    /// Posts the READs of a hint's slot and of its object.
    #[inline]
    pub fn of_hint<F: Fabric, H: Host>(
        target: &HintTarget,
        store: &Store<F, H>,
        view: &View,
        batch: &mut VerbBatch,
    ) -> Lookup {
        let slot = target.read_slot(batch);
        let object = target.fetch(view, &store.silent, batch);
        Lookup::Hint { hint: target.hint, slot, object }
    }

    /// Posts the READ of a hint's slot, and a second READ of the slot that a switch can redirect to the object that the
    /// slot leads to.
    #[cold]
    pub fn of_switch(target: &HintTarget, batch: &mut VerbBatch) -> Lookup {
        let slot = target.read_slot(batch);
        Lookup::Switch { at: target.hint.slot, slot, object: SteeredRead::post(target, batch) }
    }

    /// Posts the READs of the object of a word that the node `shown_on` has shown. Returns `None` if the word refers to
    /// no object.
    pub fn of_word<F: Fabric, H: Host>(
        op: &mut StoreOp<'_, F, H>,
        shown: Hint,
        shown_on: MnId,
    ) -> Option<Lookup> {
        let object = op.fetch(shown_on, shown.word)?;
        Some(Lookup::Word { shown, object })
    }

    /// Evaluates the READs of the lookup, after their phase was executed.
    #[inline(always)]
    pub fn advance<F: Fabric, H: Host>(
        self,
        key: Key<'_>,
        store: &Store<F, H>,
        view: &View,
        batch: &mut VerbBatch,
    ) -> Result<LookupResult, FailedVerb> {
        match self {
            Lookup::Hint { hint, slot, object } => {
                let word = slot_word(batch, slot)?;
                if word != hint.word && !removed(Mutant::HintIsTrusted) {
                    return Ok(followed(Hint { word, seen: HintTrust::Unverified, ..hint }, key));
                }
                checked(object, hint, key, batch)
            }
            Lookup::Switch { at, slot, object } => {
                let word = slot_word(batch, slot)?;
                let shown = Hint { slot: at, word, seen: HintTrust::Unverified };
                steered(object, shown, key, store, view, batch)
            }
            Lookup::Word { shown, object } => checked(object, shown, key, batch),
        }
    }

    /// Returns the lookup without its READ of the slot, for a mutant that trusts the hint.
    pub fn without_slot(self) -> Lookup {
        match self {
            Lookup::Hint { hint, object, .. } => Lookup::Word { shown: hint, object },
            other => other,
        }
    }
}

/// Returns the result for a slot that shows another word than the hint's: whether to follow that word.
#[inline]
fn followed(shown: Hint, key: Key<'_>) -> LookupResult {
    if may_hold(shown.word, key) { LookupResult::Follow(shown) } else { LookupResult::OtherKey }
}

/// Evaluates a steered READ, whose slot shows the word of `shown`.
#[cold]
fn steered<F: Fabric, H: Host>(
    object: SteeredRead,
    shown: Hint,
    key: Key<'_>,
    store: &Store<F, H>,
    view: &View,
    batch: &VerbBatch,
) -> Result<LookupResult, FailedVerb> {
    let next = followed(shown, key);
    let LookupResult::Follow(_) = next else { return Ok(next) };
    let value = object.value(shown, key, store, view, batch)?;
    Ok(value.map_or(next, |value| LookupResult::Found(LocatedPair { place: shown, value })))
}

/// Returns the result for an object that was read: whether it is the key's.
#[inline(always)]
fn checked(
    object: Fetch,
    place: Hint,
    key: Key<'_>,
    batch: &mut VerbBatch,
) -> Result<LookupResult, FailedVerb> {
    Ok(match object.of_key(batch, place.word, &key)? {
        FetchResult::Value(value) => LookupResult::Found(LocatedPair { place, value }),
        FetchResult::OtherKey => LookupResult::OtherKey,
        FetchResult::Stale => LookupResult::Unproved(place),
    })
}
