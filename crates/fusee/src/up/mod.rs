//! `fusee up`: runs a whole cluster on this machine, with a process for each server.
//!
//! The servers are children that run this same executable, on loopback addresses, with their files in a new private
//! directory. `up` waits until the cluster is formed, prints all addresses, and continues to run. Whatever ends `up`
//! also ends the servers. On SIGINT, SIGTERM or SIGHUP, `up` closes their standard input, which tells them to stop, and
//! kills servers that do not stop. If `up` itself is killed, the system closes that input. At its end `up` removes the
//! directory; the directory of a killed `up` is removed by the next `up`.
//!
//! `up` ends if its master ends, but continues if a memory node ends.

mod report;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::PathBuf;

use fusee_cli::connect::DEFAULT_PORT;
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::quantity::ByteSize;
use fusee_cli::stderr;
use fusee_client::Fallback;
use fusee_launch::{Child, ClusterDirectory, LaunchPlan, ServerProgram, announcement};
use fusee_master::settings::{
    DEFAULT_LEASE_MS, DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S,
};
use futures_util::future::select_all;
use serde::Deserialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::report::UpReport;
use crate::server::{memory_node, redundancy, settings};
use fusee_cli::memory::PoolMemory;

/// Sizes of regions and blocks that suit small pools.
const REGION_BYTES: u64 = 128 << 20;
const BLOCK_BYTES: u64 = 4 << 20;
/// Difference between the page's port and the master's.
const HTTP_ABOVE: u16 = 10;

/// Arguments of `fusee up`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee up\n  \
    fusee up --memory-nodes 5 --pool 4GiB --port 7500\n  \
    fusee up --memory-nodes 6 --redundancy 16KiB=ec:4+2\n  \
    fusee up --switch\n  \
    fusee up --json > cluster.json &")]
pub struct UpArgs {
    /// Number of memory nodes
    #[arg(long, default_value_t = 3, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=100))]
    memory_nodes: u16,

    /// Replicas of the index, 1 to 5 [default: 3, or as many as there are memory nodes]
    #[arg(long, value_name = "N")]
    index_replicas: Option<u8>,

    /// Replicas of keys and values, 1 to 5 [default: 2, or as many as there are memory nodes]
    #[arg(long, value_name = "N")]
    data_replicas: Option<u8>,

    /// Memory that each node lends; taken from the system as it is lent
    #[arg(long, default_value = "1GiB", value_name = "BYTES")]
    pool: ByteSize,

    /// Take memory from the system as soon as it is lent, and not only as it is used
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = true,
          default_missing_value = "true")]
    populate: bool,

    /// Start even if the pools are larger than the memory of the machine or of the control group
    #[arg(long)]
    overcommit: bool,

    /// Number of keys to size the index for
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    index_keys: u64,

    /// Milliseconds of silence after which a client or memory node is taken for dead; at least 4
    #[arg(long, default_value_t = DEFAULT_LEASE_MS, value_name = "MS")]
    lease: u64,

    /// Rate limit of moves between memory nodes, to even out their shares or to drain one, in bytes a second
    #[arg(long, default_value_t = ByteSize(DEFAULT_MOVE_BYTES_PER_S), value_name = "BYTES")]
    move_bytes_per_s: ByteSize,

    /// Rate limit of the search for damage in unread memory, in bytes a second; 0 turns it off
    #[arg(long, default_value_t = ByteSize(DEFAULT_SCRUB_BYTES_PER_S), value_name = "BYTES")]
    scrub_bytes_per_s: ByteSize,

    /// Redundancy by the length of the value: like `16KiB=ec:4+2`, or `replicated,4KiB=eor:2:4+2,64KiB=ec:4+2`
    /// [default: replicated]
    #[arg(long, value_name = "RULES", value_parser = rules)]
    redundancy: Option<String>,

    /// TOML file with the table `[redundancy]`, as for `fusee master --config`, and nothing else
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Port of the master; 0 is any free one
    #[arg(long, default_value_t = DEFAULT_PORT, value_name = "PORT")]
    port: u16,

    /// Port of the status page and metrics, on 127.0.0.1; 0 is any free one [default: 10 above --port, or any
    /// free one if that is taken]
    #[arg(long, value_name = "PORT")]
    http: Option<u16>,

    /// Fabrics that the memory nodes serve, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp", value_name = "FABRICS")]
    fabric: Vec<memory_node::ServedFabric>,

    /// Add a switch, which sessions use with --switch; the memory nodes have to serve tcp
    #[arg(long)]
    switch: bool,

    /// Print one JSON object with process ids and addresses when ready, instead of a table
    #[arg(long)]
    json: bool,
}

