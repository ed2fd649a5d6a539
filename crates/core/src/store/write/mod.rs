//! INSERT, UPDATE, UPSERT and DELETE: their common parts.
//!
//! ```text
//! 1  READ the slot of the hint, or both buckets; WRITE the object to all its replicas
//! 2  READ the objects of matching slots, to compare keys     (not with a hint that is right)
//! 3  the key's slot is known: a write round on it            (contend.rs, round.rs)
//!    the key is new: INSERT into a free slot                 (insert.rs)
//! ```
//!
//! With a hint that is certain, UPDATE, UPSERT and DELETE begin with a speculative write (`speculation.rs`).
//!
//! An [`Attempt`] follows the straight path as far as it can ([`uncontended`](self::uncontended)); on an immediate
//! fabric it does so on the spot ([`write_now`](self::write_now)). This module awaits phases, and does everything
//! that is not on that path: the search for the key, conflicts, the search for memory, and the next attempt.

mod attempt;
mod contend;
mod copies;
mod demote;
mod full_buckets;
mod in_place;
mod insert;
mod moving;
mod request;
mod round;
mod speculation;
mod uncontended;
mod write_now;

use alloc::boxed::Box;
use alloc::vec::Vec;

pub use attempt::Watch;
pub use demote::ObjectDemotion;
pub use moving::{MoveScope, Transition};
pub use request::WriteRequest;

pub(super) use attempt::{Attempt, AttemptEnd, AttemptStep, WriteRound};

use crate::data::{Redundancy, RedundancyDemand, RedundancyError};
use crate::error::{Error, FailedWriteOutcome};
use crate::host::{Host, IndexGrowthAnswer};
use crate::layout::{Fill, Opcode, Slot, Value, value_in};
use crate::mutant::{Mutant, removed};
use crate::race::{BucketWords, Buckets, IntoKey, Key};
use crate::slab::{SlabKind, USED_AGAIN_AT};
use crate::store::memory::SET_FREE_TOGETHER;
use crate::store::target::{live, may_hold};
use crate::store::{Hint, StaleWord, Store, StoreOp, WriteResult};
use crate::verbs::{Fabric, VerbBatch, VerbError};
use attempt::{CannotBegin, Intent, KeepRedundancy, WriteValue};
use uncontended::{AttemptAction, SlowPathReason};

