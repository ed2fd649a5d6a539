//! INSERT, UPDATE, UPSERT and DELETE: what they have in common.
//!
//! ```text
//! 1  READ the slot of the hint, or both buckets; WRITE the object to all its replicas
//! 2  READ the objects of matching slots, to compare keys     (not with a hint that is right)
//! 3  the key's slot is known: a write round on it            (round.rs)
//!    the key is new: INSERT into a free slot                 (insert.rs)
//! ```
//!
//! With a hint that is certain, UPDATE, UPSERT and DELETE begin with a guess (`guess.rs`).
//!
//! The object is written, with its log entry, before anybody can learn its address. An
//! attempt that has posted a CAS never uses its object again, unless all of them were answered and
//! none succeeded: the next attempt writes a new one, so that every word it puts into a slot is new.
//!
//! Who loses a round on an *occupied* slot lost it to a write of the same key. A loser's UPDATE
//! took effect just before the winner's write: success, unless others may have read that before it began
//! (`beside`): who is not heard asks. A loser's DELETE must not claim that the key is gone when the winner
//! wrote a new value: it starts again.

use alloc::boxed::Box;
use core::mem;

use super::guess::Guessed;
use super::lead::{Lead, may_hold};
use super::reclaim;
use super::round::{Contended, Posted, Round, object_at};
use super::stopped::Progress;
use super::{Hint, Op, Proof, Stale, Store, Written};
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::{Object, Opcode, Pair, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Key, Words};
use crate::slab::{Allocation, USED_AGAIN_AT};
use crate::stats::OpKind;
use crate::verbs::{Fabric, Ticket, VerbError};
use crate::view::SlotRef;

impl<F: Fabric, H: Host> Store<F, H> {
    /// Adds a key that must not exist.
    pub async fn insert<'k>(
        &self,
        key: impl Into<Key<'k>>,
        value: &[u8],
    ) -> Result<Written, Error> {
        self.write(Opcode::Insert, OpKind::Insert, key.into(), value, None).await
    }

    /// Replaces the value of a key that must exist.
    pub async fn update<'k>(
        &self,
        key: impl Into<Key<'k>>,
        value: &[u8],
        hint: Option<Hint>,
    ) -> Result<Written, Error> {
        self.write(Opcode::Update, OpKind::Update, key.into(), value, hint).await
    }

    /// Adds the key, or replaces its value.
    pub async fn upsert<'k>(
        &self,
        key: impl Into<Key<'k>>,
        value: &[u8],
        hint: Option<Hint>,
    ) -> Result<Written, Error> {
        self.write(Opcode::Upsert, OpKind::Upsert, key.into(), value, hint).await
    }

    /// Removes a key that must exist.
    pub async fn delete<'k>(
        &self,
        key: impl Into<Key<'k>>,
        hint: Option<Hint>,
    ) -> Result<Written, Error> {
        self.write(Opcode::Delete, OpKind::Delete, key.into(), &[], hint).await
    }

    async fn write(
        &self,
        opcode: Opcode,
        kind: OpKind,
        key: Key<'_>,
        value: &[u8],
        hint: Option<Hint>,
    ) -> Result<Written, Error> {
        self.check_key(&key)?;
        self.check_value(value)?;
        let mut op = self.operation();
        let intent = Intent { opcode, key, value };
        let result = match op.write_now(&intent, hint) {
            Ok(written) => Ok(written),
            Err(begun) => op.write(&intent, begun).await,
        };
        let is_known = |error: &Error| error.outcome() == Outcome::NotApplied;
        if result.as_ref().err().is_none_or(is_known) {
            op.acts.posted = false;
        }
        let made_room = op.made_room;
        op.finish(kind);
        if opcode == Opcode::Delete && self.host.lends() {
            self.lend(key);
        } else if made_room {
            self.offer();
        }
        self.mark_freed(reclaim::MARKED_TOGETHER).await;
        if let Some(class) = Object::class(key.len(), value.len())
            && self.slabs.borrow_mut().is_half_used(class)
        {
            // On the heap: it is rare, and the futures of operations stay small.
            Box::pin(self.look_ahead(class)).await;
            self.offer();
        }
        result
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// What a write comes to that finds no memory: perhaps it would have changed nothing.
    async fn without_memory(&self, intent: &Intent<'_>) -> Error {
        let found = self.search(intent.key, None).await;
        match (intent.opcode, found.map(|found| found.value().is_some())) {
            (Opcode::Insert, Ok(true)) => Error::AlreadyExists,
            (Opcode::Update | Opcode::Delete, Ok(false)) => Error::NotFound,
            _ => Error::OutOfMemory,
        }
    }
}

