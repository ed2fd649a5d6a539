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
//! Every step is a view of its own, with the next number: what a session may do follows from the
//! view it acts by, and what the master has to do next follows from the view in its store. So a
//! master that takes over needs to know nothing else.
//!
//! What is in the *scope* of a change:
//!
//! | stage | writes to a subtable | reads of it | new objects in a region |
//! |---|---|---|---|
//! | frozen | wait | from the primary; wait if it was lost | elsewhere |
//! | transforming | wait | from the primary; if it was lost from all backups ([`settled`]) | elsewhere |
//! | switched | wait; stopped ones look what became of them | from the new primary | not where a replica leaves |
//!
//! Everything outside of the scope goes on, and so do reads of data, from any replica that is
//! left. Only when regions have lost replicas do all writes wait while the change is frozen: a new
//! object would stand on fewer replicas than those who act by an older view read from.
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
//! A *new region* stands in the region table from the first view of its change on, and nobody is told
//! to hand out its blocks before the change is transforming: until then a session may act by a
//! view that does not have it, and would read a word that leads nowhere. Nothing waits for it.
//!
//! Invariants:
//!
//! * A session *acknowledges* a view once none of its operations acts by an older one. An
//!   operation that was stopped half-way in a scope acts by no view until it looks.
//! * `transforming` begins when all sessions have acknowledged `frozen`, or are fenced. Since
//!   then nobody writes in the scope, nor reads from a lost memory node.
//! * `switched` ends when all sessions have acknowledged it and none of their operations still
//!   has to look. Until then nobody can overwrite what they look for.
//!
//! [`settled`]: crate::repair::settled
//! [`scrub`]: crate::scrub

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::mutant::{Mutant, removed};
use crate::verbs::MnId;
use crate::view::{MAX_DEPTH, Member, Place, Region, Scheme, Subtable, View, ViewError};

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Who acts by an older view comes to an end.
    Frozen,
    /// Replicas are made equal, and new ones are filled.
    Transforming,
    /// The new picture is in force; writers that were stopped find out what became of them.
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
    /// So many regions at the end of the table are new, and nobody has been told to hand out their
    /// blocks yet. Only while it is frozen.
    pub new_regions: u32,
}

