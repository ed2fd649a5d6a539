//! The facts of the cluster. Every concern reads them; [`apply`](super::apply) and inputs from outside change them.
//!
//! The facts are the view in force, the memory nodes, the sessions, and what is known about nodes and sessions. A
//! concern gets a shared reference to them. To change a fact, it adds a [`Decision`](super::decision::Decision) to the
//! context.

use std::collections::BTreeSet;

use fusee_control::master::MasterReply;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::change::{ChangeStage, ViewChange};
use fusee_core::view::{Member, View};

use super::member_loss::FailedMembers;
use super::roster::Roster;
use crate::sessions::{SessionRegistry, SessionState};

/// The facts about the cluster that several parts of the logic use.
#[derive(Debug)]
pub(super) struct ClusterFacts {
    /// The view in force; `None` while the cluster is forming.
    pub view: Option<View>,
    /// The number of the latest attempt to form the cluster.
    pub last_attempt: u64,
    pub roster: Roster,
    pub sessions: SessionRegistry,
    /// Members that have failed and are still in the view.
    pub failed: FailedMembers,
    /// Nodes that have reported that they have no room for a subtable (`false`) or a region (`true`).
    pub full: BTreeSet<(MnId, bool)>,
    /// The problem that the status shows to operators, if there is one.
    pub problem: Option<String>,
    /// Whether this master is about to end: see [`MasterLogic::finish`](super::MasterLogic::finish).
    pub finishes: bool,
}

impl ClusterFacts {
    /// Returns the facts of a master over an empty store.
    pub fn new() -> ClusterFacts {
        ClusterFacts {
            view: None,
            last_attempt: 0,
            roster: Roster::default(),
            sessions: SessionRegistry::new(1),
            failed: FailedMembers::default(),
            full: BTreeSet::new(),
            problem: None,
            finishes: false,
        }
    }

    /// Returns the number of the view in force.
    pub fn view_number(&self) -> Option<u64> {
        self.view.as_ref().map(|view| view.number)
    }

    /// Returns the members of the view in force.
    pub fn members(&self) -> Vec<MnId> {
        let members = self.view.iter().flat_map(|view| &view.members);
        members.map(|member| member.node).collect()
    }

    /// Returns whether a node is a member.
    pub fn in_view(&self, node: MnId) -> bool {
        self.view.as_ref().is_some_and(|view| view.member(node).is_some())
    }

    /// Returns the view change that is under way.
    pub fn change(&self) -> Option<&ViewChange> {
        self.view.as_ref()?.change.as_ref()
    }

    /// Returns the stage of the view change that is under way.
    pub fn stage(&self) -> Option<ChangeStage> {
        self.change().map(|change| change.stage)
    }

    /// Returns whether the view change under way removes a failed member, and is still *frozen*.
    pub fn loses_a_member(&self) -> bool {
        self.change().is_some_and(|change| change.data_lost && change.stage == ChangeStage::Frozen)
    }

    /// Returns whether a replica is moving from one member to another.
    pub fn is_moving(&self) -> bool {
        self.change().is_some_and(|change| change.leaving().next().is_some())
    }

    /// Returns the open sessions for which the present stage of the view change waits.
    pub fn lagging(&self) -> impl Iterator<Item = (ClientId, &SessionState)> {
        let stage = self.stage();
        let number = self.view_number().unwrap_or(0);
        let waits_for = move |session: &SessionState| match stage {
            Some(ChangeStage::Frozen) => session.pinned_by < number,
            Some(ChangeStage::Switched) => session.pinned_by < number || session.has_suspended,
            Some(ChangeStage::Transforming) | None => false,
        };
        self.sessions.open_sessions().filter(move |(_, session)| waits_for(session))
    }

    /// Returns the answer to a node that is no member: that it is drained, expelled, or unknown to this master. A node
    /// that the master does not know keeps its contents.
    pub fn non_member_reply(&self, identity: u64) -> MasterReply {
        let same = |member: &Member| member.identity == identity;
        if self.roster.drained().any(same) {
            MasterReply::Drained
        } else if self.roster.lost().any(same) {
            MasterReply::Expelled
        } else {
            MasterReply::Unknown
        }
    }
}
