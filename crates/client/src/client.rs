//! The client that all threads and tasks of a program share.
//!
//! Async calls run on the client's driver thread, over every fabric: their futures may move between threads and
//! be dropped at any time, and the awaiting thread is never blocked. [`blocking`](crate::blocking) has the
//! blocking calls, which run on the calling thread.
//!
//! A client belongs to the process that opened it. Its copy in a forked child answers every call with an error
//! of the name `Forked`, leaves the parent's resources alone, and does nothing when it is dropped.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_control::rpc::{MasterClient, NodeClient, Runtime};
use fusee_core::data::Redundancy;
use fusee_core::store::{ScanCursor, ScannedPair, Transition};
use fusee_core::verbs::MnId;
use fusee_core::view::View;
use fusee_fabric::fork::ProcessBound;
use fusee_fabric::{FabricKind, barrier};

use crate::admin::Admin;
use crate::blocking::{BlockingClient, take_sessions_of_thread};
use crate::context::{ClientContext, first_view, wait};
use crate::driver::AsyncDriver;
use crate::error::{ConnectError, ErrorFamily, ReadError, ScanError, WriteError};
use crate::fabric_selection::SelectedFabric;
use crate::metrics::ClientMetrics;
use crate::options::{FabricChoice, Options, WorkTable};
use crate::session::{KeepAlive, Session};
use crate::writes::{BatchWrite, OwnedWrite, PutOptions};

thread_local! {
    /// Whether this thread is a driver and runs a callback of an async call; all other operations of its
    /// session wait meanwhile.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// A handle of the store. Clones are cheap and share everything; any thread or task may use them.
///
/// Its calls are async: they work under any executor, never block the awaiting thread, and go on if their
/// future is dropped after its first poll. [`Client::blocking`] has the same calls as blocking ones.
///
/// ```no_run
/// # async fn greet() -> Result<(), fusee_client::Error> {
/// use fusee_client::Client;
///
/// let client = Client::connect("127.0.0.1:7400")?;
/// client.put(b"greeting", b"hello").await?;
/// assert_eq!(client.get(b"greeting").await?.as_deref(), Some(&b"hello"[..]));
/// # Ok(())
/// # }
/// ```
///
/// The drop of the last clone ends the session of the dropping thread and completes all async calls that still
/// run, awaited or not: the drop waits for both. Sessions of other threads end with those threads, or when
/// these open a session of another client.
///
/// A child made by `fork` has no client: all calls of the inherited one fail at once, with an error named
/// `Forked`, and its drop does nothing. The child may open a client of its own by [`Client::connect`], as may a
/// daemon after its last fork. If the parent has other threads, the usual rule of `fork` holds: what another
/// thread had locked (standard output, a logger) stays locked in the child.
///
/// ```no_run
/// # fn fork() -> i32 { 0 } // libc::fork, in an unsafe block
/// use fusee_client::{Client, ReadError};
///
/// let store = Client::connect("127.0.0.1:7400")?.blocking();
/// if fork() == 0 {
///     assert_eq!(store.get(b"key"), Err(ReadError::Forked));
///     let store = Client::connect("127.0.0.1:7400")?.blocking();
///     store.put(b"key", b"the child's")?;
///     std::process::exit(0);
/// }
/// store.put(b"another", b"the parent's")?;
/// # Ok::<(), fusee_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<ProcessBound<ClientInner>>,
    /// The op timeout of this clone, if it differs from the options'.
    op_timeout: Option<Duration>,
}

/// The state shared by all clones; its drop ends the client.
pub(crate) struct ClientInner {
    context: Arc<ClientContext>,
    /// The view that a forked child reports: the lock of the newest view may be held for ever there.
    first_view: Arc<View>,
    driver: Mutex<Option<AsyncDriver>>,
    /// The embedded cluster, if there is one.
    cluster: Option<KeepAlive>,
}

/// The limit of a call that has an op timeout of its own.
#[derive(Clone, Copy)]
pub(crate) struct CallLimit {
    op_timeout: Duration,
    begun: Instant,
}

impl CallLimit {
    /// Returns the rest of the call's time.
    pub fn left(&self) -> Duration {
        self.op_timeout.saturating_sub(self.begun.elapsed())
    }
}

impl Client {
    /// Joins a cluster. `master` is the master's host and port; several masters are separated by commas.
    ///
    /// The call blocks its thread until the master and all memory nodes are reached.
    pub fn connect(master: &str) -> Result<Client, ConnectError> {
        Client::connect_with(master, Options::default())
    }

