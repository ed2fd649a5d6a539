//! SEARCH of many keys in shared phases.
//!
//! A *round* takes as many of the keys as one batch may ask for. In its first phase the keys with a hint read slot
//! and object, and the others read their buckets, on any number of memory nodes. If anything is left open, a second
//! phase follows slots that have changed, and reads the candidates of the buckets. A key that has no answer then goes
//! into a later round:
//!
//! * A key whose hint led to another key, or whose object was replaced under the reader, is looked up by its buckets,
//!   and after [`MAX_MISSES`] such rounds alone.
//! * A key whose candidates did not fit into the second phase is in the next round again. A single candidate is its
//!   hint there.
//! * If a memory node did not answer, or a subtable has no primary, one of the keys concerned is looked up alone,
//!   which waits until the view does without the node; the others are in the next round again.
//!
//! Every key takes effect by itself, when its primary slot is read: two keys need not be read at the same moment.
//! Every round is an operation of its own, so a long list holds up neither view changes nor the reuse of memory. The
//! results of a round are shown after its end, when nothing is pinned: the callback may take its time, and use the
//! store.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::target::may_hold;
use super::{Hint, HintTrust, Store, StoreOp};
use crate::data::{Fetch, FetchResult};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Key};
use crate::stats::{Cost, OpKind};
use crate::verbs::{Fabric, MAX_BATCH_VERBS, Span, Ticket, VerbBatch, VerbError};

/// Bytes that one batch fetches at most, unless a single key has more.
const MAX_BYTES: u64 = 2 << 20;
/// Rounds in which a key's place may turn out to be wrong before the key is looked up alone.
const MAX_MISSES: u8 = 2;
/// Bytes of a batch's memory that the READ of a slot takes, with alignment.
const SLOT_BYTES: u64 = 64;

/// A key to look up, with what the cache knows of it.
#[derive(Clone, Copy, Debug)]
pub struct SearchKey<'k> {
    /// The key.
    pub key: Key<'k>,
    /// The place where it was last seen.
    pub hint: Option<Hint>,
}

/// A key without an answer.
#[derive(Clone, Copy)]
struct PendingKey<'k> {
    /// Its position in the list.
    at: usize,
    key: Key<'k>,
    hint: Option<Hint>,
    /// Rounds in which its place was wrong.
    misses: u8,
}

/// The READs of the first phase for one key.
enum FirstPhaseReads {
    Hinted { hint: Hint, slot: Ticket, object: Fetch },
    Buckets { buckets: Buckets, tickets: [Ticket; 2] },
}

/// The state of one key after a phase.
enum KeyOutcome {
    Answered,
    /// Places that may have the key. `certain`: if none of them has it, the key does not exist.
    Candidates {
        hints: Vec<Hint>,
        certain: bool,
    },
    /// The place of the key was wrong.
    Missed,
    /// The batch had no room for the key's objects.
    NoRoom(Option<Hint>),
    /// A word that may be the key's leads to no object of the view: a lookup of the key alone finds out why.
    Broken,
    /// The key's slots have to be read from backups, in a lookup of the key alone.
    NeedsBackups,
    /// The key waits for a memory node, or for a primary.
    Waits,
}

/// The result for one key: its value, in the batch of the phase, and its place.
struct KeyAnswer {
    /// The key's position in the list.
    at: usize,
    value: Option<Span>,
    place: Option<Hint>,
}

/// The results of a round, by its phases.
#[derive(Default)]
struct PhaseAnswers {
    /// The batch of the first phase, if there was a second phase, for which the operation has another one.
    first_batch: Option<VerbBatch>,
    first: Vec<KeyAnswer>,
    second: Vec<KeyAnswer>,
}

impl PhaseAnswers {
    /// Passes the results to `found`; `last` is the operation's batch.
    fn show(&self, last: &VerbBatch, found: &mut impl FnMut(usize, Option<&[u8]>, Option<Hint>)) {
        let first = self.first_batch.as_ref().unwrap_or(last);
        let phases = [(first, &self.first), (last, &self.second)];
        for (batch, answers) in phases {
            for KeyAnswer { at, value, place } in answers {
                found(*at, value.map(|value| batch.bytes(value)), *place);
            }
        }
    }
}

