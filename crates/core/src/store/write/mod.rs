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
mod placement;
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

use crate::error::{Error, FailedWriteOutcome};
use crate::host::{Host, IndexGrowthAnswer};
use crate::layout::{Fill, Opcode, Value, value_in};
use crate::mutant::{Mutant, removed};
use crate::race::{BucketWords, Buckets, IntoKey, Key};
use crate::slab::{SlabKind, USED_AGAIN_AT};
use crate::store::memory::SET_FREE_TOGETHER;
use crate::store::read::{live, may_hold};
use crate::store::{Hint, KeySlot, Store, StoreOp, WriteResult};
use crate::verbs::{Fabric, VerbBatch, VerbError};
use attempt::{CannotBegin, Intent, WriteValue};
use insert::NewPair;
use placement::{NotWritten, PlacedWrite};
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
        self.check_key(&request.key)?;
        self.check_value(request.value.len())?;
        self.check_placement(request)
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
        let WriteRequest { opcode, key, value, watch, .. } = request;
        self.check_key(&key)?;
        self.check_value(value.len())?;
        let placed = match self.place(&request) {
            Ok(placed) => placed,
            // On the heap: it is rare, and the futures of operations stay small.
            Err(error) => Box::pin(self.place_by_search(&request, error)).await?,
        };
        let PlacedWrite { slab, keeps, hint } = placed;
        let mut batch = self.batch();
        let mut room = Vec::new();
        let value = match value {
            Value::Filled(bytes, fill) if slab.redundancy.is_replicated() => {
                stage_filled(&mut batch, slab, &key, bytes, fill)
            }
            // A stripe is made of the whole value, and its copies need the same value.
            value => WriteValue::Bytes(value.bytes(&mut room)),
        };
        let mut op = self.operation_with(batch);
        let intent = Intent { opcode, key, value, slab, keeps, watch };
        let result = match op.write_now(&intent, hint) {
            Ok(written) => Ok(written),
            Err(begun) => match op.write(&intent, hint, begun).await {
                Ok(written) => Ok(written),
                Err(NotWritten::Failed(error)) if !matches!(error, Error::Redundancy(_)) => {
                    Err(error)
                }
                // On the heap: it is rare, and the futures of operations stay small.
                Err(why) => Box::pin(op.write_with_other_slab(&request, &intent, why)).await,
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
}

/// Has a value written into its place in its object, which the batch keeps.
#[cold]
fn stage_filled<'v>(
    batch: &mut VerbBatch,
    slab: SlabKind,
    key: &[u8],
    value_bytes: usize,
    fill: &Fill<'_>,
) -> WriteValue<'v> {
    batch.clear();
    let object = batch.stage(slab.class.bytes() as u32);
    batch.keep();
    let value = &mut batch.bytes_mut(object)[value_in(key.len(), value_bytes)];
    value.fill(0);
    fill(value);
    WriteValue::Staged { object, value_bytes }
}

