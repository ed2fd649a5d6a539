//! The health of a cluster as one word, with the reasons, and the memory that is left.

// Promise API-29

use fusee_cli::quantity::{ByteSize, count_with_noun};
use serde::Serialize;

use super::report::StatusReport;

/// Memory is short if no region can be added, and less than one in `SHORT` bytes of all blocks is free.
const SHORT: u64 = 10;
/// Memory is full if less than one in `FULL` bytes of all blocks is free.
const FULL: u64 = 32;

/// The health of a cluster: the worst state that applies. The states are in order, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// The master has no cluster.
    NoCluster,
    /// The cluster is being formed, and not all memory nodes have joined.
    Forming,
    /// A member does not answer, or replicas are missing and are not being restored.
    Degraded,
    /// Memory is full, so writes that need memory fail.
    Full,
    /// Missing replicas are being restored, or the view is changing.
    Repairing,
    /// Memory is nearly full.
    Short,
    /// Replicas are being moved from one memory node to another.
    Moving,
    /// The cluster is whole, because no other state applies.
    Whole,
}

impl Health {
    /// Returns the state's name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Health::NoCluster => "no_cluster",
            Health::Forming => "forming",
            Health::Degraded => "degraded",
            Health::Full => "full",
            Health::Repairing => "repairing",
            Health::Short => "short",
            Health::Moving => "moving",
            Health::Whole => "whole",
        }
    }

    pub const ALL: [Health; 8] = [
        Health::NoCluster,
        Health::Forming,
        Health::Degraded,
        Health::Full,
        Health::Repairing,
        Health::Short,
        Health::Moving,
        Health::Whole,
    ];
}

/// The memory of all members that answer, as sums.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClusterMemory {
    /// Bytes that the members lend.
    pub pool_bytes: u64,
    /// Bytes of the pools that regions and the index take.
    pub reserved_bytes: u64,
    /// Bytes of the index and of all blocks that have an owner, together.
    pub used_bytes: u64,
    /// Bytes of blocks that writes can still get. `led_bytes` are the bytes of all blocks.
    pub free_block_bytes: u64,
    pub led_bytes: u64,
    /// Number of regions of replicated values that could be added now. Not more are counted than the master adds in one
    /// change.
    pub more_regions: u64,
    /// The reason for which no region can be added.
    pub no_region: Option<String>,
}

impl ClusterMemory {
    /// Returns whether writes that need a block fail: at most a few small blocks are free.
    pub fn is_full(&self) -> bool {
        self.more_regions == 0 && self.free_block_bytes < self.led_bytes.div_ceil(FULL)
    }

    /// Returns whether little memory is left.
    pub fn is_short(&self) -> bool {
        self.more_regions == 0 && self.free_block_bytes < self.led_bytes.div_ceil(SHORT)
    }
}

/// Returns the health of a cluster, and the reasons for which it is not better.
pub fn of(report: &StatusReport) -> (Health, Vec<String>) {
    if report.cluster.is_none() {
        return (Health::NoCluster, report.problem.iter().cloned().collect());
    }
    if report.view == 0 {
        return (Health::Forming, report.problem.iter().cloned().collect());
    }
    let mut found: Vec<(Health, String)> = Vec::new();
    let silent = report.memory_nodes.iter().filter(|node| report.needs(node) && !node.reachable);
    let silent: Vec<&str> = silent.map(|node| node.node.as_str()).collect();
    if !silent.is_empty() {
        found.push((Health::Degraded, format!("no answer from {}", silent.join(", "))));
    }
    if let Some(problem) = &report.problem {
        found.push((Health::Degraded, problem.clone()));
    }
    let change = report.change.as_ref().map(|change| format!("the view changes: {}", change.stage));
    if report.missing_replicas > 0 && report.problem.is_none() {
        let members = report.memory_nodes.iter().filter(|node| node.in_view).count();
        let missing = format!(
            "{} missing, with {}",
            count_with_noun(report.missing_replicas, "replica"),
            count_with_noun(members as u64, "memory node"),
        );
        let is_restored = change.is_some() || report.rebalancing;
        let health = if is_restored { Health::Repairing } else { Health::Degraded };
        found.push((health, missing));
    }
    found.extend(change.map(|change| (Health::Repairing, change)));
    let memory = &report.memory;
    if memory.is_full() || memory.is_short() {
        let word = if memory.is_full() { "full" } else { "nearly full" };
        let health = if memory.is_full() { Health::Full } else { Health::Short };
        let why = memory.no_region.as_deref().unwrap_or("no region can be added");
        let text = format!(
            "memory is {word}: {} of {} used, blocks of {} of {} free; {why}",
            ByteSize(memory.used_bytes),
            ByteSize(memory.pool_bytes),
            ByteSize(memory.free_block_bytes),
            ByteSize(memory.led_bytes),
        );
        found.push((health, text));
    }
    for node in report.memory_nodes.iter().filter(|node| node.socket_gone == Some(true)) {
        let path = node.shm.as_deref().unwrap_or("its path");
        let text =
            format!("the socket of {} at {path} has gone, and cannot be made again", node.node);
        found.push((Health::Degraded, text));
    }
    if report.rebalancing {
        found.push((Health::Moving, "replicas move between memory nodes".into()));
    }
    found.sort_by_key(|(health, _)| *health);
    let health = found.first().map_or(Health::Whole, |(health, _)| *health);
    (health, found.into_iter().map(|(_, reason)| reason).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_full_where_neither_a_block_nor_a_region_is_left() {
        let memory = |more_regions, free_block_bytes| ClusterMemory {
            more_regions,
            free_block_bytes,
            led_bytes: 100,
            ..ClusterMemory::default()
        };
        for (more, free, is_short, is_full) in [
            (1, 0, false, false),
            (0, 50, false, false),
            (0, 10, false, false),
            (0, 9, true, false),
            (0, 0, true, true),
        ] {
            let memory = memory(more, free);
            assert_eq!((memory.is_short(), memory.is_full()), (is_short, is_full), "{memory:?}");
        }
        assert!(!ClusterMemory::default().is_full(), "nothing is known");
    }
}
