//! The end of a write round for its winner and its losers, by whichever rules the winner was chosen
//! ([`contend`](super::contend)).
//!
//! ```text
//! rewrite   an INSERT's winner: CAS one own word to another on all backups   (1 phase)
//! commit    CAS old -> own on the primary, with a winner's permission        (1 phase)
//! lost      READ the primary until it shows that the round has ended
//! ```
//!
//! A writer that loses a round on an *occupied* slot has lost it to a write of the same key. A losing UPDATE takes
//! effect right before the winner's write, so it succeeds, unless other sessions have possibly read the winner's word
//! from backups before the UPDATE began (`backup_reads`). So a session without a valid lease asks the members first. A
//! losing DELETE starts again, because the key still exists if the winner wrote a new value.
//!
//! *Rule L*. A Move ([`moving`](super::moving)) wins a round with the old value, so it has overwritten no write. If a
//! loser finds the word of a Move on the primary after the end of the round, it starts again. A Move's word on a backup
//! does not count, because that Move has possibly lost, too. If the primary already shows a later writer's word
//! instead, this later writer has replaced the Move's word, and the loser took effect right before it.

use super::attempt::{Attempt, AttemptEnd, AttemptStep, Intent, PerBackup, WriteRound};
use super::contend::RoundOutcome;
use crate::conflict_rules::Winner;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, guard, passes, removed};
use crate::store::session::has_valid_lease;
use crate::store::{Hint, StoreOp};
use crate::verbs::{Fabric, Ticket};
use crate::view::SlotRef;

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Replaces the winner's word on all backups by another word of the winner.
    pub(super) async fn rewrite_backups(
        &mut self,
        winner: &Winner,
        slot: SlotRef,
        from: Slot,
        to: Slot,
    ) -> Result<(), Error> {
        let cases = self.post_rewrite(winner, slot, from, to);
        self.phase().await;
        self.check_rewritten(&cases, from)
    }

    /// Posts the CASes by which [`StoreOp::rewrite_backups`] replaces the word.
    pub(super) fn post_rewrite(
        &mut self,
        _winner: &Winner,
        slot: SlotRef,
        from: Slot,
        to: Slot,
    ) -> PerBackup<Ticket> {
        self.batch.next_phase();
        let view = self.view.clone();
        let backups = view.slot_on_backups(slot);
        backups.map(|place| self.batch.cas(place.node, place.offset, from.0, to.0)).collect()
    }

    /// Checks that these CASes have replaced the writer's own word on all backups.
    pub(super) fn check_rewritten(&self, cases: &[Ticket], from: Slot) -> Result<(), Error> {
        for ticket in cases {
            if self.batch.found(*ticket).map_err(|f| self.failed(f))? != from.0 {
                return Err(Error::Interrupted { what: "a backup changed under its winner" });
            }
        }
        Ok(())
    }

    /// Commits the winner's word on the primary.
    ///
    /// Returns true if the CAS has succeeded. Returns false only with one index replica, where this CAS is the whole
    /// round, if another writer's CAS came first.
    pub(in crate::store) async fn commit(
        &mut self,
        attempt: &mut Attempt<'_>,
        winner: Winner,
        round: WriteRound,
        expected: Slot,
    ) -> Result<bool, Error> {
        let cas = self.post_commit(attempt, winner, round, expected);
        self.phase().await;
        self.is_committed(&round, expected, cas)
    }

    /// Posts the CAS by which the winner commits its word on the primary.
    pub(super) fn post_commit(
        &mut self,
        attempt: &mut Attempt<'_>,
        _winner: Winner,
        round: WriteRound,
        expected: Slot,
    ) -> Ticket {
        if let Some(watch) = attempt.intent.watch {
            watch();
        }
        self.batch.next_phase();
        let primary = self.primary(round.slot);
        let cas = self.batch.cas(primary.node, primary.offset, expected.0, round.own.0);
        attempt.enter_step(AttemptStep::Committing(round, cas));
        cas
    }

    /// Checks the executed CAS of the primary: see [`StoreOp::commit`].
    pub(in crate::store) fn is_committed(
        &self,
        round: &WriteRound,
        expected: Slot,
        cas: Ticket,
    ) -> Result<bool, Error> {
        let found = Slot(self.batch.found(cas).map_err(|f| self.failed(f))?);
        if found == expected {
            return Ok(true);
        }
        if self.view.subtables[round.slot.subtable as usize].backups().is_empty() {
            return Ok(false);
        }
        Err(Error::Interrupted { what: "the primary changed under its winner" })
    }

    /// Waits, for a loser, until the round is over. Returns the word that the primary shows then. Returns `None` if the
    /// view changes meanwhile, because the winner is possibly dead, and is recovered only after the change.
    pub(super) async fn await_end(
        &mut self,
        slot: SlotRef,
        old: Slot,
    ) -> Result<Option<Slot>, Error> {
        loop {
            if self.pause().await.is_err() {
                let waiting_for = "the winner of a write conflict to finish";
                return Err(Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::Unknown });
            }
            if guard(Mutant::LoserIgnoresNewView, self.newer_view_has_come()) {
                self.view = self.pin.resume();
                if self.view.stage_of(slot.subtable).is_some() {
                    return Ok(None);
                }
            }
            let word = self.fetch_slot(slot).await?;
            if word != old {
                return Ok(Some(word));
            }
        }
    }

    /// Ends the round of an UPDATE, UPSERT or DELETE: commits if it is won, waits for its end if it is lost.
    pub(super) async fn end_round(
        &mut self,
        attempt: &mut Attempt<'_>,
        contended: RoundOutcome,
    ) -> Result<AttemptEnd, Error> {
        let round = *attempt.step().round().expect("it has competed");
        match contended {
            RoundOutcome::Won(winner, _) => {
                let done = self.commit(attempt, winner, round, round.old).await?;
                Ok(self.ended(attempt, done))
            }
            RoundOutcome::Lost => self.end_lost_round(attempt, round).await,
        }
    }

    async fn end_lost_round(
        &mut self,
        attempt: &Attempt<'_>,
        round: WriteRound,
    ) -> Result<AttemptEnd, Error> {
        self.store.counters.add_lost_round();
        #[cfg(feature = "mutants")]
        if let Some(ended) = self.end_lost_round_at_once(attempt, &round) {
            return Ok(ended);
        }
        let judged = removed(Mutant::MoveLoserJudgesByBackups);
        let judged = if judged { Some(self.fetch_backup(round.slot).await?) } else { None };
        let Some(end) = self.await_end(round.slot, round.old).await? else {
            return Ok(AttemptEnd::Suspended);
        };
        if guard(Mutant::LoserFreesAtOnce, !round.is_in_place()) {
            self.free_lost(round.own, end);
        }
        let end = judged.unwrap_or(end);
        // Without a valid lease, others have possibly read the winner's word from backups before this operation began.
        let counts = passes(Mutant::LosersDoNotAsk, has_valid_lease(&self.store.host))
            || self.is_vouched_for_now(attempt.intent.key).await;
        Ok(if counts { lost(attempt.intent, end) } else { AttemptEnd::Retry })
    }

    /// Ends a lost round for mutants that wrongly do not wait for its end, or free the loser's object too early.
    #[cfg(feature = "mutants")]
    fn end_lost_round_at_once(
        &mut self,
        attempt: &Attempt<'_>,
        round: &WriteRound,
    ) -> Option<AttemptEnd> {
        if removed(Mutant::LoserDoesNotWait) {
            return Some(lost(attempt.intent, round.old));
        }
        let is_move = attempt.intent.opcode == Opcode::Move;
        let hurries = is_move && removed(Mutant::OvertakenMoveDoesNotWait);
        if (removed(Mutant::LoserFreesAtOnce) || hurries) && !round.is_in_place() {
            self.free(round.own.withdrawn());
        }
        hurries.then_some(AttemptEnd::Done(None))
    }

    /// Ends an attempt whose CAS of the primary was executed. `done` says whether that CAS succeeded; with one index
    /// replica, another writer's CAS possibly came first.
    pub(in crate::store) fn ended(&mut self, attempt: &Attempt<'_>, done: bool) -> AttemptEnd {
        let AttemptStep::Committing(round, cas) = attempt.step() else {
            unreachable!("it commits")
        };
        if !round.is_in_place() {
            self.free(if done { round.old } else { round.own.withdrawn() });
        }
        let place = Hint { slot: round.slot, word: round.own, seen: self.seen() };
        if done {
            AttemptEnd::Done((!round.own.is_free()).then_some(place))
        } else {
            lost(attempt.intent, Slot(self.batch.found(*cas).expect("it was answered")))
        }
    }

    /// Reads the word of a slot from its first backup, in one phase.
    #[cold]
    async fn fetch_backup(&mut self, slot: SlotRef) -> Result<Slot, Error> {
        let Some(place) = self.backups(slot).first().copied() else {
            return self.fetch_slot(slot).await;
        };
        self.batch.clear();
        let ticket = self.batch.read(place.node, place.offset, 8);
        self.phase().await;
        self.slot_word(ticket).map_err(|f| self.failed(f))
    }
}

/// Returns the end of a write that lost its round to another write of the same key. `end` is the word that the primary
/// showed after the round.
fn lost(intent: &Intent<'_>, end: Slot) -> AttemptEnd {
    match intent.opcode {
        Opcode::Delete if !removed(Mutant::DeleteLoserSucceeds) => AttemptEnd::Retry,
        Opcode::Update | Opcode::Upsert if guard(Mutant::MoveLoserSucceeds, end.is_moved()) => {
            AttemptEnd::Retry
        }
        _ => AttemptEnd::Done(None),
    }
}
