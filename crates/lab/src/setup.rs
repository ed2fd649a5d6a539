//! Setups and results. A setup is a system on modelled hardware, with the operations of its clients.

use std::fmt;
use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_core::data::{Redundancy, RedundancyRules};
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Nanos, Rng, Testbed};
use fusee_workload::{Distribution, KEY_BYTES, WorkloadOperation, YcsbWorkload};
use serde::Serialize;

/// Systems that the lab can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabSystem {
    /// FUSEE as this project implements it.
    Fusee,
    /// FUSEE as published. Without an index cache it is FUSEE-NC.
    Published,
    /// FUSEE-CR: writers CAS the replicas of a slot one after the other.
    OneByOne,
    /// FUSEE as published, but memory nodes allocate every object.
    NodesAllocate,
    /// Clover.
    Clover,
    /// pDPM-Direct.
    PdpmDirect,
    /// One object under a remote lock.
    Lock,
    /// One object behind a sequencer.
    Sequencer,
}

impl LabSystem {
    /// Returns whether the system can fail to find a key that was inserted. For such a system that is no error: FUSEE
    /// as published breaks this promise ([`fusee_baselines::published`]).
    pub(crate) fn misses_keys(self) -> bool {
        matches!(self, LabSystem::Published | LabSystem::OneByOne | LabSystem::NodesAllocate)
    }

    /// Returns the system's name in figures.
    pub fn name(self) -> &'static str {
        match self {
            LabSystem::Fusee => "ours",
            LabSystem::Published => "as published",
            LabSystem::OneByOne => "FUSEE-CR",
            LabSystem::NodesAllocate => "nodes allocate",
            LabSystem::Clover => "Clover",
            LabSystem::PdpmDirect => "pDPM-Direct",
            LabSystem::Lock => "lock",
            LabSystem::Sequencer => "sequencer",
        }
    }
}

/// The kinds of operations that clients execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabLoad {
    /// Operations in the proportions of a YCSB workload.
    Ycsb(YcsbWorkload),
    /// Operations of one kind only. INSERTs use new keys, and each DELETE uses another key.
    Only(WorkloadOperation),
    /// Moves: each key in turn gets another redundancy.
    Moves {
        /// The redundancy that the pairs of all keys get after they are loaded.
        from: Redundancy,
        /// The redundancy that the counted Moves give.
        to: Redundancy,
    },
}

/// One operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabStep {
    Request(WorkloadOperation),
    Move(Redundancy),
}

impl LabStep {
    /// Returns the kind's name in figures.
    pub fn name(self) -> &'static str {
        match self {
            LabStep::Request(WorkloadOperation::Search) => "search",
            LabStep::Request(WorkloadOperation::Update) => "update",
            LabStep::Request(WorkloadOperation::Insert) => "insert",
            LabStep::Request(WorkloadOperation::Delete) => "delete",
            LabStep::Move(_) => "move",
        }
    }
}

impl LabLoad {
    /// Draws the next operation of a client.
    pub(crate) fn draw(self, rng: &Rng) -> LabStep {
        match self {
            LabLoad::Ycsb(workload) => LabStep::Request(rng.with(|rng| workload.draw(rng))),
            LabLoad::Only(request) => LabStep::Request(request),
            LabLoad::Moves { to, .. } => LabStep::Move(to),
        }
    }

    /// Returns the distribution that operations use to choose existing keys.
    pub(crate) fn distribution(self) -> Distribution {
        match self {
            LabLoad::Ycsb(workload) => workload.distribution(),
            LabLoad::Only(_) | LabLoad::Moves { .. } => Distribution::Zipfian,
        }
    }
}

impl fmt::Display for LabLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabLoad::Ycsb(workload) => write!(f, "{workload}"),
            LabLoad::Only(request) => write!(f, "only {}", LabStep::Request(*request).name()),
            LabLoad::Moves { from, to } => write!(f, "moves from {from} to {to}"),
        }
    }
}

/// A switch between clients and memory nodes, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabSwitch {
    /// For Clover, as published (see `fusee_switch::clover::ChainTrust::Sent`).
    Sent {
        /// Number of keys whose last entry the switch can remember.
        keys: usize,
    },
    /// For Clover, in the safe form (see `fusee_switch::clover::ChainTrust::Answered`).
    Answered {
        /// Number of keys whose last entry the switch can remember.
        keys: usize,
    },
    /// For our store.
    Ours {
        /// Number of slots whose objects the switch can remember.
        slots: usize,
        /// Number of rounds whose CASes the switch can order.
        rounds: usize,
    },
}

/// An event in the middle of a run, and the windows of equal length in which operations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LabTimeline {
    /// Length of a window of the timeline, in microseconds.
    pub window_us: u64,
    /// Number of windows of the timeline.
    pub windows: usize,
    /// The event that happens during the run.
    pub what: TimelineEvent,
    /// The event happens at the beginning of this window, counted from 0.
    pub at: usize,
}

