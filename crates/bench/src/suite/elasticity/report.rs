//! The report of `fusee-bench elasticity`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::master_requests::state_name;
use fusee_cli::quantity::ByteSize;
use fusee_client::{BlockingClient, View};
use serde::Serialize;

use super::ElasticityArgs;
use super::load::ElasticityLoad;
use crate::report::{BenchFindings, BenchReport};
use crate::series::{IntervalSample, LatencyByOperation, LatencySummary, operations, thinned};
use fusee_report::plot::{Chart, ChartLine, ChartMark, HorizontalAxis, Panel};

/// Maximum number of rows of the time series in the table for people.
const ROWS: usize = 40;
/// The kinds of operations in the load.
const KINDS: [&str; 2] = ["search", "update"];

/// A row of the time series.
#[derive(Debug, Serialize)]
pub struct ElasticityInterval {
    pub from_s: f64,
    pub to_s: f64,
    /// Number of sessions that worked at the end of the interval.
    pub sessions: u16,
    /// Number of memory nodes in the view at the end of the interval.
    pub members: usize,
    pub ops_per_s: f64,
    pub operations: LatencyByOperation,
}

impl ElasticityInterval {
    /// Builds the row of an interval that ends now.
    pub fn new(
        load: &ElasticityLoad<'_>,
        from: Duration,
        to: Duration,
        sample: &IntervalSample,
    ) -> ElasticityInterval {
        let all = sample.all();
        let seconds = (to - from).as_secs_f64();
        ElasticityInterval {
            from_s: from.as_secs_f64(),
            to_s: to.as_secs_f64(),
            sessions: load.working.load(Ordering::Relaxed),
            members: load.client.view().members.len(),
            ops_per_s: all.operations() as f64 / seconds.max(1e-9),
            operations: operations(&all, seconds),
        }
    }
}

/// The phase from one step to the next.
#[derive(Debug, Serialize)]
pub struct PhaseRow {
    /// The step at the beginning of the phase.
    pub step: String,
    pub from_s: f64,
    pub to_s: f64,
    pub ops_per_s: f64,
    pub operations: LatencyByOperation,
    /// Operations during which the view was changing.
    pub changing: LatencyByOperation,
    /// The replicas on each memory node at the end of the phase.
    pub nodes: BTreeMap<String, NodeReplicaCounts>,
}

/// Numbers of replicas on a memory node.
#[derive(Debug, Default, Serialize)]
pub struct NodeReplicaCounts {
    pub subtables: u64,
    pub regions: u64,
}

impl PhaseRow {
    /// Builds the row of a phase that has ended, with this view.
    pub fn new(
        step: String,
        view: &View,
        from: Duration,
        to: Duration,
        sample: &IntervalSample,
    ) -> Self {
        let all = sample.all();
        let seconds = (to - from).as_secs_f64();
        PhaseRow {
            step,
            from_s: from.as_secs_f64(),
            to_s: to.as_secs_f64(),
            ops_per_s: all.operations() as f64 / seconds.max(1e-9),
            operations: operations(&all, seconds),
            changing: operations(&sample.changing, seconds),
            nodes: count_replicas(view),
        }
    }
}

/// An event of the run.
#[derive(Clone, Debug, Serialize)]
pub struct ElasticityEvent {
    pub at_s: f64,
    pub what: String,
}

/// A memory node that became a member.
#[derive(Clone, Debug, Serialize)]
pub struct JoinedNode {
    pub node: String,
    /// The time at which the node's process was started, in seconds.
    pub from_s: f64,
    /// The time from the start of the node's process until the sessions had a view with the node, in seconds.
    pub took_s: f64,
}

/// A memory node that was drained.
#[derive(Clone, Debug, Serialize)]
pub struct DrainedNode {
    pub node: String,
    /// The time at which the master got the order to drain the node, in seconds.
    pub from_s: f64,
    /// The time from the order until the sessions had a view without the node, in seconds.
    pub took_s: f64,
    /// Replicas on the node when the drain began. All of them had to move.
    pub subtables: u64,
    pub regions: u64,
    /// The bytes of these replicas in the pools. Replicas move as a whole, so this much was copied.
    pub moved_bytes: u64,
}

/// Returns the master's state of every memory node, by the node's name, as `fusee status` shows it.
pub fn members(client: &BlockingClient) -> Result<BTreeMap<String, &'static str>, Failure> {
    let status = client.admin().status()?;
    let states = status.members.iter().map(|m| (m.node.to_string(), state_name(m.state)));
    Ok(states.collect())
}

/// Returns the replicas of every member.
fn count_replicas(view: &View) -> BTreeMap<String, NodeReplicaCounts> {
    let mut nodes: BTreeMap<String, NodeReplicaCounts> = view
        .members
        .iter()
        .map(|member| (member.node.to_string(), NodeReplicaCounts::default()))
        .collect();
    for place in view.subtables.iter().flat_map(|subtable| subtable.replicas()) {
        nodes.entry(place.node.to_string()).or_default().subtables += 1;
    }
    for place in view.regions.iter().flat_map(|region| region.places()) {
        nodes.entry(place.node.to_string()).or_default().regions += 1;
    }
    nodes
}

