//! The client: what every thread and task of a program shares.
//!
//! Blocking calls run on the calling thread, in a session that the thread gets with its first
//! call and keeps until it ends or the client does. Async calls run on the client's driver thread,
//! over every fabric: their futures may move between threads and be dropped at any time, and whoever
//! awaits them is never held up. Most operations over shared memory take a microsecond, but not all:
//! one may need a block, wait for another writer or for a change of the cluster, or be the first of
//! its session.
//!
//! A client is the process's that opened it. What a fork has copied of it answers every call with
//! [`Error::Forked`], touches nothing that the parent goes on with, and does nothing when it is dropped.

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
use fusee_core::{Error, Outcome};
use fusee_fabric::fork::AtHome;
use fusee_fabric::{FabricKind, barrier};

use crate::demotion::{DemotionOrder, DemotionOutcome};
use crate::driver::Driver;
use crate::error::ConnectError;
use crate::logic::WorkTableStats;
use crate::metrics::ClientMetrics;
use crate::options::{FabricChoice, Options, WorkTable};
use crate::reach::Reached;
use crate::session::{KeepAlive, Session};
use crate::shared::{Shared, first_view, wait};
use crate::survey::{self, FoundPair, MemorySurvey, SurveyError};

thread_local! {
    /// The sessions that this thread got by itself, at most one per client.
    static SESSIONS: RefCell<Vec<(u64, Rc<Session>)>> = const { RefCell::new(Vec::new()) };

    /// Whether this thread, a driver, runs a callback of an async call, and all other operations of its session wait.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// A store to get from and put into. Clones are cheap and share everything; use them from any
/// thread or task.
///
/// When the last clone is dropped, the session of the thread that drops it ends, and the async calls that
/// still run, whether or not anybody waits for them: the drop waits for both. Sessions that other threads
/// got end with those threads, or when they open a session of another client.
///
/// A child that was made by `fork` has no client: the calls of what it finds there fail at once, with
/// [`Error::Forked`] or [`ConnectError::Forked`], and to drop it does nothing. The child may open a client of its own,
/// by [`Client::connect`] as everybody does; so may a daemon, after its last fork. If the parent has other threads, the
/// usual rule of `fork` holds: what one of them had locked (standard output, a logger) stays locked in the child.
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
/// Blocking calls work on any thread, in a task of an async runtime too, but hold it up for as long as
/// they take: with memory short that may be seconds. Async calls never do.
#[derive(Clone)]
pub struct Client {
    handle: Arc<AtHome<Handle>>,
    /// How long calls of this clone wait, if not as the options say.
    op_timeout: Option<Duration>,
}

/// Ends the client when the last clone is dropped.
struct Handle {
    shared: Arc<Shared>,
    /// For a child, in which whatever has a newer one may be locked for ever.
    first_view: Arc<View>,
    driver: Mutex<Option<Driver>>,
    /// An embedded cluster.
    cluster: Option<KeepAlive>,
}

impl Client {
    /// Joins the cluster of the master at this address (host and port), or of the masters at these
    /// (separated by commas).
    pub fn connect(master: &str) -> Result<Client, ConnectError> {
        Client::connect_with(master, Options::default())
    }

    /// As [`Client::connect`], with options.
    pub fn connect_with(master: &str, options: Options) -> Result<Client, ConnectError> {
        // Before there are more threads, if this is a program's beginning.
        barrier::prepare();
        let runtime = Runtime::with_keys("fusee-control", options.keys.clone())?;
        let runtime = runtime.with_tls(options.tls.clone());
        let master = MasterClient::new(&runtime, master);
        Client::join(runtime, master, options, HashMap::new(), None)
    }

    /// Joins the cluster of this master. `cluster`: what is embedded in this process and ends with the
    /// client; `local_nodes`: the control services that are part of it.
    pub(crate) fn join(
        runtime: Runtime,
        master: MasterClient,
        options: Options,
        local_nodes: HashMap<MnId, NodeClient>,
        cluster: Option<KeepAlive>,
    ) -> Result<Client, ConnectError> {
        let view = wait(&runtime, first_view(master.clone(), options.connect_timeout))?;
        view.check()?;
        // From now on no other cluster will do: what was put into this one would not be found there.
        master.join(view.cluster);
        let reached = match options.fabric {
            FabricChoice::Only(kind) => Reached::asked_for(kind),
            FabricChoice::Auto => match &options.switch {
                Some(switch) => Reached::asked_for(switch.fabric()),
                None => Reached::best(&view.members, runtime.keys().map(|keys| &**keys)),
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
        let shared = Arc::new(Shared::new(runtime, master, reached, options, view, local_nodes));
        let first_view = shared.keeper.view();
        let handle = Handle { shared, first_view, driver: Mutex::default(), cluster };
        let client = Client { handle: Arc::new(AtHome::new(handle)), op_timeout: None };
        // Whoever gets a client has reached every memory node once.
        client.with_session(|_| ())?;
        Ok(client)
    }

    /// The same client, whose calls wait no longer than this for others, blocking or not, whatever
    /// [`Options::op_timeout`] says. A call of many keys has one such time for all of them. What has to wait longer
    /// ends with [`Error::GaveUp`], or with what it had come to by then. Sessions that are asked for
    /// ([`Client::session`]) have [`Session::with_op_timeout`].
    ///
    /// A call may take a little longer: where its thread has no session yet, or lost it, it gets one first, which
    /// takes up to [`Options::connect_timeout`] where memory nodes do not answer.
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

    /// A session for the calling thread to keep, for many operations at once.
    pub fn session(&self) -> Result<Session, Error> {
        self.check_caller().map_err(no_session)?;
        Session::open(&self.handle.shared, Some(self.handle.clone())).map_err(no_session)
    }

    /// Whether this process opened the client, and no child of it asks.
    fn check_origin(&self) -> Result<(), ConnectError> {
        if self.handle.is_here() { Ok(()) } else { Err(ConnectError::Forked) }
    }

    /// The same, and the calling thread may wait for the store.
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
                // Dropped here: the end of a session may look at the list.
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
            // At once: others may wait for what it left half-way. The next call gets another one, or a call within
            // this one has got it already.
            drop(take_sessions_of_thread(self.handle.shared.number, Session::is_lost));
        }
        result
    }

    /// The value of a key; `None` if it does not exist.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.run(async |s| s.get(key).await)
    }

    /// Shows the value of a key to `f` where it was fetched, without another copy; `None` if it does not exist. `f` may
    /// use the client.
    ///
    /// ```no_run
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let lines = client.get_with(b"log", |log| log.map(|log| log.split(|b| *b == b'\n').count()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R, Error> {
        self.run(async |s| s.get_with(key, f).await)
    }

    /// Puts the value of a key into `value`, in the place of what was there; false, and `value` empty, if it does not
    /// exist. After an error `value` is as it was. Allocates nothing while there is room.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.run(async |s| s.get_into(key, value).await)
    }

    /// The values of many keys, in their order, fetched in shared round trips: see
    /// [`Session::get_many`].
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.run(async |s| s.get_many(keys).await)
    }

    /// Adds a key; [`Error::AlreadyExists`] if it exists.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.run(async |s| s.insert(key, value).await)
    }

    /// As [`Client::insert`], with this redundancy, whatever the client's rules say.
    pub fn insert_with(
        &self,
        key: &[u8],
        value: &[u8],
        redundancy: Redundancy,
    ) -> Result<(), Error> {
        self.run(async |s| s.insert_with(key, value, redundancy).await)
    }

    /// Replaces the value of a key; [`Error::NotFound`] if it does not exist.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.run(async |s| s.update(key, value).await)
    }

    /// As [`Client::update`], with this redundancy, whatever the client's rules say.
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

    /// As [`Client::put`], with this redundancy, whatever the client's rules say.
    pub fn put_with(&self, key: &[u8], value: &[u8], redundancy: Redundancy) -> Result<(), Error> {
        self.run(async |s| s.put_with(key, value, redundancy).await)
    }

    /// Adds a key, or replaces its value, with one of so many bytes that `fill` writes where it is sent from, without
    /// another copy; unless it is erasure-coded or without redundancy, or there is a work table: then it is put
    /// together first. The bytes hold zeros before. `fill` is called once, before the write begins and
    /// before anything is known of the key, so also where the write fails. It may use the client, and take its time.
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

    /// Adds many keys, or replaces their values, in shared round trips; each with its own outcome, in their order: see
    /// [`Session::put_many`].
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

    /// As [`Client::put_many`], of keys that do not exist: the others have [`Error::AlreadyExists`].
    pub fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        each(pairs.len(), self.run(async |s| Ok(s.insert_many(pairs).await)))
    }

    /// As [`Client::put_many`], of keys that exist: the others have [`Error::NotFound`].
    pub fn update_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        each(pairs.len(), self.run(async |s| Ok(s.update_many(pairs).await)))
    }

    /// Removes many keys, each with its own outcome, as [`Client::put_many`]; those that do not exist have
    /// [`Error::NotFound`].
    pub fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), Error>> {
        each(keys.len(), self.run(async |s| Ok(s.delete_many(keys).await)))
    }

    /// Shows the next pairs of a scan, and moves its cursor on: see [`Session::scan`].
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

    /// Removes a key; [`Error::NotFound`] if it does not exist.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.run(async |s| s.delete(key).await)
    }

    /// Gives a key's value another redundancy; [`Error::NotFound`] if the key does not exist. The value stays, for
    /// everybody and at every moment. A write of the key that is under way may win over it
    /// ([`Transition::Overtaken`]).
    ///
    /// ```no_run
    /// use fusee_client::{Client, Transition};
    ///
    /// let client = Client::connect("127.0.0.1:7400")?;
    /// match client.set_redundancy(b"picture", "ec:4+2".parse()?)? {
    ///     Transition::Moved => println!("any four of six memory nodes make the value now"),
    ///     Transition::Unchanged => println!("they did before"),
    ///     Transition::Overtaken => println!("somebody has written the key meanwhile"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_redundancy(&self, key: &[u8], redundancy: Redundancy) -> Result<Transition, Error> {
        self.run(async |s| s.set_redundancy(key, redundancy).await)
    }

    /// As [`Client::set_redundancy`], awaited. Dropping the future does not stop it.
    pub async fn set_redundancy_async(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> Result<Transition, Error> {
        let key = key.to_vec();
        self.drive(async move |s| s.set_redundancy(&key, redundancy).await).await
    }

    /// The rules by which what is written gets its redundancy, where nobody says more: the client's own, or the
    /// cluster's.
    pub fn redundancy_rules(&self) -> Result<RedundancyRules, Error> {
        self.with_session(|session| *session.redundancy_rules()).map_err(no_session)
    }

    /// The redundancy of a key's value; `None` if it does not exist.
    pub fn redundancy_of(&self, key: &[u8]) -> Result<Option<Redundancy>, Error> {
        self.run(async |s| s.redundancy_of(key).await)
    }

    /// As [`Client::get`], awaited.
    pub async fn get_async(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let key = key.to_vec();
        self.drive(async move |s| s.get(&key).await).await
    }

    /// As [`Client::get_with`], awaited. `f` runs on the client's driver thread, and holds up its other calls as long:
    /// so it may not use a client, whose calls fail with [`Error::WithinCallback`]. If it panics, so does whoever
    /// awaits.
    pub async fn get_with_async<R: Send + 'static>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let key = key.to_vec();
        // On the driver thread it would end the operations of others.
        let f = |value: Option<&[u8]>| {
            IN_CALLBACK.set(true);
            let shown = panic::catch_unwind(AssertUnwindSafe(|| f(value)));
            IN_CALLBACK.set(false);
            shown
        };
        let shown = self.drive(async move |s| s.get_with(&key, f).await).await?;
        shown.map_err(|cause| panic::resume_unwind(cause))
    }

    /// As [`Client::get_many`], awaited.
    pub async fn get_many_async<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|k| k.as_ref().to_vec()).collect();
        self.drive(async move |s| s.get_many(&keys).await).await
    }

    /// As [`Client::insert`], awaited. Dropping the future does not stop the write.
    pub async fn insert_async(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.insert(&key, &value).await).await
    }

    /// As [`Client::insert_with`], awaited. Dropping the future does not stop the write.
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

    /// As [`Client::update`], awaited. Dropping the future does not stop the write.
    pub async fn update_async(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.update(&key, &value).await).await
    }

    /// As [`Client::update_with`], awaited. Dropping the future does not stop the write.
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

    /// As [`Client::put`], awaited. Dropping the future does not stop the write.
    pub async fn put_async(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        let value = value.to_vec();
        self.drive(async move |s| s.put(&key, &value).await).await
    }

    /// As [`Client::put_with`], awaited. Dropping the future does not stop the write.
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

    /// As [`Client::delete`], awaited. Dropping the future does not stop the write.
    pub async fn delete_async(&self, key: &[u8]) -> Result<(), Error> {
        let key = key.to_vec();
        self.drive(async move |s| s.delete(&key).await).await
    }

    /// As [`Client::put_many`], awaited. Dropping the future does not stop the writes.
    pub async fn put_many_async<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let writes = pairs.len();
        let pairs = owned(pairs);
        each(writes, self.drive(async move |s| Ok(s.put_many(&pairs).await)).await)
    }

    /// As [`Client::insert_many`], awaited. Dropping the future does not stop the writes.
    pub async fn insert_many_async<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let writes = pairs.len();
        let pairs = owned(pairs);
        each(writes, self.drive(async move |s| Ok(s.insert_many(&pairs).await)).await)
    }

    /// As [`Client::update_many`], awaited. Dropping the future does not stop the writes.
    pub async fn update_many_async<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let writes = pairs.len();
        let pairs = owned(pairs);
        each(writes, self.drive(async move |s| Ok(s.update_many(&pairs).await)).await)
    }

    /// As [`Client::delete_many`], awaited. Dropping the future does not stop the writes.
    pub async fn delete_many_async<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), Error>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_ref().to_vec()).collect();
        let writes = keys.len();
        each(writes, self.drive(async move |s| Ok(s.delete_many(&keys).await)).await)
    }

    /// Runs an operation on the driver thread, which starts with the first.
    async fn drive<R: Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Session) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        self.check_caller().map_err(no_session)?;
        let answer = {
            let mut driver = self.handle.driver.lock().unwrap_or_else(PoisonError::into_inner);
            if driver.as_ref().is_none_or(Driver::is_over) {
                // Its operations end by themselves; not to be waited for on an async thread.
                if let Some(over) = driver.take() {
                    over.detach();
                }
                let started = Driver::start(&self.handle.shared);
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

    /// The newest view of the cluster that this client has heard of; in a child, the first.
    pub fn view(&self) -> Arc<View> {
        if self.handle.is_here() {
            self.handle.shared.keeper.view()
        } else {
            self.handle.first_view.clone()
        }
    }

    /// Which fabric its sessions use.
    pub fn fabric(&self) -> FabricKind {
        self.handle.shared.kind
    }

    /// What its sessions have done so far, also those that have ended. Any thread may ask, at any time. In a child,
    /// nothing.
    ///
    /// ```no_run
    /// # let client = fusee_client::Client::connect("127.0.0.1:7400")?;
    /// let mut page = fusee_client::prometheus::Metrics::default();
    /// client.metrics().write(&mut page);
    /// println!("{}", page.into_text()); // for whoever answers GET /metrics in this program
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metrics(&self) -> ClientMetrics {
        if self.handle.is_here() { self.handle.shared.metrics() } else { Default::default() }
    }

    /// What its work table has done so far; `None` without one, and in a child.
    pub fn work_table_stats(&self) -> Option<WorkTableStats> {
        self.check_origin().ok()?;
        self.handle.shared.table.as_ref().map(|table| table.stats())
    }

    /// The master's picture of the cluster.
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

    /// How full each memory node is.
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

    /// The pairs whose redundancy counts, as the index shows them, those first that were written longest ago, as far as
    /// that can be known: by the age of the session that has the block of their object. 40 bytes of memory for each.
    pub fn find_pairs(
        &self,
        counts: impl Fn(Redundancy) -> bool,
    ) -> Result<Vec<FoundPair>, SurveyError> {
        let find = |session: &Session| session.block_on(survey::pairs::pairs(session, counts));
        self.with_session(find)?
    }

    /// Makes pairs erasure-coded that were found before ([`Client::find_pairs`]), side by side; those that were written
    /// since stay as they are. What became of each, in order. A value stays, for everybody and at every moment.
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

    /// How the memory is used: by node, by size of objects and by owner, and what waits to be used
    /// again. Reads 1/512 of the memory that has owners, and the index. It is no picture of a moment: others go on
    /// writing while it is taken (see [`MemorySurvey`]).
    pub fn survey_memory(&self) -> Result<MemorySurvey, SurveyError> {
        self.check_origin()?;
        let shared = &self.handle.shared;
        // What is handed on is asked for first and whose session is open last, so that no owner that
        // was read is unknown.
        let orphans = survey::owners(shared)?.orphans;
        let read = |session: &Session| session.block_on(survey::read_all(session, &orphans));
        let found = self.with_session(read)??;
        let count = |session: &Session| session.block_on(survey::pairs::by_redundancy(session));
        let redundancies = self.with_session(count)??;
        let survey = survey::survey(found, &survey::owners(shared)?, &self.usage());
        Ok(MemorySurvey { redundancies, ..survey })
    }
}

/// Takes those sessions that the calling thread got by itself from the client of this number.
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

impl Drop for Handle {
    fn drop(&mut self) {
        // First the driver, which finishes what was submitted; then this thread's session, which
        // hands on its blocks; then the cluster. Sessions of other threads find it closed.
        drop(self.driver.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(take_sessions_of_thread(self.shared.number, |_| true));
        self.shared.close(self.cluster.is_some());
        drop(self.cluster.take());
    }
}

/// What is left of a call's time.
fn left((op_timeout, begun): (Duration, Instant)) -> Duration {
    op_timeout.saturating_sub(begun.elapsed())
}

fn no_session(error: ConnectError) -> Error {
    match error {
        ConnectError::Forked => Error::Forked { outcome: Outcome::NotApplied },
        ConnectError::WithinCallback => Error::WithinCallback,
        error => Error::NoSession { reason: error.to_string() },
    }
}

/// Copies for another thread.
fn owned<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: &[(K, V)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.iter().map(|(key, value)| (key.as_ref().to_vec(), value.as_ref().to_vec())).collect()
}

/// The outcomes of so many writes, if there was a session for them.
fn each(writes: usize, outcomes: Result<Vec<Result<(), Error>>, Error>) -> Vec<Result<(), Error>> {
    outcomes.unwrap_or_else(|error| vec![Err(error); writes])
}
