//! Deterministic simulation: whole clusters in one thread, from one seed.
//!
//! Clients, memory nodes and the master run their unchanged logic (`fusee_core`,
//! `fusee_client::logic`, `fusee_memory_node::logic`, `fusee_master::logic`) in virtual time. The
//! same seed of the same program gives the same run, bit for bit.
//!
//! # Fault model
//!
//! What may happen, and why it must be survived:
//!
//! * *Order.* Verbs of one batch to one node execute in order; batches and nodes know no order
//!   among each other, even those of one client. Each way over a link takes a random time that
//!   changes now and then by a factor of 64. A process takes its steps at a pace that changes alike,
//!   as one does that is preempted.
//! * *Tearing.* READ and WRITE are cut between any two aligned words, and other verbs execute in
//!   between; only the last word of a WRITE comes last. CAS and FAA are whole.
//! * *Time.* A verb executes within [`NetworkOptions::verb_timeout_ns`] of being posted, or never.
//! * *Client crash*, at any await point. Verbs that were posted are out of its hands: of each
//!   lane some prefix executes, perhaps much later, unless the node has fenced the client.
//! * *Memory-node crash*, with its memory; up to all replicas but one of anything.
//! * *Stop and resume* of any client, memory node or master, for longer than others wait. A stopped
//!   node's NIC goes on (RDMA, shared memory) or stops as well (software NIC): both are drawn.
//! * *Lost completions.* The verbs have executed, the client takes the node for unreachable, and its
//!   queue pair is of no use any more.
//! * *Mute memory nodes*, which execute and do not answer some clients for a while, and crash then.
//! * *Lost control messages*, and *partitions* that cut a client off from the master, or a client and a memory
//!   node together; no more than half of the memory nodes at a time.
//! * *Late orders.* What a job of the master asks of memory nodes comes when the job has been given up, and done
//!   again, by this master or another one.
//! * *Silence*: the master is gone for some leases, and with it a primary, or the links of some clients to one.
//! * *Clocks* differ in their pace by a tenth; those of memory nodes jump ahead.
//! * *Members that come and go*: memory nodes join, and are drained.
//! * *Late verbs.* What a living client has given up executes when it gets through, unless it is fenced.
//! * *Master crash*, between any two actions; it restarts from what it persisted.
//! * *Foreign masters*, of no cluster or of another one, in the place of the cluster's own for a while.
//! * *Damage* of any word of a live object; never on all replicas, nor where the whole ones may be lost.
//! * *Crash of whoever recovers*, anywhere.
//!
//! One of three clusters shares its memory: verbs execute on the processor of whoever posts them. Then
//! batches do not overtake each other, no completion is lost, and what a client has posted dies with
//! it, between any two verbs, or within one: `immediate.rs`. In half of these clusters a fence kills.
//!
//! What does not happen: slots and bitmaps that change by themselves (a writer may be misled by a damaged slot
//! until it is settled, so there is no order to check; `tests/scrub.rs` damages all of their bits), verbs that
//! execute twice, words of eight bytes that tear, forged messages (hostile bytes have tests of their own), the
//! loss of the last replica, a store of the master that forgets, switches that change CASes ([`Unsound`] ones do, in
//! tests that show why they must not).
//!
//! # Where to look
//!
//! [`run`] does one [`Scenario`] with one seed: `scenario.rs` draws what the cluster looks like and
//! what goes wrong, `workload.rs` what clients do, `adversary.rs` injects.
//! [`check`] judges, without knowing what was injected. Underneath are virtual time (`engine.rs`),
//! tasks ([`Executor`]), memory and links (`network.rs`), the [`Fabric`](fusee_core::verbs::Fabric)
//! of a NIC (`fabric.rs`) and of shared memory (`immediate.rs`, `stack.rs`), control messages
//! (`control.rs`) and the hosts of the servers' logic (`servers.rs`). [`Stepper`] is a second schedule
//! over the same cluster, without time, for tests that count steps.
//!
//! Where time shall mean something, a [`Testbed`] (`testbed.rs`) has machines whose parts serve in order
//! (`stations.rs`), batches pass through these (`ride.rs`), `hardware.rs` says who runs where, and
//! nothing is drawn ([`Sim::steady`]). A [`Rack`] is such hardware for systems that are not ours.
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
mod mishaps;
mod network;
mod pieces;
mod rack;
mod ride;
mod rng;
mod run;
mod scenario;
mod servers;
mod shrink;
mod stack;
mod stations;
mod stepper;
mod switches;
mod testbed;
mod trace;
mod unsound;
mod workload;

pub use cluster::{Client, Cluster, ClusterOptions, SimStore};
pub use counts::Counts;
pub use engine::{Nanos, ProcessId, Sim};
pub use environment::{SimEnvironment, SimSession};
pub use executor::Executor;
pub use fabric::SimFabric;
pub use hardware::{MachineId, Message};
pub use network::{Network, NetworkOptions};
pub use rack::Rack;
pub use rng::Rng;
pub use run::{Broken, Outcome, RunOptions, run};
pub use scenario::{Fault, Scenario};
pub use shrink::shrink;
pub use stations::{Busy, Posted};
pub use stepper::Stepper;
pub use switches::{Mistakes, Switches};
pub use testbed::Testbed;
pub use trace::Trace;
pub use unsound::Unsound;
pub use workload::{CallOutcome, Workload};
