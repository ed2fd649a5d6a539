//! `fusee memory-node`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use fusee_cli::connect::{DEFAULT_MASTER, check_address};
use fusee_cli::failure::Failure;
use fusee_cli::quantity::Bytes;
use fusee_cli::secret;
use fusee_cli::tls::{self, Files};
use fusee_client::FabricKind;
use fusee_launch::announcement;
use fusee_memory_node::config::Config;
use fusee_memory_node::server::{Dismissal, MemoryNode};
use serde::Deserialize;

use super::stop::Stop;
use super::{announce, read_file};
use fusee_cli::memory;

/// How to run a memory node.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee memory-node --master 10.0.0.1:7400 --listen 10.0.0.2:7401 --tcp 10.0.0.2:7402 \
    --pool 64GiB\n  \
    fusee memory-node --config node.toml\n\n\
    To stop one, `fusee drain` it: it ends when others hold what it held. SIGTERM and SIGINT end it at\n\
    once, and what it holds is gone: a loss, which its replicas on other nodes make good.\n\n\
    The file holds the same names, e.g. `pool = \"64GiB\"`. Flags beat the environment,\n\
    the environment beats the file.")]
pub struct Args {
    /// Read settings from this TOML file
    #[arg(long, env = "FUSEE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print one JSON line with the addresses on standard output once the ports are open
    #[arg(long)]
    announce: bool,

    /// Stop at the end of standard input, too
    #[arg(long)]
    stop_with_stdin: bool,

    #[command(flatten)]
    settings: Settings,
}

/// A way in which memory is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Serve {
    /// To processes of this host.
    Shm,
    /// To everybody, by the software NIC.
    Tcp,
    /// To whoever has an RDMA device, by that of this machine. Most devices allow no other fabric
    /// beside it.
    Verbs,
}

impl From<Serve> for FabricKind {
    fn from(serve: Serve) -> FabricKind {
        match serve {
            Serve::Shm => FabricKind::Shm,
            Serve::Tcp => FabricKind::Tcp,
            Serve::Verbs => FabricKind::Verbs,
        }
    }
}

/// Settings, in whatever form.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Settings {
    /// Address of the master; of several masters, their addresses, separated by commas [default:
    /// 127.0.0.1:7400]
    #[arg(long, env = "FUSEE_MASTER", value_name = "HOST:PORT,..")]
    master: Option<String>,

    /// Host and port of the control service; port 0 is any free one [default: 127.0.0.1:0]
    #[arg(long, env = "FUSEE_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,

    /// Fabrics to serve, separated by commas [default: shm,tcp]
    #[arg(long, env = "FUSEE_SERVE", value_delimiter = ',', value_name = "FABRICS")]
    serve: Option<Vec<Serve>>,

    /// Host and port of the software NIC; port 0 is any free one [default: any free port of the host
    /// of --listen]
    #[arg(long, env = "FUSEE_TCP", value_name = "HOST:PORT")]
    tcp: Option<String>,

    /// Host and port at which queue pairs of the RDMA device are handed out, if verbs are served; port 0
    /// is any free one. FUSEE_RDMA_DEVICE says which device, if the address does not [default: any free
    /// port of the host of --listen]
    #[arg(long, env = "FUSEE_VERBS", value_name = "HOST:PORT")]
    verbs: Option<String>,

    /// Let switches on the wire steer READs over verbs (`fusee switch --wire`). The pool is registered twice then,
    /// which counts twice against the limit of locked memory [default: false]
    #[arg(long, env = "FUSEE_STEERED", num_args = 0..=1, default_missing_value = "true")]
    steered: Option<bool>,

    /// Directory for the socket that hands memory to processes of this host [default: the
    /// system's directory for temporary files]
    #[arg(long, env = "FUSEE_SHM_DIR", value_name = "DIR")]
    shm_dir: Option<PathBuf>,

    /// Host name or address under which others reach this node [default: as it listens]
    #[arg(long, env = "FUSEE_ADVERTISE", value_name = "HOST")]
    advertise: Option<String>,

    /// Memory to lend; it is taken from the system as it is used [default: 4GiB]
    #[arg(long, env = "FUSEE_POOL", value_name = "BYTES")]
    pool: Option<Bytes>,

    /// Ask for huge pages [default: false]
    #[arg(long, env = "FUSEE_HUGE_PAGES", num_args = 0..=1, default_missing_value = "true")]
    huge_pages: Option<bool>,

    /// How long the software NIC looks for requests before it sleeps, in microseconds; 0 saves
    /// processor time at the price of latency [default: 50]
    #[arg(long, env = "FUSEE_SPIN_US", value_name = "US")]
    spin_us: Option<u32>,

    /// The file of the cluster's secret; --secret beats it
    #[arg(skip)]
    secret: Option<PathBuf>,

    /// The files of TLS; --tls-ca, --tls-cert and --tls-key beat them
    #[arg(skip)]
    tls_ca: Option<PathBuf>,

    #[arg(skip)]
    tls_cert: Option<PathBuf>,

    #[arg(skip)]
    tls_key: Option<PathBuf>,

    /// Listen at addresses of other machines without a secret: whoever reaches them may read, write and
    /// destroy everything [default: false]
    #[arg(long, env = "FUSEE_INSECURE", num_args = 0..=1, default_missing_value = "true")]
    insecure: Option<bool>,
}

