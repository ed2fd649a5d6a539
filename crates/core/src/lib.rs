//! The protocol of FUSEE: verbs, byte layouts, the rules of SNAPSHOT, the store's operations, two-level memory
//! allocation and the embedded log.
//!
//! Client processes run everything here, against memory nodes that only lend memory. The crate does no I/O, reads no
//! clock, draws no random number and starts no thread. Verbs leave through a [`verbs::Fabric`]; waits, blocks and
//! interruptions come in through a [`host::Host`]. `#![no_std]` makes the compiler check part of this, and
//! `#![forbid(unsafe_code)]` excludes the rest. Therefore the simulator drives the same code that runs in production.
//!
//! Reading order: [`verbs`] (the operations of a memory node), [`layout`] (every shared byte), [`view`] (the
//! places of all replicas), [`data`] (the survival of objects), [`erasure`] (parity), [`race`] (the slots of a
//! key), [`conflict_rules`] (the winner of a conflict), [`slab`] (the allocation of objects), [`store`] (the
//! operations), [`recovery`] (the writes of a dead client), [`repair`] (the index after the loss of a node).
//!
//! "P §n" in comments cites section n of the FUSEE paper (Shen et al., FAST '23, extended version).
#![no_std]
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

extern crate alloc;

pub mod conflict_rules;
pub mod data;
pub mod ended_clients;
pub mod erasure;
pub mod error;
pub mod host;
pub mod layout;
pub mod mutant;
#[doc(hidden)]
pub mod parsers;
pub mod race;
pub mod recovery;
pub mod repair;
pub mod scrub;
pub mod slab;
pub mod stats;
pub mod store;
pub mod verbs;
pub mod version;
pub mod view;

pub use error::{Error, FailedWriteOutcome};
pub use store::Store;
