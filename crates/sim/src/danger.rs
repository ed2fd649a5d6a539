//! Bookkeeping of the memory nodes that the master is possibly about to lose.
//!
//! The faults must not take the last replica of anything, because no protocol survives that. The master loses a node
//! when the node crashes, when the node is silent for a lease, or when the node does not answer the request `Describe`,
//! which asks whether the node runs. So a node is *in danger* from the moment of a fault until the master hears from
//! the node, or for good. A further fault is allowed on a node only if everything that the node holds has another
//! replica on a live node that is not in danger.
//!
//! A damaged replica is not enough: the other replica must be whole.
//!
//! The number of places that a region is allowed to lose is computed here from its redundancy, not by the code under
//! test: all replicas but one; all chunks but k; and for an EC-oriented region r - 1 of all its columns. If an
//! EC-oriented region lacks a column and no change is under way, its objects have parity, so it is allowed to lose all
//! columns but k.
//!
//! A fault shorter than a quarter of a lease is allowed on any node that is not in danger yet, because the master hears
//! from the node again in time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fusee_core::data::{Redundancy, Region};
use fusee_core::verbs::MnId;
use fusee_core::view::View;

use crate::engine::ProcessId;
use crate::network::Network;
use crate::nodes::NodeHosts;
use crate::view_checks::ViewChecks;

/// The end of the time for which a node is in danger, that is, for which the master possibly loses the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Danger {
    /// The node stays in danger until the master receives a message from the node.
    UntilHeard,
    /// The node stays in danger until the master has received a message from it and no other node bars it any more.
    /// While a node is barred, no other replica must be lost: values that were read from that replica alone would be
    /// lost with it.
    UntilSettled,
    /// The node stays in danger until the view goes on without the node.
    Lasting,
}

/// The nodes in danger: those that the master possibly loses.
pub(crate) struct Dangers {
    network: Network,
    nodes: Rc<NodeHosts>,
    checks: Rc<ViewChecks>,
    dangers: RefCell<BTreeMap<MnId, Danger>>,
}

/// Returns whether the objects of a region survive the loss of its places on these nodes.
// Promise RED-20: As many nodes may be lost as the redundancy says.
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
        // Copies, and pairs without redundancy, are allowed to be lost with their node.
        _ => true,
    }
}

impl Dangers {
    pub fn new(network: &Network, nodes: &Rc<NodeHosts>, checks: &Rc<ViewChecks>) -> Dangers {
        Dangers {
            network: network.clone(),
            nodes: nodes.clone(),
            checks: checks.clone(),
            dangers: RefCell::default(),
        }
    }

    /// Returns whether everything on a node has another replica on a live node that is not in danger.
    pub fn may_lose(&self, node: MnId) -> bool {
        let view = self.checks.view();
        let living = self.checks.living_nodes();
        let dangers = self.dangers.borrow();
        let may_be_lost =
            |other: MnId| other == node || !living.contains(&other) || dangers.contains_key(&other);
        view.subtables.iter().all(|subtable| subtable.survives(may_be_lost))
            && view.regions.iter().all(|region| keeps_enough(&view, region, may_be_lost))
            && self.network.damage().stays_whole_without(|place| !may_be_lost(place.node))
    }

    /// Returns whether the master is possibly about to lose a node.
    pub fn includes(&self, node: MnId) -> bool {
        self.dangers.borrow().contains_key(&node)
    }

    /// Records a fault that puts a node in danger of being lost, if the cluster is allowed to lose the node. Returns
    /// whether the fault is allowed.
    pub fn endanger(&self, node: MnId, danger: Danger) -> bool {
        let may = self.may_lose(node);
        if may {
            self.note_danger(node, danger);
        }
        may
    }

    /// Records a short fault of a node, if the fault is allowed. Returns whether the fault is allowed.
    pub fn disturb(&self, node: MnId) -> bool {
        let is_calm = !self.dangers.borrow().contains_key(&node);
        let may = is_calm || self.may_lose(node);
        if may {
            self.note_danger(node, Danger::UntilHeard);
        }
        may
    }

    fn note_danger(&self, node: MnId, danger: Danger) {
        let mut dangers = self.dangers.borrow_mut();
        let known = dangers.entry(node).or_insert(danger);
        *known = danger.max(*known);
    }

    /// Records that the master has received a message from a process. The node of the process is then no longer in
    /// danger, unless its [`Danger`] lasts longer.
    pub fn heard(&self, process: ProcessId) {
        let Some(node) = self.node_of(process) else { return };
        let mut dangers = self.dangers.borrow_mut();
        let is_over = match dangers.get(&node) {
            Some(Danger::UntilHeard) => true,
            Some(Danger::UntilSettled) => !self.nodes.is_barred(node),
            Some(Danger::Lasting) | None => false,
        };
        if is_over {
            dangers.remove(&node);
        }
    }

    /// Returns whether the run is allowed to lose a message from this process to the master. If so, records the
    /// process's node as in danger: without the message, the master possibly regards the node as lost.
    pub fn may_lose_word_of(&self, process: ProcessId) -> bool {
        self.node_of(process).is_none_or(|node| self.endanger(node, Danger::UntilHeard))
    }

    /// Returns whether the run is allowed to lose the master's request `Describe` to this process, or the answer. If
    /// so, records the process's node as in danger: without an answer, the master possibly regards the node as lost.
    pub fn may_lose_question_to(&self, process: ProcessId) -> bool {
        self.node_of(process).is_none_or(|node| self.endanger(node, Danger::Lasting))
    }

    /// Returns the node of a process, if it is a member of the view.
    fn node_of(&self, process: ProcessId) -> Option<MnId> {
        let nodes = self.nodes.processes();
        let (node, _) = nodes.into_iter().find(|(_, of)| *of == process)?;
        self.checks.view().member(node).map(|member| member.node)
    }
}
