//! The store of a session together with its [index cache](super::cache).
//!
//! Operations of the store take hints and return what they have found. Here the hints come from the cache, and the
//! findings go into it.

use std::sync::{Arc, Mutex};

use fusee_core::race::Key;
use fusee_core::store::{Hint, WriteResult};
use fusee_core::verbs::Fabric;
use fusee_core::{Error, Store};

use super::cache::IndexCache;
use super::session_cache::SessionCache;
use super::{Environment, SessionHost};

/// A store, with the index cache that gives hints to its operations.
pub(super) struct CachedStore<F, E> {
    store: Store<F, SessionHost<E>>,
    cache: SessionCache,
}

impl<F: Fabric, E: Environment> CachedStore<F, E> {
    /// Joins a store and an index cache.
    pub fn new(store: Store<F, SessionHost<E>>, cache: SessionCache) -> CachedStore<F, E> {
        CachedStore { store, cache }
    }

    /// Replaces the index cache by one that several sessions share.
    pub fn with_shared_cache(self, cache: Arc<Mutex<IndexCache>>) -> CachedStore<F, E> {
        CachedStore { cache: SessionCache::shared(cache), ..self }
    }

    /// Returns the store, whose operations do not use the cache.
    #[inline]
    pub fn store(&self) -> &Store<F, SessionHost<E>> {
        &self.store
    }

    /// Returns the index cache.
    #[inline]
    pub fn cache(&self) -> &SessionCache {
        &self.cache
    }

    /// Returns the cache's hint for an operation on a key; `None` if the operation has to read the index.
    #[inline]
    pub fn hint(&self, key: &Key<'_>) -> Option<Hint> {
        self.cache.with(|cache| cache.hint(key, || self.store.asks_switches()))
    }

    /// Records where a read with this hint has found a key; `place` is `None` if the key does not exist.
    #[inline]
    pub fn note_found(&self, key: &Key<'_>, hint: Option<Hint>, place: Option<Hint>) {
        self.cache.with(|cache| cache.found(key, hint, place));
    }

    /// Records the result of a write with this hint.
    #[inline]
    pub fn note_written(&self, key: &Key<'_>, hint: Option<Hint>, written: WriteResult) {
        self.cache.with(|cache| cache.written(key, hint, written));
    }

    /// Removes the entry of a key that does not exist any more.
    #[inline]
    pub fn forget(&self, key: &Key<'_>) {
        self.cache.with(|cache| cache.forget(key));
    }

    /// Removes the entry of a key if an operation on the key has failed because the key does not exist.
    #[inline]
    pub fn forget_if_absent<T>(&self, key: &Key<'_>, result: &Result<T, Error>) {
        if matches!(result, Err(Error::NotFound)) {
            self.forget(key);
        }
    }
}
