//! Operations and view changes: the wait for a change, and the resolution of a write that a change has suspended.
//!
//! A write is suspended when a memory node does not answer it. It is also suspended when it waits for another writer in
//! a subtable that is being changed, because that writer is possibly dead, and is recovered only after the change. The
//! suspended write knows its last [`AttemptStep`]. When the change has made the replicas equal, and before any session
//! is allowed to write to the slot again, the write READs its slot:
//!
//! | last step | slot | result |
//! |---|---|---|
//! | no CAS posted | – | starts again |
//! | withdrawal | any | starts again: no reader has seen its word |
//! | commit posted | – | is done: its word was on all backups, so the change has chosen it |
//! | speculated, competed, or confirmed | its own word | is done |
//! | | its identity, withdrawn; or the old word | starts again |
//! | | another word | is a loser, and starts again |
//!
//! Without a change, a losing UPDATE takes effect right before its winner. A suspended UPDATE that has lost starts
//! again, for three reasons: other sessions have possibly read the winner's word before the loser began
//! (`backup_reads`); the round of a speculative write was possibly over by then; and a Move has overwritten no write
//! ([`round`](crate::store::write::round), rule L).
//!
//! *The write frees what it has replaced*, like every writer. If its commit was posted, the old word was possibly
//! replaced while the write was still pinned, and a comparison with the index has possibly found that no slot leads to
//! the old object. The write and the comparison must not both free this object. A comparison ends only after the free
//! bits of certain objects are set or revoked: of the objects freed by operations that had begun before the READ of the
//! index ended. So the write *holds* the object that it has possibly replaced, from before it is suspended until it has
//! freed the object ([`reclaim`](crate::store::memory::reclaim)). If the free bits that wait to be set are revoked
//! before that, the write leaves the object to the comparison. A write that has posted no commit need not hold
//! anything: as long as the view lasts, the slot shows the old word, and the write's own object is in a block with a
//! write under way.

use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, guard, passes, removed};
use crate::race::{Buckets, Key};
use crate::store::write::{AttemptEnd, AttemptStep, WriteRound};
use crate::store::{Hint, HintTrust, StoreOp};
use crate::verbs::{Fabric, MnId, VerbError};
use crate::view::View;
use crate::view::change::{ChangeStage, ViewChange};

const CHANGE: &str = "the end of a change of the cluster";

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Waits until the key's subtable can be written, and pins the operation in the newest view.
    pub(in crate::store) async fn await_writable(&mut self, key: Key<'_>) -> Result<(), Error> {
        loop {
            if !self.pin.is_pinned() || self.newer_view_has_come() {
                self.view = self.pin.resume();
            }
            if may_write_now(&self.view, key) {
                return Ok(());
            }
            self.wait_for_change().await?;
        }
    }

    /// Waits until the key's subtable can be read, and pins the operation in the newest view.
    pub(in crate::store) async fn await_readable(&mut self, key: Key<'_>) -> Result<(), Error> {
        loop {
            if !self.pin.is_pinned() || self.newer_view_has_come() {
                self.view = self.pin.resume();
            }
            let is_frozen = stage_of(&self.view, key) == Some(ChangeStage::Frozen);
            let subtable = Buckets::of(key, &self.view).subtable;
            let may_read = !is_frozen || !self.view.is_without_primary(subtable);
            if passes(Mutant::ReadsBackupsWhileFrozen, may_read) {
                return Ok(());
            }
            self.wait_for_change().await?;
        }
    }

    /// Waits, after `node` did not answer a READ, until the node is not a member of the newest view any more. Fails
    /// with `error` if that takes too long.
    pub(in crate::store) async fn read_without(
        &mut self,
        node: MnId,
        error: Error,
    ) -> Result<(), Error> {
        if self.pin.traces.is_in_doubt() {
            // The operation was repairing a replica. As a write does, it waits until none of the repair's verbs can
            // execute any more.
            SuspendedOperation { op: self, step: None, error }.await_switch().await?;
            self.pin.traces.clear_posted();
            return Ok(());
        }
        self.pin.pause();
        self.pin.traces.forgive_reads();
        self.store.host.report_unreachable(node);
        while self.store.newest_view().member(node).is_some() {
            if self.pause().await.is_err() {
                return Err(error);
            }
        }
        Ok(())
    }

    pub(in crate::store) async fn wait_for_change(&mut self) -> Result<(), Error> {
        self.pin.pause();
        match self.pause().await {
            Ok(()) => Ok(()),
            Err(_) => {
                Err(Error::GaveUp { waiting_for: CHANGE, outcome: FailedWriteOutcome::NotApplied })
            }
        }
    }

    pub(in crate::store) fn newer_view_has_come(&self) -> bool {
        self.store.follow_view();
        self.store.view.borrow().number > self.view.number
    }
}

