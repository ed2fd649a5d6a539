//! Deterministic simulation: whole clusters in one thread, from one seed.
//!
//! Clients, memory nodes and the master run their unchanged logic (`fusee_core`,
//! `fusee_client::logic`, `fusee_memory_node::logic`, `fusee_master::logic`) in virtual time. The
//! same seed of the same program gives the same run, bit for bit.
//!
//! # Fault model
//!
//! The faults that may happen, all of which the store must survive:
//!
//! * *Order.* Verbs of one batch to one node execute in order. There is no order between batches or between nodes,
//!   even for one client. Each direction of a link takes a random time that changes now and then by a factor of 64.
//!   The pace of a process's steps changes likewise, as if it were preempted.
//! * *Tearing.* READ and WRITE are cut between any two aligned words, and other verbs execute in between. The only
//!   order is that the last word of a WRITE comes last. CAS and FAA are atomic.
//! * *Time.* A verb executes within [`NetworkOptions::verb_timeout_ns`] of being posted, or never.
//! * *Client crash*, at any await point. Posted verbs do not depend on the client any more: of each lane some prefix
//!   executes, perhaps much later, unless the node has fenced the client.
//! * *Memory-node crash*, with its memory; up to all replicas but one of anything.
//! * *Stop and resume* of any client, memory node or master, for longer than others wait. A stopped node's NIC goes
//!   on (RDMA, shared memory) or stops as well (software NIC): both are drawn.
//! * *Lost completions.* The verbs have executed, the client takes the node for unreachable, and the queue pair is
//!   unusable from then on.
//! * *Mute memory nodes*, which execute verbs of some clients without an answer for a while, and then crash.
//! * *Lost control messages*, and *partitions* that cut a client off from the master, or a client and a memory node
//!   together; no more than half of the memory nodes at a time.
//! * *Late orders.* A request of a master's job to a memory node arrives after the job has been given up and
//!   repeated, by this master or another one.
//! * *Silence*: the master is away for some leases, together with a primary or with the links of some clients to a
//!   primary.
//! * *Clocks* differ in their pace by up to a tenth; clocks of memory nodes jump ahead.
//! * *Joins and drains* of memory nodes.
//! * *Late verbs.* Verbs that a live client has given up execute when they arrive, unless the client is fenced.
//! * *Master crash*, between any two actions; it restarts from its persisted state.
//! * *Foreign masters*, without a cluster or of another one, in the place of the cluster's own for a while.
//! * *Damage* of any word of a live object; never on all replicas, nor if the whole replicas may be lost.
//! * *Crash of a recovering master*, anywhere.
//!
//! One of three clusters shares its memory: verbs execute on the processor of the client that posts them. Then
//! batches do not overtake each other, no completion is lost, and the posted verbs of a client die with it, between
//! any two verbs or within one: `immediate.rs`. In half of these clusters a fence kills the client.
//!
//! Faults that do not happen: slots and bitmaps that change by themselves (a damaged slot may mislead a writer until
//! it is settled, so there is no order to check; `tests/scrub.rs` damages all of their bits), verbs that execute
//! twice, words of eight bytes that tear, forged messages (hostile bytes have tests of their own), the loss of the
//! last replica, a store of the master that forgets, switches that change CASes ([`UnsoundCas`] ones do, in tests that
//! show why they must not).
//!
//! # Where to look
//!
//! [`run`] runs one [`Scenario`] with one seed: `scenario.rs` draws the cluster and its faults, `workload.rs` the
//! operations of clients; `adversary.rs` injects the faults. [`check`] judges the run without knowledge of the
//! faults. The layers below are virtual time (`engine.rs`), tasks ([`Executor`]), memory and links (`network.rs`),
//! the [`Fabric`](fusee_core::verbs::Fabric) of a NIC (`fabric.rs`) and of shared memory (`immediate.rs`,
//! `stack_future.rs`), control messages (`control.rs`) and the hosts of the servers' logic (`servers.rs`).
//! [`Stepper`] is another schedule over the same cluster, without time, for tests that count steps.
//!
//! For measurements, a [`Testbed`] (`testbed.rs`) has machines whose parts serve in order (`stations.rs`). Batches
//! pass through these parts (`testbed_batch.rs`), `hardware.rs` places processes on machines, and the run has no
//! randomness ([`Sim::steady`]). A [`Rack`] is such hardware for systems other than FUSEE.
#![forbid(unsafe_code)]

mod adversary;
pub mod check;
mod cluster;
mod control;
mod counts;
mod danger;
mod engine;
mod environment;
mod executor;
mod fabric;
mod hardware;
mod immediate;
mod network;
mod rack;
mod rng;
mod run;
mod scenario;
mod server_faults;
mod servers;
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
mod workload;

pub use cluster::{ClusterOptions, SimClient, SimCluster, SimStore};
pub use counts::SimCounts;
pub use engine::{Nanos, ProcessId, Sim};
pub use environment::{SimEnvironment, SimSession};
pub use executor::Executor;
pub use fabric::SimFabric;
pub use hardware::{MachineId, MessageLengths};
pub use network::{Network, NetworkOptions};
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
pub use workload::{CallOutcome, SimWorkload};