impl Settings {
    fn or(self, other: Settings) -> Settings {
        Settings {
            master: self.master.or(other.master),
            listen: self.listen.or(other.listen),
            serve: self.serve.or(other.serve),
            tcp: self.tcp.or(other.tcp),
            verbs: self.verbs.or(other.verbs),
            steered: self.steered.or(other.steered),
            shm_dir: self.shm_dir.or(other.shm_dir),
            advertise: self.advertise.or(other.advertise),
            pool: self.pool.or(other.pool),
            huge_pages: self.huge_pages.or(other.huge_pages),
            spin_us: self.spin_us.or(other.spin_us),
            secret: self.secret.or(other.secret),
            tls_ca: self.tls_ca.or(other.tls_ca),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            insecure: self.insecure.or(other.insecure),
        }
    }

    fn config(self) -> Result<Config, Failure> {
        let serve = self.serve.unwrap_or_else(|| vec![Serve::Shm, Serve::Tcp]);
        if serve.is_empty() {
            return Err(Failure::usage("serve names no fabric; there are shm, tcp and verbs"));
        }
        let steered = self.steered.unwrap_or(false);
        if steered && !serve.contains(&Serve::Verbs) {
            return Err(Failure::usage("--steered is for verbs: name them in --serve"));
        }
        let master = self.master.unwrap_or_else(|| DEFAULT_MASTER.into());
        check_address(&master)?;
        let listen = self.listen.unwrap_or_else(|| "127.0.0.1:0".into());
        // Where the control service is, others look for the fabrics, too.
        let beside = listen.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        let beside = format!("{beside}:0");
        let tcp = self.tcp.unwrap_or_else(|| beside.clone());
        let verbs = self.verbs.unwrap_or(beside);
        let shm_dir = self.shm_dir.unwrap_or_else(std::env::temp_dir);
        let keys = secret::of_server(self.secret.as_deref())?;
        let tls =
            tls::of_server(Files { ca: self.tls_ca, cert: self.tls_cert, key: self.tls_key })?;
        if keys.is_none() && !self.insecure.unwrap_or(false) {
            let tcp = serve.contains(&Serve::Tcp).then_some(&*tcp);
            let verbs = serve.contains(&Serve::Verbs).then_some(&*verbs);
            super::check_reach([Some(&*listen), tcp, verbs].into_iter().flatten())?;
        }
        Ok(Config {
            keys,
            tls,
            listen,
            tcp: serve.contains(&Serve::Tcp).then_some(tcp),
            verbs: serve.contains(&Serve::Verbs).then_some(verbs),
            steered,
            shm_dir: serve.contains(&Serve::Shm).then_some(shm_dir),
            advertise: self.advertise,
            master,
            pool_bytes: self.pool.map_or(4 << 30, |pool| pool.0),
            huge_pages: self.huge_pages.unwrap_or(false),
            spin: self
                .spin_us
                .map_or(Config::default().spin, |us| Duration::from_micros(us.into())),
        })
    }
}

