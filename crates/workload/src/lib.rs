//! Requests of the YCSB workloads: operations, keys, and their distributions.
//!
//! This crate does not depend on the store, which may be measured or simulated.

mod keys;
mod requests;
mod trace;
mod zipf;

pub use keys::{KeyName, Keys};
pub use requests::{Frontier, KEY_BYTES, MAX_KEYS, Part, Request, Workload, key_bytes};
pub use trace::{MAX_LINE_BYTES, MAX_TRACE_KEYS, MAX_TRACE_OPERATIONS, Problem, Trace, TraceError};
pub use zipf::{Chooser, Distribution};
