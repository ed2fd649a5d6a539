//! Situations in which a key can be, and sets of situations.

use std::collections::HashMap;

use super::bits::BitSet;
use super::plan::KeyPresence;

/// A situation in which the key can be: its state, and the operations that have had their instant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Situation<B> {
    pub state: KeyPresence,
    /// The open operations that have had their instant, by their places in the search's `open`.
    pub done: B,
    /// The number of counted operations (which never return) that have had their instant and remove the key. `created`
    /// is the number of those that create the key.
    pub removed: u32,
    pub created: u32,
}

impl<B: BitSet> Situation<B> {
    /// Returns whether every future that is possible after `other` is possible after this situation.
    pub fn covers(&self, other: &Situation<B>) -> bool {
        self.state == other.state
            && self.removed <= other.removed
            && self.created <= other.created
            && self.done == other.done
    }
}

/// Drops the situations that other situations cover.
pub fn reduced<B: BitSet>(mut situations: Vec<Situation<B>>) -> Vec<Situation<B>> {
    if situations.len() < 2 {
        return situations;
    }
    situations.sort_unstable();
    // The situations are sorted by state, set and `removed`. So of the kept situations with the same state and set, the
    // last one has the smallest `created`.
    situations.dedup_by(|next, kept| {
        next.state == kept.state && next.done == kept.done && kept.created <= next.created
    });
    situations
}

/// The situations that one search has met.
pub struct SeenSituations<B> {
    few: Vec<Situation<B>>,
    /// Used instead of `few` for more than [`FEW`] situations: for each state and set of operations, the counts
    /// `removed` and `created` of the situations.
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
    /// Returns the number of situations in the set.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Removes all situations from the set.
    pub fn clear(&mut self) {
        self.few.clear();
        if !self.many.is_empty() {
            self.many = HashMap::new();
        }
        self.len = 0;
    }

    /// Adds a situation, unless another situation covers it. Returns whether it was added.
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
