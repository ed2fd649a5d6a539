//! Fills a new column of a coded region, or writes the parity that its EC-oriented objects lack.
//!
//! A new column takes the place of a leaving column or of a lost one. A leaving column is copied byte by byte, like a
//! replica, except for damaged chunks. For a lost column every chunk is made from the other chunks, or from a copy of
//! the pair. Headers and block tables are equal on all columns. Free bitmaps are not copied, because only those of the
//! first column are valid.

use alloc::vec;
use alloc::vec::Vec;

use super::{Columns, take_copy_words};
use crate::data::bulk_copy::{CHUNK_BYTES, CopyResult, copy_bytes};
use crate::data::{CopyContext, PerPlace, Region, RegionBlock, is_copy, named_in};
use crate::erasure::{Coding, MAX_CHUNKS, ReedSolomon};
use crate::layout::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockShape, Chunk, Identity, Object, Pair, SizeClass, Slot,
    Stripe,
};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, Span, Ticket, VerbBatch};
use crate::view::PoolPlace;

/// See [`Region::copy_to`].
pub(crate) async fn copy_to<F: Fabric>(
    columns: &Columns,
    region: &Region,
    fabric: &F,
    context: CopyContext<'_>,
    to: PoolPlace,
    chunk: u8,
    copied: &mut CopyResult,
) -> Result<(), FailedVerb> {
    ColumnFill::new(columns, region, fabric, context, copied).fill(to, chunk).await
}

/// See [`Region::write_parity`].
pub(crate) async fn write_parity<F: Fabric>(
    columns: &Columns,
    region: &Region,
    fabric: &F,
    context: CopyContext<'_>,
    copied: &mut CopyResult,
) -> Result<(), FailedVerb> {
    ColumnFill::new(columns, region, fabric, context, copied).write_parity().await
}

/// The progress of filling columns of a region.
struct ColumnFill<'r, F> {
    fabric: &'r F,
    context: CopyContext<'r>,
    coding: Coding,
    code: ReedSolomon,
    /// The existing columns, each with its chunk number.
    from: PerPlace<(PoolPlace, u8)>,
    is_oriented: bool,
    result: &'r mut CopyResult,
}

/// The number and the bytes of an object's chunk on one column.
type NumberedChunk = (u8, Span);

