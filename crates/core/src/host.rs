//! The surroundings of an operation, beside verbs.
//!
//! Clocks, randomness and control messages stay outside of this crate. The client library implements five traits with
//! real timers and RPCs, the simulator with virtual ones:
//!
//! * [`Backoff`]: pauses between attempts;
//! * [`Blocks`]: the source of memory, and its exchange with other sessions;
//! * [`Views`]: the newest view, and the validity of an older one;
//! * [`Epochs`]: the epochs of running operations, and of memory that they may know;
//! * [`Reports`]: findings that other processes should look after.
//!
//! [`Host`] combines them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;

use crate::error::Error;
use crate::layout::Address;
use crate::slab::{BlockGrant, BlockRemainder, SlabKind};
use crate::stats::Damage;
use crate::verbs::MnId;
use crate::view::View;

/// The host's order to an operation to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveUp;

/// The answer to a request for a block that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAnswer {
    /// A block, which belongs to the session now.
    Block(BlockGrant),
    /// No block is free, and other sessions have been called upon to hand some on. The operation asks again after
    /// [`Blocks::await_others`], and is not pinned meanwhile.
    Called,
    /// A memory node did not answer, or a region has yet to come. The operation asks again after
    /// [`Blocks::await_pool`], and is not pinned meanwhile.
    Later,
    /// A newer view has come; the operation asks again by that view.
    NewerView,
}

/// The answer to a request for a larger index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexGrowthAnswer {
    /// A newer view has come, in which the index may be larger.
    NewerView,
    /// There is no room for a larger one.
    Full,
    /// No answer has come in time.
    GaveUp,
    /// The subtable is as deep as the index may be ([`View::deepest`]).
    TooDeep,
}

/// A session's report of its operations to the process that changes the view ([`change`](crate::view::change)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedOperations {
    /// The local epoch in which the oldest running operation is pinned; `None` if none is.
    pub oldest: Option<u64>,
    /// Operations that were suspended after a CAS and do not know its outcome yet.
    pub suspended: usize,
}

/// Pauses of operations that wait for others.
pub trait Backoff {
    /// Waits a little before an operation tries for the `attempt`-th time (from 0): longer for
    /// later attempts, with jitter, so that clients in conflict drift apart. `Err` when the
    /// operation has waited long enough.
    fn pause(&self, attempt: u32) -> impl Future<Output = Result<(), GiveUp>>;
}

/// The source of a session's blocks, and their exchange with other sessions.
pub trait Blocks {
    /// Gets a block for a slab (ALLOC, P §4.4), for an operation that is pinned by `view`. Fails with
    /// [`Error::OutOfMemory`] if no memory node and no other session has one, and with [`Error::Allocation`] if they
    /// cannot be asked.
    ///
    /// `to_delete`: the block may be one of those that memory nodes keep back for DELETEs. `beside`: the block is to
    /// lie [beside](crate::data::Region::lies_beside) this subtable, if memory nodes have such blocks to spare.
    fn alloc_block(
        &self,
        kind: SlabKind,
        to_delete: bool,
        beside: Option<u32>,
        view: &Arc<View>,
    ) -> impl Future<Output = Result<BlockAnswer, Error>>;

    /// Waits a little for memory nodes, at most until there is a newer view.
    fn await_pool(&self, view: &Arc<View>) -> impl Future<Output = ()>;

    /// Waits a little for blocks that other sessions hand on.
    fn await_others(&self) -> impl Future<Output = ()>;

    /// Ends the search for memory for a slab, whatever its result.
    fn end_search(&self, kind: SlabKind);

    /// Returns whether no session was doing anything that frees memory when a block was last refused.
    fn is_exhausted(&self) -> bool;

    /// Returns whether any session has called for memory since the last call of this function.
    fn take_memory_call(&self) -> bool;

    /// Returns whether the blocks for log objects are so few that sessions lend theirs: the pool had none left, or the
    /// last one came from another session.
    fn lends_log_blocks(&self) -> bool;

    /// Offers blocks to sessions that are short of memory, the first ones first, until they are taken back.
    ///
    /// Blocks in `surplus` are of no use to this session and not wholly free: they are for sessions that need objects
    /// of their class, and may be handed on before any session is short. `frees_soon`: more blocks are about to become
    /// free.
    fn offer(&self, spare: Vec<BlockRemainder>, surplus: Vec<BlockRemainder>, frees_soon: bool);

