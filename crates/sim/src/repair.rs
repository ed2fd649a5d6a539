//! What becomes of the index when a node of it is lost: the rules by which its heirs will settle
//! every slot.
//!
//! Clients have stopped anywhere inside of their write rounds, so the replicas of a slot may
//! differ. Where they do, or where the primary is the one that was lost:
//!
//! * a value from any backup that is left; from the primary if there is none;
//! * a tentative one becomes the free slot of the same identity: its INSERT may have been about
//!   to find a duplicate, and was not acknowledged;
//! * so does one whose INSERT had begun to withdraw on another backup;
//! * anything else is written to all replicas as it is: if it has been acknowledged or read, all
//!   backups hold it.

use fusee_core::layout::Slot;

use crate::cluster::Cluster;

impl Cluster {
    /// Takes away the node of one index replica, settles every slot, and makes the next view. For
    /// use when no client runs; those of the old view must not be used again.
    ///
    /// # Panics
    /// If the index has one replica only, or a region had its only replica on that node.
    pub fn lose_index_replica(&mut self, replica: usize) {
        let lost = self.view.subtables[0].places[replica].node;
        self.kill(lost);
        for slot in self.all_slots().collect::<Vec<_>>() {
            let places: Vec<_> = self.view.slot_places(slot).collect();
            let word_of = |i: usize| (places[i].node != lost).then(|| self.word_at(places[i]));
            let backups: Vec<Slot> = (1..places.len()).filter_map(word_of).collect();
            let word = settled(word_of(0), &backups, |n| self.rng.below(n));
            for place in places.iter().filter(|p| p.node != lost) {
                self.overwrite(*place, word.0);
            }
        }
        let view = &mut self.view;
        view.number += 1;
        view.members.retain(|m| m.node != lost);
        view.subtables.iter_mut().for_each(|s| s.places.retain(|p| p.node != lost));
        view.regions.iter_mut().for_each(|r| r.places.retain(|p| p.node != lost));
        view.check().expect("every subtable and region has a replica left");
    }
}

/// The word that all replicas of a slot will hold. `primary` is `None` if it was lost; `any`
/// draws a number below its argument.
fn settled(primary: Option<Slot>, backups: &[Slot], any: impl Fn(usize) -> usize) -> Slot {
    if let Some(primary) = primary
        && backups.iter().all(|b| *b == primary)
    {
        return primary;
    }
    let word = backups[any(backups.len())];
    let withdrawn = |b: &Slot| b.is_free() && b.identity() == word.identity();
    if word.is_tentative() || backups.iter().any(withdrawn) { word.aborted() } else { word }
}

#[cfg(test)]
mod tests {
    use fusee_core::layout::{Address, SizeClass};

    use super::*;

    fn slot(n: u64) -> Slot {
        Slot::new(1, SizeClass::from_code(1).unwrap(), Address::new(n * 64), 0)
    }

    #[test]
    fn slots_are_settled_by_the_rules() {
        let (old, own, other) = (slot(1), slot(2), slot(3));
        let word = |primary, backups: &[Slot]| settled(primary, backups, |_| 0);
        assert_eq!(word(Some(old), &[old, old]), old, "untouched");
        assert_eq!(word(Some(old), &[]), old, "only the primary is left");
        assert_eq!(word(Some(old), &[own, other]), own, "any backup");
        assert_eq!(word(None, &[own, old]), own);
        assert_eq!(word(None, &[own.tentative(), old]), own.aborted());
        assert_eq!(word(Some(old), &[own.tentative()]), own.aborted());
        assert_eq!(word(None, &[own.tentative(), own]), own.aborted(), "not confirmed everywhere");
        assert_eq!(word(None, &[own, own.tentative()]), own, "confirmed somewhere");
        assert_eq!(word(None, &[own, own.aborted()]), own.aborted(), "withdrawn somewhere");
        assert_eq!(word(None, &[Slot::default(); 2]), Slot::default());
    }
}
