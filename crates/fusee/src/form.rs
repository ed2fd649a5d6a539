//! `fusee form`: forms a new cluster, once.
//!
//! A master with an empty store waits for this command. The start of a server never forms a cluster, because a master
//! that was started with the wrong store must not take the memory nodes of a living cluster.

use std::io::IsTerminal;
use std::time::Duration;

use fusee_cli::connect::{self, DEFAULT_MASTER};
use fusee_cli::failure::Failure;
use fusee_cli::master_requests::ask_status;
use fusee_cli::quantity::count_with_noun;
use fusee_cli::{flags, interrupt, output, secret, stderr};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, RpcError};
use fusee_core::verbs::ClusterId;
use fusee_master::random_cluster;
use serde::Serialize;

use crate::drain::show;

/// Deadline of each answer of the master.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two requests to the master.
const PERIOD: Duration = Duration::from_millis(50);

/// Arguments of `fusee form`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  fusee form\n  fusee form --master 10.0.0.1:7400 --json\n  \
    fusee form --no-wait              the memory nodes are started later\n  \
    fusee form --id 5f0c3a9e27d1b864  may be repeated: it is the same cluster\n  \
    fusee form --if-unformed          may be repeated, whichever cluster it is\n\n\
    The master's settings say of how many memory nodes, and with how many replicas. A master that has\n\
    a cluster forms no other.\n\n\
    Exit codes: 0 formed, or as it should be already; 1 refused; 2 wrong usage; 3 the master cannot be reached.")]
pub struct FormArgs {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,

    /// Id of the cluster: 16 hexadecimal digits, not all 0 [default: random]
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    id: Option<ClusterId>,

    /// If the master has a cluster already, wait for that one
    #[arg(long, conflicts_with = "id")]
    if_unformed: bool,

    /// Return once the master has recorded the request, before memory nodes have joined
    #[arg(long)]
    no_wait: bool,

    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,
}

/// The result of the command.
#[derive(Debug, Serialize)]
struct FormReport {
    cluster: String,
    /// Whether all memory nodes have joined.
    formed: bool,
    memory_nodes: u32,
}

/// Forms a cluster.
pub fn run(args: &FormArgs) -> Result<(), Failure> {
    connect::check_address(&args.master)?;
    let runtime = secret::runtime("fusee-form")?;
    let master = MasterClient::new(&runtime, &args.master[..]).with_deadline(TIMEOUT);
    let cluster = if args.if_unformed {
        form_if_unformed(&master, &args.master)?
    } else {
        let cluster = args.id.unwrap_or_else(random_cluster);
        ask(&master, &args.master, cluster)?;
        cluster
    };
    let memory_nodes = ask_status(&master, &args.master)?.expected_memory_nodes;
    if !args.no_wait {
        wait(&args.master, args.json, &master, cluster)?;
    }
    let report = FormReport { cluster: cluster.to_string(), formed: !args.no_wait, memory_nodes };
    let nodes = count_with_noun(memory_nodes, "memory node");
    output::text(&match (args.json, args.no_wait) {
        (true, _) => serde_json::to_string(&report).expect("numbers and names") + "\n",
        (false, false) => format!("cluster {cluster} is formed of {nodes}\n"),
        (false, true) => format!("cluster {cluster} will be formed as soon as it has {nodes}\n"),
    })
}

/// Parses the id of a cluster in the form in which commands show it.
fn cluster_id(text: &str) -> Result<ClusterId, String> {
    let is_whole = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let word = u64::from_str_radix(text, 16).ok().filter(|_| is_whole);
    let cluster = word.and_then(ClusterId::from_word);
    cluster.ok_or_else(|| "write 16 hexadecimal digits, not all 0, like 5f0c3a9e27d1b864".into())
}

/// Forms a cluster, unless the master has one. Returns the master's cluster in both cases.
fn form_if_unformed(master: &MasterClient, address: &str) -> Result<ClusterId, Failure> {
    if let Some(cluster) = ask_status(master, address)?.cluster {
        return Ok(cluster);
    }
    let cluster = random_cluster();
    match ask(master, address, cluster) {
        Ok(()) => Ok(cluster),
        // Another process has possibly formed a cluster first.
        Err(refused) => ask_status(master, address)?.cluster.ok_or(refused),
    }
}

/// Forms a cluster, and waits until clients can join.
pub fn form(master: &MasterClient, address: &str, is_quiet: bool) -> Result<(), Failure> {
    let cluster = random_cluster();
    ask(master, address, cluster)?;
    wait(address, is_quiet, master, cluster)
}

/// Asks the master to form this cluster. A request whose answer was lost is repeated, which is safe because the request
/// names the cluster.
fn ask(master: &MasterClient, address: &str, cluster: ClusterId) -> Result<(), Failure> {
    loop {
        interrupt::failure().map_or(Ok(()), Err)?;
        return match master.call_blocking(MasterRequest::Form { cluster }) {
            Ok(MasterReply::Done) => Ok(()),
            Ok(MasterReply::Refused { reason }) => {
                Err(Failure::operation(flags::with_flag_names(&reason)))
            }
            Ok(other) => Err(Failure::unreachable(format!(
                "the master answered with something else: {other:?}"
            ))),
            Err(RpcError::TimedOut { .. } | RpcError::Closed { .. }) => continue,
            Err(error) => Err(connect::explain(address, &error)),
        };
    }
}

/// Waits until clients can join.
fn wait(
    address: &str,
    is_quiet: bool,
    master: &MasterClient,
    cluster: ClusterId,
) -> Result<(), Failure> {
    let mut shown = None;
    loop {
        interrupt::failure().map_or(Ok(()), Err)?;
        let line = match master.call_blocking(MasterRequest::GetView { newer_than: 0 }) {
            Ok(MasterReply::View(_)) => break,
            Ok(MasterReply::NotReady { joined, expected }) => {
                format!("{joined} of {expected} memory nodes have joined")
            }
            Ok(MasterReply::Refused { reason }) => {
                // The cluster can possibly be formed when more memory nodes have joined. If the master now refuses to
                // form it at all, the repeated request fails.
                ask(master, address, cluster)?;
                format!("cannot be formed yet: {}", flags::with_flag_names(&reason))
            }
            Ok(other) => {
                let what = format!("the master answered with something else: {other:?}");
                return Err(Failure::unreachable(what));
            }
            Err(error) => return Err(connect::explain(address, &error)),
        };
        if !is_quiet && shown.as_ref() != Some(&line) {
            show(&line);
            shown = Some(line);
        }
        std::thread::sleep(PERIOD);
    }
    if shown.is_some() && std::io::stderr().is_terminal() {
        stderr::tell("");
    }
    Ok(())
}
