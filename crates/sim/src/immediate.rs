//! The simulated fabric on which the client's own processor executes the verbs, as over shared memory.
//!
//! The verbs of a batch execute in the order in which they were posted, even if they are for different nodes. Each verb
//! executes piece by piece, as on the other networks. Between any two pieces, before the first and after the last,
//! other processes can do anything: execute verbs, whole operations, recoveries or view changes. The client's process
//! can be stopped there and resumed later. It can also die there: then none of its further pieces executes, and a WRITE
//! can remain half-way. No verb of such a client is ever in flight.
//!
//! * *A node that has died, or to which this session has lost its link*: verbs for this node fail as unreachable at
//!   once, and the other verbs execute.
//! * *A fence* refuses every later piece. If fences kill ([`NetworkOptions::fences_kill`](crate::NetworkOptions)), and
//!   the session is still open, the process ends before its next piece. Otherwise the process lives and learns that it
//!   is fenced, as a client in the process of its memory node would.
//!
//! Batches run through [`Fabric::execute`](fusee_core::verbs::Fabric::execute), which can wait between two pieces; the
//! code above it sees no difference. The store's `search_now` and `write_now` execute batches too, but cannot wait,
//! because they are not `async`. Therefore [`SimFabric::search`] and [`SimFabric::write`] give the whole operation a
//! [stack of its own](crate::stack_future), which the fabric leaves between two pieces. So no execution is nested in
//! another one, and every order of steps is possible for these functions too.
//!
//! Differences from real shared memory:
//!
//! * *Weak memory.* Pieces execute one after the other, and all processes see the same memory.
//!   `crates/fabric/tests/loom` tests reordering by processors.
//! * *Other coroutines of a session* can run between two verbs of one coroutine. On real shared memory they cannot, so
//!   more orders are tested here.
//! * *The memory of a dead node* vanishes for all clients at one moment. On real shared memory, clients that have
//!   mapped the memory learn of the node's death one after the other, and use the memory until then. Partitions and
//!   `cut_off_primary` cover a node that the master treats as dead while it still serves clients.
//! * *Clients of different fabrics at one node* do not occur: a run has one network.
//! * *Kills.* A fenced process is killed some steps of other processes after the fence was acknowledged, but takes no
//!   further step of its own.

use std::future::poll_fn;
use std::ops::Range;
use std::task::Poll;

use fusee_core::Error;
use fusee_core::store::Transition;
use fusee_core::verbs::{Fabric, MnId, VerbBatch, VerbError, VerbOp};

use crate::counts::count;
use crate::fabric::SimFabric;
use crate::stack_future::{self, StackFuture};

/// The number of phases of a write with a right hint and without a conflict, if the subtable has backups.
const PHASES_WITH_HINT: u64 = 3;

/// The progress of a batch that the client's own processor executes.
#[derive(Default)]
struct ImmediateProgress {
    /// The index of the current verb in the batch.
    verb: usize,
    /// Remaining pieces of the current verb, in reverse order; empty if the verb has not begun.
    pieces: Vec<Range<usize>>,
    was_interrupted: bool,
}

/// A batch that the client's own processor is executing. If the client dies, the rest of the batch is dropped.
struct ImmediateBatch<'f> {
    fabric: &'f SimFabric,
    progress: ImmediateProgress,
    verbs: usize,
}

impl Drop for ImmediateBatch<'_> {
    fn drop(&mut self) {
        let counts = self.fabric.network.sim().counts();
        if self.progress.verb < self.verbs {
            count(&counts.cut_batches);
        }
        if self.progress.was_interrupted {
            count(&counts.interrupted_batches);
        }
    }
}

