//! Setups: a system on modelled hardware, and the work of its clients. And the results of a measurement.

use std::fmt;
use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_core::data::{Redundancy, RedundancyRules};
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Nanos, Rng, Testbed};
use fusee_workload::{Distribution, KEY_BYTES, WorkloadOperation, YcsbWorkload};
use serde::Serialize;

/// Systems that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabSystem {
    /// Our store.
    Fusee,
    /// FUSEE as it was published; FUSEE-NC if nothing is cached.
    Published,
    /// FUSEE-CR: replicas of the index are changed one after the other.
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
    /// Whether a key that was inserted may not be found, which is no error then: FUSEE as published breaks this
    /// promise ([`fusee_baselines::published`]).
    pub(crate) fn misses_keys(self) -> bool {
        matches!(self, LabSystem::Published | LabSystem::OneByOne | LabSystem::NodesAllocate)
    }

    /// Returns its name in figures.
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

/// The operations of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabLoad {
    /// Operations of a YCSB workload.
    Ycsb(YcsbWorkload),
    /// Operations of one kind. Inserted keys are new, and no key is deleted twice.
    Only(WorkloadOperation),
    /// One key after the other gets a redundancy.
    Moves {
        /// The redundancy of all keys before, which they get after they are loaded.
        from: Redundancy,
        /// The redundancy that they get.
        to: Redundancy,
    },
}

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabStep {
    Request(WorkloadOperation),
    Move(Redundancy),
}

impl LabStep {
    /// Returns its name in figures.
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
    /// Draws the next step.
    pub(crate) fn draw(self, rng: &Rng) -> LabStep {
        match self {
            LabLoad::Ycsb(workload) => LabStep::Request(rng.with(|rng| workload.draw(rng))),
            LabLoad::Only(request) => LabStep::Request(request),
            LabLoad::Moves { to, .. } => LabStep::Move(to),
        }
    }

    /// Returns the distribution by which existing keys are chosen.
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

/// A switch between clients and memory nodes, with its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LabSwitch {
    /// For Clover, as published.
    Sent {
        /// Keys with chains that it knows.
        keys: usize,
    },
    /// For Clover, safe.
    Answered {
        /// Keys with chains that it knows.
        keys: usize,
    },
    /// For our store.
    Ours {
        /// Slots with objects that it knows.
        slots: usize,
        /// Rounds that it orders.
        rounds: usize,
    },
}

/// An event while clients work. The run consists of windows of equal length, which are counted one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LabTimeline {
    /// Length of a window, in microseconds.
    pub window_us: u64,
    /// Number of windows.
    pub windows: usize,
    /// The event.
    pub what: TimelineEvent,
    /// The window at the beginning of which it happens.
    pub at: usize,
}

/// An event in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimelineEvent {
    /// This memory node dies, with its memory.
    NodeCrashes(u16),
    /// More clients come, and leave again.
    Guests {
        /// Number of these clients.
        clients: usize,
        /// The window at the beginning of which they leave.
        until: usize,
    },
}

impl LabTimeline {
    pub(crate) fn window_ns(&self) -> Nanos {
        self.window_us * 1000
    }

    /// Returns the number of clients that come.
    pub(crate) fn guests(&self) -> usize {
        match self.what {
            TimelineEvent::Guests { clients, .. } => clients,
            TimelineEvent::NodeCrashes(_) => 0,
        }
    }
}

/// A setup to measure: hardware, cluster and load. The defaults are the paper's (P §6.1 to §6.3).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabSetup {
    /// The system.
    pub system: LabSystem,
    /// The hardware, by name.
    pub testbed: &'static str,
    /// Machines that lend memory.
    pub memory_nodes: u16,
    /// Machines that clients run on.
    pub machines: usize,
    /// Clients, spread over the machines.
    pub clients: usize,
    /// Operations that a client has under way at once.
    pub coroutines: usize,
    /// Replicas of the index.
    pub index_replicas: u8,
    /// Replicas of pairs.
    pub data_replicas: u8,
    /// Redundancy of the pairs that are loaded.
    #[serde(serialize_with = "in_words")]
    pub redundancy: Redundancy,
    /// Keys that are loaded.
    pub keys: u64,
    /// Bytes of a key and its value.
    pub pair_bytes: usize,
    /// Operations of the clients.
    #[serde(serialize_with = "in_words")]
    pub load: LabLoad,
    /// Skew of the keys.
    pub theta: f64,
    /// Operations of all clients together that are counted.
    pub operations: u64,
    /// Cores of the metadata server, in systems with one.
    pub metadata_cores: usize,
    /// Whether clients remember where keys are.
    pub cached: bool,
    /// See [`fusee_client::Options::cache_threshold`].
    pub cache_threshold: f64,
    /// The switch in the path, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<LabSwitch>,
    /// An event during the run. If there is one, its timeline limits the work of clients, not the number of operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<LabTimeline>,
    /// Seed of everything that is drawn: keys and kinds of operations.
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

