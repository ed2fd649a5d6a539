//! What happened to a cluster, as the master keeps it for people.
//!
//! *Events* are what the master's log says, with a topic each: they are kept in its store, so that they
//! outlast it, and only the newest ones, so that the store stays small.

use serde::{Deserialize, Serialize};

/// The longest text of an event, in bytes; longer ones are cut off.
pub const MAX_TEXT_BYTES: usize = 500;
/// Events in one answer, at most. Who wants more asks again.
pub const MAX_TOLD: usize = 256;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Info,
    /// Worth a look.
    Warn,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// A master leads from now on.
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
    /// All of them.
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

    /// Its name, in small letters.
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
    /// When, in milliseconds since 1970, by the master's clock.
    pub at_ms: u64,
    /// How much it matters.
    pub level: Level,
    /// What it is about.
    pub topic: Topic,
    /// What happened, and why. At most [`MAX_TEXT_BYTES`].
    pub text: String,
}
