//! What the YCSB workloads ask for: which operations, of which keys, in which distribution.
//!
//! Nothing here knows what is asked: a store that is measured, or one that is simulated.

mod requests;
mod zipf;

pub use requests::{Frontier, KEY_BYTES, MAX_KEYS, Part, Request, Workload, key_bytes};
pub use zipf::{Chooser, Distribution};
