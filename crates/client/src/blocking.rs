//! The blocking form of a client's calls.
//!
//! A blocking call runs on the calling thread, in a session that the thread opens with its first call and keeps until
//! the thread ends or the client ends. No other thread takes part: over shared memory a get of a cached key is a
//! function call.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fusee_core::data::Redundancy;
use fusee_core::store::{ScanCursor, ScannedPair, Transition};
use fusee_core::view::View;
use fusee_fabric::FabricKind;

use crate::admin::Admin;
use crate::client::{Client, each};
use crate::error::{ConnectError, ErrorFamily, ReadError, ScanError, WriteError};
use crate::metrics::ClientMetrics;
use crate::session::Session;
use crate::writes::{BatchWrite, PutOptions};

thread_local! {
    /// Sessions that this thread has opened for blocking calls, each with the number of its client; at most one per
    /// client.
    static SESSIONS: RefCell<Vec<(u64, Rc<Session>)>> = const { RefCell::new(Vec::new()) };
}

/// A [`Client`] whose calls block ([`Client::blocking`]). Clones are cheap and share everything; any thread can use
/// them.
///
/// ```no_run
/// use fusee_client::Client;
///
/// let store = Client::connect("127.0.0.1:7400")?.blocking();
/// store.put(b"greeting", b"hello")?;
/// assert_eq!(store.get(b"greeting")?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), fusee_client::Error>(())
/// ```
///
/// Most calls over shared memory take a microsecond. A call takes longer if it needs a block of memory, waits for
/// another writer or for a view change, or is the first call of its thread. A blocking call also works in a task of an
/// async runtime, but blocks a thread of that runtime until it returns, which can take seconds if memory is short.
#[derive(Clone)]
pub struct BlockingClient {
    client: Client,
}

impl BlockingClient {
    pub(crate) fn new(client: Client) -> BlockingClient {
        BlockingClient { client }
    }

    /// Returns the same client with async calls.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Opens a session; see [`Client::session`].
    pub fn session(&self) -> Result<Session, ConnectError> {
        self.client.session()
    }