    /// Joins a cluster, with options; see [`Client::connect`].
    pub fn connect_with(master: &str, options: Options) -> Result<Client, ConnectError> {
        // Early, since a program that begins with this call has no other threads yet.
        barrier::prepare();
        let runtime = Runtime::with_keys("fusee-control", options.keys.clone())?;
        let runtime = runtime.with_tls(options.tls.clone());
        let master = MasterClient::new(&runtime, master);
        Client::join(runtime, master, options, HashMap::new(), None)
    }

    /// Joins the cluster of this master. `cluster` is an embedded cluster, which ends with the client;
    /// `local_nodes` are the control services of its memory nodes.
    pub(crate) fn join(
        runtime: Runtime,
        master: MasterClient,
        options: Options,
        local_nodes: HashMap<MnId, NodeClient>,
        cluster: Option<KeepAlive>,
    ) -> Result<Client, ConnectError> {
        let view = wait(&runtime, first_view(master.clone(), options.connect_timeout))?;
        view.check()?;
        // The client is bound to this cluster now: in another one its pairs would not be found.
        master.join(view.cluster);
        let reached = match options.fabric {
            FabricChoice::Only(kind) => SelectedFabric::asked_for(kind),
            FabricChoice::Auto => match &options.switch {
                Some(switch) => SelectedFabric::asked_for(switch.fabric()),
                None => SelectedFabric::best(&view.members, runtime.keys().map(|keys| &**keys)),
            },
        };
        let kind = reached.kind;
        if let Some(switch) = &options.switch
            && switch.fabric() != kind
        {
            return Err(ConnectError::SwitchOfAnotherFabric(switch.fabric()));
        }
        if kind == FabricKind::Shm && options.work_table != WorkTable::Off {
            return Err(ConnectError::WorkTableOverShm);
        }
        let context =
            Arc::new(ClientContext::new(runtime, master, reached, options, view, local_nodes));
        let first_view = context.keeper.view();
        let inner = ClientInner { context, first_view, driver: Mutex::default(), cluster };
        let client = Client { inner: Arc::new(ProcessBound::new(inner)), op_timeout: None };
        // Reaches every memory node once, so that errors show here and not in the first operation.
        client.with_session(|_| ())?;
        Ok(client)
    }

    /// Returns this client with blocking calls.
    pub fn blocking(&self) -> BlockingClient {
        BlockingClient::new(self.clone())
    }

