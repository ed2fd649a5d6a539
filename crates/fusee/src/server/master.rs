//! `fusee master`.

use std::path::PathBuf;

use fusee_cli::connect::{DEFAULT_MASTER, check_address};
use fusee_cli::failure::Failure;
use fusee_cli::flags;
use fusee_cli::quantity::Bytes;
use fusee_cli::secret;
use fusee_cli::tls::{self, Files};
use fusee_client::Geometry;
use fusee_launch::announcement;
use fusee_master::{Config, MasterServer, default_data_dir};
use serde::Deserialize;

use super::redundancy;
use super::stop::Stop;
use super::{announce, read_file};

/// How to run a master.
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
    gets, and when that changes by itself; --redundancy replaces the rules in it.")]
pub struct Args {
    /// Read settings from this TOML file
    #[arg(long, env = "FUSEE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print one JSON line with the address on standard output once the port is open
    #[arg(long)]
    announce: bool,

    /// Stop at the end of standard input, too
    #[arg(long)]
    stop_with_stdin: bool,

    #[command(flatten)]
    settings: Settings,
}

/// Settings, in whatever form.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Settings {
    /// Host and port to listen at [default: 127.0.0.1:7400]
    #[arg(long, env = "FUSEE_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,

    /// Directory of what the master must remember [default: /var/lib/fusee/master for root, otherwise
    /// fusee/master in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, env = "FUSEE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Keep the state in etcd, shared with other masters, instead of in the data directory:
    /// etcd://HOST:PORT,HOST:PORT/PREFIX. Needs a build with `--features etcd`
    #[arg(long, env = "FUSEE_STORE", value_name = "URL")]
    store: Option<String>,

    /// Reach etcd over TLS: the file of the certificates of the authorities (PEM) that its members' have to be of
    #[arg(long, env = "FUSEE_STORE_CA", value_name = "FILE")]
    store_ca: Option<PathBuf>,

    /// With --store-ca: the file of this master's certificate (PEM), where etcd wants one
    #[arg(long, env = "FUSEE_STORE_CERT", value_name = "FILE")]
    store_cert: Option<PathBuf>,

    /// With --store-cert: the file of its key (PEM)
    #[arg(long, env = "FUSEE_STORE_KEY", value_name = "FILE")]
    store_key: Option<PathBuf>,

    /// Host and port under which others reach this master, with --store [default: as it listens]
    #[arg(long, env = "FUSEE_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,

    /// How long a leader that has died stays in office, with --store: 2 to 60 seconds [default: 3]
    #[arg(long, env = "FUSEE_LEASE_TTL_S", value_name = "SECONDS")]
    lease_ttl_s: Option<u64>,

    /// A client or memory node that is silent for so many milliseconds is taken for gone; at least 4
    /// [default: 1000]
    #[arg(long, env = "FUSEE_LEASE", value_name = "MS")]
    lease: Option<u64>,

    /// Bytes a second at most that move between memory nodes to even out their shares, or off one
    /// that is drained [default: 512MiB]
    #[arg(long, env = "FUSEE_MOVE_BYTES_PER_S", value_name = "BYTES")]
    move_bytes_per_s: Option<Bytes>,

    /// Bytes a second at most that are read to find damage where nobody looks; 0: none [default: 4MiB]
    #[arg(long, env = "FUSEE_SCRUB_BYTES_PER_S", value_name = "BYTES")]
    scrub_bytes_per_s: Option<Bytes>,

    /// The cluster is formed when so many memory nodes have joined [default: 3]
    #[arg(long, env = "FUSEE_MEMORY_NODES", value_name = "N")]
    memory_nodes: Option<u32>,

    /// Replicas of the index, 1 to 5 [default: 3]
    #[arg(long, env = "FUSEE_INDEX_REPLICAS", value_name = "N")]
    index_replicas: Option<u8>,

    /// Replicas of keys and values, 1 to 5 [default: 2]
    #[arg(long, env = "FUSEE_DATA_REPLICAS", value_name = "N")]
    data_replicas: Option<u8>,

    /// The number of keys to make the index for [default: 1000000]
    #[arg(long, env = "FUSEE_INDEX_KEYS", value_name = "N")]
    index_keys: Option<u64>,

    /// Size of a region, a power of two [default: 256MiB]
    #[arg(long, env = "FUSEE_REGION_BYTES", value_name = "BYTES")]
    region_bytes: Option<Bytes>,

    /// Size of a block, a power of two up to 16MiB [default: 16MiB]
    #[arg(long, env = "FUSEE_BLOCK_BYTES", value_name = "BYTES")]
    block_bytes: Option<Bytes>,

    /// Buckets of an index subtable, in groups of three; a power of two [default: 1024]
    #[arg(long, env = "FUSEE_GROUPS_PER_SUBTABLE", value_name = "N")]
    groups_per_subtable: Option<u32>,

    /// The longest key [default: 64KiB]
    #[arg(long, env = "FUSEE_MAX_KEY_BYTES", value_name = "BYTES")]
    max_key_bytes: Option<Bytes>,

    /// The longest value [default: 4MiB, or less if a block does not hold one]
    #[arg(long, env = "FUSEE_MAX_VALUE_BYTES", value_name = "BYTES")]
    max_value_bytes: Option<Bytes>,

    /// The redundancy of what is written, by the length of the value: like `16KiB=ec:4+2`, or
    /// `replicated,4KiB=eor:2:4+2,64KiB=ec:4+2` [default: replicated]
    #[arg(long = "redundancy", env = "FUSEE_REDUNDANCY", value_name = "RULES")]
    #[serde(skip)]
    rules: Option<redundancy::Rules>,

    #[arg(skip)]
    redundancy: Option<redundancy::Table>,

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
            listen: self.listen.or(other.listen),
            data_dir: self.data_dir.or(other.data_dir),
            store: self.store.or(other.store),
            store_ca: self.store_ca.or(other.store_ca),
            store_cert: self.store_cert.or(other.store_cert),
            store_key: self.store_key.or(other.store_key),
            advertise: self.advertise.or(other.advertise),
            lease_ttl_s: self.lease_ttl_s.or(other.lease_ttl_s),
            lease: self.lease.or(other.lease),
            move_bytes_per_s: self.move_bytes_per_s.or(other.move_bytes_per_s),
            scrub_bytes_per_s: self.scrub_bytes_per_s.or(other.scrub_bytes_per_s),
            memory_nodes: self.memory_nodes.or(other.memory_nodes),
            index_replicas: self.index_replicas.or(other.index_replicas),
            data_replicas: self.data_replicas.or(other.data_replicas),
            index_keys: self.index_keys.or(other.index_keys),
            region_bytes: self.region_bytes.or(other.region_bytes),
            block_bytes: self.block_bytes.or(other.block_bytes),
            groups_per_subtable: self.groups_per_subtable.or(other.groups_per_subtable),
            max_key_bytes: self.max_key_bytes.or(other.max_key_bytes),
            max_value_bytes: self.max_value_bytes.or(other.max_value_bytes),
            rules: self.rules.or(other.rules),
            redundancy: self.redundancy.or(other.redundancy),
            secret: self.secret.or(other.secret),
            tls_ca: self.tls_ca.or(other.tls_ca),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            insecure: self.insecure.or(other.insecure),
        }
    }

    fn config(self) -> Result<Config, Failure> {
        let Config { geometry, lease_ms, move_bytes_per_s, scrub_bytes_per_s, .. } =
            Config::default();
        let bytes = |given: Option<Bytes>, default: u64| given.map_or(default, |bytes| bytes.0);
        let geometry = Geometry::with_blocks(
            bytes(self.region_bytes, geometry.region_bytes),
            bytes(self.block_bytes, geometry.block_bytes),
        );
        let limit = |name: &str, bytes: Option<Bytes>, default: u32| match bytes {
            None => Ok(default),
            Some(Bytes(bytes)) => u32::try_from(bytes)
                .map_err(|_| Failure::usage(format!("--{name} must be less than 4GiB"))),
        };
        let keys = secret::of_server(self.secret.as_deref())?;
        let tls =
            tls::of_server(Files { ca: self.tls_ca, cert: self.tls_cert, key: self.tls_key })?;
        let listen = self.listen.unwrap_or_else(|| DEFAULT_MASTER.into());
        if keys.is_none() && !self.insecure.unwrap_or(false) {
            super::check_reach([&*listen])?;
        }
        let config = Config {
            keys,
            tls,
            listen,
            data_dir: self.data_dir.or_else(default_data_dir).unwrap_or_default(),
            store: self.store,
            store_ca: self.store_ca,
            store_cert: self.store_cert,
            store_key: self.store_key,
            advertise: self.advertise,
            lease_ttl_s: self.lease_ttl_s.unwrap_or(3),
            lease_ms: self.lease.unwrap_or(lease_ms),
            move_bytes_per_s: self.move_bytes_per_s.map_or(move_bytes_per_s, |b| b.0),
            scrub_bytes_per_s: self.scrub_bytes_per_s.map_or(scrub_bytes_per_s, |b| b.0),
            memory_nodes: self.memory_nodes.unwrap_or(3),
            index_replicas: self.index_replicas.unwrap_or(3),
            data_replicas: self.data_replicas.unwrap_or(2),
            index_keys: self.index_keys.unwrap_or(1_000_000),
            geometry: Geometry {
                groups_per_subtable: self
                    .groups_per_subtable
                    .unwrap_or(geometry.groups_per_subtable),
                max_key_bytes: limit("max-key-bytes", self.max_key_bytes, geometry.max_key_bytes)?,
                max_value_bytes: limit(
                    "max-value-bytes",
                    self.max_value_bytes,
                    geometry.max_value_bytes,
                )?,
                ..geometry
            },
            redundancy: redundancy::policy(self.redundancy, self.rules)?,
        };
        config
            .settings()
            .check()
            .map_err(|error| Failure::usage(flags::in_text(&error.to_string())))?;
        config.check_store().map_err(|error| Failure::usage(flags::in_text(&error.to_string())))?;
        if let Some(advertise) = &config.advertise {
            check_address(advertise)?;
        }
        Ok(config)
    }
}

