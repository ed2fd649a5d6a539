//! INSERT into a free slot: install, look, confirm, commit.
//!
//! SNAPSHOT decides only which writer wins *a slot*. Two clients that insert one key into two different free slots
//! would both win, and the key would exist twice. So a winner looks before it commits:
//!
//! 1. *Install*: CAS all backups of a free slot to the own word with the tentative bit.
//! 2. *Look*: on the first backup's node, in order after the CAS, READ both buckets. Of two clients that insert the
//!    same key, the one with the word that comes later to that node sees the other's entry, or that it has gone.
//! 3. If the look shows another entry of the key, tentative or not: *withdraw*. The own identity, with size class 0,
//!    goes to the backups and then to the primary, which ends the round: the slot is free again under a new word.
//! 4. If the look shows a free slot with another word than the primary showed at first, a DELETE or withdrawal may
//!    still be on its way to the primary, which may show the key as live. READ the primary once more; if it shows an
//!    entry of the key: withdraw.
//! 5. *Confirm*: clear the tentative bit on all backups. If the primary's node dies after that, the words on
//!    the backups tell the job that settles the slot that this INSERT has looked and found no duplicate.
//! 6. *Commit*: CAS the primary.
//!
//! A slot whose pair was lost with its only node counts as free ([`data`](crate::data), *alone*).
//!
//! An INSERT that loses a round on a *free* slot may have lost it to another key: it starts again when the round is
//! over.
//!
//! With one index replica the tentative word stands on the primary, where readers skip it, and
//! the commit clears the bit.

use alloc::boxed::Box;