    /// Returns the operator's calls: status of the cluster, use of memory, demotion.
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(self)
    }

    /// Opens a session on the calling thread, for lowest latency and many operations at once. Blocks the thread
    /// meanwhile.
    pub fn session(&self) -> Result<Session, ConnectError> {
        self.check_caller()?;
        Session::open(&self.inner.context, Some(self.inner.clone()))
    }

    /// Returns a client whose calls wait at most `op_timeout` for others, instead of [`Options::op_timeout`].
    /// The time counts for a whole call, also one of many keys. A call that has to wait longer ends with
    /// `GaveUp`, or with the result that it has by then. For sessions of [`Client::session`] there is
    /// [`Session::with_op_timeout`].
    ///
    /// A blocking call may take longer if its thread has no session, or has lost it: the call opens one first,
    /// which takes up to [`Options::connect_timeout`] if memory nodes do not answer.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let impatient = client.with_op_timeout(Duration::from_millis(50)).blocking();
    /// let value = impatient.get(b"key")?;
    /// # Ok::<(), fusee_client::Error>(())
    /// ```
    pub fn with_op_timeout(&self, op_timeout: Duration) -> Client {
        Client { op_timeout: Some(op_timeout), ..self.clone() }
    }

    /// Returns the newest view of the cluster that this client knows; in a forked child, the first one.
    pub fn view(&self) -> Arc<View> {
        if self.inner.is_here() {
            self.inner.context.keeper.view()
        } else {
            self.inner.first_view.clone()
        }
    }

    /// Returns the fabric of the sessions.
    pub fn fabric(&self) -> FabricKind {
        self.inner.context.kind
    }

    /// Returns the counts of all sessions, also of ended ones. Any thread may call this at any time. In a
    /// forked child all counts are zero.
    ///
    /// ```no_run
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let mut page = fusee_client::prometheus::Metrics::default();
    /// client.metrics().write(&mut page);
    /// println!("{}", page.into_text()); // the body of an answer to GET /metrics
    /// # Ok::<(), fusee_client::Error>(())
    /// ```
    pub fn metrics(&self) -> ClientMetrics {
        if self.inner.is_here() { self.inner.context.metrics() } else { Default::default() }
    }

    /// Returns the value of a key; `None` if the key does not exist.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let key = key.to_vec();
        self.drive(async move |s| s.get(&key).await).await
    }

    /// Calls `f` with the value of a key, or with `None` if the key does not exist. The value is not copied
    /// before.
    ///
    /// `f` runs on the client's driver thread and delays its other calls meanwhile, so `f` must not use a
    /// client: such calls fail with `WithinCallback`. A panic of `f` continues in the awaiting task.
    pub async fn get_with<R: Send + 'static>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R + Send + 'static,
    ) -> Result<R, ReadError> {
        let key = key.to_vec();
        // A panic on the driver thread would end the operations of other tasks.
        let f = |value: Option<&[u8]>| {
            IN_CALLBACK.set(true);
            let shown = panic::catch_unwind(AssertUnwindSafe(|| f(value)));
            IN_CALLBACK.set(false);
            shown
        };
        let shown = self.drive(async move |s| s.get_with(&key, f).await).await?;
        shown.map_err(|cause| panic::resume_unwind(cause))
    }

    /// Returns the values of many keys, in the order of the keys, fetched in shared round trips; see
    /// [`Session::get_many`].
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|k| k.as_ref().to_vec()).collect();
        self.drive(async move |s| s.get_many(&keys).await).await
    }

    /// Adds a key, or replaces its value. Dropping the future does not stop the write; so it is with all writes.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.put(&key, &value).await).await
    }

    /// Puts a key by options: under a condition, or with a redundancy of its own.
    ///
    /// ```no_run
    /// # async fn example(client: fusee_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use fusee_client::{PutOptions, WriteError};
    ///
    /// // Only if nobody else has; on six memory nodes, any four of which restore the value.
    /// let options = PutOptions::default().if_absent().with_redundancy("ec:4+2".parse()?);
    /// match client.put_with(b"picture", &[7; 100_000], options).await {
    ///     Ok(()) => println!("stored"),
    ///     Err(WriteError::AlreadyExists) => println!("it was there"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<(), WriteError> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.put_with(&key, &value, options).await).await
    }

    /// Adds a key; [`WriteError::AlreadyExists`] if the key exists.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.insert(&key, &value).await).await
    }

    /// Replaces the value of a key; [`WriteError::NotFound`] if the key does not exist.
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.update(&key, &value).await).await
    }

    /// Removes a key; [`WriteError::NotFound`] if the key does not exist.
    pub async fn delete(&self, key: &[u8]) -> Result<(), WriteError> {
        let key = key.to_vec();
        self.drive(async move |s| s.delete(&key).await).await
    }

    /// Runs many writes, of any kinds, in shared round trips. Each has a result of its own, in the order of the
    /// writes; see [`Session::write_many`].
    ///
    /// ```no_run
    /// # async fn example(client: fusee_client::Client) -> Result<(), fusee_client::Error> {
    /// use fusee_client::BatchWrite;
    ///
    /// let writes = [BatchWrite::put("cat", "meows"), BatchWrite::delete("dodo")];
    /// for (write, result) in writes.iter().zip(client.write_many(&writes).await) {
    ///     result.inspect_err(|error| eprintln!("{}: {error}", write.key().escape_ascii()))?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write_many(&self, writes: &[BatchWrite<'_>]) -> Vec<Result<(), WriteError>> {
        let owned: Vec<OwnedWrite> = writes.iter().map(OwnedWrite::of).collect();
        let run = async move |session: &Session| {
            let writes: Vec<BatchWrite<'_>> = owned.iter().map(OwnedWrite::borrow).collect();
            Ok(session.write_many(&writes).await)
        };
        each(writes.len(), self.drive(run).await)
    }

    /// Shows the next pairs of a scan and advances its cursor; see [`Session::scan`]. `show` runs in the
    /// awaiting task, and may use the client.
    ///
    /// ```no_run
    /// # async fn example(client: fusee_client::Client) -> Result<(), fusee_client::Error> {
    /// use fusee_client::ScanCursor;
    ///
    /// let (mut cursor, mut bytes) = (ScanCursor::start(), 0);
    /// while !cursor.is_done() {
    ///     client.scan(&mut cursor, |pair| bytes += pair.value.len()).await?;
    /// }
    /// println!("all values together have {bytes} bytes");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn scan(
        &self,
        cursor: &mut ScanCursor,
        mut show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, ScanError> {
        let mut next = cursor.clone();
        let scan = async move |session: &Session| {
            let mut pairs = Vec::new();
            let keep = |pair: ScannedPair<'_>| pairs.push(OwnedPair::of(&pair));
            let damaged = session.scan(&mut next, keep).await?;
            Ok(ScannedPiece { next, pairs, damaged })
        };
        let piece: ScannedPiece = self.drive(scan).await?;
        *cursor = piece.next;
        piece.pairs.iter().for_each(|pair| show(pair.borrow()));
        Ok(piece.damaged)
    }

    /// Gives the value of a key another redundancy; [`WriteError::NotFound`] if the key does not exist. All
    /// readers find the value at every moment. A concurrent write of the key may win instead
    /// ([`Transition::Overtaken`]). Dropping the future does not stop it.
    ///
    /// ```no_run
    /// # async fn example(client: fusee_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use fusee_client::Transition;
    ///
    /// match client.set_redundancy(b"picture", "ec:4+2".parse()?).await? {
    ///     Transition::Moved => println!("any four of six memory nodes make the value now"),
    ///     Transition::Unchanged => println!("they did before"),
    ///     Transition::Overtaken => println!("another write of the key has won"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_redundancy(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> Result<Transition, WriteError> {
        let key = key.to_vec();
        self.drive(async move |s| s.set_redundancy(&key, redundancy).await).await
    }

    /// Returns the redundancy of a key's value; `None` if the key does not exist.
    pub async fn redundancy_of(&self, key: &[u8]) -> Result<Option<Redundancy>, ReadError> {
        let key = key.to_vec();
        self.drive(async move |s| s.redundancy_of(&key).await).await
    }

    /// Returns the state that all its sessions share.
    pub(crate) fn context(&self) -> &Arc<ClientContext> {
        &self.inner.context
    }

    /// Fails in a forked child of the process that opened the client.
    pub(crate) fn check_origin(&self) -> Result<(), ConnectError> {
        if self.inner.is_here() { Ok(()) } else { Err(ConnectError::Forked) }
    }

    /// Also fails if the calling thread runs a callback of an async call, and so must not wait for the store.
    pub(crate) fn check_caller(&self) -> Result<(), ConnectError> {
        self.check_origin()?;
        if IN_CALLBACK.get() { Err(ConnectError::WithinCallback) } else { Ok(()) }
    }

    /// Returns the limit of a call that begins now, if this clone has an op timeout of its own.
    pub(crate) fn limit(&self) -> Option<CallLimit> {
        self.op_timeout.map(|op_timeout| CallLimit { op_timeout, begun: Instant::now() })
    }

    /// Runs an operation on the driver thread, which the first operation starts.
    async fn drive<R: Send + 'static, E: ErrorFamily + Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Session) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        let no_session = |error: ConnectError| E::from_store(error.into());
        self.check_caller().map_err(no_session)?;
        let answer = {
            let mut driver = self.inner.driver.lock().unwrap_or_else(PoisonError::into_inner);
            if driver.as_ref().is_none_or(AsyncDriver::is_over) {
                // Detached: its operations end by themselves, and an async thread must not wait for them.
                if let Some(over) = driver.take() {
                    over.detach();
                }
                let started = AsyncDriver::start(&self.inner.context);
                *driver = Some(started.map_err(|error| no_session(error.into()))?);
            }
            let limit = self.limit();
            let operation = async move |session: &Session| match limit {
                None => operation(session).await,
                Some(limit) => session.with_op_timeout(limit.left(), operation(session)).await,
            };
            driver.as_ref().expect("just set").submit(operation)
        };
        answer.await
    }
}

