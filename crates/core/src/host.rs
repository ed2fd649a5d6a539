//! What an operation needs from its surroundings beside verbs: to wait, and to get a block.
//!
//! Clocks, randomness and control messages stay outside of this crate. The client library
//! implements [`Host`] with real timers and RPCs, the simulator with virtual ones.

use core::future::Future;

use crate::error::Error;
use crate::layout::{Address, SizeClass};

/// The host tells an operation to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveUp;

/// A block that this client may allocate objects from. Its block table entries name the client
/// on all replicas of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// Its first byte, which is where its header goes.
    pub address: Address,
    /// The first object not allocated yet; more than 0 when a client that left hands on the rest
    /// of a block.
    pub first: u32,
}

/// Waiting and blocks.
pub trait Host {
    /// Waits a little before an operation tries for the `attempt`-th time (from 0): longer for
    /// later attempts, with jitter, so that clients in conflict drift apart. `Err` when the
    /// operation has waited long enough.
    fn pause(&self, attempt: u32) -> impl Future<Output = Result<(), GiveUp>>;

    /// Gets a block for objects of a class (ALLOC, P §4.4). [`Error::OutOfMemory`] when no memory
    /// node has one, [`Error::Allocation`] when they cannot be asked.
    fn alloc_block(&self, class: SizeClass) -> impl Future<Output = Result<BlockGrant, Error>>;
}
