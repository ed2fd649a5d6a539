//! The answering side of a service.
//!
//! One task accepts connections. One task per connection runs the hello with the client and answers its requests
//! (module `requests`). An error on a connection ends that connection, with a line in the log.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::calls::ClientConnection;
use super::connections::{Limits, RpcCloseReason, RpcConnection, RpcConnections};
use super::requests::{self, RequestHandler};
use super::runtime::RpcCredentials;
use super::times::RequestTimes;
use super::wire::RpcStream;
use super::{Caller, RpcClient, Runtime, ServeError, Service, hello};

/// The pause after the operating system had no file descriptor for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Capacity of a connection inside the process, in bytes.
const LOCAL_BYTES: usize = 64 << 10;

/// The caller of the connection inside the process.
const LOCAL: Caller = Caller { connection: 0, cluster: None, elsewhere: false, who: None };

/// A running service. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct Server {
    runtime: Handle,
    addr: Option<SocketAddr>,
    /// Dropping this sender tells the task that accepts connections to end.
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
    times: RequestTimes,
}

impl Server {
    /// Returns the address at which the service listens; `None` for a service without a port.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Returns the times that answers take, by request.
    pub fn times(&self) -> RequestTimes {
        self.times.clone()
    }

    /// Closes the port and all connections. Returns when that is complete.
    ///
    /// # Panics
    /// If the calling thread belongs to an async runtime.
    pub fn stop(mut self) {
        self.stop.take();
        if let Some(task) = self.task.take() {
            // An error means that the runtime has ended, which has also closed the port and all connections.
            let _ended = self.runtime.block_on(task);
        }
    }
}

/// Listens at `addr` (host and port; port 0 chooses a free one).
pub fn bind(addr: &str) -> Result<StdListener, ServeError> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::AddrInUse => ServeError::PortInUse { addr: addr.to_owned() },
        _ => ServeError::Address { addr: addr.to_owned(), cause: error.to_string() },
    };
    let resolved: Vec<SocketAddr> = addr.to_socket_addrs().map_err(failed)?.collect();
    // The standard library sets SO_REUSEADDR on Unix, so that a restarted server can use the port although old
    // connections exist.
    let listener = StdListener::bind(&resolved[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Answers requests that come over TCP.
pub fn serve<S, H, F>(
    runtime: &Runtime,
    listener: StdListener,
    handler: H,
) -> Result<Server, ServeError>
where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
{
    serve_connections::<S, _, _, _>(runtime, listener, handler, |_| ())
}

/// Like [`serve`]. In addition, calls `closed` with the number of each connection that has ended, after the last call
/// of the handler.
pub fn serve_connections<S, H, F, C>(
    runtime: &Runtime,
    listener: StdListener,
    handler: H,
    closed: C,
) -> Result<Server, ServeError>
where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
    C: Fn(u64) + Send + Sync + 'static,
{
    serve_limited::<S, H, F, C>(runtime, listener, handler, closed, Limits::default())
}

/// Like [`serve_connections`], with other limits.
pub fn serve_limited<S, H, F, C>(
    runtime: &Runtime,
    listener: StdListener,
    handler: H,
    closed: C,
    limits: Limits,
) -> Result<Server, ServeError>
where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
    C: Fn(u64) + Send + Sync + 'static,
{
    let failed = |error: io::Error| ServeError::Address {
        addr: format!("{listener:?}"),
        cause: error.to_string(),
    };
    let addr = listener.local_addr().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let entered = runtime.handle().enter();
    let listener = TcpListener::from_std(listener).map_err(|error| ServeError::Address {
        addr: addr.to_string(),
        cause: error.to_string(),
    })?;
    drop(entered);
    let (stop, stopped) = oneshot::channel();
    let handler = RequestHandler::new(handler);
    let times = handler.times();
    let trust = runtime.trust().clone();
    let greeting = Greeting::<S> { handler, trust, closed: Arc::new(closed) };
    let accepting = accept(listener, greeting, stopped, RpcConnections::new(limits));
    Ok(Server {
        runtime: runtime.handle().clone(),
        addr: Some(addr),
        stop: Some(stop),
        task: Some(runtime.handle().spawn(accepting)),
        times,
    })
}

/// Answers requests of this process, without a port. Errors show `name` in place of an address.
pub fn serve_local<S, H, F>(runtime: &Runtime, name: &str, handler: H) -> (RpcClient<S>, Server)
where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
{
    let _entered = runtime.handle().enter();
    let (near, far) = tokio::io::duplex(LOCAL_BYTES);
    let (stop, stopped) = oneshot::channel::<()>();
    let handler = RequestHandler::<S>::new(handler);
    let times = handler.times();
    let peer = name.to_owned();
    let task = tokio::spawn(async move {
        tokio::select! {
            // An error means that the server was dropped, which stops the task, too.
            _ = stopped => {}
            ended = requests::answer(far, None, handler, LOCAL, None) => log_end(&peer, ended),
        }
    });
    let connection = ClientConnection::start(near, None, name.to_owned());
    let client = RpcClient::local(runtime, name, connection);
    let runtime = runtime.handle().clone();
    (client, Server { runtime, addr: None, stop: Some(stop), task: Some(task), times })
}

async fn accept<S: Service>(
    listener: TcpListener,
    greeting: Greeting<S>,
    mut stopped: oneshot::Receiver<()>,
    guests: RpcConnections,
) {
    let mut number = 0;
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => break,
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a control connection's task failed");
                }
                continue;
            }
            accepted = async {
                guests.wait_for_room().await;
                listener.accept().await
            } => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                // The usual reason is that the process has no file descriptor left.
                guests.make_way();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        number += 1;
        let guest = guests.enter(number, peer.ip().to_canonical());
        let open = OpenConnection { number, peer, greeting: greeting.clone() };
        connections.spawn(async move {
            tokio::select! {
                () = open.greet(stream, guest.clone()) => {}
                why = guest.wait_for_close() => send_away(peer, why),
            }
            drop((open, guest));
        });
    }
    // The listener is closed before the connections, so that the port is free when `stop` returns.
    drop(listener);
    connections.shutdown().await;
}