impl SimFabric {
    /// Runs a SEARCH of this fabric's session. If the client's own processor executes the verbs, other processes run
    /// between the verbs of the SEARCH even if the SEARCH cannot wait. SEARCHes that took one batch are counted.
    pub async fn search<T: 'static>(
        &self,
        search: impl Future<Output = Result<Option<T>, Error>> + 'static,
    ) -> Result<Option<T>, Error> {
        if !self.is_immediate() {
            return search.await;
        }
        let mut running = StackFuture::new(search);
        let found = (&mut running).await;
        // A SEARCH without a hint needs two phases to find a value.
        if matches!(found, Ok(Some(_))) && running.batches() == 1 {
            count(&self.network.sim().counts().searches_now);
        }
        found
    }

    /// Runs an UPDATE, UPSERT or DELETE as [`SimFabric::search`] runs a SEARCH. Writes that took no more phases than a
    /// write with a right hint and without a conflict are counted.
    pub async fn write<T: 'static>(
        &self,
        write: impl Future<Output = Result<T, Error>> + 'static,
    ) -> Result<T, Error> {
        if !self.is_immediate() {
            return write.await;
        }
        let mut running = StackFuture::new(write);
        let written = (&mut running).await;
        if written.is_ok() && running.batches() <= PHASES_WITH_HINT {
            count(&self.network.sim().counts().writes_now);
        }
        written
    }

    /// Runs a Move of this fabric's session. If the client's own processor executes the verbs, the Move can be
    /// interrupted at every phase, as a write can.
    pub async fn move_pair(
        &self,
        moving: impl Future<Output = Result<Transition, Error>> + 'static,
    ) -> Result<Transition, Error> {
        let moved = if self.is_immediate() { StackFuture::new(moving).await } else { moving.await };
        let counts = self.network.sim().counts();
        match moved {
            Ok(Transition::Moved) => count(&counts.moved_pairs),
            Ok(Transition::Overtaken) => count(&counts.overtaken_moves),
            Ok(Transition::Unchanged) | Err(_) => {}
        }
        moved
    }

    pub(crate) async fn execute_here(&self, mut batch: VerbBatch) -> VerbBatch {
        let mut under_way = self.begin(&batch);
        if self.network.sim().rng().one_in(2) {
            yield_to_others().await;
        }
        while self.step(&mut under_way.progress, &mut batch) {
            if self.is_interrupted(&mut under_way.progress) {
                yield_to_others().await;
            }
        }
        batch
    }

    /// Executes a batch of an operation that has a stack of its own. Returns `false` if the caller does not run on a
    /// stack of its own, because then the batch could not be interrupted.
    pub(crate) fn execute_on_stack(&self, batch: &mut VerbBatch) -> bool {
        if !stack_future::begin_batch() {
            return false;
        }
        let mut under_way = self.begin(batch);
        if self.network.sim().rng().one_in(2) {
            stack_future::interrupt();
        }
        while self.step(&mut under_way.progress, batch) {
            if self.is_interrupted(&mut under_way.progress) {
                stack_future::interrupt();
            }
        }
        true
    }

    fn begin(&self, batch: &VerbBatch) -> ImmediateBatch<'_> {
        if let [slot, object, write, ..] = batch.verbs()
            && (slot.bytes(), slot.node != object.node) == (8, true)
            && matches!(
                (slot.op, object.op, write.op),
                (VerbOp::Read { .. }, VerbOp::Read { .. }, VerbOp::Write { .. })
            )
        {
            count(&self.network.sim().counts().proofs_across_nodes);
        }
        let verbs = batch.verbs().len();
        ImmediateBatch { fabric: self, progress: ImmediateProgress::default(), verbs }
    }

    /// Returns whether other processes run before the next piece. In a stepwise cluster they run between any two
    /// pieces.
    fn is_interrupted(&self, progress: &mut ImmediateProgress) -> bool {
        let is = self.network.options().stepwise || self.network.sim().rng().one_in(2);
        progress.was_interrupted |= is;
        is
    }

    /// Executes one piece of the batch. Returns `false` when no piece is left.
    fn step(&self, progress: &mut ImmediateProgress, batch: &mut VerbBatch) -> bool {
        let (verbs, bytes) = batch.parts_mut();
        let Some(verb) = verbs.get_mut(progress.verb) else { return false };
        let is_done = match self.refusal(verb.node) {
            Some(error) => {
                verb.result = Err(error);
                true
            }
            None => {
                let is_done = self.execute_piece(verb, bytes, &mut progress.pieces);
                if is_done {
                    self.network.sim().counts().note_verb(verb);
                }
                is_done
            }
        };
        if is_done {
            progress.pieces.clear();
            progress.verb += 1;
        }
        true
    }

    fn refusal(&self, node: MnId) -> Option<VerbError> {
        let network = &self.network;
        let client = self.client;
        let fenced = network.memories().with(node, |memory| memory.fenced.contains(&client));
        match fenced {
            None => Some(VerbError::Unreachable),
            Some(true) => {
                count(&network.sim().counts().fenced_verbs);
                Some(VerbError::Fenced)
            }
            Some(false) => {
                network.links().is_broken(client, node).then_some(VerbError::Unreachable)
            }
        }
    }
}

/// Lets other processes run.
async fn yield_to_others() {
    let mut have_run = false;
    poll_fn(|context| {
        if std::mem::replace(&mut have_run, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
