//! The Move: a pair gets another redundancy, or only another place, and keeps its value (E §4.2, there a *transition*).
//!
//! ```text
//! 1  READ the slot of the hint and the value; or both buckets, and then the value      (without a hint +1)
//! 2  WRITE an object of the new redundancy, with the same value
//! 3  CAS the backups                                                                    (contend.rs)
//! 4  CAS the primary                                                                    (round.rs)
//! ```
//!
//! If possible, an EC-oriented object is moved *in place* ([`in_place`](super::in_place)).
//!
//! A Move is a conflict round that writes the old value again. The primary has shown the round's old word since the
//! operation was last pinned, so the value belongs to this word, and the Move's CASes cannot succeed in the round of
//! another word. As with every write, all replicas have answered step 2 before any other operation can learn of the
//! object. So a process that finishes the Move of a dead client only finishes a round, and need not know where the pair
//! was before.
//!
//! A Move wins and loses by the rules of every round, but it does not overwrite a value. So a writer that loses to a
//! Move starts again, by rule L ([`round`](super::round)); it recognises the Move by the moved bit in the word. A Move
//! that loses waits for the end of its round like every loser, because until then a view change can settle on the
//! Move's word. It does not try again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::attempt::{Attempt, AttemptEnd};
use super::error_without_memory;
use super::intent::{CannotBegin, Intent, KeepRedundancy, WriteValue};
use super::uncontended::compete;
use crate::data::Redundancy;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{Address, Opcode, Slot};
use crate::mutant::{Mutant, passes, removed};
use crate::race::{IntoKey, Key};
use crate::slab::{SlabKind, USED_AGAIN_AT};
use crate::stats::OpKind;
use crate::store::memory::{MemorySearch, due_free_bits};
use crate::store::read::{KeySearch, LocatedPair, SearchAttempt};
use crate::store::session::{is_vouched_for, may_write_now};
use crate::store::{Hint, Store, StoreOp, WriteResult};
use crate::verbs::Fabric;

/// The result of a Move, which gives a pair another redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The Move has given the pair the wanted redundancy, or another place.
    Moved,
    /// The pair had the wanted redundancy already, or is not in the Move's scope.
    Unchanged,
    /// A write of the key, or another Move, has won the round. If the pair still exists, the winner has chosen its
    /// redundancy.
    Overtaken,
}

/// The pairs that a Move is allowed to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveScope {
    /// The key's pair, wherever its object is.
    Anywhere,
    /// Only a pair whose object is still at this address. Such a pair has not been written since the caller chose it.
    At(Address),
    /// Only a pair whose object is still at this address and that can be moved in place. Then a Move to erasure coding
    /// needs no memory.
    InPlaceAt(Address),
    /// Only a pair whose object is still at this address. The pair keeps its redundancy, but leaves its block. If its
    /// slab has no room, the Move fails at once.
    OutOf(Address),
}

impl MoveScope {
    fn covers(self, word: Slot) -> bool {
        match self {
            MoveScope::Anywhere => true,
            MoveScope::At(object) | MoveScope::InPlaceAt(object) | MoveScope::OutOf(object) => {
                word.address() == object
            }
        }
    }

    /// Whether the pair leaves its block even if it has the wanted redundancy.
    fn leaves_block(self) -> bool {
        matches!(self, MoveScope::OutOf(_))
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Gives the value of a key that must exist another redundancy. Takes 4 phases if the hint is right, otherwise 5;
    /// with one index replica one phase less.
    pub async fn set_redundancy<'k>(
        &self,
        key: impl IntoKey<'k>,
        redundancy: Redundancy,
        hint: Option<Hint>,
    ) -> Result<(Transition, WriteResult), Error> {
        self.move_pair(key, redundancy, hint, MoveScope::Anywhere).await
    }

