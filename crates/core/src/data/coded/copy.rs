//! A coded region gets a column.
//!
//! It takes the place of one that leaves, or of one that is lost. The former is copied as replicas are, byte by
//! byte, but for chunks that are damaged there. For the latter every chunk is made of the others'. Headers and
//! block tables are the same on all columns; free bitmaps are not copied: only those of the first count.

use alloc::vec;
use alloc::vec::Vec;

use super::Columns;
use crate::code::{Coding, ReedSolomon};
use crate::data::copy::{CHUNK_BYTES, Copied, copy_bytes};
use crate::data::{PerPlace, Region};
use crate::layout::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockShape, Chunk, Identity, Stripe, bitmap_bytes,
};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Batch, Fabric, FailedVerb, MAX_BATCH_VERBS, Span, Ticket};
use crate::view::{Geometry, Place};

/// See [`Region::copy_to`].
pub(crate) async fn copy_to<F: Fabric>(
    columns: &Columns,
    region: &Region,
    fabric: &F,
    geometry: &Geometry,
    (to, chunk): (Place, u8),
    copied: &mut Copied,
) -> Result<(), FailedVerb> {
    let code = ReedSolomon::new(columns.coding);
    let coding = columns.coding;
    let from = region.places().iter().copied().zip(columns.chunks.iter().copied()).collect();
    FillColumn { fabric, geometry, coding, code, from, to, chunk, result: copied }.fill().await
}

/// A column is filled.
struct FillColumn<'r, F> {
    fabric: &'r F,
    geometry: &'r Geometry,
    coding: Coding,
    code: ReedSolomon,
    /// The columns that there are, with their chunks.
    from: PerPlace<(Place, u8)>,
    to: Place,
    chunk: u8,
    result: &'r mut Copied,
}

/// What one column shows of an object: the number of the chunk, and its bytes.
type NumberedChunk = (u8, Span);

