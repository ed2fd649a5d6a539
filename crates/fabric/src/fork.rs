//! Protection against forks: values that know the process in which they were made.
//!
//! A fork copies the memory of a process, its descriptors, and only the thread that forked. So the child has the
//! parts of a session, but cannot use them: its memory lacks the pools (`sys`), no driver and keeper run, threads
//! that do not exist in the child can hold locks for ever, and connections, epolls and queue pairs belong to the
//! parent. A verb of the child would be a verb of the parent's session, and a session that ends in the child would
//! end in the parent too.
//!
//! So every value that talks to other processes remembers the process in which it was [made](OriginProcess), and
//! does nothing in another process. A [`ProcessBound`] keeps a value whose drop ends something, and drops it only
//! in its own process. A static of the process (`PerProcess`) begins anew in the child, which is allowed to open
//! clients of its own. `vfork`, `posix_spawn` and `fork` with `exec` need no protection: their children run no code
//! of this crate, and `exec` closes every descriptor.
//!
//! A process notices that it is a child by a word of memory that the kernel sets to zero in children
//! (`MADV_WIPEONFORK`), however the fork is made. On kernels without that, a handler of `pthread_atfork` sets the
//! word. A check costs two loads.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys;

/// The process in which a value was made.
#[derive(Clone, Copy, Debug)]
pub struct OriginProcess {
    /// The number of the running process, unique among the processes that came from one another by forks; 0: not
    /// numbered yet.
    running: &'static AtomicU32,
    made_in: u32,
}

impl OriginProcess {
    /// Returns an identifier of the running process.
    pub fn here() -> OriginProcess {
        let running = sys::word_wiped_by_forks();
        // Relaxed, here and below: a fork happens before everything that the child does.
        let named = running.load(Ordering::Relaxed);
        OriginProcess { running, made_in: if named == 0 { number_process(running) } else { named } }
    }

    /// Returns whether this is still the running process. If not, the running process descends from it by forks.
    #[inline]
    pub fn is_here(self) -> bool {
        self.running.load(Ordering::Relaxed) == self.made_in
    }
}

/// Gives the running process a number that none of its ancestors has.
#[cold]
fn number_process(running: &AtomicU32) -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // The parent's registration for membarrier is possibly not valid in the child, so the child registers too.
    sys::register_again();
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let named = running.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    // If two threads number the process, one of them succeeds, and both use that thread's number.
    named.map_or_else(|found| found, |_| next)
}

/// A value that is dropped in the process that made it, and never in that process's children.
pub struct ProcessBound<T> {
    value: ManuallyDrop<T>,
    origin: OriginProcess,
}

impl<T> ProcessBound<T> {
    /// Wraps a value that was made in this process.
    pub fn new(value: T) -> ProcessBound<T> {
        ProcessBound { value: ManuallyDrop::new(value), origin: OriginProcess::here() }
    }

    /// Returns whether this is the process that made the value.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }
}

impl<T> Deref for ProcessBound<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for ProcessBound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: `value` is dropped only here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A static that begins anew in each process, also after a fork.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<(OriginProcess, T)>,
}

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value of this process. Makes it without a lock, because another thread of the parent could have
    /// held the lock at the fork.
    pub(crate) fn get(&self) -> &'static T {
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null, or leads to a box that was leaked below and is never freed.
            if let Some((origin, value)) = unsafe { current.as_ref() }
                && origin.is_here()
            {
                return value;
            }
            let made = Box::into_raw(Box::new((OriginProcess::here(), T::default())));
            // Release: pairs with the acquires, so that other threads see the whole value.
            let release = Ordering::AcqRel;
            let acquire = Ordering::Acquire;
            match self.current.compare_exchange(current, made, release, acquire) {
                // The parent's value is not freed, because its drop could disturb the parent.
                Ok(_) => current = made,
                Err(found) => {
                    // SAFETY: the pointer is from `Box::into_raw` above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    current = found;
                }
            }
        }
    }
}