impl<F: Fabric, H: Host> Store<F, H> {
    /// Adds a key that must not exist.
    pub fn insert<'k>(
        &self,
        key: impl IntoKey<'k>,
        value: &[u8],
    ) -> impl Future<Output = Result<WriteResult, Error>> {
        self.write(WriteRequest::insert(key, value))
    }

    /// Replaces the value of a key that must exist.
    pub fn update<'k>(
        &self,
        key: impl IntoKey<'k>,
        value: &[u8],
        hint: Option<Hint>,
    ) -> impl Future<Output = Result<WriteResult, Error>> {
        self.write(WriteRequest::update(key, value).hinted(hint))
    }

    /// Adds the key, or replaces its value.
    pub fn upsert<'k>(
        &self,
        key: impl IntoKey<'k>,
        value: &[u8],
        hint: Option<Hint>,
    ) -> impl Future<Output = Result<WriteResult, Error>> {
        self.write(WriteRequest::upsert(key, value).hinted(hint))
    }

    /// Removes a key that must exist.
    pub fn delete<'k>(
        &self,
        key: impl IntoKey<'k>,
        hint: Option<Hint>,
    ) -> impl Future<Output = Result<WriteResult, Error>> {
        self.write(WriteRequest::delete(key).hinted(hint))
    }

    /// Checks a write: returns the error that it would have whatever the store holds.
    pub fn check_write(&self, request: &WriteRequest<'_, Key<'_>>) -> Result<(), Error> {
        let WriteRequest { key, value, redundancy: wanted, .. } = *request;
        self.check_key(&key)?;
        self.check_value(value.len())?;
        match self.slab_of(wanted.redundancy, key.len(), value.len()) {
            // The existing pair may have another redundancy, which the write keeps; or the write is replicated.
            Err(Error::Redundancy(error)) if wanted.keeps || wanted.falls_back(&error) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Executes a write.
    pub fn write<'k>(
        &self,
        request: WriteRequest<'_, impl IntoKey<'k>>,
    ) -> impl Future<Output = Result<WriteResult, Error>> {
        // Not async: each future in another one is one more copy of the request.
        self.execute(request.hashed(|key| self.key(key)))
    }

    async fn execute(&self, request: WriteRequest<'_, Key<'_>>) -> Result<WriteResult, Error> {
        let kind = request.kind();
        let WriteRequest { opcode, key, value, redundancy: wanted, hint, watch } = request;
        self.check_key(&key)?;
        self.check_value(value.len())?;
        let kept = if wanted.keeps { self.kept_by(hint, wanted, &key, value.len()) } else { None };
        let slab = kept.map_or_else(|| self.slab_of(wanted.redundancy, key.len(), value.len()), Ok);
        let keeps = match (wanted.keeps, kept) {
            (false, _) => KeepRedundancy::No,
            (true, None) => KeepRedundancy::IfItExists,
            (true, Some(_)) => KeepRedundancy::AsHinted(wanted.redundancy),
        };
        let (slab, hint) = match slab {
            Ok(slab) => (slab, hint),
            // On the heap: it is rare, and the futures of operations stay small.
            Err(error) => {
                Box::pin(self.slab_instead(opcode, key, value.len(), wanted, error)).await?
            }
        };
        let mut batch = self.batch();
        let mut room = Vec::new();
        let value = match value {
            Value::Filled(bytes, fill) if slab.redundancy.is_replicated() => {
                stage_filled(&mut batch, slab, &key, (bytes, fill))
            }
            // A stripe is made of the whole value, and its copies need the same value.
            value => WriteValue::Bytes(value.bytes(&mut room)),
        };
        let mut op = self.operation_with(batch);
        let intent = Intent { opcode, key, value, slab, keeps, watch };
        let result = match op.write_now(&intent, hint) {
            Ok(written) => Ok(written),
            Err(begun) => match op.write(&intent, hint, begun).await {
                Ok(WriteProgress::Done(written)) => Ok(written),
                Err(error) if !matches!(error, Error::Redundancy(_)) => Err(error),
                // On the heap: it is rare, and the futures of operations stay small.
                other => Box::pin(op.write_with_other_slab(&intent, other, wanted)).await,
            },
        };
        op.clear_posted_if_outcome_known(&result);
        let made_room = op.made_room;
        op.finish(kind);
        // Checked first: most writes need no future for it.
        if self.sets_free(SET_FREE_TOGETHER) {
            self.set_free(SET_FREE_TOGETHER).await;
        }
        let lack = self.memory.take_shortage(slab);
        if let Some(lack) = lack {
            // On the heap: it is rare, and the futures of operations stay small.
            Box::pin(self.look_ahead(slab, lack)).await;
        }
        // Last: to look for memory takes blocks into use.
        if opcode == Opcode::Delete && self.host.lends_log_blocks() {
            self.lend(key);
        } else if made_room || lack.is_some() {
            self.offer();
        }
        result
    }

    /// Returns the slab of the redundancy that the pair has by a hint, if the new value can have it.
    #[inline]
    fn kept_by(
        &self,
        hint: Option<Hint>,
        wanted: RedundancyDemand,
        key: &[u8],
        value_bytes: usize,
    ) -> Option<SlabKind> {
        // If all pairs are replicated, and new ones are to be, the result is always replicated.
        if self.has_one_redundancy.get() && wanted.redundancy.is_replicated() {
            return None;
        }
        self.slab_of_word(hint?.word, key, value_bytes)
    }

    /// Returns the slab of the redundancy that a word shows, if a value can have it.
    #[cold]
    fn slab_of_word(&self, word: Slot, key: &[u8], value_bytes: usize) -> Option<SlabKind> {
        let redundancy = self.view.borrow().object_of(word)?.redundancy_of(word);
        self.slab_of(redundancy, key.len(), value_bytes).ok()
    }

    /// Returns the slab for a write that cannot have the redundancy that it asks for: that of the pair that it
    /// replaces, or a replicated one.
    async fn slab_instead(
        &self,
        opcode: Opcode,
        key: Key<'_>,
        value_bytes: usize,
        wanted: RedundancyDemand,
        error: Error,
    ) -> Result<(SlabKind, Option<Hint>), Error> {
        let Error::Redundancy(reason) = &error else { return Err(error) };
        if wanted.keeps && matches!(opcode, Opcode::Update | Opcode::Upsert) {
            let found = self.search(key, None).await?;
            let is_there = found.value().is_some();
            let found = found.hint();
            let kept = found.and_then(|found| self.slab_of_word(found.word, &key, value_bytes));
            match kept {
                Some(slab) => return Ok((slab, found.map(Hint::uncertain))),
                None if !is_there && opcode == Opcode::Update => return Err(Error::NotFound),
                None => {}
            }
        }
        if !wanted.falls_back(reason) {
            return Err(error);
        }
        Ok((self.slab_of_new(wanted, &key, value_bytes)?, None))
    }

    /// Returns the slab for a new pair: of the redundancy that is asked for, or of the one that it falls back to.
    fn slab_of_new(
        &self,
        wanted: RedundancyDemand,
        key: &[u8],
        value_bytes: usize,
    ) -> Result<SlabKind, Error> {
        match self.slab_of(wanted.redundancy, key.len(), value_bytes) {
            Err(Error::Redundancy(error)) if wanted.falls_back(&error) => {
                self.host.report_fallback();
                self.slab_of(Redundancy::Replicated, key.len(), value_bytes)
            }
            slab => slab,
        }
    }

    /// Returns the slab for the object of a write.
    #[inline]
    pub(super) fn slab_of(
        &self,
        redundancy: Redundancy,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<SlabKind, Error> {
        if !redundancy.is_replicated() {
            redundancy.check(key_bytes, value_bytes).map_err(Error::Redundancy)?;
            self.check_members(redundancy)?;
        }
        SlabKind::of(redundancy, key_bytes, value_bytes).ok_or_else(|| Error::ValueTooLarge {
            bytes: value_bytes,
            max_bytes: self.view.borrow().geometry.max_value_bytes as usize,
        })
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Returns the error of a write that finds no memory: if the write would have changed nothing, the error for
    /// that.
    async fn without_memory(&self, intent: &Intent<'_>) -> Error {
        let found = self.search(intent.key, None).await;
        match (intent.opcode, found.map(|found| found.value().is_some())) {
            (Opcode::Insert, Ok(true)) => Error::AlreadyExists,
            (Opcode::Update | Opcode::Delete, Ok(false)) => Error::NotFound,
            _ => self.no_room_in(intent.slab),
        }
    }

    /// Returns whether there are regions for this redundancy, or enough members for one.
    #[cold]
    fn check_members(&self, redundancy: Redundancy) -> Result<(), Error> {
        let view = self.view.borrow();
        let members = view.members.len();
        match redundancy.coding() {
            Some(coding)
                if members < coding.chunks()
                    && view.regions.iter().all(|region| region.redundancy() != redundancy) =>
            {
                Err(Error::Redundancy(RedundancyError::TooFewNodes { coding, members }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the error of a write that found no room: its redundancy needs more members, or memory is full.
    pub(super) fn no_room_in(&self, slab: SlabKind) -> Error {
        let (Some(coding), members) = (slab.redundancy.coding(), self.view.borrow().members.len())
        else {
            return Error::OutOfMemory;
        };
        if members < coding.chunks() {
            Error::Redundancy(RedundancyError::TooFewNodes { coding, members })
        } else {
            Error::OutOfMemory
        }
    }
}

/// Has a value written into its place in its object, which the batch keeps.
#[cold]
fn stage_filled<'v>(
    batch: &mut VerbBatch,
    slab: SlabKind,
    key: &[u8],
    (bytes, fill): (usize, &Fill<'_>),
) -> WriteValue<'v> {
    batch.clear();
    let object = batch.stage(slab.class.bytes() as u32);
    batch.keep();
    let value = &mut batch.bytes_mut(object)[value_in(key.len(), bytes)];
    value.fill(0);
    fill(value);
    WriteValue::Staged(object, bytes)
}

/// The result of a write from one of the slabs.
enum WriteProgress {
    Done(WriteResult),
    /// Nothing is written, because the slab has the wrong redundancy: the pair at this place keeps another one; or
    /// there is no pair, and the slab has the redundancy of the pair that the hint showed, which a new pair is not to
    /// have.
    RedundancyDiffers(Option<Hint>),
}

/// The place in which the key was found.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
enum KeyLocation {
    /// This slot, which held this word.
    Slot(Hint),
    /// None; with the words of the key's buckets.
    Absent(BucketWords),
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Makes attempts until one is done; `begun` is the first one, if there is one already.
    async fn write<'i>(
        &mut self,
        intent: &'i Intent<'i>,
        mut hint: Option<Hint>,
        begun: Option<Attempt<'i>>,
    ) -> Result<WriteProgress, Error> {
        let slab = intent.slab;
        let mut least = USED_AGAIN_AT;
        let mut is_running = begun.is_some();
        let mut attempt = begun;
        let mut short = slab;
        let mut hint_held = false;
        loop {
            if !is_running {
                self.await_writable(intent.key).await?;
                let used = attempt.map(|attempt| attempt.object);
                let begun = match used.filter(|_| removed(Mutant::IdentityUsedAgain)) {
                    None => self.store.begin_attempt(intent, hint, least, &self.view),
                    Some(object) => Ok(Attempt::new(intent, hint, object)),
                };
                attempt = match begun {
                    Ok(begun) => Some(begun),
                    Err(CannotBegin::NoRoom(slab)) => {
                        short = slab;
                        None
                    }
                    Err(CannotBegin::Failed(error)) => return Err(error),
                };
            }
            let Some(running) = &mut attempt else {
                // Otherwise others that this operation waits for could wait for it.
                if !removed(Mutant::WaitsWhileItActs) {
                    self.pin.pause();
                }
                let to_delete = intent.opcode == Opcode::Delete;
                let view = self.view.clone();
                // On the heap: it is rare, and the futures of operations stay small.
                let room = Box::pin(self.store.await_room(short, to_delete, &mut least, &view));
                self.made_room = true;
                match room.await {
                    Err(Error::OutOfMemory) => {
                        return Err(Box::pin(self.store.without_memory(intent)).await);
                    }
                    other => other?,
                }
                continue;
            };
            self.pin.begin_object();
            let ended = self.attempt_or_resolve(running).await;
            self.end_attempt(running, &ended);
            hint_held |= running.hint_held;
            (is_running, hint) = (false, None);
            let ended = match ended {
                Err(Error::IndexFull) => {
                    self.pin.pause();
                    let full = Buckets::of(intent.key, &self.view).subtable;
                    // On the heap: it is rare, and the futures of operations stay small.
                    match Box::pin(self.store.host.grow_index(full, &self.view.clone())).await {
                        IndexGrowthAnswer::NewerView => AttemptEnd::Retry,
                        IndexGrowthAnswer::Full => return Err(Error::IndexFull),
                        IndexGrowthAnswer::TooDeep => return Err(Error::KeysHashAlike),
                        IndexGrowthAnswer::GaveUp => {
                            let waiting_for = "a larger index";
                            let outcome = FailedWriteOutcome::NotApplied;
                            return Err(Error::GaveUp { waiting_for, outcome });
                        }
                    }
                }
                // This answer depends on READs alone.
                Err(error @ (Error::AlreadyExists | Error::NotFound)) => {
                    let is_known = removed(Mutant::WritesAnswerUnheard);
                    if is_known || self.is_vouched_for(intent.key).await? {
                        return Err(error);
                    }
                    AttemptEnd::Retry
                }
                other => other?,
            };
            self.pin.traces.clear_posted();
            match ended {
                AttemptEnd::Done(place) => {
                    return Ok(WriteProgress::Done(WriteResult { place, hint_held }));
                }
                AttemptEnd::RedundancyDiffers(found) => {
                    return Ok(WriteProgress::RedundancyDiffers(found));
                }
                AttemptEnd::Retry | AttemptEnd::Suspended => {}
            }
            if self.pause().await.is_err() {
                let waiting_for = "a key or bucket that others keep changing";
                return Err(Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::NotApplied });
            }
        }
    }

    /// Goes on with another slab than the write began with. That is the slab of the pair that the write replaces; it
    /// is tried once, so that the write ends even if others change the pair again and again. Or it is the slab of a new
    /// pair, if there is no pair, or no room for the redundancy that the pair has. Or it is a replicated one, if there
    /// are too few memory nodes for the redundancy.
    async fn write_with_other_slab(
        &mut self,
        intent: &Intent<'_>,
        came: Result<WriteProgress, Error>,
        wanted: RedundancyDemand,
    ) -> Result<WriteResult, Error> {
        let Intent { opcode, key, watch, .. } = *intent;
        let mut room = Vec::new();
        let value = self.bytes_of(intent, &mut room);
        let (kept, found) = match &came {
            Ok(WriteProgress::RedundancyDiffers(Some(found))) => {
                (self.store.slab_of_word(found.word, &key, value.len()), Some(found.uncertain()))
            }
            Ok(WriteProgress::RedundancyDiffers(None)) => {
                match self.store.slab_of_new(wanted, &key, value.len())? {
                    slab if slab == intent.slab => (None, None),
                    slab => (Some(slab), None),
                }
            }
            // There is no room any more for the redundancy that the pair has.
            Err(_) if matches!(intent.keeps, KeepRedundancy::AsHinted(_)) => {
                (self.store.slab_of_new(wanted, &key, value.len()).ok(), None)
            }
            Err(Error::Redundancy(error)) if wanted.falls_back(error) => {
                self.store.host.report_fallback();
                (SlabKind::of(Redundancy::Replicated, key.len(), value.len()), None)
            }
            _ => (None, None),
        };
        if let (None, Err(error)) = (kept, &came) {
            return Err(error.clone());
        }
        let slab = kept.unwrap_or(intent.slab);
        self.pin.pause();
        let value = WriteValue::Bytes(value);
        let intent = Intent { opcode, key, value, slab, keeps: KeepRedundancy::No, watch };
        match self.write(&intent, found, None).await? {
            WriteProgress::Done(written) => Ok(WriteResult { hint_held: false, ..written }),
            WriteProgress::RedundancyDiffers(_) => unreachable!("it does not keep what it finds"),
        }
    }

    /// Returns the value of a write; copied to `room` if it stands in its object.
    fn bytes_of<'v>(&self, intent: &Intent<'v>, room: &'v mut Vec<u8>) -> &'v [u8] {
        match intent.value {
            WriteValue::Bytes(bytes) => bytes,
            WriteValue::Staged(object, bytes) => {
                let value = value_in(intent.key.len(), bytes);
                room.extend_from_slice(&self.batch.bytes(object)[value]);
                room
            }
        }
    }

    /// Returns whether the pair is to keep the redundancy that its word shows, and that is not the attempt's.
    pub(super) fn keeps_other_redundancy(&self, attempt: &Attempt<'_>, found: Hint) -> bool {
        let Intent { keeps, key, value, slab, .. } = attempt.intent;
        let kept = match keeps {
            KeepRedundancy::No => None,
            _ => self.store.slab_of_word(found.word, key, value.len()),
        };
        kept.is_some_and(|kept| kept.redundancy != slab.redundancy)
    }

    /// Returns whether a new pair is to have another redundancy than the attempt, which has that of a pair that does
    /// not exist.
    pub(super) fn new_pair_differs(&self, attempt: &Attempt<'_>) -> bool {
        let Intent { keeps, slab, .. } = attempt.intent;
        matches!(keeps, KeepRedundancy::AsHinted(redundancy) if *redundancy != slab.redundancy)
    }

    /// Notes that a write has ended with this result: if the outcome is known, its posted CASes are over.
    #[inline]
    pub(super) fn clear_posted_if_outcome_known<T>(&mut self, result: &Result<T, Error>) {
        let is_known = |error: &Error| error.outcome() == FailedWriteOutcome::NotApplied;
        if result.as_ref().err().is_none_or(is_known) {
            self.pin.traces.clear_posted();
        }
        self.forget_lost();
    }

    /// Makes one attempt, and resolves it if it is suspended.
    async fn attempt_or_resolve(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptEnd, Error> {
        let ended = self.attempt(attempt).await;
        self.or_resolve(attempt, ended).await
    }

    /// Returns the end of an attempt; resolves it first if it is suspended.
    pub(super) async fn or_resolve(
        &mut self,
        attempt: &Attempt<'_>,
        ended: Result<AttemptEnd, Error>,
    ) -> Result<AttemptEnd, Error> {
        let error = match ended {
            Ok(AttemptEnd::Suspended) => {
                let waiting_for = "the winner of a write conflict to finish";
                Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::Unknown }
            }
            Err(error @ Error::Unreachable { error: VerbError::Unreachable, .. }) => error,
            other => return other,
        };
        Box::pin(self.resolve(attempt, error)).await
    }

    pub(super) async fn attempt(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptEnd, Error> {
        loop {
            let found = match self.advance(attempt)? {
                AttemptAction::Phase => {
                    self.phase().await;
                    continue;
                }
                AttemptAction::Ended { committed } => return Ok(self.ended(attempt, committed)),
                AttemptAction::SlowPath(SlowPathReason::Decide) => {
                    let contended = self.decide(attempt, None).await?;
                    return self.end_round(attempt, contended).await;
                }
                AttemptAction::SlowPath(SlowPathReason::Follow(shown)) => {
                    self.follow(shown, attempt.intent.key).await?
                }
                AttemptAction::SlowPath(SlowPathReason::Find(words)) => {
                    Box::pin(self.find_in(*words, attempt.intent.key)).await?
                }
                AttemptAction::SlowPath(SlowPathReason::Install(words)) => {
                    match Box::pin(self.installed(attempt, &words)).await? {
                        Some(ended) => return Ok(ended),
                        None => continue,
                    }
                }
            };
            let target = match found {
                Ok(target) => target,
                Err(StaleWord) => return Ok(AttemptEnd::Retry),
            };
            match (target, attempt.intent.opcode) {
                (KeyLocation::Slot(_), Opcode::Insert) => return Err(Error::AlreadyExists),
                (KeyLocation::Absent(_), Opcode::Update | Opcode::Delete) => {
                    return Err(Error::NotFound);
                }
                (KeyLocation::Slot(found), _) if self.keeps_other_redundancy(attempt, found) => {
                    return Ok(AttemptEnd::RedundancyDiffers(Some(found)));
                }
                (KeyLocation::Absent(_), _) if self.new_pair_differs(attempt) => {
                    return Ok(AttemptEnd::RedundancyDiffers(None));
                }
                (KeyLocation::Slot(found), _) => {
                    if self.compete(attempt, found) {
                        self.phase().await;
                    }
                }
                (KeyLocation::Absent(words), _) => {
                    // On the heap, like everything that an update with a right hint does not need: the futures of
                    // operations are moved, and stay small.
                    if let Some(ended) = Box::pin(self.insert_into_free(attempt, &words)).await? {
                        return Ok(ended);
                    }
                }
            }
        }
    }

    /// Follows the word that the slot of a wrong hint has shown.
    async fn follow(
        &mut self,
        shown: Hint,
        key: Key<'_>,
    ) -> Result<Result<KeyLocation, StaleWord>, Error> {
        if may_hold(shown.word, key) {
            let shown_on = self.primary(shown.slot).node;
            let only = [(shown.slot, shown.word)].into_iter();
            if let Ok(Some(found)) = Box::pin(self.find_key(only, shown_on, key)).await? {
                return Ok(Ok(KeyLocation::Slot(found)));
            }
        }
        Box::pin(self.find_anew(key)).await
    }

    async fn find_anew(&mut self, key: Key<'_>) -> Result<Result<KeyLocation, StaleWord>, Error> {
        let buckets = Buckets::of(key, &self.view);
        let words = self.fetch_words(&buckets).await.map_err(|f| self.failed(f))?;
        self.find_in(words, key).await
    }

    async fn find_in(
        &mut self,
        words: BucketWords,
        key: Key<'_>,
    ) -> Result<Result<KeyLocation, StaleWord>, Error> {
        let shown_on = self.view.subtables[words.subtable() as usize].primary().node;
        Ok(match self.find_key(live(&words), shown_on, key).await? {
            Ok(Some(found)) => Ok(KeyLocation::Slot(found)),
            Ok(None) => Ok(KeyLocation::Absent(words)),
            Err(StaleWord) => Err(StaleWord),
        })
    }
}