/// The keys that a round has not answered.
#[derive(Default)]
struct UnansweredKeys<'k> {
    again: Vec<PendingKey<'k>>,
    alone: Vec<PendingKey<'k>>,
    waiting: Vec<PendingKey<'k>>,
}

impl<'k> UnansweredKeys<'k> {
    fn add(&mut self, open: PendingKey<'k>, went: KeyOutcome) {
        match went {
            KeyOutcome::Answered => {}
            KeyOutcome::NoRoom(hint) => self.again.push(PendingKey { hint, ..open }),
            KeyOutcome::Missed if open.misses + 1 < MAX_MISSES => {
                self.again.push(PendingKey { hint: None, misses: open.misses + 1, ..open });
            }
            KeyOutcome::Waits => self.waiting.push(open),
            KeyOutcome::Missed
            | KeyOutcome::Broken
            | KeyOutcome::NeedsBackups
            | KeyOutcome::Candidates { .. } => {
                self.alone.push(PendingKey { hint: None, ..open });
            }
        }
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Looks up `keys` and calls `found` once for each, in any order, with its position, its value (`None` if the key
    /// does not exist) and its place for the cache. `found` may use the store.
    ///
    /// Up to 512 keys, and 2 MiB of objects, share their phases, on any number of memory nodes: 1 phase if all hints
    /// are right; 2 if some are missing, or their slots have changed; 4 if the slot of a hint went to another key.
    /// Counted as one [`OpKind::SearchMany`]; keys that come to be looked up alone count as [`OpKind::Search`] in
    /// addition.
    pub async fn search_many(
        &self,
        keys: &[SearchKey<'_>],
        mut found: impl FnMut(usize, Option<&[u8]>, Option<Hint>),
    ) -> Result<(), Error> {
        keys.iter().try_for_each(|k| self.check_key(&k.key))?;
        let mut cost = Cost::default();
        let result = self.search_rounds(keys, &mut found, &mut cost).await;
        self.counters.add(OpKind::SearchMany, &cost);
        result
    }

    async fn search_rounds(
        &self,
        keys: &[SearchKey<'_>],
        found: &mut impl FnMut(usize, Option<&[u8]>, Option<Hint>),
        cost: &mut Cost,
    ) -> Result<(), Error> {
        let all = keys.iter().enumerate();
        let mut open: VecDeque<PendingKey<'_>> =
            all.map(|(at, k)| PendingKey { at, key: k.key, hint: k.hint, misses: 0 }).collect();
        while !open.is_empty() {
            let mut op = self.operation();
            let mut answers = PhaseAnswers::default();
            let left = op.search_round(&mut open, &mut answers).await;
            cost.add(&op.cost);
            let batch = core::mem::take(&mut op.batch);
            drop(op);
            if left.is_ok() {
                answers.show(&batch, found);
            }
            [Some(batch), answers.first_batch].into_iter().flatten().for_each(|b| self.recycle(b));
            let UnansweredKeys { again, alone, waiting } = left?;
            open.extend(again);
            // The first one waits; when it has its answer, the others need not wait any more.
            let (first, others) = waiting.split_at(waiting.len().min(1));
            for key in alone.iter().chain(first) {
                let searched = self.search(key.key, key.hint).await?;
                found(key.at, searched.value(), searched.hint());
            }
            open.extend(others);
        }
        Ok(())
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Executes a round for the first of the keys: one phase, or two.
    async fn search_round<'k>(
        &mut self,
        open: &mut VecDeque<PendingKey<'k>>,
        answers: &mut PhaseAnswers,
    ) -> Result<UnansweredKeys<'k>, Error> {
        let mut left = UnansweredKeys::default();
        let asked = self.ask(open, &mut left);
        if asked.is_empty() {
            return Ok(left);
        }
        // If verbs are accesses to memory, the accesses of all keys overlap in this way.
        for verb in self.batch.verbs() {
            self.store.fabric.prefetch(verb.node, verb.offset);
        }
        self.phase().await;
        // This counts for the second phase as well: the members vouch for the time since the round began.
        let keys = asked.iter().map(|(open, _)| open.key);
        if !removed(Mutant::ManyReadUnheard) && !self.are_vouched_for(keys).await? {
            left.again.extend(asked.into_iter().map(|(open, _)| open));
            return Ok(left);
        }
        let mut wanted = Vec::new();
        for (open, ask) in asked {
            match self.after_first(open, &ask, &mut answers.first)? {
                KeyOutcome::Candidates { hints, certain } => wanted.push((open, hints, certain)),
                went => left.add(open, went),
            }
        }
        if wanted.is_empty() {
            return Ok(left);
        }
        // The values that were found stay in the first batch.
        let own = core::mem::replace(&mut self.batch, self.store.batch());
        answers.first_batch = Some(own);
        self.batch.clear();
        let mut reads = Vec::with_capacity(wanted.len());
        for (open, hints, certain) in wanted {
            match self.read_candidates(&hints) {
                Ok(tickets) => reads.push((open, hints, tickets, certain)),
                Err(went) => left.add(open, went),
            }
        }
        if !self.batch.verbs().is_empty() {
            self.phase().await;
        }
        for (open, hints, tickets, certain) in reads {
            let reads = hints.into_iter().zip(tickets);
            let went = self.after_second(open, reads, certain, &mut answers.second)?;
            left.add(open, went);
        }
        Ok(left)
    }

    /// Posts the first phase for as many keys as fit, at least for one, and takes them off the list.
    fn ask<'k>(
        &mut self,
        open: &mut VecDeque<PendingKey<'k>>,
        left: &mut UnansweredKeys<'k>,
    ) -> Vec<(PendingKey<'k>, FirstPhaseReads)> {
        let most = open.len().min(MAX_BATCH_VERBS / 2);
        let mut asked = Vec::with_capacity(most);
        self.batch.clear();
        while let Some(next) = open.front().copied() {
            let target = next.hint.and_then(|hint| self.target(hint, next.key));
            let target = target.ok_or_else(|| Buckets::of(next.key, &self.view));
            let (bytes, verbs) = match &target {
                Ok(target) => {
                    let whole = target.whole_bytes().map(|bytes| (bytes, 1));
                    let (bytes, verbs) = whole.unwrap_or_else(|| self.takes(target.hint.word));
                    (SLOT_BYTES + bytes, 1 + verbs)
                }
                Err(buckets) => (2 * buckets.read_bytes(), 2),
            };
            if !self.has_room(bytes, verbs) {
                break;
            }
            open.pop_front();
            let ask = match target {
                Ok(target) => {
                    let silent = &self.store.silent;
                    let (slot, object) = target.read_pair(&self.view, silent, &mut self.batch);
                    FirstPhaseReads::Hinted { hint: target.hint, slot, object }
                }
                Err(buckets) if self.reads_backups(buckets.subtable) => {
                    left.add(next, KeyOutcome::NeedsBackups);
                    continue;
                }
                Err(buckets)
                    if self.view.is_without_primary(buckets.subtable)
                        && !removed(Mutant::ManyReadsBackups) =>
                {
                    left.add(next, KeyOutcome::Waits);
                    continue;
                }
                Err(buckets) => {
                    FirstPhaseReads::Buckets { buckets, tickets: self.read_buckets(&buckets) }
                }
            };
            asked.push((next, ask));
        }
        asked
    }

    /// Returns whether the batch has room for this many bytes and verbs more. An empty batch has room for everything.
    fn has_room(&self, bytes: u64, verbs: usize) -> bool {
        let posted = self.batch.verbs().len();
        let staged = self.batch.staged_bytes() as u64;
        posted == 0 || (staged + bytes <= MAX_BYTES && posted + verbs <= MAX_BATCH_VERBS)
    }

    /// Returns the bytes and the verbs that it takes to read the value of a word's object.
    fn takes(&self, word: Slot) -> (u64, usize) {
        let object = self.view.object_of(word);
        object.map_or((0, 1), |object| {
            let verbs = object.fetch_verbs();
            (object.bytes() * verbs as u64, verbs)
        })
    }

    /// Posts the READs of one key's candidates, if all of them fit.
    fn read_candidates(&mut self, hints: &[Hint]) -> Result<Vec<Fetch>, KeyOutcome> {
        let mut bytes = 0;
        let mut verbs = 0;
        for hint in hints {
            let takes = self.takes(hint.word);
            (bytes, verbs) = (bytes + takes.0, verbs + takes.1);
        }
        if !self.has_room(bytes, verbs) {
            let only = if let [hint] = hints { Some(*hint) } else { None };
            return Err(KeyOutcome::NoRoom(only));
        }
        let reads = hints.iter().map(|hint| {
            let shown_on = self.primary(hint.slot).node;
            self.fetch(shown_on, hint.word)
        });
        reads.collect::<Option<Vec<Fetch>>>().ok_or(KeyOutcome::Broken)
    }

    fn after_first(
        &mut self,
        open: PendingKey<'_>,
        ask: &FirstPhaseReads,
        answers: &mut Vec<KeyAnswer>,
    ) -> Result<KeyOutcome, Error> {
        match ask {
            FirstPhaseReads::Hinted { hint, slot, object } => {
                let word = match self.slot_word(*slot) {
                    Ok(word) => word,
                    Err(failure) => return self.silent(self.failed(failure)),
                };
                if word != hint.word {
                    let hints = Vec::from([Hint { word, seen: HintTrust::Unverified, ..*hint }]);
                    return Ok(if may_hold(word, open.key) {
                        KeyOutcome::Candidates { hints, certain: false }
                    } else {
                        KeyOutcome::Missed
                    });
                }
                self.after_second(open, [(*hint, *object)], false, answers)
            }
            FirstPhaseReads::Buckets { buckets, tickets } => {
                let words = match buckets.words(&self.batch, *tickets) {
                    Ok(words) => words,
                    Err(failure) => return self.silent(self.failed(failure)),
                };
                let live = words.matching().filter(|(_, w)| !w.is_tentative() && !self.is_gone(*w));
                let hints: Vec<Hint> = live
                    .map(|(slot, word)| Hint { slot, word, seen: HintTrust::Unverified })
                    .collect();
                if hints.is_empty() {
                    answers.push(KeyAnswer { at: open.at, value: None, place: None });
                    return Ok(KeyOutcome::Answered);
                }
                Ok(KeyOutcome::Candidates { hints, certain: true })
            }
        }
    }

    fn after_second(
        &mut self,
        open: PendingKey<'_>,
        reads: impl IntoIterator<Item = (Hint, Fetch)>,
        certain: bool,
        answers: &mut Vec<KeyAnswer>,
    ) -> Result<KeyOutcome, Error> {
        let mut certain = certain;
        for (hint, fetch) in reads {
            match self.fetched(fetch, hint.word, open.key) {
                Ok(FetchResult::Value(span)) => {
                    let hint = Hint { seen: self.seen(), ..hint };
                    let value = Some(span);
                    let place = Some(hint);
                    answers.push(KeyAnswer { at: open.at, value, place });
                    return Ok(KeyOutcome::Answered);
                }
                Ok(FetchResult::OtherKey) => {}
                Ok(FetchResult::Stale) => certain = false,
                Err(error) => return self.silent(error),
            }
        }
        if certain {
            answers.push(KeyAnswer { at: open.at, value: None, place: None });
            return Ok(KeyOutcome::Answered);
        }
        Ok(KeyOutcome::Missed)
    }

    /// Has the key wait for a node that did not answer; every other error ends the operation.
    fn silent(&self, error: Error) -> Result<KeyOutcome, Error> {
        match error {
            Error::Unreachable { error: VerbError::Unreachable, .. } => Ok(KeyOutcome::Waits),
            other => Err(other),
        }
    }
}
