//! The client that all threads and tasks of a program share.
//!
//! Async calls run on the client's driver thread, over every fabric. The futures of async calls can be moved between
//! threads and dropped at any time, and never block the awaiting thread. [`blocking`](crate::blocking) has the blocking
//! calls, which run on the calling thread.
//!
//! A client belongs to the process that opened it. In a forked child, every call of the inherited client fails with an
//! error named `Forked`, and its drop does nothing: the parent's resources stay untouched.

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
    /// Whether this thread is a driver thread that runs a callback of an async call. All other operations of the
    /// driver's session wait until the callback returns.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// A handle of the store. Clones are cheap and share everything; any thread or task can use them.
///
/// The calls of a `Client` are async: they work under any executor, never block the awaiting thread, and an operation
/// goes on if its future is dropped after the first poll. [`Client::blocking`] has the same calls as blocking ones.
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
/// The drop of the last clone waits until all async calls that still run, awaited or not, are complete, and until the
/// session of the dropping thread has ended. The session of another thread ends with that thread, or when that thread
/// opens a session of another client.
///
/// A child made by `fork` cannot use its parent's client: all calls of the inherited client fail at once, with an error
/// named `Forked`, and its drop does nothing. The child can open a client of its own by [`Client::connect`]; a daemon
/// should do that after its last fork. If the parent has other threads, the usual rule of `fork` holds: a lock that
/// another thread held at the fork (of standard output, of a logger) stays locked in the child.
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
    /// The op timeout of this clone; `None` means [`Options::op_timeout`].
    op_timeout: Option<Duration>,
}

/// The state shared by all clones of a [`Client`]. Its drop ends the client.
pub(crate) struct ClientInner {
    context: Arc<ClientContext>,
    /// The view at the time of joining, which a forked child reports. The child must not lock the newest view: another
    /// thread of the parent possibly held that lock at the fork.
    first_view: Arc<View>,
    driver: Mutex<Option<AsyncDriver>>,
    /// The embedded cluster, if the client has started one. Dropping this value ends the cluster.
    cluster: Option<KeepAlive>,
}

/// The op timeout of one call of a client made by [`Client::with_op_timeout`], and the time when the call began.
#[derive(Clone, Copy)]
pub(crate) struct CallLimit {
    op_timeout: Duration,
    begun: Instant,
}

impl CallLimit {
    /// Returns the part of the op timeout that is left for the call.
    pub fn left(&self) -> Duration {
        self.op_timeout.saturating_sub(self.begun.elapsed())
    }
}

impl Client {
    /// Joins a cluster. `master` is the master's host and port; several masters are separated by commas.
    ///
    /// Blocks the calling thread until the master and all memory nodes are reached.
    pub fn connect(master: &str) -> Result<Client, ConnectError> {
        Client::connect_with(master, Options::default())
    }

    /// Joins a cluster, with options; see [`Client::connect`].
    pub fn connect_with(master: &str, options: Options) -> Result<Client, ConnectError> {
        // This is called early: a program that begins with `connect` has no other threads yet, so its registration for
        // the barrier is fast.
        barrier::prepare();
        let runtime = Runtime::with_keys("fusee-control", options.keys.clone())?;
        let runtime = runtime.with_tls(options.tls.clone());
        let master = MasterClient::new(&runtime, master);
        Client::join(runtime, master, options, HashMap::new(), None)
    }

    /// Joins the cluster of this master. `cluster` is an embedded cluster, which ends with the client. `local_nodes`
    /// are the control services of the embedded cluster's memory nodes.
    pub(crate) fn join(
        runtime: Runtime,
        master: MasterClient,
        options: Options,
        local_nodes: HashMap<MnId, NodeClient>,
        cluster: Option<KeepAlive>,
    ) -> Result<Client, ConnectError> {
        let view = wait(&runtime, first_view(master.clone(), options.connect_timeout))?;
        view.check()?;
        // From now on, `master` refuses any other cluster, because the client's pairs would not be found there.
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
        // Opens a session, which reaches every memory node, so that connection errors show here and not in the first
        // operation.
        client.with_session(|_| ())?;
        Ok(client)
    }

    /// Returns a handle of this client whose calls block.
    pub fn blocking(&self) -> BlockingClient {
        BlockingClient::new(self.clone())
    }

