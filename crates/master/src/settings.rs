//! The settings of a cluster, which an operator chooses once.
//!
//! The settings take effect when the cluster is formed; after that, the view holds their values. All errors in them are
//! found before the first memory node joins, and every error names its remedy. The limits here keep the first view,
//! which every session gets, within one control message.
//!
//! The index is sized for a number of keys at a planned load of 70 %: an INSERT fails if both buckets of its key are
//! full, and the fuller the index, the likelier that is.

use fusee_core::data::{Policy, PolicyError};
use fusee_core::view::{Geometry, MAX_REPLICAS, ViewError};

/// The limit on subtables of the first view: with more, that view would not fit into one control message.
pub const MAX_SUBTABLES: u64 = 1 << 17;
/// The limit on the number of regions: as with [`MAX_SUBTABLES`], a view with more would not fit into one control
/// message. Memory for which there would be more regions is left unused.
pub const MAX_REGIONS: u64 = 1 << 16;
/// The limit on the number of memory nodes that join. More nodes are probably a mistake.
pub const MAX_MEMORY_NODES: u32 = 1024;
/// The longest time for which an answer is held back, in milliseconds, whatever the lease: deadlines of calls have to
/// exceed it, and clients wait for half a second.
pub const MAX_HOLD_MS: u64 = 250;
/// The upper bound of [`LeaseSettings::epoch_ms`], which applies to long leases.
const MAX_EPOCH_MS: u64 = 10;
/// The planned load of a subtable, in percent.
const PLANNED_LOAD_PERCENT: u64 = 70;
/// The shortest lease, in milliseconds: answers are held back for a quarter of the lease, at least 1 ms.
const MIN_LEASE_MS: u64 = 4;

/// The settings of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// The number of memory nodes that must have joined before the cluster is formed.
    pub memory_nodes: u32,
    /// The number of replicas of every index subtable, with the primary: 1..=5.
    pub index_replicas: u8,
    /// The number of replicas of every replicated region, with the primary: 1..=5.
    pub data_replicas: u8,
    /// The number of keys that the index is sized for.
    pub index_keys: u64,
    /// The sizes of regions, blocks and subtables.
    pub geometry: Geometry,
    /// The times after which silent sessions and memory nodes count as dead.
    pub lease: LeaseSettings,
    /// The limit on bytes per second that move between members to even out their shares, or off a drained member.
    /// Missing replicas are added as fast as possible.
    pub move_bytes_per_s: u64,
    /// The limit on bytes per second that the scrubber reads; 0 turns it off.
    pub scrub_bytes_per_s: u64,
    /// The redundancy of written values, and the rules for its changes. Not stored: the leading master's setting is in
    /// force, and sessions learn it when they open.
    pub redundancy: Policy,
}

/// The default of [`ClusterSettings::move_bytes_per_s`]: a region of 256 MiB takes about half a second.
pub const DEFAULT_MOVE_BYTES_PER_S: u64 = 512 << 20;

/// The default of [`ClusterSettings::scrub_bytes_per_s`]: 100 GiB of pools take seven hours.
pub const DEFAULT_SCRUB_BYTES_PER_S: u64 = 4 << 20;

/// The lease of [`LeaseSettings::default`], in milliseconds.
pub const DEFAULT_LEASE_MS: u64 = 1_000;
/// The grace of [`LeaseSettings::default`], in milliseconds.
pub const DEFAULT_GRACE_MS: u64 = 10;

/// The times after which a silent process counts as dead. Only failure detection depends on them: a living process that
/// counts as dead by mistake loses its session, or its place in the cluster, but does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Milliseconds of silence after which a process counts as dead.
    pub lease_ms: u64,
    /// Milliseconds after the end of its connection until a process counts as dead, unless it uses another connection.
    pub grace_ms: u64,
}

impl Default for LeaseSettings {
    fn default() -> LeaseSettings {
        LeaseSettings { lease_ms: DEFAULT_LEASE_MS, grace_ms: DEFAULT_GRACE_MS }
    }
}

