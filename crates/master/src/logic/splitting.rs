//! The index grows: a subtable in which somebody found no free slot is split.
//!
//! Clients ask, and ask again as long as they need it, so nothing of that is stored. When the view
//! is stable, members are chosen for the siblings of all that is wanted, and each reserves the room
//! for its replica, under the number that the sibling is going to have. Then the view says where
//! they are, and everything else follows from it ([`Split`](fusee_core::change::Split)).
//!
//! A sibling has as many replicas as members have room for, up to the setting; what it lacks is
//! added later as for any other subtable. If one gets none, those after it are left out, since the
//! numbers would not be right any more. Room that was reserved for nothing is found again under
//! its number.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::MasterReply;
use fusee_control::node::{Extent, NodeRefusal, NodeReply, NodeRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::{MAX_DEPTH, Place, View};

use super::{Action, Actions, Level, Master, Purpose, refused};
use crate::placement::{Room, another};
use crate::plan::SUBTABLES;

/// Subtables that are split by one change at most.
const TOGETHER: usize = 16;
/// How long to wait after a node did not do what it was asked for.
const PAUSE_MS: u64 = 1_000;
/// How long to wait for answers, should none come at all.
const PATIENCE_MS: u64 = 15_000;

/// What is to be split.
#[derive(Debug, Default)]
pub(super) struct Splitting {
    wanted: BTreeSet<u32>,
    under_way: Option<Reserving>,
    not_before_ms: u64,
}

/// Room that is being reserved for siblings.
#[derive(Debug)]
struct Reserving {
    /// The view that it is for.
    view: u64,
    /// In the order of their numbers.
    siblings: Vec<Sibling>,
    /// By token: which sibling is asked about.
    calls: BTreeMap<u64, usize>,
    until_ms: u64,
}

#[derive(Debug)]
struct Sibling {
    /// Whose it is.
    subtable: u32,
    /// The members that were chosen, the primary first; with the offset that each gave.
    nodes: Vec<(MnId, Option<u64>)>,
}

impl Splitting {
    /// Forgets what was under way: the view has changed. Who needs it asks again.
    pub fn abandon(&mut self) {
        self.under_way = None;
    }
}

impl Master {
    /// A client found no free slot in a subtable, by the view of this number.
    pub(super) fn split_wanted(&mut self, subtable: u32, number: u64) -> MasterReply {
        let Some(view) = self.view() else { return self.not_ready() };
        if view.number > number {
            return MasterReply::Done;
        }
        match view.subtables.get(subtable as usize) {
            Some(found) if u32::from(found.local_depth) < MAX_DEPTH => {}
            Some(_) => return refused("the index cannot be larger"),
            None => return refused("there is no such subtable"),
        }
        if self.sibling_rooms(view).iter().all(|room| room.items == 0) {
            return refused(
                "no memory node has room for a larger index; start the cluster with larger pools",
            );
        }
        self.splitting.wanted.insert(subtable);
        MasterReply::Done
    }

    /// What fits on members of the view.
    fn sibling_rooms(&self, view: &View) -> Vec<Room> {
        let mut rooms = self.rooms(view, false, view.geometry.subtable_bytes());
        rooms.retain(|room| view.member(room.node).is_some());
        rooms
    }

    /// Starts to split what is wanted; whether that is under way.
    pub(super) fn split(&mut self, now_ms: u64, out: &mut Actions) -> bool {
        let Some(number) = self.view().map(|view| view.number) else { return false };
        if let Some(reserving) = &self.splitting.under_way {
            if reserving.view == number && reserving.until_ms > now_ms {
                return true;
            }
            self.splitting.under_way = None;
        }
        if self.splitting.wanted.is_empty() || self.splitting.not_before_ms > now_ms {
            return false;
        }
        let wanted = std::mem::take(&mut self.splitting.wanted);
        let siblings = self.choose_siblings(&wanted);
        let mut reserving =
            Reserving { view: number, siblings, calls: BTreeMap::new(), until_ms: 0 };
        reserving.until_ms = now_ms + PATIENCE_MS;
        self.reserve(&mut reserving, out);
        let begun = !reserving.calls.is_empty();
        self.splitting.under_way = begun.then_some(reserving);
        begun
    }

    fn choose_siblings(&self, wanted: &BTreeSet<u32>) -> Vec<Sibling> {
        let Some(view) = self.view() else { return Vec::new() };
        let mut rooms = self.sibling_rooms(view);
        let mut siblings = Vec::new();
        for subtable in wanted.iter().take(TOGETHER) {
            let number = (view.subtables.len() + siblings.len()) as u64;
            let mut nodes: Vec<MnId> = Vec::new();
            for _ in 0..self.settings.index_replicas {
                let Some(node) = another(SUBTABLES, &rooms, number, &nodes) else { break };
                if let Some(room) = rooms.iter_mut().find(|room| room.node == node) {
                    room.items -= 1;
                }
                nodes.push(node);
            }
            if nodes.is_empty() {
                break;
            }
            let nodes = nodes.into_iter().map(|node| (node, None)).collect();
            siblings.push(Sibling { subtable: *subtable, nodes });
        }
        siblings
    }

    fn reserve(&mut self, reserving: &mut Reserving, out: &mut Actions) {
        let Some(view) = self.view() else { return };
        let (cluster, attempt) = (view.cluster, self.last_attempt);
        let (first, bytes) = (view.subtables.len() as u32, view.geometry.subtable_bytes());
        for (at, sibling) in reserving.siblings.iter().enumerate() {
            let extent = Extent::Subtable { subtable: first + at as u32 };
            for (node, _) in &sibling.nodes {
                let request =
                    NodeRequest::Reserve { cluster, attempt, extent, bytes, block_bytes: 0 };
                if let Some(token) = self.call(*node, request, Purpose::Split, out) {
                    reserving.calls.insert(token, at);
                }
            }
        }
    }

    pub(super) fn split_answered(
        &mut self,
        now_ms: u64,
        node: MnId,
        token: u64,
        result: Result<NodeReply, String>,
        out: &mut Actions,
    ) {
        let Some(reserving) = &mut self.splitting.under_way else { return };
        let Some(at) = reserving.calls.remove(&token) else { return };
        let sibling = &mut reserving.siblings[at];
        let problem = match result {
            Ok(NodeReply::Reserved { offset }) => {
                let asked = sibling.nodes.iter_mut().find(|(asked, _)| *asked == node);
                asked.into_iter().for_each(|(_, given)| *given = Some(offset));
                None
            }
            Ok(NodeReply::Refused(NodeRefusal::PoolFull { .. })) => {
                sibling.nodes.retain(|(asked, _)| *asked != node);
                self.growth.has_no_room_for_subtables(node);
                None
            }
            Ok(other) => Some(format!("{node} answered by {other:?}")),
            Err(cause) => Some(format!("{node} does not answer: {cause}")),
        };
        if let Some(problem) = problem {
            self.splitting.under_way = None;
            self.splitting.not_before_ms = now_ms + PAUSE_MS;
            out.push(Action::Log(Level::Warn, format!("the index does not grow yet: {problem}")));
            return self.probe(now_ms, node, out);
        }
        if reserving.calls.is_empty()
            && let Some(reserving) = self.splitting.under_way.take()
        {
            self.split_subtables(now_ms, reserving, out);
        }
    }

    /// The room is there: the view says so.
    fn split_subtables(&mut self, now_ms: u64, reserving: Reserving, out: &mut Actions) {
        let Some(view) = self.view() else { return };
        if view.number != reserving.view || view.change.is_some() {
            return;
        }
        let places = |sibling: Sibling| -> (u32, Vec<Place>) {
            let given = sibling.nodes.into_iter();
            let given = given.filter_map(|(node, at)| at.map(|offset| Place { node, offset }));
            (sibling.subtable, given.collect())
        };
        let splits = reserving.siblings.into_iter().map(places);
        let splits: Vec<(u32, Vec<Place>)> =
            splits.take_while(|(_, places)| !places.is_empty()).collect();
        if splits.is_empty() {
            return;
        }
        let next = view.splitting(&splits);
        if let Err(error) = next.check() {
            // The offsets come from elsewhere.
            let text = format!("memory nodes gave room for the index that is none: {error}");
            out.push(Action::Log(Level::Warn, text));
            self.splitting.not_before_ms = now_ms + PAUSE_MS;
            return;
        }
        let text = format!(
            "view {}: frozen; {} of {} subtables are split",
            next.number,
            splits.len(),
            next.subtables.len()
        );
        self.set_view(now_ms, next, Vec::new(), text, out);
    }
}
