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

use super::target::{HintTarget, may_hold};
use super::{Hint, HintTrust, Store, StoreOp, slot_word};
use crate::data::FetchResult;
use crate::error::Error;
use crate::host::Host;
use crate::layout::{Object, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::verbs::{Fabric, MnId, Span, Ticket, VerbBatch, VerbError};

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
    /// Returns whether the next one is worth it.
    fn is_worth_it(&self) -> bool {
        match self.without.get() {
            0 => true,
            left => {
                self.without.set(left - 1);
                false
            }
        }
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
    /// [doubted](super::HintTrust::LikelyStale).
    #[inline]
    pub fn asks_switches(&self) -> bool {
        self.fabric.may_steer() && self.steering.is_worth_it()
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Returns the pair that the slot of a doubted hint leads to. Takes one phase, or two if the switch does not know
    /// the object.
    pub(super) async fn search_steered(
        &mut self,
        key: Key<'_>,
        target: HintTarget,
    ) -> Result<Option<(Hint, Span)>, Error> {
        let slot = target.read_slot(&mut self.batch);
        let steered = target.read_steered(&mut self.batch);
        self.phase().await;
        let word = slot_word(&self.batch, slot).map_err(|f| self.failed(f))?;
        let shown = Hint { slot: target.hint.slot, word, seen: HintTrust::Unverified };
        if !may_hold(word, key) {
            return Ok(None);
        }
        match self.steered(steered, shown, key)? {
            Some(span) => Ok(Some((Hint { seen: self.seen(), ..shown }, span))),
            None => self.search_by_word(key, shown, target.slot.node).await,
        }
    }

    /// Follows the word that the slot of a hint shows, which may lead to the key: one phase, to its object.
    pub(super) async fn search_by_word(
        &mut self,
        key: Key<'_>,
        shown: Hint,
        shown_on: MnId,
    ) -> Result<Option<(Hint, Span)>, Error> {
        self.batch.next_phase();
        let Some(object) = self.fetch(shown_on, shown.word) else { return Ok(None) };
        self.phase().await;
        Ok(match self.fetched(object, shown.word, key)? {
            FetchResult::Value(span) => Some((Hint { seen: self.seen(), ..shown }, span)),
            FetchResult::OtherKey | FetchResult::Stale => None,
        })
    }

    /// Returns the value that a steered READ has brought, if it is that of the key, in the object of the word that
    /// the slot has shown.
    #[cold]
    pub(super) fn steered(
        &mut self,
        steered: Ticket,
        shown: Hint,
        key: Key<'_>,
    ) -> Result<Option<Span>, Error> {
        let bytes = match self.batch.data_span(steered) {
            Ok(span) => Some(span),
            // The READ was steered beyond the pool, or would have gone beyond it from the slot.
            Err(failure) if failure.error == VerbError::OutOfBounds => None,
            Err(failure) => return Err(self.failed(failure)),
        };
        let target = HintTarget::new(&self.view, &self.store.silent, shown, key);
        // The place where the object is READ without a switch.
        let target = target.filter(|target| target.is_beside_its_slot());
        let brought = match (bytes, target) {
            (Some(bytes), Some(target)) => {
                let bytes_of = target.class.bytes() as u32;
                let whole = (bytes_of <= bytes.len).then(|| bytes.part(0, bytes_of));
                whole.and_then(|bytes| value_in(&self.batch, bytes, shown.word, key))
            }
            _ => None,
        };
        self.store.steering.note(brought.is_some());
        self.store.counters.add_steered(brought.is_some());
        Ok(brought)
    }
}

/// Returns the value of a key, if these bytes are the object of a word and have the key.
fn value_in(batch: &VerbBatch, bytes: Span, word: Slot, key: Key<'_>) -> Option<Span> {
    let object = if removed(Mutant::SteeredByItsKey) {
        Object::decode(batch.bytes(bytes)).ok()?
    } else {
        Object::decode_of(batch.bytes(bytes), word.object_identity()).ok()?
    };
    let is_of_key = object.key() == &*key || removed(Mutant::KeysNotCompared);
    is_of_key.then(|| bytes.part(object.value_offset() as u32, object.value().len() as u32))
}
