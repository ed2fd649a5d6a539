//! Tests of the memory node's decisions, one by one, and against a model under random requests.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{MasterReply, MasterReplyId};
use fusee_control::node::{
    AcceptedOrders, BlockId, BlockRequest, Extent, JobRequest, MAX_CLIENTS, MemberBars,
    NodeDescription, NodeRefusal, NodeReply, NodeRequest, OwnedBlock, extent_align_bytes,
};
use fusee_core::data::Redundancy;
use fusee_core::ended_clients::LiveClients;
use fusee_core::layout::{
    BLOCK_HEADER_BYTES, HeaderWord, LOG_AREA_BYTES, MAX_LOG_AREAS, TableEntry, first_extent,
    log_area_offset, log_areas,
};
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_core::view::{Geometry, TABLE_ENTRY_BYTES};
use fusee_memory_node::logic::{HeartbeatReply, NodeDecision, NodeEffect, NodeLogic};
use proptest::prelude::*;

const POOL: u64 = 1 << 20;
const REGION: u64 = 64 << 10;
/// The size of all blocks of most tests.
const BLOCK: u64 = 4096;
/// The number of blocks of a region of 64 KiB: its first page holds the table.
const BLOCKS: u32 = 15;
/// The size of the largest blocks of the test with random requests.
const LARGEST_BLOCK: u64 = 16 << 10;
/// The order of these blocks.
const MAX_ORDER: u8 = 2;
const CLUSTER: ClusterId = ClusterId::from_word(77).unwrap();
const OTHER: ClusterId = ClusterId::from_word(78).unwrap();

/// Makes a node that is formatted for the first attempt to form the cluster.
fn node(pool_bytes: u64) -> NodeLogic {
    let mut node = NodeLogic::new(NodeDescription {
        identity: 5,
        pool_bytes,
        tcp: None,
        shm: None,
        verbs: None,
    });
    let step = node.handle(format(CLUSTER, 1));
    let bound = NodeEffect::WriteHeader { word: HeaderWord::Cluster, value: CLUSTER.word() };
    assert_eq!(step, NodeDecision { effects: vec![bound], reply: NodeReply::Done });
    node
}

fn format(cluster: ClusterId, attempt: u64) -> NodeRequest {
    NodeRequest::Format { cluster, attempt }
}

fn reserve(extent: Extent, bytes: u64, block_bytes: u64) -> NodeRequest {
    NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster: CLUSTER,
        attempt: 1,
        view: 5,
        extent,
        bytes,
        block_bytes,
    }
}

fn region(region: u32, primary: bool) -> NodeRequest {
    reserve(Extent::Region { region, primary }, REGION, BLOCK)
}

/// A block of a region that has only blocks of one size.
fn block(region: u32, number: u32) -> BlockId {
    BlockId { region, frame: number, order: 0 }
}

/// A block that was taken from memory that was never used.
fn owned_block(block: BlockId, owner: ClientId) -> OwnedBlock {
    OwnedBlock { block, owner, base: Some(0) }
}

fn alloc(client: ClientId) -> NodeRequest {
    alloc_of(client, 0, 0, vec![])
}

/// Returns a session's request to change the owner of a block.
fn set_owner(block: BlockId, from: ClientId, to: ClientId) -> BlockRequest {
    let base = Some(0);
    BlockRequest::SetOwner { block, from, to, base, unless_fenced: false, once: false }
}

/// Returns an ALLOC that accepts blocks of the orders `least` to `most`.
fn alloc_of(client: ClientId, least: u8, most: u8, spare_of: Vec<u32>) -> NodeRequest {
    let redundancy = Redundancy::Replicated;
    let orders = AcceptedOrders { least, most, mixed: true };
    NodeRequest::Alloc { redundancy, client, orders, frozen: vec![], spare_of }
}

fn offset_of(step: &NodeDecision) -> u64 {
    match step.reply {
        NodeReply::Reserved { offset } => offset,
        ref other => panic!("unexpected {other:?}"),
    }
}

