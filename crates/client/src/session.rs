//! A session: one thread's own way into the store.
//!
//! It has its own client id, slabs, index cache and connections, so nothing is shared or locked
//! on the path of an operation. It stays on its thread; the futures of its operations may be
//! polled side by side there (the paper's coroutines).
//!
//! A future of a session must be driven to its end: dropping it half-way leaves other clients
//! where a crash of this client would. The calls of [`Client`](crate::Client) do not have this
//! edge.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use fusee_core::stats::Stats;
use fusee_core::store::{Hint, SearchKey};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;
use fusee_core::{Error, Store};
use fusee_fabric::{AnyFabric, FabricKind, attach_all};

use crate::blocks::BlockSource;
use crate::cache::IndexCache;
use crate::error::ConnectError;
use crate::executor::Reactor;
use crate::host::SessionHost;
use crate::shared::Shared;

/// Keys that one batch of `get_many` asks for.
const MANY_KEYS: usize = 64;

/// What must not end before a session does.
pub(crate) type KeepAlive = Arc<dyn Send + Sync>;

/// One thread's own way into the store.
pub struct Session {
    store: Store<Rc<AnyFabric>, SessionHost>,
    reactor: Rc<Reactor>,
    cache: RefCell<IndexCache>,
    blocks: Arc<BlockSource>,
    shared: Arc<Shared>,
    /// Keeps an embedded cluster alive; not held by the sessions that threads get by themselves.
    _keep_alive: Option<KeepAlive>,
}

impl Session {
    pub(crate) fn open(
        shared: &Arc<Shared>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Session, ConnectError> {
        let (client, view) = shared.open_session()?;
        Session::attach(shared, keep_alive, client, view).inspect_err(|_| {
            // The master need not count a session that never was.
            shared.close_session(client, Vec::new());
        })
    }

    fn attach(
        shared: &Arc<Shared>,
        keep_alive: Option<KeepAlive>,
        client: ClientId,
        view: View,
    ) -> Result<Session, ConnectError> {
        let fabric = Rc::new(attach_all(shared.kind, client, &view.members)?);
        let reactor = Rc::new(Reactor::new(fabric.clone()));
        let nodes = shared.node_clients(&view);
        let (master, op_timeout) = (shared.master.clone(), shared.options.op_timeout);
        let blocks = BlockSource::new(client, Arc::new(view.clone()), nodes, master, op_timeout);
        let blocks = Arc::new(blocks);
        let options = &shared.options;
        let host =
            SessionHost::new(reactor.clone(), blocks.clone(), shared.kind, options.op_timeout);
        let cache = IndexCache::new(options.cache_entries, options.cache_threshold);
        Ok(Session {
            store: Store::new(fabric, host, client, view),
            reactor,
            cache: RefCell::new(cache),
            blocks,
            shared: shared.clone(),
            _keep_alive: keep_alive,
        })
    }

    /// Runs a future that uses this session to its end, on the calling thread.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.reactor.block_on(future)
    }

    /// The session's name in the cluster.
    pub fn id(&self) -> ClientId {
        self.store.client()
    }

    /// What its operations cost so far.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Whether its client has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.is_closed()
    }

    /// Which fabric it uses.
    pub fn fabric(&self) -> FabricKind {
        self.shared.kind
    }

    /// Looks a key up and shows the value to `f` where it was fetched, without another copy.
    pub async fn get_with<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        let guess = self.guess(key);
        let found = self.store.search(key, guess).await?;
        if guess.is_none() || found.hint() != guess {
            self.cache.borrow_mut().found(key, guess, found.hint());
        }
        Ok(f(found.value()))
    }

    /// The value of a key; `None` if it does not exist.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, |value| value.map(<[u8]>::to_vec)).await
    }

    /// The values of many keys, in shared phases.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = vec![None; keys.len()];
        for (chunk, values) in keys.chunks(MANY_KEYS).zip(values.chunks_mut(MANY_KEYS)) {
            let wanted: Vec<SearchKey<'_>> = chunk
                .iter()
                .map(|key| SearchKey { key: key.as_ref(), hint: self.guess(key.as_ref()) })
                .collect();
            let found = |i: usize, value: Option<&[u8]>, place: Option<Hint>| {
                values[i] = value.map(<[u8]>::to_vec);
                self.cache.borrow_mut().found(wanted[i].key, wanted[i].hint, place);
            };
            self.store.search_many(&wanted, found).await?;
        }
        Ok(values)
    }

    /// Adds a key; [`Error::AlreadyExists`] if it exists.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let written = self.store.insert(key, value).await?;
        self.cache.borrow_mut().written(key, None, written);
        Ok(())
    }

    /// Replaces the value of a key; [`Error::NotFound`] if it does not exist.
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let guess = self.guess(key);
        let result = self.store.update(key, value, guess).await;
        self.forget_if_absent(key, &result);
        self.cache.borrow_mut().written(key, guess, result?);
        Ok(())
    }

    /// Adds a key, or replaces its value.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let guess = self.guess(key);
        let written = self.store.upsert(key, value, guess).await?;
        self.cache.borrow_mut().written(key, guess, written);
        Ok(())
    }

    /// Removes a key; [`Error::NotFound`] if it does not exist.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let guess = self.guess(key);
        let result = self.store.delete(key, guess).await;
        self.forget_if_absent(key, &result);
        result?;
        self.cache.borrow_mut().forget(key);
        Ok(())
    }

    fn guess(&self, key: &[u8]) -> Option<Hint> {
        self.cache.borrow_mut().guess(key)
    }

    fn forget_if_absent<T>(&self, key: &[u8], result: &Result<T, Error>) {
        if matches!(result, Err(Error::NotFound)) {
            self.cache.borrow_mut().forget(key);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // While panicking an operation may be half-way: that is a crash, not an end.
        if self.shared.is_cluster_gone() || std::thread::panicking() {
            return;
        }
        let leftovers = self.blocks.give_up(self.store.take_rests());
        self.shared.close_session(self.id(), leftovers);
    }
}
