//! How a view changes: one primitive for losing a memory node, adding replicas, and growing the
//! index (P §5.2 and more).
//!
//! ```text
//! stable ─ freeze ─▶ frozen ─ all sessions have left older views ─▶ transforming
//!                      ▲                                               │ bulk verbs
//!   another node is    │                                               ▼
//!   lost: any stage ───┘        stable ◀─ all have found out ─ switched
//! ```
//!
//! This file says what is under way; [`View`](crate::view::View) makes the steps (`view/steps.rs`), and
//! says what they mean for those who are pinned by a view (`view/stage.rs`).
//!
//! Every step is a view of its own, with the next number: what a session may do follows from the
//! view it is pinned by, and what the master has to do next follows from the view in its store. So a
//! master that takes over needs to know nothing else.
//!
//! What is in the *scope* of a change:
//!
//! | stage | writes to a subtable | reads of it | new objects in a region |
//! |---|---|---|---|
//! | frozen | wait | from the primary; wait if it was lost | elsewhere |
//! | transforming | wait | from the primary; if it was lost from all backups ([`settled`]) | elsewhere |
//! | switched | wait; suspended ones look what became of them | from the new primary | not where a replica leaves |
//!
//! Everything outside of the scope goes on, and so do reads of data, from any replica that is
//! left. Only when a member has been lost do all writes wait while the change is frozen: a new
//! object would stand on fewer replicas than those who are pinned by an older view read from.
//!
//! A subtable that is *split* gets a sibling. Transforming fills the sibling with the entries of the
//! keys whose next hash bit is 1, each in the slot of the same number; readers do not know of it
//! yet. The switch makes it known. When everybody has left the old picture and knows what became of
//! his writes, the moved entries are cleared from where they were, and only then the change ends.
//!
//! A replica *moves* by a new one that is filled while another is *leaving*: at the switch it takes its
//! place, also that of the primary. Until all have acknowledged *switched* somebody may still read at
//! the old place, so nothing may be written that is not there as well: a region that a replica leaves
//! stays frozen to the end of the change. Then the memory node gets its room back.
//!
//! Where replicas *disagree* although nobody writes, or a bitmap contradicts the index ([`scrub`]), the same
//! stages settle the subtable, or have the region begin with a bitmap of zeros: as at a new first place, its
//! owners find what is free by a comparison.
//!
//! The objects of an EC-oriented region that loses a place, or gets another one, get the parity that they were
//! written without, while it is frozen: so nothing depends on where their copies are. From then on all are written
//! with parity, until the end of a change finds all of its columns there. A region of copies has no place to move to:
//! it goes with its node, and nothing of it is missed then.
//!
//! *Pairs without redundancy* are lost with their node ([`data`](crate::data), *alone*). A change that loses some has
//! every subtable in its scope, since any may hold words to them: rounds that began from such a word are decided before
//! anybody says that its key is gone, which all do from the switch on.
//!
//! A *new region* stands in the region table from the first view of its change on, and nobody is told
//! to hand out its blocks before the change is transforming: until then a session may be pinned by a
//! view that does not have it, and would read a word that leads nowhere. Nothing waits for it.
//!
//! Invariants:
//!
//! * A session *acknowledges* a view once none of its operations is pinned by an older one. An
//!   operation that was suspended half-way in a scope is pinned by no view until it looks.
//! * `transforming` begins when all sessions have acknowledged `frozen`, or are fenced. Since
//!   then nobody writes in the scope, nor reads from a lost memory node.
//! * `switched` ends when all sessions have acknowledged it and none of their operations still
//!   has to look. Until then nobody can overwrite what they look for.
//!
//! [`settled`]: crate::snapshot::settled
//! [`scrub`]: crate::scrub

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::view::Place;

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Who is pinned by an older view comes to an end.
    Frozen,
    /// Replicas are made equal, and new ones are filled.
    Transforming,
    /// The new picture is in force; writers that were suspended find out what became of them.
    Switched,
}

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// How far it has come.
    pub stage: Stage,
    /// Regions have lost replicas, and somebody may still read there: no new objects yet.
    pub data_lost: bool,
    /// So many members were lost since the last view that was stable or switched: some may have barred others.
    pub lost: u16,
    /// The index subtables in its scope, by number, in order.
    pub subtables: Vec<SubtableChange>,
    /// The regions in its scope, by number, in order.
    pub regions: Vec<RegionChange>,
    /// The regions of pairs without redundancy that it has lost, by number, in order: until the switch nobody can tell
    /// whether these pairs are there.
    pub lost_pairs: Vec<u32>,
    /// So many regions at the end of the table are new, and nobody has been told to hand out their
    /// blocks yet. Only while it is frozen.
    pub new_regions: u32,
}

