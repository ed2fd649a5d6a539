//! What the master must not forget: the contents of its store.
//!
//! A record replaces the earlier one of the same key, so a store is a map and needs no log.
//! Records are postcard bytes (variable-length integers, stable across versions of this program
//! as long as the format number of the store stays the same).

use fusee_core::verbs::MnId;
use fusee_core::view::{Member, View};
use serde::{Deserialize, Serialize};

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The random number of the cluster, chosen before any memory node was asked for memory.
    Cluster(u64),
    /// The number of the latest attempt to form the cluster.
    Attempt(u64),
    /// The name that the next memory node gets. Names are never given twice.
    NextNode(u16),
    /// A memory node with its name.
    Member(Member),
    /// A name that is not used any more: its memory node left before it was part of a view.
    Forgotten(MnId),
    /// The view in force.
    View(View),
    /// All client ids below may have been handed out.
    ClientIds {
        /// The first one that has not.
        end: u32,
    },
}

impl Record {
    /// The key under which a store keeps it.
    pub fn key(&self) -> String {
        match self {
            Record::Cluster(_) => "cluster".into(),
            Record::Attempt(_) => "attempt".into(),
            Record::NextNode(_) => "next-node".into(),
            Record::Member(Member { node, .. }) | Record::Forgotten(node) => {
                format!("member/{:05}", node.0)
            }
            Record::View(_) => "view".into(),
            Record::ClientIds { .. } => "client-ids".into(),
        }
    }
}
