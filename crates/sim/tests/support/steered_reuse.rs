//! When memory is used again, steered by hand: what is freed, and marked, between a look at a free bitmap and
//! the moment that this look stands for.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fusee_core::view::Geometry;
use fusee_sim::{Client, Cluster, ClusterOptions, Nanos, NetworkOptions, Rng};

use super::{alone, small, stepwise};

/// Longer than anything takes where no time passes.
const HELD_NS: Nanos = 1 << 60;
/// Three objects of such a value fit in a block.
const VALUE: [u8; 1100] = [1; 1100];
/// How long before its end a look is held up.
const STEPS: u64 = 12;

/// A client that is about to look at the bitmap of its first block, in the tail of an INSERT.
fn prepared(seed: u64) -> (Rng, Cluster, [Client; 3]) {
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

/// The owner of a block looks for what is free in it, and the look is on its way for long. Meanwhile an epoch
/// begins, somebody reads, somebody else replaces what is read and marks it as free, and everything ends that
/// belonged to the epoch before. What the look sees then may be used again only when the reader has come to
/// its end. Returns whether the owner had yet to look when it was held up.
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
    let nodes = cluster.node_processes();
    nodes.iter().for_each(|(node, _)| network.hold(owner.client(), *node, HELD_NS));
    let is_held = !gates[0].questions.are_awaited();
    gates.iter().for_each(|gate| gate.questions.asks(1));
    gates.iter().for_each(|gate| gate.publish_epoch(1));
    let mut reading = pin!(reader.search(b"a", None));
    for _ in 0..3 {
        assert!(reading.as_mut().poll(&mut context).is_pending());
    }
    alone(&rng, writer.update(b"a", &VALUE, None)).expect("it is there");
    drop(alone(&rng, writer.session.leave()));
    nodes.iter().for_each(|(node, _)| network.release(owner.client(), *node));
    alone(&rng, looking).expect("there is room");
    // All that belonged to the epoch before has ended; the reader belongs to this one.
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
