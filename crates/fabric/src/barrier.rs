//! A memory barrier that costs one side nothing.
//!
//! Where two threads each store something and then load what the other one stored, at least one of
//! them must see the other. Both need a barrier between their store and their load. If one of them
//! does that for every operation and the other one seldom, the first one keeps its load behind its
//! store for the compiler only ([`light`]), and the other one makes every thread of the process pass a
//! barrier ([`heavy`], Linux' membarrier): wherever the first thread is then, either its store is seen
//! after [`heavy`], or its load comes after what was stored before.

use crate::sync::{Ordering, compiler_fence, fence};
use crate::sys;

/// Has the system know of this process what it takes for [`heavy`]. Nobody needs to call it; but where a process has
/// several threads already, whoever needs a barrier first waits some milliseconds for that.
pub fn prepare() {
    sys::can_barrier_everywhere();
}

/// Between a store and a load of the thread that does this often.
#[inline]
pub fn light() {
    if sys::can_barrier_everywhere() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Between a store and a load of a thread that does this seldom: a system call.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if sys::can_barrier_everywhere() {
        sys::barrier_everywhere();
    }
}
