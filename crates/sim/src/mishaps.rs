//! What befalls a cluster's servers, beside crashes and lost messages.

use fusee_control::master::Note;
use fusee_core::change::Stage;
use fusee_core::verbs::{ClusterId, MnId};

use crate::cluster::Cluster;
use crate::control::Cut;
use crate::counts::count;
use crate::engine::Nanos;
use crate::rng::Rng;

impl Cluster {
    /// The master takes no step any more, as if its machine slept; its clock goes on.
    pub fn stop_master(&self) {
        self.sim().stop(self.master().process.get());
    }

    /// It goes on.
    pub fn resume_master(&self) {
        self.sim().resume(self.master().process.get());
    }

    /// The clock of a memory node jumps ahead.
    pub fn jump_clock(&self, node: MnId, ms: u64) {
        if let Some(host) = self.host_of(node) {
            host.jump(ms);
        }
    }

    /// A memory node hears of a lease, from a master that nobody else hears.
    pub fn tell_lease(&self, node: MnId, lease_ms: u64) {
        if let Some(host) = self.host_of(node) {
            host.hear(self, Note { by: 0, at_ms: 0 }, lease_ms);
        }
    }

    /// What jobs of the master ask of a memory node lies on its way for so long, at most.
    pub fn hold_orders(&self, node: MnId, time: Nanos) {
        if let Some(process) = self.process_of(node) {
            self.control().hold_orders(process, time);
        }
    }

    /// From now on a memory node and the master do not reach each other.
    pub fn cut_off_node(&self, node: MnId) {
        if let Some(process) = self.process_of(node) {
            self.control().cut_off(process, Some(Cut::Both));
        }
    }

    /// From now on they do.
    pub fn reach_node(&self, node: MnId) {
        if let Some(process) = self.process_of(node) {
            self.control().cut_off(process, None);
        }
    }

    /// From now on a master of no cluster, or of this one, answers in the place of the cluster's own, until
    /// [`Cluster::reinstate_master`]. Whether that is not so already.
    pub(crate) fn usurp_master(&self, other: Option<ClusterId>) -> bool {
        let begins = self.master().usurp(other);
        if begins {
            count(&self.sim().counts().foreign_masters);
            self.restart_master(1);
        }
        begins
    }

    /// The cluster's own master is back, on its store.
    pub(crate) fn reinstate_master(&self) {
        self.master().reinstate();
        self.restart_master(1);
    }

    /// Damages a word of a live object on one of its replicas, if another one stays whole that nothing
    /// happens to. Not between a switch and when all have heard of it: whoever has not knows only the replicas of
    /// before, of which there may be one.
    pub(crate) fn damage(&self, rng: &Rng) {
        if self.view().change.as_ref().is_some_and(|change| change.stage == Stage::Switched) {
            return;
        }
        let living = self.living_nodes();
        let is_safe = |node| living.contains(&node) && !self.is_in_danger(node);
        self.network().damage_beside(rng, is_safe);
    }
}