    /// Returns the operator's calls; see [`Client::admin`].
    pub fn admin(&self) -> Admin<'_> {
        self.client.admin()
    }

    /// Returns a client with a different op timeout; see [`Client::with_op_timeout`].
    pub fn with_op_timeout(&self, op_timeout: Duration) -> BlockingClient {
        BlockingClient::new(self.client.with_op_timeout(op_timeout))
    }

    /// Returns the newest view that the client knows; see [`Client::view`].
    pub fn view(&self) -> Arc<View> {
        self.client.view()
    }

    /// Returns the fabric that all sessions of the client use.
    pub fn fabric(&self) -> FabricKind {
        self.client.fabric()
    }

    /// Returns the counts of all sessions; see [`Client::metrics`].
    pub fn metrics(&self) -> ClientMetrics {
        self.client.metrics()
    }

    /// Returns the value of a key; `None` if the key does not exist.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.client.run(async |s| s.get(key).await)
    }

    /// Calls `f` with the value of a key, or with `None` if the key does not exist. `f` sees the value where it was
    /// fetched, without a copy, and is allowed to use the client.
    ///
    /// ```no_run
    /// # let store = fusee_client::Client::connect("127.0.0.1:7400")?.blocking();
    /// let lines = store.get_with(b"log", |log| log.map(|log| log.split(|b| *b == b'\n').count()))?;
    ///
    /// // Copies the value into memory that is allocated already:
    /// let mut buffer = Vec::with_capacity(1 << 20);
    /// let is_there = store.get_with(b"log", |log| {
    ///     buffer.clear();
    ///     buffer.extend_from_slice(log.unwrap_or_default());
    ///     log.is_some()
    /// })?;
    /// # Ok::<(), fusee_client::Error>(())
    /// ```
    pub fn get_with<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, ReadError> {
        self.client.run(async |s| s.get_with(key, f).await)
    }

    /// Returns the values of many keys, in the order of the keys, fetched in shared round trips; see
    /// [`Session::get_many`].
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        self.client.run(async |s| s.get_many(keys).await)
    }

    /// Adds a key, or replaces its value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.client.run(async |s| s.put(key, value).await)
    }

    /// Puts a key by options: under a condition, or with a redundancy of its own; see [`Client::put_with`].
    pub fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<(), WriteError> {
        self.client.run(async |s| s.put_with(key, value, options).await)
    }

    /// Adds a key, or replaces its value. `fill` writes the value, of `value_bytes` bytes.
    ///
    /// `fill` gets the buffer that is sent, so the value is not copied again, except if it is erasure-coded, has no
    /// redundancy, or passes a work table: then `fill` gets a separate buffer. The buffer is zeroed before. `fill` is
    /// called exactly once, before the key is looked up, and even if the write then fails. `fill` is allowed to use the
    /// client, and to take long.
    ///
    /// ```no_run
    /// # let store = fusee_client::Client::connect("127.0.0.1:7400")?.blocking();
    /// let samples = [0.5_f64; 1000];
    /// store.put_from(b"samples", samples.len() * 8, |value| {
    ///     for (bytes, sample) in value.chunks_exact_mut(8).zip(&samples) {
    ///         bytes.copy_from_slice(&sample.to_le_bytes());
    ///     }
    /// })?;
    /// # Ok::<(), fusee_client::Error>(())
    /// ```
    pub fn put_from(
        &self,
        key: &[u8],
        value_bytes: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<(), WriteError> {
        self.client.run(async |s| s.put_from(key, value_bytes, fill).await)
    }

    /// Adds a key; [`WriteError::AlreadyExists`] if the key exists.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.client.run(async |s| s.insert(key, value).await)
    }

    /// Replaces the value of a key; [`WriteError::NotFound`] if the key does not exist.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.client.run(async |s| s.update(key, value).await)
    }

    /// Removes a key; [`WriteError::NotFound`] if the key does not exist.
    pub fn delete(&self, key: &[u8]) -> Result<(), WriteError> {
        self.client.run(async |s| s.delete(key).await)
    }

    /// Runs many writes in shared round trips; see [`Client::write_many`].
    pub fn write_many(&self, writes: &[BatchWrite<'_>]) -> Vec<Result<(), WriteError>> {
        each(writes.len(), self.client.run(async |s| Ok(s.write_many(writes).await)))
    }

    /// Shows the next pairs of a scan and advances its cursor; see [`Session::scan`].
    ///
    /// ```no_run
    /// use fusee_client::{Client, ScanCursor};
    ///
    /// let store = Client::connect("127.0.0.1:7400")?.blocking();
    /// let (mut cursor, mut bytes) = (ScanCursor::start(), 0);
    /// while !cursor.is_done() {
    ///     let damaged = store.scan(&mut cursor, |pair| bytes += pair.value.len())?;
    ///     assert_eq!(damaged, 0);
    /// }
    /// println!("all values together have {bytes} bytes");
    /// # Ok::<(), fusee_client::Error>(())
    /// ```
    pub fn scan(
        &self,
        cursor: &mut ScanCursor,
        show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, ScanError> {
        self.client.run(async |s| s.scan(cursor, show).await)
    }

    /// Gives the value of a key another redundancy; see [`Client::set_redundancy`].
    pub fn set_redundancy(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> Result<Transition, WriteError> {
        self.client.run(async |s| s.set_redundancy(key, redundancy).await)
    }

    /// Returns the redundancy of a key's value; `None` if the key does not exist.
    pub fn redundancy_of(&self, key: &[u8]) -> Result<Option<Redundancy>, ReadError> {
        self.client.run(async |s| s.redundancy_of(key).await)
    }
}

impl fmt::Debug for BlockingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

impl Client {
    /// Runs `f` with the calling thread's session of this client, which is opened if there is none.
    pub(crate) fn with_session<R>(&self, f: impl FnOnce(&Session) -> R) -> Result<R, ConnectError> {
        self.check_caller()?;
        let context = self.context();
        let session = SESSIONS.with_borrow(|sessions| {
            sessions.iter().find(|(n, _)| *n == context.number).map(|(_, s)| s.clone())
        });
        let session = match session {
            Some(session) if !session.is_lost() => session,
            lost => {
                if lost.is_some() {
                    drop(take_sessions_of_thread(context.number, Session::is_lost));
                }
                drop(lost);
                let session = Rc::new(Session::open(context, None)?);
                let ended = SESSIONS.with_borrow_mut(|sessions| {
                    sessions.push((context.number, session.clone()));
                    sessions.extract_if(.., |(_, s)| s.is_over()).collect::<Vec<_>>()
                });
                // The sessions are dropped here and not within the borrow above, because the end of a session can
                // borrow the list.
                drop(ended);
                session
            }
        };
        Ok(f(&session))
    }

    /// Runs an operation to its end, in the calling thread's session of this client.
    pub(crate) fn run<R, E: ErrorFamily>(
        &self,
        f: impl AsyncFnOnce(&Session) -> Result<R, E>,
    ) -> Result<R, E> {
        let limit = self.limit();
        let run = |session: &Session| {
            let result = match limit {
                None => session.block_on(f(session)),
                Some(limit) => session.block_on(session.with_op_timeout(limit.left(), f(session))),
            };
            (result, session.is_lost())
        };
        let (result, is_lost) =
            self.with_session(run).map_err(|error| E::from_store(error.into()))?;
        if is_lost {
            // A lost session is dropped at once, because other sessions possibly wait for the writes that it left
            // half-way. The next call opens another session, unless a nested call has already opened one.
            drop(take_sessions_of_thread(self.context().number, Session::is_lost));
        }
        result
    }
}

/// Removes from the calling thread's list the sessions of client `number` for which `which` returns true, and returns
/// them.
pub(crate) fn take_sessions_of_thread(
    number: u64,
    which: impl Fn(&Session) -> bool,
) -> Vec<(u64, Rc<Session>)> {
    let mine = |(n, session): &mut (u64, Rc<Session>)| *n == number && which(session);
    let taken = SESSIONS.try_with(|sessions| sessions.borrow_mut().extract_if(.., mine).collect());
    taken.unwrap_or_default()
}
