//! The rules that every view keeps. A view can come from another process, and operations rely on all rules.

use alloc::vec::Vec;

use super::change::{
    ChangeStage, LeavingFrom, RegionChange, SplitProgress, SubtableChange, ViewChange,
};
use super::{MAX_DEPTH, MAX_REPLICAS, Member, PoolPlace, View, ViewError};
use crate::layout::{ADDRESS_SPACE_BYTES, UNIT_BYTES, first_extent};
use crate::verbs::MnId;

impl View {
    /// Checks everything that operations rely on, because a view can come from another process.
    pub fn check(&self) -> Result<(), ViewError> {
        let fail = |what| Err(ViewError { what });
        self.geometry.check()?;
        if !self.directory.len().is_power_of_two() || self.directory.len() > 1 << MAX_DEPTH {
            return fail("the directory must have 2^n entries, at most 2^24");
        }
        if self.directory.iter().any(|s| *s as usize >= self.subtables.len()) {
            return fail("the directory names an unknown subtable");
        }
        let bits = u32::try_from(self.regions.len())
            .ok()
            .and_then(|n| u64::from(n).checked_mul(self.geometry.region_bytes));
        if bits.is_none_or(|end| end > ADDRESS_SPACE_BYTES) {
            return fail("the regions exceed the 44-bit address space");
        }
        let pools = MemberPools { members: &self.members };
        for subtable in &self.subtables {
            pools.check_places(subtable.replicas(), self.geometry.subtable_bytes())?;
        }
        for region in &self.regions {
            region.check()?;
            pools.check_apart(region.places(), self.geometry.region_bytes)?;
        }
        if self.subtables.iter().any(|s| u32::from(s.local_depth) > self.depth()) {
            return fail("a subtable is deeper than the directory");
        }
        let mut names: Vec<MnId> = self.members.iter().map(|m| m.node).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return fail("two members have one name");
        }
        if let Some(change) = &self.change {
            check_scope(change, self)?;
            check_exchanges(change, self, &pools)?;
        }
        PoolExtents::of(self).check()
    }
}

/// The bytes of a memory node's pool that one replica takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PoolExtent {
    node: MnId,
    start: u64,
    end: u64,
}

/// The extents of all replicas of a view, and of those that join or have left.
struct PoolExtents {
    extents: Vec<PoolExtent>,
}

impl PoolExtents {
    fn of(view: &View) -> PoolExtents {
        let subtable = view.geometry.subtable_bytes();
        let region = view.geometry.region_bytes;
        let mut all = PoolExtents { extents: Vec::new() };
        view.subtables.iter().for_each(|s| all.add(s.replicas().iter().copied(), subtable));
        view.regions.iter().for_each(|r| all.add(r.places().iter().copied(), region));
        let Some(change) = &view.change else { return all };
        all.add(change.subtables.iter().flat_map(SubtableChange::new_places), subtable);
        all.add(change.regions.iter().filter_map(|r| r.joining), region);
        for (from, place) in change.leaving() {
            let (held, bytes) = match from {
                LeavingFrom::Subtable(n) => (view.subtables[n as usize].replicas(), subtable),
                LeavingFrom::Region(n) => (view.regions[n as usize].places(), region),
            };
            // The replica has left, but its room has not been given back yet.
            if !held.contains(&place) {
                all.add([place], bytes);
            }
        }
        all
    }

    /// Adds replicas of `bytes` bytes each.
    fn add(&mut self, places: impl IntoIterator<Item = PoolPlace>, bytes: u64) {
        let extent = |place: PoolPlace| {
            let PoolPlace { node, offset } = place;
            PoolExtent { node, start: offset, end: offset + bytes }
        };
        self.extents.extend(places.into_iter().map(extent));
    }

    /// Checks that no byte of a pool belongs to two extents.
    fn check(mut self) -> Result<(), ViewError> {
        self.extents.sort_unstable();
        let overlap =
            |pair: &[PoolExtent]| pair[0].node == pair[1].node && pair[0].end > pair[1].start;
        if self.extents.windows(2).any(overlap) {
            Err(ViewError { what: "two extents of a pool overlap" })
        } else {
            Ok(())
        }
    }
}

/// The pools of a view's members, in which replicas are allowed to lie.
struct MemberPools<'v> {
    members: &'v [Member],
}

