//! Starting and stopping of a cluster's processes on this machine, for `fusee up`, benchmarks, and other programs that
//! need a cluster of real processes.
//!
//! A [`LaunchPlan`] describes the cluster. [`start`] starts the servers as children that run the program `fusee`
//! ([`ServerProgram`]) on loopback addresses, with their files in a private [`ClusterDirectory`]. Each server reports
//! its addresses in an [`announcement`]. [`Servers`] starts a cluster too, owns the children, and stops them.
//!
//! No server outlives its parent: a server ends at the end of its standard input (`--stop-with-stdin`), which the
//! system closes when the parent dies, however it dies.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod announcement;
mod child;
mod directory;
mod plan;
mod program;
mod servers;

pub use child::{Child, stop_all};
pub use directory::ClusterDirectory;
pub use plan::LaunchPlan;
pub use program::ServerProgram;
pub use servers::{LaunchedCluster, Servers, first_exit, start};
