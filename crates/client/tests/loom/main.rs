//! A model for loom of the interplay between a session and its keeper, under all interleavings.
//!
//! The gate between session and keeper is compiled here a second time, from the same file, with loom's atomics and
//! locks behind `crate::sync`; and so is the fabric's barrier. So the checked code is the code that runs. The
//! membarrier is simulated by the model that the fabric's loom tests define, which also define the
//! [faults](fabric::Fault). Each fault must make some model fail: a model that passes in spite of its fault checks
//! nothing.
//!
//! An operation is represented by an access to a cell, and loom asserts that no two accesses are concurrent. A keeper
//! that learns from the gate that the operation's epoch has passed accesses the cell, too, like a process that changes
//! memory of that epoch. So if an operation goes on after its epoch has passed, or its end did not *happen before* the
//! keeper's access, the execution ends with a panic.

// Promise MEM-5: Keepers acknowledge epochs and views after older operations end.

#[allow(dead_code)] // The models do not call `prepare`.
#[path = "../../../fabric/src/barrier.rs"]
mod barrier;
#[path = "../../../fabric/tests/loom/sync.rs"]
// The gate needs only a part of this module.
#[allow(dead_code)]
mod fabric;
#[path = "../../src/logic/gate/mod.rs"]
// The models use the gate's views and epochs, but not its blocks.
#[allow(dead_code, rustdoc::broken_intra_doc_links)]
mod gate;
#[path = "../../../fabric/tests/loom/sys.rs"]
#[allow(dead_code)]
mod sys;

/// Loom's types, under the names that the client's `sync` module and the fabric's export.
mod sync {
    pub(crate) use crate::barrier;
    pub(crate) use crate::fabric::{AtomicU64, Mutex, MutexGuard, Ordering, compiler_fence, fence};
    // These types are not part of the models, so loom does not try all orders of accesses to them.
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize};
}

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fusee_core::host::PinnedOperations;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId};
use fusee_core::view::{Geometry, View};
use loom::cell::UnsafeCell;
use loom::thread;

use fabric::{Fault, inject};
use gate::SessionGate;
use sys::{BarrierThread, Membarrier, choose};

/// Memory that operations of the first epoch use. Reclaiming it too early shows as a data race.
struct Known(UnsafeCell<u32>);

// SAFETY: shared accesses must not be concurrent. Loom checks exactly this, and panics otherwise.
#[allow(unsafe_code)]
unsafe impl Sync for Known {}

impl Known {
    fn access(&self) {
        // SAFETY: the pointer is valid in the closure, and loom panics if another access is concurrent.
        #[allow(unsafe_code)]
        self.0.with_mut(|known| unsafe { *known += 1 });
    }
}

fn view() -> Arc<View> {
    Arc::new(View {
        number: 1,
        cluster: ClusterId::from_word(1).expect("not 0"),
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry::default(),
        members: Vec::new(),
        regions: Vec::new(),
        directory: vec![0],
        subtables: Vec::new(),
        change: None,
    })
}

/// Begins an operation as `LocalEpochs::begin` does: publishes the local epoch, and then checks that it is still the
/// newest. Returns the local epoch in which the operation is pinned.
fn begin(gate: &SessionGate) -> u64 {
    loop {
        let local_epoch = gate.local_epoch();
        gate.publish(PinnedOperations { oldest: Some(local_epoch), suspended: 0 });
        if gate.local_epoch() == local_epoch {
            return local_epoch;
        }
        end(gate);
    }
}

fn end(gate: &SessionGate) {
    gate.publish(PinnedOperations { oldest: None, suspended: 0 });
}

/// Runs a session with this number of operations, one after the other, concurrently with a keeper that publishes this
/// number of epochs.
fn operations_beside_epochs(operations: usize, epochs: u64, preemptions: usize) {
    // The counters are atomics of the standard library, because they outlive loom's executions and must not be part of
    // them.
    let passed = Arc::new(AtomicU64::new(0));
    let held = Arc::new(AtomicU64::new(0));
    let tallies = (passed.clone(), held.clone());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let view = view();
    builder.check(move || {
        let gate = Arc::new(SessionGate::new(ClientId(1), view.clone(), 0));
        let known = Arc::new(Known(UnsafeCell::new(0)));
        let session = {
            let gate = gate.clone();
            let known = known.clone();
            let reached = BarrierThread::new(0);
            thread::spawn(move || {
                reached.run(|| {
                    for _ in 0..operations {
                        if begin(&gate) == 0 {
                            known.access();
                        }
                        end(&gate);
                    }
                });
            })
        };
        for epoch in 1..=epochs {
            gate.publish_epoch(epoch);
            let pinned_in = gate.heartbeat().pinned_in;
            assert!(pinned_in <= epoch);
            if pinned_in > 0 {
                known.access()
            } else {
                held.fetch_add(1, Ordering::Relaxed);
            }
            passed.fetch_add(u64::from(pinned_in > 0), Ordering::Relaxed);
        }
        session.join().expect("it ends");
        assert_eq!(gate.heartbeat().pinned_in, epochs, "an idle session holds up nobody");
    });
    // In some executions an epoch must have passed at once, in others an operation must have held it up. Otherwise the
    // model checks less than intended.
    assert!(tallies.0.load(Ordering::Relaxed) > 0 && tallies.1.load(Ordering::Relaxed) > 0);
}

#[test]
fn an_epoch_passes_after_its_operations_with_own_barriers() {
    choose(Membarrier::Missing);
    operations_beside_epochs(2, 1, 3);
}

#[test]
fn an_epoch_passes_after_its_operations_with_membarrier() {
    choose(Membarrier::Works);
    operations_beside_epochs(1, 1, 3);
}

/// The keeper passes its barrier once for every local epoch, and not each time that it reads the gate.
#[test]
fn epochs_pass_one_after_the_other() {
    choose(Membarrier::Missing);
    operations_beside_epochs(1, 2, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_keepers_barrier() {
    choose(Membarrier::DoesNothing);
    operations_beside_epochs(1, 1, 3);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_sessions_barriers() {
    choose(Membarrier::Missing);
    inject(Fault::NoFence);
    operations_beside_epochs(1, 1, 3);
}

/// The end of an operation is a Release store, and the keeper reads it by an Acquire load; this fault makes them
/// Relaxed.
#[test]
#[should_panic(expected = "Causality violation")]
fn with_ends_that_nobody_acquires() {
    choose(Membarrier::Missing);
    inject(Fault::Relaxed);
    operations_beside_epochs(1, 1, 3);
}