/// A time limit that no operation reaches.
const LONG: Duration = Duration::from_secs(100);
/// Size of a block, unless pairs are long.
const BLOCK_BYTES: u64 = 1 << 18;
/// Pairs for which a block has room, at least.
const PAIRS_IN_BLOCK: u64 = 16;
/// Maximum size of a block (see [`Geometry`]).
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// Size of a region, unless it would have fewer blocks than this.
const REGION_BYTES: u64 = 1 << 25;
const BLOCKS_IN_REGION: u64 = 8;
/// Regions that each node has room for in addition.
const SPARE_REGIONS: u64 = 16;
/// The same if pairs are not replicated: every redundancy has regions of its own.
const SPARE_CODED_REGIONS: u64 = 64;

impl LabSetup {
    /// Returns the hardware.
    ///
    /// # Panics
    /// If no testbed has this name.
    pub fn hardware(&self) -> Testbed {
        Testbed::named(self.testbed).expect("a testbed's name")
    }

    /// Returns the length of a value.
    pub fn value_bytes(&self) -> usize {
        self.pair_bytes - KEY_BYTES
    }

    /// Returns the lease: a second, or a tenth of the timeline.
    pub(crate) fn lease_ms(&self) -> u64 {
        self.timeline.map_or(1_000, |of| (of.windows as u64 * of.window_us) / 10_000)
    }

    /// Returns the options of sessions.
    pub(crate) fn session(&self) -> LogicOptions {
        LogicOptions {
            // Inserted keys are added to those that were loaded.
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

    /// Returns the cluster, with room for all pairs, and for blocks of every client.
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
    /// Operations that were counted.
    pub operations: u64,
    /// Time that they took.
    pub virtual_ns: Nanos,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Operations a second in each window of the timeline.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<f64>,
    /// Latencies by kind, in the order of names.
    pub latencies: Vec<LabLatency>,
    /// Verbs of sessions per operation, including those of background work.
    pub verbs: f64,
    /// Bytes that these verbs touched, per operation.
    pub bytes: f64,
    /// Hints of the index cache that were wrong, per operation.
    pub wrong_hints: f64,
    /// Operations on keys that were inserted and not found: 0 except in systems that lose keys.
    pub missed: u64,
    /// The busiest part of the hardware, with its share of the time.
    pub busiest: HardwareUse,
    /// The busiest part of each kind, for each kind of machine.
    pub uses: Vec<HardwareUse>,
    /// The work of the switch, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<LabSwitchWork>,
    /// Events of the simulation.
    pub events: u64,
}

/// The work of a switch, including the time before anything was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LabSwitchWork {
    /// Verbs that would have been steered if the switch had known where to.
    pub asked: u64,
    /// Verbs that were steered.
    pub steered: u64,
    /// Times that a verb had to wait.
    pub held: u64,
    /// Bytes of its state at the end.
    pub bytes: u64,
}

impl LabResults {
    /// Returns the latency of one kind of operation, if there was any.
    pub fn latency(&self, kind: &str) -> Option<&LabLatency> {
        self.latencies.iter().find(|latency| latency.kind == kind)
    }
}

/// The latency of one kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabLatency {
    /// The kind.
    pub kind: &'static str,
    /// Number of operations.
    pub count: u64,
    /// The median.
    pub p50_ns: Nanos,
    /// The time that one of a hundred exceeds.
    pub p99_ns: Nanos,
    /// Mean phases, also of operations that were not counted; `None` if the system does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<f64>,
    /// Mean bytes of pools that they touched, likewise, without background work of sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
}

/// The use of a part of the hardware.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HardwareUse {
    /// The machine.
    pub machine: String,
    /// The part.
    pub part: &'static str,
    /// Share of the time, from 0 to 1.
    pub share: f64,
}
