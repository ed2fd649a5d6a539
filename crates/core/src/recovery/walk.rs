//! The logs of a dead client: the headers of its blocks, and the objects of those in use.
//!
//! Within a block the walk goes by position and needs no pointers. Objects of any age lie side by side: committed long
//! ago, free, or unfinished. Sealed blocks contain no unfinished objects, so they are not walked; their headers tell
//! from which object on they are new.
//!
//! The replicas of a block differ if the client died during a WRITE, or a WRITE did not reach one of them. So all
//! replicas are read:
//!
//! * The header on every replica shows the block in use before an object of this use is written there. If the header on
//!   some replica shows the block in use, the block is walked, from the lowest `first` in such a header.
//! * No CAS goes to a memory node before the object is complete there, and only a CAS of a speculative write goes to
//!   one before the object is complete everywhere. So an object that is complete on no replica was in no CAS. But some
//!   replica possibly shows its identity, so another owner must not begin with that object. Behind the last object of
//!   which a replica shows any byte, the block is as unused as before.
//! * Objects that had been allocated when a header was written are never new, even if they are zeros, because their
//!   bits are possibly set in the free bitmap. Of several headers, the one that shows most allocated objects is
//!   believed.
//! * If two replicas contain complete objects of two generations at one address, recovery looks for both. Only the
//!   later one can be in a slot, because it was allocated when no slot contained the earlier one any more.
//!
//! Recovery looks for an EC-oriented object at all its turns. It does not look for copies, because no word leads to
//! them.
//!
//! A block whose header names another owner was handed on to the dead client, which has not used it. Its objects are
//! not examined, but count as allocated.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{BlockContent, BlockReport, BlockSpan, FoundWrite, Recovery, RecoveryError};
use crate::data::{MAX_PLACES, PerPlace};
use crate::layout::{
    Address, BLOCK_HEADER_BYTES, BlockHeader, BlockShape, Object, Opcode, SizeClass, Slot,
};
use crate::mutant::{Mutant, removed};
use crate::race::Buckets;
use crate::verbs::{Fabric, Span, Ticket};
use crate::view::View;

/// The number of blocks whose headers are read in one phase.
const HEADERS: usize = 64;
const _: () = assert!(HEADERS * MAX_PLACES <= crate::verbs::MAX_BATCH_VERBS);

/// The largest number of bytes of one READ of the walk, except for a single object that has more.
const CHUNK_BYTES: u64 = 1 << 20;

/// The bytes of one range of a block, as each replica shows them.
type Places = PerPlace<Span>;

/// A block of the dead client that has a header.
pub(super) struct BlockLog {
    block: BlockSpan,
    header: BlockHeader,
    shape: BlockShape,
}

