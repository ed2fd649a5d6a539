//! Tests of surveys, on memory that the tests write byte by byte.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fusee_core::data::Region;
use fusee_core::layout::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockShape, GenerationBase, SizeClass, UNIT_BYTES,
};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, Fabric, VerbBatch, VerbOp};
use fusee_core::view::{Geometry, Member, PoolPlace, TABLE_ENTRY_BYTES};

use super::*;

const REGION: u64 = 64 << 10;
const BLOCK: u64 = 4096;
const BLOCKS: u32 = 15;

/// A fabric with two memory nodes. Each has the primary of one of two regions, and the backup of the other.
struct TwoNodeFabric {
    pools: RefCell<HashMap<MnId, Vec<u8>>>,
    /// A place whose bytes change after they were read once, and the new bytes.
    later: RefCell<Option<(PoolPlace, Vec<u8>)>>,
    silent: Option<MnId>,
}

impl TwoNodeFabric {
    fn new() -> TwoNodeFabric {
        let pool = || vec![0; 2 * REGION as usize];
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
        pool_bytes: 2 * REGION,
    };
    let region = |nodes: [u16; 2], offset| {
        Region::replicated(nodes.map(|n| PoolPlace { node: MnId(n), offset }).into(), 1)
    };
    let geometry = Geometry { region_bytes: REGION, block_bytes: BLOCK, ..Geometry::default() };
    assert_eq!(geometry.blocks_per_region(), BLOCKS);
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

/// Returns the places of a block's table entry and of the block itself, on the region's primary.
fn places(region: u32, block: u32) -> (PoolPlace, PoolPlace) {
    let view = view();
    let at = u64::from(block);
    let PoolPlace { node, offset } = view.regions[region as usize].primary();
    let entry = PoolPlace { node, offset: offset + at * TABLE_ENTRY_BYTES };
    (entry, PoolPlace { node, offset: offset + view.geometry.block_offset(block) })
}

fn class() -> SizeClass {
    SizeClass::from_code(3).unwrap()
}

/// Gives a block to an owner, with a header, and sets the free bits of some of its objects.
fn give(memory: &TwoNodeFabric, region: u32, block: u32, owner: u32, marked: &[u32]) {
    let (entry, at) = places(region, block);
    memory.put(entry, &owner.to_le_bytes());
    let header = BlockHeader {
        class: class(),
        owner: ClientId(owner),
        first: 0,
        fresh: 0,
        sealed: false,
        base: GenerationBase::default(),
    };
    memory.put(at, &header.encode());
    let shape = BlockShape::new(BLOCK, class()).unwrap();
    let mut bitmap = [0u8; 8];
    for object in marked {
        let unit = shape.offset(*object) / UNIT_BYTES;
        bitmap[unit as usize / 8] |= 1 << (unit % 8);
    }
    memory.put(PoolPlace { offset: at.offset + BLOCK_HEADER_BYTES, ..at }, &bitmap);
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
    let usage = Usage { reserved_bytes: REGION, ..Usage::default() };
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
    let led = survey.nodes.iter().map(|node| (node.blocks, node.free_blocks));
    let led = led.fold((0, 0), |sum, node| (sum.0 + node.0, sum.1 + node.1));
    assert_eq!(led, (survey.blocks, survey.free_blocks));
}

#[test]
fn every_block_is_counted_by_node_by_class_and_by_owner() {
    let memory = TwoNodeFabric::new();
    give(&memory, 0, 0, 7, &[0, 2, 19]);
    give(&memory, 0, 14, 8, &[]);
    give(&memory, 1, 3, 9, &[1]);
    give(&memory, 1, 4, 9, &[]);
    // This block has an owner but was never written, so it has no header yet.
    memory.put(places(1, 5).0, &7u32.to_le_bytes());
    // The entry is in a backup's block table, so it must not be counted.
    memory.put(PoolPlace { node: MnId(1), offset: 4 }, &7u32.to_le_bytes());
    let orphan = |block, owner, first| Orphan {
        block: BlockId { region: 1, block },
        owner: ClientId(owner),
        class: class(),
        first,
        marked: Some(1),
    };
    // By its table entry, the second block belongs to another session than by the master's record.
    let orphans = vec![orphan(3, 9, 11), orphan(4, 6, 0)];
    let owners = BlockOwners { orphans, ..owners(&[7, 50]) };
    let survey = read(&memory, &owners).unwrap();
    expect_sums(&survey);
    let shape = BlockShape::new(BLOCK, class()).unwrap();
    let objects = u64::from(shape.objects);
    let of_class = ClassMemory {
        class: class(),
        object_bytes: 192,
        blocks: 4,
        objects: 4 * objects,
        marked: 4,
        new: objects - 11,
    };
    assert_eq!(survey.classes, [of_class]);
    let owner = |owner, state, blocks, handed_on, marked: u64| OwnerMemory {
        owner: ClientId(owner),
        state,
        blocks,
        handed_on,
        marked_bytes: marked * 192,
    };
    let named = [
        owner(7, OwnerState::Open, 2, 0, 3),
        owner(8, OwnerState::Expired, 1, 0, 0),
        owner(9, OwnerState::Departed, 2, 1, 1),
    ];
    assert_eq!(survey.owners, named);
    assert_eq!((survey.blocks, survey.free_blocks, survey.blank_blocks), (30, 25, 1));
    let [first, second] = &survey.nodes[..] else { panic!("{survey:?}") };
    assert_eq!((first.blocks, first.free_blocks, first.free_bytes()), (15, 13, Some(REGION)));
    assert_eq!((first.regions, first.region_bytes), (2, 2 * REGION));
    assert_eq!((second.blocks, second.free_blocks, second.free_bytes()), (15, 12, None));
}

#[test]
fn what_no_correct_client_writes_is_counted_and_no_more() {
    let memory = TwoNodeFabric::new();
    let (_, at) = places(0, 0);
    give(&memory, 0, 0, 7, &[0]);
    memory.put(PoolPlace { offset: at.offset + 8, ..at }, &[1]);
    // A header with a class whose objects are larger than a block, and a free bit at the place of the header.
    give(&memory, 0, 1, 7, &[]);
    let (_, at) = places(0, 1);
    let header = BlockHeader {
        class: SizeClass::MAX,
        owner: ClientId(7),
        first: 0,
        fresh: 0,
        sealed: true,
        base: GenerationBase::default(),
    };
    memory.put(at, &header.encode());
    give(&memory, 0, 2, 100, &[1]);
    let (_, at) = places(0, 2);
    memory.put(PoolPlace { offset: at.offset + BLOCK_HEADER_BYTES, ..at }, &[1]);
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
    give(&memory, 1, 2, 7, &[5]);
    let (_, at) = places(1, 2);
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
        // Some blocks get a valid header, but their bitmaps stay random.
        for block in 0..3 {
            let (entry, at) = places(0, block);
            memory.put(entry, &(random() % 200).max(1).to_le_bytes());
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
fn groups_cover_every_block_once_whatever_the_regions() {
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
            assert!(group.end > at && group.blocks() <= 1 << 16);
            (at, groups) = (group.end, groups + group.blocks());
        }
        assert_eq!(groups, u64::from(view.geometry.blocks_per_region()) * regions as u64);
        let of_first = u64::from(view.geometry.blocks_per_region()).div_ceil(1 << 16);
        assert_eq!(u64::from(touched), if regions == 0 { 0 } else { of_first });
    }
}
