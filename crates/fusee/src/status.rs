//! `fusee status`: the cluster as the master and the memory nodes see it.
//!
//! Asks them directly, without joining: it works while the cluster is still forming, and when a
//! memory node does not answer.

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
#[command(after_help = "Examples:\n  fusee status\n  fusee status --json | jq .memory_nodes")]
pub struct Args {
    /// Address of the master
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT")]
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
    pool_bytes: u64,
    reserved_bytes: u64,
    primary_blocks: u64,
    primary_blocks_owned: u64,
    attached_clients: u64,
}

/// The cluster.
#[derive(Debug, Serialize)]
struct Report {
    master: String,
    /// Whether clients can join.
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
    memory_nodes: Vec<NodeReport>,
}

/// Prints the status.
pub fn run(args: &Args) -> Result<(), Failure> {
    let text = if args.json { json(&args.master)? } else { table(&args.master)? };
    output::text(&text)
}

fn json(master: &str) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(&ask(master)?);
    let json = json.map_err(|e| Failure::operation(format!("cannot write the status: {e}")))?;
    Ok(json + "\n")
}

/// For people.
pub fn table(master: &str) -> Result<String, Failure> {
    let report = ask(master)?;
    let state = if report.ready {
        format!("ready, view {}", report.view)
    } else {
        let joined = report.memory_nodes.len();
        format!("forming, {joined} of {} memory nodes joined", report.expected_memory_nodes)
    };
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
    for node in &report.memory_nodes {
        let blocks = format!("{}/{}", node.primary_blocks_owned, node.primary_blocks);
        let state = match (&node.problem, node.in_view) {
            (Some(problem), _) => problem,
            (None, true) => "ok",
            (None, false) => "waits, not in the view",
        };
        let _ = writeln!(
            text,
            "{:<6}{:<22}{:<22}{:>10}{:>10}{blocks:>14}{:>9}  {state}",
            node.node,
            node.control,
            node.tcp.as_deref().unwrap_or("-"),
            Bytes(node.pool_bytes).to_string(),
            Bytes(node.reserved_bytes).to_string(),
            node.attached_clients
        );
    }
    for node in &report.memory_nodes {
        if let Some(shm) = &node.shm {
            let _ = writeln!(text, "{:<6}shared memory at {shm}", node.node);
        }
    }
    Ok(text)
}

fn ask(master: &str) -> Result<Report, Failure> {
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
    Ok(report(master, status, usages))
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
        let (usage, problem) = match usage {
            Ok(usage) => (usage, None),
            Err(problem) => (Usage::default(), Some(problem)),
        };
        NodeReport {
            node: member.node.to_string(),
            control: member.control.clone(),
            tcp: place.and_then(|place| place.tcp.clone()),
            shm: place.and_then(|place| place.shm.clone()),
            in_view: member.in_view,
            reachable: problem.is_none(),
            problem,
            pool_bytes: place.map_or(usage.pool_bytes, |place| place.pool_bytes),
            reserved_bytes: usage.reserved_bytes,
            primary_blocks: usage.primary_blocks,
            primary_blocks_owned: usage.primary_blocks_owned,
            attached_clients: usage.attached_clients,
        }
    });
    let count = |of: fn(&View) -> usize| view.map_or(0, of);
    Report {
        master: master.to_string(),
        ready: view.is_some(),
        expected_memory_nodes: status.expected_memory_nodes,
        view: view.map_or(0, |view| view.number),
        index_replicas: status.index_replicas,
        data_replicas: status.data_replicas,
        subtables: count(|view| view.subtables.len()),
        regions: count(|view| view.regions.len()),
        open_sessions: status.open_sessions,
        sessions_opened: status.sessions_opened,
        memory_nodes: nodes.collect(),
    }
}
