//! The metrics of a master. If the master leads, they include those of the cluster.

use std::collections::BTreeMap;

use super::{process, requests};
use crate::status::{Health, StatusReport};
use fusee_client::prometheus::{MetricKind, Metrics};
use fusee_control::rpc::Times;

/// All states of a memory node. Each is shown, even if no node has it.
const STATES: [&str; 6] = ["in_view", "joining", "waiting", "draining", "drained", "lost"];

/// Returns the page of metrics. `report` is `None` if this master does not lead.
pub fn of(report: Option<&StatusReport>, times: &BTreeMap<&'static str, Times>) -> String {
    let mut metrics = Metrics::default();
    let leads = u8::from(report.is_some());
    let help =
        "Whether this master leads; of several masters the others show nothing of the cluster.";
    metrics.one(MetricKind::Gauge, "fusee_master_leads", help, leads);
    if let Some(report) = report {
        cluster(&mut metrics, report);
        nodes(&mut metrics, report);
        memory(&mut metrics, report);
        sessions(&mut metrics, report);
        repairs(&mut metrics, report);
    }
    requests::add(&mut metrics, "fusee_master_request_seconds", times);
    process::add(&mut metrics);
    metrics.into_text()
}

fn cluster(metrics: &mut Metrics, report: &StatusReport) {
    let changing = report.change.as_ref().map(|change| change.stage);
    for (name, help, value) in [
        ("fusee_cluster_formed", "Whether there is a cluster.", u64::from(report.view > 0)),
        (
            "fusee_cluster_ready",
            "Whether clients can join: formed, and all members answer.",
            u64::from(report.ready),
        ),
        (
            "fusee_cluster_problem",
            "Whether something keeps the cluster from being whole; the status says what.",
            u64::from(report.problem.is_some()),
        ),
        ("fusee_view_number", "Number of the view.", report.view),
        ("fusee_epoch", "The newest epoch.", report.epoch),
        ("fusee_subtables", "Index subtables.", report.subtables as u64),
        (
            "fusee_rebalancing",
            "Whether replicas move between memory nodes.",
            u64::from(report.rebalancing),
        ),
    ] {
        metrics.one(MetricKind::Gauge, name, help, value);
    }
    let age = report.view_age_ms as f64 / 1e3;
    let lease = report.lease_ms as f64 / 1e3;
    let help = "For how long the view has been in force, in seconds.";
    metrics.one(MetricKind::Gauge, "fusee_view_age_seconds", help, age);
    let help = "After so many seconds of silence a session or a memory node is given up.";
    metrics.one(MetricKind::Gauge, "fusee_lease_seconds", help, lease);
    let help = "The stage of the change of the view that is under way.";
    let mut stages = metrics.family(MetricKind::Gauge, "fusee_view_changing", help);
    for stage in ["frozen", "transforming", "switched"] {
        stages.sample(&[("stage", stage)], u8::from(changing == Some(stage)));
    }
}

/// Returns a number of a memory node; `None` if the node has not reported it.
type NodeMetric = fn(&crate::status::NodeReport) -> Option<u64>;

const NODE_TRAFFIC: [(&str, &str, NodeMetric); 2] = [
    ("fusee_memory_node_tcp_requests_total", "Requests over TCP.", |node| node.tcp_requests),
    ("fusee_memory_node_tcp_bytes_total", "Bytes of them and of replies.", |node| node.tcp_bytes),
];

