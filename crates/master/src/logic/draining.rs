//! The drain: memory nodes that leave the cluster at an operator's request.
//!
//! The request is recorded, and survives a restart of the master. From then on the node gets no new replicas, and its
//! replicas move to other nodes as in any rebalancing (`rebalance`). The node serves until it is empty. Then the next
//! view lacks the node, and the node is recorded as drained; the answer to its next heartbeat tells it so. No session
//! uses the node any more by then, because every move has waited until all sessions had left the old place.
//!
//! | node | consequence |
//! |---|---|
//! | is lost during the drain | a loss like any other; the drain is forgotten with the node |
//! | is to stay after all | the record is removed, and the node gets its share again |
//! | has been drained | its record stays until another process has its address |
//!
//! Regions of copies do not move. When the node holds nothing else, these regions are given up: the values that have
//! copies there have their parity by then, because another node got their column from this one.
//!
//! The master refuses a drain if the other members are too few, or have too little room. Members that already leave
//! need some of that room. The master adds no region that would use the room which drains need. If the other members
//! later lack room for another reason (a node is lost, or the index grows), the drain waits, and the status says so.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use fusee_control::master::MasterReply;
use fusee_core::data::Region;
use fusee_core::verbs::MnId;
use fusee_core::view::{PoolPlace, View};

use super::context::EventContext;
use super::decision::{Decision, NextView};
use super::facts::ClusterFacts;
use super::rebalance::{RebalanceItems, ReplicaMoves};
use super::refused;
use crate::placement::{NodeRoom, roomiest};
use crate::plan::padded;

/// Begins or cancels the drain of a member.
pub(super) fn drain(
    ctx: &mut EventContext<'_>,
    cluster: &ClusterFacts,
    view: &View,
    node: MnId,
    cancel: bool,
) -> MasterReply {
    if cluster.roster.is_drained(node) {
        return if cancel {
            refused(format!("{node} has been drained; restart it to join empty"))
        } else {
            MasterReply::Done
        };
    }
    if !cluster.in_view(node) {
        let names: Vec<String> = cluster.roster.nodes().map(|m| m.node.to_string()).collect();
        let names = names.join(", ");
        return refused(format!("{node} is no member of the cluster; there are {names}"));
    }
    match (cancel, cluster.roster.is_draining(node)) {
        (true, false) => return refused(format!("{node} is not being drained")),
        (true, true) => {
            ctx.decide(Decision::Keep(node));
            ctx.info(Topic::Drain, format!("{node} stays after all"));
        }
        (false, true) => {}
        (false, false) => {
            if let Err(reason) = check_drain(ctx, cluster, view, node) {
                return refused(reason);
            }
            ctx.decide(Decision::Drain(node));
            ctx.info(Topic::Drain, format!("{node} is to leave, what it holds moves to others"));
        }
    }
    ctx.decide(Decision::LookAgain);
    MasterReply::Done
}

/// Checks that the other members can take over the replicas of a member.
fn check_drain(
    ctx: &EventContext<'_>,
    cluster: &ClusterFacts,
    view: &View,
    node: MnId,
) -> Result<(), String> {
    let usable = view.members.iter().filter(|m| m.node != node && cluster.is_usable(m.node));
    let left = usable.count();
    let factors = [
        ("index_replicas", ctx.settings.index_replicas),
        ("data_replicas", ctx.settings.data_replicas),
    ];
    if let Some((setting, replicas)) = factors.iter().find(|(_, r)| usize::from(*r) > left) {
        return Err(format!(
            "without {node} there would be {}, and {setting} is {replicas}; start another memory node first",
            count_with_noun(left, "memory node")
        ));
    }
    let homeless = cluster.count_without_room(view, Some(node), &[]);
    if homeless > 0 {
        return Err(format!(
            "the other memory nodes have no room for {homeless} of the subtables and regions on \
             {node} and on those that are leaving already; start another memory node first"
        ));
    }
    Ok(())
}

