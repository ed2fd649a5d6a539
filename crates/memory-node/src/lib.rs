//! The memory node: lends memory, hands out blocks, fences clients, and knows nothing else.
//!
//! [`logic`] decides, without sockets, clocks or threads: which part of the pool belongs to which
//! extent, and which block to which client. [`server`] carries the decisions out: it owns the
//! pool and its fabrics, answers the control service and registers with the master. Neither
//! knows what a key or a slot is; reads and writes never pass through here.
//!
//! A memory node keeps nothing on disk. Whoever starts it again gets an empty one with another
//! identity, and the cluster treats it as new.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod config;
pub mod logic;
pub mod server;

pub use config::Config;
pub use server::{MemoryNode, StartError};