/// Runs a memory node until it is told to stop. One that the cluster has given up, because it was
/// silent, joins anew with nothing in it; one that was drained ends.
pub fn run(args: Args) -> Result<(), Failure> {
    super::take_descriptors();
    let config = args.settings.or(read_file(args.config.as_deref())?).config()?;
    memory::warn_of_pools(config.pool_bytes, 1);
    let mut node = start(config)?;
    if args.announce {
        let description = node.description();
        announce(&announcement::MemoryNode {
            control: node.control().to_string(),
            tcp: description.tcp.clone(),
            shm: description.shm.clone(),
            verbs: description.verbs.clone(),
        })?;
    }
    let mut stop = Stop::watch(args.stop_with_stdin)?;
    let mut is_drained = false;
    while let Some(why) = stop.unless(node.expelled()) {
        if why == Dismissal::Drained {
            tracing::warn!("drained: the cluster needs this node no more, it ends");
            is_drained = true;
            break;
        }
        // Sessions that have not heard of it yet must reach nothing that is used anew: another
        // pool, another identity. The addresses stay, as they were announced.
        let config = node.config().cloned().expect("it was started with one");
        node.stop();
        tracing::warn!("starting again, empty");
        node = start(config)?;
    }
    // Whoever ends it with its standard input ends the cluster.
    if let Some(name) = node.name().filter(|_| !is_drained && !args.stop_with_stdin) {
        tracing::warn!(
            "{name} ends, and what it holds with it: for the cluster that is the loss of a memory node; \
             next time run `fusee drain {name}` first, which ends it when it is empty"
        );
    }
    node.stop();
    Ok(())
}

fn start(config: Config) -> Result<MemoryNode, Failure> {
    MemoryNode::start(config)
        .map_err(|error| Failure::operation(format!("the memory node cannot start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_fills_what_flags_leave_open() {
        let file: Settings =
            toml::from_str("pool = 1024\nserve = [\"tcp\"]\nmaster = \"m:1\"").unwrap();
        let flags = Settings { pool: Some(Bytes(4096)), ..Settings::default() };
        let config = flags.or(file).config().unwrap();
        assert_eq!((config.pool_bytes, config.master.as_str()), (4096, "m:1"));
        assert_eq!((config.tcp.is_some(), config.shm_dir), (true, None));
    }

    #[test]
    fn the_fabrics_are_where_the_control_service_is() {
        let at = |listen: &str, tcp: Option<&str>| {
            let (listen, tcp) = (Some(listen.into()), tcp.map(str::to_owned));
            let serve = Some(vec![Serve::Tcp, Serve::Verbs]);
            let settings =
                Settings { listen, tcp, serve, insecure: Some(true), ..Settings::default() };
            let config = settings.config().unwrap();
            (config.tcp.unwrap(), config.verbs.unwrap())
        };
        assert_eq!(at("10.0.0.3:7401", None), ("10.0.0.3:0".into(), "10.0.0.3:0".into()));
        assert_eq!(at("[fd00::1]:0", None).0, "[fd00::1]:0");
        assert_eq!(at("10.0.0.3:7401", Some("10.1.0.3:5")).0, "10.1.0.3:5");
    }

    #[test]
    fn unknown_names_and_wrong_values_are_refused_with_their_line() {
        for (text, line) in [("pool = 1\npol = 2", "line 2"), ("pool = \"much\"", "line 1")] {
            let error = toml::from_str::<Settings>(text).unwrap_err().to_string();
            assert!(error.contains(line), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_a_configuration_or_an_error(
            text in crate::server::any_file::text(crate::server::any_file::names::<Settings>())
        ) {
            let settings = toml::from_str::<Settings>(&text);
            if let Ok(Err(error)) = settings.map(|file| Settings::default().or(file).config()) {
                proptest::prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
