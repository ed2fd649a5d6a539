//! The operations of a session with their index cache, over any fabric and environment.
//!
//! A future of a session must be polled until it is ready: if it is dropped half-way, other clients find the memory as
//! a crash of this client would leave it.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest, Orphan};
use fusee_core::data::{Placement, Policy, Redundancy, RedundancyRules};
use fusee_core::stats::{SessionWork, Stats};
use fusee_core::store::{
    Hint, ScanCursor, ScanLimits, ScannedPair, SearchKey, Transition, WriteRequest,
};
use fusee_core::verbs::{ClientId, Fabric};
use fusee_core::view::View;
use fusee_core::{Error, Store};

use super::auto_transitions::AutoTransitions;
use super::blocks::BlockSource;
use super::cache::{CacheStats, IndexCache};
use super::cached_store::CachedStore;
use super::gate::SessionGate;
use super::keeper::lease_end;
use super::session_cache::SessionCache;
use super::session_counters::SessionCounters;
use super::work_table_access::WorkTableAccess;
use super::{Environment, RequestTable, SessionHost};
use crate::error::ConnectError;
use crate::telemetry::SessionLatencies;
use crate::writes::{PutCondition, PutOptions};

/// Number of keys of one call whose cache entries are prefetched together.
const HINTED_TOGETHER: usize = 64;

/// Options of a session.
#[derive(Clone, Copy, Debug)]
pub struct LogicOptions {
    /// Capacity of the session's index cache, in keys, if it has its own; 0 turns the cache off.
    pub cache_entries: usize,
    /// See [`Options::cache_threshold`](crate::Options::cache_threshold).
    pub cache_threshold: f64,
    /// See [`Options::op_timeout`](crate::Options::op_timeout).
    pub op_timeout: Duration,
    /// Whether a phase is so short that it is faster to spin than to yield.
    pub spins: bool,
    /// Rules for the redundancy of the values that the session writes; `None` means the cluster's rules.
    pub redundancy: Option<RedundancyRules>,
}

/// The content of the answer to [`MasterRequest::Open`].
#[derive(Debug)]
pub struct OpenReply {
    /// The new session's id.
    pub client: ClientId,
    /// The newest view, which has passed its check.
    pub view: View,
    /// The newest epoch of the cluster.
    pub epoch: u64,
    /// The length of the session's lease, in milliseconds.
    pub lease_ms: u64,
    /// Time from the beginning of the lease until the master was asked, in milliseconds.
    pub behind_ms: u64,
    /// The cluster's rules for redundancy and its changes.
    pub policy: Policy,
}

impl OpenReply {
    /// Takes the content out of an answer, and checks it.
    pub fn from(reply: MasterReply) -> Result<OpenReply, ConnectError> {
        match reply {
            MasterReply::Opened { client, view, epoch, lease_ms, behind_ms, policy } => {
                view.check()?;
                policy.check().map_err(|_| ConnectError::Protocol("an impossible policy"))?;
                Ok(OpenReply { client, view, epoch, lease_ms, behind_ms, policy })
            }
            MasterReply::NotReady { joined, expected } => {
                Err(ConnectError::NotReady { joined, expected })
            }
            MasterReply::Refused { reason } => Err(ConnectError::Refused(reason)),
            _ => Err(ConnectError::Protocol("another answer than to Open")),
        }
    }

    /// Makes the session's gate. `asked_at` is the time when the master was asked to open the session.
    pub fn gate(self, asked_at: Duration) -> SessionGate {
        let gate = SessionGate::new(self.client, Arc::new(self.view), self.epoch);
        gate.lease.publish(Duration::from_millis(self.lease_ms));
        let gate = gate.with_policy(self.policy);
        gate.with_lease_end(lease_end(asked_at, self.lease_ms, self.behind_ms))
    }
}

/// The final report of a session to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingReport {
    /// The id of the session.
    pub client: ClientId,
    /// The session's blocks, which become orphaned blocks.
    pub orphans: Vec<Orphan>,
    /// The sums of the session's operations.
    pub work: SessionWork,
}

impl ClosingReport {
    /// Converts the report into the request to the master.
    pub fn request(self) -> MasterRequest {
        let ClosingReport { client, orphans, work } = self;
        MasterRequest::Close { client, orphans, work: Box::new(work) }
    }
}

/// The operations of a session.
pub struct SessionLogic<F, E> {
    cached: CachedStore<F, E>,
    redundancy: RedundancyRules,
    transitions: AutoTransitions,
    /// The access to the work table that all sessions of the process share; `None` without one.
    table: Option<WorkTableAccess>,
}

