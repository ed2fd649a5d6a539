//! `fusee status`: the cluster as the master and the memory nodes see it.
//!
//! Asks them directly, without joining: it works while the cluster is still forming, and when a
//! memory node does not answer. What only that node knows is then unknown, and the exit code is 1.
//! So it is for a memory node that is lost, until another takes its address: somebody should look.

pub mod report;
mod table;

use std::time::Duration;

use fusee_client::Status;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{MasterClient, NodeClient, Runtime};

use crate::connect::{self, DEFAULT_MASTER};
use crate::failure::Failure;
use crate::output;
use crate::recoveries;
use report::{Report, Usages};

/// How long to wait for each answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What to show.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  fusee status\n  fusee status --json | jq .memory_nodes\n  \
    fusee status --recoveries\n  \
    fusee status --master a:7400,b:7400,c:7400\n\n\
    Exit code 1 if a memory node does not answer.")]
pub struct Args {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,

    /// List the recent recoveries of crashed clients instead: the parts of each, in milliseconds
    #[arg(long, conflicts_with = "json")]
    recoveries: bool,
}

/// Prints the status.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = ask(&args.master)?;
    output::text(&match (args.json, args.recoveries) {
        (true, _) => json(&report)?,
        (false, true) => recoveries::table(&report.last_recoveries),
        (false, false) => table::show(&report),
    })?;
    // One that is drained has nothing to say any more.
    let expected = report.memory_nodes.iter().filter(|node| node.state != "drained");
    let silent = expected.filter(|node| !node.reachable);
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
    Ok(table::show(&ask(master)?))
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
    Ok(Report::new(&client.answered_by(), status, usages))
}

async fn usages(runtime: &Runtime, status: &Status) -> Usages {
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
