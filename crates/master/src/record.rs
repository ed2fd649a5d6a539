//! What the master must not forget: the contents of its store.
//!
//! A record replaces the earlier one of the same key, so a store is a map and needs no log.
//! What is over is removed: a store grows with what there is, not with what has been.
//! Records are postcard bytes (variable-length integers, stable across versions of this program
//! as long as the format number of the store stays the same).

use std::collections::BTreeSet;

use fusee_control::events::ClusterEvent;
use fusee_control::master::Orphan;
use fusee_control::node::BlockId;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::{Member, View};
use serde::{Deserialize, Serialize};

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The cluster, since somebody has asked for it to be formed. A store without it has none.
    Cluster(ClusterId),
    /// The number of the latest attempt to form the cluster.
    Attempt(u64),
    /// The first name that no memory node has ever had.
    NextNode(u16),
    /// A memory node with its name.
    Member(Member),
    /// A memory node that the cluster goes on without. It must not come back with what it holds.
    Lost(Member),
    /// The view in force.
    View(View),
    /// All client ids below may have been handed out.
    ClientIds {
        /// The first one that has not.
        end: u32,
    },
    /// A session that has been opened, and neither closed nor recovered.
    Session {
        /// The session.
        client: ClientId,
        /// It is fenced, for good; what it left is still to be put right.
        expired: bool,
        /// The serial of what it handed on last (`HandOn`).
        handed_on: u64,
    },
    /// A session under which a master has repaired things. Only the youngest may go on.
    Repairer(ClientId),
    /// A block without an owner that uses it, for the next session that needs one.
    Orphan(Orphan),
    /// All epochs before this one may have been told.
    Epochs {
        /// The first one that has not.
        end: u64,
    },
    /// This member is being drained.
    Draining(MnId),
    /// A memory node that has been drained.
    Drained(Member),
    /// The members of earlier views by which somebody may still read
    /// ([`standing`](crate::logic)).
    Former(Vec<Vec<MnId>>),
    /// What members bar of these by earlier views than this one is settled when the change under way is through
    /// ([`barred`](crate::logic)).
    Settled {
        /// The number of the view.
        before: u64,
        /// Who was barred.
        barred: BTreeSet<MnId>,
    },
    /// A cluster that was given up. Its memory nodes are told, whenever they come.
    Destroyed(ClusterId),
    /// Names below the first one never given that belong to nobody, and never belonged to a member; the one that
    /// has been free for longest first.
    FreeNames(Vec<u16>),
    /// A page of the events, of which the newest are kept (`journal.rs`).
    Events {
        /// Its number.
        page: u64,
        /// The oldest first.
        events: Vec<ClusterEvent>,
    },
}

/// A change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all writes put a record")]
pub enum Write {
    /// The record, in place of the one of its key.
    Put(Record),
    /// No record of this key any more.
    Remove(String),
}

impl Record {
    /// The key under which a store keeps it.
    pub fn key(&self) -> String {
        match self {
            Record::Cluster(_) => CLUSTER_KEY.into(),
            Record::Attempt(_) => "attempt".into(),
            Record::NextNode(_) => "next-node".into(),
            Record::Member(Member { node, .. }) => member_key(*node),
            Record::Lost(Member { node, .. }) => lost_key(*node),
            Record::View(_) => VIEW_KEY.into(),
            Record::ClientIds { .. } => "client-ids".into(),
            Record::Session { client, .. } => session_key(*client),
            Record::Repairer(client) => repairer_key(*client),
            Record::Orphan(Orphan { block, .. }) => orphan_key(*block),
            Record::Epochs { .. } => "epochs".into(),
            Record::Draining(node) => draining_key(*node),
            Record::Drained(Member { node, .. }) => drained_key(*node),
            Record::Former(_) => FORMER_KEY.into(),
            Record::Settled { .. } => SETTLED_KEY.into(),
            Record::FreeNames(_) => "free-names".into(),
            Record::Events { page, .. } => format!("events/{page:02}"),
            Record::Destroyed(cluster) => format!("{DESTROYED}{cluster}"),
        }
    }
}

impl Write {
    /// The key whose record it changes.
    pub fn key(&self) -> String {
        match self {
            Write::Put(record) => record.key(),
            Write::Remove(key) => key.clone(),
        }
    }
}

/// The key of [`Record::Cluster`].
pub const CLUSTER_KEY: &str = "cluster";
/// The key of [`Record::View`].
pub const VIEW_KEY: &str = "view";
/// What the keys of [`Record::Destroyed`] begin with.
pub const DESTROYED: &str = "destroyed/";

/// The key of [`Record::Former`].
pub const FORMER_KEY: &str = "former";

/// The key of [`Record::Settled`].
pub const SETTLED_KEY: &str = "settled";

/// The key of [`Record::Member`].
pub fn member_key(node: MnId) -> String {
    format!("member/{:05}", node.0)
}

/// The key of [`Record::Lost`].
pub fn lost_key(node: MnId) -> String {
    format!("lost/{:05}", node.0)
}

/// The key of [`Record::Draining`].
pub fn draining_key(node: MnId) -> String {
    format!("draining/{:05}", node.0)
}

/// The key of [`Record::Drained`].
pub fn drained_key(node: MnId) -> String {
    format!("drained/{:05}", node.0)
}

/// The key of [`Record::Session`].
pub fn session_key(client: ClientId) -> String {
    format!("session/{:010}", client.0)
}

/// The key of [`Record::Repairer`].
pub fn repairer_key(client: ClientId) -> String {
    format!("repairer/{:010}", client.0)
}

/// The key of [`Record::Orphan`].
pub fn orphan_key(block: BlockId) -> String {
    format!("leftover/{:010}/{:010}", block.region, block.block)
}
