//! `fusee status`: shows the cluster as the master and the memory nodes report it.
//!
//! The command asks these servers directly, without joining the cluster. So it works while the cluster is still being
//! formed, and when a memory node does not answer. Then the values that only this node knows are missing, and the exit
//! code is 1. The exit code is also 1 while there is no cluster.
//!
//! A lost memory node counts as one that does not answer until the other nodes hold all that it held. After that it has
//! no effect on the exit code, like a drained node, and it is listed until another node takes its address.
//!
//! With `--memory` the command joins the cluster, to read how the memory is used.

mod health;
mod memory;
mod policy;
pub mod report;
mod table;

use std::time::Duration;

use fusee_cli::connect::{self, ConnectArgs};
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::recoveries;
use fusee_cli::secret;
use fusee_client::Status;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{MasterClient, NodeClient, RpcError, Runtime};

pub use health::Health;
use report::NodeUsages;
pub use report::{NodeReport, StatusReport};
use serde::Serialize;

/// Deadline of each answer of a server.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Arguments of `fusee status`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  fusee status\n  fusee status --json | jq .memory_nodes\n  \
    fusee status --recoveries\n  \
    fusee status --memory             how the memory is used, and what waits to be used again\n  \
    fusee status --memory --json | jq .size_classes\n  \
    fusee status --master a:7400,b:7400,c:7400\n\n\
    Only --memory makes use of --fabric.\n\n\
    Exit codes: 0 the cluster serves, and all of it; 1 there is none, it is forming, or a memory node does not\n\
    answer, but not for one that is drained, or lost and replaced; 2 wrong usage; 3 the master cannot be reached.")]
pub struct StatusArgs {
    #[command(flatten)]
    connect: ConnectArgs,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,

    /// Instead, list the recent recoveries of crashed clients, with the parts of each in milliseconds
    #[arg(long, conflicts_with = "json")]
    recoveries: bool,

    /// Instead, show how the memory is used: by node, by size of objects, by owner, and what waits for reuse.
    /// Joins the cluster and reads 1/512 of the used memory
    #[arg(long, conflicts_with = "recoveries")]
    memory: bool,
}

/// Prints the status.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    if args.memory {
        return memory::run(&args.connect, args.json);
    }
    let report = ask(&args.connect.master)?;
    output::text(&match (args.json, args.recoveries) {
        (true, _) => json(&report)?,
        (false, true) => recoveries::table(&report.last_recoveries),
        (false, false) => table::show(&report),
    })?;
    let expected = report.memory_nodes.iter().filter(|node| report.needs(node));
    let silent = expected.filter(|node| !node.reachable);
    let silent: Vec<&str> = silent.map(|node| node.node.as_str()).collect();
    if report.cluster.is_none() {
        return Err(Failure::operation("the master has no cluster; to form one, run `fusee form`"));
    }
    if report.view == 0 {
        return Err(Failure::operation("the cluster is forming"));
    }
    if silent.is_empty() {
        return Ok(());
    }
    Err(Failure::operation(format!("no answer from {}", silent.join(", "))))
}

fn json(report: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(report);
    let json = json.map_err(|e| Failure::operation(format!("cannot write the status: {e}")))?;
    Ok(json + "\n")
}

/// Returns the status as text.
pub fn table(master: &str) -> Result<String, Failure> {
    Ok(table::show(&ask(master)?))
}

fn ask(master: &str) -> Result<StatusReport, Failure> {
    connect::check_address(master)?;
    let runtime = secret::runtime("fusee-status")?;
    let client = MasterClient::new(&runtime, master).with_deadline(TIMEOUT);
    let status = match client.call_blocking(MasterRequest::Status) {
        Ok(MasterReply::Status(status)) => *status,
        Ok(other) => {
            let what = format!("the master answered with something else: {other:?}");
            return Err(Failure::unreachable(what));
        }
        Err(error) => return Err(connect::explain(master, &error)),
    };
    let usages = runtime.block_on(usages(&runtime, &status, TIMEOUT));
    Ok(StatusReport::new(&client.answered_by(), status, usages))
}

/// Asks the master, and then each memory node with the deadline `node_deadline`.
pub async fn gather(
    runtime: &Runtime,
    master: &MasterClient,
    node_deadline: Duration,
) -> Result<StatusReport, RpcError> {
    let status = match master.call(MasterRequest::Status).await? {
        MasterReply::Status(status) => *status,
        other => {
            let addr = master.answered_by();
            let what = format!("it answered with {other:?}");
            return Err(RpcError::Protocol { addr, what });
        }
    };
    let usages = usages(runtime, &status, node_deadline).await;
    Ok(StatusReport::new(&master.answered_by(), status, usages))
}

async fn usages(runtime: &Runtime, status: &Status, deadline: Duration) -> NodeUsages {
    let asked = status.members.iter().map(async |member| {
        let node = NodeClient::new(runtime, member.control.clone()).with_deadline(deadline);
        let usage = match node.call(NodeRequest::Usage).await {
            Ok(NodeReply::Usage(usage)) => Ok(usage),
            Ok(other) => Err(format!("answered with something else: {other:?}")),
            Err(error) => Err(error.to_string()),
        };
        (member.node.0, usage)
    });
    futures_util::future::join_all(asked).await.into_iter().collect()
}