/// The place in which the key was found.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
enum KeyLocation {
    /// This slot, which held this word.
    Slot(Hint),
    /// None; with the words of the key's buckets.
    Absent(BucketWords),
    /// One of the slots has changed meanwhile.
    Unknown,
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Makes attempts until one is done; `begun` is the first one, if there is one already.
    async fn write<'i>(
        &mut self,
        intent: &'i Intent<'i>,
        mut hint: Option<Hint>,
        begun: Option<Attempt<'i>>,
    ) -> Result<WriteResult, NotWritten> {
        let mut least = USED_AGAIN_AT;
        let mut is_running = begun.is_some();
        let mut attempt = begun;
        let mut short = intent.slab;
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
                    Err(CannotBegin::Failed(error)) => return Err(error.into()),
                };
            }
            let Some(running) = &mut attempt else {
                self.await_room_to_write(intent, short, &mut least).await?;
                continue;
            };
            self.pin.begin_object();
            let ended = self.attempt_or_resolve(running).await;
            self.end_attempt(running, &ended);
            hint_held |= running.hint_held;
            (is_running, hint) = (false, None);
            let ended = match ended {
                Err(Error::IndexFull) => self.grow_index_for(intent.key).await?,
                // This answer depends on READs alone.
                Err(error @ (Error::AlreadyExists | Error::NotFound)) => {
                    let is_known = removed(Mutant::WritesAnswerUnheard);
                    if is_known || self.is_vouched_for(intent.key).await? {
                        return Err(error.into());
                    }
                    AttemptEnd::Retry
                }
                other => other?,
            };
            self.pin.traces.clear_posted();
            match ended {
                AttemptEnd::Done(place) => return Ok(WriteResult { place, hint_held }),
                AttemptEnd::Misplaced(found) => return Err(NotWritten::Misplaced(found)),
                AttemptEnd::Retry | AttemptEnd::Suspended => {}
            }
            if self.pause().await.is_err() {
                let waiting_for = "a key or bucket that others keep changing";
                let outcome = FailedWriteOutcome::NotApplied;
                return Err(Error::GaveUp { waiting_for, outcome }.into());
            }
        }
    }

    /// Waits, not pinned, until there is memory for the slab that has none, or a newer view has come.
    async fn await_room_to_write(
        &mut self,
        intent: &Intent<'_>,
        short: SlabKind,
        least: &mut u32,
    ) -> Result<(), Error> {
        // Otherwise others that this operation waits for could wait for it.
        if !removed(Mutant::WaitsWhileItActs) {
            self.pin.pause();
        }
        let to_delete = intent.opcode == Opcode::Delete;
        let view = self.view.clone();
        self.made_room = true;
        // On the heap: it is rare, and the futures of operations stay small.
        match Box::pin(self.store.await_room(short, to_delete, least, &view)).await {
            Err(Error::OutOfMemory) => Err(Box::pin(self.store.without_memory(intent)).await),
            other => other,
        }
    }

    /// Waits, not pinned, until the index is larger where the key belongs.
    async fn grow_index_for(&mut self, key: Key<'_>) -> Result<AttemptEnd, Error> {
        self.pin.pause();
        let full = Buckets::of(key, &self.view).subtable;
        // On the heap: it is rare, and the futures of operations stay small.
        match Box::pin(self.store.host.grow_index(full, &self.view.clone())).await {
            IndexGrowthAnswer::NewerView => Ok(AttemptEnd::Retry),
            IndexGrowthAnswer::Full => Err(Error::IndexFull),
            IndexGrowthAnswer::TooDeep => Err(Error::KeysHashAlike),
            IndexGrowthAnswer::GaveUp => {
                let waiting_for = "a larger index";
                Err(Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::NotApplied })
            }
        }
    }

    /// Returns the value of a write; copied to `room` if it stands in its object.
    fn bytes_of<'v>(&self, intent: &Intent<'v>, room: &'v mut Vec<u8>) -> &'v [u8] {
        match intent.value {
            WriteValue::Bytes(bytes) => bytes,
            WriteValue::Staged { object, value_bytes } => {
                let value = value_in(intent.key.len(), value_bytes);
                room.extend_from_slice(&self.batch.bytes(object)[value]);
                room
            }
        }
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
                    match Box::pin(NewPair::new(self, attempt, &words).installed()).await? {
                        Some(ended) => return Ok(ended),
                        None => continue,
                    }
                }
            };
            match (found, attempt.intent.opcode) {
                (KeyLocation::Unknown, _) => return Ok(AttemptEnd::Retry),
                (KeyLocation::Slot(_), Opcode::Insert) => return Err(Error::AlreadyExists),
                (KeyLocation::Absent(_), Opcode::Update | Opcode::Delete) => {
                    return Err(Error::NotFound);
                }
                (KeyLocation::Slot(found), _) if !self.is_well_placed(attempt, Some(found)) => {
                    return Ok(AttemptEnd::Misplaced(Some(found)));
                }
                (KeyLocation::Absent(_), _) if !self.is_well_placed(attempt, None) => {
                    return Ok(AttemptEnd::Misplaced(None));
                }
                (KeyLocation::Slot(found), _) => {
                    if self.compete(attempt, found) {
                        self.phase().await;
                    }
                }
                (KeyLocation::Absent(words), _) => {
                    // On the heap, like everything that an update with a right hint does not need: the futures of
                    // operations are moved, and stay small.
                    let new = NewPair::new(self, attempt, &words);
                    if let Some(ended) = Box::pin(new.insert()).await? {
                        return Ok(ended);
                    }
                }
            }
        }
    }

    /// Follows the word that the slot of a wrong hint has shown.
    async fn follow(&mut self, shown: Hint, key: Key<'_>) -> Result<KeyLocation, Error> {
        if may_hold(shown.word, key) {
            let shown_on = self.primary(shown.slot).node;
            let only = [(shown.slot, shown.word)].into_iter();
            if let KeySlot::Found(found) = Box::pin(self.find_key(only, shown_on, key)).await? {
                return Ok(KeyLocation::Slot(found));
            }
        }
        Box::pin(self.find_anew(key)).await
    }

    async fn find_anew(&mut self, key: Key<'_>) -> Result<KeyLocation, Error> {
        let buckets = Buckets::of(key, &self.view);
        let words = self.fetch_words(&buckets).await.map_err(|f| self.failed(f))?;
        self.find_in(words, key).await
    }

    async fn find_in(&mut self, words: BucketWords, key: Key<'_>) -> Result<KeyLocation, Error> {
        let shown_on = self.view.subtables[words.subtable() as usize].primary().node;
        Ok(match self.find_key(live(&words), shown_on, key).await? {
            KeySlot::Found(found) => KeyLocation::Slot(found),
            KeySlot::Absent => KeyLocation::Absent(words),
            KeySlot::Stale => KeyLocation::Unknown,
        })
    }
}
