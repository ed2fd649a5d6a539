//! Starting and stopping of the processes of a cluster on this machine, for `fusee up`, benchmarks,
//! and other programs that need a cluster of real processes.
//!
//! A [`LaunchPlan`] describes the cluster. [`start`] starts its servers as children that run the program
//! `fusee` ([`ServerProgram`]), on loopback addresses, with their files in a private [`ClusterDirectory`];
//! each reports its addresses in an [`announcement`]. [`Servers`] also owns the children, and stops
//! them.
//!
//! No server outlives its parent: it ends when its standard input does (`--stop-with-stdin`), and
//! the system closes that input however the parent dies.
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
