//! The decisions of the concerns.
//!
//! A concern changes its own state only. Everything else that is to follow is a decision, added to the
//! [`EventContext`](super::context::EventContext); [`apply`](super::apply) is the one place that carries decisions out,
//! in the order in which they were made.

use fusee_control::events::Topic;
use fusee_control::node::MemberBars;
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use super::MasterAction;
use super::change_rotation::ChangePurpose;
use crate::jobs::MasterJob;
use crate::record::RecordWrite;

/// The consequence of an event for the cluster, or for another concern.
#[derive(Debug)]
pub(super) enum Decision {
    /// Have the host do this.
    Act(Box<MasterAction>),
    /// Put a view in force.
    SetView(Box<NextView>),
    /// Go on without members that are gone, by this view.
    Lose { nodes: Vec<MnId>, view: Box<NextView> },
    /// Go on without a member that is drained and empty.
    Leave { node: MnId, view: Box<NextView> },
    /// Take note that a member is gone, as far as the cluster is concerned.
    Suspect { node: MnId, why: String },
    /// Take note that a node is silent: a member is suspected, a candidate forgotten.
    NodeSilent { node: MnId, why: &'static str },
    /// Take note that a node has spoken, and is no longer suspected.
    Trust(MnId),
    /// Take note that a node is absent.
    Departed(MnId),
    /// Take note that a node is present.
    Arrived(MnId),
    /// Ask a member, which another process cannot reach, whether it still runs.
    Probe(MnId),
    /// Take a member's bars.
    Bars { node: MnId, bars: MemberBars },
    /// Expire sessions. From now on they are fenced.
    Expire(Vec<Expiry>),
    /// Retire the session of failed jobs: it is fenced.
    RetireRepairer(ClientId),
    /// Forget the session of failed jobs: all members have fenced it.
    EndRepairer(ClientId),
    /// Go on with the change without the split of this subtable: an entry in this slot can be placed in neither half.
    CannotSplit { subtable: u32, slot: u64 },
    /// Start a job, unless one is under way.
    StartJob(MasterJob),
    /// Take note that a node has no room for a region, or a subtable.
    NoteFull { node: MnId, regions: bool },
    /// Look for room again: there may be some now.
    LookAgain,
    /// Take note that a change for this purpose has begun, or was impossible.
    MoveToBack(ChangePurpose),
    /// Take note that no replica is missing.
    Whole,
    /// Count damage that a job found.
    AddDamage(Damage),
    /// Show this problem, or none.
    SetProblem(Option<String>),
    /// Begin the attempt of this number to form the cluster.
    BeginAttempt(u64),
    /// The cluster is formed.
    Formed(Box<View>),
    /// Give up the forming of the cluster.
    GiveFormingUp(String),
    /// Give up the cluster.
    DestroyCluster,
    /// Begin the drain of a member.
    Drain(MnId),
    /// End the drain of a member, which stays.
    Keep(MnId),
}

/// The next view, with what is made durable and told together with it.
#[derive(Debug)]
pub(super) struct NextView {
    pub view: View,
    /// Whether all members have to show its number before it takes effect, or before the next such view.
    pub is_shown: bool,
    /// Further records of the same step.
    pub writes: Vec<RecordWrite>,
    pub topic: Topic,
    pub text: String,
}

impl NextView {
    /// Returns a view without further records.
    pub fn new(view: View, topic: Topic, text: String) -> NextView {
        NextView { view, is_shown: false, writes: Vec::new(), topic, text }
    }
}

/// A session that expires.
#[derive(Debug)]
pub(super) struct Expiry {
    pub client: ClientId,
    pub why: &'static str,
}