fn refusal(step: NodeDecision) -> NodeRefusal {
    match step {
        NodeDecision { reply: NodeReply::Refused(refusal), effects } => {
            assert_eq!(effects, [], "a refused request has no effect");
            refusal
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_region_gives_each_of_its_blocks_once_and_then_none() {
    let mut node = node(POOL);
    let start = offset_of(&node.handle(region(3, true)));
    node.handle(region(4, false));
    let mut seen = BTreeSet::new();
    for _ in 0..BLOCKS {
        let step = node.handle(alloc(ClientId(9)));
        let NodeReply::Allocated { block, base } = step.reply else { panic!("{step:?}") };
        assert_eq!((block.region, base), (3, Some(0)), "a backup region allocates nothing");
        let offset = start + 8 * u64::from(block.frame);
        let value = TableEntry { owner: ClientId(9), order: 0, base }.encode();
        assert_eq!(step.effects, [NodeEffect::WriteTable { offset, value }]);
        assert!(seen.insert(block));
    }
    let full = node.handle(alloc(ClientId(9)));
    assert_eq!(refusal(full), NodeRefusal::NoFreeBlock);
    let freed = block(3, 7);
    let (from, to) = (ClientId(9), ClientId::NOBODY);
    let base = Some(5);
    let set =
        NodeRequest::SetOwner { block: freed, from, to, base, unless_fenced: false, once: false };
    // The header is zeroed before the table shows that the block is free.
    let header = start + 4096 + 7 * BLOCK;
    let value = TableEntry { owner: to, order: 0, base }.encode();
    let effects = vec![
        NodeEffect::ZeroPool { offset: header, bytes: 64 },
        NodeEffect::WriteTable { offset: start + 8 * 7, value },
    ];
    assert_eq!(node.handle(set), NodeDecision { effects, reply: NodeReply::Done });
    let again = node.handle(alloc(ClientId(8)));
    assert_eq!(again.reply, NodeReply::Allocated { block: freed, base });
}

/// A master that goes on from a store older than the first view begins another attempt to form the cluster. The
/// node refuses, because its part of the index is in use, whether any block is or not.
#[test]
fn a_node_that_stands_at_a_view_is_not_formatted_again() {
    for stands in [false, true] {
        let mut node = node(POOL);
        node.handle(reserve(Extent::Subtable { subtable: 0 }, REGION, 0));
        if stands {
            node.handle(NodeRequest::StandAt { cluster: CLUSTER, view: 1 });
            let what = "the node stands at a view of its cluster".into();
            assert_eq!(refusal(node.handle(format(CLUSTER, 2))), NodeRefusal::BadRequest { what });
        } else {
            let step = node.handle(format(CLUSTER, 2));
            assert_eq!((step.reply, step.effects.len()), (NodeReply::Done, 1));
        }
        // A late repetition of the last `Format` that the node carried out changes nothing.
        let attempt = if stands { 1 } else { 2 };
        assert_eq!(node.handle(format(CLUSTER, attempt)).effects, []);
    }
}

#[test]
fn named_regions_give_what_they_have_to_spare() {
    let mut node = node(POOL);
    node.handle(region(3, true));
    node.handle(region(4, true));
    let mut alloc = |spare_of: &[u32]| {
        let step = node.handle(alloc_of(ClientId(9), 0, 0, spare_of.to_vec()));
        match step.reply {
            NodeReply::Allocated { block, .. } => Some(block.region),
            NodeReply::Refused(NodeRefusal::NoFreeBlock) => None,
            other => panic!("{other:?}"),
        }
    };
    let given = std::iter::from_fn(|| alloc(&[4])).inspect(|region| assert_eq!(*region, 4));
    assert_eq!(given.count() as u32, BLOCKS - BLOCKS / 4);
    assert_eq!(alloc(&[5]), None, "it has none of that region");
    assert_eq!(alloc(&[4, 3]), Some(3));
    let rest = std::iter::from_fn(|| alloc(&[])).filter(|region| *region == 4).count() as u32;
    assert_eq!(rest, BLOCKS / 4, "whoever names none gets the rest");
}

#[test]
fn allocation_takes_turns_among_primary_regions() {
    let mut node = node(POOL);
    for number in 0..3 {
        node.handle(region(number, true));
    }
    let mut turn = || match node.handle(alloc(ClientId(1))).reply {
        NodeReply::Allocated { block, .. } => block.region,
        other => panic!("unexpected {other:?}"),
    };
    assert_eq!([turn(), turn(), turn(), turn()], [0, 1, 2, 0]);
}

#[test]
fn large_extents_are_aligned_to_huge_pages() {
    let mut node = node(16 << 20);
    let small = node.handle(reserve(Extent::Subtable { subtable: 0 }, 100, 0));
    let large = node.handle(reserve(Extent::Region { region: 0, primary: true }, 4 << 20, 1 << 20));
    let next = node.handle(reserve(Extent::Subtable { subtable: 1 }, 5000, 0));
    // Regions are placed from the low end, subtables from the high end.
    let first = 2 << 20;
    let end = 18 << 20;
    assert_eq!([&small, &large, &next].map(offset_of), [end - 4096, first, end - 3 * 4096]);
}

fn release(extent: Extent, view: u64) -> NodeRequest {
    of_job(JobRequest::Release { extent, view })
}

fn of_job(request: JobRequest) -> NodeRequest {
    NodeRequest::OfJob { repairer: ClientId(1000), job: 1, request }
}

// Promise MEM-15: Released extents are zeroed; late orders change nothing.
#[test]
fn what_is_released_is_zeroed_and_fits_the_next_one() {
    let mut node = node(8 * REGION);
    let offsets: Vec<u64> =
        (0..7).map(|number| offset_of(&node.handle(region(number, number == 2)))).collect();
    let subtable = |subtable| reserve(Extent::Subtable { subtable }, 4096, 0);
    let above: Vec<u64> = (0..3).map(|n| offset_of(&node.handle(subtable(n)))).collect();
    node.handle(alloc(ClientId(1)));
    for number in [2, 4, 3] {
        let extent = Extent::Region { region: number, primary: false };
        let step = node.handle(release(extent, 6));
        let zeroed = NodeEffect::ZeroPool { offset: offsets[number as usize], bytes: REGION };
        assert_eq!((step.effects, step.reply), (vec![zeroed], NodeReply::Done));
        assert_eq!(
            node.handle(release(extent, 6)),
            NodeDecision { effects: vec![], reply: NodeReply::Done }
        );
    }
    let none = refusal(node.handle(alloc(ClientId(1))));
    assert_eq!(none, NodeRefusal::NoFreeBlock, "it leads nothing any more");
    node.handle(release(Extent::Subtable { subtable: 1 }, 6));
    assert_eq!(offset_of(&node.handle(subtable(7))), above[1], "the room of one that left");
    // Three free parts of the pool that touch become one part.
    let three = reserve(Extent::Subtable { subtable: 8 }, 3 * REGION, 0);
    assert_eq!(offset_of(&node.handle(three)), offsets[2]);
    let NodeReply::Usage(usage) = node.handle(NodeRequest::Usage).reply else { panic!() };
    assert_eq!(usage.reserved_bytes, 7 * REGION + 3 * 4096);
}

// Promise MEM-15
#[test]
fn late_orders_about_an_extent_that_came_back_change_nothing() {
    let mut node = node(POOL);
    let extent = Extent::Region { region: 3, primary: false };
    let since = |view| NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster: CLUSTER,
        attempt: 1,
        view,
        extent,
        bytes: REGION,
        block_bytes: BLOCK,
    };
    let lead = |view| of_job(JobRequest::Lead { regions: vec![3], view });
    let leads = |node: &mut NodeLogic| match node.handle(NodeRequest::Usage).reply {
        NodeReply::Usage(usage) => usage.led_bytes > 0,
        other => panic!("unexpected {other:?}"),
    };
    node.handle(since(5));
    node.handle(lead(7));
    assert!(leads(&mut node));
    assert_eq!(node.handle(release(extent, 8)).reply, NodeReply::Done);
    node.handle(since(10));
    for late in [release(extent, 8), release(extent, 10), lead(7)] {
        assert_eq!(node.handle(late).effects, []);
        assert_eq!(node.handle(NodeRequest::OwnersOf { region: 3 }).effects, []);
        assert!(!leads(&mut node));
    }
    // An extent that is reserved again before it is used survives late requests about the earlier reservation.
    node.handle(since(12));
    assert_eq!(node.handle(release(extent, 11)).effects, []);
    node.handle(lead(13));
    assert!(leads(&mut node));
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let mut node = node(POOL);
    let region = Extent::Region { region: 0, primary: true };
    let subtable = Extent::Subtable { subtable: 0 };
    let bad = [
        reserve(region, 0, BLOCK),
        reserve(region, REGION, 0),
        reserve(region, REGION, 4095),
        reserve(region, REGION, 5000),
        reserve(region, BLOCK, BLOCK),
        reserve(region, REGION + 1, BLOCK),
        reserve(region, u64::MAX, 1 << 63),
        reserve(subtable, 0, 0),
        alloc(ClientId::NOBODY),
        alloc_of(ClientId(1), 1, 0, vec![]),
        NodeRequest::SetOwner {
            block: block(0, 0),
            from: ClientId::NOBODY,
            to: ClientId(1),
            // Generations have 9 bits.
            base: Some(512),
            unless_fenced: false,
            once: false,
        },
        NodeRequest::Fence { clients: vec![ClientId::NOBODY] },
        NodeRequest::Fence { clients: vec![ClientId(1); MAX_CLIENTS + 1] },
        NodeRequest::BlocksOf { clients: vec![ClientId::NOBODY] },
        NodeRequest::BlocksOf { clients: vec![ClientId(1); MAX_CLIENTS + 1] },
    ];
    for request in bad {
        let refusal = refusal(node.handle(request.clone()));
        assert!(matches!(refusal, NodeRefusal::BadRequest { .. }), "{request:?}: {refusal:?}");
    }
    let huge = refusal(node.handle(reserve(subtable, u64::MAX, 0)));
    assert_eq!(huge, NodeRefusal::PoolFull { bytes: u64::MAX, free_bytes: POOL });
    let much = refusal(node.handle(reserve(subtable, POOL + 1, 0)));
    assert_eq!(much, NodeRefusal::PoolFull { bytes: POOL + 1, free_bytes: POOL });
    let whole = offset_of(&node.handle(reserve(subtable, POOL, 0)));
    assert_eq!(whole, first_extent(POOL), "all of it, behind the log areas");
}

/// A client with an id below the bound that is not named as living gets no blocks, and the node need not remember
/// it.
#[test]
fn who_does_not_live_among_the_first_clients_gets_nothing() {
    let mut node = node(POOL);
    node.handle(region(0, true));
    node.handle(NodeRequest::Fence { clients: vec![ClientId(3)] });
    let living = LiveClients::of([ClientId(1), ClientId(3)], ClientId(5));
    let step = node.handle(NodeRequest::Living { living: living.clone() });
    assert_eq!((step.effects, step.reply), (vec![NodeEffect::Living { living }], NodeReply::Done));
    for client in 2..5 {
        let client = ClientId(client);
        assert_eq!(refusal(node.handle(alloc(client))), NodeRefusal::Fenced { client });
    }
    for client in [1, 5] {
        let reply = node.handle(alloc(ClientId(client))).reply;
        assert!(matches!(reply, NodeReply::Allocated { .. }), "{reply:?}");
    }
    // A session that said goodbye has already handed on its blocks, so a session that takes one need not wait for a
    // recovery.
    let block = block(0, 3);
    node.handle(NodeRequest::SetOwner {
        block,
        from: ClientId::NOBODY,
        to: ClientId(5),
        base: Some(0),
        unless_fenced: false,
        once: false,
    });
    node.handle(NodeRequest::Living { living: LiveClients::of([ClientId(1)], ClientId(6)) });
    let take = |from| NodeRequest::SetOwner {
        block,
        from: ClientId(from),
        to: ClientId(1),
        base: Some(0),
        unless_fenced: true,
        once: false,
    };
    assert_eq!(node.handle(take(5)).reply, NodeReply::Done);
    let bad = LiveClients { below: ClientId(5), clients: vec![ClientId(5)] };
    let refused = refusal(node.handle(NodeRequest::Living { living: bad }));
    assert!(matches!(refused, NodeRefusal::BadRequest { .. }), "{refused:?}");
}

#[test]
fn a_fenced_client_gets_nothing_but_what_it_had_can_be_handed_on() {
    let mut node = node(POOL);
    node.handle(region(0, true));
    let dead = ClientId(1);
    let heir = ClientId(2);
    let NodeReply::Allocated { block, .. } = node.handle(alloc(dead)).reply else {
        panic!("a fresh region has free blocks");
    };
    for _ in 0..2 {
        let step = node.handle(NodeRequest::Fence { clients: vec![dead] });
        assert_eq!(step.effects, [NodeEffect::Fence { client: dead }]);
        assert_eq!(step.reply, NodeReply::Done);
    }
    let fenced = NodeRefusal::Fenced { client: dead };
    assert_eq!(refusal(node.handle(alloc(dead))), fenced);
    let free = BlockId { region: 0, frame: 14, order: 0 };
    let take = NodeRequest::SetOwner {
        block: free,
        from: ClientId::NOBODY,
        to: dead,
        base: Some(0),
        unless_fenced: false,
        once: false,
    };
    assert_eq!(refusal(node.handle(take)), fenced);
    let hand_on = |unless_fenced| NodeRequest::SetOwner {
        block,
        from: dead,
        to: heir,
        base: Some(0),
        unless_fenced,
        once: false,
    };
    assert_eq!(refusal(node.handle(hand_on(true))), fenced, "who recovers it counts on it");
    assert_eq!(node.handle(hand_on(false)).reply, NodeReply::Done);
}

// Promise MST-4: Memory nodes obey their own cluster's master only.
#[test]
fn a_node_serves_one_cluster_and_one_attempt_and_only_an_unused_one_is_emptied() {
    let mut node = node(POOL);
    let taken = NodeRefusal::OtherCluster { cluster: CLUSTER };
    let is_bad = |refusal| matches!(refusal, NodeRefusal::BadRequest { .. });
    let reserve = |cluster, attempt, primary| NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster,
        attempt,
        view: 0,
        extent: Extent::Region { region: 0, primary },
        bytes: REGION,
        block_bytes: BLOCK,
    };
    let first = offset_of(&node.handle(reserve(CLUSTER, 1, true)));
    assert_eq!(refusal(node.handle(reserve(OTHER, 1, true))), taken);
    assert_eq!(refusal(node.handle(format(OTHER, 9))), taken);

    // A repeated attempt keeps its extents; a later attempt starts with zeroed memory.
    let again = node.handle(format(CLUSTER, 1));
    assert_eq!(again, NodeDecision { effects: vec![], reply: NodeReply::Done });
    let later = node.handle(format(CLUSTER, 2));
    assert_eq!(later.effects, [NodeEffect::ZeroPool { offset: first, bytes: REGION }]);
    assert!(is_bad(refusal(node.handle(format(CLUSTER, 1)))));
    assert!(is_bad(refusal(node.handle(reserve(CLUSTER, 1, true)))), "a late request");
    assert!(is_bad(refusal(node.handle(NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster: CLUSTER,
        attempt: 3,
        view: 0,
        extent: Extent::Subtable { subtable: 0 },
        bytes: 64,
        block_bytes: 0,
    }))));
    let full = refusal(node.handle(alloc(ClientId(1))));
    assert_eq!(full, NodeRefusal::NoFreeBlock);

    node.handle(reserve(CLUSTER, 2, true));
    node.handle(alloc(ClientId(1)));
    assert!(is_bad(refusal(node.handle(format(CLUSTER, 3)))), "a client owns a block");
}