/// Returns whether the key's subtable can be written in this view.
#[inline]
pub(in crate::store) fn may_write_now(view: &View, key: Key<'_>) -> bool {
    let held_back = view.change.as_ref().is_some_and(ViewChange::holds_objects_back);
    let held_back = guard(Mutant::WritesBesideLostReplicas, held_back);
    let waits = stage_of(view, key).is_some() || held_back;
    passes(Mutant::WritesWhileFrozen, !waits)
}

/// Returns the stage of the change of the key's subtable; `None` if the view does not change the subtable.
#[inline]
fn stage_of(view: &View, key: Key<'_>) -> Option<ChangeStage> {
    view.change.as_ref()?;
    view.stage_of(Buckets::of(key, view).subtable)
}

/// An operation that waits until none of its verbs can execute any more; if it is a write, until its attempt can be
/// resolved in a newer view.
pub(in crate::store) struct SuspendedOperation<'o, 's, 'a, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    /// The last step of the attempt of a write; `None` for an operation that only reads.
    step: Option<&'a AttemptStep>,
    /// The error with which the operation fails if the wait takes too long.
    error: Error,
}

impl<'o, 's, 'a, F: Fabric, H: Host> SuspendedOperation<'o, 's, 'a, F, H> {
    /// Suspends an attempt that was at this step.
    pub fn of_write(
        op: &'o mut StoreOp<'s, F, H>,
        step: &'a AttemptStep,
        error: Error,
    ) -> SuspendedOperation<'o, 's, 'a, F, H> {
        SuspendedOperation { op, step: Some(step), error }
    }

    /// Resolves the attempt, which was suspended because a node did not answer, or while it waited for another writer.
    /// `opcode` is the write's. Fails if the view does not change in time.
    pub async fn resolve(&mut self, opcode: Opcode) -> Result<AttemptEnd, Error> {
        let step = self.step.expect("a write has an attempt");
        loop {
            self.await_switch().await?;
            let op = &mut *self.op;
            let ended = match step {
                AttemptStep::Begun
                | AttemptStep::ReadingHint(_)
                | AttemptStep::Looking(_)
                | AttemptStep::Mentioned => Ok(AttemptEnd::Retry),
                AttemptStep::Committing(round, _) => {
                    // After a Move in place the object stays in use; the end of the attempt frees the old word's
                    // copies.
                    if guard(Mutant::ResolvedFreesNothing, !round.is_in_place()) {
                        op.pin.free(round.old);
                    }
                    Ok(AttemptEnd::Done(live(round, round.own)))
                }
                AttemptStep::Withdrawing(round) => op.fetch_slot(round.slot).await.map(|word| {
                    // The slot shows the old word only if the primary is the last replica left and has not got the
                    // withdrawal's CAS.
                    let is_old = word == round.old;
                    if !removed(Mutant::ResolvedFreesNothing) {
                        op.pin.free(if is_old { round.own.withdrawn() } else { round.old });
                    }
                    AttemptEnd::Retry
                }),
                AttemptStep::Speculated(round, ..)
                | AttemptStep::Contending(round, _)
                | AttemptStep::Installing(round, ..)
                | AttemptStep::Confirming(round, ..)
                | AttemptStep::Contended(round) => {
                    op.fetch_slot(round.slot).await.map(|word| {
                        // All replicas show this word. If it has the own identity, the old object is free. Otherwise
                        // the own object is free; the slot still leads to the old object, or the writer that replaced
                        // its word frees it.
                        let is_own = word.identity() == round.own.identity();
                        if !round.is_in_place() {
                            op.pin.free(if is_own { round.old } else { round.own.withdrawn() });
                        }
                        resolve_outcome(opcode, round, word)
                    })
                }
            };
            match ended {
                Err(Error::Unreachable { node, error: why, .. })
                    if why == VerbError::Unreachable =>
                {
                    self.error = Error::Unreachable {
                        node,
                        error: why,
                        outcome: FailedWriteOutcome::Unknown,
                    };
                }
                other => {
                    op.pin.resolved();
                    return other;
                }
            }
        }
    }

    /// Waits for a view in which the suspended attempt can be resolved. Pins the operation in that view. Without an
    /// attempt, waits only until no verb of the operation can execute any more. Fails if that takes too long.
    async fn await_switch(&mut self) -> Result<(), Error> {
        let round = self.step.and_then(AttemptStep::round);
        let replaced =
            matches!(self.step, Some(AttemptStep::Committing(..) | AttemptStep::Withdrawing(_)));
        for node in self.op.pin.traces.unanswered() {
            self.op.store.host.report_unreachable(*node);
        }
        loop {
            let newest = self.op.store.newest_view();
            // While a node is a member, verbs that were posted to it can still execute.
            let is_over = self.op.pin.traces.forget_nodes_outside(&newest);
            if passes(Mutant::StopsInDoubt, is_over) {
                self.op.pin.traces.clear_on_its_way();
                match round {
                    None => self.op.pin.pause(),
                    _ if self.op.pin.is_pinned() => self.op.pin.suspend(replaced),
                    _ => {}
                }
                if self.can_look(&newest)? {
                    self.op.view = self.op.pin.resume();
                    // A further view change has possibly begun since.
                    if self.can_look(&self.op.view)? {
                        return Ok(());
                    }
                    self.op.pin.pause();
                }
            }
            if self.op.pause().await.is_err() {
                return Err(self.error.clone());
            }
        }
    }

    /// Returns whether a session in this view can READ from the slot how the attempt's round has ended. Fails if
    /// no view will show that.
    fn can_look(&self, view: &View) -> Result<bool, Error> {
        let Some(round) = self.step.and_then(AttemptStep::round) else { return Ok(true) };
        match view.stage_of(round.slot.subtable) {
            Some(ChangeStage::Switched) => Ok(true),
            Some(_) => Ok(removed(Mutant::LooksBeforeTheSwitch)),
            None if view.number > self.op.view.number => {
                // The silent node is lost, but it had no replica of this slot, so the change did not make the slot's
                // replicas equal. The state of the round cannot be known.
                if removed(Mutant::SuspendedIsForgotten) {
                    Ok(true)
                } else {
                    Err(self.error.clone())
                }
            }
            None => Ok(false),
        }
    }
}

