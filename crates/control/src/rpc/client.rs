//! The calling side of a service.
//!
//! A client connects to its address when it is first called, and again after its connection broke. Clones share the
//! connection, and calls do not wait for each other. Every call runs as a task of the [`Runtime`], so the caller can
//! await it under any executor.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fusee_auth::FrameCodes;
use fusee_core::verbs::ClusterId;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::calls::{ClientConnection, PendingCall};
use super::hello::{self, HelloError, UnexpectedPeer};
use super::runtime::RpcCredentials;
use super::wire::RpcStream;
use super::{DEFAULT_DEADLINE, HELLO_TIMEOUT, REUSE_TIMEOUT, RpcError, Runtime, Service, Stamped};

/// The time after which an address that accepts no connection is considered unreachable.
const CONNECT_TIMEOUT: Duration = HELLO_TIMEOUT;

/// The time for which a silent connection stays open after it was given up. It is longer than it takes to open another
/// connection and to send a request over it.
const PARTING: Duration = Duration::from_secs(5);

/// A client of one service at one address.
pub struct RpcClient<S: Service> {
    shared: Arc<RpcEndpoint<S>>,
    deadline: Duration,
    /// The cluster whose id every request carries; `None` for requests that belong to no cluster.
    cluster: Option<ClusterId>,
}

impl<S: Service> Clone for RpcClient<S> {
    fn clone(&self) -> RpcClient<S> {
        let shared = Arc::clone(&self.shared);
        RpcClient { shared, deadline: self.deadline, cluster: self.cluster }
    }
}

impl<S: Service> fmt::Debug for RpcClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client of {} at {}", S::ROLE, self.shared.addr)
    }
}

struct RpcEndpoint<S: Service> {
    runtime: Handle,
    trust: RpcCredentials,
    addr: String,
    /// Whether a broken connection can be replaced. False for a service in the same process.
    reconnect: bool,
    /// The open connection, if there is one. The lock is held while a connection is being opened.
    connection: Mutex<Option<ClientConnection<S::Reply>>>,
}

/// Closes, [`PARTING`] from now, a connection that was given up because the peer was silent. If the peer was only slow,
/// it would take the end of the connection for the end of this process, unless it has received a request of this
/// process over another connection before.
fn close_later<R: Send + 'static>(connection: ClientConnection<R>) {
    tokio::spawn(async move {
        tokio::time::sleep(PARTING).await;
        drop(connection);
    });
}

impl<S: Service> RpcClient<S> {
    /// Makes a client of the service at `addr` (host and port), which connects when it is first called.
    pub fn new(runtime: &Runtime, addr: impl Into<String>) -> RpcClient<S> {
        RpcClient::of(runtime.handle(), runtime.trust(), addr.into(), None)
    }

    /// Like [`RpcClient::new`], but connects at once, and fails if the service cannot be reached.
    pub async fn connect(
        runtime: &Runtime,
        addr: impl Into<String>,
    ) -> Result<RpcClient<S>, RpcError> {
        let client = RpcClient::new(runtime, addr);
        let shared = Arc::clone(&client.shared);
        let connecting = runtime.handle().spawn(async move { shared.begin().await.map(drop) });
        connecting.await.map_err(|_| RpcError::Closed { addr: client.addr().to_owned() })??;
        Ok(client)
    }

    /// Makes a client over this connection, which cannot be replaced.
    pub(super) fn local(
        runtime: &Runtime,
        name: &str,
        connection: ClientConnection<S::Reply>,
    ) -> RpcClient<S> {
        RpcClient::of(runtime.handle(), runtime.trust(), name.to_owned(), Some(connection))
    }

    fn of(
        runtime: &Handle,
        trust: &RpcCredentials,
        addr: String,
        connection: Option<ClientConnection<S::Reply>>,
    ) -> RpcClient<S> {
        let runtime = runtime.clone();
        let trust = trust.clone();
        let reconnect = connection.is_none();
        let connection = Mutex::new(connection);
        let shared = RpcEndpoint { runtime, trust, addr, reconnect, connection };
        RpcClient { shared: Arc::new(shared), deadline: DEFAULT_DEADLINE, cluster: None }
    }

    /// Returns a client over the same connection, with another deadline for each call.
    pub fn with_deadline(&self, deadline: Duration) -> RpcClient<S> {
        RpcClient { deadline, ..self.clone() }
    }

    /// Returns a client over the same connection whose requests carry this cluster's id.
    pub fn of_cluster(&self, cluster: Option<ClusterId>) -> RpcClient<S> {
        RpcClient { cluster, ..self.clone() }
    }

    /// Returns a client of the same service over another connection; inside the process, over the same connection.
    pub(super) fn with_own_connection(&self) -> RpcClient<S> {
        if !self.shared.reconnect {
            return self.clone();
        }
        let apart = self.sibling(self.shared.addr.clone());
        apart.with_deadline(self.deadline).of_cluster(self.cluster)
    }

