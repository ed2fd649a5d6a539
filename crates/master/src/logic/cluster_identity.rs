//! The identity of the cluster, and the refusal of processes of other clusters.
//!
//! *Forming.* An operator requests a cluster ([`IdentityRequest::Form`](crate::request_kinds::IdentityRequest)); a
//! master that starts never forms one by itself, because a master with an empty store was possibly started on the wrong
//! store. Until the request comes, the master answers every other request that it has no cluster, and writes nothing.
//!
//! *Destroying.* An operator requests this as well
//! ([`IdentityRequest::Destroy`](crate::request_kinds::IdentityRequest)), and names the cluster's number. While memory
//! nodes that hold data are present, the request also needs the flag `with_living_data`. One write removes the records
//! of view and cluster, and adds a record that the cluster was destroyed. From then on the master answers memory nodes
//! of that cluster that they are expelled, and sessions that they are fenced.
//!
//! *A number is formed only once.* An operator can ask a master over an empty store, or over an old copy of a store, to
//! form a cluster that already exists. The members and clients of that cluster come to this master, because they keep
//! looking for theirs. So the master refuses a number that some process has named as its own cluster. If such a process
//! comes after the request and before there is a view, the master makes no view: a second cluster of the same number
//! would silently get the clients of the first one, and show them an empty cluster. The master then removes the
//! cluster's record from the store, so that its next process does not form the cluster either. Before it forms a
//! cluster, a master listens for such processes, also if an earlier process of the master got the request.
//!
//! Members and clients name their cluster in every request. The master refuses a request that names another cluster
//! before it examines anything else. So the request has no effect here, and the answer expels a memory node only if
//! that node's cluster was destroyed here.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use std::collections::BTreeSet;

use fusee_control::master::{ClusterEpochs, MasterReply, NOT_KNOWN_YET};
use fusee_core::verbs::{ClientId, ClusterId, MnId};

use super::context::EventContext;
use super::decision::Decision;
use super::facts::ClusterFacts;
use super::{MasterAction, refused};
use crate::record::{CLUSTER_KEY, MasterRecord, RecordWrite};
use crate::request_kinds::{ClusterRequest, ProcessHeartbeat};
use crate::settings::LeaseSettings;

/// Limits on the other clusters whose members or clients come: how many the log mentions (each once), and how many the
/// master remembers.
const MAX_MENTIONED: usize = 16;
const MAX_STRANGERS: usize = 1024;
/// The limit on the number of forgotten nodes whose identities the master remembers.
const MAX_FORGOTTEN: usize = 1024;

/// The cluster that this master leads, and the other clusters that it knows of.
#[derive(Debug, Default)]
pub(super) struct ClusterIdentity {
    /// The cluster that this master leads; `None` until an operator requests one.
    own: Option<ClusterId>,
    /// Clusters that a master with this store has destroyed.
    destroyed: BTreeSet<ClusterId>,
    /// Other clusters whose members or clients have sent requests to this master.
    strangers: BTreeSet<ClusterId>,
    /// The identities of memory nodes that had joined, and that this process has forgotten while this master's cluster
    /// had no view.
    forgotten: BTreeSet<u64>,
    /// Whether an operator has requested this master's cluster, from this process or from an earlier process of this
    /// master.
    is_new: bool,
    /// Whether the store has records of a cluster, but does not name that cluster.
    has_leftovers: bool,
    /// The kind of process that has shown that the cluster which this master is to form exists already; `None` if no
    /// process has shown this.
    exists: Option<&'static str>,
}

