//! Sessions: each lets one thread use the store.
//!
//! A session has its own client id, slabs and connections. Over shared memory it also has its own index cache, so its
//! operations share nothing with other sessions and take no lock. A session stays on its thread, where the futures of
//! its operations can be polled concurrently (the paper's coroutines). The operations are in [`logic`](crate::logic);
//! this module gives them a thread, timers and connections.
//!
//! A future of a session must be polled until it is ready: if it is dropped half-way, other clients find the memory as
//! a crash of this client would leave it. The calls of [`Client`](crate::Client) have no such rule.
//!
//! In a child made by `fork`, the calls of inherited sessions fail at once, and their drop does nothing.
//!
//! A session is lost if it is fenced or has left a write half-way: its operations fail, and the master recovers it as
//! if it had crashed. A `Client` opens another session by itself.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::RpcError;
use fusee_core::FailedWriteOutcome;
use fusee_core::data::{Redundancy, RedundancyRules};
use fusee_core::layout::Slot;
use fusee_core::stats::{OpKind, Stats};
use fusee_core::store::{ScanCursor, ScanLimits, ScannedPair, Transition};
use fusee_core::verbs::{ClientId, MnId, VerbError};
use fusee_core::view::View;
use fusee_fabric::fork::{OriginProcess, ProcessBound};
use fusee_fabric::verbs::NicCounts;
use fusee_fabric::{AnyFabric, AttachCause, AttachError, Clock, FabricKind};

use crate::attachments::Attachments;
use crate::context::{ClientContext, NodeClients};
use crate::demotion::{DemotionOrder, DemotionOutcome};
use crate::error::{ConnectError, ErrorFamily, ReadError, ScanError, WriteError};
use crate::executor::Reactor;
use crate::logic::{self, CacheStats, Environment, LogicOptions, SessionGate};
use crate::survey::FoundPair;
use crate::telemetry::{OperationSpan, SessionLatencies};
use crate::writes::{BatchWrite, PutOptions};

/// A reference that keeps alive what must outlive a session.
pub(crate) type KeepAlive = Arc<dyn Send + Sync>;

/// Interval between checks for a newer view, while a session opens and a memory node does not answer.
const START_POLL: Duration = Duration::from_millis(1);
/// First and longest pause before the next attempt to attach, while a session opens and a memory node does not answer.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_millis(500);

/// Longest wait for each memory node to notice that an abandoned session leaves.
const LEAVE_PATIENCE: Duration = Duration::from_millis(500);
/// Number of index slots that one piece of a scan reads.
const SCAN_SLOTS: u32 = 256;

/// A session with the cluster, used by one thread. Its methods are the operations of the store.
pub struct Session {
    parts: ProcessBound<SessionParts>,
}

/// The content of a [`Session`].
struct SessionParts {
    logic: logic::SessionLogic<Rc<AnyFabric>, RpcSessionEnvironment>,
    attachments: Rc<Attachments>,
    reactor: Rc<Reactor>,
    shared: Arc<ClientContext>,
    /// Latencies of the session's operations.
    latencies: Arc<SessionLatencies>,
    /// Whether the session had an error after which another session has to take its place.
    lost: Cell<bool>,
    /// Whether the session's thread runs one of its futures in [`Session::block_on`].
    is_running: Cell<bool>,
    /// Whether the innermost [`Session::block_on`] was called while an outer `block_on` had other operations under way.
    /// If so, new operations fail, because the outer operations cannot go on.
    is_held: Cell<bool>,
    /// Keeps an embedded cluster alive. `None` in sessions that a client opens by itself, for blocking or async calls.
    _keep_alive: Option<KeepAlive>,
}

