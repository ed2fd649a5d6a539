//! `fusee switch`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_cli::connect::{DEFAULT_MASTER, check_address, explain};
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::{secret, tls};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, Runtime};
use fusee_core::verbs::MnId;
use fusee_fabric::tcp::TcpSwitch;
use fusee_fabric::verbs::WireSwitch;
use fusee_launch::announcement;
use fusee_switch::ours::{Options, Ours};
use fusee_switch::{Bytes, Counts};
use serde::Serialize;

use super::stop::Stop;

/// How long the master may take to tell the members.
const PATIENCE: Duration = Duration::from_secs(2);

/// How to run a switch.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee switch --master 10.0.0.1:7400 --listen 10.0.0.9:7480\n  \
    fusee get --switch 10.0.0.9:7480 greeting\n  \
    fusee switch --wire eth1,eth2\n  \
    fusee get --switch wire greeting\n\n\
    It has READs of hot keys go to where these are by now, which saves round trips; what it knows may be wrong or\n\
    missing, and nothing comes of that. As a process it adds a hop, which takes longer than it saves: it is there to\n\
    try, and to test.\n\n\
    With --listen sessions reach their memory nodes over TCP and through it, without TLS. With --wire it joins\n\
    two network interfaces: all that comes in at one goes out at the other, and it looks for RDMA among that.\n\n\
    To stop one, send it SIGTERM or SIGINT: the sessions behind it lose their memory nodes then, and open anew.")]
pub struct Args {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,

    /// Address and port to listen at; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:7480", value_name = "IP:PORT")]
    listen: SocketAddr,

    /// Join these two network interfaces instead, for RDMA (RoCE v2) between them; as root, or with CAP_NET_RAW
    #[arg(long, value_name = "A,B", value_delimiter = ',', conflicts_with = "listen")]
    wire: Option<Vec<String>>,

    /// Keys whose objects it can know
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    slots: u32,

    /// Writes of one key at once that it can put in order; 0: none
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    rounds: u32,

    /// Print what it has done every so many seconds; at the end it does so in any case
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,

    /// Forget everything every so many milliseconds, to try that nothing rests on it
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    forget_every: Option<u32>,

    /// Listen at an address of other machines without a secret
    #[arg(long, conflicts_with = "wire")]
    insecure: bool,

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

/// A switch that runs.
enum Running {
    Tcp(TcpSwitch),
    Wire(WireSwitch),
}

impl Running {
    fn counts(&self) -> Counts {
        match self {
            Running::Tcp(tcp) => tcp.counts(),
            Running::Wire(wire) => wire.counts(),
        }
    }

    fn bytes(&self) -> Bytes {
        match self {
            Running::Tcp(tcp) => tcp.bytes(),
            Running::Wire(wire) => wire.bytes(),
        }
    }

    fn connections(&self) -> usize {
        match self {
            Running::Tcp(tcp) => tcp.connections(),
            Running::Wire(wire) => wire.connections(),
        }
    }

    /// Packets that an interface did not take.
    fn lost(&self) -> u64 {
        match self {
            Running::Tcp(_) => 0,
            Running::Wire(wire) => wire.lost(),
        }
    }

    fn forget(&self) {
        match self {
            Running::Tcp(tcp) => tcp.forget(),
            Running::Wire(wire) => wire.forget(),
        }
    }
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
    lost: u64,
    bytes_of_keys: u64,
    bytes_of_connections: u64,
}

impl Report {
    fn of(switch: &Running) -> Report {
        let (counts, bytes) = (switch.counts(), switch.bytes());
        Report {
            connections: switch.connections(),
            seen: counts.seen,
            asked: counts.asked,
            steered: counts.steered,
            held: counts.held,
            forgot: counts.forgot,
            lost: switch.lost(),
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

/// Starts a switch that sessions connect to over TCP.
fn listen(args: &Args, switch: Box<Ours>) -> Result<Running, Failure> {
    check_address(&args.master)?;
    if secret::file().is_none() && !args.insecure {
        super::check_reach([&*args.listen.to_string()])?;
    }
    if tls::of_client()?.is_some() {
        return Err(Failure::usage(
            "a switch reads what goes by, and TLS is there so that nobody does: sessions whose memory nodes speak TLS \
             go without a switch",
        ));
    }
    let runtime = secret::runtime("fusee-switch-rpc")?;
    let master = MasterClient::new(&runtime, &args.master).with_deadline(PATIENCE);
    let members = Members { _runtime: runtime, master, known: Mutex::default() };
    // A wrong address shows now, and not with the first session.
    members.ask()?;
    let find = Box::new(move |identity| members.find(identity));
    let switch = TcpSwitch::start(args.listen, switch, find)
        .map_err(|error| Failure::operation(error.to_string()))?;
    if args.announce {
        super::announce(&announcement::Switch { switch: switch.addr().to_string() })?;
    }
    tracing::info!(at = %switch.addr(), "a switch");
    Ok(Running::Tcp(switch))
}

/// Starts a switch between two interfaces.
fn join(interfaces: &[String], announce: bool, switch: Box<Ours>) -> Result<Running, Failure> {
    let [a, b] = interfaces else {
        return Err(Failure::usage("--wire takes two interfaces, as in --wire eth1,eth2"));
    };
    if a == b {
        return Err(Failure::usage("--wire takes two interfaces, and these are one"));
    }
    let switch =
        WireSwitch::start([a, b], switch).map_err(|error| Failure::operation(error.to_string()))?;
    if announce {
        super::announce(&announcement::Switch { switch: "wire".into() })?;
    }
    tracing::info!(a, b, "a switch on the wire");
    Ok(Running::Wire(switch))
}

/// Runs a switch until it is told to stop.
pub fn run(args: Args) -> Result<(), Failure> {
    super::take_descriptors();
    let options = Options { slots: args.slots as usize, rounds: args.rounds as usize };
    let switch = Box::new(Ours::new(options));
    let switch = match &args.wire {
        Some(interfaces) => join(interfaces, args.announce, switch)?,
        None => listen(&args, switch)?,
    };
    let mut stop = Stop::watch(args.stop_with_stdin)?;
    let every = |ms: Option<u32>| Alarm::every(ms.map(|ms| Duration::from_millis(ms.into())));
    let mut report = every(args.every.map(|seconds| seconds.saturating_mul(1_000)));
    let mut forget = every(args.forget_every);
    let sleep = |until: Option<Instant>| async move {
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    };
    while stop.unless(sleep(report.next.into_iter().chain(forget.next).min())).is_some() {
        if report.rings() {
            Report::of(&switch).print(args.json)?;
        }
        if forget.rings() {
            switch.forget();
        }
    }
    Report::of(&switch).print(args.json)
}

/// Rings again and again, or never.
struct Alarm {
    period: Duration,
    next: Option<Instant>,
}

impl Alarm {
    fn every(period: Option<Duration>) -> Alarm {
        let next = period.map(|period| Instant::now() + period);
        Alarm { period: period.unwrap_or_default(), next }
    }

    fn rings(&mut self) -> bool {
        let now = Instant::now();
        let rings = self.next.is_some_and(|next| now >= next);
        if rings {
            self.next = Some(now + self.period);
        }
        rings
    }
}
