//! One memory node, whose blocks clients take and return at random, without a cluster.
//!
//! A block that was never merged begins with the base with which each of its frames was last returned. So no object
//! gets a generation that it had before.

use fusee_control::node::{
    AcceptedOrders, BlockId, Extent, NodeDescription, NodeReply, NodeRequest,
};
use fusee_core::data::Redundancy;
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_memory_node::logic::NodeLogic;
use fusee_sim::Rng;

const FRAMES: usize = 15;
const CLIENT: ClientId = ClientId(1);

/// Takes and returns blocks of random orders.
pub fn block_bases(seed: u64) {
    let rng = Rng::new(seed);
    let mut node = node();
    let mut bases = [0; FRAMES];
    let mut held: Vec<BlockId> = Vec::new();
    for _ in 0..200 {
        if rng.below(2) == 0 && !held.is_empty() {
            let block = held.swap_remove(rng.below(held.len()));
            let range = block.frame as usize..block.frame as usize + (1 << block.order);
            let base =
                bases[range.clone()].iter().max().expect("it has frames") + rng.below(3) as u16;
            let base = base % 512;
            bases[range].fill(base);
            let request = NodeRequest::SetOwner {
                block,
                from: CLIENT,
                to: ClientId::NOBODY,
                base: Some(base),
                unless_fenced: false,
                once: false,
            };
            assert_eq!(node.handle(request).reply, NodeReply::Done);
            continue;
        }
        let least = rng.below(3) as u8;
        let most = least + rng.below(3 - usize::from(least)) as u8;
        let request = NodeRequest::Alloc {
            client: CLIENT,
            redundancy: Redundancy::Replicated,
            orders: AcceptedOrders { least, most, mixed: rng.below(4) == 0 },
            frozen: vec![],
            spare_of: vec![],
        };
        if let NodeReply::Allocated { block, base } = node.handle(request).reply {
            let first = block.frame as usize;
            let frames = &bases[first..first + (1 << block.order)];
            let is_known = base.is_none_or(|base| frames.iter().all(|known| *known == base));
            assert!(is_known, "{block:?} begins with {base:?}, its frames with {frames:?}");
            held.push(block);
        }
    }
}

/// Makes a node with a region whose largest blocks have four frames.
fn node() -> NodeLogic {
    let pool_bytes = 1 << 20;
    let description =
        NodeDescription { identity: 5, pool_bytes, tcp: None, shm: None, verbs: None };
    let cluster = ClusterId::from_word(77).expect("not 0");
    let mut node = NodeLogic::new(description);
    node.handle(NodeRequest::Format { cluster, attempt: 1 });
    let reserved = node.handle(NodeRequest::Reserve {
        redundancy: Redundancy::Replicated,
        cluster,
        attempt: 1,
        view: 1,
        extent: Extent::Region { region: 0, primary: true },
        bytes: 64 << 10,
        block_bytes: 16 << 10,
    });
    assert!(matches!(reserved.reply, NodeReply::Reserved { .. }), "{reserved:?}");
    node
}
