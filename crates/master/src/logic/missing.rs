//! What has fewer replicas than it should, and where there is room for more.

use fusee_control::node::Extent;
use fusee_core::data::Redundancy;
use fusee_core::verbs::MnId;
use fusee_core::view::{Place, View};

use super::State;
use super::context::Ctx;
use crate::placement::{Room, another};
use crate::plan::{REGIONS, SUBTABLES, padded};

/// Subtables that are added by one change at most.
const MAX_SUBTABLES: usize = 256;

impl State {
    /// Subtables and regions that have fewer replicas than they should.
    pub(super) fn missing_replicas(&self, ctx: &Ctx<'_>) -> u64 {
        let Some(view) = self.view() else { return 0 };
        (self.poor_subtables(ctx, view).count() + self.poor_regions(ctx, view).count()) as u64
    }

    /// Whether some have fewer than there are members for, columns than there is room for. What room there is
    /// belongs to them.
    pub(super) fn owes_replicas(&self, ctx: &Ctx<'_>) -> bool {
        let Some(view) = self.view() else { return false };
        let usable = view.members.iter().filter(|member| self.is_usable(member.node)).count();
        let owes = |(_, places): (u32, &[Place])| places.len() < usable;
        let rooms = self.rooms(view, true, padded(view.geometry.region_bytes));
        let has_room = |places: &[Place]| {
            rooms.iter().any(|room| room.items > 0 && !names(places).contains(&room.node))
        };
        let owes_region =
            |(number, places): (u32, &[Place])| match view.regions[number as usize].redundancy() {
                Redundancy::Replicated => places.len() < usable,
                // Few nodes can have another column: who waits for one need not stop all others.
                _ => has_room(places),
            };
        self.poor_subtables(ctx, view).any(owes) || self.poor_regions(ctx, view).any(owes_region)
    }

    /// Why no member takes what is missing.
    pub(super) fn why_missing(&self, ctx: &Ctx<'_>) -> String {
        let Some(view) = self.view() else { return String::new() };
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
        ctx: &Ctx<'_>,
        view: &'a View,
    ) -> impl Iterator<Item = (u32, &'a [Place])> {
        let all = (0u32..).zip(&view.subtables).map(|(number, s)| (number, s.replicas()));
        let enough = usize::from(ctx.settings.index_replicas);
        all.filter(move |(_, places)| places.len() < enough)
    }

    fn poor_regions<'a>(
        &self,
        ctx: &Ctx<'_>,
        view: &'a View,
    ) -> impl Iterator<Item = (u32, &'a [Place])> {
        let replicas = usize::from(ctx.settings.data_replicas);
        let all = (0u32..).zip(&view.regions);
        // What has gone with its node stays away.
        let poor = all.filter(move |(_, r)| {
            r.is_there() && r.places().len() < r.redundancy().places(replicas)
        });
        poor.map(|(number, region)| (number, region.places()))
    }

    /// What to add next, and on which node.
    pub(super) fn choose(&self, ctx: &Ctx<'_>) -> Option<(MnId, Vec<Extent>)> {
        let view = self.view()?;
        let subtable = padded(view.geometry.subtable_bytes());
        let mut rooms = self.rooms(view, false, subtable);
        let mut chosen: Option<(MnId, Vec<Extent>)> = None;
        for (number, places) in self.poor_subtables(ctx, view) {
            let Some(node) = another(SUBTABLES, &rooms, number.into(), &names(places)) else {
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
            let node = another(REGIONS, &rooms, region.into(), &names(places))?;
            Some((node, vec![Extent::Region { region, primary: false }]))
        })
    }

    /// How many replicas that are missing find no room on the members, once there are new regions on these as well.
    pub(super) fn missing_without_room(
        &self,
        ctx: &Ctx<'_>,
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

    /// Whether something may be placed on a node.
    pub(super) fn is_usable(&self, node: MnId) -> bool {
        self.in_view(node) && !self.losing.has(node) && !self.roster.is_draining(node)
    }

    /// How many extents, subtables or regions, that take so many bytes each fit on the nodes that
    /// can be used.
    pub(super) fn rooms(&self, view: &View, regions: bool, padded_bytes: u64) -> Vec<Room> {
        let usable = self.roster.nodes().filter(|member| {
            self.is_usable(member.node) && !self.growth.is_full(member.node, regions)
        });
        let room = usable.map(|member| {
            let left = member.pool_bytes.saturating_sub(used(view, member.node));
            Room { node: member.node, items: left / padded_bytes }
        });
        room.collect()
    }
}

fn names(places: &[Place]) -> Vec<MnId> {
    places.iter().map(|place| place.node).collect()
}

/// What the view takes of a node's pool, at most.
fn used(view: &View, node: MnId) -> u64 {
    view.subtables_on(node) * padded(view.geometry.subtable_bytes())
        + view.regions_on(node) * padded(view.geometry.region_bytes)
}
