//! Faults of a cluster's servers, other than crashes and lost messages.

use fusee_control::master::MasterReplyId;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::change::ChangeStage;

use crate::cluster::SimCluster;
use crate::control::CutDirection;
use crate::counts::count;
use crate::engine::Nanos;
use crate::rng::Rng;

impl SimCluster {
    /// Stops the master, as if its machine slept. The master's clock goes on.
    pub fn stop_master(&self) {
        self.sim().stop(self.master().process.get());
    }

    /// Resumes the master.
    pub fn resume_master(&self) {
        self.sim().resume(self.master().process.get());
    }

    /// Makes the clock of a memory node jump ahead by `ms` milliseconds.
    pub fn jump_clock(&self, node: MnId, ms: u64) {
        if let Some(host) = self.host_of(node) {
            host.jump(ms);
        }
    }

    /// Tells a memory node a lease, as a master whose messages reach only this node would.
    pub fn tell_lease(&self, node: MnId, lease_ms: u64) {
        if let Some(host) = self.host_of(node) {
            host.hear(self, MasterReplyId { by: 0, at_ms: 0 }, lease_ms);
        }
    }

    /// Delays requests of the master's jobs to a memory node for `time`.
    pub fn hold_orders(&self, node: MnId, time: Nanos) {
        if let Some(process) = self.process_of(node) {
            self.control().hold_orders(process, time);
        }
    }

    /// Cuts a memory node and the master off from each other.
    pub fn cut_off_node(&self, node: MnId) {
        if let Some(process) = self.process_of(node) {
            self.control().cut_off(process, Some(CutDirection::Both));
        }
    }

    /// Ends the cut between a memory node and the master.
    pub fn reach_node(&self, node: MnId) {
        if let Some(process) = self.process_of(node) {
            self.control().cut_off(process, None);
        }
    }

    /// Puts a master without a cluster, or of the cluster `other`, in the place of the cluster's own master, until
    /// [`SimCluster::reinstate_master`]. Returns `false` if a foreign master is there already.
    pub(crate) fn usurp_master(&self, other: Option<ClusterId>) -> bool {
        let begins = self.master().usurp(other);
        if begins {
            count(&self.sim().counts().foreign_masters);
            self.restart_master(1);
        }
        begins
    }

    /// Puts the cluster's own master back, with the cluster's own store.
    pub(crate) fn reinstate_master(&self) {
        self.master().reinstate();
        self.restart_master(1);
    }

    /// Damages a word of a live object on one replica, if another whole replica is on a node that is not in danger.
    /// Does nothing while a change has switched and not ended: sessions at the earlier view know only the earlier
    /// replicas, of which possibly only one is left.
    pub(crate) fn damage(&self, rng: &Rng) {
        if self.view().change.as_ref().is_some_and(|change| change.stage == ChangeStage::Switched) {
            return;
        }
        let living = self.living_nodes();
        let is_safe = |node| living.contains(&node) && !self.is_in_danger(node);
        self.network().damage_beside(rng, is_safe);
    }
}
