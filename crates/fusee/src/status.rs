//! `fusee status`: the cluster as the master and the memory nodes see it.
//!
//! Asks them directly, without joining: it works while the cluster is still forming, and when a
//! memory node does not answer. What only that node knows is then unknown, and the exit code is 1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use fusee_client::{Status, Usage, View};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{MasterClient, NodeClient, Runtime};
use serde::Serialize;

use crate::connect::{self, DEFAULT_MASTER};
use crate::failure::Failure;
use crate::output;
use crate::quantity::Bytes;

/// How long to wait for each answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What to show.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  fusee status\n  fusee status --json | jq .memory_nodes\n  \
    fusee status --master a:7400,b:7400,c:7400\n\n\
    Exit code 1 if a memory node does not answer.")]
pub struct Args {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// A memory node.
#[derive(Debug, Serialize)]
struct NodeReport {
    node: String,
    control: String,
    tcp: Option<String>,
    shm: Option<String>,
    in_view: bool,
    reachable: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    // What is not known is `None`.
    pool_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    primary_blocks: Option<u64>,
    primary_blocks_owned: Option<u64>,
    attached_clients: Option<u64>,
}

/// The cluster.
#[derive(Debug, Serialize)]
struct Report {
    /// The one that leads.
    master: String,
    /// Whether clients can join: the cluster is formed, and all its memory nodes answer.
    ready: bool,
    expected_memory_nodes: u32,
    /// 0 while the cluster forms.
    view: u64,
    index_replicas: u8,
    data_replicas: u8,
    subtables: usize,
    regions: usize,
    open_sessions: u64,
    sessions_opened: u64,
    /// What keeps the cluster from forming.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    memory_nodes: Vec<NodeReport>,
}

/// Prints the status.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = ask(&args.master)?;
    output::text(&if args.json { json(&report)? } else { show(&report) })?;
    let silent = report.memory_nodes.iter().filter(|node| !node.reachable);
    let silent: Vec<&str> = silent.map(|node| node.node.as_str()).collect();
    if silent.is_empty() {
        return Ok(());
    }
    Err(Failure::operation(format!("no answer from {}", silent.join(", "))))
}

fn json(report: &Report) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(report);
    let json = json.map_err(|e| Failure::operation(format!("cannot write the status: {e}")))?;
    Ok(json + "\n")
}

/// For people.
pub fn table(master: &str) -> Result<String, Failure> {
    Ok(show(&ask(master)?))
}

/// In one word and the numbers that it needs.
fn state(report: &Report) -> String {
    if report.view == 0 {
        let joined = report.memory_nodes.len();
        let expected = report.expected_memory_nodes;
        let problem = report.problem.as_ref().map(|p| format!(": {p}")).unwrap_or_default();
        return format!("forming, {joined} of {expected} memory nodes joined{problem}");
    }
    let members = report.memory_nodes.iter().filter(|node| node.in_view);
    let silent = members.clone().filter(|node| !node.reachable).count();
    match silent {
        0 => format!("ready, view {}", report.view),
        _ => format!(
            "view {}, {silent} of {} memory nodes do not answer",
            report.view,
            members.count()
        ),
    }
}

fn show(report: &Report) -> String {
    let state = state(report);
    let mut text = format!(
        "master {}: {state}\n{} index replicas of {} subtables, {} data replicas of {} regions\n\
         {} sessions open, {} ever\n\n",
        report.master,
        report.index_replicas,
        report.subtables,
        report.data_replicas,
        report.regions,
        report.open_sessions,
        report.sessions_opened
    );
    let _ = writeln!(
        text,
        "{:<6}{:<22}{:<22}{:>10}{:>10}{:>14}{:>9}  state",
        "node", "control", "tcp", "pool", "reserved", "blocks used", "clients"
    );
    let bytes = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| Bytes(bytes).to_string());
    let number = |number: Option<u64>| number.map_or("-".into(), |number| number.to_string());
    for node in &report.memory_nodes {
        let blocks = match (node.primary_blocks_owned, node.primary_blocks) {
            (Some(owned), Some(blocks)) => format!("{owned}/{blocks}"),
            _ => "-".into(),
        };
        let state = match (&node.problem, node.in_view) {
            (Some(problem), _) => format!("no answer: {problem}"),
            (None, true) => "ok".into(),
            (None, false) => "waits, not in the view".into(),
        };
        let _ = writeln!(
            text,
            "{:<6}{:<22}{:<22}{:>10}{:>10}{blocks:>14}{:>9}  {state}",
            node.node,
            node.control,
            node.tcp.as_deref().unwrap_or("-"),
            bytes(node.pool_bytes),
            bytes(node.reserved_bytes),
            number(node.attached_clients)
        );
    }
    for node in &report.memory_nodes {
        if let Some(shm) = &node.shm {
            let _ = writeln!(text, "{:<6}shared memory at {shm}", node.node);
        }
    }
    text
}

