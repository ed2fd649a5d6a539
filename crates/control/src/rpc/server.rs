//! The answering side of a service.
//!
//! One task accepts connections, one task per connection reads requests and writes replies, and one task per
//! request runs the handler. A handler that has started runs to its end, even if its caller gave up or its
//! connection broke, so the state machines behind it never see half of a request. An error on a connection ends
//! that connection, with a line in the log.

use std::future::poll_fn;
use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use fusee_auth::PeerKind;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use tarpc::server::{BaseChannel, Channel, InFlightRequest};
use tarpc::{ClientMessage, RequestName, Response, ServerError};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::codec::{Ending, Pausing, ServerTransport, transport};
use super::guests::{Guest, Guests, Held, Limits, Refusal};
use super::runtime::Trust;
use super::times::RequestTimes;
use super::wire::Wire;
use super::{
    Caller, MAX_REQUESTS_PER_CONNECTION, RpcClient, Runtime, ServeError, Service, Stamped, hello,
};

/// The pause after the operating system had no file descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The caller over the one connection inside a process.
const LOCAL: Caller = Caller { connection: 0, cluster: None, elsewhere: false, who: None };

/// A running service. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct Server {
    runtime: Handle,
    addr: Option<SocketAddr>,
    /// Dropped to tell the accepting task to end.
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
    times: RequestTimes,
}

impl Server {
    /// Returns the address at which the service listens; `None` inside a process.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Returns the times that requests over its port take.
    pub fn times(&self) -> RequestTimes {
        self.times.clone()
    }

    /// Closes port and connections, and returns when that is complete.
    ///
    /// # Panics
    /// If the calling thread is an async runtime's.
    pub fn stop(mut self) {
        self.stop.take();
        if let Some(task) = self.task.take() {
            // Only the end of the runtime ends the task earlier, which has the same effect.
            let _ended = self.runtime.block_on(task);
        }
    }
}

