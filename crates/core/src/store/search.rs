//! SEARCH: the slot from the primary, the object from a data replica.
//!
//! With a hint, both are read in one phase: if the slot still holds the word of the hint, the object that was read
//! with it is the key's current pair. The operation takes effect when the primary slot is read. If the slot has
//! changed, its word is followed; if that does not lead to the key either, the buckets are read as without a hint.
//!
//! Only the primary is ever read, unless it is lost or barred ([`beside`](super::backup_reads)), and with one index
//! replica tentative slots are skipped. So a reader never sees a key twice while two INSERTs of it decide which one
//! stays.

use alloc::boxed::Box;

use arrayvec::ArrayVec;

use super::damage::KeyReread;
use super::session::SilentNodes;
use super::target::{HintTarget, may_hold};
use super::{BROKEN_WORD, Hint, HintTrust, Store, StoreOp, slot_word};
use crate::data::{Fetch, FetchResult, Redundancy};
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, IntoKey, Key, MAX_CANDIDATES};
use crate::stats::{Cost, OpKind};
use crate::verbs::{Fabric, FailedVerb, Span, Ticket, VerbBatch, VerbError};
use crate::view::{SlotRef, View};

/// Candidates of a key are fetched together up to this many bytes, including the one that goes beyond.
const MAX_FETCHED_BYTES: u64 = 64 << 20;

/// The result of a SEARCH. Holds the value in the memory into which it was fetched.
pub struct SearchResult<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    batch: VerbBatch,
    found: Option<(Hint, Span)>,
    /// Whether it was read from backups although there is a primary: then the word may not be committed.
    beside: bool,
}

impl<F: Fabric, H: Host> SearchResult<'_, F, H> {
    /// Returns the value; `None` if the key does not exist.
    pub fn value(&self) -> Option<&[u8]> {
        self.found.map(|(_, span)| self.batch.bytes(span))
    }

    /// Returns the redundancy of the value; `None` if the key does not exist.
    pub fn redundancy(&self) -> Option<Redundancy> {
        let (hint, _) = self.found?;
        let view = self.store.view();
        // By now the region may be lost.
        let (region, _) = view.region_of(hint.word.address())?;
        Some(region.redundancy_of(hint.word))
    }

    /// Returns the key's place for the index cache. `None` if the key does not exist, or was read from backups although
    /// there is a primary.
    pub fn hint(&self) -> Option<Hint> {
        self.found.map(|(hint, _)| hint).filter(|_| !self.beside)
    }
}

impl<F: Fabric, H: Host> Drop for SearchResult<'_, F, H> {
    fn drop(&mut self) {
        self.store.recycle(core::mem::take(&mut self.batch));
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Looks a key up. Takes 1 phase if the hint is right, else 2, and one more if the slot of the hint holds another
    /// key by now.
    pub async fn search<'k>(
        &self,
        key: impl IntoKey<'k>,
        hint: Option<Hint>,
    ) -> Result<SearchResult<'_, F, H>, Error> {
        let key = self.key(key);
        self.check_key(&key)?;
        let mut hint = hint;
        let mut cost = Cost::default();
        if let Some(first) = hint.filter(|_| self.fabric.is_immediate()) {
            let mut batch = self.batches.borrow_mut().pop().unwrap_or_default();
            match self.search_now(&mut batch, key, first, &mut cost) {
                Ok(span) => {
                    self.counters.add_reads(OpKind::Search, &batch);
                    // Made here and not in `search_now`: it is large.
                    return Ok(SearchResult {
                        store: self,
                        batch,
                        found: Some((first, span)),
                        beside: false,
                    });
                }
                Err(next) => {
                    self.recycle(batch);
                    hint = next;
                }
            }
        }
        let mut op = self.operation();
        op.cost = cost;
        let result = op.search(key, hint).await;
        let batch = core::mem::take(&mut op.batch);
        let beside = op.beside;
        self.counters.add(OpKind::Search, &op.cost);
        match result {
            Ok(found) => Ok(SearchResult { store: self, batch, found, beside }),
            Err(error) => {
                self.recycle(batch);
                Err(error)
            }
        }
    }

    /// Returns the word of a slot on its primary, at a moment since this call began, if a SEARCH of the key would go
    /// by that; `None` if the word cannot be told. Takes one phase of 8 bytes. A caller that knows for certain which
    /// pair the word leads to has looked the key up.
    pub async fn word_in<'k>(
        &self,
        key: impl IntoKey<'k>,
        slot: SlotRef,
    ) -> Result<Option<Slot>, Error> {
        let key = self.key(key);
        self.check_key(&key)?;
        let mut op = self.operation();
        let result = op.word_in(key, slot).await;
        op.finish(OpKind::Search);
        result
    }

    /// Looks a key up by its hint on an immediate fabric, in one phase, without the overhead of an operation that may
    /// wait. If that does not find the key, returns the hint for such an operation, and adds the phase to `cost`.
    fn search_now(
        &self,
        batch: &mut VerbBatch,
        key: Key<'_>,
        hint: Hint,
        cost: &mut Cost,
    ) -> Result<Span, Option<Hint>> {
        let (view, local_epoch) = self.begin();
        let found = look_at(&self.fabric, &view, &self.silent, batch, cost, key, hint);
        // A session without a valid lease takes the long way, and asks the members.
        let found = found.and_then(|span| {
            if self.has_valid_lease() {
                return Ok(span);
            }
            cost.add_batch(batch);
            Err(Some(hint))
        });
        self.end(local_epoch);
        found
    }
}

