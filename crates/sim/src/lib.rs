//! Deterministic simulation
#![forbid(unsafe_code)]

mod adversary;
pub mod check;
mod cluster;
mod control;
mod counts;
mod engine;
mod environment;
mod executor;
mod fabric;
mod network;
mod operator;
mod rng;
mod run;
mod scenario;
mod servers;
mod shrink;
mod stepper;
mod trace;
mod workload;

pub use check::linearizability;
pub use cluster::{Client, Cluster, ClusterOptions, SimStore};
pub use counts::Counts;
pub use engine::{Nanos, ProcessId, Sim};
pub use environment::{SimEnvironment, SimSession};
pub use executor::Executor;
pub use fabric::SimFabric;
pub use network::{Network, NetworkOptions, Nic};
pub use rng::Rng;
pub use run::{Failure, Outcome, RunOptions, run};
pub use scenario::{Fault, Scenario};
pub use shrink::shrink;
pub use stepper::Stepper;
pub use trace::Trace;
pub use workload::{Went, Workload};
