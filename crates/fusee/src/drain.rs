//! `fusee drain`: removes a memory node from the cluster after its data has moved to others.
//!
//! After the request, the master drains the node even if this command is interrupted. The command shows how much is
//! left, until the cluster no longer needs the node.

use std::io::IsTerminal;
use std::time::Duration;

use fusee_cli::connect::{self, DEFAULT_MASTER};
use fusee_cli::failure::Failure;
use fusee_cli::master_requests::{DrainStatus, ask_status, request_drain};
use fusee_cli::output;
use fusee_cli::quantity::count_with_noun;
use fusee_cli::secret;
use fusee_cli::stderr;
use fusee_control::rpc::MasterClient;
use fusee_core::verbs::MnId;
use serde::Serialize;

/// Deadline of each answer of the master.
pub const TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two requests to the master.
const PERIOD: Duration = Duration::from_millis(200);
/// Time for which the command continues while the master is unreachable.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `fusee drain`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  fusee drain mn2\n  fusee drain mn2 --master 10.0.0.1:7400 --json\n  \
    fusee drain mn2 --cancel          it stays after all\n\n\
    The node serves until everything has moved to others; then its process ends. The drain goes on\n\
    if this command is interrupted, and if the master restarts: see `fusee status`.\n\n\
    Exit codes: 0 drained, or taken back; 1 refused, or the node was lost meanwhile;\n\
    2 wrong usage; 3 the master cannot be reached."
)]
pub struct DrainArgs {
    /// The memory node, as `fusee status` names it
    #[arg(value_name = "NODE", value_parser = node_name)]
    node: MnId,

    /// Cancel the drain: the node stays, and gets its share of the data again
    #[arg(long)]
    cancel: bool,

    /// Return once the master has recorded the request
    #[arg(long)]
    no_wait: bool,

    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,

    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,
}

/// The result of the command.
#[derive(Debug, Serialize)]
struct DrainReport {
    node: String,
    /// State of the node: `draining`, `drained` or `in_view`.
    state: &'static str,
    /// Numbers of subtables and regions with a replica on the node when the command began.
    subtables: u64,
    regions: u64,
    /// Time from the request to the end of the command, in seconds.
    seconds: f64,
}

fn node_name(text: &str) -> Result<MnId, String> {
    let number = text.strip_prefix("mn").unwrap_or(text).parse();
    number.map(MnId).map_err(|_| "write it like mn2; `fusee status` shows the names".into())
}

/// Drains a node, or cancels its drain.
pub fn run(args: &DrainArgs) -> Result<(), Failure> {
    connect::check_address(&args.master)?;
    let runtime = secret::runtime("fusee-drain")?;
    let master = MasterClient::new(&runtime, &args.master[..]).with_deadline(TIMEOUT);
    let begun = std::time::Instant::now();
    let first = DrainStatus::of(args.node, &ask_status(&master, &args.master)?);
    request_drain(&master, &args.master, args.node, args.cancel)?;
    let state = match (args.cancel, args.no_wait) {
        (true, _) => "in_view",
        (false, true) => "draining",
        (false, false) => watch(args, &master, &first)?,
    };
    let seconds = begun.elapsed().as_secs_f64();
    let node = args.node.to_string();
    let DrainStatus { subtables, regions, .. } = first;
    let report = DrainReport { node, state, subtables, regions, seconds };
    output::text(&if args.json {
        serde_json::to_string(&report).expect("numbers and names") + "\n"
    } else {
        text(&report)
    })
}

fn text(report: &DrainReport) -> String {
    let DrainReport { node, subtables, regions, seconds, .. } = report;
    match report.state {
        "drained" => format!(
            "{node} is drained: {} and {} moved in {seconds:.1} s\n",
            count_with_noun(*subtables, "subtable"),
            count_with_noun(*regions, "region")
        ),
        "draining" => format!("{node} is being drained; see `fusee status`\n"),
        _ => format!("{node} stays\n"),
    }
}

/// Waits until the node is drained, and shows the progress meanwhile.
fn watch(
    args: &DrainArgs,
    master: &MasterClient,
    first: &DrainStatus,
) -> Result<&'static str, Failure> {
    let node = args.node;
    let mut shown = None;
    let mut heard = std::time::Instant::now();
    loop {
        let status = match ask_status(master, &args.master) {
            Ok(status) => status,
            // The master is possibly restarting, or another master is about to lead.
            Err(failure) if heard.elapsed() > PATIENCE => return Err(failure),
            Err(_) => {
                std::thread::sleep(PERIOD);
                continue;
            }
        };
        heard = std::time::Instant::now();
        let standing = DrainStatus::of(node, &status);
        if standing.is_drained(node)? {
            return Ok("drained");
        }
        let DrainStatus { subtables, regions, .. } = standing;
        let line = format!(
            "{node}: {subtables} of {} and {regions} of {} left{}",
            count_with_noun(first.subtables, "subtable"),
            count_with_noun(first.regions, "region"),
            status.problem.as_ref().map(|text| format!("; {text}")).unwrap_or_default()
        );
        if !args.json && shown.as_ref() != Some(&line) {
            show(&line);
            shown = Some(line);
        }
        std::thread::sleep(PERIOD);
    }
}

/// Shows progress on standard error. On a terminal, each progress replaces the previous one.
pub fn show(line: &str) {
    if std::io::stderr().is_terminal() {
        stderr::text(&format!("\r\x1b[K{line}"));
    } else {
        stderr::tell(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_as_in_the_status() {
        assert_eq!(node_name("mn12"), Ok(MnId(12)));
        assert_eq!(node_name("3"), Ok(MnId(3)));
        assert!(node_name("node3").unwrap_err().contains("fusee status"));
        assert!(node_name("mn99999").is_err());
    }
}