const NODE_STATE: [(&str, &str, NodeMetric); 10] = [
    ("fusee_memory_node_pool_bytes", "Memory that it lends.", |node| node.pool_bytes),
    ("fusee_memory_node_reserved_bytes", "Of that, taken by regions and the index.", |node| {
        node.reserved_bytes
    }),
    ("fusee_memory_node_used_bytes", "Of that, subtables and owned blocks.", |node| {
        node.used_bytes
    }),
    ("fusee_memory_node_free_block_bytes", "Bytes of blocks that a write may still get.", |node| {
        node.free_block_bytes
    }),
    (
        "fusee_memory_node_socket_gone",
        "Whether its socket has gone, and could not be made again.",
        |node| node.socket_gone.map(u64::from),
    ),
    ("fusee_memory_node_led_bytes", "Bytes of the blocks in the regions that it leads.", |node| {
        node.led_bytes
    }),
    ("fusee_memory_node_led_bytes_owned", "Of these, with an owner.", |node| node.led_bytes_owned),
    ("fusee_memory_node_attached_clients", "Sessions that reach it.", |node| node.attached_clients),
    ("fusee_memory_node_subtables", "Replicas of subtables there.", |node| Some(node.subtables)),
    ("fusee_memory_node_regions", "Replicas or chunks of regions there.", |node| {
        Some(node.regions)
    }),
];

fn nodes(metrics: &mut Metrics, report: &StatusReport) {
    let nodes = &report.memory_nodes;
    let mut states =
        metrics.family(MetricKind::Gauge, "fusee_memory_nodes", "Memory nodes by state.");
    for state in STATES {
        let count = nodes.iter().filter(|node| node.state == state).count();
        states.sample(&[("state", state)], count);
    }
    // A node that has left for good is not expected to answer, so it is not shown.
    let expected = || nodes.iter().filter(|node| report.needs(node));
    let help = "Whether a memory node answers.";
    let mut up = metrics.family(MetricKind::Gauge, "fusee_memory_node_up", help);
    for node in expected() {
        up.sample(&[("node", &node.node)], u8::from(node.reachable));
    }
    let help = "Sessions that reach it, by their fabric.";
    let mut sessions = metrics.family(MetricKind::Gauge, "fusee_memory_node_sessions", help);
    for node in expected() {
        let by_fabric = [
            ("shm", node.attached_shm),
            ("tcp", node.attached_tcp),
            ("verbs", node.attached_verbs),
        ];
        for (fabric, value) in by_fabric {
            if let Some(value) = value {
                sessions.sample(&[("node", &node.node), ("fabric", fabric)], value);
            }
        }
    }
    let kinds = NODE_STATE.map(|of| (MetricKind::Gauge, of)).into_iter();
    for (kind, (name, help, of)) in kinds.chain(NODE_TRAFFIC.map(|of| (MetricKind::Counter, of))) {
        let mut family = metrics.family(kind, name, help);
        for node in expected() {
            if let Some(value) = of(node) {
                family.sample(&[("node", &node.node)], value);
            }
        }
    }
}

fn memory(metrics: &mut Metrics, report: &StatusReport) {
    let help = "How the cluster is: the worst of what is wrong.";
    let mut health = metrics.family(MetricKind::Gauge, "fusee_cluster_health", help);
    for state in Health::ALL {
        health.sample(&[("state", state.name())], u8::from(state == report.health));
    }
    let memory = &report.memory;
    for (name, help, value) in [
        ("fusee_memory_pool_bytes", "Memory that members lend.", memory.pool_bytes),
        ("fusee_memory_used_bytes", "Of it, subtables and owned blocks.", memory.used_bytes),
        (
            "fusee_memory_free_block_bytes",
            "Bytes of blocks that a write may still get.",
            memory.free_block_bytes,
        ),
        ("fusee_memory_more_regions", "Regions that could be added now.", memory.more_regions),
        (
            "fusee_memory_short",
            "Whether no region can be added, and less than a tenth of the blocks is free.",
            u64::from(memory.is_short()),
        ),
        (
            "fusee_memory_full",
            "Whether no region can be added, and no block is free: writes fail.",
            u64::from(memory.is_full()),
        ),
    ] {
        metrics.one(MetricKind::Gauge, name, help, value);
    }
    let help = "Regions by the redundancy of what they hold.";
    let mut regions = metrics.family(MetricKind::Gauge, "fusee_regions", help);
    for scheme in &report.schemes {
        regions.sample(&[("redundancy", &scheme.redundancy)], scheme.regions);
    }
    let help = "Memory that regions take on all nodes together, by redundancy.";
    let mut bytes = metrics.family(MetricKind::Gauge, "fusee_region_bytes", help);
    for scheme in &report.schemes {
        bytes.sample(&[("redundancy", &scheme.redundancy)], scheme.bytes);
    }
    let lost: u64 = report.lost_without_redundancy.iter().map(|lost| lost.regions).sum();
    let help = "Regions of pairs without redundancy that went with their memory node.";
    metrics.one(MetricKind::Gauge, "fusee_lost_regions", help, lost);
}

