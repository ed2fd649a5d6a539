//! The growth of the index: a subtable in which a client found no free slot is split.
//!
//! Clients repeat their request as long as they need the split, so requests are not stored. When the view is stable,
//! the master chooses members for the siblings of all subtables to split. Each member reserves the room for its replica
//! under the number that the sibling is going to have. Then the view names the places, and all further steps follow
//! from the view ([`SplitProgress`](fusee_core::view::change::SplitProgress)).
//!
//! *Depth.* A split that separates no keys doubles the directory, and so does the next one. Clients do not ask for such
//! a split: they look at the keys in the slots first. Whatever clients ask for, the master bounds the depth by the
//! number of subtables ([`View::deepest`]): if keys hash as they should, subtables differ in depth by one or two. So
//! the size of the directory, and of each view, remains in proportion to the number of subtables.
//!
//! *Room.* A sibling has as many replicas as members have room for, up to the setting, and at least as many as the
//! subtable that is split. Missing replicas are added later, as for any other subtable. If there is no room for one
//! sibling, the siblings after it are left out, because their numbers would be wrong. If room was reserved in vain, a
//! later request for the same number gets it.
//!
//! *Damage.* An entry without an intact replica of its object belongs to neither half. Its subtable is not split. In
//! this change, the subtables before it are split, and those behind it are not; they are split by the next change.
//! Clients that need the damaged subtable are refused, and the operator is told. Some time later the split is tried
//! once more.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::MasterReply;
use fusee_control::node::{Extent, NodeReply};
use fusee_core::data::Redundancy;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::MnId;
use fusee_core::view::{MAX_DEPTH, PoolPlace, View};

use super::change_rotation::ChangePurpose;
use super::context::{CallPurpose, EventContext};
use super::decision::{Decision, NextView};
use super::facts::ClusterFacts;
use super::refused;
use super::reservation::{ExtentReservation, NewExtent, PAUSE_MS, ReservationOutcome, reserve};
use crate::placement::{NodeRoom, choose_another};
use crate::plan::{SUBTABLES, padded};

/// The time for which a subtable is not split again after a failed split, in milliseconds.
const AGAIN_MS: u64 = 60_000;
/// The limit on the number of subtables that one view change splits.
const TOGETHER: usize = 16;

/// The subtables to split, and the reservation of room for siblings.
#[derive(Debug, Default)]
pub(super) struct SubtableSplits {
    wanted: BTreeSet<u32>,
    /// The reservation under way, and the subtables to split, in the order of their siblings.
    under_way: Option<(ExtentReservation, Vec<u32>)>,
    not_before_ms: u64,
    /// Subtables with an entry that belongs to neither half: the entry's slot, and the time until which they are not
    /// split.
    unreadable: BTreeMap<u32, (u64, u64)>,
}

impl SubtableSplits {
    /// Forgets the reservation of room for siblings, because the view has changed, or this master is about to end.
    /// Clients that still need a split ask again.
    pub fn abandon(&mut self) {
        self.under_way = None;
    }

    /// Returns the reason why a subtable is not split now, if there is one.
    fn reason(&self, now_ms: u64, subtable: u32) -> Option<String> {
        let (slot, _) = self.unreadable.get(&subtable).filter(|(_, until)| *until > now_ms)?;
        Some(format!(
            "index subtable {subtable} cannot be split: its slot {slot} leads to a pair of which all replicas are \
             damaged, so nothing tells where its key belongs; export the pairs, and import them into a cluster that \
             is formed anew (docs/operations/failures.md)"
        ))
    }

