//! One object under a lock, and one behind a sequencer, are linearizable as long as no client dies.

use fusee_baselines::lock::RemoteLock;
use fusee_baselines::object::{Exclusion, OneObjectClient};
use fusee_baselines::sequencer::Sequencer;

use crate::support::{HistoryLoad, VALUE_BYTES, findings};

const BYTES: u32 = VALUE_BYTES as u32;

fn is_linearizable<T: Exclusion>() {
    let load = HistoryLoad {
        memory_nodes: 3,
        pool_bytes: T::pool_bytes(BYTES),
        clients: 4,
        coroutines: 2,
        operations: 50,
        keys: 1,
        inserts: false,
        deletes: false,
    };
    for seed in 0..50 {
        let open = |fabric, nodes: &[_]| OneObjectClient::<_, T>::new(fabric, nodes, BYTES);
        let findings = findings(seed, load, open);
        assert!(findings.is_clean(), "seed {seed}: {findings:?}");
        assert!(findings.overlapping > 100, "{findings:?}");
    }
}

#[test]
fn a_locked_object_is_linearizable() {
    is_linearizable::<RemoteLock>();
}

#[test]
fn a_sequenced_object_is_linearizable() {
    is_linearizable::<Sequencer>();
}