/// An event in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimelineEvent {
    /// This memory node crashes and loses its memory.
    NodeCrashes(u16),
    /// Additional clients come, and leave later.
    Guests {
        /// Number of additional clients that come.
        clients: usize,
        /// The clients leave at the beginning of this window.
        until: usize,
    },
}

impl LabTimeline {
    pub(crate) fn window_ns(&self) -> Nanos {
        self.window_us * 1000
    }

    /// Returns the number of clients that come during the run.
    pub(crate) fn guests(&self) -> usize {
        match self.what {
            TimelineEvent::Guests { clients, .. } => clients,
            TimelineEvent::NodeCrashes(_) => 0,
        }
    }
}

/// A setup to measure: hardware, cluster and operations. The defaults are the paper's (P §6.1 to §6.3).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabSetup {
    /// The system that is measured.
    pub system: LabSystem,
    /// The name of the testbed, which models the hardware.
    pub testbed: &'static str,
    /// Number of memory nodes, each on a machine of its own.
    pub memory_nodes: u16,
    /// Number of machines that run clients.
    pub machines: usize,
    /// Number of clients, spread over the machines.
    pub clients: usize,
    /// Number of operations that each client has under way at a time.
    pub coroutines: usize,
    /// Number of replicas of the index.
    pub index_replicas: u8,
    /// Number of replicas of each pair.
    pub data_replicas: u8,
    /// Redundancy of pairs when they are loaded.
    #[serde(serialize_with = "in_words")]
    pub redundancy: Redundancy,
    /// Number of keys that are loaded.
    pub keys: u64,
    /// Bytes of a key with its value.
    pub pair_bytes: usize,
    /// The kinds of operations that clients execute.
    #[serde(serialize_with = "in_words")]
    pub load: LabLoad,
    /// Zipfian constant of the distribution of keys; 0 is uniform.
    pub theta: f64,
    /// Number of counted operations, of all clients together.
    pub operations: u64,
    /// Number of cores of the metadata server, for systems that have one.
    pub metadata_cores: usize,
    /// Whether clients have an index cache.
    pub cached: bool,
    /// See [`fusee_client::Options::cache_threshold`].
    pub cache_threshold: f64,
    /// The switch between clients and memory nodes; `None` for a network without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<LabSwitch>,
    /// An event during the run. If there is one, clients stop at the end of the timeline, not after a number of
    /// operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<LabTimeline>,
    /// Seed of all random choices: keys, and kinds of operations.
    pub seed: u64,
}

fn in_words<S: serde::Serializer>(what: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(what)
}

impl Default for LabSetup {
    fn default() -> LabSetup {
        LabSetup {
            system: LabSystem::Fusee,
            testbed: Testbed::CONNECTX_3.name,
            memory_nodes: 2,
            machines: 16,
            clients: 128,
            coroutines: 8,
            index_replicas: 1,
            data_replicas: 2,
            redundancy: Redundancy::Replicated,
            keys: 100_000,
            pair_bytes: 1024,
            load: LabLoad::Ycsb(YcsbWorkload::C),
            theta: 0.99,
            operations: 60_000,
            metadata_cores: 8,
            cached: true,
            cache_threshold: 0.5,
            switch: None,
            timeline: None,
            seed: 1,
        }
    }
}

/// A timeout of operations that is never reached.
const LONG: Duration = Duration::from_secs(100);
/// Smallest size of a block. Blocks of long pairs are larger.
const BLOCK_BYTES: u64 = 1 << 18;
/// Number of pairs for which every block has room, unless a block with that room would exceed [`MAX_BLOCK_BYTES`].
const PAIRS_IN_BLOCK: u64 = 16;
/// Maximum size of a block (see [`Geometry`]).
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// Smallest size of a region in bytes. A region also has at least `BLOCKS_IN_REGION` blocks.
const REGION_BYTES: u64 = 1 << 25;
const BLOCKS_IN_REGION: u64 = 8;
/// Number of regions for which each node has room in addition to those for the pairs.
const SPARE_REGIONS: u64 = 16;
/// Number of spare regions in place of [`SPARE_REGIONS`] if some pairs are not replicated, because each redundancy has
/// regions of its own.
const SPARE_CODED_REGIONS: u64 = 64;

impl LabSetup {
    /// Returns the testbed.
    ///
    /// # Panics
    /// If no testbed has this name.
    pub fn hardware(&self) -> Testbed {
        Testbed::named(self.testbed).expect("a testbed's name")
    }

    /// Returns the length of a value in bytes.
    pub fn value_bytes(&self) -> usize {
        self.pair_bytes - KEY_BYTES
    }