#[test]
fn the_view_that_a_node_stands_at_grows_and_outlives_everything() {
    let description =
        NodeDescription { identity: 5, pool_bytes: POOL, tcp: None, shm: None, verbs: None };
    let stand_at = |view| NodeRequest::StandAt { cluster: CLUSTER, view };
    let early = refusal(NodeLogic::new(description).handle(stand_at(3)));
    assert!(matches!(early, NodeRefusal::BadRequest { .. }), "it serves nobody: {early:?}");
    let mut node = node(POOL);
    let shows = |view| vec![NodeEffect::WriteHeader { word: HeaderWord::View, value: view }];
    let done = |effects| NodeDecision { effects, reply: NodeReply::Bars(MemberBars::default()) };
    assert_eq!(node.handle(stand_at(0)), done(vec![]), "0 stands for none");
    assert_eq!(node.handle(stand_at(3)), done(shows(3)));
    assert_eq!(node.handle(stand_at(3)), done(vec![]));
    assert_eq!(node.handle(stand_at(2)), done(vec![]), "a late one");
    let again = node.handle(format(CLUSTER, 2));
    assert_eq!(again.effects, [], "neither cluster nor view of a bound node changes");
    let foreign = NodeRequest::StandAt { cluster: OTHER, view: 9 };
    assert_eq!(
        refusal(node.handle(foreign)),
        NodeRefusal::OtherCluster { cluster: CLUSTER },
        "another cluster's views are counted from 1 as well"
    );
    assert_eq!(node.handle(stand_at(4)), done(shows(4)));
}

