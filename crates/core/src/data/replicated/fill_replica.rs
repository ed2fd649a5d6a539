//! Fills a new replica of a region. Parts that are damaged at the source come from other replicas.

use alloc::vec::Vec;

use crate::data::bulk_copy::{CHUNK_BYTES, CopyResult, copy_bytes};
use crate::data::{CopyContext, PerPlace, Region, RegionBlock};
use crate::layout::{BLOCK_HEADER_BYTES, BlockHeader, BlockShape, Object, bitmap_bytes};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, Span, Ticket, VerbBatch};
use crate::view::{MAX_REPLICAS, PoolPlace};

/// See [`Region::copy_to`].
pub(crate) async fn copy_to<F: Fabric>(
    region: &Region,
    fabric: &F,
    context: CopyContext<'_>,
    to: PoolPlace,
    copied: &mut CopyResult,
) -> Result<(), FailedVerb> {
    let from = region.places();
    ReplicaFill { fabric, context, from, to, result: copied }.copy().await
}

/// The progress of filling a new replica of a region.
struct ReplicaFill<'r, F> {
    fabric: &'r F,
    context: CopyContext<'r>,
    /// The present places of the region.
    from: &'r [PoolPlace],
    to: PoolPlace,
    result: &'r mut CopyResult,
}

impl<F: Fabric> ReplicaFill<'_, F> {
    /// Copies everything but the free bitmap. Only that of the region's first place is valid, and clients change it
    /// while this runs. That of another place is zeros until that place becomes the first.
    ///
    /// The source is the first place, except for damage there: objects that are not whole, and invalid block headers,
    /// are taken from another replica if possible.
    async fn copy(mut self) -> Result<(), FailedVerb> {
        let CopyContext { geometry, blocks, .. } = self.context;
        let table = geometry.table_bytes();
        copy_bytes(self.fabric, self.from[0], self.to, table, self.result).await?;
        if removed(Mutant::CopiesBitmaps) {
            let [from, to] = [self.from[0], self.to].map(|place| place.plus(table));
            let bitmap = bitmap_bytes(geometry.region_bytes);
            copy_bytes(self.fabric, from, to, bitmap, self.result).await?;
        }
        for RegionBlock { offset: block, bytes } in blocks.iter().copied() {
            let header = self.copy_header(block).await?;
            let mut copied = BLOCK_HEADER_BYTES;
            let shape = header.and_then(|h| BlockShape::new(bytes, h.class));
            if let Some(shape) = shape.filter(|_| !removed(Mutant::CopiesDamage)) {
                self.copy_objects(block, shape).await?;
                copied = shape.first_offset + u64::from(shape.objects) * shape.object_bytes;
            }
            let [from, to] = [self.from[0], self.to].map(|place| place.plus(block + copied));
            copy_bytes(self.fabric, from, to, bytes - copied, self.result).await?;
        }
        Ok(())
    }

    async fn copy_header(&mut self, block: u64) -> Result<Option<BlockHeader>, FailedVerb> {
        let mut batch = VerbBatch::new();
        let mut reads = PerPlace::<Ticket>::new();
        for place in self.from {
            reads.push(batch.read(place.node, place.offset + block, BLOCK_HEADER_BYTES as u32));
        }
        batch = self.execute(batch).await;
        let first = batch.data_span(reads[0])?;
        let mut chosen = (first, None);
        for read in reads {
            let span = batch.data_span(read)?;
            let bytes = batch.bytes(span).try_into().expect("as long as was asked for");
            if let Some(header) = BlockHeader::decode(bytes) {
                chosen = (span, Some(header));
                break;
            }
        }
        let (span, header) = chosen;
        batch.next_phase();
        batch.write(self.to.node, self.to.offset + block, span);
        batch = self.execute(batch).await;
        batch.check()?;
        self.result.bytes += BLOCK_HEADER_BYTES;
        Ok(header)
    }

    async fn copy_objects(&mut self, block: u64, shape: BlockShape) -> Result<(), FailedVerb> {
        let together = (CHUNK_BYTES / shape.object_bytes).max(1) as u32;
        let mut batch = VerbBatch::new();
        let mut next = 0;
        while next < shape.objects {
            let count = together.min(shape.objects - next);
            let offset = block + shape.offset(next);
            let bytes = (u64::from(count) * shape.object_bytes) as u32;
            let object = |span: Span, i: u32| {
                span.part(i * shape.object_bytes as u32, shape.object_bytes as u32)
            };
            batch.clear();
            let read = batch.read(self.from[0].node, self.from[0].offset + offset, bytes);
            batch = self.execute(batch).await;
            let all = batch.data_span(read)?;
            // Objects that were never used consist of zeros, which is no damage.
            let is_broken = |i: &u32| {
                let bytes = batch.bytes(object(all, *i));
                bytes.iter().any(|b| *b != 0) && Object::decode(bytes).is_err()
            };
            let broken: Vec<u32> = (0..count).filter(is_broken).collect();
            for broken in broken.chunks(MAX_BATCH_VERBS / MAX_REPLICAS) {
                self.mend(&mut batch, offset, all, broken, &object).await?;
            }
            batch.next_phase();
            batch.write(self.to.node, self.to.offset + offset, all);
            batch = self.execute(batch).await;
            batch.check()?;
            self.result.bytes += u64::from(bytes);
            next += count;
        }
        Ok(())
    }

    /// Replaces broken objects, in the bytes that were read, by whole replicas from other places. An object that is
    /// whole nowhere is free, was left unfinished by a dead client, or is damaged on all places; it is copied as it is.
    async fn mend(
        &mut self,
        batch: &mut VerbBatch,
        offset: u64,
        all: Span,
        broken: &[u32],
        object: &impl Fn(Span, u32) -> Span,
    ) -> Result<(), FailedVerb> {
        batch.next_phase();
        let mut reads: Vec<(u32, Ticket)> = Vec::new();
        for i in broken {
            let Span { len, .. } = object(all, *i);
            let offset = offset + u64::from(*i) * u64::from(len);
            for place in &self.from[1..] {
                reads.push((*i, batch.read(place.node, place.offset + offset, len)));
            }
        }
        if reads.is_empty() {
            return Ok(());
        }
        *batch = self.execute(core::mem::take(batch)).await;
        let mut mended = None;
        for (i, read) in reads {
            let span = batch.data_span(read)?;
            if mended != Some(i) && Object::decode(batch.bytes(span)).is_ok() {
                let whole = batch.bytes(span).to_vec();
                batch.bytes_mut(object(all, i)).copy_from_slice(&whole);
                mended = Some(i);
                self.result.objects_repaired += 1;
            }
        }
        Ok(())
    }

    async fn execute(&mut self, batch: VerbBatch) -> VerbBatch {
        let batch = self.fabric.execute(batch).await;
        self.result.cost.add_batch(&batch);
        batch
    }
}
