//! Loom's types under the names of the fabric's own `sync`, and the faults that a test can inject.
//!
//! A fault is in force for the thread of the test that sets it; loom runs all threads of a model on that thread.
//! Every access is also a point at which a membarrier of another thread can take effect (see [`sys`](crate::sys)).

use std::cell::Cell;

use loom::sync::atomic as loomed;

use crate::sys;

pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic::Ordering;

/// A fault of a model: the memory fences, or the orderings of atomic accesses, that the fault breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No property is broken.
    None,
    /// Memory fences do nothing.
    NoFence,
    /// All loads, stores and exchanges are relaxed.
    Relaxed,
}

loom::lazy_static! {
    static ref STEP: loomed::AtomicU32 = loomed::AtomicU32::new(0);
}

/// Marks a step of the model. Must be called before every access.
///
/// Loom reorders only steps that touch the same variable, and for each variable it remembers only the last access. So a
/// thread that loads a word and then swaps it, as a WRITE of a part of a word does, hides from loom that another thread
/// has read the word before, and loom leaves out orders. Therefore all steps also store to one common variable, which
/// makes loom try all orders of all steps. No thread loads that variable, so it synchronizes nothing.
fn step() {
    STEP.store(0, Ordering::Relaxed);
    sys::interrupt();
}

std::thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

/// Injects a fault into the models that this test runs from now on.
pub(crate) fn inject(fault: Fault) {
    FAULT.set(fault);
}

/// Returns the ordering of an access: `order`, unless the fault makes it relaxed.
fn ordering(order: Ordering) -> Ordering {
    if FAULT.get() == Fault::Relaxed { Ordering::Relaxed } else { order }
}

pub(crate) fn fence(order: Ordering) {
    if FAULT.get() != Fault::NoFence {
        loomed::fence(order);
    }
}

/// Does nothing, because loom does not reorder as compilers do: it lets every load be early anyway.
pub(crate) fn compiler_fence(_: Ordering) {}

/// A wait for another process. It has no time limit, because the processes of a model always answer.
#[derive(Debug)]
pub(crate) struct Patience;

impl Patience {
    pub(crate) fn of(_: std::time::Duration) -> Patience {
        Patience
    }

    pub(crate) fn wait(&mut self) -> bool {
        back_off(0);
        true
    }
}

pub(crate) fn back_off(_: u32) {
    // Tells loom that only another thread can change the value that the caller waits for.
    loom::thread::yield_now();
}

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name(loomed::$name);

        // The modules under test do not use every method of both types.
        #[allow(dead_code)]
        impl $name {
            pub(crate) fn new(value: $int) -> $name {
                $name(loomed::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $int {
                step();
                self.0.load(ordering(order))
            }

            pub(crate) fn store(&self, value: $int, order: Ordering) {
                step();
                self.0.store(value, ordering(order));
            }

            pub(crate) fn swap(&self, value: $int, order: Ordering) -> $int {
                step();
                self.0.swap(value, ordering(order))
            }

            pub(crate) fn compare_exchange(
                &self,
                expected: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                step();
                self.0.compare_exchange(expected, new, ordering(success), ordering(failure))
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                expected: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(expected, new, success, failure)
            }

            pub(crate) fn fetch_add(&self, add: $int, order: Ordering) -> $int {
                step();
                self.0.fetch_add(add, ordering(order))
            }

            pub(crate) fn fetch_max(&self, other: $int, order: Ordering) -> $int {
                step();
                self.0.fetch_max(other, ordering(order))
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                update: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                step();
                self.0.fetch_update(ordering(success), ordering(failure), update)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
