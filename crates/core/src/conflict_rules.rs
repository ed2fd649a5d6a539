//! The rules of SNAPSHOT: the winner of a round (P §4.3, Algorithm 2), and the word that the replicas of a slot
//! get when a memory node is lost (P §5.2).
//!
//! Writers in conflict broadcast a CAS from the round's old value to their own new value to all backups. Each backup
//! takes exactly one of them, and the CASes return to every writer what each backup holds. From that list alone all
//! writers come to the same winner:
//!
//! * Rule 1: the writer that modified all backups.
//! * Rule 2: else, the writer that modified a majority of them.
//! * Rule 3: else, the writer with the smallest value on a backup; but only while the primary still shows the round's
//!   old value, which proves that the list is of this round.
//!
//! The rules compare [`Identity`]s, not words, because an INSERT changes its word within a round (tentative,
//! confirmed, withdrawn) and must stay the same writer for all others.
//!
//! [`Winner`] is a permission: only the rules make one, and only with one an operation may change the primary.
//!
//! When a memory node is lost, writers have stopped anywhere within their rounds, so the remaining replicas of a slot
//! may differ. [`settled_word`] names the word that all of them get:
//!
//! * It is the word of any remaining backup, or of the primary if no backup is left. Whatever has been acknowledged or
//!   read stands on all backups, so any one of them has it.
//! * If replicas differ, it is not a word that leads to nothing ([`scrub`](crate::scrub)): that word is damaged.
//! * Nor is it a free word beside a confirmed entry that leads to an object, unless a DELETE of the key, or a split,
//!   has put it there: any word from before the entry had been replaced everywhere before the entry was confirmed.
//! * If the backup's word and the primary's have the same identity in different states, and the primary's is neither
//!   free nor tentative, it is the primary's: a writer that has committed changes nothing any more, so the backup's
//!   word is damaged.
//! * A tentative word becomes the free slot of the same identity: its INSERT may have been about to find a duplicate,
//!   and was not acknowledged.
//! * So does a word whose INSERT had begun to withdraw on another backup.

use crate::layout::{Identity, Slot};
use crate::mutant::{Mutant, removed};

/// The rule by which a round was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundRule {
    /// All backups hold the winner's value.
    One,
    /// A majority of the backups holds it.
    Two,
    /// No majority: the smallest value wins.
    Three,
}

/// Permission to fix the backups and to commit the primary: its holder is the round's
/// winner.
#[derive(Debug, PartialEq, Eq)]
pub struct Winner {
    rule: RoundRule,
}

impl Winner {
    /// Returns the rule by which the round was won.
    pub fn rule(&self) -> RoundRule {
        self.rule
    }
}

/// The state of a writer without majority whose value stands on a backup: it must read the primary.
#[derive(Debug, PartialEq, Eq)]
pub struct UndecidedRound {
    own_is_smallest: bool,
}

impl UndecidedRound {
    /// Applies Rule 3 to the word that the primary shows now. If that is not the round's old value, the round is over,
    /// and another writer won it (P Algorithm 2, line 15).
    pub fn decide(self, primary: Slot, old: Slot) -> Option<Winner> {
        let running = primary == old || removed(Mutant::Rule3WithoutPrimary);
        (running && self.own_is_smallest).then_some(Winner { rule: RoundRule::Three })
    }
}

/// The outcome of a round for one writer.
#[derive(Debug, PartialEq, Eq)]
pub enum RoundVerdict {
    /// The writer is the winner.
    Won(Winner),
    /// Another writer is.
    Lost,
    /// Rule 3 decides, after a READ of the primary.
    Undecided(UndecidedRound),
}

