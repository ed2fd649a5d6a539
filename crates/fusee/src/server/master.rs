//! `fusee master`: runs a master.

use std::path::PathBuf;

use clap::ArgAction;
use fusee_cli::connect::{DEFAULT_MASTER, check_address, check_host_port};
use fusee_cli::failure::Failure;
use fusee_cli::flags;
use fusee_cli::quantity::ByteSize;
use fusee_cli::secret;
use fusee_cli::tls;
use fusee_client::Geometry;
use fusee_launch::announcement;
use fusee_master::settings::DEFAULT_LEASE_MS;
use fusee_master::{MasterConfig, MasterServer, default_data_dir};
use serde::{Deserialize, Serialize};

use super::announce;
use super::redundancy;
use super::reload::Reloader;
use super::settings::problem::SettingProblems;
use super::settings::{self, GivenSettings, LIVE};
use super::signals::{ServerSignals, WakeReason};
use crate::http::{ClusterPages, HttpServer};
use fusee_cli::logging::LogFilter;

/// Time to live of the leader's lease in etcd, in seconds.
const DEFAULT_LEASE_TTL_S: u64 = 3;

/// Arguments of `fusee master`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee master --memory-nodes 3 --data-dir /var/lib/fusee\n  \
    fusee master --config master.toml\n  \
    fusee master --memory-nodes 6 --redundancy 16KiB=ec:4+2\n  \
    fusee master --listen 10.0.0.1:7400 --store etcd://10.0.0.5:2379,10.0.0.6:2379/fusee\n\n\
    A master goes on with the cluster in its store. Over an empty store it waits for `fusee form`,\n\
    which forms a new cluster; --memory-nodes and what follows below take effect then.\n\n\
    With --store, start the same on other machines: one of the masters leads, the others stand\n\
    by. Give all their addresses to --master of memory nodes and tools.\n\n\
    The file holds the same names, e.g. `memory-nodes = 3`. Flags beat the environment,\n\
    the environment beats the file. Its table `[redundancy]` says which redundancy what is written\n\
    gets, and when that changes by itself; --redundancy replaces the rules in it. On SIGHUP a master\n\
    reads its file again; `fusee config` checks a file, and shows what is in force.")]
pub struct MasterArgs {
    #[command(flatten)]
    given: GivenSettings<MasterServerSettings>,

    /// Print one JSON line with the address on standard output once the port is open
    #[arg(long)]
    announce: bool,

    /// Stop at the end of standard input, too
    #[arg(long)]
    stop_with_stdin: bool,
}

