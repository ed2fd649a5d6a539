//! Which cluster this is, and who has business with it.
//!
//! A cluster is formed because somebody asks for it ([`MasterRequest::Form`]), never because a master was
//! started: one that finds its store empty may have been started over the wrong store. Until then it
//! answers everybody that it has no cluster, and writes nothing.
//!
//! So is its end ([`MasterRequest::Destroy`]): it is asked for by the cluster's number, and it takes more
//! than that as long as memory nodes are there that hold data. The records of the view and of the cluster go at
//! once, in place of one that says that it was destroyed: its memory nodes are told whenever they come that
//! they are expelled, and its sessions that they are fenced.
//!
//! A number is formed once. A master over an empty store, or over an old copy, may be asked to form a cluster that
//! is alive; its members and clients come here, since they go on asking. So a number that somebody has said is
//! his is refused, and if he comes later, before there is a view, none is made: a second cluster of one number
//! would get the clients of the first one, in silence, and show them nothing. The store keeps that: whoever goes on
//! from it has no cluster, as before somebody asked. And it listens for others before it forms one, whichever
//! process was asked.
//!
//! Whoever belongs to a cluster says so with every request. Members and clients of another one are
//! refused before anything else is looked at, so that their requests have no effect here, and this
//! master's word none there: a memory node never hears from it that it is expelled.

use fusee_control::counted;
use fusee_control::events::Topic;
use std::collections::BTreeSet;

use fusee_control::master::{Epochs, MasterReply, MasterRequest, NOT_KNOWN_YET};
use fusee_core::verbs::{ClientId, ClusterId, MnId};

use super::context::Ctx;
use super::holding::Asker;
use super::{Action, State, refused};
use crate::record::{CLUSTER_KEY, Record, VIEW_KEY, Write};
use crate::settings::LeaseSettings;

/// Clusters whose members are mentioned in the log, each once; and remembered.
const MAX_MENTIONED: usize = 16;
const MAX_STRANGERS: usize = 1024;

/// Whose cluster it is.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// `None` until somebody asks for one.
    own: Option<ClusterId>,
    /// Those that were given up here.
    destroyed: BTreeSet<ClusterId>,
    /// Other clusters whose members or clients have come here.
    strangers: BTreeSet<ClusterId>,
    /// Somebody has asked for the own one, of which there was no view when this process began.
    is_new: bool,
    /// The store has records of a cluster that this master does not lead any more.
    has_leftovers: bool,
    /// The own one is to be formed, and exists: who has come, and is of it.
    exists: Option<&'static str>,
}

impl Identity {
    /// The cluster that the master leads; `None` until one is to be formed.
    pub fn own(&self) -> Option<ClusterId> {
        self.own
    }

    /// Whether somebody has asked for the own cluster, this process or one before it.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether it is known that the own cluster exists, though this master has no view of it.
    pub fn exists(&self) -> bool {
        self.exists.is_some()
    }

    /// From the store: it leads this one.
    pub fn restore_own(&mut self, cluster: ClusterId) {
        self.own = Some(cluster);
    }

    /// From the store: somebody has asked for the own one.
    pub fn restore_new(&mut self) {
        self.is_new = true;
    }

    /// From the store: there are records, but no cluster.
    pub fn restore_leftovers(&mut self) {
        self.has_leftovers = true;
    }

    /// From the store: this one was given up here.
    pub fn restore_destroyed(&mut self, cluster: ClusterId) {
        self.destroyed.insert(cluster);
    }

    /// That of a master whose cluster has been destroyed.
    fn without_own(&self) -> Identity {
        let destroyed = self.destroyed.iter().copied().chain(self.own).collect();
        Identity { destroyed, ..Identity::default() }
    }
}

