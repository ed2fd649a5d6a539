//! The adaptive index cache (P §4.6): the slots where its sessions last saw keys.
//!
//! An entry is a hint that saves a phase when it is right and costs the READ of an object when it is wrong. Accesses
//! and wrong hints are counted per key. A key whose share of wrong hints exceeds the threshold is *bypassed*: its
//! accesses read the index instead. They are still counted, so that hints of a key are used again when the key changes
//! less often. An entry contains the slot's word, which is compared with the slot that is read, so no invalidation bit
//! is needed.
//!
//! An entry contains 64 bits of the key's hash instead of the key. Operations compare the key with the object that the
//! hint leads to, so two keys with the same hash cause each other wrong hints, and nothing worse. An entry thus takes
//! half a cache line, and one access to memory finds it. Speculative writes need to be certain of an entry's key and
//! age; `certainty.rs` stores these separately.
//!
//! If a switch possibly knows a newer word of the slot ([`HintTrust::LikelyStale`]), a key that would be bypassed gets
//! a doubted hint instead. The key's own counts are not enough to decide that: a session that has seen a key once does
//! not know how often others change it. But the session counts, over the first accesses to keys that it has seen
//! before, how often the key had changed. While that share exceeds the threshold, hints of keys that the session has
//! seen before are doubted, until the key has enough counts of its own.
//!
//! The cache is bounded. When it is full, it evicts a key that was not used after a circulating hand last passed it
//! (CLOCK).

use std::sync::Arc;

use fusee_core::layout::Slot;
use fusee_core::race::Key;
use fusee_core::stats::Counter;
use fusee_core::store::{Hint, HintTrust, SearchKey, WriteResult};
use fusee_core::view::SlotRef;

use super::certainty::CertaintyTable;

/// Number of a key's accesses up to which it is not bypassed, because fewer counts have no significance.
const MIN_ACCESSES: u16 = 4;
/// Number of a key's accesses at which its counters are halved, so that old behaviour fades and the counters never
/// overflow.
const MAX_ACCESSES: u16 = 1 << 15;
/// Least number of accesses to young keys ([`IndexCacheEntry::is_young`]) for which the share of wrong hints is
/// significant, and the number at which both counters are halved.
const MIN_AGAIN: u32 = 16;
const MAX_AGAIN: u32 = 1 << 12;
/// Number of places for entries in the smallest table.
const MIN_PLACES: usize = 64;

/// The state of a place for an entry in the cache's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CachePlaceState {
    Free,
    /// The place has a key that was not used since the CLOCK hand passed the place, or was never used.
    Passed,
    /// The place has a key that was used after the CLOCK hand passed the place.
    Used,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct IndexCacheEntry {
    hash: u64,
    word: Slot,
    slot: SlotRef,
    accesses: u16,
    wrong: u16,
    state: CachePlaceState,
}

const _: () = assert!(size_of::<IndexCacheEntry>() == 32, "two of them are a cache line");

impl IndexCacheEntry {
    const FREE: IndexCacheEntry = IndexCacheEntry {
        hash: 0,
        word: Slot(0),
        slot: SlotRef { subtable: 0, slot: 0 },
        accesses: 0,
        wrong: 0,
        state: CachePlaceState::Free,
    };

    /// Returns whether the session has seen the key before, but has too few counts of the key to judge by.
    fn is_young(&self) -> bool {
        (2..=MIN_ACCESSES).contains(&self.accesses)
    }

    fn count_wrong(&mut self, wrong: bool) {
        self.wrong = self.wrong.saturating_add(u16::from(wrong));
    }
}

/// Counts of accesses to an index cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups of a key in the cache, by reads, updates, deletes and puts.
    pub accesses: u64,
    /// Accesses that got a hint. All other accesses had to read the index, because the key was bypassed or not in the
    /// cache.
    pub hints: u64,
    /// Hints that were wrong. Each caused a useless READ of an object.
    pub wrong: u64,
    /// Accesses to a cached key that was bypassed because it had too many wrong hints (P §4.6).
    pub bypassed: u64,
}

impl CacheStats {
    /// Returns the counts since `before`.
    pub fn since(&self, before: &CacheStats) -> CacheStats {
        CacheStats {
            accesses: self.accesses - before.accesses,
            hints: self.hints - before.hints,
            wrong: self.wrong - before.wrong,
            bypassed: self.bypassed - before.bypassed,
        }
    }

