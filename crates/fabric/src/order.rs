//! The verbs on words of a pool, executed in the order in which a session posts them.
//!
//! A processor may let a later load pass an earlier store, and weaker ones let more pass.
//! [`Order`] is each session's memory of which barrier is still owed: where one is due it is paid
//! before the next verb that needs it, so a batch that only writes pays none.
//!
//! Bounds are the caller's business. `tests/loom` compiles this module a second time, see
//! `crate::sync`.

use crate::copy;
use crate::sync::{AtomicU64, Ordering, fence};

/// Which barrier a session's next verb owes to the order posted.
///
/// One per session (or per loop that executes verbs); passed to every verb it executes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Order {
    /// A store of ours may still sit in the store buffer, where a later load would pass it.
    stored: bool,
}

impl Order {
    /// Before a READ. Without the barrier two sessions that each WRITE one place and then READ
    /// the other's could both miss the other's WRITE, although each verb was posted in order.
    fn before_read(&mut self) {
        if self.stored {
            fence(Ordering::SeqCst);
            self.stored = false;
        }
    }

    /// After a READ: later verbs of any kind must not overtake its loads.
    fn after_read(&self) {
        fence(Ordering::Acquire);
    }

    /// Before a WRITE: its words must not be seen before the effects of earlier verbs.
    fn before_write(&self) {
        fence(Ordering::Release);
    }

    fn after_write(&mut self) {
        self.stored = true;
    }

    /// After a CAS or FAA. A locked instruction of x86 is itself a full barrier; elsewhere even
    /// a sequentially consistent read-modify-write may let later loads pass its store.
    fn after_atomic(&mut self) {
        self.stored = cfg!(not(target_arch = "x86_64"));
    }
    /// READ: copies `out.len()` bytes from `skip` bytes behind `word` on.
    ///
    /// # Safety
    /// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
    #[inline]
    pub(crate) unsafe fn read(&mut self, word: *const AtomicU64, skip: usize, out: &mut [u8]) {
        self.before_read();
        // SAFETY: by the caller.
        unsafe { copy::read(word, skip, out) };
        self.after_read();
    }

    /// WRITE: copies `data` to `skip` bytes behind `word`, its last word last.
    ///
    /// # Safety
    /// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
    #[inline]
    pub(crate) unsafe fn write(&mut self, word: *const AtomicU64, skip: usize, data: &[u8]) {
        self.before_write();
        // SAFETY: by the caller.
        unsafe { copy::write(word, skip, data) };
        self.after_write();
    }

    /// CAS: replaces the word by `swap` if it is `expected`; gives the word as it was.
    #[inline]
    pub(crate) fn cas(&mut self, word: &AtomicU64, expected: u64, swap: u64) -> u64 {
        // SeqCst: acquire, so that what the found value points to is there; release, so that
        // what the new value points to is there for its readers; and one order of all CASes on
        // all words, because rounds on different slots decide about the same key.
        let expected = expected.to_le();
        let swap = swap.to_le();
        let found = word.compare_exchange(expected, swap, Ordering::SeqCst, Ordering::SeqCst);
        self.after_atomic();
        u64::from_le(found.unwrap_or_else(|found| found))
    }

    /// FAA: adds `add` to the word, wrapping; gives the word as it was.
    #[inline]
    pub(crate) fn faa(&mut self, word: &AtomicU64, add: u64) -> u64 {
        // SeqCst for the reasons given at `cas`.
        let found = if cfg!(target_endian = "little") {
            word.fetch_add(add, Ordering::SeqCst)
        } else {
            let sum = |word| Some(u64::from_le(word).wrapping_add(add).to_le());
            let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum);
            u64::from_le(old.unwrap_or_else(|old| old))
        };
        self.after_atomic();
        found
    }
}
