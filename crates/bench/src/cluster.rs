//! The cluster that a benchmark measures.
//!
//! A cluster that a benchmark starts is sized from the workload: every write takes a new object, and there is room for
//! all writes of a run, so that no result depends on how fast freed memory is reclaimed (`churn` measures that). The
//! system allocates a page of a pool at its first use, so pages that a run does not touch cost nothing. A run that
//! could use more than the memory of the machine is refused before it starts.

use fusee_cli::connect;
use fusee_cli::failure::Failure;
use fusee_cli::flags;
use fusee_cli::memory::PoolMemory;
use fusee_cli::quantity::ByteSize;
use fusee_client::{
    BlockingClient, Client, EmbeddedOptions, FabricChoice, FabricKind, Geometry, Options,
    Redundancy,
};
use fusee_core::layout::{BlockShape, Object};
use fusee_core::view::View;
use fusee_launch::{self as launch, Servers};
use fusee_master::settings::{
    ClusterSettings, DEFAULT_LEASE_MS, DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S,
    LeaseSettings,
};

use super::args::{ClusterArgs, LoadArgs};
use super::report::MeasuredSetup;
use fusee_workload::KEY_BYTES;

/// Share of the available memory that a run is allowed to use, in percent.
const USABLE_PERCENT: u64 = 85;
/// Additional objects, in percent of the requested writes, because a retry after a conflict writes a new object.
const RETRIES_PERCENT: u64 = 25;

/// Lower bound, in percent, that the plan assumes for the load factor of the subtables by which an index grows.
const LEAST_LOAD_PERCENT: u64 = 25;

/// The writes of a run, as upper bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterDemand {
    /// Maximum number of keys that exist at one time.
    pub keys: u64,
    /// Number of keys for which the index is created; with more keys the index grows.
    pub index_keys: u64,
    /// Objects with key and value, which INSERTs and UPDATEs write.
    pub pairs: u64,
    /// The redundancy of the pairs.
    pub redundancy: Redundancy,
    /// Number of processes that have clients, not counting this process.
    pub processes: u64,
}

/// The sizes of a cluster that satisfies a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchClusterPlan {
    /// Sizes of regions, blocks and subtables.
    pub geometry: Geometry,
    /// Memory of each node, in bytes.
    pub pool_bytes: u64,
    /// Memory of all nodes together that a run really touches, in bytes.
    pub touched_bytes: u64,
    /// Minimum memory of a node, for one region and the node's part of the index, in bytes.
    pub least_pool_bytes: u64,
}

/// Returns the bytes that one write takes on all memory nodes together.
pub fn bytes_per_pair(pair_bytes: usize, data_replicas: u8) -> u64 {
    let class = Object::class(KEY_BYTES, pair_bytes - KEY_BYTES);
    class.map_or(u64::MAX, |class| class.bytes()).saturating_mul(data_replicas.into())
}

/// Returns the number of pairs that a run can write without using more than the available memory.
pub fn affordable_pairs(load: &LoadArgs, cluster: &ClusterArgs, available: Option<u64>) -> u64 {
    let usable = available.unwrap_or(u64::MAX) / 100 * USABLE_PERCENT;
    // Half of the usable memory is left for the index, the unused ends of blocks and the benchmark's logs.
    let objects = usable / 2 / bytes_per_pair(load.pair_bytes, cluster.data_replicas());
    objects * 100 / (100 + RETRIES_PERCENT)
}