impl UpArgs {
    fn plan(&self) -> LaunchPlan {
        let most = u8::try_from(self.memory_nodes).unwrap_or(u8::MAX);
        LaunchPlan {
            memory_nodes: self.memory_nodes,
            index_replicas: self.index_replicas.unwrap_or(most.min(3)),
            data_replicas: self.data_replicas.unwrap_or(most.min(2)),
            pool_bytes: self.pool.0,
            populate: self.populate,
            index_keys: self.index_keys,
            port: self.port,
            lease_ms: self.lease,
            move_bytes_per_s: self.move_bytes_per_s.0,
            scrub_bytes_per_s: self.scrub_bytes_per_s.0,
            fabrics: self.fabric.iter().map(|serve| (*serve).into()).collect(),
            region_bytes: self.region_bytes(),
            block_bytes: BLOCK_BYTES,
            more: self.for_master(),
        }
    }

    /// Returns the arguments of the master that [`LaunchPlan`] has no fields for.
    fn for_master(&self) -> Vec<String> {
        let rules = self.redundancy.iter().map(|rules| format!("--redundancy={rules}"));
        let config = self.config.iter().map(|file| format!("--config={}", file.display()));
        let http = format!("--http=127.0.0.1:{}", self.http_port());
        rules.chain(config).chain([http]).collect()
    }

    /// Returns the port of the status page. The page has the same port in each run if that port is free.
    fn http_port(&self) -> u16 {
        let beside = self.port.checked_add(HTTP_ABOVE).filter(|_| self.port > 0);
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        self.http.or_else(|| beside.filter(is_free)).unwrap_or(0)
    }

