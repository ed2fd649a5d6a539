//! Tests of how a memory node splits and merges blocks. After every request, the effects on the block table in the pool
//! must agree with the node's own table.

use std::collections::BTreeMap;

use fusee_control::node::{
    AcceptedOrders, BlockId, Extent, JobRequest, NodeDescription, NodeRefusal, NodeReply,
    NodeRequest,
};
use fusee_core::data::Redundancy;
use fusee_core::layout::TableEntry;
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_core::view::TABLE_ENTRY_BYTES;
use fusee_memory_node::logic::{NodeDecision, NodeEffect, NodeLogic};
use proptest::prelude::*;

const CLUSTER: ClusterId = ClusterId::from_word(77).unwrap();
const REGION: u64 = 64 << 10;
/// The size of the largest blocks: they have order 2, and frames have 4 KiB.
const BLOCK: u64 = 16 << 10;
/// The number of frames of a region: its first page holds the table.
const FRAMES: u32 = 15;
const ANN: ClientId = ClientId(1);
const BOB: ClientId = ClientId(2);
const NOBODY: ClientId = ClientId::NOBODY;

fn block(frame: u32, order: u8) -> BlockId {
    BlockId { region: 0, frame, order }
}

fn entry(frame: u32, owner: ClientId, order: u8, base: Option<u16>) -> (u32, TableEntry) {
    (frame, TableEntry { owner, order, base })
}

/// A node with one region, and a copy of the region's table.
struct Node {
    node: NodeLogic,
    start: u64,
    copy: BTreeMap<u64, u64>,
}

/// Returns an ALLOC that accepts blocks of the orders `least` to `most`.
fn alloc(client: ClientId, least: u8, most: u8, spare_of: Vec<u32>) -> NodeRequest {
    let redundancy = Redundancy::Replicated;
    let orders = AcceptedOrders { least, most, mixed: true };
    NodeRequest::Alloc { client, redundancy, orders, frozen: vec![], spare_of }
}

impl Node {
    fn new(primary: bool) -> Node {
        let description =
            NodeDescription { identity: 5, pool_bytes: 1 << 20, tcp: None, shm: None, verbs: None };
        let mut node = NodeLogic::new(description);
        node.handle(NodeRequest::Format { cluster: CLUSTER, attempt: 1 });
        let reserve = NodeRequest::Reserve {
            redundancy: Redundancy::Replicated,
            cluster: CLUSTER,
            attempt: 1,
            view: 5,
            extent: Extent::Region { region: 0, primary },
            bytes: REGION,
            block_bytes: BLOCK,
        };
        let step = node.handle(reserve);
        let NodeReply::Reserved { offset } = step.reply else { panic!("{step:?}") };
        let mut node = Node { node, start: offset, copy: BTreeMap::new() };
        node.apply(&step.effects);
        assert_eq!(node.table(), first_table());
        node
    }

    /// Makes a primary whose region has only blocks of one frame, which belong to one client.
    fn full() -> Node {
        let mut node = Node::new(true);
        (0..FRAMES).for_each(|frame| node.take(block(frame, 0), ANN));
        node
    }

    fn apply(&mut self, effects: &[NodeEffect]) {
        for effect in effects {
            if let NodeEffect::WriteTable { offset, value } = *effect {
                self.copy.insert(offset, value);
            }
        }
    }

    /// Returns the table, which must cover the region and agree with the copy.
    #[track_caller]
    fn table(&mut self) -> Vec<(u32, TableEntry)> {
        let reply = self.node.handle(NodeRequest::OwnersOf { region: 0 }).reply;
        let NodeReply::Owners(table) = reply else { panic!("{reply:?}") };
        let mut words = BTreeMap::new();
        let mut end = 0;
        for (frame, entry) in &table {
            assert_eq!(*frame, end, "the blocks cover the region once: {table:?}");
            end += 1 << entry.order;
            let zeros = (*frame..end).map(|frame| (self.entry_offset(frame), 0));
            words.extend(zeros);
            words.insert(self.entry_offset(*frame), entry.encode());
        }
        assert_eq!(end, FRAMES);
        assert_eq!(words, self.copy);
        table
    }