/// Reads the pair that a hint leads to, in one phase. If the hint is not right, returns the hint to follow, if any,
/// and counts the phase.
fn look_at<F: Fabric>(
    fabric: &F,
    view: &View,
    silent: &SilentNodes,
    batch: &mut VerbBatch,
    cost: &mut Cost,
    key: Key<'_>,
    hint: Hint,
) -> Result<Span, Option<Hint>> {
    let target = HintTarget::new(view, silent, hint, key).ok_or(None)?;
    batch.clear();
    let reads = target.read_pair(view, silent, batch);
    if !fabric.execute_now(batch) {
        return Err(Some(hint));
    }
    let is_trusted = removed(Mutant::SearchNowTrustsHint);
    let next = match shown(batch, reads, hint, key, is_trusted) {
        Ok(HintReadResult::Value(span)) => return Ok(span),
        Ok(HintReadResult::Word(word)) => Some(Hint { word, seen: HintTrust::Unverified, ..hint }),
        Ok(HintReadResult::Nothing) => None,
        // A node did not answer: the operation that follows finds out, and waits for it.
        Err(_) => Some(hint),
    };
    cost.add_batch(batch);
    Err(next)
}

/// The result of reading the slot and the object of a hint in one phase.
enum HintReadResult {
    /// The hint is right; with the key's value.
    Value(Span),
    /// The slot holds this word, which may lead to the key.
    Word(Slot),
    /// Neither the slot nor the object leads to the key.
    Nothing,
}

