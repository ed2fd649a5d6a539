//! Steered reuse of memory: objects are freed and their bits set between a READ of a free bitmap and the mark (a point
//! in the session's time) that the session takes for this READ.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Nanos, NetworkOptions, Rng, SimClient, SimCluster};

use super::{alone, small, stepwise};

/// A time longer than anything takes in a stepwise cluster.
const HELD_NS: Nanos = 1 << 60;
/// A value of such a length that three objects fit in a block.
const VALUE: [u8; 1100] = [1; 1100];
/// The owner stops fewer than this many steps before the end of its READ of a bitmap.
const STEPS: u64 = 12;

/// Makes a client that, at the end of an INSERT, is about to READ the free bitmap of its first block.
fn prepared(seed: u64) -> (Rng, SimCluster, [SimClient; 3]) {
    let options = small(seed, 2);
    let geometry = Geometry { max_value_bytes: 1200, region_bytes: 1 << 15, ..options.geometry };
    let options = ClusterOptions { geometry, index_keys: 100, ..options };
    let (rng, cluster) = stepwise(seed, &options);
    let network = cluster.network();
    network.set_options(NetworkOptions { immediate: false, ..network.options() });
    let clients = [(); 3].map(|()| cluster.client());
    for key in [b"a", b"b", b"c", b"d"] {
        alone(&rng, clients[0].insert(key, &VALUE)).expect("there is room");
    }
    (rng, cluster, clients)
}

/// The owner of a block READs its free bitmap, and this READ is delayed for long. Meanwhile an epoch begins, one
/// session reads, another session replaces the object that is being read and sets the object's free bit, and all
/// operations of the earlier epoch end. Objects that the READ of the bitmap shows as free must not be reused before the
/// reader has ended. Returns whether the owner was held up before the end of its READ.
pub fn early_mark(seed: u64) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let steps = {
        let (_, _cluster, [owner, ..]) = prepared(seed);
        let mut task = pin!(owner.insert(b"e", &VALUE));
        let mut steps = 0;
        while !owner.session.gate().questions.are_awaited() {
            let has_ended = task.as_mut().poll(&mut context).is_ready();
            steps += 1;
            assert!(
                !has_ended || owner.session.gate().questions.are_awaited(),
                "it looks in the end"
            );
        }
        steps
    };
    let (rng, cluster, [owner, writer, reader]) = prepared(seed);
    let gates = [&owner, &writer, &reader].map(|client| client.session.gate());
    let mut looking = pin!(owner.insert(b"e", &VALUE));
    for _ in 0..steps - seed % STEPS {
        if looking.as_mut().poll(&mut context).is_ready() {
            return false;
        }
    }
    let network = cluster.network();
    let nodes = cluster.nodes().processes();
    nodes.iter().for_each(|(node, _)| network.links().hold(owner.client(), *node, HELD_NS));
    let is_held = !gates[0].questions.are_awaited();
    gates.iter().for_each(|gate| gate.questions.asks(1));
    gates.iter().for_each(|gate| gate.publish_epoch(1));
    let mut reading = pin!(reader.search(b"a", None));
    for _ in 0..3 {
        assert!(reading.as_mut().poll(&mut context).is_pending());
    }
    alone(&rng, writer.update(b"a", &VALUE, None)).expect("it is there");
    drop(alone(&rng, writer.session.leave()));
    nodes.iter().for_each(|(node, _)| network.links().release(owner.client(), *node));
    alone(&rng, looking).expect("there is room");
    // The reader still runs, but all operations of the earlier epoch have ended, because the reader belongs to the new
    // epoch.
    assert!(gates.iter().all(|gate| gate.heartbeat().pinned_in == 1));
    gates.iter().for_each(|gate| gate.questions.tell_passed(1, 1));
    for key in [b"f", b"g", b"h", b"i"] {
        alone(&rng, owner.insert(key, &VALUE)).expect("there is room");
    }
    let found = loop {
        if let Poll::Ready(found) = reading.as_mut().poll(&mut context) {
            break found.expect("a SEARCH never fails");
        }
    };
    assert_eq!(found.value(), Some(&VALUE[..]));
    is_held
}
