//! The decisions of a client, without sockets, clocks or threads: the operations of a session and their index cache,
//! the source of its blocks, its waits, and the communication of its process with the master.
//!
//! Time and messages come from an [`Environment`], and a [`Fabric`](fusee_core::verbs::Fabric) executes verbs. Real
//! programs provide threads, timers and sockets; the simulator provides virtual ones and runs this same code.
//!
//! No part of this module is API. The module is public only with the feature `internals`, which the simulator and some
//! tests turn on, and then hidden from the documentation. It is not a separate crate, because that crate would have to
//! make all of these types public for the client, its only user besides the simulator. The feature changes nothing but
//! visibility, so a build of the workspace, which turns it on for all crates, compiles the same program.

mod auto_transitions;
mod bars;
mod blocks;
mod cache;
mod cached_store;
mod certainty;
mod clock;
mod environment;
mod gate;
#[cfg(test)]
mod gate_tests;
mod keeper;
mod rate_limit;
mod session;
mod session_cache;
mod session_counters;
mod session_host;
pub mod work_table;
mod work_table_access;
mod write_many;

pub use cache::{CacheCounters, CacheStats, IndexCache};
pub use environment::Environment;
pub use gate::{BlockOffers, Lease, PendingFrees, SessionGate, SessionMarks, WorkCounters};
pub use keeper::{Keeper, KeeperEnvironment, KeeperTiming, usable_lease};
pub use session::{ClosingReport, LogicOptions, OpenReply, SessionLogic};
pub use session_counters::SessionCounters;
pub use session_host::SessionHost;
pub use work_table::{RequestTable, WorkTableStats};
