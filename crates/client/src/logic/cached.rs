//! The [index cache](super::cache) as a session uses it: its own, or one that all sessions of its process share.
//!
//! Where verbs travel, sessions share theirs: what one of them writes makes the hints of the others wrong else, and a
//! lock costs nothing beside a phase. Where a phase is a function call each session has its own.

use std::cell::{Cell, RefCell};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use super::cache::{CacheStats, IndexCache};

/// An index cache, and what became of a session's accesses to it.
pub(super) enum Cached {
    /// Of one session, which it counts itself.
    Own(RefCell<IndexCache>),
    /// Of several ones.
    Shared(Arc<Mutex<IndexCache>>, Cell<CacheStats>),
}

impl Cached {
    /// The cache of one session.
    pub fn own(cache: IndexCache) -> Cached {
        Cached::Own(RefCell::new(cache))
    }

    /// A cache that others have, too.
    pub fn shared(cache: Arc<Mutex<IndexCache>>) -> Cached {
        Cached::Shared(cache, Cell::default())
    }

    /// Uses it. What is counted meanwhile is this session's.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut IndexCache) -> R) -> R {
        match self {
            Cached::Own(cache) => f(&mut cache.borrow_mut()),
            Cached::Shared(cache, stats) => {
                let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                let others = mem::replace(cache.stats_mut(), stats.get());
                let result = f(&mut cache);
                stats.set(mem::replace(cache.stats_mut(), others));
                result
            }
        }
    }

    /// What became of the session's accesses so far.
    pub fn stats(&self) -> CacheStats {
        match self {
            Cached::Own(cache) => cache.borrow().stats(),
            Cached::Shared(_, stats) => stats.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::layout::Slot;
    use fusee_core::race::Key;
    use fusee_core::store::{Hint, Sight};
    use fusee_core::view::SlotRef;

    use super::*;

    #[test]
    fn what_one_session_sees_the_others_know_and_each_counts_for_itself() {
        let cache = Arc::new(Mutex::new(IndexCache::new(10, 0.5)));
        let sessions = [Cached::shared(cache.clone()), Cached::shared(cache)];
        let key = Key::new(b"key");
        let slot = SlotRef { subtable: 0, slot: 0 };
        let place = Hint { slot, word: Slot(7), seen: Sight::Since(3) };
        sessions[0].with(|cache| cache.found(&key, None, Some(place)));
        let hint = sessions[1].with(|cache| cache.hint(&key, || false));
        assert_eq!(hint, Some(place));
        let counted = sessions.map(|session| session.stats());
        assert_eq!(counted.map(|stats| (stats.accesses, stats.hints)), [(0, 0), (1, 1)]);
    }
}
