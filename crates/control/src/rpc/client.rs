//! The calling side of a service.
//!
//! A client connects to its address when it is first called, and again after its connection broke. Clones share
//! the connection; calls do not wait for each other. Every call runs as a task of the [`Runtime`], so the
//! caller may await it from any executor.

use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_auth::FrameCodes;
use fusee_core::verbs::ClusterId;
use tarpc::client::{Channel, NewClient, RpcError as TarpcError};
use tarpc::{ClientMessage, Response, context};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{timeout, timeout_at};

use super::codec::{ClientTransport, transport};
use super::hello::{self, HelloError, Stranger};
use super::runtime::Trust;
use super::wire::Wire;
use super::{DEFAULT_DEADLINE, HELLO_TIMEOUT, REUSE_TIMEOUT, RpcError, Runtime, Service, Stamped};

/// The time to wait for a connection before the address counts as unreachable.
const CONNECT_TIMEOUT: Duration = HELLO_TIMEOUT;

/// The time that a silent connection stays open after it was given up: longer than it takes to open another
/// one, and to be heard over that.
const PARTING: Duration = Duration::from_secs(5);

/// A client of one service at one address.
pub struct RpcClient<S: Service> {
    shared: Arc<Shared<S>>,
    deadline: Duration,
    /// The cluster that requests are stamped with.
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

struct Shared<S: Service> {
    runtime: Handle,
    trust: Trust,
    addr: String,
    /// Whether a broken connection can be replaced; false inside a process.
    reconnect: bool,
    link: Mutex<Option<Link<S>>>,
}

/// An open connection.
struct Link<S: Service> {
    channel: Channel<Stamped<S::Request>, S::Reply>,
    broken: Arc<AtomicBool>,
    traffic: Arc<StdMutex<Traffic>>,
}

/// The traffic over a connection.
#[derive(Debug)]
struct Traffic {
    calls: usize,
    since: Instant,
}

/// A running call.
struct Underway(Arc<StdMutex<Traffic>>);

impl Drop for Underway {
    fn drop(&mut self) {
        let mut traffic = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.calls -= 1;
        traffic.since = Instant::now();
    }
}

impl<S: Service> Clone for Link<S> {
    fn clone(&self) -> Link<S> {
        let broken = Arc::clone(&self.broken);
        let traffic = Arc::clone(&self.traffic);
        Link { channel: self.channel.clone(), broken, traffic }
    }
}

impl<S: Service> Link<S> {
    /// Starts to carry messages. Must run on the runtime.
    fn start<T>(transport: T, addr: String) -> Link<S>
    where
        T: tarpc::Transport<ClientMessage<Stamped<S::Request>>, Response<S::Reply>>
            + Send
            + 'static,
    {
        let NewClient { client, dispatch } =
            tarpc::client::new(tarpc::client::Config::default(), transport);
        let broken = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&broken);
        tokio::spawn(async move {
            if let Err(error) = dispatch.await {
                tracing::debug!(%addr, %error, "control connection broke");
            }
            // Release: the old connection has ended before a caller sees the flag and makes a new one.
            flag.store(true, Ordering::Release);
        });
        let traffic = Traffic { calls: 0, since: Instant::now() };
        Link { channel: client, broken, traffic: Arc::new(StdMutex::new(traffic)) }
    }

    /// Notes a call. Returns `None` if the server may be about to close the connection because it was idle for
    /// too long.
    fn begin(&self, longest_idle: Duration) -> Option<Underway> {
        let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        if traffic.calls == 0 && traffic.since.elapsed() > longest_idle {
            return None;
        }
        traffic.calls += 1;
        Some(Underway(Arc::clone(&self.traffic)))
    }
}

/// Closes a connection that was given up for its silence, after a while. A peer that was only slow would take
/// the end of the connection for the end of this process, unless it has heard of this process over another
/// connection before.
fn part_later<S: Service>(link: Link<S>) {
    tokio::spawn(async move {
        tokio::time::sleep(PARTING).await;
        drop(link);
    });
}

impl<S: Service> RpcClient<S> {
    /// Makes a client of the service at `addr` (host and port). It connects when it is first called.
    pub fn new(runtime: &Runtime, addr: impl Into<String>) -> RpcClient<S> {
        let carrier = (runtime.handle(), runtime.trust());
        RpcClient::with_link(carrier, addr.into(), true, None)
    }

