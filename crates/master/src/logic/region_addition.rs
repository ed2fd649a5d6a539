//! Regions on demand: the data space grows when clients find no free block anywhere.
//!
//! A cluster is formed with few regions. If every member has told a client that it has no free block, the client tells
//! the master, waits for a newer view, and asks the members again. As with splits, requests are not stored: clients
//! repeat them.
//!
//! The master remembers requests that come while the view changes. One change serves all of them, whatever redundancies
//! they name. It comes before any replica moves.
//!
//! When the view is stable, the master chooses the members with the most room for the new regions. Each reserves its
//! replica under the number that the region is going to have. Then:
//!
//! | view | sessions that know the region | the node that hands out its blocks |
//! |---|---|---|
//! | frozen | those that have received this view | none |
//! | transforming | all that are pinned | its primary, as soon as the job has told it to |
//! | stable | all that are pinned | its primary |
//!
//! So no slot word leads into a region that its reader does not know: before a node hands out the region's first block,
//! all sessions have acknowledged a view with the region, or are fenced. Meanwhile only requests for blocks wait.
//!
//! If the master crashes before the view is stored, the next master gets the same extents again under the same numbers;
//! after that, all further steps follow from the view. If a member is lost while the change is frozen, the new regions
//! keep the replicas that are left, and regions without any replica are dropped: no session has used them. A later loss
//! is treated like any other.
//!
//! *Number.* One change adds at least an eighth of the present regions, and as many as give a block to every session
//! that asked; at most 16. If there is room, it adds a replicated region for each member, which hands out its blocks.
//!
//! *Room for redundancy.* While replicas are missing, a region is added only where room remains for all missing
//! replicas that members could hold. Otherwise these would be missing until another node joins. Missing replicas and
//! regions also take turns ([`change_rotation`](super::change_rotation)), so that clients that write without pause do
//! not keep the missing replicas waiting.
//!
//! *Drains first.* A drain begins only if the other members have room for what the node holds. A region is added only
//! where this room remains.
//!
//! *Room for the index.* When a client asks for a region, the present regions are full, and the index has an entry for
//! each object in them. If objects keep their sizes, a further region needs as much additional index as a present
//! region has. So each region is added only where there is room for the region and its share of the index. Then the
//! index can always grow with the data.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use fusee_control::master::MasterReply;
use fusee_control::node::{Extent, NodeReply};
use fusee_core::data::{Redundancy, Region};
use fusee_core::layout::ADDRESS_SPACE_BYTES;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{PoolPlace, View};

use super::change_rotation::ChangePurpose;
use super::context::{CallPurpose, EventContext};
use super::decision::{Decision, NextView};
use super::facts::ClusterFacts;
use super::refused;
use super::reservation::{ExtentReservation, NewExtent, PAUSE_MS, ReservationOutcome, reserve};
use super::shortage::{MemoryCall, MemoryShortage};
use crate::placement::{NodeRoom, roomiest};
use crate::plan::padded;
use crate::request_kinds::RegionRequest;
use crate::settings::MAX_REGIONS;

/// The limit on the number of regions that one view change adds.
const TOGETHER: u64 = 16;
/// One view change adds at least one region for this many regions that exist.
const GROWTH: u64 = 8;

/// The regions that clients want, and the reservation of room for new regions.
#[derive(Debug, Default)]
pub(super) struct RegionAddition {
    /// The sessions that have asked for regions since members were last chosen, by redundancy.
    askers: BTreeMap<Redundancy, BTreeSet<ClientId>>,
    /// The reservation of room for regions that is under way.
    under_way: Option<ExtentReservation>,
    /// The redundancies of the regions that the change under way adds. A master that takes over during the change does
    /// not know them, so it possibly adds regions that are not needed.
    coming: BTreeSet<Redundancy>,
    /// The number of the last stable view that this master has seen.
    stable: u64,
    not_before_ms: u64,
}

impl RegionAddition {
    /// Forgets the reservation under way, because the view has changed, or this master is about to end. Clients that
    /// still need regions ask again.
    pub fn abandon(&mut self) {
        self.under_way = None;
    }