/// What a write wants.
pub(super) struct Intent<'a> {
    pub opcode: Opcode,
    pub key: Key<'a>,
    pub value: &'a [u8],
}

/// What an attempt to write came to.
pub(super) enum Attempt {
    /// Done; with the place for the cache, if it is known.
    Done(Option<Hint>),
    /// Others were faster. The object may have been seen: start again with a new one.
    Again,
    /// The view changes while it waits for another writer.
    Stopped,
}

/// A write that has begun, and may have to wait from here on.
pub(super) struct Begun {
    pub object: Option<Allocation>,
    pub step: Step,
}

/// How far the attempt that is under way has come.
pub(super) enum Step {
    /// None is; with where the key may be.
    Nothing(Option<Hint>),
    /// The phase that writes the object is executed, with these READs.
    Led(Led),
    /// The CASes of the backups are executed.
    Contending(Round, Posted),
    /// That of the primary is.
    Committing(Round, Ticket),
}

/// The READs that go with the object where there is a hint.
pub(super) struct Led {
    hint: Hint,
    slot: Ticket,
    proof: Proof,
}

/// Where the key was found to be.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
enum Target {
    /// In this slot, which held this word.
    Slot(Hint),
    /// Nowhere; with what the buckets showed.
    Absent(Words),
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    async fn write(&mut self, intent: &Intent<'_>, begun: Begun) -> Result<Written, Error> {
        let Begun { mut object, mut step } = begun;
        let too_large = || Error::ValueTooLarge {
            bytes: intent.value.len(),
            max_bytes: self.view.geometry.max_value_bytes as usize,
        };
        let class = Object::class(intent.key.len(), intent.value.len()).ok_or_else(too_large)?;
        let mut least = USED_AGAIN_AT;
        loop {
            if matches!(step, Step::Nothing(_)) {
                self.may_write(intent.key).await?;
                if object.is_none() || !removed(Mutant::IdentityUsedAgain) {
                    object = self.store.allocate(class, least, &self.view);
                }
            }
            let Some(object) = &object else {
                // Else what it waits for could wait for it.
                if !removed(Mutant::WaitsWhileItActs) {
                    self.acts.pause();
                }
                let (to_delete, view) = (intent.opcode == Opcode::Delete, self.view.clone());
                // On the heap: it is rare, and the futures of operations stay small.
                let room = Box::pin(self.store.make_room(class, to_delete, &mut least, &view));
                self.made_room = true;
                match room.await {
                    Err(Error::OutOfMemory) => {
                        return Err(Box::pin(self.store.without_memory(intent)).await);
                    }
                    other => other?,
                }
                continue;
            };
            let step = mem::replace(&mut step, Step::Nothing(None));
            let attempt = self.attempt_or_find_out(intent, step, object).await;
            self.done_with(object, &attempt);
            let attempt = match attempt {
                Err(Error::IndexFull) => {
                    self.acts.pause();
                    let full = Buckets::of(intent.key, &self.view).subtable;
                    // On the heap: it is rare, and the futures of operations stay small.
                    if !Box::pin(self.store.host.grow_index(full, &self.view.clone())).await {
                        return Err(Error::IndexFull);
                    }
                    Attempt::Again
                }
                // It rests on what was READ alone.
                Err(error @ (Error::AlreadyExists | Error::NotFound)) => {
                    let is_known = removed(Mutant::WritesAnswerUnheard);
                    if is_known || self.is_vouched_for(intent.key).await? {
                        return Err(error);
                    }
                    Attempt::Again
                }
                other => other?,
            };
            match attempt {
                Attempt::Done(place) => {
                    self.acts.posted = false;
                    return Ok(Written { place, hint_held: self.hint_held });
                }
                Attempt::Again | Attempt::Stopped => self.acts.posted = false,
            }
            if self.pause().await.is_err() {
                let waiting_for = "a key or bucket that others keep changing";
                return Err(Error::GaveUp { waiting_for, outcome: Outcome::NotApplied });
            }
        }
    }

