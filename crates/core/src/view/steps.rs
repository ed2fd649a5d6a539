//! The steps of a change, each of which makes the next view ([`change`](crate::view::change)).

use alloc::vec::Vec;

use super::change::{
    ChangeStage, NewReplica, RegionChange, SplitProgress, SubtableChange, UnsurvivableLoss,
    ViewChange,
};
use super::{Member, PoolPlace, Subtable, View};
use crate::data::{Redundancy, Region};
use crate::mutant::{Mutant, removed};
use crate::verbs::MnId;

impl View {
    fn next(&self, change: Option<ViewChange>) -> View {
        View { number: self.number + 1, change, ..self.clone() }
    }

    /// Returns the view after the loss of memory nodes: they are not members any more, and every subtable that had a
    /// replica there joins the scope of the change. If pairs without redundancy are lost, all subtables join. The
    /// change begins again in *frozen*, whatever its stage was.
    pub fn without(&self, lost: &[MnId]) -> Result<View, UnsurvivableLoss> {
        let is_lost = |place: &PoolPlace| lost.contains(&place.node);
        let before = self.change.clone().unwrap_or(ViewChange::begun());
        let mut view = self.next(None);
        view.members.retain(|member| !lost.contains(&member.node));
        let gone = (self.members.len() - view.members.len()) as u16;
        let mut change = ViewChange {
            data_lost: true,
            lost: before.lost.saturating_add(gone),
            regions: before.regions.clone(),
            lost_pairs: before.lost_pairs.clone(),
            ..ViewChange::begun()
        };
        let known_regions = self.regions.len() - before.new_regions as usize;
        let loses_pairs =
            |region: &Region| region.has_single_pairs() && region.places().iter().any(is_lost);
        // If pairs without redundancy are lost, any subtable can hold words that lead to them.
        let settles_all = (!before.lost_pairs.is_empty()
            || self.regions[..known_regions].iter().any(loses_pairs))
            && !removed(Mutant::LossSettlesFew);
        for (number, subtable) in (0u32..).zip(&mut view.subtables) {
            let known = before.of_subtable(number).cloned();
            let lost_one = subtable.replicas().iter().any(is_lost);
            if known.is_none() && !lost_one && !settles_all {
                continue;
            }
            let lost_its_head = is_lost(&subtable.primary());
            let leaving = known.as_ref().and_then(|known| {
                still_leaving(subtable.replicas(), known.joining, known.leaving, lost)
            });
            if !subtable.lose(is_lost) {
                return Err(UnsurvivableLoss::Subtable(number));
            }
            let known = known.unwrap_or(SubtableChange::of(number));
            let split = known.split.map(|split| match split {
                SplitProgress::Filling(mut places) => {
                    places.retain(|place| !is_lost(place));
                    SplitProgress::Filling(places)
                }
                clearing => clearing,
            });
            change.subtables.push(SubtableChange {
                without_primary: lost_its_head || known.without_primary,
                joining: known.joining.filter(|place| !is_lost(place)),
                leaving,
                split,
                ..known
            });
        }
        for change in &mut change.regions {
            let places = view.regions[change.region as usize].places();
            change.leaving = still_leaving(places, change.joining, change.leaving, lost);
            change.joining = change.joining.filter(|place| !is_lost(place));
        }
        for (number, region) in (0u32..).zip(&mut view.regions) {
            let looked_at = if removed(Mutant::FirstColumnAddsParity) { 1 } else { usize::MAX };
            if region.may_lack_parity() && region.places().iter().take(looked_at).any(is_lost) {
                change.add_parity(number);
            }
            if loses_pairs(region) {
                change.lost_pairs.push(number);
            }
            region.lose(is_lost, view.number);
        }
        // A region without places gets no new place: the room of its joining place is given back.
        let is_there = |change: &RegionChange| view.regions[change.region as usize].is_there();
        for change in change.regions.iter_mut().filter(|change| !is_there(change)) {
            change.leaving = change.joining.take().or(change.leaving);
            change.renewed = false;
        }
        // A region with renewed bitmaps stays in the change, because a bitmap possibly contains zeros already, and
        // owners must not rely on bits that they saw before.
        let goes_on = |region: &RegionChange| {
            region.renewed || region.adds_parity || region.joining.or(region.leaving).is_some()
        };
        change.regions.retain(goes_on);
        let does_not_come = |(number, region): (usize, &Region)| {
            region.is_gone() || number >= known_regions && !region.is_there()
        };
        if let Some(gone) = view.regions.iter().enumerate().position(does_not_come) {
            // A new region holds nothing yet, so it is dropped, together with the new regions behind it.
            if gone < known_regions {
                return Err(UnsurvivableLoss::Region(gone as u32));
            }
            view.regions.truncate(gone);
            change.regions.retain(|region| (region.region as usize) < gone);
            change.lost_pairs.retain(|region| (*region as usize) < gone);
        }
        change.lost_pairs.sort_unstable();
        change.new_regions = (view.regions.len() - known_regions) as u32;
        // If one sibling has no place left, no sibling is made, because the numbers of siblings follow from each other.
        let homeless = |s: &SubtableChange| s.split == Some(SplitProgress::Filling(Vec::new()));
        if change.subtables.iter().any(homeless) {
            let filled =
                |s: &&mut SubtableChange| matches!(s.split, Some(SplitProgress::Filling(_)));
            change.subtables.iter_mut().filter(filled).for_each(|s| s.split = None);
        }
        view.change = Some(change);
        Ok(view)
    }