    /// Returns whether members are reserving room for regions.
    pub fn has_begun(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether members are reserving room for regions, and have begun only a short time ago.
    pub fn is_under_way(&self, now_ms: u64) -> bool {
        self.under_way.as_ref().is_some_and(|reserving| reserving.is_young(now_ms))
    }

    /// Records that the view of this number is stable.
    pub fn note_stable_view(&mut self, stable: u64) {
        self.coming.clear();
        self.stable = stable;
    }

    /// Handles a client's report that it found no free block.
    pub fn region_wanted(
        &mut self,
        ctx: &EventContext<'_>,
        cluster: &ClusterFacts,
        view: &View,
        shortage: &mut MemoryShortage,
        request: RegionRequest,
    ) -> MasterReply {
        let RegionRequest { client, view: number, redundancy, call } = request;
        // A change and a reservation both end with a newer view, so the client only has to wait for that view.
        if view.change.is_some() || self.under_way.is_some() {
            if !self.is_on_its_way(view, redundancy, number) {
                self.askers.entry(redundancy).or_default().insert(client);
            }
            return MasterReply::Done;
        }
        if view.number > number {
            return MasterReply::Done;
        }
        if let Some(reason) = cluster.why_no_region(ctx, redundancy) {
            let owes = cluster.owes_replicas(ctx);
            // Restoring a replica ends with a newer view, for which the client waits.
            if owes && cluster.choose(ctx).is_some() {
                return MasterReply::Done;
            }
            return match shortage.call_for_memory(ctx, &cluster.sessions, client, call) {
                MemoryCall::Waits { call } => MasterReply::Called { call },
                MemoryCall::InVain | MemoryCall::Ended if owes => MasterReply::Degraded { reason },
                MemoryCall::InVain => MasterReply::Exhausted,
                MemoryCall::Ended => refused(reason),
            };
        }
        self.askers.entry(redundancy).or_default().insert(client);
        MasterReply::Done
    }

    /// Returns whether a region of this redundancy is coming, or has come since view `asked_by`. A client that used
    /// that view did not know the region, or no memory node handed out the region's blocks yet.
    fn is_on_its_way(&self, view: &View, redundancy: Redundancy, asked_by: u64) -> bool {
        let reserving = self.under_way.iter().filter(|it| it.view == view.number);
        let mut reserved = reserving.flat_map(|reserving| &reserving.items);
        // During a change, a region can have a new primary only because the old one was lost, which makes no room. So a
        // new primary counts only in a stable view.
        let has_come = |since: u64| since > asked_by && since <= self.stable;
        self.coming.contains(&redundancy)
            || reserved.any(|item| item.redundancy == redundancy)
            || view.regions.iter().any(|region| {
                let is_there = has_come(region.primary_since()) && region.is_there();
                is_there && region.redundancy() == redundancy
            })
    }

    /// Begins to add the regions that clients want. Returns whether other changes have to wait for that.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) -> bool {
        let Some(view) = &cluster.view else { return false };
        let number = view.number;
        let first = view.regions.len() as u32;
        if let Some(reserving) = &self.under_way {
            if reserving.goes_on(ctx.now_ms, number) {
                return reserving.is_young(ctx.now_ms);
            }
            self.under_way = None;
        }
        if self.askers.is_empty() || self.not_before_ms > ctx.now_ms {
            return false;
        }
        let askers = std::mem::take(&mut self.askers);
        let wanted = wanted_regions(view, &askers);
        let chosen = (first..).zip(cluster.choose_members(ctx, &wanted));
        let item = |(region, (redundancy, nodes))| {
            let primary = removed(Mutant::NewRegionLedAtOnce);
            NewExtent::new(Extent::Region { region, primary }, redundancy, nodes)
        };
        let items: Vec<NewExtent> = chosen.map(item).collect();
        self.under_way = reserve(ctx, cluster, items, &CallPurpose::AddRegions);
        self.under_way.is_some()
    }

