//! Recovery of a client that died: completes or withdraws the writes that it left half-way, and reports the
//! parts of its blocks that it never used (P §5.3).
//!
//! The paper repeats the writes that the log shows as unfinished. Ours *looks at the state*: a slot value
//! names its writer, so the replicas of a slot show how far a write round came, whatever the log says. The
//! log only tells which objects to look for.
//!
//! 1. *Walk* (`walk.rs`): READ the headers of the client's blocks, then the objects of those that are in use,
//!    on all replicas. An object that is complete nowhere was in no CAS; one that is complete on some
//!    replicas only may have been, by a speculative write.
//! 2. *Examine* (`examine.rs`): READ the slots that may hold the object's key, the primary's first, then the
//!    backups'. The other order is wrong: a round could end in between, and recovery would take another
//!    writer's new word for the round's old value.
//! 3. *Resume* (`resume.rs`): if the identity stands on backups only, the primary shows the round's old
//!    value. Complete the object ([`data`](crate::data)), go on with Algorithm 1 on this same slot, and
//!    finish a round that is won.
//!
//! All complete objects in these blocks are examined, because the number of running requests is unknown: a
//! session runs any number of operations side by side, and any of them may be the slowest. The walk reads
//! every object anyhow; a look at its slots adds two READs of a bucket pair, 64 objects to a phase.
//!
//! Other clients work on the same slots all the while. To them recovery is a writer that was slow. It never
//! waits for other clients, so it needs no host.
//!
//! Preconditions:
//!
//! * The client is *fenced* at all memory nodes of the view: no verb of it executes any more.
//! * Memory nodes that were lost have been repaired first (P §5.4); the view is current, and no scope of it
//!   is frozen while recovery runs.
//! * No two recoveries of one client run at once. Recoveries of different clients may.
//! * No object is reused while it runs: it counts as an operation that began before it.
//!
//! It may stop anywhere and be run again by another process: each step leaves a state that a dying client
//! could have left. Whatever bytes stand in memory, it ends without a panic: bytes that no correct client
//! writes are counted as [`RecoveryResult::strange`] and left alone.

mod examine;
mod resume;
mod walk;

use alloc::vec::Vec;
use core::mem;

use crate::layout::{Address, BlockShape, Opcode, SizeClass, Slot};
use crate::race::Buckets;
use crate::slab::BlockRemainder;
use crate::stats::Cost;
use crate::verbs::{ClientId, Fabric, FailedVerb, VerbBatch};
use crate::view::View;

/// Objects that are examined together: 2 READs each of the primary, then 2 for each backup.
const GROUP: usize = 64;

/// The reason for which a recovery stopped. It can be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// A memory node that holds a replica of the index or of a block did not answer. It is to be repaired
    /// first.
    #[error("recovery stopped: {0}")]
    Unreachable(#[from] FailedVerb),
}

/// The contents of a block of the dead client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    /// None; the block was never written to, and may go back to the memory node's free blocks.
    Nothing,
    /// Objects.
    Objects {
        /// The class of all objects.
        class: SizeClass,
        /// The first object such that neither it nor a later one was in a CAS, as far as that is known: a new
        /// owner may allocate from here on. The number of the block's objects if there is none.
        first: u32,
    },
    /// Bytes that no client leaves, except one that died while it wrote the header: the block has no objects
    /// to recover, and cannot be handed on.
    Unreadable,
}

/// The result of recovery for one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// The address of the block.
    pub block: Address,
    /// The contents of the block.
    pub content: BlockContent,
}

impl BlockReport {
    /// Returns the remainder that another client may use; `None` if the block's size class is unknown.
    pub fn remainder(&self, block_bytes: u64) -> Option<BlockRemainder> {
        let BlockContent::Objects { class, first } = self.content else { return None };
        BlockShape::new(block_bytes, class)?;
        Some(BlockRemainder { block: self.block, class, first, marked: None })
    }
}

/// The result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryResult {
    /// Every given block, once, in the order of the logs.
    pub blocks: Vec<BlockReport>,
    /// Places of objects that the client passed in its logs, incomplete ones included.
    pub walked: u64,
    /// Complete objects among them; their slots were examined.
    pub examined: u64,
    /// Examined objects with words on no replica: not begun, lost, or replaced since.
    pub nowhere: u64,
    /// Examined objects with words on the primary: committed.
    pub on_primary: u64,
    /// Rounds that recovery won or had won, and finished.
    pub committed: u64,
    /// INSERTs that recovery withdrew.
    pub withdrawn: u64,
    /// Rounds that another writer won or had won.
    pub dropped: u64,
    /// Slots and objects in a state that no correct client leaves; nothing was done about them.
    pub strange: u64,
    /// The cost: phases (round trips), verbs, atomics and bytes.
    pub cost: Cost,
}

/// A complete object of the dead client.
#[derive(Clone, Copy, Debug)]
struct LoggedObject {
    /// The buckets of its key.
    buckets: Buckets,
    /// The word that refers to it.
    own: Slot,
    /// The operation of its write.
    opcode: Opcode,
    /// Whether all its replicas are the same.
    is_everywhere: bool,
}

/// A running recovery.
struct Recovery<'r, F> {
    fabric: &'r F,
    view: &'r View,
    dead: ClientId,
    batch: VerbBatch,
    /// Objects that are walked and not examined yet.
    pending: Vec<LoggedObject>,
    report: RecoveryResult,
}

/// Recovers a client that has been fenced at all memory nodes. `blocks` are the addresses of its
/// blocks, from the memory nodes' block tables; `view` has passed [`View::check`]. See the module
/// for the other preconditions.
pub async fn recover<F: Fabric>(
    fabric: &F,
    view: &View,
    dead: ClientId,
    blocks: &[Address],
) -> Result<RecoveryResult, RecoveryError> {
    let mut recovery = Recovery::new(fabric, view, dead);
    for log in recovery.headers(blocks).await? {
        recovery.walk(&log).await?;
        recovery.examine_pending(GROUP).await?;
    }
    recovery.examine_pending(1).await?;
    Ok(recovery.report)
}

/// Completes objects that a client left on some replicas only, as far as their words stand in slots, and does
/// nothing else. For use before regions are copied, in a view that is transforming: no session writes objects
/// in these `blocks`, which lie in those regions. The client has been fenced at all memory nodes. Returns the
/// number of bytes written.
///
/// Other sessions may meanwhile go on with rounds that contain the client's words. Completing an object in
/// vain does no harm, since the client's objects are not used again before it is recovered.
pub async fn complete_objects<F: Fabric>(
    fabric: &F,
    view: &View,
    dead: ClientId,
    blocks: &[Address],
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
    /// Executes the batch: one phase.
    async fn phase(&mut self) {
        let batch = mem::take(&mut self.batch);
        self.batch = self.fabric.execute(batch).await;
        self.report.cost.add_batch(&self.batch);
    }

    /// Examines walked objects, as long as there are at least `least` of them.
    async fn examine_pending(&mut self, least: usize) -> Result<(), RecoveryError> {
        while self.pending.len() >= least {
            let rest = self.pending.split_off(self.pending.len().min(GROUP));
            let group = mem::replace(&mut self.pending, rest);
            self.examine(&group).await?;
        }
        Ok(())
    }
}
