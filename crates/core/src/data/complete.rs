//! Objects that stand on some of their places only are completed on the others.
//!
//! A speculative write ([`store`](crate::store)) may have left its word on a backup, where its object
//! is complete, while the object never came to other memory nodes. Whoever goes on with the round of
//! somebody else completes it first: recovery before it resumes, settling before it changes a slot, and
//! a change before it copies a region. The paper has no such writes.
//!
//! Only what is incomplete is written to: the object of a word that anybody reads stands on all
//! places, and stays as it is.

use alloc::vec::Vec;

use super::{ObjectAt, Reads};
use crate::layout::Slot;
use crate::stats::Cost;
use crate::verbs::{Batch, Fabric, FailedVerb, MAX_BATCH_VERBS};
use crate::view::MAX_REPLICAS;

/// Bytes that are read together, unless a single object has more.
const CHUNK_BYTES: u64 = 4 << 20;

/// Makes the objects that these words refer to complete, if that can be done from what stands
/// somewhere. Nobody else may write there meanwhile. Returns how many bytes were written.
pub(crate) async fn complete<'v, F: Fabric>(
    fabric: &F,
    objects: impl Iterator<Item = (Slot, ObjectAt<'v>)>,
    cost: &mut Cost,
) -> Result<u64, FailedVerb> {
    let mut written = 0;
    let mut batch = Batch::new();
    let mut objects = objects.filter(|(_, object)| object.may_be_incomplete()).peekable();
    while objects.peek().is_some() {
        batch.clear();
        let mut reads: Vec<(Slot, Reads)> = Vec::new();
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
