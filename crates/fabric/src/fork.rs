//! Forks: values that know the process in which they were made.
//!
//! A fork copies the memory of a process, its descriptors, and only the thread that called it. So the child
//! has the parts of a session, but cannot use them: pools are not mapped (`sys`), driver and keeper do not
//! run, locks may be held for ever by threads that do not exist there, and connections, epolls and queue pairs
//! belong to the parent. A verb of the child would be one of the parent's session, and the end of a session in
//! the child would end it for the parent.
//!
//! So every value that talks to other processes remembers the process in which it was [made](OriginProcess), and does
//! nothing in another one. A value that ends something on drop is kept [at home](ProcessBound). A static of the
//! process begins anew (`PerProcess`) in the child, which may open clients of its own. `vfork`, `posix_spawn`
//! and `fork` with `exec` need none of this: their children run no code of ours, and `exec` closes every
//! descriptor.
//!
//! A process notices a fork by a word of memory that the kernel sets to zero in the child (`MADV_WIPEONFORK`),
//! however the fork is made. Where that is missing, a handler of `pthread_atfork` sets it. A check costs two
//! loads.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys;

/// The process in which a value was made.
#[derive(Clone, Copy, Debug)]
pub struct OriginProcess {
    /// The number of the running process, among processes that came from one another by forks; 0: not numbered
    /// yet.
    running: &'static AtomicU32,
    made_in: u32,
}

impl OriginProcess {
    /// Returns the running process.
    pub fn here() -> OriginProcess {
        let running = sys::word_wiped_by_forks();
        // Relaxed, here and below: forks happen before all that the child does.
        let named = running.load(Ordering::Relaxed);
        OriginProcess { running, made_in: if named == 0 { number_process(running) } else { named } }
    }

    /// Returns whether that is still the running process. If not, the running process came from it by a fork.
    #[inline]
    pub fn is_here(self) -> bool {
        self.running.load(Ordering::Relaxed) == self.made_in
    }
}

/// Numbers the running process, differently from all processes before it.
#[cold]
fn number_process(running: &AtomicU32) -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // The parent's registration may not hold for the child.
    sys::register_again();
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let named = running.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    // Of two threads that number the process, one succeeds, and both use its number.
    named.map_or_else(|found| found, |_| next)
}

/// A value that is dropped in the process that made it, and never in that process's children.
pub struct ProcessBound<T> {
    value: ManuallyDrop<T>,
    origin: OriginProcess,
}

impl<T> ProcessBound<T> {
    /// Keeps a value made in this process.
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
            // SAFETY: this happens once, and there is no use of the value afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A static that begins anew in each process.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<(OriginProcess, T)>,
}

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value of this process. It is made without a lock, which the parent could have held at the
    /// fork.
    pub(crate) fn get(&self) -> &'static T {
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or it was leaked below, for ever.
            if let Some((origin, value)) = unsafe { current.as_ref() }
                && origin.is_here()
            {
                return value;
            }
            let made = Box::into_raw(Box::new((OriginProcess::here(), T::default())));
            // Release: pairs with the acquires.
            let release = Ordering::AcqRel;
            let acquire = Ordering::Acquire;
            match self.current.compare_exchange(current, made, release, acquire) {
                // The parent's value is not freed: it is the parent's.
                Ok(_) => current = made,
                Err(found) => {
                    // SAFETY: just made, and no other thread knows it.
                    drop(unsafe { Box::from_raw(made) });
                    current = found;
                }
            }
        }
    }
}
