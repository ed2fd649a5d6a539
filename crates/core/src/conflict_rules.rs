//! The rules of SNAPSHOT: which writer wins a round (P §4.3, Algorithm 2), and which word the replicas of a slot get
//! after the loss of a memory node (P §5.2).
//!
//! Writers in conflict send to all backups a CAS from the round's old word to their own new word. Each backup accepts
//! exactly one of these CASes, and the answers tell every writer which word each backup holds. From that list alone all
//! writers find the same winner:
//!
//! * Rule 1: the writer whose word is on all backups wins.
//! * Rule 2: otherwise, the writer whose word is on a majority of them wins.
//! * Rule 3: otherwise, the writer with the smallest identity on a backup wins, but only if the primary still shows the
//!   round's old word, which proves that the list is of this round.
//!
//! The rules compare [`WriterIdentity`]s, not words, because an INSERT changes its word within a round (tentative,
//! confirmed, withdrawn) and has to remain the same writer for all others.
//!
//! [`Winner`] is a permission: only the rules make one, and an operation needs one to change the primary.
//!
//! When a memory node is lost, writers have possibly stopped anywhere in their rounds, so the remaining replicas of a
//! slot can differ. Settling chooses the word that all of them get; [`settled_word`] chooses it from the words that are
//! not passed over:
//!
//! * It is the word of any remaining backup, or of the primary if no backup is left. A word that was acknowledged or
//!   read is on all backups, so any backup shows it.
//! * If replicas differ, words that lead to nothing are passed over, because they are damaged
//!   ([`scrub`](crate::scrub)).
//! * A free word is passed over as well if a confirmed entry that leads to an object is on another replica, unless a
//!   DELETE of the key, or a split, has put the free word there. Any word from before the entry had been replaced on
//!   all replicas before the entry was confirmed.
//! * If the backup's word and the primary's have the same identity in different states, and the primary's is neither
//!   free nor tentative, the primary's word is chosen. It was committed, and its writer changed nothing afterwards, so
//!   the backup's word is damaged.
//! * A tentative word becomes the free word of the same identity: its INSERT was possibly about to find a duplicate,
//!   and was not acknowledged.
//! * A word whose INSERT had begun to withdraw on another backup becomes the free word of the same identity, too.

use crate::layout::{Slot, WriterIdentity};
use crate::mutant::{Mutant, removed};

/// The rule by which a round was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundRule {
    /// Rule 1: all backups hold the winner's word.
    One,
    /// Rule 2: a majority of the backups holds the winner's word.
    Two,
    /// Rule 3: no word is on a majority of the backups, so the word with the smallest identity wins.
    Three,
}

/// The permission to write the winner's word to the other backups and to commit it on the primary. Only the winner of
/// the round has it.
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

/// The state of a writer in a round in which no word is on a majority: it has to READ the primary.
#[derive(Debug, PartialEq, Eq)]
pub struct UndecidedRound {
    own_is_smallest: bool,
}

impl UndecidedRound {
    /// Applies Rule 3, for the word that the primary shows now. If that is not the round's old word, the round is over,
    /// and another writer has won it (P Algorithm 2, line 15).
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
    /// Another writer is the winner.
    Lost,
    /// Rule 3 decides, once the writer has READ the primary.
    Undecided(UndecidedRound),
}

/// Evaluates the rules for the writer `own`. `seen` lists an identity for each backup: `own` where the writer's CAS
/// succeeded, otherwise that of the word which the CAS found. Without backups (one index replica) the CAS of the
/// primary decides the round, so every writer is permitted to try it.
pub fn evaluate(
    own: WriterIdentity,
    seen: impl Iterator<Item = WriterIdentity> + Clone,
) -> RoundVerdict {
    let total = seen.clone().count();
    let count = |who: WriterIdentity| seen.clone().filter(|s| *s == who).count();
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

/// Returns the word that all surviving replicas of a slot get. `primary` is `None` if the primary was lost; at least
/// one replica is left. `chosen` selects the surviving backup to trust (counted from 0, modulo their number). Every
/// choice is right, and tests try them all.
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

    /// Every assignment of up to 4 backups to up to 3 writers has exactly one winner, as long as the primary shows the
    /// old word (P Appendix A: a round has exactly one last writer).
    // Promise LIN-3: The rules name exactly one winner.
    #[test]
    fn every_settled_round_has_exactly_one_winner() {
        for backups in 1..=4u32 {
            for writers in 1..=3u64 {
                for code in 0..writers.pow(backups) {
                    let holders: Vec<WriterIdentity> = (0..backups)
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

    /// If settling stops between any two of its writes, a second run chooses the same word, whether some of the backups
    /// had been written, or all of them, or the primary too.
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
