//! Operations and changes of the view: how they wait for one, and how a writer that was stopped
//! by one finds out what became of its write.
//!
//! A write stops when a memory node does not answer, or when it waits for another writer whose
//! subtable is being changed: that writer may be dead, and is recovered only after the change. It
//! then knows how far it came ([`Progress`]). When the change has made the replicas equal, and
//! before anybody may write again, it looks at its slot:
//!
//! | it had | it sees | so |
//! |---|---|---|
//! | posted no CAS | – | starts again |
//! | begun to withdraw | – | starts again: its word was never live |
//! | posted its commit | – | is done: its word stood on all backups, hence was chosen |
//! | competed, or confirmed | its own word | is done |
//! | | its identity, withdrawn; or the old word | starts again |
//! | | another word | is a loser, and starts again: others may have read the winner's before it began (`beside`) |
//! | guessed, and nothing has proved the guess | its own word | is done |
//! | | any other word | starts again: its round may have been over before it began |

use alloc::sync::Arc;

use super::round::Round;
use super::write::Attempt;
use super::{Hint, Op};
use crate::change::Stage;
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Key};
use crate::verbs::{Fabric, MnId, VerbError};
use crate::view::View;

/// How far an attempt to write has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// No CAS of it has been posted, or nothing of it stands anywhere.
    Nothing,
    /// As `Contending`, but nothing has shown yet that its round was open when the operation began.
    Guessing(Round),
    /// It competes for a round, or has won it and confirms its word.
    Contending(Round),
    /// It takes its word back.
    Withdrawing(Round),
    /// It commits.
    Committing(Round),
}

impl Progress {
    fn round(&self) -> Option<&Round> {
        match self {
            Progress::Nothing => None,
            Progress::Guessing(round)
            | Progress::Contending(round)
            | Progress::Withdrawing(round)
            | Progress::Committing(round) => Some(round),
        }
    }
}

