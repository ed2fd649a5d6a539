//! Operations and changes of the view: how they wait for one, and how a write that was suspended
//! by one is resolved.
//!
//! A write is suspended when a memory node does not answer, or when it waits for another writer whose
//! subtable is being changed: that writer may be dead, and is recovered only after the change. It
//! then knows how far it came ([`Step`]). When the change has made the replicas equal, and
//! before anybody may write again, it looks at its slot:
//!
//! | it had | it sees | so |
//! |---|---|---|
//! | posted no CAS | – | starts again |
//! | begun to withdraw | any | starts again: its word was never live |
//! | posted its commit | – | is done: its word stood on all backups, hence was chosen |
//! | speculated, competed, or confirmed | its own word | is done |
//! | | its identity, withdrawn; or the old word | starts again |
//! | | another word | is a loser, and starts again |
//!
//! A loser would have taken effect just before its winner. But others may have read the winner's word before the
//! loser began (`beside`), the round of a speculative write may have been over by then, and a Move has overwritten
//! nobody ([`round`](super::round), rule L).
//!
//! *It frees what it has replaced*, like every writer. A word of which the commit was posted may have given way while
//! the write was still pinned, and a comparison with the index may have found that nobody keeps the object. It ends
//! when everything is set free that such operations freed: so the write *holds* what it may have replaced from before
//! it is suspended until it has freed it ([`reclaim`](super::reclaim)). If what waits to be set free is revoked
//! meanwhile, it leaves that to the comparison. A writer that has posted no commit need not hold anything: as long as
//! the view lasts the old word stands, and the own object lies in a block with a write under way.

use super::attempt::{Attempt, Ended, Round, Step};
use super::{Hint, Op, Sight};
use crate::change::Stage;
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Key};
use crate::verbs::{Fabric, MnId, VerbError};
use crate::view::View;

