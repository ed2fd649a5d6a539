//! A session: one thread's own way into the store.
//!
//! It has its own client id, slabs and connections, over shared memory its own index cache, too:
//! there nothing is shared or locked on the path of an operation. It stays on its thread; the
//! futures of its operations may be polled side by side there (the paper's coroutines). What it
//! does is in [`logic`](crate::logic); here it gets a thread, timers and connections.
//!
//! A future of a session must be driven to its end: dropping it half-way leaves other clients
//! where a crash of this client would. The calls of [`Client`](crate::Client) do not have this
//! edge.
//!
//! A session is the process's that opened it. In a child, made by `fork`, its calls fail at once, and its
//! drop does nothing.
//!
//! A session that the cluster has fenced, or that left a write half-way, does not come back: its
//! operations fail, and it is given up to the master, which recovers it as if it had crashed. A
//! `Client` opens another one by itself.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::RpcError;
use fusee_core::data::{Redundancy, RedundancyRules};
use fusee_core::layout::Slot;
use fusee_core::stats::{OpKind, Stats};
use fusee_core::store::{PieceLimits, ScanCursor, ScannedPair, Transition};
use fusee_core::verbs::{ClientId, MnId, VerbError};
use fusee_core::view::View;
use fusee_core::{Error, Outcome};
use fusee_fabric::fork::{AtHome, Origin};
use fusee_fabric::verbs::CardCounts;
use fusee_fabric::{AnyFabric, AttachCause, AttachError, Clock, FabricKind};

use crate::attachments::Attachments;
use crate::demotion::{DemotionOrder, DemotionOutcome};
use crate::error::ConnectError;
use crate::executor::Reactor;
use crate::logic::{self, CacheStats, Environment, Gate, LogicOptions};
use crate::shared::{NodeClients, Shared};
use crate::survey::FoundPair;
use crate::telemetry::{Begun, Latencies};

/// What must not end before a session does.
pub(crate) type KeepAlive = Arc<dyn Send + Sync>;

/// How long to wait between looks for a newer view, while a session starts without a memory node.
const START_POLL: Duration = Duration::from_millis(1);
/// How long to wait before a memory node is tried again without one: first, and at last.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_millis(500);

/// How long a session that is abandoned waits for each memory node to know that it has left.
const LEAVE_PATIENCE: Duration = Duration::from_millis(500);
/// Slots of the index that one piece of a scan reads.
const SCAN_SLOTS: u32 = 256;

/// One thread's own way into the store.
pub struct Session {
    parts: AtHome<Parts>,
}

/// What a session consists of.
struct Parts {
    logic: logic::SessionLogic<Rc<AnyFabric>, Surroundings>,
    attachments: Rc<Attachments>,
    reactor: Rc<Reactor>,
    shared: Arc<Shared>,
    /// How long its operations took.
    latencies: Arc<Latencies>,
    /// It met an error after which another session does better.
    lost: Cell<bool>,
    /// Whether its thread runs a future of it.
    is_running: Cell<bool>,
    /// Whether it does so within another one of its futures, which has operations under way.
    is_held: Cell<bool>,
    /// Keeps an embedded cluster alive; not held by the sessions that threads get by themselves.
    _keep_alive: Option<KeepAlive>,
}

impl Session {
    /// Opens a session. One that is fenced before it has begun has got no time, or the master has not: then
    /// another one is opened, within the time that the options allow for connecting.
    pub(crate) fn open(
        shared: &Arc<Shared>,
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
        shared: &Arc<Shared>,
        keep_alive: Option<KeepAlive>,
        end: Instant,
    ) -> Result<Session, ConnectError> {
        let gate = shared.open_session()?;
        let client = gate.client();
        // Before it attaches, which takes time: the master must not take it for dead.
        shared.keeper.open(gate.clone());
        shared.watch_memory(gate.policy());
        Session::attach(shared, keep_alive, gate, end).inspect_err(|_| {
            // The master need not count a session that never was.
            shared.keeper.close(client);
            shared.close_session(MasterRequest::Close {
                client,
                orphans: Vec::new(),
                work: Default::default(),
            });
        })
    }

