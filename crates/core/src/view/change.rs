//! Changes of the view. One mechanism serves the loss of a memory node, new replicas, and the growth of the index (P
//! §5.2 and more).
//!
//! ```text
//! stable ─ freeze ─▶ frozen ─ all sessions have left older views ─▶ transforming
//!                      ▲                                               │ bulk verbs
//!   another node is    │                                               ▼
//!   lost: any stage ───┘                                            switched
//!   stable ◀─ all sessions are at switched, and no write is suspended ─┘
//! ```
//!
//! This file describes the change under way. [`View`](crate::view::View) makes the steps (`steps.rs`), and tells what
//! the change means for operations that are pinned by the view (`stage.rs`).
//!
//! Every step is a view of its own, with the next number. The view that pins a session decides what the session is
//! allowed to do, and the view in the master's store decides what the master does next. So a master that takes over
//! needs only the stored view.
//!
//! Rules within the *scope* of a change:
//!
//! | stage | writes to a subtable | reads of it | new objects in a region |
//! |---|---|---|---|
//! | frozen | wait | from the primary; wait if that was lost | elsewhere |
//! | transforming | wait | from the primary; if that was lost, from all backups ([`settled_word`]) | elsewhere |
//! | switched | wait; suspended ones READ their slots | from the new primary | not where a replica leaves |
//!
//! Everything outside of the scope goes on. Data is read from any remaining replica, in every stage. Only if a member
//! has been lost do all writes wait while the change is frozen: a new object would lie on the remaining replicas only,
//! while operations of an older view still read from the lost one.
//!
//! A subtable that is *split* gets a sibling. In *transforming* a job fills the sibling with the entries of the keys
//! whose next hash bit is 1, each in the slot of the same number; readers do not know the sibling yet. From the switch
//! on, the directory leads to it. When all sessions have left the older views and know the outcomes of their writes, a
//! second job clears the moved entries from their old slots, and only then the change ends.
//!
//! When a replica *moves*, a new one is filled while the old one is *leaving*. The new one takes the old one's place at
//! the switch, also as the primary. Until all sessions have acknowledged *switched*, some sessions possibly still read
//! at the old place, where new objects are not written any more. Therefore a region that a replica leaves stays frozen
//! to the end of the change. Then the memory node gets the room of the old replica back.
//!
//! The same stages mend damage ([`scrub`]). If replicas of a subtable *disagree* although no session writes, the
//! subtable is settled. If a bitmap contradicts the index, the bitmaps of the region begin anew, with zeros, and the
//! owners of its blocks find free objects by a comparison, as they do after the region got another primary.
//!
//! An EC-oriented region that loses or gets a place is frozen, and its objects get the parity that they were written
//! without, so that nothing depends on the places of their copies. From then on all objects of the region are written
//! with parity, until a change ends with all columns of the region present. A region of copies cannot move to another
//! place: it is given up together with its node, when nothing needs it any more.
//!
//! *Pairs without redundancy* are lost with their node ([`data`](crate::data), *single place*). A change that loses
//! some has every subtable in its scope, because any subtable can hold words that lead to them. Conflict rounds that
//! replace such a word are decided before any session reports that the word's key is gone. All sessions report that
//! from the switch on.
//!
//! A *new region* is in the region table from the first view of its change on. But no memory node is told to hand out
//! its blocks before the change is transforming: until then a session is possibly pinned by a view that lacks the
//! region, and would read a word that leads nowhere. No operation waits for a new region.
//!
//! Invariants:
//!
//! * A session *acknowledges* a view once none of its operations is pinned by an older one. An operation that was
//!   suspended half-way in a scope is pinned by no view until it READs its slot again.
//! * *Transforming* begins when all sessions have acknowledged *frozen*, or are fenced. From then on no session writes
//!   in the scope, nor relies on a READ from a lost memory node.
//! * *Switched* ends when all sessions have acknowledged it and have no suspended operation left. Until then no session
//!   can overwrite the words by which suspended operations find out their outcomes.
//!
//! [`settled_word`]: crate::conflict_rules::settled_word
//! [`scrub`]: crate::scrub

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::PoolPlace;

/// The stages of a view change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChangeStage {
    /// Sessions leave the older views, and do not write in the scope of the change.
    Frozen,
    /// Replicas in the scope are made equal, and new replicas are filled.
    Transforming,
    /// The new places of replicas are in force, and suspended writes find out their results.
    Switched,
}

/// A view change that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewChange {
    /// The stage of the view change.
    pub stage: ChangeStage,
    /// Whether regions have possibly lost replicas from which some session still reads. While true, no object is
    /// written.
    pub data_lost: bool,
    /// The number of members lost since the latest view that was stable or switched. Where a majority of all members
    /// has to vouch, these members are counted among all members, because they have possibly barred other members.
    pub lost: u16,
    /// The index subtables in the scope of the change, in ascending order of their numbers.
    pub subtables: Vec<SubtableChange>,
    /// The regions in the scope of the change, in ascending order of their numbers.
    pub regions: Vec<RegionChange>,
    /// The regions of pairs without redundancy that the change has lost, by number, in order. Until the switch no
    /// session can tell whether these pairs exist.
    pub lost_pairs: Vec<u32>,
    /// The number of regions, at the end of the view's list, that are new and whose blocks no memory node hands out
    /// yet. Nonzero only while the change is frozen.
    pub new_regions: u32,
}

