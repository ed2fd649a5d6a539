//! The logs of a dead client: the headers of its blocks, and the objects of those in use.
//!
//! Within a block the walk goes by position and needs no pointers. Objects of any age lie there side
//! by side: what was committed long ago, what is free, and what was under way. Blocks at rest hold
//! nothing that was under way, so they are not walked.
//!
//! The replicas of a block differ where the client died within a WRITE. One replica is enough:
//!
//! * On every replica the header says that the block is in use before an object of this use stands
//!   there, and no CAS goes out before the object stands on all of them. So where one replica shows
//!   no header, or an object that is incomplete or of an earlier generation, no CAS of that object
//!   has been posted. A block that one replica shows in use is walked.
//! * For the same reason an identity behind the last complete object has never been used.
//!
//! A block whose header names an earlier owner was handed on to the dead client, which did not use
//! it: its objects are not looked at, but counted as taken.

use alloc::vec::Vec;

use super::{BlockContent, BlockReport, Candidate, Recovery, RecoveryError};
use crate::layout::{
    Address, BLOCK_HEADER_BYTES, BlockHeader, BlockShape, Object, SizeClass, Slot,
};
use crate::mutant::{Mutant, removed};
use crate::race::Buckets;
use crate::verbs::{Fabric, Failure, Span, Ticket, VerbError};
use crate::view::{MAX_REPLICAS, View};

/// Headers that are read in one phase.
const HEADERS: usize = 64;
const _: () = assert!(HEADERS * MAX_REPLICAS <= crate::verbs::MAX_BATCH_VERBS);

/// Bytes of one READ of the walk; one object where that is more.
const CHUNK_BYTES: u64 = 1 << 20;

/// A block with a header.
pub(super) struct Log {
    block: Address,
    header: BlockHeader,
    shape: BlockShape,
}

impl<F: Fabric> Recovery<'_, F> {
    /// Reads the headers of all blocks, each once, and reports those that have none.
    pub(super) async fn headers(&mut self, blocks: &[Address]) -> Result<Vec<Log>, RecoveryError> {
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        blocks.dedup();
        let mut logs = Vec::new();
        for blocks in blocks.chunks(HEADERS) {
            self.batch.clear();
            let mut reads: Vec<(Address, Ticket)> = Vec::new();
            for block in blocks {
                let known = self.view.geometry.block_at(*block);
                let places = known
                    .and_then(|_| self.view.object_places(*block, self.view.geometry.block_bytes));
                match places {
                    Some(places) => reads.extend(places.map(|p| {
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
        logs.sort_by_key(|l: &Log| (l.header.class, l.block));
        Ok(logs)
    }

    /// The header of a block, of which the READs from all replicas are given.
    fn header(
        &mut self,
        replicas: &[(Address, Ticket)],
        logs: &mut Vec<Log>,
    ) -> Result<(), RecoveryError> {
        let block = replicas[0].0;
        let mut failure = None;
        let mut answered = false;
        let mut written = false;
        let mut best: Option<BlockHeader> = None;
        for (_, ticket) in replicas {
            let bytes: &[u8; BLOCK_HEADER_BYTES as usize] = match self.batch.data(*ticket) {
                Ok(bytes) => bytes.try_into().expect("as long as was asked for"),
                Err(f) => {
                    failure = Some(f);
                    continue;
                }
            };
            answered = true;
            written |= bytes.iter().any(|b| *b != 0);
            let header = BlockHeader::decode(bytes);
            // In use rather than at rest, and anything rather than an earlier owner's header, which
            // the client may have begun to replace.
            let rank = |h: &BlockHeader| (h.owner == self.dead, !h.at_rest);
            if header.as_ref().map(rank) > best.as_ref().map(rank) {
                best = header;
            }
        }
        if let Some(failure) = failure.filter(|_| !answered) {
            return Err(failure.into());
        }
        let shaped = best.and_then(|header| {
            let shape = BlockShape::new(self.view.geometry.block_bytes, header.class)?;
            Some(Log { block, header, shape })
        });
        match shaped {
            Some(log) => logs.push(log),
            None if written => self.report_block(block, BlockContent::Unreadable),
            None => self.report_block(block, BlockContent::Nothing),
        }
        Ok(())
    }

    fn report_block(&mut self, block: Address, content: BlockContent) {
        self.report.blocks.push(BlockReport { block, content });
    }

    /// Walks through the objects of a block, if some may have been under way. Those before the header's
    /// first are of earlier uses of the block.
    pub(super) async fn walk(&mut self, log: &Log) -> Result<(), RecoveryError> {
        let Log { block, header, shape } = log;
        let class = header.class;
        let walked_from = header.first.min(shape.objects);
        let mut unused = if header.at_rest { shape.objects } else { walked_from };
        let mut from = unused;
        while from < shape.objects {
            let fitting = (CHUNK_BYTES / shape.object_bytes).max(1);
            let count = fitting.min(u64::from(shape.objects - from)) as u32;
            let start = block.bytes() + shape.offset(from);
            let bytes = u64::from(count) * shape.object_bytes;
            let span = self.read_any(Address::new(start), bytes as u32).await?;
            for i in 0..count {
                let object_bytes = shape.object_bytes as u32;
                let object = self.batch.bytes(span.part(i * object_bytes, object_bytes));
                let Ok(object) = Object::decode(object) else { continue };
                unused = from + i + 1;
                if header.owner != self.dead {
                    continue;
                }
                let address = Address::new(block.bytes() + shape.offset(from + i));
                match candidate(self.view, &object, address, class) {
                    Some(found) => self.take(found),
                    None => self.report.strange += 1,
                }
            }
            from += count;
        }
        if header.owner == self.dead && !header.at_rest {
            self.report.walked += u64::from(unused - walked_from);
        }
        if removed(Mutant::RecoveryHandsOnTheLastObject) {
            unused = unused.saturating_sub(1).max(walked_from);
        }
        self.report_block(*block, BlockContent::Objects { class, first: unused });
        Ok(())
    }

    fn take(&mut self, found: Candidate) {
        if removed(Mutant::RecoveryExaminesLastObjectsOnly)
            && self.pending.last().is_some_and(|before| before.own.class() == found.own.class())
        {
            self.pending.pop();
        }
        self.pending.push(found);
    }

    /// One phase: bytes of a block, from the first of its replicas that answers.
    async fn read_any(&mut self, at: Address, bytes: u32) -> Result<Span, RecoveryError> {
        let view = self.view;
        let mut failure = None;
        for place in view.object_places(at, u64::from(bytes)).expect("inside of a block") {
            self.batch.clear();
            let ticket = self.batch.read(place.node, place.offset, bytes);
            self.phase().await;
            match self.batch.data_span(ticket) {
                Ok(span) => return Ok(span),
                Err(f @ Failure { error: VerbError::Unreachable, .. }) => failure = Some(f),
                Err(f) => return Err(f.into()),
            }
        }
        Err(failure.expect("a region has at least one place").into())
    }
}

/// What to look for; `None` if no client of this cluster writes such an object.
fn candidate(
    view: &View,
    object: &Object<'_>,
    address: Address,
    class: SizeClass,
) -> Option<Candidate> {
    let opcode = object.opcode()?;
    let generation = object.generation();
    if object.key().is_empty() || generation >= Slot::GENERATIONS {
        return None;
    }
    let buckets = Buckets::of(object.key(), view);
    let own = Slot::new(buckets.fingerprint, class, address, generation);
    Some(Candidate { buckets, own, opcode })
}
