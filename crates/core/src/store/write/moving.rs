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
use crate::mutant::{Mutant, passes, removed};
use crate::race::{IntoKey, Key};
use crate::slab::{SlabKind, USED_AGAIN_AT};
use crate::stats::OpKind;
use crate::store::memory::SET_FREE_TOGETHER;
use crate::store::read::{KeySearch, LocatedPair, SearchAttempt};
use crate::store::{Hint, Store, StoreOp, WriteResult};
use crate::verbs::Fabric;

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
        scope: MoveScope,
    ) -> Result<(Transition, WriteResult), Error> {
        let key = self.key(key);
        self.check_key(&key)?;
        let mut op = self.operation();
        let least = USED_AGAIN_AT;
        let leaves_its_place = false;
        let mut moving = PairMove { op: &mut op, key, redundancy, scope, least, leaves_its_place };
        let result = Box::pin(moving.run(hint)).await;
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

/// A Move under way.
pub(super) struct PairMove<'o, 's, 'k, F: Fabric, H: Host> {
    pub op: &'o mut StoreOp<'s, F, H>,
    key: Key<'k>,
    redundancy: Redundancy,
    scope: MoveScope,
    /// A block that is not in use already is taken if one in so many of its objects is free.
    pub least: u32,
    /// Whether an attempt in place has failed: the next one is out of place.
    leaves_its_place: bool,
}

/// The pair of a Move, as the primary has shown it since the operation was last pinned.
enum MovedPair {
    /// The pair, with its value.
    At { place: Hint, value: Vec<u8> },
    /// There is no pair.
    Absent,
    /// It is not known: try again.
    Unknown,
}

/// The progress of a Move.
enum MoveProgress {
    /// The Move has ended; with the key's place.
    Done(Transition, Option<Hint>),
    /// Try again, with this hint.
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
                    if self.op.is_vouched_for(self.key).await? {
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

    /// Makes one attempt to move the pair at this place, which has this value.
    async fn move_value(&mut self, place: Hint, value: &[u8]) -> Result<MoveProgress, Error> {
        let object = self.op.view.object_of(place.word);
        let has = object.map(|object| object.redundancy_of(place.word));
        let unchanged = MoveProgress::Done(Transition::Unchanged, Some(place));
        if has == Some(self.redundancy) || !self.scope.covers(place.word) {
            return self.if_vouched(Ok(unchanged)).await;
        }
        let slab = match self.op.store.slab_of(self.redundancy, self.key.len(), value.len()) {
            Ok(slab) => slab,
            // The error depends on words that were READ.
            Err(error) => return self.if_vouched(Err(error)).await,
        };
        let intent = Intent {
            opcode: Opcode::Move,
            key: self.key,
            value: WriteValue::Bytes(value),
            slab,
            keeps: KeepRedundancy::No,
            watch: None,
        };
        let in_place =
            if self.leaves_its_place { None } else { self.begin_in_place(&intent, place) };
        let begun = match in_place {
            Some(begun) => begun,
            // Another session has the block, or another operation is under way there.
            None if matches!(self.scope, MoveScope::InPlaceAt(_)) => return Ok(unchanged),
            None => self.op.store.begin_attempt(&intent, Some(place), self.least, &self.op.view),
        };
        let mut attempt = match begun {
            Ok(attempt) => attempt,
            Err(CannotBegin::Failed(error)) => return Err(error),
            Err(CannotBegin::NoRoom(short)) => {
                self.await_room(short).await?;
                return Ok(MoveProgress::Retry(Some(place.uncertain())));
            }
        };
        self.op.pin.begin_object();
        let ended = self.write_and_compete(&mut attempt, place).await;
        let ended = self.op.or_resolve(&attempt, ended).await;
        self.op.end_attempt(&attempt, &ended);
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

    /// Returns a result that depends on READs alone, if the members vouch for them.
    async fn if_vouched(
        &mut self,
        result: Result<MoveProgress, Error>,
    ) -> Result<MoveProgress, Error> {
        if self.op.is_vouched_for(self.key).await? { result } else { Ok(MoveProgress::Retry(None)) }
    }

    /// Finds the pair and its value.
    async fn find_value(&mut self, hint: Option<Hint>) -> Result<MovedPair, Error> {
        let mut search = KeySearch::new(self.op, self.key);
        let SearchAttempt::Done(found) = search.attempt(hint).await? else {
            return Ok(MovedPair::Unknown);
        };
        let from_backups = search.has_used_backups();
        // A word that backups show beside their primary is not known to be committed. If a newer view has come on the
        // way, the slot may be frozen by it.
        let may_write = passes(Mutant::MovesWhileFrozen, self.op.may_write_now(self.key));
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

    /// Writes the object, and competes for the slot.
    async fn write_and_compete(
        &mut self,
        attempt: &mut Attempt<'_>,
        found: Hint,
    ) -> Result<AttemptEnd, Error> {
        let late = removed(Mutant::ParityAfterCas);
        if attempt.in_place.is_some() {
            if !self.write_in_place(attempt, found, !late).await? {
                self.op.check_object_written(attempt)?;
                return Ok(AttemptEnd::Retry);
            }
        } else {
            self.op.batch.clear();
            self.op.post_object(attempt)?;
            self.op.phase().await;
        }
        self.op.check_object_written(attempt)?;
        if self.op.compete(attempt, found) {
            self.op.phase().await;
        }
        let ended = self.op.attempt(attempt).await;
        if late {
            self.write_in_place(attempt, found, true).await?;
        }
        ended
    }

    async fn await_room(&mut self, slab: SlabKind) -> Result<(), Error> {
        self.op.pin.pause();
        self.op.made_room = true;
        let view = self.op.view.clone();
        match self.op.store.await_room(slab, false, &mut self.least, &view).await {
            Err(Error::OutOfMemory) => Err(self.op.store.no_room_in(slab)),
            other => other,
        }
    }

    async fn pause(&mut self, waiting_for: &'static str) -> Result<(), Error> {
        let outcome = FailedWriteOutcome::NotApplied;
        self.op.pause().await.map_err(|_| Error::GaveUp { waiting_for, outcome })
    }
}