    /// Returns the view in which replicas are to be added to subtables and regions.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn growing(&self, subtables: &[NewReplica], regions: &[NewReplica]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let subtable = |gain: &NewReplica| SubtableChange {
            joining: Some(gain.joining),
            leaving: gain.leaving,
            ..SubtableChange::of(gain.of)
        };
        let region = |gain: &NewReplica| RegionChange {
            joining: Some(gain.joining),
            leaving: gain.leaving,
            adds_parity: self.regions[gain.of as usize].may_lack_parity(),
            ..RegionChange::of(gain.of)
        };
        let mut change = ViewChange {
            subtables: subtables.iter().map(subtable).collect(),
            regions: regions.iter().map(region).collect(),
            ..ViewChange::begun()
        };
        change.subtables.sort_by_key(|s| s.subtable);
        change.regions.sort_by_key(|r| r.region);
        self.next(Some(change))
    }

    /// Returns the view in which subtables are to be split. Each subtable comes with the places of its sibling.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn splitting(&self, splits: &[(u32, Vec<PoolPlace>)]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let split = |(subtable, sibling): &(u32, Vec<PoolPlace>)| SubtableChange {
            split: Some(SplitProgress::Filling(sibling.clone())),
            ..SubtableChange::of(*subtable)
        };
        let mut subtables: Vec<SubtableChange> = splits.iter().map(split).collect();
        subtables.sort_by_key(|s| s.subtable);
        self.next(Some(ViewChange { subtables, ..ViewChange::begun() }))
    }

    /// Returns the view in which a transforming change does not split a subtable, nor those whose siblings would have
    /// higher numbers than its sibling, because the numbers of siblings follow from each other. These subtables stay in
    /// the scope, because writes suspended there have yet to READ their slots. `None` if the change does not split the
    /// subtable.
    pub fn without_split(&self, subtable: u32) -> Option<View> {
        let mut change = self.change.clone().filter(|c| c.stage == ChangeStage::Transforming)?;
        let mut behind =
            change.subtables.iter_mut().skip_while(|s| s.subtable != subtable).peekable();
        behind.peek().filter(|first| matches!(first.split, Some(SplitProgress::Filling(_))))?;
        behind.for_each(|s| s.split = None);
        Some(self.next(Some(change)))
    }

    /// Returns the view in which the replicas of subtables are to be made equal, and the free bitmaps of regions are to
    /// begin anew. Both lists are in ascending order.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn settling(&self, subtables: &[u32], regions: &[u32]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let region = |region: &u32| RegionChange { renewed: true, ..RegionChange::of(*region) };
        let subtables = subtables.iter().map(|subtable| SubtableChange::of(*subtable)).collect();
        let regions = regions.iter().map(region).collect();
        self.next(Some(ViewChange { subtables, regions, ..ViewChange::begun() }))
    }

    /// Returns the view in which more subtables are in the scope of a frozen change, to have their replicas made equal.
    /// The list is in ascending order, and contains no subtable of the scope.
    ///
    /// # Panics
    /// If no change is frozen.
    pub fn also_settling(&self, subtables: &[u32]) -> View {
        let mut change = self.change.clone().expect("a change is under way");
        assert_eq!(change.stage, ChangeStage::Frozen, "the scope is fixed");
        let known = |subtable: &u32| change.subtables.iter().any(|s| s.subtable == *subtable);
        debug_assert!(!subtables.iter().any(known), "each of them once");
        change.subtables.extend(subtables.iter().map(|subtable| SubtableChange::of(*subtable)));
        change.subtables.sort_by_key(|s| s.subtable);
        self.next(Some(change))
    }

    /// Returns the view with new regions at these places. No memory node hands out their blocks yet.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn with_new_regions(&self, regions: &[(Redundancy, Vec<PoolPlace>)]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let new_regions = regions.len() as u32;
        let mut view = self.next(Some(ViewChange { new_regions, ..ViewChange::begun() }));
        let number = view.number;
        let new = regions.iter();
        let new = new.map(|(redundancy, at)| Region::new(*redundancy, at.clone(), number));
        view.regions.extend(new);
        view
    }

    /// Makes the sibling of a subtable a part of the index: from now on half of the directory entries that led to the
    /// subtable lead to the sibling. Returns the number of the sibling.
    fn take_sibling_in(&mut self, subtable: u32, places: Vec<PoolPlace>) -> u32 {
        let number = self.subtables.len() as u32;
        let old = &mut self.subtables[subtable as usize];
        old.local_depth += 1;
        let local_depth = u32::from(old.local_depth);
        self.subtables.push(Subtable::new(local_depth as u8, places));
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

    /// Returns the view of the next stage: transforming after frozen, switched after transforming, stable after
    /// switched.
    ///
    /// # Panics
    /// If no change is under way.
    pub fn advanced(&self) -> View {
        let mut change = self.change.clone().expect("a change is under way");
        match change.stage {
            ChangeStage::Frozen => {
                change.stage = ChangeStage::Transforming;
                change.data_lost = false;
                change.new_regions = 0;
                self.next(Some(change))
            }
            ChangeStage::Transforming => {
                let mut view = self.next(None);
                let mut siblings = Vec::new();
                for subtable in &mut change.subtables {
                    subtable.without_primary = false;
                    let switched = &mut view.subtables[subtable.subtable as usize];
                    switched.exchange(subtable.joining.take(), subtable.leaving);
                    if let Some(SplitProgress::Filling(places)) = &mut subtable.split {
                        let places = core::mem::take(places);
                        let sibling = view.take_sibling_in(subtable.subtable, places);
                        subtable.split = Some(SplitProgress::Clearing(sibling));
                        siblings.push(SubtableChange::of(sibling));
                    }
                }
                // The numbers of the siblings are larger than all other subtables' numbers, so the list stays in order.
                change.subtables.append(&mut siblings);
                for change in &mut change.regions {
                    let region = &mut view.regions[change.region as usize];
                    let joining = change.joining.take();
                    region.exchange(joining, change.leaving, change.renewed, view.number);
                    if core::mem::take(&mut change.adds_parity) {
                        region.note_all_parity();
                    }
                }
                change.regions.retain(|region| region.leaving.is_some());
                change.lost = 0;
                change.lost_pairs.clear();
                change.stage = ChangeStage::Switched;
                view.change = Some(change);
                view
            }
            ChangeStage::Switched => {
                let mut view = self.next(None);
                view.regions.iter_mut().for_each(Region::saves_parity);
                view
            }
        }
    }

    /// Returns the view in which regions of copies are to be given up.
    ///
    /// # Panics
    /// If a change is under way, or if one of the regions is not of copies, or is gone already.
    pub fn giving_up(&self, copies: &[u32]) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let region = |region: &u32| {
            let found = &self.regions[*region as usize];
            assert!(found.copies_on().is_some(), "it is of copies");
            RegionChange { leaving: Some(found.primary()), ..RegionChange::of(*region) }
        };
        let regions = copies.iter().map(region).collect();
        self.next(Some(ViewChange { regions, ..ViewChange::begun() }))
    }

    /// Returns the view with one more member, which holds nothing yet.
    ///
    /// # Panics
    /// If a change is under way.
    pub fn with_member(&self, member: Member) -> View {
        assert!(self.change.is_none(), "one change at a time");
        let mut view = self.next(None);
        view.members.push(member);
        view
    }

    /// Returns the view without a member that holds nothing any more.
    ///
    /// # Panics
    /// If a change is under way, or the member holds something.
    pub fn without_member(&self, node: MnId) -> View {
        assert!(self.change.is_none() && !self.uses(node), "something lies there");
        let mut view = self.next(None);
        view.members.retain(|member| member.node != node);
        view
    }
}

/// Returns the replica that still leaves these places after a loss of memory nodes. If another replica or the joining
/// one was lost, none leaves, because too few would remain. A replica that has left already stays away.
fn still_leaving(
    places: &[PoolPlace],
    joining: Option<PoolPlace>,
    leaving: Option<PoolPlace>,
    lost: &[MnId],
) -> Option<PoolPlace> {
    let is_lost = |place: &PoolPlace| lost.contains(&place.node);
    let stays = places.iter().chain(&joining).any(is_lost);
    leaving.filter(|leaving| !(is_lost(leaving) || stays && places.contains(leaving)))
}

#[cfg(test)]
mod tests;
