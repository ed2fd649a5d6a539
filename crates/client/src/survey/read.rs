//! The reader of a part of the memory: first the block tables, then the header and free bitmap of each block that has
//! an owner. Everything is read from the region's primary, because only its free bitmaps are valid.
//!
//! READs are large, and a phase has many of them: tables of many regions together, then header and bitmap of each block
//! in one READ. A phase fetches at most about [`PHASE_BYTES`], so the reader's memory does not grow with the cluster;
//! the result grows by a few bytes for every owner.
//!
//! Other sessions write meanwhile. An invalid header was possibly being written, so it is read once more before it is
//! counted as unreadable. Everything is checked (classes, owners and bits), and whatever is invalid is counted.

use std::collections::BTreeMap;

use fusee_control::master::Orphan;
use fusee_control::node::BlockId;
use fusee_core::data::Region;
use fusee_core::layout::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockShape, SizeClass, TableEntry, UNIT_BYTES, bitmap_bytes,
};
use fusee_core::verbs::{ClientId, Fabric, FailedVerb, MAX_BATCH_VERBS, Ticket, VerbBatch};
use fusee_core::view::{TABLE_ENTRY_BYTES, View};

use super::report::SurveyTally;

/// Approximate number of bytes that one phase of a survey fetches.
const PHASE_BYTES: u64 = 4 << 20;
/// Number of frames whose table entries are fetched together.
const GROUP_FRAMES: u32 = 1 << 16;

/// The position of a survey: all blocks that begin before this frame have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SurveyPosition {
    region: u32,
    frame: u32,
}

/// Consecutive frames of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SurveyRange {
    region: u32,
    first: u32,
    count: u32,
}

/// Blocks that a survey reads together, of one or several regions.
#[derive(Debug)]
pub(super) struct SurveyGroup {
    pieces: Vec<SurveyRange>,
    /// The position of the survey at which the next group begins.
    pub end: SurveyPosition,
}

impl SurveyGroup {
    /// Returns the group that begins at `from`; `None` after the last region.
    pub fn next(view: &View, from: SurveyPosition) -> Option<SurveyGroup> {
        let frames = view.geometry.frames_per_region();
        let mut pieces = Vec::new();
        let mut end = from;
        let mut room = GROUP_FRAMES;
        while (end.region as usize) < view.regions.len() && room > 0 {
            if !view.regions[end.region as usize].is_there() {
                end = SurveyPosition { region: end.region + 1, frame: 0 };
                continue;
            }
            let count = room.min(frames - end.frame);
            pieces.push(SurveyRange { region: end.region, first: end.frame, count });
            room -= count;
            end.frame += count;
            if end.frame == frames {
                end = SurveyPosition { region: end.region + 1, frame: 0 };
            }
            if pieces.len() == MAX_BATCH_VERBS {
                break;
            }
        }
        (!pieces.is_empty()).then_some(SurveyGroup { pieces, end })
    }

    /// Returns the number of frames in this group of frames that are read together.
    #[cfg(test)]
    pub fn frames(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.count)).sum()
    }

    /// Returns whether the regions of the group's blocks have the same primaries in both views.
    pub fn is_same_in(&self, view: &View, other: &View) -> bool {
        self.pieces.iter().all(|piece| {
            let [before, now] = [view, other].map(|view| view.regions.get(piece.region as usize));
            let first =
                |region: &Region| (region.places().first().copied(), region.primary_since());
            before.map(first) == now.map(first)
        })
    }
}

/// A block to which the block table gives an owner.
#[derive(Clone, Copy, Debug)]
struct SurveyedOwner {
    id: BlockId,
    owner: ClientId,
}

/// A reader of blocks, which uses one view to find the regions.
pub(super) struct SurveyReader<'a, F> {
    pub fabric: &'a F,
    pub view: &'a View,
    /// The orphaned blocks that the master knows.
    pub orphans: &'a BTreeMap<BlockId, Orphan>,
    batch: VerbBatch,
    tally: SurveyTally,
}