impl<F: Fabric, E: Environment> SessionLogic<F, E> {
    /// Makes a session with a gate that the keeper possibly knows already. The session begins with `view`.
    pub fn behind(
        gate: Arc<SessionGate>,
        view: Arc<View>,
        fabric: F,
        env: Rc<E>,
        options: LogicOptions,
    ) -> SessionLogic<F, E> {
        let client = gate.client();
        let timeout = options.op_timeout;
        let blocks = BlockSource::new(client, env.clone(), timeout, view.members.len());
        let policy = *gate.policy();
        let redundancy = options.redundancy.unwrap_or(policy.rules);
        let host = SessionHost::new(env, gate, blocks, options.spins, timeout);
        let transitions = AutoTransitions::new(&policy, host.now());
        let cache = IndexCache::new(options.cache_entries, options.cache_threshold);
        let store = Store::new(fabric, host, client, view);
        let cached = CachedStore::new(store, SessionCache::own(cache));
        SessionLogic { cached, redundancy, transitions, table: None }
    }

    /// Sets the work table that the session shares with the other sessions of its process.
    pub fn with_work_table(self, table: Option<Arc<RequestTable>>) -> SessionLogic<F, E> {
        SessionLogic { table: table.map(WorkTableAccess::new), ..self }
    }

    /// Replaces the session's own index cache by one that it shares with other sessions of its process. `None` changes
    /// nothing.
    pub fn with_cache(self, cache: Option<Arc<Mutex<IndexCache>>>) -> SessionLogic<F, E> {
        match cache {
            Some(cache) => SessionLogic { cached: self.cached.with_shared_cache(cache), ..self },
            None => self,
        }
    }

    /// Makes the session's counters visible to the keeper, and to the owner of the returned value.
    pub fn share_counters(&self, latencies: Arc<SessionLatencies>) -> Arc<SessionCounters> {
        let store = self.store().counters().clone();
        let cache = self.cached.cache().counters().clone();
        let counted = Arc::new(SessionCounters { store, cache, latencies });
        self.gate().set_counters(counted.clone());
        counted
    }

    /// Returns the session's client id.
    pub fn id(&self) -> ClientId {
        self.store().client()
    }

    /// Returns the state that the session shares with the keeper of its process.
    pub fn gate(&self) -> &Arc<SessionGate> {
        self.store().host().gate()
    }

    /// Returns the master's reason, if the last search for memory failed because the cluster is degraded.
    pub fn degraded(&self) -> Option<String> {
        self.store().host().blocks().degraded()
    }

    /// Returns the rules for the redundancy of new values, for writes that name none.
    pub fn rules(&self) -> &RedundancyRules {
        &self.redundancy
    }

    /// Returns the sums over the session's operations so far: their numbers, phases, verbs and bytes.
    pub fn stats(&self) -> Stats {
        self.store().stats()
    }

    /// Returns the counts of the session's accesses to the index cache so far.
    pub fn cache_stats(&self) -> CacheStats {
        self.cached.cache().stats()
    }

    /// Copies the cache entries of another session, for simulated sessions that are measured as if they had run for
    /// long.
    pub fn learn_from(&self, other: &SessionLogic<F, E>) {
        let learnt = other.cached.cache().with(|cache| cache.copied());
        let counters = self.cached.cache().counters().clone();
        self.cached.cache().with(|cache| *cache = learnt.counting_with(counters));
    }

    /// Runs an operation all of whose waits end by one clock: after `op_timeout`, or at the deadline of an enclosing
    /// [`within`](SessionLogic::within).
    pub fn timed<O: Future>(&self, operation: Pin<&mut O>) -> impl Future<Output = O::Output> {
        self.store().host().clocks().timed(operation)
    }

    /// Runs operations whose waits all end `limit` from now.
    pub fn within<O: Future>(
        &self,
        limit: Duration,
        operations: Pin<&mut O>,
    ) -> impl Future<Output = O::Output> {
        let host = self.store().host();
        host.clocks().until(host.now().saturating_add(limit), operations)
    }

    /// Returns the store, whose operations do not use the cache.
    #[inline]
    pub fn store(&self) -> &Store<F, SessionHost<E>> {
        self.cached.store()
    }

    /// Returns the store with the index cache.
    pub(super) fn cached(&self) -> &CachedStore<F, E> {
        &self.cached
    }

