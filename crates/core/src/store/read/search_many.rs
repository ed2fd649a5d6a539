//! SEARCH of many keys in shared phases.
//!
//! A *round* looks up as many of the keys as fit into one batch. Its first phase READs slot and object of each key with
//! a hint, and the buckets of the other keys, on any number of memory nodes. If some keys have no answer yet, a second
//! phase READs the objects of words that slots have shown instead of the hint's, and those of the candidates in the
//! buckets. A key that still has no answer goes into a later round:
//!
//! * If the key's hint led to another key, or the key's object was replaced while it was read, the key is looked up by
//!   its buckets. If its place proves wrong in [`MAX_MISSES`] rounds, the key is looked up alone, by a SEARCH.
//! * If the key's candidates did not fit into the second phase, the key is in the next round again. If it had a single
//!   candidate, that is its hint there.
//! * If a memory node did not answer, or a subtable has no primary, one of the keys concerned is looked up alone, by a
//!   SEARCH that waits until the view no longer has the node. The other keys are in the next round again.
//!
//! Each key's lookup takes effect when the key's primary slot is read, so two keys are possibly read at different
//! moments. Every round is an operation of its own, so a long list delays neither view changes nor the reuse of memory.
//! The results of a round are shown after its end, when nothing is pinned. So the callback can take long, and can use
//! the store.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use super::lookup::{Lookup, LookupResult};
use super::target::HintTarget;
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, guard, removed};
use crate::race::{Buckets, Key};
use crate::stats::{Cost, OpKind};
use crate::store::session::are_vouched_for;
use crate::store::{Hint, HintTrust, Store, StoreOp};
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, Span, Ticket, VerbBatch, VerbError};

/// The number of bytes that one batch fetches at most, unless a single key needs more.
const MAX_BYTES: u64 = 2 << 20;
/// The number of rounds in which a key's place proves wrong before the key is looked up alone.
const MAX_MISSES: u8 = 2;
/// Bytes of a batch's memory that the READ of a slot takes, with alignment.
const SLOT_BYTES: u64 = 64;

/// A key to look up, with its hint from the index cache.
#[derive(Clone, Copy, Debug)]
pub struct SearchKey<'k> {
    /// The key.
    pub key: Key<'k>,
    /// The slot and word where the key was last seen, if the cache has them.
    pub hint: Option<Hint>,
}

/// A key of the call for which no answer is known yet.
#[derive(Clone, Copy)]
struct PendingKey<'k> {
    /// The key's position in the caller's list.
    at: usize,
    key: Key<'k>,
    hint: Option<Hint>,
    /// The number of rounds in which the key's hint or candidates were wrong.
    misses: u8,
}

/// A key, with the READs that the first phase has posted for it.
struct AskedKey<'k> {
    pending: PendingKey<'k>,
    reads: FirstPhaseReads,
}

/// The places that the first phase reads for one key.
enum FirstPhaseSource {
    Hint(HintTarget),
    Buckets(Buckets),
}

/// The room that READs take in a batch: bytes of the answers, and number of verbs.
#[derive(Clone, Copy)]
struct ReadCost {
    bytes: u64,
    verbs: usize,
}

/// The READs of the first phase for one key.
enum FirstPhaseReads {
    Hint(Lookup),
    Buckets { buckets: Buckets, tickets: [Ticket; 2] },
}

/// A key whose candidates the second phase reads.
struct FollowedKey<'k> {
    pending: PendingKey<'k>,
    candidates: KeyCandidates,
}

/// The slots whose words possibly refer to a key: the key's candidates.
struct KeyCandidates {
    places: Vec<Hint>,
    /// Whether `places` contains all candidates, so that the key does not exist if none of them leads to it.
    are_all: bool,
}

/// A key, with the READs that the second phase has posted for it.
struct CandidateReads<'k> {
    pending: PendingKey<'k>,
    lookups: Vec<Lookup>,
    /// Whether the lookups cover all candidates of the key, so that the key does not exist if no lookup finds it.
    are_all: bool,
}

/// The state of one key after a phase.
enum KeyOutcome {
    Answered,
    /// The key has candidates for the second phase.
    Follow(KeyCandidates),
    /// The hint or the candidates did not lead to the key.
    Missed,
    /// The batch had no room for the key's objects. Contains the key's hint for the next round, if any.
    NoRoom(Option<Hint>),
    /// A word that is possibly the key's leads to no object of the view: a lookup of the key alone finds out why.
    Broken,
    /// The key's slots have to be read from backups, in a lookup of the key alone.
    NeedsBackups,
    /// A memory node did not answer, or the subtable has no primary: the key has to wait.
    Waits,
}

/// The result for one key: its value, in the batch of the phase, and its place.
struct KeyAnswer {
    /// The key's position in the caller's list.
    at: usize,
    value: Option<Span>,
    place: Option<Hint>,
}

