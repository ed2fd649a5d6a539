//! Tests of surveys, on memory that the tests write byte by byte.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fusee_core::data::{Redundancy, Region};
use fusee_core::layout::{
    BlockHeader, BlockShape, GenerationBase, SizeClass, Slot, TableEntry, UNIT_BYTES, bitmap_bytes,
};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, Fabric, VerbBatch, VerbOp};
use fusee_core::view::{Geometry, Member, PoolPlace, TABLE_ENTRY_BYTES};

use super::*;

const REGION: u64 = 64 << 10;
/// Bytes of a frame, and so of the smallest blocks.
const FRAME: u64 = 4096;
/// Bytes that node 0 has reserved beside its regions.
const PADDING: u64 = 512;
/// The number of frames of a region. At first, each is a block.
const FRAMES: u32 = 15;

/// A fabric with two memory nodes. Each has the primary of one of two regions, and the backup of the other.
struct TwoNodeFabric {
    pools: RefCell<HashMap<MnId, Vec<u8>>>,
    /// A place whose bytes change after they were read once, and the new bytes.
    later: RefCell<Option<(PoolPlace, Vec<u8>)>>,
    silent: Option<MnId>,
}

impl TwoNodeFabric {
    /// Makes pools whose regions have only free blocks of one frame each.
    fn new() -> TwoNodeFabric {
        let free = entry(ClientId::NOBODY.0, 0).encode().to_le_bytes();
        let pool = || {
            let mut pool = vec![0; 2 * REGION as usize];
            for region in pool.chunks_mut(REGION as usize) {
                let table = region.as_chunks_mut().0;
                table[..FRAMES as usize].fill(free);
            }
            pool
        };
        let pools = HashMap::from([(MnId(0), pool()), (MnId(1), pool())]);
        TwoNodeFabric { pools: RefCell::new(pools), later: RefCell::new(None), silent: None }
    }