/// Listens at `addr` (host and port; port 0 for a free one).
pub fn bind(addr: &str) -> Result<StdListener, ServeError> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => ServeError::PortInUse { addr: addr.to_owned() },
        _ => ServeError::Address { addr: addr.to_owned(), cause: error.to_string() },
    };
    let resolved: Vec<SocketAddr> = addr.to_socket_addrs().map_err(failed)?.collect();
    // std sets SO_REUSEADDR on Unix, so that a restart does not wait for old connections.
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
    H: Fn(Caller, S::Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
{
    serve_connections::<S, _, _, _>(runtime, listener, handler, |_| ())
}

/// Like [`serve`]. In addition, `closed` is called with the number of each connection that has ended, after the
/// last call of the handler.
pub fn serve_connections<S, H, F, C>(
    runtime: &Runtime,
    listener: StdListener,
    handler: H,
    closed: C,
) -> Result<Server, ServeError>
where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
    C: Fn(u64) + Clone + Send + Sync + 'static,
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
    H: Fn(Caller, S::Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
    C: Fn(u64) + Clone + Send + Sync + 'static,
{
    let failed = |error: std::io::Error| ServeError::Address {
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
    let guests = Guests::new(limits);
    let trust = runtime.trust().clone();
    let times = RequestTimes::default();
    let handler = timed(handler, times.clone());
    let accepting = accept::<S, _, _, C>(listener, (handler, trust), closed, stopped, guests);
    let task = runtime.handle().spawn(accepting);
    Ok(Server {
        runtime: runtime.handle().clone(),
        addr: Some(addr),
        stop: Some(stop),
        task: Some(task),
        times,
    })
}

/// Answers requests of this process, without a port. `name` stands for the address in errors.
pub fn serve_local<S, H, F>(runtime: &Runtime, name: &str, handler: H) -> (RpcClient<S>, Server)
where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
{
    let _entered = runtime.handle().enter();
    let (near, far) = tarpc::transport::channel::unbounded();
    let (stop, stopped) = oneshot::channel::<()>();
    let peer = name.to_owned();
    let task = runtime.handle().spawn(async move {
        tokio::select! {
            // An error means that the server was dropped, which stops it.
            _ = stopped => {}
            () = answer::<S, H, F, _>(far, handler, LOCAL, peer, None) => {}
        }
    });
    let client = RpcClient::local(runtime, name, near);
    (
        client,
        Server {
            runtime: runtime.handle().clone(),
            addr: None,
            stop: Some(stop),
            task: Some(task),
            times: RequestTimes::default(),
        },
    )
}

/// Wraps a handler so that its times are taken.
fn timed<R, H, F>(
    handler: H,
    times: RequestTimes,
) -> impl Fn(Caller, R) -> BoxFuture<'static, F::Output> + Clone + Send + Sync + 'static
where
    R: RequestName,
    H: Fn(Caller, R) -> F + Clone + Send + Sync + 'static,
    F: Future<Output: Send> + Send + 'static,
{
    move |caller, request| {
        let times = times.clone();
        let name = request.name().to_owned();
        let begun = Instant::now();
        let handling = handler(caller, request);
        Box::pin(async move {
            let reply = handling.await;
            times.add(&name, begun.elapsed());
            reply
        })
    }
}

async fn accept<S, H, F, C>(
    listener: TcpListener,
    (handler, trust): (H, Trust),
    closed: C,
    mut stopped: oneshot::Receiver<()>,
    guests: Guests,
) where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
    C: Fn(u64) + Clone + Send + Sync + 'static,
{
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
                guests.room().await;
                listener.accept().await
            } => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                // Usually no file descriptor is left.
                guests.make_way();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        number += 1;
        let guest = guests.enter(number, peer.ip().to_canonical());
        let open = Open { number, closed: closed.clone() };
        let handler = handler.clone();
        let trust = trust.clone();
        connections.spawn(async move {
            let number = open.number;
            tokio::select! {
                () = greet::<S, _, F>(stream, (handler, trust), number, peer, guest.clone()) => {}
                why = guest.overstays() => send_away(peer, why),
            }
            drop((open, guest));
        });
    }
    // The port must be free after a stop, so it is closed before the connections.
    drop(listener);
    connections.shutdown().await;
}

/// Logs why a connection is closed.
fn send_away(peer: SocketAddr, why: Refusal) {
    match why {
        // Idle connections are no problem, and connections that make room are many at a time.
        Refusal::Idle | Refusal::MakesRoom => {
            tracing::debug!(%peer, "control connection closed: {why}")
        }
        _ => tracing::warn!(%peer, "control connection closed: {why}"),
    }
}

/// Reports that a connection has ended, however it ends.
struct Open<C: Fn(u64)> {
    number: u64,
    closed: C,
}

impl<C: Fn(u64)> Drop for Open<C> {
    fn drop(&mut self) {
        (self.closed)(self.number);
    }
}

async fn greet<S, H, F>(
    stream: TcpStream,
    (handler, trust): (H, Trust),
    number: u64,
    peer: SocketAddr,
    guest: Guest,
) where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "no TCP_NODELAY");
    }
    let greeted = async {
        let mut wire = Wire::answer(stream, trust.tls.as_ref()).await?;
        hello::answer(&mut wire, S::ROLE, &trust).await.map(|proved| (wire, proved))
    };
    let (wire, (who, codes)) = match greeted.await {
        Ok(greeted) => greeted,
        Err(error) => return tracing::warn!(%peer, %error, "control connection refused"),
    };
    // A client on this machine connects from the address that it connects to.
    let elsewhere = wire.socket().local_addr().is_ok_and(|own| own.ip() != peer.ip());
    let from = Caller { connection: number, cluster: None, elsewhere, who };
    let transport: ServerTransport<Stamped<S::Request>, S::Reply> =
        transport(wire, Some(guest.clone()), codes);
    let transport = Ending::new(transport);
    let peer = peer.to_string();
    answer::<S, H, F, _>(transport, handler, from, peer, Some(guest)).await;
}