    /// Gives a pair another redundancy, like [`Store::set_redundancy`], if the pair is in `scope`. Otherwise leaves the
    /// pair `Unchanged`.
    pub async fn move_pair<'k>(
        &self,
        key: impl IntoKey<'k>,
        redundancy: Redundancy,
        hint: Option<Hint>,
        scope: MoveScope,
    ) -> Result<(Transition, WriteResult), Error> {
        let key = self.key(key);
        self.view.check_key(&key)?;
        let mut op = self.operation();
        let leaves_its_place = scope.leaves_block();
        let least = if leaves_its_place { u32::MAX } else { USED_AGAIN_AT };
        let mut moving = PairMove { op: &mut op, key, redundancy, scope, least, leaves_its_place };
        let result = Box::pin(moving.run(hint)).await;
        op.clear_posted_if_outcome_known(&result);
        let made_room = op.made_room;
        op.finish(OpKind::Move);
        if made_room {
            self.memory.offer(&self.host);
        }
        if let Some(free_bits) = due_free_bits(self) {
            free_bits.await;
        }
        result
    }
}

/// A Move that is running.
pub(super) struct PairMove<'o, 's, 'k, F: Fabric, H: Host> {
    pub op: &'o mut StoreOp<'s, F, H>,
    key: Key<'k>,
    redundancy: Redundancy,
    scope: MoveScope,
    /// A block that is not in use is taken into use if at least one in `least` of its objects is free.
    pub least: u32,
    /// Whether an attempt in place has failed, so that the next attempt writes a new object.
    leaves_its_place: bool,
}

/// The pair of a Move, as the primary has shown it since the operation was last pinned.
enum MovedPair {
    /// The key has this pair, with this value.
    At { place: Hint, value: Vec<u8> },
    /// The key does not exist.
    Absent,
    /// It is not known whether the key has a pair: the search has to be repeated.
    Unknown,
}

/// The result of one attempt to move a pair.
enum MoveProgress {
    /// The Move has ended. Contains the key's hint for the cache, if there is one.
    Done(Transition, Option<Hint>),
    /// The Move has to make another attempt, with this hint.
    Retry(Option<Hint>),
}

