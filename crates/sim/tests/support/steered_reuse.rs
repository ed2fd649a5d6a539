//! Reuse of memory, steered by hand: objects are freed and marked between a look at a free bitmap and the moment for
//! which this look counts.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Nanos, NetworkOptions, Rng, SimClient, SimCluster};

use super::{alone, small, stepwise};

/// Longer than anything takes in a cluster without time.
const HELD_NS: Nanos = 1 << 60;
/// A value of which three objects fit in a block.
const VALUE: [u8; 1100] = [1; 1100];
/// The greatest number of steps before its end at which a look is held up.
const STEPS: u64 = 12;

/// Makes a client that is about to look at the bitmap of its first block, at the end of an INSERT.
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

/// The owner of a block READs its free bitmap, and this look is delayed for long. Meanwhile an epoch begins, one
/// session reads, another replaces the object that is being read and marks it as free, and all operations of the
/// epoch before end. Objects found by the look may be reused only when the reader has ended. Returns whether the
/// owner was held up before its look.
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
    // All operations of the epoch before have ended; the reader belongs to this epoch.
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
