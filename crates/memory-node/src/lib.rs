//! The memory node: lends memory, hands out blocks, and fences clients.
//!
//! [`logic`] makes the decisions, without sockets, clocks or threads: which part of the pool belongs to which
//! extent, and which block to which client. [`server`] carries the decisions out: it owns the pool and its fabrics,
//! answers the control service and registers with the master. Neither module handles keys or slots; the store's
//! reads and writes never pass through this code.
//!
//! A memory node keeps nothing on disk. After a restart it is empty and has another identity, so the cluster treats
//! it as a new node.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod config;
pub mod logic;
pub mod server;

pub use config::MemoryNodeConfig;
pub use server::{MemoryNode, NodeStartError};
