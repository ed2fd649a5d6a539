//! The interface of an operation to its surroundings, apart from verbs.
//!
//! Clocks, random numbers and control messages stay outside of this crate. The client library implements six traits
//! with real timers and RPCs, the simulator implements them with virtual ones:
//!
//! * [`Backoff`]: pauses between attempts;
//! * [`Blocks`]: the source of memory, and its exchange with other sessions;
//! * [`Logs`]: log areas and client ids for DELETEs;
//! * [`Views`]: the newest view, and the validity of an older one;
//! * [`Epochs`]: the epochs in which operations are pinned, and the times at which memory that they possibly know can
//!   be reused;
//! * [`Reports`]: findings that other processes should act on.
//!
//! [`Host`] combines them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;

use crate::error::Error;
use crate::layout::Address;
use crate::slab::{BlockGrant, BlockRemainder, ReturnedBlock, SlabKind};
use crate::stats::Damage;
use crate::verbs::{ClientId, MnId};
use crate::view::View;

/// The host's order to an operation to stop waiting and to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveUp;

/// The host's answer to an operation that requests a block. If the request fails, the operation gets an error instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAnswer {
    /// A block, which belongs to the session now.
    Block(BlockGrant),
    /// No block is free, and other sessions have been called upon to hand over blocks. The operation asks again after
    /// [`Blocks::await_others`], and is not pinned while it waits.
    Called,
    /// A memory node did not answer, or a new region is not there yet. The operation asks again after
    /// [`Blocks::await_pool`], and is not pinned while it waits.
    Later,
    /// A newer view has come. The operation asks again by that view.
    NewerView,
}

/// The reason for which an operation requests a block, and with it the places that are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockDemand {
    /// The slab has no memory. All possible sources of blocks are asked.
    Needed,
    /// The slab has no memory but a block that it can use only after a window. All possible sources are asked for a
    /// block that can be used at once.
    NeededNow,
    /// The slab should get a block that lies [beside](crate::data::Region::lies_beside) this subtable, if memory nodes
    /// have such blocks to spare.
    Beside(u32),
    /// The slab should get a larger block, if memory nodes have blocks to spare.
    Growth,
}

impl BlockDemand {
    /// Whether the slab has no memory that it can use now.
    pub fn is_urgent(self) -> bool {
        matches!(self, BlockDemand::Needed | BlockDemand::NeededNow)
    }
}

/// The host's answer to an operation that requests a larger index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexGrowthAnswer {
    /// A newer view has come, in which the index is possibly larger.
    NewerView,
    /// No memory node has room for a larger index.
    Full,
    /// The request was not answered in time.
    GaveUp,
    /// The subtable has the largest allowed depth ([`View::deepest`]).
    TooDeep,
}

/// A session's report of its running operations to its keeper, which acknowledges views and reports epochs
/// ([`change`](crate::view::change)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedOperations {
    /// The local epoch in which the oldest running operation is pinned; `None` if no operation is pinned.
    pub oldest: Option<u64>,
    /// The number of operations that were suspended after a CAS and whose outcomes are not known yet.
    pub suspended: usize,
}

/// Pauses operations that wait for other operations or processes.
pub trait Backoff {
    /// Waits a little before attempt number `attempt` (from 0) of an operation. The wait grows with the number and has
    /// jitter, so that clients in conflict drift apart. Returns an error when the operation has to stop waiting.
    fn pause(&self, attempt: u32) -> impl Future<Output = Result<(), GiveUp>>;

    /// Returns whether the time of the running operation is over.
    fn is_over(&self) -> bool;
}

/// The source of a session's blocks, and their exchange with other sessions.
pub trait Blocks {
    /// Gets a block for a slab (ALLOC, P §4.4), for an operation that is pinned by `view`. Fails with
    /// [`Error::OutOfMemory`] if no memory node and no other session has a block, and with [`Error::Allocation`] if
    /// they cannot be asked.
    ///
    /// `bytes` are the bytes of the slab's blocks. The block has at most as many, unless it would hold few objects
    /// then.
    fn alloc_block(
        &self,
        kind: SlabKind,
        bytes: u64,
        demand: BlockDemand,
        view: &Arc<View>,
    ) -> impl Future<Output = Result<BlockAnswer, Error>>;

    /// Waits a little, so that memory nodes possibly have free blocks again. Ends early if a newer view comes.
    fn await_pool(&self, view: &Arc<View>) -> impl Future<Output = ()>;

    /// Waits a little for blocks that other sessions possibly hand over.
    fn await_others(&self) -> impl Future<Output = ()>;

    /// Ends the search for a block for a slab, whether or not it succeeded.
    fn end_search(&self, kind: SlabKind);

    /// Returns whether, when a block was last refused, no session was doing anything that frees memory.
    fn is_exhausted(&self) -> bool;

    /// Returns whether a session has asked other sessions for memory since the last call of this function.
    fn take_memory_call(&self) -> bool;

    /// Offers blocks to sessions that are short of memory, the first blocks first, until [`Blocks::take_back`] is
    /// called.
    ///
    /// Blocks in `surplus` are of no use to this session and not wholly free. They are for sessions that need objects
    /// of their class, and can be handed over before any session is short. `frees_soon` announces that more blocks are
    /// about to become free.
    fn offer(&self, spare: Vec<BlockRemainder>, surplus: Vec<BlockRemainder>, frees_soon: bool);

    /// Takes back the offered blocks. Returns the blocks that other sessions have got, and that do not belong to this
    /// session any more.
    fn take_back(&self) -> Vec<Address>;

