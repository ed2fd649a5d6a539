//! Scenarios: distributions of clusters, of clients' operations, and of faults.
//!
//! A seed draws one [`ScenarioShape`] from a scenario. All sizes are small: a few keys that share buckets and
//! fingerprints, an index of a dozen slots, blocks of a few objects. So events that are rare in production happen all
//! the time.

use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_client::{Demotion, Policy, PromotedRedundancy, Promotion, RedundancyRules};
use fusee_core::data::{Orientation, Redundancy};
use fusee_core::erasure::Coding;
use fusee_core::stats::OpKind;
use fusee_core::view::Geometry;
use fusee_switch::fusee::FuseeSwitchOptions;

use crate::cluster::ClusterOptions;
use crate::network::NetworkOptions;
use crate::rng::Rng;
use crate::switches::SwitchMistakes;

/// A kind of fault, which a run injects and can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Latencies vary by up to a factor of 64.
    Delay,
    /// READs and WRITEs are cut into pieces.
    Tear,
    /// Client processes crash, at any await point.
    ClientCrash,
    /// Memory nodes crash.
    NodeCrash,
    /// Clients, memory nodes and the master are stopped and resumed.
    Stop,
    /// Messages from some processes to the master are lost for a while, or from the master to them, or both.
    Partition,
    /// A client and a memory node are cut off from the master together, for longer than a lease.
    CommonPartition,
    /// The master is away for some leases, while a memory node crashes or some clients do not reach a memory node.
    Silence,
    /// Control messages are lost.
    LostMessage,
    /// Completions of verbs are lost, although the verbs have executed.
    LostCompletion,
    /// The master crashes between two actions, and is restarted.
    MasterRestart,
    /// The master crashes during a job.
    RecoveryCrash,
    /// Verbs that a live client has given up still execute when they reach their memory node.
    LateVerb,
    /// Requests of the master's jobs to memory nodes arrive after the jobs have been given up and repeated.
    LateOrder,
    /// A master without a cluster, or of another cluster, replaces the cluster's own master for a while.
    ForeignMaster,
    /// Memory nodes join.
    Join,
    /// Memory nodes are drained; sometimes the drain is cancelled.
    Drain,
    /// A word of a live object is damaged on one of its replicas.
    Damage,
    /// Memory nodes execute verbs without an answer for a while before they crash.
    Mute,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 19] = [
        Fault::Delay,
        Fault::Tear,
        Fault::ClientCrash,
        Fault::NodeCrash,
        Fault::Stop,
        Fault::Partition,
        Fault::CommonPartition,
        Fault::Silence,
        Fault::LostMessage,
        Fault::LostCompletion,
        Fault::MasterRestart,
        Fault::RecoveryCrash,
        Fault::LateVerb,
        Fault::LateOrder,
        Fault::ForeignMaster,
        Fault::Join,
        Fault::Drain,
        Fault::Damage,
        Fault::Mute,
    ];

    /// Returns the fault's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Delay => "delay",
            Fault::Tear => "tear",
            Fault::ClientCrash => "client-crash",
            Fault::NodeCrash => "node-crash",
            Fault::Stop => "stop",
            Fault::Partition => "partition",
            Fault::CommonPartition => "common-partition",
            Fault::Silence => "silence",
            Fault::LostMessage => "lost-message",
            Fault::LostCompletion => "lost-completion",
            Fault::MasterRestart => "master-restart",
            Fault::RecoveryCrash => "recovery-crash",
            Fault::LateVerb => "late-verb",
            Fault::LateOrder => "late-order",
            Fault::ForeignMaster => "foreign-master",
            Fault::Join => "join",
            Fault::Drain => "drain",
            Fault::Damage => "damage",
            Fault::Mute => "mute",
        }
    }

    /// Returns the fault with this name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// A scenario, from which a seed draws a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scenario {
    /// All operations run on a few keys, without failures.
    Mixed,
    /// INSERTs and DELETEs of one key run while other keys keep the slots around it changing.
    Inserts,
    /// Processes stop and resume, messages and completions are lost, and the master restarts.
    Unsteady,
    /// Client processes crash, and are recovered while others run.
    // Promise REC-1: Clients that die at any step are recovered beside living ones. | scenario `crashes`
    Crashes,
    /// Memory nodes are lost under running clients, up to all replicas but one, and clients crash too.
    // Promise CHG-1: A lost index replica is settled; no write is lost. | scenario `losses`
    Losses,
    /// The index keeps growing from a subtable of a dozen slots, while clients, memory nodes and the master crash.
    // Promise CHG-7: The index grows beside working and dying clients. | scenario `growth`
    Growth,
    /// Memory is short and reused at once, while clients, memory nodes and the master crash.
    // Promise MEM-1 | scenario `reuse`
    Reuse,
    /// The pool grows region by region, and memory nodes join and are drained, while clients, memory nodes and the
    /// master crash.
    // Promise CHG-9: Regions come, nodes join and drain beside working clients. | scenario `elastic`
    Elastic,
    /// Objects are damaged on one replica while the index grows, memory nodes join and are drained, and clients crash.
    // Promise DMG-1: One whole replica suffices; damage that is read is repaired. | scenario `damage`
    Damage,
    /// Clients and memory nodes are cut off from the master together, while other processes continue without them. Or
    /// the master is away while a primary crashes or is unreachable for some clients.
    // Promise SIL-2 | scenario `cuts`
    Cuts,
    /// Values are erasure-coded or replicated, and change between the two, while memory nodes are lost, join and are
    /// drained, and clients and the master crash.
    // Promise RED-4: Coded values survive the loss of all but k columns. | scenario `redundancy`
    Redundancy,
    /// Values are EC-oriented: replicated so that they can become erasure-coded in place. They change between the two
    /// forms all the time, under the faults of `Redundancy`.
    // Promise RED-9: EC-oriented pairs lose, leak or double-free nothing. | scenario `oriented`
    // Promise RED-16: Demotion and promotion lose no write and leak nothing. | scenario `oriented`
    Oriented,
    /// Values have no redundancy, or are replicated, and change between the two, while memory nodes are lost, join and
    /// are drained, and clients and the master crash.
    // Promise RED-13: Only pairs without redundancy go with their node. | scenario `none`
    None,
    /// Sessions share strict work tables and run many requests for few keys at once, while clients and the master crash
    /// and stop, memory nodes are lost, and messages and completions are lost.
    // Promise LIN-18: A strict work table is linearizable, whatever becomes of leaders. | scenario `correlated`
    Correlated,
    /// Almost all kinds of faults are injected together.
    Storm,
    /// All keys are scanned again and again, while the index grows, values change their redundancy, memory nodes crash,
    /// join, are cut off and are drained, and clients and the master crash.
    // Promise LIN-22: A scan shows every pair that stays exactly once. | scenario `scans`
    Scans,
}

