//! The report of `fusee status`, which is printed as text or JSON.
//!
//! Memory nodes have the names of the view (`mn0`). States and stages are in lower case. Values that only a memory node
//! knows are `None` if that node does not answer.

use std::collections::BTreeMap;

use fusee_cli::flags;
use fusee_cli::master_requests::state_name;
use fusee_cli::recoveries::RecoveryReport;
use fusee_client::{Status, Usage, View};
use fusee_control::master::{MemberState, MemberStatus, Reconfiguration, ScrubStatus};
use fusee_core::data::Region;
use fusee_core::stats::{OpKind, SessionWork};
use fusee_core::view::change::{ChangeStage, ViewChange};
use serde::Serialize;

use super::health::{self, ClusterMemory, Health};
use super::policy::{PolicyReport, TransitionReport};

/// Answers of the memory nodes about their usage, by the node's number.
pub type NodeUsages = BTreeMap<u16, Result<Usage, String>>;

/// The report about a memory node.
#[derive(Debug, Serialize)]
pub struct NodeReport {
    pub node: String,
    pub control: String,
    pub tcp: Option<String>,
    pub shm: Option<String>,
    pub verbs: Option<String>,
    /// Whether the node is a member of the view. This is also true for a lost node that the cluster still needs.
    pub in_view: bool,
    /// State of the node: `in_view`, `joining`, `waiting`, `draining`, `drained` or `lost`.
    pub state: &'static str,
    pub reachable: bool,
    /// The reason for which the node is not reachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub pool_bytes: Option<u64>,
    pub reserved_bytes: Option<u64>,
    pub led_bytes: Option<u64>,
    pub led_bytes_owned: Option<u64>,
    /// Bytes of subtables and of blocks that have an owner, together.
    pub used_bytes: Option<u64>,
    /// Bytes of blocks with their primary on this node that writes can still get.
    pub free_block_bytes: Option<u64>,
    pub attached_clients: Option<u64>,
    /// Number of attached clients, for each fabric.
    pub attached_shm: Option<u64>,
    pub attached_tcp: Option<u64>,
    pub attached_verbs: Option<u64>,
    /// Requests over TCP since the node started. `tcp_bytes` is the sum of the lengths of requests and replies. A
    /// memory node does not see requests over shared memory and verbs.
    pub tcp_requests: Option<u64>,
    pub tcp_bytes: Option<u64>,
    /// Whether the node's socket for shared memory has disappeared and could not be created again.
    pub socket_gone: Option<bool>,
    /// Number of subtable replicas that the view places on the node. `regions` is that of region replicas.
    pub subtables: u64,
    pub regions: u64,
}

/// Pairs without redundancy that were lost with one memory node.
#[derive(Debug, Serialize)]
pub struct LostPairs {
    pub node: String,
    /// Number of lost regions with pairs without redundancy.
    pub regions: u64,
    /// Capacity of the lost regions, in bytes.
    pub bytes: u64,
}

/// The memory of all regions that have one redundancy.
#[derive(Debug, Serialize)]
pub struct SchemeReport {
    pub redundancy: String,
    pub regions: u64,
    /// Bytes on all memory nodes together.
    pub bytes: u64,
}

/// Totals of the operations of one kind.
#[derive(Debug, Serialize)]
pub struct OperationKindReport {
    pub kind: &'static str,
    pub operations: u64,
    pub phases: u64,
}

/// Totals of all sessions' operations, as far as sessions have reported them.
#[derive(Debug, Serialize)]
pub struct WorkReport {
    pub kinds: Vec<OperationKindReport>,
    pub verbs: u64,
    pub bytes: u64,
    /// Number of rounds in which a write lost to another.
    pub conflicts: u64,
    pub cache_accesses: u64,
    pub hints: u64,
    pub wrong_hints: u64,
}

impl From<SessionWork> for WorkReport {
    fn from(work: SessionWork) -> WorkReport {
        let kind = |kind: OpKind| OperationKindReport {
            kind: kind.name(),
            operations: work.operations[kind as usize],
            phases: work.phases[kind as usize],
        };
        WorkReport {
            kinds: OpKind::ALL.map(kind).into(),
            verbs: work.verbs,
            bytes: work.bytes,
            conflicts: work.lost_rounds,
            cache_accesses: work.cache_accesses,
            hints: work.hints,
            wrong_hints: work.wrong_hints,
        }
    }
}

