//! Bulk copies of memory that no process writes at the same time.

use crate::stats::Cost;
use crate::verbs::{Fabric, FailedVerb, VerbBatch};
use crate::view::PoolPlace;

/// The number of bytes that one READ and one WRITE copy.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// The result of filling replicas or columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyResult {
    /// The number of bytes that were copied.
    pub bytes: u64,
    /// The number of objects that were damaged at the source and were taken from other replicas.
    pub objects_repaired: u64,
    /// The cost of the copy: phases (round trips), verbs, atomics and bytes.
    pub cost: Cost,
}

/// Copies `bytes` bytes unchanged from one place to another.
pub(crate) async fn copy_bytes<F: Fabric>(
    fabric: &F,
    from: PoolPlace,
    to: PoolPlace,
    bytes: u64,
    copied: &mut CopyResult,
) -> Result<(), FailedVerb> {
    let mut batch = VerbBatch::new();
    let mut at = 0;
    while at < bytes {
        let count = CHUNK_BYTES.min(bytes - at);
        batch.clear();
        let read = batch.read(from.node, from.offset + at, count as u32);
        batch = fabric.execute(batch).await;
        copied.cost.add_batch(&batch);
        let span = batch.data_span(read)?;
        batch.next_phase();
        batch.write(to.node, to.offset + at, span);
        batch = fabric.execute(batch).await;
        copied.cost.add_batch(&batch);
        batch.check()?;
        copied.bytes += count;
        at += count;
    }
    Ok(())
}