fn live(round: &WriteRound, word: Slot) -> Option<Hint> {
    (!word.is_free()).then_some(Hint { slot: round.slot, word, seen: HintTrust::Unverified })
}

/// Returns the end of an attempt that competed for a slot, by the word that all replicas of the slot hold.
fn resolve_outcome(opcode: Opcode, round: &WriteRound, word: Slot) -> AttemptEnd {
    if word.identity() == round.own.identity() {
        let withdrawn = word.is_free() && opcode != Opcode::Delete;
        return if withdrawn { AttemptEnd::Retry } else { AttemptEnd::Done(live(round, word)) };
    }
    let replaces = matches!(opcode, Opcode::Update | Opcode::Upsert) && !round.old.is_free();
    let ends = replaces
        && (removed(Mutant::SuspendedLoserEnds)
            || word.is_moved() && removed(Mutant::StoppedMoveLoserSucceeds));
    if word != round.old && ends { AttemptEnd::Done(None) } else { AttemptEnd::Retry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Address, SizeClass};
    use crate::view::SlotRef;

    fn word(n: u64) -> Slot {
        Slot::new(1, SizeClass::from_code(1).unwrap(), Address::new(n * 64), 0)
    }

    #[test]
    fn a_suspended_writer_reads_its_fate_from_the_slot() {
        let slot = SlotRef { subtable: 0, slot: 3 };
        let own = word(1);
        let other = word(2);
        let free = word(7).withdrawn();
        let is_done = |opcode, old, own, seen| {
            matches!(
                resolve_outcome(opcode, &WriteRound { slot, old, own }, seen),
                AttemptEnd::Done(_)
            )
        };
        for opcode in [Opcode::Update, Opcode::Upsert, Opcode::Insert] {
            assert!(is_done(opcode, word(9), own, own));
            assert!(!is_done(opcode, word(9), own, own.withdrawn()), "withdrawn");
            assert!(!is_done(opcode, word(9), own, word(9)), "the old word");
            assert!(!is_done(opcode, free, own, other), "an INSERT whose slot another one took");
        }
        assert!(!is_done(Opcode::Update, word(9), own, other), "others may have read it before");
        assert!(!is_done(Opcode::Upsert, word(9), own, free), "nor just before a DELETE");
        let marker = own.withdrawn();
        assert!(is_done(Opcode::Delete, word(9), marker, marker));
        assert!(!is_done(Opcode::Delete, word(9), marker, other), "the key lives");
        let tentative = own.tentative();
        assert!(is_done(Opcode::Insert, free, tentative, own), "confirmed by the change");
    }
}