    fn attach(
        shared: &Arc<Shared>,
        keep_alive: Option<KeepAlive>,
        gate: Arc<Gate>,
        end: Instant,
    ) -> Result<Session, ConnectError> {
        let (attachments, view) = attach_to_newest(shared, &gate, end)?;
        let attachments = Rc::new(attachments);
        let reactor = Rc::new(Reactor::new(attachments.clone()));
        let env = Rc::new(Surroundings {
            reactor: reactor.clone(),
            attachments: attachments.clone(),
            nodes: RefCell::new(shared.node_clients(&view)),
            clock: Clock::of(shared.kind),
            shared: shared.clone(),
            origin: Origin::here(),
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
        let latencies = Arc::<Latencies>::default();
        let logic = logic::SessionLogic::behind(gate, view, fabric, env, options)
            .with_work_table(shared.table.clone())
            .with_cache(shared.cache.clone());
        shared.began(logic.id(), logic.shows_counters(latencies.clone()));
        let shared = shared.clone();
        let lost = Cell::new(false);
        let _keep_alive = keep_alive;
        let is_running = Cell::new(false);
        let is_held = Cell::new(false);
        let parts = Parts {
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
        Ok(Session { parts: AtHome::new(parts) })
    }

    /// Runs a future that uses this session to its end, on the calling thread.
    ///
    /// A callback of an operation may call it again. If other operations are under way beside that one, which cannot go
    /// on before the callback has returned, operations within it fail with [`Error::WithinCallback`]: they could have
    /// to wait for those.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let _running = Running::begin(&self.parts);
        self.parts.reactor.block_on(future)
    }

    /// Runs operations of this session that wait no longer than this for others, all together, whatever
    /// [`Options::op_timeout`](crate::Options::op_timeout) says. What has to wait longer ends with
    /// [`Error::GaveUp`], or as it would after that time. A deadline around another one counts if it is earlier.
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

    /// The session's name in the cluster.
    pub fn id(&self) -> ClientId {
        self.parts.logic.id()
    }

    /// What its operations cost so far.
    pub fn stats(&self) -> Stats {
        self.parts.logic.stats()
    }

    /// What network cards were handed for it so far; `None` of other fabrics than verbs.
    pub fn card_counts(&self) -> Option<CardCounts> {
        self.parts.attachments.fabric().card_counts()
    }

    /// What became of its accesses to the index cache so far.
    pub fn cache_stats(&self) -> CacheStats {
        self.parts.logic.cache_stats()
    }

    /// Whether its client has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.parts.shared.is_closed()
    }

    /// Whether another session does better: this one is fenced, has lost its way to a memory
    /// node, left a write half-way, or belongs to the parent of this process. It is to be dropped then, and
    /// soon: others may wait for what it left.
    pub fn is_lost(&self) -> bool {
        !self.parts.is_here()
            || self.parts.lost.get()
            || self.gate().is_expelled()
            || self.parts.logic.store().needs_recovery()
    }

    /// The newest view that the session has heard of, if it is newer than the one of this number.
    ///
    /// In the child of a fork there is none.
    pub fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        self.parts.is_here().then(|| self.gate().newer_view(than)).flatten()
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        self.parts.logic.gate()
    }

    /// The fabric that it executes verbs on.
    pub(crate) fn verbs(&self) -> &AnyFabric {
        self.parts.attachments.fabric()
    }

    /// The newest view, to whose members it is attached from now on, as far as they answer.
    pub(crate) fn adopt_newest(&self) -> Arc<View> {
        let view = self.gate().view();
        self.parts.attachments.adopt(&view, |node| self.parts.shared.report_unreachable(node));
        view
    }

    /// Tells the master that a memory node does not answer.
    pub(crate) fn report_unreachable(&self, node: MnId) {
        self.parts.shared.report_unreachable(node);
    }

    /// How long it waits for others.
    pub(crate) fn patience(&self) -> Duration {
        self.parts.shared.options.op_timeout
    }