/// Evaluates the executed phase that reads slot and object of a hint. The hint is compared with the slot, unless it
/// is trusted.
#[inline]
fn shown(
    batch: &mut VerbBatch,
    (slot, object): (Ticket, Fetch),
    hint: Hint,
    key: Key<'_>,
    is_trusted: bool,
) -> Result<HintReadResult, FailedVerb> {
    let word = slot_word(batch, slot)?;
    if word != hint.word && !is_trusted && !removed(Mutant::HintIsTrusted) {
        return Ok(if may_hold(word, key) {
            HintReadResult::Word(word)
        } else {
            HintReadResult::Nothing
        });
    }
    Ok(match object.of_key(batch, hint.word, &key)? {
        FetchResult::Value(span) => HintReadResult::Value(span),
        FetchResult::OtherKey | FetchResult::Stale => HintReadResult::Nothing,
    })
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    async fn search(
        &mut self,
        key: Key<'_>,
        hint: Option<Hint>,
    ) -> Result<Option<(Hint, Span)>, Error> {
        loop {
            self.await_readable(key).await?;
            let silent = self.store.silent.times();
            match self.search_by_view(key, hint).await {
                Err(error @ Error::Unreachable { node, error: VerbError::Unreachable, .. }) => {
                    self.read_elsewhere(key, node, silent, error).await?;
                }
                Ok(found) => {
                    let counts = if self.beside {
                        self.is_vouched_for_backups().await?
                    } else {
                        self.is_vouched_for(key).await?
                    };
                    if counts {
                        return Ok(found);
                    }
                }
                other => return other,
            }
        }
    }

    pub(super) async fn search_by_view(
        &mut self,
        key: Key<'_>,
        hint: Option<Hint>,
    ) -> Result<Option<(Hint, Span)>, Error> {
        self.batch.clear();
        self.beside = false;
        if let Some(target) = hint.and_then(|hint| self.target(hint, key))
            && let Some(found) = self.search_by_hint(key, target).await?
        {
            return Ok(Some(found));
        }
        // On the heap: otherwise the future of every search would have room for all slots of a key.
        Box::pin(self.search_by_index(key)).await
    }

    async fn word_in(&mut self, key: Key<'_>, slot: SlotRef) -> Result<Option<Slot>, Error> {
        self.await_readable(key).await?;
        self.batch.clear();
        let is_read = self.view.has_slot(slot)
            && !self.view.is_without_primary(slot.subtable)
            && !self.reads_backups(slot.subtable);
        if !is_read {
            return Ok(None);
        }
        let ticket = self.read_slot(slot);
        self.phase().await;
        match self.slot_word(ticket) {
            // The word of a pair that is lost, or is being lost, stands in the slot: a SEARCH finds out which.
            Ok(word)
                if self.view.leads_to_lost(word) && !removed(Mutant::FollowersReadWhatIsLost) =>
            {
                Ok(None)
            }
            Ok(word) => Ok(self.is_vouched_for(key).await?.then_some(word)),
            // A SEARCH finds out, and waits for the node.
            Err(_) => Ok(None),
        }
    }

    async fn search_by_index(&mut self, key: Key<'_>) -> Result<Option<(Hint, Span)>, Error> {
        loop {
            // A change that was waited for may have split the subtable.
            let buckets = Buckets::of(key, &self.view);
            self.batch.clear();
            self.beside = self.reads_backups(buckets.subtable);
            let first = usize::from(self.beside);
            let by_backups = self.beside || self.view.is_without_primary(buckets.subtable);
            let words = if by_backups {
                match self.fetch_agreed(&buckets, first).await {
                    Ok(Some(words)) => Ok(words),
                    Ok(None) => {
                        self.wait_for_change().await?;
                        self.await_readable(key).await?;
                        continue;
                    }
                    Err(failure) => Err(failure),
                }
            } else {
                self.fetch_words(&buckets).await
            };
            let words = words.map_err(|f| self.failed(f))?;
            let shown_on = self.view.subtables[buckets.subtable as usize].replicas()[first].node;
            self.batch.next_phase();
            // Words of backups count for this read only.
            let seen = if by_backups { HintTrust::Unverified } else { self.seen() };
            let mut reads = ArrayVec::<(Hint, Fetch), MAX_CANDIDATES>::new();
            let mut broken = None;
            let mut is_being_lost = false;
            let shown = removed(Mutant::ReadersSeeTentative);
            let mut unproved = ArrayVec::<Hint, MAX_CANDIDATES>::new();
            for (slot, word) in words.matching().filter(|(_, w)| !w.is_tentative() || shown) {
                let hint = Hint { slot, word, seen: HintTrust::Unverified };
                if !reads.is_empty() && self.batch.touched_bytes() > MAX_FETCHED_BYTES {
                    // Fingerprints collide, or the index is damaged: read the further objects one by one.
                    unproved.push(hint);
                    continue;
                }
                match self.fetch(shown_on, word) {
                    Some(fetch) => {
                        reads.push((Hint { seen, ..hint }, fetch));
                    }
                    None if self.view.is_being_lost(word) => is_being_lost = true,
                    None if self.is_gone(word) => {}
                    None => broken = Some(BROKEN_WORD),
                }
            }
            if !reads.is_empty() {
                self.phase().await;
            }
            for (hint, fetch) in reads {
                match self.fetched(fetch, hint.word, key)? {
                    FetchResult::Value(span) => return Ok(Some((hint, span))),
                    FetchResult::OtherKey => {}
                    FetchResult::Stale => unproved.push(hint),
                }
            }
            let mut stale = false;
            for hint in unproved {
                // The objects that were read before are not needed any more.
                self.batch.clear();
                match self.look_again(hint, shown_on, key).await {
                    Ok(KeyReread::Value(span)) => return Ok(Some((hint, span))),
                    Ok(KeyReread::OtherKey) => {}
                    Ok(KeyReread::Stale) => stale = true,
                    Err(error @ Error::Corrupt { .. }) => broken = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if is_being_lost {
                self.wait_for_change().await?;
                self.await_readable(key).await?;
                continue;
            }
            if !stale {
                return broken.map_or(Ok(None), Err);
            }
            // One of the slots has changed meanwhile. Others have made progress: look again.
            if self.pause().await.is_err() {
                let waiting_for = "a slot that others keep changing";
                return Err(Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::NotApplied });
            }
        }
    }

    async fn search_by_hint(
        &mut self,
        key: Key<'_>,
        target: HintTarget,
    ) -> Result<Option<(Hint, Span)>, Error> {
        let hint = target.hint;
        if hint.is_doubted() && target.is_beside_its_slot() {
            // On the heap: the futures of operations stay small.
            return Box::pin(self.search_steered(key, target)).await;
        }
        let reads = target.read_pair(&self.view, &self.store.silent, &mut self.batch);
        self.phase().await;
        let shown = shown(&mut self.batch, reads, hint, key, false).map_err(|f| self.failed(f))?;
        match shown {
            HintReadResult::Value(span) => Ok(Some((Hint { seen: self.seen(), ..hint }, span))),
            HintReadResult::Nothing => Ok(None),
            HintReadResult::Word(word) => {
                let shown = Hint { slot: hint.slot, word, seen: HintTrust::Unverified };
                self.search_by_word(key, shown, target.slot.node).await
            }
        }
    }

    pub(super) fn fetched(
        &mut self,
        fetch: Fetch,
        word: Slot,
        key: Key<'_>,
    ) -> Result<FetchResult, Error> {
        fetch.of_key(&mut self.batch, word, &key).map_err(|f| self.failed(f))
    }
}
