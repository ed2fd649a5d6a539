//! What threads do to each other in shared memory, under all interleavings: models for loom.
//!
//! The modules `copy`, `order`, `gate` and `sessions` of the fabric are compiled here a second
//! time, from the same files, with loom's atomics and locks behind `crate::sync`. So what is
//! checked is the code that runs, not a model of it. Loom tries the orders of the steps of two or
//! three threads, all of them or those with few preemptions, see [`bounded`], and lets a load
//! return whatever value the memory model of C++ allows.
//!
//! What rests on a fence or an ordering comes with a [`Fault`](sync::Fault) that must break it: a
//! fence that does nothing, orderings that are all relaxed. A model that passes with its fault
//! sees nothing.
//!
//! What loom cannot show, and what these models assume, is in docs/testing.md:
//! - `rep movsq` and `rep stosq` are out of reach; the models copy runs too short for them;
//! - membarrier is a model of what its manual promises, see [`sys`];
//! - loom takes sequentially consistent *accesses* for acquire-release ones (fences it takes
//!   seriously), knows no load that is fulfilled by a later store (load buffering), and its weak
//!   compare-and-swap never fails without reason.

#[path = "../../src/copy.rs"]
#[allow(unsafe_code)]
// The models empty no memory.
#[allow(dead_code)]
mod copy;
#[path = "../../src/shm/gate.rs"]
mod gate;
#[path = "../../src/order.rs"]
#[allow(unsafe_code)]
mod order;
#[path = "../../src/shm/sessions.rs"]
// Only the server, which is not in the models, counts sessions.
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

/// Counts how many executions of a model ended in a certain way. Of the standard library's
/// atomics: it outlives the executions and is no part of them.
#[derive(Debug, Default)]
struct Tally(AtomicU64);

impl Tally {
    fn count(&self, happened: bool) {
        self.0.fetch_add(u64::from(happened), Ordering::Relaxed);
    }

    /// A model in which this never happens checks less than its author thinks.
    fn assert_happened(&self) {
        assert_ne!(self.0.load(Ordering::Relaxed), 0, "no execution came there");
    }
}

/// A tally, for the test and for its model.
fn tallies() -> (Arc<Tally>, Arc<Tally>) {
    let tally = Arc::new(Tally::default());
    (tally.clone(), tally)
}

/// For models with more executions than there is time for: all those in which at most so many
/// steps take the processor away from a thread that could go on. A wait is no such step.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // Waiting takes branches, too.
    builder.max_branches = 20_000;
    builder.check(model);
}
