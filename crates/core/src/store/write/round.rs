//! The end of a write round for its winner and its losers, whichever rules have chosen the winner
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
//!
//! *A loser of another redundancy* than that of the word that the primary shows after the round starts again. The
//! winner has possibly kept the redundancy of the old pair, and right after the loser it would have kept the loser's.
//! Starting again is as safe as by rule L.

use super::attempt::{Attempt, AttemptEnd, AttemptStep, PerBackup, WriteRound};
use super::contend::RoundOutcome;
use super::intent::Intent;
use crate::conflict_rules::Winner;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, guard, passes, removed};
use crate::store::session::{has_valid_lease, is_vouched_for_now};
use crate::store::{Hint, StoreOp};
use crate::verbs::{Fabric, Ticket};
use crate::view::{SlotRef, View};

/// Replaces the winner's word on all backups by another word of the winner.
pub(super) async fn rewrite_backups<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    winner: &Winner,
    slot: SlotRef,
    from: Slot,
    to: Slot,
) -> Result<(), Error> {
    let cases = post_rewrite(op, winner, slot, from, to);
    op.phase().await;
    check_rewritten(op, &cases, from)
}

/// Posts the CASes that replace the winner's word on all backups, for [`rewrite_backups`].
pub(super) fn post_rewrite<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    _winner: &Winner,
    slot: SlotRef,
    from: Slot,
    to: Slot,
) -> PerBackup<Ticket> {
    op.batch.next_phase();
    let view = op.view.clone();
    let backups = view.slot_on_backups(slot);
    backups.map(|place| op.batch.cas(place.node, place.offset, from.0, to.0)).collect()
}

/// Checks that these CASes have replaced the writer's own word on all backups.
pub(super) fn check_rewritten<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    cases: &[Ticket],
    from: Slot,
) -> Result<(), Error> {
    for ticket in cases {
        if op.batch.found(*ticket).map_err(|f| op.failed(f))? != from.0 {
            return Err(Error::Interrupted { what: "a backup changed under its winner" });
        }
    }
    Ok(())
}

/// Commits the winner's word on the primary.
///
/// Returns true if the CAS has succeeded. Returns false only with one index replica, where this CAS is the whole
/// round, if another writer's CAS came first.
pub(in crate::store) async fn commit<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    winner: Winner,
    round: WriteRound,
    expected: Slot,
) -> Result<bool, Error> {
    let cas = post_commit(op, attempt, winner, round, expected);
    op.phase().await;
    is_committed(op, &round, expected, cas)
}

/// Posts the CAS that commits the winner's word on the primary.
pub(super) fn post_commit<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    _winner: Winner,
    round: WriteRound,
    expected: Slot,
) -> Ticket {
    if let Some(watch) = attempt.intent.watch {
        watch();
    }
    op.batch.next_phase();
    let primary = op.primary(round.slot);
    let cas = op.batch.cas(primary.node, primary.offset, expected.0, round.own.0);
    attempt.enter_step(AttemptStep::Committing(round, cas));
    cas
}

/// Checks the executed CAS of the primary: see [`commit`].
pub(in crate::store) fn is_committed<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    round: &WriteRound,
    expected: Slot,
    cas: Ticket,
) -> Result<bool, Error> {
    let found = Slot(op.batch.found(cas).map_err(|f| op.failed(f))?);
    if found == expected {
        return Ok(true);
    }
    if op.view.subtables[round.slot.subtable as usize].backups().is_empty() {
        return Ok(false);
    }
    Err(Error::Interrupted { what: "the primary changed under its winner" })
}

/// Waits, for a loser, until the round is over. Returns the word that the primary shows then. Returns `None` if the
/// view changes before that, because the winner is possibly dead, and is recovered only after the change.
pub(super) async fn await_end<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    slot: SlotRef,
    old: Slot,
) -> Result<Option<Slot>, Error> {
    loop {
        if op.pause().await.is_err() {
            let waiting_for = "the winner of a write conflict to finish";
            return Err(Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::Unknown });
        }
        if guard(Mutant::LoserIgnoresNewView, op.newer_view_has_come()) {
            op.view = op.pin.resume();
            if op.view.stage_of(slot.subtable).is_some() {
                return Ok(None);
            }
        }
        let word = op.fetch_slot(slot).await?;
        if word != old {
            return Ok(Some(word));
        }
    }
}

