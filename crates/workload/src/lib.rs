//! Requests of the YCSB workloads: operations, keys, and their distributions.
//!
//! This crate does not depend on the store, so benchmarks of real processes and simulations can both use it.

mod keys;
mod requests;
mod trace;
mod zipf;

pub use keys::{KeyName, KeyNaming};
pub use requests::{
    Frontier, KEY_BYTES, MAX_KEYS, WorkloadOperation, WorkloadShare, YcsbWorkload, key_bytes,
};
pub use trace::{
    MAX_LINE_BYTES, MAX_TRACE_KEYS, MAX_TRACE_OPERATIONS, TraceError, TraceLineError, YcsbTrace,
};
pub use zipf::{Distribution, KeyChooser};