impl Change {
    /// A change that begins, with nothing in its scope yet.
    fn begun() -> Change {
        Change {
            stage: Stage::Frozen,
            data_lost: false,
            lost: 0,
            subtables: Vec::new(),
            regions: Vec::new(),
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
    pub headless: bool,
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

/// What the switch makes of the places.
fn switch_places(places: &mut Vec<Place>, joining: Option<Place>, leaving: Option<Place>) {
    let leaves = leaving.and_then(|leaving| places.iter().position(|place| *place == leaving));
    match (joining, leaves) {
        (Some(joining), Some(at)) => places[at] = joining,
        (Some(joining), None) => places.push(joining),
        (None, Some(at)) => drop(places.remove(at)),
        (None, None) => {}
    }
}

/// Something has no replica left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NothingLeft {
    /// A part of the index is gone.
    #[error("index subtable {0} has no replica left")]
    Subtable(u32),
    /// A region is gone, with all its objects.
    #[error("region {0} has no replica left")]
    Region(u32),
}

impl SubtableChange {
    /// Only that it is frozen, and its replicas made equal.
    fn of(subtable: u32) -> SubtableChange {
        SubtableChange { subtable, headless: false, joining: None, leaving: None, split: None }
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

    /// Whether a region is in the scope.
    pub fn has_region(&self, region: u32) -> bool {
        self.regions.iter().any(|r| r.region == region)
    }
}

impl View {
    /// How far the change of a subtable has come; `None` if nothing happens to it.
    pub fn stage_of(&self, subtable: u32) -> Option<Stage> {
        let change = self.change.as_ref()?;
        change.of_subtable(subtable).map(|_| change.stage)
    }

    /// Whether a subtable's primary is lost and no backup has taken its place yet.
    pub fn is_headless(&self, subtable: u32) -> bool {
        let found = self.change.as_ref().and_then(|change| change.of_subtable(subtable));
        found.is_some_and(|subtable| subtable.headless)
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

    /// Whether a memory node holds anything of this view, or is about to.
    pub fn uses(&self, node: MnId) -> bool {
        let held = self.subtables.iter().flat_map(|s| &s.places);
        let held = held.chain(self.regions.iter().flat_map(|r| &r.places));
        let joining = self.change.iter().flat_map(|change| {
            let subtables = change.subtables.iter().flat_map(SubtableChange::new_places);
            subtables.chain(change.regions.iter().filter_map(|r| r.joining))
        });
        let joining = joining.chain(self.leaving().map(|(_, place)| place));
        held.copied().chain(joining).any(|place| place.node == node)
    }

    fn next(&self, change: Option<Change>) -> View {
        View { number: self.number + 1, change, ..self.clone() }
    }

    /// The view after the loss of memory nodes: they are no members any more, and every subtable
    /// that had a replica there is frozen, beside those that were already. To be made in any stage.
    pub fn without(&self, lost: &[MnId]) -> Result<View, NothingLeft> {
        let is_lost = |place: &Place| lost.contains(&place.node);
        let before = self.change.clone().unwrap_or(Change::begun());
        let mut view = self.next(None);
        view.members.retain(|member| !lost.contains(&member.node));
        let gone = (self.members.len() - view.members.len()) as u16;
        let mut change = Change {
            data_lost: true,
            lost: before.lost.saturating_add(gone),
            regions: before.regions.clone(),
            ..Change::begun()
        };
        for (number, subtable) in (0u32..).zip(&mut view.subtables) {
            let known = before.of_subtable(number).cloned();
            let lost_one = subtable.places.iter().any(is_lost);
            if known.is_none() && !lost_one {
                continue;
            }
            let lost_its_head = is_lost(&subtable.places[0]);
            let leaving = known.as_ref().and_then(|known| {
                still_leaving(&subtable.places, known.joining, known.leaving, lost)
            });
            subtable.places.retain(|place| !is_lost(place));
            if subtable.places.is_empty() {
                return Err(NothingLeft::Subtable(number));
            }
            let known = known.unwrap_or(SubtableChange::of(number));
            let split = known.split.map(|split| match split {
                Split::Filling(mut places) => {
                    places.retain(|place| !is_lost(place));
                    Split::Filling(places)
                }
                clearing => clearing,
            });
            change.subtables.push(SubtableChange {
                headless: lost_its_head || known.headless,
                joining: known.joining.filter(|place| !is_lost(place)),
                leaving,
                split,
                ..known
            });
        }
        for change in &mut change.regions {
            let places = &view.regions[change.region as usize].places;
            change.leaving = still_leaving(places, change.joining, change.leaving, lost);
            change.joining = change.joining.filter(|place| !is_lost(place));
        }
        // A bitmap may be zeros already: owners must not go on with what they saw of it.
        let goes_on =
            |region: &RegionChange| region.renewed || region.joining.or(region.leaving).is_some();
        change.regions.retain(goes_on);
        for region in &mut view.regions {
            if region.places.first().is_some_and(is_lost) {
                region.led_since = view.number;
            }
            region.places.retain(|place| !is_lost(place));
        }
        if let Some(gone) = view.regions.iter().position(|region| region.places.is_empty()) {
            // A new one holds nothing yet: it and those after it do not come.
            if gone < view.regions.len() - before.new_regions as usize {
                return Err(NothingLeft::Region(gone as u32));
            }
            view.regions.truncate(gone);
        }
        let known = self.regions.len() as u32 - before.new_regions;
        change.new_regions = view.regions.len() as u32 - known;
        // Without a place for one sibling none is taken in: their numbers follow from each other.
        let homeless = |s: &SubtableChange| s.split == Some(Split::Filling(Vec::new()));
        if change.subtables.iter().any(homeless) {
            let filled = |s: &&mut SubtableChange| matches!(s.split, Some(Split::Filling(_)));
            change.subtables.iter_mut().filter(filled).for_each(|s| s.split = None);
        }
        view.change = Some(change);
        Ok(view)
    }

    /// The view in which replicas are going to be added to subtables and regions.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn growing(&self, subtables: &[Gain], regions: &[Gain]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let subtable = |gain: &Gain| SubtableChange {
            joining: Some(gain.joining),
            leaving: gain.leaving,
            ..SubtableChange::of(gain.of)
        };
        let region = |gain: &Gain| RegionChange {
            region: gain.of,
            joining: Some(gain.joining),
            leaving: gain.leaving,
            renewed: false,
        };
        let mut change = Change {
            subtables: subtables.iter().map(subtable).collect(),
            regions: regions.iter().map(region).collect(),
            ..Change::begun()
        };
        change.subtables.sort_by_key(|s| s.subtable);
        change.regions.sort_by_key(|r| r.region);
        self.next(Some(change))
    }

    /// The view in which subtables are going to be split; with the places of their siblings.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn splitting(&self, splits: &[(u32, Vec<Place>)]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let split = |(subtable, sibling): &(u32, Vec<Place>)| SubtableChange {
            split: Some(Split::Filling(sibling.clone())),
            ..SubtableChange::of(*subtable)
        };
        let mut subtables: Vec<SubtableChange> = splits.iter().map(split).collect();
        subtables.sort_by_key(|s| s.subtable);
        self.next(Some(Change { subtables, ..Change::begun() }))
    }