    /// Takes back the offered blocks; returns those that other sessions have got.
    fn take_back(&self) -> Vec<Address>;

    /// Gives a block back to the pool (FREE, P §4.4), for an operation that is pinned by `view`. The bytes of the
    /// block are zeros, and no operation runs that began before they were. The block does not belong to the session
    /// any more, even if the call fails.
    fn free_block(&self, block: Address, view: &Arc<View>) -> impl Future<Output = ()>;
}

/// The newest view, and the validity of the session's knowledge.
pub trait Views {
    /// Returns the newest view, if its number is larger than `than`. From then on the fabric reaches the members of
    /// that view.
    fn newer_view(&self, than: u64) -> Option<Arc<View>>;

    /// Asks for a larger index, because a subtable has no free slot for a key, and waits for a newer view than `view`,
    /// in which there may be one. Returns early if there will be none. The operation is pinned by no view meanwhile.
    fn grow_index(
        &self,
        subtable: u32,
        view: &Arc<View>,
    ) -> impl Future<Output = IndexGrowthAnswer>;

    /// Returns whether the session has a valid lease. If so, no view has taken effect by now that the session has not
    /// acknowledged.
    fn has_valid_lease(&self) -> bool;

    /// Has a member barred that does not answer, for a session without a valid lease and a view that is stable. Asks
    /// the other members as far as that is due. Returns the members that bar it, if they are more than half of all
    /// members and a lease has passed since more than half of them did: no lease that was valid until then is valid
    /// any more.
    fn bar(&self, node: MnId, view: &Arc<View>) -> impl Future<Output = Option<Vec<MnId>>>;
}

/// Epochs in which operations are pinned, and the end of all operations that may know some memory.
pub trait Epochs {
    /// Returns the local epoch: a number that grows when a view or an epoch has come. Before the local epoch of a
    /// view, [`Views::newer_view`] may return that view or not; from it on, it does.
    fn local_epoch(&self) -> u64;

    /// Tells the keeper the oldest local epoch that is pinned. All threads see this in one order with
    /// [`Epochs::local_epoch`]: if a new local epoch is made after this call, its maker sees the published value, or a
    /// later call of `local_epoch` returns the new one.
    fn publish(&self, pinned: PinnedOperations);

    /// Notes that an operation is pinned in this local epoch. Only checks that no memory is reused too early need this
    /// call; for all else [`Epochs::publish`] is enough.
    fn note_pinned(&self, _local_epoch: u64) {}

    /// Notes that an operation which was pinned in this local epoch is not pinned any more.
    fn note_unpinned(&self, _local_epoch: u64) {}

    /// Publishes the local epoch since which freed objects wait for their bits to be set.
    fn publish_freed(&self, since: Option<u64>);

    /// Publishes that an object was freed by an operation that is pinned in a local epoch older than the published
    /// one. May be called while bits are being set.
    fn publish_older(&self, since: u64);

    /// Returns whether the bits may be set now. If not, no process waits for the published objects any more, and their
    /// bits must stay as they are.
    fn may_set_free(&self) -> bool;

    /// Returns the newest epoch that the session knows. As long as one master leads, the newest of all is at most one
    /// later; the next master goes on from a number that is far ahead.
    fn epoch(&self) -> u64;

    /// Returns an epoch before which no operation of any session runs any more, nor will.
    fn passed_epoch(&self) -> u64;

    /// Returns a name for this moment, for [`Epochs::has_passed`].
    fn mark(&self) -> u64;

    /// Returns whether all operations of all sessions have ended that had begun before a mark.
    fn has_passed(&self, mark: u64) -> bool;

    /// Returns whether, in addition, the bits of all objects that those operations freed are set, as far as they will
    /// ever be.
    fn is_settled(&self, mark: u64) -> bool;
}

/// Findings that other processes should look after.
pub trait Reports {
    /// Reports damaged replicas of an object, and how many of them were written anew.
    fn report_damage(&self, damage: Damage);

    /// Reports that a write is replicated because it cannot have the redundancy that the policy demands.
    fn report_fallback(&self) {}

    /// Reports a memory node that did not answer.
    fn report_unreachable(&self, node: MnId);
}

/// The surroundings of a session: all five traits.
pub trait Host: Backoff + Blocks + Views + Epochs + Reports {}

impl<H: Backoff + Blocks + Views + Epochs + Reports> Host for H {}
