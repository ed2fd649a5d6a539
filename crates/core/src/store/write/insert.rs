//! INSERT into a free slot: install, look, confirm, commit.
//!
//! SNAPSHOT decides only which writer wins *a slot*. Two clients that insert one key into two different free slots
//! would both win, and the key would exist twice. So a winner looks before it commits:
//!
//! 1. *Install*: CAS all backups of a free slot to the own word with the tentative bit.
//! 2. *Look*: READ both buckets on the first backup's node, behind the CAS there. Of two clients that insert the same
//!    key, the one whose word comes later to that node sees the other's entry, or sees that this entry is gone.
//! 3. *Withdraw* if the look shows another entry of the key, tentative or not: CAS the backups, then the primary, to
//!    the own identity with size class 0. This ends the round, and the slot is free again, with a new word.
//! 4. If the look shows a free slot with another word than the primary showed at first, a DELETE or withdrawal has
//!    possibly not reached the primary yet, so the primary possibly still shows the key as live. READ the primary once
//!    more, and withdraw if it shows an entry of the key.
//! 5. *Confirm*: clear the tentative bit on all backups. If the primary's node dies later, the words on the backups
//!    tell the job that settles the slot that this INSERT has looked and found no duplicate.
//! 6. *Commit*: CAS the primary.
//!
//! A slot whose pair was lost with its only node counts as free (`data/single_place.rs`).
//!
//! If an INSERT loses a round on a *free* slot, the winner possibly has another key. So the INSERT starts again when
//! the round is over.
//!
//! With one index replica the tentative word is on the primary, where readers skip it, and the commit clears the bit.

use alloc::boxed::Box;

use super::attempt::{Attempt, AttemptEnd, AttemptStep, WriteRound};
use super::contend::{RoundOutcome, contend, decide, post_round};
use super::find::{KeySlot, WriterSearch};
use super::full_buckets::full_buckets_error;
use super::round::{await_end, commit, post_rewrite, rewrite_backups};
use crate::conflict_rules::Winner;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, guard, passes, removed, right_or};
use crate::race::{BucketWords, Buckets};
use crate::store::{Hint, StoreOp};
use crate::verbs::{Fabric, MnId};
use crate::view::SlotRef;

/// Posts, for the winner, the CASes that clear the tentative bit of its word on the backups.
pub(super) fn post_confirmation<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    winner: Winner,
    round: WriteRound,
) {
    let cases = post_rewrite(op, &winner, round.slot, round.own, attempt.own_word());
    attempt.enter_step(AttemptStep::Confirming(round, cases, winner));
}

/// Returns whether a winner's look shows, without further READs, that no other slot has the key.
#[inline]
pub(super) fn is_only(own: SlotRef, first: &BucketWords, look: &BucketWords) -> bool {
    let is_unknown = unknown(look, own, first).next().is_some();
    passes(Mutant::InsertDoesNotLook, !is_unknown && !is_unanswered(look, own, first))
}

/// An INSERT of a new key into a free slot.
pub(super) struct NewPair<'o, 's, 'a, 'i, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    attempt: &'a mut Attempt<'i>,
    /// The words of the key's slots, as the primary showed them before the first CAS.
    first: &'a BucketWords,
    buckets: Buckets,
}

impl<'o, 's, 'a, 'i, F: Fabric, H: Host> NewPair<'o, 's, 'a, 'i, F, H> {
    /// Creates the INSERT of an attempt's key. `first` are the words of the key's slots, as the primary has shown them.
    pub fn new(
        op: &'o mut StoreOp<'s, F, H>,
        attempt: &'a mut Attempt<'i>,
        first: &'a BucketWords,
    ) -> NewPair<'o, 's, 'a, 'i, F, H> {
        let buckets = Buckets::of(attempt.intent.key, &op.view);
        NewPair { op, attempt, first, buckets }
    }

    /// Inserts the key, which is in none of its slots, into a free one. Returns `None` after it has executed the CASes
    /// that confirm the word; then [`advance`](super::uncontended::advance) continues the
    /// attempt.
    pub async fn insert(mut self) -> Result<Option<AttemptEnd>, Error> {
        let Some(round) = self.attempt.round_on_new(&self.op.view, self.first) else {
            return Err(
                Box::pin(full_buckets_error(self.op, self.attempt.intent.key, self.first)).await
            );
        };
        if self.op.view.subtables[round.slot.subtable as usize].backups().is_empty() {
            return self.insert_alone(round).await.map(Some);
        }
        post_round(self.op, self.attempt, round, Some(&self.buckets));
        self.op.phase().await;
        self.installed().await
    }