/// Runs a master until it is told to stop.
pub fn run(args: Args) -> Result<(), Failure> {
    super::take_descriptors();
    let config = args.settings.or(read_file(args.config.as_deref())?).config()?;
    let failed = |error: String| {
        Failure::operation(format!("the master cannot start: {}", flags::in_text(&error)))
    };
    let server = MasterServer::start(config).map_err(|error| failed(error.to_string()))?;
    if args.announce {
        let control = server.addr().map(|at| at.to_string()).unwrap_or_default();
        announce(&announcement::Master { control })?;
    }
    // What cannot remember must not decide, and is of no use: let a supervisor start it again.
    let ended = Stop::watch(args.stop_with_stdin)?.unless(server.ended());
    server.stop();
    match ended {
        None => Ok(()),
        Some(why) => Err(Failure::operation(format!(
            "the master ends: {}. Start it again when that is put right; it goes on from its store",
            flags::in_text(&why)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use fusee_master::settings::LeaseSettings;

    use super::*;

    #[test]
    fn the_file_fills_what_flags_leave_open() {
        let file: Settings =
            toml::from_str("memory-nodes = 5\nindex-keys = 7\nregion-bytes = \"1GiB\"").unwrap();
        let flags = Settings { index_keys: Some(9), ..Settings::default() };
        let config = flags.or(file).config().unwrap();
        assert_eq!((config.memory_nodes, config.index_keys), (5, 9));
        assert_eq!(config.geometry.region_bytes, 1 << 30);
        assert_eq!((config.index_replicas, config.data_replicas), (3, 2));
    }

    #[test]
    fn a_store_that_makes_no_sense_is_refused_before_the_start() {
        let says = |settings: Settings, text: &str| {
            let error = settings.config().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let store = |store: &str| Settings { store: Some(store.into()), ..Settings::default() };
        says(store("zk://a:1"), "write it like etcd://");
        says(Settings { lease_ttl_s: Some(1), ..store("etcd://a/x") }, "--lease-ttl-s is 1");
        #[cfg(not(feature = "etcd"))]
        says(store("etcd://a:2379/x"), "--features etcd");
        #[cfg(feature = "etcd")]
        assert!(store("etcd://a:2379/x").config().is_ok());
    }

    #[test]
    fn the_table_of_redundancy_is_part_of_the_file() {
        let file: Settings = toml::from_str(
            "memory-nodes = 6\n[redundancy]\nfallback = \"replicated\"\n\
             [[redundancy.rules]]\nfrom = \"16KiB\"\nredundancy = \"ec:4+2\"",
        )
        .unwrap();
        let policy = file.clone().config().unwrap().settings().redundancy;
        assert_eq!(policy.rules.of(16 << 10).to_string(), "ec:4+2");
        let flags = Settings { rules: Some("eor:2:4+2".parse().unwrap()), ..Settings::default() };
        let rules = flags.or(file).config().unwrap().settings().redundancy.rules;
        assert_eq!(rules.of(16 << 10).to_string(), "eor:2:4+2");
        assert_eq!(rules.fallback(), fusee_client::Fallback::Replicated);
        let text = "[redundancy]\ndemote = 1";
        let error = toml::from_str::<Settings>(text).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("demote-above"), "{error}");
    }

    #[test]
    fn unknown_names_are_refused_with_their_line() {
        let error = toml::from_str::<Settings>("memory-nodes = 5\nmemorynodes = 3").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("line 2") && text.contains("memorynodes"), "{text}");
    }

    #[test]
    fn the_lease_is_a_second_unless_it_is_set() {
        assert_eq!(
            Settings::default().config().unwrap().settings().lease,
            LeaseSettings::default()
        );
        let file: Settings = toml::from_str("lease = 200").unwrap();
        assert_eq!(Settings::default().or(file).config().unwrap().settings().lease.lease_ms, 200);
        let settings = Settings { lease: Some(3), ..Settings::default() };
        let error = settings.config().unwrap_err().to_string();
        assert!(error.contains("--lease is 3; it must be at least 4"), "{error}");
    }

    #[test]
    fn contradictions_are_refused_before_the_start() {
        let settings = Settings { memory_nodes: Some(2), ..Settings::default() };
        assert!(settings.config().unwrap_err().to_string().contains("lower --index-replicas"));
        let settings = Settings { max_value_bytes: Some(Bytes(1 << 40)), ..Settings::default() };
        assert!(settings.config().unwrap_err().to_string().contains("less than 4GiB"));
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
