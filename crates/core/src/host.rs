//! What an operation needs from its surroundings beside verbs.
//!
//! Clocks, randomness and control messages stay outside of this crate. The client library
//! implements five traits with real timers and RPCs, the simulator with virtual ones:
//!
//! * [`Waiting`]: how long an operation waits for others;
//! * [`Blocks`]: where memory comes from, and who else may have it;
//! * [`Views`]: the newest view, and what a session may do by one that may be old;
//! * [`Epochs`]: since when operations run, and when memory that they know of is free;
//! * [`Reports`]: what somebody else should look after.
//!
//! [`Host`] is all of them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;

use crate::error::Error;
use crate::layout::Address;
use crate::slab::{BlockGrant, Remainder, SlabKind};
use crate::stats::Damage;
use crate::verbs::MnId;
use crate::view::View;

/// The host tells an operation to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveUp;

/// What asking for a block came to, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// This block is the session's.
    Block(BlockGrant),
    /// None is free, and others have been called upon to hand some on. To be asked again after
    /// [`Blocks::await_others`], by an operation that is not pinned meanwhile.
    Called,
    /// A memory node did not answer, or a region has yet to come. To be asked again after [`Blocks::await_pool`], by
    /// an operation that is not pinned meanwhile.
    Later,
    /// A newer view has come, by which to ask again.
    NewerView,
}

/// What asking for a larger index came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// A newer view has come, in which it may be larger.
    NewerView,
    /// There is no room for a larger one.
    Full,
    /// Neither has come to be known in time.
    GaveUp,
    /// The subtable is as deep as the index may be ([`View::deepest`]).
    TooDeep,
}

/// What a session says of its operations to whoever changes the view
/// ([`change`](crate::change)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The local epoch in which the oldest running operation is pinned; `None` if none is.
    pub oldest: Option<u64>,
    /// Operations that were suspended after a CAS and have not found out what became of it.
    pub suspended: usize,
}

/// How an operation waits for others.
pub trait Waiting {
    /// Waits a little before an operation tries for the `attempt`-th time (from 0): longer for
    /// later attempts, with jitter, so that clients in conflict drift apart. `Err` when the
    /// operation has waited long enough.
    fn pause(&self, attempt: u32) -> impl Future<Output = Result<(), GiveUp>>;
}

/// Where a session's blocks come from, and who else may have them.
pub trait Blocks {
    /// Gets a block for a slab (ALLOC, P §4.4), for an operation that is pinned by `view`.
    /// [`Error::OutOfMemory`] when no memory node has one, nor anybody else, [`Error::Allocation`] when they
    /// cannot be asked. `to_delete`: it may be one of those that memory nodes keep back for DELETEs. With a subtable:
    /// one that lies [beside](crate::data::Region::lies_beside) it, if memory nodes have some of these to spare.
    fn alloc_block(
        &self,
        kind: SlabKind,
        to_delete: bool,
        beside: Option<u32>,
        view: &Arc<View>,
    ) -> impl Future<Output = Result<Granted, Error>>;

    /// Waits a little for memory nodes, or until there is a newer view.
    fn await_pool(&self, view: &Arc<View>) -> impl Future<Output = ()>;

    /// Waits a little for what others hand on.
    fn await_others(&self) -> impl Future<Output = ()>;

    /// The search for memory for a slab is over, however it ended.
    fn end_search(&self, kind: SlabKind);

    /// Whether, when a block was refused the last time, nobody did anything by which memory becomes free.
    fn is_exhausted(&self) -> bool;

    /// Whether somebody has called for memory since this was asked last.
    fn was_called(&self) -> bool;

    /// Whether the blocks for log objects are so few that sessions lend each other theirs: the pool had
    /// none left, or the last one came from somebody else.
    fn lends(&self) -> bool;

    /// Anybody who is short of memory may have these blocks from now on, until they are taken back; the
    /// first ones first. Those in `surplus` are of no use here, and not wholly free: they are for
    /// whoever needs objects of their class, and need not wait until somebody is short. `frees_soon`: others
    /// are about to become free.
    fn offer(&self, spare: Vec<Remainder>, surplus: Vec<Remainder>, frees_soon: bool);