impl<F: Fabric> Recovery<'_, F> {
    /// Reads the headers of all blocks, each block once, and reports the blocks that have none.
    pub(super) async fn headers(
        &mut self,
        blocks: &[BlockSpan],
    ) -> Result<Vec<BlockLog>, RecoveryError> {
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        blocks.dedup();
        let mut logs = Vec::new();
        for blocks in blocks.chunks(HEADERS) {
            self.batch.clear();
            let mut reads: Vec<(BlockSpan, Ticket)> = Vec::new();
            for block in blocks {
                let geometry = &self.view.geometry;
                let known = geometry.frame_at(block.address).zip(geometry.order_of(block.bytes));
                let known = known.filter(|((_, frame), order)| geometry.is_block(*frame, *order));
                match known.and_then(|_| self.view.block(block.address)) {
                    Some(found) => reads.extend(found.places().map(|p| {
                        (*block, self.batch.read(p.node, p.offset, BLOCK_HEADER_BYTES as u32))
                    })),
                    None => self.report_block(*block, BlockContent::Unreadable),
                }
            }
            self.phase().await;
            for replicas in reads.chunk_by(|a, b| a.0 == b.0) {
                self.header(replicas, &mut logs)?;
            }
        }
        logs.sort_by_key(|l: &BlockLog| (l.header.class, l.block));
        Ok(logs)
    }

    /// Decodes the header of a block, from the READs of all replicas.
    fn header(
        &mut self,
        replicas: &[(BlockSpan, Ticket)],
        logs: &mut Vec<BlockLog>,
    ) -> Result<(), RecoveryError> {
        let block = replicas[0].0;
        let mut written = false;
        let mut headers = PerPlace::<BlockHeader>::new();
        for (_, ticket) in replicas {
            let bytes = self.batch.data(*ticket)?;
            let bytes: &[u8; BLOCK_HEADER_BYTES as usize] =
                bytes.try_into().expect("as long as was asked for");
            written |= bytes.iter().any(|b| *b != 0);
            headers.extend(BlockHeader::decode(bytes));
        }
        // A header in use is preferred to a sealed one, and any header of the dead client to one of an earlier owner,
        // which the client has possibly begun to replace. Of two headers in use, the one with the smaller `first` is
        // preferred: it is the later one, and the object of a speculative write is possibly only on a replica that has
        // this header.
        let rank = |h: &BlockHeader| (h.owner == self.dead, !h.sealed, Reverse(h.first));
        let best = headers.iter().copied().max_by_key(rank).map(|best| {
            if removed(Mutant::FreshFromBestHeader) {
                return best;
            }
            // An object that any header shows as allocated is allocated, even if another header is preferred.
            let of_class = headers.iter().filter(|h| h.class == best.class);
            BlockHeader { fresh: of_class.map(|h| h.fresh).max().unwrap_or(0), ..best }
        });
        let shaped = best.and_then(|header| {
            let shape = BlockShape::new(block.bytes, header.class)?;
            Some(BlockLog { block, header, shape })
        });
        match shaped {
            Some(log) => logs.push(log),
            None if written => self.report_block(block, BlockContent::Unreadable),
            None => self.report_block(block, BlockContent::Nothing),
        }
        Ok(())
    }

    fn report_block(&mut self, block: BlockSpan, content: BlockContent) {
        self.report.blocks.push(BlockReport { block, content });
    }

    /// Walks the objects of a block, if some are possibly unfinished. Objects before the header's `first` belong to
    /// earlier uses of the block.
    pub(super) async fn walk(&mut self, log: &BlockLog) -> Result<(), RecoveryError> {
        let BlockLog { block, header, shape } = log;
        let class = header.class;
        let walked_from = header.first.min(shape.objects);
        let mut last_begun = walked_from;
        let mut from = if header.sealed { shape.objects } else { walked_from };
        while from < shape.objects {
            let fitting = (CHUNK_BYTES / shape.object_bytes).max(1);
            let count = fitting.min(u64::from(shape.objects - from)) as u32;
            let start = block.address.bytes() + shape.offset(from);
            let bytes = u64::from(count) * shape.object_bytes;
            let replicas = self.read_all(Address::new(start), bytes as u32).await?;
            for i in 0..count {
                let object_bytes = shape.object_bytes as u32;
                let part = |span: &Span| span.part(i * object_bytes, object_bytes);
                let address = Address::new(block.address.bytes() + shape.offset(from + i));
                let spans: Places = replicas.iter().map(part).collect();
                if self.look_at(address, class, &spans, header.owner == self.dead) {
                    last_begun = from + i + 1;
                }
            }
            from += count;
        }
        if header.owner == self.dead && !header.sealed {
            self.report.walked += u64::from(last_begun - walked_from);
        }
        if removed(Mutant::RecoveryHandsOnTheLastObject) && !header.sealed {
            last_begun = last_begun.saturating_sub(1).max(walked_from);
        }
        let had_been =
            if removed(Mutant::ZerosAreNew) && !header.sealed { 0 } else { header.fresh };
        let unused = last_begun.max(had_been.min(shape.objects));
        self.report_block(*block, BlockContent::Objects { class, first: unused });
        Ok(())
    }

    /// Looks at the replicas of one object, and returns whether any replica has any byte of it. If the object is
    /// complete and `is_own`, notes it to be examined.
    fn look_at(
        &mut self,
        address: Address,
        class: SizeClass,
        replicas: &[Span],
        is_own: bool,
    ) -> bool {
        let mut was_begun = false;
        let mut found = PerPlace::<FoundWrite>::new();
        let first = self.batch.bytes(replicas[0]);
        let is_everywhere = replicas[1..].iter().all(|span| self.batch.bytes(*span) == first);
        let different = if is_everywhere { &replicas[..1] } else { replicas };
        let mut strange = 0;
        for span in different {
            let bytes = self.batch.bytes(*span);
            let Ok(object) = Object::decode(bytes) else {
                was_begun |=
                    bytes.iter().any(|byte| *byte != 0) && !removed(Mutant::TornObjectsAreNew);
                continue;
            };
            was_begun = true;
            // No slot word leads to a copy, so no write depends on it.
            if object.opcode() == Some(Opcode::Copy) {
                continue;
            }
            match candidate(self.view, &object, address, class) {
                Some(new) if found.iter().any(|known| known.own == new.own) => {}
                Some(new) => found.push(FoundWrite { is_everywhere, ..new }),
                None => strange += 1,
            }
        }
        if is_own {
            found.into_iter().for_each(|found| self.take_turns(found));
            self.report.strange += strange;
        }
        was_begun
    }

    /// Notes the words of all turns of an object: any of them is possibly the word in the slot, and the Move to the
    /// next turn is possibly unfinished.
    fn take_turns(&mut self, found: FoundWrite) {
        let is_oriented =
            self.view.object_of(found.own).is_some_and(|at| at.is_turned(found.own.at_turn(1)));
        self.take(found);
        if !is_oriented || removed(Mutant::RecoveryKnowsOneTurn) {
            return;
        }
        for turn in 1..Slot::TURNS {
            let own = Opcode::Move.puts(found.own.at_turn(turn));
            self.take(FoundWrite { own, opcode: Opcode::Move, ..found });
        }
    }

    fn take(&mut self, found: FoundWrite) {
        if removed(Mutant::RecoveryExaminesLastObjectsOnly)
            && self.pending.last().is_some_and(|before| before.own.class() == found.own.class())
        {
            self.pending.pop();
        }
        self.pending.push(found);
    }

    /// Reads, in one phase, bytes of a block from all its replicas.
    async fn read_all(&mut self, at: Address, bytes: u32) -> Result<Places, RecoveryError> {
        let view = self.view;
        let places = view.object(at, u64::from(bytes)).expect("inside of a block").places();
        let walked = if removed(Mutant::RecoveryWalksOneReplica) { 1 } else { MAX_PLACES };
        self.batch.clear();
        let reads =
            places.take(walked).map(|place| self.batch.read(place.node, place.offset, bytes));
        let tickets: PerPlace<Ticket> = reads.collect();
        self.phase().await;
        let mut spans = Places::new();
        for ticket in tickets {
            spans.push(self.batch.data_span(ticket)?);
        }
        Ok(spans)
    }
}

/// Returns the object to look for; `None` if no client of this cluster writes such an object.
fn candidate(
    view: &View,
    object: &Object<'_>,
    address: Address,
    class: SizeClass,
) -> Option<FoundWrite> {
    let opcode = object.opcode()?;
    let generation = object.identity().generation_at(address)?;
    if object.key().is_empty() {
        return None;
    }
    let buckets = Buckets::of(object.key(), view);
    let own = opcode.puts(Slot::new(buckets.fingerprint, class, address, generation));
    Some(FoundWrite { buckets, own, opcode, is_everywhere: true })
}
