//! The Move: a pair gets another redundancy and keeps its value (E §4.2, there a *transition*).
//!
//! ```text
//! 1  READ the slot of the hint and the value; or both buckets, and then the value      (without a hint +1)
//! 2  WRITE an object of the new redundancy, with the same value
//! 3  CAS the backups                                                                    (contend.rs)
//! 4  CAS the primary                                                                    (round.rs)
//! ```
//!
//! An EC-oriented object is moved *in place* where that can be ([`in_place`](super::in_place)).
//!
//! A Move is a write round whose new value is the old one. It goes by the word that the primary has shown since the
//! operation was last pinned, so its value is that word's, and no round of another word can take it. As with every
//! write, all places have answered step 2 before any other operation can learn of the object. So a process that goes on
//! with the Move of a dead client finishes a round, and need not know what was moved.
//!
//! A Move wins and loses by the rules of every round. But a writer that loses to a Move has not been overwritten. By
//! rule L ([`round`](super::round)) it starts again: the moved bit of the word tells it to. A Move that loses waits
//! for the end of its round like every loser: until then a view change may settle on its object. It does not try
//! again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::attempt::{Attempt, AttemptEnd, CannotBegin, Intent, WriteValue};
use super::placement::KeepRedundancy;
use crate::data::Redundancy;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{Address, Opcode, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::{IntoKey, Key};
use crate::slab::{SlabKind, USED_AGAIN_AT};
use crate::stats::OpKind;
use crate::store::memory::SET_FREE_TOGETHER;
use crate::store::{Hint, Store, StoreOp, WriteResult};
use crate::verbs::{Fabric, VerbError};

/// The result of giving a pair another redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The pair has that redundancy now.
    Moved,
    /// The pair had that redundancy already, or is out of the Move's reach.
    Unchanged,
    /// A write of the key, or another Move, has won. If there still is a pair, it has the redundancy that the winner
    /// has chosen.
    Overtaken,
}

/// The pairs that a Move may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveScope {
    /// Any pair of the key.
    Anywhere,
    /// The pair, if it is still in this object: then it has not been written since it was chosen.
    At(Address),
    /// The same, if the Move can be in place: to erasure coding it needs no memory then.
    InPlaceAt(Address),
}

impl MoveScope {
    fn covers(self, word: Slot) -> bool {
        match self {
            MoveScope::Anywhere => true,
            MoveScope::At(object) | MoveScope::InPlaceAt(object) => word.address() == object,
        }
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Gives the value of a key that must exist another redundancy. Takes 4 phases if the hint is right, else 5; with
    /// one index replica one less.
    pub async fn set_redundancy<'k>(
        &self,
        key: impl IntoKey<'k>,
        redundancy: Redundancy,
        hint: Option<Hint>,
    ) -> Result<(Transition, WriteResult), Error> {
        self.move_pair(key, redundancy, hint, MoveScope::Anywhere).await
    }