    /// Returns a failure if the master would refuse the policy, or if a rule needs more memory nodes than `up` starts
    /// and no fallback is allowed.
    fn check_policy(&self) -> Result<(), Failure> {
        let UpConfigFile { redundancy } = settings::of_file(self.config.as_deref())?;
        let given = self.redundancy.as_ref().and_then(|rules| rules.parse().ok());
        let table = settings::merge_settings(&redundancy, &given.unwrap_or_default());
        let policy = table.policy().map_err(|error| Failure::usage(error.to_string()))?;
        let rules = &policy.rules;
        let all = rules.by_size().map(|rule| rule.redundancy).chain([rules.default_redundancy()]);
        let needed = all.map(|redundancy| redundancy.places(1)).max().unwrap_or(1);
        let has = usize::from(self.memory_nodes);
        match rules.fallback() {
            Fallback::Refuse if needed > has => Err(Failure::usage(format!(
                "the rules of redundancy need {needed} memory nodes, and --memory-nodes is {has}: raise it, or say \
                 `fallback = \"replicated\"` in the table [redundancy] of --config"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the size of regions. Small pools have smaller regions.
    fn region_bytes(&self) -> u64 {
        let pool = self.pool.0;
        if pool >= REGION_BYTES + REGION_BYTES / 4 {
            REGION_BYTES
        } else {
            (1 << (pool / 4).max(1).ilog2()).max(4 * BLOCK_BYTES)
        }
    }
}

/// The content of the file that `--config` names.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UpConfigFile {
    redundancy: redundancy::RedundancyTable,
}

/// Returns the text if it consists of valid rules.
fn rules(text: &str) -> Result<String, String> {
    text.parse::<redundancy::RedundancyTable>().map(|_| text.to_owned())
}

/// Runs a cluster until a signal ends `up`, or the master ends.
pub fn run(args: &UpArgs, verbose: u8) -> Result<(), Failure> {
    let cannot = |error| Failure::operation(format!("cannot start: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(cannot)?;
    args.plan().check()?;
    args.check_policy()?;
    if args.switch && !args.fabric.contains(&memory_node::ServedFabric::Tcp) {
        return Err(Failure::usage(
            "--switch is for memory nodes that serve tcp: name it in --fabric",
        ));
    }
    check_port(args.port)?;
    let nodes = args.memory_nodes.into();
    PoolMemory { pool_bytes: args.pool.0, nodes, huge_pages: false }.check(args.overcommit)?;
    let directory = ClusterDirectory::create()?;
    let result = runtime.block_on(async {
        let mut end = UpSignals::new().map_err(cannot)?;
        let mut children = Vec::new();
        let result = tokio::select! {
            () = end.asked() => Ok(()),
            result = live(args, verbose, &directory, &mut children) => result,
        };
        fusee_launch::stop_all(children).await;
        result
    });
    drop(directory);
    result
}

/// Reports that the port is in use, earlier and more clearly than the master could.
fn check_port(port: u16) -> Result<(), Failure> {
    match TcpListener::bind(("127.0.0.1", port)) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(Failure::operation(format!(
            "port {port} is in use by another process, perhaps by another `fusee up`; stop that, \
             or choose another port with --port"
        ))),
        Err(error) => {
            Err(Failure::operation(format!("cannot listen at 127.0.0.1:{port}: {error}")))
        }
        Ok(_) => Ok(()),
    }
}

/// Starts all servers, prints the report about them, and waits until the master ends.
async fn live(
    args: &UpArgs,
    verbose: u8,
    directory: &ClusterDirectory,
    children: &mut Vec<Child>,
) -> Result<(), Failure> {
    let program = ServerProgram::this(verbose)?;
    let started = fusee_launch::start(&program, &args.plan(), directory, children).await;
    let started = started.map_err(in_flags)?;
    let switch = if args.switch {
        Some(start_switch(&program, &started.master, children).await?)
    } else {
        None
    };
    let report = UpReport::new(directory, started, children, switch);
    output::text(&if args.json { report.json()? } else { report.table() })?;
    watch(children).await
}

/// Replaces advice by that for the flags of `up`, where the size of regions follows from that of pools.
fn in_flags(failure: Failure) -> Failure {
    let text = failure.to_string();
    let text = text.replace("start them with pools of ", "raise --pool to at least ");
    let text = text.replace(" MiB each, or lower --region-bytes", " MiB");
    Failure::of(failure.code(), text.replace(" MiB each, or lower", " MiB, or lower"))
}

/// Starts a switch in the path to the memory nodes. Returns the address of the switch.
async fn start_switch(
    program: &ServerProgram,
    master: &str,
    children: &mut Vec<Child>,
) -> Result<String, Failure> {
    let arguments = ["switch".into(), format!("--master={master}"), "--listen=127.0.0.1:0".into()];
    let mut child = program.spawn("switch", &arguments)?;
    let announced = child.announcement().await;
    children.push(child);
    Ok(announcement::parse::<announcement::SwitchAnnouncement>(&announced?)?.switch)
}

/// Logs servers that end, and returns when the master has ended.
async fn watch(children: &mut Vec<Child>) -> Result<(), Failure> {
    let master = children[0].pid();
    loop {
        let (name, status) = fusee_launch::first_exit(children).await;
        let dead = children.extract_if(.., |child| child.has_exited());
        if dead.map(|child| child.pid()).any(|pid| pid == master) {
            return Err(Failure::operation(format!("the master ended with {status}")));
        }
        stderr::tell(&format!("{name} ended with {status}; the others go on"));
    }
}

/// The signals that end `up`.
struct UpSignals {
    signals: [Signal; 3],
}

impl UpSignals {
    fn new() -> std::io::Result<UpSignals> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(UpSignals { signals: [interrupt?, terminate?, hangup?] })
    }

    async fn asked(&mut self) {
        let any = self.signals.iter_mut().map(|signal| Box::pin(signal.recv()));
        select_all(any).await;
    }
}