    /// Adds the counts of another session to these.
    pub fn merge(&mut self, other: &CacheStats) {
        self.accesses += other.accesses;
        self.hints += other.hints;
        self.wrong += other.wrong;
        self.bypassed += other.bypassed;
    }
}

/// The [`CacheStats`] of one session. Only the session adds to them; other threads of its process can read them at any
/// time.
#[derive(Debug, Default)]
pub struct CacheCounters {
    /// Accesses to keys without an entry. Each access is counted in one of `unknown`, `hints` and `bypassed`.
    unknown: Counter,
    hints: Counter,
    bypassed: Counter,
    wrong: Counter,
}

impl CacheCounters {
    /// Returns the sums of all accesses counted so far.
    pub fn stats(&self) -> CacheStats {
        let [hints, bypassed] = [self.hints.get(), self.bypassed.get()];
        let accesses = self.unknown.get() + hints + bypassed;
        CacheStats { accesses, hints, wrong: self.wrong.get(), bypassed }
    }
}

/// An index cache: a table with linear probing.
pub struct IndexCache {
    /// The entries. The length is a power of two, and at most 5/8 of the places are taken. Empty if the cache is turned
    /// off.
    table: Vec<IndexCacheEntry>,
    len: usize,
    capacity: usize,
    hand: usize,
    threshold: f32,
    /// The counters of the session that is using the cache now.
    counters: Arc<CacheCounters>,
    /// Number of accesses to keys that the session had seen before, but too rarely to judge by the key's own counts
    /// ([`IndexCacheEntry::is_young`]), and of wrong hints among them.
    again: (u32, u32),
    /// For each entry of `table`, at the same index: whether it is certain, and since when.
    certainty: CertaintyTable,
}

impl IndexCache {
    /// Makes a cache of at most `capacity` keys; 0 turns it off.
    pub fn new(capacity: usize, threshold: f64) -> IndexCache {
        let table = if capacity > 0 {
            fusee_fabric::huge_page_vec(IndexCacheEntry::FREE, MIN_PLACES)
        } else {
            Vec::new()
        };
        let counters = Arc::default();
        let threshold = threshold as f32;
        let again = (0, 0);
        let certainty = CertaintyTable::default();
        IndexCache { table, len: 0, capacity, hand: 0, threshold, counters, again, certainty }
    }

    /// Returns a copy with the same entries for another session, without counts and certainty.
    pub fn copied(&self) -> IndexCache {
        let entry =
            |e: &IndexCacheEntry| IndexCacheEntry { accesses: 0, wrong: 0, state: e.state, ..*e };
        let table = self.table.iter().map(entry).collect();
        let IndexCache { len, capacity, hand, threshold, .. } = *self;
        let counters = Arc::default();
        let again = (0, 0);
        let certainty = CertaintyTable::default();
        IndexCache { table, len, capacity, hand, threshold, counters, again, certainty }
    }

    /// Returns this cache with other counters, in which its accesses are counted from now on.
    pub fn counting_with(self, counters: Arc<CacheCounters>) -> IndexCache {
        IndexCache { counters, ..self }
    }

    /// Returns the counts of accesses so far.
    pub fn stats(&self) -> CacheStats {
        self.counters.stats()
    }

    /// Returns the reference to the cache's counters. Before a session uses a shared cache, it replaces them by its own
    /// counters.
    pub(super) fn counters(&mut self) -> &mut Arc<CacheCounters> {
        &mut self.counters
    }

    /// Prefetches the memory that a lookup of this key reads.
    pub fn prefetch(&self, key: &Key<'_>) {
        if !self.table.is_empty() {
            fusee_fabric::prefetch(&self.table[self.home(key.hash())]);
        }
    }

    /// Returns the slot where the key was last seen, without counting an access.
    pub fn peek(&self, key: &Key<'_>) -> Option<Hint> {
        let IndexCacheEntry { slot, word, .. } = &self.table[self.find(key.hash())?];
        Some(Hint { slot: *slot, word: *word, seen: HintTrust::Unverified })
    }