    /// Waits, while others run.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.parts.reactor.sleep(time).await;
    }

    /// An operation begins, unless the session is fenced, or another process's.
    fn begin(&self, kind: OpKind) -> Result<Begun, Error> {
        if !self.parts.is_here() {
            return Err(Error::Forked { outcome: Outcome::NotApplied });
        }
        if self.parts.is_held.get() {
            return Err(Error::WithinCallback);
        }
        if self.gate().is_expelled() {
            Err(Error::Expelled { outcome: Outcome::NotApplied })
        } else {
            Ok(Begun::now(kind))
        }
    }

    /// An operation has ended. If the session is fenced, that is what its errors say.
    fn end<T>(&self, begun: Begun, result: Result<T, Error>) -> Result<T, Error> {
        let result = result.map_err(|error| self.error(error));
        begun.ends(&self.parts.latencies, &result);
        result
    }

    #[cold]
    fn error(&self, error: Error) -> Error {
        let error = match error {
            // A fork came while it ran, and this is the child.
            error if !self.parts.is_here() => return Error::Forked { outcome: error.outcome() },
            // Fenced by a node; the master's word is on its way.
            Error::Unreachable { error: VerbError::Fenced, outcome, .. } => {
                Error::Expelled { outcome }
            }
            Error::Unreachable { .. }
            | Error::GaveUp { .. }
            | Error::Interrupted { .. }
            | Error::Allocation { .. }
                if self.gate().is_expelled() =>
            {
                Error::Expelled { outcome: error.outcome() }
            }
            Error::OutOfMemory => match self.parts.logic.degraded() {
                Some(reason) => Error::Degraded { reason },
                None => Error::OutOfMemory,
            },
            error => error,
        };
        let lost = matches!(
            error,
            Error::Unreachable { .. } | Error::Expelled { .. } | Error::Interrupted { .. }
        );
        self.parts.lost.set(self.parts.lost.get() || lost);
        error
    }

    /// Which fabric it uses.
    pub fn fabric(&self) -> FabricKind {
        self.parts.shared.kind
    }

    /// Looks a key up and shows the value to `f` where it was fetched, without another copy.
    pub async fn get_with<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        let begun = self.begin(OpKind::Search)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get_with(key, f))).await)
    }

    /// The value of a key; `None` if it does not exist.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let begun = self.begin(OpKind::Search)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get(key))).await)
    }

    /// As [`Client::get_into`](crate::Client::get_into).
    pub async fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let fill = |found: Option<&[u8]>| {
            value.clear();
            value.extend_from_slice(found.unwrap_or_default());
            found.is_some()
        };
        self.get_with(key, fill).await
    }

    /// The values of many keys, in their order; `None` for those that do not exist. A key may occur
    /// several times.
    ///
    /// Keys share their round trips, on whichever memory nodes they are: up to 512 keys, as long as their
    /// pairs take no more than 2 MiB, need one round trip if the index cache knows where they are, two if
    /// some are not in it or others have changed them, and up to four if others have deleted and inserted
    /// them again. More keys follow in batches of that size. Every key is read by itself: what is returned
    /// need not have been there at any one moment.
    ///
    /// # Errors
    /// As [`Session::get`]. One key that is empty or too long is an error for all, before anything is
    /// read.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let begun = self.begin(OpKind::SearchMany)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get_many(keys))).await)
    }

    /// As [`Session::get_many`], but shows each value to `f` where it was fetched, without another copy:
    /// with the position of its key, and in any order. `f` may use the client; what it is shown, no operation holds.
    pub async fn get_many_with<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        f: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Error> {
        let begun = self.begin(OpKind::SearchMany)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.get_many_with(keys, f))).await)
    }

    /// Adds a key; [`Error::AlreadyExists`] if it exists.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let begun = self.begin(OpKind::Insert)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.insert(key, value))).await)
    }

    /// As [`Session::insert`], with this redundancy, whatever the rules of the client say.
    pub async fn insert_with(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        let begun = self.begin(OpKind::Insert)?;
        self.end(
            begun,
            self.parts
                .logic
                .timed(pin!(self.parts.logic.insert_with(key, value, redundancy)))
                .await,
        )
    }

    /// Replaces the value of a key; [`Error::NotFound`] if it does not exist.
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let begun = self.begin(OpKind::Update)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.update(key, value))).await)
    }

    /// As [`Session::update`], with this redundancy, whatever the rules of the client say.
    pub async fn update_with(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        let begun = self.begin(OpKind::Update)?;
        self.end(
            begun,
            self.parts
                .logic
                .timed(pin!(self.parts.logic.update_with(key, value, redundancy)))
                .await,
        )
    }

    /// Adds a key, or replaces its value.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let begun = self.begin(OpKind::Upsert)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.put(key, value))).await)
    }

    /// As [`Session::put`], with this redundancy, whatever the rules of the client say.
    pub async fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        let begun = self.begin(OpKind::Upsert)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.put_with(key, value, redundancy))).await,
        )
    }

    /// As [`Client::put_from`](crate::Client::put_from).
    pub async fn put_from(
        &self,
        key: &[u8],
        value_bytes: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<(), Error> {
        let begun = self.begin(OpKind::Upsert)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.put_from(key, value_bytes, fill))).await,
        )
    }

    /// Adds many keys, or replaces their values; each with its own outcome, in their order.
    ///
    /// They share round trips, on whichever memory nodes they are: up to 64, with values of 2 MiB together, are written
    /// side by side. Each takes effect by itself, and one that fails does not stop the others. A key may occur several
    /// times: then the last value stays.
    ///
    /// # Errors
    /// As [`Session::put`], for each. If the session is fenced meanwhile, or leaves one half-way, those that had not
    /// begun have [`Error::Expelled`], which says that they were not applied: another session may write them.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        self.each(OpKind::Upsert, pairs.len(), self.parts.logic.put_many(pairs)).await
    }

    /// As [`Session::put_many`], of keys that do not exist: the others have [`Error::AlreadyExists`].
    pub async fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        self.each(OpKind::Insert, pairs.len(), self.parts.logic.insert_many(pairs)).await
    }

    /// As [`Session::put_many`], of keys that exist: the others have [`Error::NotFound`].
    pub async fn update_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        self.each(OpKind::Update, pairs.len(), self.parts.logic.update_many(pairs)).await
    }

    /// Removes many keys, each with its own outcome, as [`Session::put_many`]; those that do not exist have
    /// [`Error::NotFound`].
    pub async fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), Error>> {
        self.each(OpKind::Delete, keys.len(), self.parts.logic.delete_many(keys)).await
    }

    /// The outcomes of so many writes.
    async fn each(
        &self,
        kind: OpKind,
        writes: usize,
        outcomes: impl Future<Output = Vec<Result<(), Error>>>,
    ) -> Vec<Result<(), Error>> {
        let begun = match self.begin(kind) {
            Ok(begun) => begun,
            Err(error) => return vec![Err(error); writes],
        };
        let outcomes = self.parts.logic.timed(pin!(outcomes)).await;
        let outcomes: Vec<Result<(), Error>> = outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(|error| self.error(error)))
            .collect();
        begun.ends_with(&outcomes);
        outcomes
    }

    /// Shows the next pairs of a scan, and moves its cursor on; returns how many pairs were passed over because all of
    /// their replicas are damaged. The order says nothing.
    ///
    /// All pairs that are there from the first call with [`ScanCursor::start`] until [`ScanCursor::is_done`] are shown
    /// exactly once, each with the value that it has at some moment of the call that shows it, whatever others write
    /// meanwhile, and however the cluster changes. One that is deleted and inserted again meanwhile may be shown twice,
    /// or not at all.
    ///
    /// A call shows the pairs of 256 slots, or fewer, with values of 2 MiB, in two round trips. Between calls nothing
    /// is held: a cursor may wait, or be written down and read again, for another session of the same cluster.
    ///
    /// # Errors
    /// As [`Session::get`]. Nothing was shown then, and the cursor is as it was; another session may go on.
    pub async fn scan(
        &self,
        cursor: &mut ScanCursor,
        show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, Error> {
        let limits = PieceLimits::of_slots(SCAN_SLOTS);
        let begun = self.begin(OpKind::Scan)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.scan(cursor, limits, show))).await,
        )
    }

    /// Removes a key; [`Error::NotFound`] if it does not exist.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let begun = self.begin(OpKind::Delete)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.delete(key))).await)
    }

    /// Gives a key's value another redundancy; [`Error::NotFound`] if the key does not exist. The value stays, for
    /// everybody and at every moment. A write of the key that is under way may win over it
    /// ([`Transition::Overtaken`]).
    pub async fn set_redundancy(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> Result<Transition, Error> {
        let begun = self.begin(OpKind::Move)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.set_redundancy(key, redundancy))).await,
        )
    }

    /// See [`Store::words_of`](fusee_core::Store::words_of).
    pub(crate) async fn words_of(&self, subtable: u32) -> Result<Option<Vec<Slot>>, Error> {
        let begun = self.begin(OpKind::Scan)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(self.parts.logic.store().words_of(subtable))).await,
        )
    }

    /// Makes a pair erasure-coded that was found before, if it is still there.
    pub(crate) async fn demote(
        &self,
        pair: &FoundPair,
        order: &DemotionOrder,
    ) -> Result<DemotionOutcome, Error> {
        let begun = self.begin(OpKind::Move)?;
        self.end(
            begun,
            self.parts.logic.timed(pin!(order.carry_out(self.parts.logic.store(), pair))).await,
        )
    }

    /// As [`Client::redundancy_rules`](crate::Client::redundancy_rules).
    pub fn redundancy_rules(&self) -> &RedundancyRules {
        self.parts.logic.rules()
    }

    /// The redundancy of a key's value; `None` if it does not exist.
    pub async fn redundancy_of(&self, key: &[u8]) -> Result<Option<Redundancy>, Error> {
        let begun = self.begin(OpKind::Search)?;
        self.end(begun, self.parts.logic.timed(pin!(self.parts.logic.redundancy_of(key))).await)
    }
}

