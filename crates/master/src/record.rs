//! The records of the master: the contents of its store.
//!
//! A record replaces the earlier record with the same key, so a store is a map and needs no log. Records of sessions,
//! blocks and nodes that no longer exist are removed, so the size of a store follows the cluster's present state, not
//! its history. Records are encoded by postcard. Their bytes stay the same between versions of this program, as long as
//! the format number of the store does.

use std::collections::BTreeSet;

use fusee_control::events::ClusterEvent;
use fusee_control::master::Orphan;
use fusee_control::node::BlockId;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::{Member, View};
use serde::{Deserialize, Serialize};

/// A record in the master's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MasterRecord {
    /// The cluster, stored when an operator requests it. A store without this record has no cluster.
    Cluster(ClusterId),
    /// The number of the latest attempt to form the cluster.
    Attempt(u64),
    /// The least name that no memory node has ever had.
    NextNode(u16),
    /// A memory node with its name in the cluster.
    Member(Member),
    /// A lost memory node. The cluster excludes it, so it must not join again with its contents.
    Lost(Member),
    /// The view in force.
    View(View),
    /// A bound of client ids: ids below `end` have possibly been assigned to sessions.
    ClientIds {
        /// The end of the range of client ids that are reserved: no id from `end` on has been assigned.
        end: u32,
    },
    /// A session that has been opened, and neither closed nor recovered.
    Session {
        /// The id of the session.
        client: ClientId,
        /// Whether the session has expired. It is fenced for good, and has to be recovered.
        expired: bool,
        /// The serial number of the session's last request `HandOn`.
        handed_on: u64,
    },
    /// The session of a master's jobs. Only the latest one is allowed to run jobs.
    Repairer(ClientId),
    /// A block without an owner, for the next session that needs one.
    Orphan(Orphan),
    /// A bound of epochs: epochs before `end` have possibly begun.
    Epochs {
        /// The end of the range of epochs that are reserved: no epoch from `end` on has begun.
        end: u64,
    },
    /// A member that is being drained.
    Draining(MnId),
    /// A memory node that has been drained.
    Drained(Member),
    /// For each earlier view that a session possibly still uses, its members ([`member_views`](crate::logic)).
    Former(Vec<Vec<MnId>>),
    /// Bars that are settled when the change under way is complete: the bars against these members that were set in
    /// views before `before` ([`bar_settlement`](crate::logic)).
    Settled {
        /// The number of the view before which the bars were set.
        before: u64,
        /// The members that were barred when the bars were settled.
        barred: BTreeSet<MnId>,
    },
    /// A destroyed cluster. Memory nodes of that cluster learn this when they come to this master.
    Destroyed(ClusterId),
    /// Names of memory nodes that are free again, because they never belonged to a member; the earliest freed first.
    FreeNames(Vec<u16>),
    /// A page of the newest events (`journal.rs`).
    Events {
        /// The number of the page.
        page: u64,
        /// The events of the page, the oldest first.
        events: Vec<ClusterEvent>,
    },
}

/// A change of one record in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all writes put a record")]
pub enum RecordWrite {
    /// Store the record, and replace the earlier record with its key.
    Put(MasterRecord),
    /// Remove the record with this key.
    Remove(String),
}

impl MasterRecord {
    /// Returns the key under which a store keeps the record.
    pub fn key(&self) -> String {
        match self {
            MasterRecord::Cluster(_) => CLUSTER_KEY.into(),
            MasterRecord::Attempt(_) => "attempt".into(),
            MasterRecord::NextNode(_) => "next-node".into(),
            MasterRecord::Member(Member { node, .. }) => member_key(*node),
            MasterRecord::Lost(Member { node, .. }) => lost_key(*node),
            MasterRecord::View(_) => VIEW_KEY.into(),
            MasterRecord::ClientIds { .. } => "client-ids".into(),
            MasterRecord::Session { client, .. } => session_key(*client),
            MasterRecord::Repairer(client) => repairer_key(*client),
            MasterRecord::Orphan(Orphan { block, .. }) => orphan_key(*block),
            MasterRecord::Epochs { .. } => "epochs".into(),
            MasterRecord::Draining(node) => draining_key(*node),
            MasterRecord::Drained(Member { node, .. }) => drained_key(*node),
            MasterRecord::Former(_) => FORMER_KEY.into(),
            MasterRecord::Settled { .. } => SETTLED_KEY.into(),
            MasterRecord::FreeNames(_) => "free-names".into(),
            MasterRecord::Events { page, .. } => format!("events/{page:02}"),
            MasterRecord::Destroyed(cluster) => format!("{DESTROYED}{cluster}"),
        }
    }
}

impl RecordWrite {
    /// Returns the key of the record that the change concerns.
    pub fn key(&self) -> String {
        match self {
            RecordWrite::Put(record) => record.key(),
            RecordWrite::Remove(key) => key.clone(),
        }
    }
}

/// The key of [`MasterRecord::Cluster`].
pub const CLUSTER_KEY: &str = "cluster";
/// The key of [`MasterRecord::View`].
pub const VIEW_KEY: &str = "view";
/// The prefix of the keys of [`MasterRecord::Destroyed`].
pub const DESTROYED: &str = "destroyed/";

/// The key of [`MasterRecord::Former`].
pub const FORMER_KEY: &str = "former";

/// The key of [`MasterRecord::Settled`].
pub const SETTLED_KEY: &str = "settled";

/// Returns the key of [`MasterRecord::Member`].
pub fn member_key(node: MnId) -> String {
    format!("member/{:05}", node.0)
}

/// Returns the key of [`MasterRecord::Lost`].
pub fn lost_key(node: MnId) -> String {
    format!("lost/{:05}", node.0)
}

/// Returns the key of [`MasterRecord::Draining`].
pub fn draining_key(node: MnId) -> String {
    format!("draining/{:05}", node.0)
}

/// Returns the key of [`MasterRecord::Drained`].
pub fn drained_key(node: MnId) -> String {
    format!("drained/{:05}", node.0)
}

/// Returns the key of [`MasterRecord::Session`].
pub fn session_key(client: ClientId) -> String {
    format!("session/{:010}", client.0)
}

/// Returns the key of [`MasterRecord::Repairer`].
pub fn repairer_key(client: ClientId) -> String {
    format!("repairer/{:010}", client.0)
}

/// Returns the key of [`MasterRecord::Orphan`].
pub fn orphan_key(block: BlockId) -> String {
    format!("leftover/{:010}/{:010}/{:02}", block.region, block.frame, block.order)
}
