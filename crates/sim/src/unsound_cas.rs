//! Treatments of CASes that are forbidden to switches, for tests that show why they are forbidden.
//!
//! `fusee_switch` offers no such treatment, and no scenario draws one: a run must ask for one by
//! [`Switches::unsound`](crate::Switches::unsound) or [`RunOptions::unsound`](crate::RunOptions::unsound). Each
//! treatment saves some time, and is right as long as the switch knows everything. But a switch is allowed to change a
//! request only if every possible answer to the changed request is also true for the original one. Here some answers
//! are not. `tests/unsound.rs` has the shortest history that shows this for each treatment, and decision 0049 describes
//! each in a sentence.
//!
//! A switch learns from passing requests and true answers. But slot words recur once an address has used up all its
//! generations, and no run is long enough for that. So an adversary sometimes applies the knowledge about one word to
//! another word, as if the knowledge were so old.

use std::collections::HashMap;

use fusee_core::verbs::{MnId, Verb, VerbOp};

/// A forbidden treatment of CASes by a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsoundCas {
    /// If the switch has seen an earlier CAS on this slot that expected the same word but had another new word, this
    /// CAS is changed to expect the new word of that earlier CAS. The client gets the memory node's answer.
    RewritesExpected,
    /// If the switch has seen in an answer that another CAS has replaced the expected word, this CAS is not forwarded:
    /// the switch answers with the word that the other CAS wrote. The switch keeps this knowledge even when the words
    /// recur.
    EarlyLossTrusted,
    /// If, as far as the switch knows, the slot holds the expected word, the CAS is forwarded as a WRITE, and the
    /// switch answers that the slot held the expected word.
    CasToWrite,
}

/// The change that a switch has made to a CAS.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForgedCas {
    /// The CAS expects this word instead of its own.
    Expects(u64),
    /// The CAS does not execute, and its answer is this word.
    Answered(u64),
    /// The CAS executes as a WRITE of its new word.
    Written,
}

/// The memory node and offset of a word.
type WordAddress = (MnId, u64);

/// The knowledge of unsound switches, and the CASes that they have changed.
#[derive(Debug)]
pub(crate) struct Forger {
    unsound: UnsoundCas,
    /// The knowledge of each switch, by its number.
    known: Vec<ForgerKnowledge>,
    /// The CASes that switches have changed, by the numbers of the verbs.
    forged: HashMap<u64, ForgedCas>,
}

#[derive(Debug, Default)]
struct ForgerKnowledge {
    /// For a place and a word there, the word that has replaced that word; for `RewritesExpected`, the new word of the
    /// latest CAS that expected that word, whether or not that CAS succeeded.
    after: HashMap<(WordAddress, u64), u64>,
    /// The word that the switch last saw at a place; for `EarlyLossTrusted`, the word before the last replacement.
    shown: HashMap<WordAddress, u64>,
}

impl Forger {
    /// Makes the state for this number of switches.
    pub(crate) fn new(unsound: UnsoundCas, switches: usize) -> Forger {
        let known = (0..switches).map(|_| ForgerKnowledge::default()).collect();
        Forger { unsound, known, forged: HashMap::new() }
    }

    /// Handles a verb with this number at a switch. If `is_old`, the switch acts as if its knowledge were so old that
    /// words have recurred.
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

    /// Returns the change of the CAS with this number, if a switch has changed it.
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
            // This answer is possibly late, so requests that passed after the CAS take precedence.
            (UnsoundCas::CasToWrite, true) => drop(self.shown.entry(at).or_insert(swap)),
            (UnsoundCas::CasToWrite, false) => drop(self.shown.remove(&at)),
        }
    }
}