    /// Counts an access, and returns the key's hint. A bypassed key has no hint, unless the caller can use doubted
    /// hints: if `asked` returns true, the key's hint is returned as a doubted one.
    pub fn hint(&mut self, key: &Key<'_>, asked: impl FnOnce() -> bool) -> Option<Hint> {
        let Some(at) = self.find(key.hash()) else {
            self.counters.unknown.add(1);
            return None;
        };
        let entry = &mut self.table[at];
        entry.state = CachePlaceState::Used;
        entry.accesses += 1;
        if entry.accesses == MAX_ACCESSES {
            entry.accesses /= 2;
            entry.wrong /= 2;
        }
        // The cheap check comes first, because most keys have never had a wrong hint.
        let bypass = entry.wrong > 0
            && entry.accesses > MIN_ACCESSES
            && f32::from(entry.wrong) > self.threshold * f32::from(entry.accesses);
        let hint = Hint { slot: entry.slot, word: entry.word, seen: HintTrust::Unverified };
        let is_young = entry.is_young();
        let doubted = Hint { seen: HintTrust::LikelyStale, ..hint };
        if bypass {
            self.counters.bypassed.add(1);
            return asked().then_some(doubted);
        }
        self.counters.hints.add(1);
        let is_old = is_young && self.is_doubted() && asked();
        Some(if is_old { doubted } else { Hint { seen: self.certainty.of(at, key), ..hint } })
    }

