//! The system calls of the fabric that the models need: membarrier.
//!
//! Loom has no membarrier, so this is a model of the promise in its manual: between its call and
//! its return every other thread passes a full barrier, *at some point of its instructions*, and
//! accesses of either thread before the barrier are ordered before those of the other after it. A
//! session asks before each of its accesses whether a barrier is due, and passes it there. The
//! caller waits until every session has passed or ended. The place of the barrier in a session is
//! one more thing of which loom tries all possibilities. Two facts are assumed: the kernel keeps
//! the promise, and the processor orders no less than loom does.

use std::cell::Cell;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};

/// The most sessions of a model.
const SESSIONS: usize = 2;
/// The calls passed by a session that has ended or does not exist.
const ALL: usize = usize::MAX;

/// The behaviour of membarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membarrier {
    /// It is missing: sessions pass barriers of their own.
    Missing,
    /// It does what its manual says.
    Works,
    /// It claims to work, and does nothing: a fault.
    DoesNothing,
}

std::thread_local! {
    static MEMBARRIER: Cell<Membarrier> = const { Cell::new(Membarrier::Missing) };
}

loom::lazy_static! {
    static ref CALLS: AtomicUsize = AtomicUsize::new(0);
    /// For each session, the number of membarrier calls that have taken effect on it.
    static ref PASSED: [AtomicUsize; SESSIONS] = std::array::from_fn(|_| AtomicUsize::new(ALL));
}

loom::thread_local! {
    /// The session of this thread, and the number of calls that it has passed.
    static SESSION: Cell<Option<(usize, usize)>> = Cell::new(None);
}

/// Chooses the behaviour of membarrier in the models that this test runs from now on.
pub(crate) fn choose(membarrier: Membarrier) {
    MEMBARRIER.set(membarrier);
}

/// A thread that membarrier reaches. Made before the thread starts.
pub(crate) struct BarrierThread(usize);

impl BarrierThread {
    pub(crate) fn new(session: usize) -> BarrierThread {
        PASSED[session].store(0, Ordering::Relaxed);
        BarrierThread(session)
    }

    /// Runs `thread` as a thread that membarrier reaches.
    pub(crate) fn run(self, thread: impl FnOnce()) {
        SESSION.with(|session| session.set(Some((self.0, 0))));
        thread();
        // A thread that does not run passed its barrier when it was taken off the processor.
        fence(Ordering::SeqCst);
        PASSED[self.0].store(ALL, Ordering::Release);
    }
}

/// Lets a barrier of another thread take effect on this one.
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
