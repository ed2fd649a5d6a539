//! The consequences of a running view change for operations that are pinned by its view.

use super::View;
use super::change::{ChangeStage, SubtableChange, ViewChange};
use crate::mutant::{Mutant, removed};
use crate::verbs::MnId;

impl View {
    /// Returns the stage of the change of a subtable; `None` if the subtable does not change.
    pub fn stage_of(&self, subtable: u32) -> Option<ChangeStage> {
        let change = self.change.as_ref()?;
        change.of_subtable(subtable).map(|_| change.stage)
    }

    /// Returns whether a subtable's primary is lost and no backup has taken its place yet.
    pub fn is_without_primary(&self, subtable: u32) -> bool {
        let found = self.change.as_ref().and_then(|change| change.of_subtable(subtable));
        found.is_some_and(|subtable| subtable.without_primary)
    }

    /// Returns whether no new object is allowed in a region, because the region is being copied, or because some
    /// session possibly still reads from a replica that has left the region.
    pub fn is_region_frozen(&self, region: u32) -> bool {
        let change = self.change.as_ref().filter(|change| {
            change.stage != ChangeStage::Switched || !removed(Mutant::WritesWhereAReplicaLeaves)
        });
        change.is_some_and(|change| change.has_region(region))
    }

    /// Returns the number of subtables that have a replica on a memory node.
    pub fn subtables_on(&self, node: MnId) -> u64 {
        self.subtables.iter().filter(|subtable| subtable.lies_on(node)).count() as u64
    }

    /// Returns the number of regions that have a place on a memory node.
    pub fn regions_on(&self, node: MnId) -> u64 {
        self.regions.iter().filter(|region| region.lies_on(node)).count() as u64
    }

    /// Returns whether a memory node holds a replica of this view, or is about to.
    pub fn uses(&self, node: MnId) -> bool {
        let holds = self.subtables_on(node) + self.regions_on(node) > 0;
        let joining = self.change.iter().flat_map(|change| {
            let subtables = change.subtables.iter().flat_map(SubtableChange::new_places);
            subtables.chain(change.regions.iter().filter_map(|r| r.joining))
        });
        let leaving = self.change.iter().flat_map(ViewChange::leaving);
        let mut moving = joining.chain(leaving.map(|(_, place)| place));
        holds || moving.any(|place| place.node == node)
    }
}
