//! Tests of the memory node's decisions, one by one, and against a model under random requests.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{MasterReply, MasterReplyId};
use fusee_control::node::{
    BlockId, BlockRequest, Extent, JobRequest, MAX_CLIENTS, MemberBars, NodeDescription,
    NodeRefusal, NodeReply, NodeRequest, extent_align_bytes,
};
use fusee_core::data::Redundancy;
use fusee_core::ended_clients::LiveClients;
use fusee_core::layout::{
    HeaderWord, LOG_AREA_BYTES, MAX_LOG_AREAS, first_extent, log_area_offset, log_areas,
};
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_memory_node::logic::{HeartbeatReply, NodeDecision, NodeEffect, NodeLogic};
use proptest::prelude::*;

const POOL: u64 = 1 << 20;
const REGION: u64 = 64 << 10;
const BLOCK: u64 = 4096;
/// The number of blocks of a region of 64 KiB: its first page holds the table.
const BLOCKS: u32 = 15;
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
    let base = offset_of(&node.handle(region(3, true)));
    node.handle(region(4, false));
    let mut seen = BTreeSet::new();
    for _ in 0..BLOCKS {
        let step = node.handle(NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            client: ClientId(9),
            frozen: vec![],
            spare_of: vec![],
        });
        let NodeReply::Allocated { block } = step.reply else { panic!("{step:?}") };
        assert_eq!(block.region, 3, "a backup region allocates nothing");
        let offset = base + 4 * u64::from(block.block);
        assert_eq!(step.effects, [NodeEffect::WriteTable { offset, value: 9 }]);
        assert!(seen.insert(block));
    }
    let full = node.handle(NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client: ClientId(9),
        frozen: vec![],
        spare_of: vec![],
    });
    assert_eq!(refusal(full), NodeRefusal::NoFreeBlock);
    let freed = BlockId { region: 3, block: 7 };
    let from = ClientId(9);
    let to = ClientId::NOBODY;
    node.handle(NodeRequest::SetOwner {
        block: freed,
        from,
        to,
        unless_fenced: false,
        once: false,
    });
    let again = node.handle(NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client: ClientId(8),
        frozen: vec![],
        spare_of: vec![],
    });
    assert_eq!(again.reply, NodeReply::Allocated { block: freed });
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
        let step = node.handle(NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            client: ClientId(9),
            frozen: vec![],
            spare_of: spare_of.to_vec(),
        });
        match step.reply {
            NodeReply::Allocated { block } => Some(block.region),
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
    let mut turn = || match node
        .handle(NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            client: ClientId(1),
            frozen: vec![],
            spare_of: vec![],
        })
        .reply
    {
        NodeReply::Allocated { block } => block.region,
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
    node.handle(NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client: ClientId(1),
        frozen: vec![],
        spare_of: vec![],
    });
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
    let alloc = NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client: ClientId(1),
        frozen: vec![],
        spare_of: vec![],
    };
    assert_eq!(refusal(node.handle(alloc)), NodeRefusal::NoFreeBlock, "it leads nothing any more");
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
        NodeReply::Usage(usage) => usage.primary_blocks > 0,
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
        NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            client: ClientId::NOBODY,
            frozen: vec![],
            spare_of: vec![],
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
    let alloc = |client| NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client: ClientId(client),
        frozen: vec![],
        spare_of: vec![],
    };
    node.handle(NodeRequest::Fence { clients: vec![ClientId(3)] });
    let living = LiveClients::of([ClientId(1), ClientId(3)], ClientId(5));
    let step = node.handle(NodeRequest::Living { living: living.clone() });
    assert_eq!((step.effects, step.reply), (vec![NodeEffect::Living { living }], NodeReply::Done));
    for client in 2..5 {
        let client = ClientId(client);
        assert_eq!(refusal(node.handle(alloc(client.0))), NodeRefusal::Fenced { client });
    }
    for client in [1, 5] {
        let reply = node.handle(alloc(client)).reply;
        assert!(matches!(reply, NodeReply::Allocated { .. }), "{reply:?}");
    }
    // A session that said goodbye has already handed on its blocks, so a session that takes one need not wait for a
    // recovery.
    let block = BlockId { region: 0, block: 3 };
    node.handle(NodeRequest::SetOwner {
        block,
        from: ClientId::NOBODY,
        to: ClientId(5),
        unless_fenced: false,
        once: false,
    });
    node.handle(NodeRequest::Living { living: LiveClients::of([ClientId(1)], ClientId(6)) });
    let take = |from| NodeRequest::SetOwner {
        block,
        from: ClientId(from),
        to: ClientId(1),
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
    let NodeReply::Allocated { block } = node
        .handle(NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            client: dead,
            frozen: vec![],
            spare_of: vec![],
        })
        .reply
    else {
        panic!("a fresh region has free blocks");
    };
    for _ in 0..2 {
        let step = node.handle(NodeRequest::Fence { clients: vec![dead] });
        assert_eq!(step.effects, [NodeEffect::Fence { client: dead }]);
        assert_eq!(step.reply, NodeReply::Done);
    }
    let fenced = NodeRefusal::Fenced { client: dead };
    assert_eq!(
        refusal(node.handle(NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            client: dead,
            frozen: vec![],
            spare_of: vec![]
        })),
        fenced
    );
    let free = BlockId { region: 0, block: 14 };
    let take = NodeRequest::SetOwner {
        block: free,
        from: ClientId::NOBODY,
        to: dead,
        unless_fenced: false,
        once: false,
    };
    assert_eq!(refusal(node.handle(take)), fenced);
    let hand_on = |unless_fenced| NodeRequest::SetOwner {
        block,
        from: dead,
        to: heir,
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
    let full = refusal(node.handle(NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client: ClientId(1),
        frozen: vec![],
        spare_of: vec![],
    }));
    assert_eq!(full, NodeRefusal::NoFreeBlock);

    node.handle(reserve(CLUSTER, 2, true));
    node.handle(NodeRequest::Alloc {
        redundancy: Redundancy::Replicated,
        client: ClientId(1),
        frozen: vec![],
        spare_of: vec![],
    });
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

