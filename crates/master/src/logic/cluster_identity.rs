//! The identity of the cluster, and the refusal of processes of other clusters.
//!
//! *Forming* is asked for by an operator ([`MasterRequest::Form`]); the start of a master never forms a cluster. A
//! master with an empty store may have been started over the wrong store. Until it is asked, it answers every request
//! that it has no cluster, and writes nothing.
//!
//! *Destroying* is asked for as well ([`MasterRequest::Destroy`]), by the cluster's number. While memory nodes that
//! hold data are present, the request must also allow for them (`with_living_data`). One write removes the records of
//! view and cluster, and adds a record that the cluster was destroyed. Its memory nodes are told that they are
//! expelled, and its sessions that they are fenced, whenever they come.
//!
//! *A number is formed once.* A master over an empty store, or over an old copy, may be asked to form a cluster that is
//! alive. The members and clients of that cluster come to this master, since they keep looking for theirs. So a number
//! is refused once a process has named it as its own. If such a process comes after the request and before there is a
//! view, no view is made: a second cluster of the same number would silently get the clients of the first one, and show
//! them an empty cluster. The master's store remembers that by naming no cluster, as before the request. A master
//! listens for such processes before it forms a cluster, also if an earlier process was asked.
//!
//! Members and clients name their cluster in every request. A request that names another cluster is refused before
//! anything else is looked at. So it has no effect here, and unless that cluster was destroyed here, no answer of this
//! master expels its memory nodes.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::BTreeSet;

use fusee_control::master::{ClusterEpochs, MasterReply, MasterRequest, NOT_KNOWN_YET};
use fusee_core::verbs::{ClientId, ClusterId, MnId};

use super::context::EventContext;
use super::held_heartbeats::HeartbeatSender;
use super::{MasterAction, MasterState, refused};
use crate::record::{CLUSTER_KEY, MasterRecord, RecordWrite, VIEW_KEY};
use crate::settings::LeaseSettings;

/// Limits on the other clusters whose members or clients come: the number that is mentioned in the log, each once, and
/// the number that is remembered.
const MAX_MENTIONED: usize = 16;
const MAX_STRANGERS: usize = 1024;

/// The cluster that this master leads, and the other clusters that it knows of.
#[derive(Debug, Default)]
pub(super) struct ClusterIdentity {
    /// `None` until an operator asks for a cluster.
    own: Option<ClusterId>,
    /// Clusters that were destroyed here.
    destroyed: BTreeSet<ClusterId>,
    /// Other clusters whose members or clients have come here.
    strangers: BTreeSet<ClusterId>,
    /// The own cluster was asked for by a request, to this process or an earlier one.
    is_new: bool,
    /// The store has records of a cluster that this master no longer leads.
    has_leftovers: bool,
    /// Set if the own cluster exists already, though it has yet to be formed here: the kind of process that has shown
    /// it.
    exists: Option<&'static str>,
}

impl ClusterIdentity {
    /// Returns the cluster that the master leads; `None` until an operator asks for one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.own
    }

    /// Returns whether the own cluster was asked for by a request, to this process or an earlier one.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns whether the own cluster is known to exist, though this master has no view of it.
    pub fn exists(&self) -> bool {
        self.exists.is_some()
    }

    /// Restores from the store: the master leads this cluster.
    pub fn restore_own(&mut self, cluster: ClusterId) {
        self.own = Some(cluster);
    }

    /// Restores from the store: the own cluster was asked for.
    pub fn restore_new(&mut self) {
        self.is_new = true;
    }

    /// Restores from the store: there are records, but no cluster.
    pub fn restore_leftovers(&mut self) {
        self.has_leftovers = true;
    }

    /// Restores from the store: this cluster was destroyed here.
    pub fn restore_destroyed(&mut self, cluster: ClusterId) {
        self.destroyed.insert(cluster);
    }

    /// Returns the identity of a master whose cluster has been destroyed.
    fn without_own(&self) -> ClusterIdentity {
        let destroyed = self.destroyed.iter().copied().chain(self.own).collect();
        ClusterIdentity { destroyed, ..ClusterIdentity::default() }
    }
}