    /// Returns the operator's calls: status of the cluster, use of memory, demotion.
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(self)
    }

    /// Opens a session on the calling thread, for lowest latency and many operations at once. Blocks the thread until
    /// the session is open.
    pub fn session(&self) -> Result<Session, ConnectError> {
        self.check_caller()?;
        Session::open(&self.inner.context, Some(self.inner.clone()))
    }

    /// Returns a client whose calls wait at most `op_timeout` for others, instead of [`Options::op_timeout`]. The limit
    /// covers all waits of one call together, even if the call has many keys. A call that would have to wait longer
    /// ends with `GaveUp`, or with the result that it has by then. For sessions of [`Client::session`] there is
    /// [`Session::with_op_timeout`].
    ///
    /// A blocking call can take longer if its thread has no session, or has lost its session: the call opens one first,
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

    /// Returns the newest view of the cluster that this client knows. In a forked child, returns the view with which
    /// the client joined.
    pub fn view(&self) -> Arc<View> {
        if self.inner.is_here() {
            self.inner.context.keeper.view()
        } else {
            self.inner.first_view.clone()
        }
    }

    /// Returns the fabric that all sessions of the client use.
    pub fn fabric(&self) -> FabricKind {
        self.inner.context.kind
    }

    /// Returns the counts of all sessions of the client, including ended ones. Any thread can call this at any time. In
    /// a forked child all counts are zero.
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

    /// Calls `f` with the value of a key, or with `None` if the key does not exist. `f` sees the value where it was
    /// fetched, without a copy.
    ///
    /// `f` runs on the client's driver thread, and all other async calls of the client wait until `f` returns. So `f`
    /// must not use a client: its calls fail with `WithinCallback`. A panic of `f` continues in the awaiting task.
    pub async fn get_with<R: Send + 'static>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R + Send + 'static,
    ) -> Result<R, ReadError> {
        let key = key.to_vec();
        // The panic is caught here, because on the driver thread it would end the operations of other tasks.
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

    /// Adds a key, or replaces its value. Dropping the future does not stop this or any other write.
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
    /// // Only if the key is absent; on six memory nodes, any four of which restore the value.
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

    /// Runs many writes, of any kinds, in shared round trips. Returns one result per write, in the order of the writes;
    /// see [`Session::write_many`].
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

    /// Shows the next pairs of a scan and advances its cursor; see [`Session::scan`]. `show` runs in the awaiting task,
    /// and is allowed to use the client.
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

    /// Gives the value of a key another redundancy; [`WriteError::NotFound`] if the key does not exist. All readers
    /// find the value at every moment. A concurrent write of the key can win instead ([`Transition::Overtaken`]).
    /// Dropping the future does not stop the change.
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

    /// Returns the state that all sessions of the client share.
    pub(crate) fn context(&self) -> &Arc<ClientContext> {
        &self.inner.context
    }

    /// Fails in a forked child of the process that opened the client.
    pub(crate) fn check_origin(&self) -> Result<(), ConnectError> {
        if self.inner.is_here() { Ok(()) } else { Err(ConnectError::Forked) }
    }

    /// Fails if the client belongs to the parent of this process, or if the calling thread runs a callback of an async
    /// call: such a callback must not wait for the store.
    pub(crate) fn check_caller(&self) -> Result<(), ConnectError> {
        self.check_origin()?;
        if IN_CALLBACK.get() { Err(ConnectError::WithinCallback) } else { Ok(()) }
    }

    /// Returns the limit of a call that begins now; `None` if this clone has no op timeout of its own.
    pub(crate) fn limit(&self) -> Option<CallLimit> {
        self.op_timeout.map(|op_timeout| CallLimit { op_timeout, begun: Instant::now() })
    }

    /// Runs an operation on the driver thread. The client's first async operation starts that thread.
    async fn drive<R: Send + 'static, E: ErrorFamily + Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Session) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E> {
        let no_session = |error: ConnectError| E::from_store(error.into());
        self.check_caller().map_err(no_session)?;
        let answer = {
            let mut driver = self.inner.driver.lock().unwrap_or_else(PoisonError::into_inner);
            if driver.as_ref().is_none_or(AsyncDriver::is_over) {
                // A driver that takes no new operations is detached. Its operations end by themselves, and an async
                // thread must not wait for them.
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

/// One piece of a scan, which the driver thread sends to the task that awaits the call.
struct ScannedPiece {
    next: ScanCursor,
    pairs: Vec<OwnedPair>,
    damaged: u64,
}

/// A copy of a pair that a scan has shown.
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
        // First the driver ends, which completes the submitted operations; then this thread's session, which hands over
        // its blocks; then the embedded cluster. Sessions of other threads notice the client's end by the flag that
        // `close` sets.
        drop(self.driver.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(take_sessions_of_thread(self.context.number, |_| true));
        self.context.close(self.cluster.is_some());
        drop(self.cluster.take());
    }
}

/// Returns the results of `writes` writes. If no session could be opened, every write gets the error of that attempt.
pub(crate) fn each(
    writes: usize,
    results: Result<Vec<Result<(), WriteError>>, WriteError>,
) -> Vec<Result<(), WriteError>> {
    results.unwrap_or_else(|error| vec![Err(error); writes])
}