/// Settings of a master, from command line, environment, file and defaults.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct MasterServerSettings {
    /// Host and port to listen at
    #[arg(long, env = "FUSEE_LISTEN", default_value = DEFAULT_MASTER, value_name = "HOST:PORT")]
    listen: String,

    /// Directory of the master's store [default: /var/lib/fusee/master for root, otherwise fusee/master in
    /// $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, env = "FUSEE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Keep the state in etcd, shared with other masters, instead of in the data directory:
    /// etcd://HOST:PORT,HOST:PORT/PREFIX. Needs a build with `--features etcd`
    #[arg(long, env = "FUSEE_STORE", value_name = "URL")]
    store: Option<String>,

    /// Reach etcd over TLS; PEM file of the CA certificates that sign its members
    #[arg(long, env = "FUSEE_STORE_CA", value_name = "FILE")]
    store_ca: Option<PathBuf>,

    /// With --store-ca: PEM file of this master's client certificate, if etcd requires one
    #[arg(long, env = "FUSEE_STORE_CERT", value_name = "FILE")]
    store_cert: Option<PathBuf>,

    /// With --store-cert: PEM file of that certificate's private key
    #[arg(long, env = "FUSEE_STORE_KEY", value_name = "FILE")]
    store_key: Option<PathBuf>,

    /// Host and port under which others reach this master, with --store [default: as --listen]
    #[arg(long, env = "FUSEE_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,

    /// Leader's lease in seconds, with --store: 2 to 60; the time until a dead leader is replaced [default: 3]
    #[arg(long, env = "FUSEE_LEASE_TTL_S", value_name = "SECONDS")]
    lease_ttl_s: Option<u64>,

    /// Milliseconds of silence after which a client or memory node is taken for dead; at least 4
    #[arg(long, env = "FUSEE_LEASE", default_value_t = DEFAULT_LEASE_MS, value_name = "MS")]
    lease: u64,

    /// Number of memory nodes that form the cluster
    #[arg(long, env = "FUSEE_MEMORY_NODES", default_value_t = 3, value_name = "N")]
    memory_nodes: u32,

    /// Replicas of the index, 1 to 5
    #[arg(long, env = "FUSEE_INDEX_REPLICAS", default_value_t = 3, value_name = "N")]
    index_replicas: u8,

    /// Replicas of keys and values, 1 to 5
    #[arg(long, env = "FUSEE_DATA_REPLICAS", default_value_t = 2, value_name = "N")]
    data_replicas: u8,

    /// Number of keys to size the index for
    #[arg(long, env = "FUSEE_INDEX_KEYS", default_value_t = 1_000_000, value_name = "N")]
    index_keys: u64,

    /// Size of a region, a power of two
    #[arg(long, env = "FUSEE_REGION_BYTES", default_value = "256MiB", value_name = "BYTES")]
    region_bytes: ByteSize,

    /// Size of a block, a power of two up to 16MiB
    #[arg(long, env = "FUSEE_BLOCK_BYTES", default_value = "16MiB", value_name = "BYTES")]
    block_bytes: ByteSize,

    /// Buckets of an index subtable, in groups of three; a power of two
    #[arg(long, env = "FUSEE_GROUPS_PER_SUBTABLE", default_value_t = 1024, value_name = "N")]
    groups_per_subtable: u32,

    /// Maximum length of a key
    #[arg(long, env = "FUSEE_MAX_KEY_BYTES", default_value = "64KiB", value_name = "BYTES")]
    max_key_bytes: ByteSize,

    /// Maximum length of a value [default: 4MiB, or less if a block does not hold one]
    #[arg(long, env = "FUSEE_MAX_VALUE_BYTES", value_name = "BYTES")]
    max_value_bytes: Option<ByteSize>,

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

    /// Rate limit of moves between memory nodes, to even out their shares or to drain one, in bytes a second
    #[arg(long, env = "FUSEE_MOVE_BYTES_PER_S", default_value = "512MiB", value_name = "BYTES")]
    #[arg(help_heading = LIVE)]
    move_bytes_per_s: ByteSize,

    /// Rate limit of the search for damage in unread memory, in bytes a second; 0 turns it off
    #[arg(long, env = "FUSEE_SCRUB_BYTES_PER_S", default_value = "4MiB", value_name = "BYTES")]
    #[arg(help_heading = LIVE)]
    scrub_bytes_per_s: ByteSize,

    /// Redundancy by the length of the value: like `16KiB=ec:4+2`, or `replicated,4KiB=eor:2:4+2,64KiB=ec:4+2`
    /// [default: replicated]
    #[arg(long, env = "FUSEE_REDUNDANCY", value_name = "RULES", help_heading = LIVE)]
    redundancy: Option<redundancy::RedundancyTable>,

    /// Log filter, as for RUST_LOG, which overrides -v; both override the file [default: info, or more with -v]
    #[arg(long, env = "RUST_LOG", value_name = "FILTER", help_heading = LIVE)]
    log: Option<LogFilter>,
}

impl Default for MasterServerSettings {
    fn default() -> MasterServerSettings {
        settings::defaults()
    }
}

impl settings::ServerSettings for MasterServerSettings {
    type Config = MasterConfig;

    fn log(&self) -> Option<&LogFilter> {
        self.log.as_ref()
    }

    fn filled(mut self) -> MasterServerSettings {
        self.data_dir = self.data_dir.or_else(default_data_dir);
        if self.store.is_some() {
            self.lease_ttl_s.get_or_insert(DEFAULT_LEASE_TTL_S);
        }
        let geometry = Geometry::with_blocks(self.region_bytes.0, self.block_bytes.0);
        self.max_value_bytes.get_or_insert(ByteSize(geometry.max_value_bytes.into()));
        self.redundancy = Some(self.redundancy.unwrap_or_default().filled());
        self.log.get_or_insert(LogFilter::of_server(0));
        self
    }

