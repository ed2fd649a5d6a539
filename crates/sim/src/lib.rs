//! Deterministic simulation of whole clusters in one thread, from one seed.
//!
//! Clients, memory nodes and the master run the logic of the real programs, unchanged (`fusee_core`,
//! `fusee_client::logic`, `fusee_memory_node::logic`, `fusee_master::logic`), in virtual time. With one program, one
//! seed always gives the same run, bit for bit.
//!
//! # Fault model
//!
//! These faults can happen, and the store must survive all of them:
//!
//! * *Order.* Verbs of one batch for one node execute in order. There is no order between batches or between nodes,
//!   even for one client. The time that each direction of a link takes is random, and changes now and then by a factor
//!   of up to 64. The pace of each process's steps changes in the same way, as if the process were preempted.
//! * *Tearing.* READs and WRITEs are cut between any two aligned words, and other verbs execute between the pieces. The
//!   only guaranteed order is that the last word of a WRITE is written last. CAS and FAA are atomic.
//! * *Time.* A verb executes within [`NetworkOptions::verb_timeout_ns`] after it was posted, or never. *Late verbs*
//!   (see below) are an exception.
//! * *Client crash*, at any await point. Posted verbs no longer depend on the client: some prefix of each lane (the
//!   verbs of one batch for one node) executes, perhaps much later, unless the node has fenced the client's session.
//! * *Memory-node crash*, with the loss of the node's memory; at most all replicas but one of anything are lost.
//! * *Stop and resume* of any client, memory node or master, for longer than other processes wait for it. The NIC of a
//!   stopped node either continues (RDMA, shared memory) or stops as well (software NIC), as drawn for the run.
//! * *Lost completions.* The verbs have executed, but the client treats the node as unreachable, and the queue pair is
//!   unusable from then on.
//! * *Mute memory nodes*, which execute verbs of some clients without an answer for a while, and then crash.
//! * *Lost control messages*, and *partitions* that cut off from the master a client, or a client and a memory node
//!   together; no more than half of the memory nodes at a time.
//! * *Late orders.* A request of a master's job to a memory node arrives after the job has been given up and started
//!   again, by this master or another one.
//! * *Silence.* The master is away for some leases, and at the same time a primary crashes, or some clients do not
//!   reach a primary.
//! * *Clocks* differ in their pace by up to a tenth; clocks of memory nodes jump ahead.
//! * *Joins and drains* of memory nodes.
//! * *Late verbs.* Verbs that a live client has given up execute when they arrive, unless the client's session is
//!   fenced.
//! * *Master crash*, between any two actions; the master restarts from its stored state.
//! * *Foreign masters.* A master without a cluster, or of another cluster, replaces the cluster's own master for a
//!   while.
//! * *Damage* of any word of a live object, if another whole replica is on a node that the master is not about to lose.
//! * *Crash of the master during a job*, at any step.
//!
//! One of three clusters shares its memory: verbs execute on the processor of the client that posts them. Then batches
//! do not overtake each other, no completion is lost, and a client's posted verbs die with the client, between any two
//! verbs or within one (see `immediate.rs`). In half of these clusters a fence kills the client.
//!
//! These faults do not happen:
//!
//! * Slots and bitmaps change by themselves. A damaged slot can mislead a writer until the slot is settled, so
//!   histories with damaged slots have no order to check. `tests/scrub.rs` damages all bits of slots and bitmaps.
//! * A verb executes twice, or a word of eight bytes tears.
//! * Messages are forged. Hostile bytes have tests of their own.
//! * The last replica of something is lost.
//! * The master's store forgets what was written to it.
//! * Switches change CASes. Only [`UnsoundCas`] switches do, in tests that show why switches must not.
//!
//! # Where to look
//!
//! [`run`] runs one [`Scenario`] with one seed. `scenario.rs` draws the cluster and its faults, `workload.rs` the
//! operations of clients, and `adversary.rs` injects the faults. [`check`] judges the run without knowledge of the
//! faults. The layers below are virtual time (`engine.rs`), tasks ([`Executor`]), memory (`memories.rs`), links
//! (`links.rs`) and the network of both (`network.rs`), the [`Fabric`](fusee_core::verbs::Fabric) of a NIC
//! (`fabric.rs`) and of shared memory (`immediate.rs`, `stack_future.rs`), control messages (`control.rs`) and the
//! hosts of the servers' logic (`nodes.rs`, `master.rs`). For tests that count steps, [`Stepper`] runs a cluster by
//! another schedule, in which no time passes.
//!
//! For measurements, a [`Testbed`] (`testbed.rs`) has machines whose parts serve requests in order (`stations.rs`).
//! Batches pass through these parts (`testbed_batch.rs`), `hardware.rs` places processes on machines, and the run has
//! no randomness ([`Sim::steady`]). A [`Rack`] is such hardware for systems other than FUSEE.
#![forbid(unsafe_code)]

mod adversary;
pub mod check;
mod cluster;
mod control;
mod counts;
mod damage;
mod danger;
mod engine;
mod environment;
mod executor;
mod fabric;
mod hardware;
mod immediate;
mod links;
mod master;
mod memories;
mod network;
mod nodes;
mod rack;
mod rng;
mod run;
mod scenario;
mod shrink;
mod stack_future;
mod stations;
mod stepper;
mod switches;
mod testbed;
mod testbed_batch;
mod trace;
mod unsound_cas;
mod verb_pieces;
mod view_checks;
mod workload;

pub use cluster::{ClusterOptions, SimClient, SimCluster, SimStore};
pub use counts::SimCounts;
pub use damage::ReplicaDamage;
pub use engine::{Nanos, ProcessId, Sim};
pub use environment::{SimEnvironment, SimSession};
pub use executor::Executor;
pub use fabric::SimFabric;
pub use hardware::{MachineId, MessageLengths, SimHardware};
pub use links::SimLinks;
pub use memories::SimMemories;
pub use network::{Network, NetworkOptions};
pub use nodes::NodeHosts;
pub use rack::Rack;
pub use rng::Rng;
pub use run::{BrokenPromise, RunOptions, SimOutcome, run};
pub use scenario::{Fault, Scenario};
pub use shrink::shrink;
pub use stations::{BusyTime, PostedTotals};
pub use stepper::Stepper;
pub use switches::{SwitchMistakes, Switches};
pub use testbed::Testbed;
pub use trace::SimTrace;
pub use unsound_cas::UnsoundCas;
pub use view_checks::ViewChecks;
pub use workload::{CallOutcome, SimWorkload};