impl Scenario {
    /// All scenarios, in the order in which a campaign uses them for successive seeds.
    pub const ALL: [Scenario; 16] = [
        Scenario::Mixed,
        Scenario::Inserts,
        Scenario::Unsteady,
        Scenario::Crashes,
        Scenario::Losses,
        Scenario::Growth,
        Scenario::Reuse,
        Scenario::Elastic,
        Scenario::Damage,
        Scenario::Cuts,
        Scenario::Redundancy,
        Scenario::Oriented,
        Scenario::None,
        Scenario::Correlated,
        Scenario::Storm,
        Scenario::Scans,
    ];

    /// Returns the scenario's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Mixed => "mixed",
            Scenario::Inserts => "inserts",
            Scenario::Unsteady => "unsteady",
            Scenario::Crashes => "crashes",
            Scenario::Losses => "losses",
            Scenario::Growth => "growth",
            Scenario::Reuse => "reuse",
            Scenario::Elastic => "elastic",
            Scenario::Damage => "damage",
            Scenario::Cuts => "cuts",
            Scenario::Redundancy => "redundancy",
            Scenario::Oriented => "oriented",
            Scenario::None => "none",
            Scenario::Correlated => "correlated",
            Scenario::Storm => "storm",
            Scenario::Scans => "scans",
        }
    }

    /// Returns a short description, for the command line.
    pub fn about(self) -> &'static str {
        match self {
            Scenario::Mixed => "all operations on a few keys; delays, reordering and tearing only",
            Scenario::Inserts => "INSERT and DELETE of one key among slots that keep moving",
            Scenario::Unsteady => {
                "stops, partitions, lost messages and completions, master restarts"
            }
            Scenario::Crashes => "client crashes at any await point, recovered beside the others",
            Scenario::Losses => "memory nodes lost under running clients, and clients with them",
            Scenario::Growth => {
                "an index that grows, under crashes of clients, nodes and the master"
            }
            Scenario::Reuse => "memory that is short, and used again, under the same crashes",
            Scenario::Elastic => {
                "a pool that grows, nodes that join and are drained, under crashes of all kinds"
            }
            Scenario::Damage => {
                "objects damaged on one replica, in an index that grows and a pool that moves"
            }
            Scenario::Cuts => {
                "clients and memory nodes cut off from the master together, or master and primary gone"
            }
            Scenario::Redundancy => {
                "erasure-coded beside replicated values, under losses, moves and crashes of all kinds"
            }
            Scenario::Oriented => "EC-oriented values that change all the time, under the same",
            Scenario::None => {
                "values without redundancy, which go with their nodes, under the same"
            }
            Scenario::Correlated => {
                "few hot keys, by processes whose sessions share a strict work table, under most faults"
            }
            Scenario::Storm => "every fault there is",
            Scenario::Scans => {
                "scans of all keys, of an index that grows, under crashes of all kinds"
            }
        }
    }

    /// Returns the scenario with this name.
    pub fn named(name: &str) -> Option<Scenario> {
        Scenario::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// Returns the faults that every run of the scenario injects.
    pub fn faults(self) -> &'static [Fault] {
        use Fault::*;
        match self {
            Scenario::Mixed | Scenario::Inserts => &[Delay, Tear],
            Scenario::Unsteady => {
                &[Delay, Tear, Stop, Partition, LostMessage, LostCompletion, MasterRestart]
            }
            Scenario::Crashes => &[Delay, Tear, ClientCrash, RecoveryCrash],
            Scenario::Losses => &[Delay, Tear, NodeCrash, ClientCrash, RecoveryCrash],
            Scenario::Growth => {
                &[Delay, Tear, NodeCrash, ClientCrash, MasterRestart, RecoveryCrash]
            }
            Scenario::Reuse => {
                &[Delay, Tear, NodeCrash, ClientCrash, Stop, MasterRestart, RecoveryCrash]
            }
            Scenario::Elastic => {
                &[Delay, Tear, NodeCrash, ClientCrash, MasterRestart, RecoveryCrash, Join, Drain]
            }
            Scenario::Damage => &[Delay, Tear, ClientCrash, RecoveryCrash, Join, Drain, Damage],
            Scenario::Cuts => &[Delay, Tear, CommonPartition, Silence, MasterRestart],
            Scenario::Redundancy | Scenario::Oriented | Scenario::None | Scenario::Scans => {
                &[Delay, Tear, NodeCrash, ClientCrash, MasterRestart, RecoveryCrash, Join, Drain]
            }
            Scenario::Correlated => &[
                Delay,
                Tear,
                ClientCrash,
                NodeCrash,
                Stop,
                LostMessage,
                LostCompletion,
                MasterRestart,
                RecoveryCrash,
            ],
            Scenario::Storm => &[
                Delay,
                Tear,
                ClientCrash,
                NodeCrash,
                Stop,
                Partition,
                CommonPartition,
                Silence,
                LostMessage,
                LostCompletion,
                MasterRestart,
                RecoveryCrash,
                Join,
                Drain,
            ],
        }
    }

    /// Returns further faults, each of which one of four runs injects. They are drawn from a random stream of their
    /// own, so no other draw of a run depends on this list.
    pub fn seldom(self) -> &'static [Fault] {
        use Fault::*;
        match self {
            Scenario::Mixed | Scenario::Inserts | Scenario::Crashes | Scenario::Growth => &[],
            Scenario::Losses | Scenario::Reuse => &[LateVerb, Mute, LateOrder],
            Scenario::Redundancy | Scenario::Oriented => &[LateVerb, Stop, Damage, Mute, LateOrder],
            Scenario::None => &[LateVerb, Stop, CommonPartition, Silence, LateOrder],
            Scenario::Correlated => &[CommonPartition, Silence, Join, Drain],
            Scenario::Elastic => &[ForeignMaster, LateOrder],
            Scenario::Cuts => &[ForeignMaster],
            Scenario::Unsteady => &[LateVerb, ForeignMaster],
            // Damage spares another replica of every object, so that the loss of one memory node is allowed.
            Scenario::Damage => &[NodeCrash],
            Scenario::Storm => &[LateVerb, ForeignMaster, Damage, LateOrder],
            Scenario::Scans => &[Stop, CommonPartition, Silence, Damage, LostCompletion],
        }
    }
}

