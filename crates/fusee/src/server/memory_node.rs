//! `fusee memory-node`: runs a memory node.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ValueEnum};
use fusee_cli::connect::{DEFAULT_MASTER, check_address, check_host_port};
use fusee_cli::failure::Failure;
use fusee_cli::quantity::ByteSize;
use fusee_cli::secret;
use fusee_cli::tls;
use fusee_client::FabricKind;
use fusee_launch::announcement;
use fusee_memory_node::config::MemoryNodeConfig;
use fusee_memory_node::server::{Dismissal, MemoryNode};
use serde::{Deserialize, Serialize};

use tokio::sync::watch;

use super::announce;
use super::reload::Reloader;
use super::settings::problem::SettingProblems;
use super::settings::{self, GivenSettings, LIVE};
use super::signals::{ServerSignals, WakeReason};
use crate::http::{HttpServer, NodePageSource, NodePages};
use fusee_cli::logging::LogFilter;
use fusee_cli::memory::PoolMemory;

/// Arguments of `fusee memory-node`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee memory-node --master 10.0.0.1:7400 --listen 10.0.0.2:7401 --tcp 10.0.0.2:7402 \
    --pool 64GiB\n  \
    fusee memory-node --config node.toml\n\n\
    To stop one, `fusee drain` it: it ends when others hold what it held. SIGTERM and SIGINT end it at\n\
    once, and what it holds is gone: a loss, which its replicas on other nodes make good.\n\n\
    The file holds the same names, e.g. `pool = \"64GiB\"`. Flags beat the environment,\n\
    the environment beats the file. On SIGHUP a memory node reads its file again; `fusee config`\n\
    checks a file, and shows what is in force.")]
pub struct MemoryNodeArgs {
    #[command(flatten)]
    given: GivenSettings<MemoryNodeSettings>,

    /// Print one JSON line with the addresses on standard output once the ports are open
    #[arg(long)]
    announce: bool,

    /// Stop at the end of standard input, too
    #[arg(long)]
    stop_with_stdin: bool,
}

/// A fabric over which a memory node serves its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ServedFabric {
    /// Shared memory, for processes of this host.
    Shm,
    /// TCP, by the software NIC.
    Tcp,
    /// RDMA, by this machine's device. Most devices do not allow another fabric at the same time.
    Verbs,
}

impl From<ServedFabric> for FabricKind {
    fn from(serve: ServedFabric) -> FabricKind {
        match serve {
            ServedFabric::Shm => FabricKind::Shm,
            ServedFabric::Tcp => FabricKind::Tcp,
            ServedFabric::Verbs => FabricKind::Verbs,
        }
    }
}