/// A simpler model of a node, which keeps the same invariants. It knows the owner and the base of each frame, and not
/// how free frames are divided into blocks.
#[derive(Default)]
struct Model {
    extents: BTreeMap<Place, (u64, u64)>,
    primary: BTreeMap<u32, bool>,
    owners: BTreeMap<BlockId, ClientId>,
    /// The owner and the base of each frame, by the numbers of its region and of the frame.
    frames: BTreeMap<(u32, u32), (ClientId, Option<u16>)>,
    fenced: BTreeSet<ClientId>,
    /// The pool's copies of the block tables.
    table: BTreeMap<u64, u64>,
    /// The extent that the current request releases, if the node has such an extent.
    released: Option<Place>,
    /// The parts of blocks that the current request fills with zeros.
    zeroed: Vec<(u64, u64)>,
    /// The offsets of the log areas that are lent.
    lent: BTreeSet<u64>,
}

/// The ways in which an ALLOC gets a block of a region, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Choice {
    /// A block of the largest accepted order with a base.
    Largest,
    /// The region's largest block with a base.
    Smaller { order: u8 },
    /// The region's largest mixed block, or a part of it.
    Mixed { order: u8 },
    /// A block of the smallest accepted order that is merged from blocks with different bases.
    Merged,
}

impl Choice {
    fn order_and_has_base(self, orders: AcceptedOrders) -> (u8, bool) {
        match self {
            Choice::Largest => (orders.most.min(MAX_ORDER), true),
            Choice::Smaller { order } => (order, true),
            Choice::Mixed { order } => (order, false),
            Choice::Merged => (orders.least, false),
        }
    }
}

/// The name of an extent. It does not say whether a region's place is the primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Region(u32),
    Subtable(u32),
}

impl Model {
    fn apply(&mut self, effects: &[NodeEffect]) {
        for effect in effects {
            match *effect {
                NodeEffect::WriteTable { offset, value } => {
                    self.table.insert(offset, value);
                }
                NodeEffect::Living { .. } => {}
                NodeEffect::PopulatePool { offset, bytes } => {
                    let is_free =
                        |(at, len): &(u64, u64)| offset + bytes <= *at || at + len <= offset;
                    assert!(self.extents.values().all(is_free), "only new extents are populated");
                }
                NodeEffect::Fence { client } => {
                    self.fenced.insert(client);
                }
                NodeEffect::WriteHeader { .. } => {
                    panic!("the header changes with cluster and view")
                }
                NodeEffect::ZeroPool { offset, bytes } if offset < first_extent(POOL) => {
                    assert_eq!(bytes, LOG_AREA_BYTES);
                    assert!(self.lent.insert(offset), "a log area has one session");
                }
                NodeEffect::ZeroPool { offset, bytes } => {
                    let Some(gone) = self.released.take() else {
                        self.zeroed.push((offset, bytes));
                        continue;
                    };
                    assert_eq!(self.extents.remove(&gone), Some((offset, bytes)));
                    self.table.retain(|at, _| !(offset..offset + bytes).contains(at));
                    if let Place::Region(region) = gone {
                        self.owners.retain(|block, _| block.region != region);
                        self.frames.retain(|(of, _), _| *of != region);
                        self.primary.remove(&region);
                    }
                }
            }
        }
    }

    /// Returns the owners and bases of a block's frames.
    fn frames_of(&self, block: BlockId) -> impl Iterator<Item = (ClientId, Option<u16>)> {
        let BlockId { region, frame, order } = block;
        (frame..frame + (1 << order)).map(move |frame| self.frames[&(region, frame)])
    }

    /// Returns the owner of a block; `Err` if some of its frames belong to another block with an owner.
    fn owner(&self, block: BlockId) -> Result<ClientId, BTreeSet<ClientId>> {
        if let Some(owner) = self.owners.get(&block) {
            return Ok(*owner);
        }
        let owners = self.frames_of(block).map(|(owner, _)| owner);
        let owners: BTreeSet<_> = owners.filter(|owner| *owner != ClientId::NOBODY).collect();
        if owners.is_empty() { Ok(ClientId::NOBODY) } else { Err(owners) }
    }

    /// Returns the base that all frames of a block have; `None` if they have none, or different ones.
    fn base(&self, block: BlockId) -> Option<u16> {
        let mut bases = self.frames_of(block).map(|(_, base)| base);
        let first = bases.next()?;
        first.filter(|_| bases.all(|base| base == first))
    }

    /// Returns a request that frees one of the blocks that have an owner.
    fn freeing(&self, (which, base): (prop::sample::Index, Option<u16>)) -> Option<NodeRequest> {
        let owners: Vec<_> = self.owners.iter().collect();
        let (block, owner) = (!owners.is_empty()).then(|| *which.get(&owners))?;
        Some(NodeRequest::SetOwner {
            block: *block,
            from: *owner,
            to: ClientId::NOBODY,
            base,
            unless_fenced: false,
            once: false,
        })
    }

    fn set(&mut self, block: BlockId, owner: ClientId, base: Option<u16>) {
        let BlockId { region, frame, order } = block;
        let frames = frame..frame + (1 << order);
        self.frames.extend(frames.map(|frame| ((region, frame), (owner, base))));
        if owner == ClientId::NOBODY {
            self.owners.remove(&block);
        } else {
            self.owners.insert(block, owner);
        }
    }

    /// Whether the region exists, and a block can be there.
    fn is_block(&self, block: BlockId) -> bool {
        self.primary.contains_key(&block.region) && geometry().is_block(block.frame, block.order)
    }

    /// Returns the blocks of a region that the pool's copy of its table shows.
    fn table_of(&self, region: u32) -> Vec<(u32, TableEntry)> {
        let (start, _) = self.extents[&Place::Region(region)];
        let frames = 0..geometry().frames_per_region();
        let entry = |frame| {
            let word = self.table[&(start + u64::from(frame) * TABLE_ENTRY_BYTES)];
            let entry = TableEntry::decode(word);
            assert!(entry.is_some() || word == 0, "{word:#x} is no entry");
            Some((frame, entry?))
        };
        frames.filter_map(entry).collect()
    }

    /// Returns how an ALLOC gets a block of a region now; `None` if it gets none.
    fn choice(&self, region: u32, orders: AcceptedOrders) -> Option<Choice> {
        let AcceptedOrders { least, most, .. } = orders;
        let most = most.min(MAX_ORDER);
        let free = |order| {
            let blocks = (0..BLOCKS).map(move |frame| BlockId { region, frame, order });
            let blocks = blocks.filter(|block| self.is_block(*block));
            blocks.filter(|block| self.owner(*block) == Ok(ClientId::NOBODY))
        };
        let has_based = |order: &u8| free(*order).any(|block| self.base(block).is_some());
        if let Some(order) = (least..=most).rev().find(has_based) {
            return Some(if order == most { Choice::Largest } else { Choice::Smaller { order } });
        }
        let blocks = self.table_of(region).into_iter().map(|(_, entry)| entry);
        let mixed = blocks.filter(|entry| entry.owner == ClientId::NOBODY && entry.base.is_none());
        if let Some(order) = mixed.map(|entry| entry.order).filter(|order| *order >= least).max() {
            return Some(Choice::Mixed { order: order.min(most) });
        }
        (least <= most && free(least).next().is_some()).then_some(Choice::Merged)
    }

