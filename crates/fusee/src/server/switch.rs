//! `fusee switch`: runs a switch.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ArgAction;
use fusee_auth::NodeKey;
use fusee_cli::connect::{DEFAULT_MASTER, check_address, explain};
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::quantity::count_with_noun;
use fusee_cli::{secret, tls};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, Runtime};
use fusee_core::verbs::MnId;
use fusee_fabric::tcp::TcpSwitch;
use fusee_fabric::verbs::WireSwitch;
use fusee_launch::announcement;
use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};
use fusee_switch::{SwitchCounts, SwitchMemory};
use serde::{Deserialize, Serialize};

use super::reload::Reloader;
use super::settings::problem::SettingProblems;
use super::settings::{self, GivenSettings, LIVE};
use super::signals::{ServerSignals, WakeReason};
use fusee_cli::logging::LogFilter;

/// Deadline of the master's answer about the memory nodes.
const PATIENCE: Duration = Duration::from_secs(2);
/// The default address at which a switch listens.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7480));

/// Arguments of `fusee switch`.
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
    To stop one, send it SIGTERM or SIGINT: the sessions behind it lose their memory nodes then, and open anew.\n\n\
    With --config FILE it takes its settings from a TOML file, too, and reads that again on SIGHUP.")]
pub struct SwitchArgs {
    #[command(flatten)]
    given: GivenSettings<SwitchSettings>,

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

/// Settings of a switch, from command line, environment, file and defaults.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct SwitchSettings {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,

    /// Address and port to listen at; port 0 is any free one [default: 127.0.0.1:7480]
    #[arg(long, env = "FUSEE_LISTEN", value_name = "IP:PORT")]
    listen: Option<SocketAddr>,

    /// Join these two network interfaces instead, for RDMA (RoCE v2) between them; as root, or with CAP_NET_RAW
    #[arg(long, env = "FUSEE_WIRE", value_name = "A,B", value_delimiter = ',')]
    wire: Option<Vec<String>>,

    /// Number of keys that the switch can track, up to 10,000,000
    #[arg(long, env = "FUSEE_SLOTS", default_value_t = 100_000, value_name = "N")]
    slots: u32,

    /// Number of keys whose concurrent writes the switch can put in order, up to 65,536; 0: none
    #[arg(long, env = "FUSEE_ROUNDS", default_value_t = 0, value_name = "N")]
    rounds: u32,

    /// File of the cluster's secret; --secret overrides it
    #[arg(skip)]
    secret: Option<PathBuf>,

    /// Listen at a non-loopback address without a secret
    #[arg(long, env = "FUSEE_INSECURE", action = ArgAction::Set, num_args = 0..=1,
          default_value_t = false, default_missing_value = "true")]
    insecure: bool,

    /// Seconds between reports of the switch's work; it always reports at its end
    #[arg(long, env = "FUSEE_EVERY", value_name = "SECONDS", help_heading = LIVE)]
    every: Option<u32>,

    /// Milliseconds after which the switch repeatedly forgets everything, to test that nothing depends on its state
    #[arg(long, env = "FUSEE_FORGET_EVERY", value_name = "MS", help_heading = LIVE)]
    forget_every: Option<u32>,

    /// Log filter, as for RUST_LOG, which overrides -v; both override the file [default: info, or more with -v]
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", help_heading = LIVE)]
    log: Option<LogFilter>,
}

impl Default for SwitchSettings {
    fn default() -> SwitchSettings {
        settings::defaults()
    }
}

/// The configuration of a switch.
#[derive(Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    master: String,
    at: SwitchEndpoint,
    options: FuseeSwitchOptions,
    every: Option<Duration>,
    forget_every: Option<Duration>,
}

/// The place of a switch: an address for TCP, or two interfaces for RDMA.
#[derive(Debug, PartialEq, Eq)]
enum SwitchEndpoint {
    Address(SocketAddr),
    Wire([String; 2]),
}

impl settings::ServerSettings for SwitchSettings {
    type Config = SwitchConfig;

    fn log(&self) -> Option<&LogFilter> {
        self.log.as_ref()
    }

    fn filled(mut self) -> SwitchSettings {
        if self.wire.is_none() {
            self.listen.get_or_insert(DEFAULT_LISTEN);
        }
        self.log.get_or_insert(LogFilter::of_server(0));
        self
    }