fn ask(master: &str) -> Result<Report, Failure> {
    connect::check_address(master)?;
    let runtime = Runtime::start("fusee-status")
        .map_err(|error| Failure::operation(format!("cannot start a thread: {error}")))?;
    let client = MasterClient::new(&runtime, master).with_deadline(TIMEOUT);
    let status = match client.call_blocking(MasterRequest::Status) {
        Ok(MasterReply::Status(status)) => status,
        Ok(other) => {
            let what = format!("the master answered with something else: {other:?}");
            return Err(Failure::unreachable(what));
        }
        Err(error) => return Err(connect::explain(master, &error.to_string())),
    };
    let usages = runtime.block_on(usages(&runtime, &status));
    Ok(report(&client.answered_by(), status, usages))
}

async fn usages(runtime: &Runtime, status: &Status) -> BTreeMap<u16, Result<Usage, String>> {
    let asked = status.members.iter().map(async |member| {
        let node = NodeClient::new(runtime, member.control.clone()).with_deadline(TIMEOUT);
        let usage = match node.call(NodeRequest::Usage).await {
            Ok(NodeReply::Usage(usage)) => Ok(usage),
            Ok(other) => Err(format!("answered with something else: {other:?}")),
            Err(error) => Err(error.to_string()),
        };
        (member.node.0, usage)
    });
    futures_util::future::join_all(asked).await.into_iter().collect()
}

fn report(
    master: &str,
    status: Status,
    mut usages: BTreeMap<u16, Result<Usage, String>>,
) -> Report {
    let view = status.view.as_ref();
    let nodes = status.members.iter().map(|member| {
        let place = view.and_then(|view| view.members.iter().find(|m| m.node == member.node));
        let usage = usages.remove(&member.node.0).unwrap_or(Err("not asked".into()));
        let known = |of: fn(&Usage) -> u64| usage.as_ref().ok().map(of);
        NodeReport {
            node: member.node.to_string(),
            control: member.control.clone(),
            tcp: place.and_then(|place| place.tcp.clone()),
            shm: place.and_then(|place| place.shm.clone()),
            in_view: member.in_view,
            reachable: usage.is_ok(),
            problem: usage.as_ref().err().cloned(),
            pool_bytes: place.map(|p| p.pool_bytes).or(known(|usage| usage.pool_bytes)),
            reserved_bytes: known(|usage| usage.reserved_bytes),
            primary_blocks: known(|usage| usage.primary_blocks),
            primary_blocks_owned: known(|usage| usage.primary_blocks_owned),
            attached_clients: known(|usage| usage.attached_clients),
        }
    });
    let nodes: Vec<NodeReport> = nodes.collect();
    let count = |of: fn(&View) -> usize| view.map_or(0, of);
    Report {
        master: master.to_string(),
        ready: view.is_some() && nodes.iter().all(|node| node.reachable || !node.in_view),
        expected_memory_nodes: status.expected_memory_nodes,
        view: view.map_or(0, |view| view.number),
        index_replicas: status.index_replicas,
        data_replicas: status.data_replicas,
        subtables: count(|view| view.subtables.len()),
        regions: count(|view| view.regions.len()),
        open_sessions: status.open_sessions,
        sessions_opened: status.sessions_opened,
        problem: status.problem.clone(),
        memory_nodes: nodes,
    }
}
