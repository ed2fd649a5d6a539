//! What a switch must not do with CASes, for tests that show why.
//!
//! `fusee_switch` has no such verdicts, and no scenario draws them: whoever wants one says so, by
//! [`Switches::unsound`](crate::Switches::unsound) or [`RunOptions::unsound`](crate::RunOptions::unsound). Each of
//! them saves something, and is right as long as the switch knows everything. But a request may be changed only if
//! every answer that it can get is true for its client as it is, and here some are not: `tests/unsound.rs` has the
//! shortest history of each, decision 0049 has each in a sentence.
//!
//! What they know is made of what passes, and of true answers. But words come back after all lives of an object, and
//! no run is so long: an adversary has what is known of one word stand for another one now and then, as if it were so
//! old.

use std::collections::HashMap;

use fusee_core::verbs::{MnId, Op, Verb};

/// What a switch does with CASes, and must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsound {
    /// A CAS that expects what an earlier one of somebody else has expected there expects the word of that one
    /// instead. The answer is that of the memory node.
    RewritesExpected,
    /// A CAS that expects what, by its answer, another one has replaced there does not go on: the switch answers that
    /// it has found the other's word. What it knows outlives the words that it is made of.
    EarlyLossTrusted,
    /// A CAS that expects what is there, as far as the switch knows, goes on as a WRITE. The answer is that it has
    /// found what it expects.
    CasToWrite,
}

/// What has become of a CAS.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Forged {
    /// It expects this word.
    Expects(u64),
    /// It does not execute, and has found this word.
    Answered(u64),
    /// It is a WRITE.
    Written,
}

/// A word's node and offset.
type At = (MnId, u64);

/// What unsound switches know, and what they have done.
#[derive(Debug)]
pub(crate) struct Forger {
    unsound: Unsound,
    /// What each of them knows.
    known: Vec<Known>,
    /// What has become of CASes, by their numbers.
    forged: HashMap<u64, Forged>,
}

#[derive(Debug, Default)]
struct Known {
    /// Which word has come after which.
    after: HashMap<(At, u64), u64>,
    /// Which word is there, or was before it.
    shown: HashMap<At, u64>,
}

impl Forger {
    /// So many switches.
    pub(crate) fn new(unsound: Unsound, switches: usize) -> Forger {
        let known = (0..switches).map(|_| Known::default()).collect();
        Forger { unsound, known, forged: HashMap::new() }
    }

    /// A verb of this number has come to a switch. `is_old`: what that knows may be so, too.
    pub(crate) fn request(&mut self, switch: usize, number: u64, verb: &Verb, is_old: bool) {
        if let Some(forged) = self.known[switch].request(self.unsound, verb, is_old) {
            self.forged.insert(number, forged);
        }
    }

    /// The answer to a verb has come to a switch.
    pub(crate) fn answer(&mut self, switch: usize, verb: &Verb) {
        self.known[switch].answer(self.unsound, verb);
    }

    /// A switch forgets all.
    pub(crate) fn forget(&mut self, switch: usize) {
        self.known[switch] = Known::default();
    }

    /// What has become of the verb of this number, if it is another one.
    pub(crate) fn forged(&self, number: u64) -> Option<Forged> {
        self.forged.get(&number).copied()
    }
}

impl Known {
    fn request(&mut self, unsound: Unsound, verb: &Verb, is_old: bool) -> Option<Forged> {
        let Op::Cas { expected, swap, .. } = verb.op else { return None };
        let at = (verb.node, verb.offset);
        match unsound {
            Unsound::RewritesExpected => {
                let other = self.after.insert((at, expected), swap);
                other.filter(|other| *other != swap).map(Forged::Expects)
            }
            Unsound::EarlyLossTrusted => {
                let old = self.shown.get(&at).filter(|word| is_old && **word != expected);
                self.after.get(&(at, expected)).or(old).copied().map(Forged::Answered)
            }
            Unsound::CasToWrite => {
                let shown = self.shown.get_mut(&at).filter(|shown| **shown == expected)?;
                *shown = swap;
                Some(Forged::Written)
            }
        }
    }

    fn answer(&mut self, unsound: Unsound, verb: &Verb) {
        let Op::Cas { expected, swap, found } = verb.op else { return };
        let at = (verb.node, verb.offset);
        let has_replaced = found == expected;
        match (unsound, has_replaced) {
            (Unsound::RewritesExpected, _) | (Unsound::EarlyLossTrusted, false) => {}
            (Unsound::EarlyLossTrusted, true) => {
                self.after.insert((at, expected), swap);
                self.shown.insert(at, expected);
            }
            // It may be late: what has passed since then counts more.
            (Unsound::CasToWrite, true) => drop(self.shown.entry(at).or_insert(swap)),
            (Unsound::CasToWrite, false) => drop(self.shown.remove(&at)),
        }
    }
}