/// The results.
#[derive(Debug, Serialize)]
pub struct ElasticityReport {
    pub joined: Option<JoinedNode>,
    pub drained: Option<DrainedNode>,
    /// The states of all memory nodes at the end of the run.
    pub members: BTreeMap<String, &'static str>,
    /// The steps, and the times when their goals were reached.
    pub events: Vec<ElasticityEvent>,
    pub phases: Vec<PhaseRow>,
    pub intervals: Vec<ElasticityInterval>,
}

impl BenchFindings for ElasticityReport {
    type Settings = ElasticityArgs;

    fn title(report: &BenchReport<'_, ElasticityReport>) -> String {
        let ElasticityArgs { workload, keys, rate, cluster, .. } = report.settings;
        let pace = match rate {
            0 => "as fast as they can".into(),
            rate => format!("{rate} operations a second each"),
        };
        format!(
            "elasticity under YCSB {workload}: {keys} keys, pairs of {} bytes, sessions work {pace}",
            cluster.pair_bytes,
        )
    }

    fn rows(report: &BenchReport<'_, ElasticityReport>) -> String {
        let found = &report.findings;
        let mut text = found.moves();
        found.phases(&mut text, report.interrupted);
        let _ = writeln!(text, "\n{:>10} {:>9} {:>8} {:>11}", "s", "sessions", "members", "ops/s");
        for row in thinned(&found.intervals, ROWS) {
            let _ = writeln!(
                text,
                "{:>10.2} {:>9} {:>8} {:>11.0}",
                row.to_s, row.sessions, row.members, row.ops_per_s
            );
        }
        text
    }

    fn chart(report: &BenchReport<'_, ElasticityReport>) -> Option<Chart> {
        let workload = report.settings.workload;
        let fabric = report.fabric();
        Some(report.findings.chart(format!("Elasticity: YCSB {workload}, {fabric}")))
    }
}

impl ElasticityReport {
    fn phases(&self, text: &mut String, interrupted: bool) {
        let ended = if interrupted { "  INTERRUPTED" } else { "" };
        let _ = writeln!(
            text,
            "\n{:<26} {:>9} {:>9} {:>11} {:>12} {:>12}  nodes: subtables + regions{ended}",
            "", "from s", "to s", "ops/s", "get p99 us", "upd p99 us"
        );
        for phase in &self.phases {
            let p99 = |kind| match phase.operations.get(kind) {
                Some(LatencySummary { p99_us, .. }) => format!("{p99_us:.1}"),
                None => "-".into(),
            };
            let nodes: Vec<String> = phase
                .nodes
                .iter()
                .map(|(node, held)| format!("{node}: {} + {}", held.subtables, held.regions))
                .collect();
            let _ = writeln!(
                text,
                "{:<26} {:>9.2} {:>9.2} {:>11.0} {:>12} {:>12}  {}",
                phase.step,
                phase.from_s,
                phase.to_s,
                phase.ops_per_s,
                p99("search"),
                p99("update"),
                nodes.join(", ")
            );
        }
    }

    /// Returns the members that came and went, for people.
    fn moves(&self) -> String {
        let mut text = String::new();
        if let Some(JoinedNode { node, took_s, .. }) = &self.joined {
            let _ = writeln!(text, "joined      {node}, a member after {took_s:.2} s");
        }
        if let Some(drained) = &self.drained {
            let DrainedNode { node, took_s, subtables, regions, moved_bytes, .. } = drained;
            let _ = writeln!(
                text,
                "drained     {node}, gone after {took_s:.2} s; {subtables} subtables and {regions} \
                 regions moved, {}",
                ByteSize(*moved_bytes)
            );
        }
        text
    }

    /// Draws the time series.
    fn chart(&self, title: String) -> Chart {
        let line = |name: &str, value: &dyn Fn(&ElasticityInterval) -> Option<f64>| {
            let points = self.intervals.iter().filter_map(|i| Some((i.to_s, value(i)?)));
            ChartLine::new(name, points.collect())
        };
        let throughput = line("all operations", &|i| Some(i.ops_per_s));
        let of = |kind: &'static str| {
            line(&format!("{kind} p99"), &|i| i.operations.get(kind).map(|latency| latency.p99_us))
        };
        let latencies = KINDS.into_iter().map(of).filter(|line| !line.points.is_empty()).collect();
        let sessions = line("sessions", &|i| Some(f64::from(i.sessions)));
        let members = line("memory nodes", &|i| Some(i.members as f64));
        let panel =
            |label: &str, logarithmic, lines| Panel { label: label.into(), logarithmic, lines };
        Chart {
            title,
            x: HorizontalAxis::Seconds,
            panels: vec![
                panel("operations/s", false, vec![throughput]),
                panel("microseconds", true, latencies),
                panel("how many", false, vec![sessions, members]),
            ],
            mark_name: "changes of the view, steps",
            marks: self
                .events
                .iter()
                .map(|event| ChartMark { at_s: event.at_s, text: event.what.clone() })
                .collect(),
        }
    }
}