    /// An attempt has ended: its object is not under way any more, unless nobody can know.
    pub(super) fn done_with(&self, object: &Allocation, attempt: &Result<Attempt, Error>) {
        let is_known = match attempt {
            Ok(_) => true,
            // What was posted to a silent node may still execute.
            Err(Error::Unreachable { .. }) => false,
            Err(error) => error.outcome() == Outcome::NotApplied,
        };
        let mut slabs = self.store.slabs.borrow_mut();
        match is_known && !removed(Mutant::IdentityUsedAgain) {
            true if self.mentioned => slabs.end(object),
            true => slabs.give_back(object),
            false => {}
        }
    }

    /// One attempt, and if it is stopped by the loss of a memory node, what became of it.
    async fn attempt_or_find_out(
        &mut self,
        intent: &Intent<'_>,
        step: Step,
        object: &Allocation,
    ) -> Result<Attempt, Error> {
        if let Step::Nothing(_) = step {
            self.progress = Progress::Nothing;
            self.mentioned = false;
        }
        match self.attempt(intent, step, object).await {
            Ok(Attempt::Stopped) => {
                let waiting_for = "the winner of a write conflict to finish";
                let error = Error::GaveUp { waiting_for, outcome: Outcome::Unknown };
                Box::pin(self.find_out(intent.opcode, error)).await
            }
            Err(error @ Error::Unreachable { error: VerbError::Unreachable, .. }) => {
                Box::pin(self.find_out(intent.opcode, error)).await
            }
            other => other,
        }
    }

    async fn attempt(
        &mut self,
        intent: &Intent<'_>,
        step: Step,
        object: &Allocation,
    ) -> Result<Attempt, Error> {
        let found = match step {
            Step::Nothing(hint) => match hint.and_then(|h| self.may_guess(h, intent, object)) {
                Some(sure) => match self.guess(intent, &sure, object).await? {
                    Guessed::Ended(attempt) => return Ok(attempt),
                    Guessed::Stale(word) => self.follow(sure.slot, word, intent.key).await?,
                },
                None => self.write_and_find(intent, hint, object).await?,
            },
            Step::Led(led) => self.find_from(&led, intent.key, object).await?,
            Step::Contending(round, posted) => {
                let contended = self.decide(&round, None, &posted).await?;
                return self.end_round(intent, &round, contended).await;
            }
            Step::Committing(round, cas) => {
                let done = self.is_committed(&round, round.old, cas)?;
                return Ok(self.ended(intent, &round, done));
            }
        };
        let target = match found {
            Ok(target) => target,
            Err(Stale) => return Ok(Attempt::Again),
        };
        match (target, intent.opcode) {
            (Target::Slot(_), Opcode::Insert) => Err(Error::AlreadyExists),
            (Target::Absent(_), Opcode::Update | Opcode::Delete) => Err(Error::NotFound),
            (Target::Slot(found), _) => self.replace(intent, found, object).await,
            (Target::Absent(words), _) => {
                // On the heap, as all that an update of a key that is where it was does not need: the
                // futures of operations are moved, and stay small.
                Box::pin(self.insert_into_free(intent, &words, object)).await
            }
        }
    }

    /// Phase 1, and phase 2 where keys must be compared.
    async fn write_and_find(
        &mut self,
        intent: &Intent<'_>,
        hint: Option<Hint>,
        object: &Allocation,
    ) -> Result<Result<Target, Stale>, Error> {
        if let Some(lead) =
            hint.and_then(|hint| Lead::new(&self.view, &self.store.silent, hint, intent.key))
        {
            let led = self.post_led(intent, &lead, object)?;
            self.phase().await;
            return self.find_from(&led, intent.key, object).await;
        }
        self.batch.clear();
        let reads_first = self.reads_first();
        if !reads_first {
            self.post_object(intent, object)?;
        }
        let buckets = Buckets::of(intent.key, &self.view);
        let tickets = self.read_buckets(&buckets);
        if reads_first {
            self.post_object(intent, object)?;
        }
        self.phase().await;
        self.is_written(object)?;
        let words = buckets.words(&self.batch, tickets).map_err(|f| self.failed(f))?;
        Box::pin(self.find_in(words, intent.key)).await
    }

