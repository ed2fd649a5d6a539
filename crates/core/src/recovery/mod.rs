//! Recovery of a client (session) that died: completes or withdraws the writes that it left half-way, and reports the
//! parts of its blocks that it never used (P §5.3).
//!
//! The paper repeats the writes that the log shows as unfinished. This recovery *looks at the state* instead: a slot
//! word names its writer, so the replicas of a slot show how far a round has come, whatever the log says. The log only
//! tells which objects to look for.
//!
//! 1. *Walk* (`walk.rs`): READ the headers of the client's blocks, then the objects of the blocks in use, on all
//!    replicas. An object that is complete nowhere was in no CAS. An object that is complete on some replicas only was
//!    possibly in a CAS of a speculative write.
//!    The records of the client's DELETEs are in its log areas (`deletes.rs`).
//! 2. *Examine* (`examine.rs`): READ the slots that can hold the object's key, the primary's first, then the backups'.
//!    The other order is wrong: the round could end between the two READs, and recovery would take another writer's new
//!    word for the round's old word.
//! 3. *Resume* (`resume.rs`): if the identity is on backups only, the primary shows the round's old word. Complete the
//!    object ([`data`](crate::data)), go on with Algorithm 1 on this slot, and finish the round if it is won.
//!
//! All complete objects in these blocks are examined, because the number of running operations is unknown: a session
//! runs any number of operations at the same time, and any of them is possibly the slowest. The walk reads every object
//! anyway; a look at an object's slots adds two READs of a bucket pair, and one phase does this for 64 objects.
//!
//! Other clients keep working on the same slots while recovery runs. To them recovery is a slow writer. Recovery never
//! waits for other clients, so it needs no host.
//!
//! Preconditions:
//!
//! * The client is *fenced* at all memory nodes of the view, so none of its verbs executes any more.
//! * Memory nodes that were lost have been repaired first (P §5.4). The view is the current one, and no change freezes
//!   any scope while recovery runs.
//! * No two recoveries of one client run at the same time. Recoveries of different clients are allowed to.
//! * No object is reused while recovery runs, because recovery counts as a running operation.
//!
//! Recovery can stop anywhere and be run again by another process, because each step leaves a state that a dying client
//! could have left. It never panics, whatever memory contains: bytes that no correct client writes are counted as
//! [`RecoveryResult::strange`] and are left as they are.

mod deletes;
mod examine;
mod resume;
mod walk;

use alloc::vec::Vec;
use core::mem;

use crate::layout::{Address, BlockShape, Opcode, SizeClass, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::Buckets;
use crate::slab::BlockRemainder;
use crate::stats::Cost;
use crate::verbs::{ClientId, Fabric, FailedVerb, MnId, VerbBatch};
use crate::view::View;

/// The number of writes that are examined together. For each write, 2 READs go to the primary, and then 2 READs to
/// each backup.
const GROUP: usize = 64;

/// The reason why a recovery stopped. The same recovery can be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// A memory node that holds a replica of the index or of a block did not answer. The cluster has to go on without
    /// that node first.
    #[error("recovery stopped: {0}")]
    Unreachable(#[from] FailedVerb),
}

/// A block of the dead client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSpan {
    /// The block's address.
    pub address: Address,
    /// The length of the block.
    pub bytes: u64,
}

/// The contents of one block of the dead client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    /// The block was never written to, and can go back to its pool.
    Nothing,
    /// The block contains objects, possibly incomplete ones.
    Objects {
        /// The size class of the block's objects.
        class: SizeClass,
        /// The first object that a new owner of the block is allowed to allocate: as far as is known, no CAS has named
        /// this object or any object behind it. If there is no such object, the number of the block's objects.
        first: u32,
    },
    /// The block contains bytes that no client leaves, except one that died while it wrote the header. The block has no
    /// objects to recover, and cannot be handed on.
    Unreadable,
}

/// The result of a recovery for one of the dead client's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// The block.
    pub block: BlockSpan,
    /// The findings of recovery in the block.
    pub content: BlockContent,
}

impl BlockReport {
    /// Returns the block's remainder for another session; `None` if the block's size class is unknown.
    pub fn remainder(&self) -> Option<BlockRemainder> {
        let BlockContent::Objects { class, first } = self.content else { return None };
        let BlockSpan { address: block, bytes } = self.block;
        BlockShape::new(bytes, class)?;
        // The block has a header, which tells the base.
        Some(BlockRemainder { block, bytes, base: None, class, first, marked: None })
    }
}

