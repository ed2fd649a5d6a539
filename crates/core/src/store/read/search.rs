//! SEARCH: READs the slot on the primary, and the object on one of its replicas.
//!
//! With a hint, one phase READs both ([`Lookup`](super::lookup::Lookup)). The operation takes effect when the primary's
//! slot is read. If the slot shows another word, the next phase follows this word. If that does not lead to the key
//! either, the buckets are read, as without a hint.
//!
//! Slots are only read from the primary, unless it is lost or barred ([`backup_reads`](super::backup_reads)). With one
//! index replica, readers skip tentative words. So a reader never sees a key twice while two INSERTs of the key decide
//! which of them remains.

use core::mem;

use super::key_search::KeySearch;
use super::lookup::{LocatedPair, Lookup, LookupResult};
use super::target::HintTarget;
use crate::data::Redundancy;
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, right_or};
use crate::race::{IntoKey, Key};
use crate::stats::{Cost, OpKind};
use crate::store::session::has_valid_lease;
use crate::store::{Hint, Store};
use crate::verbs::{Fabric, Span, VerbBatch};
use crate::view::{SlotRef, View};

/// The result of a SEARCH. Owns the batch into which the value was READ.
pub struct SearchResult<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    batch: VerbBatch,
    found: Option<LocatedPair>,
    /// Whether the slot was read from backups although there is a primary. If so, the slot's word is possibly not
    /// committed.
    from_backups: bool,
}

impl<F: Fabric, H: Host> SearchResult<'_, F, H> {
    /// Returns the value; `None` if the key does not exist.
    pub fn value(&self) -> Option<&[u8]> {
        self.found.map(|found| self.batch.bytes(found.value))
    }

    /// Returns the redundancy of the value; `None` if the key does not exist.
    pub fn redundancy(&self) -> Option<Redundancy> {
        let word = self.found?.place.word;
        let view = self.store.view();
        // A newer view has possibly lost the region of the object.
        let (region, _) = view.region_of(word.address())?;
        Some(region.redundancy_of(word))
    }

    /// Returns the key's slot and word, for the index cache. Returns `None` if the key does not exist, or if the slot
    /// was read from backups although there is a primary.
    pub fn hint(&self) -> Option<Hint> {
        self.found.map(|found| found.place).filter(|_| !self.from_backups)
    }
}

impl<F: Fabric, H: Host> Drop for SearchResult<'_, F, H> {
    fn drop(&mut self) {
        self.store.batches.keep(mem::take(&mut self.batch));
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Looks a key up. Takes 1 phase if the hint is right; 2 phases without a hint, or if the hint's slot shows another
    /// word of the key; 3 or 4 phases if the hint's slot does not lead to the key any more.
    pub async fn search<'k>(
        &self,
        key: impl IntoKey<'k>,
        hint: Option<Hint>,
    ) -> Result<SearchResult<'_, F, H>, Error> {
        let key = self.key(key);
        self.view.check_key(&key)?;
        let mut hint = hint;
        let mut cost = Cost::default();
        if let Some(first) = hint.filter(|_| self.fabric.is_immediate()) {
            let mut batch = self.batches.take();
            match search_now(self, &mut batch, key, first, &mut cost) {
                Ok(value) => {
                    self.counters.add_reads(OpKind::Search, &batch);
                    // The `LocatedPair` is made here, not in `search_now`, because it is large.
                    let found = Some(LocatedPair { place: first, value });
                    return Ok(SearchResult { store: self, batch, found, from_backups: false });
                }
                Err(next) => {
                    self.batches.keep(batch);
                    hint = next;
                }
            }
        }
        let mut op = self.operation();
        op.cost = cost;
        let mut search = KeySearch::new(&mut op, key);
        let result = search.run(hint).await;
        let from_backups = search.has_used_backups();
        let batch = mem::take(&mut op.batch);
        self.counters.add(OpKind::Search, &op.cost);
        match result {
            Ok(found) => Ok(SearchResult { store: self, batch, found, from_backups }),
            Err(error) => {
                self.batches.keep(batch);
                Err(error)
            }
        }
    }

    /// Returns the word that the primary of a slot has shown at a moment since this call began. Returns `None` if a
    /// SEARCH of the key would not rely on this word, or if the primary did not answer. Takes one phase that READs 8
    /// bytes. A caller that knows for certain to which pair the word leads needs no SEARCH.
    pub async fn word_in<'k>(
        &self,
        key: impl IntoKey<'k>,
        slot: SlotRef,
    ) -> Result<Option<Slot>, Error> {
        let key = self.key(key);
        self.view.check_key(&key)?;
        let mut op = self.operation();
        let result = KeySearch::new(&mut op, key).word_in(slot).await;
        op.finish(OpKind::Search);
        result
    }
}

/// Looks a key up by its hint in one phase, without the cost of a future. For fabrics that execute batches without
/// waiting. If the lookup does not find the key, returns the hint, if any, with which an awaited search has to go on,
/// and adds the phase to `cost`.
fn search_now<F: Fabric, H: Host>(
    store: &Store<F, H>,
    batch: &mut VerbBatch,
    key: Key<'_>,
    hint: Hint,
    cost: &mut Cost,
) -> Result<Span, Option<Hint>> {
    let (view, local_epoch) = store.local_epochs.begin(&store.host, || store.newest_view());
    let found = look_up_now(store, &view, batch, key, hint, cost);
    // Without a valid lease, an awaited search has to go on, which asks the members to vouch.
    let found = found.and_then(|value| {
        if has_valid_lease(&store.host) {
            return Ok(value);
        }
        cost.add_batch(batch);
        Err(Some(hint))
    });
    store.local_epochs.end(&store.host, local_epoch);
    found
}

/// Reads the pair that a hint leads to, in one phase. If the hint is not right, returns the hint to follow, if any,
/// and adds the phase to `cost`.
fn look_up_now<F: Fabric, H: Host>(
    store: &Store<F, H>,
    view: &View,
    batch: &mut VerbBatch,
    key: Key<'_>,
    hint: Hint,
    cost: &mut Cost,
) -> Result<Span, Option<Hint>> {
    let target = HintTarget::new(view, &store.silent, hint, key).ok_or(None)?;
    batch.clear();
    let lookup = Lookup::of_hint(&target, store, view, batch);
    if !store.fabric.execute_now(batch) {
        return Err(Some(hint));
    }
    let lookup = right_or(Mutant::SearchNowTrustsHint, lookup, lookup.without_slot());
    let next = match lookup.advance(key, store, view, batch) {
        Ok(LookupResult::Found(found)) => return Ok(found.value),
        Ok(LookupResult::Follow(shown)) => Some(shown),
        Ok(LookupResult::OtherKey | LookupResult::Unproved(_)) => None,
        // A node did not answer. The awaited search that goes on with this hint gets no answer either, and waits for
        // the node or for another view.
        Err(_) => Some(hint),
    };
    cost.add_batch(batch);
    Err(next)
}