    /// Returns whether members are reserving room for siblings.
    pub fn has_begun(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns whether members are reserving room for siblings, and have begun only a short time ago.
    pub fn is_under_way(&self, now_ms: u64) -> bool {
        self.under_way.as_ref().is_some_and(|(reserving, _)| reserving.is_young(now_ms))
    }

    /// Returns whether a subtable is about to be split, or is being split by this view.
    fn is_under_way_for(&self, view: &View, subtable: u32) -> bool {
        let is_reserved = || {
            let reserved = self.under_way.as_ref().filter(|(it, _)| it.view == view.number);
            reserved.is_some_and(|(_, whose)| whose.contains(&subtable))
        };
        let mut changes = view.change.iter().flat_map(|change| &change.subtables);
        let is_split = changes.any(|it| it.subtable == subtable && it.split.is_some());
        (is_split || is_reserved()) && !removed(Mutant::SplitsTwice)
    }

    /// Returns the reason why some subtable is not split, if there is one.
    pub fn problem(&self, now_ms: u64) -> Option<String> {
        self.unreadable.keys().find_map(|subtable| self.reason(now_ms, *subtable))
    }

    /// Handles a client's report that it found no free slot in a subtable. `number` is the view that the client used.
    pub fn split_wanted(
        &mut self,
        ctx: &EventContext<'_>,
        cluster: &ClusterFacts,
        view: &View,
        subtable: u32,
        number: u64,
    ) -> MasterReply {
        if view.number > number {
            return MasterReply::Done;
        }
        // Another client has asked for the same split, so it does not matter whether there is room for one more
        // sibling.
        if self.is_under_way_for(view, subtable) {
            return MasterReply::Done;
        }
        if let Some(reason) = self.reason(ctx.now_ms, subtable) {
            return refused(reason);
        }
        let replicas = match view.subtables.get(subtable as usize) {
            Some(found) if u32::from(found.local_depth) < deepest(view) => found.replicas().len(),
            Some(_) => return MasterReply::TooDeep,
            None => return refused("there is no such subtable"),
        };
        if sibling_rooms(cluster, view).iter().filter(|room| room.items > 0).count() < replicas {
            return refused(
                "no memory node has room for a larger index; start another memory node, with a larger pool",
            );
        }
        self.wanted.insert(subtable);
        MasterReply::Done
    }

    /// Begins to split the subtables that clients asked for. Returns whether other changes have to wait for that.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) -> bool {
        let Some(number) = cluster.view_number() else { return false };
        if let Some((reserving, _)) = &self.under_way {
            if reserving.goes_on(ctx.now_ms, number) {
                return reserving.is_young(ctx.now_ms);
            }
            self.under_way = None;
        }
        if self.wanted.is_empty() || self.not_before_ms > ctx.now_ms {
            return false;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.retain(|subtable| self.reason(ctx.now_ms, *subtable).is_none());
        let (items, whose) = choose_siblings(ctx, cluster, &wanted);
        let reserving = reserve(ctx, cluster, items, &CallPurpose::Split);
        self.under_way = reserving.map(|reserving| (reserving, whose));
        self.under_way.is_some()
    }

    /// Continues the change without splitting this subtable, because the entry in this slot belongs to neither half.
    pub fn cannot_split(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        subtable: u32,
        slot: u64,
    ) {
        self.unreadable.insert(subtable, (slot, ctx.now_ms + AGAIN_MS));
        if let Some(reason) = self.reason(ctx.now_ms, subtable) {
            ctx.warn(Topic::Split, reason);
        }
        if let Some(next) = cluster.view.as_ref().and_then(|view| view.without_split(subtable)) {
            let text = format!("view {}: transforming, without that split", next.number);
            ctx.set_view(NextView::new(next, Topic::Split, text));
        }
    }

    /// Handles a node's answer to a request for room, or the failure of that request.
    pub fn split_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        node: MnId,
        token: u64,
        result: Result<NodeReply, String>,
    ) {
        let Some((reserving, _)) = &mut self.under_way else { return };
        let heard = reserving.answer(node, token, result);
        if matches!(heard, ReservationOutcome::Full | ReservationOutcome::Complete { full: true }) {
            ctx.decide(Decision::NoteFull { node, regions: false });
        }
        match heard {
            ReservationOutcome::Waits | ReservationOutcome::Full => {}
            ReservationOutcome::Complete { .. } => {
                if let Some((reserving, whose)) = self.under_way.take() {
                    self.split_subtables(ctx, cluster, &reserving, &whose);
                }
            }
            ReservationOutcome::Problem(problem) => {
                self.under_way = None;
                self.not_before_ms = ctx.now_ms + PAUSE_MS;
                ctx.decide(Decision::MoveToBack(ChangePurpose::Splits));
                let text = format!("the index does not grow yet: {problem}");
                ctx.warn(Topic::Split, text);
                ctx.decide(Decision::Probe(node));
            }
        }
    }