/// The weights of the kinds of operations in a draw.
pub(crate) type OperationMix = [(OpKind, usize); 8];

/// The cluster, operations and faults that a seed has drawn from a scenario.
#[derive(Clone, Debug)]
pub(crate) struct ScenarioShape {
    pub cluster: ClusterOptions,
    pub network: NetworkOptions,
    /// Number of client processes that run at any time.
    pub processes: usize,
    /// Number of operations that each process runs at once.
    pub coroutines: usize,
    /// Number of keys with the same two buckets and the same fingerprint.
    pub colliding_keys: usize,
    /// Number of further keys, which are not chosen to share buckets or fingerprints.
    pub other_keys: usize,
    /// The mix of operations on key 0, and below it the mix for the other keys.
    pub first_mix: OperationMix,
    pub other_mix: OperationMix,
    /// One of this many operations is on key 0; the other operations are on any key.
    pub first_key_one_in: usize,
    /// Number of operations of the whole run.
    pub operations: usize,
    /// Mean number of operations after which a process leaves its session for a new one.
    pub session_operations: usize,
    /// Mean time between two faults, in nanoseconds.
    pub fault_every_ns: u64,
    /// One of this many control messages is lost; 0: none.
    pub lost_messages_one_in: usize,
    /// Lengths of values, without the bytes that identify the value.
    pub fillers: [usize; 4],
    /// Redundancies that Moves give to pairs.
    pub redundancies: Vec<Redundancy>,
    /// Number of memory nodes that the run is allowed to lose at one moment.
    pub losses_at_once: usize,
    /// Length from which on values are written without redundancy; `None`: all values have redundancy.
    pub single_from: Option<usize>,
    /// Number of strict work tables that the sessions share; 0: there are none.
    pub tables: usize,
    /// Capacities of the switches on the links; empty if there are none.
    pub switches: Vec<FuseeSwitchOptions>,
    /// The rates at which the switches make mistakes.
    pub mistakes: SwitchMistakes,
}

