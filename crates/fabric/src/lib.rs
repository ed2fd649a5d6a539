//! The fabrics of FUSEE, which carry a client's verbs to the memory of a memory node.
//!
//! [`shm`] maps a memory node's pool into the client's process: a verb is a few instructions. [`tcp`] sends frames
//! to a software NIC in the memory node, which executes the verbs; it reaches other hosts and needs no special
//! hardware. [`verbs`] hands verbs to RDMA-capable NICs. All three implement [`fusee_core::verbs::Fabric`] and pass
//! one [`conformance`] suite. `shm` and `tcp` can serve the same [`pool::Pool`] at the same time; `verbs` can join
//! them only if the NIC's atomics and the processor's are atomic with each other.
//!
//! For sessions: [`any_fabric::attach_all`] attaches to the members of a view, [`any_fabric::AnyFabric`] runs
//! batches and drives the I/O. For memory nodes: [`serve::NodeFabrics`] starts and stops the
//! servers and fences clients on them.
//!
//! All `unsafe` code of the product is in nine modules of this crate: `copy`, `order` and `pool` access shared
//! memory; `sys` and `clock` make system calls; `fork` keeps a child process from dropping values of its parent;
//! `verbs::ffi`, `verbs::device` and `verbs::requester` call the RDMA library. The compiler refuses `unsafe` code
//! in other modules and crates.
//!
//! This crate handles offsets, words and bytes. Keys and slots are the business of `fusee_core`.
#![warn(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

pub mod any_fabric;
pub mod barrier;
// Makes a system call, as `sys` does.
#[allow(unsafe_code)]
pub mod clock;
pub mod conformance;
pub mod driver;
pub mod error;
#[allow(unsafe_code)]
pub mod fork;
mod hello;
mod limits;
#[doc(hidden)]
pub mod parsers;
// Memory that other processes change cannot be accessed through safe Rust.
#[allow(unsafe_code)]
pub mod pool;
pub mod serve;
pub mod shm;
pub mod tcp;
pub mod verbs;
mod version;

#[cfg(test)]
mod barrier_tests;
mod bytes;
mod challenge;
// Accesses memory that other processes change, as `pool` does.
#[allow(unsafe_code)]
mod copy;
#[cfg(test)]
#[allow(unsafe_code)]
mod copy_tests;
mod listener;
// Accesses memory that other processes change, as `pool` does.
#[allow(unsafe_code)]
mod order;
mod spin;
mod sync;
// Wraps system calls that no dependency wraps.
#[allow(unsafe_code)]
mod sys;

pub use any_fabric::{
    AnyFabric, AttachOptions, FabricKind, SwitchLocation, attach_all, attach_all_through,
    attach_all_with, check_shm_access,
};
pub use clock::Clock;
pub use error::{AttachCause, AttachError, RdmaError, ServeError};
pub use limits::NodeLimits;
pub use pool::{PageKind, Pool, PoolOptions};
pub use serve::{NodeFabrics, NodeFabricsOptions};
pub use sys::huge_page_vec;

/// Starts to load a value into the processor's cache, without waiting for it.
#[inline]
pub fn prefetch<T>(value: &T) {
    copy::prefetch(value);
}
