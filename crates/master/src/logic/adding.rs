//! Regions on demand: the pool grows when clients find no free block anywhere.
//!
//! A cluster is formed with few regions. A client to which every member has answered that it has no
//! free block tells the master, waits for a newer view, and asks again. As with splits, nothing of
//! that is stored: who needs it asks again.
//!
//! When the view is stable, members are chosen for the new regions, those with the most room, and
//! each reserves its replica under the number that the region is going to have. Then:
//!
//! | view | who knows the region | who hands out its blocks |
//! |---|---|---|
//! | frozen | those who have heard of this view | nobody |
//! | transforming | everybody who is pinned | its primary, as soon as the job has told it to lead |
//! | stable | | its primary |
//!
//! So no word can lead into a region that its reader does not know: before the first block is handed
//! out, all sessions have acknowledged a view that has the region, or are fenced. Nobody waits for
//! anything meanwhile but a block.
//!
//! If the master crashes before the view, its successor gets the same extents again under the same
//! numbers; after it, the view says what is to be done. If a member is lost while the change is
//! frozen, its regions come with the replicas that are left, and without any they do not come
//! (nobody has used them); later it is a loss like any other.
//!
//! *How many.* At least an eighth of what there is, and a block for everybody who asked; up to 16
//! at once.
//!
//! *Redundancy first.* While replicas are missing that members could hold, no region is added: it might
//! take the last room that is left for them, and they would be missing until another node comes.
//!
//! *Drains first.* A node that is to leave was promised that others have room for what it holds: a region is added only
//! where that stays so.
//!
//! *Room for the index.* When a region is asked for, those that there are are full, and the index
//! serves them. If objects stay as large as they are, every further region needs as much more index
//! as those have. So a region counts with its share of the index: it is added only where both fit,
//! and the index can always grow with the data that there is room for.

use fusee_control::events::Topic;
use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::MasterReply;
use fusee_control::node::{Extent, NodeReply};
use fusee_core::data::{Redundancy, Region};
use fusee_core::layout::VACATED_BYTES;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Place, View};

use super::context::{Ctx, Purpose};
use super::reserving::{Heard, Item, PAUSE_MS, Reserving};
use super::{State, refused};
use crate::placement::{Room, roomiest};
use crate::plan::padded;
use crate::settings::MAX_REGIONS;

/// Regions that are added by one change at most.
const TOGETHER: u64 = 16;
/// One of so many regions more, when one is asked for.
const GROWTH: u64 = 8;

/// Regions that are wanted.
#[derive(Debug, Default)]
pub(super) struct Adding {
    /// Who asked since the last choice, by redundancy.
    askers: BTreeMap<Redundancy, BTreeSet<ClientId>>,
    /// What is reserved, with the redundancy of its objects.
    under_way: Option<(Redundancy, Reserving)>,
    not_before_ms: u64,
}

impl Adding {
    /// Forgets what was under way: the view has changed. Who needs it asks again.
    pub fn abandon(&mut self) {
        self.under_way = None;
    }
}

impl State {
    /// A client found no free block, by the view of this number, and has waited for a call
    /// ([`shortage`](super::shortage)).
    pub(super) fn region_wanted(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        (number, redundancy): (u64, Redundancy),
        call: u64,
    ) -> MasterReply {
        let Some(view) = self.view() else { return self.not_ready(ctx) };
        // A change comes to its end by newer views.
        if view.number > number || view.change.is_some() || self.adding.under_way.is_some() {
            return MasterReply::Done;
        }
        // Whatever is being restored ends by a newer view.
        let owes = self.owes_replicas(ctx);
        if owes && self.choose(ctx).is_some() {
            return MasterReply::Done;
        }
        if let Some(reason) = self.why_no_region(ctx, redundancy) {
            return match self.call_for_memory(ctx, call) {
                Ok(call) => MasterReply::Called { call },
                Err(_) if owes => MasterReply::Degraded { reason },
                Err(true) => MasterReply::Exhausted,
                Err(false) => refused(reason),
            };
        }
        self.adding.askers.entry(redundancy).or_default().insert(client);
        MasterReply::Done
    }