fn mix(weights: [usize; 6]) -> OperationMix {
    use OpKind::{Delete, Insert, Move, Scan, Search, SearchMany, Update, Upsert};
    let kinds = [Insert, Update, Upsert, Delete, Search, SearchMany, Move, Scan];
    std::array::from_fn(|i| (kinds[i], weights.get(i).copied().unwrap_or(0)))
}

/// Returns an EC-oriented redundancy, and the redundancies for Moves: mostly this one and the code that it becomes in
/// place.
fn oriented_beside_others(of: Orientation) -> (Redundancy, Vec<Redundancy>) {
    let oriented = Redundancy::Oriented(of);
    let coded = Redundancy::Coded(of.coding());
    (oriented, vec![Redundancy::Replicated, coded, oriented, coded, oriented])
}

/// Adds Moves with this weight to a mix.
fn with_moves(mut mix: OperationMix, weight: usize) -> OperationMix {
    mix[6].1 = weight;
    mix
}

/// Adds scans with this weight to a mix.
fn with_scans(mut mix: OperationMix, weight: usize) -> OperationMix {
    mix[7].1 = weight;
    mix
}

/// Number of operations of a run by default.
const OPERATIONS: usize = 1_500;

/// Draws a policy. In some clusters sessions demote and promote pairs by themselves, as fast as they can.
fn shifting(rng: &Rng) -> Policy {
    let bytes_per_s = 1 << 40;
    if rng.pick(&[false, false, true]) {
        Policy {
            demotion: Some(Demotion { above_percent: 50, bytes_per_s }),
            promotion: Some(Promotion {
                after_reads: 2,
                window_ms: 1,
                to: rng.pick(&[
                    PromotedRedundancy::Oriented,
                    PromotedRedundancy::Oriented,
                    PromotedRedundancy::Replicated,
                ]),
                bytes_per_s,
            }),
            ..Policy::default()
        }
    } else {
        Policy::default()
    }
}

