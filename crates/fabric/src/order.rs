//! Verbs on words of a pool, executed in the order in which their session posts them.
//!
//! A processor can let a later load pass an earlier store, and processors with weaker ordering reorder more pairs of
//! accesses. [`VerbOrder`] remembers, for each session, which barrier is still due. The barrier is executed only before
//! a verb that needs it, so a batch of WRITEs has no full barrier.
//!
//! Callers check the bounds. `tests/loom` compiles this module a second time (see `crate::sync`).

use crate::copy;
use crate::sync::{AtomicU64, Ordering, fence};

/// The barriers that a session's next verb needs to keep the order posted.
///
/// Each session (or each loop that executes verbs) has one such value and passes it to every verb.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbOrder {
    /// Whether a store of this session is possibly still in the store buffer, where a later load would pass it.
    stored: bool,
}

impl VerbOrder {
    /// Executes the barrier before a READ, if one is due. Without this barrier, if two sessions each WRITE a word of
    /// their own and then READ the other session's word, possibly neither sees the other's WRITE.
    fn before_read(&mut self) {
        if self.stored {
            fence(Ordering::SeqCst);
            self.stored = false;
        }
    }

    /// Executes the barrier after a READ, because later verbs of any kind must not overtake the READ's loads.
    fn after_read(&self) {
        fence(Ordering::Acquire);
    }

    /// Executes the barrier before a WRITE, because other sessions must not see the WRITE's words before the effects
    /// of earlier verbs.
    fn before_write(&self) {
        fence(Ordering::Release);
    }

    fn after_write(&mut self) {
        self.stored = true;
    }

    /// Records the store of a CAS or FAA. A locked instruction of x86 is itself a full barrier. On other
    /// processors, even a sequentially consistent read-modify-write can let later loads pass its store.
    fn after_atomic(&mut self) {
        self.stored = cfg!(not(target_arch = "x86_64"));
    }
    /// READ: copies pool bytes into `out`. The range starts `skip` bytes behind `word`.
    ///
    /// # Safety
    /// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
    #[inline]
    pub(crate) unsafe fn read(&mut self, word: *const AtomicU64, skip: usize, out: &mut [u8]) {
        self.before_read();
        // SAFETY: `copy::read` has the conditions of this function, which the caller fulfils.
        unsafe { copy::read(word, skip, out) };
        self.after_read();
    }

    /// WRITE: copies `data` to the pool and stores the last word last. The range starts `skip` bytes behind `word`.
    ///
    /// # Safety
    /// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
    #[inline]
    pub(crate) unsafe fn write(&mut self, word: *const AtomicU64, skip: usize, data: &[u8]) {
        self.before_write();
        // SAFETY: `copy::write` has the conditions of this function, which the caller fulfils.
        unsafe { copy::write(word, skip, data) };
        self.after_write();
    }

    /// CAS: replaces the word by `swap` if it equals `expected`. Returns the old word.
    #[inline]
    pub(crate) fn cas(&mut self, word: &AtomicU64, expected: u64, swap: u64) -> u64 {
        // SeqCst, for three reasons. Acquire: the memory that the found value leads to is visible. Release: the memory
        // that the new value leads to is visible to readers of the value. And the CASes on all words have one order,
        // because conflict rounds on different slots can decide about the same key.
        let expected = expected.to_le();
        let swap = swap.to_le();
        let found = word.compare_exchange(expected, swap, Ordering::SeqCst, Ordering::SeqCst);
        self.after_atomic();
        u64::from_le(found.unwrap_or_else(|found| found))
    }

    /// FAA: adds `add` to the word, wrapping on overflow. Returns the old word.
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