/// The part of a view change that concerns one subtable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtableChange {
    /// The number of the subtable.
    pub subtable: u32,
    /// Whether the primary was lost. The first place is then a backup, until the change is switched.
    pub without_primary: bool,
    /// A replica to fill. At the switch it takes the place of the leaving one or, if none leaves, becomes the last
    /// backup.
    pub joining: Option<PoolPlace>,
    /// The replica that the switch removes; after the switch, a removed replica whose room is to be given back.
    pub leaving: Option<PoolPlace>,
    /// The progress of the subtable's split, if it is split.
    pub split: Option<SplitProgress>,
}

/// The progress of the split of a subtable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SplitProgress {
    /// The sibling is to be filled at these places. It is not part of the index yet.
    Filling(Vec<PoolPlace>),
    /// The sibling is the subtable of this number. Moved entries are still to be cleared.
    Clearing(u32),
}

/// The part of a view change that concerns one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionChange {
    /// The number of the region.
    pub region: u32,
    /// A replica to fill. At the switch it takes the place of the leaving one or, if none leaves, becomes the last
    /// place.
    pub joining: Option<PoolPlace>,
    /// The replica that the switch removes; after the switch, a removed replica whose room is to be given back. If it
    /// is the region's first place, the region has another first place from the switch on.
    pub leaving: Option<PoolPlace>,
    /// Whether the region's free bitmaps are replaced by zeros, because they were wrong.
    pub renewed: bool,
    /// Whether the region's EC-oriented objects get the parity that they lack, because the region's places change.
    pub adds_parity: bool,
}

impl RegionChange {
    /// Returns the part of a change for a region that is only frozen.
    pub(crate) fn of(region: u32) -> RegionChange {
        RegionChange { region, joining: None, leaving: None, renewed: false, adds_parity: false }
    }
}

/// A replica that is to be added to a subtable or a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewReplica {
    /// The number of the subtable or region to which the replica is added.
    pub of: u32,
    /// The place of the new replica.
    pub joining: PoolPlace,
    /// The replica that the new replica replaces, if it replaces one.
    pub leaving: Option<PoolPlace>,
}

/// The subtable or region that a replica leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingFrom {
    /// The subtable of this number.
    Subtable(u32),
    /// The region of this number.
    Region(u32),
}

/// A loss of memory nodes after which the cluster cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsurvivableLoss {
    /// An index subtable has no replica left.
    #[error("index subtable {0} has no replica left")]
    Subtable(u32),
    /// A region, with all its objects, has no replica left or, if it is coded, too few columns.
    #[error("too little of region {0} is left")]
    Region(u32),
}

impl SubtableChange {
    /// Returns the part of a change for a subtable that is only frozen and settled.
    pub(crate) fn of(subtable: u32) -> SubtableChange {
        SubtableChange {
            subtable,
            without_primary: false,
            joining: None,
            leaving: None,
            split: None,
        }
    }

    /// Returns the places that are being filled and are not part of the index yet.
    pub(crate) fn new_places(&self) -> impl Iterator<Item = PoolPlace> + '_ {
        let sibling = match &self.split {
            Some(SplitProgress::Filling(places)) => &places[..],
            Some(SplitProgress::Clearing(_)) | None => &[],
        };
        self.joining.into_iter().chain(sibling.iter().copied())
    }
}

impl ViewChange {
    /// Returns a change that begins, with nothing in its scope yet.
    pub(crate) fn begun() -> ViewChange {
        ViewChange {
            stage: ChangeStage::Frozen,
            data_lost: false,
            lost: 0,
            subtables: Vec::new(),
            regions: Vec::new(),
            lost_pairs: Vec::new(),
            new_regions: 0,
        }
    }

    /// Returns the change of a subtable; `None` if the subtable is not in the scope.
    pub fn of_subtable(&self, subtable: u32) -> Option<&SubtableChange> {
        self.subtables.iter().find(|s| s.subtable == subtable)
    }

    /// Notes that the objects of a region are to get the parity that they lack.
    pub(crate) fn add_parity(&mut self, region: u32) {
        if !self.has_region(region) {
            self.regions.push(RegionChange::of(region));
            self.regions.sort_by_key(|r| r.region);
        }
        let found = self.regions.iter_mut().find(|r| r.region == region);
        found.into_iter().for_each(|found| found.adds_parity = true);
    }

    /// Returns whether a region is in the scope of the change.
    pub fn has_region(&self, region: u32) -> bool {
        self.regions.iter().any(|r| r.region == region)
    }

    /// Returns whether no object is allowed to be written now, on any node. An object would lie on the remaining
    /// replicas only, while sessions that do not know of the loss yet read from the lost ones.
    pub fn holds_objects_back(&self) -> bool {
        self.data_lost
    }

    /// Returns whether index entries that a split has moved are still to be cleared.
    pub fn has_moved_entries(&self) -> bool {
        self.subtables.iter().any(|s| matches!(s.split, Some(SplitProgress::Clearing(_))))
    }

    /// Returns the replicas that have left a switched view, or will leave at the switch, each with its subtable or
    /// region.
    pub fn leaving(&self) -> impl Iterator<Item = (LeavingFrom, PoolPlace)> + '_ {
        let subtables = self.subtables.iter();
        let subtables =
            subtables.filter_map(|s| Some((LeavingFrom::Subtable(s.subtable), s.leaving?)));
        let regions = self.regions.iter();
        let regions = regions.filter_map(|r| Some((LeavingFrom::Region(r.region), r.leaving?)));
        subtables.chain(regions)
    }

    /// Returns whether the change, once it is switched, leaves work for a job: moved entries to clear, or room to give
    /// back.
    pub fn is_to_be_cleared(&self) -> bool {
        self.has_moved_entries() || self.leaving().next().is_some()
    }
}
