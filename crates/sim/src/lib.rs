//! Deterministic simulation: the unchanged operations of `fusee-core`, many clients at once, in
//! one thread, from one seed.
//!
//! Fault model, so far:
//!
//! * *Interleaving*: between any two verbs of a client any number of verbs of other clients may
//!   execute. Verbs of one batch to one node stay in order; nodes are not ordered among each
//!   other. A completion may be arbitrarily late.
//! * *Tearing*: READ and WRITE are cut into pieces of whole words that interleave with the verbs
//!   of others, in any order; only the last word of a WRITE comes last.
//! * *Client crash*: a task that is dropped stops between two of its pieces.
//! * *Loss of an index node* while no client runs.
//! * Not yet: memory nodes that fail under running clients, stopped processes, lost completions.
//!
//! [`Cluster`] is the memory and its clients, [`Executor`] the schedule, [`Workload`] what clients
//! do and record. [`linearizability`] judges the record. The same seed gives the same run, byte
//! for byte.
#![forbid(unsafe_code)]

mod cluster;
mod executor;
mod fabric;
pub mod linearizability;
mod repair;
mod workload;

pub use cluster::{Cluster, ClusterOptions, SimHost, SimStore};
pub use executor::{Executor, Rng};
pub use fabric::SimFabric;
pub use workload::Workload;