/// The change of the view that is under way.
#[derive(Debug, Serialize)]
pub struct ChangeReport {
    /// Stage of the change: `frozen`, `transforming` or `switched`.
    pub stage: &'static str,
    /// Number of index subtables that the change affects.
    pub subtables: usize,
    /// Number of affected subtables whose primary was lost.
    pub without_primary: usize,
    /// Number of regions that the change affects.
    pub regions: usize,
    /// Number of replicas that the change adds.
    pub joining: usize,
}

/// A change of the view, which is finished or under way.
#[derive(Debug, Serialize)]
pub struct ReconfigurationReport {
    /// Names of the memory nodes that were lost.
    pub lost: Vec<String>,
    pub subtables: u64,
    /// Number of replicas that the change added.
    pub joined: u64,
    /// Number of replicas that moved from one memory node to another.
    pub moved: u64,
    /// Number of regions that the change added.
    pub new_regions: u64,
    pub frozen_ms: u64,
    pub transforming_ms: u64,
    pub switched_ms: u64,
    /// Time from the loss of a node until no replica was missing, in milliseconds; `None` if replicas are still
    /// missing.
    pub whole_after_ms: Option<u64>,
    pub under_way: bool,
}

/// The report about the cluster.
#[derive(Debug, Serialize)]
pub struct StatusReport {
    /// Address of the master that leads.
    pub master: String,
    /// Id of the cluster; `None` until a cluster is formed.
    pub cluster: Option<String>,
    /// Whether clients can join: the cluster is formed, and all its memory nodes answer.
    pub ready: bool,
    /// `whole`, or the worst state that applies.
    pub health: Health,
    /// Reasons why the cluster is not whole, the worst first.
    pub reasons: Vec<String>,
    pub memory: ClusterMemory,
    pub expected_memory_nodes: u32,
    /// Number of the view; 0 while the cluster is being formed.
    pub view: u64,
    pub epoch: u64,
    pub lease_ms: u64,
    pub view_age_ms: u64,
    /// The change that is under way; `None` if the view is stable.
    pub change: Option<ChangeReport>,
    pub index_replicas: u8,
    pub data_replicas: u8,
    /// Number of replicas that subtables should have. `wanted_data_replicas` is that of regions.
    pub wanted_index_replicas: u8,
    pub wanted_data_replicas: u8,
    pub missing_replicas: u64,
    /// Whether replicas are to be moved, to even out the nodes' shares or off a node that is being drained.
    pub rebalancing: bool,
    pub subtables: usize,
    pub regions: usize,
    /// Number of regions that are erasure-coded or EC-oriented.
    pub coded_regions: usize,
    /// Number of regions that contain copies of EC-oriented pairs.
    pub copy_regions: usize,
    /// Number of regions of pairs without redundancy that are not lost.
    pub single_regions: usize,
    /// The memory of regions, by redundancy.
    pub schemes: Vec<SchemeReport>,
    pub lost_without_redundancy: Vec<LostPairs>,
    pub open_sessions: u64,
    pub expired_sessions: u64,
    pub sessions_opened: u64,
    /// Number of recoveries of sessions since this master started.
    pub recoveries: u64,
    /// Number of damaged replicas of objects that were found since this master started. `repaired_replicas` counts
    /// those that were repaired.
    pub damaged_replicas: u64,
    pub repaired_replicas: u64,
    /// The policy for the redundancy of values.
    pub redundancy: PolicyReport,
    /// Transitions that sessions have made according to the policy.
    pub transitions: TransitionReport,
    pub work: WorkReport,
    /// Results of the scrubber.
    pub scrub: ScrubReport,
    pub last_recoveries: Vec<RecoveryReport>,
    pub reconfigurations: u64,
    pub last_reconfigurations: Vec<ReconfigurationReport>,
    /// The problem because of which the cluster cannot be formed or is not whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub memory_nodes: Vec<NodeReport>,
}

/// Results of the scrubber, which also reads memory that no client reads.
#[derive(Clone, Debug, Serialize)]
pub struct ScrubReport {
    /// Number of complete passes of the scrubber over all memory.
    pub passes: u64,
    pub bytes: u64,
    /// Number of subtables whose replicas differed and were made equal.
    pub settled_subtables: u64,
    /// Number of regions whose free bitmaps contradicted the index and were replaced by new ones.
    pub renewed_regions: u64,
    /// Number of pairs of which the last pass found no undamaged replica.
    pub lost_pairs: u64,
}

impl From<ScrubStatus> for ScrubReport {
    fn from(scrub: ScrubStatus) -> ScrubReport {
        let ScrubStatus { passes, bytes, settled_subtables, renewed_regions, lost_pairs } = scrub;
        ScrubReport { passes, bytes, settled_subtables, renewed_regions, lost_pairs }
    }
}