use super::attempt::{Attempt, AttemptEnd, AttemptStep, WriteRound};
use super::contend::RoundOutcome;
use crate::conflict_rules::Winner;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{BucketWords, Buckets, Key};
use crate::store::{Hint, KeySearch, StoreOp};
use crate::verbs::{Fabric, MnId};
use crate::view::SlotRef;

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Returns the round in which a new key takes a slot of `words`; `None` if there is no room.
    pub(super) fn round_on_new(
        &self,
        attempt: &Attempt<'_>,
        words: &BucketWords,
    ) -> Option<WriteRound> {
        let (slot, old) = words.slot_for_new(&self.view)?;
        let own = attempt.own_word();
        let is_alone = self.view.subtables[slot.subtable as usize].backups().is_empty();
        let is_plain = is_alone || removed(Mutant::NeverTentative);
        Some(WriteRound { slot, old, own: if is_plain { own } else { own.tentative() } })
    }

    /// Puts a key that is in none of the slots of `words` into a free one. `None` if its word is being confirmed.
    pub(super) async fn insert_into_free(
        &mut self,
        attempt: &mut Attempt<'_>,
        words: &BucketWords,
    ) -> Result<Option<AttemptEnd>, Error> {
        let Some(round) = self.round_on_new(attempt, words) else {
            return Err(Box::pin(self.full_buckets_error(attempt.intent.key, words)).await);
        };
        let buckets = Buckets::of(attempt.intent.key, &self.view);
        if self.view.subtables[round.slot.subtable as usize].backups().is_empty() {
            return self.insert_alone(attempt, words, &buckets, round).await.map(Some);
        }
        self.post_round(attempt, round, Some(&buckets));
        self.phase().await;
        self.installed(attempt, words).await
    }

    /// Goes on after the CASes of a free slot's backups, and the look, are answered. `words` are the buckets as they
    /// were shown before. `None` if the word is being confirmed.
    pub(super) async fn installed(
        &mut self,
        attempt: &mut Attempt<'_>,
        words: &BucketWords,
    ) -> Result<Option<AttemptEnd>, Error> {
        let round = *attempt.step().round().expect("it has competed");
        let WriteRound { slot, old, .. } = round;
        let buckets = Buckets::of(attempt.intent.key, &self.view);
        let (winner, look) = match self.decide(attempt, Some(&buckets)).await? {
            RoundOutcome::Won(winner, Some(look)) => (winner, look),
            RoundOutcome::Won(_, None) => unreachable!("a winner with backups has looked"),
            RoundOutcome::Lost => {
                self.store.counters.add_lost_round();
                let Some(end) = self.await_end(slot, old).await? else {
                    return Ok(Some(AttemptEnd::Suspended));
                };
                self.free_lost(attempt.own_word(), end);
                if removed(Mutant::InsertLoserSucceeds) {
                    return Ok(Some(AttemptEnd::Done(None)));
                }
                return Ok(Some(AttemptEnd::Retry));
            }
        };
        match self.key_is_elsewhere(attempt.intent.key, slot, words, &look, &buckets).await {
            Ok(false) => {}
            Ok(true) => {
                self.withdraw(attempt, winner, round).await?;
                return Ok(Some(AttemptEnd::Retry));
            }
            Err(error) => {
                // Otherwise a tentative entry would stay behind and block the slot.
                self.withdraw(attempt, winner, round).await?;
                return Err(withdrawn(error));
            }
        }
        self.post_confirmation(attempt, winner, round);
        self.phase().await;
        Ok(None)
    }

    /// As the winner, posts the CASes of the backups to the word without the tentative bit.
    pub(super) fn post_confirmation(
        &mut self,
        attempt: &mut Attempt<'_>,
        winner: Winner,
        round: WriteRound,
    ) {
        let cases = self.post_rewrite(&winner, round.slot, round.own, attempt.own_word());
        attempt.enter_step(AttemptStep::Confirming(round, cases, winner));
    }

    /// Returns whether the look of a winner alone shows that no other slot has the key.
    pub(super) fn is_only(&self, own: SlotRef, first: &BucketWords, look: &BucketWords) -> bool {
        let is_unknown = || unknown(look, own, first).next().is_some();
        removed(Mutant::InsertDoesNotLook) || !is_unknown() && !is_unanswered(look, own, first)
    }

    /// Returns whether another slot holds the key, by the look of a winner, and by the primary if that may show the
    /// key.
    async fn key_is_elsewhere(
        &mut self,
        key: Key<'_>,
        own: SlotRef,
        first: &BucketWords,
        look: &BucketWords,
        buckets: &Buckets,
    ) -> Result<bool, Error> {
        let [primary, looked_on] = self.first_nodes(own);
        if self.has_other(look, looked_on, own, first, key).await? {
            return Ok(true);
        }
        if !is_unanswered(look, own, first) {
            return Ok(false);
        }
        let words = self.fetch_words(buckets).await.map_err(|f| self.failed(f))?;
        self.has_other(&words, primary, own, first, key).await
    }

    /// Returns the node of the primary, and the node on which an INSERT looks: that of the first backup.
    fn first_nodes(&self, slot: SlotRef) -> [MnId; 2] {
        let subtable = &self.view.subtables[slot.subtable as usize];
        [subtable.primary().node, subtable.backups()[0].node]
    }

    /// Withdraws a tentative entry that won its round.
    async fn withdraw(
        &mut self,
        attempt: &mut Attempt<'_>,
        winner: Winner,
        round: WriteRound,
    ) -> Result<(), Error> {
        attempt.enter_step(AttemptStep::Withdrawing(round));
        let left = word_of_withdrawal(round.own, round.old);
        if !removed(Mutant::WithdrawsPrimaryFirst) {
            self.rewrite_backups(&winner, round.slot, round.own, left).await?;
        }
        self.batch.next_phase();
        let primary = self.primary(round.slot);
        let cas = self.batch.cas(primary.node, primary.offset, round.old.0, left.0);
        self.phase().await;
        if self.batch.found(cas).map_err(|f| self.failed(f))? != round.old.0 {
            return Err(Error::Interrupted { what: "the primary changed under its winner" });
        }
        if removed(Mutant::WithdrawsPrimaryFirst) {
            self.rewrite_backups(&winner, round.slot, round.own, left).await?;
        }
        attempt.enter_step(AttemptStep::Mentioned);
        // The slot keeps the attempt's own object now.
        let keeps_old = removed(Mutant::WithdrawnObjectFreed);
        self.free(if keeps_old { round.own } else { round.old });
        Ok(())
    }

    /// Returns whether another slot than `own` refers to the key, among these slots as a node has shown them. Takes
    /// one phase if any of them matches the key. An object that cannot be read whole counts as the key's: withdrawing
    /// is always safe.
    async fn has_other(
        &mut self,
        words: &BucketWords,
        shown_on: MnId,
        own: SlotRef,
        known_other: &BucketWords,
        key: Key<'_>,
    ) -> Result<bool, Error> {
        if removed(Mutant::InsertDoesNotLook) {
            return Ok(false);
        }
        let unknown = unknown(words, own, known_other);
        Ok(!matches!(self.find_key(unknown, shown_on, key).await?, KeySearch::Absent))
    }

    /// Executes an INSERT with one index replica.
    async fn insert_alone(
        &mut self,
        attempt: &mut Attempt<'_>,
        words: &BucketWords,
        buckets: &Buckets,
        round: WriteRound,
    ) -> Result<AttemptEnd, Error> {
        let WriteRound { slot, old, own } = round;
        let tentative = own.tentative();
        attempt.enter_step(AttemptStep::Mentioned);
        self.batch.next_phase();
        let place = self.primary(slot);
        let cas = self.batch.cas(place.node, place.offset, old.0, tentative.0);
        let tickets = self.read_buckets(buckets);
        self.phase().await;
        if self.batch.found(cas).map_err(|f| self.failed(f))? != old.0 {
            self.free(own.withdrawn());
            return Ok(AttemptEnd::Retry);
        }
        let look = buckets.words(&self.batch, tickets).map_err(|f| self.failed(f))?;
        let RoundOutcome::Won(winner, _) = self.contend(attempt, round, None).await? else {
            unreachable!("without backups nobody else can win");
        };
        let other = self.has_other(&look, place.node, slot, words, attempt.intent.key).await;
        if !matches!(other, Ok(false)) {
            attempt.enter_step(AttemptStep::Withdrawing(round));
            self.batch.next_phase();
            let left = word_of_withdrawal(tentative, old);
            let cas = self.batch.cas(place.node, place.offset, tentative.0, left.0);
            self.phase().await;
            if self.batch.found(cas).map_err(|f| self.failed(f))? != tentative.0 {
                return Err(Error::Interrupted { what: "a tentative slot changed" });
            }
            attempt.enter_step(AttemptStep::Mentioned);
            self.free(old);
            return other.map(|_| AttemptEnd::Retry).map_err(withdrawn);
        }
        if self.commit(attempt, winner, round, tentative).await? {
            self.free(old);
            Ok(AttemptEnd::Done(Some(Hint { slot, word: own, seen: self.seen() })))
        } else {
            Err(Error::Interrupted { what: "a tentative slot changed" })
        }
    }
}