    /// Like [`RpcClient::new`], but connects at once, and so tells whether the service is there.
    pub async fn connect(
        runtime: &Runtime,
        addr: impl Into<String>,
    ) -> Result<RpcClient<S>, RpcError> {
        let client = RpcClient::new(runtime, addr);
        let shared = Arc::clone(&client.shared);
        let connecting = runtime.handle().spawn(async move { shared.link().await.map(|_| ()) });
        connecting.await.map_err(|_| RpcError::Closed { addr: client.addr().to_owned() })??;
        Ok(client)
    }

    /// Makes a client over an existing transport. Must be called on the runtime.
    pub(super) fn local<T>(runtime: &Runtime, name: &str, transport: T) -> RpcClient<S>
    where
        T: tarpc::Transport<ClientMessage<Stamped<S::Request>>, Response<S::Reply>>
            + Send
            + 'static,
    {
        let link = Link::start(transport, name.to_owned());
        RpcClient::with_link(
            (runtime.handle(), runtime.trust()),
            name.to_owned(),
            false,
            Some(link),
        )
    }

    fn with_link(
        (runtime, trust): (&Handle, &Trust),
        addr: String,
        reconnect: bool,
        link: Option<Link<S>>,
    ) -> RpcClient<S> {
        let runtime = runtime.clone();
        let trust = trust.clone();
        let link = Mutex::new(link);
        let shared = Shared { runtime, trust, addr, reconnect, link };
        RpcClient { shared: Arc::new(shared), deadline: DEFAULT_DEADLINE, cluster: None }
    }

    /// Returns a client over the same connection, with another deadline per call.
    pub fn with_deadline(&self, deadline: Duration) -> RpcClient<S> {
        RpcClient { deadline, ..self.clone() }
    }

    /// Returns a client over the same connection, for calls of a member of this cluster.
    pub fn of_cluster(&self, cluster: Option<ClusterId>) -> RpcClient<S> {
        RpcClient { cluster, ..self.clone() }
    }

    /// Returns a client of the same service over a connection of its own, if that is possible.
    pub(super) fn apart(&self) -> RpcClient<S> {
        if !self.shared.reconnect {
            return self.clone();
        }
        let apart = self.sibling(self.shared.addr.clone());
        apart.with_deadline(self.deadline).of_cluster(self.cluster)
    }

    /// Returns the address: host and port, or a name inside the process.
    pub fn addr(&self) -> &str {
        &self.shared.addr
    }

    /// Returns the runtime of the connection.
    pub(super) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// Returns a client of the same service at another address.
    pub(super) fn sibling(&self, addr: String) -> RpcClient<S> {
        let carrier = (&self.shared.runtime, &self.shared.trust);
        RpcClient::with_link(carrier, addr, true, None)
    }

    /// Sends the request once. Dropping the future does not take the request back.
    pub async fn call(&self, request: S::Request) -> Result<S::Reply, RpcError> {
        let shared = Arc::clone(&self.shared);
        let deadline = self.deadline;
        let request = Stamped { cluster: self.cluster, request };
        let calling = self.shared.runtime.spawn(async move {
            let end = Instant::now() + deadline;
            let (link, _underway) = match timeout(deadline, shared.usable_link()).await {
                Ok(usable) => usable?,
                // Not a time-out: the request has not been sent, so it cannot take effect.
                Err(_) => return Err(shared.unreachable("no connection in time")),
            };
            match timeout_at(end.into(), shared.call(link, request, end)).await {
                Ok(result) => result,
                Err(_) => Err(RpcError::TimedOut { addr: shared.addr.clone() }),
            }
        });
        // The task can only be cut off by the end of the runtime.
        calling.await.map_err(|_| RpcError::Closed { addr: self.addr().to_owned() })?
    }

    /// Like [`RpcClient::call`], waiting on the calling thread.
    ///
    /// # Panics
    /// If the calling thread is an async runtime's.
    pub fn call_blocking(&self, request: S::Request) -> Result<S::Reply, RpcError> {
        self.shared.runtime.block_on(self.call(request))
    }
}