    fn entry_offset(&self, frame: u32) -> u64 {
        self.start + u64::from(frame) * TABLE_ENTRY_BYTES
    }

    /// The effect that writes the entry of a frame.
    fn writes(&self, frame: u32, entry: Option<(u32, TableEntry)>) -> NodeEffect {
        let value = entry.map_or(0, |(first, entry)| {
            assert_eq!(first, frame);
            entry.encode()
        });
        NodeEffect::WriteTable { offset: self.entry_offset(frame), value }
    }

    /// The effect that fills the header of a block with zeros.
    fn zeroes(&self, frame: u32) -> NodeEffect {
        // The blocks lie behind the page with the table.
        let offset = self.start + 4096 + 4096 * u64::from(frame);
        NodeEffect::ZeroPool { offset, bytes: 64 }
    }

    #[track_caller]
    fn ask(&mut self, request: NodeRequest) -> NodeDecision {
        let step = self.node.handle(request);
        self.apply(&step.effects);
        self.table();
        step
    }

    fn alloc(&mut self, client: ClientId, least: u8, most: u8) -> Option<(BlockId, Option<u16>)> {
        match self.ask(alloc(client, least, most, vec![])).reply {
            NodeReply::Allocated { block, base } => Some((block, base)),
            NodeReply::Refused(NodeRefusal::NoFreeBlock) => None,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn done(&mut self, request: NodeRequest) -> Vec<NodeEffect> {
        let step = self.ask(request);
        assert_eq!(step.reply, NodeReply::Done);
        step.effects
    }

    /// Gives a block to a client without an ALLOC, with base 0.
    #[track_caller]
    fn take(&mut self, block: BlockId, client: ClientId) {
        self.done(set(block, NOBODY, client, Some(0)));
    }

    #[track_caller]
    fn free(&mut self, block: BlockId, base: Option<u16>) -> Vec<NodeEffect> {
        self.done(set(block, ANN, NOBODY, base))
    }

    #[track_caller]
    fn refusal(&mut self, request: NodeRequest) -> NodeRefusal {
        let before = self.table();
        let step = self.ask(request);
        assert_eq!((step.effects, self.table()), (vec![], before), "a refusal changes nothing");
        match step.reply {
            NodeReply::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

/// The blocks of a new region.
fn first_table() -> Vec<(u32, TableEntry)> {
    let blocks = [(0, 2), (4, 2), (8, 2), (12, 1), (14, 0)];
    blocks.map(|(frame, order)| entry(frame, NOBODY, order, Some(0))).to_vec()
}

fn set(block: BlockId, from: ClientId, to: ClientId, base: Option<u16>) -> NodeRequest {
    NodeRequest::SetOwner { block, from, to, base, unless_fenced: false, once: false }
}

fn of_job(request: JobRequest) -> NodeRequest {
    NodeRequest::OfJob { repairer: ClientId(1000), job: 1, request }
}

fn set_owners(owners: Vec<(u32, TableEntry)>) -> NodeRequest {
    of_job(JobRequest::SetOwners { region: 0, owners })
}

#[test]
fn an_alloc_gets_the_largest_block_that_it_accepts() {
    let mut node = Node::new(true);
    assert_eq!(node.alloc(ANN, 3, 9), None, "no block is so large");
    assert_eq!(node.alloc(ANN, 0, 200), Some((block(0, 2), Some(0))));
    assert_eq!(node.alloc(ANN, 0, 1), Some((block(12, 1), Some(0))), "no larger one is split");
    assert_eq!(node.alloc(ANN, 0, 1), Some((block(4, 1), Some(0))));
    assert_eq!(node.alloc(ANN, 1, 2), Some((block(8, 2), Some(0))));
    assert_eq!(node.alloc(ANN, 2, 2), None);
    assert_eq!(node.alloc(ANN, 0, 2), Some((block(6, 1), Some(0))));
    assert_eq!(node.alloc(ANN, 1, 2), None);
    assert_eq!(node.alloc(ANN, 0, 2), Some((block(14, 0), Some(0))));
    assert_eq!(node.alloc(ANN, 0, 2), None);
}

#[test]
fn halves_inherit_the_base_of_the_split_block() {
    let mut node = Node::full();
    (4..8).for_each(|frame| drop(node.free(block(frame, 0), Some(7))));
    assert_eq!(node.table()[4], entry(4, NOBODY, 2, Some(7)));
    assert_eq!(node.alloc(BOB, 0, 0), Some((block(4, 0), Some(7))));
    let halves = [
        entry(4, BOB, 0, Some(7)),
        entry(5, NOBODY, 0, Some(7)),
        entry(6, NOBODY, 1, Some(7)),
        entry(8, ANN, 0, Some(0)),
    ];
    assert_eq!(node.table()[4..8], halves);
    assert_eq!(node.alloc(BOB, 1, 1), Some((block(6, 1), Some(7))));
    assert_eq!(node.alloc(BOB, 0, 2), Some((block(5, 0), Some(7))));
}

#[test]
fn the_halves_of_a_mixed_block_are_mixed() {
    let mut node = Node::full();
    (4..8).for_each(|frame| drop(node.free(block(frame, 0), Some(frame as u16))));
    assert_eq!(node.alloc(ANN, 2, 2), Some((block(4, 2), None)));
    node.free(block(4, 2), None);
    assert_eq!(node.alloc(BOB, 0, 0), Some((block(4, 0), None)));
    let halves = [entry(4, BOB, 0, None), entry(5, NOBODY, 0, None), entry(6, NOBODY, 1, None)];
    assert_eq!(node.table()[4..7], halves);
}

#[test]
fn buddies_with_one_base_are_merged_when_they_are_free() {
    let mut node = Node::full();
    for frame in [4, 7, 6] {
        node.free(block(frame, 0), Some(3));
    }
    let table = node.table();
    assert_eq!(table[4], entry(4, NOBODY, 0, Some(3)));
    assert_eq!(table[5], entry(5, ANN, 0, Some(0)));
    assert_eq!(table[6], entry(6, NOBODY, 1, Some(3)), "a block and the one before it");
    // The header is zeroed before the table shows that the block is free.
    let whole = entry(4, NOBODY, 2, Some(3));
    let expected =
        [node.zeroes(5), node.writes(5, None), node.writes(6, None), node.writes(4, Some(whole))];
    assert_eq!(node.free(block(5, 0), Some(3)), expected);
    assert_eq!(node.table()[4], whole);
    // The largest blocks are not merged, and neither are neighbours that are no buddies.
    (8..12).for_each(|frame| drop(node.free(block(frame, 0), Some(3))));
    node.free(block(3, 0), Some(3));
    node.free(block(14, 0), Some(3));
    let rest = [
        entry(3, NOBODY, 0, Some(3)),
        whole,
        entry(8, NOBODY, 2, Some(3)),
        entry(12, ANN, 0, Some(0)),
        entry(13, ANN, 0, Some(0)),
        entry(14, NOBODY, 0, Some(3)),
    ];
    assert_eq!(node.table()[3..], rest);
    // Nor is the rest of the region a block of order 1: it has only one frame.
    (12..14).for_each(|frame| drop(node.free(block(frame, 0), Some(3))));
    assert_eq!(node.table()[6..], [entry(12, NOBODY, 1, Some(3)), entry(14, NOBODY, 0, Some(3))]);
}

#[test]
fn buddies_with_different_bases_are_not_merged_when_they_are_freed() {
    for (one, other) in [(Some(3), Some(4)), (Some(0), None), (None, Some(3)), (None, None)] {
        let mut node = Node::full();
        node.free(block(4, 0), one);
        let expected = [node.zeroes(5), node.writes(5, Some(entry(5, NOBODY, 0, other)))];
        assert_eq!(node.free(block(5, 0), other), expected);
        let free = [entry(4, NOBODY, 0, one), entry(5, NOBODY, 0, other)];
        assert_eq!(node.table()[4..6], free);
    }
}

#[test]
fn a_block_and_a_part_of_its_buddy_are_not_merged() {
    let mut node = Node::full();
    (4..6).for_each(|frame| drop(node.free(block(frame, 0), Some(3))));
    node.free(block(6, 0), Some(3));
    let free = [entry(4, NOBODY, 1, Some(3)), entry(6, NOBODY, 0, Some(3))];
    assert_eq!(node.table()[4..6], free);
}

#[test]
fn a_request_for_more_than_any_free_block_merges_those_with_different_bases() {
    let mut node = Node::full();
    node.free(block(14, 0), Some(9));
    node.free(block(3, 0), Some(9));
    for (frame, base) in [(4, Some(5)), (5, Some(6)), (6, None)] {
        node.free(block(frame, 0), base);
    }
    assert_eq!(node.alloc(BOB, 2, 2), None, "a frame in between has an owner");
    assert_eq!(node.table()[3..7].len(), 4);
    node.free(block(7, 0), Some(7));
    assert_eq!(node.alloc(BOB, 2, 2), Some((block(4, 2), None)));
    assert_eq!(node.table()[4], entry(4, BOB, 2, None));
    assert_eq!(node.table()[3], entry(3, NOBODY, 0, Some(9)), "others stay as they are");
    assert_eq!(node.alloc(BOB, 1, 2), None);
}

/// A merged block has no base, even if all of its frames but one have the same base.
#[test]
fn the_base_of_merged_blocks_is_that_of_none() {
    for bases in [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [2, 1, 1, 2]] {
        let mut node = Node::full();
        for (frame, base) in (4..).zip(bases) {
            node.free(block(frame, 0), Some(base));
        }
        assert_eq!(node.alloc(BOB, 2, 2), Some((block(4, 2), None)), "{bases:?}");
    }
}

#[test]
fn a_smaller_block_with_a_base_is_preferred_to_a_mixed_one() {
    let mut node = Node::full();
    for (frame, base) in (4..8).zip([1, 2, 3, 4]) {
        node.free(block(frame, 0), Some(base));
    }
    assert_eq!(node.alloc(ANN, 2, 2), Some((block(4, 2), None)));
    node.free(block(4, 2), None);
    node.free(block(9, 0), Some(5));
    (12..14).for_each(|frame| drop(node.free(block(frame, 0), Some(6))));
    assert_eq!(node.alloc(BOB, 0, 2), Some((block(12, 1), Some(6))));
    assert_eq!(node.alloc(BOB, 0, 2), Some((block(9, 0), Some(5))));
    assert_eq!(node.alloc(BOB, 0, 2), Some((block(4, 2), None)));
    assert_eq!(node.alloc(BOB, 0, 2), None);
}

#[test]
fn a_mixed_block_is_preferred_to_merging() {
    let mut node = Node::full();
    // Frames 0 and 1 can be merged; there is a mixed block of order 1 behind them.
    node.free(block(0, 0), Some(1));
    node.free(block(1, 0), Some(2));
    node.free(block(6, 0), Some(1));
    node.free(block(7, 0), Some(2));
    node.done(set(block(6, 1), NOBODY, ANN, None));
    node.free(block(6, 1), None);
    assert_eq!(node.alloc(BOB, 1, 2), Some((block(6, 1), None)));
    assert_eq!(node.alloc(BOB, 1, 2), Some((block(0, 1), None)));
}

/// Another region's block is preferred to a worse one of the region whose turn it is.
#[test]
fn all_regions_are_tried_before_a_worse_block_is_taken() {
    let mut node = Node::full();
    (4..8).for_each(|frame| drop(node.free(block(frame, 0), None)));
    node.node.handle(NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster: CLUSTER,
        attempt: 1,
        view: 5,
        extent: Extent::Region { region: 1, primary: true },
        bytes: REGION,
        block_bytes: BLOCK,
    });
    let mut given = |least, most| match node.node.handle(alloc(BOB, least, most, vec![])).reply {
        NodeReply::Allocated { block, base } => (block.region, block.order, base),
        other => panic!("{other:?}"),
    };
    for order in [2, 2, 2, 1, 0] {
        assert_eq!(given(0, 2), (1, order, Some(0)));
    }
    assert_eq!(given(1, 1), (0, 1, None));
}

#[test]
fn a_backup_follows_by_splitting_and_merging_its_own_table() {
    let mut backup = Node::new(false);
    let effects = backup.done(set(block(6, 0), NOBODY, ANN, Some(3)));
    let split = [
        entry(4, NOBODY, 1, Some(0)),
        entry(6, ANN, 0, Some(3)),
        entry(7, NOBODY, 0, Some(0)),
        entry(8, NOBODY, 2, Some(0)),
    ];
    assert_eq!(backup.table()[1..5], split);
    assert!(!effects.iter().any(|effect| matches!(effect, NodeEffect::ZeroPool { .. })));
    // The base of a block that changes hands without being freed stays.
    backup.done(set(block(6, 0), ANN, BOB, Some(9)));
    assert_eq!(backup.table()[2], entry(6, BOB, 0, Some(3)));
    backup.done(set(block(6, 0), BOB, NOBODY, Some(4)));
    assert_eq!(backup.table()[2..4], [entry(6, NOBODY, 0, Some(4)), entry(7, NOBODY, 0, Some(0))]);
    // The primary has merged these.
    backup.done(set(block(4, 2), NOBODY, ANN, None));
    assert_eq!(backup.table()[1], entry(4, ANN, 2, None));
    backup.done(set(block(4, 2), ANN, NOBODY, Some(0)));
    backup.done(set(block(12, 1), NOBODY, ANN, Some(0)));
    backup.done(set(block(12, 1), ANN, NOBODY, Some(0)));
    assert_eq!(backup.table(), first_table());
}

#[test]
fn a_block_that_overlaps_an_owned_one_is_refused() {
    for primary in [false, true] {
        let mut node = Node::new(primary);
        node.take(block(4, 1), ANN);
        node.take(block(10, 0), ANN);
        node.done(NodeRequest::Fence { clients: vec![ClientId(9)] });
        let overlapping =
            [block(4, 0), block(5, 0), block(4, 2), block(10, 1), block(8, 2)].into_iter();
        for other in overlapping {
            let owned = NodeRefusal::NotOwner { owner: ANN };
            for (from, to) in [(NOBODY, BOB), (NOBODY, NOBODY), (ANN, BOB), (ANN, NOBODY)] {
                assert_eq!(node.refusal(set(other, from, to, Some(0))), owned, "{other:?}");
            }
            let free = of_job(JobRequest::Free { block: other, from: ANN });
            assert_eq!(node.refusal(free), owned, "{other:?}");
            let (from, to, base) = (ClientId(9), BOB, Some(0));
            let take_back = of_job(JobRequest::TakeBack { block: other, from, to, base });
            assert_eq!(node.refusal(take_back), owned, "{other:?}");
        }
        for other in [block(1, 1), block(2, 2), block(12, 2), block(14, 1), block(15, 0)] {
            let unknown = NodeRefusal::UnknownBlock { block: other };
            assert_eq!(node.refusal(set(other, NOBODY, BOB, Some(0))), unknown);
        }
        for order in [3, 31, 32, u8::MAX] {
            let other = block(0, order);
            let unknown = NodeRefusal::UnknownBlock { block: other };
            assert_eq!(node.refusal(set(other, NOBODY, BOB, Some(0))), unknown);
        }
        // The other half, and a block of which no frame has an owner, are free.
        node.take(block(6, 1), BOB);
        node.take(block(11, 0), BOB);
    }
}

/// A block can be merged into a larger one when it is freed, and a free block can be split again.
#[test]
fn a_block_that_was_freed_and_merged_is_freed_again_without_effect() {
    let mut node = Node::new(true);
    node.take(block(4, 0), ANN);
    node.free(block(4, 0), Some(0));
    assert_eq!(node.table(), first_table());
    assert_eq!(node.free(block(4, 0), Some(8)), []);
    let unused = of_job(JobRequest::Free { block: block(4, 0), from: ANN });
    assert_eq!(node.done(unused), []);
    node.take(block(4, 1), BOB);
    let again = set(block(4, 0), ANN, NOBODY, Some(0));
    assert_eq!(node.refusal(again), NodeRefusal::NotOwner { owner: BOB });
}

#[test]
fn a_block_that_its_dead_owner_never_used_keeps_its_base() {
    let mut node = Node::full();
    node.free(block(4, 0), Some(7));
    assert_eq!(node.alloc(BOB, 0, 0), Some((block(4, 0), Some(7))));
    let unused = of_job(JobRequest::Free { block: block(4, 0), from: BOB });
    let expected = [node.zeroes(4), node.writes(4, Some(entry(4, NOBODY, 0, Some(7))))];
    assert_eq!(node.done(unused), expected);
}

#[test]
fn a_table_that_does_not_cover_the_region_is_refused() {
    let mut node = Node::new(false);
    node.take(block(8, 0), BOB);
    let free = |frame, order| entry(frame, NOBODY, order, Some(0));
    let good = [free(0, 2), entry(4, ANN, 1, None), free(6, 1), free(8, 2), free(12, 1)];
    let good = [&good[..], &[entry(14, BOB, 0, Some(2))]].concat();
    let changed = |change: fn(&mut Vec<(u32, TableEntry)>)| {
        let mut table = good.clone();
        change(&mut table);
        table
    };
    let without = |which| {
        let mut table = good.clone();
        table.remove(which);
        table
    };
    let bad: [(&str, Vec<_>); 11] = [
        ("no block", vec![]),
        ("no block at the start", without(0)),
        ("a gap", without(2)),
        ("no block at the end", without(5)),
        ("a block twice", changed(|table| table.insert(1, table[1]))),
        ("two blocks that overlap", changed(|table| table[1].1.order = 2)),
        ("a block that is too short", changed(|table| table[1].1.order = 0)),
        ("blocks in another order", changed(|table| table.swap(2, 3))),
        ("a block at a wrong frame", {
            let table = [entry(0, NOBODY, 0, Some(0)), entry(1, NOBODY, 1, Some(0))];
            let rest = [entry(3, NOBODY, 0, Some(0))];
            [&table[..], &rest, &good[1..]].concat()
        }),
        ("a block behind the end", changed(|table| table[5].1.order = 1)),
        ("an order that no block has", changed(|table| table[0].1.order = u8::MAX)),
    ];
    for (what, table) in bad {
        let refusal = node.refusal(set_owners(table));
        assert!(matches!(refusal, NodeRefusal::BadRequest { .. }), "{what}: {refusal:?}");
    }
    let long = [&good[..], &[entry(15, NOBODY, 0, Some(0))]].concat();
    assert!(matches!(node.refusal(set_owners(long)), NodeRefusal::BadRequest { .. }));
    let effects = node.done(set_owners(good.clone()));
    assert_eq!(effects.len() as u32, FRAMES, "each entry is written, also where no block begins");
    assert_eq!(node.table(), good);
    // Free blocks of the new table are given, and those with an owner are freed.
    node.free(block(4, 1), Some(0));
    node.done(of_job(JobRequest::Lead { regions: vec![0], view: 9 }));
    assert_eq!(node.table()[1], free(4, 2));
    assert_eq!(node.alloc(ANN, 2, 2), Some((block(0, 2), Some(0))));
    let own = node.refusal(set_owners(good));
    assert!(matches!(own, NodeRefusal::BadRequest { .. }), "it leads the region: {own:?}");
}

/// Frames count, and not blocks.
#[test]
fn a_region_has_spare_blocks_while_more_than_a_quarter_of_its_memory_is_free() {
    let mut node = Node::new(true);
    let spare = |node: &mut Node| node.ask(alloc(BOB, 0, 0, vec![0])).reply;
    for taken in [block(0, 2), block(4, 2), block(8, 1), block(10, 1)] {
        node.take(taken, ANN);
    }
    assert_eq!(node.table().len(), 6);
    let none = NodeReply::Refused(NodeRefusal::NoFreeBlock);
    assert_eq!(spare(&mut node), none, "two blocks of six are free, but only 3 frames of 15");
    node.free(block(8, 1), Some(0));
    for _ in 0..2 {
        assert!(matches!(spare(&mut node), NodeReply::Allocated { .. }));
    }
    assert_eq!(spare(&mut node), none);
}

/// A step of a session with the blocks of one region.
#[derive(Clone, Debug)]
enum Step {
    /// ALLOCs of these orders, which the backup learns of in the same order, or in reverse order.
    Alloc { wanted: Vec<(u8, u8)>, is_reversed: bool },
    /// Frees one of the blocks.
    Free { which: prop::sample::Index, base: Option<u16> },
    /// Hands one of the blocks to another session.
    HandOn { which: prop::sample::Index },
}

fn step() -> impl Strategy<Value = Step> {
    let orders = (0u8..3, 0u8..3).prop_map(|(one, other)| (one.min(other), one.max(other)));
    let base = prop_oneof![1 => Just(None), 4 => (0u16..2).prop_map(Some)];
    let which = any::<prop::sample::Index>;
    prop_oneof![
        4 => (prop::collection::vec(orders, 1..4), any::<bool>())
            .prop_map(|(wanted, is_reversed)| Step::Alloc { wanted, is_reversed }),
        5 => (which(), base).prop_map(|(which, base)| Step::Free { which, base }),
        1 => which().prop_map(|which| Step::HandOn { which }),
    ]
}

proptest! {
    #[test]
    fn a_backup_that_follows_has_the_table_of_the_primary(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let (mut primary, mut backup) = (Node::new(true), Node::new(false));
        let mut owned: Vec<(BlockId, ClientId)> = vec![];
        for step in steps {
            match step {
                Step::Alloc { wanted, is_reversed } => {
                    let given = wanted.iter().map_while(|(least, most)| {
                        primary.alloc(ANN, *least, *most)
                    });
                    let mut given: Vec<_> = given.collect();
                    owned.extend(given.iter().map(|(block, _)| (*block, ANN)));
                    if is_reversed {
                        given.reverse();
                    }
                    for (block, base) in given {
                        backup.done(set(block, NOBODY, ANN, base));
                    }
                }
                Step::Free { which, base } if !owned.is_empty() => {
                    let (block, owner) = owned.swap_remove(which.index(owned.len()));
                    for node in [&mut backup, &mut primary] {
                        let effects = node.done(set(block, owner, NOBODY, base));
                        prop_assert_eq!(&effects[0], &node.zeroes(block.frame));
                        prop_assert_eq!(node.done(set(block, owner, NOBODY, base)), []);
                    }
                }
                Step::HandOn { which } if !owned.is_empty() => {
                    let which = which.index(owned.len());
                    let (block, owner) = owned[which];
                    owned[which].1 = BOB;
                    for node in [&mut backup, &mut primary] {
                        node.done(set(block, owner, BOB, None));
                    }
                }
                Step::Free { .. } | Step::HandOn { .. } => {}
            }
            let table = primary.table();
            prop_assert_eq!(&backup.table(), &table);
            let theirs = table.iter().filter(|(_, entry)| entry.owner != NOBODY);
            let theirs = theirs.map(|(frame, entry)| (block(*frame, entry.order), entry.owner));
            owned.sort_unstable();
            prop_assert_eq!(theirs.collect::<Vec<_>>(), owned.clone());
            // A new backup gets the table at once.
            let mut late = Node::new(false);
            late.done(set_owners(table.clone()));
            prop_assert_eq!(late.table(), table);
        }
    }
}