    /// Handles a node's answer to a request for room, or the failure of that request.
    pub fn add_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        node: MnId,
        token: u64,
        result: Result<NodeReply, String>,
    ) {
        let Some(reserving) = &mut self.under_way else { return };
        let heard = reserving.answer(node, token, result);
        if matches!(heard, ReservationOutcome::Full | ReservationOutcome::Complete { full: true }) {
            ctx.decide(Decision::NoteFull { node, regions: true });
        }
        match heard {
            ReservationOutcome::Waits | ReservationOutcome::Full => {}
            ReservationOutcome::Complete { .. } => {
                if let Some(reserving) = self.under_way.take() {
                    self.take_regions_in(ctx, cluster, &reserving);
                }
            }
            ReservationOutcome::Problem(problem) => {
                self.under_way = None;
                self.not_before_ms = ctx.now_ms + PAUSE_MS;
                ctx.decide(Decision::MoveToBack(ChangePurpose::Regions));
                let text = format!("no region is added yet: {problem}");
                ctx.warn(Topic::Room, text);
                ctx.decide(Decision::Probe(node));
            }
        }
    }

    /// Makes the view with the new regions, when room for them has been reserved.
    fn take_regions_in(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        reserving: &ExtentReservation,
    ) {
        let Some(view) = &cluster.view else { return };
        if view.number != reserving.view || view.change.is_some() {
            return;
        }
        let has_all = |item: &&NewExtent| {
            let replicas = cluster.places_of_new_regions(ctx, view, item.redundancy);
            replicas.is_some_and(|replicas| item.places().len() >= replicas)
        };
        // A region with too few places ends the list, because the regions behind it would get wrong numbers.
        let items = reserving.items.iter().take_while(has_all);
        let regions: Vec<(Redundancy, Vec<PoolPlace>)> =
            items.map(|item| (item.redundancy, item.places())).collect();
        if regions.is_empty() {
            return;
        }
        let next = view.with_new_regions(&regions);
        if let Err(error) = next.check() {
            // The offsets come from memory nodes, so they are possibly wrong.
            let text = format!("memory nodes gave room for regions that is none: {error}");
            ctx.warn(Topic::Room, text);
            self.not_before_ms = ctx.now_ms + PAUSE_MS;
            return;
        }
        let text = format!(
            "view {}: frozen; new: {} of {}",
            next.number,
            regions.len(),
            count_with_noun(next.regions.len(), "region")
        );
        ctx.decide(Decision::MoveToBack(ChangePurpose::Regions));
        self.coming = regions.iter().map(|(redundancy, _)| *redundancy).collect();
        ctx.set_view(NextView::new(next, Topic::Room, text));
    }
}

impl ClusterFacts {
    /// Returns how many regions of replicated values could be added now, up to [`TOGETHER`], and the reason if none
    /// could.
    pub fn more_regions(&self, ctx: &EventContext<'_>) -> (u64, Option<String>) {
        if self.view.is_none() {
            return (0, None);
        }
        match self.choose_members(ctx, &[(Redundancy::Replicated, TOGETHER)]).len() {
            0 => (0, self.why_no_region(ctx, Redundancy::Replicated)),
            more => (more as u64, None),
        }
    }

    /// Returns the reason why no region of this redundancy can be added, with the remedy; `None` if one can be added.
    fn why_no_region(&self, ctx: &EventContext<'_>, redundancy: Redundancy) -> Option<String> {
        let view = self.view.as_ref()?;
        let next = "start another memory node";
        if !self.choose_members(ctx, &[(redundancy, 1)]).is_empty() {
            return None;
        }
        if self.owes_replicas(ctx) {
            let missing = self.missing_replicas(ctx);
            return Some(format!(
                "{} missing, which comes first; {next}",
                count_with_noun(missing, "replica")
            ));
        }
        let members = view.members.iter().filter(|member| self.is_usable(member.node)).count();
        let places = redundancy.places(ctx.settings.data_replicas.into());
        let possible = MAX_REGIONS.min(ADDRESS_SPACE_BYTES / view.geometry.region_bytes);
        if view.regions.len() as u64 >= possible {
            return Some(format!("there are {possible} regions, and no more are possible"));
        }
        if members < places && redundancy != Redundancy::Replicated {
            return Some(format!(
                "a region of {redundancy} needs {}, and there are {members}; {next}",
                count_with_noun(places, "memory node")
            ));
        }
        let bytes = view.geometry.region_bytes >> 20;
        let places = places.min(members);
        Some(format!(
            "a region of {redundancy} takes {bytes} MiB, and its share of the index, on {} at once, and fewer \
             than that have as much left; {next}, or delete what is not needed",
            count_with_noun(places, "memory node")
        ))
    }

