//! What the YCSB workloads ask for: which operations, of which keys, in which distribution.
//!
//! Nothing here knows what is asked: a store that is measured, or one that is simulated.

mod keys;
mod requests;
mod trace;
mod zipf;

pub use keys::{KeyName, Keys};
pub use requests::{Frontier, KEY_BYTES, MAX_KEYS, Part, Request, Workload, key_bytes};
pub use trace::{MAX_LINE_BYTES, MAX_TRACE_KEYS, MAX_TRACE_OPERATIONS, Problem, Trace, TraceError};
pub use zipf::{Chooser, Distribution};
