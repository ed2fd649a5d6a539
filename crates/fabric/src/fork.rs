//! Forks: which process something was made in.
//!
//! A fork copies the memory of a process, its descriptors and the thread that called it, and no more.
//! So what a session consists of is in the child, too, and is worth nothing there: pools are not mapped
//! (`sys`), driver and keeper do not run, locks may be held for ever by threads that are not
//! there, and connections, epolls and queue pairs are the parent's own. A verb of the child would be one
//! of the parent's session, and the end of a session in the child would end it for the parent.
//!
//! So whatever talks to others remembers where it was [made](Origin), and does nothing elsewhere; what
//! ends something when it is dropped is kept [at home](AtHome); and what there is one of in a process
//! begins anew (`PerProcess`) in the child, which may open clients of its own. `vfork`, `posix_spawn` and
//! `fork` with `exec` need none of this: their children run no code of ours, and every descriptor is
//! closed by `exec`.
//!
//! How a process knows: a word of memory that the kernel sets to zero in the child
//! (`MADV_WIPEONFORK`), however the fork is made; where that is missing, a handler of `pthread_atfork`
//! does it. To ask costs two loads.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The number of the process that runs, among those that came from one another by forks; 0: not named yet.
    running: &'static AtomicU32,
    made_in: u32,
}

impl Origin {
    /// The process that runs.
    pub fn here() -> Origin {
        let running = sys::word_wiped_by_forks();
        // Relaxed, here and below: forks happen before all that the child does.
        let named = running.load(Ordering::Relaxed);
        Origin { running, made_in: if named == 0 { name(running) } else { named } }
    }

    /// Whether that is still the process that runs. False: this one came from it by a fork.
    #[inline]
    pub fn is_here(self) -> bool {
        self.running.load(Ordering::Relaxed) == self.made_in
    }
}

/// Names the process that runs, by a number that no process before it has.
#[cold]
fn name(running: &AtomicU32) -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // What the parent has registered may not hold for the child.
    sys::register_again();
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let named = running.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    // Of two threads that name it, one does.
    named.map_or_else(|found| found, |_| next)
}

/// A value that is dropped in the process that made it, and left alone in children of that.
pub struct AtHome<T> {
    value: ManuallyDrop<T>,
    origin: Origin,
}

impl<T> AtHome<T> {
    /// Made here.
    pub fn new(value: T) -> AtHome<T> {
        AtHome { value: ManuallyDrop::new(value), origin: Origin::here() }
    }

    /// Whether this is the process that made it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }
}

impl<T> Deref for AtHome<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for AtHome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Drop for AtHome<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: once, and nobody sees it any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A static that begins anew in each process.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<(Origin, T)>,
}

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// That of this process. It is made without a lock, which the parent could have held at the fork.
    pub(crate) fn get(&self) -> &'static T {
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or it was leaked below, for ever.
            if let Some((origin, value)) = unsafe { current.as_ref() }
                && origin.is_here()
            {
                return value;
            }
            let made = Box::into_raw(Box::new((Origin::here(), T::default())));
            // Release: pairs with the acquires.
            let release = Ordering::AcqRel;
            let acquire = Ordering::Acquire;
            match self.current.compare_exchange(current, made, release, acquire) {
                // That of the parent stays as it is: it is the parent's.
                Ok(_) => current = made,
                Err(found) => {
                    // SAFETY: just made, and nobody else knows it.
                    drop(unsafe { Box::from_raw(made) });
                    current = found;
                }
            }
        }
    }
}
