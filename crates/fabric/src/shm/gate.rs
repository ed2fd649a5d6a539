//! The gate that a session passes around each run of verbs. Other threads can shut it.
//!
//! The session's side must cost next to nothing; the closer's side can be slow. This is Dekker's protocol with all
//! the cost on one side (as in Linux' membarrier documentation, and in folly's hazard pointers):
//!
//! ```text
//! session                         closer
//! S1 executing = 1                C1 state = fenced
//!    (no barrier)                 C2 membarrier: every running thread passes a full barrier
//! S2 if state != open: leave      C3 wait until executing == 0
//! S3 verbs
//! S4 executing = 0 (release)
//! ```
//!
//! Why no verb executes after C3: consider the moment in the session's instruction stream at which the barrier of
//! C2 took effect (a thread that was not running passes a barrier when it is scheduled). If S1 lies before that
//! moment, S1 is visible to C3, which waits for S4. If S1 lies after it, S2 lies after it too, therefore sees C1,
//! and the session leaves. Without C2, the store of S1 could still be in the store buffer while S2 reads the old
//! state, and both sides would go on.
//!
//! If the kernel has no membarrier, a full memory barrier is executed between S1 and S2, and another one between C1 and
//! C3.
//!
//! A thread that is stopped between S1 and S4 delays the closer. Both belong to one process, so the closer is
//! stopped then, too.

use fusee_core::verbs::VerbError;

use crate::sync::{AtomicU32, Ordering, back_off, compiler_fence, fence};
use crate::sys;

const OPEN: u32 = 0;
const FENCED: u32 = 1;
const GONE: u32 = 2;

/// Reasons for which a gate is shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateShutReason {
    /// The client has been fenced.
    Fenced,
    /// The memory node has ended.
    Gone,
}

/// The gate of one session to one pool. It has a cache line of its own, because the session writes it often.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Gate {
    executing: AtomicU32,
    state: AtomicU32,
    /// Whether the session has to execute a full barrier itself, because the kernel has no membarrier.
    own_barrier: bool,
}

/// The proof that the session is inside its gate. Dropping it leaves the gate, also when a verb panics.
pub(crate) struct ShmGateGuard<'a>(&'a Gate);

impl Gate {
    /// Makes an open gate, inside which no session is.
    pub(crate) fn new() -> Gate {
        Gate {
            executing: AtomicU32::new(0),
            state: AtomicU32::new(OPEN),
            own_barrier: !sys::can_barrier_everywhere(),
        }
    }

    /// Lets the session in if the gate is open. Only one thread at a time is allowed to call this.
    #[inline]
    pub(crate) fn enter(&self) -> Result<ShmGateGuard<'_>, VerbError> {
        self.executing.store(1, Ordering::Relaxed);
        if self.own_barrier {
            fence(Ordering::SeqCst);
        } else {
            // The closer's membarrier orders the store and the load in the processor. The compiler must not swap
            // them either.
            compiler_fence(Ordering::SeqCst);
        }
        let inside = ShmGateGuard(self);
        // Acquire: the verbs inside the gate come after this load.
        match self.state.load(Ordering::Acquire) {
            OPEN => Ok(inside),
            FENCED => Err(VerbError::Fenced),
            _ => Err(VerbError::Unreachable),
        }
    }

    /// Shuts the gate; the session can still be inside. The first reason stays, except that a fence replaces
    /// another reason.
    pub(crate) fn shut(&self, why: GateShutReason) {
        // Relaxed: the barrier of `wait_empty` orders the store.
        let open = OPEN;
        let relaxed = Ordering::Relaxed;
        match why {
            // A plain store would be enough. But loom considers it possible that a store comes between the load and
            // the store of an exchange.
            GateShutReason::Fenced => drop(self.state.swap(FENCED, relaxed)),
            GateShutReason::Gone => {
                // The exchange fails if the gate is already shut.
                let _ = self.state.compare_exchange(open, GONE, relaxed, relaxed);
            }
        }
    }

    /// Waits until no session is inside any of these gates. The caller has shut all of them by [`Gate::shut`].
    pub(crate) fn wait_empty<'a>(gates: impl Iterator<Item = &'a Gate> + Clone) {
        fence(Ordering::SeqCst);
        if gates.clone().any(|gate| !gate.own_barrier) {
            sys::barrier_everywhere();
        }
        for gate in gates {
            let mut spins = 0u32;
            // Acquire: pairs with the release on leaving, so that all verbs of the session happen before the
            // return.
            while gate.executing.load(Ordering::Acquire) != 0 {
                back_off(spins);
                spins = spins.saturating_add(1);
            }
        }
    }
}

impl Drop for ShmGateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the session's verbs come before this store.
        self.0.executing.store(0, Ordering::Release);
    }
}