impl Session {
    /// Opens a session. A session can be fenced before it has begun, because this thread or the master got no processor
    /// time. If so, opens another session, until [`Options::connect_timeout`](crate::Options::connect_timeout) has
    /// passed.
    pub(crate) fn open(
        shared: &Arc<ClientContext>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Session, ConnectError> {
        let end = Instant::now() + shared.options.connect_timeout;
        loop {
            match Session::open_once(shared, keep_alive.clone(), end) {
                Err(error) if is_fenced(&error) && Instant::now() < end => {
                    tracing::info!(%error, "was fenced before it began, tries again");
                    std::thread::sleep(FIRST_RETRY);
                }
                result => return result,
            }
        }
    }

    fn open_once(
        shared: &Arc<ClientContext>,
        keep_alive: Option<KeepAlive>,
        end: Instant,
    ) -> Result<Session, ConnectError> {
        let gate = shared.open_session()?;
        let client = gate.client();
        // The keeper learns of the session before the session attaches to memory nodes. Attaching takes time, and
        // without heartbeats the master would take the session for dead.
        shared.keeper.open(gate.clone());
        shared.watch_memory(gate.policy());
        Session::attach(shared, keep_alive, gate, end).inspect_err(|_| {
            // If the session were not closed here, the master would count a session that has never begun.
            shared.keeper.close(client);
            shared.close_session(MasterRequest::Close {
                client,
                orphans: Vec::new(),
                work: Default::default(),
            });
        })
    }

    fn attach(
        shared: &Arc<ClientContext>,
        keep_alive: Option<KeepAlive>,
        gate: Arc<SessionGate>,
        end: Instant,
    ) -> Result<Session, ConnectError> {
        let (attachments, view) = attach_to_newest(shared, &gate, end)?;
        let attachments = Rc::new(attachments);
        let reactor = Rc::new(Reactor::new(attachments.clone()));
        let env = Rc::new(RpcSessionEnvironment {
            reactor: reactor.clone(),
            attachments: attachments.clone(),
            nodes: RefCell::new(shared.node_clients(&view)),
            clock: Clock::of(shared.kind),
            shared: shared.clone(),
            origin: OriginProcess::here(),
        });
        let options = LogicOptions {
            cache_entries: shared.options.cache_entries,
            cache_threshold: shared.options.cache_threshold,
            op_timeout: shared.options.op_timeout,
            spins: shared.kind == FabricKind::Shm,
            redundancy: shared.options.redundancy,
        };
        let fabric = attachments.fabric().clone();
        gate.set_waker(fabric.waker());
        let latencies = Arc::<SessionLatencies>::default();
        let logic = logic::SessionLogic::behind(gate, view, fabric, env, options)
            .with_work_table(shared.table.clone())
            .with_cache(shared.cache.clone());
        shared.began(logic.id(), logic.share_counters(latencies.clone()));
        let shared = shared.clone();
        let lost = Cell::new(false);
        let _keep_alive = keep_alive;
        let is_running = Cell::new(false);
        let is_held = Cell::new(false);
        let parts = SessionParts {
            logic,
            attachments,
            reactor,
            shared,
            latencies,
            lost,
            is_running,
            is_held,
            _keep_alive,
        };
        Ok(Session { parts: ProcessBound::new(parts) })
    }

    /// Runs a future that uses this session to its end, on the calling thread.
    ///
    /// A callback of an operation is allowed to call this again. While the callback runs, other operations of the
    /// session cannot go on. If there are such operations, operations that the callback begins fail with
    /// [`WriteError::WithinCallback`], because they possibly wait for those other operations for ever.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let _running = BlockOnGuard::begin(&self.parts);
        self.parts.reactor.block_on(future)
    }