    /// Takes back what was offered; returns the blocks that somebody else has got.
    fn take_back(&self) -> Vec<Address>;

    /// Gives a block back to the pool (FREE, P §4.4), for who is pinned by `view`. Its bytes are zeros,
    /// and no operation runs that began before they were. It is not the session's any more, even if
    /// that fails.
    fn free_block(&self, block: Address, view: &Arc<View>) -> impl Future<Output = ()>;
}

/// The newest view, and whether what a session knows still counts.
pub trait Views {
    /// The newest view, if it is newer than the one of this number. The fabric reaches its members
    /// then.
    fn newer_view(&self, than: u64) -> Option<Arc<View>>;

    /// A subtable has no free slot for a key, for an operation that is pinned by no view now. Waits
    /// until there is a newer view than `view`, in which there may be one, unless there will be none.
    fn grow_index(&self, subtable: u32, view: &Arc<View>) -> impl Future<Output = Grown>;

    /// Whether the master has heard the session less than a lease ago: so nothing has taken effect by
    /// now that the session has not acknowledged.
    fn is_heard(&self) -> bool;

    /// For a session that is not heard, and gets no answer from a member of a view that is stable: has the others bar
    /// it, as far as that is due. Those who do, if they are more than half of all members and a lease has
    /// been over since they were: whoever may have counted as heard until then does not any more.
    fn bar(&self, node: MnId, view: &Arc<View>) -> impl Future<Output = Option<Vec<MnId>>>;
}

/// In what operations are pinned, and when all of those have ended that may know of some memory.
pub trait Epochs {
    /// The local epoch: a number that grows when a view has come, or an epoch. In an earlier local epoch than
    /// the one of a view, `newer_view` may find that view or not; from that moment on it does.
    fn local_epoch(&self) -> u64;

    /// Tells others the oldest that is pinned. In one order with [`Epochs::local_epoch`] for everybody:
    /// who makes a new local epoch after this finds what was told, or a later `local_epoch` finds the new one.
    fn publish(&self, pinned: Pinned);

    /// An operation is pinned in this local epoch. For whoever checks that no memory is used again too early;
    /// nobody else needs to know more than is told.
    fn began(&self, _local_epoch: u64) {}

    /// One that was pinned in this local epoch is not any more.
    fn ended(&self, _local_epoch: u64) {}

    /// Tells others since when there are freed objects whose bits are not set yet.
    fn publish_freed(&self, since: Option<u64>);

    /// Tells others that something was freed by an operation that is pinned in that local epoch, which is older than
    /// what was told; also while bits are being set.
    fn publish_older(&self, since: u64);

    /// Whether the bits may be set now; if not, nothing is waited for any more that was told, and
    /// they must stay as they are.
    fn may_set_free(&self) -> bool;

    /// The newest epoch that the session knows; the newest of all is at most one later, as long as one master leads.
    /// The next one goes on from a number that is far ahead.
    fn epoch(&self) -> u64;

    /// An epoch before which no operation of any session runs any more, nor will.
    fn passed_epoch(&self) -> u64;

    /// Gives a name to this very moment, for [`Epochs::has_passed`].
    fn mark(&self) -> u64;

    /// Whether all operations of all sessions have ended that had begun before a mark.
    fn has_passed(&self, mark: u64) -> bool;

    /// Whether, in addition, the bits of all objects are set that those operations freed, as far as
    /// they will ever be.
    fn is_settled(&self, mark: u64) -> bool;
}

/// What somebody else should know of.
pub trait Reports {
    /// Replicas of an object are damaged, of which so many were written anew: somebody should be told.
    fn found_damage(&self, damage: Damage);

    /// A write is replicated, because it cannot have the redundancy that rules say.
    fn fell_back(&self) {}

    /// A memory node did not answer: somebody should look after it.
    fn report_unreachable(&self, node: MnId);
}

/// The surroundings of a session: whatever implements the five traits.
pub trait Host: Waiting + Blocks + Views + Epochs + Reports {}

impl<H: Waiting + Blocks + Views + Epochs + Reports> Host for H {}