async fn answer<S, H, F, T>(
    transport: T,
    handler: H,
    from: Caller,
    peer: String,
    guest: Option<Guest>,
) where
    S: Service,
    H: Fn(Caller, S::Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = S::Reply> + Send + 'static,
    T: tarpc::Transport<Response<S::Reply>, ClientMessage<Stamped<S::Request>>>,
    T: Unpin + Send + 'static,
{
    let (transport, paused) = Pausing::new(transport);
    let mut requests = std::pin::pin!(BaseChannel::with_defaults(transport).requests());
    let answer = |request: Result<InFlightRequest<_, _>, _>| {
        let handler = handler.clone();
        let peer = peer.clone();
        let asking = guest.as_ref().filter(|_| request.is_ok()).map(Guest::asks).transpose();
        async move {
            // `_asking` lives until the request is answered, `held` until its handler has ended.
            let (_asking, held) = match asking.map(Option::unzip) {
                Ok(asking) => asking,
                Err(why) => {
                    tracing::warn!(%peer, "control connection closed: {why}");
                    return false;
                }
            };
            let Ok(request) = request.map_err(|error| {
                let cause = std::error::Error::source(&error);
                let io = cause.and_then(|cause| cause.downcast_ref::<Arc<std::io::Error>>());
                // The end of a process looks like this, with or without a goodbye.
                if io.is_some_and(|io| matches!(kind(io), UnexpectedEof | ConnectionReset)) {
                    tracing::debug!(%peer, %error, ?cause, "control connection closed");
                } else {
                    tracing::warn!(%peer, %error, ?cause, "control connection closed");
                }
            }) else {
                return false;
            };
            request
                .execute(tarpc::server::serve(|_, message| {
                    let Stamped { cluster, request }: Stamped<S::Request> = message;
                    let needs = S::needs(&request);
                    let may = from.who.is_none_or(|who| who.has_rights_of(needs));
                    let handled =
                        may.then(|| run(handler(Caller { cluster, ..from }, request), held));
                    async move { handled.ok_or_else(|| denied(needs))?.await }
                }))
                .await;
            true
        }
    };
    let mut answers = FuturesUnordered::new();
    poll_fn(|cx| {
        loop {
            // An answer that the peer has not fetched counts as well. If only requests with running handlers
            // counted, these would wait until answers are sent, and answers would wait until requests are
            // polled: both for ever.
            let places = answers.len() + requests.pending_responses_mut().len();
            paused.store(places >= MAX_REQUESTS_PER_CONNECTION, Ordering::Relaxed);
            // This call also sends answers.
            let mut goes_on = match requests.as_mut().poll_next(cx) {
                Poll::Ready(Some(request)) => {
                    answers.push(answer(request));
                    true
                }
                Poll::Ready(None) if answers.is_empty() => return Poll::Ready(()),
                Poll::Ready(None) | Poll::Pending => false,
            };
            while let Poll::Ready(Some(may_go_on)) = answers.poll_next_unpin(cx) {
                if !may_go_on {
                    return Poll::Ready(());
                }
                goes_on = true;
            }
            goes_on |= answers.len() + requests.pending_responses_mut().len() < places;
            if !goes_on {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Returns the error for a request that needs another key.
fn denied(needs: PeerKind) -> ServerError {
    let what = format!("that is for who has the secret's key for `{needs}`, or the secret");
    ServerError::new(std::io::ErrorKind::PermissionDenied, what)
}

/// Returns the kind of an error, or of the error that it wraps.
fn kind(error: &std::io::Error) -> std::io::ErrorKind {
    let within = error.get_ref().and_then(|within| within.downcast_ref::<std::io::Error>());
    within.unwrap_or(error).kind()
}

/// Runs a handler to its end, even if the caller of this function is dropped. `held` is dropped after that.
async fn run<R: Send + 'static>(
    handling: impl Future<Output = R> + Send + 'static,
    held: Option<Option<Held>>,
) -> Result<R, ServerError> {
    let handling = async move {
        let reply = handling.await;
        drop(held);
        reply
    };
    tokio::spawn(handling).await.map_err(|error| {
        tracing::error!(%error, "a control request's handler failed");
        ServerError::new(std::io::ErrorKind::Other, "the handler failed; see its log".into())
    })
}