/// Settings of a memory node, from command line, environment, file and defaults.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct MemoryNodeSettings {
    /// Address of the master; of several masters, their addresses, separated by commas
    #[arg(long, env = "FUSEE_MASTER", default_value = DEFAULT_MASTER, value_name = "HOST:PORT,..")]
    master: String,

    /// Host and port of the control service; port 0 is any free one
    #[arg(long, env = "FUSEE_LISTEN", default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: String,

    /// Fabrics to serve, separated by commas
    #[arg(
        long,
        env = "FUSEE_SERVE",
        value_delimiter = ',',
        default_value = "shm,tcp",
        value_name = "FABRICS"
    )]
    serve: Vec<ServedFabric>,

    /// Host and port of the software NIC; port 0 is any free one [default: any free port of the host of --listen]
    #[arg(long, env = "FUSEE_TCP", value_name = "HOST:PORT")]
    tcp: Option<String>,

    /// Host and port that hand out queue pairs of the RDMA device, if verbs are served; port 0 is any free one.
    /// FUSEE_RDMA_DEVICE selects the device, if the address does not [default: any free port of the host of --listen]
    #[arg(long, env = "FUSEE_VERBS", value_name = "HOST:PORT")]
    verbs: Option<String>,

    /// Let switches on the wire steer READs over verbs (`fusee switch --wire`). The pool is then registered
    /// twice, and counts twice against the limit of locked memory
    #[arg(long, env = "FUSEE_STEERED", action = ArgAction::Set, num_args = 0..=1,
          default_value_t = false, default_missing_value = "true")]
    steered: bool,

    /// Directory for the socket that hands memory to processes of this host [default: the
    /// system's directory for temporary files]
    #[arg(long, env = "FUSEE_SHM_DIR", value_name = "DIR")]
    shm_dir: Option<PathBuf>,

    /// Host name or address under which others reach this node [default: as --listen]
    #[arg(long, env = "FUSEE_ADVERTISE", value_name = "HOST")]
    advertise: Option<String>,

    /// Memory to lend; taken from the system as it is lent
    #[arg(long, env = "FUSEE_POOL", default_value = "4GiB", value_name = "BYTES")]
    pool: ByteSize,

    /// Take memory from the system as soon as it is lent; if false, as it is used, and then it counts as memory of the
    /// client that writes to it first
    #[arg(long, env = "FUSEE_POPULATE", action = ArgAction::Set, num_args = 0..=1,
          default_value_t = true, default_missing_value = "true")]
    populate: bool,

    /// Start even if --pool is larger than the memory of the machine or of the control group
    #[arg(long, env = "FUSEE_OVERCOMMIT", action = ArgAction::Set, num_args = 0..=1,
          default_value_t = false, default_missing_value = "true")]
    overcommit: bool,

    /// Use huge pages
    #[arg(long, env = "FUSEE_HUGE_PAGES", action = ArgAction::Set, num_args = 0..=1,
          default_value_t = false, default_missing_value = "true")]
    huge_pages: bool,

    /// Serve metrics, health and a status page by HTTP at this address: /, /metrics, /healthz, /readyz, /status.json.
    /// Every machine that reaches the address can read them [default: none]
    #[arg(long, env = "FUSEE_HTTP", value_name = "HOST:PORT")]
    http: Option<String>,

    /// File of the cluster's secret; --secret overrides it
    #[arg(skip)]
    secret: Option<PathBuf>,

    /// Files of TLS; --tls-ca, --tls-cert and --tls-key override them
    #[arg(skip)]
    tls_ca: Option<PathBuf>,

    #[arg(skip)]
    tls_cert: Option<PathBuf>,

    #[arg(skip)]
    tls_key: Option<PathBuf>,

    /// Listen at non-loopback addresses without a secret: any machine that reaches them can read, write and destroy
    /// everything
    #[arg(long, env = "FUSEE_INSECURE", action = ArgAction::Set, num_args = 0..=1,
          default_value_t = false, default_missing_value = "true")]
    insecure: bool,

    /// Microseconds that the software NIC polls for requests before it sleeps; 0 saves processor time at the
    /// price of latency
    #[arg(long, env = "FUSEE_SPIN_US", default_value_t = 50, value_name = "US", help_heading = LIVE)]
    spin_us: u32,

    /// Log filter, as for RUST_LOG, which overrides -v; both override the file [default: info, or more with -v]
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", help_heading = LIVE)]
    log: Option<LogFilter>,
}

impl Default for MemoryNodeSettings {
    fn default() -> MemoryNodeSettings {
        settings::defaults()
    }
}

impl settings::ServerSettings for MemoryNodeSettings {
    type Config = MemoryNodeConfig;

    fn log(&self) -> Option<&LogFilter> {
        self.log.as_ref()
    }

    fn filled(mut self) -> MemoryNodeSettings {
        // Other processes expect the fabrics at the host of the control service.
        let beside = self.listen.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        let beside = format!("{beside}:0");
        self.tcp.get_or_insert_with(|| beside.clone());
        self.verbs.get_or_insert(beside);
        self.shm_dir.get_or_insert_with(std::env::temp_dir);
        self.log.get_or_insert(LogFilter::of_server(0));
        self
    }

