//! The decisions of a client, without sockets, clocks or threads: a session's operations and their
//! index cache, the source of its blocks, its waits, and its process's contact with the master.
//!
//! Time and messages come in through an [`Environment`], verbs go out through a
//! [`Fabric`](fusee_core::verbs::Fabric). Real programs have threads, timers and sockets; the
//! simulator brings virtual ones and runs this same code.
//!
//! No part of this is API. It is public only with the feature `internals`, which the simulator and
//! some tests turn on, and hidden from the documentation then. It is no crate of its own, because
//! such a crate would have to publish the same types again to the client, their only other user.
//! The feature changes visibility and nothing else, so a build of the workspace, which turns it on
//! for all crates, compiles the same program.

mod auto_transitions;
mod bars;
mod blocks;
mod cache;
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
mod table_operations;
pub mod work_table;
mod write_many;

pub use cache::{CacheCounters, CacheStats, IndexCache};
pub use environment::Environment;
pub use gate::{BlockOffers, Lease, PendingFrees, SessionGate, SessionMarks, WorkCounters};
pub use keeper::{Keeper, KeeperEnvironment, KeeperTiming, usable_lease};
pub use session::{ClosingReport, LogicOptions, OpenReply, SessionLogic};
pub use session_counters::SessionCounters;
pub use session_host::SessionHost;
pub use work_table::{RequestTable, WorkTableStats};