/// One piece of a scan, on its way from the driver thread to its caller.
struct ScannedPiece {
    next: ScanCursor,
    pairs: Vec<OwnedPair>,
    damaged: u64,
}

/// A copy of a scanned pair.
struct OwnedPair {
    key: Vec<u8>,
    value: Vec<u8>,
    redundancy: Redundancy,
}

impl OwnedPair {
    fn of(pair: &ScannedPair<'_>) -> OwnedPair {
        let redundancy = pair.redundancy;
        OwnedPair { key: pair.key.to_vec(), value: pair.value.to_vec(), redundancy }
    }

    fn borrow(&self) -> ScannedPair<'_> {
        ScannedPair { key: &self.key, value: &self.value, redundancy: self.redundancy }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let context = &self.inner.context;
        write!(f, "Client({} over {})", context.master.addr(), context.kind)
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        // First the driver, which completes the submitted operations; then this thread's session, which hands
        // over its blocks; then the cluster. Sessions of other threads find the client closed.
        drop(self.driver.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(take_sessions_of_thread(self.context.number, |_| true));
        self.context.close(self.cluster.is_some());
        drop(self.cluster.take());
    }
}

/// Returns the results of the writes, or the same error for each if there was no session.
pub(crate) fn each(
    writes: usize,
    results: Result<Vec<Result<(), WriteError>>, WriteError>,
) -> Vec<Result<(), WriteError>> {
    results.unwrap_or_else(|error| vec![Err(error); writes])
}
