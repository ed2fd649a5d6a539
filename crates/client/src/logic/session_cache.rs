//! The [index cache](super::cache) that a session uses: its own, or one that all sessions of its process share.
//!
//! Over a network the sessions of a process share one cache: with separate caches, a write of one session would make
//! the hints of the others wrong, and the time for a lock is negligible compared with a phase. Over shared memory,
//! where a phase takes no longer than a function call, each session has its own cache.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use super::cache::{CacheCounters, CacheStats, IndexCache};

/// An index cache, and the session's own counters of accesses to it.
pub(super) struct SessionCache {
    cache: CacheOwnership,
    counters: Arc<CacheCounters>,
}

enum CacheOwnership {
    /// A cache that only this session uses.
    Own(RefCell<IndexCache>),
    /// A cache that several sessions share.
    Shared(Arc<Mutex<IndexCache>>),
}

impl SessionCache {
    /// Wraps the cache of one session.
    pub fn own(mut cache: IndexCache) -> SessionCache {
        let counters = cache.counters().clone();
        SessionCache { cache: CacheOwnership::Own(RefCell::new(cache)), counters }
    }

    /// Wraps a cache that other sessions share.
    pub fn shared(cache: Arc<Mutex<IndexCache>>) -> SessionCache {
        SessionCache { cache: CacheOwnership::Shared(cache), counters: Arc::default() }
    }

    /// Calls `f` with the index cache. Accesses by `f` are counted for this session.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut IndexCache) -> R) -> R {
        match &self.cache {
            CacheOwnership::Own(cache) => f(&mut cache.borrow_mut()),
            CacheOwnership::Shared(cache) => {
                let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                if !Arc::ptr_eq(cache.counters(), &self.counters) {
                    *cache.counters() = self.counters.clone();
                }
                f(&mut cache)
            }
        }
    }

    /// Returns the counts of the session's accesses to the cache so far.
    pub fn stats(&self) -> CacheStats {
        self.counters.stats()
    }

    /// Returns the session's counters, so that other threads of the process can read them.
    pub fn counters(&self) -> &Arc<CacheCounters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::layout::Slot;
    use fusee_core::race::{HashKey, Key};
    use fusee_core::store::{Hint, HintTrust};
    use fusee_core::view::SlotRef;

    use super::*;

    #[test]
    fn what_one_session_sees_the_others_know_and_each_counts_for_itself() {
        let cache = Arc::new(Mutex::new(IndexCache::new(10, 0.5)));
        let sessions = [SessionCache::shared(cache.clone()), SessionCache::shared(cache)];
        let key = Key::new(b"key", &HashKey::new([7; 16]));
        let slot = SlotRef { subtable: 0, slot: 0 };
        let place = Hint { slot, word: Slot(7), seen: HintTrust::FreshSince(3) };
        sessions[0].with(|cache| cache.found(&key, None, Some(place)));
        let hint = sessions[1].with(|cache| cache.hint(&key, || false));
        assert_eq!(hint, Some(place));
        let counted = sessions.map(|session| session.stats());
        assert_eq!(counted.map(|stats| (stats.accesses, stats.hints)), [(0, 0), (1, 1)]);
    }
}
