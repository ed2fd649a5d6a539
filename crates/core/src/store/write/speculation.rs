//! UPDATE and DELETE by a speculative write: the backups are CASed before the slot was read.
//!
//! ```text
//! post     WRITE the object to its replicas; CAS hint -> own on all backups; READ the slot   (1 phase)
//! commit   CAS hint -> own on the primary                                                    (1 phase)
//! ```
//!
//! Let *w* be the word of the hint. It was committed in this slot for this key, and no session writes it again until
//! the operation ends. Each backup holds the primary's word, or one of the round that began from that word. So a CAS
//! that succeeds proves that the primary shows *w*, and has shown it since before the operation began; and a primary
//! that shows *w* proves the same. Then everything is as if the operation had read the slot first. If there is
//! neither proof, the round of *w* may have been over long before. But then all CASes have failed: no session has
//! seen the own word, and the attempt goes on with the word that the slot shows, and with the same object.
//!
//! The conditions (decision 0021, and the models of `spec`, show what goes wrong without them):
//!
//! * *The word was seen within the window* of epochs in which no word recurs ([`Hint::seen`], [`WINDOW_EPOCHS`]), and
//!   the caller is sure that it is the key's. By this view it still leads to a pair, and its slot is still one of the
//!   key's.
//! * *The object is written before the CAS* on each memory node, and *lies on the nodes of all backups of the slot,
//!   and only on nodes of replicas of the slot*. So where the word stands, its object is complete, whatever became of
//!   the WRITEs elsewhere. And a node that does not answer holds a replica of the slot, so the change without the
//!   node settles the slot.
//! * *A process that goes on with the write* [completes](crate::data) the object first.
//!
//! On an immediate fabric nothing is written speculatively: a phase is a call there.

use super::attempt::{Attempt, AttemptStep};
use crate::data::Redundancy;
use crate::error::Error;
use crate::host::Host;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, guard, passes, removed};
use crate::race::Buckets;
use crate::slab::{SlabKind, WINDOW_EPOCHS};
use crate::store::{Hint, HintTrust, Store, StoreOp};
use crate::verbs::Fabric;
use crate::view::View;

/// Returns the number of epochs for which a word that stands somewhere does not recur. An EC-oriented pair has
/// several words in one life, so there are fewer.
fn window(view: &View, word: Slot) -> u64 {
    let region = view.region_of(word.address()).map(|(region, _)| region.redundancy());
    let is_oriented = matches!(region, Some(Redundancy::Oriented(_)));
    if guard(Mutant::TurnsAreLives, is_oriented) {
        WINDOW_EPOCHS / u64::from(Slot::TURNS)
    } else {
        WINDOW_EPOCHS
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Returns the subtable beside which the object of a write is best, if that may let the write speculate by this
    /// hint.
    pub(super) fn best_beside(
        &self,
        hint: Option<Hint>,
        kind: SlabKind,
        view: &View,
    ) -> Option<u32> {
        let Hint { slot, seen: HintTrust::FreshSince(_), .. } = hint? else { return None };
        let may_lie_there = kind.redundancy.coding().is_none() && !self.fabric.is_immediate();
        let has_backups = !view.subtables.get(slot.subtable as usize)?.backups().is_empty();
        (may_lie_there && has_backups).then_some(slot.subtable)
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Returns whether the attempt may begin with a speculative write by this hint.
    pub(super) fn may_speculate(&self, hint: Hint, attempt: &Attempt<'_>) -> bool {
        let Hint { slot, word, seen: HintTrust::FreshSince(seen) } = hint else { return false };
        let Some(now) = self.pin.epoch() else { return false };
        // Before this operation ends there is at most one epoch more, or another master's. Memory that waits for a
        // window waits until all sessions have heard of those.
        let is_young = now.saturating_sub(seen) + 1 < window(&self.view, word);
        let is_old = removed(Mutant::SpeculationsByOldHints);
        if !(is_young || is_old) || self.store.fabric.is_immediate() || !self.view.has_slot(slot) {
            return false;
        }
        // Since the hint was seen, the key may have come to another subtable: `await_writable` has judged that one,
        // not the hint's.
        if !Buckets::of(attempt.intent.key, &self.view).covers(slot) {
            return false;
        }
        // A pair that was lost with its only memory node leaves its word in the slot. And for a region that is not in
        // this view, it cannot be told how often its words change.
        if guard(Mutant::SpeculatesOnLostPairs, self.view.object_of(word).is_none()) {
            return false;
        }
        debug_assert!(attempt.intent.opcode != Opcode::Insert, "an INSERT has no hint");
        debug_assert!(is_old || !self.view.is_without_primary(slot.subtable), "it may be written");
        let has_backups = !self.view.subtables[slot.subtable as usize].backups().is_empty();
        let holds = self.view.lies_beside(attempt.object.address, slot.subtable);
        has_backups && passes(Mutant::SpeculationsAnywhere, holds)
    }

    /// Posts the object and the CASes for the round of the hint's word, in one phase.
    pub(super) fn post_speculation(
        &mut self,
        attempt: &mut Attempt<'_>,
        hint: Hint,
    ) -> Result<(), Error> {
        let round = attempt.round_on(hint);
        self.batch.clear();
        let early = removed(Mutant::SpeculationCasesBeforeItWrites);
        let early = early.then(|| self.post_cases(&round, None));
        self.post_object(attempt)?;
        let posted = early.unwrap_or_else(|| self.post_cases(&round, None));
        let slot = self.read_slot(round.slot);
        attempt.enter_step(AttemptStep::Speculated(round, posted, slot));
        Ok(())
    }

    /// Evaluates the executed speculative write. If the round of the hint's word may have been over, returns the slot
    /// with the word that it shows: then no word of the attempt stands in a slot.
    pub(super) fn check_speculation(
        &mut self,
        attempt: &mut Attempt<'_>,
    ) -> Result<Option<Hint>, Error> {
        let AttemptStep::Speculated(round, posted, slot) = attempt.step() else {
            unreachable!("it speculated")
        };
        self.check_object_written(attempt)?;
        let found = self.found_on_backups(round, posted)?;
        let word = self.slot_word(*slot).map_err(|f| self.failed(f))?;
        let is_open = word == round.old || found.contains(&round.own);
        if passes(Mutant::StaleSpeculationLoses, is_open) {
            attempt.speculated_right();
            return Ok(None);
        }
        // All CASes have been answered, and none succeeded.
        let shown = Hint { slot: round.slot, word, seen: HintTrust::Unverified };
        attempt.begins_again();
        self.pin.traces.clear_posted();
        Ok(Some(shown))
    }
}