impl<'a, F: Fabric> SurveyReader<'a, F> {
    pub fn new(
        fabric: &'a F,
        view: &'a View,
        orphans: &'a BTreeMap<BlockId, Orphan>,
    ) -> SurveyReader<'a, F> {
        SurveyReader {
            fabric,
            view,
            orphans,
            batch: VerbBatch::new(),
            tally: SurveyTally::default(),
        }
    }

    /// Reads and counts the blocks of a group.
    pub async fn read(mut self, group: &SurveyGroup) -> Result<SurveyTally, FailedVerb> {
        let mut blocks = self.tables(group).await?;
        for is_last in [false, true] {
            blocks = self.blocks(&blocks, is_last).await?;
        }
        Ok(self.tally)
    }

    /// Executes the batch as one phase.
    async fn phase(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.batch = self.fabric.execute(batch).await;
    }

    /// Reads the block tables, and returns those blocks of the group that have owners.
    async fn tables(&mut self, group: &SurveyGroup) -> Result<Vec<SurveyedOwner>, FailedVerb> {
        self.batch.clear();
        let geometry = &self.view.geometry;
        let read = |piece: &SurveyRange| {
            let place = self.view.regions[piece.region as usize].primary();
            let at = place.offset + u64::from(piece.first) * TABLE_ENTRY_BYTES;
            let bytes = piece.count * TABLE_ENTRY_BYTES as u32;
            (place.node, self.batch.read(place.node, at, bytes))
        };
        let reads: Vec<_> = group.pieces.iter().map(read).collect();
        self.phase().await;
        let mut owned = Vec::new();
        for (piece, (node, read)) in group.pieces.iter().zip(reads) {
            let places = self.places(piece.region);
            let words =
                self.batch.data(read)?.as_chunks().0.iter().copied().map(u64::from_le_bytes);
            let of = self.tally.nodes.entry(node).or_default();
            let is_block = |at, order| geometry.is_block(piece.first + at, order);
            for (at, entry) in TableEntry::all(words, is_block) {
                let frame = piece.first + at;
                let id = BlockId { region: piece.region, frame, order: entry.order };
                let bytes = id.bytes(geometry);
                of.blocks += 1;
                of.bytes += bytes;
                if entry.owner == ClientId::NOBODY {
                    of.free_blocks += 1;
                    of.free_bytes += bytes;
                    self.tally.block_use.free += bytes * places;
                } else {
                    owned.push(SurveyedOwner { id, owner: entry.owner });
                }
            }
        }
        for SurveyedOwner { id, owner } in &owned {
            let is_handed_on = self.orphan(*id, *owner).is_some();
            let of = self.tally.owners.entry(*owner).or_default();
            of.blocks += 1;
            of.bytes += id.bytes(&self.view.geometry);
            of.handed_on += u64::from(is_handed_on);
        }
        Ok(owned)
    }

    /// Returns the number of replicas of a region, or of its columns.
    fn places(&self, region: u32) -> u64 {
        self.view.regions[region as usize].places().len() as u64
    }

    /// Returns the master's record of an orphaned block, if the block still has the same owner.
    fn orphan(&self, id: BlockId, owner: ClientId) -> Option<&'a Orphan> {
        self.orphans.get(&id).filter(|orphan| orphan.owner == owner)
    }

    /// Reads and counts the objects of these blocks. Returns the blocks with invalid headers, or in the last pass
    /// counts them as unreadable.
    async fn blocks(
        &mut self,
        blocks: &[SurveyedOwner],
        is_last: bool,
    ) -> Result<Vec<SurveyedOwner>, FailedVerb> {
        let geometry = &self.view.geometry;
        let most = bitmap_bytes(geometry.block_bytes);
        let together = (PHASE_BYTES / most).clamp(1, MAX_BATCH_VERBS as u64 / 2) as usize;
        let mut doubtful = Vec::new();
        for blocks in blocks.chunks(together) {
            self.batch.clear();
            let read = |block: &SurveyedOwner| {
                let place = self.view.regions[block.id.region as usize].primary();
                let header = place.plus(geometry.frame_offset(block.id.frame));
                let bitmap = place.plus(geometry.bitmap_offset(block.id.address(geometry)));
                let bitmap_bytes = bitmap_bytes(block.id.bytes(geometry));
                let header = self.batch.read(header.node, header.offset, BLOCK_HEADER_BYTES as u32);
                (header, self.batch.read(bitmap.node, bitmap.offset, bitmap_bytes as u32))
            };
            let reads: Vec<(Ticket, Ticket)> = blocks.iter().map(read).collect();
            self.phase().await;
            for (block, (header, bitmap)) in blocks.iter().zip(reads) {
                let (header, bitmap) = (self.batch.data(header)?, self.batch.data(bitmap)?);
                let bytes = block.id.bytes(geometry);
                match content(header, bitmap, bytes) {
                    SurveyedBlock::Objects(objects) => {
                        self.count(block, &objects);
                        continue;
                    }
                    SurveyedBlock::Unreadable if !is_last => {
                        doubtful.push(*block);
                        continue;
                    }
                    SurveyedBlock::Unreadable => self.tally.unreadable += 1,
                    SurveyedBlock::Blank => self.tally.blank += 1,
                }
                self.tally.block_use.blank += bytes * self.places(block.id.region);
            }
        }
        Ok(doubtful)
    }

    fn count(&mut self, block: &SurveyedOwner, found: &SurveyedObjects) {
        let SurveyedObjects { class, shape, marked, stray } = *found;
        let known = self.orphan(block.id, block.owner).filter(|known| known.class == class);
        let of = self.tally.classes.entry(class).or_default();
        let bytes = block.id.bytes(&self.view.geometry);
        let objects = u64::from(shape.objects);
        let new = known.map_or(0, |known| u64::from(shape.objects.saturating_sub(known.first)));
        of.blocks += 1;
        of.bytes += bytes;
        of.objects += objects;
        of.marked += marked;
        of.new += new;
        let places = self.places(block.id.region);
        let bytes_of = |objects: u64| objects * shape.object_bytes * places;
        let uses = &mut self.tally.block_use;
        uses.overhead += bytes * places - bytes_of(objects);
        uses.marked += bytes_of(marked);
        uses.new += bytes_of(new.min(objects - marked));
        uses.other += bytes_of((objects - marked).saturating_sub(new));
        let owner = self.tally.owners.entry(block.owner).or_default();
        owner.marked_bytes += marked * shape.object_bytes;
        self.tally.stray_marks += stray;
    }
}

