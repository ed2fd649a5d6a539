//! Completion of a round of a dead client.
//!
//! A backup shows the client's own word, and the primary the round's old word. From here recovery does what the client
//! would have done: it posts the same CASes with the same words, so other writers of the round notice no difference. A
//! replica that shows the client's word counts as one on which the client's CAS has succeeded.
//!
//! ```text
//! complete  the object to those of its replicas where it is not whole
//! contend   CAS old -> own on the backups that showed old; the rules name the winner
//!           no majority: READ the primary for Rule 3
//!           won by Rule 2 or 3: CAS own onto the backups that others took
//! rewrite   INSERT: tentative -> own, or own identity -> size class 0, on all backups
//! commit    CAS old -> own on the primary
//! ```
//!
//! All steps can be interrupted and repeated: if a CAS finds the word that it was to write, an earlier recovery has
//! written it.
//!
//! If recovery loses the round, nothing is left to do: the winner, or the winner's own recovery, replaces the client's
//! words.

use super::examine::{PerBackup, RecoverySlot, RecoveryStep, judge};
use super::{FoundWrite, Recovery, RecoveryError};
use crate::conflict_rules::{RoundVerdict, Winner, evaluate};
use crate::data::complete;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::verbs::{Fabric, Ticket};
use crate::view::PoolPlace;

/// The outcome, for the dead client, of a round that recovery has continued.
enum ResumedRound {
    /// The dead client has won. In the given slot every backup shows a word with the identity of the client's object.
    Won(Winner, RecoverySlot),
    Lost,
    /// The replicas show words that no round leaves.
    Strange,
}

