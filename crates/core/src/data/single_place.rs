//! The scheme of one place, which may be lost: copies of EC-oriented objects, and pairs without redundancy.
//!
//! An object lies there as a replicated one does. The end is different: no view is refused because the place is lost.
//! The region stays in the view without it, so its number, and with it every address in it, is never used for another
//! region.
//!
//! No word leads to a copy. Words do lead to pairs without redundancy, and stay when these are gone: such a word
//! *shows no key* ([`View::is_gone`]). Readers pass over it, INSERT takes its slot for a free one, and the object that
//! it kept need not be freed. For all sessions this begins at once, with the switch of the change that loses the node.
//! Until then the word is *being lost* ([`View::is_being_lost`]), and operations that meet it wait: others may act by
//! an older view, and read the node, which is only cut off; and a round that began from this word is not decided. To
//! decide it, such a change has every subtable in its scope.

use alloc::collections::BTreeMap;

use super::SinglePlaceUse;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::verbs::MnId;
use crate::view::{PoolPlace, View, ViewError};

impl SinglePlaceUse {
    /// See [`Region::check`](super::Region::check).
    pub(super) fn check(self, places: &[PoolPlace]) -> Result<(), ViewError> {
        let what = match (self, places) {
            (SinglePlaceUse::Copies(_), []) => return Ok(()),
            (SinglePlaceUse::Copies(node), [place]) if place.node == node => return Ok(()),
            (SinglePlaceUse::Copies(_), _) => "copies lie elsewhere than where they are for",
            (SinglePlaceUse::Pairs(Some(_)), []) | (SinglePlaceUse::Pairs(None), [_]) => {
                return Ok(());
            }
            (SinglePlaceUse::Pairs(_), _) => {
                "pairs without redundancy have one place, or are lost with it"
            }
        };
        Err(ViewError { what })
    }
}

impl View {
    /// Whether a word is an entry whose pair was lost with its only node: it shows no key.
    #[cold]
    pub fn is_gone(&self, word: Slot) -> bool {
        self.leads_to_lost(word) && !self.is_being_lost(word)
    }

    /// Whether the change under way has lost the only node of an entry's pair, so that no session can tell yet
    /// whether the pair exists.
    #[cold]
    pub fn is_being_lost(&self, word: Slot) -> bool {
        let Some(change) = &self.change else { return false };
        let region = word.address().bytes() / self.geometry.region_bytes;
        !word.is_free()
            && change.lost_pairs.iter().any(|lost| u64::from(*lost) == region)
            && !removed(Mutant::GoneBeforeTheSwitch)
    }

    /// Whether the pair of a word is gone or being lost.
    pub fn leads_to_lost(&self, word: Slot) -> bool {
        let region = self.region_of(word.address()).map(|(region, _)| region);
        !word.is_free() && region.is_some_and(|region| region.lost_with().is_some())
    }

    /// Returns the number of lost regions of pairs without redundancy, by node.
    pub fn lost_pairs(&self) -> BTreeMap<MnId, u64> {
        let mut lost = BTreeMap::new();
        for node in self.regions.iter().filter_map(|region| region.lost_with()) {
            *lost.entry(node).or_default() += 1;
        }
        lost
    }
}
