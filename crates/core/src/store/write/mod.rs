//! The writes: INSERT, UPDATE, UPSERT, DELETE and Move.
//!
//! ```text
//! 1  READ the slot of the hint, or both buckets; WRITE the object to all its replicas
//! 2  READ the objects of matching slots, to compare keys     (find.rs; not with a hint that is right)
//! 3  the key's slot is known: a write round on it            (contend.rs, round.rs)
//!    the key is new: INSERT into a free slot                 (insert.rs)
//! ```
//!
//! With a certain hint, UPDATE, UPSERT and DELETE begin with a speculative write (`speculation.rs`).
//!
//! Order of calls: [`Store::write`] chooses the slab (`placement`), begins an operation, and lets it make one
//! [`Attempt`] after the other. An attempt follows the straight path as long as there is no conflict
//! ([`uncontended`](self::uncontended)). On an immediate fabric, [`write_now`](self::write_now) executes its phases on
//! the spot; otherwise this module awaits them. This module also does everything that is not on the straight path: it
//! searches for the key, handles conflicts, awaits memory, and begins the next attempt.
//!
//! | file | holds |
//! |---|---|
//! | `request` | `WriteRequest`: what the caller decides |
//! | `placement` | the choice of the slab |
//! | `attempt` | `Intent`, `Attempt` and its `AttemptStep`, `WriteRound` |
//! | `uncontended`, `write_now` | the straight path; its execution on the spot |
//! | `speculation` | speculative writes |
//! | `contend`, `round` | the choice of a round's winner; the end of a round for its winner and its losers |
//! | `insert`, `full_buckets` | `NewPair`: INSERT into a free slot; the error if no slot is free |
//! | `moving`, `in_place` | `PairMove`: Moves; Moves in place |
//! | `copies` | the copies of EC-oriented objects |
//! | `demote` | the search for pairs to demote |

mod attempt;
mod contend;
mod copies;
mod demote;
mod find;
mod full_buckets;
mod in_place;
mod insert;
mod intent;
mod moving;
mod placement;
mod request;
mod round;
mod speculation;
mod uncontended;
mod write_now;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::Poll;

pub use demote::ObjectDemotion;
pub use intent::Watch;
pub use moving::{MoveScope, Transition};
pub use request::WriteRequest;

pub(super) use attempt::{Attempt, AttemptEnd, AttemptStep, WriteRound};
pub(super) use copies::{find_copies, with_copies};

use crate::error::{Error, FailedWriteOutcome};
use crate::host::{Host, IndexGrowthAnswer};
use crate::layout::{Fill, Opcode, Value, value_in};
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, IntoKey, Key};
use crate::slab::{SlabKind, USED_AGAIN_AT};
use crate::store::memory::{MemoryLookAhead, MemorySearch, due_free_bits};
use crate::store::session::{SuspendedOperation, is_vouched_for};
use crate::store::{Hint, Store, StoreOp, WriteResult};
use crate::verbs::{Fabric, VerbBatch, VerbError};
use contend::decide;
use find::{KeyLocation, WriterSearch};
use insert::NewPair;
use intent::{CannotBegin, Intent, WriteValue};
use placement::{NotWritten, PlacedWrite, WritePlacement};
use round::{end_round, ended};
use uncontended::{AttemptAction, SlowPathReason, advance, compete};

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

    /// Returns the error that a write would have whatever the store contains, for example because its value is too
    /// large.
    pub fn check_write(&self, request: &WriteRequest<'_, Key<'_>>) -> Result<(), Error> {
        self.view.check_key(&request.key)?;
        self.view.check_value(request.value.len())?;
        WritePlacement { store: self, request }.check()
    }

    /// Returns whether the redundancy that a write gives its pair can depend on the length of its value, because it
    /// keeps the redundancy of an existing pair if the value can have it. The result is for the newest view that the
    /// host knows.
    pub fn redundancy_depends_on_length<K>(&self, request: &WriteRequest<'_, K>) -> bool {
        self.follow_view();
        let placement = request.placement();
        let of_new = placement.of_new_pair().redundancy;
        placement.keeps_existing() && !(self.view.has_one_redundancy() && of_new.is_replicated())
    }

    /// Executes the requested write.
    pub fn write<'k>(
        &self,
        request: WriteRequest<'_, impl IntoKey<'k>>,
    ) -> impl Future<Output = Result<WriteResult, Error>> {
        // This is not an `async fn`, because each nested future would copy the request once more.
        self.execute(request.hashed(|key| self.key(key)))
    }

    async fn execute(&self, request: WriteRequest<'_, Key<'_>>) -> Result<WriteResult, Error> {
        let kind = request.kind();
        let WriteRequest { opcode, key, value, watch, .. } = request;
        self.view.check_key(&key)?;
        self.view.check_value(value.len())?;
        let placement = WritePlacement { store: self, request: &request };
        let mut hint = request.hint;
        let placed = match placement.place() {
            Ok(placed) => placed,
            Err(error) => {
                // Boxed, because this case is rare and futures of operations should stay small.
                let anew = Box::pin(placement.place_by_search(error, None)).await?;
                hint = anew.hint;
                anew.placed
            }
        };
        let PlacedWrite { slab, keeps, view } = placed;
        let mut batch = self.batches.take();
        let mut room = Vec::new();
        let value = match value {
            Value::Filled(bytes, fill) if slab.redundancy.is_replicated() => {
                stage_filled(&mut batch, slab, &key, bytes, fill)
            }
            // A stripe is computed from the whole value, and its copies contain the value too, so the value is needed
            // as bytes.
            value => WriteValue::Bytes(value.bytes(&mut room)),
        };
        let mut op = self.operation_with(batch);
        let intent = Intent { opcode, key, value, slab, keeps, placed_in: view, watch };
        let is_immediate = self.fabric.is_immediate();
        let free_bits = if is_immediate { None } else { due_free_bits(self) };
        let result = match op.write_now(&intent, hint) {
            Ok(written) => Ok(written),
            Err(begun) => {
                let written = {
                    let writing = pin!(op.write(&intent, hint, begun));
                    beside(writing, free_bits).await
                };
                match written {
                    Ok(written) => Ok(written),
                    Err(NotWritten::Failed(error)) if !matches!(error, Error::Redundancy(_)) => {
                        Err(error)
                    }
                    // Boxed, because this case is rare and futures of operations should stay small.
                    Err(why) => Box::pin(op.write_with_other_slab(&request, &intent, why)).await,
                }
            }
        };
        op.clear_posted_if_outcome_known(&result);
        let made_room = op.made_room;
        op.finish(kind);
        if is_immediate && let Some(free_bits) = due_free_bits(self) {
            free_bits.await;
        }
        let lack = self.memory.take_shortage(slab);
        if let Some(lack) = lack {
            // Boxed, because this case is rare and futures of operations should stay small.
            Box::pin(MemoryLookAhead { store: self, kind: slab }.run(lack)).await;
        }
        // Blocks are offered last, because the search in advance takes blocks into use.
        if made_room || lack.is_some() {
            self.memory.offer(&self.host);
        }
        result
    }
}