/// Draws a mix of operations, for keys that clients do not contend for more than usual.
fn draw_mix(rng: &Rng) -> OperationMix {
    mix(rng.pick(&[
        [3, 2, 1, 3, 2, 1],
        [4, 0, 0, 4, 1, 0],
        [2, 1, 2, 3, 1, 0],
        [0, 3, 3, 2, 2, 1],
        [1, 4, 1, 1, 3, 0],
    ]))
}

/// Draws a cluster. If memory nodes can be lost (`losses`), everything has at least two replicas.
fn draw_cluster(scenario: Scenario, rng: &Rng, losses: bool) -> ClusterOptions {
    let index_replicas = if losses { 2 + rng.below(4) } else { 1 + rng.below(5) } as u8;
    let data_replicas = if losses { 2 + rng.below(2) } else { 1 + rng.below(3) } as u8;
    let memory_nodes = index_replicas.max(data_replicas).max(rng.pick(&[2, 3, 5]));
    let geometry =
        Geometry { slots_per_bucket: 1 + rng.below(3) as u8, ..ClusterOptions::default().geometry };
    ClusterOptions {
        memory_nodes: memory_nodes.into(),
        index_replicas,
        data_replicas,
        session: draw_session(scenario, rng),
        index_keys: rng.pick(&[1, 1, 1, 40]),
        geometry,
        pool_bytes: 3 << 19,
        grace_ms: 1,
        move_bytes_per_s: ClusterOptions::default().move_bytes_per_s,
        scrub_bytes_per_s: 0,
        policy: Policy::default(),
        lease_ms: (scenario >= Scenario::Unsteady).then(|| rng.pick(&[20, 60])),
    }
}

fn draw_session(scenario: Scenario, rng: &Rng) -> LogicOptions {
    LogicOptions {
        cache_entries: rng.pick(&[0, 2, 100]),
        cache_threshold: rng.pick(&[0.1, 0.5, 1.0]),
        op_timeout: Duration::from_millis(if scenario < Scenario::Unsteady {
            5_000
        } else {
            rng.pick(&[8, 60, 400])
        }),
        spins: false,
        redundancy: None,
    }
}