/// Computes the sizes of a cluster that satisfies a demand.
pub fn plan(
    demand: ClusterDemand,
    load: &LoadArgs,
    cluster: &ClusterArgs,
) -> Result<BenchClusterPlan, Failure> {
    let geometry = EmbeddedOptions::default().geometry;
    let settings = ClusterSettings {
        memory_nodes: cluster.memory_nodes.into(),
        index_replicas: cluster.index_replicas(),
        data_replicas: cluster.data_replicas(),
        index_keys: demand.index_keys,
        geometry,
        lease: LeaseSettings::default(),
        move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
        scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
        redundancy: Default::default(),
    };
    settings.check().map_err(|error| Failure::usage(flags::with_flag_names(&error.to_string())))?;
    // Each thread, each process with clients (this one included) and the verifier have a session with an open block.
    let sessions = u64::from(load.threads) + demand.processes + 2;
    let objects = |count: u64| count + count * RETRIES_PERCENT / 100;
    let value_bytes = load.pair_bytes - KEY_BYTES;
    let redundancy = demand.redundancy;
    let pair_blocks = blocks(&geometry, redundancy, objects(demand.pairs), value_bytes, sessions)?;
    let regions = |blocks: u64| {
        blocks.div_ceil(u64::from(geometry.frames_per_region() >> geometry.max_order())) + 1
    };
    let replicas = u64::from(cluster.data_replicas());
    let places = redundancy.places(cluster.data_replicas().into()) as u64;
    let nodes = u64::from(cluster.memory_nodes);
    // A new cluster has at least one replicated region for each node.
    let replicated = if redundancy == Redundancy::default() { 0 } else { nodes };
    let extents = regions(pair_blocks) * places + replicated * replicas;
    let index_bytes = settings.subtables() * geometry.subtable_bytes();
    let grown_bytes = grown_index_bytes(&demand, &geometry);
    // The regions are spread evenly over the nodes, and a node holds at most one replica of each subtable. One more
    // region is added because extents are aligned.
    let regions_per_node = extents.div_ceil(nodes) + 1;
    let region_bytes = regions_per_node * geometry.region_bytes;
    // Room for the growth of the index, and for one or two regions that are reserved while the index grows.
    let pool_bytes = region_bytes + index_bytes + 2 * grown_bytes;
    let touched_bytes = pair_blocks * places * geometry.block_bytes
        + (index_bytes + grown_bytes) * u64::from(cluster.index_replicas());
    let least_pool_bytes = geometry.region_bytes + index_bytes;
    Ok(BenchClusterPlan { geometry, pool_bytes, touched_bytes, least_pool_bytes })
}

/// Returns by how many bytes one replica of the index can grow beyond its size at creation.
fn grown_index_bytes(demand: &ClusterDemand, geometry: &Geometry) -> u64 {
    if demand.keys <= demand.index_keys {
        return 0;
    }
    let slots = demand.keys.saturating_mul(100) / LEAST_LOAD_PERCENT;
    slots.div_ceil(geometry.subtable_slots()) * geometry.subtable_bytes()
}

fn blocks(
    geometry: &Geometry,
    redundancy: Redundancy,
    objects: u64,
    value_bytes: usize,
    sessions: u64,
) -> Result<u64, Failure> {
    if objects == 0 {
        return Ok(0);
    }
    let fits = value_bytes <= geometry.max_value_bytes as usize;
    let class = redundancy.class(KEY_BYTES, value_bytes).filter(|_| fits);
    let shape = class.and_then(|class| BlockShape::new(geometry.block_bytes, class));
    let Some(shape) = shape else {
        return Err(Failure::usage(format!(
            "--pair-bytes is {}; values have at most {} bytes",
            KEY_BYTES + value_bytes,
            geometry.max_value_bytes
        )));
    };
    Ok(objects.div_ceil(shape.objects.into()) + sessions)
}

/// The options that a user can lower to make a run fit.
const LESS: &str = "--operations, --keys, --pair-bytes or --data-replicas";

/// Refuses a run that does not fit into the available memory; `less` names the options to lower.
pub fn check_memory(touched_bytes: u64, less: &str, available: Option<u64>) -> Result<(), Failure> {
    let Some(available) = available else { return Ok(()) };
    let usable = available / 100 * USABLE_PERCENT;
    if touched_bytes <= usable {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "this benchmark writes up to {} of new objects and the machine has {} available, of which \
         {USABLE_PERCENT} % may be used; lower {less}",
        ByteSize(touched_bytes),
        ByteSize(available),
    )))
}

/// The cluster that is measured.
pub struct MeasuredCluster {
    /// A client of the cluster. As the first field, it is dropped before the servers end.
    pub client: BlockingClient,
    /// The processes of the cluster, if the benchmark started them.
    pub servers: Option<Servers>,
}

impl MeasuredCluster {
    /// Describes the cluster for the report.
    pub fn describe(&self, cluster: &ClusterArgs) -> MeasuredSetup {
        let started = self.servers.is_some();
        MeasuredSetup::of(&self.client, started, cluster.master.is_none() && !started)
    }
}

