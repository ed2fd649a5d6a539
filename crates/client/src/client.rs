//! The client that all threads and tasks of a program share.
//!
//! Blocking calls run on the calling thread, in a session that the thread opens with its first call and keeps
//! until the thread or the client ends. Async calls run on the client's driver thread, over every fabric: their
//! futures may move between threads and be dropped at any time, and the awaiting thread is never blocked. Most
//! operations over shared memory take a microsecond, but some take longer: an operation may need a block, wait
//! for another writer or for a view change, or be the first of its session.
//!
//! A client belongs to the process that opened it. Its copy in a forked child answers every call with
//! [`Error::Forked`], leaves the parent's resources alone, and does nothing when it is dropped.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_control::master::{MasterReply, MasterRequest, Status};
use fusee_control::node::{NodeReply, NodeRequest, Usage};
use fusee_control::rpc::{MasterClient, NodeClient, Runtime};
use fusee_core::data::{Redundancy, RedundancyRules};
use fusee_core::store::{ScanCursor, ScannedPair, Transition};
use fusee_core::verbs::MnId;
use fusee_core::view::{Member, View};
use fusee_core::{Error, FailedWriteOutcome};
use fusee_fabric::fork::ProcessBound;
use fusee_fabric::{FabricKind, barrier};

use crate::context::{ClientContext, first_view, wait};
use crate::demotion::{DemotionOrder, DemotionOutcome};
use crate::driver::AsyncDriver;
use crate::error::ConnectError;
use crate::fabric_selection::SelectedFabric;
use crate::logic::WorkTableStats;
use crate::metrics::ClientMetrics;
use crate::options::{FabricChoice, Options, WorkTable};
use crate::session::{KeepAlive, Session};
use crate::survey::{self, FoundPair, MemorySurvey, SurveyError};