impl MasterState {
    /// Returns the answer to a request that needs no further decision: one that forms or destroys a cluster, or one of
    /// another cluster.
    pub(super) fn identify(
        &mut self,
        ctx: &mut EventContext<'_>,
        asker: Option<ClusterId>,
        request: &MasterRequest,
    ) -> Option<MasterReply> {
        if let MasterRequest::Form { cluster } = request {
            return Some(self.form(ctx, *cluster));
        }
        let own = self.identity.own;
        if let MasterRequest::Destroy { cluster, with_living_data } = request {
            return Some(self.destroy(ctx, *cluster, *with_living_data));
        }
        if let Some(asker) = asker
            && Some(asker) != own
        {
            if let Some(reply) = self.reply_after_destroy(ctx, asker, request) {
                return Some(reply);
            }
            self.note_stranger(ctx, asker);
            return Some(MasterReply::WrongCluster { cluster: own });
        }
        if asker.is_some() {
            self.detect_existing_cluster(ctx, request);
        }
        // An operator may ask for the status even so.
        if own.is_none() && *request != MasterRequest::Status {
            return Some(MasterReply::WrongCluster { cluster: None });
        }
        None
    }

    fn form(&mut self, ctx: &mut EventContext<'_>, cluster: ClusterId) -> MasterReply {
        match self.identity.own {
            None if self.identity.destroyed.contains(&cluster) => refused(format!(
                "cluster {cluster} was destroyed, and its number is not used again; nothing was changed"
            )),
            None if self.identity.strangers.contains(&cluster) => {
                refused(why_exists(cluster, "memory nodes or clients"))
            }
            None => {
                (self.identity.own, self.identity.is_new) = (Some(cluster), true);
                if std::mem::take(&mut self.identity.has_leftovers) {
                    ctx.push(MasterAction::Clear);
                }
                // The record of the attempt tells the next process that the cluster was asked for.
                let asked =
                    [MasterRecord::Cluster(cluster), MasterRecord::Attempt(self.last_attempt)];
                ctx.persist(asked.map(RecordWrite::Put).into());
                let text = format!(
                    "cluster {cluster} is to be formed, as soon as it has {}",
                    count_with_noun(ctx.settings.memory_nodes, "memory node")
                );
                ctx.info(Topic::Cluster, text);
                MasterReply::Done
            }
            Some(own) if own == cluster => match self.identity.exists {
                Some(whose) => refused(why_exists(cluster, whose)),
                None => MasterReply::Done,
            },
            Some(own) => refused(format!(
                "this master leads cluster {own} already, and forms no other; nothing was changed"
            )),
        }
    }

    fn destroy(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: ClusterId,
        with_living_data: bool,
    ) -> MasterReply {
        if self.identity.own != Some(cluster) {
            return if self.identity.destroyed.contains(&cluster) {
                MasterReply::Done
            } else {
                MasterReply::WrongCluster { cluster: self.identity.own }
            };
        }
        if !with_living_data {
            if let Some(whose) = self.identity.exists {
                return refused(format!(
                    "{whose} of cluster {cluster} are there, and this store knows nothing of what they hold, which \
                     would be lost; nothing was changed"
                ));
            }
            let (there, unheard): (Vec<MnId>, Vec<MnId>) =
                self.holders().partition(|node| self.roster.is_present(*node));
            let names =
                |nodes: &[MnId]| nodes.iter().map(MnId::to_string).collect::<Vec<_>>().join(", ");
            if !there.is_empty() {
                return refused(format!(
                    "{} of cluster {cluster} are there and hold data, which would be lost; nothing was changed",
                    names(&there)
                ));
            }
            // After this master's start, members have a lease to report.
            if !unheard.is_empty() {
                return refused(format!(
                    "{NOT_KNOWN_YET} whether {} of cluster {cluster} are there, who hold data; nothing was changed",
                    names(&unheard)
                ));
            }
        }
        let gone = [RecordWrite::Remove(VIEW_KEY.into()), RecordWrite::Remove(CLUSTER_KEY.into())];
        let mut writes = Vec::from(gone);
        writes.push(RecordWrite::Put(MasterRecord::Destroyed(cluster)));
        ctx.persist(writes);
        ctx.push(MasterAction::Clear);
        ctx.warn(Topic::Cluster, format!("cluster {cluster} is destroyed, as somebody asked"));
        let waiting = self.held.take();
        let identity = self.identity.without_own();
        // Answers to calls and jobs of the old cluster may still come, so their tokens are not used again.
        let repair = self.repair.for_new_cluster();
        *self = MasterState { identity, repair, ..MasterState::new(ctx.calls.next_token()) };
        ctx.calls.cancel_all();
        for (token, asker) in waiting {
            let reply = match asker {
                HeartbeatSender::Node { .. } => MasterReply::Expelled,
                HeartbeatSender::Sessions { clients, known, .. } => {
                    expel(clients, known, ctx.settings.lease)
                }
            };
            ctx.push(MasterAction::Reply { token, reply });
        }
        MasterReply::Done
    }