    fn config(&self) -> Result<SwitchConfig, SettingProblems> {
        let mut wrong = SettingProblems::default();
        let problem = |is_so: bool, text: &'static str| if is_so { Err(text) } else { Ok(()) };
        let listen = self.listen.unwrap_or(DEFAULT_LISTEN);
        let at = match self.wire.as_deref() {
            None => {
                wrong.about("master", check_address(&self.master));
                let keys =
                    wrong.about("secret", secret::keys_of_tool(self.secret.as_deref())).flatten();
                if keys.is_none() && !self.insecure && self.secret.is_none() {
                    wrong.about("listen", super::check_reach([&*listen.to_string()]));
                }
                SwitchEndpoint::Address(listen)
            }
            Some([a, b]) => {
                let both = self.listen.is_some() || self.insecure;
                let text = "--wire is instead of --listen and --insecure: leave them out";
                wrong.about("wire", problem(both, text));
                wrong.about(
                    "wire",
                    problem(a == b, "--wire takes two interfaces, and these are one"),
                );
                SwitchEndpoint::Wire([a.clone(), b.clone()])
            }
            Some(_) => {
                let text = "--wire takes two interfaces, as in --wire eth1,eth2";
                wrong.about("wire", problem(true, text));
                SwitchEndpoint::Address(listen)
            }
        };
        let mut most = |name: &str, value: u32, most: u32| {
            let text = format!("--{name} is {value}; it must be at most {most}");
            wrong.about(name, if value > most { Err(text) } else { Ok(()) });
        };
        most("slots", self.slots, 10_000_000);
        most("rounds", self.rounds, 65_536);
        wrong.about("every", problem(self.every == Some(0), "--every must be at least 1"));
        let forget = self.forget_every == Some(0);
        wrong.about("forget-every", problem(forget, "--forget-every must be at least 1"));
        wrong.into_result(SwitchConfig {
            master: self.master.clone(),
            at,
            options: FuseeSwitchOptions {
                slots: self.slots as usize,
                rounds: self.rounds as usize,
            },
            every: self.every.map(|seconds| Duration::from_secs(seconds.into())),
            forget_every: self.forget_every.map(|ms| Duration::from_millis(ms.into())),
        })
    }
}

/// A running switch.
enum RunningSwitch {
    Tcp(TcpSwitch),
    Wire(WireSwitch),
}

impl RunningSwitch {
    fn counts(&self) -> SwitchCounts {
        match self {
            RunningSwitch::Tcp(tcp) => tcp.counts(),
            RunningSwitch::Wire(wire) => wire.counts(),
        }
    }

    fn bytes(&self) -> SwitchMemory {
        match self {
            RunningSwitch::Tcp(tcp) => tcp.bytes(),
            RunningSwitch::Wire(wire) => wire.bytes(),
        }
    }

    fn connections(&self) -> usize {
        match self {
            RunningSwitch::Tcp(tcp) => tcp.connections(),
            RunningSwitch::Wire(wire) => wire.connections(),
        }
    }

    /// Returns the number of packets that an interface did not take.
    fn lost(&self) -> u64 {
        match self {
            RunningSwitch::Tcp(_) => 0,
            RunningSwitch::Wire(wire) => wire.lost(),
        }
    }

    fn forget(&self) {
        match self {
            RunningSwitch::Tcp(tcp) => tcp.forget(),
            RunningSwitch::Wire(wire) => wire.forget(),
        }
    }
}

