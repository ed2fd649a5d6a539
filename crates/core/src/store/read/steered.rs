//! Steered READs: a *doubted* hint leads to its slot, and a switch on the way may know the object to which the slot
//! leads.
//!
//! ```text
//! READ the slot on its primary; steered READ of that slot        (1 phase instead of 2)
//! ```
//!
//! A steered READ may bring any bytes. They count if they are what the next phase would READ: the whole object of the
//! word that the same phase has shown, with this identity under a good CRC, with the key that is looked for, in a
//! region that has a replica beside the primary. An object is written once, and while the operation is pinned no
//! other object gets its identity. Of an earlier life with the same identity nothing is left on a node that has the
//! region, since the node zeroes what it releases, and has one extent of a region at a time. So it does not matter
//! where the READ went, nor when: these bytes are that object. If it brings anything else, the operation goes on as
//! if it had READ the slot alone. (`spec/Steered.tla`)
//!
//! A session uses steered READs as long as they are worth it. When too few of the last ones brought the object, it
//! stops for a while, and looks for keys with doubted hints in the index, as without a switch.

use core::cell::Cell;

use super::target::HintTarget;
use crate::host::Host;
use crate::layout::{Object, Slot};
use crate::mutant::{Mutant, passes, removed};
use crate::race::Key;
use crate::store::{Hint, Store};
use crate::verbs::{Fabric, FailedVerb, Span, Ticket, VerbBatch, VerbError};
use crate::view::View;

/// The number of steered READs after which a session decides whether they are worth it.
const ROUND: u32 = 64;
/// They are worth it if at least this many of them brought the object.
const WORTH: u32 = ROUND / 4;
/// Otherwise the session does without, this many times.
const WITHOUT: u32 = 16 * ROUND;

/// Results of steered READs.
#[derive(Debug, Default)]
pub(super) struct Steering {
    /// Steered READs since the last decision.
    tried: Cell<u32>,
    brought: Cell<u32>,
    /// Times for which the session still does without.
    without: Cell<u32>,
}

impl Steering {
    /// Returns whether the next one is worth it; if not, counts that the session does without it.
    fn takes_turn(&self) -> bool {
        let left = self.without.get();
        self.without.set(left.saturating_sub(1));
        left == 0
    }

    fn note(&self, brought: bool) {
        let tried = self.tried.get() + 1;
        self.brought.set(self.brought.get() + u32::from(brought));
        self.tried.set(tried);
        if tried == ROUND {
            if self.brought.get() < WORTH {
                self.without.set(WITHOUT);
            }
            self.tried.set(0);
            self.brought.set(0);
        }
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Returns whether a hint that is likely to be wrong should be given all the same, as
    /// [likely stale](crate::store::HintTrust::LikelyStale).
    #[inline]
    pub fn asks_switches(&self) -> bool {
        self.fabric.may_steer() && self.reads.steering.takes_turn()
    }
}

/// A steered READ that was posted.
#[derive(Clone, Copy)]
pub(in crate::store) struct SteeredRead(Ticket);

impl SteeredRead {
    /// Posts a READ of as many bytes as the hint's object has, which may be steered to the object that the slot leads
    /// to.
    pub fn post(target: &HintTarget, batch: &mut VerbBatch) -> SteeredRead {
        SteeredRead(batch.steered(
            target.slot.node,
            target.slot.offset,
            target.class.bytes() as u32,
        ))
    }

    /// Returns the value that it has brought, if that is the key's, in the object of the word that the slot has shown.
    #[cold]
    pub fn value<F: Fabric, H: Host>(
        self,
        shown: Hint,
        key: Key<'_>,
        store: &Store<F, H>,
        view: &View,
        batch: &VerbBatch,
    ) -> Result<Option<Span>, FailedVerb> {
        let bytes = match batch.data_span(self.0) {
            Ok(span) => Some(span),
            // The READ was steered beyond the pool, or would have gone beyond it from the slot.
            Err(failure) if failure.error == VerbError::OutOfBounds => None,
            Err(failure) => return Err(failure),
        };
        let target = HintTarget::new(view, &store.silent, shown, key);
        // The place where the object is READ without a switch.
        let target = target.filter(|target| target.is_beside_its_slot());
        let brought = match (bytes, target) {
            (Some(bytes), Some(target)) => {
                let bytes_of = target.class.bytes() as u32;
                let whole = (bytes_of <= bytes.len).then(|| bytes.part(0, bytes_of));
                whole.and_then(|bytes| value_in(batch, bytes, shown.word, key))
            }
            _ => None,
        };
        store.reads.steering.note(brought.is_some());
        store.counters.add_steered(brought.is_some());
        Ok(brought)
    }
}

/// Returns the value of a key, if these bytes are the object of a word and have the key.
fn value_in(batch: &VerbBatch, at: Span, word: Slot, key: Key<'_>) -> Option<Span> {
    let bytes = batch.bytes(at);
    let object = if removed(Mutant::SteeredByItsKey) {
        Object::decode(bytes)
    } else {
        Object::decode_of(bytes, word.object_identity())
    };
    let object = object.ok()?;
    let is_of_key = passes(Mutant::KeysNotCompared, object.key() == &*key);
    is_of_key.then(|| at.part(object.value_offset() as u32, object.value().len() as u32))
}