    fn config(&self) -> Result<MemoryNodeConfig, SettingProblems> {
        let mut wrong = SettingProblems::default();
        let filled = self.clone().filled();
        let keys = wrong.about("secret", secret::of_server(self.secret.as_deref())).flatten();
        let files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        let tls = wrong.note(tls::of_server(files.map(Clone::clone))).flatten();
        let served = |fabric: ServedFabric| self.serve.contains(&fabric);
        let tcp = filled.tcp.filter(|_| served(ServedFabric::Tcp));
        let verbs = filled.verbs.filter(|_| served(ServedFabric::Verbs));
        let is_open = keys.is_none() && !self.insecure && self.secret.is_none();
        let listening =
            [("listen", Some(&self.listen)), ("tcp", tcp.as_ref()), ("verbs", verbs.as_ref())];
        for (name, address) in listening {
            let Some(address) = address else { continue };
            let checked = check_host_port(address);
            let open = if is_open { super::check_reach([&**address]) } else { Ok(()) };
            wrong.about(name, checked.and(open));
        }
        wrong.about("http", self.http.as_deref().map_or(Ok(()), check_host_port));
        wrong.about("master", check_address(&self.master));
        let problem = |is_so: bool, text: &'static str| if is_so { Err(text) } else { Ok(()) };
        let none = "it names no fabric; there are shm, tcp and verbs";
        wrong.about("serve", problem(self.serve.is_empty(), none));
        let steered = self.steered && !served(ServedFabric::Verbs);
        wrong.about("steered", problem(steered, "--steered is for verbs: name them in --serve"));
        let has_port =
            |host: &String| host.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':'));
        let advertise = self.advertise.as_ref().is_some_and(has_port);
        wrong.about("advertise", problem(advertise, "it is a host alone; its ports are known"));
        let config = MemoryNodeConfig {
            keys,
            tls,
            listen: self.listen.clone(),
            tcp,
            verbs,
            steered: self.steered,
            shm_dir: filled.shm_dir.filter(|_| served(ServedFabric::Shm)),
            advertise: self.advertise.clone(),
            master: self.master.clone(),
            pool_bytes: self.pool.0,
            populate: self.populate,
            huge_pages: self.huge_pages,
            spin: Duration::from_micros(self.spin_us.into()),
        };
        wrong.into_result(config)
    }
}

/// Runs a memory node until a signal ends it. If the cluster has given up the node because the node was silent, the
/// node joins again with an empty pool. If the node was drained, it ends.
pub fn run(args: MemoryNodeArgs) -> Result<(), Failure> {
    super::take_descriptors();
    let mut stop = ServerSignals::watch(args.stop_with_stdin, args.given.has_file())?;
    let (mut reloader, config) = Reloader::new(args.given)?;
    let (http, advertised, overcommits) = {
        let settings = reloader.settings();
        (settings.http.clone(), settings.advertise.clone(), settings.overcommit)
    };
    let pool =
        PoolMemory { pool_bytes: config.pool_bytes, nodes: 1, huge_pages: config.huge_pages };
    pool.check(overcommits)?;
    let asks_for_huge_pages = config.huge_pages;
    let mut node = start(config)?;
    if asks_for_huge_pages && !node.has_huge_pages() {
        PoolMemory { huge_pages: false, ..pool }.check(overcommits)?;
    }
    // The runtime is kept when the node starts again with an empty pool.
    let io = secret::runtime("fusee-mn-http")?;
    let (shown, pages) = watch::channel(view(&node));
    let serve =
        |at: String| HttpServer::serve(&io, &at, advertised.as_deref(), NodePages::new(pages));
    let http = http.map(serve).transpose()?;
    if args.announce {
        let description = node.description();
        announce(&announcement::NodeAnnouncement {
            control: node.control().to_string(),
            tcp: description.tcp.clone(),
            shm: description.shm.clone(),
            verbs: description.verbs.clone(),
            http: http.as_ref().map(HttpServer::addr),
        })?;
    }
    let is_drained = loop {
        match stop.wait(node.wait_for_dismissal()) {
            WakeReason::Stop | WakeReason::Abandoned => break false,
            WakeReason::Hangup => {
                if let Some(config) = reloader.again() {
                    node.set_spin(config.spin);
                }
            }
            WakeReason::Event(Dismissal::Drained) => {
                tracing::warn!("drained: the cluster needs this node no more, it ends");
                break true;
            }
            WakeReason::Event(_) => {
                // The pool and the node's identity are new, so that sessions that do not know of this yet cannot reach
                // reused memory. The addresses stay the same, because they were announced.
                let config = node.config().cloned().expect("it was started with one");
                node.stop();
                tracing::warn!("starting again, empty");
                node = start(config)?;
                shown.send_replace(view(&node));
            }
        }
    };
    drop(http);
    // A parent that ends the node by the node's standard input ends the whole cluster, so no warning is needed.
    if let Some(name) = node.name().filter(|_| !is_drained && !args.stop_with_stdin) {
        tracing::warn!(
            "{name} ends, and what it holds with it: for the cluster that is the loss of a memory node; \
             next time run `fusee drain {name}` first, which ends it when it is empty"
        );
    }
    node.stop();
    Ok(())
}