/// Joins the cluster that is to be measured, or starts it.
pub fn open(
    demand: ClusterDemand,
    load: &LoadArgs,
    cluster: &ClusterArgs,
    available: Option<u64>,
) -> Result<MeasuredCluster, Failure> {
    let mut options = Options::default()
        .with_fabric(cluster.fabric)
        .with_cache_entries(load.cache_entries)
        .with_cache_per_session(load.cache_per_session)
        .with_cache_threshold(load.cache_threshold)
        .with_work_table(load.work_table);
    options.switch = cluster.switch.as_deref().map(Into::into);
    if let Some(master) = &cluster.master {
        let client = connect::join(master, options)?;
        check_capacity(demand, load, &client.view())?;
        return Ok(MeasuredCluster { client, servers: None });
    }
    let plan = plan(demand, load, cluster)?;
    let (pool_bytes, touched_bytes) = match cluster.pool {
        None => (plan.pool_bytes, plan.touched_bytes),
        Some(ByteSize(pool)) => {
            (pool, plan.touched_bytes.min(pool.saturating_mul(cluster.memory_nodes.into())))
        }
    };
    check_pool(pool_bytes, plan.least_pool_bytes)?;
    if cluster.pool.is_some() {
        // Pages that the run does not touch cost nothing, so pools larger than the memory cause only a warning.
        let nodes = cluster.memory_nodes.into();
        PoolMemory { pool_bytes, nodes, huge_pages: false }.check(true)?;
    }
    check_memory(touched_bytes, LESS, available)?;
    let fabric = match cluster.fabric {
        FabricChoice::Auto => FabricKind::Shm,
        FabricChoice::Only(kind) => kind,
    };
    if demand.processes > 0 {
        let plan = BenchClusterPlan { pool_bytes, ..plan };
        let servers = start_servers(demand, cluster, &plan, fabric)?;
        let options = options.with_fabric(fabric);
        let client = connect::join(servers.master(), options)?;
        return Ok(MeasuredCluster { client, servers: Some(servers) });
    }
    let embedded = EmbeddedOptions::default()
        .with_memory_nodes(cluster.memory_nodes)
        .with_index_replicas(cluster.index_replicas())
        .with_data_replicas(cluster.data_replicas())
        .with_fabric(fabric)
        .with_pool_bytes(pool_bytes)
        .with_geometry(plan.geometry)
        .with_index_keys(demand.index_keys)
        .with_client(options);
    let client = Client::embedded(embedded).map_err(|error| match cluster.pool {
        // All other settings have been checked, so the error is about `--pool`.
        Some(_) => Failure::usage(flags::with_flag_names(&error.to_string())),
        None => error.into(),
    })?;
    Ok(MeasuredCluster { client: client.blocking(), servers: None })
}

/// Starts the processes of a cluster.
fn start_servers(
    demand: ClusterDemand,
    cluster: &ClusterArgs,
    plan: &BenchClusterPlan,
    fabric: FabricKind,
) -> Result<Servers, Failure> {
    Servers::start(&launch::LaunchPlan {
        memory_nodes: cluster.memory_nodes,
        index_replicas: cluster.index_replicas(),
        data_replicas: cluster.data_replicas(),
        // Each pool is a whole number of regions. Then as many regions fit if the index is at the beginning of the pool
        // as if it is at the end. Thus a memory node that replaces another one, and receives the index before the
        // regions, can hold as much as the other one.
        pool_bytes: plan.pool_bytes.next_multiple_of(plan.geometry.region_bytes),
        populate: false,
        index_keys: demand.index_keys,
        port: 0,
        lease_ms: DEFAULT_LEASE_MS,
        move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
        scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
        fabrics: vec![fabric],
        region_bytes: plan.geometry.region_bytes,
        block_bytes: plan.geometry.block_bytes,
        more: Vec::new(),
    })
}

/// Returns the length of the longest key that the cluster accepts.
pub fn max_key_bytes(cluster: &ClusterArgs) -> Result<usize, Failure> {
    let geometry = match &cluster.master {
        None => EmbeddedOptions::default().geometry,
        Some(master) => {
            let options = Options::default().with_fabric(cluster.fabric);
            connect::join(master, options)?.view().geometry
        }
    };
    Ok(geometry.max_key_bytes as usize)
}