    /// Runs operations of this session with an op timeout of their own, instead of
    /// [`Options::op_timeout`](crate::Options::op_timeout): all of them together wait at most `op_timeout` for others.
    /// An operation that would have to wait longer ends with `GaveUp`, or with the result that it has by then. If such
    /// calls are nested, the earliest deadline applies.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let session = fusee_client::Client::connect("127.0.0.1:7400")?.session()?;
    /// let soon = Duration::from_millis(100);
    /// let value = session.block_on(session.with_op_timeout(soon, session.get(b"key")))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn with_op_timeout<T>(
        &self,
        op_timeout: Duration,
        operations: impl Future<Output = T>,
    ) -> T {
        self.parts.logic.within(op_timeout, pin!(operations)).await
    }

    /// Returns the session's client id.
    pub fn id(&self) -> ClientId {
        self.parts.logic.id()
    }

    /// Returns the sums over the session's operations so far: their numbers, phases, verbs and bytes.
    pub fn stats(&self) -> Stats {
        self.parts.logic.stats()
    }

    /// Returns counts of the work that the session has given to RDMA NICs; `None` on other fabrics than verbs.
    pub fn card_counts(&self) -> Option<NicCounts> {
        self.parts.attachments.fabric().nic_counts()
    }

    /// Returns the counts of the session's accesses to the index cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.parts.logic.cache_stats()
    }

    /// Returns whether the client of the session has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.parts.shared.is_closed()
    }

    /// Returns whether another session has to take this session's place, because it is fenced, cannot reach a memory
    /// node, has left a write half-way, or belongs to the parent of this process. A lost session should be dropped
    /// soon, because other sessions possibly wait for its unfinished writes.
    pub fn is_lost(&self) -> bool {
        !self.parts.is_here()
            || self.parts.lost.get()
            || self.gate().is_expelled()
            || self.parts.logic.store().needs_recovery()
    }

    /// Returns the newest view that the session knows, if its number is greater than `than`.
    ///
    /// Returns `None` in a forked child.
    pub fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        self.parts.is_here().then(|| self.gate().newer_view(than)).flatten()
    }

    pub(crate) fn gate(&self) -> &Arc<SessionGate> {
        self.parts.logic.gate()
    }

    /// Returns the fabric that executes the session's verbs.
    pub(crate) fn verbs(&self) -> &AnyFabric {
        self.parts.attachments.fabric()
    }

    /// Returns the newest view, and attaches to those of its members that answer.
    pub(crate) fn adopt_newest(&self) -> Arc<View> {
        let view = self.gate().view();
        self.parts.attachments.adopt(&view, |node| self.parts.shared.report_unreachable(node));
        view
    }

    /// Tells the master that a memory node does not answer.
    pub(crate) fn report_unreachable(&self, node: MnId) {
        self.parts.shared.report_unreachable(node);
    }

    /// Returns the limit for waits of an operation of this session.
    pub(crate) fn patience(&self) -> Duration {
        self.parts.shared.options.op_timeout
    }

    /// Waits for `time`, while other futures of the session run.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.parts.reactor.sleep(time).await;
    }

    /// Begins an operation. Fails if the session is fenced, belongs to another process, or is blocked by a callback
    /// that other operations wait for.
    fn begin<E: ErrorFamily>(&self, kind: OpKind) -> Result<OperationSpan, E> {
        if !self.parts.is_here() {
            let outcome = FailedWriteOutcome::NotApplied;
            return Err(E::from_store(WriteError::Forked { outcome }));
        }
        if self.parts.is_held.get() {
            return Err(E::from_store(WriteError::WithinCallback));
        }
        if self.gate().is_expelled() {
            let outcome = FailedWriteOutcome::NotApplied;
            Err(E::from_store(WriteError::Expelled { outcome }))
        } else {
            Ok(OperationSpan::now(kind))
        }
    }

    /// Ends an operation. An error that comes from a fence of the session becomes [`WriteError::Expelled`].
    fn end<T, E: ErrorFamily>(
        &self,
        begun: OperationSpan,
        result: Result<T, WriteError>,
    ) -> Result<T, E> {
        let result = result.map_err(|error| self.error(error));
        begun.ends(&self.parts.latencies, &result);
        result.map_err(E::from_store)
    }

    #[cold]
    fn error(&self, error: WriteError) -> WriteError {
        let error = match error {
            // The process was forked while the operation ran, and this process is the child.
            error if !self.parts.is_here() => {
                return WriteError::Forked { outcome: error.outcome() };
            }
            // A memory node has fenced the session; the master's message about that has not arrived yet.
            WriteError::Unreachable { error: VerbError::Fenced, outcome, .. } => {
                WriteError::Expelled { outcome }
            }
            WriteError::Unreachable { .. }
            | WriteError::GaveUp { .. }
            | WriteError::Interrupted { .. }
            | WriteError::Allocation { .. }
                if self.gate().is_expelled() =>
            {
                WriteError::Expelled { outcome: error.outcome() }
            }
            WriteError::OutOfMemory => match self.parts.logic.degraded() {
                Some(reason) => WriteError::Degraded { reason },
                None => WriteError::OutOfMemory,
            },
            error => error,
        };
        let lost = matches!(
            error,
            WriteError::Unreachable { .. }
                | WriteError::Expelled { .. }
                | WriteError::Interrupted { .. }
        );
        self.parts.lost.set(self.parts.lost.get() || lost);
        error
    }

    /// Returns the fabric that the session uses.
    pub fn fabric(&self) -> FabricKind {
        self.parts.shared.kind
    }

    /// Calls `f` with the value of a key, or with `None` if the key does not exist. `f` sees the value where it was
    /// fetched, without a copy.
    pub async fn get_with<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, ReadError> {
        let begun = self.begin::<ReadError>(OpKind::Search)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get_with(key, f))).await)
    }

    /// Returns the value of a key; `None` if the key does not exist.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let begun = self.begin::<ReadError>(OpKind::Search)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get(key))).await)
    }

    /// Returns the values of many keys, in the order of the keys; `None` for keys that do not exist. The same key can
    /// be given several times.
    ///
    /// The keys share round trips, whatever memory nodes hold them. Up to 512 keys, with pairs of at most 2 MiB
    /// together, need one round trip if the index cache has correct hints for all of them; two if some keys are not
    /// cached, or were changed by other sessions; and up to four if other sessions have deleted and inserted some of
    /// them again. More keys follow in batches of that size. Each key is read separately: there need not be a moment at
    /// which all returned values existed together.
    ///
    /// # Errors
    /// Like [`Session::get`]. If one key is empty or too long, the whole call fails before anything is read.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        let begun = self.begin::<ReadError>(OpKind::SearchMany)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get_many(keys))).await)
    }

    /// Calls `f` with each value and the position of its key, in any order; otherwise like [`Session::get_many`]. `f`
    /// sees the values where they were fetched, without a copy. `f` is allowed to use the client: no operation waits
    /// for `f`.
    pub async fn get_many_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        f: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), ReadError> {
        let begun = self.begin::<ReadError>(OpKind::SearchMany)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get_many_with(keys, f))).await)
    }

    /// Adds a key; [`WriteError::AlreadyExists`] if the key exists.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Insert)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.insert(key, value))).await)
    }

    /// Replaces the value of a key; [`WriteError::NotFound`] if the key does not exist.
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Update)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.update(key, value))).await)
    }

    /// Adds a key, or replaces its value.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Upsert)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.put(key, value))).await)
    }

    /// Puts a key by options; see [`Client::put_with`](crate::Client::put_with).
    pub async fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<(), WriteError> {
        let begun = self.begin::<WriteError>(options.kind())?;
        let logic = &self.parts.logic;
        self.end(begun, logic.timed(pin!(logic.put_with(key, value, &options))).await)
    }

    /// Adds a key, or replaces its value. `fill` writes the bytes of the value; see
    /// [`BlockingClient::put_from`](crate::BlockingClient::put_from).
    pub async fn put_from(
        &self,
        key: &[u8],
        value_bytes: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<(), WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Upsert)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.put_from(key, value_bytes, fill))).await,
        )
    }

    /// Runs many writes, of any kinds. Returns one result per write, in the order of the writes.
    ///
    /// The writes share round trips, whatever memory nodes they go to: up to 64 writes, with values of 2 MiB together,
    /// run concurrently. Each write takes effect separately, and a failed write does not stop the others. Several
    /// writes can have the same key: these take effect in their order.
    ///
    /// # Errors
    /// Each write has the errors of a single write. If the session is fenced while it runs the batch, or leaves a write
    /// half-way, the writes that had not begun fail with [`WriteError::Expelled`], which says that they were not
    /// applied, so another session can repeat them.
    pub async fn write_many(&self, writes: &[BatchWrite<'_>]) -> Vec<Result<(), WriteError>> {
        // A batch with several kinds of writes is counted as puts.
        let kind = writes.first().map_or(OpKind::Upsert, BatchWrite::kind);
        let is_mixed = writes.iter().any(|write| write.kind() != kind);
        let begun = match self.begin(if is_mixed { OpKind::Upsert } else { kind }) {
            Ok(begun) => begun,
            Err(error) => return vec![Err(error); writes.len()],
        };
        let logic = &self.parts.logic;
        let results = logic.timed(pin!(logic.write_many(writes))).await;
        let results: Vec<Result<(), WriteError>> =
            results.into_iter().map(|result| result.map_err(|error| self.error(error))).collect();
        begun.ends_with(&results);
        results
    }

    /// Shows the next pairs of a scan and advances its cursor. Returns the number of pairs that were skipped because
    /// all of their replicas are damaged. The order of the pairs has no meaning.
    ///
    /// A pair that exists from the first call with [`ScanCursor::start`] until [`ScanCursor::is_done`] is shown exactly
    /// once, whatever is written during the scan, and however the cluster changes. Its shown value is one that it has
    /// at some moment of the call that shows it. A pair that is deleted and inserted again during the scan can be shown
    /// once, twice or not at all.
    ///
    /// One call reads up to 256 slots and shows their pairs, or fewer if their values take more than 2 MiB, in two
    /// round trips. Nothing is locked or kept between calls: a cursor can be kept for any time, or stored as text and
    /// continued by another session of the same cluster.
    ///
    /// # Errors
    /// Like [`Session::get`]. If a call fails, it has shown nothing, and the cursor is unchanged; the same or another
    /// session can repeat the call.
    pub async fn scan(
        &self,
        cursor: &mut ScanCursor,
        show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, ScanError> {
        let limits = ScanLimits::of_slots(SCAN_SLOTS);
        let begun = self.begin::<ScanError>(OpKind::Scan)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.scan(cursor, limits, show))).await,
        )
    }

    /// Removes a key; [`WriteError::NotFound`] if the key does not exist.
    pub async fn delete(&self, key: &[u8]) -> Result<(), WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Delete)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.delete(key))).await)
    }

    /// Gives the value of a key another redundancy; [`WriteError::NotFound`] if the key does not exist. All readers
    /// find the value at every moment. A concurrent write of the key can win instead ([`Transition::Overtaken`]).
    pub async fn set_redundancy(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> Result<Transition, WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Move)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.set_redundancy(key, redundancy))).await,
        )
    }

    /// Returns the words of a subtable; see [`Store::words_of`](fusee_core::Store::words_of).
    pub(crate) async fn words_of(&self, subtable: u32) -> Result<Option<Vec<Slot>>, WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Scan)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.store().words_of(subtable))).await,
        )
    }

    /// Gives an erasure code to a pair that [`Admin::find_pairs`](crate::Admin::find_pairs) has found, if its slot
    /// still leads to the pair.
    pub(crate) async fn demote(
        &self,
        pair: &FoundPair,
        order: &DemotionOrder,
    ) -> Result<DemotionOutcome, WriteError> {
        let begun = self.begin::<WriteError>(OpKind::Move)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(order.carry_out(self.parts.logic.store(), pair))).await,
        )
    }

    /// Returns the rules for the redundancy of new values; see
    /// [`Admin::redundancy_rules`](crate::Admin::redundancy_rules).
    pub fn redundancy_rules(&self) -> &RedundancyRules {
        self.parts.logic.rules()
    }

    /// Returns the redundancy of a key's value; `None` if the key does not exist.
    pub async fn redundancy_of(&self, key: &[u8]) -> Result<Option<Redundancy>, ReadError> {
        let begun = self.begin::<ReadError>(OpKind::Search)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.redundancy_of(key))).await)
    }
}