impl LeaseSettings {
    /// Returns the longest time in milliseconds for which a heartbeat's answer is held back, so that the next heartbeat
    /// comes in time.
    pub fn hold_ms(&self) -> u64 {
        (self.lease_ms / 4).clamp(1, MAX_HOLD_MS)
    }

    /// Returns the shortest length of an epoch in milliseconds, which limits the number of messages about epochs.
    pub fn epoch_ms(&self) -> u64 {
        (self.lease_ms / 100).min(MAX_EPOCH_MS)
    }
}

/// Errors in settings, with their remedies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The number of memory nodes is out of bounds.
    #[error("memory_nodes is {memory_nodes}; it must be 1..={MAX_MEMORY_NODES}")]
    MemoryNodes {
        /// The number of memory nodes that the settings demand.
        memory_nodes: u32,
    },
    /// A replication factor is out of bounds.
    #[error("{setting} is {replicas}; it must be 1..={MAX_REPLICAS}")]
    Replicas {
        /// The name of the setting.
        setting: &'static str,
        /// The number of replicas that the setting demands.
        replicas: u8,
    },
    /// The settings demand more replicas than memory nodes. That is impossible, because no two replicas of one subtable
    /// or region lie on one node.
    #[error(
        "{setting} is {replicas}, but memory_nodes is {memory_nodes}, and every replica needs a memory \
         node of its own; raise memory_nodes, or lower {setting}"
    )]
    TooFewMemoryNodes {
        /// The name of the setting.
        setting: &'static str,
        /// The number of replicas that the setting demands.
        replicas: u8,
        /// The number of memory nodes that the settings demand.
        memory_nodes: u32,
    },
    /// The sizes of the geometry contradict each other.
    #[error("geometry: {0}")]
    Geometry(#[from] ViewError),
    /// The lease is too short for any session.
    #[error("lease_ms is {lease_ms}; it must be at least {MIN_LEASE_MS}")]
    Lease {
        /// The length of the lease, in milliseconds.
        lease_ms: u64,
    },
    /// The rate of moves is 0, so that no replica would ever move.
    #[error("move_bytes_per_s is 0; it must be at least 1")]
    Pace,
    /// The rules for redundancy are invalid.
    #[error(transparent)]
    Redundancy(#[from] PolicyError),
    /// For this number of keys, the index would need too many subtables.
    #[error(
        "an index for {index_keys} keys needs {subtables} subtables, and {MAX_SUBTABLES} are \
         possible; raise geometry.groups_per_subtable, or lower index_keys"
    )]
    IndexTooLarge {
        /// The number of keys that the settings demand.
        index_keys: u64,
        /// The number of subtables that the index would need.
        subtables: u64,
    },
}

impl ClusterSettings {
    /// Checks everything in the settings that can be checked before a memory node has joined.
    pub fn check(&self) -> Result<(), SettingsError> {
        let memory_nodes = self.memory_nodes;
        if !(1..=MAX_MEMORY_NODES).contains(&memory_nodes) {
            return Err(SettingsError::MemoryNodes { memory_nodes });
        }
        let factors =
            [("index_replicas", self.index_replicas), ("data_replicas", self.data_replicas)];
        for (setting, replicas) in factors {
            if !(1..=MAX_REPLICAS).contains(&usize::from(replicas)) {
                return Err(SettingsError::Replicas { setting, replicas });
            }
            if u32::from(replicas) > memory_nodes {
                return Err(SettingsError::TooFewMemoryNodes { setting, replicas, memory_nodes });
            }
        }
        if self.lease.lease_ms < MIN_LEASE_MS {
            return Err(SettingsError::Lease { lease_ms: self.lease.lease_ms });
        }
        if self.move_bytes_per_s == 0 {
            return Err(SettingsError::Pace);
        }
        self.geometry.check()?;
        self.redundancy.check()?;
        let subtables = self.subtables();
        if subtables > MAX_SUBTABLES {
            return Err(SettingsError::IndexTooLarge { index_keys: self.index_keys, subtables });
        }
        Ok(())
    }

