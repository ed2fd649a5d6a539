//! A memory barrier that is free for the thread that passes it often.
//!
//! If two threads each store a word and then load the other's word, at least one of them must see the other's
//! store. For that, each thread needs a barrier between its store and its load. If one thread (A) does this for
//! every operation, and the other (B) seldom, B can pay for both barriers. A only stops the compiler from moving
//! its load before its store ([`light`]). B makes every thread of the process execute a barrier ([`heavy`], Linux'
//! membarrier). Wherever A is when that happens, either B sees A's store after [`heavy`], or A's load comes after
//! the stores that B made before [`heavy`].

use crate::sync::{Ordering, compiler_fence, fence};
use crate::sys;

/// Registers this process with the kernel for [`heavy`]. Without a call of this function, the first barrier registers
/// the process, but registration takes some milliseconds in a process with several threads.
pub fn prepare() {
    sys::can_barrier_everywhere();
}

/// The barrier between a store and a load of thread A, which passes the barrier often.
#[inline]
pub fn light() {
    if sys::can_barrier_everywhere() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The barrier between a store and a load of thread B, which passes the barrier seldom. Makes a system call.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if sys::can_barrier_everywhere() {
        sys::barrier_everywhere();
    }
}