/// Logs the reason why the server closes the connection of this peer.
fn send_away(peer: SocketAddr, why: RpcCloseReason) {
    match why {
        // These reasons are logged at level debug only: an idle connection is no problem, and many connections can have
        // to make room at one time.
        RpcCloseReason::Idle | RpcCloseReason::MakesRoom => {
            tracing::debug!(%peer, "control connection closed: {why}")
        }
        _ => tracing::warn!(%peer, "control connection closed: {why}"),
    }
}

/// Logs that a connection has ended by itself.
fn log_end(peer: &str, ended: io::Result<()>) {
    let Err(error) = ended else { return };
    // The end of a client process looks like this, whether it was orderly or not.
    if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) {
        tracing::debug!(%peer, "control connection closed: {error}");
    } else {
        tracing::warn!(%peer, "control connection closed: {error}");
    }
}

/// The state that all connections of a server share.
struct Greeting<S: Service> {
    handler: Arc<RequestHandler<S>>,
    trust: RpcCredentials,
    /// The function to call with the number of each connection that has ended.
    closed: Arc<dyn Fn(u64) + Send + Sync>,
}

impl<S: Service> Clone for Greeting<S> {
    fn clone(&self) -> Greeting<S> {
        let Greeting { handler, trust, closed } = self;
        Greeting { handler: handler.clone(), trust: trust.clone(), closed: closed.clone() }
    }
}

/// An accepted connection. Dropping it reports that the connection has ended.
struct OpenConnection<S: Service> {
    number: u64,
    peer: SocketAddr,
    greeting: Greeting<S>,
}

impl<S: Service> Drop for OpenConnection<S> {
    fn drop(&mut self) {
        (self.greeting.closed)(self.number);
    }
}

impl<S: Service> OpenConnection<S> {
    /// Runs the hello with the client, and answers its requests until the connection ends.
    async fn greet(&self, stream: TcpStream, guest: RpcConnection) {
        let Greeting { handler, trust, .. } = &self.greeting;
        let peer = self.peer;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "no TCP_NODELAY");
        }
        let greeted = async {
            let mut wire = RpcStream::answer(stream, trust.tls.as_ref()).await?;
            hello::answer(&mut wire, S::ROLE, trust).await.map(|proved| (wire, proved))
        };
        let (wire, (who, codes)) = match greeted.await {
            Ok(greeted) => greeted,
            Err(error) => return tracing::warn!(%peer, %error, "control connection refused"),
        };
        // A client on this machine has the same address as the one that it connects to.
        let elsewhere = wire.socket().local_addr().is_ok_and(|own| own.ip() != peer.ip());
        let from = Caller { connection: self.number, cluster: None, elsewhere, who };
        let ended = requests::answer(wire, codes, handler.clone(), from, Some(guest)).await;
        log_end(&peer.to_string(), ended);
    }
}