    /// The view in which the replicas of subtables are going to be made equal, and the free bitmaps of
    /// regions to begin anew. Both in order.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn settling(&self, subtables: &[u32], regions: &[u32]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let region = |region: &u32| RegionChange {
            region: *region,
            joining: None,
            leaving: None,
            renewed: true,
        };
        let subtables = subtables.iter().map(|subtable| SubtableChange::of(*subtable)).collect();
        let regions = regions.iter().map(region).collect();
        self.next(Some(Change { subtables, regions, ..Change::begun() }))
    }

    /// The view in which a change that is frozen has more subtables in its scope, whose replicas are going to be
    /// made equal. In order, none of them in the scope yet.
    ///
    /// # Panics
    /// If no change is frozen.
    pub fn also_settling(&self, subtables: &[u32]) -> View {
        let mut change = self.change.clone().expect("a change is under way");
        assert_eq!(change.stage, Stage::Frozen, "the scope is fixed");
        let known = |subtable: &u32| change.subtables.iter().any(|s| s.subtable == *subtable);
        debug_assert!(!subtables.iter().any(known), "each of them once");
        change.subtables.extend(subtables.iter().map(|subtable| SubtableChange::of(*subtable)));
        change.subtables.sort_by_key(|s| s.subtable);
        self.next(Some(change))
    }

    /// The view that has new regions, of which nobody hands out blocks yet; with their places.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn with_new_regions(&self, regions: &[Vec<Place>]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let new_regions = regions.len() as u32;
        let mut view = self.next(Some(Change { new_regions, ..Change::begun() }));
        let region = |places: &Vec<Place>| Region {
            scheme: Scheme::Replicated,
            places: places.clone(),
            led_since: view.number,
        };
        view.regions.extend(regions.iter().map(region));
        view
    }

    /// Makes the sibling of a subtable a part of the index: half of the directory's entries that
    /// lead to the one lead to the other from now on. Returns its number.
    fn take_sibling_in(&mut self, subtable: u32, places: Vec<Place>) -> u32 {
        let number = self.subtables.len() as u32;
        let old = &mut self.subtables[subtable as usize];
        old.local_depth += 1;
        let local_depth = u32::from(old.local_depth);
        self.subtables.push(Subtable { local_depth: local_depth as u8, places });
        if local_depth > self.depth() {
            self.directory = self.directory.iter().flat_map(|entry| [*entry; 2]).collect();
        }
        let bit = 1 << (self.depth() - local_depth);
        for (i, entry) in self.directory.iter_mut().enumerate() {
            if *entry == subtable && i & bit != 0 {
                *entry = number;
            }
        }
        number
    }

    /// The view of the next stage: transforming after frozen, switched after transforming, stable
    /// after switched.
    ///
    /// # Panics
    /// If no change is under way.
    pub fn advanced(&self) -> View {
        let mut change = self.change.clone().expect("a change is under way");
        match change.stage {
            Stage::Frozen => {
                change.stage = Stage::Transforming;
                change.data_lost = false;
                change.new_regions = 0;
                self.next(Some(change))
            }
            Stage::Transforming => {
                let mut view = self.next(None);
                let mut siblings = Vec::new();
                for subtable in &mut change.subtables {
                    subtable.headless = false;
                    let places = &mut view.subtables[subtable.subtable as usize].places;
                    switch_places(places, subtable.joining.take(), subtable.leaving);
                    if let Some(Split::Filling(places)) = &mut subtable.split {
                        let places = core::mem::take(places);
                        let sibling = view.take_sibling_in(subtable.subtable, places);
                        subtable.split = Some(Split::Clearing(sibling));
                        siblings.push(SubtableChange::of(sibling));
                    }
                }
                // Their numbers are larger than all others.
                change.subtables.append(&mut siblings);
                for RegionChange { region, joining, leaving, renewed } in &mut change.regions {
                    let region = &mut view.regions[*region as usize];
                    if region.places.first() == leaving.as_ref() || *renewed {
                        region.led_since = view.number;
                    }
                    switch_places(&mut region.places, joining.take(), *leaving);
                }
                change.regions.retain(|region| region.leaving.is_some());
                change.lost = 0;
                change.stage = Stage::Switched;
                view.change = Some(change);
                view
            }
            Stage::Switched => self.next(None),
        }
    }

    /// Checks what a change says. Part of [`View::check`].
    pub(crate) fn check_change(&self) -> Result<(), ViewError> {
        let fail = |what| Err(ViewError { what });
        let Some(change) = &self.change else { return Ok(()) };
        let ascending = |numbers: &[u32]| numbers.windows(2).all(|pair| pair[0] < pair[1]);
        let subtables: Vec<u32> = change.subtables.iter().map(|s| s.subtable).collect();
        let regions: Vec<u32> = change.regions.iter().map(|r| r.region).collect();
        if !ascending(&subtables) || !ascending(&regions) {
            return fail("the scope of a change is not in order");
        }
        if subtables.last().is_some_and(|last| *last as usize >= self.subtables.len())
            || regions.last().is_some_and(|last| *last as usize >= self.regions.len())
        {
            return fail("a change names an unknown subtable or region");
        }
        if change.new_regions as usize > self.regions.len()
            || (change.new_regions > 0 && change.stage != Stage::Frozen)
        {
            return fail("a change has new regions that it cannot have");
        }
        let switched = change.stage == Stage::Switched;
        let unfinished = |s: &SubtableChange| s.headless || s.new_places().next().is_some();
        if switched && change.subtables.iter().any(unfinished) {
            return fail("a change that is switched leaves a subtable unfinished");
        }
        if switched && change.regions.iter().any(|r| r.joining.is_some()) {
            return fail("a change that is switched leaves a region unfinished");
        }
        let bytes = self.geometry.subtable_bytes();
        for SubtableChange { subtable, joining, leaving, split, .. } in &change.subtables {
            let Subtable { places, local_depth } = &self.subtables[*subtable as usize];
            self.check_exchange(places, *joining, *leaving, bytes)?;
            match split {
                None => {}
                Some(Split::Filling(_)) if u32::from(*local_depth) >= MAX_DEPTH => {
                    return fail("a subtable is split that is too deep");
                }
                Some(Split::Filling(sibling)) => self.check_places(sibling, bytes)?,
                Some(Split::Clearing(sibling)) if change.of_subtable(*sibling).is_none() => {
                    return fail("the sibling of a subtable is not in the scope of the change");
                }
                Some(Split::Clearing(_)) => {}
            }
        }
        for RegionChange { region, joining, leaving, .. } in &change.regions {
            let places = &self.regions[*region as usize].places;
            self.check_exchange(places, *joining, *leaving, self.geometry.region_bytes)?;
        }
        Ok(())
    }

    /// Checks what comes to these places, and what goes or has gone.
    fn check_exchange(
        &self,
        places: &[Place],
        joining: Option<Place>,
        leaving: Option<Place>,
        bytes: u64,
    ) -> Result<(), ViewError> {
        let mut all = places.to_vec();
        all.extend(joining);
        // One that leaves may make room for the sixth of five.
        all.retain(|place| Some(*place) != leaving);
        self.check_places(&all, bytes)?;
        leaving.map_or(Ok(()), |leaving| self.check_places(&[leaving], bytes))?;
        let stays = leaving.is_some_and(|leaving| places.contains(&leaving));
        let switched = self.change.as_ref().is_some_and(|c| c.stage == Stage::Switched);
        match switched && stays {
            true => Err(ViewError { what: "a replica that has left is still there" }),
            false => Ok(()),
        }
    }

    /// The view with one more member, which holds nothing yet.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn with_member(&self, member: Member) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let mut view = self.next(None);
        view.members.push(member);
        view
    }

    /// The view without a member that holds nothing any more.
    ///
    /// # Panics
    /// If a change is under way, or it holds something.
    pub fn without_member(&self, node: MnId) -> View {
        assert!(self.change.is_none() && !self.uses(node), "something lies there");
        let mut view = self.next(None);
        view.members.retain(|member| member.node != node);
        view
    }
}

/// What has a replica leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavingFrom {
    /// The subtable of this number.
    Subtable(u32),
    /// The region of this number.
    Region(u32),
}

/// Which replica leaves these places when memory nodes are lost meanwhile. Where one more was lost, or
/// what was to come, none does: there would be too few. One that has left already stays away.
fn still_leaving(
    places: &[Place],
    joining: Option<Place>,
    leaving: Option<Place>,
    lost: &[MnId],
) -> Option<Place> {
    let is_lost = |place: &Place| lost.contains(&place.node);
    let stays = places.iter().chain(&joining).any(is_lost);
    leaving.filter(|leaving| !(is_lost(leaving) || stays && places.contains(leaving)))
}

#[cfg(test)]
mod tests;