    /// How many regions of replicated values could be added now, up to [`TOGETHER`], and why none.
    pub(super) fn more_regions(&self, ctx: &Ctx<'_>) -> (u64, Option<String>) {
        if self.view().is_none() {
            return (0, None);
        }
        match self.why_no_region(ctx, Redundancy::Replicated) {
            Some(reason) => (0, Some(reason)),
            None => (self.choose_members(ctx, Redundancy::Replicated, TOGETHER).len() as u64, None),
        }
    }

    /// What keeps a region of this redundancy from being added, and what to do; `None` if it can be.
    fn why_no_region(&self, ctx: &Ctx<'_>, redundancy: Redundancy) -> Option<String> {
        let view = self.view()?;
        let next = "start another memory node";
        if self.owes_replicas(ctx) {
            let missing = self.missing_replicas(ctx);
            return Some(format!("{missing} replicas are missing, and come first; {next}"));
        }
        if !self.choose_members(ctx, redundancy, 1).is_empty() {
            return None;
        }
        let members = view.members.iter().filter(|member| self.is_usable(member.node)).count();
        let places = redundancy.places(ctx.settings.data_replicas.into());
        let possible = MAX_REGIONS.min(VACATED_BYTES / view.geometry.region_bytes);
        if view.regions.len() as u64 >= possible {
            return Some(format!("there are {possible} regions, and no more are possible"));
        }
        if members < places && redundancy != Redundancy::Replicated {
            return Some(format!(
                "a region of {redundancy} needs {places} memory nodes, and there are {members}; {next}"
            ));
        }
        let bytes = view.geometry.region_bytes >> 20;
        let places = places.min(members);
        Some(format!(
            "a region of {redundancy} takes {bytes} MiB, and its share of the index, on {places} memory nodes at \
             once, and fewer than that have as much left; {next}, or delete what is not needed"
        ))
    }

    /// Starts to add regions, if they are wanted; whether that is under way.
    pub(super) fn add_regions(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Some(view) = self.view() else { return false };
        let (number, first) = (view.number, view.regions.len() as u32);
        let blocks = u64::from(view.geometry.blocks_per_region());
        if let Some((_, reserving)) = &self.adding.under_way {
            if reserving.goes_on(ctx.now_ms, number) {
                return true;
            }
            self.adding.under_way = None;
        }
        if self.adding.askers.is_empty() || self.adding.not_before_ms > ctx.now_ms {
            return false;
        }
        if self.owes_replicas(ctx) {
            self.adding.askers.clear();
            return false;
        }
        let Some((redundancy, askers)) = self.adding.askers.pop_first() else { return false };
        let askers = askers.len() as u64;
        let Some(view) = self.view() else { return false };
        let there = view.regions.iter().filter(|r| r.redundancy() == redundancy && r.is_there());
        let there = there.count() as u64;
        // While the only one is copied nothing could be written. Copies stay where they are.
        let alone = if matches!(redundancy, Redundancy::Copies(_)) { 1 } else { 2 };
        let least = if there == 0 { alone } else { there.div_ceil(GROWTH) };
        let wanted = askers.div_ceil(blocks).max(least).min(TOGETHER);
        let chosen = (first..).zip(self.choose_members(ctx, redundancy, wanted));
        let item = |(region, nodes)| {
            let primary = removed(Mutant::NewRegionLedAtOnce);
            Item::new(Extent::Region { region, primary }, redundancy, nodes)
        };
        let items: Vec<Item> = chosen.map(item).collect();
        let reserving = self.reserve(ctx, items, &Purpose::AddRegions);
        self.adding.under_way = reserving.map(|reserving| (redundancy, reserving));
        self.adding.under_way.is_some()
    }

    /// The members for up to so many new regions, the primary of each first.
    fn choose_members(&self, ctx: &Ctx<'_>, redundancy: Redundancy, most: u64) -> Vec<Vec<MnId>> {
        let Some(view) = self.view() else { return Vec::new() };
        let Some(replicas) = self.places_of_new_regions(ctx, view, redundancy) else {
            return Vec::new();
        };
        let possible = MAX_REGIONS.min(VACATED_BYTES / view.geometry.region_bytes);
        let most = most.min(possible.saturating_sub(view.regions.len() as u64));
        let mut rooms = self.region_rooms(view);
        if let Redundancy::Copies(node) = redundancy {
            rooms.retain(|room| room.node == node);
        }
        let is_drained = self.roster.draining().next().is_some();
        let before = if is_drained { self.homeless(view, None, &[]) } else { 0 };
        let mut led = leads(view);
        let mut chosen = Vec::new();
        while (chosen.len() as u64) < most
            && let Some(mut nodes) = roomiest(&mut rooms, replicas)
        {
            nodes.sort_by_key(|node| led.get(node).copied().unwrap_or(0));
            let leader = nodes[0];
            chosen.push(nodes);
            if is_drained && self.homeless(view, None, &chosen) > before {
                chosen.pop();
                break;
            }
            *led.entry(leader).or_default() += 1;
        }
        chosen
    }