fn cluster_memory(status: &Status, nodes: &[NodeReport]) -> ClusterMemory {
    let sum = |of: fn(&NodeReport) -> Option<u64>| {
        nodes.iter().filter(|node| node.in_view && node.reachable).filter_map(of).sum()
    };
    ClusterMemory {
        pool_bytes: sum(|node| node.pool_bytes),
        reserved_bytes: sum(|node| node.reserved_bytes),
        used_bytes: sum(|node| node.used_bytes),
        free_block_bytes: sum(|node| node.free_block_bytes),
        led_bytes: sum(|node| node.led_bytes),
        more_regions: status.more_regions,
        no_region: status.no_region.as_deref().map(flags::with_flag_names),
    }
}

impl StatusReport {
    /// Creates the report from the answers of the leading master and of the memory nodes.
    pub fn new(master: &str, status: Status, mut usages: NodeUsages) -> StatusReport {
        let view = status.view.as_ref();
        let nodes = status.members.iter().map(|member| {
            let usage = usages.remove(&member.node.0).unwrap_or(Err("not asked".into()));
            node(member, view, usage)
        });
        let nodes: Vec<NodeReport> = nodes.collect();
        let count = |of: fn(&View) -> usize| view.map_or(0, of);
        let change = view.and_then(|view| view.change.as_ref());
        let changes = status.last_reconfigurations.len();
        let under_way = |n: usize| change.is_some() && n + 1 == changes;
        let reconfigurations = status.last_reconfigurations.iter().enumerate();
        let mut report = StatusReport {
            master: master.to_string(),
            cluster: status.cluster.map(|cluster| cluster.to_string()),
            ready: view.is_some() && nodes.iter().all(|node| node.reachable || !node.in_view),
            health: Health::Whole,
            reasons: Vec::new(),
            memory: cluster_memory(&status, &nodes),
            expected_memory_nodes: status.expected_memory_nodes,
            view: view.map_or(0, |view| view.number),
            epoch: status.epoch,
            lease_ms: status.lease_ms,
            view_age_ms: status.view_age_ms,
            change: change.map(change_report),
            index_replicas: status.index_replicas,
            data_replicas: status.data_replicas,
            wanted_index_replicas: status.wanted_index_replicas,
            wanted_data_replicas: status.wanted_data_replicas,
            missing_replicas: status.missing_replicas,
            rebalancing: status.rebalancing,
            subtables: count(|view| view.subtables.len()),
            regions: count(|view| present_regions(view).count()),
            coded_regions: count(|view| {
                present_regions(view).filter(|region| region.columns().is_some()).count()
            }),
            copy_regions: count(|view| {
                present_regions(view).filter(|region| region.copies_on().is_some()).count()
            }),
            single_regions: count(|view| {
                present_regions(view).filter(|region| region.has_single_pairs()).count()
            }),
            schemes: view.map_or_else(Vec::new, schemes),
            lost_without_redundancy: view.map_or_else(Vec::new, lost_pairs),
            open_sessions: status.open_sessions,
            expired_sessions: status.expired_sessions,
            sessions_opened: status.sessions_opened,
            recoveries: status.recoveries,
            damaged_replicas: status.damage.found,
            repaired_replicas: status.damage.repaired,
            redundancy: PolicyReport::from(&status.policy),
            transitions: TransitionReport::from(status.transitions),
            work: WorkReport::from(status.work),
            scrub: ScrubReport::from(status.scrub),
            last_recoveries: status.last_recoveries.iter().map(RecoveryReport::from).collect(),
            reconfigurations: status.reconfigurations,
            last_reconfigurations: reconfigurations
                .map(|(n, past)| reconfiguration(past, under_way(n)))
                .collect(),
            problem: status.problem.as_deref().map(flags::with_flag_names),
            memory_nodes: nodes,
        };
        (report.health, report.reasons) = health::of(&report);
        report
    }
}

impl StatusReport {
    /// Returns whether the cluster is worse off if this node does not answer.
    pub fn needs(&self, node: &NodeReport) -> bool {
        match node.state {
            "drained" => false,
            // A lost node has no effect after the other nodes hold all that it held.
            "lost" => node.in_view || self.missing_replicas > 0,
            _ => true,
        }
    }
}

