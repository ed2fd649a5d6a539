//! Completion of objects that are whole on some of their places only.
//!
//! A speculative write ([`store`](crate::store)) has possibly left its word on a backup whose node has the complete
//! object, while other memory nodes lack the object. A process that continues the round of another session completes
//! the object first. Recovery does so before it resumes a write, settling does so before it changes a slot, and a view
//! change does so before it copies a region. The paper has no speculative writes.
//!
//! Only incomplete objects are written. An object whose word some session has read is complete, so it is left as it is.

use alloc::vec::Vec;

use super::{ObjectLocation, ObjectReads};
use crate::layout::Slot;
use crate::stats::Cost;
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, VerbBatch};
use crate::view::MAX_REPLICAS;

/// The largest number of bytes that are read in one phase, except for a single object that has more.
const CHUNK_BYTES: u64 = 4 << 20;

/// Completes the objects that these slot words refer to, if any place of an object has the whole object. No other
/// process is allowed to write to the objects while this runs. Returns the number of bytes written.
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
            // If no replica of the object is whole, no correct client has left the word.
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
