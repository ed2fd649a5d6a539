//! The simulated fabric where the client's own processor executes the verbs, as over shared memory.
//!
//! The verbs of a batch execute in the order posted, also across nodes, each piece by piece as on
//! any other network. Between any two pieces, before the first and after the last, others may do
//! whatever they like: any number of verbs, whole operations, recoveries, changes of the view. The
//! process may be stopped there, and go on later, or die: then no further piece executes, and a
//! WRITE may remain half-way. Nothing of such a client is ever on its way.
//!
//! * *A node that is gone, or left by this session*: its verbs are unreachable at once, the others
//!   execute.
//! * *A fence* refuses every piece from then on. Where fences kill
//!   ([`NetworkOptions::fences_kill`](crate::NetworkOptions)), the process ends at the piece it
//!   stands before, if the session is still open; else it lives and finds out, as one does that has
//!   its memory node within.
//!
//! Batches run through [`Fabric::execute`](fusee_core::verbs::Fabric::execute) here, which can
//! wait between two pieces; for the code above that is the same. What cannot wait is
//! `search_now` and `write_now` of the store: functions that are not `async`, and execute batches.
//! [`SimFabric::search`] and [`SimFabric::write`] give the whole operation a
//! [stack of its own](crate::stack), which the fabric leaves between two pieces. So nothing is nested, and
//! every order of steps is possible there too.
//!
//! What this does not reach:
//!
//! * *Weak memory.* Pieces execute one after the other, and all see the same memory. What a processor may
//!   reorder is the matter of `crates/fabric/tests/loom`.
//! * *Other coroutines of a session* may run between two verbs of one, which on real shared memory
//!   they cannot: there is more here than there.
//! * *Memory of a node that has died* is gone for all at one moment. On shared memory those who have mapped it
//!   hear of it one after the other, and use it until then; that a node which the master takes for
//!   dead still serves clients is what partitions and `cut_off_primary` are for.
//! * *Clients of both kinds at one node*: a run has one network.
//! * A process is killed some steps of others after the fence has been acknowledged, but none of its own.

use std::future::poll_fn;
use std::ops::Range;
use std::task::Poll;

use fusee_core::Error;
use fusee_core::store::Transition;
use fusee_core::verbs::{Batch, Fabric, MnId, Op, VerbError};

use crate::counts::count;
use crate::fabric::SimFabric;
use crate::stack::{self, OnStack};

/// What a write on an occupied slot takes at least, with backups.
const PHASES_WITH_HINT: u64 = 3;

/// How far a batch has come.
#[derive(Default)]
struct Progress {
    /// The verb that is next, by its place in the batch.
    verb: usize,
    /// What is left of it, in the order opposite to its execution; empty if it has not begun.
    pieces: Vec<Range<usize>>,
    was_interrupted: bool,
}

/// Dropped half-way when its client dies.
struct UnderWay<'f> {
    fabric: &'f SimFabric,
    progress: Progress,
    verbs: usize,
}

impl Drop for UnderWay<'_> {
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
    /// Runs a SEARCH of a session of this fabric. On an immediate network others run between its verbs also
    /// where it cannot wait for them; and it is counted whether it had to.
    pub async fn search<T: 'static>(
        &self,
        search: impl Future<Output = Result<Option<T>, Error>> + 'static,
    ) -> Result<Option<T>, Error> {
        if !self.is_immediate() {
            return search.await;
        }
        let mut running = OnStack::new(search);
        let found = (&mut running).await;
        // Who follows the index needs two phases to find something.
        if matches!(found, Ok(Some(_))) && running.batches() == 1 {
            count(&self.network.sim().counts().searches_now);
        }
        found
    }

    /// As [`SimFabric::search`], for an UPDATE, UPSERT or DELETE. It is counted whether it had no more phases
    /// than with a hint that is right and nobody in its way.
    pub async fn write<T: 'static>(
        &self,
        write: impl Future<Output = Result<T, Error>> + 'static,
    ) -> Result<T, Error> {
        if !self.is_immediate() {
            return write.await;
        }
        let mut running = OnStack::new(write);
        let written = (&mut running).await;
        if written.is_ok() && running.batches() <= PHASES_WITH_HINT {
            count(&self.network.sim().counts().writes_now);
        }
        written
    }

    /// Runs a Move of a session that uses this fabric. On an immediate network every phase is a yield point, as
    /// for a write.
    pub async fn move_pair(
        &self,
        moving: impl Future<Output = Result<Transition, Error>> + 'static,
    ) -> Result<Transition, Error> {
        let moved = if self.is_immediate() { OnStack::new(moving).await } else { moving.await };
        let counts = self.network.sim().counts();
        match moved {
            Ok(Transition::Moved) => count(&counts.moved_pairs),
            Ok(Transition::Overtaken) => count(&counts.overtaken_moves),
            Ok(Transition::Unchanged) | Err(_) => {}
        }
        moved
    }

    pub(crate) async fn execute_here(&self, mut batch: Batch) -> Batch {
        let mut under_way = self.begin(&batch);
        if self.network.sim().rng().one_in(2) {
            others().await;
        }
        while self.step(&mut under_way.progress, &mut batch) {
            if self.is_interrupted(&mut under_way.progress) {
                others().await;
            }
        }
        batch
    }

    /// Returns whether it did: not where it could not be interrupted.
    pub(crate) fn execute_on_stack(&self, batch: &mut Batch) -> bool {
        if !stack::begin_batch() {
            return false;
        }
        let mut under_way = self.begin(batch);
        if self.network.sim().rng().one_in(2) {
            stack::interrupt();
        }
        while self.step(&mut under_way.progress, batch) {
            if self.is_interrupted(&mut under_way.progress) {
                stack::interrupt();
            }
        }
        true
    }

    fn begin(&self, batch: &Batch) -> UnderWay<'_> {
        if let [slot, object, write, ..] = batch.verbs()
            && (slot.bytes(), slot.node != object.node) == (8, true)
            && matches!(
                (slot.op, object.op, write.op),
                (Op::Read { .. }, Op::Read { .. }, Op::Write { .. })
            )
        {
            count(&self.network.sim().counts().proofs_across_nodes);
        }
        let verbs = batch.verbs().len();
        UnderWay { fabric: self, progress: Progress::default(), verbs }
    }

    /// Whether others run before the next piece. Where no time passes a step is one piece.
    fn is_interrupted(&self, progress: &mut Progress) -> bool {
        let is = self.network.options().stepwise || self.network.sim().rng().one_in(2);
        progress.was_interrupted |= is;
        is
    }

    /// One piece. Returns `false` when there is none left.
    fn step(&self, progress: &mut Progress, batch: &mut Batch) -> bool {
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
        let fenced = network.with(node, |memory| memory.fenced.contains(&client));
        match fenced {
            None => Some(VerbError::Unreachable),
            Some(true) => {
                count(&network.sim().counts().fenced_verbs);
                Some(VerbError::Fenced)
            }
            Some(false) => network.is_broken(client, node).then_some(VerbError::Unreachable),
        }
    }
}

/// Lets others run.
async fn others() {
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