impl<F: Fabric> Recovery<'_, F> {
    /// Ends the write of one object of the dead client.
    pub(super) async fn finish(
        &mut self,
        found: &FoundWrite,
        seen: &RecoverySlot,
    ) -> Result<(), RecoveryError> {
        let own = found.own;
        let step = judge(found.opcode, own, seen, self.view.is_gone(seen.primary));
        let goes_on = !matches!(step, RecoveryStep::Done | RecoveryStep::Strange);
        if goes_on && !found.is_everywhere && !removed(Mutant::RecoveryDoesNotComplete) {
            let objects = self.view.objects_of(core::slice::from_ref(&own));
            complete(self.fabric, objects, &mut self.report.cost).await?;
        }
        let contended = match step {
            RecoveryStep::Done => {
                self.report.on_primary += 1;
                return Ok(());
            }
            RecoveryStep::Strange => ResumedRound::Strange,
            RecoveryStep::Commit(word) | RecoveryStep::WinAndWithdraw(word) => {
                self.contend(own, word, seen).await?
            }
            RecoveryStep::Confirm(_) | RecoveryStep::Withdraw(_) => had_won(own, seen),
        };
        let done = match (contended, step) {
            (ResumedRound::Lost, _) => {
                self.report.dropped += 1;
                return Ok(());
            }
            (ResumedRound::Won(winner, now), RecoveryStep::Commit(word)) => {
                self.commit(winner, &now, word).await?
            }
            (ResumedRound::Won(winner, now), RecoveryStep::Confirm(word)) => {
                self.rewrite(&winner, &now, word).await? && self.commit(winner, &now, word).await?
            }
            (ResumedRound::Won(winner, now), RecoveryStep::WinAndWithdraw(_))
                if removed(Mutant::RecoveryCommitsTentative) =>
            {
                self.rewrite(&winner, &now, own).await? && self.commit(winner, &now, own).await?
            }
            (
                ResumedRound::Won(winner, now),
                RecoveryStep::WinAndWithdraw(_) | RecoveryStep::Withdraw(_),
            ) => self.withdraw(winner, own, &now).await?,
            (ResumedRound::Won(..), RecoveryStep::Done | RecoveryStep::Strange)
            | (ResumedRound::Strange, _) => false,
        };
        let count = match (done, step) {
            (false, _) => &mut self.report.strange,
            (true, RecoveryStep::WinAndWithdraw(_) | RecoveryStep::Withdraw(_)) => {
                &mut self.report.withdrawn
            }
            (true, _) => &mut self.report.committed,
        };
        *count += 1;
        Ok(())
    }

    /// Returns the place of the slot on each backup, in order.
    fn backups(&self, seen: &RecoverySlot) -> PerBackup<PoolPlace> {
        self.view.slot_on_backups(seen.slot).collect()
    }

    fn primary(&self, seen: &RecoverySlot) -> PoolPlace {
        self.view.slot_on_primary(seen.slot)
    }

    /// Posts, in one phase or none, a CAS at each of these places, from the word given with the place to `to`. Returns
    /// the words that the CASes found.
    async fn swap(
        &mut self,
        from: &[(PoolPlace, Slot)],
        to: Slot,
    ) -> Result<PerBackup<Slot>, RecoveryError> {
        self.batch.clear();
        let tickets: PerBackup<Ticket> = from
            .iter()
            .map(|(place, word)| self.batch.cas(place.node, place.offset, word.0, to.0))
            .collect();
        if !tickets.is_empty() {
            self.phase().await;
        }
        let mut found = PerBackup::new();
        for ticket in tickets {
            found.push(Slot(self.batch.found(ticket)?));
        }
        Ok(found)
    }

    /// Does the same as `swap`, at places that no other session changes. Returns whether all these places contain `to`
    /// now.
    async fn replace(
        &mut self,
        from: &[(PoolPlace, Slot)],
        to: Slot,
    ) -> Result<bool, RecoveryError> {
        let found = self.swap(from, to).await?;
        Ok(from.iter().zip(found).all(|((_, word), found)| found == *word || found == to))
    }

    /// Runs Algorithm 1 of the paper until all backups contain `word`, or the round is lost.
    async fn contend(
        &mut self,
        own: Slot,
        word: Slot,
        seen: &RecoverySlot,
    ) -> Result<ResumedRound, RecoveryError> {
        let old = seen.primary;
        let mut shown: PerBackup<(PoolPlace, Slot)> =
            self.backups(seen).into_iter().zip(seen.backups.iter().copied()).collect();
        let untaken: PerBackup<(PoolPlace, Slot)> =
            shown.iter().copied().filter(|(_, w)| *w == old).collect();
        let found = self.swap(&untaken, word).await?;
        let still_old = shown.iter_mut().filter(|(_, w)| *w == old);
        for ((_, shown), found) in still_old.zip(found) {
            *shown = if found == old { word } else { found };
        }
        let verdict = evaluate(own.identity(), shown.iter().map(|(_, w)| w.identity()));
        let winner = match verdict {
            RoundVerdict::Won(winner) => winner,
            RoundVerdict::Lost => return Ok(ResumedRound::Lost),
            RoundVerdict::Undecided(undecided) => {
                let primary = if removed(Mutant::RecoverySkipsTheReadOfRule3) {
                    old
                } else {
                    self.read_primary(seen).await?
                };
                match undecided.decide(primary, old) {
                    Some(winner) => winner,
                    None => return Ok(ResumedRound::Lost),
                }
            }
        };
        shown.retain(|(_, w)| *w != word);
        if removed(Mutant::RecoveryLeavesForeignBackups) {
            shown.clear();
        }
        if !self.replace(&shown, word).await? {
            return Ok(ResumedRound::Strange);
        }
        let backups = seen.backups.iter().map(|_| word).collect();
        Ok(ResumedRound::Won(winner, RecoverySlot { backups, ..seen.clone() }))
    }

    /// Reads, in one phase, the word of the slot on the primary.
    async fn read_primary(&mut self, seen: &RecoverySlot) -> Result<Slot, RecoveryError> {
        let place = self.primary(seen);
        self.batch.clear();
        let ticket = self.batch.read(place.node, place.offset, 8);
        self.phase().await;
        let bytes = self.batch.data(ticket)?.try_into().expect("a slot has 8 bytes");
        Ok(Slot(u64::from_le_bytes(bytes)))
    }

    /// Gives all backups, as the winner, another word of the same identity. Returns whether all of them contain it now.
    async fn rewrite(
        &mut self,
        _winner: &Winner,
        seen: &RecoverySlot,
        to: Slot,
    ) -> Result<bool, RecoveryError> {
        if removed(Mutant::RecoveryLeavesOwnBackups) {
            return Ok(true);
        }
        let mut from: PerBackup<(PoolPlace, Slot)> =
            self.backups(seen).into_iter().zip(seen.backups.iter().copied()).collect();
        from.retain(|(_, word)| *word != to);
        self.replace(&from, to).await
    }

    /// Withdraws an INSERT of the dead client that has won its round: on the backups, then on the primary.
    async fn withdraw(
        &mut self,
        winner: Winner,
        own: Slot,
        seen: &RecoverySlot,
    ) -> Result<bool, RecoveryError> {
        let withdrawn = own.withdrawn();
        let primary = [(self.primary(seen), seen.primary)];
        Ok(self.rewrite(&winner, seen, withdrawn).await?
            && self.replace(&primary, withdrawn).await?)
    }

    /// Commits on the primary a word of the dead client that has won its round.
    async fn commit(
        &mut self,
        _winner: Winner,
        seen: &RecoverySlot,
        word: Slot,
    ) -> Result<bool, RecoveryError> {
        let shown = self.swap(&[(self.primary(seen), seen.primary)], word).await?[0];
        Ok(shown == seen.primary || shown == word)
    }
}

/// Decides a round of which a backup shows a confirmed or withdrawn word. Such a word proves that the client had won,
/// so every backup has to show the identity of the client's object.
fn had_won(own: Slot, seen: &RecoverySlot) -> ResumedRound {
    let identities = seen.backups.iter().map(|w| w.identity());
    if identities.clone().any(|i| i != own.identity()) {
        return ResumedRound::Strange;
    }
    match evaluate(own.identity(), identities) {
        RoundVerdict::Won(winner) => ResumedRound::Won(winner, seen.clone()),
        RoundVerdict::Lost | RoundVerdict::Undecided(_) => ResumedRound::Strange,
    }
}
