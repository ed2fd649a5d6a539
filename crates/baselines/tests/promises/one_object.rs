//! One object under a lock, and behind a sequencer: both are linearizable as long as nobody dies.

use crate::support::{Load, VALUE_BYTES, findings};
use fusee_baselines::lock::{self, Locked};
use fusee_baselines::sequencer::{self, Sequenced};

const BYTES: u32 = VALUE_BYTES as u32;

fn load(pool_bytes: u64) -> Load {
    Load {
        memory_nodes: 3,
        pool_bytes,
        clients: 4,
        coroutines: 2,
        operations: 50,
        keys: 1,
        inserts: false,
        deletes: false,
    }
}

#[test]
fn a_locked_object_is_linearizable() {
    for seed in 0..50 {
        let load = load(lock::pool_bytes(BYTES));
        let findings = findings(seed, load, |fabric, nodes| Locked::new(fabric, nodes, BYTES));
        assert!(findings.is_clean(), "seed {seed}: {findings:?}");
        assert!(findings.overlapping > 100, "{findings:?}");
    }
}

#[test]
fn a_sequenced_object_is_linearizable() {
    for seed in 0..50 {
        let load = load(sequencer::pool_bytes(BYTES));
        let findings = findings(seed, load, |fabric, nodes| Sequenced::new(fabric, nodes, BYTES));
        assert!(findings.is_clean(), "seed {seed}: {findings:?}");
        assert!(findings.overlapping > 100, "{findings:?}");
    }
}