    /// Returns how an ALLOC gets a block of each region now; the regions from which it gets none are left out.
    fn choices(&self, orders: AcceptedOrders) -> BTreeMap<u32, Choice> {
        let regions = self.primary.iter().filter(|(_, primary)| **primary);
        regions.filter_map(|(region, _)| Some((*region, self.choice(*region, orders)?))).collect()
    }

    fn check(&mut self, request: &NodeRequest, step: &NodeDecision) {
        let choices = match request {
            NodeRequest::Alloc { orders, .. } => self.choices(*orders),
            _ => BTreeMap::new(),
        };
        if let NodeRequest::OfJob { request: JobRequest::Release { extent, .. }, .. } = request {
            let place = match extent {
                Extent::Region { region, .. } => Place::Region(*region),
                Extent::Subtable { subtable } => Place::Subtable(*subtable),
            };
            let there = self.extents.contains_key(&place);
            assert_eq!(step.effects.len(), usize::from(there));
            self.released = there.then_some(place);
        }
        self.apply(&step.effects);
        let mut zeroes = vec![];
        match (request, &step.reply) {
            (NodeRequest::Reserve { extent, bytes, .. }, NodeReply::Reserved { offset }) => {
                self.reserved(*extent, *bytes, *offset);
            }
            (NodeRequest::Alloc { client, orders, .. }, NodeReply::Allocated { block, base }) => {
                assert!(!self.fenced.contains(client));
                assert!(self.primary[&block.region] && self.is_block(*block));
                assert_eq!(self.owner(*block), Ok(ClientId::NOBODY), "two owners of {block:?}");
                let choice = choices[&block.region];
                assert_eq!((block.order, base.is_some()), choice.order_and_has_base(*orders));
                let rank = std::mem::discriminant(&choice);
                let best = choices.values().min().map(std::mem::discriminant);
                assert_eq!(Some(rank), best, "{choices:?}");
                assert_eq!(*base, self.base(*block));
                self.set(*block, *client, *base);
            }
            (NodeRequest::Alloc { client, .. }, NodeReply::Refused(NodeRefusal::NoFreeBlock)) => {
                assert!(*client != ClientId::NOBODY);
                assert_eq!(choices, BTreeMap::new());
            }
            (
                NodeRequest::SetOwner { block, from, to, base, unless_fenced, once },
                NodeReply::Done,
            ) => {
                assert!(self.is_block(*block));
                let owner = self.owner(*block).expect("no other block has one of the frames");
                assert!(!*once || owner != *to);
                assert!([*from, *to].contains(&owner));
                assert!(!self.fenced.contains(to));
                assert!(!*unless_fenced || !self.fenced.contains(from));
                if *to != ClientId::NOBODY {
                    let is_noted = *from == ClientId::NOBODY;
                    let base = if is_noted { *base } else { self.base(*block) };
                    self.set(*block, *to, base);
                } else if owner != ClientId::NOBODY {
                    let (start, _) = self.extents[&Place::Region(block.region)];
                    let offset = start + geometry().frame_offset(block.frame);
                    zeroes = vec![(offset, BLOCK_HEADER_BYTES)];
                    let is_zero = matches!(step.effects[0], NodeEffect::ZeroPool { .. });
                    assert!(is_zero, "the header is zeroed before the block is free");
                    self.set(*block, *to, *base);
                } else {
                    assert_eq!(step.effects, [], "the block was free before");
                }
            }
            (
                NodeRequest::SetOwner { block, from, to, once, .. },
                NodeReply::Refused(NodeRefusal::NotOwner { owner }),
            ) => match self.owner(*block) {
                Ok(known) => {
                    assert_eq!(known, *owner);
                    assert!(owner != from && owner != to || *once && owner == to);
                }
                Err(owners) => assert!(owners.contains(owner)),
            },
            (NodeRequest::SetOwner { block, .. }, NodeReply::Refused(refusal)) => {
                let is_unknown = matches!(refusal, NodeRefusal::UnknownBlock { .. });
                let is_fenced = matches!(refusal, NodeRefusal::Fenced { .. });
                assert!(if self.is_block(*block) { is_fenced } else { is_unknown || is_fenced });
            }
            (NodeRequest::BlocksOf { clients }, NodeReply::Blocks(blocks)) => {
                let theirs = self.owners.iter().filter(|(_, owner)| clients.contains(owner));
                let theirs = theirs.map(|(block, owner)| {
                    let (block, owner) = (*block, *owner);
                    OwnedBlock { block, owner, base: self.base(block) }
                });
                assert_eq!(blocks, &Vec::from_iter(theirs));
            }
            (NodeRequest::OfJob { .. }, NodeReply::Done) => {}
            (NodeRequest::LogArea { client, .. }, NodeReply::LogArea { area }) => {
                assert!(
                    !self.fenced.contains(client) && self.lent.contains(&log_area_offset(*area))
                );
            }
            (NodeRequest::LogAreasOf { clients }, NodeReply::LogAreas(areas)) => {
                assert!(areas.iter().all(|(client, _)| clients.contains(client)));
            }
            (NodeRequest::Fence { clients }, NodeReply::Done) => {
                assert!(clients.iter().all(|client| self.fenced.contains(client)));
            }
            (_, NodeReply::Refused(_)) => {}
            other => panic!("unexpected {other:?}"),
        }
        assert_eq!(std::mem::take(&mut self.zeroed), zeroes);
        self.primary.keys().for_each(|region| self.check_table(*region));
    }

    fn reserved(&mut self, extent: Extent, bytes: u64, offset: u64) {
        let key = match extent {
            Extent::Region { region, primary } => {
                assert_eq!(*self.primary.entry(region).or_insert(primary), primary);
                Place::Region(region)
            }
            Extent::Subtable { subtable } => Place::Subtable(subtable),
        };
        assert!(offset.is_multiple_of(extent_align_bytes(bytes)));
        let lent = first_extent(POOL)..=first_extent(POOL) + POOL;
        assert!(lent.contains(&offset) && lent.contains(&(offset + bytes)), "outside of the pool");
        for (other, (start, length)) in &self.extents {
            let apart = offset + bytes <= *start || start + length <= offset;
            assert!(*other == key || apart, "{other:?} and {key:?} overlap");
        }
        let before = self.extents.insert(key, (offset, bytes));
        assert!(before.is_none_or(|before| before == (offset, bytes)), "moved");
        if let (Place::Region(region), None) = (key, before) {
            let frames = (0..geometry().frames_per_region()).map(|frame| (region, frame));
            self.frames.extend(frames.map(|frame| (frame, (ClientId::NOBODY, Some(0)))));
        }
    }

