//! Events of a cluster, which the master keeps for people.
//!
//! *Events* are lines of the master's log, each with a topic. They are kept in the master's store, so they
//! outlast the master; only the newest ones are kept, so the store stays small.

use serde::{Deserialize, Serialize};

/// The longest text of an event, in bytes; longer ones are cut off.
pub const MAX_TEXT_BYTES: usize = 500;
/// The most events in one answer. A reader that wants more asks again.
pub const MAX_TOLD: usize = 256;

/// The importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Normal operation.
    Info,
    /// Worth a look.
    Warn,
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// A master begins to lead.
    Master,
    /// The cluster is formed or destroyed, or cannot be.
    Cluster,
    /// A memory node joins, or does not.
    Member,
    /// A memory node is lost.
    Loss,
    /// A memory node is drained.
    Drain,
    /// The view changes.
    View,
    /// Replicas are added, or made equal.
    Repair,
    /// The index grows.
    Split,
    /// Regions are added.
    Room,
    /// A session expires, is recovered, or is refused something.
    Session,
    /// Memory is not as it was written.
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

    /// Returns the name, in small letters.
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
    /// Counts the events of the master's store, from 1.
    pub serial: u64,
    /// The time in milliseconds since 1970, by the master's clock.
    pub at_ms: u64,
    /// The importance.
    pub level: Level,
    /// The subject.
    pub topic: Topic,
    /// The text: the event and its reason. At most [`MAX_TEXT_BYTES`].
    pub text: String,
}
