//! What an operation needs from its surroundings beside verbs: to wait, to get a block, and to
//! learn of new views.
//!
//! Clocks, randomness and control messages stay outside of this crate. The client library
//! implements [`Host`] with real timers and RPCs, the simulator with virtual ones.

use alloc::sync::Arc;
use core::future::Future;

use crate::error::Error;
use crate::layout::{Address, SizeClass};
use crate::verbs::MnId;
use crate::view::View;

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

/// What a session says of its operations to whoever changes the view
/// ([`change`](crate::change)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acting {
    /// The oldest view by which an operation acts; `None` if none does.
    pub oldest: Option<u64>,
    /// Operations that were stopped after a CAS and have not found out what became of it.
    pub stopped: usize,
}

/// Waiting, blocks and views.
pub trait Host {
    /// Waits a little before an operation tries for the `attempt`-th time (from 0): longer for
    /// later attempts, with jitter, so that clients in conflict drift apart. `Err` when the
    /// operation has waited long enough.
    fn pause(&self, attempt: u32) -> impl Future<Output = Result<(), GiveUp>>;

    /// Gets a block for objects of a class (ALLOC, P §4.4), for an operation that acts by `view`.
    /// `None` when a newer view has come, by which to ask again. [`Error::OutOfMemory`] when no
    /// memory node has one, [`Error::Allocation`] when they cannot be asked.
    fn alloc_block(
        &self,
        class: SizeClass,
        view: &Arc<View>,
    ) -> impl Future<Output = Result<Option<BlockGrant>, Error>>;

    /// A subtable has no free slot for a key, for an operation that acts by no view now. Waits
    /// until there is a newer view than `view`, in which there may be one; false if there will be
    /// none.
    fn grow_index(&self, subtable: u32, view: &Arc<View>) -> impl Future<Output = bool>;

    /// The newest view, if it is newer than the one of this number. The fabric reaches its members
    /// then.
    fn newer_view(&self, than: u64) -> Option<Arc<View>>;

    /// Tells others what the operations act by. In one order with [`Host::newer_view`] for
    /// everybody: who publishes a new view after this finds what was told, or a later
    /// `newer_view` finds the view.
    fn tell(&self, acting: Acting);

    /// A memory node did not answer: somebody should look after it.
    fn report_unreachable(&self, node: MnId);
}