    /// Returns the members for new regions, up to the wanted number for each redundancy; the primary is first in each
    /// region.
    fn choose_members(
        &self,
        ctx: &EventContext<'_>,
        wanted: &[(Redundancy, u64)],
    ) -> Vec<(Redundancy, Vec<MnId>)> {
        let Some(view) = &self.view else { return Vec::new() };
        let possible = MAX_REGIONS.min(ADDRESS_SPACE_BYTES / view.geometry.region_bytes);
        let possible = possible.saturating_sub(view.regions.len() as u64);
        let mut rooms = self.region_rooms(view);
        let mut led = leads(view);
        let before = self.homeless_beside(ctx, view, &[]);
        let mut chosen: Vec<(Redundancy, Vec<MnId>)> = Vec::new();
        for (redundancy, most) in wanted {
            let Some(replicas) = self.places_of_new_regions(ctx, view, *redundancy) else {
                continue;
            };
            for _ in 0..*most {
                let mut fitting = rooms.clone();
                if let Redundancy::Copies(node) = redundancy {
                    fitting.retain(|room| room.node == *node);
                }
                let Some(mut nodes) = roomiest(&mut fitting, replicas) else { break };
                nodes.sort_by_key(|node| led.get(node).copied().unwrap_or(0));
                let taken = nodes.clone();
                chosen.push((*redundancy, nodes));
                if chosen.len() as u64 > possible || !self.leaves_room(ctx, view, &chosen, before) {
                    chosen.pop();
                    break;
                }
                *led.entry(taken[0]).or_default() += 1;
                let used = rooms.iter_mut().filter(|room| taken.contains(&room.node));
                used.for_each(|room| room.items -= 1);
            }
        }
        chosen
    }

    fn leaves_room(
        &self,
        ctx: &EventContext<'_>,
        view: &View,
        chosen: &[(Redundancy, Vec<MnId>)],
        before: (usize, usize),
    ) -> bool {
        let now = self.homeless_beside(ctx, view, chosen);
        now.0 <= before.0 && now.1 <= before.1
    }

    /// Returns the numbers of replicas that find no room after these regions are added: replicas that leave members,
    /// and missing replicas.
    fn homeless_beside(
        &self,
        ctx: &EventContext<'_>,
        view: &View,
        chosen: &[(Redundancy, Vec<MnId>)],
    ) -> (usize, usize) {
        let nodes: Vec<Vec<MnId>> = chosen.iter().map(|(_, nodes)| nodes.clone()).collect();
        let is_drained = self.roster.draining().next().is_some();
        let leaving = if is_drained { self.count_without_room(view, None, &nodes) } else { 0 };
        (leaving, self.missing_without_room(ctx, view, &nodes))
    }

    /// Returns the number of places of a new region; `None` if members are too few. A replicated region gets fewer
    /// places if there are few members, and further places when there are more; a coded region has all of its columns
    /// from the start.
    fn places_of_new_regions(
        &self,
        ctx: &EventContext<'_>,
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

    /// Returns how many regions fit on each member of the view, each region together with its share of the index.
    fn region_rooms(&self, view: &View) -> Vec<NodeRoom> {
        let index: u64 = view.subtables.iter().map(|s| s.replicas().len() as u64).sum();
        let data: u64 = view.regions.iter().map(|r| r.places().len() as u64).sum();
        let share = index.div_ceil(data.max(1)) * padded(view.geometry.subtable_bytes());
        let mut rooms = self.rooms(view, true, padded(view.geometry.region_bytes) + share);
        rooms.retain(|room| view.member(room.node).is_some());
        rooms
    }
}

/// Returns for each redundancy how many regions to add for these sessions that have asked.
fn wanted_regions(
    view: &View,
    askers: &BTreeMap<Redundancy, BTreeSet<ClientId>>,
) -> Vec<(Redundancy, u64)> {
    let blocks = view.geometry.region_bytes / view.geometry.block_bytes;
    let most = TOGETHER / (askers.len() as u64).clamp(1, TOGETHER);
    let count = |(redundancy, askers): (&Redundancy, &BTreeSet<ClientId>)| {
        let there = view.regions.iter();
        let there = there.filter(|r| r.redundancy() == *redundancy && r.is_there()).count();
        // With only one region, no object could be written while it is copied. Regions for copies (of EC-oriented
        // values) are never copied, so one is enough.
        let alone = if matches!(redundancy, Redundancy::Copies(_)) { 1 } else { 2 };
        let least = if there == 0 { alone } else { (there as u64).div_ceil(GROWTH) };
        // If only some members handed out blocks of new regions, all new objects would lie on these members.
        let each =
            if *redundancy == Redundancy::Replicated { view.members.len() as u64 } else { 0 };
        let least = least.max(each);
        (*redundancy, (askers.len() as u64).div_ceil(blocks).max(least).min(most))
    };
    askers.iter().map(count).collect()
}

/// Returns the number of regions whose blocks each member hands out.
fn leads(view: &View) -> BTreeMap<MnId, u64> {
    let mut led = BTreeMap::new();
    for leader in view.regions.iter().filter_map(Region::leader) {
        *led.entry(leader).or_default() += 1;
    }
    led
}