impl<F: Fabric, H: Host> PairMove<'_, '_, '_, F, H> {
    async fn run(&mut self, given: Option<Hint>) -> Result<(Transition, WriteResult), Error> {
        let mut hint = given;
        let mut hint_held = false;
        loop {
            if !removed(Mutant::MovesWhileFrozen) {
                self.op.await_writable(self.key).await?;
            } else if !self.op.pin.is_pinned() {
                self.op.view = self.op.pin.resume();
            }
            let (place, value) = match self.find_value(hint).await? {
                MovedPair::At { place, value } => (place, value),
                MovedPair::Absent => {
                    if is_vouched_for(self.op, self.key).await? {
                        return Err(Error::NotFound);
                    }
                    continue;
                }
                MovedPair::Unknown => continue,
            };
            hint_held |= given.is_some_and(|given| given.leads_like(&place));
            match self.move_value(place, &value).await? {
                MoveProgress::Done(how, place) => {
                    return Ok((how, WriteResult { place, hint_held }));
                }
                MoveProgress::Retry(next) => hint = next,
            }
        }
    }

    /// Makes one attempt to move the pair that this hint leads to and that has this value.
    async fn move_value(&mut self, place: Hint, value: &[u8]) -> Result<MoveProgress, Error> {
        let object = self.op.view.object_of(place.word);
        let has = object.map(|object| object.redundancy_of(place.word));
        let unchanged = MoveProgress::Done(Transition::Unchanged, Some(place));
        let is_done = has == Some(self.redundancy) && !self.scope.leaves_block();
        if is_done || !self.scope.covers(place.word) {
            return self.if_vouched(Ok(unchanged)).await;
        }
        let slab = match self.op.store.view.slab_of(self.redundancy, self.key.len(), value.len()) {
            Ok(slab) => slab,
            // The error depends on words that were READ, so the members have to vouch for them.
            Err(error) => return self.if_vouched(Err(error)).await,
        };
        let intent = Intent {
            opcode: Opcode::Move,
            key: self.key,
            value: WriteValue::Bytes(value),
            slab,
            keeps: KeepRedundancy::No,
            placed_in: self.op.view.number,
            watch: None,
        };
        let in_place =
            if self.leaves_its_place { None } else { self.begin_in_place(&intent, place) };
        let begun = match in_place {
            Some(begun) => begun,
            // The Move in place is impossible now, for example because another session has the block.
            None if matches!(self.scope, MoveScope::InPlaceAt(_)) => {
                return self.if_vouched(Ok(unchanged)).await;
            }
            None => {
                let op = &*self.op;
                Attempt::begin(op.store, &intent, Some(place), self.least, &op.view)
            }
        };
        let mut attempt = match begun {
            Ok(attempt) => attempt,
            Err(CannotBegin::Failed(error)) => return self.if_vouched(Err(error)).await,
            Err(CannotBegin::LacksLog) => unreachable!("a Move writes an object"),
            Err(CannotBegin::NoRoom(_)) if self.scope.leaves_block() => {
                return Err(Error::OutOfMemory);
            }
            Err(CannotBegin::NoRoom(short)) => {
                self.await_room(&intent, short).await?;
                return Ok(MoveProgress::Retry(Some(place.uncertain())));
            }
        };
        self.op.pin.begin_object();
        let ended = self.write_and_compete(&mut attempt, place).await;
        let ended = self.op.or_resolve(&attempt, ended).await;
        attempt.end(self.op, &ended);
        let ended = ended?;
        self.op.pin.traces.clear_posted();
        if let AttemptEnd::Done(place) = ended {
            let how = if place.is_some() { Transition::Moved } else { Transition::Overtaken };
            return Ok(MoveProgress::Done(how, place));
        }
        self.leaves_its_place |= attempt.in_place.is_some();
        self.pause("a key that others keep changing").await?;
        Ok(MoveProgress::Retry(None))
    }

    /// Returns a result that depends on READs alone, if the members vouch for these READs; otherwise lets the Move try
    /// again.
    async fn if_vouched(
        &mut self,
        result: Result<MoveProgress, Error>,
    ) -> Result<MoveProgress, Error> {
        if is_vouched_for(self.op, self.key).await? {
            result
        } else {
            Ok(MoveProgress::Retry(None))
        }
    }

    /// Finds the pair that is to be moved, and its value.
    async fn find_value(&mut self, hint: Option<Hint>) -> Result<MovedPair, Error> {
        let mut search = KeySearch::new(self.op, self.key);
        let SearchAttempt::Done(found) = search.attempt(hint).await? else {
            return Ok(MovedPair::Unknown);
        };
        let from_backups = search.has_used_backups();
        // A word that was read from backups although there is a primary is not known to be committed. If a newer view
        // has come during the search, it has possibly frozen the slot.
        let may_write = passes(Mutant::MovesWhileFrozen, may_write_now(&self.op.view, self.key));
        if from_backups || !may_write {
            self.op.pin.pause();
            self.pause("the primary of the key, or the end of a change").await?;
            return Ok(MovedPair::Unknown);
        }
        Ok(match found {
            Some(LocatedPair { place, value }) => {
                MovedPair::At { place, value: self.op.batch.bytes(value).to_vec() }
            }
            None => MovedPair::Absent,
        })
    }

    /// Writes the moved pair's object, and competes for the slot.
    async fn write_and_compete(
        &mut self,
        attempt: &mut Attempt<'_>,
        found: Hint,
    ) -> Result<AttemptEnd, Error> {
        let late = removed(Mutant::ParityAfterCas);
        if attempt.in_place.is_some() {
            if !self.write_in_place(attempt, found, !late).await? {
                attempt.check_object_written(self.op)?;
                return Ok(AttemptEnd::Retry);
            }
        } else {
            self.op.batch.clear();
            attempt.post_object(self.op)?;
            self.op.phase().await;
        }
        attempt.check_object_written(self.op)?;
        if compete(self.op, attempt, found) {
            self.op.phase().await;
        }
        let ended = self.op.attempt(attempt).await;
        if late {
            self.write_in_place(attempt, found, true).await?;
        }
        ended
    }

    async fn await_room(&mut self, intent: &Intent<'_>, slab: SlabKind) -> Result<(), Error> {
        self.op.pin.pause();
        self.op.made_room = true;
        let view = self.op.view.clone();
        let store = self.op.store;
        let least = &mut self.least;
        let mut search = MemorySearch { store, kind: slab, least, view: &view };
        match search.run().await {
            Err(Error::OutOfMemory) => Err(Box::pin(error_without_memory(store, intent)).await),
            other => other,
        }
    }

    async fn pause(&mut self, waiting_for: &'static str) -> Result<(), Error> {
        let outcome = FailedWriteOutcome::NotApplied;
        self.op.pause().await.map_err(|_| Error::GaveUp { waiting_for, outcome })
    }
}
