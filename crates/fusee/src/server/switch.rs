//! `fusee switch`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fusee_cli::connect::{DEFAULT_MASTER, check_address, explain};
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, Runtime};
use fusee_core::verbs::MnId;
use fusee_fabric::tcp::TcpSwitch;
use fusee_switch::ours::{Options, Ours};
use serde::Serialize;

use super::stop::Stop;

/// How long the master may take to tell the members.
const PATIENCE: Duration = Duration::from_secs(2);

/// How to run a switch.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee switch --master 10.0.0.1:7400 --listen 10.0.0.9:7480\n  \
    fusee get --switch 10.0.0.9:7480 greeting\n\n\
    Sessions that use it reach their memory nodes over TCP and through it. It has READs of hot keys go to where\n\
    these are by now, which saves round trips; what it knows may be wrong or missing, and nothing comes of that.\n\
    As a process it adds a hop, which takes longer than it saves: it is there to try, and to test.\n\n\
    To stop one, send it SIGTERM or SIGINT: its sessions lose their memory nodes then, and open anew.")]
pub struct Args {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,

    /// Address and port to listen at; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:7480", value_name = "IP:PORT")]
    listen: SocketAddr,

    /// Keys whose objects it can know
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    slots: u32,

    /// Writes of one key at once that it can put in order; 0: none
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    rounds: u32,

    /// Print what it has done every so many seconds; at the end it does so in any case
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print one JSON line with the address on standard output once the port is open
    #[arg(long)]
    announce: bool,

    /// Stop at the end of standard input, too
    #[arg(long)]
    stop_with_stdin: bool,
}

#[derive(Serialize)]
struct Announcement {
    switch: String,
}

/// What it has done.
#[derive(Serialize)]
struct Report {
    connections: usize,
    seen: u64,
    asked: u64,
    steered: u64,
    held: u64,
    forgot: u64,
    bytes_of_keys: u64,
    bytes_of_connections: u64,
}

impl Report {
    fn of(switch: &TcpSwitch) -> Report {
        let (counts, bytes) = (switch.counts(), switch.bytes());
        Report {
            connections: switch.connections(),
            seen: counts.seen,
            asked: counts.asked,
            steered: counts.steered,
            held: counts.held,
            forgot: counts.forgot,
            bytes_of_keys: bytes.keys,
            bytes_of_connections: bytes.connections,
        }
    }

    fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            return output::line(&serde_json::to_string(self).expect("numbers"));
        }
        let Report { connections, seen, asked, steered, held, .. } = self;
        output::line(&format!(
            "{connections} connections, {seen} verbs, {steered} of {asked} steered, {held} times held, {} bytes",
            self.bytes_of_keys + self.bytes_of_connections
        ))
    }
}

/// Who the memory nodes are, by their identities, as the master says.
struct Members {
    _runtime: Runtime,
    master: MasterClient,
    known: Mutex<HashMap<u64, (MnId, String)>>,
}

impl Members {
    fn ask(&self) -> Result<(), Failure> {
        let answer = self.master.call_blocking(MasterRequest::GetView { newer_than: 0 });
        match answer.map_err(|error| explain(self.master.addr(), &error))? {
            MasterReply::View(Some(view)) => {
                let of = |member: &fusee_core::view::Member| {
                    let tcp = member.tcp.clone()?;
                    Some((member.identity, (member.node, tcp)))
                };
                let members = view.members.iter().filter_map(of).collect();
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = members;
                Ok(())
            }
            MasterReply::NotReady { joined, expected } => Err(Failure::unreachable(format!(
                "the cluster is not ready: {joined} of {expected} memory nodes have joined"
            ))),
            _ => Err(Failure::operation("the master sent what it should not have")),
        }
    }

    fn find(&self, identity: u64) -> Option<(MnId, String)> {
        let known = || {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&identity).cloned()
        };
        known().or_else(|| {
            // It may have joined since.
            if let Err(error) = self.ask() {
                tracing::warn!(%error, "cannot ask for the memory nodes");
            }
            known()
        })
    }
}

/// Runs a switch until it is told to stop.
pub fn run(args: Args) -> Result<(), Failure> {
    super::take_descriptors();
    check_address(&args.master)?;
    let runtime = Runtime::start("fusee-switch-rpc")
        .map_err(|error| Failure::operation(format!("cannot start a runtime: {error}")))?;
    let master = MasterClient::new(&runtime, &args.master).with_deadline(PATIENCE);
    let members = Members { _runtime: runtime, master, known: Mutex::default() };
    // A wrong address shows now, and not with the first session.
    members.ask()?;
    let options = Options { slots: args.slots as usize, rounds: args.rounds as usize };
    let find = Box::new(move |identity| members.find(identity));
    let switch = TcpSwitch::start(args.listen, Box::new(Ours::new(options)), find)
        .map_err(|error| Failure::operation(error.to_string()))?;
    if args.announce {
        super::announce(&Announcement { switch: switch.addr().to_string() })?;
    }
    tracing::info!(at = %switch.addr(), "a switch");
    let mut stop = Stop::watch(args.stop_with_stdin)?;
    let every = args.every.map(|seconds| Duration::from_secs(seconds.into()));
    let pause = || async {
        match every {
            Some(every) => tokio::time::sleep(every).await,
            None => std::future::pending().await,
        }
    };
    while stop.unless(pause()).is_some() {
        Report::of(&switch).print(args.json)?;
    }
    Report::of(&switch).print(args.json)
}