impl<S: Service> Shared<S> {
    async fn call(
        &self,
        link: Link<S>,
        request: Stamped<S::Request>,
        deadline: Instant,
    ) -> Result<S::Reply, RpcError> {
        let mut context = context::current();
        context.deadline = deadline;
        let addr = || self.addr.clone();
        match link.channel.call(context, request).await {
            Ok(reply) => Ok(reply),
            Err(TarpcError::DeadlineExceeded) => {
                // The peer may have died without closing the connection; the next call finds out.
                self.forget(&link).await;
                part_later(link);
                Err(RpcError::TimedOut { addr: addr() })
            }
            Err(TarpcError::Shutdown | TarpcError::Channel(_)) => {
                self.forget(&link).await;
                Err(RpcError::Closed { addr: addr() })
            }
            Err(TarpcError::Send(cause)) => {
                Err(RpcError::Protocol { addr: addr(), what: cause.to_string() })
            }
            Err(TarpcError::Server(error)) if error.kind == ErrorKind::PermissionDenied => {
                Err(RpcError::Keys { addr: addr(), what: error.detail })
            }
            Err(TarpcError::Server(error)) => {
                Err(RpcError::Protocol { addr: addr(), what: error.detail })
            }
        }
    }

    async fn forget(&self, link: &Link<S>) {
        let mut current = self.link.lock().await;
        let same = |now: &mut Link<S>| Arc::ptr_eq(&now.broken, &link.broken);
        if self.reconnect {
            current.take_if(same);
        }
    }

    /// Returns the connection, with a call noted on it.
    async fn usable_link(&self) -> Result<(Link<S>, Underway), RpcError> {
        // No peer closes a connection inside a process.
        let longest_idle = if self.reconnect { REUSE_TIMEOUT } else { Duration::MAX };
        loop {
            let link = self.link().await?;
            if let Some(underway) = link.begin(longest_idle) {
                return Ok((link, underway));
            }
            self.forget(&link).await;
            part_later(link);
        }
    }

    /// Returns the connection, replaced if necessary.
    async fn link(&self) -> Result<Link<S>, RpcError> {
        let mut current = self.link.lock().await;
        if let Some(link) = current.as_ref()
            && !link.broken.load(Ordering::Acquire)
        {
            return Ok(link.clone());
        }
        if !self.reconnect {
            return Err(RpcError::Closed { addr: self.addr.clone() });
        }
        let (wire, codes) = self.dial().await?;
        let transport: ClientTransport<Stamped<S::Request>, S::Reply> =
            transport(wire, None, codes);
        let link = Link::start(transport, self.addr.clone());
        *current = Some(link.clone());
        Ok(link)
    }

    fn unreachable(&self, cause: &str) -> RpcError {
        RpcError::Unreachable { addr: self.addr.clone(), cause: cause.into() }
    }

    async fn dial(&self) -> Result<(Wire, Option<FrameCodes>), RpcError> {
        let addr = || self.addr.clone();
        let unreachable = |cause: String| self.unreachable(&cause);
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.addr))
            .await
            .map_err(|_| unreachable("no answer".into()))?
            .map_err(|error| unreachable(error.to_string()))?;
        // Requests and replies are small, so waiting to fill a segment would only add latency.
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        let greeted = async {
            let mut wire = Wire::dial(stream, &self.addr, self.trust.tls.as_ref()).await?;
            let codes = hello::ask(&mut wire, S::ROLE, &self.trust).await?;
            Ok((wire, codes))
        };
        match greeted.await {
            Ok(greeted) => Ok(greeted),
            Err(HelloError::Stranger(Stranger::Version(error))) => {
                Err(RpcError::Version { addr: addr(), error })
            }
            Err(HelloError::Stranger(Stranger::Other(found))) => {
                Err(RpcError::WrongService { addr: addr(), expected: S::ROLE, found })
            }
            // The request has not been sent, so it cannot take effect.
            Err(HelloError::Silent) => Err(unreachable("connected, but no hello in time".into())),
            Err(HelloError::Closed) => Err(unreachable("it closes connections at once".into())),
            Err(HelloError::Random(error)) => Err(unreachable(error.to_string())),
            Err(HelloError::Tls(what)) => Err(RpcError::Tls { addr: addr(), what }),
            Err(HelloError::Keys(what)) => Err(RpcError::Keys { addr: addr(), what: what.into() }),
        }
    }
}