    /// Returns the address: host and port, or the name of a service in the same process.
    pub fn addr(&self) -> &str {
        &self.shared.addr
    }

    /// Returns the runtime on which the connection lives.
    pub(super) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// Returns a client of the same service at another address.
    pub(super) fn sibling(&self, addr: String) -> RpcClient<S> {
        RpcClient::of(&self.shared.runtime, &self.shared.trust, addr, None)
    }

    /// Sends the request once. Dropping the future does not take the request back.
    pub async fn call(&self, request: S::Request) -> Result<S::Reply, RpcError> {
        let shared = Arc::clone(&self.shared);
        let deadline = self.deadline;
        let request = Stamped { cluster: self.cluster, request };
        let calling = self.shared.runtime.spawn(async move {
            let end = Instant::now() + deadline;
            let Ok(begun) = timeout_at(end, shared.begin()).await else {
                // This is not `TimedOut`: the request was not sent, so it cannot take effect.
                return Err(shared.unreachable("no connection in time"));
            };
            let mut call = begun?;
            let answer = call.answer(request, end).await;
            if let Err(RpcError::TimedOut { .. }) = answer {
                shared.give_up(call.connection());
            }
            answer
        });
        // Only the end of the runtime can end the task before it is complete.
        calling.await.map_err(|_| RpcError::Closed { addr: self.addr().to_owned() })?
    }

    /// Like [`RpcClient::call`], but blocks the calling thread.
    ///
    /// # Panics
    /// If the calling thread belongs to an async runtime.
    pub fn call_blocking(&self, request: S::Request) -> Result<S::Reply, RpcError> {
        self.shared.runtime.block_on(self.call(request))
    }
}

impl<S: Service> RpcEndpoint<S> {
    /// Begins a call on the connection, which is replaced if necessary.
    async fn begin(&self) -> Result<PendingCall<S::Reply>, RpcError> {
        // A connection inside the process is never closed for being idle.
        let longest_idle = if self.reconnect { REUSE_TIMEOUT } else { Duration::MAX };
        let mut current = self.connection.lock().await;
        let closed = || RpcError::Closed { addr: self.addr.clone() };
        if let Some(call) = current.as_ref().and_then(|open| open.begin(longest_idle)) {
            return Ok(call);
        }
        if !self.reconnect {
            return Err(closed());
        }
        current.take().into_iter().for_each(close_later);
        let (wire, codes) = self.dial().await?;
        let connection = ClientConnection::start(wire, codes, self.addr.clone());
        let call = connection.begin(Duration::MAX).ok_or_else(closed)?;
        *current = Some(connection);
        Ok(call)
    }

    /// Gives up a connection on which no answer came in time, because the peer has possibly died without closing it.
    /// The next call then opens another connection.
    fn give_up(&self, silent: &ClientConnection<S::Reply>) {
        // If the lock is held, the connection is being replaced already.
        let current = self.connection.try_lock();
        if self.reconnect
            && let Ok(mut current) = current
            && let Some(silent) = current.take_if(|current| current.is(silent))
        {
            close_later(silent);
        }
    }

    fn unreachable(&self, cause: &str) -> RpcError {
        RpcError::Unreachable { addr: self.addr.clone(), cause: cause.into() }
    }

    async fn dial(&self) -> Result<(RpcStream, Option<FrameCodes>), RpcError> {
        let addr = || self.addr.clone();
        let unreachable = |cause: String| self.unreachable(&cause);
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.addr))
            .await
            .map_err(|_| unreachable("no answer".into()))?
            .map_err(|error| unreachable(error.to_string()))?;
        // Requests and replies are small, so it would only add latency to wait until a segment is full.
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        let greeted = async {
            let mut wire = RpcStream::dial(stream, &self.addr, self.trust.tls.as_ref()).await?;
            let codes = hello::ask(&mut wire, S::ROLE, &self.trust).await?;
            Ok((wire, codes))
        };
        match greeted.await {
            Ok(greeted) => Ok(greeted),
            Err(HelloError::UnexpectedPeer(UnexpectedPeer::Version(error))) => {
                Err(RpcError::Version { addr: addr(), error })
            }
            Err(HelloError::UnexpectedPeer(UnexpectedPeer::Other(found))) => {
                Err(RpcError::WrongService { addr: addr(), expected: S::ROLE, found })
            }
            // In all of these cases the request was not sent, so it cannot take effect.
            Err(HelloError::Silent) => Err(unreachable("connected, but no hello in time".into())),
            Err(HelloError::Closed) => Err(unreachable("it closes connections at once".into())),
            Err(HelloError::Random(error)) => Err(unreachable(error.to_string())),
            Err(HelloError::Tls(what)) => Err(RpcError::Tls { addr: addr(), what }),
            Err(HelloError::Keys(what)) => Err(RpcError::Keys { addr: addr(), what: what.into() }),
        }
    }
}
