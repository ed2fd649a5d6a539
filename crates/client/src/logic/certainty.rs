//! Certainty about entries of the [index cache](super::cache): the key that an entry belongs to, and the epoch in which
//! that was seen.
//!
//! An entry has 64 bits of a hash, which two keys can share: by chance, or because an attacker with the cluster's
//! secret has chosen them. A write that is [speculative](fusee_core::store) must not mistake one key for another. So
//! this table holds, for each place of the cache's table, 64 bits of another hash, by a secret of this process
//! (SipHash, as in the standard library's maps). Without that secret, an attempt of an attacker to pass off one key as
//! another succeeds once in 2^64 times. The table also holds the epoch ([`Hint::seen`]).
//!
//! If nothing is written speculatively, as over shared memory, the table stays empty.
//!
//! [`Hint::seen`]: fusee_core::store::Hint::seen

// Promise LIN-13

use std::hash::{BuildHasher, RandomState};

use fusee_core::store::HintTrust;

/// Whether one entry of the index cache certainly belongs to its key, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryCertainty {
    /// A hash of the key, made with the table's secret.
    tag: u64,
    /// The epoch of [`HintTrust::FreshSince`]; `u64::MAX` in [`EntryCertainty::NOTHING`].
    epoch: u64,
}

impl EntryCertainty {
    const NOTHING: EntryCertainty = EntryCertainty { tag: 0, epoch: u64::MAX };
}

/// The [`EntryCertainty`] of every entry of an index cache.
#[derive(Debug, Default)]
pub(super) struct CertaintyTable {
    secret: RandomState,
    /// One item for each place of the cache's table; empty until some entry is certain.
    places: Vec<EntryCertainty>,
}

impl CertaintyTable {
    /// Records, for the entry at `at` in a cache table of `places` places, whether `seen` makes it certain that the
    /// entry belongs to `key`, and since which epoch.
    pub fn note(&mut self, at: usize, places: usize, key: &[u8], seen: HintTrust) {
        let certain = match seen {
            HintTrust::FreshSince(epoch) => {
                EntryCertainty { tag: self.secret.hash_one(key), epoch }
            }
            HintTrust::Unverified | HintTrust::LikelyStale if self.places.is_empty() => return,
            HintTrust::Unverified | HintTrust::LikelyStale => EntryCertainty::NOTHING,
        };
        if self.places.is_empty() {
            self.places = fusee_fabric::huge_page_vec(EntryCertainty::NOTHING, places);
        }
        self.places[at] = certain;
    }

    /// Returns the epoch in which the entry was seen, if the entry certainly belongs to this key; otherwise
    /// [`HintTrust::Unverified`].
    pub fn of(&self, at: usize, key: &[u8]) -> HintTrust {
        match self.places.get(at) {
            Some(EntryCertainty { tag, epoch })
                if *epoch != u64::MAX && *tag == self.secret.hash_one(key) =>
            {
                HintTrust::FreshSince(*epoch)
            }
            _ => HintTrust::Unverified,
        }
    }

    /// Records that an entry of the cache has moved from one place to another.
    pub fn moves(&mut self, from: usize, to: usize) {
        if !self.places.is_empty() {
            self.places[to] = self.places[from];
        }
    }

    /// Resizes the table to `places` places. Returns the old items, one for each old place.
    pub fn grow(&mut self, places: usize) -> Vec<EntryCertainty> {
        if self.places.is_empty() {
            return Vec::new();
        }
        std::mem::replace(
            &mut self.places,
            fusee_fabric::huge_page_vec(EntryCertainty::NOTHING, places),
        )
    }

    /// Sets the certainty of an entry that is now at `at`. `before` is the old item of the place that the entry had
    /// before the resize.
    pub fn take(&mut self, at: usize, before: Option<&EntryCertainty>) {
        if let Some(certain) = before {
            self.places[at] = *certain;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_certain_for_this_key_only() {
        let mut certainty = CertaintyTable::default();
        certainty.note(7, 16, b"key", HintTrust::FreshSince(3));
        assert_eq!(certainty.of(7, b"key"), HintTrust::FreshSince(3));
        assert_eq!(certainty.of(7, b"kex"), HintTrust::Unverified, "another key of the same hash");
        assert_eq!(certainty.of(6, b"key"), HintTrust::Unverified, "another entry");
        certainty.note(7, 16, b"key", HintTrust::Unverified);
        assert_eq!(certainty.of(7, b"key"), HintTrust::Unverified, "seen in no epoch since");
    }

    #[test]
    fn without_an_epoch_nothing_is_kept() {
        let mut certainty = CertaintyTable::default();
        certainty.note(7, 16, b"key", HintTrust::Unverified);
        certainty.note(7, 16, b"key", HintTrust::LikelyStale);
        certainty.moves(7, 8);
        assert!(certainty.places.is_empty() && certainty.grow(32).is_empty());
    }
}
