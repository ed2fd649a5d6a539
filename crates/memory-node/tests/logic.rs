//! The memory node's decisions, one by one and against a model under random requests.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::node::{
    BlockId, Description, Extent, MAX_CLIENTS, NodeRefusal, NodeReply, NodeRequest,
    extent_align_bytes,
};
use fusee_core::verbs::ClientId;
use fusee_memory_node::logic::{Effect, Node, Step};
use proptest::prelude::*;

const POOL: u64 = 1 << 20;
const REGION: u64 = 64 << 10;
const BLOCK: u64 = 4096;
/// A region of 64 KiB holds a table of one page and 15 blocks.
const BLOCKS: u32 = 15;
const CLUSTER: u64 = 77;

/// A node that is formatted for the first attempt to form the cluster.
fn node(pool_bytes: u64) -> Node {
    let mut node = Node::new(Description { identity: 5, pool_bytes, tcp: None, shm: None });
    let step = node.handle(format(CLUSTER, 1));
    assert_eq!(step, Step { effects: vec![], reply: NodeReply::Done });
    node
}

fn format(cluster: u64, attempt: u64) -> NodeRequest {
    NodeRequest::Format { cluster, attempt }
}

fn reserve(extent: Extent, bytes: u64, block_bytes: u64) -> NodeRequest {
    NodeRequest::Reserve { cluster: CLUSTER, attempt: 1, extent, bytes, block_bytes }
}

fn region(region: u32, primary: bool) -> NodeRequest {
    reserve(Extent::Region { region, primary }, REGION, BLOCK)
}

fn offset_of(step: &Step) -> u64 {
    match step.reply {
        NodeReply::Reserved { offset } => offset,
        ref other => panic!("unexpected {other:?}"),
    }
}

