//! The scheme of objects that have one place, which can be lost: copies of EC-oriented objects, and pairs without
//! redundancy.
//!
//! Objects are written and read like replicated ones. The difference is what their loss does: no view is refused
//! because the place is lost. The region stays in the view without a place, so that its number, and with it every
//! address in the region, is never used for another region.
//!
//! No slot word leads to a copy. Words do lead to pairs without redundancy, and remain when these are lost. Such a word
//! then *shows no key* ([`View::is_gone`]): readers pass over it, INSERT takes its slot for a free one, and the session
//! that replaces it frees no object. Words begin to show no key for all sessions at once, with the switch of the view
//! change that loses the node. Until then the word is *being lost* ([`View::is_being_lost`]), and operations that meet
//! it wait. The reasons are that other sessions possibly act by an older view and still read the node, which is
//! possibly only cut off, and that a round which began from this word is not decided yet. To decide such rounds, the
//! change has every subtable in its scope.

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
    /// Whether a slot word belongs to a pair that was lost with its only node, so that it shows no key.
    #[cold]
    pub fn is_gone(&self, word: Slot) -> bool {
        self.leads_to_lost(word) && !self.is_being_lost(word)
    }

    /// Whether the change under way has lost the only node of a slot word's pair, so that no session can tell yet
    /// whether the pair exists.
    #[cold]
    pub fn is_being_lost(&self, word: Slot) -> bool {
        let Some(change) = &self.change else { return false };
        let region = word.address().bytes() / self.geometry.region_bytes;
        !word.is_free()
            && change.lost_pairs.iter().any(|lost| u64::from(*lost) == region)
            && !removed(Mutant::GoneBeforeTheSwitch)
    }

    /// Whether the pair of a slot word is gone or being lost.
    pub fn leads_to_lost(&self, word: Slot) -> bool {
        let region = self.region_of(word.address()).map(|(region, _)| region);
        !word.is_free() && region.is_some_and(|region| region.lost_with().is_some())
    }

    /// Returns, for each lost node, the number of regions of pairs without redundancy that were lost with it.
    pub fn lost_pairs(&self) -> BTreeMap<MnId, u64> {
        let mut lost = BTreeMap::new();
        for node in self.regions.iter().filter_map(|region| region.lost_with()) {
            *lost.entry(node).or_default() += 1;
        }
        lost
    }
}