thread_local! {
    /// Sessions that this thread has opened for blocking calls, at most one per client.
    static SESSIONS: RefCell<Vec<(u64, Rc<Session>)>> = const { RefCell::new(Vec::new()) };

    /// Whether this thread is a driver and runs a callback of an async call; all other operations of its
    /// session wait meanwhile.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// A handle of the store. Clones are cheap and share everything; any thread or task may use them.
///
/// The drop of the last clone ends the session of the dropping thread and completes all async calls that still
/// run, awaited or not: the drop waits for both. Sessions of other threads end with those threads, or when
/// these open a session of another client.
///
/// A child made by `fork` has no client: all calls of the inherited one fail at once, with [`Error::Forked`] or
/// [`ConnectError::Forked`], and its drop does nothing. The child may open a client of its own by
/// [`Client::connect`], as may a daemon after its last fork. If the parent has other threads, the usual rule of
/// `fork` holds: what another thread had locked (standard output, a logger) stays locked in the child.
///
/// ```no_run
/// # fn fork() -> i32 { 0 } // libc::fork, in an unsafe block
/// use fusee_client::{Client, Error};
///
/// let client = Client::connect("127.0.0.1:7400")?;
/// if fork() == 0 {
///     assert!(matches!(client.get(b"key"), Err(Error::Forked { .. })));
///     let client = Client::connect("127.0.0.1:7400")?;
///     client.put(b"key", b"the child's")?;
///     std::process::exit(0);
/// }
/// client.put(b"another", b"the parent's")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Blocking calls work on any thread, also in a task of an async runtime, but block that thread for as long as
/// they take: seconds, if memory is short. Async calls never block.
#[derive(Clone)]
pub struct Client {
    handle: Arc<ProcessBound<ClientInner>>,
    /// The op timeout of this clone, if it differs from the options'.
    op_timeout: Option<Duration>,
}

/// The state shared by all clones; its drop ends the client.
struct ClientInner {
    shared: Arc<ClientContext>,
    /// The view that a forked child reports: the lock of the newest view may be held for ever there.
    first_view: Arc<View>,
    driver: Mutex<Option<AsyncDriver>>,
    /// The embedded cluster, if there is one.
    cluster: Option<KeepAlive>,
}

impl Client {
    /// Joins a cluster. `master` is the master's host and port; several masters are separated by commas.
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
        let shared =
            Arc::new(ClientContext::new(runtime, master, reached, options, view, local_nodes));
        let first_view = shared.keeper.view();
        let handle = ClientInner { shared, first_view, driver: Mutex::default(), cluster };
        let client = Client { handle: Arc::new(ProcessBound::new(handle)), op_timeout: None };
        // Reaches every memory node once, so that errors show here and not in the first operation.
        client.with_session(|_| ())?;
        Ok(client)
    }

    /// Returns a client whose calls, blocking or not, wait at most `op_timeout` for others, instead of
    /// [`Options::op_timeout`]. The time counts for a whole call, also one of many keys. A call that has to
    /// wait longer ends with [`Error::GaveUp`], or with the result that it has by then. For sessions of
    /// [`Client::session`] there is [`Session::with_op_timeout`].
    ///
    /// A call may take longer if its thread has no session, or has lost it: the call opens one first, which
    /// takes up to [`Options::connect_timeout`] if memory nodes do not answer.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let impatient = client.with_op_timeout(Duration::from_millis(50));
    /// let value = impatient.get(b"key")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_op_timeout(&self, op_timeout: Duration) -> Client {
        Client { op_timeout: Some(op_timeout), ..self.clone() }
    }

    /// Opens a session on the calling thread, for many operations at once.
    pub fn session(&self) -> Result<Session, Error> {
        self.check_caller().map_err(no_session)?;
        Session::open(&self.handle.shared, Some(self.handle.clone())).map_err(no_session)
    }

    /// Fails in a forked child of the process that opened the client.
    fn check_origin(&self) -> Result<(), ConnectError> {
        if self.handle.is_here() { Ok(()) } else { Err(ConnectError::Forked) }
    }

    /// Also fails if the calling thread runs a callback of an async call, and so must not wait for the store.
    fn check_caller(&self) -> Result<(), ConnectError> {
        self.check_origin()?;
        if IN_CALLBACK.get() { Err(ConnectError::WithinCallback) } else { Ok(()) }
    }

    /// Runs `f` in the calling thread's own session.
    fn with_session<R>(&self, f: impl FnOnce(&Session) -> R) -> Result<R, ConnectError> {
        self.check_caller()?;
        let shared = &self.handle.shared;
        let session = SESSIONS.with_borrow(|sessions| {
            sessions.iter().find(|(n, _)| *n == shared.number).map(|(_, s)| s.clone())
        });
        let session = match session {
            Some(session) if !session.is_lost() => session,
            lost => {
                if lost.is_some() {
                    drop(take_sessions_of_thread(shared.number, Session::is_lost));
                }
                drop(lost);
                let session = Rc::new(Session::open(shared, None)?);
                let ended = SESSIONS.with_borrow_mut(|sessions| {
                    sessions.push((shared.number, session.clone()));
                    sessions.extract_if(.., |(_, s)| s.is_over()).collect::<Vec<_>>()
                });
                // Not within the borrow above: the end of a session may borrow the list.
                drop(ended);
                session
            }
        };
        Ok(f(&session))
    }

    fn run<R>(&self, f: impl AsyncFnOnce(&Session) -> Result<R, Error>) -> Result<R, Error> {
        let begun = self.op_timeout.map(|timeout| (timeout, Instant::now()));
        let run = |session: &Session| {
            let result = match begun {
                None => session.block_on(f(session)),
                Some(begun) => session.block_on(session.with_op_timeout(left(begun), f(session))),
            };
            (result, session.is_lost())
        };
        let (result, is_lost) = self.with_session(run).map_err(no_session)?;
        if is_lost {
            // At once, since other sessions may wait for the writes that this one left half-way. The next call
            // opens another session, unless a nested call has done so already.
            drop(take_sessions_of_thread(self.handle.shared.number, Session::is_lost));
        }
        result
    }

    /// Returns the value of a key; `None` if the key does not exist.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.run(async |s| s.get(key).await)
    }

    /// Calls `f` with the value of a key, or with `None` if the key does not exist. The value is not copied
    /// before. `f` may use the client.
    ///
    /// ```no_run
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let lines = client.get_with(b"log", |log| log.map(|log| log.split(|b| *b == b'\n').count()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R, Error> {
        self.run(async |s| s.get_with(key, f).await)
    }

    /// Replaces the contents of `value` by the value of a key. If the key does not exist, `value` is empty
    /// afterwards and the result is false. After an error `value` is unchanged. Allocates nothing if the
    /// capacity suffices.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.run(async |s| s.get_into(key, value).await)
    }

    /// Returns the values of many keys, in the order of the keys, fetched in shared round trips; see
    /// [`Session::get_many`].
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.run(async |s| s.get_many(keys).await)
    }

    /// Adds a key; [`Error::AlreadyExists`] if the key exists.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.run(async |s| s.insert(key, value).await)
    }

    /// Adds a key with the given redundancy, whatever the client's rules say; otherwise like
    /// [`Client::insert`].
    pub fn insert_with(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        self.run(async |s| s.insert_with(key, value, redundancy).await)
    }

    /// Replaces the value of a key; [`Error::NotFound`] if the key does not exist.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.run(async |s| s.update(key, value).await)
    }

    /// Replaces a value, with the given redundancy, whatever the client's rules say; otherwise like
    /// [`Client::update`].
    pub fn update_with(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        self.run(async |s| s.update_with(key, value, redundancy).await)
    }

    /// Adds a key, or replaces its value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.run(async |s| s.put(key, value).await)
    }

    /// Adds a key, or replaces its value, with the given redundancy, whatever the client's rules say.
    pub fn put_with(&self, key: &[u8], value: &[u8], redundancy: Redundancy) -> Result<(), Error> {
        self.run(async |s| s.put_with(key, value, redundancy).await)
    }

    /// Adds a key, or replaces its value, by a value of `value_bytes` bytes that `fill` writes.
    ///
    /// `fill` writes directly into the buffer that is sent, without another copy. Only a value that is
    /// erasure-coded or without redundancy, or that passes a work table, is composed in another buffer first.
    /// The buffer is zeroed before. `fill` is called once, before the write begins and before the key is looked
    /// up, so also if the write fails. It may use the client, and may take long.
    ///
    /// ```no_run
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let samples = [0.5_f64; 1000];
    /// client.put_from(b"samples", samples.len() * 8, |value| {
    ///     for (bytes, sample) in value.chunks_exact_mut(8).zip(&samples) {
    ///         bytes.copy_from_slice(&sample.to_le_bytes());
    ///     }
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_from(
        &self,
        key: &[u8],
        value_bytes: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<(), Error> {
        self.run(async |s| s.put_from(key, value_bytes, fill).await)
    }

    /// Adds many keys, or replaces their values, in shared round trips. Each has a result of its own, in the
    /// order of the pairs; see [`Session::put_many`].
    ///
    /// ```no_run
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let pairs = [("cat", "meows"), ("dog", "barks")];
    /// for (pair, outcome) in pairs.iter().zip(client.put_many(&pairs)) {
    ///     outcome.inspect_err(|error| eprintln!("{pair:?}: {error}"))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        each(pairs.len(), self.run(async |s| Ok(s.put_many(pairs).await)))
    }

    /// Adds many keys like [`Client::put_many`]; the result of a key that exists is [`Error::AlreadyExists`].
    pub fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        each(pairs.len(), self.run(async |s| Ok(s.insert_many(pairs).await)))
    }

    /// Replaces the values of many keys like [`Client::put_many`]; the result of a key that does not exist is
    /// [`Error::NotFound`].
    pub fn update_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        each(pairs.len(), self.run(async |s| Ok(s.update_many(pairs).await)))
    }

    /// Removes many keys in shared round trips. Each has a result of its own, in the order of the keys:
    /// [`Error::NotFound`] for a key that does not exist.
    pub fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), Error>> {
        each(keys.len(), self.run(async |s| Ok(s.delete_many(keys).await)))
    }

    /// Shows the next pairs of a scan and advances its cursor; see [`Session::scan`].
    ///
    /// ```no_run
    /// use fusee_client::{Client, ScanCursor};
    ///
    /// let client = Client::connect("127.0.0.1:7400")?;
    /// let (mut cursor, mut bytes) = (ScanCursor::start(), 0);
    /// while !cursor.is_done() {
    ///     let damaged = client.scan(&mut cursor, |pair| bytes += pair.value.len())?;
    ///     assert_eq!(damaged, 0);
    /// }
    /// println!("all values together have {bytes} bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan(
        &self,
        cursor: &mut ScanCursor,
        show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, Error> {
        self.run(async |s| s.scan(cursor, show).await)
    }

    /// Removes a key; [`Error::NotFound`] if the key does not exist.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.run(async |s| s.delete(key).await)
    }

    /// Gives the value of a key another redundancy; [`Error::NotFound`] if the key does not exist. All readers
    /// find the value at every moment. A concurrent write of the key may win instead
    /// ([`Transition::Overtaken`]).
    ///
    /// ```no_run
    /// use fusee_client::{Client, Transition};
    ///
    /// let client = Client::connect("127.0.0.1:7400")?;
    /// match client.set_redundancy(b"picture", "ec:4+2".parse()?)? {
    ///     Transition::Moved => println!("any four of six memory nodes make the value now"),
    ///     Transition::Unchanged => println!("they did before"),
    ///     Transition::Overtaken => println!("another write of the key has won"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_redundancy(&self, key: &[u8], redundancy: Redundancy) -> Result<Transition, Error> {
        self.run(async |s| s.set_redundancy(key, redundancy).await)
    }

    /// Async form of [`Client::set_redundancy`]. Dropping the future does not stop it.
    pub async fn set_redundancy_async(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> Result<Transition, Error> {
        let key = key.to_vec();
        self.drive(async move |s| s.set_redundancy(&key, redundancy).await).await
    }

    /// Returns the rules that give a new value its redundancy, unless the write names one: the client's own
    /// rules, or else the cluster's.
    pub fn redundancy_rules(&self) -> Result<RedundancyRules, Error> {
        self.with_session(|session| *session.redundancy_rules()).map_err(no_session)
    }

    /// Returns the redundancy of a key's value; `None` if the key does not exist.
    pub fn redundancy_of(&self, key: &[u8]) -> Result<Option<Redundancy>, Error> {
        self.run(async |s| s.redundancy_of(key).await)
    }

    /// Async form of [`Client::get`].
    pub async fn get_async(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let key = key.to_vec();
        self.drive(async move |s| s.get(&key).await).await
    }

    /// Async form of [`Client::get_with`]. `f` runs on the client's driver thread and delays its other calls
    /// meanwhile, so `f` must not use a client: such calls fail with [`Error::WithinCallback`]. A panic of `f`
    /// continues in the awaiting task.
    pub async fn get_with_async<R: Send + 'static>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R + Send + 'static,
    ) -> Result<R, Error> {
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

    /// Async form of [`Client::get_many`].
    pub async fn get_many_async<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|k| k.as_ref().to_vec()).collect();
        self.drive(async move |s| s.get_many(&keys).await).await
    }

    /// Async form of [`Client::insert`]. Dropping the future does not stop the write.
    pub async fn insert_async(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.insert(&key, &value).await).await
    }

    /// Async form of [`Client::insert_with`]. Dropping the future does not stop the write.
    pub async fn insert_with_async(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.insert_with(&key, &value, redundancy).await).await
    }

    /// Async form of [`Client::update`]. Dropping the future does not stop the write.
    pub async fn update_async(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.update(&key, &value).await).await
    }

    /// Async form of [`Client::update_with`]. Dropping the future does not stop the write.
    pub async fn update_with_async(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.update_with(&key, &value, redundancy).await).await
    }

    /// Async form of [`Client::put`]. Dropping the future does not stop the write.
    pub async fn put_async(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.put(&key, &value).await).await
    }

    /// Async form of [`Client::put_with`]. Dropping the future does not stop the write.
    pub async fn put_with_async(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.put_with(&key, &value, redundancy).await).await
    }

    /// Async form of [`Client::delete`]. Dropping the future does not stop the write.
    pub async fn delete_async(&self, key: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        self.drive(async move |s| s.delete(&key).await).await
    }

    /// Async form of [`Client::put_many`]. Dropping the future does not stop the writes.
    pub async fn put_many_async<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let writes = pairs.len();
        let pairs = owned(pairs);
        each(writes, self.drive(async move |s| Ok(s.put_many(&pairs).await)).await)
    }

    /// Async form of [`Client::insert_many`]. Dropping the future does not stop the writes.
    pub async fn insert_many_async<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let writes = pairs.len();
        let pairs = owned(pairs);
        each(writes, self.drive(async move |s| Ok(s.insert_many(&pairs).await)).await)
    }

    /// Async form of [`Client::update_many`]. Dropping the future does not stop the writes.
    pub async fn update_many_async<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let writes = pairs.len();
        let pairs = owned(pairs);
        each(writes, self.drive(async move |s| Ok(s.update_many(&pairs).await)).await)
    }

    /// Async form of [`Client::delete_many`]. Dropping the future does not stop the writes.
    pub async fn delete_many_async<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), Error>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_ref().to_vec()).collect();
        let writes = keys.len();
        each(writes, self.drive(async move |s| Ok(s.delete_many(&keys).await)).await)
    }

    /// Runs an operation on the driver thread, which the first operation starts.
    async fn drive<R: Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Session) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.check_caller().map_err(no_session)?;
        let answer = {
            let mut driver = self.handle.driver.lock().unwrap_or_else(PoisonError::into_inner);
            if driver.as_ref().is_none_or(AsyncDriver::is_over) {
                // Detached: its operations end by themselves, and an async thread must not wait for them.
                if let Some(over) = driver.take() {
                    over.detach();
                }
                let started = AsyncDriver::start(&self.handle.shared);
                *driver = Some(started.map_err(|error| no_session(error.into()))?);
            }
            let begun = self.op_timeout.map(|timeout| (timeout, Instant::now()));
            let operation = async move |session: &Session| match begun {
                None => operation(session).await,
                Some(begun) => session.with_op_timeout(left(begun), operation(session)).await,
            };
            driver.as_ref().expect("just set").submit(operation)
        };
        answer.await
    }

    /// Returns the newest view of the cluster that this client knows; in a forked child, the first one.
    pub fn view(&self) -> Arc<View> {
        if self.handle.is_here() {
            self.handle.shared.keeper.view()
        } else {
            self.handle.first_view.clone()
        }
    }

    /// Returns the fabric of the sessions.
    pub fn fabric(&self) -> FabricKind {
        self.handle.shared.kind
    }

    /// Returns the counts of all sessions, also of ended ones. Any thread may call this at any time. In a
    /// forked child all counts are zero.
    ///
    /// ```no_run
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let mut page = fusee_client::prometheus::Metrics::default();
    /// client.metrics().write(&mut page);
    /// println!("{}", page.into_text()); // the body of an answer to GET /metrics
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metrics(&self) -> ClientMetrics {
        if self.handle.is_here() { self.handle.shared.metrics() } else { Default::default() }
    }

    /// Returns the counts of the work table; `None` without a work table, and in a forked child.
    pub fn work_table_stats(&self) -> Option<WorkTableStats> {
        self.check_origin().ok()?;
        self.handle.shared.table.as_ref().map(|table| table.stats())
    }

    /// Asks the master for the status of the cluster.
    pub fn status(&self) -> Result<Status, ConnectError> {
        self.check_origin()?;
        let master = self.handle.shared.master.clone();
        let asking = async move { master.call(MasterRequest::Status).await };
        match self.handle.shared.wait(asking)? {
            MasterReply::Status(status) => Ok(*status),
            MasterReply::Refused { reason } => Err(ConnectError::Refused(reason)),
            _ => Err(ConnectError::Protocol("another answer than to Status")),
        }
    }

    /// Asks each memory node for the usage of its pool.
    pub fn usage(&self) -> Vec<(MnId, Result<Usage, String>)> {
        let view = self.view();
        if let Err(error) = self.check_origin() {
            let forked = |member: &Member| (member.node, Err(error.to_string()));
            return view.members.iter().map(forked).collect();
        }
        let nodes = self.handle.shared.node_clients(&view);
        let ask = |member: &Member| {
            let Some(node) = nodes.get(&member.node).cloned() else {
                return Err("not in the view".into());
            };
            match self.handle.shared.wait(async move { node.call(NodeRequest::Usage).await }) {
                Ok(NodeReply::Usage(usage)) => Ok(usage),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            }
        };
        view.members.iter().map(|m| (m.node, ask(m))).collect()
    }

    /// Finds all pairs whose redundancy satisfies `counts`, as the index shows them. The pairs that were
    /// written longest ago come first, as far as this is known: a pair's age is that of the session that owns
    /// the block of its object. Takes 40 bytes of memory per pair.
    pub fn find_pairs(
        &self,
        counts: impl Fn(Redundancy) -> bool,
    ) -> Result<Vec<FoundPair>, SurveyError> {
        let find = |session: &Session| session.block_on(survey::pairs::pairs(session, counts));
        self.with_session(find)?
    }

    /// Makes pairs of [`Client::find_pairs`] erasure-coded, concurrently; pairs that were written since stay as
    /// they are. Returns one outcome per pair, in order. All readers find each value at every moment.
    pub fn demote(&self, pairs: &[FoundPair], order: &DemotionOrder) -> Vec<DemotionOutcome> {
        let demote = async |session: &Session| {
            let all = pairs.iter().map(|pair| session.demote(pair, order));
            Ok(futures_util::future::join_all(all).await)
        };
        let failed = |error: Error| DemotionOutcome::Failed(error);
        match self.run(demote) {
            Ok(all) => all.into_iter().map(|went| went.unwrap_or_else(failed)).collect(),
            Err(error) => pairs.iter().map(|_| failed(error.clone())).collect(),
        }
    }

    /// Surveys the use of memory: by node, by size of objects, by owner, and what waits to be reused. Reads the
    /// index, and 1/512 of the memory that has owners. The survey is no snapshot: writes go on meanwhile (see
    /// [`MemorySurvey`]).
    pub fn survey_memory(&self) -> Result<MemorySurvey, SurveyError> {
        self.check_origin()?;
        let shared = &self.handle.shared;
        // Orphaned blocks are asked for before the read and open sessions after it, so that every owner that
        // the read meets is known.
        let orphans = survey::owners(shared)?.orphans;
        let read = |session: &Session| session.block_on(survey::read_all(session, &orphans));
        let found = self.with_session(read)??;
        let count = |session: &Session| session.block_on(survey::pairs::by_redundancy(session));
        let redundancies = self.with_session(count)??;
        let survey = survey::survey(found, &survey::owners(shared)?, &self.usage());
        Ok(MemorySurvey { redundancies, ..survey })
    }
}