impl<F: Fabric> FillColumn<'_, F> {
    /// Fills all but the free bitmaps, as replication does.
    async fn fill(mut self) -> Result<(), FailedVerb> {
        let geometry = self.geometry;
        let leaving = self.from.iter().find(|(_, chunk)| *chunk == self.chunk);
        let leaving = leaving.map(|(place, _)| *place);
        let table = geometry.table_bytes();
        copy_bytes(self.fabric, self.from[0].0, self.to, table, self.result).await?;
        for block in 0..geometry.blocks_per_region() {
            let block = geometry.block_offset(block);
            let header = self.copy_header(block).await?;
            let mut filled = BLOCK_HEADER_BYTES + bitmap_bytes(geometry.block_bytes);
            let shape = header.and_then(|h| BlockShape::new(geometry.block_bytes, h.class));
            if let Some(shape) = shape {
                match leaving {
                    Some(leaving) => self.copy_objects(block, shape, leaving).await?,
                    None => self.make_objects(block, shape).await?,
                }
                filled = shape.first_offset + u64::from(shape.objects) * shape.object_bytes;
            }
            let (at, bytes) = (block + filled, geometry.block_bytes - filled);
            match leaving {
                Some(leaving) => {
                    let [from, to] = [leaving, self.to].map(|place| place.plus(at));
                    copy_bytes(self.fabric, from, to, bytes, self.result).await?;
                }
                None => self.zero(at, bytes).await?,
            }
        }
        Ok(())
    }

    /// Copies a block's header, of any column that has one.
    async fn copy_header(&mut self, block: u64) -> Result<Option<BlockHeader>, FailedVerb> {
        let mut batch = Batch::new();
        let mut reads = PerPlace::<Ticket>::new();
        for (place, _) in &self.from {
            reads.push(batch.read(place.node, place.offset + block, BLOCK_HEADER_BYTES as u32));
        }
        batch = self.execute(batch).await;
        let mut chosen = (batch.data_span(reads[0])?, None);
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

    /// Copies the chunks of a block's objects from the column that leaves. One that is damaged there is made of the
    /// others; one of which too few agree stays as it is.
    async fn copy_objects(
        &mut self,
        block: u64,
        shape: BlockShape,
        leaving: Place,
    ) -> Result<(), FailedVerb> {
        let together = (CHUNK_BYTES / shape.object_bytes).max(1) as u32;
        let bytes = shape.object_bytes as u32;
        let mut next = 0;
        while next < shape.objects {
            let count = together.min(shape.objects - next);
            let offset = block + shape.offset(next);
            let mut batch = Batch::new();
            let read = batch.read(leaving.node, leaving.offset + offset, count * bytes);
            batch = self.execute(batch).await;
            let all = batch.data_span(read)?;
            let (coding, chunk) = (self.coding, usize::from(self.chunk));
            // Free objects that were never used are zeros: nothing is missing.
            let is_broken = |i: &u32| {
                let bytes = batch.bytes(all.part(i * bytes, bytes));
                let is_used = bytes.iter().any(|byte| *byte != 0);
                is_used
                    && Chunk::decode(bytes, coding, chunk).is_err()
                    && !removed(Mutant::CopiesDamage)
            };
            let broken: Vec<u32> = (0..count).filter(is_broken).collect();
            for i in broken {
                let part = all.part(i * bytes, bytes);
                if let Some(made) = self.made(offset + u64::from(i * bytes), bytes).await? {
                    batch.bytes_mut(part).copy_from_slice(&made);
                    self.result.objects_repaired += 1;
                }
            }
            batch.next_phase();
            batch.write(self.to.node, self.to.offset + offset, all);
            batch = self.execute(batch).await;
            batch.check()?;
            self.result.bytes += u64::from(count * bytes);
            next += count;
        }
        Ok(())
    }

    /// One phase: the chunk of the object at an offset, made of those of all columns; `None` if too few agree.
    async fn made(&mut self, offset: u64, bytes: u32) -> Result<Option<Vec<u8>>, FailedVerb> {
        let mut batch = Batch::new();
        let reads = self.read_columns(&mut batch, offset, bytes);
        batch = self.execute(batch).await;
        let columns = spans(&batch, reads)?;
        let mut made = vec![0; bytes as usize];
        Ok(self.make(&batch, &columns, &mut made).then_some(made))
    }

    /// Makes the chunks of a block's objects of those of all columns. An object of which too few chunks agree is
    /// free, unfinished by a dead client, or damaged on too many columns: zeros take its place.
    async fn make_objects(&mut self, block: u64, shape: BlockShape) -> Result<(), FailedVerb> {
        let columns = self.from.len();
        let fitting = CHUNK_BYTES / (shape.object_bytes * columns as u64);
        let together = fitting.clamp(1, (MAX_BATCH_VERBS / columns) as u64) as u32;
        let bytes = shape.object_bytes as u32;
        let mut next = 0;
        while next < shape.objects {
            let count = together.min(shape.objects - next);
            let offset = block + shape.offset(next);
            let mut batch = Batch::new();
            let reads = self.read_columns(&mut batch, offset, count * bytes);
            batch = self.execute(batch).await;
            let read = spans(&batch, reads)?;
            let mut made = vec![0; (count * bytes) as usize];
            for (i, made) in (0..count).zip(made.chunks_exact_mut(bytes as usize)) {
                let part = |(chunk, span): &NumberedChunk| (*chunk, span.part(i * bytes, bytes));
                self.make(&batch, &read.iter().map(part).collect(), made);
            }
            batch.next_phase();
            let span = batch.stage(count * bytes);
            batch.bytes_mut(span).copy_from_slice(&made);
            batch.write(self.to.node, self.to.offset + offset, span);
            batch = self.execute(batch).await;
            batch.check()?;
            self.result.bytes += u64::from(count * bytes);
            next += count;
        }
        Ok(())
    }

    /// Posts READs of the same bytes of all columns.
    fn read_columns(&self, batch: &mut Batch, offset: u64, bytes: u32) -> PerPlace<(u8, Ticket)> {
        let read = |(place, chunk): &(Place, u8)| {
            (*chunk, batch.read(place.node, place.offset + offset, bytes))
        };
        self.from.iter().map(read).collect()
    }

    /// Makes the chunk of one object; whether enough others agree.
    fn make(&self, batch: &Batch, columns: &PerPlace<NumberedChunk>, made: &mut [u8]) -> bool {
        if removed(Mutant::RebuildsFromFirstPlace) {
            made.copy_from_slice(batch.bytes(columns[0].1));
            return true;
        }
        let decode = |(number, span): &NumberedChunk| {
            Chunk::decode(batch.bytes(*span), self.coding, (*number).into()).ok()
        };
        let chunks: Vec<Chunk<'_>> = columns.iter().filter_map(decode).collect();
        let mut identities: Vec<Identity> = chunks.iter().map(Chunk::identity).collect();
        identities.sort_unstable();
        identities.dedup();
        let of = |identity: &Identity| chunks.iter().filter(|c| c.identity() == *identity).count();
        // An object that a word leads to has its chunk on every column. So of two identities neither is in use, and
        // either will do.
        let Some(most) = identities.into_iter().max_by_key(of) else { return false };
        let mut stripe = Stripe::default();
        let same = chunks.into_iter().filter(|chunk| chunk.identity() == most);
        same.for_each(|chunk| stripe.add(chunk));
        let Some(needed) = stripe.room() else { return false };
        let mut room = vec![0; needed];
        let whole = stripe.restore(&self.code, &mut room);
        let Some(whole) = whole else { return false };
        whole.chunk(&self.code, self.chunk.into(), made);
        true
    }

    /// Overwrites what no object lies in.
    async fn zero(&mut self, from: u64, bytes: u64) -> Result<(), FailedVerb> {
        let mut at = 0;
        while at < bytes {
            let count = CHUNK_BYTES.min(bytes - at);
            let mut batch = Batch::new();
            let zeros = batch.stage(count as u32);
            batch.bytes_mut(zeros).fill(0);
            batch.write(self.to.node, self.to.offset + from + at, zeros);
            batch = self.execute(batch).await;
            batch.check()?;
            self.result.bytes += count;
            at += count;
        }
        Ok(())
    }

    async fn execute(&mut self, batch: Batch) -> Batch {
        let batch = self.fabric.execute(batch).await;
        self.result.cost.add_batch(&batch);
        batch
    }
}

/// What READs of columns have fetched.
fn spans(
    batch: &Batch,
    reads: PerPlace<(u8, Ticket)>,
) -> Result<PerPlace<NumberedChunk>, FailedVerb> {
    reads.into_iter().map(|(chunk, ticket)| Ok((chunk, batch.data_span(ticket)?))).collect()
}
