//! The rules of SNAPSHOT: who is the last writer of a write round (P §4.3, Algorithm 2).
//!
//! Writers in conflict broadcast a CAS from the round's old value to their own new value to all
//! backups. Each backup takes exactly one of them, and the CASes return to every writer what each
//! backup holds. From that list alone all writers come to the same winner:
//!
//! * Rule 1: who modified all backups.
//! * Rule 2: else, who modified a majority of them.
//! * Rule 3: else, who has the smallest value among those standing on backups; but only while the
//!   primary still shows the round's old value, which proves that the list is of this round.
//!
//! The rules compare [`Identity`]s, not words, because an INSERT changes its word within a round
//! (tentative, confirmed, aborted) and must stay the same writer for everybody who looks.
//!
//! [`Winner`] is a permission: only the rules make one, and only with one an operation may touch
//! the primary.

use crate::layout::{Identity, Slot};
use crate::mutant::{Mutant, removed};

/// The rule by which a round was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All backups hold the winner's value.
    One,
    /// A majority does.
    Two,
    /// No majority: the smallest value wins.
    Three,
}

/// Permission to fix the backups and to commit the primary: its holder is the round's last
/// writer.
#[derive(Debug, PartialEq, Eq)]
pub struct Winner {
    rule: Rule,
}

impl Winner {
    /// How the round was won.
    pub fn rule(&self) -> Rule {
        self.rule
    }
}

/// No majority, and a value of ours stands on a backup: the primary must be read.
#[derive(Debug, PartialEq, Eq)]
pub struct Undecided {
    own_is_smallest: bool,
}

impl Undecided {
    /// Rule 3, given what the primary shows now. If it no longer shows the round's old value the
    /// round is over, and somebody else won it (P Algorithm 2, line 15).
    pub fn decide(self, primary: Slot, old: Slot) -> Option<Winner> {
        let running = primary == old || removed(Mutant::Rule3WithoutPrimary);
        (running && self.own_is_smallest).then_some(Winner { rule: Rule::Three })
    }
}

/// The outcome of a round for one writer.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the last writer.
    Won(Winner),
    /// Another one is.
    Lost,
    /// Rule 3 decides, after a look at the primary.
    Undecided(Undecided),
}

/// Evaluates the rules for the writer `own`. `seen` is what the backups hold: `own` where its CAS
/// succeeded, else what the CAS found. With no backups (one index replica) nobody can be asked:
/// the CAS of the primary decides, and permission to try it is granted.
pub fn evaluate(own: Identity, seen: impl Iterator<Item = Identity> + Clone) -> Verdict {
    let total = seen.clone().count();
    let count = |who: Identity| seen.clone().filter(|s| *s == who).count();
    let mine = count(own);
    if mine == total {
        return Verdict::Won(Winner { rule: Rule::One });
    }
    if 2 * mine > total || removed(Mutant::HalfIsAMajority) && 2 * mine == total {
        return Verdict::Won(Winner { rule: Rule::Two });
    }
    let majority = seen.clone().any(|s| 2 * count(s) > total);
    if mine == 0 || majority && !removed(Mutant::MajorityOverlooked) {
        return Verdict::Lost;
    }
    let own_is_smallest = seen.min() == Some(own) || removed(Mutant::AnyValueWinsRule3);
    Verdict::Undecided(Undecided { own_is_smallest })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::layout::{Address, SizeClass};

    fn slot(n: u64) -> Slot {
        Slot::new(1, SizeClass::from_code(1).unwrap(), Address::new(n * 64), 0)
    }

    /// Every assignment of up to 4 backups to up to 3 writers has exactly one winner, as long as
    /// the primary shows the old value (P Appendix A: a round has exactly one last writer).
    #[test]
    fn every_settled_round_has_exactly_one_winner() {
        for backups in 1..=4u32 {
            for writers in 1..=3u64 {
                for code in 0..writers.pow(backups) {
                    let holders: Vec<Identity> = (0..backups)
                        .map(|b| slot(1 + code / writers.pow(b) % writers).identity())
                        .collect();
                    let old = slot(99);
                    let wins = |w: u64| match evaluate(slot(w).identity(), holders.iter().copied())
                    {
                        Verdict::Won(_) => true,
                        Verdict::Lost => false,
                        Verdict::Undecided(u) => u.decide(old, old).is_some(),
                    };
                    let winners = (1..=writers).filter(|w| wins(*w)).count();
                    assert_eq!(winners, 1, "{holders:?}");
                }
            }
        }
    }

    #[test]
    fn the_rules_are_the_papers() {
        let verdict = |own: u64, seen: &[u64]| {
            evaluate(slot(own).identity(), seen.iter().map(|n| slot(*n).identity()))
        };
        let won = |rule| Verdict::Won(Winner { rule });
        assert_eq!(verdict(1, &[1, 1, 1]), won(Rule::One));
        assert_eq!(verdict(2, &[2, 2, 1]), won(Rule::Two));
        assert_eq!(verdict(1, &[2, 2, 1]), Verdict::Lost);
        assert_eq!(verdict(3, &[1, 2]), Verdict::Lost, "not on any backup");
        assert_eq!(verdict(1, &[]), won(Rule::One), "no backups");
        let Verdict::Undecided(smallest) = verdict(1, &[1, 2]) else { panic!() };
        assert_eq!(smallest.decide(slot(9), slot(9)), Some(Winner { rule: Rule::Three }));
        let Verdict::Undecided(over) = verdict(1, &[1, 2]) else { panic!() };
        assert_eq!(over.decide(slot(8), slot(9)), None, "the round is over");
        let Verdict::Undecided(larger) = verdict(2, &[1, 2]) else { panic!() };
        assert_eq!(larger.decide(slot(9), slot(9)), None);
    }

    #[test]
    fn a_confirmed_copy_counts_for_its_tentative_writer() {
        let own = slot(5);
        let seen = [own.tentative(), own.confirmed(), own.aborted()];
        assert_eq!(
            evaluate(own.identity(), seen.iter().map(|s| s.identity())),
            Verdict::Won(Winner { rule: Rule::One })
        );
    }
}
