//! The straight path of a write (fast path), for a write without conflicts: the phases of an UPDATE, UPSERT or DELETE
//! whose hint is right, or of the INSERT of a key ([`insert`](super::insert)) to which none of its slots possibly
//! refers.
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
//! [`StoreOp::advance`] evaluates the answers of one phase and posts the next phase. It waits for nothing, so that
//! callers can execute phases in their own way: [`write`](super) awaits them, [`write_now`](super::write_now) executes
//! each on the spot. If an attempt leaves this path, `advance` returns [`AttemptAction::SlowPath`], and
//! [`write`](super) goes on. If only READs have led there, the attempt's step stays the same, so that `write` can call
//! `advance` once more with the same result.

use alloc::boxed::Box;

use super::attempt::{Attempt, AttemptStep, HintReads, WriteRound};
use super::find::KeyProof;
use crate::error::Error;
use crate::host::Host;
use crate::layout::Opcode;
use crate::mutant::{Mutant, passes};
use crate::race::{BucketWords, Buckets};
use crate::store::read::{HintTarget, SteeredRead, live, may_hold};
use crate::store::{Hint, HintTrust, StoreOp};
use crate::verbs::{Fabric, Ticket};

/// The action by which an attempt goes on.
pub(super) enum AttemptAction {
    /// Execute the phase that the attempt has posted.
    Phase,
    /// Nothing, because the attempt has ended. `committed` says whether the CAS of the primary replaced the round's old
    /// word; with one index replica it possibly found another writer's word.
    Ended { committed: bool },
    /// Leave the straight path.
    SlowPath(SlowPathReason),
}

