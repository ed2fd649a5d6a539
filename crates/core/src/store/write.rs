//! INSERT, UPDATE, UPSERT and DELETE: what they have in common.
//!
//! ```text
//! 1  READ the slot of the hint, or both buckets; WRITE the object to all its replicas
//! 2  READ the objects of matching slots, to compare keys     (not with a hint that is right)
//! 3  the key's slot is known: a write round on it            (round.rs)
//!    the key is new: INSERT into a free slot                 (insert.rs)
//! ```
//!
//! The object is written, with its log entry, before anybody can learn its address. An
//! attempt that has posted a CAS never uses its object again: the next attempt writes a new one,
//! so that every word it puts into a slot is new.
//!
//! Who loses a round on an *occupied* slot lost it to a write of the same key. A loser's UPDATE
//! took effect just before the winner's write: success. A loser's DELETE must not claim that the
//! key is gone when the winner wrote a new value: it starts again.

use alloc::boxed::Box;

use super::lead::{Lead, may_hold};
use super::round::{Contended, Round, object_places};
use super::stopped::Progress;
use super::{Hint, Op, Stale, Store, Written};
use super::{reclaim, room};
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::{Object, Opcode, Pair, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Key, Words};
use crate::slab::Allocation;
use crate::stats::OpKind;
use crate::verbs::{Fabric, VerbError};
use crate::view::MAX_REPLICAS;

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
        let result = op.write(&Intent { opcode, key, value }, hint).await;
        let is_known = |error: &Error| error.outcome() == Outcome::NotApplied;
        if result.as_ref().err().is_none_or(is_known) {
            op.acts.posted = false;
        }
        let made_room = op.made_room;
        op.finish(kind);
        if made_room {
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

/// Where the key was found to be.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
enum Target {
    /// In this slot, which held this word.
    Slot(Hint),
    /// Nowhere; with what the buckets showed.
    Absent(Words),
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    async fn write(
        &mut self,
        intent: &Intent<'_>,
        mut hint: Option<Hint>,
    ) -> Result<Written, Error> {
        let too_large = || Error::ValueTooLarge {
            bytes: intent.value.len(),
            max_bytes: self.view.geometry.max_value_bytes as usize,
        };
        let class = Object::class(intent.key.len(), intent.value.len()).ok_or_else(too_large)?;
        let mut object = None;
        let mut least = room::USED_AGAIN_AT;
        loop {
            self.may_write(intent.key).await?;
            if object.is_none() || !removed(Mutant::IdentityUsedAgain) {
                object = self.store.allocate(class, least, &self.view);
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
            let attempt = self.attempt_or_find_out(intent, hint.take(), object).await;
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
    fn done_with(&self, object: &Allocation, attempt: &Result<Attempt, Error>) {
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
        hint: Option<Hint>,
        object: &Allocation,
    ) -> Result<Attempt, Error> {
        self.progress = Progress::Nothing;
        self.mentioned = false;
        match self.attempt(intent, hint, object).await {
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
        hint: Option<Hint>,
        object: &Allocation,
    ) -> Result<Attempt, Error> {
        let target = match self.write_and_find(intent, hint, object).await? {
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
        self.batch.clear();
        // READs go first: what a processor stores it need not wait for before it loads. Where WRITEs would
        // wait for them they go last. The order does not matter: across nodes there is none, nobody else
        // knows of the object yet, and a READ that meets it (at the address of a hint that is not the
        // slot's any more) counts for nothing, since the slot does not show the hint's word.
        let reads_first = !self.store.fabric.waits_for_reads();
        if !reads_first {
            self.post_object(intent, object)?;
        }
        if let Some(lead) = hint.and_then(|hint| Lead::new(&self.view, hint, intent.key)) {
            let hint = lead.hint;
            let slot = lead.read_slot(&mut self.batch);
            let proof = self.read_proof(&lead, intent.key);
            for backup in self.view.slot_places(hint.slot) {
                self.store.fabric.prefetch(backup.node, backup.offset);
            }
            self.store.fabric.prefetch(lead.object.node, lead.object.offset);
            if reads_first {
                self.post_object(intent, object)?;
            }
            self.object_phase(object).await?;
            let word = self.slot_word(slot).map_err(|f| self.failed(f))?;
            let leads = self.is_proved(proof, word, intent.key)?;
            if (word == hint.word && leads) || removed(Mutant::HintIsTrusted) {
                self.hint_held = true;
                return Ok(Ok(Target::Slot(hint)));
            }
            if may_hold(word, intent.key) {
                let only = [(hint.slot, word)].into_iter();
                let followed = Box::pin(self.find_key(only, intent.key)).await?;
                if let Ok(Some(found)) = followed {
                    return Ok(Ok(Target::Slot(found)));
                }
            }
            return Box::pin(self.find_anew(intent.key)).await;
        }
        let buckets = Buckets::of(intent.key, &self.view);
        let tickets = self.read_buckets(&buckets);
        if reads_first {
            self.post_object(intent, object)?;
        }
        self.object_phase(object).await?;
        let words = buckets.words(&self.batch, tickets).map_err(|f| self.failed(f))?;
        Box::pin(self.find_in(words, intent.key)).await
    }

    async fn find_anew(&mut self, key: Key<'_>) -> Result<Result<Target, Stale>, Error> {
        let buckets = Buckets::of(key, &self.view);
        let words = self.fetch_words(&buckets).await.map_err(|f| self.failed(f))?;
        self.find_in(words, key).await
    }

    /// The phase that writes the object: all replicas must have it before anybody can learn of it.
    async fn object_phase(&mut self, object: &Allocation) -> Result<(), Error> {
        self.phase().await;
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
        Ok(match self.find_key(live, key).await? {
            Ok(Some(found)) => Ok(Target::Slot(found)),
            Ok(None) => Ok(Target::Absent(words)),
            Err(Stale) => Err(Stale),
        })
    }

    /// Posts the WRITEs of the object, and of its block's header if it is the block's first.
    fn post_object(&mut self, intent: &Intent<'_>, object: &Allocation) -> Result<(), Error> {
        let view = self.view.clone();
        if let Some((block, header)) = &object.header {
            let bytes = header.encode();
            let span = self.batch.stage(bytes.len() as u32);
            self.batch.bytes_mut(span).copy_from_slice(&bytes);
            let (region, offset) = view
                .region_of(*block)
                .ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })?;
            for place in &region.places {
                self.batch.write(place.node, place.offset + offset, span);
            }
        }
        let span = self.batch.stage(object.class.bytes() as u32);
        let (opcode, generation) = (intent.opcode, object.generation);
        let pair = Pair { key: &intent.key, value: intent.value, generation, opcode };
        pair.encode(self.batch.bytes_mut(span));
        let replicas = if removed(Mutant::ObjectOnOneReplica) { 1 } else { MAX_REPLICAS };
        for place in object_places(&view, object)?.take(replicas) {
            self.batch.write(place.node, place.offset, span);
        }
        Ok(())
    }

    /// The word that refers to a new object of the key.
    pub(super) fn own_word(&self, key: Key<'_>, object: &Allocation) -> Slot {
        Slot::new(key.fingerprint(), object.class, object.address, object.generation)
    }

    /// A write round on the slot that holds the key.
    async fn replace(
        &mut self,
        intent: &Intent<'_>,
        found: Hint,
        object: &Allocation,
    ) -> Result<Attempt, Error> {
        let own = match intent.opcode {
            Opcode::Delete if removed(Mutant::DeleteWritesZero) => Slot(0),
            Opcode::Delete => Slot::empty_marker(object.address, object.generation),
            _ => self.own_word(intent.key, object),
        };
        let round = Round { slot: found.slot, old: found.word, own };
        let lost = match intent.opcode {
            Opcode::Delete if !removed(Mutant::DeleteLoserSucceeds) => Attempt::Again,
            _ => Attempt::Done(None),
        };
        match self.contend(&round, None).await? {
            Contended::Won(winner, _) => {
                let done = self.commit(winner, &round, round.old, own).await?;
                self.free(if done { round.old } else { own });
                let hint = Hint { slot: found.slot, word: own };
                Ok(if done { Attempt::Done((!own.is_free()).then_some(hint)) } else { lost })
            }
            Contended::Lost => {
                if removed(Mutant::LoserDoesNotWait) {
                    return Ok(lost);
                }
                if removed(Mutant::LoserFreesAtOnce) {
                    self.free(own);
                }
                let Some(end) = self.await_end(round.slot, round.old).await? else {
                    return Ok(Attempt::Stopped);
                };
                if !removed(Mutant::LoserFreesAtOnce) {
                    self.free_lost(own, end);
                }
                Ok(lost)
            }
        }
    }
}