    /// Ends the session. The caller runs no operation meanwhile, and starts none afterwards. Returns `None` if the
    /// session left a write half-way or a block's owner is uncertain: then it must not end in order, but has to be
    /// recovered as if it had crashed.
    pub async fn leave(&self) -> Option<ClosingReport> {
        if self.store().needs_recovery() {
            return None;
        }
        let rests = self.store().leave().await;
        if self.store().needs_recovery() {
            return None;
        }
        let blocks = self.store().host().blocks();
        // The owners of all blocks have to be certain. If they are not, the session has to be recovered, because
        // recovery finds out the owners.
        if !blocks.hand_on(self.gate()).await {
            return None;
        }
        let found = blocks.settle(self.gate()).await?;
        let rests = rests.into_iter().chain(found).collect();
        let orphans = blocks.give_up(rests, &self.gate().view());
        Some(ClosingReport { client: self.id(), orphans, work: self.gate().work() })
    }

    /// Calls `f` with the value of a key, or with `None` if the key does not exist. `f` sees the value where it was
    /// fetched, without a copy.
    pub async fn get_with<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        let key = self.store().key(key);
        let hint = self.cached.hint(&key);
        if let Some(table) = &self.table {
            return Box::pin(table.get(&self.cached, key, hint, f)).await;
        }
        // The search is in a separate scope, because its result is large and must not be kept while a pair is promoted.
        let (answer, promotable) = {
            let found = self.store().search(key, hint).await?;
            if hint.is_none() || found.hint() != hint {
                self.cached.note_found(&key, hint, found.hint());
            }
            let promotable = if self.transitions.counts_reads() {
                self.transitions.promotable(self.store(), &key, &found)
            } else {
                None
            };
            (f(found.value()), promotable)
        };
        if let Some(promotable) = promotable {
            Box::pin(self.transitions.promote(&self.cached, key, promotable)).await;
        }
        Ok(answer)
    }

    /// Returns the value of a key; `None` if the key does not exist.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, |value| value.map(<[u8]>::to_vec)).await
    }

    /// Returns the values of many keys, in the order of the keys, in shared phases; see [`Store::search_many`].
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = vec![None; keys.len()];
        self.get_many_with(keys, |i, value| values[i] = value.map(<[u8]>::to_vec)).await?;
        Ok(values)
    }

    /// Calls `f` with each value and the position of its key, in any order. `f` sees the values where they were
    /// fetched, without a copy.
    pub async fn get_many_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut f: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Error> {
        let mut wanted: Vec<SearchKey<'_>> = Vec::with_capacity(keys.len());
        for keys in keys.chunks(HINTED_TOGETHER) {
            let first = wanted.len();
            let keys = keys.iter().map(|key| self.store().key(key.as_ref()));
            wanted.extend(keys.map(|key| SearchKey { key, hint: None }));
            self.cached.cache().with(|cache| cache.hint_all(&mut wanted[first..]));
        }
        let found = |i: usize, value: Option<&[u8]>, place: Option<Hint>| {
            f(i, value);
            let SearchKey { key, hint } = wanted[i];
            if hint.is_none() || place != hint {
                self.cached.note_found(&key, hint, place);
            }
        };
        self.store().search_many(&wanted, found).await
    }

    /// Adds a key; [`Error::AlreadyExists`] if the key exists.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), Error>> {
        self.insert_by(key, value, self.redundancy.placement(value.len()))
    }

    async fn insert_by(&self, key: &[u8], value: &[u8], placement: Placement) -> Result<(), Error> {
        if self.transitions.demotes(self.store()) {
            Box::pin(self.transitions.demote_some(self.store())).await;
        }
        let key = self.store().key(key);
        let _lead = match &self.table {
            Some(table) => Box::pin(table.register_change(self.store(), &key, Some(value))).await?,
            None => None,
        };
        let request = WriteRequest::insert(key, value).placed(placement);
        let written = self.store().write(request).await?;
        self.cached.note_written(&key, None, written);
        Ok(())
    }

    /// Replaces the value of a key; [`Error::NotFound`] if the key does not exist.
    pub fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), Error>> {
        self.update_by(key, value, self.redundancy.placement(value.len()))
    }

    async fn update_by(&self, key: &[u8], value: &[u8], placement: Placement) -> Result<(), Error> {
        if self.transitions.demotes(self.store()) {
            Box::pin(self.transitions.demote_some(self.store())).await;
        }
        let key = self.store().key(key);
        let request = WriteRequest::update(key, value).placed(placement);
        if let Some(table) = &self.table {
            return Box::pin(table.set(&self.cached, request)).await;
        }
        let hint = self.cached.hint(&key);
        let result = self.store().write(request.hinted(hint)).await;
        self.cached.forget_if_absent(&key, &result);
        let written = result?;
        self.cached.note_written(&key, hint, written);
        Ok(())
    }

    /// Adds a key, or replaces its value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), Error>> {
        self.put_by(key, value, self.redundancy.placement(value.len()))
    }

    /// Puts a key by options: under a condition, or with a redundancy of its own.
    pub async fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        options: &PutOptions,
    ) -> Result<(), Error> {
        let placement = match options.redundancy {
            Some(redundancy) => self.redundancy.exactly(redundancy),
            None => self.redundancy.placement(value.len()),
        };
        match options.condition {
            PutCondition::Any => self.put_by(key, value, placement).await,
            PutCondition::Absent => self.insert_by(key, value, placement).await,
            PutCondition::Present => self.update_by(key, value, placement).await,
        }
    }

    async fn put_by(&self, key: &[u8], value: &[u8], placement: Placement) -> Result<(), Error> {
        if self.transitions.demotes(self.store()) {
            Box::pin(self.transitions.demote_some(self.store())).await;
        }
        let key = self.store().key(key);
        let request = WriteRequest::upsert(key, value).placed(placement);
        if let Some(table) = &self.table {
            return Box::pin(table.set(&self.cached, request)).await;
        }
        let hint = self.cached.hint(&key);
        let written = self.store().write(request.hinted(hint)).await?;
        self.cached.note_written(&key, hint, written);
        Ok(())
    }

    /// Adds a key, or replaces its value. `fill` writes the value, of `value_bytes` bytes, if possible directly into
    /// the buffer that is sent; see `BlockingClient::put_from`. The buffer is zeroed before. `fill` is called before
    /// the write begins.
    pub async fn put_from(
        &self,
        key: &[u8],
        value_bytes: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<(), Error> {
        if self.transitions.demotes(self.store()) {
            Box::pin(self.transitions.demote_some(self.store())).await;
        }
        let key = self.store().key(key);
        let placement = self.redundancy.placement(value_bytes);
        let fill = RefCell::new(fill);
        let fill = |value: &mut [u8]| fill.borrow_mut()(value);
        let request = WriteRequest::upsert_filled(key, value_bytes, &fill).placed(placement);
        if let Some(table) = &self.table {
            // The value is composed in a separate buffer, because followers of this request possibly take the value,
            // too.
            self.store().check_write(&request)?;
            let mut value = vec![0; value_bytes];
            fill(&mut value);
            let request = WriteRequest::upsert(key, &value).placed(placement);
            return Box::pin(table.set(&self.cached, request)).await;
        }
        let hint = self.cached.hint(&key);
        let written = self.store().write(request.hinted(hint)).await?;
        self.cached.note_written(&key, hint, written);
        Ok(())
    }

    /// Shows the next pairs of a scan; see [`Store::scan`].
    pub async fn scan(
        &self,
        cursor: &mut ScanCursor,
        limits: ScanLimits,
        show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, Error> {
        self.store().scan(cursor, limits, show).await
    }

    /// Returns the redundancy of a key's value; `None` if the key does not exist.
    pub async fn redundancy_of(&self, key: &[u8]) -> Result<Option<Redundancy>, Error> {
        Ok(self.store().search(key, None).await?.redundancy())
    }

    /// Gives the value of a key another redundancy; [`Error::NotFound`] if the key does not exist.
    pub async fn set_redundancy(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> Result<Transition, Error> {
        let key = self.store().key(key);
        let _lead = match &self.table {
            Some(table) => Box::pin(table.register_change(self.store(), &key, None)).await?,
            None => None,
        };
        let hint = self.cached.hint(&key);
        let result = self.store().set_redundancy(key, redundancy, hint).await;
        self.cached.forget_if_absent(&key, &result);
        let (transition, written) = result?;
        self.cached.note_written(&key, hint, written);
        Ok(transition)
    }

    /// Removes a key; [`Error::NotFound`] if the key does not exist.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let key = self.store().key(key);
        let _lead = match &self.table {
            Some(table) => Box::pin(table.register_change(self.store(), &key, None)).await?,
            None => None,
        };
        let hint = self.cached.hint(&key);
        let result = self.store().delete(key, hint).await;
        if matches!(result, Ok(_) | Err(Error::NotFound)) {
            self.cached.forget(&key);
        }
        result.map(|_| ())
    }
}