    /// Returns the lease in milliseconds: one second, or a tenth of the timeline.
    pub(crate) fn lease_ms(&self) -> u64 {
        self.timeline.map_or(1_000, |of| (of.windows as u64 * of.window_us) / 10_000)
    }

    /// Returns the options of sessions.
    pub(crate) fn session(&self) -> LogicOptions {
        LogicOptions {
            // Half of the entries are for keys that clients insert.
            cache_entries: if self.cached { 2 * self.keys as usize } else { 0 },
            cache_threshold: self.cache_threshold,
            op_timeout: LONG,
            spins: false,
            redundancy: Some(
                RedundancyRules::new(self.redundancy, &[])
                    .expect("no rules by size contradict each other"),
            ),
        }
    }

    /// Returns the options of the cluster, with room for all pairs and for several blocks of each client.
    pub(crate) fn cluster(&self) -> ClusterOptions {
        let pairs = 2 * self.keys * self.pair_bytes as u64;
        let block_bytes = (PAIRS_IN_BLOCK * self.pair_bytes as u64)
            .next_power_of_two()
            .clamp(BLOCK_BYTES, MAX_BLOCK_BYTES);
        let region_bytes = (BLOCKS_IN_REGION * block_bytes).max(REGION_BYTES);
        let blocks = 8 * self.clients as u64 * block_bytes;
        let bytes = (pairs + blocks) * u64::from(self.data_replicas);
        let is_replicated =
            self.redundancy.is_replicated() && !matches!(self.load, LabLoad::Moves { .. });
        let spare = if is_replicated { SPARE_REGIONS } else { SPARE_CODED_REGIONS };
        let pool = bytes / u64::from(self.memory_nodes) + spare * region_bytes;
        ClusterOptions {
            memory_nodes: self.memory_nodes,
            index_replicas: self.index_replicas,
            data_replicas: self.data_replicas,
            index_keys: 2 * self.keys,
            geometry: Geometry {
                region_bytes,
                block_bytes,
                slots_per_bucket: 7,
                groups_per_subtable: 64,
                max_key_bytes: 64,
                max_value_bytes: self.pair_bytes.max(1024) as u32,
            },
            pool_bytes: pool,
            session: self.session(),
            lease_ms: Some(self.lease_ms()),
            ..ClusterOptions::default()
        }
    }
}

/// Results of a measurement, all in virtual time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabResults {
    /// Number of operations that were counted.
    pub operations: u64,
    /// Time from the first counted operation to the last.
    pub virtual_ns: Nanos,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Operations per second in each window of the timeline.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<f64>,
    /// Latencies by kind of operation, sorted by the kind's name.
    pub latencies: Vec<LabLatency>,
    /// Verbs that sessions posted, for operations and for background work, divided by the number of operations.
    pub verbs: f64,
    /// Bytes of pools that sessions' verbs read or wrote, divided by the number of operations.
    pub bytes: f64,
    /// Wrong hints of the index cache, divided by the number of operations.
    pub wrong_hints: f64,
    /// Number of operations that did not find a key that had been inserted. It is 0 except in systems that lose keys.
    pub missed: u64,
    /// The part of the hardware that was busy for the largest share of the time.
    pub busiest: HardwareUse,
    /// The busiest part of each kind (such as cores), separately for memory nodes and for other machines.
    pub uses: Vec<HardwareUse>,
    /// The work of the switch; `None` without a switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<LabSwitchWork>,
    /// Number of events of the simulation.
    pub events: u64,
}

/// The work of a switch, including the time before the first counted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LabSwitchWork {
    /// Verbs that the switch steers if it knows their target: the verbs that it steered, and the verbs whose target it
    /// did not know.
    pub asked: u64,
    /// Verbs that were steered.
    pub steered: u64,
    /// Number of decisions to hold a verb. A verb that is held twice counts twice.
    pub held: u64,
    /// Bytes of the switch's state at the end.
    pub bytes: u64,
}

impl LabResults {
    /// Returns the latency of a kind of operation; `None` if none was counted.
    pub fn latency(&self, kind: &str) -> Option<&LabLatency> {
        self.latencies.iter().find(|latency| latency.kind == kind)
    }
}

/// The latency of one kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabLatency {
    /// The kind of operation.
    pub kind: &'static str,
    /// Number of counted operations.
    pub count: u64,
    /// Median of the latency.
    pub p50_ns: Nanos,
    /// 99th percentile of the latency.
    pub p99_ns: Nanos,
    /// Mean number of phases of the operations, including those of the warm-up; `None` if the system does not report
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<f64>,
    /// Mean number of bytes of pools that the verbs of an operation touched, including operations of the warm-up,
    /// without background work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
}

/// The use of one part of the hardware.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HardwareUse {
    /// The name of the machine, which is its kind and number.
    pub machine: String,
    /// The name of the part.
    pub part: &'static str,
    /// The share of the time in which the part was busy, from 0 to 1.
    pub share: f64,
}