/// A simpler model of a node, which keeps the same invariants.
#[derive(Default)]
struct Model {
    extents: BTreeMap<Place, (u64, u64)>,
    primary: BTreeMap<u32, bool>,
    owners: BTreeMap<BlockId, ClientId>,
    fenced: BTreeSet<ClientId>,
    /// The pool's copies of the block tables.
    table: BTreeMap<u64, u32>,
    /// The extent that the current request releases, if the node has such an extent.
    released: Option<Place>,
    /// The offsets of the log areas that are lent.
    lent: BTreeSet<u64>,
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
                    let gone = self.released.take().expect("only what is released is zeroed");
                    assert_eq!(self.extents.remove(&gone), Some((offset, bytes)));
                    self.table.retain(|at, _| !(offset..offset + bytes).contains(at));
                    if let Place::Region(region) = gone {
                        self.owners.retain(|block, _| block.region != region);
                        self.primary.remove(&region);
                    }
                }
            }
        }
    }

    fn owner(&self, block: BlockId) -> ClientId {
        self.owners.get(&block).copied().unwrap_or(ClientId::NOBODY)
    }

    fn check(&mut self, request: &NodeRequest, step: &NodeDecision) {
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
        match (request, &step.reply) {
            (NodeRequest::Reserve { extent, bytes, .. }, NodeReply::Reserved { offset }) => {
                self.reserved(*extent, *bytes, *offset);
            }
            (NodeRequest::Alloc { client, .. }, NodeReply::Allocated { block }) => {
                assert!(!self.fenced.contains(client));
                assert!(self.primary[&block.region] && block.block < BLOCKS);
                assert_eq!(self.owner(*block), ClientId::NOBODY, "two owners of {block:?}");
                self.owners.insert(*block, *client);
            }
            (NodeRequest::Alloc { client, .. }, NodeReply::Refused(NodeRefusal::NoFreeBlock)) => {
                assert!(*client != ClientId::NOBODY);
                for (region, _) in self.primary.iter().filter(|(_, primary)| **primary) {
                    for block in (0..BLOCKS).map(|block| BlockId { region: *region, block }) {
                        assert_ne!(self.owner(block), ClientId::NOBODY, "{block:?} is free");
                    }
                }
            }
            (NodeRequest::SetOwner { block, from, to, unless_fenced, once }, NodeReply::Done) => {
                assert!(self.primary.contains_key(&block.region) && block.block < BLOCKS);
                assert!(!*once || self.owner(*block) != *to);
                assert!([*from, *to].contains(&self.owner(*block)));
                assert!(!self.fenced.contains(to));
                assert!(!*unless_fenced || !self.fenced.contains(from));
                self.owners.insert(*block, *to);
            }
            (
                NodeRequest::SetOwner { block, from, to, once, .. },
                NodeReply::Refused(NodeRefusal::NotOwner { owner }),
            ) => {
                assert_eq!(self.owner(*block), *owner);
                assert!(owner != from && owner != to || *once && owner == to);
            }
            (NodeRequest::BlocksOf { clients }, NodeReply::Blocks(blocks)) => {
                let theirs = self.owners.iter().filter(|(_, owner)| clients.contains(owner));
                let theirs = theirs.map(|(block, owner)| (*block, *owner));
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
        self.check_table();
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
    }

    fn check_table(&self) {
        for (block, owner) in &self.owners {
            let (start, _) = self.extents[&Place::Region(block.region)];
            assert_eq!(self.table[&(start + 4 * u64::from(block.block))], owner.0);
        }
    }
}

fn client() -> impl Strategy<Value = ClientId> {
    (0u32..5).prop_map(ClientId)
}

fn request() -> impl Strategy<Value = NodeRequest> {
    let block = (0u32..4, 0u32..BLOCKS + 1).prop_map(|(region, block)| BlockId { region, block });
    prop_oneof![
        2 => (0u32..4, any::<bool>()).prop_map(|(number, primary)| region(number, primary)),
        2 => (0u32..3, 1u64..9000).prop_map(|(subtable, bytes)| {
            reserve(Extent::Subtable { subtable }, bytes, 0)
        }),
        1 => (0u32..3, any::<u64>(), any::<u64>()).prop_map(|(subtable, bytes, block_bytes)| {
            reserve(Extent::Subtable { subtable }, bytes, block_bytes)
        }),
        1 => (0u32..4).prop_map(|region| release(Extent::Region { region, primary: true }, 6)),
        1 => (0u32..3).prop_map(|subtable| release(Extent::Subtable { subtable }, 6)),
        12 => client().prop_map(|client| {
            let redundancy = Redundancy::Replicated;
            NodeRequest::Alloc { redundancy, client, frozen: vec![], spare_of: vec![] }
        }),
        12 => (block, client(), client(), any::<bool>(), any::<bool>())
            .prop_map(|(block, from, to, unless_fenced, once)| {
                NodeRequest::SetOwner { block, from, to, unless_fenced, once }
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
        requests in prop::collection::vec((request(), any::<bool>()), 1..200),
    ) {
        let mut node = node(POOL);
        let mut model = Model::default();
        for (request, repeat) in requests {
            let step = node.handle(request.clone());
            model.check(&request, &step);
            if repeat && !matches!(request, NodeRequest::Alloc { .. }) {
                let owners = model.owners.clone();
                let again = node.handle(request.clone());
                // A request marked `once` is refused the second time.
                let once = matches!(request, NodeRequest::SetOwner { once: true, .. });
                if !once || step.reply != NodeReply::Done {
                    prop_assert_eq!(&again.reply, &step.reply);
                }
                model.check(&request, &again);
                // A repeated request changes nothing, except that a block without owner can get the explicit owner
                // 0.
                prop_assert_eq!(&owners, &model.owners);
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
    let block = BlockId { region: 3, block: 4 };
    let set =
        |from, to| BlockRequest::SetOwner { block, from, to, unless_fenced: false, once: false };
    let ask = |turn, ended, request| NodeRequest::InTurn { client, turn, ended, request };
    let late = ask(1, 1, set(earlier, client));
    node.handle(set(ClientId::NOBODY, earlier).of(earlier));
    assert_eq!(node.handle(ask(2, 2, set(earlier, client))).reply, NodeReply::Done);
    assert_eq!(node.handle(ask(3, 3, set(client, ClientId::NOBODY))).reply, NodeReply::Done);
    node.handle(set(ClientId::NOBODY, earlier).of(earlier));
    assert_eq!(refusal(node.handle(late)), NodeRefusal::Late);
    let owned = node.handle(NodeRequest::BlocksOf { clients: vec![earlier] }).reply;
    assert_eq!(owned, NodeReply::Blocks(vec![(block, earlier)]));
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
    let block = |block| BlockId { region: 3, block };
    let of = |repairer, job, request| NodeRequest::OfJob { repairer, job, request };
    let nobody = vec![ClientId::NOBODY; BLOCKS as usize];
    let owners = |node: &mut NodeLogic| node.handle(NodeRequest::OwnersOf { region: 3 }).reply;
    let take = |at, from, to| {
        let set = BlockRequest::SetOwner { block: at, from, to, unless_fenced: false, once: false };
        set.of(to)
    };
    let forget = JobRequest::SetOwners { region: 3, owners: nobody.clone() };
    assert_eq!(node.handle(of(repairer, 4, forget.clone())).reply, NodeReply::Done);
    node.handle(take(block(0), ClientId::NOBODY, client));
    node.handle(take(block(1), ClientId::NOBODY, dead));
    node.handle(NodeRequest::Fence { clients: vec![dead] });
    let mut known = nobody;
    (known[0], known[1]) = (client, dead);
    let known = NodeReply::Owners(known);
    assert_eq!(owners(&mut node), known);
    let extent = Extent::Region { region: 3, primary: false };
    let all = [
        forget,
        JobRequest::TakeBack { block: block(1), from: dead, to: ClientId::NOBODY },
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
    assert_eq!(node.handle(asks).reply, NodeReply::Blocks(vec![(block(1), dead)]));
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
    let block = BlockId { region: 3, block: 4 };
    let set =
        |from, to| BlockRequest::SetOwner { block, from, to, unless_fenced: false, once: false };
    node.handle(set(ClientId::NOBODY, client).of(client));
    node.handle(NodeRequest::Fence { clients: vec![client] });
    let request = set(client, ClientId::NOBODY);
    let back = NodeRequest::InTurn { client, turn: 1, ended: 1, request };
    assert_eq!(refusal(node.handle(back)), NodeRefusal::Fenced { client });
    let owned = node.handle(NodeRequest::BlocksOf { clients: vec![client] }).reply;
    assert_eq!(owned, NodeReply::Blocks(vec![(block, client)]));
}

#[test]
fn a_block_is_taken_back_from_a_fenced_client_for_an_owner_that_is_fenced_too() {
    let mut node = node(POOL);
    node.handle(region(3, false));
    let earlier = ClientId(1);
    let dead = ClientId(2);
    let block = BlockId { region: 3, block: 4 };
    let set =
        |from, to| NodeRequest::SetOwner { block, from, to, unless_fenced: false, once: false };
    let take_back = of_job(JobRequest::TakeBack { block, from: dead, to: earlier });
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
        assert_eq!(owned, NodeReply::Blocks(vec![(block, earlier)]));
    }
    node.handle(set(earlier, ClientId::NOBODY));
    let nobody = NodeRefusal::NotOwner { owner: ClientId::NOBODY };
    assert_eq!(refusal(node.handle(take_back)), nobody);
}

#[test]
fn a_member_tells_foreigners_no_more_than_who_it_is() {
    let mut node = node(POOL);
    let client = ClientId(3);
    let block = BlockId { region: 0, block: 0 };
    let first = offset_of(&node.handle(region(0, true)));
    let requests = [
        format(CLUSTER, 9),
        region(1, true),
        NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            client,
            frozen: vec![],
            spare_of: vec![],
        },
        NodeRequest::SetOwner {
            block,
            from: ClientId::NOBODY,
            to: client,
            unless_fenced: false,
            once: false,
        },
        of_job(JobRequest::TakeBack { block, from: client, to: ClientId::NOBODY }),
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
