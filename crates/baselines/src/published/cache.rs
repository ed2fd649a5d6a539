//! The adaptive index cache: where a key's slot is, what it showed, and how often that was wrong (P §4.6).
//!
//! Clients that learn from one another share what they have learned, and keep what they find out themselves apart.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::object::Word;

/// What is known of a key. The key itself is compared with the object's.
#[derive(Clone, Copy, Debug)]
struct Entry {
    word: u64,
    slot: u32,
    accesses: u32,
    invalid: u32,
}

type Entries = HashMap<u64, Entry>;

/// Where a key was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    pub slot: u32,
    pub word: Word,
}

/// A client's cache.
#[derive(Debug)]
pub(super) struct Cache {
    threshold: Option<f64>,
    learned: RefCell<Rc<Entries>>,
    own: RefCell<Entries>,
}

impl Cache {
    pub fn new(threshold: Option<f64>) -> Cache {
        Cache { threshold, learned: RefCell::default(), own: RefCell::default() }
    }

    /// Counts an access to a key. Where it was, unless that was wrong too often.
    pub fn access(&self, hash: u64) -> Option<Hint> {
        let threshold = self.threshold?;
        let mut own = self.own.borrow_mut();
        let entry = match own.get_mut(&hash) {
            Some(entry) => entry,
            None => own.entry(hash).or_insert(*self.learned.borrow().get(&hash)?),
        };
        entry.accesses += 1;
        let ratio = f64::from(entry.invalid) / f64::from(entry.accesses);
        (ratio <= threshold).then_some(Hint { slot: entry.slot, word: Word(entry.word) })
    }

    /// What a key's hint led to was invalid.
    pub fn invalid(&self, hash: u64) {
        if let Some(entry) = self.own.borrow_mut().get_mut(&hash) {
            entry.invalid += 1;
        }
    }

    /// A key is there.
    pub fn put(&self, hash: u64, slot: u32, word: Word) {
        if self.threshold.is_none() {
            return;
        }
        let word = word.0;
        let learned =
            || self.learned.borrow().get(&hash).map_or((0, 0), |e| (e.accesses, e.invalid));
        let mut own = self.own.borrow_mut();
        let entry = own.entry(hash).or_insert_with(|| {
            let (accesses, invalid) = learned();
            Entry { word, slot, accesses, invalid }
        });
        (entry.word, entry.slot) = (word, slot);
    }

    /// Takes over what another client knows of keys that this one does not know.
    pub fn learn_from(&self, other: &Cache) {
        if self.threshold.is_none() || std::ptr::eq(self, other) {
            return;
        }
        let known = other.share();
        let mine = self.learned.replace(known.clone());
        if Rc::ptr_eq(&mine, &known) {
            return;
        }
        let mut own = self.own.borrow_mut();
        for (hash, entry) in mine.iter() {
            own.entry(*hash).or_insert(*entry);
        }
    }

    /// All that it knows, for others to share.
    fn share(&self) -> Rc<Entries> {
        let mut learned = self.learned.borrow_mut();
        let mut own = self.own.borrow_mut();
        if !own.is_empty() {
            Rc::make_mut(&mut learned).extend(own.drain());
        }
        learned.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_wrong_too_often_is_not_looked_up_until_it_is_right_again() {
        let cache = Cache::new(Some(0.5));
        cache.put(1, 7, Word(70));
        assert_eq!(cache.access(1), Some(Hint { slot: 7, word: Word(70) }));
        cache.invalid(1);
        cache.put(1, 7, Word(71));
        // One of two.
        assert_eq!(cache.access(1), Some(Hint { slot: 7, word: Word(71) }));
        cache.invalid(1);
        // Two of three.
        assert_eq!(cache.access(1), None);
        assert!(cache.access(1).is_some(), "two of four");
        assert_eq!(Cache::new(None).access(1), None);
    }

    #[test]
    fn what_was_learned_is_shared_and_what_is_found_out_is_not() {
        let [a, b] = [0.1, 0.1].map(|threshold| Cache::new(Some(threshold)));
        a.put(1, 7, Word(70));
        b.put(2, 8, Word(80));
        b.learn_from(&a);
        assert_eq!(b.access(1), Some(Hint { slot: 7, word: Word(70) }));
        assert_eq!(b.access(2), Some(Hint { slot: 8, word: Word(80) }));
        b.put(1, 7, Word(71));
        assert_eq!(a.access(1), Some(Hint { slot: 7, word: Word(70) }));
        assert_eq!(a.access(2), None);
    }
}
