//! The system calls of the fabric, as far as the models need them: membarrier.
//!
//! Loom knows no membarrier, so this is a model of what its manual promises: between its call and
//! its return every other thread passes a full barrier, *at some point of its instructions*, and
//! what either thread did before the barrier is ordered before what the other does after it. A
//! session asks before each of its accesses whether a barrier is due, and passes it there; the
//! caller waits until every session has passed or ended. Where in a session it falls is one more
//! thing of which loom tries all possibilities. That the kernel keeps the promise, and that the
//! processor orders nothing less than loom does, is assumed.

use std::cell::Cell;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};

/// Sessions at most.
const SESSIONS: usize = 2;
/// What a session has passed that has ended, or is none.
const ALL: usize = usize::MAX;

/// What membarrier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membarrier {
    /// It is missing: sessions pass barriers of their own.
    Missing,
    /// What its manual says.
    Works,
    /// It says that it works, and does nothing: a fault.
    DoesNothing,
}

std::thread_local! {
    static MEMBARRIER: Cell<Membarrier> = const { Cell::new(Membarrier::Missing) };
}

loom::lazy_static! {
    static ref CALLS: AtomicUsize = AtomicUsize::new(0);
    /// Of each session, the calls of membarrier that have taken effect on it.
    static ref PASSED: [AtomicUsize; SESSIONS] = std::array::from_fn(|_| AtomicUsize::new(ALL));
}

loom::thread_local! {
    /// Which session this thread is, and the calls that it has passed.
    static SESSION: Cell<Option<(usize, usize)>> = Cell::new(None);
}

/// Chooses what membarrier does in the models that this test runs from now on.
pub(crate) fn choose(membarrier: Membarrier) {
    MEMBARRIER.set(membarrier);
}

/// A thread that membarrier reaches. Made before the thread starts.
pub(crate) struct Reached(usize);

impl Reached {
    pub(crate) fn new(session: usize) -> Reached {
        PASSED[session].store(0, Ordering::Relaxed);
        Reached(session)
    }

    /// Runs what the thread is to do.
    pub(crate) fn run(self, thread: impl FnOnce()) {
        SESSION.with(|session| session.set(Some((self.0, 0))));
        thread();
        // A thread that does not run has passed its barrier when it was taken off the processor.
        fence(Ordering::SeqCst);
        PASSED[self.0].store(ALL, Ordering::Release);
    }
}

/// Where a barrier of another thread may take effect on this one.
pub(crate) fn interrupt() {
    if MEMBARRIER.get() != Membarrier::Works {
        return;
    }
    let Some((session, passed)) = SESSION.with(Cell::get) else { return };
    let calls = CALLS.load(Ordering::Acquire);
    if calls != passed {
        fence(Ordering::SeqCst);
        PASSED[session].store(calls, Ordering::Release);
        SESSION.with(|of| of.set(Some((session, calls))));
    }
}

pub(crate) fn can_barrier_everywhere() -> bool {
    MEMBARRIER.get() != Membarrier::Missing
}

pub(crate) fn barrier_everywhere() {
    if MEMBARRIER.get() != Membarrier::Works {
        return;
    }
    let call = CALLS.fetch_add(1, Ordering::AcqRel) + 1;
    for passed in PASSED.iter() {
        while passed.load(Ordering::Acquire) < call {
            loom::thread::yield_now();
        }
    }
    fence(Ordering::SeqCst);
}
