//! Headers and free bitmaps of blocks, which are the same in every scheme: each place of the region has the block's
//! header, and only the bitmap on the primary is valid.

use alloc::vec::Vec;

use super::Region;
use crate::layout::{BLOCK_HEADER_BYTES, bitmap_bytes};
use crate::stats::Cost;
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, Span, VerbBatch};
use crate::view::{Geometry, PoolPlace};

/// The location of a block on each place of its region.
#[derive(Clone, Copy, Debug)]
pub struct BlockLocation<'v> {
    region: &'v Region,
    offset: u64,
}

impl<'v> BlockLocation<'v> {
    #[inline]
    pub(super) fn new(region: &'v Region, offset: u64) -> BlockLocation<'v> {
        BlockLocation { region, offset }
    }

    /// Returns the start of the block on each place of its region, the primary first.
    #[inline]
    pub fn places(self) -> impl ExactSizeIterator<Item = PoolPlace> + 'v {
        self.region.places().iter().map(move |place| place.plus(self.offset))
    }

    /// Returns the place of the block's valid free bitmap, which is on the primary.
    #[inline]
    pub fn bitmap(self) -> PoolPlace {
        self.region.primary().plus(self.offset + BLOCK_HEADER_BYTES)
    }

    /// Returns the number of the view since which the valid free bitmap is at [`BlockLocation::bitmap`].
    #[inline]
    pub fn primary_since(self) -> u64 {
        self.region.primary_since()
    }

    /// Posts the WRITEs of the block's header to all places of the block.
    #[inline]
    pub fn write_header(self, batch: &mut VerbBatch, header: Span) {
        for place in self.places() {
            batch.write(place.node, place.offset, header);
        }
    }
}

/// The number of zero bytes that one phase writes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Overwrites the free bitmaps of a region with zeros. No owner of a block clears bits while this runs. Sessions can
/// set bits while this runs; zeros possibly overwrite these bits, as if they had been set earlier.
pub(crate) async fn clear_bitmaps<F: Fabric>(
    fabric: &F,
    geometry: &Geometry,
    region: &Region,
    cost: &mut Cost,
) -> Result<(), FailedVerb> {
    let bytes = bitmap_bytes(geometry.block_bytes);
    let mut batch = VerbBatch::new();
    let together = (CHUNK_BYTES / bytes).clamp(1, MAX_BATCH_VERBS as u64) as usize;
    let blocks: Vec<u32> = (0..geometry.blocks_per_region()).collect();
    for blocks in blocks.chunks(together) {
        batch.clear();
        let zeros = batch.stage(bytes as u32);
        batch.bytes_mut(zeros).fill(0);
        for block in blocks {
            let bitmap = region.block(geometry.block_offset(*block)).bitmap();
            batch.write(bitmap.node, bitmap.offset, zeros);
        }
        batch = fabric.execute(batch).await;
        cost.add_batch(&batch);
        batch.check()?;
    }
    Ok(())
}