/// Ends the round of an UPDATE, UPSERT or DELETE: commits if it is won, waits for its end if it is lost.
pub(super) async fn end_round<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    contended: RoundOutcome,
) -> Result<AttemptEnd, Error> {
    let round = *attempt.step().round().expect("it has competed");
    match contended {
        RoundOutcome::Won(winner, _) => {
            let done = commit(op, attempt, winner, round, round.old).await?;
            Ok(ended(op, attempt, done))
        }
        RoundOutcome::Lost => end_lost_round(op, attempt, round).await,
    }
}

async fn end_lost_round<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &Attempt<'_>,
    round: WriteRound,
) -> Result<AttemptEnd, Error> {
    op.store.counters.add_lost_round();
    #[cfg(feature = "mutants")]
    if let Some(ended) = end_lost_round_at_once(op, attempt, &round) {
        return Ok(ended);
    }
    let judged = removed(Mutant::MoveLoserJudgesByBackups);
    let judged = if judged { Some(fetch_backup(op, round.slot).await?) } else { None };
    let Some(end) = await_end(op, round.slot, round.old).await? else {
        return Ok(AttemptEnd::Suspended);
    };
    if guard(Mutant::LoserFreesAtOnce, !round.is_in_place()) {
        op.pin.free_lost(round.own, end);
    }
    let end = judged.unwrap_or(end);
    // Without a valid lease, other sessions have possibly read the winner's word from backups before this operation
    // began.
    let counts = passes(Mutant::LosersDoNotAsk, has_valid_lease(&op.store.host))
        || is_vouched_for_now(op, attempt.intent.key).await;
    Ok(if counts { lost(&op.view, attempt.intent, end) } else { AttemptEnd::Retry })
}

/// Ends a lost round for mutants that wrongly do not wait for its end, or free the loser's object too early.
#[cfg(feature = "mutants")]
fn end_lost_round_at_once<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &Attempt<'_>,
    round: &WriteRound,
) -> Option<AttemptEnd> {
    if removed(Mutant::LoserDoesNotWait) {
        return Some(lost(&op.view, attempt.intent, round.old));
    }
    let is_move = attempt.intent.opcode == Opcode::Move;
    let hurries = is_move && removed(Mutant::OvertakenMoveDoesNotWait);
    if (removed(Mutant::LoserFreesAtOnce) || hurries) && !round.is_in_place() {
        op.pin.free(round.own.withdrawn());
    }
    hurries.then_some(AttemptEnd::Done(None))
}

/// Ends an attempt whose CAS of the primary was executed. `done` says whether that CAS succeeded; with one index
/// replica, another writer's CAS possibly came first.
pub(in crate::store) fn ended<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &Attempt<'_>,
    done: bool,
) -> AttemptEnd {
    let AttemptStep::Committing(round, cas) = attempt.step() else { unreachable!("it commits") };
    if !round.is_in_place() {
        op.pin.free(if done { round.old } else { round.own.withdrawn() });
    }
    let place = Hint { slot: round.slot, word: round.own, seen: op.pin.seen() };
    if done {
        AttemptEnd::Done((!round.own.is_free()).then_some(place))
    } else {
        let end = Slot(op.batch.found(*cas).expect("it was answered"));
        lost(&op.view, attempt.intent, end)
    }
}

/// Reads the word of a slot from its first backup, in one phase.
#[cold]
async fn fetch_backup<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    slot: SlotRef,
) -> Result<Slot, Error> {
    let Some(place) = op.view.slot_on_backups(slot).next() else {
        return op.fetch_slot(slot).await;
    };
    op.batch.clear();
    let ticket = op.batch.read(place.node, place.offset, 8);
    op.phase().await;
    op.slot_word(ticket).map_err(|f| op.failed(f))
}

/// Returns the end of a write that lost its round to another write of the same key. `end` is the word that the primary
/// showed after the round.
fn lost(view: &View, intent: &Intent<'_>, end: Slot) -> AttemptEnd {
    // The view does not know the region of the word if that region is new.
    let has_other = !end.is_free() && view.redundancy_of(end) != Some(intent.slab.redundancy);
    match intent.opcode {
        Opcode::Delete if !removed(Mutant::DeleteLoserSucceeds) => AttemptEnd::Retry,
        Opcode::Update | Opcode::Upsert if guard(Mutant::MoveLoserSucceeds, end.is_moved()) => {
            AttemptEnd::Retry
        }
        Opcode::Update | Opcode::Upsert if guard(Mutant::RedundancyLoserSucceeds, has_other) => {
            AttemptEnd::Retry
        }
        _ => AttemptEnd::Done(None),
    }
}
