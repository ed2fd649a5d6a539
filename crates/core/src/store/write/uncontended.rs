//! The straight path of a write (fast path), for a write without conflicts: the phases of an UPDATE, UPSERT or DELETE
//! whose hint is right, or of the INSERT ([`insert`](super::insert)) of a key to which no slot can refer.
//!
//! ```text
//! WRITE the object, READ slot and key     or by a speculative write (speculation.rs) in one phase:
//! CAS the backups                         WRITE the object, CAS the backups, READ the slot
//! CAS the primary                         CAS the primary
//!
//! WRITE the object, READ the buckets
//! CAS the backups of a free slot, READ the buckets on the first
//! CAS the backups
//! CAS the primary
//! ```
//!
//! [`advance`] evaluates the answers of one phase and posts the next phase. It waits for nothing, so that
//! callers can execute phases in their own way: [`write`](super) awaits them, [`write_now`](super::write_now) executes
//! each on the spot. If an attempt leaves this path, `advance` returns [`AttemptAction::SlowPath`], and
//! [`write`](super) goes on. If only READs have led there, the attempt's step stays the same, so that `write` can call
//! `advance` once more with the same result.

use alloc::boxed::Box;

use super::attempt::{Attempt, AttemptStep, HintReads, WriteRound};
use super::contend::{look_result, post_cases, post_round, won_at_once};
use super::find::KeyProof;
use super::insert::{is_only, post_confirmation};
use super::round::{check_rewritten, is_committed, post_commit};
use super::speculation::{check_speculation, may_speculate, post_speculation};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Opcode;
use crate::mutant::{Mutant, passes};
use crate::race::{BucketWords, Buckets};
use crate::store::read::{HintTarget, SteeredRead, live, may_hold};
use crate::store::{Hint, HintTrust, StoreOp};
use crate::verbs::{Fabric, Ticket};

/// The next action for an attempt.
pub(super) enum AttemptAction {
    /// Execute the phase that the attempt has posted.
    Phase,
    /// No action, because the attempt has ended. `committed` says whether the CAS of the primary replaced the round's
    /// old word; with one index replica it possibly found another writer's word.
    Ended { committed: bool },
    /// Leave the straight path.
    SlowPath(SlowPathReason),
}

/// The reason for which an attempt leaves the straight path. Words of buckets are boxed, because they are rare and this
/// value is moved.
pub(super) enum SlowPathReason {
    /// The attempt had no usable hint. Its object is written, and the key's buckets show these words. Either one of the
    /// words is possibly the key's, or the key does not exist and the straight path cannot add it, for example because
    /// no slot is free.
    Find(Box<BucketWords>),
    /// The hint was wrong, and its slot shows this word. The attempt's object is written.
    Follow(Hint),
    /// The CASes of the backups alone have not won the round.
    Decide,
    /// For a new key: the CASes of the backups alone have not won the round, or another slot possibly has the key.
    /// Contains the words that the buckets showed before the CASes.
    Install(Box<BucketWords>),
}

/// The result of the first phase of an attempt with a hint.
enum HintCheck {
    /// The key is in this slot.
    Right(Hint),
    /// The hint is not proved right, or the attempt's slab is wrong for its pair. The slot shows this word, which is
    /// possibly the key's.
    Wrong(Hint),
}