/// Marks the session as running in [`Session::block_on`], until the guard is dropped.
struct BlockOnGuard<'s> {
    parts: &'s SessionParts,
    was_running: bool,
    was_held: bool,
}

impl BlockOnGuard<'_> {
    #[inline]
    fn begin(parts: &SessionParts) -> BlockOnGuard<'_> {
        let was_running = parts.is_running.replace(true);
        let was_held = parts.is_held.get();
        if was_running {
            // The operations of the outer call cannot go on before this call has ended.
            parts.is_held.set(was_held || parts.logic.store().has_pinned_or_suspended());
        }
        BlockOnGuard { parts, was_running, was_held }
    }
}

impl Drop for BlockOnGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.parts.is_running.set(self.was_running);
        self.parts.is_held.set(self.was_held);
    }
}

/// Returns whether a session could not be opened because the cluster fenced it at once.
fn is_fenced(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Attach(AttachError { cause: AttachCause::Fenced, .. }))
}

/// Attaches to the members of the newest view. If a member does not answer, tells the master, which can then publish a
/// view without that node. Repeats the attempt until there is such a view or `end` has passed, because a node on a busy
/// machine possibly just got no processor time.
fn attach_to_newest(
    shared: &ClientContext,
    gate: &Arc<SessionGate>,
    end: Instant,
) -> Result<(Attachments, Arc<View>), ConnectError> {
    let mut pause = FIRST_RETRY;
    loop {
        let view = gate.view();
        let way = shared.connection_parameters();
        let mut error = match Attachments::new(way, gate.clone(), &view) {
            Ok(attachments) => return Ok((attachments, view)),
            Err(error) => error,
        };
        let is_hopeless = matches!(
            error.cause,
            AttachCause::Fenced | AttachCause::NotOffered | AttachCause::Tls(_)
        );
        if !is_hopeless {
            tracing::info!(client = %gate.client(), %error, "cannot start, tries again");
        }
        let again = Instant::now() + pause;
        while gate.newer_view(view.number).is_none() && Instant::now() < again {
            if gate.is_expelled() {
                error.cause = AttachCause::Fenced;
                return Err(error.into());
            }
            if is_hopeless || Instant::now() >= end {
                return Err(error.into());
            }
            shared.report_unreachable(error.node);
            std::thread::sleep(START_POLL);
        }
        pause = (pause * 2).min(LAST_RETRY);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The session still belongs to the parent process, which goes on using it.
        if !self.parts.is_here() {
            return;
        }
        if self.parts.shared.is_cluster_gone() {
            self.parts.shared.ended(self.id());
            return;
        }
        // During a panic an operation is possibly half-way. The session then ends as by a crash, so that the master
        // recovers it.
        let is_lost = self.is_lost() || std::thread::panicking();
        let leaving = if is_lost { None } else { self.block_on(self.parts.logic.leave()) };
        self.parts.shared.ended(self.id());
        // The session leaves its nodes before the message to the master, which fences an abandoned session: over shared
        // memory, a memory node that fences a session kills the session's process if the process is still attached and
        // does not answer in time.
        let patience = if leaving.is_some() { Duration::ZERO } else { LEAVE_PATIENCE };
        self.parts.attachments.leave_all(patience);
        let client = self.id();
        self.parts.shared.close_session(match leaving {
            Some(leaving) => leaving.request(),
            None => {
                tracing::warn!(%client, "a session is abandoned");
                MasterRequest::Abandon { client }
            }
        });
    }
}

