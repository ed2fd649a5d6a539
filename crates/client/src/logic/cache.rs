//! The adaptive index cache (P §4.6): where this session last saw a key.
//!
//! An entry is a guess that saves a phase when it is right and costs an object READ when it is
//! wrong. Per key we count accesses and wrong guesses. A key with a larger share of wrong guesses
//! than the threshold is *bypassed*: its accesses go through the index, which keeps counting
//! them, so that a key that calms down is cached again. The entry holds the slot's word, and the
//! slot that is read is compared with it: there is no invalidation bit that could be forgotten.
//!
//! The cache is bounded; the keys used least are forgotten first (quick_cache, S3-FIFO).

use fusee_core::store::{Hint, Written};
use quick_cache::unsync;

/// Accesses before a key may be bypassed: fewer say nothing.
const MIN_ACCESSES: u32 = 4;
/// Where the counters are halved, so that old behaviour fades and they never overflow.
const MAX_ACCESSES: u32 = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Hint,
    accesses: u32,
    wrong: u32,
}

/// A session's index cache.
pub(super) struct IndexCache {
    entries: Option<unsync::Cache<Box<[u8]>, Entry>>,
    threshold: f64,
}

impl IndexCache {
    /// A cache of at most `capacity` keys; none at all for 0.
    pub fn new(capacity: usize, threshold: f64) -> IndexCache {
        let entries = (capacity > 0).then(|| unsync::Cache::new(capacity));
        IndexCache { entries, threshold }
    }

    /// Counts an access, and guesses where the key is.
    pub fn guess(&mut self, key: &[u8]) -> Option<Hint> {
        let mut entry = self.entries.as_mut()?.get_mut(key)?;
        entry.accesses += 1;
        if entry.accesses == MAX_ACCESSES {
            entry.accesses /= 2;
            entry.wrong /= 2;
        }
        let ratio = f64::from(entry.wrong) / f64::from(entry.accesses);
        let bypass = entry.accesses > MIN_ACCESSES && ratio > self.threshold;
        (!bypass).then_some(entry.place)
    }

    /// Takes note of where a read found the key.
    pub fn found(&mut self, key: &[u8], guess: Option<Hint>, place: Option<Hint>) {
        let wrong = guess.is_some() && guess != place;
        match place {
            Some(place) => self.remember(key, place, wrong),
            None => self.forget(key),
        }
    }

    /// Takes note of what a write left behind.
    pub fn written(&mut self, key: &[u8], guess: Option<Hint>, written: Written) {
        let wrong = guess.is_some() && !written.hint_held;
        if let Some(place) = written.place {
            self.remember(key, place, wrong);
        } else if let Some(mut entry) = self.entries.as_mut().and_then(|e| e.get_mut(key)) {
            // Overtaken by another writer: the slot is right, its word is not.
            entry.wrong += u32::from(wrong);
        }
    }

    /// Forgets a key that does not exist.
    pub fn forget(&mut self, key: &[u8]) {
        if let Some(entries) = &mut self.entries {
            entries.remove(key);
        }
    }

    fn remember(&mut self, key: &[u8], place: Hint, wrong: bool) {
        let Some(entries) = &mut self.entries else { return };
        if let Some(mut entry) = entries.get_mut(key) {
            entry.place = place;
            entry.wrong += u32::from(wrong);
            return;
        }
        entries.insert(key.into(), Entry { place, accesses: 1, wrong: 0 });
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::layout::Slot;
    use fusee_core::view::SlotRef;

    use super::*;

    fn place(word: u64) -> Hint {
        Hint { slot: SlotRef { subtable: 0, slot: 0 }, word: Slot(word) }
    }

    #[test]
    fn a_key_that_keeps_changing_is_bypassed_until_it_calms_down() {
        let mut cache = IndexCache::new(10, 0.5);
        cache.found(b"key", None, Some(place(0)));
        for word in 1..20 {
            let guess = cache.guess(b"key");
            cache.found(b"key", guess, Some(place(word)));
        }
        assert_eq!(cache.guess(b"key"), None, "bypassed");
        let calm = (0..100).find(|_| cache.guess(b"key").is_some());
        assert!(calm.is_some(), "cached again");
        assert_eq!(cache.guess(b"key"), Some(place(19)), "the place was kept up to date");
    }

    #[test]
    fn a_stable_key_is_always_guessed_and_own_writes_are_not_wrong_guesses() {
        let mut cache = IndexCache::new(10, 0.0);
        cache.written(b"key", None, Written { place: Some(place(0)), hint_held: false });
        for word in 1..100 {
            let guess = cache.guess(b"key");
            assert_eq!(guess, Some(place(word - 1)));
            cache.written(b"key", guess, Written { place: Some(place(word)), hint_held: true });
        }
    }

    #[test]
    fn the_cache_is_bounded_and_can_be_off() {
        let mut cache = IndexCache::new(10, 0.5);
        let mut off = IndexCache::new(0, 0.5);
        for i in 0..1000u32 {
            cache.found(&i.to_le_bytes(), None, Some(place(1)));
            off.found(&i.to_le_bytes(), None, Some(place(1)));
        }
        let kept = (0..1000u32).filter(|i| cache.guess(&i.to_le_bytes()).is_some()).count();
        assert!((1..=10).contains(&kept), "{kept}");
        assert_eq!(off.guess(&999u32.to_le_bytes()), None);
        let key = (0..1000u32).find(|i| cache.guess(&i.to_le_bytes()).is_some()).unwrap();
        cache.forget(&key.to_le_bytes());
        assert_eq!(cache.guess(&key.to_le_bytes()), None);
    }
}