    /// Continues after the CASes of a free slot's backups, and the look, are answered. Returns `None` after it has
    /// executed the CASes that confirm the word; then [`advance`](super::uncontended::advance) continues the
    /// attempt.
    pub async fn installed(&mut self) -> Result<Option<AttemptEnd>, Error> {
        let round = *self.attempt.step().round().expect("it has competed");
        let WriteRound { slot, old, .. } = round;
        let (winner, look) = match decide(self.op, self.attempt, Some(&self.buckets)).await? {
            RoundOutcome::Won(winner, Some(look)) => (winner, look),
            RoundOutcome::Won(_, None) => unreachable!("a winner with backups has looked"),
            RoundOutcome::Lost => {
                self.op.store.counters.add_lost_round();
                let Some(end) = await_end(self.op, slot, old).await? else {
                    return Ok(Some(AttemptEnd::Suspended));
                };
                self.op.pin.free_lost(self.attempt.own_word(), end);
                let ended = AttemptEnd::Retry;
                let ended = right_or(Mutant::InsertLoserSucceeds, ended, AttemptEnd::Done(None));
                return Ok(Some(ended));
            }
        };
        match self.key_is_elsewhere(slot, &look).await {
            Ok(false) => {}
            Ok(true) => {
                self.withdraw(winner, round).await?;
                return Ok(Some(AttemptEnd::Retry));
            }
            Err(error) => {
                // The failed INSERT withdraws its tentative word, which would otherwise stay behind and block the slot.
                self.withdraw(winner, round).await?;
                return Err(withdrawn(error));
            }
        }
        post_confirmation(self.op, self.attempt, winner, round);
        self.op.phase().await;
        Ok(None)
    }

    /// Returns whether another slot holds the key. Searches the words of the winner's look. If the look shows that a
    /// write has possibly not reached the primary yet, READs and searches the primary, too.
    async fn key_is_elsewhere(&mut self, own: SlotRef, look: &BucketWords) -> Result<bool, Error> {
        let [primary, looked_on] = self.first_nodes(own);
        if self.has_other(look, looked_on, own).await? {
            return Ok(true);
        }
        if !is_unanswered(look, own, self.first) {
            return Ok(false);
        }
        let words = self.op.fetch_words(&self.buckets).await.map_err(|f| self.op.failed(f))?;
        self.has_other(&words, primary, own).await
    }

    /// Returns the node of the primary, and the node on which an INSERT looks: that of the first backup.
    fn first_nodes(&self, slot: SlotRef) -> [MnId; 2] {
        let subtable = &self.op.view.subtables[slot.subtable as usize];
        [subtable.primary().node, subtable.backups()[0].node]
    }

    /// Withdraws a tentative index entry that has won its round.
    async fn withdraw(&mut self, winner: Winner, round: WriteRound) -> Result<(), Error> {
        self.attempt.enter_step(AttemptStep::Withdrawing(round));
        let left = word_of_withdrawal(round.own, round.old);
        if !removed(Mutant::WithdrawsPrimaryFirst) {
            rewrite_backups(self.op, &winner, round.slot, round.own, left).await?;
        }
        self.op.batch.next_phase();
        let primary = self.op.primary(round.slot);
        let cas = self.op.batch.cas(primary.node, primary.offset, round.old.0, left.0);
        self.op.phase().await;
        if self.op.batch.found(cas).map_err(|f| self.op.failed(f))? != round.old.0 {
            return Err(Error::Interrupted { what: "the primary changed under its winner" });
        }
        if removed(Mutant::WithdrawsPrimaryFirst) {
            rewrite_backups(self.op, &winner, round.slot, round.own, left).await?;
        }
        self.attempt.enter_step(AttemptStep::Mentioned);
        // The word of the withdrawal protects the attempt's own object from reuse, so the old word's object is free.
        self.op.pin.free(right_or(Mutant::WithdrawnObjectFreed, round.old, round.own));
        Ok(())
    }