impl<'r, F: Fabric> ColumnFill<'r, F> {
    fn new(
        columns: &Columns,
        region: &Region,
        fabric: &'r F,
        context: CopyContext<'r>,
        result: &'r mut CopyResult,
    ) -> ColumnFill<'r, F> {
        let coding = columns.coding;
        let is_oriented = columns.is_oriented();
        let code = ReedSolomon::new(coding);
        let from = region.places().iter().copied().zip(columns.chunks.iter().copied()).collect();
        ColumnFill { fabric, context, coding, code, from, is_oriented, result }
    }

    /// Fills all of a new column except the free bitmaps.
    async fn fill(mut self, to: PoolPlace, chunk: u8) -> Result<(), FailedVerb> {
        let CopyContext { geometry, blocks, .. } = self.context;
        let leaving = self.from.iter().find(|(_, from)| *from == chunk);
        let leaving = leaving.map(|(place, _)| *place);
        let table = geometry.table_bytes();
        copy_bytes(self.fabric, self.from[0].0, to, table, self.result).await?;
        for RegionBlock { offset: block, bytes } in blocks.iter().copied() {
            let class = self.copy_header(block, to).await?;
            let mut filled = BLOCK_HEADER_BYTES;
            let shape = class.and_then(|class| BlockShape::new(bytes, class));
            if let Some(shape) = shape {
                match leaving {
                    Some(leaving) => {
                        self.copy_objects(block, shape, leaving, chunk, to).await?;
                    }
                    None => self.make_objects(block, shape, &[(to, chunk)], false).await?,
                }
                filled = shape.first_offset + u64::from(shape.objects) * shape.object_bytes;
            }
            let at = block + filled;
            let bytes = bytes - filled;
            match leaving {
                Some(leaving) => {
                    let [from, to] = [leaving, to].map(|place| place.plus(at));
                    copy_bytes(self.fabric, from, to, bytes, self.result).await?;
                }
                None => self.zero(to.plus(at), bytes).await?,
            }
        }
        Ok(())
    }

    /// Writes the parity chunks that the region's objects lack.
    async fn write_parity(mut self) -> Result<(), FailedVerb> {
        let k = self.coding.k();
        let parity = self.from.iter().copied().filter(|(_, chunk)| usize::from(*chunk) >= k);
        let parity: PerPlace<(PoolPlace, u8)> = parity.collect();
        for RegionBlock { offset: block, bytes } in self.context.blocks.iter().copied() {
            let (_, _, class) = self.read_header(block).await?;
            let shape = class.and_then(|class| BlockShape::new(bytes, class));
            if let Some(shape) = shape.filter(|_| !parity.is_empty()) {
                self.make_objects(block, shape, &parity, true).await?;
            }
        }
        Ok(())
    }

    /// Copies a block's header from any column that has one. Returns the class of the block's objects.
    async fn copy_header(
        &mut self,
        block: u64,
        to: PoolPlace,
    ) -> Result<Option<SizeClass>, FailedVerb> {
        let (mut batch, span, class) = self.read_header(block).await?;
        batch.next_phase();
        batch.write(to.node, to.offset + block, span);
        batch = self.execute(batch).await;
        batch.check()?;
        self.result.bytes += BLOCK_HEADER_BYTES;
        Ok(class)
    }

    /// Reads, in one phase, a block's header and the class of its objects from any column that has a header. If a
    /// client died while it wrote the header, the header is possibly damaged on all columns, although the block
    /// contains live objects.
    async fn read_header(
        &mut self,
        block: u64,
    ) -> Result<(VerbBatch, Span, Option<SizeClass>), FailedVerb> {
        let mut batch = VerbBatch::new();
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
                chosen = (span, Some(header.class));
                break;
            }
            if chosen.1.is_none() && !removed(Mutant::TornHeadersHideObjects) {
                chosen.1 = BlockHeader::class_in(bytes);
            }
        }
        let (span, class) = chosen;
        Ok((batch, span, class))
    }

    /// Copies the chunks of a block's objects from the leaving column. A chunk that is damaged there is made from the
    /// other chunks; if too few of these agree, it is copied as it is.
    async fn copy_objects(
        &mut self,
        block: u64,
        shape: BlockShape,
        leaving: PoolPlace,
        chunk: u8,
        to: PoolPlace,
    ) -> Result<(), FailedVerb> {
        let together = (CHUNK_BYTES / shape.object_bytes).max(1) as u32;
        let bytes = shape.object_bytes as u32;
        let mut next = 0;
        while next < shape.objects {
            let count = together.min(shape.objects - next);
            let offset = block + shape.offset(next);
            let mut batch = VerbBatch::new();
            let read = batch.read(leaving.node, leaving.offset + offset, count * bytes);
            batch = self.execute(batch).await;
            let all = batch.data_span(read)?;
            let coding = self.coding;
            let number = usize::from(chunk);
            // Objects that were never used consist of zeros, which is no damage.
            let is_broken = |i: &u32| {
                let bytes = batch.bytes(all.part(i * bytes, bytes));
                let is_used = bytes.iter().any(|byte| *byte != 0);
                is_used
                    && Chunk::decode(bytes, coding, number).is_err()
                    && !removed(Mutant::CopiesDamage)
            };
            let broken: Vec<u32> = (0..count).filter(is_broken).collect();
            for i in broken {
                let part = all.part(i * bytes, bytes);
                if let Some(made) = self.made(offset + u64::from(i * bytes), bytes, chunk).await? {
                    batch.bytes_mut(part).copy_from_slice(&made);
                    self.result.objects_repaired += 1;
                }
            }
            batch.next_phase();
            batch.write(to.node, to.offset + offset, all);
            batch = self.execute(batch).await;
            batch.check()?;
            self.result.bytes += u64::from(count * bytes);
            next += count;
        }
        Ok(())
    }

    /// Makes, in one phase, a chunk of the object at an offset from the chunks of all columns; `None` if too few chunks
    /// agree.
    async fn made(
        &mut self,
        offset: u64,
        bytes: u32,
        chunk: u8,
    ) -> Result<Option<Vec<u8>>, FailedVerb> {
        let mut batch = VerbBatch::new();
        let reads = self.read_columns(&mut batch, offset, bytes);
        batch = self.execute(batch).await;
        let columns = spans(&batch, reads)?;
        let mut made = vec![0; bytes as usize];
        Ok(self.make(&batch, &columns, None, chunk, &mut made).then_some(made))
    }

    /// Makes chunks of a block's objects for the columns `to`, from the chunks of all columns or from copies: all
    /// chunks, or only those that are `missing`. An object of which too little is left is free, was left unfinished by
    /// a dead client, or is damaged on too many columns; a new column gets zeros in the object's place.
    async fn make_objects(
        &mut self,
        block: u64,
        shape: BlockShape,
        to: &[(PoolPlace, u8)],
        missing: bool,
    ) -> Result<(), FailedVerb> {
        let columns = self.from.len();
        let fitting = CHUNK_BYTES / (shape.object_bytes * columns as u64);
        let together = fitting.clamp(1, (MAX_BATCH_VERBS / MAX_CHUNKS) as u64) as u32;
        let bytes = shape.object_bytes as u32;
        let mut next = 0;
        while next < shape.objects {
            let count = together.min(shape.objects - next);
            let offset = block + shape.offset(next);
            let mut batch = VerbBatch::new();
            let reads = self.read_columns(&mut batch, offset, count * bytes);
            batch = self.execute(batch).await;
            let read = spans(&batch, reads)?;
            let of = |i: u32| -> PerPlace<NumberedChunk> {
                let part = |(chunk, span): &NumberedChunk| (*chunk, span.part(i * bytes, bytes));
                read.iter().map(part).collect()
            };
            let copies = self.read_copies(&mut batch, count, &of).await?;
            batch.next_phase();
            for i in 0..count {
                let columns = of(i);
                let there: PerPlace<u8> =
                    self.agreeing(&batch, &columns).map(|(number, _)| number).collect();
                for (place, chunk) in
                    to.iter().filter(|(_, chunk)| !(missing && there.contains(chunk)))
                {
                    let mut made = vec![0; bytes as usize];
                    let copy = copies.iter().find(|(of, _)| *of == i).map(|(_, copy)| *copy);
                    let is_made = self.make(&batch, &columns, copy, *chunk, &mut made);
                    if is_made || !missing {
                        let span = batch.stage(bytes);
                        batch.bytes_mut(span).copy_from_slice(&made);
                        batch.write(place.node, place.offset + offset + u64::from(i * bytes), span);
                        self.result.bytes += u64::from(bytes);
                    }
                }
            }
            if !batch.verbs().is_empty() {
                batch = self.execute(batch).await;
                batch.check()?;
            }
            next += count;
        }
        Ok(())
    }

    /// Reads, in one phase or none, the copies of those of `count` EC-oriented objects that have too few chunks. All
    /// copies of an object are read, because some are possibly lost.
    async fn read_copies(
        &mut self,
        batch: &mut VerbBatch,
        count: u32,
        of: &impl Fn(u32) -> PerPlace<NumberedChunk>,
    ) -> Result<Vec<(u32, Span)>, FailedVerb> {
        if !self.is_oriented {
            return Ok(Vec::new());
        }
        let mut named: Vec<(u32, Identity, PoolPlace, u32)> = Vec::new();
        for i in 0..count {
            let columns = of(i);
            let chunks: PerPlace<NumberedChunk> = self.agreeing(batch, &columns).collect();
            if chunks.len() >= self.coding.k() {
                continue;
            }
            for (number, span) in chunks {
                let bytes = batch.bytes(span);
                let Ok(chunk) = Chunk::decode(bytes, self.coding, number.into()) else { continue };
                let Some(class) = Object::class(chunk.key().len(), chunk.value_bytes()) else {
                    continue;
                };
                let turns = (0..Slot::TURNS).step_by(2);
                let few = removed(Mutant::SealsFromFirstCopyOnly);
                let copies = turns.flat_map(|turn| named_in(bytes, turn, chunk.identity()));
                for (_, copy) in copies.filter(|(number, _)| *number == 0 || !few) {
                    let place = (self.context.place_of_copy)(copy.address(), class.bytes());
                    let Some(place) = place else { continue };
                    let read = (i, copy, place, class.bytes() as u32);
                    if !named.contains(&read) {
                        named.push(read);
                    }
                }
            }
        }
        let mut copies = Vec::new();
        for named in named.chunks(MAX_BATCH_VERBS) {
            batch.next_phase();
            let read = |(i, copy, place, bytes): &(u32, Identity, PoolPlace, u32)| {
                (*i, *copy, batch.read(place.node, place.offset, *bytes))
            };
            let reads: Vec<(u32, Identity, Ticket)> = named.iter().map(read).collect();
            *batch = self.execute(core::mem::take(batch)).await;
            for (i, copy, read) in reads {
                let span = batch.data_span(read)?;
                let columns = of(i);
                let chunks: PerPlace<NumberedChunk> = self.agreeing(batch, &columns).collect();
                let is_of = |(number, chunk): &NumberedChunk| {
                    let chunk = Chunk::decode(batch.bytes(*chunk), self.coding, (*number).into());
                    let object = Object::decode_of(batch.bytes(span), copy);
                    matches!((chunk, object), (Ok(chunk), Ok(object))
                        if is_copy(&object, chunk.key()) && chunk.has_value(object.value()))
                };
                if chunks.first().is_some_and(is_of) {
                    copies.push((i, span));
                }
            }
        }
        Ok(copies)
    }

    /// Returns those chunks of one object that one write has made. An object to which a slot word leads has a chunk on
    /// every column; an EC-oriented object has one on every data column. So if data columns show two identities, no
    /// slot word leads to either, and any choice is right. Parity counts less than data, because it is possibly left
    /// from an earlier use of the object.
    fn agreeing<'b>(
        &self,
        batch: &'b VerbBatch,
        columns: &'b PerPlace<NumberedChunk>,
    ) -> impl Iterator<Item = NumberedChunk> + use<'b, F> {
        let coding = self.coding;
        let decode = move |(number, span): &NumberedChunk| {
            Chunk::decode(batch.bytes(*span), coding, (*number).into()).ok()
        };
        let is_parity = |number: usize| self.is_oriented && number >= coding.k();
        let chunks: PerPlace<(bool, Identity)> = columns
            .iter()
            .filter_map(decode)
            .map(|chunk| (is_parity(chunk.number()), chunk.identity()))
            .collect();
        let count = |identity: &Identity| {
            let of = |data: bool| {
                chunks.iter().filter(|(parity, other)| *parity != data && other == identity).count()
            };
            (of(true), of(false))
        };
        let most = chunks.iter().map(|(_, identity)| *identity).max_by_key(count);
        let is_of_most = move |chunk: &Chunk<'_>| Some(chunk.identity()) == most;
        // Identities recur, so parity is used only if the write that made it has made the data chunks, too.
        let is_data = move |chunk: &Chunk<'_>| !is_parity(chunk.number());
        let mut data = columns.iter().filter_map(decode).filter(is_of_most).filter(is_data);
        let first = data.next();
        columns.iter().copied().filter(move |column| {
            let chunk = decode(column).filter(is_of_most);
            chunk.is_some_and(|chunk| first.is_none_or(|first| chunk.agrees(&first)))
        })
    }

    /// Makes a chunk of one object from the object's other chunks, or from its copy. Returns whether enough of the
    /// object is left for that.
    fn make(
        &self,
        batch: &VerbBatch,
        columns: &PerPlace<NumberedChunk>,
        copy: Option<Span>,
        number: u8,
        made: &mut [u8],
    ) -> bool {
        if removed(Mutant::RebuildsFromFirstPlace) {
            made.copy_from_slice(batch.bytes(columns[0].1));
            return true;
        }
        let chunks: PerPlace<NumberedChunk> = self.agreeing(batch, columns).collect();
        let mut stripe = Stripe::default();
        for (number, span) in &chunks {
            let chunk = Chunk::decode(batch.bytes(*span), self.coding, (*number).into());
            stripe.add(chunk.expect("it was decoded before"));
        }
        let mut room = vec![0; stripe.room().unwrap_or(0)];
        let is_made = match (stripe.restore(&self.code, &mut room), copy) {
            (Some(whole), _) => {
                whole.chunk(&self.code, number.into(), made);
                true
            }
            (None, Some(copy)) => self.make_of_copy(batch, &chunks, copy, number, made),
            (None, None) => false,
        };
        if is_made {
            let (number, span) = chunks[0];
            let first = Chunk::decode(batch.bytes(span), self.coding, number.into());
            let identity = first.expect("it was decoded before").identity();
            take_copy_words(identity, made, chunks.iter().map(|(_, span)| batch.bytes(*span)));
        }
        is_made
    }

    /// Makes a chunk from a copy that is known to belong to the pair.
    fn make_of_copy(
        &self,
        batch: &VerbBatch,
        chunks: &[NumberedChunk],
        copy: Span,
        number: u8,
        made: &mut [u8],
    ) -> bool {
        let (known, span) = chunks[0];
        let chunk = Chunk::decode(batch.bytes(span), self.coding, known.into());
        let chunk = chunk.expect("it was decoded before");
        let Ok(object) = Object::decode(batch.bytes(copy)) else { return false };
        let identity = chunk.identity();
        let opcode = chunk.opcode();
        let pair = Pair { key: object.key(), value: object.value(), identity, opcode };
        let mut all = vec![0; self.coding.chunks() * made.len()];
        let mut stripe: PerPlace<&mut [u8]> = all.chunks_exact_mut(made.len()).collect();
        pair.encode_chunks(&self.code, &mut stripe);
        made.copy_from_slice(stripe[usize::from(number)]);
        true
    }

    /// Posts READs of the same bytes on all columns.
    fn read_columns(
        &self,
        batch: &mut VerbBatch,
        offset: u64,
        bytes: u32,
    ) -> PerPlace<(u8, Ticket)> {
        let read = |(place, chunk): &(PoolPlace, u8)| {
            (*chunk, batch.read(place.node, place.offset + offset, bytes))
        };
        self.from.iter().map(read).collect()
    }

    /// Writes zeros to a part of the new column in which no object lies.
    async fn zero(&mut self, to: PoolPlace, bytes: u64) -> Result<(), FailedVerb> {
        let mut at = 0;
        while at < bytes {
            let count = CHUNK_BYTES.min(bytes - at);
            let mut batch = VerbBatch::new();
            let zeros = batch.stage(count as u32);
            batch.bytes_mut(zeros).fill(0);
            batch.write(to.node, to.offset + at, zeros);
            batch = self.execute(batch).await;
            batch.check()?;
            self.result.bytes += count;
            at += count;
        }
        Ok(())
    }

    async fn execute(&mut self, batch: VerbBatch) -> VerbBatch {
        let batch = self.fabric.execute(batch).await;
        self.result.cost.add_batch(&batch);
        batch
    }
}

/// Returns the bytes that READs of columns have fetched.
fn spans(
    batch: &VerbBatch,
    reads: PerPlace<(u8, Ticket)>,
) -> Result<PerPlace<NumberedChunk>, FailedVerb> {
    reads.into_iter().map(|(chunk, ticket)| Ok((chunk, batch.data_span(ticket)?))).collect()
}