    /// Checks that the blocks in the pool's copy of a table cover the region once, with the owners and bases of the
    /// model, and that free buddies with one base are merged.
    fn check_table(&self, region: u32) {
        let table = self.table_of(region);
        let mut end = 0;
        for (frame, TableEntry { owner, order, base }) in &table {
            let block = BlockId { region, frame: *frame, order: *order };
            assert!(*frame == end && geometry().is_block(*frame, *order), "{table:?}");
            end += 1 << order;
            assert!(self.frames_of(block).all(|frame| frame == (*owner, *base)), "{block:?}");
            assert_eq!(self.owner(block), Ok(*owner));
        }
        assert_eq!(end, geometry().frames_per_region());
        let owned = table.iter().filter(|(_, entry)| entry.owner != ClientId::NOBODY).count();
        assert_eq!(owned, self.owners.keys().filter(|block| block.region == region).count());
        for pair in table.windows(2) {
            let [(frame, entry), (_, next)] = pair else { unreachable!() };
            let is_free = entry.owner == ClientId::NOBODY && entry.base.is_some();
            let is_whole = geometry().is_block(*frame, entry.order + 1);
            assert!(!(is_free && is_whole && entry == next), "{frame} of {table:?} is not merged");
        }
    }

    /// Checks that the node's own tables and sums agree with the model.
    fn check_node(&self, node: &mut NodeLogic) {
        for region in self.primary.keys() {
            let owners = node.handle(NodeRequest::OwnersOf { region: *region }).reply;
            assert_eq!(owners, NodeReply::Owners(self.table_of(*region)));
        }
        let NodeReply::Usage(usage) = node.handle(NodeRequest::Usage).reply else { panic!() };
        let bytes = |is_counted: &dyn Fn(bool, bool) -> bool| {
            let frames = self.frames.iter().filter(|((region, _), (owner, _))| {
                is_counted(self.primary[region], *owner != ClientId::NOBODY)
            });
            frames.count() as u64 * geometry().frame_bytes()
        };
        assert_eq!(usage.led_bytes, bytes(&|primary, _| primary));
        assert_eq!(usage.led_bytes_owned, bytes(&|primary, owned| primary && owned));
        assert_eq!(usage.free_block_bytes, bytes(&|primary, owned| primary && !owned));
        let subtables = self.extents.iter().filter(|(at, _)| matches!(at, Place::Subtable(_)));
        let subtables: u64 = subtables.map(|(_, (_, bytes))| bytes).sum();
        assert_eq!(usage.used_bytes, subtables + bytes(&|_, owned| owned));
    }
}

/// The sizes of the regions and blocks of the test with random requests.
fn geometry() -> Geometry {
    let geometry = Geometry::with_blocks(REGION, LARGEST_BLOCK);
    assert_eq!((geometry.max_order(), geometry.frames_per_region()), (MAX_ORDER, BLOCKS));
    geometry
}

fn client() -> impl Strategy<Value = ClientId> {
    (0u32..5).prop_map(ClientId)
}

fn base() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![1 => Just(None), 4 => (0u16..2).prop_map(Some)]
}

/// A FREE of one of the blocks that have an owner, with a base; or another request.
fn free() -> impl Strategy<Value = Option<(prop::sample::Index, Option<u16>)>> {
    prop::option::weighted(0.3, (any::<prop::sample::Index>(), base()))
}

fn request() -> impl Strategy<Value = NodeRequest> {
    // Most of these blocks are possible ones.
    let block = (0u32..4, 0u32..BLOCKS + 1, 0u8..MAX_ORDER + 2, 0u8..8);
    let block = block.prop_map(|(region, frame, order, any)| {
        let frame = if any == 0 { frame } else { frame >> order << order };
        BlockId { region, frame, order }
    });
    prop_oneof![
        2 => (0u32..4, any::<bool>()).prop_map(|(number, primary)| {
            reserve(Extent::Region { region: number, primary }, REGION, LARGEST_BLOCK)
        }),
        2 => (0u32..3, 1u64..9000).prop_map(|(subtable, bytes)| {
            reserve(Extent::Subtable { subtable }, bytes, 0)
        }),
        1 => (0u32..3, any::<u64>(), any::<u64>()).prop_map(|(subtable, bytes, block_bytes)| {
            reserve(Extent::Subtable { subtable }, bytes, block_bytes)
        }),
        1 => (0u32..4).prop_map(|region| release(Extent::Region { region, primary: true }, 6)),
        1 => (0u32..3).prop_map(|subtable| release(Extent::Subtable { subtable }, 6)),
        12 => (client(), 0..MAX_ORDER + 2, 0..MAX_ORDER + 2)
            .prop_map(|(client, least, most)| alloc_of(client, least, most, vec![])),
        12 => (block, client(), client(), base(), any::<bool>(), any::<bool>())
            .prop_map(|(block, from, to, base, unless_fenced, once)| {
                NodeRequest::SetOwner { block, from, to, base, unless_fenced, once }
            }),
        3 => prop::collection::vec(client(), 1..3)
            .prop_map(|clients| NodeRequest::BlocksOf { clients }),
        1 => (3u32..5).prop_map(|client| NodeRequest::Fence { clients: vec![ClientId(client)] }),
        3 => (client(), 0u8..6).prop_map(|(client, number)| NodeRequest::LogArea { client, number }),
        1 => prop::collection::vec(client(), 1..3)
            .prop_map(|clients| NodeRequest::LogAreasOf { clients }),
    ]
}

proptest! {
    // Promise MEM-8: Blocks have one owner; extents never overlap; requests may be repeated.
    #[test]
    fn random_requests_keep_the_invariants_and_repeats_change_nothing(
        requests in prop::collection::vec((request(), any::<bool>(), free()), 1..200),
    ) {
        let mut node = node(POOL);
        let mut model = Model::default();
        for (request, repeat, free) in requests {
            let request = free.and_then(|free| model.freeing(free)).unwrap_or(request);
            let step = node.handle(request.clone());
            model.check(&request, &step);
            model.check_node(&mut node);
            if repeat && !matches!(request, NodeRequest::Alloc { .. }) {
                let frames = model.frames.clone();
                let again = node.handle(request.clone());
                // A request marked `once` is refused the second time.
                let once = matches!(request, NodeRequest::SetOwner { once: true, .. });
                if !once || step.reply != NodeReply::Done {
                    prop_assert_eq!(&again.reply, &step.reply);
                }
                model.check(&request, &again);
                model.check_node(&mut node);
                prop_assert_eq!(&frames, &model.frames, "a repeated request changes nothing");
            }
        }
    }
}

/// The session's first request takes a block over, but its connection stalls. Meanwhile a repetition takes the
/// block over, the session gives the block back, and the earlier owner gets it again. Then the first request
/// arrives and is refused.
// Promise MEM-11: A session's abandoned request has no late effect.
#[test]
fn what_a_session_has_given_up_does_not_take_effect_behind_an_answer() {
    let mut node = node(POOL);
    node.handle(region(3, false));
    let earlier = ClientId(1);
    let client = ClientId(2);
    let block = block(3, 4);
    let set = |from, to| set_owner(block, from, to);
    let ask = |turn, ended, request| NodeRequest::InTurn { client, turn, ended, request };
    let late = ask(1, 1, set(earlier, client));
    node.handle(set(ClientId::NOBODY, earlier).of(earlier));
    assert_eq!(node.handle(ask(2, 2, set(earlier, client))).reply, NodeReply::Done);
    assert_eq!(node.handle(ask(3, 3, set(client, ClientId::NOBODY))).reply, NodeReply::Done);
    node.handle(set(ClientId::NOBODY, earlier).of(earlier));
    assert_eq!(refusal(node.handle(late)), NodeRefusal::Late);
    let owned = node.handle(NodeRequest::BlocksOf { clients: vec![earlier] }).reply;
    assert_eq!(owned, NodeReply::Blocks(vec![owned_block(block, earlier)]));
    // Concurrent requests are accepted in any order, and sessions do not affect each other.
    assert_eq!(node.handle(ask(5, 4, BlockRequest::Blocks)).reply, NodeReply::Blocks(vec![]));
    assert_eq!(node.handle(ask(4, 4, set(earlier, client))).reply, NodeReply::Done);
    let other = ClientId(7);
    let first =
        NodeRequest::InTurn { client: other, turn: 1, ended: 1, request: BlockRequest::Blocks };
    assert_eq!(node.handle(first).reply, NodeReply::Blocks(vec![]));
}

