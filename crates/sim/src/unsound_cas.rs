//! Forbidden treatment of CASes by switches, for tests that show why it is forbidden.
//!
//! `fusee_switch` has no such verdicts, and no scenario draws them: a run must ask for one by
//! [`Switches::unsound`](crate::Switches::unsound) or [`RunOptions::unsound`](crate::RunOptions::unsound). Each of
//! them saves something, and is right as long as the switch knows everything. But a request may be changed only if
//! every possible answer to the changed request is also true for the original one. Here some answers are not:
//! `tests/unsound.rs` has the shortest history of each, decision 0049 has each in a sentence.
//!
//! The switches' knowledge comes from passing requests and true answers. But words recur after all lives of an
//! object, and no run is long enough for that. So an adversary sometimes lets the knowledge about one word stand for
//! another word, as if it were that old.

use std::collections::HashMap;

use fusee_core::verbs::{MnId, Verb, VerbOp};

/// A forbidden treatment of CASes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsoundCas {
    /// If an earlier CAS of another client expected the same word there, the CAS expects that one's new word instead.
    /// The client gets the answer of the memory node.
    RewritesExpected,
    /// If by an earlier answer another CAS has replaced the expected word, the CAS is not forwarded: the switch
    /// answers that it has found the other's word. This knowledge outlives the words.
    EarlyLossTrusted,
    /// If the expected word is there, as far as the switch knows, the CAS is forwarded as a WRITE. The switch answers
    /// that it has found the expected word.
    CasToWrite,
}

/// The change of a CAS.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForgedCas {
    /// The CAS expects this word.
    Expects(u64),
    /// The CAS does not execute; the answer is this word.
    Answered(u64),
    /// The CAS is a WRITE.
    Written,
}

/// A word's node and offset.
type WordAddress = (MnId, u64);

/// Knowledge and effects of unsound switches.
#[derive(Debug)]
pub(crate) struct Forger {
    unsound: UnsoundCas,
    /// The knowledge of each switch.
    known: Vec<ForgerKnowledge>,
    /// Changed CASes, by their numbers.
    forged: HashMap<u64, ForgedCas>,
}

#[derive(Debug, Default)]
struct ForgerKnowledge {
    /// The word that has replaced a word.
    after: HashMap<(WordAddress, u64), u64>,
    /// The word at a place, or the one before it.
    shown: HashMap<WordAddress, u64>,
}

impl Forger {
    /// Makes the state of this number of switches.
    pub(crate) fn new(unsound: UnsoundCas, switches: usize) -> Forger {
        let known = (0..switches).map(|_| ForgerKnowledge::default()).collect();
        Forger { unsound, known, forged: HashMap::new() }
    }

    /// Handles a verb of this number at a switch. `is_old`: the switch's knowledge may be older than the lives of its
    /// words.
    pub(crate) fn request(&mut self, switch: usize, number: u64, verb: &Verb, is_old: bool) {
        if let Some(forged) = self.known[switch].request(self.unsound, verb, is_old) {
            self.forged.insert(number, forged);
        }
    }

    /// Handles the answer to a verb at a switch.
    pub(crate) fn answer(&mut self, switch: usize, verb: &Verb) {
        self.known[switch].answer(self.unsound, verb);
    }

    /// Makes a switch forget everything.
    pub(crate) fn forget(&mut self, switch: usize) {
        self.known[switch] = ForgerKnowledge::default();
    }

    /// Returns the change of the CAS of this number, if there is one.
    pub(crate) fn forged(&self, number: u64) -> Option<ForgedCas> {
        self.forged.get(&number).copied()
    }
}

impl ForgerKnowledge {
    fn request(&mut self, unsound: UnsoundCas, verb: &Verb, is_old: bool) -> Option<ForgedCas> {
        let VerbOp::Cas { expected, swap, .. } = verb.op else { return None };
        let at = (verb.node, verb.offset);
        match unsound {
            UnsoundCas::RewritesExpected => {
                let other = self.after.insert((at, expected), swap);
                other.filter(|other| *other != swap).map(ForgedCas::Expects)
            }
            UnsoundCas::EarlyLossTrusted => {
                let old = self.shown.get(&at).filter(|word| is_old && **word != expected);
                self.after.get(&(at, expected)).or(old).copied().map(ForgedCas::Answered)
            }
            UnsoundCas::CasToWrite => {
                let shown = self.shown.get_mut(&at).filter(|shown| **shown == expected)?;
                *shown = swap;
                Some(ForgedCas::Written)
            }
        }
    }

    fn answer(&mut self, unsound: UnsoundCas, verb: &Verb) {
        let VerbOp::Cas { expected, swap, found } = verb.op else { return };
        let at = (verb.node, verb.offset);
        let has_replaced = found == expected;
        match (unsound, has_replaced) {
            (UnsoundCas::RewritesExpected, _) | (UnsoundCas::EarlyLossTrusted, false) => {}
            (UnsoundCas::EarlyLossTrusted, true) => {
                self.after.insert((at, expected), swap);
                self.shown.insert(at, expected);
            }
            // The answer may be late: requests that have passed since then take precedence.
            (UnsoundCas::CasToWrite, true) => drop(self.shown.entry(at).or_insert(swap)),
            (UnsoundCas::CasToWrite, false) => drop(self.shown.remove(&at)),
        }
    }
}
