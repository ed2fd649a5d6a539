//! The links between clients and memory nodes: their pace, their faults, and the lanes that wait for them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Weak;

use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use crate::counts::count;
use crate::engine::{Nanos, Sim, SimPace};
use crate::fabric::BatchFlight;

/// The link from one client to one memory node.
#[derive(Default)]
struct SimLink {
    pace: SimPace,
    /// The time at which the latest lane over this link arrives.
    last_arrival: Nanos,
    /// Whether the queue pair is in error, as a reliable connection (RC) is after a lost completion.
    broken: bool,
    /// Whether the node is a member of the session's newest view.
    attached: bool,
    /// Whether verbs over this link execute without an answer.
    mute: bool,
    /// The time before which no verb gets through.
    held_until: Nanos,
    /// Lanes that wait for `held_until`, each by its batch and its number in the batch.
    parked: Vec<(Weak<BatchFlight>, usize)>,
}

/// The links from all clients to all memory nodes.
pub struct SimLinks {
    sim: Sim,
    links: RefCell<HashMap<(ClientId, MnId), SimLink>>,
}

impl SimLinks {
    pub(crate) fn new(sim: &Sim) -> SimLinks {
        SimLinks { sim: sim.clone(), links: RefCell::default() }
    }

    /// Holds the link of a client to a node for some time.
    pub fn hold(&self, client: ClientId, node: MnId, time: Nanos) {
        self.hold_until(client, node, self.sim.now() + time);
    }

    /// Releases a held link.
    pub fn release(&self, client: ClientId, node: MnId) {
        self.hold_until(client, node, 0);
    }

    fn hold_until(&self, client: ClientId, node: MnId, until: Nanos) {
        let parked = {
            let mut links = self.links.borrow_mut();
            let link = links.entry((client, node)).or_default();
            link.held_until = until;
            std::mem::take(&mut link.parked)
        };
        for (flight, lane) in parked {
            if let Some(flight) = flight.upgrade() {
                flight.unpark(lane);
            }
        }
    }

    pub(crate) fn held_until(&self, client: ClientId, node: MnId) -> Nanos {
        self.links.borrow().get(&(client, node)).map_or(0, |link| link.held_until)
    }

    /// Lets a lane wait until the hold of its link ends.
    pub(crate) fn park(
        &self,
        client: ClientId,
        node: MnId,
        flight: Weak<BatchFlight>,
        lane: usize,
    ) {
        self.links.borrow_mut().entry((client, node)).or_default().parked.push((flight, lane));
    }

    /// Mutes a node for a client: the client's verbs execute there, but no answer comes back.
    pub fn mute(&self, client: ClientId, node: MnId) {
        self.links.borrow_mut().entry((client, node)).or_default().mute = true;
    }

    pub(crate) fn is_mute(&self, client: ClientId, node: MnId) -> bool {
        self.links.borrow().get(&(client, node)).is_some_and(|link| link.mute)
    }

    pub(crate) fn break_link(&self, client: ClientId, node: MnId) {
        self.links.borrow_mut().entry((client, node)).or_default().broken = true;
    }

    pub(crate) fn is_broken(&self, client: ClientId, node: MnId) -> bool {
        self.links.borrow().get(&(client, node)).is_some_and(|link| link.broken)
    }

    /// Attaches a session to those of `nodes` that are members of its newest view. The session's links to former
    /// members break.
    pub(crate) fn attach(&self, client: ClientId, nodes: &[MnId], view: &View) {
        for node in nodes.iter().copied() {
            let is_member = view.member(node).is_some();
            let was_attached = {
                let mut links = self.links.borrow_mut();
                let attached = &mut links.entry((client, node)).or_default().attached;
                std::mem::replace(attached, is_member)
            };
            if was_attached && !is_member {
                self.break_link(client, node);
                self.release(client, node);
            }
        }
    }

    /// Draws the time of a message over a link, in one direction. The link's pace multiplies `base`.
    pub(crate) fn draw_delay(&self, client: ClientId, node: MnId, base: Nanos) -> Nanos {
        let mut links = self.links.borrow_mut();
        let delay = links.entry((client, node)).or_default().pace.draw(self.sim.rng(), base);
        if delay >= 16 * base {
            count(&self.sim.counts().long_delays);
        }
        delay
    }

    /// Records the arrival time of a lane, and counts the lane if it overtakes an earlier one.
    pub(crate) fn arrival(&self, client: ClientId, node: MnId, at: Nanos) {
        let mut links = self.links.borrow_mut();
        let link = links.entry((client, node)).or_default();
        if at < link.last_arrival {
            count(&self.sim.counts().reordered_batches);
        }
        link.last_arrival = link.last_arrival.max(at);
    }
}