/// A job gets no answer and is run again, and sessions go on. Then the old job's requests arrive and are refused.
// Promise MEM-27: A job's abandoned request has no late effect.
#[test]
fn what_a_job_has_given_up_does_not_take_effect_behind_a_later_one() {
    let mut node = node(POOL);
    node.handle(region(3, false));
    let dead = ClientId(1);
    let client = ClientId(2);
    let repairer = ClientId(9);
    let block = |number| block(3, number);
    let of = |repairer, job, request| NodeRequest::OfJob { repairer, job, request };
    let entry = |owner| TableEntry { owner, order: 0, base: Some(0) };
    let nobody = Vec::from_iter((0..BLOCKS).map(|frame| (frame, entry(ClientId::NOBODY))));
    let owners = |node: &mut NodeLogic| node.handle(NodeRequest::OwnersOf { region: 3 }).reply;
    let take = |at, from, to| {
        let set = BlockRequest::SetOwner {
            block: at,
            from,
            to,
            base: Some(0),
            unless_fenced: false,
            once: false,
        };
        set.of(to)
    };
    let forget = JobRequest::SetOwners { region: 3, owners: nobody.clone() };
    assert_eq!(node.handle(of(repairer, 4, forget.clone())).reply, NodeReply::Done);
    node.handle(take(block(0), ClientId::NOBODY, client));
    node.handle(take(block(1), ClientId::NOBODY, dead));
    node.handle(NodeRequest::Fence { clients: vec![dead] });
    let mut known = nobody;
    (known[0].1, known[1].1) = (entry(client), entry(dead));
    let known = NodeReply::Owners(known);
    assert_eq!(owners(&mut node), known);
    let extent = Extent::Region { region: 3, primary: false };
    let all = [
        forget,
        JobRequest::TakeBack { block: block(1), from: dead, to: ClientId::NOBODY, base: Some(0) },
        JobRequest::Free { block: block(1), from: dead },
        JobRequest::Lead { regions: vec![3], view: 9 },
        JobRequest::Release { extent, view: 9 },
        JobRequest::OwnersOf { region: 3 },
        JobRequest::BlocksOf { clients: vec![dead] },
    ];
    for late in &all {
        assert_eq!(refusal(node.handle(of(repairer, 3, late.clone()))), NodeRefusal::Late);
        assert_eq!(owners(&mut node), known);
    }
    // A later job that only reads a table of owners also ends the earlier job's requests, because the answer must stay
    // true.
    let asks = of(repairer, 5, JobRequest::BlocksOf { clients: vec![dead] });
    assert_eq!(node.handle(asks).reply, NodeReply::Blocks(vec![owned_block(block(1), dead)]));
    assert_eq!(refusal(node.handle(of(repairer, 4, all[1].clone()))), NodeRefusal::Late);
    // Another repairer's jobs work only after the first repairer is fenced.
    node.handle(NodeRequest::Fence { clients: vec![repairer] });
    for late in all {
        let refused = refusal(node.handle(of(repairer, 6, late)));
        assert_eq!(refused, NodeRefusal::Fenced { client: repairer });
    }
    assert_eq!(owners(&mut node), known);
    let next = of(ClientId(10), 0, JobRequest::Free { block: block(1), from: dead });
    assert_eq!(node.handle(next).reply, NodeReply::Done);
}

/// A fenced session's requests are refused, because the session's recovery relies on the tables.
// Promise MEM-12: A fenced session gives nothing back.
#[test]
fn a_fenced_session_gives_nothing_back() {
    let mut node = node(POOL);
    node.handle(region(3, false));
    let client = ClientId(2);
    let block = block(3, 4);
    let set = |from, to| set_owner(block, from, to);
    node.handle(set(ClientId::NOBODY, client).of(client));
    node.handle(NodeRequest::Fence { clients: vec![client] });
    let request = set(client, ClientId::NOBODY);
    let back = NodeRequest::InTurn { client, turn: 1, ended: 1, request };
    assert_eq!(refusal(node.handle(back)), NodeRefusal::Fenced { client });
    let owned = node.handle(NodeRequest::BlocksOf { clients: vec![client] }).reply;
    assert_eq!(owned, NodeReply::Blocks(vec![owned_block(block, client)]));
}

#[test]
fn a_block_is_taken_back_from_a_fenced_client_for_an_owner_that_is_fenced_too() {
    let mut node = node(POOL);
    node.handle(region(3, false));
    let earlier = ClientId(1);
    let dead = ClientId(2);
    let block = block(3, 4);
    let set = |from, to| NodeRequest::SetOwner {
        block,
        from,
        to,
        base: Some(0),
        unless_fenced: false,
        once: false,
    };
    let take_back = of_job(JobRequest::TakeBack { block, from: dead, to: earlier, base: Some(0) });
    node.handle(set(ClientId::NOBODY, earlier));
    node.handle(set(earlier, dead));
    node.handle(NodeRequest::Fence { clients: vec![earlier] });
    let refused = refusal(node.handle(take_back.clone()));
    assert!(matches!(refused, NodeRefusal::BadRequest { .. }), "not fenced yet: {refused:?}");
    node.handle(NodeRequest::Fence { clients: vec![dead] });
    let fenced = NodeRefusal::Fenced { client: earlier };
    assert_eq!(refusal(node.handle(set(dead, earlier))), fenced);
    for _ in 0..2 {
        assert_eq!(node.handle(take_back.clone()).reply, NodeReply::Done);
        let owned = node.handle(NodeRequest::BlocksOf { clients: vec![earlier] }).reply;
        assert_eq!(owned, NodeReply::Blocks(vec![owned_block(block, earlier)]));
    }
    node.handle(set(earlier, ClientId::NOBODY));
    let nobody = NodeRefusal::NotOwner { owner: ClientId::NOBODY };
    assert_eq!(refusal(node.handle(take_back)), nobody);
}

