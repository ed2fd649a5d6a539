//! SEARCH of many keys in shared phases.
//!
//! The keys with a hint read slot and object, the others their buckets, all in one phase; what
//! that leaves open reads its objects in a second phase that is shared again. The few keys that
//! still have no answer then (a stale hint whose slot went to another key, an object that was
//! replaced under the reader) are looked up one by one.

use alloc::vec::Vec;

use super::lead::{Lead, may_hold};
use super::search::Fetched;
use super::{Hint, Op, Store};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::race::{Buckets, Key};
use crate::stats::OpKind;
use crate::verbs::{Fabric, MAX_BATCH_VERBS, Ticket, VerbError};

/// Bytes that one batch fetches at most, beside the buckets.
const MAX_BYTES: u64 = 2 << 20;

/// A key to look up, with what the cache knows of it.
#[derive(Clone, Copy, Debug)]
pub struct SearchKey<'k> {
    /// The key.
    pub key: Key<'k>,
    /// Where it was last seen.
    pub hint: Option<Hint>,
}

/// What the first phase asked for one key.
enum First {
    Hinted { hint: Hint, slot: Ticket, object: Ticket },
    Buckets { buckets: Buckets, tickets: [Ticket; 2] },
}

/// What is known of one key between the phases.
enum State {
    Answered,
    /// The objects that may be the key's. `certain`: if none is, the key does not exist.
    Candidates {
        reads: Vec<(Hint, Ticket)>,
        certain: bool,
    },
    Open,
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Looks up `keys` and calls `found` once for each, in any order, with its position, its value
    /// (`None` if it does not exist) and its place for the cache. 1 phase if all hints are right,
    /// else 2; keys whose pairs do
    /// not fit in a batch of 2 MiB are looked up one by one. At most 256 keys.
    pub async fn search_many(
        &self,
        keys: &[SearchKey<'_>],
        mut found: impl FnMut(usize, Option<&[u8]>, Option<Hint>),
    ) -> Result<(), Error> {
        keys.iter().try_for_each(|k| self.check_key(&k.key))?;
        let mut op = self.operation();
        op.batch.clear();
        let mut answered = alloc::vec![false; keys.len()];
        let mut answer = |i: usize, value: Option<&[u8]>, place: Option<Hint>| {
            answered[i] = true;
            found(i, value, place);
        };
        let open = op.search_many(keys, &mut answer).await;
        op.finish(OpKind::SearchMany);
        let open = match open {
            // One by one they wait for the view without that node.
            Err(Error::Unreachable { error: VerbError::Unreachable, .. }) => {
                (0..keys.len()).filter(|i| !answered[*i]).collect()
            }
            other => other?,
        };
        for i in open {
            let searched = self.search(keys[i].key, None).await?;
            found(i, searched.value(), searched.hint());
        }
        Ok(())
    }
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Two shared phases. Returns the positions of the keys without an answer.
    async fn search_many(
        &mut self,
        keys: &[SearchKey<'_>],
        found: &mut impl FnMut(usize, Option<&[u8]>, Option<Hint>),
    ) -> Result<Vec<usize>, Error> {
        if self.view.change.iter().any(|change| change.subtables.iter().any(|s| s.headless)) {
            return Ok((0..keys.len()).collect());
        }
        let mut firsts = Vec::with_capacity(keys.len());
        for key in keys {
            let lead = key.hint.and_then(|hint| Lead::new(&self.view, hint, key.key));
            firsts.push(match lead {
                Some(lead) if self.has_room(lead.hint.word) => {
                    let slot = lead.read_slot(&mut self.batch);
                    let object = lead.read_object(&mut self.batch);
                    First::Hinted { hint: lead.hint, slot, object }
                }
                _ => {
                    let buckets = Buckets::of(key.key, &self.view);
                    First::Buckets { buckets, tickets: self.read_buckets(&buckets) }
                }
            });
        }
        if firsts.is_empty() {
            return Ok(Vec::new());
        }
        self.phase().await;
        let mut wanted = Vec::with_capacity(keys.len());
        for (i, (key, first)) in keys.iter().zip(&firsts).enumerate() {
            wanted.push(self.after_first(i, key.key, first, found)?);
        }
        self.batch.next_phase();
        let mut states = Vec::with_capacity(keys.len());
        for wanted in wanted {
            states.push(match wanted {
                Wanted::Nothing => State::Answered,
                Wanted::Search => State::Open,
                Wanted::Objects { hints, certain } => self.read_candidates(hints, certain),
            });
        }
        if self.batch.verbs().is_empty() {
            return Ok(open_positions(&states));
        }
        self.phase().await;
        for (i, state) in states.iter_mut().enumerate() {
            if let State::Candidates { reads, certain } = state {
                *state = self.after_second(i, keys[i].key, reads, *certain, found)?;
            }
        }
        Ok(open_positions(&states))
    }

    /// Whether the batch may take the object that a word refers to along.
    fn has_room(&self, word: Slot) -> bool {
        let bytes = word.class().map_or(0, |class| class.bytes());
        self.batch.staged_bytes() as u64 + bytes <= MAX_BYTES
            && self.batch.verbs().len() + 2 <= MAX_BATCH_VERBS
    }

    /// Posts the READs of one key's candidates; leaves the key open if they do not fit, or if one
    /// of them can be nothing: looking it up alone says what is wrong.
    fn read_candidates(&mut self, hints: Vec<Hint>, certain: bool) -> State {
        let mut reads = Vec::with_capacity(hints.len());
        for hint in hints {
            if !self.has_room(hint.word) {
                return State::Open;
            }
            match self.read_whole(hint.slot, hint.word) {
                Some(ticket) => reads.push((hint, ticket)),
                None => return State::Open,
            }
        }
        State::Candidates { reads, certain }
    }

    fn after_first(
        &self,
        i: usize,
        key: Key<'_>,
        first: &First,
        found: &mut impl FnMut(usize, Option<&[u8]>, Option<Hint>),
    ) -> Result<Wanted, Error> {
        match first {
            First::Hinted { hint, slot, object } => {
                let word = self.slot_word(*slot).map_err(|f| self.failed(f))?;
                if word != hint.word {
                    let hints = Vec::from([Hint { slot: hint.slot, word }]);
                    let follow = may_hold(word, key);
                    return Ok(match follow {
                        true => Wanted::Objects { hints, certain: false },
                        false => Wanted::Search,
                    });
                }
                Ok(match self.fetched(*object, word, key)? {
                    Fetched::Value(span) => {
                        found(i, Some(self.batch.bytes(span)), Some(*hint));
                        Wanted::Nothing
                    }
                    Fetched::OtherKey | Fetched::Stale => Wanted::Search,
                })
            }
            First::Buckets { buckets, tickets } => {
                let words = buckets.words(&self.batch, *tickets).map_err(|f| self.failed(f))?;
                let live = words.matching().filter(|(_, w)| !w.is_tentative());
                let hints: Vec<Hint> = live.map(|(slot, word)| Hint { slot, word }).collect();
                if hints.is_empty() {
                    found(i, None, None);
                    return Ok(Wanted::Nothing);
                }
                Ok(Wanted::Objects { hints, certain: true })
            }
        }
    }

    fn after_second(
        &self,
        i: usize,
        key: Key<'_>,
        reads: &[(Hint, Ticket)],
        certain: bool,
        found: &mut impl FnMut(usize, Option<&[u8]>, Option<Hint>),
    ) -> Result<State, Error> {
        let mut certain = certain;
        for (hint, ticket) in reads {
            match self.fetched(*ticket, hint.word, key)? {
                Fetched::Value(span) => {
                    found(i, Some(self.batch.bytes(span)), Some(*hint));
                    return Ok(State::Answered);
                }
                Fetched::OtherKey => {}
                Fetched::Stale => certain = false,
            }
        }
        if certain {
            found(i, None, None);
            return Ok(State::Answered);
        }
        Ok(State::Open)
    }
}

/// What the second phase must do for one key.
enum Wanted {
    Nothing,
    Objects { hints: Vec<Hint>, certain: bool },
    Search,
}

fn open_positions(states: &[State]) -> Vec<usize> {
    let open = states.iter().enumerate().filter(|(_, s)| matches!(s, State::Open));
    open.map(|(i, _)| i).collect()
}
