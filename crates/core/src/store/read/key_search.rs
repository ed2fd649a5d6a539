//! The search for one key, as a part of an operation: by a hint, then by the buckets.
//!
//! Order of calls: a SEARCH calls [`KeySearch::run`]. A Move, which searches as its first step, calls
//! [`KeySearch::attempt`] each time it is pinned in a view in which the key can be read, and then
//! [`KeySearch::has_used_backups`].

use alloc::boxed::Box;

use arrayvec::ArrayVec;

use super::backup_reads::fetch_agreed;
use super::damage::{KeyReread, reread_for_key};
use super::lookup::{LocatedPair, Lookup, LookupResult};
use super::target::HintTarget;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, guard, removed};
use crate::race::{BucketWords, Buckets, Key, MAX_CANDIDATES};
use crate::store::session::{is_vouched_for, is_vouched_for_backups};
use crate::store::{BROKEN_WORD, Hint, HintTrust, StoreOp};
use crate::verbs::{Fabric, MnId, VerbError};
use crate::view::SlotRef;

/// The number of bytes after which no further candidate of a key is read in the same phase.
const MAX_FETCHED_BYTES: u64 = 64 << 20;

/// The search for one key, as a part of an operation.
pub(in crate::store) struct KeySearch<'o, 's, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    key: Key<'o>,
    /// Whether the latest attempt has read slots from the backups although the subtable has a primary.
    from_backups: bool,
}

/// The result of one attempt to find a key.
pub(in crate::store) enum SearchAttempt {
    /// The search has ended. Contains the key's pair, or `None` if the key does not exist.
    Done(Option<LocatedPair>),
    /// A memory node did not answer. The next attempt reads from other nodes, or in a newer view.
    Again,
}

/// The result of one READ of the buckets of a key, and of the candidates' objects.
enum IndexLook {
    /// The search has ended. Contains the key's pair, or `None` if the key does not exist.
    Done(Option<LocatedPair>),
    /// The search has to wait for a view change, because the backups do not agree, or a candidate's pair is being lost.
    AwaitsChange,
    /// A slot has changed since it was read, so the search has to be repeated.
    SlotChanged,
}

/// The words of all slots of a key, as one node has shown them or as all backups agree on them.
struct ShownSlots {
    words: BucketWords,
    /// The node that has shown the words, or the first backup if all backups agree on them.
    shown_on: MnId,
    /// The trust in hints that are made from these words.
    seen: HintTrust,
}

/// The slots that possibly refer to the key, after the READs of their objects were posted.
struct IndexCandidates {
    shown_on: MnId,
    lookups: ArrayVec<Lookup, MAX_CANDIDATES>,
    /// Slots whose objects are still to be read, or to be re-read from all replicas.
    unproved: ArrayVec<Hint, MAX_CANDIDATES>,
    /// The error to return if none of the candidates has the key; `None` for no error.
    broken: Option<Error>,
    /// Whether the pair of one of the candidates is being lost.
    is_being_lost: bool,
}

impl<'o, 's, F: Fabric, H: Host> KeySearch<'o, 's, F, H> {
    /// Returns a search for a key, as a part of this operation.
    pub fn new(op: &'o mut StoreOp<'s, F, H>, key: Key<'o>) -> KeySearch<'o, 's, F, H> {
        KeySearch { op, key, from_backups: false }
    }

    /// Returns whether the latest attempt has read slots from backups although there is a primary.
    pub fn has_used_backups(&self) -> bool {
        self.from_backups
    }

    /// Returns the key's pair as it was at some moment after the operation had begun.
    pub(super) async fn run(&mut self, hint: Option<Hint>) -> Result<Option<LocatedPair>, Error> {
        loop {
            self.op.await_readable(self.key).await?;
            let times = self.op.store.silent.times();
            // Repeats the code of `attempt`, because a call of it would add a future to every search.
            let found = match self.by_view(hint).await {
                Err(error @ Error::Unreachable { node, error: VerbError::Unreachable, .. }) => {
                    self.read_elsewhere(node, times, error).await?;
                    continue;
                }
                found => found?,
            };
            let counts = if self.from_backups {
                is_vouched_for_backups(self.op).await?
            } else {
                is_vouched_for(self.op, self.key).await?
            };
            if counts {
                return Ok(found);
            }
        }
    }

    /// Searches once for the key's pair, in the view in which the operation is pinned. The result is valid only if the
    /// session has a valid lease or the members vouch for the view.
    pub async fn attempt(&mut self, hint: Option<Hint>) -> Result<SearchAttempt, Error> {
        let times = self.op.store.silent.times();
        match self.by_view(hint).await {
            Err(error @ Error::Unreachable { node, error: VerbError::Unreachable, .. }) => {
                self.read_elsewhere(node, times, error).await?;
                Ok(SearchAttempt::Again)
            }
            other => other.map(SearchAttempt::Done),
        }
    }

