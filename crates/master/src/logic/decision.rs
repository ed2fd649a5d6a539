//! The decisions of the *concerns*, which are the parts of the master's logic.
//!
//! A concern changes only its own state. Every other consequence is a decision, added to the
//! [`EventContext`](super::context::EventContext). Only [`apply`](super::apply) carries decisions out, in the order in
//! which they were made.

use fusee_control::events::Topic;
use fusee_control::node::MemberBars;
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use super::MasterAction;
use super::change_rotation::ChangePurpose;
use crate::jobs::MasterJob;
use crate::record::RecordWrite;

/// A decision on an event, which changes the state of another part of the logic (a *concern*) or of the cluster.
#[derive(Debug)]
pub(super) enum Decision {
    /// Have the host carry out this action.
    Act(Box<MasterAction>),
    /// Put a view in force.
    SetView(Box<NextView>),
    /// Put this view in force, which removes failed members.
    Lose { nodes: Vec<MnId>, view: Box<NextView> },
    /// Put this view in force, which lacks a member that is drained and empty.
    Leave { node: MnId, view: Box<NextView> },
    /// Record that a member has failed; the next view removes it if possible.
    Suspect { node: MnId, why: String },
    /// Record that a node is silent: a member counts as failed; a node that is not a member yet is forgotten.
    NodeSilent { node: MnId, why: &'static str },
    /// Record that a member has answered, and no longer counts as failed.
    Trust(MnId),
    /// Record that a node is absent, because an attempt to form the cluster failed at it.
    Departed(MnId),
    /// Record that a node is present: it has sent a heartbeat.
    Arrived(MnId),
    /// Ask a member whether it still runs, because another process could not reach it or a call to it failed.
    Probe(MnId),
    /// Record the bars that a member has reported.
    Bars { node: MnId, bars: MemberBars },
    /// Record that sessions have expired. The master then fences them.
    Expire(Vec<Expiry>),
    /// Retire the session of failed jobs, so that it is fenced.
    RetireRepairer(ClientId),
    /// Forget the retired session of failed jobs, because all members have fenced it.
    EndRepairer(ClientId),
    /// Continue the change without splitting this subtable, because an entry in this slot can be placed in neither
    /// half.
    CannotSplit { subtable: u32, slot: u64 },
    /// Start a job, unless one is under way.
    StartJob(MasterJob),
    /// Record that a node has no room for a region (`regions`), or for a subtable.
    NoteFull { node: MnId, regions: bool },
    /// Look again for room on all nodes, because some node possibly has room now.
    LookAgain,
    /// Move this purpose to the end of the rotation, because a change for this purpose has begun or was impossible.
    MoveToBack(ChangePurpose),
    /// Record that no replica is missing any more.
    Whole,
    /// Add the damage that a job found to the totals.
    AddDamage(Damage),
    /// Show operators this problem; `None` if there is no problem.
    SetProblem(Option<String>),
    /// Begin the attempt of this number to form the cluster.
    BeginAttempt(u64),
    /// Put the first view in force: the cluster is formed.
    Formed(Box<View>),
    /// Stop forming the cluster, for this reason.
    GiveFormingUp(String),
    /// Destroy the cluster.
    DestroyCluster,
    /// Begin the drain of a member.
    Drain(MnId),
    /// End the drain of a member, which stays in the cluster.
    Keep(MnId),
}

/// The next view, with the records that are stored and the text that is told together with it.
#[derive(Debug)]
pub(super) struct NextView {
    pub view: View,
    /// Whether all members have to show this view's number before it takes effect, or before the next such view.
    pub is_shown: bool,
    /// Further records that the store gets in the same write as the view.
    pub writes: Vec<RecordWrite>,
    pub topic: Topic,
    pub text: String,
}

impl NextView {
    /// Returns a view without further records to store.
    pub fn new(view: View, topic: Topic, text: String) -> NextView {
        NextView { view, is_shown: false, writes: Vec::new(), topic, text }
    }
}

/// A session that expires, and the reason.
#[derive(Debug)]
pub(super) struct Expiry {
    pub client: ClientId,
    pub why: &'static str,
}
