//! Situations of a key, and sets of them.

use std::collections::HashMap;

use super::bits::BitSet;
use super::plan::KeyPresence;

/// A situation that the key may be in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Situation<B> {
    pub state: KeyPresence,
    /// The open operations that have had their instant, by their place in `open`.
    pub done: B,
    /// Numbers of counted operations, which never return, that have had their instant.
    pub removed: u32,
    pub created: u32,
}

impl<B: BitSet> Situation<B> {
    /// Returns whether every future that is possible after `other` is possible after this one.
    pub fn covers(&self, other: &Situation<B>) -> bool {
        self.state == other.state
            && self.removed <= other.removed
            && self.created <= other.created
            && self.done == other.done
    }
}

/// Drops the situations that others cover.
pub fn reduced<B: BitSet>(mut situations: Vec<Situation<B>>) -> Vec<Situation<B>> {
    if situations.len() < 2 {
        return situations;
    }
    situations.sort_unstable();
    // Sorted by `removed`: among equal states and sets, the last one kept has created least.
    situations.dedup_by(|next, kept| {
        next.state == kept.state && next.done == kept.done && kept.created <= next.created
    });
    situations
}

/// The situations that one search has seen.
pub struct SeenSituations<B> {
    few: Vec<Situation<B>>,
    /// Used instead of `few` for more than [`FEW`] situations.
    many: HashMap<(KeyPresence, B), Vec<(u32, u32)>>,
    len: usize,
}

/// Number of situations up to which a linear search is faster than a map.
pub const FEW: usize = 16;

impl<B> Default for SeenSituations<B> {
    fn default() -> SeenSituations<B> {
        SeenSituations { few: Vec::new(), many: HashMap::new(), len: 0 }
    }
}

impl<B: BitSet> SeenSituations<B> {
    /// Returns the number of situations.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets all situations.
    pub fn clear(&mut self) {
        self.few.clear();
        if !self.many.is_empty() {
            self.many = HashMap::new();
        }
        self.len = 0;
    }

    /// Adds a situation, unless another one covers it. Returns whether it was added.
    pub fn insert(&mut self, situation: &Situation<B>) -> bool {
        if self.many.is_empty() && self.few.len() < FEW {
            if self.few.iter().any(|other| other.covers(situation)) {
                return false;
            }
            self.few.push(situation.clone());
        } else {
            for situation in self.few.drain(..) {
                let used = (situation.removed, situation.created);
                self.many.entry((situation.state, situation.done)).or_default().push(used);
            }
            let key = (situation.state, situation.done.clone());
            let used = self.many.entry(key).or_default();
            let covers =
                |other: &(u32, u32)| other.0 <= situation.removed && other.1 <= situation.created;
            if used.iter().any(covers) {
                return false;
            }
            used.push((situation.removed, situation.created));
        }
        self.len += 1;
        true
    }
}
