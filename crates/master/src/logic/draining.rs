//! Memory nodes that leave the cluster in good order.
//!
//! An operator says so; it is recorded, and so survives a restart of the master. From then on the
//! node gets nothing new, and what it holds moves to others as in any rebalancing (`rebalance`): it
//! serves until it is empty. Then the next view does without it, it is recorded as drained, and it is
//! told so when it next says that it is there. Nobody uses it any more by then: every move has
//! waited until all sessions had left the old place.
//!
//! | it | then |
//! |---|---|
//! | is lost meanwhile | a loss like any other; the drain is forgotten with it |
//! | is to stay after all | the record is removed, and it gets its share again |
//! | has been drained | its record stays until another process has its address |
//!
//! Regions of copies do not move. When nothing else is left on the node they are given up: what they are copies of
//! has its parity, since it has got another column for the one that was here.
//!
//! A drain is refused if the others cannot take over: by their number or by their room, which those that leave
//! already need as well. No region is added where they need it. If they lose room otherwise, with a node that is lost,
//! or as the index grows, it waits, and the status says so.

use fusee_control::counted;
use fusee_control::events::Topic;
use fusee_control::master::MasterReply;
use fusee_core::data::Region;
use fusee_core::verbs::MnId;
use fusee_core::view::{Place, View};

use super::context::Ctx;
use super::rebalance::{Kind, Moves};
use super::{State, refused};
use crate::placement::{Room, roomiest};
use crate::plan::padded;

impl State {
    /// A node is to leave, or to stay after all.
    pub(super) fn drain(&mut self, ctx: &mut Ctx<'_>, node: MnId, cancel: bool) -> MasterReply {
        if self.view().is_none() {
            return self.not_ready(ctx);
        }
        if self.roster.is_drained(node) {
            return if cancel {
                refused(format!("{node} has been drained; restart it to join empty"))
            } else {
                MasterReply::Done
            };
        }
        if !self.in_view(node) {
            let names: Vec<String> = self.roster.nodes().map(|m| m.node.to_string()).collect();
            let names = names.join(", ");
            return refused(format!("{node} is no member of the cluster; there are {names}"));
        }
        match (cancel, self.roster.is_draining(node)) {
            (true, false) => return refused(format!("{node} is not being drained")),
            (true, true) => {
                let write = self.roster.keep(node);
                ctx.persist(vec![write]);
                ctx.info(Topic::Drain, format!("{node} stays after all"));
            }
            (false, true) => {}
            (false, false) => {
                if let Err(reason) = self.check_drain(ctx, node) {
                    return refused(reason);
                }
                let write = self.roster.drain(node);
                ctx.persist(vec![write]);
                ctx.info(
                    Topic::Drain,
                    format!("{node} is to leave, what it holds moves to others"),
                );
            }
        }
        self.growth.look_again();
        MasterReply::Done
    }

    /// Whether the others can take over what a member holds.
    fn check_drain(&self, ctx: &Ctx<'_>, node: MnId) -> Result<(), String> {
        let Some(view) = self.view() else { return Ok(()) };
        let usable = view.members.iter().filter(|m| m.node != node && self.is_usable(m.node));
        let left = usable.count();
        let factors = [
            ("index_replicas", ctx.settings.index_replicas),
            ("data_replicas", ctx.settings.data_replicas),
        ];
        if let Some((setting, replicas)) = factors.iter().find(|(_, r)| usize::from(*r) > left) {
            return Err(format!(
                "without {node} there would be {}, and {setting} is {replicas}; start another memory node first",
                counted(left, "memory node")
            ));
        }
        let homeless = self.homeless(view, Some(node), &[]);
        if homeless > 0 {
            return Err(format!(
                "the other memory nodes have no room for {homeless} of the subtables and regions on \
                 {node} and on those that are leaving already; start another memory node first"
            ));
        }
        Ok(())
    }

    /// How many replicas of the members that are to leave, and of this one, find no room on others once there are new
    /// regions on these as well.
    pub(super) fn homeless(
        &self,
        view: &View,
        also: Option<MnId>,
        new_regions: &[Vec<MnId>],
    ) -> usize {
        let leaving: Vec<MnId> = self.roster.draining().chain(also).collect();
        let leaves = |place: &&Place| leaving.contains(&place.node);
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
                let fits = |room: &Room| room.items >= padded(item_bytes);
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

    /// What moves next.
    pub(super) fn next_moves(&self) -> Option<Moves> {
        let view = self.view()?;
        let drained: Vec<MnId> = self.roster.draining().filter(|node| view.uses(*node)).collect();
        let rooms = |regions, bytes: u64| self.rooms(view, regions, padded(bytes));
        let subtables = Kind::subtables(view, rooms(false, view.geometry.subtable_bytes()));
        let regions = Kind::regions(view, rooms(true, view.geometry.region_bytes));
        let members = &view.members;
        subtables.next(members, &drained).or_else(|| regions.next(members, &drained))
    }

    /// Goes on without a member that is drained and empty; whether there was one.
    pub(super) fn finish_drain(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let may_leave =
            |view: &&View| view.change.is_none() && self.standing.is_settled() && !self.has_bars();
        let Some(view) = self.view().filter(may_leave) else { return false };
        let draining: Vec<MnId> = self.roster.draining().collect();
        // Where no parity can be, copies are what there is.
        let has_parity = view.regions.iter().all(Region::has_parity);
        let draining_copies = draining.iter().filter(|_| has_parity);
        let mut copies = draining_copies.map(|node| copies_alone_on(view, *node));
        if let Some(copies) = copies.find(|copies| !copies.is_empty()) {
            let next = view.giving_up(&copies);
            let text = format!(
                "view {}: frozen; {} of copies less",
                next.number,
                counted(copies.len(), "region")
            );
            self.set_view(ctx, next, Vec::new(), (Topic::Drain, text));
            return true;
        }
        let empty = |node: &MnId| view.member(*node).is_some() && !view.uses(*node);
        let Some(node) = draining.into_iter().find(empty) else { return false };
        let next = view.without_member(node);
        let mut writes = vec![self.members_change(next.number)];
        self.roster.leave(node, &mut writes);
        self.presences.forget(node);
        self.losing.forget(node);
        let text = format!("view {}: without {node}, which is drained", next.number);
        self.set_view(ctx, next, writes, (Topic::Drain, text));
        true
    }
}

/// The regions of copies on a node that has nothing else. Whatever they are copies of has its parity since it has
/// left.
fn copies_alone_on(view: &View, node: MnId) -> Vec<u32> {
    let there = (0u32..).zip(&view.regions).filter(|(_, region)| region.lies_on(node));
    let there: Vec<(u32, &Region)> = there.collect();
    let is_alone = view.subtables_on(node) == 0
        && there.iter().all(|(_, region)| region.copies_on().is_some());
    if is_alone { there.into_iter().map(|(number, _)| number).collect() } else { Vec::new() }
}