impl ClusterFacts {
    /// Returns the number of replicas that find no room on other members, after new regions are added on the nodes of
    /// `new_regions`. The replicas are those on members that leave, and on `also`.
    pub fn count_without_room(
        &self,
        view: &View,
        also: Option<MnId>,
        new_regions: &[Vec<MnId>],
    ) -> usize {
        let leaving: Vec<MnId> = self.roster.draining().chain(also).collect();
        let leaves = |place: &&PoolPlace| leaving.contains(&place.node);
        let moving = view.regions.iter().filter(|region| region.copies_on().is_none());
        let regions = moving.map(|r| (r.places(), view.geometry.region_bytes));
        let subtables = view.subtables.iter();
        let subtables = subtables.map(|s| (s.replicas(), view.geometry.subtable_bytes()));
        let mut bytes = self.rooms(view, true, 1);
        bytes.retain(|room| !leaving.contains(&room.node));
        for room in &mut bytes {
            let new = new_regions.iter().flatten().filter(|node| **node == room.node).count();
            let new = new as u64 * padded(view.geometry.region_bytes);
            room.items = room.items.saturating_sub(new);
        }
        let mut homeless = 0;
        for (places, item_bytes) in regions.chain(subtables) {
            let mut held: Vec<MnId> = places.iter().map(|place| place.node).collect();
            for _ in places.iter().filter(leaves) {
                let mut fitting = bytes.clone();
                let fits = |room: &NodeRoom| room.items >= padded(item_bytes);
                fitting.retain(|room| fits(room) && !held.contains(&room.node));
                match roomiest(&mut fitting, 1).and_then(|nodes| nodes.first().copied()) {
                    None => homeless += 1,
                    Some(to) => {
                        let rooms = bytes.iter_mut().filter(|room| room.node == to);
                        rooms.for_each(|room| room.items -= padded(item_bytes));
                        held.push(to);
                    }
                }
            }
        }
        homeless
    }

    /// Returns the replicas to move next, if any replica has to move.
    pub fn next_moves(&self) -> Option<ReplicaMoves> {
        let view = self.view.as_ref()?;
        let drained: Vec<MnId> = self.roster.draining().filter(|node| view.uses(*node)).collect();
        let rooms = |regions, bytes: u64| self.rooms(view, regions, padded(bytes));
        let subtables =
            RebalanceItems::subtables(view, rooms(false, view.geometry.subtable_bytes()));
        let regions = RebalanceItems::regions(view, rooms(true, view.geometry.region_bytes));
        let members = &view.members;
        subtables.next(members, &drained).or_else(|| regions.next(members, &drained))
    }
}

/// Removes a member that is drained and empty, or gives up the copies on a member that holds nothing else. Returns
/// whether it did either. Also returns true if some member is being drained, but members are not allowed to change now.
pub(super) fn finish_drain(
    ctx: &mut EventContext<'_>,
    cluster: &ClusterFacts,
    may_change_members: bool,
) -> bool {
    let is_stable = |view: &&View| view.change.is_none();
    let Some(view) = cluster.view.as_ref().filter(is_stable) else { return false };
    let draining: Vec<MnId> = cluster.roster.draining().collect();
    if !may_change_members {
        return !draining.is_empty();
    }
    // If a region lacks its parity, only copies protect the region's values.
    let has_parity = view.regions.iter().all(Region::has_parity);
    let draining_copies = draining.iter().filter(|_| has_parity);
    let mut copies = draining_copies.map(|node| copies_alone_on(view, *node));
    if let Some(copies) = copies.find(|copies| !copies.is_empty()) {
        let next = view.giving_up(&copies);
        let text = format!(
            "view {}: frozen; {} of copies less",
            next.number,
            count_with_noun(copies.len(), "region")
        );
        ctx.set_view(NextView::new(next, Topic::Drain, text));
        return true;
    }
    let empty = |node: &MnId| view.member(*node).is_some() && !view.uses(*node);
    let Some(node) = draining.into_iter().find(empty) else { return false };
    let next = view.without_member(node);
    let text = format!("view {}: without {node}, which is drained", next.number);
    let next = NextView { is_shown: true, ..NextView::new(next, Topic::Drain, text) };
    ctx.decide(Decision::Leave { node, view: Box::new(next) });
    true
}

/// Returns the regions of copies on a node that holds nothing else; otherwise none. The values that have copies there
/// have their parity.
fn copies_alone_on(view: &View, node: MnId) -> Vec<u32> {
    let there = (0u32..).zip(&view.regions).filter(|(_, region)| region.lies_on(node));
    let there: Vec<(u32, &Region)> = there.collect();
    let is_alone = view.subtables_on(node) == 0
        && there.iter().all(|(_, region)| region.copies_on().is_some());
    if is_alone { there.into_iter().map(|(number, _)| number).collect() } else { Vec::new() }
}