    fn config(&self) -> Result<MasterConfig, SettingProblems> {
        let mut wrong = SettingProblems::default();
        let filled = self.clone().filled();
        let keys = wrong.about("secret", secret::of_server(self.secret.as_deref())).flatten();
        let files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        let tls = wrong.note(tls::of_server(files.map(Clone::clone))).flatten();
        let is_open = keys.is_none() && !self.insecure && self.secret.is_none();
        if is_open {
            wrong.about("listen", super::check_reach([&*self.listen]));
        }
        wrong.about("listen", check_host_port(&self.listen));
        wrong.about("http", self.http.as_deref().map_or(Ok(()), check_host_port));
        wrong.about("advertise", self.advertise.as_deref().map_or(Ok(()), check_address));
        let alone = self.lease_ttl_s.is_some() && self.store.is_none();
        let what = "--lease-ttl-s is for masters that share a store: name that with --store";
        wrong.about("lease-ttl-s", if alone { Err(what) } else { Ok(()) });
        let geometry = Geometry::with_blocks(self.region_bytes.0, self.block_bytes.0);
        let mut limit = |name: &str, bytes: ByteSize| {
            let number = u32::try_from(bytes.0);
            wrong.about(name, number.map_err(|_| format!("--{name} must be less than 4GiB")))
        };
        let max_key_bytes = limit("max-key-bytes", self.max_key_bytes);
        let max_value_bytes = filled.max_value_bytes.and_then(|b| limit("max-value-bytes", b));
        let policy = wrong.note(filled.redundancy.unwrap_or_default().policy());
        let config = MasterConfig {
            keys,
            tls,
            listen: self.listen.clone(),
            data_dir: filled.data_dir.unwrap_or_default(),
            store: self.store.clone(),
            store_ca: self.store_ca.clone(),
            store_cert: self.store_cert.clone(),
            store_key: self.store_key.clone(),
            advertise: self.advertise.clone(),
            lease_ttl_s: self.lease_ttl_s.unwrap_or(DEFAULT_LEASE_TTL_S),
            lease_ms: self.lease,
            move_bytes_per_s: self.move_bytes_per_s.0,
            scrub_bytes_per_s: self.scrub_bytes_per_s.0,
            memory_nodes: self.memory_nodes,
            index_replicas: self.index_replicas,
            data_replicas: self.data_replicas,
            index_keys: self.index_keys,
            geometry: Geometry {
                groups_per_subtable: self.groups_per_subtable,
                max_key_bytes: max_key_bytes.unwrap_or(geometry.max_key_bytes),
                max_value_bytes: max_value_bytes.unwrap_or(geometry.max_value_bytes),
                ..geometry
            },
            redundancy: policy.unwrap_or_default(),
        };
        let in_text = |error: &dyn ToString| flags::with_flag_names(&error.to_string());
        wrong.note(config.settings().check().map_err(|error| in_text(&error)));
        wrong.note(config.check_store().map_err(|error| in_text(&error)));
        wrong.into_result(config)
    }
}