    /// Makes the view with the siblings, when room for them has been reserved.
    fn split_subtables(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        reserving: &ExtentReservation,
        whose: &[u32],
    ) {
        let Some(view) = &cluster.view else { return };
        if view.number != reserving.view || view.change.is_some() {
            return;
        }
        let splits = whose.iter().copied().zip(reserving.items.iter().map(NewExtent::places));
        let is_enough =
            |(of, places): &(u32, Vec<PoolPlace>)| places.len() >= replicas_of(view, *of);
        let splits: Vec<(u32, Vec<PoolPlace>)> = splits.take_while(is_enough).collect();
        if splits.is_empty() {
            return;
        }
        let next = view.splitting(&splits);
        if let Err(error) = next.check() {
            // The offsets come from memory nodes, so they are possibly wrong.
            let text = format!("memory nodes gave room for the index that is none: {error}");
            ctx.warn(Topic::Split, text);
            self.not_before_ms = ctx.now_ms + PAUSE_MS;
            return;
        }
        let text = format!(
            "view {}: frozen; split: {} of {}",
            next.number,
            splits.len(),
            count_with_noun(next.subtables.len(), "subtable")
        );
        // Clients that asked meanwhile to split these subtables did not know the new view yet.
        self.wanted.retain(|subtable| !whose.contains(subtable));
        ctx.decide(Decision::MoveToBack(ChangePurpose::Splits));
        ctx.set_view(NextView::new(next, Topic::Split, text));
    }
}

/// Returns the greatest depth that a subtable is allowed to have, in bits of the directory.
fn deepest(view: &View) -> u32 {
    if removed(Mutant::DepthUnbounded) { MAX_DEPTH } else { view.deepest() }
}

/// Returns the number of a subtable's replicas, at least 1, because a sibling needs one.
fn replicas_of(view: &View, subtable: u32) -> usize {
    view.subtables.get(subtable as usize).map_or(1, |found| found.replicas().len().max(1))
}

/// Returns the number of siblings that fit on each member of the view.
fn sibling_rooms(cluster: &ClusterFacts, view: &View) -> Vec<NodeRoom> {
    let mut rooms = cluster.rooms(view, false, padded(view.geometry.subtable_bytes()));
    rooms.retain(|room| view.member(room.node).is_some());
    rooms
}

/// Returns the siblings, in the order of their numbers, and the subtables that are split into them.
fn choose_siblings(
    ctx: &EventContext<'_>,
    cluster: &ClusterFacts,
    wanted: &BTreeSet<u32>,
) -> (Vec<NewExtent>, Vec<u32>) {
    let mut items = Vec::new();
    let mut whose = Vec::new();
    let Some(view) = &cluster.view else { return (items, whose) };
    let mut rooms = sibling_rooms(cluster, view);
    for of in wanted.iter().take(TOGETHER) {
        let subtable = (view.subtables.len() + items.len()) as u32;
        let mut nodes: Vec<MnId> = Vec::new();
        for _ in 0..ctx.settings.index_replicas {
            let next = choose_another(SUBTABLES, &rooms, subtable.into(), &nodes);
            let Some(node) = next else { break };
            if let Some(room) = rooms.iter_mut().find(|room| room.node == node) {
                room.items -= 1;
            }
            nodes.push(node);
        }
        if nodes.len() < replicas_of(view, *of) {
            break;
        }
        items.push(NewExtent::new(Extent::Subtable { subtable }, Redundancy::default(), nodes));
        whose.push(*of);
    }
    (items, whose)
}
