//! Which memory nodes the master may be about to lose.
//!
//! Chance must not take the last replica of anything: no protocol survives that. The master loses a
//! node when it crashes, when it is silent for a lease, or when the master asks in vain whether it
//! is there. So a node is *in danger* from the moment at which something happens to it until the
//! master hears from it, or for good, and nothing more happens to a node unless all that it holds
//! has another replica on a node that lives and is in no danger.
//!
//! Where memory rots, a damaged replica is none: the other one has to be whole.
//!
//! How many places of a region may be lost is counted from the redundancy that it was made for, not asked of the code
//! that is to survive it: all replicas but one, all chunks but k, and of an EC-oriented region r - 1 of all columns;
//! when it is at rest with a column less, all but k.
//!
//! What is shorter than a quarter of a lease may happen to any node that is in no danger yet: it
//! speaks up in time.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fusee_core::data::{Redundancy, Region};
use fusee_core::verbs::MnId;
use fusee_core::view::View;

use crate::cluster::Cluster;
use crate::engine::ProcessId;

/// How long a danger lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Danger {
    /// Until the master hears from the node.
    UntilHeard,
    /// Until then, and until nobody bars the node: as long as somebody does no other replica may be lost, since
    /// what has been read there alone would be lost with it.
    UntilSettled,
    /// Until the view goes on without the node.
    Lasting,
}

/// The nodes in danger.
#[derive(Debug, Default)]
pub(crate) struct Dangers(RefCell<BTreeMap<MnId, Danger>>);

/// Whether a region keeps its objects without the places on these nodes.
fn keeps_enough(view: &View, region: &Region, may_be_lost: impl Fn(MnId) -> bool) -> bool {
    let places = region.places();
    let left = places.iter().filter(|place| !may_be_lost(place.node)).count();
    match region.redundancy() {
        Redundancy::Replicated => left > 0,
        Redundancy::Coded(coding) => left >= coding.k(),
        Redundancy::Oriented(of) => {
            let k = of.coding().k();
            let all = of.coding().chunks();
            let has_parity = places.len() < all && view.change.is_none();
            left >= if has_parity { k } else { all + 1 - of.replicas() }
        }
        // Copies, and pairs without redundancy, go with their node.
        _ => true,
    }
}

impl Cluster {
    /// The nodes of the view that have not crashed.
    pub(crate) fn living_nodes(&self) -> Vec<MnId> {
        let view = self.view();
        let nodes = view.members.iter().map(|member| member.node);
        nodes.filter(|node| self.network().has(*node)).collect()
    }

    /// Whether everything that a node holds has another replica on a node that nothing happens to.
    pub(crate) fn may_lose(&self, node: MnId) -> bool {
        let view = self.view();
        let living = self.living_nodes();
        let dangers = self.dangers().0.borrow();
        let may_be_lost =
            |other: MnId| other == node || !living.contains(&other) || dangers.contains_key(&other);
        view.subtables.iter().all(|subtable| subtable.survives(may_be_lost))
            && view.regions.iter().all(|region| keeps_enough(&view, region, may_be_lost))
            && self.network().is_whole_without(|place| !may_be_lost(place.node))
    }

    /// Whether the master may be about to lose a node.
    pub(crate) fn is_in_danger(&self, node: MnId) -> bool {
        self.dangers().0.borrow().contains_key(&node)
    }

    /// Something is to happen to a node by which the master may lose it. Whether it may.
    pub(crate) fn endanger(&self, node: MnId, danger: Danger) -> bool {
        let may = self.may_lose(node);
        if may {
            self.note_danger(node, danger);
        }
        may
    }

    /// Something short is to happen to a node. Whether it may.
    pub(crate) fn disturb(&self, node: MnId) -> bool {
        let is_calm = !self.dangers().0.borrow().contains_key(&node);
        let may = is_calm || self.may_lose(node);
        if may {
            self.note_danger(node, Danger::UntilHeard);
        }
        may
    }

    fn note_danger(&self, node: MnId, danger: Danger) {
        let mut dangers = self.dangers().0.borrow_mut();
        let known = dangers.entry(node).or_insert(danger);
        *known = danger.max(*known);
    }

    /// The master has heard from a memory node.
    pub(crate) fn heard(&self, process: ProcessId) {
        let Some(node) = self.node_of(process) else { return };
        let mut dangers = self.dangers().0.borrow_mut();
        let is_over = match dangers.get(&node) {
            Some(Danger::UntilHeard) => true,
            Some(Danger::UntilSettled) => !self.is_barred(node),
            Some(Danger::Lasting) | None => false,
        };
        if is_over {
            dangers.remove(&node);
        }
    }

    /// Whether a message may be lost by which the master hears from a process.
    pub(crate) fn may_lose_word_of(&self, process: ProcessId) -> bool {
        self.node_of(process).is_none_or(|node| self.endanger(node, Danger::UntilHeard))
    }

    /// Whether a question of the master may be lost, whether a node is there.
    pub(crate) fn may_lose_question_to(&self, process: ProcessId) -> bool {
        self.node_of(process).is_none_or(|node| self.endanger(node, Danger::Lasting))
    }

    /// The node of a process, if it is one of the view.
    fn node_of(&self, process: ProcessId) -> Option<MnId> {
        let nodes = self.node_processes();
        let (node, _) = nodes.into_iter().find(|(_, of)| *of == process)?;
        self.view().member(node).map(|member| member.node)
    }
}
