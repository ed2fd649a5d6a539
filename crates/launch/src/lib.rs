//! Starting and stopping of the processes of a cluster on this machine, for `fusee up`, benchmarks,
//! and other programs that need a cluster of real processes.
//!
//! A [`Plan`] describes the cluster. [`start`] starts its servers as children that run this same
//! executable, on loopback addresses, with their files in a private [`Directory`]; each reports its
//! addresses in an [`announcement`]. [`Servers`] also owns the children, and stops them.
//!
//! No server outlives its parent: it ends when its standard input does (`--stop-with-stdin`), and
//! the system closes that input however the parent dies.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod announcement;
mod child;
mod directory;
mod plan;
mod servers;

pub use child::{Child, stop_all};
pub use directory::Directory;
pub use plan::Plan;
pub use servers::{Servers, Started, first_exit, start};