/// Evaluates the executed phase of an attempt, if it has posted one, and posts the next phase.
#[inline(always)]
pub(super) fn advance<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
) -> Result<AttemptAction, Error> {
    loop {
        match attempt.step() {
            AttemptStep::Begun => return post_first(op, attempt),
            AttemptStep::ReadingHint(led) => {
                let led = *led;
                match check_hint_reads(op, attempt, led)? {
                    HintCheck::Right(found) if compete(op, attempt, found) => {
                        return Ok(AttemptAction::Phase);
                    }
                    HintCheck::Right(_) => {}
                    HintCheck::Wrong(shown) => {
                        return Ok(AttemptAction::SlowPath(SlowPathReason::Follow(shown)));
                    }
                }
            }
            AttemptStep::Speculated(..) => {
                if let Some(shown) = check_speculation(op, attempt)? {
                    return Ok(AttemptAction::SlowPath(SlowPathReason::Follow(shown)));
                }
            }
            AttemptStep::Contending(round, posted) => {
                let Some(winner) = won_at_once(op, round, posted)? else {
                    return Ok(AttemptAction::SlowPath(SlowPathReason::Decide));
                };
                let round = *round;
                post_commit(op, attempt, winner, round, round.old);
                return Ok(AttemptAction::Phase);
            }
            AttemptStep::Looking(tickets) => {
                let tickets = *tickets;
                let aside = after_bucket_reads(op, attempt, tickets)?;
                return Ok(aside.map_or(AttemptAction::Phase, AttemptAction::SlowPath));
            }
            AttemptStep::Installing(round, posted, before) => {
                let (round, before) = (*round, *before);
                let winner = won_at_once(op, &round, posted)?;
                let buckets = Buckets::of(attempt.intent.key, &op.view);
                let look = look_result(op, Some(&buckets), posted.look)?;
                let before = buckets.words_in(&op.batch, before);
                let only = |look: &BucketWords| is_only(round.slot, &before, look);
                return Ok(match winner.filter(|_| look.as_ref().is_some_and(only)) {
                    Some(winner) => {
                        post_confirmation(op, attempt, winner, round);
                        AttemptAction::Phase
                    }
                    None => AttemptAction::SlowPath(SlowPathReason::Install(Box::new(before))),
                });
            }
            AttemptStep::Confirming(round, cases, _) => {
                let round = *round;
                check_rewritten(op, cases, round.own)?;
                let winner = attempt.take_winner();
                let own = attempt.own_word();
                post_commit(op, attempt, winner, WriteRound { own, ..round }, round.old);
                return Ok(AttemptAction::Phase);
            }
            AttemptStep::Committing(round, cas) => {
                let committed = is_committed(op, round, round.old, *cas)?;
                return Ok(AttemptAction::Ended { committed });
            }
            AttemptStep::Contended(_) | AttemptStep::Withdrawing(_) | AttemptStep::Mentioned => {
                unreachable!("it has left the straight path")
            }
        }
    }
}

/// Posts the first phase of an attempt.
#[inline]
fn post_first<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
) -> Result<AttemptAction, Error> {
    let Some(hint) = attempt.hint else { return post_looking(op, attempt) };
    if !is_placed_for(op, attempt, hint) || !is_logged_for(op, attempt, hint) {
        return post_looking(op, attempt);
    }
    if may_speculate(op, hint, attempt) {
        post_speculation(op, attempt, hint)?;
        return Ok(AttemptAction::Phase);
    }
    let target = HintTarget::new(&op.view, &op.store.silent, hint, attempt.intent.key);
    let Some(target) = target else { return post_looking(op, attempt) };
    post_led(op, attempt, &target)?;
    Ok(AttemptAction::Phase)
}

/// Returns whether the attempt's slab is right if the hint proves right: the slab was chosen in this view
/// ([`placement`](super::placement)), or it is right in this view, too.
#[inline]
fn is_placed_for<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    attempt: &Attempt<'_>,
    hint: Hint,
) -> bool {
    let is_of_this_view = op.view.number == attempt.intent.placed_in;
    passes(Mutant::OlderViewPlaces, is_of_this_view) || attempt.is_well_placed(op, Some(hint))
}

/// Returns whether the attempt can begin at the slot of its hint. A DELETE has log areas for the key's own subtable
/// only, and the slot of an old hint is possibly in another one.
#[inline]
fn is_logged_for<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    attempt: &Attempt<'_>,
    hint: Hint,
) -> bool {
    let key = attempt.intent.key;
    attempt.object().is_some() || Buckets::of(key, &op.view).subtable == hint.slot.subtable
}

/// Posts the WRITE of the attempt's object, and the READs of the key's buckets.
fn post_looking<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
) -> Result<AttemptAction, Error> {
    op.batch.clear();
    let reads_first = reads_first(op);
    if !reads_first {
        attempt.post_object(op)?;
    }
    let buckets = Buckets::of(attempt.intent.key, &op.view);
    let tickets = op.read_buckets(&buckets);
    if let [_, looked_on, ..] = op.view.subtables[buckets.subtable as usize].replicas() {
        // Prefetches the buckets on the backup where the look of an INSERT reads them.
        buckets.lines(*looked_on).for_each(|at| op.store.fabric.prefetch(at.node, at.offset));
    }
    if reads_first {
        attempt.post_object(op)?;
    }
    attempt.enter_step(AttemptStep::Looking(tickets));
    Ok(AttemptAction::Phase)
}