    /// Returns whether another slot than `own` refers to the key, according to words that the node `shown_on` has
    /// shown. Takes one phase if any of the words matches the key. A slot that has changed since then counts as the
    /// key's, because withdrawing is always safe. Fails if an object cannot be read.
    async fn has_other(
        &mut self,
        words: &BucketWords,
        shown_on: MnId,
        own: SlotRef,
    ) -> Result<bool, Error> {
        if removed(Mutant::InsertDoesNotLook) {
            return Ok(false);
        }
        let unknown = unknown(words, own, self.first);
        let mut search = WriterSearch::new(self.op, self.attempt.intent.key);
        Ok(!matches!(search.find(unknown, shown_on).await?, KeySlot::Absent))
    }

    /// Executes an INSERT into an index that has only one replica.
    async fn insert_alone(&mut self, round: WriteRound) -> Result<AttemptEnd, Error> {
        let WriteRound { slot, old, own } = round;
        let tentative = own.tentative();
        self.attempt.enter_step(AttemptStep::Mentioned);
        self.op.batch.next_phase();
        let place = self.op.primary(slot);
        let cas = self.op.batch.cas(place.node, place.offset, old.0, tentative.0);
        let tickets = self.op.read_buckets(&self.buckets);
        self.op.phase().await;
        if self.op.batch.found(cas).map_err(|f| self.op.failed(f))? != old.0 {
            self.op.pin.free(own.withdrawn());
            return Ok(AttemptEnd::Retry);
        }
        let look = self.buckets.words(&self.op.batch, tickets).map_err(|f| self.op.failed(f))?;
        let RoundOutcome::Won(winner, _) = contend(self.op, self.attempt, round, None).await?
        else {
            unreachable!("without backups nobody else can win");
        };
        let other = self.has_other(&look, place.node, slot).await;
        if !matches!(other, Ok(false)) {
            self.attempt.enter_step(AttemptStep::Withdrawing(round));
            self.op.batch.next_phase();
            let left = word_of_withdrawal(tentative, old);
            let cas = self.op.batch.cas(place.node, place.offset, tentative.0, left.0);
            self.op.phase().await;
            if self.op.batch.found(cas).map_err(|f| self.op.failed(f))? != tentative.0 {
                return Err(Error::Interrupted { what: "a tentative slot changed" });
            }
            self.attempt.enter_step(AttemptStep::Mentioned);
            self.op.pin.free(old);
            return other.map(|_| AttemptEnd::Retry).map_err(withdrawn);
        }
        if commit(self.op, self.attempt, winner, round, tentative).await? {
            self.op.pin.free(old);
            Ok(AttemptEnd::Done(Some(Hint { slot, word: own, seen: self.op.pin.seen() })))
        } else {
            Err(Error::Interrupted { what: "a tentative slot changed" })
        }
    }
}

/// Returns the slots other than `own` that possibly refer to the key. Skips words that `known_other` shows as well,
/// because they led to other keys when the operation began. Does not skip tentative words: with one index replica the
/// primary shows such words, and their objects were not read then.
fn unknown<'w>(
    words: &'w BucketWords,
    own: SlotRef,
    known_other: &'w BucketWords,
) -> impl Iterator<Item = (SlotRef, Slot)> + 'w {
    let settled = |w: Slot| passes(Mutant::TentativeIsKnown, !w.is_tentative());
    let known = move |s: SlotRef, w: Slot| settled(w) && known_other.word(s) == Some(w);
    words.matching().filter(move |(s, w)| *s != own && !known(*s, *w))
}

/// Returns whether a free slot other than `own` shows another word than the primary did at first, so that the primary
/// possibly still shows a key that is gone.
fn is_unanswered(look: &BucketWords, own: SlotRef, first: &BucketWords) -> bool {
    guard(Mutant::FreedSlotNotDoubted, look.is_freed_since(first, own))
}

/// Returns the word that a withdrawing INSERT leaves in its slot: a free word that no slot has shown before.
fn word_of_withdrawal(own: Slot, old: Slot) -> Slot {
    let left = right_or(Mutant::WithdrawalRestoresOldWord, own.withdrawn(), old);
    right_or(Mutant::WithdrawalWritesZero, left, Slot(0))
}

/// Returns the error of an INSERT that has failed and has withdrawn its index entry.
fn withdrawn(error: Error) -> Error {
    match error {
        Error::Unreachable { node, error, .. } => {
            Error::Unreachable { node, error, outcome: FailedWriteOutcome::NotApplied }
        }
        other => other,
    }
}