    fn put(&self, place: PoolPlace, bytes: &[u8]) {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.get_mut(&place.node).unwrap();
        pool[place.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl Fabric for TwoNodeFabric {
    fn execute(&self, mut batch: VerbBatch) -> impl Future<Output = VerbBatch> {
        let (verbs, memory) = batch.parts_mut();
        for verb in verbs {
            let VerbOp::Read { buf, .. } = verb.op else { panic!("a survey only reads") };
            if self.silent == Some(verb.node) {
                verb.result = Err(VerbError::Unreachable);
                continue;
            }
            let pools = self.pools.borrow();
            let from = &pools[&verb.node][verb.offset as usize..][..buf.len as usize];
            memory[buf.range()].copy_from_slice(from);
            verb.result = Ok(());
            let read = PoolPlace { node: verb.node, offset: verb.offset };
            drop(pools);
            if let Some((_, bytes)) = self.later.borrow_mut().take_if(|(at, _)| *at == read) {
                self.put(read, &bytes);
            }
        }
        ready(batch)
    }
}

fn view() -> View {
    let member = |n| Member {
        node: MnId(n),
        identity: n.into(),
        control: String::new(),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: 3 * REGION,
    };
    let region = |nodes: [u16; 2], offset| {
        Region::replicated(nodes.map(|n| PoolPlace { node: MnId(n), offset }).into(), 1)
    };
    let geometry = Geometry { region_bytes: REGION, block_bytes: 2 * FRAME, ..Geometry::default() };
    assert_eq!((geometry.frame_bytes(), geometry.frames_per_region()), (FRAME, FRAMES));
    View {
        number: 3,
        cluster: ClusterId::from_word(1).unwrap(),
        hash_key: HashKey::new([7; 16]),
        geometry,
        members: vec![member(0), member(1)],
        regions: vec![region([0, 1], 0), region([1, 0], REGION)],
        directory: Vec::new(),
        subtables: Vec::new(),
        change: None,
    }
}

/// Returns the block of one frame that begins at this frame.
fn block(region: u32, frame: u32) -> BlockId {
    BlockId { region, frame, order: 0 }
}

/// Returns the table entry of a block.
fn entry(owner: u32, order: u8) -> TableEntry {
    TableEntry { owner: ClientId(owner), order, base: Some(3) }
}

/// Returns the places of the table entry of a block's first frame and of the block itself, on the region's primary.
fn places(block: BlockId) -> (PoolPlace, PoolPlace) {
    let view = view();
    let primary = view.regions[block.region as usize].primary();
    let entry = primary.plus(u64::from(block.frame) * TABLE_ENTRY_BYTES);
    (entry, primary.plus(view.geometry.frame_offset(block.frame)))
}

fn class() -> SizeClass {
    SizeClass::from_code(3).unwrap()
}

/// Gives a block to an owner in the block table.
fn give_blank(memory: &TwoNodeFabric, block: BlockId, owner: u32) {
    let mut entries = vec![0u64; 1 << block.order];
    entries[0] = entry(owner, block.order).encode();
    let bytes: Vec<u8> = entries.into_iter().flat_map(u64::to_le_bytes).collect();
    memory.put(places(block).0, &bytes);
}

/// Gives a block to an owner, with a header, and sets the free bits of some of its objects.
fn give(memory: &TwoNodeFabric, block: BlockId, owner: u32, marked: &[u32]) {
    give_blank(memory, block, owner);
    let header = BlockHeader {
        class: class(),
        owner: ClientId(owner),
        first: 0,
        fresh: 0,
        sealed: false,
        base: GenerationBase::default(),
    };
    memory.put(places(block).1, &header.encode());
    let bytes = block.bytes(&view().geometry);
    let shape = BlockShape::new(bytes, class()).unwrap();
    let mut bitmap = vec![0u8; bitmap_bytes(bytes) as usize];
    for object in marked {
        let unit = shape.offset(*object) / UNIT_BYTES;
        bitmap[unit as usize / 8] |= 1 << (unit % 8);
    }
    memory.put(bitmap_of(block), &bitmap);
}

/// Returns the place of a block's free bitmap.
fn bitmap_of(block: BlockId) -> PoolPlace {
    let view = view();
    let address = block.address(&view.geometry);
    view.regions[block.region as usize].primary().plus(view.geometry.bitmap_offset(address))
}

fn owners(open: &[u32]) -> BlockOwners {
    let open = open.iter().map(|n| ClientId(*n)).collect();
    let expired = vec![ClientId(8)];
    BlockOwners { open, expired, unused_from: ClientId(100), orphans: Vec::new() }
}

fn read(memory: &TwoNodeFabric, owners: &BlockOwners) -> Result<MemorySurvey, FailedVerb> {
    let view = Arc::new(view());
    let mut at = SurveyPosition::default();
    let mut tally = SurveyTally::default();
    let orphans = owners.orphans.iter().map(|l| (l.block, *l)).collect();
    while let Some(group) = SurveyGroup::next(&view, at) {
        let part = pin!(SurveyReader::new(memory, &view, &orphans).read(&group))
            .poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(part) = part else { panic!("nothing here waits") };
        tally.add(part?);
        at = group.end;
    }
    let usage = Usage { reserved_bytes: 2 * REGION + PADDING, ..Usage::default() };
    let usage = [(MnId(0), Ok(usage)), (MnId(1), Err("silent".into()))];
    Ok(survey(SurveyFindings { view, tally }, owners, &usage))
}

#[track_caller]
fn expect_sums(survey: &MemorySurvey) {
    let of_classes: u64 = survey.classes.iter().map(|class| class.blocks).sum();
    let by_header = of_classes + survey.blank_blocks + survey.unreadable_headers;
    let of_owners: u64 = survey.owners.iter().map(|owner| owner.blocks).sum();
    let by_owner = of_owners + survey.unreadable_owners;
    let used = survey.blocks - survey.free_blocks;
    assert_eq!((by_header, by_owner), (used, used), "{survey:?}");
    let led = survey.nodes.iter().map(|node| (node.led_bytes, node.free_block_bytes));
    let led = led.fold((0, 0), |sum, node| (sum.0 + node.0, sum.1 + node.1));
    assert_eq!(led, (survey.led_bytes, survey.free_block_bytes));
    let used_bytes = survey.led_bytes - survey.free_block_bytes;
    let of_owners: u64 = survey.owners.iter().map(|owner| owner.bytes).sum();
    let is_whole = survey.unreadable_owners == 0;
    assert!(of_owners <= used_bytes && (of_owners == used_bytes || !is_whole), "{survey:?}");
    let of_classes: u64 = survey.classes.iter().map(|class| class.bytes).sum();
    let is_whole = survey.blank_blocks + survey.unreadable_headers == 0;
    assert!(of_classes <= used_bytes && (of_classes == used_bytes || !is_whole), "{survey:?}");
    let pools: u64 = survey.nodes.iter().map(|node| node.pool_bytes).sum();
    let used: u64 = survey.pool_use().named().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(used, pools, "{survey:?}");
}

#[test]
fn every_block_is_counted_by_node_by_class_and_by_owner() {
    let memory = TwoNodeFabric::new();
    give(&memory, block(0, 0), 7, &[0, 2, 19]);
    give(&memory, block(0, 14), 8, &[]);
    give(&memory, block(1, 3), 9, &[1]);
    give(&memory, block(1, 4), 9, &[]);
    // This block has an owner but was never written, so it has no header yet.
    give_blank(&memory, block(1, 5), 7);
    // A block of two frames, the second of which has objects with free bits.
    let large = BlockId { order: 1, ..block(0, 6) };
    give(&memory, large, 8, &[20, 41]);
    // The entry is in a backup's block table, so it must not be counted.
    let entry = entry(7, 0).encode().to_le_bytes();
    memory.put(PoolPlace { node: MnId(1), offset: TABLE_ENTRY_BYTES }, &entry);
    let orphan = |frame, owner, first| Orphan {
        block: block(1, frame),
        owner: ClientId(owner),
        class: class(),
        first,
        base: Some(3),
        marked: Some(1),
    };
    // By its table entry, the second block belongs to another session than by the master's record.
    let orphans = vec![orphan(3, 9, 11), orphan(4, 6, 0)];
    let owners = BlockOwners { orphans, ..owners(&[7, 50]) };
    let survey = read(&memory, &owners).unwrap();
    expect_sums(&survey);
    let objects = |bytes| u64::from(BlockShape::new(bytes, class()).unwrap().objects);
    assert_eq!((objects(FRAME), objects(2 * FRAME)), (21, 42));
    let of_class = ClassMemory {
        class: class(),
        object_bytes: 192,
        blocks: 5,
        bytes: 6 * FRAME,
        objects: 4 * 21 + 42,
        marked: 6,
        new: 21 - 11,
    };
    assert_eq!(survey.classes, [of_class]);
    let owner = |owner, state, [blocks, frames]: [u64; 2], handed_on, marked: u64| OwnerMemory {
        owner: ClientId(owner),
        state,
        blocks,
        bytes: frames * FRAME,
        handed_on,
        marked_bytes: marked * 192,
    };
    let named = [
        owner(7, OwnerState::Open, [2, 2], 0, 3),
        owner(8, OwnerState::Expired, [2, 3], 0, 2),
        owner(9, OwnerState::Departed, [2, 2], 1, 1),
    ];
    assert_eq!(survey.owners, named);
    assert_eq!((survey.blocks, survey.free_blocks, survey.blank_blocks), (29, 23, 1));
    assert_eq!((survey.led_bytes, survey.free_block_bytes), (30 * FRAME, 23 * FRAME));
    let [first, second] = &survey.nodes[..] else { panic!("{survey:?}") };
    assert_eq!((first.led_bytes, first.free_block_bytes), (15 * FRAME, 11 * FRAME));
    assert_eq!(first.free_bytes(), Some(REGION - PADDING));
    assert_eq!((first.regions, first.region_bytes), (2, 2 * REGION));
    assert_eq!((second.led_bytes, second.free_block_bytes), (15 * FRAME, 12 * FRAME));
    assert_eq!(second.free_bytes(), None);
}

/// Each block has two replicas.
#[test]
fn every_byte_of_the_pools_has_one_use() {
    let memory = TwoNodeFabric::new();
    give(&memory, block(0, 0), 7, &[0, 2]);
    give_blank(&memory, block(1, 5), 7);
    let orphan = Orphan {
        block: block(0, 0),
        owner: ClientId(7),
        class: class(),
        first: 11,
        base: Some(3),
        marked: Some(1),
    };
    let owners = BlockOwners { orphans: vec![orphan], ..owners(&[7]) };
    let mut survey = read(&memory, &owners).unwrap();
    let redundancy = Redundancy::Replicated;
    let pairs =
        RedundancyMemory { redundancy, pairs: 4, value_bytes: 400, memory_bytes: 4 * 192 * 2 };
    survey.redundancies.push(pairs);
    expect_sums(&survey);
    let of_blocks = 2 * u64::from(FRAMES) * FRAME;
    let expected = PoolUse {
        pairs: 2 * 4 * 192,
        freed: 2 * 2 * 192,
        never_used: 2 * 10 * 192,
        held: 2 * 5 * 192,
        overhead: 2 * (FRAME - 21 * 192),
        blank_blocks: 2 * FRAME,
        free_blocks: 2 * (2 * u64::from(FRAMES) - 2) * FRAME,
        tables: 2 * (2 * REGION - of_blocks),
        index: 0,
        padding: PADDING,
        room: REGION - PADDING,
        unknown: REGION,
    };
    assert_eq!(survey.pool_use(), expected);
    // Pairs that were added after the blocks were read are not counted twice.
    survey.redundancies[0].memory_bytes = 1 << 30;
    expect_sums(&survey);
    assert_eq!(survey.pool_use().held, 0);
}

#[test]
fn what_no_correct_client_writes_is_counted_and_no_more() {
    let memory = TwoNodeFabric::new();
    let (_, at) = places(block(0, 0));
    give(&memory, block(0, 0), 7, &[0]);
    memory.put(PoolPlace { offset: at.offset + 8, ..at }, &[1]);
    // A header with a class whose objects are larger than a block, and a free bit at the place of the header.
    give(&memory, block(0, 1), 7, &[]);
    let (_, at) = places(block(0, 1));
    let header = BlockHeader {
        class: SizeClass::MAX,
        owner: ClientId(7),
        first: 0,
        fresh: 0,
        sealed: true,
        base: GenerationBase::default(),
    };
    memory.put(at, &header.encode());
    give(&memory, block(0, 2), 100, &[1]);
    memory.put(bitmap_of(block(0, 2)), &[1]);
    let survey = read(&memory, &owners(&[7])).unwrap();
    expect_sums(&survey);
    assert_eq!((survey.unreadable_headers, survey.unreadable_owners), (2, 1));
    assert_eq!((survey.classes[0].blocks, survey.classes[0].marked), (1, 0));
    // The stray bit on the header is in the same byte as the object's bit, and has replaced that bit.
    assert_eq!((survey.stray_marks, survey.owners.len()), (1, 1));
}

#[test]
fn a_header_that_was_being_written_is_read_once_more() {
    let memory = TwoNodeFabric::new();
    give(&memory, block(1, 2), 7, &[5]);
    let (_, at) = places(block(1, 2));
    let whole = memory.pools.borrow()[&at.node][at.offset as usize..][..64].to_vec();
    memory.put(PoolPlace { offset: at.offset + 32, ..at }, &[1; 32]);
    *memory.later.borrow_mut() = Some((at, whole));
    let survey = read(&memory, &owners(&[7])).unwrap();
    expect_sums(&survey);
    assert_eq!((survey.unreadable_headers, survey.classes[0].marked), (0, 1));
}

#[test]
fn random_bytes_are_survived() {
    let mut state = 1u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..200 {
        let memory = TwoNodeFabric::new();
        for pool in memory.pools.borrow_mut().values_mut() {
            pool.fill_with(|| random() as u8);
        }
        // Many frames get entries of blocks, which possibly overlap. The blocks' headers and bitmaps stay random.
        for frame in 0..FRAMES {
            let base = (random() % 2 == 0).then(|| random() as u16 % Slot::GENERATIONS);
            let order = (random() % 3) as u8;
            let owner = ClientId(random() % 200);
            let entry = TableEntry { owner, order, base };
            memory.put(places(block(frame % 2, frame)).0, &entry.encode().to_le_bytes());
        }
        // Some blocks get a valid header, but their bitmaps stay random.
        for frame in 0..3 {
            let (place, at) = places(block(0, frame));
            memory.put(place, &entry((random() % 200).max(1), 0).encode().to_le_bytes());
            let class = SizeClass::from_code((random() % 127 + 1) as u8).unwrap();
            let owner = ClientId(random());
            let first = random();
            let fresh = random();
            let base = GenerationBase::default();
            let header = BlockHeader { class, owner, first, fresh, sealed: false, base };
            memory.put(at, &header.encode());
        }
        expect_sums(&read(&memory, &owners(&[7])).unwrap());
    }
}

#[test]
fn a_silent_node_is_named() {
    let memory = TwoNodeFabric { silent: Some(MnId(1)), ..TwoNodeFabric::new() };
    let failure = read(&memory, &owners(&[])).unwrap_err();
    assert_eq!((failure.node, failure.error), (MnId(1), VerbError::Unreachable));
}

#[test]
fn groups_cover_every_frame_once_whatever_the_regions() {
    for (regions, region_bytes) in [(3000, REGION), (2, 1 << 30), (0, REGION)] {
        let mut view = view();
        view.geometry.region_bytes = region_bytes;
        view.regions = vec![view.regions[0].clone(); regions];
        let mut at = SurveyPosition::default();
        let mut groups = 0;
        let mut moved = view.clone();
        for region in &mut moved.regions[..regions.min(1)] {
            *region = Region::replicated(region.places().to_vec(), region.primary_since() + 1);
        }
        let mut touched = 0;
        while let Some(group) = SurveyGroup::next(&view, at) {
            assert!(group.is_same_in(&view, &view));
            touched += u32::from(!group.is_same_in(&view, &moved));
            assert!(group.end > at && group.frames() <= 1 << 16);
            (at, groups) = (group.end, groups + group.frames());
        }
        assert_eq!(groups, u64::from(view.geometry.frames_per_region()) * regions as u64);
        let of_first = u64::from(view.geometry.frames_per_region()).div_ceil(1 << 16);
        assert_eq!(u64::from(touched), if regions == 0 { 0 } else { of_first });
    }
}
