//! The consequences of a running view change for operations that are pinned by its view.

use super::change::{ChangeStage, LeavingFrom, SplitProgress, SubtableChange};
use super::{PoolPlace, View};
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

    /// Returns whether no object is allowed to be written now, on any node. An object would lie on the remaining
    /// replicas only, while sessions that do not know of the loss yet read from the lost ones.
    pub fn holds_objects_back(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.data_lost)
    }

    /// Returns whether index entries that a split has moved are still to be cleared.
    pub fn has_moved_entries(&self) -> bool {
        let subtables = self.change.iter().flat_map(|change| &change.subtables);
        subtables.into_iter().any(|s| matches!(s.split, Some(SplitProgress::Clearing(_))))
    }

    /// Returns whether no new object is allowed in a region, because the region is being copied, or because some
    /// session may still read from a replica that has left the region.
    pub fn is_region_frozen(&self, region: u32) -> bool {
        let change = self.change.as_ref().filter(|change| {
            change.stage != ChangeStage::Switched || !removed(Mutant::WritesWhereAReplicaLeaves)
        });
        change.is_some_and(|change| change.has_region(region))
    }

    /// Returns the replicas that have left a switched view, or will leave at the switch, each with its subtable or
    /// region.
    pub fn leaving(&self) -> impl Iterator<Item = (LeavingFrom, PoolPlace)> + '_ {
        let subtables = self.change.iter().flat_map(|change| &change.subtables);
        let subtables =
            subtables.filter_map(|s| Some((LeavingFrom::Subtable(s.subtable), s.leaving?)));
        let regions = self.change.iter().flat_map(|change| &change.regions);
        let regions = regions.filter_map(|r| Some((LeavingFrom::Region(r.region), r.leaving?)));
        subtables.chain(regions)
    }

    /// Returns whether a switched change leaves work for a job: moved entries to clear, or room to give back.
    pub fn is_to_be_cleared(&self) -> bool {
        self.has_moved_entries() || self.leaving().next().is_some()
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
        let mut moving = joining.chain(self.leaving().map(|(_, place)| place));
        holds || moving.any(|place| place.node == node)
    }
}