impl ScenarioShape {
    /// Returns the time after which a silent process expires.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.cluster.lease_ms.unwrap_or(60))
    }

    /// Draws a shape from a scenario.
    pub fn draw(scenario: Scenario, rng: &Rng, has: impl Fn(Fault) -> bool) -> ScenarioShape {
        let fights =
            scenario == Scenario::Inserts || (scenario > Scenario::Inserts && rng.one_in(3));
        let first_mix = if fights { mix([2, 0, 0, 2, 1, 0]) } else { draw_mix(rng) };
        let other_mix = if fights { mix([1, 0, 0, 1, 0, 0]) } else { first_mix };
        // With any of these faults, everything needs at least two replicas.
        let losses = has(Fault::NodeCrash)
            || has(Fault::Damage)
            || has(Fault::CommonPartition)
            || has(Fault::Silence);
        let cluster = draw_cluster(scenario, rng, losses);
        let network = NetworkOptions {
            delays: has(Fault::Delay),
            tearing: has(Fault::Tear),
            nic_in_process: rng.one_in(2),
            lost_completions_one_in: if has(Fault::LostCompletion) { 3_000 } else { 0 },
            late_verbs: has(Fault::LateVerb),
            ..NetworkOptions::default()
        };
        let shape = ScenarioShape {
            cluster,
            network,
            processes: 2 + rng.below(4),
            coroutines: 1 + rng.below(3),
            colliding_keys: rng.pick(&[0, 1, 3]),
            other_keys: 1 + rng.below(if fights { 6 } else { 3 }),
            first_mix,
            other_mix,
            first_key_one_in: if fights { 2 } else { 1 + rng.below(4) },
            operations: OPERATIONS,
            session_operations: rng.pick(&[40, 200, 100_000]),
            fault_every_ns: if scenario == Scenario::Storm { 8 } else { 1 }
                * rng.pick(&[300_000, 1_000_000, 4_000_000]),
            lost_messages_one_in: if has(Fault::LostMessage) { 20 } else { 0 },
            fillers: [0, 10, 60, 300],
            redundancies: Vec::new(),
            losses_at_once: 1,
            single_from: None,
            tables: 0,
            switches: Vec::new(),
            mistakes: SwitchMistakes { forgets_one_in: 0, errs_one_in: 0 },
        };
        shape.adapted_to(scenario, rng)
    }

    /// Returns the shape with the changes that only this scenario needs.
    fn adapted_to(self, scenario: Scenario, rng: &Rng) -> ScenarioShape {
        match scenario {
            Scenario::Growth => self.with_many_keys(rng),
            Scenario::Reuse => self.with_little_memory(rng),
            Scenario::Elastic => self.with_small_regions(),
            Scenario::Damage if rng.one_in(2) => self.with_many_keys(rng),
            Scenario::Cuts => self.with_short_leases(rng),
            Scenario::Redundancy => self.with_codes(rng, false),
            Scenario::Oriented => self.with_codes(rng, true),
            Scenario::None => self.with_single_pairs(rng),
            Scenario::Correlated => self.with_correlation(rng),
            Scenario::Scans => self.with_many_scans(rng),
            _ => self,
        }
    }

    /// Draws the fabric: one of three clusters shares its memory, and one of three has NICs that execute verbs. If all
    /// verbs must travel over links (`travels`), no cluster shares its memory. `rng` is a stream of its own, so that
    /// the other draws stay the same.
    pub fn draw_fabric(&mut self, rng: &Rng, travels: bool) {
        // Work tables are never used over shared memory.
        if !rng.one_in(3) || self.tables > 0 || travels {
            // Promise LIN-12: NICs that execute WRITEs before READs do no harm. | `fusee-bench sim`: a third of seeds
            self.network.cards = rng.one_in(2);
            return;
        }
        self.network = NetworkOptions {
            immediate: true,
            fences_kill: rng.one_in(2),
            nic_in_process: false,
            lost_completions_one_in: 0,
            ..self.network
        };
    }

    /// Draws the switches: one of two networks with links has some, or all of them if `every`. `rng` is a stream of its
    /// own, so that the other draws stay the same.
    pub fn draw_switches(&mut self, rng: &Rng, every: bool) {
        if self.network.immediate || !(rng.one_in(2) || every) {
            return;
        }
        let room =
            FuseeSwitchOptions { slots: rng.pick(&[1, 4, 100]), rounds: rng.pick(&[0, 1, 8]) };
        self.switches = vec![room; 1 + rng.below(2)];
        self.mistakes = SwitchMistakes {
            forgets_one_in: rng.pick(&[0, 50, 1000]),
            errs_one_in: rng.pick(&[0, 8, 2]),
        };
        // Hints must be wrong often enough to become doubted, so caches are large.
        self.cluster.session.cache_entries = 100;
        self.cluster.session.cache_threshold = 0.1;
    }

    /// Changes the shape so that there are many operations, and hardly more blocks than one for each client and size
    /// class.
    fn with_little_memory(self, rng: &Rng) -> ScenarioShape {
        let mixes = rng.pick(&[[2, 6, 4, 2, 3, 1], [3, 1, 1, 3, 2, 0], [1, 8, 0, 1, 4, 0]]);
        let geometry = Geometry {
            region_bytes: rng.pick(&[1 << 15, 1 << 16]),
            max_value_bytes: 512,
            ..self.cluster.geometry
        };
        let pool_bytes = geometry.region_bytes * (1 + rng.below_u64(3)) + (1 << 14);
        ScenarioShape {
            cluster: ClusterOptions { geometry, pool_bytes, index_keys: 1, ..self.cluster },
            processes: 2 + rng.below(2),
            first_mix: mix(mixes),
            other_mix: mix(mixes),
            other_keys: 1 + rng.below(12),
            operations: 3 * self.operations,
            fault_every_ns: 8 * self.fault_every_ns,
            ..self
        }
    }

    /// Changes the shape to regions of three blocks, so that further regions are needed all the time.
    fn with_small_regions(self) -> ScenarioShape {
        let geometry = Geometry { region_bytes: 1 << 14, ..self.cluster.geometry };
        ScenarioShape {
            cluster: ClusterOptions { geometry, ..self.cluster },
            // The master must sometimes live longer than a lease. Otherwise no session would expire.
            fault_every_ns: 12 * self.fault_every_ns,
            ..self
        }
    }

    /// Changes the shape to runs of many leases, in which writes of clients that are cut off wait while other clients
    /// read.
    fn with_short_leases(self, rng: &Rng) -> ScenarioShape {
        let session = LogicOptions {
            op_timeout: Duration::from_millis(rng.pick(&[8, 30])),
            ..self.cluster.session
        };
        let mixes = rng.pick(&[[0, 2, 0, 0, 8, 4], [3, 1, 1, 2, 6, 2], [6, 1, 0, 5, 2, 0]]);
        ScenarioShape {
            cluster: ClusterOptions { session, lease_ms: Some(4), ..self.cluster },
            processes: 3 + rng.below(3),
            coroutines: 3 + rng.below(6),
            first_mix: mix(mixes),
            other_mix: mix(mixes),
            operations: 4 * self.operations,
            session_operations: 100_000,
            fault_every_ns: 4_000_000,
            ..self
        }
    }

    /// Changes the shape to long values that are erasure-coded. If `is_oriented`, the values are EC-oriented instead,
    /// and become erasure-coded now and then.
    fn with_codes(self, rng: &Rng, is_oriented: bool) -> ScenarioShape {
        let (k, m) = rng.pick(&[(2, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2)]);
        let coding = Coding::new(k, m).expect("there is such a code");
        let coded = Redundancy::Coded(coding);
        let (first, moves, others) = if is_oriented {
            let oriented = Orientation::new(2, coding).expect("so many replicas can be");
            let (oriented, others) = oriented_beside_others(oriented);
            (oriented, [1, 3, 6, 12], others)
        } else {
            (coded, [0, 1, 3, 6], vec![Redundancy::Replicated, coded])
        };
        let session = LogicOptions {
            redundancy: Some(RedundancyRules::from_length(0, first)),
            ..self.cluster.session
        };
        let spares = rng.below(2) as u16;
        let memory_nodes = self.cluster.memory_nodes.max(coding.chunks() as u16 + spares);
        let geometry = Geometry {
            // Each block has room for some objects, and each region for some blocks.
            block_bytes: 1 << 13,
            max_value_bytes: 2048,
            ..self.cluster.geometry
        };
        let moves = rng.pick(&moves);
        let policy = if is_oriented { shifting(rng) } else { Policy::default() };
        let shape = ScenarioShape {
            cluster: ClusterOptions { session, geometry, memory_nodes, policy, ..self.cluster },
            fillers: [10, 300, 1100, 1900],
            redundancies: others,
            first_mix: with_moves(self.first_mix, moves),
            other_mix: with_moves(self.other_mix, moves),
            fault_every_ns: 8 * self.fault_every_ns,
            ..self
        };
        // This is drawn last, so that the other draws do not change.
        if is_oriented && rng.one_in(3) { shape.with_second_copies(coding, spares) } else { shape }
    }

    /// Adds a second copy to EC-oriented values, and allows that two memory nodes are lost at once.
    fn with_second_copies(self, coding: Coding, spares: u16) -> ScenarioShape {
        let (k, m) = coding.into();
        let coding = Coding::new(k.max(3), m.max(2)).expect("there is such a code");
        let oriented = Orientation::new(3, coding).expect("so many replicas can be");
        let (oriented, redundancies) = oriented_beside_others(oriented);
        let redundancy = Some(RedundancyRules::from_length(0, oriented));
        let session = LogicOptions { redundancy, ..self.cluster.session };
        let cluster = ClusterOptions {
            session,
            memory_nodes: self.cluster.memory_nodes.max(coding.chunks() as u16 + spares),
            index_replicas: self.cluster.index_replicas.max(3),
            data_replicas: self.cluster.data_replicas.max(3),
            ..self.cluster
        };
        ScenarioShape { cluster, redundancies, losses_at_once: 2, ..self }
    }

    /// Changes the shape so that all values, or only long ones, have no redundancy.
    fn with_single_pairs(self, rng: &Rng) -> ScenarioShape {
        let from = rng.pick(&[0, 0, 20]);
        let session = LogicOptions {
            redundancy: Some(RedundancyRules::from_length(from, Redundancy::None)),
            ..self.cluster.session
        };
        // There are two more memory nodes than index replicas, and many small regions, so that each node has some
        // regions.
        let memory_nodes =
            self.cluster.memory_nodes.max(u16::from(self.cluster.index_replicas) + 2);
        let geometry = Geometry { region_bytes: 1 << 14, ..self.cluster.geometry };
        let moves = rng.pick(&[0, 1, 3]);
        let tables = if rng.one_in(3) { 1 + rng.below(2) } else { 0 };
        ScenarioShape {
            cluster: ClusterOptions { session, memory_nodes, geometry, ..self.cluster },
            other_keys: 1 + self.other_keys,
            tables,
            redundancies: vec![Redundancy::Replicated, Redundancy::None],
            single_from: Some(from),
            first_mix: with_moves(self.first_mix, moves),
            other_mix: with_moves(self.other_mix, moves),
            fault_every_ns: 40 * self.fault_every_ns,
            ..self
        }
    }

    /// Changes the shape to hardly more than one key, with many requests for it at once.
    fn with_correlation(self, rng: &Rng) -> ScenarioShape {
        let mixes = rng.pick(&[
            [1, 3, 5, 1, 8, 1],
            [0, 1, 2, 0, 9, 0],
            [1, 4, 1, 1, 3, 0],
            [2, 2, 2, 3, 6, 0],
            [0, 1, 8, 0, 4, 0],
        ]);
        let shape = if rng.one_in(4) { self.with_codes(rng, false) } else { self };
        let moves = if shape.redundancies.is_empty() { 0 } else { 2 };
        let colliding_keys = rng.pick(&[0, 0, 1]);
        ScenarioShape {
            tables: 1 + rng.below(2),
            processes: 3 + rng.below(3),
            coroutines: 2 + rng.below(4),
            colliding_keys,
            other_keys: 1 + rng.below(2),
            first_mix: with_moves(mix(mixes), moves),
            other_mix: with_moves(mix(mixes), moves),
            first_key_one_in: 2,
            fault_every_ns: 4 * shape.fault_every_ns,
            ..shape
        }
    }

    /// Adds scans, some of which last for a hundred operations. There are so many keys that most do not change during a
    /// scan.
    fn with_many_scans(self, rng: &Rng) -> ScenarioShape {
        let shape = match rng.below(4) {
            0 => self.with_codes(rng, false),
            1 => self.with_codes(rng, true),
            2 => self.with_short_leases(rng),
            _ => self,
        };
        let shape = shape.with_many_keys(rng);
        let scans = rng.pick(&[1, 2]);
        let moves = usize::from(!shape.redundancies.is_empty());
        let mixed = |mix| with_scans(with_moves(mix, moves), scans);
        ScenarioShape {
            first_mix: mixed(shape.first_mix),
            other_mix: mixed(shape.other_mix),
            other_keys: shape.other_keys / 2,
            ..shape
        }
    }

    /// Changes the shape to more keys than the index has slots for. Most keys are inserted and stay.
    fn with_many_keys(self, rng: &Rng) -> ScenarioShape {
        let mixes = rng.pick(&[[4, 1, 2, 1, 2, 0], [2, 1, 4, 2, 2, 0], [6, 2, 0, 3, 2, 0]]);
        ScenarioShape {
            cluster: ClusterOptions { index_keys: 1, ..self.cluster },
            other_keys: 20 + rng.below(60),
            first_mix: mix(mixes),
            other_mix: mix(mixes),
            first_key_one_in: 20,
            fault_every_ns: 4 * self.fault_every_ns,
            ..self
        }
    }
}
