//! Subtables and regions with too few replicas, and the room for more replicas.

use fusee_control::node::Extent;
use fusee_core::data::Redundancy;
use fusee_core::verbs::MnId;
use fusee_core::view::{PoolPlace, View};

use super::context::EventContext;
use super::facts::ClusterFacts;
use crate::placement::{NodeRoom, choose_another};
use crate::plan::{REGIONS, SUBTABLES, padded};

/// The limit on the number of subtable replicas that one view change adds.
const MAX_SUBTABLES: usize = 256;

impl ClusterFacts {
    /// Returns the number of subtables and regions with too few replicas.
    pub fn missing_replicas(&self, ctx: &EventContext<'_>) -> u64 {
        let Some(view) = &self.view else { return 0 };
        (self.poor_subtables(ctx, view).count() + self.poor_regions(ctx, view).count()) as u64
    }

    /// Returns whether replicas are missing that members could hold: those of subtables and replicated regions while
    /// there are enough members, and columns of coded regions while there is room. The present room is reserved for
    /// them.
    pub fn owes_replicas(&self, ctx: &EventContext<'_>) -> bool {
        let Some(view) = &self.view else { return false };
        let usable = view.members.iter().filter(|member| self.is_usable(member.node)).count();
        let owes = |(_, places): (u32, &[PoolPlace])| places.len() < usable;
        let rooms = self.rooms(view, true, padded(view.geometry.region_bytes));
        let has_room = |places: &[PoolPlace]| {
            rooms.iter().any(|room| room.items > 0 && !names(places).contains(&room.node))
        };
        let owes_region = |(number, places): (u32, &[PoolPlace])| match view.regions
            [number as usize]
            .redundancy()
        {
            Redundancy::Replicated => places.len() < usable,
            // Few nodes can hold another column, and while the master waits for such a node, other requests for regions
            // must not wait.
            _ => has_room(places),
        };
        self.poor_subtables(ctx, view).any(owes) || self.poor_regions(ctx, view).any(owes_region)
    }

    /// Returns the reason why no member takes the missing replicas, for operators.
    pub fn why_missing(&self, ctx: &EventContext<'_>) -> String {
        let Some(view) = &self.view else { return String::new() };
        let members = view.members.iter().filter(|member| self.is_usable(member.node)).count();
        let index = usize::from(ctx.settings.index_replicas);
        let subtables = self.poor_subtables(ctx, view).map(|_| index);
        let data = usize::from(ctx.settings.data_replicas);
        let places = |number: u32| view.regions[number as usize].redundancy().places(data);
        let regions = self.poor_regions(ctx, view).map(|(number, _)| places(number));
        match subtables.chain(regions).max() {
            Some(wanted) if wanted > members => {
                format!("they are to be on {wanted} memory nodes each, and there are {members}")
            }
            _ => "no memory node that does not have them has room for them".into(),
        }
    }