    /// Adopts those of the new settings that a running master is allowed to change: rates, from the next move or job
    /// on, and redundancy, for sessions that open from now on. The other settings belong to the cluster, or sessions
    /// depend on them.
    pub fn adjust(&mut self, new: &ClusterSettings) {
        self.move_bytes_per_s = new.move_bytes_per_s;
        self.scrub_bytes_per_s = new.scrub_bytes_per_s;
        self.redundancy = new.redundancy;
    }

    /// Returns the number of subtables: the smallest power of two that holds the keys at the planned load.
    pub fn subtables(&self) -> u64 {
        let keys_per_subtable = self.geometry.subtable_slots() * PLANNED_LOAD_PERCENT / 100;
        let subtables = self.index_keys.div_ceil(keys_per_subtable.max(1)).max(1);
        subtables.checked_next_power_of_two().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::data::Demotion;

    use super::*;

    fn settings() -> ClusterSettings {
        ClusterSettings {
            memory_nodes: 3,
            index_replicas: 2,
            data_replicas: 2,
            index_keys: 1_000_000,
            geometry: Geometry::default(),
            lease: LeaseSettings::default(),
            move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
            scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
            redundancy: Policy::default(),
        }
    }

    #[test]
    fn paces_and_redundancy_change_while_a_master_runs() {
        let mut now = settings();
        let demotion = Some(Demotion { above_percent: 50, bytes_per_s: 1 });
        let redundancy = Policy { demotion, ..Policy::default() };
        let live =
            ClusterSettings { move_bytes_per_s: 1, scrub_bytes_per_s: 2, redundancy, ..settings() };
        now.adjust(&ClusterSettings { memory_nodes: 7, index_keys: 1, ..live.clone() });
        assert_eq!(now, live);
    }

    #[test]
    fn the_index_has_room_for_its_keys() {
        let settings = settings();
        settings.check().unwrap();
        // A subtable has 24,576 slots. At a load of 70 %, 17,203 of them have keys.
        assert_eq!(settings.subtables(), 64);
        assert_eq!(ClusterSettings { index_keys: 0, ..settings.clone() }.subtables(), 1);
        assert_eq!(ClusterSettings { index_keys: 17_204, ..settings }.subtables(), 2);
    }

    #[test]
    fn bad_settings_say_what_to_do() {
        let says = |settings: ClusterSettings, text: &str| {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        says(ClusterSettings { memory_nodes: 0, ..settings() }, "must be 1..=1024");
        says(ClusterSettings { index_replicas: 0, ..settings() }, "index_replicas is 0");
        says(ClusterSettings { data_replicas: 6, ..settings() }, "must be 1..=5");
        says(ClusterSettings { data_replicas: 4, ..settings() }, "raise memory_nodes, or lower");
        says(ClusterSettings { index_keys: u64::MAX, ..settings() }, "raise geometry.groups");
        let geometry = Geometry { block_bytes: 5, ..Geometry::default() };
        says(ClusterSettings { geometry, ..settings() }, "geometry: ");
        let lease = LeaseSettings { lease_ms: 3, ..LeaseSettings::default() };
        says(ClusterSettings { lease, ..settings() }, "at least 4");
        says(ClusterSettings { move_bytes_per_s: 0, ..settings() }, "move_bytes_per_s is 0");
        let demotion = Some(Demotion { above_percent: 0, bytes_per_s: 1 });
        let redundancy = Policy { demotion, ..Policy::default() };
        says(
            ClusterSettings { redundancy, ..settings() },
            "redundancy.demote-above, in percent, is 0",
        );
    }

    #[test]
    fn answers_come_within_a_lease_and_within_the_patience_of_clients() {
        for (lease_ms, hold_ms) in [(4, 1), (100, 25), (1_000, 250), (60_000, 250)] {
            assert_eq!(LeaseSettings { lease_ms, ..LeaseSettings::default() }.hold_ms(), hold_ms);
        }
    }
}