/// Evaluates the phase that wrote the object and read the buckets. If the key is to be inserted, there is a free slot,
/// and no slot can refer to the key, posts the CASes of the backups and the look, and returns `None`. Otherwise returns
/// the reason to leave the straight path.
fn after_bucket_reads<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    tickets: [Ticket; 2],
) -> Result<Option<SlowPathReason>, Error> {
    attempt.check_object_written(op)?;
    let span = |ticket| op.batch.data_span(ticket).map_err(|failure| op.failed(failure));
    let shown = [span(tickets[0])?, span(tickets[1])?];
    let buckets = Buckets::of(attempt.intent.key, &op.view);
    let words = buckets.words_in(&op.batch, shown);
    let inserts = matches!(attempt.intent.opcode, Opcode::Insert | Opcode::Upsert);
    let is_alone = op.view.subtables[buckets.subtable as usize].backups().is_empty();
    let is_new = inserts && !is_alone && live(&words).next().is_none();
    if !is_new || !attempt.is_well_placed(op, None) {
        return Ok(Some(SlowPathReason::Find(Box::new(words))));
    }
    let Some(round) = attempt.round_on_new(&op.view, &words) else {
        return Ok(Some(SlowPathReason::Find(Box::new(words))));
    };
    op.batch.next_phase();
    let posted = post_cases(op, attempt, &round, Some(&buckets));
    attempt.enter_step(AttemptStep::Installing(round, posted, shown));
    Ok(None)
}

/// Returns whether the READs of the first phase are posted before its WRITEs. Usually they are, because a processor
/// that loads first need not wait for its stores. On a fabric whose WRITEs wait for earlier READs, the READs are
/// posted last.
///
/// The result does not depend on the order: verbs on different nodes are not ordered anyway, and no other operation
/// knows of the object yet. If the hint is outdated and its word has the new object's address, the READ of the hint's
/// object possibly shows the new object. This READ is ignored, because the slot does not show the hint's word.
pub(super) fn reads_first<F: Fabric, H: Host>(op: &StoreOp<'_, F, H>) -> bool {
    !op.store.fabric.waits_for_reads()
}

fn post_led<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    target: &HintTarget,
) -> Result<(), Error> {
    op.batch.clear();
    let reads_first = reads_first(op);
    if !reads_first {
        attempt.post_object(op)?;
    }
    let slot = target.read_slot(&mut op.batch);
    let proof = if target.hint.is_doubted() && target.is_beside_its_slot() {
        KeyProof::Steered(SteeredRead::post(target, &mut op.batch))
    } else {
        KeyProof::post(target, attempt.intent.key, &op.store.fabric, &mut op.batch)
    };
    for backup in op.view.slot_places(target.hint.slot) {
        op.store.fabric.prefetch(backup.node, backup.offset);
    }
    op.store.fabric.prefetch(target.object.node, target.object.offset);
    if reads_first {
        attempt.post_object(op)?;
    }
    attempt.enter_step(AttemptStep::ReadingHint(HintReads { slot, proof }));
    Ok(())
}

/// Evaluates the executed first phase. Returns the hint if the slot still holds the hint's word and this word leads
/// to the key; otherwise returns the slot with the word that it holds.
fn check_hint_reads<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    led: HintReads,
) -> Result<HintCheck, Error> {
    attempt.check_object_written(op)?;
    let hint = attempt.hint.expect("it was led by one");
    let word = op.slot_word(led.slot).map_err(|f| op.failed(f))?;
    let shown = Hint { word, seen: HintTrust::Unverified, ..hint };
    if let KeyProof::Steered(steered) = led.proof {
        return check_steered_hint(op, attempt, steered, shown);
    }
    let leads = led.proof.is_of(word, attempt.intent.key, &op.view, &op.batch);
    let leads = leads.map_err(|failure| op.failed(failure))?;
    if passes(Mutant::HintIsTrusted, word == hint.word && leads) {
        attempt.hint_held = true;
        return Ok(HintCheck::Right(hint));
    }
    Ok(HintCheck::Wrong(shown))
}

/// Evaluates the first phase of a doubted hint, whose steered READ has possibly brought the object that the slot leads
/// to.
#[cold]
fn check_steered_hint<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    steered: SteeredRead,
    shown: Hint,
) -> Result<HintCheck, Error> {
    let key = attempt.intent.key;
    let leads = may_hold(shown.word, key) && {
        let value = steered.value(shown, key, op.store, &op.view, &op.batch);
        value.map_err(|failure| op.failed(failure))?.is_some()
    };
    attempt.hint_held = leads && attempt.hint.is_some_and(|hint| hint.word == shown.word);
    Ok(if leads && attempt.is_well_placed(op, Some(shown)) {
        HintCheck::Right(shown)
    } else {
        HintCheck::Wrong(shown)
    })
}

/// Posts the CASes of the backups for the slot in which the key was found. Returns whether there are any backups.
#[inline]
pub(super) fn compete<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    found: Hint,
) -> bool {
    let round = attempt.round_on(found);
    post_round(op, attempt, round, None)
}
