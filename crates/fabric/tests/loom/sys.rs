//! The only system call of the fabric that the models need: membarrier.
//!
//! Loom has no membarrier, so this is a model of the promise in its manual: between its call and its return, every
//! other thread executes a full barrier, *at some point of its instructions*, and accesses of either thread before
//! the barrier are ordered before accesses of the other thread after it. A session checks before each of its
//! accesses whether a barrier is due, and executes it there. The caller waits until every session has executed the
//! barrier or ended. Loom also tries all possible places of the barrier in a session. Two facts are assumed: the
//! kernel keeps the promise, and the processor orders no less than loom does.

use std::cell::Cell;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};

/// The largest number of sessions in a model.
const SESSIONS: usize = 2;
/// The value of `PASSED` for a session that has ended or does not exist: membarrier need not wait for it.
const ALL: usize = usize::MAX;

/// The behaviour of membarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membarrier {
    /// The kernel has no membarrier, so sessions execute barriers of their own.
    Missing,
    /// Membarrier does what its manual says.
    Works,
    /// Membarrier seems to work, but does nothing, which is a fault.
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
    /// The session of this thread, and the number of membarrier calls that have taken effect on it.
    static SESSION: Cell<Option<(usize, usize)>> = Cell::new(None);
}

/// Chooses the behaviour of membarrier in the models that this test runs from now on.
pub(crate) fn choose(membarrier: Membarrier) {
    MEMBARRIER.set(membarrier);
}

/// A thread that membarrier reaches. This value must be made before the thread starts.
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
        // A thread that has ended no longer runs, and executed a barrier when it was taken off the processor.
        fence(Ordering::SeqCst);
        PASSED[self.0].store(ALL, Ordering::Release);
    }
}

/// Lets membarrier calls of other threads take effect on this thread.
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