fn refusal(step: Step) -> NodeRefusal {
    match step {
        Step { reply: NodeReply::Refused(refusal), effects } => {
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
        let step = node.handle(NodeRequest::Alloc { client: ClientId(9), frozen: vec![] });
        let NodeReply::Allocated { block } = step.reply else { panic!("{step:?}") };
        assert_eq!(block.region, 3, "a backup region allocates nothing");
        let offset = base + 4 * u64::from(block.block);
        assert_eq!(step.effects, [Effect::WriteTable { offset, value: 9 }]);
        assert!(seen.insert(block));
    }
    let full = node.handle(NodeRequest::Alloc { client: ClientId(9), frozen: vec![] });
    assert_eq!(refusal(full), NodeRefusal::NoFreeBlock);
    let freed = BlockId { region: 3, block: 7 };
    let (from, to) = (ClientId(9), ClientId::NOBODY);
    node.handle(NodeRequest::SetOwner { block: freed, from, to });
    let again = node.handle(NodeRequest::Alloc { client: ClientId(8), frozen: vec![] });
    assert_eq!(again.reply, NodeReply::Allocated { block: freed });
}

#[test]
fn allocation_takes_turns_among_primary_regions() {
    let mut node = node(POOL);
    for number in 0..3 {
        node.handle(region(number, true));
    }
    let mut turn =
        || match node.handle(NodeRequest::Alloc { client: ClientId(1), frozen: vec![] }).reply {
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
    assert_eq!([&small, &large, &next].map(offset_of), [0, 2 << 20, 6 << 20]);
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
        NodeRequest::Alloc { client: ClientId::NOBODY, frozen: vec![] },
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
    assert_eq!(offset_of(&node.handle(reserve(subtable, POOL, 0))), 0);
}

#[test]
fn a_fenced_client_gets_nothing_but_what_it_had_can_be_handed_on() {
    let mut node = node(POOL);
    node.handle(region(0, true));
    let (dead, heir) = (ClientId(1), ClientId(2));
    let NodeReply::Allocated { block } =
        node.handle(NodeRequest::Alloc { client: dead, frozen: vec![] }).reply
    else {
        panic!("a fresh region has free blocks");
    };
    for _ in 0..2 {
        let step = node.handle(NodeRequest::Fence { clients: vec![dead] });
        assert_eq!(step.effects, [Effect::Fence { client: dead }]);
        assert_eq!(step.reply, NodeReply::Done);
    }
    let fenced = NodeRefusal::Fenced { client: dead };
    assert_eq!(refusal(node.handle(NodeRequest::Alloc { client: dead, frozen: vec![] })), fenced);
    let free = BlockId { region: 0, block: 14 };
    let take = NodeRequest::SetOwner { block: free, from: ClientId::NOBODY, to: dead };
    assert_eq!(refusal(node.handle(take)), fenced);
    let hand_on = NodeRequest::SetOwner { block, from: dead, to: heir };
    assert_eq!(node.handle(hand_on).reply, NodeReply::Done);
}

#[test]
fn a_node_serves_one_cluster_and_one_attempt_and_only_an_unused_one_is_emptied() {
    let mut node = node(POOL);
    let taken = NodeRefusal::OtherCluster { cluster: CLUSTER };
    let is_bad = |refusal| matches!(refusal, NodeRefusal::BadRequest { .. });
    let reserve = |cluster, attempt, primary| NodeRequest::Reserve {
        cluster,
        attempt,
        extent: Extent::Region { region: 0, primary },
        bytes: REGION,
        block_bytes: BLOCK,
    };
    let first = offset_of(&node.handle(reserve(CLUSTER, 1, true)));
    assert_eq!(refusal(node.handle(reserve(CLUSTER + 1, 1, true))), taken);
    assert_eq!(refusal(node.handle(format(CLUSTER + 1, 9))), taken);

    // The same attempt again keeps what it has reserved; a later one starts from zeros.
    let again = node.handle(format(CLUSTER, 1));
    assert_eq!(again, Step { effects: vec![], reply: NodeReply::Done });
    let later = node.handle(format(CLUSTER, 2));
    assert_eq!(later.effects, [Effect::ZeroPool { offset: first, bytes: REGION }]);
    assert!(is_bad(refusal(node.handle(format(CLUSTER, 1)))));
    assert!(is_bad(refusal(node.handle(reserve(CLUSTER, 1, true)))), "a late request");
    assert!(is_bad(refusal(node.handle(NodeRequest::Reserve {
        cluster: CLUSTER,
        attempt: 3,
        extent: Extent::Subtable { subtable: 0 },
        bytes: 64,
        block_bytes: 0,
    }))));
    let full = refusal(node.handle(NodeRequest::Alloc { client: ClientId(1), frozen: vec![] }));
    assert_eq!(full, NodeRefusal::NoFreeBlock);

    node.handle(reserve(CLUSTER, 2, true));
    node.handle(NodeRequest::Alloc { client: ClientId(1), frozen: vec![] });
    assert!(is_bad(refusal(node.handle(format(CLUSTER, 3)))), "a client owns a block");
}

/// What must be true of a node, kept by simpler means.
#[derive(Default)]
struct Model {
    extents: BTreeMap<Place, (u64, u64)>,
    primary: BTreeMap<u32, bool>,
    owners: BTreeMap<BlockId, ClientId>,
    fenced: BTreeSet<ClientId>,
    /// The copies of the tables in the pool.
    table: BTreeMap<u64, u32>,
}

/// An extent, whether primary or not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Region(u32),
    Subtable(u32),
}

impl Model {
    fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            match *effect {
                Effect::WriteTable { offset, value } => {
                    self.table.insert(offset, value);
                }
                Effect::Fence { client } => {
                    self.fenced.insert(client);
                }
                Effect::ZeroPool { .. } => panic!("nothing is released in this test"),
            }
        }
    }

    fn owner(&self, block: BlockId) -> ClientId {
        self.owners.get(&block).copied().unwrap_or(ClientId::NOBODY)
    }

    fn check(&mut self, request: &NodeRequest, step: &Step) {
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
            (NodeRequest::SetOwner { block, from, to }, NodeReply::Done) => {
                assert!(self.primary.contains_key(&block.region) && block.block < BLOCKS);
                assert!([*from, *to].contains(&self.owner(*block)));
                assert!(!self.fenced.contains(to));
                self.owners.insert(*block, *to);
            }
            (
                NodeRequest::SetOwner { block, from, to },
                NodeReply::Refused(NodeRefusal::NotOwner { owner }),
            ) => {
                assert_eq!(self.owner(*block), *owner);
                assert!(owner != from && owner != to);
            }
            (NodeRequest::BlocksOf { clients }, NodeReply::Blocks(blocks)) => {
                let theirs = self.owners.iter().filter(|(_, owner)| clients.contains(owner));
                let theirs = theirs.map(|(block, owner)| (*block, *owner));
                assert_eq!(blocks, &Vec::from_iter(theirs));
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
        assert!(offset + bytes <= POOL, "outside of the pool");
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
        12 => client().prop_map(|client| NodeRequest::Alloc { client, frozen: vec![] }),
        12 => (block, client(), client())
            .prop_map(|(block, from, to)| NodeRequest::SetOwner { block, from, to }),
        3 => prop::collection::vec(client(), 1..3)
            .prop_map(|clients| NodeRequest::BlocksOf { clients }),
        1 => (3u32..5).prop_map(|client| NodeRequest::Fence { clients: vec![ClientId(client)] }),
    ]
}

proptest! {
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
                prop_assert_eq!(&again.reply, &step.reply);
                model.check(&request, &again);
                // A repeat leaves no trace, except an explicit "nobody" for a block never owned.
                prop_assert_eq!(&owners, &model.owners);
            }
        }
    }
}

#[test]
fn a_block_is_taken_back_from_a_fenced_client_for_an_owner_that_is_fenced_too() {
    let mut node = node(POOL);
    node.handle(region(3, false));
    let (earlier, dead) = (ClientId(1), ClientId(2));
    let block = BlockId { region: 3, block: 4 };
    let set = |from, to| NodeRequest::SetOwner { block, from, to };
    let take_back = NodeRequest::TakeBack { block, from: dead, to: earlier };
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
    assert_eq!(refusal(node.handle(take_back)), nobody, "a late one does no harm");
}