    /// Returns a block to the pool (FREE, P §4.4), for an operation that is pinned by `view`. The block contains only
    /// zeros behind its header, and all operations that began before it was zeroed have ended. The memory nodes note
    /// the base, and fill the header with zeros. The block does not belong to the session any more, even if the call
    /// fails.
    fn free_block(&self, block: ReturnedBlock, view: &Arc<View>) -> impl Future<Output = ()>;
}

/// The source of what a session's DELETEs need.
pub trait Logs {
    /// Gets the session's log area of this number, below [`MAX_LOG_AREAS`](crate::layout::MAX_LOG_AREAS), on a memory
    /// node, for an operation that is not pinned; the same area each time. Returns `None` if the node does not answer:
    /// the operation asks again, if a newer view still has the node as a member.
    fn log_area(
        &self,
        node: MnId,
        number: u8,
        view: &View,
    ) -> impl Future<Output = Result<Option<u32>, Error>>;

    /// Gets a client id that no session has, and that no other session gets. Returns `None` if the master does not
    /// answer.
    fn further_client(&self) -> impl Future<Output = Result<Option<ClientId>, Error>>;
}

/// The newest view, and whether what the session knows is still valid.
pub trait Views {
    /// Returns the newest view, if its number is larger than `than`. The fabric reaches the members of a view as soon
    /// as this function has returned the view.
    fn newer_view(&self, than: u64) -> Option<Arc<View>>;

    /// Asks for a larger index, because a subtable has no free slot for a key, and waits until there is a newer view
    /// than `view`, in which the index is possibly larger. Returns early if no such view will come. The operation is
    /// pinned by no view while it waits.
    fn grow_index(
        &self,
        subtable: u32,
        view: &Arc<View>,
    ) -> impl Future<Output = IndexGrowthAnswer>;

    /// Returns whether the session has a valid lease. If so, the session has acknowledged every view that has taken
    /// effect.
    fn has_valid_lease(&self) -> bool;

    /// Asks the other members to bar a member that does not answer, for a session without a valid lease, in a stable
    /// view. Asks only members that do not bar it yet, and not at every call. Returns the members that bar it, if they
    /// are more than half of all members, and the length of a lease has passed since more than half of all members
    /// barred it. Leases that were valid at that moment have run out.
    fn bar(&self, node: MnId, view: &Arc<View>) -> impl Future<Output = Option<Vec<MnId>>>;
}

/// The epochs in which operations are pinned, and the end of operations that possibly know freed memory.
pub trait Epochs {
    /// Returns the local epoch, a number that grows when a view or an epoch arrives. Once the arrival of a view has
    /// begun a local epoch, [`Views::newer_view`] returns that view; it possibly returns the view a little earlier.
    fn local_epoch(&self) -> u64;

    /// Tells the keeper the oldest pinned local epoch. All threads see this in one order with [`Epochs::local_epoch`]:
    /// if a new local epoch begins after this call, the thread that begins it sees the published value, or a later call
    /// of `local_epoch` returns the new one.
    fn publish(&self, pinned: PinnedOperations);

    /// Notes that an operation is pinned in this local epoch. Only tests that check that no memory is reused too early
    /// need this call; otherwise [`Epochs::publish`] is enough.
    fn note_pinned(&self, _local_epoch: u64) {}

    /// Notes that an operation that was pinned in this local epoch is not pinned any more.
    fn note_unpinned(&self, _local_epoch: u64) {}

    /// Publishes the local epoch since which freed objects wait for their free bits to be set.
    fn publish_freed(&self, since: Option<u64>);

    /// Publishes that an operation that is pinned in an older local epoch than the one given to
    /// [`Epochs::publish_freed`] has freed an object. Callers are allowed to call this while free bits are being set.
    fn publish_older(&self, since: u64);

    /// Returns whether the session is allowed to set the free bits now. If it is not, no process waits any more for the
    /// free bits of the published objects, and these bits must stay as they are.
    fn may_set_free(&self) -> bool;

    /// Returns the newest epoch that the session knows. While one master leads, the newest epoch of the cluster is at
    /// most one later; the next master continues from a number that is far ahead.
    fn epoch(&self) -> u64;

    /// Returns an epoch such that no operation of any session runs in an earlier one, and none ever will.
    fn passed_epoch(&self) -> u64;

    /// Returns a mark that stands for this moment, for [`Epochs::has_passed`].
    fn mark(&self) -> u64;

    /// Returns whether all operations, of all sessions, that had begun before a mark have ended.
    fn has_passed(&self, mark: u64) -> bool;

    /// Returns whether a mark [has passed](Epochs::has_passed), and the free bits of all objects that operations from
    /// before the mark have freed are set, except bits that will never be set.
    fn is_settled(&self, mark: u64) -> bool;
}

/// Findings that other processes should act on.
pub trait Reports {
    /// Reports how many damaged replicas of an object were found, and how many of them were repaired.
    fn report_damage(&self, damage: Damage);

    /// Reports a pair that was written replicated because it cannot have the redundancy that the policy demands.
    fn report_fallback(&self) {}

    /// Reports a memory node that did not answer.
    fn report_unreachable(&self, node: MnId);
}

/// The surroundings of a session: all six traits.
pub trait Host: Backoff + Blocks + Logs + Views + Epochs + Reports {}

impl<H: Backoff + Blocks + Logs + Views + Epochs + Reports> Host for H {}
