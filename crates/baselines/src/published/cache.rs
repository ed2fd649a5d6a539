//! The adaptive index cache (P §4.6): a key's slot, the word seen there, and how often that hint was wrong.

use super::object::PublishedSlotWord;
use crate::cache;

/// A key's hint with its statistics. The cache finds hints by the key's hash, so a reader must compare the key with the
/// object's.
#[derive(Clone, Copy, Debug)]
struct PublishedCacheEntry {
    hint: PublishedHint,
    accesses: u32,
    invalid: u32,
}

/// A slot that had a key, and the slot's word at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublishedHint {
    pub slot: u32,
    pub word: PublishedSlotWord,
}

/// A client's index cache.
pub(super) struct PublishedCache {
    threshold: Option<f64>,
    entries: cache::BaselineCache<u64, PublishedCacheEntry>,
}

impl PublishedCache {
    pub fn new(threshold: Option<f64>) -> PublishedCache {
        PublishedCache { threshold, entries: cache::BaselineCache::default() }
    }

    /// Counts an access to a key. Returns the key's hint, unless hints of this key were wrong too often.
    pub fn access(&self, hash: u64) -> Option<PublishedHint> {
        let threshold = self.threshold?;
        let entry = self.entries.get(hash)?;
        let entry = PublishedCacheEntry { accesses: entry.accesses + 1, ..entry };
        self.entries.put(hash, entry);
        let ratio = f64::from(entry.invalid) / f64::from(entry.accesses);
        (ratio <= threshold).then_some(entry.hint)
    }

    /// Records that a key's hint was wrong.
    pub fn invalid(&self, hash: u64) {
        if let Some(entry) = self.entries.get(hash) {
            self.entries.put(hash, PublishedCacheEntry { invalid: entry.invalid + 1, ..entry });
        }
    }

    /// Records a key's slot and the slot's word.
    pub fn put(&self, hash: u64, slot: u32, word: PublishedSlotWord) {
        if self.threshold.is_some() {
            let hint = PublishedHint { slot, word };
            let known = self.entries.get(hash);
            let entry = known.map_or(PublishedCacheEntry { hint, accesses: 0, invalid: 0 }, |e| {
                PublishedCacheEntry { hint, ..e }
            });
            self.entries.put(hash, entry);
        }
    }

    /// Copies the other client's entries for keys that this cache does not have.
    pub fn learn_from(&self, other: &PublishedCache) {
        if self.threshold.is_some() {
            self.entries.learn_from(&other.entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_wrong_too_often_is_not_looked_up_until_it_is_right_again() {
        let cache = PublishedCache::new(Some(0.5));
        cache.put(1, 7, PublishedSlotWord(70));
        assert_eq!(cache.access(1), Some(PublishedHint { slot: 7, word: PublishedSlotWord(70) }));
        cache.invalid(1);
        cache.put(1, 7, PublishedSlotWord(71));
        // One of two accesses found a wrong hint.
        assert_eq!(cache.access(1), Some(PublishedHint { slot: 7, word: PublishedSlotWord(71) }));
        cache.invalid(1);
        // Two of three accesses found a wrong hint.
        assert_eq!(cache.access(1), None);
        assert!(cache.access(1).is_some(), "two of four");
        assert_eq!(PublishedCache::new(None).access(1), None);
    }

    #[test]
    fn what_was_learned_is_shared_and_what_is_found_out_is_not() {
        let [a, b] = [0.1, 0.1].map(|threshold| PublishedCache::new(Some(threshold)));
        a.put(1, 7, PublishedSlotWord(70));
        b.put(2, 8, PublishedSlotWord(80));
        b.learn_from(&a);
        assert_eq!(b.access(1), Some(PublishedHint { slot: 7, word: PublishedSlotWord(70) }));
        assert_eq!(b.access(2), Some(PublishedHint { slot: 8, word: PublishedSlotWord(80) }));
        b.put(1, 7, PublishedSlotWord(71));
        assert_eq!(a.access(1), Some(PublishedHint { slot: 7, word: PublishedSlotWord(70) }));
        assert_eq!(a.access(2), None);
    }
}