/// Runs a master until a signal or an error ends it.
pub fn run(args: MasterArgs) -> Result<(), Failure> {
    super::take_descriptors();
    let mut stop = ServerSignals::watch(args.stop_with_stdin, args.given.has_file())?;
    let (mut reloader, config) = Reloader::new(args.given)?;
    let (http, advertised) = {
        let settings = reloader.settings();
        (settings.http.clone(), settings.advertise.clone())
    };
    let failed = |error: String| {
        Failure::operation(format!("the master cannot start: {}", flags::with_flag_names(&error)))
    };
    let mut server = MasterServer::start(config).map_err(|error| failed(error.to_string()))?;
    let control = server.addr().map(|at| at.to_string()).unwrap_or_default();
    let pages = || ClusterPages::new(server.runtime(), server.inside(), server.times());
    let serve =
        |at: String| HttpServer::serve(server.runtime(), &at, advertised.as_deref(), pages());
    let http = http.map(serve).transpose()?;
    if args.announce {
        announce(&announcement::MasterAnnouncement {
            control,
            http: http.as_ref().map(HttpServer::addr),
        })?;
    }
    let ended = loop {
        match stop.wait(server.ended()) {
            WakeReason::Stop => {
                server.finish();
                break None;
            }
            WakeReason::Abandoned => break None,
            // A master that cannot store its state must not decide. It ends with a failure, so that a supervisor
            // restarts it.
            WakeReason::Event(why) => break Some(why),
            WakeReason::Hangup => {
                if let Some(config) = reloader.again() {
                    server.adjust(&config.settings());
                }
            }
        }
    };
    drop(http);
    server.stop();
    match ended {
        None => Ok(()),
        Some(why) => Err(Failure::operation(format!(
            "the master ends: {}. Start it again when that is put right; it goes on from its store",
            flags::with_flag_names(&why)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use fusee_master::settings::LeaseSettings;

    use super::*;
    use crate::server::random_settings;
    use crate::server::settings::tests::{all_settings, of_text};

    fn config(text: &str) -> Result<MasterConfig, String> {
        of_text::<MasterServerSettings>(text)?.config().map_err(|problems| problems.to_string())
    }

    #[test]
    fn settings_are_complete() {
        all_settings::<MasterServerSettings>();
    }

    #[test]
    fn the_defaults_are_those_of_a_master() {
        assert_eq!(config(""), Ok(MasterConfig::default()));
    }

    #[test]
    fn a_store_that_makes_no_sense_is_refused_before_the_start() {
        let says = |text: &str, says: &str| {
            let error = config(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        says("store = \"zk://a:1\"", "write it like etcd://");
        says("store = \"etcd://a/x\"\nlease-ttl-s = 1", "f:2:1: --lease-ttl-s is 1");
        says("lease-ttl-s = 3", "f:1:1: --lease-ttl-s is for masters that share a store");
        #[cfg(not(feature = "etcd"))]
        says("store = \"etcd://a:2379/x\"", "--features etcd");
        #[cfg(feature = "etcd")]
        assert!(config("store = \"etcd://a:2379/x\"").is_ok());
    }

    #[test]
    fn the_table_of_redundancy_is_part_of_the_file() {
        let text = "memory-nodes = 6\n[redundancy]\nfallback = \"replicated\"\n\
             [[redundancy.rules]]\nfrom = \"16KiB\"\nredundancy = \"ec:4+2\"";
        let policy = config(text).unwrap().redundancy;
        assert_eq!(policy.rules.of(16 << 10).to_string(), "ec:4+2");
        assert_eq!(policy.rules.fallback(), fusee_client::Fallback::Replicated);
        let error = config("[redundancy]\ndemote = 1").unwrap_err();
        assert!(error.contains("f:2:1") && error.contains("demote-above"), "{error}");
        let error = config("[redundancy]\npromote-after = 1").unwrap_err();
        assert!(error.starts_with("f:2:1: redundancy.promote-after is 1"), "{error}");
    }

    #[test]
    fn the_lease_is_a_second_unless_it_is_set() {
        assert_eq!(config("").unwrap().settings().lease, LeaseSettings::default());
        assert_eq!(config("lease = 200").unwrap().settings().lease.lease_ms, 200);
        let error = config("lease = 3").unwrap_err();
        assert_eq!(error, "f:1:1: --lease is 3; it must be at least 4");
    }

    #[test]
    fn contradictions_are_refused_before_the_start() {
        for (text, says) in [
            ("\nmemory-nodes = 2", "f:2:1: --index-replicas is 3, but --memory-nodes is 2"),
            ("max-value-bytes = \"1TiB\"", "f:1:1: --max-value-bytes must be less than 4GiB"),
            ("listen = \"here\"", "f:1:1: `here` is no address"),
            ("listen = \"0.0.0.0:1\"", "f:1:1: 0.0.0.0:1 may be reached from other machines"),
            ("region-bytes = 5000", "f:1:1: --region-bytes must be a power of two"),
            ("secret = \"/no/such\"", "f:1:1: /no/such: "),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        let both = "lease = 3\nlisten = \"x\"\nsecret = \"/no/such\"";
        assert_eq!(config(both).unwrap_err().lines().count(), 3);
    }

    proptest::proptest! {
        // Promise SEC-2: Any file is a configuration or an error; any text a size.
        #[test]
        fn any_file_is_a_configuration_or_an_error(
            text in random_settings::text(random_settings::names::<MasterServerSettings>())
        ) {
            if let Err(error) = config(&text) {
                proptest::prop_assert!(error.starts_with("f:"), "{}", error);
            }
        }
    }
}
