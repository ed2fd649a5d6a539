//! What a client decides, without sockets, clocks or threads: a session's operations and their
//! index cache, where its blocks come from, how it waits, and how its process keeps in touch with
//! the master.
//!
//! Time and messages come in through an [`Environment`], verbs go out through a
//! [`Fabric`](fusee_core::verbs::Fabric). The real ones are threads, timers and sockets; the
//! simulator brings virtual ones and runs this same code.

mod bars;
mod blocks;
mod cache;
mod environment;
mod gate;
#[cfg(test)]
mod gate_tests;
mod keeper;
mod recent;
mod session;
mod waiting;

pub use cache::{CacheStats, IndexCache};
pub use environment::Environment;
pub use gate::Gate;
pub use keeper::{Keeper, Keeping, Timing, counted};
pub use session::{Leaving, LogicOptions, Opened, Session};
pub use waiting::SessionHost;
