//! What the change of a view that is under way means for those who are pinned by the view.

use super::{Place, View};
use crate::change::{LeavingFrom, Split, Stage, SubtableChange};
use crate::mutant::{Mutant, removed};
use crate::verbs::MnId;

impl View {
    /// How far the change of a subtable has come; `None` if nothing happens to it.
    pub fn stage_of(&self, subtable: u32) -> Option<Stage> {
        let change = self.change.as_ref()?;
        change.of_subtable(subtable).map(|_| change.stage)
    }

    /// Whether a subtable's primary is lost and no backup has taken its place yet.
    pub fn is_without_primary(&self, subtable: u32) -> bool {
        let found = self.change.as_ref().and_then(|change| change.of_subtable(subtable));
        found.is_some_and(|subtable| subtable.without_primary)
    }

    /// Whether nobody may write an object now, wherever it is: it would stand on the replicas that
    /// are left only, while those who have not heard of the loss read from the others.
    pub fn holds_objects_back(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.data_lost)
    }

    /// Whether entries that a split has moved are still to be cleared.
    pub fn has_moved_entries(&self) -> bool {
        let subtables = self.change.iter().flat_map(|change| &change.subtables);
        subtables.into_iter().any(|s| matches!(s.split, Some(Split::Clearing(_))))
    }

    /// Whether no new object may be placed in a region: it is being copied, or somebody may still
    /// read from a replica that has left it.
    pub fn is_region_frozen(&self, region: u32) -> bool {
        let change = self.change.as_ref().filter(|change| {
            change.stage != Stage::Switched || !removed(Mutant::WritesWhereAReplicaLeaves)
        });
        change.is_some_and(|change| change.has_region(region))
    }

    /// The replicas, of subtables and of regions by their numbers, that have left a view that is
    /// switched, or will at the switch.
    pub fn leaving(&self) -> impl Iterator<Item = (LeavingFrom, Place)> + '_ {
        let subtables = self.change.iter().flat_map(|change| &change.subtables);
        let subtables =
            subtables.filter_map(|s| Some((LeavingFrom::Subtable(s.subtable), s.leaving?)));
        let regions = self.change.iter().flat_map(|change| &change.regions);
        let regions = regions.filter_map(|r| Some((LeavingFrom::Region(r.region), r.leaving?)));
        subtables.chain(regions)
    }

    /// Whether a change that is switched leaves work behind: moved entries, or room to be given
    /// back.
    pub fn is_to_be_cleared(&self) -> bool {
        self.has_moved_entries() || self.leaving().next().is_some()
    }

    /// Subtables that have a replica on a memory node.
    pub fn subtables_on(&self, node: MnId) -> u64 {
        self.subtables.iter().filter(|subtable| subtable.lies_on(node)).count() as u64
    }

    /// Regions that have a place on a memory node.
    pub fn regions_on(&self, node: MnId) -> u64 {
        self.regions.iter().filter(|region| region.lies_on(node)).count() as u64
    }

    /// Whether a memory node holds anything of this view, or is about to.
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