/// Returns the parts of a node that its pages need.
fn view(node: &MemoryNode) -> NodePageSource {
    NodePageSource { client: node.client(), joined: node.names(), times: node.times() }
}

fn start(config: MemoryNodeConfig) -> Result<MemoryNode, Failure> {
    MemoryNode::start(config)
        .map_err(|error| Failure::operation(format!("the memory node cannot start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::random_settings;
    use crate::server::settings::tests::{all_settings, of_text};

    fn config(text: &str) -> Result<MemoryNodeConfig, String> {
        of_text::<MemoryNodeSettings>(text)?.config().map_err(|problems| problems.to_string())
    }

    #[test]
    fn settings_are_complete() {
        all_settings::<MemoryNodeSettings>();
    }

    #[test]
    fn the_defaults_are_those_of_a_memory_node() {
        assert_eq!(config(""), Ok(MemoryNodeConfig::default()));
    }

    #[test]
    fn the_fabrics_are_where_the_control_service_is() {
        let at = |text: &str| {
            let file = format!("serve = [\"tcp\", \"verbs\"]\ninsecure = true\n{text}");
            let config = config(&file).unwrap();
            (config.tcp.unwrap(), config.verbs.unwrap())
        };
        let beside = ("10.0.0.3:0".into(), "10.0.0.3:0".into());
        assert_eq!(at("listen = \"10.0.0.3:7401\""), beside);
        assert_eq!(at("listen = \"[fd00::1]:0\"").0, "[fd00::1]:0");
        assert_eq!(at("listen = \"10.0.0.3:7401\"\ntcp = \"10.1.0.3:5\"").0, "10.1.0.3:5");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, says) in [
            ("pool = 1\npol = 2", "f:2:1: unknown field `pol`"),
            ("pool = \"much\"", "f:1:8: pool: `much` is no number of bytes"),
            (
                "pool = 1.5",
                "f:1:8: pool: invalid type: floating point `1.5`, expected a number of bytes",
            ),
            ("serve = [\"tcp\", \"pigeon\"]", "f:1:17: serve: unknown variant `pigeon`"),
            ("serve = []", "f:1:1: it names no fabric"),
            ("steered = true", "f:1:1: --steered is for verbs"),
            ("advertise = \"mn1:7400\"", "f:1:1: it is a host alone"),
            ("master = \"a:1,b\"", "f:1:1: `b` is no address of a master"),
            ("tcp = \"0.0.0.0:7402\"", "f:1:1: 0.0.0.0:7402 may be reached"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        assert!(config("advertise = \"fd00::1\"").is_ok());
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_a_configuration_or_an_error(
            text in random_settings::text(random_settings::names::<MemoryNodeSettings>())
        ) {
            if let Err(error) = config(&text) {
                proptest::prop_assert!(error.starts_with("f:"), "{}", error);
            }
        }
    }
}
