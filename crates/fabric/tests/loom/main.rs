//! Models for loom: threads that share memory, under all interleavings.
//!
//! The modules `copy`, `order`, `gate` and `sessions` of the fabric are compiled here a second time, from the same
//! files, with loom's atomics and locks behind `crate::sync`. So the code under test is the code that runs, not a
//! copy of it. Loom tries the orders of the steps of two or three threads: all orders, or those with few
//! preemptions (see [`bounded`]). It lets a load return any value that the memory model of C++ allows.
//!
//! If a model depends on a memory fence or an ordering, there is a [`Fault`](sync::Fault) that must make the model
//! fail: memory fences that do nothing, or orderings that are all relaxed. A model that passes with its fault would
//! check nothing.
//!
//! The limits of loom and the assumptions of these models are in docs/testing.md:
//! - `rep movsq` and `rep stosq` are out of loom's reach; the models copy runs that are too short for them;
//! - membarrier is modelled by the promise in its manual (see [`sys`]);
//! - loom treats sequentially consistent *accesses* as acquire-release accesses (it models memory fences exactly), has
//!   no loads that are fulfilled by a later store (load buffering), and its weak compare-and-swap never fails
//!   spuriously.

#[path = "../../src/copy.rs"]
#[allow(unsafe_code)]
// The functions that zero memory are unused, because the models never zero memory.
#[allow(dead_code)]
mod copy;
#[path = "../../src/shm/gate.rs"]
mod gate;
#[path = "../../src/order.rs"]
#[allow(unsafe_code)]
mod order;
#[path = "../../src/shm/sessions.rs"]
// Only the server counts sessions, and the server is not in the models.
#[allow(dead_code)]
mod sessions;

#[allow(unsafe_code)]
mod fence;
mod peer;
mod sync;
mod sys;
#[allow(unsafe_code)]
mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of executions of a model that ended in a certain way. The counter uses the standard library's atomics,
/// because it outlives the executions and is not part of them.
#[derive(Debug, Default)]
struct Tally(AtomicU64);

impl Tally {
    fn count(&self, happened: bool) {
        self.0.fetch_add(u64::from(happened), Ordering::Relaxed);
    }

    /// Asserts that some execution ended this way. Otherwise a model could check less than it seems to.
    fn assert_happened(&self) {
        assert_ne!(self.0.load(Ordering::Relaxed), 0, "no execution came there");
    }
}

/// Makes a tally. Returns one handle for the test and one for its model.
fn tallies() -> (Arc<Tally>, Arc<Tally>) {
    let tally = Arc::new(Tally::default());
    (tally.clone(), tally)
}

/// Runs a model that has too many executions to try all. Tries only the executions in which at most `preemptions` steps
/// take the processor away from a thread that could go on. A wait is no preemption.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // The limit is high because waits count as branches, too.
    builder.max_branches = 20_000;
    builder.check(model);
}