/// The results for keys of one round, separately for its two phases.
#[derive(Default)]
struct PhaseAnswers {
    /// The batch of the first phase. Set when the second phase begins, because that one uses another batch.
    first_batch: Option<VerbBatch>,
    first: Vec<KeyAnswer>,
    second: Vec<KeyAnswer>,
}

impl PhaseAnswers {
    /// Adds a key's result to those of the phase that was executed last.
    fn add(&mut self, answer: KeyAnswer) {
        let is_second = self.first_batch.is_some();
        if is_second { &mut self.second } else { &mut self.first }.push(answer);
    }

    /// Passes the results to `found`; `last` is the batch of the latest phase.
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

/// The keys that a round has not answered: for the next round, for a SEARCH alone, or waiting for a node or primary.
#[derive(Default)]
struct UnansweredKeys<'k> {
    again: Vec<PendingKey<'k>>,
    alone: Vec<PendingKey<'k>>,
    waiting: Vec<PendingKey<'k>>,
}

impl<'k> UnansweredKeys<'k> {
    fn add(&mut self, pending: PendingKey<'k>, outcome: KeyOutcome) {
        match outcome {
            KeyOutcome::Answered => {}
            KeyOutcome::NoRoom(hint) => self.again.push(PendingKey { hint, ..pending }),
            KeyOutcome::Missed if pending.misses + 1 < MAX_MISSES => {
                self.again.push(PendingKey { hint: None, misses: pending.misses + 1, ..pending });
            }
            KeyOutcome::Waits => self.waiting.push(pending),
            KeyOutcome::Missed
            | KeyOutcome::Broken
            | KeyOutcome::NeedsBackups
            | KeyOutcome::Follow(_) => self.alone.push(PendingKey { hint: None, ..pending }),
        }
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Looks up `keys` and calls `found` once for each key, in any order, with the key's position in `keys`, its value
    /// (`None` if the key does not exist), and its hint for the cache. `found` can use the store.
    ///
    /// Up to 512 keys, with 2 MiB of objects, share their phases, on any number of memory nodes: 1 phase if all hints
    /// are right; 2 if keys have no hint, or their slots show other words; 4 if the slot of a hint now belongs to
    /// another key. All phases count as one [`OpKind::SearchMany`]; each key that is looked up alone also counts as an
    /// [`OpKind::Search`].
    pub async fn search_many(
        &self,
        keys: &[SearchKey<'_>],
        mut found: impl FnMut(usize, Option<&[u8]>, Option<Hint>),
    ) -> Result<(), Error> {
        keys.iter().try_for_each(|k| self.view.check_key(&k.key))?;
        let mut cost = Cost::default();
        let result = search_rounds(self, keys, &mut found, &mut cost).await;
        self.counters.add(OpKind::SearchMany, &cost);
        result
    }
}

/// Looks up the keys in one round after the other, and adds the phases to `cost`.
async fn search_rounds<F: Fabric, H: Host>(
    store: &Store<F, H>,
    keys: &[SearchKey<'_>],
    found: &mut impl FnMut(usize, Option<&[u8]>, Option<Hint>),
    cost: &mut Cost,
) -> Result<(), Error> {
    let all = keys.iter().enumerate();
    let mut pending: VecDeque<PendingKey<'_>> =
        all.map(|(at, k)| PendingKey { at, key: k.key, hint: k.hint, misses: 0 }).collect();
    while !pending.is_empty() {
        let mut op = store.operation();
        let mut round = SearchRound {
            op: &mut op,
            answers: PhaseAnswers::default(),
            unanswered: UnansweredKeys::default(),
        };
        let result = round.run(&mut pending).await;
        let SearchRound { answers, unanswered, .. } = round;
        cost.add(&op.cost);
        let batch = mem::take(&mut op.batch);
        drop(op);
        if result.is_ok() {
            answers.show(&batch, found);
        }
        [Some(batch), answers.first_batch]
            .into_iter()
            .flatten()
            .for_each(|b| store.batches.keep(b));
        result?;
        let UnansweredKeys { again, alone, waiting } = unanswered;
        pending.extend(again);
        // Of the keys that have to wait, only the first is looked up by a SEARCH, which waits. When the SEARCH has
        // ended, the other keys need not wait any more, so they go into the next round.
        let (first, others) = waiting.split_at(waiting.len().min(1));
        for key in alone.iter().chain(first) {
            let searched = store.search(key.key, key.hint).await?;
            found(key.at, searched.value(), searched.hint());
        }
        pending.extend(others);
    }
    Ok(())
}

/// A round of a SEARCH of many keys, as a part of an operation.
struct SearchRound<'o, 's, 'k, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    answers: PhaseAnswers,
    unanswered: UnansweredKeys<'k>,
}

impl<'k, F: Fabric, H: Host> SearchRound<'_, '_, 'k, F, H> {
    /// Executes a round of one or two phases, for as many of the first pending keys as fit into its batch.
    async fn run(&mut self, pending: &mut VecDeque<PendingKey<'k>>) -> Result<(), Error> {
        let asked = self.post_first(pending);
        if asked.is_empty() {
            return Ok(());
        }
        // If verbs are memory accesses, prefetching makes the accesses of all keys overlap.
        for verb in self.op.batch.verbs() {
            self.op.store.fabric.prefetch(verb.node, verb.offset);
        }
        self.op.phase().await;
        // The members need not vouch again after the second phase: all slots are read in the first phase, and the
        // lookups take effect there.
        let keys = asked.iter().map(|asked| asked.pending.key);
        if !removed(Mutant::ManyReadUnheard) && !are_vouched_for(self.op, keys).await? {
            self.unanswered.again.extend(asked.into_iter().map(|asked| asked.pending));
            return Ok(());
        }
        let mut followed = Vec::new();
        for AskedKey { pending, reads } in asked {
            match self.after_first(pending, reads)? {
                KeyOutcome::Follow(candidates) => {
                    followed.push(FollowedKey { pending, candidates })
                }
                outcome => self.unanswered.add(pending, outcome),
            }
        }
        if followed.is_empty() {
            return Ok(());
        }
        // The values that were found stay in the first batch, so the second phase gets another one.
        let next = self.op.store.batches.take();
        self.answers.first_batch = Some(mem::replace(&mut self.op.batch, next));
        let asked = self.post_second(followed);
        if !self.op.batch.verbs().is_empty() {
            self.op.phase().await;
        }
        for CandidateReads { pending, lookups, are_all } in asked {
            let outcome = self.after_lookups(pending, lookups, are_all)?;
            self.unanswered.add(pending, outcome);
        }
        Ok(())
    }

    /// Posts the first phase for as many pending keys as fit into the batch, at least one key, and removes these keys
    /// from the list.
    fn post_first(&mut self, pending: &mut VecDeque<PendingKey<'k>>) -> Vec<AskedKey<'k>> {
        let mut asked = Vec::with_capacity(pending.len().min(MAX_BATCH_VERBS / 2));
        self.op.batch.clear();
        while let Some(next) = pending.front().copied() {
            let target = next.hint.and_then(|hint| HintTarget::of_reader(self.op, hint, next.key));
            let source = match target {
                Some(target) => FirstPhaseSource::Hint(target),
                None => FirstPhaseSource::Buckets(Buckets::of(next.key, &self.op.view)),
            };
            if !self.has_room(self.cost_of(&source)) {
                break;
            }
            pending.pop_front();
            match self.post(source) {
                Ok(reads) => asked.push(AskedKey { pending: next, reads }),
                Err(outcome) => self.unanswered.add(next, outcome),
            }
        }
        asked
    }

    /// Posts the first phase for one key.
    fn post(&mut self, source: FirstPhaseSource) -> Result<FirstPhaseReads, KeyOutcome> {
        let op = &mut *self.op;
        let buckets = match source {
            FirstPhaseSource::Hint(target) => {
                let lookup = Lookup::of_hint(&target, op.store, &op.view, &mut op.batch);
                return Ok(FirstPhaseReads::Hint(lookup));
            }
            FirstPhaseSource::Buckets(buckets) => buckets,
        };
        if op.store.reads.backups.has(&op.view, buckets.subtable) {
            return Err(KeyOutcome::NeedsBackups);
        }
        if guard(Mutant::ManyReadsBackups, op.view.is_without_primary(buckets.subtable)) {
            return Err(KeyOutcome::Waits);
        }
        let tickets = op.read_buckets(&buckets);
        Ok(FirstPhaseReads::Buckets { buckets, tickets })
    }

    /// Returns whether the batch has room for these READs, too. An empty batch has room for any READs.
    fn has_room(&self, cost: ReadCost) -> bool {
        let posted = self.op.batch.verbs().len();
        let staged = self.op.batch.staged_bytes() as u64;
        posted == 0 || (staged + cost.bytes <= MAX_BYTES && posted + cost.verbs <= MAX_BATCH_VERBS)
    }

    fn cost_of(&self, source: &FirstPhaseSource) -> ReadCost {
        match source {
            FirstPhaseSource::Hint(target) => {
                let whole = target.whole_bytes().map(|bytes| ReadCost { bytes, verbs: 1 });
                let object = whole.unwrap_or_else(|| self.cost_of_object(target.hint.word));
                ReadCost { bytes: SLOT_BYTES + object.bytes, verbs: 1 + object.verbs }
            }
            FirstPhaseSource::Buckets(buckets) => {
                ReadCost { bytes: 2 * buckets.read_bytes(), verbs: 2 }
            }
        }
    }

    fn cost_of_object(&self, word: Slot) -> ReadCost {
        self.op.view.object_of(word).map_or(ReadCost { bytes: 0, verbs: 1 }, |object| {
            let verbs = object.fetch_verbs();
            ReadCost { bytes: object.bytes() * verbs as u64, verbs }
        })
    }

    /// Evaluates the answers of the first phase for one key.
    fn after_first(
        &mut self,
        pending: PendingKey<'k>,
        reads: FirstPhaseReads,
    ) -> Result<KeyOutcome, Error> {
        let (buckets, tickets) = match reads {
            FirstPhaseReads::Hint(lookup) => return self.after_lookups(pending, [lookup], false),
            FirstPhaseReads::Buckets { buckets, tickets } => (buckets, tickets),
        };
        let words = match buckets.words(&self.op.batch, tickets) {
            Ok(words) => words,
            Err(failure) => return self.after_failure(failure),
        };
        let live = words.matching().filter(|(_, w)| !w.is_tentative() && !self.op.is_gone(*w));
        let places: Vec<Hint> =
            live.map(|(slot, word)| Hint { slot, word, seen: HintTrust::Unverified }).collect();
        if places.is_empty() {
            return Ok(self.answer_absent(pending));
        }
        Ok(KeyOutcome::Follow(KeyCandidates { places, are_all: true }))
    }

    /// Evaluates all lookups of one key in this phase. `all` says that the lookups cover every slot where the key can
    /// be, so that the key does not exist if all objects are other keys'.
    fn after_lookups(
        &mut self,
        pending: PendingKey<'k>,
        lookups: impl IntoIterator<Item = Lookup>,
        all: bool,
    ) -> Result<KeyOutcome, Error> {
        let mut is_absent = all;
        let op = &mut *self.op;
        for lookup in lookups {
            match lookup.advance(pending.key, op.store, &op.view, &mut op.batch) {
                Ok(LookupResult::Found(found)) => {
                    let place = Some(Hint { seen: op.pin.seen(), ..found.place });
                    let value = Some(found.value);
                    self.answers.add(KeyAnswer { at: pending.at, value, place });
                    return Ok(KeyOutcome::Answered);
                }
                Ok(LookupResult::Follow(shown)) => {
                    let places = Vec::from([shown]);
                    return Ok(KeyOutcome::Follow(KeyCandidates { places, are_all: false }));
                }
                Ok(LookupResult::OtherKey) => {}
                Ok(LookupResult::Unproved(_)) => is_absent = false,
                Err(failure) => return self.after_failure(failure),
            }
        }
        Ok(if is_absent { self.answer_absent(pending) } else { KeyOutcome::Missed })
    }

    fn answer_absent(&mut self, pending: PendingKey<'k>) -> KeyOutcome {
        self.answers.add(KeyAnswer { at: pending.at, value: None, place: None });
        KeyOutcome::Answered
    }

    /// Returns [`KeyOutcome::Waits`] if a node did not answer. For any other failure returns an error, which ends the
    /// operation.
    fn after_failure(&self, failure: FailedVerb) -> Result<KeyOutcome, Error> {
        if failure.error == VerbError::Unreachable {
            Ok(KeyOutcome::Waits)
        } else {
            Err(self.op.failed(failure))
        }
    }

    /// Posts the READs of the second phase for as many keys as fit into the batch.
    fn post_second(&mut self, followed: Vec<FollowedKey<'k>>) -> Vec<CandidateReads<'k>> {
        let mut asked = Vec::with_capacity(followed.len());
        self.op.batch.clear();
        for FollowedKey { pending, candidates: KeyCandidates { places, are_all } } in followed {
            match self.post_candidates(&places) {
                Ok(lookups) => asked.push(CandidateReads { pending, lookups, are_all }),
                Err(outcome) => self.unanswered.add(pending, outcome),
            }
        }
        asked
    }

    /// Posts the READs of the objects of one key's candidates, if all of them fit into the batch.
    fn post_candidates(&mut self, places: &[Hint]) -> Result<Vec<Lookup>, KeyOutcome> {
        let mut cost = ReadCost { bytes: 0, verbs: 0 };
        for place in places {
            let object = self.cost_of_object(place.word);
            cost.bytes += object.bytes;
            cost.verbs += object.verbs;
        }
        if !self.has_room(cost) {
            let only = if let [place] = places { Some(*place) } else { None };
            return Err(KeyOutcome::NoRoom(only));
        }
        let lookups = places.iter().map(|place| {
            let shown_on = self.op.primary(place.slot).node;
            Lookup::of_word(self.op, *place, shown_on)
        });
        lookups.collect::<Option<Vec<Lookup>>>().ok_or(KeyOutcome::Broken)
    }
}