/// The result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryResult {
    /// One report for each block of the dead client, in the order in which recovery walked the blocks.
    pub blocks: Vec<BlockReport>,
    /// The number of objects in the walked parts of the blocks, up to the last object that was begun in each block.
    pub walked: u64,
    /// The number of complete objects and of records, whose slots were examined.
    pub examined: u64,
    /// The number of examined objects whose identity no replica of the slots shows: their writes had not begun, had
    /// lost, or were replaced.
    pub nowhere: u64,
    /// The number of examined objects whose identity the primary of the slot shows: their writes were committed.
    pub on_primary: u64,
    /// The number of rounds that recovery, or the client before it died, won, and that recovery finished.
    pub committed: u64,
    /// The number of INSERTs that recovery withdrew.
    pub withdrawn: u64,
    /// The number of the dead client's writes that have lost their rounds to another writer.
    pub dropped: u64,
    /// The number of slots and objects in a state that no correct client leaves. Recovery changed nothing there.
    pub strange: u64,
    /// The cost of the recovery: phases (round trips), verbs, atomics and bytes.
    pub cost: Cost,
}

/// A write of the dead client, as a complete object or a record shows it.
#[derive(Clone, Copy, Debug)]
struct FoundWrite {
    /// The buckets of the write's key.
    buckets: Buckets,
    /// The slot word that refers to the object, or the DELETE's number.
    own: Slot,
    /// The operation of the write.
    opcode: Opcode,
    /// Whether all replicas of the object are equal; true for a DELETE, which has none.
    is_everywhere: bool,
}

/// A running recovery.
struct Recovery<'r, F> {
    fabric: &'r F,
    view: &'r View,
    dead: ClientId,
    batch: VerbBatch,
    /// Writes that recovery has found but not examined yet.
    pending: Vec<FoundWrite>,
    report: RecoveryResult,
}

/// Recovers a client that has been fenced at all memory nodes. `blocks` are the client's blocks, from the block
/// allocation tables, `areas` its log areas on the memory nodes; `view` has passed [`View::check`]. The
/// documentation of this module has the other preconditions.
pub async fn recover<F: Fabric>(
    fabric: &F,
    view: &View,
    dead: ClientId,
    blocks: &[BlockSpan],
    areas: &[(MnId, u32)],
) -> Result<RecoveryResult, RecoveryError> {
    let mut recovery = Recovery::new(fabric, view, dead);
    if !removed(Mutant::RecoverySkipsRecords) {
        recovery.read_records(areas).await?;
    }
    for log in recovery.headers(blocks).await? {
        recovery.walk(&log).await?;
        recovery.examine_pending(GROUP).await?;
    }
    recovery.examine_pending(1).await?;
    Ok(recovery.report)
}

/// Completes objects that a client left on some replicas only, if slots contain words that lead to them, and does
/// nothing else. It is run before regions are copied, in a view that is transforming: no session writes objects in
/// these `blocks`, which lie in those regions. The client has been fenced at all memory nodes. Returns the number of
/// bytes written.
///
/// Other sessions can, at the same time, go on with rounds that contain the client's words. Completing an object that
/// no slot keeps does no harm, because the client's objects are not reused before the client is recovered.
pub async fn complete_objects<F: Fabric>(
    fabric: &F,
    view: &View,
    dead: ClientId,
    blocks: &[BlockSpan],
) -> Result<u64, RecoveryError> {
    let mut recovery = Recovery::new(fabric, view, dead);
    for log in recovery.headers(blocks).await? {
        recovery.walk(&log).await?;
        recovery.pending.retain(|found| !found.is_everywhere);
    }
    let mut written = 0;
    let pending = mem::take(&mut recovery.pending);
    for group in pending.chunks(GROUP) {
        written += recovery.complete_those_in_slots(group).await?;
    }
    Ok(written)
}

impl<'r, F: Fabric> Recovery<'r, F> {
    fn new(fabric: &'r F, view: &'r View, dead: ClientId) -> Recovery<'r, F> {
        let batch = VerbBatch::new();
        let pending = Vec::new();
        let report = RecoveryResult::default();
        Recovery { fabric, view, dead, batch, pending, report }
    }
}

impl<F: Fabric> Recovery<'_, F> {
    /// Executes the batch as one phase.
    async fn phase(&mut self) {
        let batch = mem::take(&mut self.batch);
        self.batch = self.fabric.execute(batch).await;
        self.report.cost.add_batch(&self.batch);
    }

    /// Examines found writes until fewer than `least` of them are unexamined.
    async fn examine_pending(&mut self, least: usize) -> Result<(), RecoveryError> {
        while self.pending.len() >= least {
            let rest = self.pending.split_off(self.pending.len().min(GROUP));
            let group = mem::replace(&mut self.pending, rest);
            self.examine(&group).await?;
        }
        Ok(())
    }
}
