//! The straight path of a write (fast path), for a write without conflicts: the phases of an UPDATE, UPSERT or DELETE
//! whose hint is right, or of the INSERT of a key ([`insert`](super::insert)) that no slot may refer to.
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
//! [`StoreOp::advance`] takes the answers of one phase and posts the next one. It waits for nothing, so that its
//! caller is free in how to execute the phases: [`write`](super) awaits them, [`write_now`](super::write_now)
//! executes each on the spot. Anything that is not on this path is returned as an [`SlowPath`], and left to
//! [`write`](super). If only READs have led there, the attempt's step stays the same, so that the question can
//! be asked again.

use alloc::boxed::Box;

use super::attempt::{Attempt, AttemptStep, HintReads, WriteRound};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Opcode;
use crate::mutant::{Mutant, passes};
use crate::race::{BucketWords, Buckets};
use crate::store::read::{HintTarget, SteeredRead, live, may_hold};
use crate::store::{Hint, HintTrust, KeyProof, StoreOp};
use crate::verbs::{Fabric, Ticket};

/// The next action of an attempt.
pub(super) enum AttemptAction {
    /// Execute the phase that the attempt has posted.
    Phase,
    /// Nothing: the CAS of the primary has replaced its round's old word, or with one index replica found another
    /// writer's word.
    Ended { committed: bool },
    /// Leave the straight path.
    SlowPath(SlowPathReason),
}

/// The reason for which an attempt leaves the straight path. Words are on the heap: they are rare, and this is moved.
pub(super) enum SlowPathReason {
    /// The attempt had no hint that could be right, and the buckets show these words. Either one of them may be the
    /// key's, or they alone do not tell what is to be done. The object is written.
    Find(Box<BucketWords>),
    /// The hint was wrong, and its slot shows this word. The object is written.
    Follow(Hint),
    /// The CASes of the backups alone have not won the round.
    Decide,
    /// For a new key: the CASes of the backups alone have not won the round, or another slot may have the key. With
    /// the words that the buckets showed before the CASes.
    Install(Box<BucketWords>),
}

/// The result of a first phase by a hint.
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

    /// Posts the first phase.
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

    /// Posts the object, and the READs of the key's buckets.
    fn post_looking(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptAction, Error> {
        self.batch.clear();
        let reads_first = self.reads_first();
        if !reads_first {
            self.post_object(attempt)?;
        }
        let buckets = Buckets::of(attempt.intent.key, &self.view);
        let tickets = self.read_buckets(&buckets);
        if let [_, looked_on, ..] = self.view.subtables[buckets.subtable as usize].replicas() {
            // The backup on which the look of an INSERT reads the buckets.
            buckets.lines(*looked_on).for_each(|at| self.store.fabric.prefetch(at.node, at.offset));
        }
        if reads_first {
            self.post_object(attempt)?;
        }
        attempt.enter_step(AttemptStep::Looking(tickets));
        Ok(AttemptAction::Phase)
    }

    /// Goes on after the object is written and the buckets are read. If they have room for a new key, and none of
    /// their slots may refer to it, posts the CASes of the backups, and the look.
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

    /// Returns whether the READs of the first phase go before its WRITEs. Usually they do: a processor that loads
    /// first need not wait for its stores. If WRITEs would wait for READs before them, the READs go last. The order
    /// does not matter for the result: across nodes there is none, no other operation knows of the object yet, and a
    /// READ that meets the object (at the address of a hint that is not the slot's any more) counts for nothing,
    /// since the slot does not show the hint's word.
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
            self.read_proof(target, attempt.intent.key)
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

    /// Evaluates the executed first phase. Returns the hint, if the slot still holds its word and that leads to the
    /// key; else the slot with the word that it holds.
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
        let leads = self.is_proved(led.proof, word, attempt.intent.key)?;
        if passes(Mutant::HintIsTrusted, word == hint.word && leads) {
            attempt.hint_held = true;
            return Ok(HintCheck::Right(hint));
        }
        Ok(HintCheck::Wrong(shown))
    }

    /// Evaluates the first phase of a doubted hint, for which the switch may have brought the object that the slot
    /// leads to.
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

    /// Posts the CASes of the backups for the slot in which the key was found. Returns whether there are any.
    #[inline]
    pub(super) fn compete(&mut self, attempt: &mut Attempt<'_>, found: Hint) -> bool {
        let round = attempt.round_on(found);
        self.post_round(attempt, round, None)
    }
}