/// Refuses pairs that even an empty cluster cannot hold at one time. The cluster uses the memory of replaced pairs
/// again, so all writes of a run together are allowed to take many times the memory.
fn check_capacity(demand: ClusterDemand, load: &LoadArgs, view: &View) -> Result<(), Failure> {
    let geometry = &view.geometry;
    let value_bytes = load.pair_bytes - KEY_BYTES;
    let blocks = blocks(geometry, demand.redundancy, demand.keys, value_bytes, 0)?;
    // The largest number of replicas of an existing replicated region; new replicated regions get as many replicas.
    let replicated = view.regions.iter().filter(|r| r.redundancy() == Redundancy::default());
    let replicas = replicated.map(|region| region.places().len()).max().unwrap_or(1);
    let replicas = demand.redundancy.places(replicas);
    let needed = blocks.saturating_mul(geometry.block_bytes).saturating_mul(replicas as u64);
    let lent: u64 = view.members.iter().map(|member| member.pool_bytes).sum();
    if needed <= lent {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "this benchmark keeps {} of pairs on {replicas} replicas, and the memory nodes of the cluster lend \
         {} together; lower --keys, --operations or --pair-bytes, or start more memory nodes",
        ByteSize(needed),
        ByteSize(lent),
    )))
}

/// Refuses a `--pool` that is too small for one region and the index.
fn check_pool(pool_bytes: u64, least: u64) -> Result<(), Failure> {
    if pool_bytes >= least {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--pool is {}; a memory node of this cluster needs at least {}",
        ByteSize(pool_bytes),
        ByteSize(least)
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ClusterTestArgs {
        #[command(flatten)]
        cluster: ClusterArgs,
        #[command(flatten)]
        load: LoadArgs,
    }

    fn args(line: &str) -> ClusterTestArgs {
        ClusterTestArgs::parse_from(["bench"].into_iter().chain(line.split_whitespace()))
    }

    fn demand(keys: u64, pairs: u64) -> ClusterDemand {
        ClusterDemand { keys, index_keys: keys, pairs, ..ClusterDemand::default() }
    }

    #[test]
    fn the_planned_pools_hold_all_writes_but_not_many_times_as_much() {
        for line in ["", "--memory-nodes 5", "--data-replicas 3", "--pair-bytes 40", "--threads 1"]
        {
            let args = args(line);
            let demand = demand(100_000, 1_000_000);
            let plan = plan(demand, &args.load, &args.cluster).unwrap();
            let needed =
                1_000_000 * bytes_per_pair(args.load.pair_bytes, args.cluster.data_replicas());
            let pools = plan.pool_bytes * u64::from(args.cluster.memory_nodes);
            assert!(pools > needed * 5 / 4, "{line}: {plan:?}");
            assert!(plan.touched_bytes >= needed, "{line}: {plan:?}");
            let spare = plan.geometry.region_bytes * 4 * u64::from(args.cluster.memory_nodes);
            assert!(pools < needed * 2 + spare, "{line}: {plan:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_way_out() {
        let args = args("");
        let demand = demand(1, 1_000_000);
        let plan = plan(demand, &args.load, &args.cluster).unwrap();
        assert!(check_memory(plan.touched_bytes, LESS, Some(100 << 30)).is_ok());
        let refused =
            check_memory(plan.touched_bytes, LESS, Some(1 << 30)).unwrap_err().to_string();
        assert!(refused.contains("lower --operations"), "{refused}");
        let pairs = affordable_pairs(&args.load, &args.cluster, Some(1 << 30));
        let demand = self::demand(1, pairs);
        let plan = super::plan(demand, &args.load, &args.cluster).unwrap();
        assert!(check_memory(plan.touched_bytes, LESS, Some(1 << 30)).is_ok());
    }

    #[test]
    fn impossible_clusters_and_pairs_are_refused() {
        let demand = demand(1, 1);
        for (line, says) in [
            ("--memory-nodes 2 --index-replicas 3", "--index-replicas is 3"),
            ("--data-replicas 0", "--data-replicas is 0; it must be 1..=5"),
            ("--pair-bytes 3000000", "values have at most 2097152"),
        ] {
            let args = args(line);
            let refused = plan(demand, &args.load, &args.cluster).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