#[test]
fn a_member_tells_foreigners_no_more_than_who_it_is() {
    let mut node = node(POOL);
    let client = ClientId(3);
    let block = block(0, 0);
    let first = offset_of(&node.handle(region(0, true)));
    let requests = [
        format(CLUSTER, 9),
        region(1, true),
        alloc(client),
        NodeRequest::SetOwner {
            block,
            from: ClientId::NOBODY,
            to: client,
            base: Some(0),
            unless_fenced: false,
            once: false,
        },
        of_job(JobRequest::TakeBack { block, from: client, to: ClientId::NOBODY, base: Some(0) }),
        of_job(JobRequest::Free { block, from: client }),
        NodeRequest::BlocksOf { clients: vec![client] },
        NodeRequest::OwnersOf { region: 0 },
        of_job(JobRequest::SetOwners { region: 0, owners: vec![] }),
        of_job(JobRequest::Lead { regions: vec![0], view: 9 }),
        release(Extent::Region { region: 0, primary: true }, 9),
        NodeRequest::Fence { clients: vec![client] },
        NodeRequest::Usage,
    ];
    for request in requests {
        let step = node.handle_from(Some(OTHER), request);
        let refusal = NodeReply::Refused(NodeRefusal::OtherCluster { cluster: CLUSTER });
        assert_eq!(step, NodeDecision { effects: vec![], reply: refusal });
    }
    let told = node.handle_from(Some(OTHER), NodeRequest::Describe);
    assert!(matches!(told.reply, NodeReply::Description(_)));
    assert_eq!(offset_of(&node.handle_from(Some(CLUSTER), region(0, true))), first);
    assert_eq!(node.cluster(), Some(CLUSTER));
}

#[test]
fn a_member_leaves_only_at_the_word_of_a_master_that_knows_it() {
    let other = MasterReply::WrongCluster { cluster: Some(OTHER) };
    let note = MasterReplyId { by: 1, at_ms: 2 };
    let noted = HeartbeatReply::Noted(note, 1_000);
    for (reply, member, newcomer) in [
        (MasterReply::Noted { note, lease_ms: 1_000 }, noted, noted),
        (MasterReply::Expelled, HeartbeatReply::Expelled, HeartbeatReply::Expelled),
        (MasterReply::Drained, HeartbeatReply::Drained, HeartbeatReply::Drained),
        (MasterReply::Unknown, HeartbeatReply::Forgotten, HeartbeatReply::JoinAgain),
        (other, HeartbeatReply::Nothing, HeartbeatReply::Nothing),
        (
            MasterReply::NotReady { joined: 0, expected: 3 },
            HeartbeatReply::Nothing,
            HeartbeatReply::Nothing,
        ),
    ] {
        assert_eq!(HeartbeatReply::of(&reply, Some(CLUSTER)), member, "{reply:?}");
        assert_eq!(HeartbeatReply::of(&reply, None), newcomer, "{reply:?}");
    }
}

#[test]
fn a_node_that_got_nothing_of_a_cluster_has_nothing_to_keep() {
    // The node was formatted for a cluster, but the cluster's master forgot the node before it became a member.
    let mut bound = node(POOL);
    assert_eq!((bound.cluster(), bound.held_cluster()), (Some(CLUSTER), None));
    assert_eq!(
        HeartbeatReply::of(&MasterReply::Unknown, bound.held_cluster()),
        HeartbeatReply::JoinAgain
    );
    offset_of(&bound.handle(region(0, true)));
    assert_eq!(bound.held_cluster(), Some(CLUSTER));
    // A member that holds nothing can get something at any time, so it counts as holding something of its cluster.
    let mut member = node(POOL);
    member.handle(NodeRequest::StandAt { cluster: CLUSTER, view: 3 });
    assert_eq!(member.held_cluster(), Some(CLUSTER));
}

/// Returns the log area that a client gets, with its effects; `None` if it is refused.
fn log_area(node: &mut NodeLogic, client: u32) -> Option<(u32, Vec<NodeEffect>)> {
    let step = node.handle(NodeRequest::LogArea { client: ClientId(client), number: 0 });
    match step.reply {
        NodeReply::LogArea { area } => Some((area, step.effects)),
        NodeReply::Refused(_) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_has_one_log_area_and_it_begins_with_zeros() {
    let mut node = node(POOL);
    let (first, zeroed) = log_area(&mut node, 1).unwrap();
    let at = log_area_offset(first);
    assert_eq!(zeroed, [NodeEffect::ZeroPool { offset: at, bytes: LOG_AREA_BYTES }]);
    assert_eq!(log_area(&mut node, 1), Some((first, vec![])), "what it has written stays");
    assert_ne!(log_area(&mut node, 2).unwrap().0, first);
    assert!(log_area(&mut node, 0).is_none(), "nobody");
    let second = node.handle(NodeRequest::LogArea { client: ClientId(1), number: 1 });
    assert_eq!(second.reply, NodeReply::LogArea { area: 2 });
    let beyond = NodeRequest::LogArea { client: ClientId(1), number: MAX_LOG_AREAS as u8 };
    assert!(matches!(node.handle(beyond).reply, NodeReply::Refused(_)));
    let clients = [3, 2, 1].map(ClientId).to_vec();
    let step = node.handle(NodeRequest::LogAreasOf { clients });
    let NodeReply::LogAreas(areas) = step.reply else { panic!("{:?}", step.reply) };
    assert_eq!(areas, [(ClientId(2), 1 - first), (ClientId(1), first), (ClientId(1), 2)]);
}

/// A dead session's records are needed until it is recovered.
#[test]
fn a_log_area_is_lent_again_when_its_session_is_recovered() {
    let mut node = node(POOL);
    let cluster = ClusterId::from_word(7).unwrap();
    node.handle(NodeRequest::Format { cluster, attempt: 1 });
    let areas = log_areas(POOL);
    let mut lent: Vec<u32> = (1..=areas).map(|n| log_area(&mut node, n).unwrap().0).collect();
    lent.sort_unstable();
    assert_eq!(lent, (0..areas).collect::<Vec<_>>());
    let refused = node.handle(NodeRequest::LogArea { client: ClientId(areas + 1), number: 0 });
    assert_eq!(refused.reply, NodeReply::Refused(NodeRefusal::NoLogArea { areas }));
    let living = |clients: &[u32], below| LiveClients {
        below: ClientId(below),
        clients: clients.iter().copied().map(ClientId).collect(),
    };
    let others: Vec<u32> = (3..=areas + 1).collect();
    // Session 1 has ended. Session 2 is fenced, and by the master's list not recovered.
    let of_second = node.handle(NodeRequest::LogAreasOf { clients: vec![ClientId(2)] });
    node.handle(NodeRequest::Fence { clients: vec![ClientId(2)] });
    let with_second: Vec<u32> = std::iter::once(2).chain(others.clone()).collect();
    let told = node.handle(NodeRequest::Living { living: living(&with_second, areas + 2) });
    assert_eq!(told.reply, NodeReply::Done);
    assert!(log_area(&mut node, areas + 1).is_some_and(|(_, effects)| effects.len() == 1));
    assert!(log_area(&mut node, areas + 2).is_none(), "that of session 2 is still needed");
    let again = node.handle(NodeRequest::LogAreasOf { clients: vec![ClientId(2)] });
    assert_eq!(again.reply, of_second.reply);
    node.handle(NodeRequest::Living { living: living(&others, areas + 2) });
    assert!(log_area(&mut node, areas + 2).is_some_and(|(_, effects)| effects.len() == 1));
    assert!(log_area(&mut node, 2).is_none(), "who has ended gets none");
}