const CHANGE: &str = "the end of a change of the cluster";

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Waits until the key's subtable may be written. The operation is pinned by the newest view then.
    pub(super) async fn may_write(&mut self, key: Key<'_>) -> Result<(), Error> {
        loop {
            if !self.pin.is_pinned() || self.newer_view_has_come() {
                self.view = self.pin.resume();
            }
            if self.may_write_now(key) {
                return Ok(());
            }
            self.wait_for_change().await?;
        }
    }

    /// Whether the key's subtable may be written by the view that the operation is pinned by.
    pub(super) fn may_write_now(&self, key: Key<'_>) -> bool {
        let held_back =
            self.view.holds_objects_back() && !removed(Mutant::WritesBesideLostReplicas);
        let waits = self.stage_of(key).is_some() || held_back;
        !waits || removed(Mutant::WritesWhileFrozen)
    }

    /// Waits until the key's subtable may be read. The operation is pinned by the newest view then.
    pub(super) async fn may_read(&mut self, key: Key<'_>) -> Result<(), Error> {
        loop {
            if !self.pin.is_pinned() || self.newer_view_has_come() {
                self.view = self.pin.resume();
            }
            let is_frozen = self.stage_of(key) == Some(Stage::Frozen);
            if !is_frozen
                || !self.view.is_without_primary(Buckets::of(key, &self.view).subtable)
                || removed(Mutant::ReadsBackupsWhileFrozen)
            {
                return Ok(());
            }
            self.wait_for_change().await?;
        }
    }

    /// A read had no answer from a node: waits until it is none of the view any more.
    pub(super) async fn read_without(&mut self, node: MnId, error: Error) -> Result<(), Error> {
        if self.pin.posted || self.pin.on_its_way {
            // A replica that was being repaired there: as for a writer, it must be certain that nothing of
            // that executes any more.
            self.await_switch(None, &error).await?;
            self.pin.posted = false;
            return Ok(());
        }
        // A READ that is still on its way harms nobody.
        self.pin.pause();
        self.unanswered.clear();
        self.store.host.report_unreachable(node);
        while self.store.newest_view().member(node).is_some() {
            if self.pause().await.is_err() {
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) async fn wait_for_change(&mut self) -> Result<(), Error> {
        self.pin.pause();
        match self.pause().await {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::GaveUp { waiting_for: CHANGE, outcome: Outcome::NotApplied }),
        }
    }

    fn stage_of(&self, key: Key<'_>) -> Option<Stage> {
        self.view.change.as_ref()?;
        self.view.stage_of(Buckets::of(key, &self.view).subtable)
    }

    pub(super) fn newer_view_has_come(&self) -> bool {
        self.store.follow_view();
        self.store.view.borrow().number > self.view.number
    }

    /// An attempt was suspended: by a node that did not answer, or in its wait for another writer.
    /// Resolves it. `error` is what it comes to if nobody changes the view.
    pub(super) async fn resolve(
        &mut self,
        attempt: &Attempt<'_>,
        mut error: Error,
    ) -> Result<Ended, Error> {
        loop {
            self.await_switch(Some(attempt.step()), &error).await?;
            let ended = match attempt.step() {
                Step::Begun | Step::Led(_) | Step::Looking(_) | Step::Mentioned => Ok(Ended::Again),
                Step::Committing(round, _) => {
                    // The copies of a word that was replaced in place are freed with the attempt's.
                    if !round.is_in_place() && !removed(Mutant::ResolvedFreesNothing) {
                        self.free(round.old);
                    }
                    Ok(Ended::Done(live(round, round.own)))
                }
                Step::Withdrawing(round) => self.fetch_slot(round.slot).await.map(|word| {
                    // Only a primary that is left alone, and had not been asked yet, shows the old word still.
                    let is_old = word == round.old;
                    if !removed(Mutant::ResolvedFreesNothing) {
                        self.free(if is_old { round.own.withdrawn() } else { round.old });
                    }
                    Ended::Again
                }),
                Step::Speculated(round, ..)
                | Step::Contending(round, _)
                | Step::Installing(round, ..)
                | Step::Confirming(round, ..)
                | Step::Contended(round) => {
                    self.fetch_slot(round.slot).await.map(|word| {
                        // All replicas hold this word: what is not kept by it is free.
                        let is_own = word.identity() == round.own.identity();
                        if !round.is_in_place() {
                            self.free(if is_own { round.old } else { round.own.withdrawn() });
                        }
                        resolve_outcome(attempt.intent.opcode, round, word)
                    })
                }
            };
            match ended {
                Err(Error::Unreachable { node, error: why, .. })
                    if why == VerbError::Unreachable =>
                {
                    error = Error::Unreachable { node, error: why, outcome: Outcome::Unknown };
                }
                other => {
                    self.pin.resolved();
                    return other;
                }
            }
        }
    }

    /// Waits for the view by which a suspended attempt that is so far, if there is one, can be resolved, and is
    /// pinned by it.
    async fn await_switch(&mut self, step: Option<&Step>, error: &Error) -> Result<(), Error> {
        let round = step.and_then(Step::round);
        let replaced = matches!(step, Some(Step::Committing(..) | Step::Withdrawing(_)));
        for node in &self.unanswered {
            self.store.host.report_unreachable(*node);
        }
        loop {
            let newest = self.store.newest_view();
            // What it has posted to a member may still execute there.
            self.unanswered.retain(|node| newest.member(*node).is_some());
            if self.unanswered.is_empty() || removed(Mutant::StopsInDoubt) {
                self.pin.on_its_way = false;
                match round {
                    None => self.pin.pause(),
                    _ if self.pin.is_pinned() => self.pin.suspend(replaced),
                    _ => {}
                }
                if self.can_look(round, &newest, error)? {
                    self.view = self.pin.resume();
                    // Another change may have come in between.
                    if self.can_look(round, &self.view, error)? {
                        return Ok(());
                    }
                    self.pin.pause();
                }
            }
            if self.pause().await.is_err() {
                return Err(error.clone());
            }
        }
    }

    /// At its end: nothing that was posted to a node which the view has lost is on its way any more.
    pub(super) fn forget_lost(&mut self) {
        if self.pin.on_its_way {
            let newest = self.store.newest_view();
            self.pin.on_its_way = self.unanswered.iter().any(|n| newest.member(*n).is_some());
        }
    }

    /// Whether a view shows what became of the attempt.
    fn can_look(&self, round: Option<&Round>, view: &View, error: &Error) -> Result<bool, Error> {
        let Some(round) = round else { return Ok(true) };
        match view.stage_of(round.slot.subtable) {
            Some(Stage::Switched) => Ok(true),
            Some(_) => Ok(removed(Mutant::LooksBeforeTheSwitch)),
            None if view.number > self.view.number => {
                // The node is gone, but it had no part of this round: what failed was no part of
                // it either. Nobody can tell how far the round is.
                if removed(Mutant::SuspendedIsForgotten) { Ok(true) } else { Err(error.clone()) }
            }
            None => Ok(false),
        }
    }
}

fn live(round: &Round, word: Slot) -> Option<Hint> {
    (!word.is_free()).then_some(Hint { slot: round.slot, word, seen: Sight::Sometime })
}

/// What a word that all replicas of a slot hold says about a writer that competed for it.
fn resolve_outcome(opcode: Opcode, round: &Round, word: Slot) -> Ended {
    if word.identity() == round.own.identity() {
        let withdrawn = word.is_free() && opcode != Opcode::Delete;
        return if withdrawn { Ended::Again } else { Ended::Done(live(round, word)) };
    }
    let replaces = matches!(opcode, Opcode::Update | Opcode::Upsert) && !round.old.is_free();
    let ends = replaces
        && (removed(Mutant::SuspendedLoserEnds)
            || word.is_moved() && removed(Mutant::StoppedMoveLoserSucceeds));
    if word != round.old && ends { Ended::Done(None) } else { Ended::Again }
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
            matches!(resolve_outcome(opcode, &Round { slot, old, own }, seen), Ended::Done(_))
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
