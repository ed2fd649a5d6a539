//! A memory barrier that costs one side nothing.
//!
//! If two threads each store a word and then load the other's word, at least one of them must see the other's store.
//! Both need a barrier between their store and their load. If one thread does that for every operation and the other
//! seldom, the cost can move to the other: the first thread only stops the compiler from moving the load before the
//! store ([`light`]), and the other makes every thread of the process pass a barrier ([`heavy`], Linux' membarrier).
//! Wherever the first thread is at that time, either its store is seen after [`heavy`], or its load comes after the
//! stores that precede [`heavy`].

use crate::sync::{Ordering, compiler_fence, fence};
use crate::sys;

/// Registers this process with the kernel for [`heavy`]. The first barrier does that if no call came before, but in
/// a process with several threads the registration takes some milliseconds.
pub fn prepare() {
    sys::can_barrier_everywhere();
}

/// The barrier between store and load in the thread that passes it often.
#[inline]
pub fn light() {
    if sys::can_barrier_everywhere() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The barrier between store and load in a thread that passes it seldom: a system call.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if sys::can_barrier_everywhere() {
        sys::barrier_everywhere();
    }
}