/// Awaits `main` and `other` at the same time, until both have ended.
async fn beside<T>(
    mut main: Pin<&mut impl Future<Output = T>>,
    mut other: Option<Pin<Box<impl Future<Output = ()>>>>,
) -> T {
    let mut result = None;
    poll_fn(move |context| {
        if result.is_none()
            && let Poll::Ready(ready) = main.as_mut().poll(context)
        {
            result = Some(ready);
        }
        if let Some(running) = &mut other
            && running.as_mut().poll(context).is_ready()
        {
            other = None;
        }
        match result.take() {
            Some(ready) if other.is_none() => Poll::Ready(ready),
            waits => {
                result = waits;
                Poll::Pending
            }
        }
    })
    .await
}

/// Returns the error of a write for which there is no memory: [`Error::AlreadyExists`] or [`Error::NotFound`] if the
/// write would have had this result with enough memory, too.
pub(in crate::store) async fn error_without_memory<F: Fabric, H: Host>(
    store: &Store<F, H>,
    intent: &Intent<'_>,
) -> Error {
    let found = store.search(intent.key, None).await;
    match (intent.opcode, found.map(|found| found.value().is_some())) {
        (Opcode::Insert, Ok(true)) => Error::AlreadyExists,
        (Opcode::Update | Opcode::Move, Ok(false)) => Error::NotFound,
        _ => store.view.no_room_in(intent.slab),
    }
}