impl Change {
    /// A change that begins, with nothing in its scope yet.
    pub(crate) fn begun() -> Change {
        Change {
            stage: Stage::Frozen,
            data_lost: false,
            lost: 0,
            subtables: Vec::new(),
            regions: Vec::new(),
            lost_pairs: Vec::new(),
            new_regions: 0,
        }
    }
}

/// What happens to a subtable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtableChange {
    /// Which.
    pub subtable: u32,
    /// Whether its primary was lost: its first place is a backup, until the change is switched.
    pub without_primary: bool,
    /// A replica to fill, which takes the place of the one that is leaving, or becomes the last
    /// backup.
    pub joining: Option<Place>,
    /// A replica that is taken away at the switch; after it, one whose room is to be given back.
    pub leaving: Option<Place>,
    /// Of a subtable that is split.
    pub split: Option<Split>,
}

/// How far the split of a subtable has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Split {
    /// Here is its sibling to be filled. It is no part of the index yet.
    Filling(Vec<Place>),
    /// The sibling is this subtable. Moved entries are still to be cleared.
    Clearing(u32),
}

/// What happens to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionChange {
    /// Which.
    pub region: u32,
    /// A replica to fill, which takes the place of the one that is leaving, or becomes the last
    /// one.
    pub joining: Option<Place>,
    /// As of a subtable. If it is the first place, the region has another one from the switch on.
    pub leaving: Option<Place>,
    /// Its free bitmaps begin anew, of zeros: what they said was wrong.
    pub renewed: bool,
    /// Its EC-oriented objects get the parity that they lack, since its places change.
    pub adds_parity: bool,
}

impl RegionChange {
    /// Only that it is frozen.
    pub(crate) fn of(region: u32) -> RegionChange {
        RegionChange { region, joining: None, leaving: None, renewed: false, adds_parity: false }
    }
}

/// A replica that is to be added to a subtable or a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gain {
    /// The number of the subtable or region.
    pub of: u32,
    /// Where.
    pub joining: Place,
    /// The replica that is taken away for it, if one is.
    pub leaving: Option<Place>,
}

/// What has a replica leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingFrom {
    /// The subtable of this number.
    Subtable(u32),
    /// The region of this number.
    Region(u32),
}

/// Something has no replica left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingLeft {
    /// A part of the index is gone.
    #[error("index subtable {0} has no replica left")]
    Subtable(u32),
    /// A region is gone, with all its objects: no replica is left, or too few columns.
    #[error("too little of region {0} is left")]
    Region(u32),
}

impl SubtableChange {
    /// Only that it is frozen, and its replicas made equal.
    pub(crate) fn of(subtable: u32) -> SubtableChange {
        SubtableChange {
            subtable,
            without_primary: false,
            joining: None,
            leaving: None,
            split: None,
        }
    }

    /// Where something is filled that is no part of the index yet.
    pub(crate) fn new_places(&self) -> impl Iterator<Item = Place> + '_ {
        let sibling = match &self.split {
            Some(Split::Filling(places)) => &places[..],
            Some(Split::Clearing(_)) | None => &[],
        };
        self.joining.into_iter().chain(sibling.iter().copied())
    }
}

impl Change {
    /// What happens to a subtable; `None` if it is not in the scope.
    pub fn of_subtable(&self, subtable: u32) -> Option<&SubtableChange> {
        self.subtables.iter().find(|s| s.subtable == subtable)
    }

    /// The objects of a region are to get the parity that they lack.
    pub(crate) fn add_parity(&mut self, region: u32) {
        if !self.has_region(region) {
            self.regions.push(RegionChange::of(region));
            self.regions.sort_by_key(|r| r.region);
        }
        let found = self.regions.iter_mut().find(|r| r.region == region);
        found.into_iter().for_each(|found| found.adds_parity = true);
    }

    /// Whether a region is in the scope.
    pub fn has_region(&self, region: u32) -> bool {
        self.regions.iter().any(|r| r.region == region)
    }
}