impl ClusterIdentity {
    /// Returns the cluster that the master leads; `None` until an operator requests one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.own
    }

    /// Returns whether an operator has requested this master's cluster, from this process or from an earlier one.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns whether the cluster that this master is to form is known to exist already.
    pub fn exists(&self) -> bool {
        self.exists.is_some()
    }

    /// Restores from the store that the master leads this cluster.
    pub fn restore_own(&mut self, cluster: ClusterId) {
        self.own = Some(cluster);
    }

    /// Restores from the store that an operator has requested this master's cluster.
    pub fn restore_new(&mut self) {
        self.is_new = true;
    }

    /// Restores from the store that it has records, but does not name their cluster.
    pub fn restore_leftovers(&mut self) {
        self.has_leftovers = true;
    }

    /// Restores from the store that a master has destroyed this cluster.
    pub fn restore_destroyed(&mut self, cluster: ClusterId) {
        self.destroyed.insert(cluster);
    }

    /// Returns the identity of a master whose cluster has been destroyed.
    pub fn without_own(&self) -> ClusterIdentity {
        let destroyed = self.destroyed.iter().copied().chain(self.own).collect();
        ClusterIdentity { destroyed, ..ClusterIdentity::default() }
    }

    /// Records that a memory node is forgotten that had joined. It possibly knows the number of this master's cluster.
    pub fn note_forgotten(&mut self, identity: u64) {
        if self.forgotten.len() < MAX_FORGOTTEN {
            self.forgotten.insert(identity);
        }
    }

    /// Returns the refusal of a request that names another cluster, or of any request while this master has no cluster;
    /// `None` if the request is to be answered.
    pub fn refuse_stranger(
        &mut self,
        ctx: &mut EventContext<'_>,
        facts: &ClusterFacts,
        asker: Option<ClusterId>,
        request: &ClusterRequest,
    ) -> Option<MasterReply> {
        let own = self.own;
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
            self.detect_existing_cluster(ctx, facts, request);
        }
        // An operator is allowed to ask for the status even without a cluster.
        if own.is_none() && *request != ClusterRequest::Status {
            return Some(MasterReply::WrongCluster { cluster: None });
        }
        None
    }

    /// Handles the request for a new cluster. `last_attempt` is the number of the latest attempt to form one.
    pub fn form(
        &mut self,
        ctx: &mut EventContext<'_>,
        last_attempt: u64,
        cluster: ClusterId,
    ) -> MasterReply {
        match self.own {
            None if self.destroyed.contains(&cluster) => refused(format!(
                "cluster {cluster} was destroyed, and its number is not used again; nothing was changed"
            )),
            None if self.strangers.contains(&cluster) => {
                refused(why_exists(cluster, "memory nodes or clients"))
            }
            None => {
                (self.own, self.is_new) = (Some(cluster), true);
                if std::mem::take(&mut self.has_leftovers) {
                    ctx.push(MasterAction::Clear);
                }
                // The record of the attempt tells the next process of this master that an operator requested the
                // cluster.
                let asked = [MasterRecord::Cluster(cluster), MasterRecord::Attempt(last_attempt)];
                ctx.persist(asked.map(RecordWrite::Put).into());
                let text = format!(
                    "cluster {cluster} is to be formed, as soon as it has {}",
                    count_with_noun(ctx.settings.memory_nodes, "memory node")
                );
                ctx.info(Topic::Cluster, text);
                MasterReply::Done
            }
            Some(own) if own == cluster => match self.exists {
                Some(whose) => refused(why_exists(cluster, whose)),
                None => MasterReply::Done,
            },
            Some(own) => refused(format!(
                "this master leads cluster {own} already, and forms no other; nothing was changed"
            )),
        }
    }

    /// Handles the request to destroy a cluster.
    pub fn destroy(
        &self,
        ctx: &mut EventContext<'_>,
        facts: &ClusterFacts,
        cluster: ClusterId,
        with_living_data: bool,
    ) -> MasterReply {
        if self.own != Some(cluster) {
            return if self.destroyed.contains(&cluster) {
                MasterReply::Done
            } else {
                MasterReply::WrongCluster { cluster: self.own }
            };
        }
        if !with_living_data {
            if let Some(whose) = self.exists {
                return refused(format!(
                    "{whose} of cluster {cluster} are there, and this store knows nothing of what they hold, which \
                     would be lost; nothing was changed"
                ));
            }
            let (there, unheard): (Vec<MnId>, Vec<MnId>) =
                holders(facts).partition(|node| facts.roster.is_present(*node));
            let names =
                |nodes: &[MnId]| nodes.iter().map(MnId::to_string).collect::<Vec<_>>().join(", ");
            if !there.is_empty() {
                return refused(format!(
                    "{} of cluster {cluster} are there and hold data, which would be lost; nothing was changed",
                    names(&there)
                ));
            }
            // After this master's start, members have one lease in which to report.
            if !unheard.is_empty() {
                return refused(format!(
                    "{NOT_KNOWN_YET} whether {} of cluster {cluster} are there, who hold data; nothing was changed",
                    names(&unheard)
                ));
            }
        }
        ctx.decide(Decision::DestroyCluster);
        MasterReply::Done
    }

    /// Notes that a request names this master's cluster. Before that cluster is formed, only memory nodes that this
    /// master has named know its number; any other process knows the number from an earlier view, so the cluster exists
    /// already.
    fn detect_existing_cluster(
        &mut self,
        ctx: &mut EventContext<'_>,
        facts: &ClusterFacts,
        request: &ClusterRequest,
    ) {
        let is_named = |identity: u64| {
            facts.roster.find(identity).is_some() || self.forgotten.contains(&identity)
        };
        let whose = match request {
            ClusterRequest::Alive(node) if !is_named(node.identity) => "memory nodes",
            ClusterRequest::Heartbeat(process) if !process.sessions.is_empty() => "clients",
            _ => return,
        };
        let Some(own) = self.own else { return };
        if facts.view.is_none() && self.exists.is_none() {
            self.exists = Some(whose);
            // The store then names no cluster. Otherwise the next process of this master would form the cluster, unless
            // another such request reached that process in time.
            ctx.persist(vec![RecordWrite::Remove(CLUSTER_KEY.into())]);
            ctx.decide(Decision::GiveFormingUp(why_exists(own, whose)));
        }
    }

    /// Returns the answer that members and sessions of a cluster get after a master with this store has destroyed it;
    /// `None` for other requests and clusters.
    fn reply_after_destroy(
        &self,
        ctx: &EventContext<'_>,
        asker: ClusterId,
        request: &ClusterRequest,
    ) -> Option<MasterReply> {
        if !self.destroyed.contains(&asker) {
            return None;
        }
        match request {
            ClusterRequest::Alive(_) => Some(MasterReply::Expelled),
            ClusterRequest::Heartbeat(ProcessHeartbeat { sessions, known, .. }) => {
                let all = sessions.iter().map(|heartbeat| heartbeat.client).collect();
                Some(expel(all, *known, ctx.settings.lease))
            }
            _ => None,
        }
    }

    fn note_stranger(&mut self, ctx: &mut EventContext<'_>, stranger: ClusterId) {
        let strangers = &mut self.strangers;
        let is_new = strangers.len() < MAX_STRANGERS && strangers.insert(stranger);
        if !is_new || strangers.len() > MAX_MENTIONED {
            return;
        }
        let own = self.own.map_or("has no cluster".into(), |own| format!("leads cluster {own}"));
        let text = format!(
            "memory nodes or clients of cluster {stranger} come here, but this master {own}. They keep \
             what they hold and wait for their master: if it should be this one, stop it, and start it on \
             the store of cluster {stranger} (--data-dir, or --store)"
        );
        ctx.warn(Topic::Cluster, text);
    }
}

