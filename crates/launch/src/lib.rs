//! Starts and ends the processes of a cluster on this machine: for `fusee up`, for benchmarks, and
//! for whoever else needs a cluster of real processes.
//!
//! A [`Plan`] says what cluster. [`start`] starts its servers as children that run this same
//! executable, on loopback addresses, with their files in a private [`Directory`]; each says where it
//! is with an [`announcement`]. [`Servers`] also owns what it started, and ends it.
//!
//! No server outlives its parent: it ends when its standard input does (`--stop-with-stdin`), and
//! the system closes that input whatever the parent died of.
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