/// Stages a write's object in the batch, which keeps it, and lets `fill` write the value into its place there.
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

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Makes attempts until the write is done; `begun` is the first attempt, if it has begun already.
    async fn write<'i>(
        &mut self,
        intent: &'i Intent<'i>,
        mut hint: Option<Hint>,
        begun: Option<Attempt<'i>>,
    ) -> Result<WriteResult, NotWritten> {
        let mut least = USED_AGAIN_AT;
        let mut is_running = begun.is_some();
        let mut attempt = begun;
        let mut short = None;
        let mut hint_held = false;
        loop {
            if !is_running {
                self.await_writable(intent.key).await?;
                let used = attempt.map(|attempt| attempt.means);
                let begun = match used.filter(|_| removed(Mutant::IdentityUsedAgain)) {
                    None => Attempt::begin(self.store, intent, hint, least, &self.view),
                    Some(means) => Ok(Attempt::new(intent, hint, means)),
                };
                attempt = match begun {
                    Ok(begun) => Some(begun),
                    Err(CannotBegin::NoRoom(slab)) => {
                        short = Some(slab);
                        None
                    }
                    Err(CannotBegin::LacksLog) => None,
                    Err(CannotBegin::Failed(error)) => return Err(error.into()),
                };
            }
            let Some(running) = &mut attempt else {
                match short {
                    Some(slab) => self.await_room_to_write(intent, slab, &mut least).await?,
                    // Boxed, because this case is rare and futures of operations should stay small.
                    None => Box::pin(self.await_delete_log(intent.key)).await?,
                }
                continue;
            };
            self.pin.begin_object();
            let ended = self.attempt_or_resolve(running).await;
            running.end(self, &ended);
            hint_held |= running.hint_held;
            (is_running, hint) = (false, None);
            let ended = match ended {
                Err(Error::IndexFull) => self.grow_index_for(intent.key).await?,
                // These results depend on READs alone, so the session has to have a valid lease, or the members to
                // vouch.
                Err(error @ (Error::AlreadyExists | Error::NotFound)) => {
                    let is_known = removed(Mutant::WritesAnswerUnheard);
                    if is_known || is_vouched_for(self, intent.key).await? {
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

    /// Waits until the slab `short` has memory, or a newer view has come. The operation is not pinned during the wait.
    async fn await_room_to_write(
        &mut self,
        intent: &Intent<'_>,
        short: SlabKind,
        least: &mut u32,
    ) -> Result<(), Error> {
        // If the operation stayed pinned, it could wait for other operations' memory while they wait for its end.
        if !removed(Mutant::WaitsWhileItActs) {
            self.pin.pause();
        }
        let view = self.view.clone();
        self.made_room = true;
        // Boxed, because this case is rare and futures of operations should stay small.
        let store = self.store;
        let mut search = MemorySearch { store, kind: short, least, view: &view };
        match Box::pin(search.run()).await {
            Err(Error::OutOfMemory) => Err(Box::pin(error_without_memory(store, intent)).await),
            other => other,
        }
    }

    /// Waits, unpinned, for a newer view in which the index is possibly larger where the key belongs.
    async fn grow_index_for(&mut self, key: Key<'_>) -> Result<AttemptEnd, Error> {
        self.pin.pause();
        let full = Buckets::of(key, &self.view).subtable;
        // Boxed, because this case is rare and futures of operations should stay small.
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

    /// Returns the value of a write. A value that is staged in its object is copied to `room`.
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

    /// Notes that a write has ended with this result. If the outcome is known, none of its CASes counts as posted any
    /// more.
    #[inline]
    pub(super) fn clear_posted_if_outcome_known<T>(&mut self, result: &Result<T, Error>) {
        let is_known = |error: &Error| error.outcome() == FailedWriteOutcome::NotApplied;
        if result.as_ref().err().is_none_or(is_known) {
            self.pin.traces.clear_posted();
        }
        self.pin.forget_lost();
    }

    /// Makes one attempt of a write. If the attempt is suspended, finds out its result in a newer view.
    async fn attempt_or_resolve(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptEnd, Error> {
        let ended = self.attempt(attempt).await;
        self.or_resolve(attempt, ended).await
    }

    /// Returns the end of an attempt. If the attempt is suspended, first finds out its result in a newer view.
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
        let mut suspended = SuspendedOperation::of_write(self, attempt.step(), error);
        Box::pin(suspended.resolve(attempt.intent.opcode)).await
    }

    pub(super) async fn attempt(&mut self, attempt: &mut Attempt<'_>) -> Result<AttemptEnd, Error> {
        loop {
            let found = match advance(self, attempt)? {
                AttemptAction::Phase => {
                    self.phase().await;
                    continue;
                }
                AttemptAction::Ended { committed } => return Ok(ended(self, attempt, committed)),
                AttemptAction::SlowPath(SlowPathReason::Decide) => {
                    let contended = decide(self, attempt, None).await?;
                    return end_round(self, attempt, contended).await;
                }
                AttemptAction::SlowPath(SlowPathReason::Follow(shown)) => {
                    WriterSearch::new(self, attempt.intent.key).follow(shown).await?
                }
                AttemptAction::SlowPath(SlowPathReason::Find(words)) => {
                    let mut search = WriterSearch::new(self, attempt.intent.key);
                    Box::pin(search.find_in(*words)).await?
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
                (KeyLocation::Slot(found), _) if !attempt.is_well_placed(self, Some(found)) => {
                    return Ok(AttemptEnd::Misplaced(Some(found)));
                }
                (KeyLocation::Absent(_), _) if !attempt.is_well_placed(self, None) => {
                    return Ok(AttemptEnd::Misplaced(None));
                }
                (KeyLocation::Slot(found), _) => {
                    if compete(self, attempt, found) {
                        self.phase().await;
                    }
                }
                (KeyLocation::Absent(words), _) => {
                    // Boxed, like everything that an UPDATE with a right hint does not need, because the futures of
                    // operations are moved and should stay small.
                    let new = NewPair::new(self, attempt, &words);
                    if let Some(ended) = Box::pin(new.insert()).await? {
                        return Ok(ended);
                    }
                }
            }
        }
    }
}