    /// As many as there should be. With fewer members than that, what is possible: replicated ones get the
    /// rest as soon as there are more. A coded region begins with all of its columns.
    fn places_of_new_regions(
        &self,
        ctx: &Ctx<'_>,
        view: &View,
        redundancy: Redundancy,
    ) -> Option<usize> {
        let members = view.members.iter().map(|member| member.node);
        let members = members.filter(|node| self.is_usable(*node)).count();
        let places = redundancy.places(ctx.settings.data_replicas.into());
        let places = match redundancy {
            Redundancy::Replicated => places.min(members),
            _ => places,
        };
        (1..=members).contains(&places).then_some(places)
    }

    /// How many regions fit on the members of the view, each with its share of the index.
    fn region_rooms(&self, view: &View) -> Vec<Room> {
        let index: u64 = view.subtables.iter().map(|s| s.replicas().len() as u64).sum();
        let data: u64 = view.regions.iter().map(|r| r.places().len() as u64).sum();
        let share = index.div_ceil(data.max(1)) * padded(view.geometry.subtable_bytes());
        let mut rooms = self.rooms(view, true, padded(view.geometry.region_bytes) + share);
        rooms.retain(|room| view.member(room.node).is_some());
        rooms
    }

    pub(super) fn add_answered(
        &mut self,
        ctx: &mut Ctx<'_>,
        node: MnId,
        token: u64,
        result: Result<NodeReply, String>,
    ) {
        let Some((_, reserving)) = &mut self.adding.under_way else { return };
        let heard = reserving.answer(node, token, result);
        if matches!(heard, Heard::Full | Heard::Complete { full: true }) {
            self.growth.has_no_room_for(node, true);
        }
        match heard {
            Heard::Waits | Heard::Full => {}
            Heard::Complete { .. } => {
                if let Some((redundancy, reserving)) = self.adding.under_way.take() {
                    self.take_regions_in(ctx, redundancy, &reserving);
                }
            }
            Heard::Problem(problem) => {
                self.adding.under_way = None;
                self.adding.not_before_ms = ctx.now_ms + PAUSE_MS;
                let text = format!("no region is added yet: {problem}");
                ctx.warn(Topic::Room, text);
                self.probe(ctx, node);
            }
        }
    }

    /// The room is there: the view says so.
    fn take_regions_in(
        &mut self,
        ctx: &mut Ctx<'_>,
        redundancy: Redundancy,
        reserving: &Reserving,
    ) {
        let Some(view) = self.view() else { return };
        if view.number != reserving.view || view.change.is_some() {
            return;
        }
        let Some(replicas) = self.places_of_new_regions(ctx, view, redundancy) else { return };
        // After one that is too poor none follows: their numbers would not be right any more.
        let places = reserving.items.iter().map(Item::places);
        let places: Vec<Vec<Place>> =
            places.take_while(|places| places.len() >= replicas).collect();
        if places.is_empty() {
            return;
        }
        let next = view.with_new_regions(redundancy, &places);
        if let Err(error) = next.check() {
            // The offsets come from elsewhere.
            let text = format!("memory nodes gave room for regions that is none: {error}");
            ctx.warn(Topic::Room, text);
            self.adding.not_before_ms = ctx.now_ms + PAUSE_MS;
            return;
        }
        let text = format!(
            "view {}: frozen; {} of {} regions are new",
            next.number,
            places.len(),
            next.regions.len()
        );
        self.set_view(ctx, next, Vec::new(), (Topic::Room, text));
    }
}

/// How many regions each member leads.
fn leads(view: &View) -> BTreeMap<MnId, u64> {
    let mut led = BTreeMap::new();
    for leader in view.regions.iter().filter_map(Region::leader) {
        *led.entry(leader).or_default() += 1;
    }
    led
}