fn sessions(metrics: &mut Metrics, report: &StatusReport) {
    let open = report.open_sessions;
    let expired = report.expired_sessions;
    metrics.one(MetricKind::Gauge, "fusee_sessions_open", "Sessions.", open);
    let help = "Sessions that expired and are not recovered yet.";
    metrics.one(MetricKind::Gauge, "fusee_sessions_expired", help, expired);
    let work = &report.work;
    let help = "Operations, as far as sessions have told.";
    let mut operations = metrics.family(MetricKind::Counter, "fusee_operations_total", help);
    for kind in &work.kinds {
        operations.sample(&[("kind", kind.kind)], kind.operations);
    }
    let help = "Phases of these operations: round trips.";
    let mut phases = metrics.family(MetricKind::Counter, "fusee_phases_total", help);
    for kind in &work.kinds {
        phases.sample(&[("kind", kind.kind)], kind.phases);
    }
    let TransitionCounts { demoted, promoted, fallbacks } = transitions(report);
    for (name, help, value) in [
        ("fusee_sessions_opened_total", "Ids of sessions ever used.", report.sessions_opened),
        ("fusee_verbs_total", "Verbs of sessions.", work.verbs),
        ("fusee_verb_bytes_total", "Bytes that verbs moved.", work.bytes),
        ("fusee_conflicts_total", "Rounds that writes lost to others.", work.conflicts),
        ("fusee_cache_accesses_total", "Accesses that asked the index cache.", work.cache_accesses),
        ("fusee_cache_hints_total", "Those of them that used a hint.", work.hints),
        ("fusee_cache_wrong_hints_total", "Hints that were wrong.", work.wrong_hints),
        ("fusee_demoted_pairs_total", "Pairs that were demoted.", demoted),
        ("fusee_promoted_pairs_total", "Pairs that were promoted.", promoted),
        ("fusee_fallbacks_total", "Writes that were replicated instead of coded.", fallbacks),
    ] {
        metrics.one(MetricKind::Counter, name, help, value);
    }
}

struct TransitionCounts {
    demoted: u64,
    promoted: u64,
    fallbacks: u64,
}

fn transitions(report: &StatusReport) -> TransitionCounts {
    let of = &report.transitions;
    TransitionCounts {
        demoted: of.demoted_pairs,
        promoted: of.promoted_pairs,
        fallbacks: of.fallbacks,
    }
}

fn repairs(metrics: &mut Metrics, report: &StatusReport) {
    let help = "Replicas of subtables and regions that lack.";
    metrics.one(MetricKind::Gauge, "fusee_missing_replicas", help, report.missing_replicas);
    let help = "Pairs of which no replica was whole when the scrubber looked last.";
    metrics.one(MetricKind::Gauge, "fusee_scrub_lost_pairs", help, report.scrub.lost_pairs);
    for (name, help, value) in [
        ("fusee_recoveries_total", "Sessions that were recovered.", report.recoveries),
        ("fusee_reconfigurations_total", "Changes of the view.", report.reconfigurations),
        ("fusee_damaged_replicas_total", "Replicas found damaged.", report.damaged_replicas),
        ("fusee_repaired_replicas_total", "Of these, written anew.", report.repaired_replicas),
        ("fusee_scrub_passes_total", "How often all was looked at.", report.scrub.passes),
        ("fusee_scrub_bytes_total", "Bytes that the scrubber read.", report.scrub.bytes),
    ] {
        metrics.one(MetricKind::Counter, name, help, value);
    }
}