    /// Notes that a request names the own cluster. Before that is formed, only memory nodes that this master has named
    /// may know its number; any other process knows it from an earlier view.
    fn detect_existing_cluster(&mut self, ctx: &mut EventContext<'_>, request: &MasterRequest) {
        let whose = match request {
            MasterRequest::Alive { identity, .. } if self.roster.find(*identity).is_none() => {
                "memory nodes"
            }
            MasterRequest::Heartbeat { sessions, .. } if !sessions.is_empty() => "clients",
            _ => return,
        };
        let Some(own) = self.identity.own else { return };
        if self.view().is_none() && self.identity.exists.is_none() {
            self.identity.exists = Some(whose);
            // The store then names no cluster. Otherwise the next process would form it, unless it found out the same
            // in time.
            ctx.persist(vec![RecordWrite::Remove(CLUSTER_KEY.into())]);
            self.give_forming_up(ctx, why_exists(own, whose));
        }
    }

    /// Returns the last answer that members and sessions of a cluster get after it was destroyed here.
    fn reply_after_destroy(
        &self,
        ctx: &EventContext<'_>,
        asker: ClusterId,
        request: &MasterRequest,
    ) -> Option<MasterReply> {
        if !self.identity.destroyed.contains(&asker) {
            return None;
        }
        match request {
            MasterRequest::Alive { .. } => Some(MasterReply::Expelled),
            MasterRequest::Heartbeat { sessions, known, .. } => {
                let all = sessions.iter().map(|heartbeat| heartbeat.client).collect();
                Some(expel(all, *known, ctx.settings.lease))
            }
            _ => None,
        }
    }

    /// Returns the members that hold a part of the view, and are not known to be lost.
    fn holders(&self) -> impl Iterator<Item = MnId> {
        let view = self.view();
        let members = view.into_iter().flat_map(|view| view.members.iter().map(|m| m.node));
        members.filter(move |node| {
            view.is_some_and(|view| view.subtables_on(*node) + view.regions_on(*node) > 0)
                && !self.losing.has(*node)
        })
    }

    fn note_stranger(&mut self, ctx: &mut EventContext<'_>, stranger: ClusterId) {
        let strangers = &mut self.identity.strangers;
        let is_new = strangers.len() < MAX_STRANGERS && strangers.insert(stranger);
        if !is_new || strangers.len() > MAX_MENTIONED {
            return;
        }
        let own =
            self.identity.own.map_or("has no cluster".into(), |own| format!("leads cluster {own}"));
        let text = format!(
            "memory nodes or clients of cluster {stranger} come here, but this master {own}. They keep \
             what they hold and wait for their master: if it should be this one, stop it, and start it on \
             the store of cluster {stranger} (--data-dir, or --store)"
        );
        ctx.warn(Topic::Cluster, text);
    }
}

/// Returns the reason why a cluster is not formed.
fn why_exists(cluster: ClusterId, whose: &str) -> String {
    format!(
        "cluster {cluster} exists already: {whose} of it come here, and this master's store knows nothing of them. To \
         go on with it, stop this master, and start it on the store of that cluster, or on a copy of it (--data-dir, \
         or --store). For a new cluster, choose another number. To give up what is there, `fusee destroy` it first"
    )
}

fn expel(expelled: Vec<ClientId>, epochs: ClusterEpochs, lease: LeaseSettings) -> MasterReply {
    let lease_ms = lease.lease_ms;
    let view = None;
    let behind_ms = u64::MAX;
    MasterReply::Heartbeat { view, expelled, epochs, mark: 0, short: 0, lease_ms, behind_ms }
}