    /// A hint was wrong; its slot showed this word.
    async fn follow(
        &mut self,
        slot: SlotRef,
        word: Slot,
        key: Key<'_>,
    ) -> Result<Result<Target, Stale>, Error> {
        if may_hold(word, key) {
            let (only, shown_on) = ([(slot, word)].into_iter(), self.primary(slot).node);
            if let Ok(Some(found)) = Box::pin(self.find_key(only, shown_on, key)).await? {
                return Ok(Ok(Target::Slot(found)));
            }
        }
        Box::pin(self.find_anew(key)).await
    }

    async fn find_anew(&mut self, key: Key<'_>) -> Result<Result<Target, Stale>, Error> {
        let buckets = Buckets::of(key, &self.view);
        let words = self.fetch_words(&buckets).await.map_err(|f| self.failed(f))?;
        self.find_in(words, key).await
    }

    /// Whether the READs of phase 1 go before its WRITEs. They do: what a processor stores it need not wait for
    /// before it loads. Where WRITEs would wait for them they go last. The order does not matter: across
    /// nodes there is none, nobody else knows of the object yet, and a READ that meets it (at the address of a
    /// hint that is not the slot's any more) counts for nothing, since the slot does not show the hint's word.
    fn reads_first(&self) -> bool {
        !self.store.fabric.waits_for_reads()
    }

    /// Posts phase 1 where there is a hint.
    pub(super) fn post_led(
        &mut self,
        intent: &Intent<'_>,
        lead: &Lead,
        object: &Allocation,
    ) -> Result<Led, Error> {
        self.batch.clear();
        let reads_first = self.reads_first();
        if !reads_first {
            self.post_object(intent, object)?;
        }
        let slot = lead.read_slot(&mut self.batch);
        let proof = self.read_proof(lead, intent.key);
        for backup in self.view.slot_places(lead.hint.slot) {
            self.store.fabric.prefetch(backup.node, backup.offset);
        }
        self.store.fabric.prefetch(lead.object.node, lead.object.offset);
        if reads_first {
            self.post_object(intent, object)?;
        }
        Ok(Led { hint: lead.hint, slot, proof })
    }

    /// Phase 1 is executed: the hint, if the slot still holds its word, and that leads to the key. Else what
    /// the slot holds.
    pub(super) fn confirm(
        &mut self,
        led: &Led,
        key: Key<'_>,
        object: &Allocation,
    ) -> Result<Result<Hint, Slot>, Error> {
        self.is_written(object)?;
        let word = self.slot_word(led.slot).map_err(|f| self.failed(f))?;
        let leads = self.is_proved(led.proof, word, key)?;
        if (word == led.hint.word && leads) || removed(Mutant::HintIsTrusted) {
            self.hint_held = true;
            return Ok(Ok(led.hint));
        }
        Ok(Err(word))
    }

    /// Phase 1 is executed; phase 2 where the hint is wrong.
    async fn find_from(
        &mut self,
        led: &Led,
        key: Key<'_>,
        object: &Allocation,
    ) -> Result<Result<Target, Stale>, Error> {
        match self.confirm(led, key, object)? {
            Ok(hint) => Ok(Ok(Target::Slot(hint))),
            Err(word) => self.follow(led.hint.slot, word, key).await,
        }
    }

    /// Phase 1 is executed: all replicas must have the object before anybody can learn of it.
    pub(super) fn is_written(&mut self, object: &Allocation) -> Result<(), Error> {
        self.batch.check().map_err(|f| self.failed(f))?;
        if object.header.is_some() {
            self.store.slabs.borrow_mut().header_written(object);
        }
        Ok(())
    }

    async fn find_in(
        &mut self,
        words: Words,
        key: Key<'_>,
    ) -> Result<Result<Target, Stale>, Error> {
        let shown = removed(Mutant::WritersSeeTentative);
        let live = words.matching().filter(|(_, w)| !w.is_tentative() || shown);
        let shown_on = self.view.subtables[words.subtable() as usize].primary().node;
        Ok(match self.find_key(live, shown_on, key).await? {
            Ok(Some(found)) => Ok(Target::Slot(found)),
            Ok(None) => Ok(Target::Absent(words)),
            Err(Stale) => Err(Stale),
        })
    }