/// The totals of a switch's work.
#[derive(Serialize)]
struct SwitchReport {
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

impl SwitchReport {
    fn of(switch: &RunningSwitch) -> SwitchReport {
        let counts = switch.counts();
        let bytes = switch.bytes();
        SwitchReport {
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
        let SwitchReport { connections, seen, asked, steered, held, .. } = self;
        output::line(&format!(
            "{}, {}, {steered} of {asked} steered, held {}, {}",
            count_with_noun(*connections, "connection"),
            count_with_noun(*seen, "verb"),
            count_with_noun(*held, "time"),
            count_with_noun(self.bytes_of_keys + self.bytes_of_connections, "byte")
        ))
    }
}

/// The memory nodes of the master's view. The keys of the map are the numbers by which sessions name the nodes.
struct SwitchMembers {
    runtime: Runtime,
    master: MasterClient,
    known: Mutex<HashMap<u64, (MnId, String)>>,
}

impl SwitchMembers {
    fn ask(&self) -> Result<(), Failure> {
        let answer = self.master.call_blocking(MasterRequest::GetView { newer_than: 0 });
        match answer.map_err(|error| explain(self.master.addr(), &error))? {
            MasterReply::View(Some(view)) => {
                let keys = self.runtime.keys();
                let keys = keys.map(|keys| &**keys);
                let of = |member: &fusee_core::view::Member| {
                    let tcp = member.tcp.clone()?;
                    let key = NodeKey::new(keys, member.identity);
                    Some((key.name(), (member.node, tcp)))
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

    fn find(&self, name: u64) -> Option<(MnId, String)> {
        let known = || {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&name).cloned()
        };
        known().or_else(|| {
            // The node has possibly joined after the last request to the master.
            if let Err(error) = self.ask() {
                tracing::warn!(%error, "cannot ask for the memory nodes");
            }
            known()
        })
    }
}

/// Starts a switch to which sessions connect over TCP.
fn listen(
    at: SocketAddr,
    master: &str,
    announce: bool,
    switch: Box<FuseeSwitch>,
) -> Result<RunningSwitch, Failure> {
    if tls::of_client()?.is_some() {
        return Err(Failure::usage(
            "a switch reads what goes by, and TLS is there so that nobody does: sessions whose memory nodes speak TLS \
             go without a switch",
        ));
    }
    let runtime = secret::runtime("fusee-switch-rpc")?;
    let master = MasterClient::new(&runtime, master).with_deadline(PATIENCE);
    let members = SwitchMembers { runtime, master, known: Mutex::default() };
    // This reports a wrong address of the master now, instead of when the first session connects.
    members.ask()?;
    let find = Box::new(move |name| members.find(name));
    let switch = TcpSwitch::start(at, switch, find)
        .map_err(|error| Failure::operation(error.to_string()))?;
    if announce {
        super::announce(&announcement::SwitchAnnouncement { switch: switch.addr().to_string() })?;
    }
    tracing::info!(at = %switch.addr(), "a switch");
    Ok(RunningSwitch::Tcp(switch))
}

/// Starts a switch between two network interfaces.
fn join(
    [a, b]: &[String; 2],
    announce: bool,
    switch: Box<FuseeSwitch>,
) -> Result<RunningSwitch, Failure> {
    let switch =
        WireSwitch::start([a, b], switch).map_err(|error| Failure::operation(error.to_string()))?;
    if announce {
        super::announce(&announcement::SwitchAnnouncement { switch: "wire".into() })?;
    }
    tracing::info!(a, b, "a switch on the wire");
    Ok(RunningSwitch::Wire(switch))
}

/// Runs a switch until a signal ends it.
pub fn run(args: SwitchArgs) -> Result<(), Failure> {
    super::take_descriptors();
    let mut stop = ServerSignals::watch(args.stop_with_stdin, args.given.has_file())?;
    let (mut reloader, config) = Reloader::new(args.given)?;
    if let Some(file) = &reloader.settings().secret {
        secret::set(file.clone());
    }
    let switch = Box::new(FuseeSwitch::new(config.options));
    let switch = match &config.at {
        SwitchEndpoint::Wire(interfaces) => join(interfaces, args.announce, switch)?,
        SwitchEndpoint::Address(at) => listen(*at, &config.master, args.announce, switch)?,
    };
    let mut report = PeriodicAlarm::every(config.every);
    let mut forget = PeriodicAlarm::every(config.forget_every);
    let sleep = |until: Option<Instant>| async move {
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    };
    loop {
        match stop.wait(sleep(report.next.into_iter().chain(forget.next).min())) {
            WakeReason::Stop | WakeReason::Abandoned => break,
            WakeReason::Hangup => {
                if let Some(config) = reloader.again() {
                    report = PeriodicAlarm::every(config.every);
                    forget = PeriodicAlarm::every(config.forget_every);
                }
            }
            WakeReason::Event(()) => {
                if report.take_due()
                    && let Err(error) = SwitchReport::of(&switch).print(args.json)
                {
                    tracing::warn!(%error, "what it has done is not told");
                }
                if forget.take_due() {
                    switch.forget();
                }
            }
        }
    }
    SwitchReport::of(&switch).print(args.json)
}

/// A timer that expires periodically, or never.
struct PeriodicAlarm {
    period: Duration,
    next: Option<Instant>,
}

impl PeriodicAlarm {
    fn every(period: Option<Duration>) -> PeriodicAlarm {
        let next = period.map(|period| Instant::now() + period);
        PeriodicAlarm { period: period.unwrap_or_default(), next }
    }

    fn take_due(&mut self) -> bool {
        let now = Instant::now();
        let rings = self.next.is_some_and(|next| now >= next);
        if rings {
            self.next = Some(now + self.period);
        }
        rings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::random_settings;
    use crate::server::settings::tests::{all_settings, of_text};

    fn config(text: &str) -> Result<SwitchConfig, String> {
        of_text::<SwitchSettings>(text)?.config().map_err(|problems| problems.to_string())
    }

    #[test]
    fn settings_are_complete() {
        all_settings::<SwitchSettings>();
    }

    #[test]
    fn a_switch_listens_or_joins_two_interfaces() {
        assert_eq!(config("").unwrap().at, SwitchEndpoint::Address(DEFAULT_LISTEN));
        let wire = config("wire = [\"a\", \"b\"]").unwrap();
        assert_eq!(wire.at, SwitchEndpoint::Wire(["a".into(), "b".into()]));
        for (text, says) in [
            ("wire = [\"a\"]", "f:1:1: --wire takes two interfaces, as in"),
            ("wire = [\"a\", \"a\"]", "f:1:1: --wire takes two interfaces, and these are one"),
            ("wire = [\"a\", \"b\"]\ninsecure = true", "f:1:1: --wire is instead of"),
            ("slots = 10_000_001", "f:1:1: --slots is 10000001; it must be at most"),
            ("every = 0", "f:1:1: --every must be at least 1"),
            ("listen = \"0.0.0.0:7480\"", "f:1:1: 0.0.0.0:7480 may be reached"),
            ("listen = \"localhost:7480\"", "f:1:10: listen: invalid socket address"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_a_configuration_or_an_error(
            text in random_settings::text(random_settings::names::<SwitchSettings>())
        ) {
            if let Err(error) = config(&text) {
                proptest::prop_assert!(error.starts_with("f:"), "{}", error);
            }
        }
    }
}
