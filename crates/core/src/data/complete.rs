//! Completion of objects that only some of their places have.
//!
//! A speculative write ([`store`](crate::store)) may have left its word on a backup whose node has the
//! complete object, while other memory nodes never got it. A process that continues the round of another
//! session completes the object first: recovery before it resumes, settling before it changes a slot, and a
//! change before it copies a region. The paper has no such writes.
//!
//! Only incomplete objects are written: the object of a word that any session has read is on all places, and
//! stays as it is.

use alloc::vec::Vec;

use super::{ObjectLocation, ObjectReads};
use crate::layout::Slot;
use crate::stats::Cost;
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, VerbBatch};
use crate::view::MAX_REPLICAS;

/// Bytes that are read together, unless a single object has more.
const CHUNK_BYTES: u64 = 4 << 20;

/// Completes the objects that these words refer to, as far as their bytes are on any place. No other process
/// may write there meanwhile. Returns the number of bytes written.
pub(crate) async fn complete<'v, F: Fabric>(
    fabric: &F,
    objects: impl Iterator<Item = (Slot, ObjectLocation<'v>)>,
    cost: &mut Cost,
) -> Result<u64, FailedVerb> {
    let mut written = 0;
    let mut batch = VerbBatch::new();
    let mut objects = objects.filter(|(_, object)| object.may_be_incomplete()).peekable();
    while objects.peek().is_some() {
        batch.clear();
        let mut reads: Vec<(Slot, ObjectReads)> = Vec::new();
        while let Some((word, object)) = objects.peek().copied() {
            let together = batch.touched_bytes() + object.bytes() * MAX_REPLICAS as u64;
            let fits =
                together <= CHUNK_BYTES && batch.verbs().len() + MAX_REPLICAS <= MAX_BATCH_VERBS;
            if !fits && !reads.is_empty() {
                break;
            }
            objects.next();
            reads.push((word, object.read_all(&mut batch)));
        }
        batch = fabric.execute(batch).await;
        cost.add_batch(&batch);
        let mut incomplete = Vec::new();
        for (word, reads) in reads {
            let found = reads.judge(&mut batch, word, |_| true).answered()?;
            // If it is whole nowhere, no correct client has left the word.
            if found.whole.is_some() && found.damaged() > 0 {
                incomplete.push(found);
            }
        }
        if incomplete.is_empty() {
            continue;
        }
        batch.next_phase();
        written += incomplete.iter().map(|found| found.mend(&mut batch)).sum::<u64>();
        batch = fabric.execute(batch).await;
        cost.add_batch(&batch);
        batch.check()?;
    }
    Ok(written)
}