/// Returns the slots other than `own` that may refer to the key. A word that led to a different key when the
/// operation began needs no second look. A tentative word does: with one index replica the primary shows such words,
/// and their objects were not read then.
fn unknown<'w>(
    words: &'w BucketWords,
    own: SlotRef,
    known_other: &'w BucketWords,
) -> impl Iterator<Item = (SlotRef, Slot)> + 'w {
    let settled = |w: Slot| !w.is_tentative() || removed(Mutant::TentativeIsKnown);
    let known = move |s: SlotRef, w: Slot| settled(w) && known_other.word(s) == Some(w);
    words.matching().filter(move |(s, w)| *s != own && !known(*s, *w))
}

/// Returns whether a free slot other than `own` shows another word than the primary did at first.
fn is_unanswered(look: &BucketWords, own: SlotRef, first: &BucketWords) -> bool {
    !removed(Mutant::FreedSlotNotDoubted) && look.is_freed_since(first, own)
}

/// Returns the word that an INSERT that withdraws leaves in its slot: a free one that has never been seen before.
fn word_of_withdrawal(own: Slot, old: Slot) -> Slot {
    if removed(Mutant::WithdrawalWritesZero) {
        return Slot(0);
    }
    if removed(Mutant::WithdrawalRestoresOldWord) {
        return old;
    }
    own.withdrawn()
}

/// Returns the error of an INSERT that failed and has withdrawn its entry.
fn withdrawn(error: Error) -> Error {
    match error {
        Error::Unreachable { node, error, .. } => {
            Error::Unreachable { node, error, outcome: FailedWriteOutcome::NotApplied }
        }
        other => other,
    }
}