    async fn by_view(&mut self, hint: Option<Hint>) -> Result<Option<LocatedPair>, Error> {
        self.op.batch.clear();
        self.from_backups = false;
        if let Some(target) = hint.and_then(|hint| HintTarget::of_reader(self.op, hint, self.key))
            && let Some(found) = self.by_hint(target).await?
        {
            return Ok(Some(found));
        }
        // Boxed: otherwise the future of every search would contain room for all slots of a key.
        Box::pin(self.by_index()).await
    }

    /// Follows a hint: one phase, and another phase if the slot shows another word that is possibly the key's. Returns
    /// `None` if neither leads to the key.
    async fn by_hint(&mut self, target: HintTarget) -> Result<Option<LocatedPair>, Error> {
        let shown_on = target.slot.node;
        let op = &mut *self.op;
        let mut lookup = if target.hint.is_doubted() && target.is_beside_its_slot() {
            Lookup::of_switch(&target, &mut op.batch)
        } else {
            Lookup::of_hint(&target, op.store, &op.view, &mut op.batch)
        };
        loop {
            self.op.phase().await;
            match self.advance(lookup)? {
                LookupResult::Found(LocatedPair { place, value }) => {
                    let place = Hint { seen: self.op.pin.seen(), ..place };
                    return Ok(Some(LocatedPair { place, value }));
                }
                // This case occurs at most once, because the next lookup, of a word, never returns `Follow`.
                LookupResult::Follow(shown) => {
                    self.op.batch.next_phase();
                    let next = Lookup::of_word(self.op, shown, shown_on);
                    let Some(next) = next else { return Ok(None) };
                    lookup = next;
                }
                LookupResult::OtherKey | LookupResult::Unproved(_) => return Ok(None),
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self, lookup: Lookup) -> Result<LookupResult, Error> {
        let op = &mut *self.op;
        let result = lookup.advance(self.key, op.store, &op.view, &mut op.batch);
        result.map_err(|failure| op.failed(failure))
    }

    /// Does the work of [`Store::word_in`](crate::store::Store::word_in).
    pub(super) async fn word_in(&mut self, slot: SlotRef) -> Result<Option<Slot>, Error> {
        self.op.await_readable(self.key).await?;
        let op = &mut *self.op;
        op.batch.clear();
        let is_read = op.view.has_slot(slot)
            && !op.view.is_without_primary(slot.subtable)
            && !op.store.reads.backups.has(&op.view, slot.subtable);
        if !is_read {
            return Ok(None);
        }
        let ticket = op.read_slot(slot);
        op.phase().await;
        // If the node did not answer, the caller has to make a SEARCH, which waits for the node.
        let Ok(word) = op.slot_word(ticket) else { return Ok(None) };
        // The slot shows the word of a pair that is lost or being lost. A SEARCH finds out which of these is true.
        if guard(Mutant::FollowersReadWhatIsLost, op.view.leads_to_lost(word)) {
            return Ok(None);
        }
        Ok(is_vouched_for(op, self.key).await?.then_some(word))
    }

    /// Searches the buckets of the key: two phases, or one if no slot possibly refers to the key.
    async fn by_index(&mut self) -> Result<Option<LocatedPair>, Error> {
        loop {
            match self.look_at_index().await? {
                IndexLook::Done(found) => return Ok(found),
                IndexLook::AwaitsChange => {
                    self.op.wait_for_change().await?;
                    self.op.await_readable(self.key).await?;
                }
                // The slot changed because other sessions make progress: the search is repeated after a pause.
                IndexLook::SlotChanged => {
                    if self.op.pause().await.is_err() {
                        let waiting_for = "a slot that others keep changing";
                        let outcome = FailedWriteOutcome::NotApplied;
                        return Err(Error::GaveUp { waiting_for, outcome });
                    }
                }
            }
        }
    }

    /// Reads the buckets of the key, and the objects of the slots that possibly refer to it.
    async fn look_at_index(&mut self) -> Result<IndexLook, Error> {
        let Some(slots) = self.read_slots().await? else { return Ok(IndexLook::AwaitsChange) };
        let mut candidates = self.post_candidates(&slots);
        if !candidates.lookups.is_empty() {
            self.op.phase().await;
        }
        for lookup in &candidates.lookups {
            match self.advance(*lookup)? {
                LookupResult::Found(found) => return Ok(IndexLook::Done(Some(found))),
                LookupResult::OtherKey => {}
                LookupResult::Follow(hint) | LookupResult::Unproved(hint) => {
                    candidates.unproved.push(hint);
                }
            }
        }
        let mut is_stale = false;
        for place in &candidates.unproved {
            // The batch holds objects that were read before and that the search no longer needs.
            self.op.batch.clear();
            match reread_for_key(self.op, *place, candidates.shown_on, self.key).await {
                Ok(KeyReread::Value(value)) => {
                    return Ok(IndexLook::Done(Some(LocatedPair { place: *place, value })));
                }
                Ok(KeyReread::OtherKey) => {}
                Ok(KeyReread::Stale) => is_stale = true,
                Err(error @ Error::Corrupt { .. }) => candidates.broken = Some(error),
                Err(error) => return Err(error),
            }
        }
        if candidates.is_being_lost {
            return Ok(IndexLook::AwaitsChange);
        }
        if is_stale {
            return Ok(IndexLook::SlotChanged);
        }
        candidates.broken.map_or(Ok(IndexLook::Done(None)), Err)
    }

    /// Reads all slots of the key, in one phase: from the primary, or from the backups if the primary is lost or
    /// barred. Returns `None` if the backups do not agree.
    async fn read_slots(&mut self) -> Result<Option<ShownSlots>, Error> {
        let op = &mut *self.op;
        // If the search has waited for a change, this change has possibly split the subtable.
        let buckets = Buckets::of(self.key, &op.view);
        op.batch.clear();
        self.from_backups = op.store.reads.backups.has(&op.view, buckets.subtable);
        let first = usize::from(self.from_backups);
        let is_by_backups = self.from_backups || op.view.is_without_primary(buckets.subtable);
        let words = if is_by_backups {
            fetch_agreed(op, &buckets, first).await
        } else {
            op.fetch_words(&buckets).await.map(Some)
        };
        let Some(words) = words.map_err(|failure| op.failed(failure))? else { return Ok(None) };
        let shown_on = op.view.subtables[buckets.subtable as usize].replicas()[first].node;
        // A word that was read from backups makes no hint, because it is not known to be committed.
        let seen = if is_by_backups { HintTrust::Unverified } else { op.pin.seen() };
        Ok(Some(ShownSlots { words, shown_on, seen }))
    }

    /// Posts the READs for the objects of the slots that possibly refer to the key.
    #[inline]
    fn post_candidates(&mut self, slots: &ShownSlots) -> IndexCandidates {
        let ShownSlots { words, shown_on, seen } = slots;
        let (shown_on, seen) = (*shown_on, *seen);
        let mut candidates = IndexCandidates {
            shown_on,
            lookups: ArrayVec::new(),
            unproved: ArrayVec::new(),
            broken: None,
            is_being_lost: false,
        };
        let op = &mut *self.op;
        op.batch.next_phase();
        let shows_tentative = removed(Mutant::ReadersSeeTentative);
        let live = words.matching().filter(|(_, word)| !word.is_tentative() || shows_tentative);
        for (slot, word) in live {
            let has_lookups = !candidates.lookups.is_empty();
            if has_lookups && op.batch.touched_bytes() > MAX_FETCHED_BYTES {
                // Either many fingerprints collide, or the index is damaged. The remaining objects are read one by one.
                candidates.unproved.push(Hint { slot, word, seen: HintTrust::Unverified });
                continue;
            }
            match Lookup::of_word(op, Hint { slot, word, seen }, shown_on) {
                Some(lookup) => candidates.lookups.push(lookup),
                None if op.view.is_being_lost(word) => candidates.is_being_lost = true,
                None if op.is_gone(word) => {}
                None => candidates.broken = Some(BROKEN_WORD),
            }
        }
        candidates
    }

    /// Prepares the next attempt after `node` did not answer a READ. Returns at once if the next attempt reads from
    /// other nodes, because a node has become silent since `SilentNodes::times` was `times`. Otherwise waits until the
    /// view no longer has the node, or until the slots can be read from backups.
    async fn read_elsewhere(&mut self, node: MnId, times: u64, error: Error) -> Result<(), Error> {
        let op = &mut *self.op;
        let subtable = Buckets::of(self.key, &op.view).subtable;
        let primary = op.view.subtables[subtable as usize].primary().node;
        let is_in_doubt = op.pin.traces.is_in_doubt();
        let is_calm = op.view.change.is_none() && !is_in_doubt;
        if primary == node && is_calm && !self.from_backups {
            return self.wait_for_backups(node, error).await;
        }
        let shows_slots = primary == node || op.view.is_without_primary(subtable);
        if shows_slots || is_in_doubt || op.store.silent.times() == times {
            return op.read_without(node, error).await;
        }
        op.pin.traces.forgive_reads();
        op.store.host.report_unreachable(node);
        Ok(())
    }

    /// Waits after the primary of the key's subtable did not answer, in a stable view. Returns when the next attempt
    /// can read the backups, or when a newer view gives the subtable another primary.
    async fn wait_for_backups(&mut self, primary: MnId, error: Error) -> Result<(), Error> {
        let op = &mut *self.op;
        op.pin.pause();
        op.pin.traces.forgive_reads();
        op.store.host.report_unreachable(primary);
        loop {
            let view = op.store.newest_view();
            let subtable = Buckets::of(self.key, &view).subtable;
            // If a newer view gives the subtable another primary, the next attempt reads from the new primary.
            if view.subtables[subtable as usize].primary().node != primary {
                return Ok(());
            }
            // Boxed, because this case is rare: the futures of operations stay small.
            if Box::pin(op.store.reads.backups.request(&op.store.host, subtable, &view)).await {
                return Ok(());
            }
            if op.pause().await.is_err() {
                return Err(error);
            }
        }
    }
}
