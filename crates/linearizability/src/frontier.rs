//! The situations that a key may be in, and sets of them.

use std::collections::HashMap;

use super::bits::Bits;
use super::plan::State;

/// One situation that the key may be in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Situation<B> {
    pub state: State,
    /// The open operations that have had their instant, by their place in `open`.
    pub done: B,
    /// How many of the counted operations, which never return, have had their instant.
    pub removed: u32,
    pub created: u32,
}

impl<B: Bits> Situation<B> {
    /// Whether whatever may follow the other may follow this.
    pub fn covers(&self, other: &Situation<B>) -> bool {
        self.state == other.state
            && self.removed <= other.removed
            && self.created <= other.created
            && self.done == other.done
    }
}

/// Without the situations that others cover.
pub fn reduced<B: Bits>(mut situations: Vec<Situation<B>>) -> Vec<Situation<B>> {
    if situations.len() < 2 {
        return situations;
    }
    situations.sort_unstable();
    // By the number removed, so that of those kept the last has created least.
    situations.dedup_by(|next, kept| {
        next.state == kept.state && next.done == kept.done && kept.created <= next.created
    });
    situations
}

/// The situations of one search.
pub struct Seen<B> {
    few: Vec<Situation<B>>,
    /// Once they are many.
    many: HashMap<(State, B), Vec<(u32, u32)>>,
    len: usize,
}

/// So many situations are found faster by looking at each.
pub const FEW: usize = 16;

impl<B> Default for Seen<B> {
    fn default() -> Seen<B> {
        Seen { few: Vec::new(), many: HashMap::new(), len: 0 }
    }
}

impl<B: Bits> Seen<B> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.few.clear();
        if !self.many.is_empty() {
            self.many = HashMap::new();
        }
        self.len = 0;
    }

    /// Returns whether it is new: no other covers it.
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