/// Takes the sessions that the calling thread opened for blocking calls of the client with this number.
fn take_sessions_of_thread(
    number: u64,
    which: impl Fn(&Session) -> bool,
) -> Vec<(u64, Rc<Session>)> {
    let mine = |(n, session): &mut (u64, Rc<Session>)| *n == number && which(session);
    let taken = SESSIONS.try_with(|sessions| sessions.borrow_mut().extract_if(.., mine).collect());
    taken.unwrap_or_default()
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.handle.shared;
        write!(f, "Client({} over {})", shared.master.addr(), shared.kind)
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        // First the driver, which completes the submitted operations; then this thread's session, which hands
        // over its blocks; then the cluster. Sessions of other threads find the client closed.
        drop(self.driver.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(take_sessions_of_thread(self.shared.number, |_| true));
        self.shared.close(self.cluster.is_some());
        drop(self.cluster.take());
    }
}

/// Returns the rest of a call's time.
fn left((op_timeout, begun): (Duration, Instant)) -> Duration {
    op_timeout.saturating_sub(begun.elapsed())
}

fn no_session(error: ConnectError) -> Error {
    match error {
        ConnectError::Forked => Error::Forked { outcome: FailedWriteOutcome::NotApplied },
        ConnectError::WithinCallback => Error::WithinCallback,
        error => Error::NoSession { reason: error.to_string() },
    }
}

/// Copies pairs for another thread.
fn owned<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: &[(K, V)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.iter().map(|(key, value)| (key.as_ref().to_vec(), value.as_ref().to_vec())).collect()
}

/// Returns the results of the writes, or the same error for each if there was no session.
fn each(writes: usize, outcomes: Result<Vec<Result<(), Error>>, Error>) -> Vec<Result<(), Error>> {
    outcomes.unwrap_or_else(|error| vec![Err(error); writes])
}
