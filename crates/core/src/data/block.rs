//! Headers and free bitmaps, which are the same in every scheme: each place of a region has the headers of the blocks,
//! and only the bitmap on the primary is valid.

use super::Region;
use crate::layout::bitmap_bytes;
use crate::stats::Cost;
use crate::verbs::{Fabric, FailedVerb, Span, VerbBatch};
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

    /// Returns the number of the view since which the valid free bitmap is at its place
    /// ([`View::bitmap`](crate::view::View::bitmap)).
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

/// Overwrites the free bitmap of a region with zeros. No owner of a block clears bits while this runs. Sessions can
/// set bits while this runs; zeros possibly overwrite these bits, as if they had been set earlier.
pub(crate) async fn clear_bitmap<F: Fabric>(
    fabric: &F,
    geometry: &Geometry,
    region: &Region,
    cost: &mut Cost,
) -> Result<(), FailedVerb> {
    let bytes = bitmap_bytes(geometry.region_bytes);
    let bitmap = region.primary().plus(geometry.table_bytes());
    let mut batch = VerbBatch::new();
    for at in (0..bytes).step_by(CHUNK_BYTES as usize) {
        batch.clear();
        let zeros = batch.stage(CHUNK_BYTES.min(bytes - at) as u32);
        batch.bytes_mut(zeros).fill(0);
        batch.write(bitmap.node, bitmap.offset + at, zeros);
        batch = fabric.execute(batch).await;
        cost.add_batch(&batch);
        batch.check()?;
    }
    Ok(())
}