    fn poor_subtables<'a>(
        &self,
        ctx: &EventContext<'_>,
        view: &'a View,
    ) -> impl Iterator<Item = (u32, &'a [PoolPlace])> {
        let all = (0u32..).zip(&view.subtables).map(|(number, s)| (number, s.replicas()));
        let enough = usize::from(ctx.settings.index_replicas);
        all.filter(move |(_, places)| places.len() < enough)
    }

    fn poor_regions<'a>(
        &self,
        ctx: &EventContext<'_>,
        view: &'a View,
    ) -> impl Iterator<Item = (u32, &'a [PoolPlace])> {
        let replicas = usize::from(ctx.settings.data_replicas);
        let all = (0u32..).zip(&view.regions);
        // A region that was lost with its only node does not come back, so it lacks no replica.
        let poor = all.filter(move |(_, r)| {
            r.is_there() && r.places().len() < r.redundancy().places(replicas)
        });
        poor.map(|(number, region)| (number, region.places()))
    }

    /// Returns the missing replicas to add next, and the node that gets them.
    pub fn choose(&self, ctx: &EventContext<'_>) -> Option<(MnId, Vec<Extent>)> {
        let view = self.view.as_ref()?;
        let subtable = padded(view.geometry.subtable_bytes());
        let mut rooms = self.rooms(view, false, subtable);
        let mut chosen: Option<(MnId, Vec<Extent>)> = None;
        for (number, places) in self.poor_subtables(ctx, view) {
            let Some(node) = choose_another(SUBTABLES, &rooms, number.into(), &names(places))
            else {
                continue;
            };
            let (first, extents) = chosen.get_or_insert((node, Vec::new()));
            if *first == node && extents.len() < MAX_SUBTABLES {
                extents.push(Extent::Subtable { subtable: number });
                let room = rooms.iter_mut().find(|room| room.node == node)?;
                room.items -= 1;
            }
        }
        if chosen.is_some() {
            return chosen;
        }
        let rooms = self.rooms(view, true, padded(view.geometry.region_bytes));
        self.poor_regions(ctx, view).find_map(|(region, places)| {
            let node = choose_another(REGIONS, &rooms, region.into(), &names(places))?;
            Some((node, vec![Extent::Region { region, primary: false }]))
        })
    }

    /// Returns the number of missing replicas that find no room on the members after new regions are added on these
    /// nodes.
    pub fn missing_without_room(
        &self,
        ctx: &EventContext<'_>,
        view: &View,
        new_regions: &[Vec<MnId>],
    ) -> usize {
        let replicas = usize::from(ctx.settings.data_replicas);
        let subtable = padded(view.geometry.subtable_bytes());
        let region = padded(view.geometry.region_bytes);
        let regions = self.poor_regions(ctx, view).map(|(number, places)| {
            let wanted = view.regions[number as usize].redundancy().places(replicas);
            (places, wanted, region)
        });
        let wanted = usize::from(ctx.settings.index_replicas);
        let subtables = self.poor_subtables(ctx, view);
        let subtables = subtables.map(|(_, places)| (places, wanted, subtable));
        let mut bytes = self.rooms(view, true, 1);
        for room in &mut bytes {
            let new = new_regions.iter().flatten().filter(|node| **node == room.node).count();
            room.items = room.items.saturating_sub(new as u64 * region);
        }
        let mut without = 0;
        for (places, wanted, item_bytes) in regions.chain(subtables) {
            let mut held = names(places);
            for _ in places.len()..wanted {
                let fitting = bytes.iter_mut();
                let fitting = fitting.filter(|r| r.items >= item_bytes && !held.contains(&r.node));
                match fitting.max_by_key(|room| room.items) {
                    None => without += 1,
                    Some(room) => {
                        room.items -= item_bytes;
                        held.push(room.node);
                    }
                }
            }
        }
        without
    }

    /// Returns whether a node is allowed to get new replicas.
    pub fn is_usable(&self, node: MnId) -> bool {
        self.in_view(node) && !self.failed.has(node) && !self.roster.is_draining(node)
    }

    /// Returns how many extents of this padded size fit on each usable node. `regions` tells whether they are regions
    /// or subtables.
    pub fn rooms(&self, view: &View, regions: bool, padded_bytes: u64) -> Vec<NodeRoom> {
        let usable = self.roster.nodes().filter(|member| {
            self.is_usable(member.node) && !self.full.contains(&(member.node, regions))
        });
        let room = usable.map(|member| {
            let left = member.pool_bytes.saturating_sub(used(view, member.node));
            NodeRoom { node: member.node, items: left / padded_bytes }
        });
        room.collect()
    }
}

fn names(places: &[PoolPlace]) -> Vec<MnId> {
    places.iter().map(|place| place.node).collect()
}

/// Returns the upper bound of the bytes of a node's pool that the view uses.
fn used(view: &View, node: MnId) -> u64 {
    view.subtables_on(node) * padded(view.geometry.subtable_bytes())
        + view.regions_on(node) * padded(view.geometry.region_bytes)
}
