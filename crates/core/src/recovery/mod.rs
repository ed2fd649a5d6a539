//! Recovery of a client that died: finish or withdraw what it left half-way, and say which parts
//! of its blocks it never used (P §5.3).
//!
//! The paper redoes what the log says was under way. Ours *looks at the state*: a slot value names
//! its writer, so the replicas of a slot show how far a write round came, whatever the log says.
//! The log only tells which objects to look for.
//!
//! 1. *Walk* (`walk.rs`): READ the headers of the client's blocks, then the objects of those that
//!    are in use, on all replicas. An object that is complete nowhere was never mentioned in a CAS; one
//!    that is complete on some only may have been, by a speculative write.
//! 2. *Examine* (`examine.rs`): READ the slots that may hold the object's key, the primary's
//!    first, then the backups'. The other order is wrong: a round could end in between, and the
//!    word that we would take for the round's old value would be a stranger's new one.
//! 3. *Resume* (`resume.rs`): own identity on backups only: the primary shows the round's old
//!    value. Complete the object ([`data`](crate::data)), go on with Algorithm 1 on this same slot, and
//!    finish what was won.
//!
//! All complete objects in these blocks are examined. How many requests were under way is known to nobody: a
//! session runs any number of operations side by side, and any of them may be the slowest. The
//! walk reads every object anyhow; a look at its slots adds two READs of a bucket pair, 64 objects
//! to a phase.
//!
//! Other clients work on the same slots all the while. To them recovery is a writer that was slow.
//! It never waits for anybody, so it needs no host.
//!
//! Preconditions:
//!
//! * The client is *fenced* at all memory nodes of the view: no verb of it executes any more.
//! * Memory nodes that were lost have been repaired first (P §5.4); the view is current, and no
//!   scope of it is frozen while recovery runs.
//! * No two recoveries of one client run at once. Of different clients they may.
//! * No object is reused while it runs: it counts as an operation that began before it.
//!
//! It may stop anywhere and be run again by another: each step leaves a state that a dying client
//! could have left. Whatever bytes stand in memory, it ends without a panic: what no correct client
//! writes is counted as [`Report::strange`] and left alone.

mod examine;
mod resume;
mod walk;

use alloc::vec::Vec;
use core::mem;

use crate::layout::{Address, BlockShape, Opcode, SizeClass, Slot};
use crate::race::Buckets;
use crate::slab::Remainder;
use crate::stats::Cost;
use crate::verbs::{Batch, ClientId, Fabric, FailedVerb};
use crate::view::View;

/// Objects that are examined together: 2 READs each of the primary, then 2 for each backup.
const GROUP: usize = 64;

/// Why a recovery stopped. It can be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// A memory node did not answer that holds a replica of the index, or of a block. It is to be
    /// repaired first.
    #[error("recovery stopped: {0}")]
    Unreachable(#[from] FailedVerb),
}

/// What is in a block of the dead client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    /// It was never written to: it may go back to the memory node's free blocks.
    Nothing,
    /// Objects.
    Objects {
        /// The class of all of them.
        class: SizeClass,
        /// The first object from which on none has ever been mentioned in a CAS, as far as that is
        /// known: a new owner may allocate from here on. Else the number of the block's objects.
        first: u32,
    },
    /// Bytes that no client has left there, except one that died while it wrote the header: there
    /// is nothing to recover in it, and it cannot be handed on.
    Unreadable,
}

/// What recovery learned about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// Its address.
    pub block: Address,
    /// What is in it.
    pub content: BlockContent,
}

impl BlockReport {
    /// What another client may go on with; `None` if nothing says of which class it is.
    pub fn remainder(&self, block_bytes: u64) -> Option<Remainder> {
        let BlockContent::Objects { class, first } = self.content else { return None };
        BlockShape::new(block_bytes, class)?;
        Some(Remainder { block: self.block, class, first, marked: None })
    }
}

/// What a recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Every block that was given, once, in the order of the logs.
    pub blocks: Vec<BlockReport>,
    /// Places of objects that the client passed in its logs, incomplete ones included.
    pub walked: u64,
    /// Complete objects among them: their slots were looked at.
    pub examined: u64,
    /// Of these, on no replica: not begun, lost, or replaced since.
    pub nowhere: u64,
    /// In the primary: done.
    pub on_primary: u64,
    /// Rounds that recovery won or had won, and finished.
    pub committed: u64,
    /// INSERTs that it withdrew.
    pub withdrawn: u64,
    /// Rounds that somebody else won or had won.
    pub dropped: u64,
    /// Slots and objects in a state that no correct client leaves; nothing was done about them.
    pub strange: u64,
    /// What it cost.
    pub cost: Cost,
}

/// A complete object of the dead client.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Where its key may be.
    buckets: Buckets,
    /// The word that refers to it.
    own: Slot,
    /// What its write does.
    opcode: Opcode,
    /// Whether all replicas of it are the same.
    is_everywhere: bool,
}

/// A running recovery.
struct Recovery<'r, F> {
    fabric: &'r F,
    view: &'r View,
    dead: ClientId,
    batch: Batch,
    /// Walked, not examined yet.
    pending: Vec<Candidate>,
    report: Report,
}

/// Recovers a client that has been fenced at all memory nodes. `blocks` are the addresses of its
/// blocks, from the memory nodes' block tables; `view` has passed [`View::check`]. See the module
/// for the other preconditions.
pub async fn recover<F: Fabric>(
    fabric: &F,
    view: &View,
    dead: ClientId,
    blocks: &[Address],
) -> Result<Report, RecoveryError> {
    let mut recovery = Recovery::new(fabric, view, dead);
    for log in recovery.headers(blocks).await? {
        recovery.walk(&log).await?;
        recovery.examine_pending(GROUP).await?;
    }
    recovery.examine_pending(1).await?;
    Ok(recovery.report)
}

/// Completes what a client left on some replicas only, as far as it stands in a slot, and does nothing
/// else. For use before regions are copied, in a view that is transforming: of these `blocks`, which lie
/// there, nobody writes objects. The client has been fenced at all memory nodes. Returns how many bytes
/// were written.
///
/// Others may go on with what the client stands in, beside this; what is completed in vain harms
/// nobody, since the client's objects are not used again before it is recovered.
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
        let batch = Batch::new();
        let pending = Vec::new();
        let report = Report::default();
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

    /// Examines what has been walked, as long as there are at least `least` objects.
    async fn examine_pending(&mut self, least: usize) -> Result<(), RecoveryError> {
        while self.pending.len() >= least {
            let rest = self.pending.split_off(self.pending.len().min(GROUP));
            let group = mem::replace(&mut self.pending, rest);
            self.examine(&group).await?;
        }
        Ok(())
    }
}