    /// Sets the hints of all these keys as [`IndexCache::hint`] does, but without doubted hints.
    pub fn hint_all(&mut self, keys: &mut [SearchKey<'_>]) {
        for SearchKey { key, .. } in &*keys {
            self.prefetch(key);
        }
        // The prefetches of all keys have been issued by now.
        for SearchKey { key, hint } in keys {
            *hint = self.hint(key, || false);
        }
    }

    /// Records the slot in which a read found the key.
    pub fn found(&mut self, key: &Key<'_>, hint: Option<Hint>, place: Option<Hint>) {
        let right = |hint: Hint| place.is_some_and(|place| place.leads_like(&hint));
        let wrong = hint.is_some_and(|hint| !right(hint));
        self.count_wrong(key, hint, wrong);
        match place {
            Some(place) => self.remember(key, place, wrong),
            None => self.forget(key),
        }
    }

    /// Records the slot in which a write left the key.
    pub fn written(&mut self, key: &Key<'_>, hint: Option<Hint>, written: WriteResult) {
        let wrong = hint.is_some() && !written.hint_held;
        self.count_wrong(key, hint, wrong);
        if let Some(place) = written.place {
            self.remember(key, place, wrong);
        } else if let Some(at) = self.find(key.hash()) {
            // Another writer has replaced the word that this write left. The entry's slot is right, but its word is
            // not.
            self.table[at].count_wrong(wrong);
        }
    }

    /// Counts an access to a young key ([`IndexCacheEntry::is_young`]). Returns whether the share of such accesses that
    /// had a wrong hint exceeds the threshold.
    fn is_doubted(&mut self) -> bool {
        if self.again.0 == MAX_AGAIN {
            self.again = (self.again.0 / 2, self.again.1 / 2);
        }
        self.again.0 += 1;
        let (all, wrong) = self.again;
        all >= MIN_AGAIN && wrong as f32 > self.threshold * all as f32
    }

    /// Counts the key's hint as wrong if `wrong` is true. A doubted hint does not count in the statistics, because it
    /// caused no useless READ.
    fn count_wrong(&mut self, key: &Key<'_>, hint: Option<Hint>, wrong: bool) {
        if !wrong {
            return;
        }
        if let Some(at) = self.find(key.hash()) {
            self.again.1 += u32::from(self.table[at].is_young());
        }
        self.counters.wrong.add(u64::from(!hint.is_some_and(|hint| hint.is_doubted())));
    }

    /// Removes the entry of a key that does not exist.
    pub fn forget(&mut self, key: &Key<'_>) {
        if let Some(at) = self.find(key.hash()) {
            self.remove(at);
        }
    }

    fn remember(&mut self, key: &Key<'_>, place: Hint, wrong: bool) {
        let Hint { slot, word, seen } = place;
        let hash = key.hash();
        if let Some(at) = self.find(hash) {
            let entry = &mut self.table[at];
            // If the same word is seen again without certainty, the certainty from before remains valid.
            let is_known =
                (entry.slot, entry.word) == (slot, word) && seen == HintTrust::Unverified;
            (entry.slot, entry.word) = (slot, word);
            entry.count_wrong(wrong);
            if !is_known {
                self.certainty.note(at, self.table.len(), key, seen);
            }
            return;
        }
        if self.capacity == 0 {
            return;
        }
        if self.len == self.capacity {
            self.evict();
        } else if (self.len + 1) * 8 > self.table.len() * 5 {
            self.grow();
        }
        let at = self.put(IndexCacheEntry {
            hash,
            word,
            slot,
            accesses: 1,
            wrong: 0,
            state: CachePlaceState::Passed,
        });
        self.certainty.note(at, self.table.len(), key, seen);
        self.len += 1;
    }

    /// Returns the place at which a search for this key hash begins.
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.table.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.table.len() - 1)
    }

    fn find(&self, hash: u64) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        // The loop ends, because the table always has free places.
        loop {
            let entry = &self.table[at];
            match entry.state {
                CachePlaceState::Free => return None,
                _ if entry.hash == hash => return Some(at),
                _ => at = self.after(at),
            }
        }
    }

    /// Stores an entry in the next free place, and returns that place. The key must not be in the table.
    fn put(&mut self, entry: IndexCacheEntry) -> usize {
        let mut at = self.home(entry.hash);
        while self.table[at].state != CachePlaceState::Free {
            at = self.after(at);
        }
        self.table[at] = entry;
        at
    }

    fn grow(&mut self) {
        let places = 2 * self.table.len();
        let before = std::mem::replace(
            &mut self.table,
            fusee_fabric::huge_page_vec(IndexCacheEntry::FREE, places),
        );
        let moved = self.certainty.grow(places);
        for (from, entry) in
            before.into_iter().enumerate().filter(|(_, e)| e.state != CachePlaceState::Free)
        {
            let to = self.put(entry);
            self.certainty.take(to, moved.get(from));
        }
        self.hand = 0;
    }

    /// Frees a place, and fills the gap with later entries that a search would not find beyond it.
    fn remove(&mut self, at: usize) {
        let mask = self.table.len() - 1;
        let mut gap = at;
        let mut next = self.after(at);
        while self.table[next].state != CachePlaceState::Free {
            let way = next.wrapping_sub(self.home(self.table[next].hash)) & mask;
            if way >= next.wrapping_sub(gap) & mask {
                self.table[gap] = self.table[next];
                self.certainty.moves(next, gap);
                gap = next;
            }
            next = self.after(next);
        }
        self.table[gap] = IndexCacheEntry::FREE;
        self.len -= 1;
    }

    fn evict(&mut self) {
        loop {
            let at = self.hand;
            self.hand = self.after(at);
            match self.table[at].state {
                CachePlaceState::Free => {}
                CachePlaceState::Used => self.table[at].state = CachePlaceState::Passed,
                CachePlaceState::Passed => return self.remove(at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use fusee_core::race::HashKey;
    use proptest::prelude::*;

    use super::*;

    const KEY: &[u8] = b"key";

    fn key_of(bytes: &[u8]) -> Key<'_> {
        Key::new(bytes, &HashKey::new([7; 16]))
    }

    fn place(word: u64) -> Hint {
        Hint {
            slot: SlotRef { subtable: 0, slot: 0 },
            word: Slot(word),
            seen: HintTrust::Unverified,
        }
    }

    #[test]
    fn a_key_that_keeps_changing_is_bypassed_until_it_calms_down() {
        let mut cache = IndexCache::new(10, 0.5);
        cache.found(&key_of(KEY), None, Some(place(0)));
        for word in 1..20 {
            let hint = cache.hint(&key_of(KEY), || false);
            cache.found(&key_of(KEY), hint, Some(place(word)));
        }
        assert_eq!(cache.hint(&key_of(KEY), || false), None, "bypassed");
        let calm = (0..100).find(|_| cache.hint(&key_of(KEY), || false).is_some());
        assert!(calm.is_some(), "cached again");
        assert_eq!(
            cache.hint(&key_of(KEY), || false),
            Some(place(19)),
            "the place was kept up to date"
        );
    }

    /// The share of accesses with a wrong hint approaches the threshold, for a key all of whose hints are wrong.
    #[test]
    fn the_threshold_is_the_share_of_accesses_that_may_be_wrong() {
        for threshold in [0.0, 0.1, 0.25, 0.5, 0.9, 1.0] {
            let mut cache = IndexCache::new(10, threshold);
            cache.found(&key_of(KEY), None, Some(place(0)));
            for word in 1..=10_000 {
                let hint = cache.hint(&key_of(KEY), || false);
                cache.found(&key_of(KEY), hint, Some(place(word)));
            }
            let CacheStats { accesses, hints, wrong, bypassed } = cache.stats();
            assert_eq!((accesses, hints + bypassed, hints), (10_000, 10_000, wrong));
            let share = wrong as f64 / 10_000.0;
            assert!((share - threshold).abs() < 0.001, "{share} at {threshold}");
        }
    }

    #[test]
    fn a_stable_key_always_gets_a_hint_and_own_writes_make_no_wrong_hints() {
        let mut cache = IndexCache::new(10, 0.0);
        cache.written(&key_of(KEY), None, WriteResult { place: Some(place(0)), hint_held: false });
        for word in 1..100 {
            let hint = cache.hint(&key_of(KEY), || false);
            assert_eq!(hint, Some(place(word - 1)));
            cache.written(
                &key_of(KEY),
                hint,
                WriteResult { place: Some(place(word)), hint_held: true },
            );
        }
    }

    #[test]
    fn the_cache_is_bounded_and_can_be_off() {
        let mut cache = IndexCache::new(10, 0.5);
        let mut off = IndexCache::new(0, 0.5);
        for i in 0..1000u32 {
            cache.found(&key_of(&i.to_le_bytes()), None, Some(place(1)));
            off.found(&key_of(&i.to_le_bytes()), None, Some(place(1)));
        }
        let kept = (0..1000u32)
            .filter(|i| cache.hint(&key_of(&i.to_le_bytes()), || false).is_some())
            .count();
        assert!((1..=10).contains(&kept), "{kept}");
        assert_eq!(off.hint(&key_of(&999u32.to_le_bytes()), || false), None);
        let key = (0..1000u32)
            .find(|i| cache.hint(&key_of(&i.to_le_bytes()), || false).is_some())
            .unwrap();
        cache.forget(&key_of(&key.to_le_bytes()));
        assert_eq!(cache.hint(&key_of(&key.to_le_bytes()), || false), None);
    }

    #[test]
    fn keys_that_are_used_stay_while_others_come_and_go() {
        let mut cache = IndexCache::new(100, 0.5);
        for i in 0..10_000u32 {
            let hot = (i % 20).to_le_bytes();
            let cold = (1000 + i).to_le_bytes();
            if cache.hint(&key_of(&hot), || false).is_none() {
                assert!(i < 20, "key {} of the hot ones is forgotten after {i}", i % 20);
                cache.found(&key_of(&hot), None, Some(place(1)));
            }
            cache.found(&key_of(&cold), None, Some(place(2)));
        }
        assert_eq!(cache.len, 100);
    }

    proptest! {
        /// Compares the cache with a map that forgets nothing: a hint is the slot that was recorded last for the key,
        /// and as long as nothing is evicted no hint is missing.
        #[test]
        fn it_hints_at_what_it_was_told_last(
            capacity in 1usize..200,
            steps in prop::collection::vec((0u8..3, 0u16..300), 1..2000),
        ) {
            let mut cache = IndexCache::new(capacity, 1.0);
            let mut model = HashMap::new();
            let place = |i| match i % 3 {
                0 => place(i),
                _ => Hint { seen: HintTrust::FreshSince(i), ..place(i) },
            };
            for (i, (step, key)) in (0..).zip(steps) {
                let bytes = key.to_le_bytes();
                let key = key_of(&bytes);
                match step {
                    0 => {
                        let hint = cache.hint(&key, || false);
                        prop_assert!(hint.is_none() || hint == model.get(&bytes).copied());
                        let evicts = model.len() > capacity;
                        prop_assert!(evicts || hint == model.get(&bytes).copied());
                    }
                    1 => {
                        cache.found(&key, None, Some(place(i)));
                        cache.found(&key, None, Some(place(i).uncertain()));
                        model.insert(bytes, place(i));
                    }
                    _ => {
                        cache.forget(&key);
                        // Once the bound has been exceeded, the model keeps deleted keys, because it does not know
                        // which keys were evicted.
                        if model.len() <= capacity {
                            model.remove(&bytes);
                        } else {
                            prop_assert_eq!(cache.hint(&key, || false), None);
                        }
                    }
                }
                prop_assert!(cache.len <= capacity);
                let taken = cache.table.iter().filter(|e| e.state != CachePlaceState::Free).count();
                prop_assert_eq!(taken, cache.len);
            }
        }
    }
}
