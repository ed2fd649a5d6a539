//! Keys that were seen in this local epoch, with where: what the index cache does not know for certain.
//!
//! An entry of the [index cache](super::cache) has 64 bits of a hash, and somebody who chooses keys can make
//! two of them alike. A write that is [speculative](fusee_core::store) must not take one key for another, so here
//! stands the key itself, and the local epoch ([`Hint::seen`]): a hint of an earlier one is of no use to it.
//! A key takes the place of another one whose hash ends alike. Whoever writes nothing speculatively, as over
//! shared memory, leaves this empty.

use fusee_core::race::Key;
use fusee_core::store::{Hint, Sight};

/// Keys that are remembered; a power of two.
const PLACES: usize = 4096;
/// Longer keys are not remembered, so that these take less than 1 MiB.
const MAX_KEY_BYTES: usize = 160;

/// A key with its place.
#[derive(Clone, Debug)]
struct Seen {
    key: Vec<u8>,
    hint: Hint,
}

/// The keys that were seen lately.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// None until something is remembered.
    places: Vec<Option<Seen>>,
}

impl Recent {
    fn at(hash: u64) -> usize {
        hash as usize & (PLACES - 1)
    }

    /// Takes note of where a key is, if it is known when that was seen.
    pub fn remember(&mut self, key: &Key<'_>, hint: Hint) {
        self.put(key.hash(), key, hint);
    }

    fn put(&mut self, hash: u64, key: &[u8], hint: Hint) {
        if !matches!(hint.seen, Sight::In(_)) || key.len() > MAX_KEY_BYTES {
            return;
        }
        if self.places.is_empty() {
            self.places = vec![None; PLACES];
        }
        match &mut self.places[Recent::at(hash)] {
            // Its memory is used again.
            Some(seen) => {
                seen.key.clear();
                seen.key.extend_from_slice(key);
                seen.hint = hint;
            }
            free => *free = Some(Seen { key: key.to_vec(), hint }),
        }
    }

    /// A hint, with the local epoch in which it was seen if it is certainly the key's.
    pub fn confirm(&self, key: &Key<'_>, hint: Hint) -> Hint {
        self.get(key.hash(), key, hint)
    }

    fn get(&self, hash: u64, key: &[u8], hint: Hint) -> Hint {
        let seen = self.places.get(Recent::at(hash)).and_then(Option::as_ref);
        let seen = seen.filter(|seen| seen.key == key && seen.hint.leads_like(&hint));
        seen.map_or(hint.uncertain(), |seen| seen.hint)
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::layout::Slot;
    use fusee_core::view::SlotRef;

    use super::*;

    fn hint(word: u64, seen: Option<u64>) -> Hint {
        let seen = seen.map_or(Sight::Sometime, Sight::In);
        Hint { slot: SlotRef { subtable: 0, slot: 0 }, word: Slot(word), seen }
    }

    #[test]
    fn what_was_seen_is_certain_for_this_key_and_this_word_only() {
        let mut recent = Recent::default();
        recent.put(7, b"key", hint(1, Some(3)));
        assert_eq!(recent.get(7, b"key", hint(1, None)), hint(1, Some(3)));
        assert_eq!(recent.get(7, b"kex", hint(1, None)), hint(1, None), "another key, same hash");
        assert_eq!(recent.get(7, b"key", hint(2, None)), hint(2, None), "another word");
        recent.put(7, b"kex", hint(1, Some(4)));
        assert_eq!(recent.get(7, b"key", hint(1, None)), hint(1, None), "forgotten");
        assert_eq!(recent.get(7, b"kex", hint(1, None)), hint(1, Some(4)));
    }

    #[test]
    fn without_a_moment_nothing_is_remembered() {
        let mut recent = Recent::default();
        recent.put(7, b"key", hint(1, None));
        assert!(recent.places.is_empty());
        recent.put(7, &[0; MAX_KEY_BYTES + 1], hint(1, Some(3)));
        assert!(recent.places.is_empty());
    }
}