/// The reason for which an attempt leaves the straight path. Words of buckets are boxed, because they are rare and this
/// value is moved.
pub(super) enum SlowPathReason {
    /// The attempt had no usable hint, and the buckets show these words. Possibly one of them is the key's, or they
    /// alone do not decide what to do. The object is written.
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
    /// The slot shows this word, which does not lead to the key.
    Wrong(Hint),
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Posts the next phase, after the phase that the attempt has posted, if any, is executed.
    #[inline]
    pub(super) fn advance(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptAction, Error> {
        loop {
            match attempt.step() {
                AttemptStep::Begun => return self.begin(attempt),
                AttemptStep::ReadingHint(led) => {
                    let led = *led;
                    match self.check_hint_reads(attempt, led)? {
                        HintCheck::Right(found) if self.compete(attempt, found) => {
                            return Ok(AttemptAction::Phase);
                        }
                        HintCheck::Right(_) => {}
                        HintCheck::Wrong(shown) => {
                            return Ok(AttemptAction::SlowPath(SlowPathReason::Follow(shown)));
                        }
                    }
                }
                AttemptStep::Speculated(..) => {
                    if let Some(shown) = self.check_speculation(attempt)? {
                        return Ok(AttemptAction::SlowPath(SlowPathReason::Follow(shown)));
                    }
                }
                AttemptStep::Contending(round, posted) => {
                    let Some(winner) = self.won_at_once(round, posted)? else {
                        return Ok(AttemptAction::SlowPath(SlowPathReason::Decide));
                    };
                    let round = *round;
                    self.post_commit(attempt, winner, round, round.old);
                    return Ok(AttemptAction::Phase);
                }
                AttemptStep::Looking(tickets) => {
                    let tickets = *tickets;
                    let aside = self.after_bucket_reads(attempt, tickets)?;
                    return Ok(aside.map_or(AttemptAction::Phase, AttemptAction::SlowPath));
                }
                AttemptStep::Installing(round, posted, before) => {
                    let round = *round;
                    let before = *before;
                    let winner = self.won_at_once(&round, posted)?;
                    let buckets = Buckets::of(attempt.intent.key, &self.view);
                    let look = self.look_result(Some(&buckets), posted.look)?;
                    let before = buckets.words_in(&self.batch, before);
                    let only = |look: &BucketWords| self.is_only(round.slot, &before, look);
                    return Ok(match winner.filter(|_| look.as_ref().is_some_and(only)) {
                        Some(winner) => {
                            self.post_confirmation(attempt, winner, round);
                            AttemptAction::Phase
                        }
                        None => AttemptAction::SlowPath(SlowPathReason::Install(Box::new(before))),
                    });
                }
                AttemptStep::Confirming(round, cases, _) => {
                    let round = *round;
                    self.check_rewritten(cases, round.own)?;
                    let winner = attempt.take_winner();
                    let own = attempt.own_word();
                    self.post_commit(attempt, winner, WriteRound { own, ..round }, round.old);
                    return Ok(AttemptAction::Phase);
                }
                AttemptStep::Committing(round, cas) => {
                    let committed = self.is_committed(round, round.old, *cas)?;
                    return Ok(AttemptAction::Ended { committed });
                }
                AttemptStep::Contended(_)
                | AttemptStep::Withdrawing(_)
                | AttemptStep::Mentioned => {
                    unreachable!("it has left the straight path")
                }
            }
        }
    }

    /// Posts the first phase of an attempt.
    #[inline]
    fn begin(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptAction, Error> {
        let Some(hint) = attempt.hint else { return self.post_looking(attempt) };
        if self.may_speculate(hint, attempt) {
            self.post_speculation(attempt, hint)?;
            return Ok(AttemptAction::Phase);
        }
        let target = HintTarget::new(&self.view, &self.store.silent, hint, attempt.intent.key);
        let Some(target) = target else { return self.post_looking(attempt) };
        self.post_led(attempt, &target)?;
        Ok(AttemptAction::Phase)
    }

    /// Posts the WRITE of the attempt's object, and the READs of the key's buckets.
    fn post_looking(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptAction, Error> {
        self.batch.clear();
        let reads_first = self.reads_first();
        if !reads_first {
            self.post_object(attempt)?;
        }
        let buckets = Buckets::of(attempt.intent.key, &self.view);
        let tickets = self.read_buckets(&buckets);
        if let [_, looked_on, ..] = self.view.subtables[buckets.subtable as usize].replicas() {
            // Prefetches the buckets on the backup where the look of an INSERT reads them.
            buckets.lines(*looked_on).for_each(|at| self.store.fabric.prefetch(at.node, at.offset));
        }
        if reads_first {
            self.post_object(attempt)?;
        }
        attempt.enter_step(AttemptStep::Looking(tickets));
        Ok(AttemptAction::Phase)
    }

    /// Goes on after the object is written and the buckets are read. If the key is to be inserted, there is a free
    /// slot, and no slot possibly refers to the key, posts the CASes of the backups and the look, and returns `None`.
    fn after_bucket_reads(
        &mut self,
        attempt: &mut Attempt<'_>,
        tickets: [Ticket; 2],
    ) -> Result<Option<SlowPathReason>, Error> {
        self.check_object_written(attempt)?;
        let [first, second] = tickets.map(|t| self.batch.data_span(t).map_err(|f| self.failed(f)));
        let shown = [first?, second?];
        let buckets = Buckets::of(attempt.intent.key, &self.view);
        let words = buckets.words_in(&self.batch, shown);
        let inserts = matches!(attempt.intent.opcode, Opcode::Insert | Opcode::Upsert);
        let is_alone = self.view.subtables[buckets.subtable as usize].backups().is_empty();
        let is_new = inserts && !is_alone && live(&words).next().is_none();
        if !is_new || !self.is_well_placed(attempt, None) {
            return Ok(Some(SlowPathReason::Find(Box::new(words))));
        }
        let Some(round) = self.round_on_new(attempt, &words) else {
            return Ok(Some(SlowPathReason::Find(Box::new(words))));
        };
        self.batch.next_phase();
        let posted = self.post_cases(&round, Some(&buckets));
        attempt.enter_step(AttemptStep::Installing(round, posted, shown));
        Ok(None)
    }

    /// Returns whether the READs of the first phase are posted before its WRITEs. Usually they are, because a processor
    /// that loads first need not wait for its stores. On a fabric whose WRITEs wait for earlier READs, the READs are
    /// posted last.
    ///
    /// The result does not depend on the order: verbs on different nodes have none, and no other operation knows of the
    /// object yet. If the hint is outdated and its address is that of the new object, the READ possibly meets the new
    /// object. This READ is ignored, because the slot does not show the hint's word.
    pub(super) fn reads_first(&self) -> bool {
        !self.store.fabric.waits_for_reads()
    }

    fn post_led(&mut self, attempt: &mut Attempt<'_>, target: &HintTarget) -> Result<(), Error> {
        self.batch.clear();
        let reads_first = self.reads_first();
        if !reads_first {
            self.post_object(attempt)?;
        }
        let slot = target.read_slot(&mut self.batch);
        let proof = if target.hint.is_doubted() && target.is_beside_its_slot() {
            KeyProof::Steered(SteeredRead::post(target, &mut self.batch))
        } else {
            KeyProof::post(target, attempt.intent.key, &self.store.fabric, &mut self.batch)
        };
        for backup in self.view.slot_places(target.hint.slot) {
            self.store.fabric.prefetch(backup.node, backup.offset);
        }
        self.store.fabric.prefetch(target.object.node, target.object.offset);
        if reads_first {
            self.post_object(attempt)?;
        }
        attempt.enter_step(AttemptStep::ReadingHint(HintReads { slot, proof }));
        Ok(())
    }

    /// Evaluates the executed first phase. Returns the hint if the slot still holds the hint's word and this word leads
    /// to the key; otherwise returns the slot with the word that it holds.
    fn check_hint_reads(
        &mut self,
        attempt: &mut Attempt<'_>,
        led: HintReads,
    ) -> Result<HintCheck, Error> {
        self.check_object_written(attempt)?;
        let hint = attempt.hint.expect("it was led by one");
        let word = self.slot_word(led.slot).map_err(|f| self.failed(f))?;
        let shown = Hint { word, seen: HintTrust::Unverified, ..hint };
        if let KeyProof::Steered(steered) = led.proof {
            return self.check_steered_hint(attempt, steered, shown);
        }
        let leads = led.proof.is_of(word, attempt.intent.key, &self.view, &self.batch);
        let leads = leads.map_err(|failure| self.failed(failure))?;
        if passes(Mutant::HintIsTrusted, word == hint.word && leads) {
            attempt.hint_held = true;
            return Ok(HintCheck::Right(hint));
        }
        Ok(HintCheck::Wrong(shown))
    }

    /// Evaluates the first phase of a doubted hint, for which a switch possibly has brought the object of the slot.
    #[cold]
    fn check_steered_hint(
        &mut self,
        attempt: &mut Attempt<'_>,
        steered: SteeredRead,
        shown: Hint,
    ) -> Result<HintCheck, Error> {
        let key = attempt.intent.key;
        let leads = may_hold(shown.word, key) && {
            let value = steered.value(shown, key, self.store, &self.view, &self.batch);
            value.map_err(|failure| self.failed(failure))?.is_some()
        };
        attempt.hint_held = leads && attempt.hint.is_some_and(|hint| hint.word == shown.word);
        Ok(if leads && self.is_well_placed(attempt, Some(shown)) {
            HintCheck::Right(shown)
        } else {
            HintCheck::Wrong(shown)
        })
    }

    /// Posts the CASes of the backups for the slot in which the key was found. Returns whether there are any backups.
    #[inline]
    pub(super) fn compete(&mut self, attempt: &mut Attempt<'_>, found: Hint) -> bool {
        let round = attempt.round_on(found);
        self.post_round(attempt, round, None)
    }
}
