//! Of which key an entry of the [index cache](super::cache) certainly is, and since when.
//!
//! An entry has 64 bits of a hash, which two keys may share: by chance, or since somebody chose them who knows the
//! cluster's secret. A write that is [speculative](fusee_core::store) must not take one key for another. So here
//! stand, for the entry's place in the table, 64 bits of another hash, by a secret of this table (SipHash, as in the
//! standard library's maps): who does not know it makes one key pass for another once in 2^64 attempts. And the
//! epoch ([`Hint::seen`]).
//!
//! Whoever writes nothing speculatively, as over shared memory, leaves this empty.
//!
//! [`Hint::seen`]: fusee_core::store::Hint::seen

use std::hash::{BuildHasher, RandomState};

use fusee_core::store::Sight;

/// What is certain of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Certain {
    /// Of the key, by the secret.
    tag: u64,
    /// [`Certain::NOTHING`], or the epoch of [`Sight::Since`].
    epoch: u64,
}

impl Certain {
    const NOTHING: Certain = Certain { tag: 0, epoch: u64::MAX };
}

/// What is certain of the entries of a table.
#[derive(Debug, Default)]
pub(super) struct Certainty {
    secret: RandomState,
    /// As many as the table has; none until something is certain.
    places: Vec<Certain>,
}

impl Certainty {
    /// An entry of a table with so many places now says where the key was seen, and when.
    pub fn note(&mut self, at: usize, places: usize, key: &[u8], seen: Sight) {
        let certain = match seen {
            Sight::Since(epoch) => Certain { tag: self.secret.hash_one(key), epoch },
            Sight::Sometime | Sight::Doubted if self.places.is_empty() => return,
            Sight::Sometime | Sight::Doubted => Certain::NOTHING,
        };
        if self.places.is_empty() {
            self.places = fusee_fabric::filled(Certain::NOTHING, places);
        }
        self.places[at] = certain;
    }

    /// When what an entry says of a key was seen, if it is certainly this key's.
    pub fn of(&self, at: usize, key: &[u8]) -> Sight {
        match self.places.get(at) {
            Some(Certain { tag, epoch })
                if *epoch != u64::MAX && *tag == self.secret.hash_one(key) =>
            {
                Sight::Since(*epoch)
            }
            _ => Sight::Sometime,
        }
    }

    /// An entry has gone to another place.
    pub fn moves(&mut self, from: usize, to: usize) {
        if !self.places.is_empty() {
            self.places[to] = self.places[from];
        }
    }

    /// The table has so many places from now on; returns what is certain of those that it had.
    pub fn grow(&mut self, places: usize) -> Vec<Certain> {
        if self.places.is_empty() {
            return Vec::new();
        }
        std::mem::replace(&mut self.places, fusee_fabric::filled(Certain::NOTHING, places))
    }

    /// The entry of a place before that is at this one now.
    pub fn take(&mut self, at: usize, before: Option<&Certain>) {
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
        let mut certainty = Certainty::default();
        certainty.note(7, 16, b"key", Sight::Since(3));
        assert_eq!(certainty.of(7, b"key"), Sight::Since(3));
        assert_eq!(certainty.of(7, b"kex"), Sight::Sometime, "another key of the same hash");
        assert_eq!(certainty.of(6, b"key"), Sight::Sometime, "another entry");
        certainty.note(7, 16, b"key", Sight::Sometime);
        assert_eq!(certainty.of(7, b"key"), Sight::Sometime, "seen in no epoch since");
    }

    #[test]
    fn without_an_epoch_nothing_is_kept() {
        let mut certainty = Certainty::default();
        certainty.note(7, 16, b"key", Sight::Sometime);
        certainty.note(7, 16, b"key", Sight::Doubted);
        certainty.moves(7, 8);
        assert!(certainty.places.is_empty() && certainty.grow(32).is_empty());
    }
}
