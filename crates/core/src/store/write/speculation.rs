//! UPDATE and DELETE by a speculative write: the backups are CASed before the slot has been read.
//!
//! ```text
//! post     WRITE the object to its replicas; CAS hint -> own on all backups; READ the slot   (1 phase)
//! commit   CAS hint -> own on the primary                                                    (1 phase)
//! ```
//!
//! Let *w* be the hint's word. It was committed in this slot for this key, and no session writes it again until the
//! operation ends. Each backup shows the primary's word, or a word of the round that replaces the primary's word. So a
//! CAS that succeeds proves that the primary shows *w*, and has shown it since before the operation began. If the READ
//! of the slot shows *w*, that proves the same. Then everything is as if the operation had read the slot first. Without
//! either proof, the round that replaced *w* was possibly over long before. But then all CASes have failed, so no
//! session has seen the own word, and the attempt goes on with the word that the slot shows, and with the same object.
//!
//! The conditions (decision 0021, and the models of `spec`, show what goes wrong without them):
//!
//! * *The word was seen within the window* of epochs in which no word recurs ([`Hint::seen`], [`WINDOW_EPOCHS`]), and
//!   the caller is sure that it is the key's. In the present view the word still leads to a pair, and its slot is still
//!   one of the key's.
//! * *The object is written before the CAS* on each memory node, and *lies on the nodes of all backups of the slot, and
//!   only on nodes of replicas of the slot*. So each node that shows the word has the complete object, even if the
//!   WRITEs on other nodes failed. And a node that does not answer holds a replica of the slot, so the view change that
//!   removes the node settles the slot. The record of a DELETE, which has no object, meets this condition always.
//! * *A process that finishes the write of a dead client* [completes](crate::data) the object first.
//!
//! On an immediate fabric nothing is written speculatively, because a phase costs only a function call there.

use super::attempt::{Attempt, AttemptStep};
use super::contend::{found_on_backups, post_cases};
use crate::data::Redundancy;
use crate::error::Error;
use crate::host::Host;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, guard, passes, removed};
use crate::race::Buckets;
use crate::slab::{Allocation, WINDOW_EPOCHS};
use crate::store::{Hint, HintTrust, StoreOp};
use crate::verbs::Fabric;
use crate::view::View;

/// Returns the number of epochs within which a slot word does not recur. The number is smaller for an EC-oriented
/// object, which has several words, one for each turn, in each use of its address.
fn window(view: &View, word: Slot) -> u64 {
    let region = view.region_of(word.address()).map(|(region, _)| region.redundancy());
    let is_oriented = matches!(region, Some(Redundancy::Oriented(_)));
    if guard(Mutant::TurnsAreLives, is_oriented) {
        WINDOW_EPOCHS / u64::from(Slot::TURNS)
    } else {
        WINDOW_EPOCHS
    }
}

/// Returns whether the attempt is allowed to begin with a speculative write to the hint's slot.
pub(super) fn may_speculate<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    hint: Hint,
    attempt: &Attempt<'_>,
) -> bool {
    let Hint { slot, word, seen: HintTrust::FreshSince(seen) } = hint else { return false };
    let Some(now) = op.pin.epoch() else { return false };
    // Before this operation ends, the epoch grows by at most one, or jumps because another master leads. Memory
    // that waits for its window is not reused before all sessions have heard of such a jump.
    let is_young = now.saturating_sub(seen) + 1 < window(&op.view, word);
    let is_old = removed(Mutant::SpeculationsByOldHints);
    if !(is_young || is_old) || op.store.fabric.is_immediate() || !op.view.has_slot(slot) {
        return false;
    }
    // Since the hint was seen, a split has possibly moved the key to another subtable. `await_writable` has checked the
    // new subtable, not the hint's.
    if !Buckets::of(attempt.intent.key, &op.view).covers(slot) {
        return false;
    }
    // The word of a pair that was lost with its only memory node stays in the slot. And for a region that this view
    // does not have, the window is unknown.
    if guard(Mutant::SpeculatesOnLostPairs, op.view.object_of(word).is_none()) {
        return false;
    }
    debug_assert!(attempt.intent.opcode != Opcode::Insert, "an INSERT has no hint");
    debug_assert!(is_old || !op.view.is_without_primary(slot.subtable), "it may be written");
    let has_backups = !op.view.subtables[slot.subtable as usize].backups().is_empty();
    let lies_there = |object: &Allocation| op.view.lies_beside(object.address, slot.subtable);
    let holds = attempt.object().is_none_or(lies_there);
    has_backups && passes(Mutant::SpeculationsAnywhere, holds)
}

/// Posts the object and the CASes for the round of the hint's word, in one phase.
pub(super) fn post_speculation<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    hint: Hint,
) -> Result<(), Error> {
    let round = attempt.round_on(hint);
    op.batch.clear();
    let early = removed(Mutant::SpeculationCasesBeforeItWrites);
    let early = early.then(|| post_cases(op, attempt, &round, None));
    attempt.post_object(op)?;
    let posted = early.unwrap_or_else(|| post_cases(op, attempt, &round, None));
    let slot = op.read_slot(round.slot);
    attempt.enter_step(AttemptStep::Speculated(round, posted, slot));
    Ok(())
}

/// Evaluates the executed speculative write. If it is not proved that the round was open, returns the slot with the
/// word that it shows; then no slot shows a word of the attempt.
pub(super) fn check_speculation<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
) -> Result<Option<Hint>, Error> {
    let AttemptStep::Speculated(round, posted, slot) = attempt.step() else {
        unreachable!("it speculated")
    };
    attempt.check_object_written(op)?;
    let found = found_on_backups(op, round, posted)?;
    let word = op.slot_word(*slot).map_err(|f| op.failed(f))?;
    let is_open = word == round.old || found.contains(&round.own);
    if passes(Mutant::StaleSpeculationLoses, is_open) {
        attempt.speculated_right();
        return Ok(None);
    }
    // All CASes of the speculative write have been answered, and none succeeded.
    let shown = Hint { slot: round.slot, word, seen: HintTrust::Unverified };
    attempt.begins_again();
    op.pin.traces.clear_posted();
    Ok(Some(shown))
}
