//! Events of a cluster, which the master records for operators.
//!
//! An *event* is a line of the master's log with a topic. Events are kept in the master's store, so they survive a
//! restart of the master. Only the newest ones are kept, so the store stays small.

use serde::{Deserialize, Serialize};

/// The longest text of an event, in bytes. Longer texts are cut off.
pub const MAX_TEXT_BYTES: usize = 500;
/// The limit on the number of events in one answer. A reader that wants more events asks again.
pub const MAX_TOLD: usize = 256;

/// The importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Normal operation.
    Info,
    /// An operator should look at this event.
    Warn,
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// A master begins to lead.
    Master,
    /// The cluster is formed or destroyed, or its formation fails.
    Cluster,
    /// A memory node joins, or cannot join.
    Member,
    /// A memory node is lost.
    Loss,
    /// A memory node is drained.
    Drain,
    /// The view changes.
    View,
    /// Replicas are added, or replicas are made equal.
    Repair,
    /// The index grows by a split of a subtable.
    Split,
    /// Regions are added.
    Room,
    /// A session expires, is recovered, or has a request refused.
    Session,
    /// Memory holds other bytes than were written there.
    Damage,
}

impl Topic {
    /// All topics.
    pub const ALL: [Topic; 11] = [
        Topic::Master,
        Topic::Cluster,
        Topic::Member,
        Topic::Loss,
        Topic::Drain,
        Topic::View,
        Topic::Repair,
        Topic::Split,
        Topic::Room,
        Topic::Session,
        Topic::Damage,
    ];

    /// Returns the name of the topic, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Master => "master",
            Topic::Cluster => "cluster",
            Topic::Member => "member",
            Topic::Loss => "loss",
            Topic::Drain => "drain",
            Topic::View => "view",
            Topic::Repair => "repair",
            Topic::Split => "split",
            Topic::Room => "room",
            Topic::Session => "session",
            Topic::Damage => "damage",
        }
    }
}

/// Something that happened to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// The serial number of the event. It counts all events of the master's store, from 1.
    pub serial: u64,
    /// The time of the event in milliseconds since 1970, by the master's clock.
    pub at_ms: u64,
    /// The importance of the event.
    pub level: Level,
    /// The subject of the event.
    pub topic: Topic,
    /// A text that says what happened and why; at most [`MAX_TEXT_BYTES`] long.
    pub text: String,
}