const CHANGE: &str = "the end of a change of the cluster";

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Waits until the key's subtable may be written. The operation acts by the newest view then.
    pub(super) async fn may_write(&mut self, key: Key<'_>) -> Result<(), Error> {
        loop {
            if !self.acts.is_acting() || self.newer_view_has_come() {
                self.view = self.acts.resume();
            }
            if self.may_write_now(key) {
                return Ok(());
            }
            self.wait_for_change().await?;
        }
    }

    /// Whether the key's subtable may be written by the view that the operation acts by.
    pub(super) fn may_write_now(&self, key: Key<'_>) -> bool {
        let held_back =
            self.view.holds_objects_back() && !removed(Mutant::WritesBesideLostReplicas);
        let waits = self.stage_of(key).is_some() || held_back;
        !waits || removed(Mutant::WritesWhileFrozen)
    }

    /// Waits until the key's subtable may be read. The operation acts by the newest view then.
    pub(super) async fn may_read(&mut self, key: Key<'_>) -> Result<(), Error> {
        loop {
            if !self.acts.is_acting() || self.newer_view_has_come() {
                self.view = self.acts.resume();
            }
            let is_frozen = self.stage_of(key) == Some(Stage::Frozen);
            if !is_frozen
                || !self.view.is_headless(Buckets::of(key, &self.view).subtable)
                || removed(Mutant::ReadsBackupsWhileFrozen)
            {
                return Ok(());
            }
            self.wait_for_change().await?;
        }
    }

    /// A read had no answer from a node: waits until it is none of the view any more.
    pub(super) async fn read_without(&mut self, node: MnId, error: Error) -> Result<(), Error> {
        if self.acts.posted {
            // A replica that was being repaired there: as for a writer, it must be certain that nothing of
            // that executes any more.
            self.await_switch(&error).await?;
            self.acts.posted = false;
            return Ok(());
        }
        // A READ that is still on its way harms nobody.
        self.acts.pause();
        self.in_doubt.clear();
        self.store.host.report_unreachable(node);
        while self.store.newest_view().member(node).is_some() {
            if self.pause().await.is_err() {
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) async fn wait_for_change(&mut self) -> Result<(), Error> {
        self.acts.pause();
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

    /// An attempt to write was stopped: by a node that did not answer, or in its wait for another
    /// writer. Finds out what became of it. `error` is what it comes to if nobody changes the view.
    pub(super) async fn find_out(
        &mut self,
        opcode: Opcode,
        mut error: Error,
    ) -> Result<Attempt, Error> {
        loop {
            self.await_switch(&error).await?;
            let attempt = match self.progress {
                Progress::Nothing | Progress::Withdrawing(_) => Ok(Attempt::Again),
                Progress::Committing(round) => Ok(Attempt::Done(live(&round, round.own))),
                Progress::Guessing(round) | Progress::Contending(round) => {
                    match self.fetch_slot(round.slot).await {
                        Ok(word) => {
                            // All replicas hold this word: what is not kept by it is free.
                            let is_own = word.identity() == round.own.identity();
                            self.free(if is_own { round.old } else { round.own });
                            let is_guess = matches!(self.progress, Progress::Guessing(_));
                            Ok(fate(opcode, &round, is_guess, word))
                        }
                        Err(error) => Err(error),
                    }
                }
            };
            match attempt {
                Err(Error::Unreachable { node, error: why, .. })
                    if why == VerbError::Unreachable =>
                {
                    error = Error::Unreachable { node, error: why, outcome: Outcome::Unknown };
                }
                other => {
                    self.acts.found_out();
                    return other;
                }
            }
        }
    }

    /// Waits for the view by which a stopped attempt can find out what became of it, and acts by it.
    async fn await_switch(&mut self, error: &Error) -> Result<(), Error> {
        for node in &self.in_doubt {
            self.store.host.report_unreachable(*node);
        }
        loop {
            let newest = self.store.newest_view();
            // What it has posted to a member may still execute there.
            self.in_doubt.retain(|node| newest.member(*node).is_some());
            if self.in_doubt.is_empty() || removed(Mutant::StopsInDoubt) {
                match self.progress {
                    Progress::Nothing => self.acts.pause(),
                    _ if self.acts.is_acting() => self.acts.stop(),
                    _ => {}
                }
                if self.can_look(&newest, error)? {
                    self.view = self.acts.resume();
                    // Another change may have come in between.
                    if self.can_look(&self.view.clone(), error)? {
                        return Ok(());
                    }
                    self.acts.pause();
                }
            }
            if self.pause().await.is_err() {
                return Err(error.clone());
            }
        }
    }

    /// Whether a view shows what became of the attempt.
    fn can_look(&self, view: &Arc<View>, error: &Error) -> Result<bool, Error> {
        let Some(round) = self.progress.round() else { return Ok(true) };
        match view.stage_of(round.slot.subtable) {
            Some(Stage::Switched) => Ok(true),
            Some(_) => Ok(removed(Mutant::LooksBeforeTheSwitch)),
            None if view.number > self.view.number => {
                // The node is gone, but it had no part of this round: what failed was no part of
                // it either. Nobody can tell how far the round is.
                if removed(Mutant::StoppedIsForgotten) { Ok(true) } else { Err(error.clone()) }
            }
            None => Ok(false),
        }
    }
}

fn live(round: &Round, word: Slot) -> Option<Hint> {
    (!word.is_free()).then_some(Hint { slot: round.slot, word, seen: None })
}

/// What a word that all replicas of a slot hold says about a writer that competed for it, perhaps by a
/// guess that nothing has proved.
fn fate(opcode: Opcode, round: &Round, is_guess: bool, word: Slot) -> Attempt {
    if word.identity() == round.own.identity() {
        let withdrawn = word.is_free() && opcode != Opcode::Delete;
        return if withdrawn { Attempt::Again } else { Attempt::Done(live(round, word)) };
    }
    let replaces = matches!(opcode, Opcode::Update | Opcode::Upsert) && !round.old.is_free();
    // Without either it took effect just before the winner.
    let ends = match is_guess {
        true => removed(Mutant::StoppedGuessLoses),
        false => removed(Mutant::StoppedLoserEnds),
    };
    if word != round.old && replaces && ends { Attempt::Done(None) } else { Attempt::Again }
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
    fn a_stopped_writer_reads_its_fate_from_the_slot() {
        let slot = SlotRef { subtable: 0, slot: 3 };
        let (own, other) = (word(1), word(2));
        let free = word(7).aborted();
        let is_done = |opcode, old, own, seen| {
            matches!(fate(opcode, &Round { slot, old, own }, false, seen), Attempt::Done(_))
        };
        for opcode in [Opcode::Update, Opcode::Upsert, Opcode::Insert] {
            assert!(is_done(opcode, word(9), own, own));
            assert!(!is_done(opcode, word(9), own, own.aborted()), "withdrawn");
            assert!(!is_done(opcode, word(9), own, word(9)), "the old word");
            assert!(!is_done(opcode, free, own, other), "an INSERT whose slot another one took");
        }
        assert!(!is_done(Opcode::Update, word(9), own, other), "others may have read it before");
        assert!(!is_done(Opcode::Upsert, word(9), own, free), "nor just before a DELETE");
        let marker = own.aborted();
        assert!(is_done(Opcode::Delete, word(9), marker, marker));
        assert!(!is_done(Opcode::Delete, word(9), marker, other), "the key lives");
        let tentative = own.tentative();
        assert!(is_done(Opcode::Insert, free, tentative, own), "confirmed by the change");
    }

    #[test]
    fn a_guess_that_nothing_has_proved_never_lost() {
        let round = Round { slot: SlotRef { subtable: 0, slot: 3 }, old: word(9), own: word(1) };
        let is_done = |seen| matches!(fate(Opcode::Update, &round, true, seen), Attempt::Done(_));
        assert!(is_done(word(1)), "the change has chosen it");
        assert!(!is_done(word(2)) && !is_done(word(9)) && !is_done(word(9).aborted()));
    }
}