/// Returns the members that hold a part of index or data, and are not known to be lost.
fn holders(facts: &ClusterFacts) -> impl Iterator<Item = MnId> {
    let view = facts.view.as_ref();
    let members = view.into_iter().flat_map(|view| view.members.iter().map(|m| m.node));
    members.filter(move |node| {
        view.is_some_and(|view| view.subtables_on(*node) + view.regions_on(*node) > 0)
            && !facts.failed.has(*node)
    })
}

/// Returns the reason why a cluster that exists already cannot be formed.
fn why_exists(cluster: ClusterId, whose: &str) -> String {
    format!(
        "cluster {cluster} exists already: {whose} of it come here, and this master's store knows nothing of them. To \
         go on with it, stop this master, and start it on the store of that cluster, or on a copy of it (--data-dir, \
         or --store). For a new cluster, choose another number. To give up what is there, `fusee destroy` it first"
    )
}

/// Returns the reply to a heartbeat that all of these sessions are expelled.
pub(super) fn expel(
    expelled: Vec<ClientId>,
    epochs: ClusterEpochs,
    lease: LeaseSettings,
) -> MasterReply {
    let lease_ms = lease.lease_ms;
    let view = None;
    let behind_ms = u64::MAX;
    MasterReply::Heartbeat {
        view,
        expelled,
        epochs,
        mark: 0,
        short: 0,
        spared: None,
        lease_ms,
        behind_ms,
    }
}