/// The content of a block, as its header and bitmap show it.
enum SurveyedBlock {
    /// The block has no header yet: nothing was ever written to it.
    Blank,
    Objects(SurveyedObjects),
    Unreadable,
}

/// The counts of a block's objects.
struct SurveyedObjects {
    class: SizeClass,
    shape: BlockShape,
    /// Number of the block's objects whose free bits are set.
    marked: u64,
    /// Number of free bits that are set in the block's bitmap where no object starts.
    stray: u64,
}

fn content(header: &[u8], bitmap: &[u8], block_bytes: u64) -> SurveyedBlock {
    let header = header.try_into().expect("as long as was asked for");
    let class = BlockHeader::decode(header).map(|header| header.class);
    let shaped = class.and_then(|class| Some((class, BlockShape::new(block_bytes, class)?)));
    let Some((class, shape)) = shaped else {
        let is_blank = header.iter().all(|byte| *byte == 0);
        return if is_blank { SurveyedBlock::Blank } else { SurveyedBlock::Unreadable };
    };
    let mut marked = 0;
    let mut stray = 0;
    for (word, bits) in (0u64..).zip(bitmap.as_chunks().0) {
        let mut bits = u64::from_le_bytes(*bits);
        while bits != 0 {
            let unit = word * 64 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            match shape.object_at(unit * UNIT_BYTES) {
                Some(_) => marked += 1,
                None => stray += 1,
            }
        }
    }
    SurveyedBlock::Objects(SurveyedObjects { class, shape, marked, stray })
}