/// That the session's thread runs a future of it; ends on drop.
struct Running<'s> {
    parts: &'s Parts,
    was_running: bool,
    was_held: bool,
}

impl Running<'_> {
    #[inline]
    fn begin(parts: &Parts) -> Running<'_> {
        let was_running = parts.is_running.replace(true);
        let was_held = parts.is_held.get();
        if was_running {
            // What runs further out cannot go on before this has ended.
            parts.is_held.set(was_held || parts.logic.store().holds_others_up());
        }
        Running { parts, was_running, was_held }
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.parts.is_running.set(self.was_running);
        self.parts.is_held.set(self.was_held);
    }
}

/// Whether the session was fenced while it connected.
fn is_fenced(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Attach(AttachError { cause: AttachCause::Fenced, .. }))
}

/// Attaches to the members of the newest view. If one does not answer, the master is told, and may
/// come with a view that does without it. Otherwise it is tried again: on a busy machine it may have had no time.
fn attach_to_newest(
    shared: &Shared,
    gate: &Arc<Gate>,
    end: Instant,
) -> Result<(Attachments, Arc<View>), ConnectError> {
    let mut pause = FIRST_RETRY;
    loop {
        let view = gate.view();
        let way = shared.way();
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
        // It goes on in the parent.
        if !self.parts.is_here() {
            return;
        }
        if self.parts.shared.is_cluster_gone() {
            self.parts.shared.ended(self.id());
            return;
        }
        // While panicking an operation may be half-way: that is a crash, not an end.
        let is_lost = self.is_lost() || std::thread::panicking();
        let leaving = if is_lost { None } else { self.block_on(self.parts.logic.leave()) };
        self.parts.shared.ended(self.id());
        // First: the master fences whoever is abandoned, and over shared memory a node kills the process of an attached
        // session that does not answer in time.
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

/// The thread's timers, and connections to the control services.
struct Surroundings {
    reactor: Rc<Reactor>,
    attachments: Rc<Attachments>,
    nodes: RefCell<NodeClients>,
    clock: Clock,
    shared: Arc<Shared>,
    origin: Origin,
}

impl Surroundings {
    /// In a child nobody answers.
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

impl Environment for Surroundings {
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
