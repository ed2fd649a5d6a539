//! The rules of SNAPSHOT: who is the last writer of a write round (P §4.3, Algorithm 2), and which
//! word the replicas of a slot get when a memory node is lost (P §5.2).
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
//! (tentative, confirmed, withdrawn) and must stay the same writer for everybody who looks.
//!
//! [`Winner`] is a permission: only the rules make one, and only with one an operation may touch
//! the primary.
//!
//! Where a memory node is lost, writers have stopped anywhere inside of their rounds, so the replicas of
//! a slot that are left may differ.
//! [`settled`] names the word that all of them get:
//!
//! * the word of any backup that is left; of the primary if there is none. Whatever has been
//!   acknowledged or read stands on all backups, so any one of them has it;
//! * not a word that leads to nothing ([`scrub`](crate::scrub)), where they differ: it is damaged;
//! * nor a free word beside an entry that is confirmed and leads to something, unless a DELETE of the key, or a
//!   split, has put it there: what was there before the entry has been replaced everywhere before it was confirmed;
//! * of the primary as well, if what a backup has is the same identity in another state, and the primary's
//!   is neither free nor tentative: who has committed changes nothing any more, so the backup's is damaged;
//! * a tentative word becomes the free slot of the same identity: its INSERT may have been about
//!   to find a duplicate, and was not acknowledged;
//! * so does a word whose INSERT had begun to withdraw on another backup.

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

/// The word that all surviving replicas of a slot get. `primary` is `None` if it was lost; at
/// least one replica is left. `chosen` says which of the surviving backups to trust, counted from
/// 0 and round again: every choice is right, tests try them all.
pub fn settled(primary: Option<Slot>, backups: &[Slot], chosen: usize) -> Slot {
    let word = match (backups, primary) {
        ([], primary) => primary.expect("at least one replica is left"),
        (_, Some(primary)) if backups.iter().all(|b| *b == primary) => primary,
        _ => backups[chosen % backups.len()],
    };
    let committed = primary.filter(|word| !word.is_free() && !word.is_tentative());
    if let Some(committed) = committed.filter(|c| c.identity() == word.identity()) {
        return committed;
    }
    let withdrawn = backups.iter().any(|b| b.is_free() && b.identity() == word.identity());
    let tentative = word.is_tentative() && !removed(Mutant::SettleKeepsTentative);
    if tentative || withdrawn { word.withdrawn() } else { word }
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
        let seen = [own.tentative(), own.confirmed(), own.withdrawn()];
        assert_eq!(
            evaluate(own.identity(), seen.iter().map(|s| s.identity())),
            Verdict::Won(Winner { rule: Rule::One })
        );
    }

    #[test]
    fn slots_are_settled_by_the_rules() {
        let old = slot(1);
        let own = slot(2);
        let other = slot(3);
        let word = |primary, backups: &[Slot]| settled(primary, backups, 0);
        assert_eq!(word(Some(old), &[old, old]), old, "untouched");
        assert_eq!(word(Some(old), &[]), old, "only the primary is left");
        assert_eq!(word(Some(old), &[own, other]), own, "a backup");
        assert_eq!(settled(Some(old), &[own, other], 1), other, "any backup");
        assert_eq!(word(None, &[own, old]), own);
        assert_eq!(word(None, &[own.tentative(), old]), own.withdrawn());
        assert_eq!(word(Some(old), &[own.tentative()]), own.withdrawn());
        assert_eq!(word(Some(old.tentative()), &[]), old.withdrawn(), "of one replica");
        assert_eq!(
            word(None, &[own.tentative(), own]),
            own.withdrawn(),
            "not confirmed everywhere"
        );
        assert_eq!(word(None, &[own, own.tentative()]), own, "confirmed somewhere");
        assert_eq!(word(None, &[own, own.withdrawn()]), own.withdrawn(), "withdrawn somewhere");
        assert_eq!(word(None, &[Slot::default(); 2]), Slot::default());
        assert_eq!(word(Some(own), &[own.withdrawn()]), own, "nobody withdraws what is committed");
        assert_eq!(word(Some(own), &[own.tentative()]), own, "nor confirms it afterwards");
        assert_eq!(word(Some(own.tentative()), &[own]), own, "confirmed");
    }

    /// A run that was cut off anywhere between its writes is followed by one that comes to the
    /// same word: whatever part of the backups has been written, or all of them and the primary.
    #[test]
    fn settling_again_comes_to_the_same_word() {
        let old = slot(1);
        let own = slot(2);
        let other = slot(3);
        let words = [old, own, own.tentative(), own.withdrawn(), other];
        let all = (0..125).map(|n| [n % 5, n / 5 % 5, n / 25].map(|i| words[i]));
        for [primary, first, second] in all {
            for primary in [Some(primary), None] {
                let to = settled(primary, &[first, second], 0);
                assert_eq!(settled(primary, &[to, second], 0), to);
                assert_eq!(settled(primary, &[first, to], 0), to);
                assert_eq!(settled(primary, &[to, to], 0), to);
                assert_eq!(settled(primary.map(|_| to), &[to, to], 0), to);
            }
        }
    }
}