/// Evaluates the rules for the writer `own`. `seen` lists the words of the backups: `own` where its CAS succeeded,
/// else the word that the CAS found. With no backups (one index replica) the CAS of the primary decides, and
/// permission to try it is granted.
pub fn evaluate(own: Identity, seen: impl Iterator<Item = Identity> + Clone) -> RoundVerdict {
    let total = seen.clone().count();
    let count = |who: Identity| seen.clone().filter(|s| *s == who).count();
    let mine = count(own);
    if mine == total {
        return RoundVerdict::Won(Winner { rule: RoundRule::One });
    }
    if 2 * mine > total || removed(Mutant::HalfIsAMajority) && 2 * mine == total {
        return RoundVerdict::Won(Winner { rule: RoundRule::Two });
    }
    let majority = seen.clone().any(|s| 2 * count(s) > total);
    if mine == 0 || majority && !removed(Mutant::MajorityOverlooked) {
        return RoundVerdict::Lost;
    }
    let own_is_smallest = seen.min() == Some(own) || removed(Mutant::AnyValueWinsRule3);
    RoundVerdict::Undecided(UndecidedRound { own_is_smallest })
}

/// Returns the word that all surviving replicas of a slot get. `primary` is `None` if it was lost; at least one
/// replica is left. `chosen` selects the surviving backup to trust, counted from 0, modulo their number: every choice
/// is right, and tests try them all.
pub fn settled_word(primary: Option<Slot>, backups: &[Slot], chosen: usize) -> Slot {
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
    // Promise LIN-3: The rules name exactly one winner.
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
                        RoundVerdict::Won(_) => true,
                        RoundVerdict::Lost => false,
                        RoundVerdict::Undecided(u) => u.decide(old, old).is_some(),
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
        let won = |rule| RoundVerdict::Won(Winner { rule });
        assert_eq!(verdict(1, &[1, 1, 1]), won(RoundRule::One));
        assert_eq!(verdict(2, &[2, 2, 1]), won(RoundRule::Two));
        assert_eq!(verdict(1, &[2, 2, 1]), RoundVerdict::Lost);
        assert_eq!(verdict(3, &[1, 2]), RoundVerdict::Lost, "not on any backup");
        assert_eq!(verdict(1, &[]), won(RoundRule::One), "no backups");
        let RoundVerdict::Undecided(smallest) = verdict(1, &[1, 2]) else { panic!() };
        assert_eq!(smallest.decide(slot(9), slot(9)), Some(Winner { rule: RoundRule::Three }));
        let RoundVerdict::Undecided(over) = verdict(1, &[1, 2]) else { panic!() };
        assert_eq!(over.decide(slot(8), slot(9)), None, "the round is over");
        let RoundVerdict::Undecided(larger) = verdict(2, &[1, 2]) else { panic!() };
        assert_eq!(larger.decide(slot(9), slot(9)), None);
    }

    #[test]
    fn a_confirmed_copy_counts_for_its_tentative_writer() {
        let own = slot(5);
        let seen = [own.tentative(), own.confirmed(), own.withdrawn()];
        assert_eq!(
            evaluate(own.identity(), seen.iter().map(|s| s.identity())),
            RoundVerdict::Won(Winner { rule: RoundRule::One })
        );
    }

    #[test]
    fn slots_are_settled_by_the_rules() {
        let old = slot(1);
        let own = slot(2);
        let other = slot(3);
        let word = |primary, backups: &[Slot]| settled_word(primary, backups, 0);
        assert_eq!(word(Some(old), &[old, old]), old, "untouched");
        assert_eq!(word(Some(old), &[]), old, "only the primary is left");
        assert_eq!(word(Some(old), &[own, other]), own, "a backup");
        assert_eq!(settled_word(Some(old), &[own, other], 1), other, "any backup");
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

    /// A run that was cut off between any of its writes is followed by one that comes to the same word, whether some
    /// of the backups have been written, or all of them and the primary.
    #[test]
    fn settling_again_comes_to_the_same_word() {
        let old = slot(1);
        let own = slot(2);
        let other = slot(3);
        let words = [old, own, own.tentative(), own.withdrawn(), other];
        let all = (0..125).map(|n| [n % 5, n / 5 % 5, n / 25].map(|i| words[i]));
        for [primary, first, second] in all {
            for primary in [Some(primary), None] {
                let to = settled_word(primary, &[first, second], 0);
                assert_eq!(settled_word(primary, &[to, second], 0), to);
                assert_eq!(settled_word(primary, &[first, to], 0), to);
                assert_eq!(settled_word(primary, &[to, to], 0), to);
                assert_eq!(settled_word(primary.map(|_| to), &[to, to], 0), to);
            }
        }
    }
}