    /// Posts the WRITEs of the object, and of its block's header if it is the block's first.
    pub(super) fn post_object(
        &mut self,
        intent: &Intent<'_>,
        object: &Allocation,
    ) -> Result<(), Error> {
        let view = self.view.clone();
        if let Some((block, header)) = &object.header {
            let bytes = header.encode();
            let span = self.batch.stage(bytes.len() as u32);
            self.batch.bytes_mut(span).copy_from_slice(&bytes);
            let block = view
                .block(*block)
                .ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })?;
            block.write_header(&mut self.batch, span);
        }
        let span = self.batch.stage(object.class.bytes() as u32);
        let (opcode, identity) = (intent.opcode, object.identity());
        let pair = Pair { key: &intent.key, value: intent.value, identity, opcode };
        pair.encode(self.batch.bytes_mut(span));
        object_at(&view, object)?.write(&mut self.batch, span);
        Ok(())
    }

    /// The word that refers to a new object of the key.
    pub(super) fn own_word(&self, key: Key<'_>, object: &Allocation) -> Slot {
        Slot::new(key.fingerprint(), object.class, object.address, object.generation)
    }

    /// The round in which a write replaces the word of a slot.
    pub(super) fn round(
        &self,
        intent: &Intent<'_>,
        slot: SlotRef,
        old: Slot,
        object: &Allocation,
    ) -> Round {
        let own = match intent.opcode {
            Opcode::Delete if removed(Mutant::DeleteWritesZero) => Slot(0),
            Opcode::Delete => Slot::empty_marker(object.address, object.generation),
            _ => self.own_word(intent.key, object),
        };
        Round { slot, old, own }
    }

    /// A write round on the slot that holds the key.
    async fn replace(
        &mut self,
        intent: &Intent<'_>,
        found: Hint,
        object: &Allocation,
    ) -> Result<Attempt, Error> {
        let round = self.round(intent, found.slot, found.word, object);
        let contended = self.contend(&round, None).await?;
        self.end_round(intent, &round, contended).await
    }

    /// The round is won or lost: commits, or waits for its end.
    pub(super) async fn end_round(
        &mut self,
        intent: &Intent<'_>,
        round: &Round,
        contended: Contended,
    ) -> Result<Attempt, Error> {
        match contended {
            Contended::Won(winner, _) => {
                let done = self.commit(winner, round, round.old, round.own).await?;
                Ok(self.ended(intent, round, done))
            }
            Contended::Lost => {
                if removed(Mutant::LoserDoesNotWait) {
                    return Ok(lost(intent));
                }
                if removed(Mutant::LoserFreesAtOnce) {
                    self.free(round.own);
                }
                let Some(end) = self.await_end(round.slot, round.old).await? else {
                    return Ok(Attempt::Stopped);
                };
                if !removed(Mutant::LoserFreesAtOnce) {
                    self.free_lost(round.own, end);
                }
                // The winner may have been read beside the primary before this operation began.
                let counts = self.store.is_heard()
                    || removed(Mutant::LosersDoNotAsk)
                    || self.is_vouched_for_now(intent.key).await;
                Ok(if counts { lost(intent) } else { Attempt::Again })
            }
        }
    }

    /// The CAS of the primary is executed: the own word stands there, or with one index replica that of
    /// somebody else.
    pub(super) fn ended(&mut self, intent: &Intent<'_>, round: &Round, done: bool) -> Attempt {
        self.free(if done { round.old } else { round.own });
        let place = Hint { slot: round.slot, word: round.own, seen: self.seen() };
        match done {
            true => Attempt::Done((!round.own.is_free()).then_some(place)),
            false => lost(intent),
        }
    }
}

/// What a write comes to that lost to another one of the same key.
fn lost(intent: &Intent<'_>) -> Attempt {
    match intent.opcode {
        Opcode::Delete if !removed(Mutant::DeleteLoserSucceeds) => Attempt::Again,
        _ => Attempt::Done(None),
    }
}