impl MemberPools<'_> {
    /// Checks the places of replicas of `bytes` bytes each, and their number.
    fn check_places(&self, places: &[PoolPlace], bytes: u64) -> Result<(), ViewError> {
        check_count(places)?;
        self.check_apart(places, bytes)
    }

    /// Checks that replicas of `bytes` bytes each lie in the pools of different members.
    fn check_apart(&self, places: &[PoolPlace], bytes: u64) -> Result<(), ViewError> {
        let fail = |what| Err(ViewError { what });
        for (i, place) in places.iter().enumerate() {
            let Some(member) = self.members.iter().find(|member| member.node == place.node) else {
                return fail("a replica lies on an unknown memory node");
            };
            let pool_end = first_extent(member.pool_bytes).saturating_add(member.pool_bytes);
            if !place.offset.is_multiple_of(UNIT_BYTES)
                || place.offset.checked_add(bytes).is_none_or(|end| end > pool_end)
            {
                return fail("a replica is misaligned or exceeds its node's pool");
            }
            if places[..i].iter().any(|p| p.node == place.node) {
                return fail("two replicas lie on one memory node");
            }
        }
        Ok(())
    }

    /// Checks, for these places, the replica that joins and the one that leaves or has left.
    fn check_exchange(
        &self,
        places: &[PoolPlace],
        joining: Option<PoolPlace>,
        leaving: Option<PoolPlace>,
        bytes: u64,
    ) -> Result<(), ViewError> {
        let mut all = places.to_vec();
        all.extend(joining);
        all.retain(|place| Some(*place) != leaving);
        self.check_apart(&all, bytes)?;
        leaving.map_or(Ok(()), |leaving| self.check_apart(&[leaving], bytes))
    }
}

/// Checks that a view's change names subtables and regions that exist, in ascending order, and that its stage allows
/// what it contains.
fn check_scope(change: &ViewChange, view: &View) -> Result<(), ViewError> {
    let fail = |what| Err(ViewError { what });
    let ascending = |numbers: &[u32]| numbers.windows(2).all(|pair| pair[0] < pair[1]);
    let subtables: Vec<u32> = change.subtables.iter().map(|s| s.subtable).collect();
    let regions: Vec<u32> = change.regions.iter().map(|r| r.region).collect();
    if !ascending(&subtables) || !ascending(&regions) {
        return fail("the scope of a change is not in order");
    }
    if subtables.last().is_some_and(|last| *last as usize >= view.subtables.len())
        || regions.last().is_some_and(|last| *last as usize >= view.regions.len())
    {
        return fail("a change names an unknown subtable or region");
    }
    if change.new_regions as usize > view.regions.len()
        || (change.new_regions > 0 && change.stage != ChangeStage::Frozen)
    {
        return fail("a change has new regions that it cannot have");
    }
    let switched = change.stage == ChangeStage::Switched;
    let is_lost = |number: &u32| {
        view.regions.get(*number as usize).is_some_and(|region| region.lost_with().is_some())
    };
    let lost = &change.lost_pairs;
    if !ascending(lost) || !lost.iter().all(is_lost) || switched && !lost.is_empty() {
        return fail("a change says that pairs are lost which are not");
    }
    let unfinished = |s: &SubtableChange| s.without_primary || s.new_places().next().is_some();
    if switched && change.subtables.iter().any(unfinished) {
        return fail("a change that is switched leaves a subtable unfinished");
    }
    if switched && change.regions.iter().any(|r| r.joining.is_some()) {
        return fail("a change that is switched leaves a region unfinished");
    }
    Ok(())
}

/// Checks the replicas that join and leave by a view's change, and the siblings that it makes. The change has a scope
/// that passes [`check_scope`].
fn check_exchanges(
    change: &ViewChange,
    view: &View,
    pools: &MemberPools<'_>,
) -> Result<(), ViewError> {
    let fail = |what| Err(ViewError { what });
    let switched = change.stage == ChangeStage::Switched;
    let check_left = |places: &[PoolPlace], leaving: Option<PoolPlace>| {
        if switched && leaving.is_some_and(|leaving| places.contains(&leaving)) {
            fail("a replica that has left is still there")
        } else {
            Ok(())
        }
    };
    let bytes = view.geometry.subtable_bytes();
    for SubtableChange { subtable, joining, leaving, split, .. } in &change.subtables {
        let found = &view.subtables[*subtable as usize];
        pools.check_exchange(found.replicas(), *joining, *leaving, bytes)?;
        check_left(found.replicas(), *leaving)?;
        let mut after = found.clone();
        after.exchange(*joining, *leaving);
        check_count(after.replicas())?;
        match split {
            None => {}
            Some(SplitProgress::Filling(_)) if u32::from(found.local_depth) >= MAX_DEPTH => {
                return fail("a subtable is split that is too deep");
            }
            Some(SplitProgress::Filling(sibling)) => pools.check_places(sibling, bytes)?,
            Some(SplitProgress::Clearing(sibling)) if change.of_subtable(*sibling).is_none() => {
                return fail("the sibling of a subtable is not in the scope of the change");
            }
            Some(SplitProgress::Clearing(_)) => {}
        }
    }
    for change in &change.regions {
        let region = &view.regions[change.region as usize];
        let RegionChange { joining, leaving, renewed, .. } = *change;
        pools.check_exchange(region.places(), joining, leaving, view.geometry.region_bytes)?;
        check_left(region.places(), leaving)?;
        let mut after = region.clone();
        after.exchange(joining, leaving, renewed, view.number);
        after.check()?;
    }
    Ok(())
}

fn check_count(replicas: &[PoolPlace]) -> Result<(), ViewError> {
    match replicas.len() {
        1..=MAX_REPLICAS => Ok(()),
        _ => Err(ViewError { what: "there must be 1..=5 replicas" }),
    }
}