    /// Does the same as [`Store::set_redundancy`] if the pair is in reach; else the pair is `Unchanged`.
    pub async fn move_pair<'k>(
        &self,
        key: impl IntoKey<'k>,
        redundancy: Redundancy,
        hint: Option<Hint>,
        reach: MoveScope,
    ) -> Result<(Transition, WriteResult), Error> {
        let key = self.key(key);
        self.check_key(&key)?;
        let mut op = self.operation();
        let result = Box::pin(op.set_redundancy(key, redundancy, hint, reach)).await;
        op.clear_posted_if_outcome_known(&result);
        let made_room = op.made_room;
        op.finish(OpKind::Move);
        if made_room {
            self.offer();
        }
        self.set_free(SET_FREE_TOGETHER).await;
        result
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    async fn set_redundancy(
        &mut self,
        key: Key<'_>,
        redundancy: Redundancy,
        given: Option<Hint>,
        reach: MoveScope,
    ) -> Result<(Transition, WriteResult), Error> {
        let mut least = USED_AGAIN_AT;
        let mut hint = given;
        let mut hint_held = false;
        let mut goes_elsewhere = false;
        loop {
            if !removed(Mutant::MovesWhileFrozen) {
                self.await_writable(key).await?;
            } else if !self.pin.is_pinned() {
                self.view = self.pin.resume();
            }
            let Some(found) = self.find_value(key, hint).await? else { continue };
            let Some((place, value)) = found else {
                if self.is_vouched_for(key).await? { return Err(Error::NotFound) } else { continue }
            };
            hint_held |= given.is_some_and(|given| given.leads_like(&place));
            hint = None;
            let object = self.view.object_of(place.word);
            let has = object.map(|object| object.redundancy_of(place.word));
            if has == Some(redundancy) || !reach.covers(place.word) {
                if self.is_vouched_for(key).await? {
                    let written = WriteResult { place: Some(place), hint_held };
                    return Ok((Transition::Unchanged, written));
                } else {
                    continue;
                }
            }
            let slab = match self.store.slab_of(redundancy, key.len(), value.len()) {
                Ok(slab) => slab,
                // The error depends on words that were READ.
                Err(error) => {
                    if self.is_vouched_for(key).await? {
                        return Err(error);
                    } else {
                        continue;
                    }
                }
            };
            let opcode = Opcode::Move;
            let intent = Intent {
                opcode,
                key,
                value: WriteValue::Bytes(&value),
                slab,
                keeps: KeepRedundancy::No,
                watch: None,
            };
            let in_place =
                if goes_elsewhere { None } else { self.begin_in_place(&intent, place, least) };
            let begun = match in_place {
                Some(begun) => begun,
                // Another session has the block, or another operation is under way there.
                None if matches!(reach, MoveScope::InPlaceAt(_)) => {
                    let written = WriteResult { place: Some(place), hint_held };
                    return Ok((Transition::Unchanged, written));
                }
                None => self.store.begin_attempt(&intent, Some(place), least, &self.view),
            };
            let mut attempt = match begun {
                Ok(attempt) => attempt,
                Err(CannotBegin::Failed(error)) => return Err(error),
                Err(CannotBegin::NoRoom(short)) => {
                    self.await_room_to_move(short, &mut least).await?;
                    hint = Some(place.uncertain());
                    continue;
                }
            };
            self.pin.begin_object();
            let is_in_place = attempt.in_place.is_some();
            let ended = self.write_and_move(&mut attempt, place).await;
            let ended = self.or_resolve(&attempt, ended).await;
            self.end_attempt(&attempt, &ended);
            let ended = ended?;
            self.pin.traces.clear_posted();
            if let AttemptEnd::Done(place) = ended {
                let how = if place.is_some() { Transition::Moved } else { Transition::Overtaken };
                return Ok((how, WriteResult { place, hint_held }));
            }
            goes_elsewhere |= is_in_place;
            self.pause_to_move("a key that others keep changing").await?;
        }
    }

    /// Returns the pair as the primary shows it since the operation was last pinned: its place and its value. `None`
    /// if the caller is to try again.
    async fn find_value(
        &mut self,
        key: Key<'_>,
        hint: Option<Hint>,
    ) -> Result<Option<Option<(Hint, Vec<u8>)>>, Error> {
        let silent = self.store.silent.times();
        let found = match self.search_by_view(key, hint).await {
            Err(error @ Error::Unreachable { node, error: VerbError::Unreachable, .. }) => {
                self.read_elsewhere(key, node, silent, error).await?;
                return Ok(None);
            }
            found => found?,
        };
        // A word that backups show beside their primary is not known to be committed. If a newer view has come on the
        // way, the slot may be frozen by it.
        let may_write = self.may_write_now(key) || removed(Mutant::MovesWhileFrozen);
        if self.beside || !may_write {
            self.pin.pause();
            self.pause_to_move("the primary of the key, or the end of a change").await?;
            return Ok(None);
        }
        Ok(Some(found.map(|(place, span)| (place, self.batch.bytes(span).to_vec()))))
    }

    /// Writes the object, and competes for the slot.
    async fn write_and_move(
        &mut self,
        attempt: &mut Attempt<'_>,
        found: Hint,
    ) -> Result<AttemptEnd, Error> {
        let late = removed(Mutant::ParityAfterCas);
        if attempt.in_place.is_some() {
            if !self.write_in_place(attempt, found, !late).await? {
                self.check_object_written(attempt)?;
                return Ok(AttemptEnd::Retry);
            }
        } else {
            self.batch.clear();
            self.post_object(attempt)?;
            self.phase().await;
        }
        self.check_object_written(attempt)?;
        if self.compete(attempt, found) {
            self.phase().await;
        }
        let ended = self.attempt(attempt).await;
        if late {
            self.write_in_place(attempt, found, true).await?;
        }
        ended
    }

    async fn await_room_to_move(&mut self, slab: SlabKind, least: &mut u32) -> Result<(), Error> {
        self.pin.pause();
        self.made_room = true;
        let view = self.view.clone();
        match self.store.await_room(slab, false, least, &view).await {
            Err(Error::OutOfMemory) => Err(self.store.no_room_in(slab)),
            other => other,
        }
    }

    async fn pause_to_move(&mut self, waiting_for: &'static str) -> Result<(), Error> {
        let gave_up = Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::NotApplied };
        self.pause().await.map_err(|_| gave_up)
    }
}