impl State {
    /// The answer to a request that ends here: to form a cluster, or of somebody who has no business with
    /// this one.
    pub(super) fn identify(
        &mut self,
        ctx: &mut Ctx<'_>,
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
            if let Some(reply) = self.epilogue(ctx, asker, request) {
                return Some(reply);
            }
            self.note_stranger(ctx, asker);
            return Some(MasterReply::WrongCluster { cluster: own });
        }
        if asker.is_some() {
            self.mind_survivors(ctx, request);
        }
        // People may look at it.
        if own.is_none() && *request != MasterRequest::Status {
            return Some(MasterReply::WrongCluster { cluster: None });
        }
        None
    }

    fn form(&mut self, ctx: &mut Ctx<'_>, cluster: ClusterId) -> MasterReply {
        match self.identity.own {
            None if self.identity.destroyed.contains(&cluster) => refused(format!(
                "cluster {cluster} was destroyed, and its number is not used again; nothing was changed"
            )),
            None if self.identity.strangers.contains(&cluster) => {
                refused(exists(cluster, "memory nodes or clients"))
            }
            None => {
                (self.identity.own, self.identity.is_new) = (Some(cluster), true);
                if std::mem::take(&mut self.identity.has_leftovers) {
                    ctx.push(Action::Clear);
                }
                // The attempt says to the next process that somebody has asked.
                let asked = [Record::Cluster(cluster), Record::Attempt(self.last_attempt)];
                ctx.persist(asked.map(Write::Put).into());
                let text = format!(
                    "cluster {cluster} is to be formed, as soon as it has {}",
                    counted(ctx.settings.memory_nodes, "memory node")
                );
                ctx.info(Topic::Cluster, text);
                MasterReply::Done
            }
            Some(own) if own == cluster => match self.identity.exists {
                Some(whose) => refused(exists(cluster, whose)),
                None => MasterReply::Done,
            },
            Some(own) => refused(format!(
                "this master leads cluster {own} already, and forms no other; nothing was changed"
            )),
        }
    }

    fn destroy(
        &mut self,
        ctx: &mut Ctx<'_>,
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
            // They have a lease's time to say so after this master has started.
            if !unheard.is_empty() {
                return refused(format!(
                    "{NOT_KNOWN_YET} whether {} of cluster {cluster} are there, who hold data; nothing was changed",
                    names(&unheard)
                ));
            }
        }
        let gone = [Write::Remove(VIEW_KEY.into()), Write::Remove(CLUSTER_KEY.into())];
        let mut writes = Vec::from(gone);
        writes.push(Write::Put(Record::Destroyed(cluster)));
        ctx.persist(writes);
        ctx.push(Action::Clear);
        ctx.warn(Topic::Cluster, format!("cluster {cluster} is destroyed, as somebody asked"));
        let waiting = self.held.take();
        let identity = self.identity.without_own();
        // Answers to calls and jobs of the old cluster may still come: their names are not used again.
        let repair = self.repair.anew();
        *self = State { identity, repair, ..State::new(ctx.calls.next_token()) };
        ctx.calls.cancel_all();
        for (token, asker) in waiting {
            let reply = match asker {
                Asker::Node { .. } => MasterReply::Expelled,
                Asker::Sessions { clients, known, .. } => expel(clients, known, ctx.settings.lease),
            };
            ctx.push(Action::Reply { token, reply });
        }
        MasterReply::Done
    }

    /// Somebody who is of this cluster asks. Before it is formed nobody is, but the memory nodes that this master has
    /// named: who knows its number otherwise knows it from an earlier view.
    fn mind_survivors(&mut self, ctx: &mut Ctx<'_>, request: &MasterRequest) {
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
            // Another process goes on without a cluster: it would have to find this out again.
            ctx.persist(vec![Write::Remove(CLUSTER_KEY.into())]);
            self.give_forming_up(ctx, exists(own, whose));
        }
    }

    /// The last that members and sessions hear of a cluster that was destroyed here.
    fn epilogue(
        &self,
        ctx: &Ctx<'_>,
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

    /// Members at which the view has something, and that are not known to be gone.
    fn holders(&self) -> impl Iterator<Item = MnId> {
        let view = self.view();
        let members = view.into_iter().flat_map(|view| view.members.iter().map(|m| m.node));
        members.filter(move |node| {
            view.is_some_and(|view| view.subtables_on(*node) + view.regions_on(*node) > 0)
                && !self.losing.has(*node)
        })
    }

    fn note_stranger(&mut self, ctx: &mut Ctx<'_>, stranger: ClusterId) {
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

/// Why a cluster is not formed.
fn exists(cluster: ClusterId, whose: &str) -> String {
    format!(
        "cluster {cluster} exists already: {whose} of it come here, and this master's store knows nothing of them. To \
         go on with it, stop this master, and start it on the store of that cluster, or on a copy of it (--data-dir, \
         or --store). For a new cluster, choose another number. To give up what is there, `fusee destroy` it first"
    )
}

fn expel(expelled: Vec<ClientId>, epochs: Epochs, lease: LeaseSettings) -> MasterReply {
    let lease_ms = lease.lease_ms;
    let view = None;
    let behind_ms = u64::MAX;
    MasterReply::Heartbeat { view, expelled, epochs, mark: 0, short: 0, lease_ms, behind_ms }
}