/// The environment of a session in a real process: timers of its thread, and connections to the control services.
struct RpcSessionEnvironment {
    reactor: Rc<Reactor>,
    attachments: Rc<Attachments>,
    nodes: RefCell<NodeClients>,
    clock: Clock,
    shared: Arc<ClientContext>,
    origin: OriginProcess,
}

impl RpcSessionEnvironment {
    /// Fails in a forked child, where control services would never answer.
    fn check_origin(&self, asked: &dyn std::fmt::Display) -> Result<(), RpcError> {
        if self.origin.is_here() {
            Ok(())
        } else {
            Err(RpcError::Unreachable {
                addr: asked.to_string(),
                cause: "the session belongs to the parent of this process".into(),
            })
        }
    }
}

impl Environment for RpcSessionEnvironment {
    #[inline]
    fn now(&self) -> Duration {
        self.clock.now() + self.clock.lag()
    }

    async fn sleep(&self, time: Duration) {
        self.reactor.sleep(time).await;
    }

    async fn yield_now(&self) {
        self.reactor.yield_now().await;
    }

    fn spin(&self, turns: u64) {
        for _ in 0..turns {
            std::hint::spin_loop();
        }
    }

    async fn ask_node(
        &self,
        node: MnId,
        request: NodeRequest,
        deadline: Duration,
    ) -> Result<NodeReply, RpcError> {
        self.check_origin(&node)?;
        let unknown = || RpcError::Unreachable {
            addr: node.to_string(),
            cause: "it is not a member of the view".into(),
        };
        let client = self.nodes.borrow().get(&node).map(|client| client.with_deadline(deadline));
        client.ok_or_else(unknown)?.call(request).await
    }

    fn adopt(&self, view: &View) {
        if !self.origin.is_here() {
            return;
        }
        self.attachments.adopt(view, |node| self.shared.report_unreachable(node));
        *self.nodes.borrow_mut() = self.shared.node_clients(view);
    }

    fn report_unreachable(&self, node: MnId) {
        if self.origin.is_here() {
            self.shared.report_unreachable(node);
        }
    }

    async fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> Result<MasterReply, RpcError> {
        self.check_origin(&"the master")?;
        self.shared.master.with_deadline(deadline).call(request).await
    }
}