fn node(member: &MemberStatus, view: Option<&View>, usage: Result<Usage, String>) -> NodeReport {
    let place = view.and_then(|view| view.members.iter().find(|m| m.node == member.node));
    // A process that answers at a lost node's address is not that node, even if it is a memory node, because it started
    // later.
    let usage = match member.state {
        MemberState::Lost => {
            usage.and(Err("another process answers there, or it was cut off".into()))
        }
        _ => usage,
    };
    let known = |of: fn(&Usage) -> u64| usage.as_ref().ok().map(of);
    NodeReport {
        node: member.node.to_string(),
        control: member.control.clone(),
        tcp: place.and_then(|place| place.tcp.clone()),
        shm: place.and_then(|place| place.shm.clone()),
        verbs: place.and_then(|place| place.verbs.clone()),
        in_view: place.is_some(),
        state: state_name(member.state),
        reachable: usage.is_ok(),
        problem: usage.as_ref().err().cloned(),
        pool_bytes: place.map(|p| p.pool_bytes).or(known(|usage| usage.pool_bytes)),
        reserved_bytes: known(|usage| usage.reserved_bytes),
        led_bytes: known(|usage| usage.led_bytes),
        led_bytes_owned: known(|usage| usage.led_bytes_owned),
        used_bytes: known(|usage| usage.used_bytes),
        free_block_bytes: known(|usage| usage.free_block_bytes),
        attached_clients: known(|usage| usage.attached.total()),
        attached_shm: known(|usage| usage.attached.shm),
        attached_tcp: known(|usage| usage.attached.tcp),
        attached_verbs: known(|usage| usage.attached.verbs),
        tcp_requests: known(|usage| usage.tcp_requests),
        tcp_bytes: known(|usage| usage.tcp_bytes),
        socket_gone: usage.as_ref().ok().map(|usage| usage.socket_gone),
        subtables: view.map_or(0, |view| view.subtables_on(member.node)),
        regions: view.map_or(0, |view| view.regions_on(member.node)),
    }
}

/// Returns the regions that were not lost with their memory nodes.
fn present_regions(view: &View) -> impl Iterator<Item = &Region> {
    view.regions.iter().filter(|region| region.is_there())
}

fn schemes(view: &View) -> Vec<SchemeReport> {
    let mut schemes = BTreeMap::<String, (u64, u64)>::new();
    for region in present_regions(view) {
        let places = region.places().len() as u64;
        let (regions, bytes) = schemes.entry(region.redundancy().to_string()).or_default();
        *regions += 1;
        *bytes += places * view.geometry.region_bytes;
    }
    let report = |(redundancy, (regions, bytes))| SchemeReport { redundancy, regions, bytes };
    schemes.into_iter().map(report).collect()
}

fn lost_pairs(view: &View) -> Vec<LostPairs> {
    let bytes = view.geometry.region_bytes;
    let lost = view.lost_pairs().into_iter();
    let lost = lost.map(|(node, regions)| (node.to_string(), regions, regions * bytes));
    lost.map(|(node, regions, bytes)| LostPairs { node, regions, bytes }).collect()
}

fn change_report(change: &ViewChange) -> ChangeReport {
    let subtables = change.subtables.iter().filter(|s| s.joining.is_some()).count();
    let regions = change.regions.iter().filter(|r| r.joining.is_some()).count();
    ChangeReport {
        stage: match change.stage {
            ChangeStage::Frozen => "frozen",
            ChangeStage::Transforming => "transforming",
            ChangeStage::Switched => "switched",
        },
        subtables: change.subtables.len(),
        without_primary: change.subtables.iter().filter(|s| s.without_primary).count(),
        regions: change.regions.len(),
        joining: subtables + regions,
    }
}

fn reconfiguration(past: &Reconfiguration, under_way: bool) -> ReconfigurationReport {
    ReconfigurationReport {
        lost: past.lost.iter().map(ToString::to_string).collect(),
        subtables: past.subtables,
        joined: past.joined,
        moved: past.moved,
        new_regions: past.new_regions,
        frozen_ms: past.frozen_ms,
        transforming_ms: past.transforming_ms,
        switched_ms: past.switched_ms,
        whole_after_ms: past.whole_after_ms,
        under_way,
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::verbs::MnId;

    use super::*;

    #[test]
    fn who_answers_in_place_of_a_lost_node_is_not_that_node() {
        for (state, reachable) in [(MemberState::InView, true), (MemberState::Lost, false)] {
            let member = MemberStatus { node: MnId(1), control: "a:1".into(), state };
            let usage = Usage { pool_bytes: 1, ..Usage::default() };
            assert_eq!(node(&member, None, Ok(usage)).reachable, reachable);
        }
    }
}
