//! `--http`: metrics, health, and a status page, by HTTP.
//!
//! The pages change nothing and need no key. They reveal nothing that gives access to the memory: neither identities of
//! memory nodes nor keys of pairs. Strangers are allowed to connect, so connections are limited in number and time, and
//! heads of requests in bytes. However many clients ask, the server requests the cluster's status and events at most
//! once a second each. A request that names another host is refused ([`AllowedHosts`]).

mod activity;
mod allowed_hosts;
mod cluster;
mod memory;
mod metrics;
mod node;
mod process;
mod recent_answer;
mod requests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_control::rpc::Runtime;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub use allowed_hosts::AllowedHosts;
pub use cluster::ClusterPages;
pub use node::{NodePageSource, NodePages};

/// Largest number of connections. Further connections are closed.
const MAX_CONNECTIONS: usize = 256;
/// Largest number of connections from one address, so that one client does not lock out others, such as a supervisor.
const MAX_PER_PEER: usize = 32;
/// Largest size of the head of a request.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Time within which a client has to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a connection is closed.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Content security policy: the page loads content from this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// An answer to a request.
#[derive(Debug)]
pub struct HttpPage {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
}

impl HttpPage {
    fn ok(content_type: &'static str, body: impl Into<Bytes>) -> HttpPage {
        HttpPage { status: StatusCode::OK, content_type, body: body.into() }
    }

    fn text(status: StatusCode, text: impl Into<String>) -> HttpPage {
        let body = Bytes::from(text.into() + "\n");
        HttpPage { status, content_type: "text/plain; charset=utf-8", body }
    }

    fn json(value: &impl serde::Serialize) -> HttpPage {
        match serde_json::to_vec(value) {
            Ok(body) => HttpPage::ok("application/json", body),
            Err(error) => HttpPage::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    /// Returns the answer for supervisors and probes: `ok`, or status 503 with the reason.
    fn health(health: Result<(), String>) -> HttpPage {
        match health {
            Ok(()) => HttpPage::text(StatusCode::OK, "ok"),
            Err(why) => HttpPage::text(StatusCode::SERVICE_UNAVAILABLE, why),
        }
    }
}

/// The pages of a server.
pub trait HttpPages: Send + Sync + 'static {
    /// Returns the answer to GET of a path; `None` if there is no such page.
    fn get(&self, path: &str) -> impl Future<Output = Option<HttpPage>> + Send;
}

/// A server of pages. Dropping the value ends it.
#[derive(Debug)]
pub struct HttpServer {
    addr: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl HttpServer {
    /// Serves `pages` at an address, on a thread of the runtime. Only requests that name the host of `addr` or of
    /// `advertised` are answered.
    pub fn serve(
        runtime: &Runtime,
        addr: &str,
        advertised: Option<&str>,
        pages: impl HttpPages,
    ) -> Result<HttpServer, Failure> {
        let hosts = AllowedHosts::of([addr].into_iter().chain(advertised));
        let failed = |error: std::io::Error| {
            Failure::operation(format!("cannot listen at {addr} (--http): {error}"))
        };
        let listener = runtime.block_on(TcpListener::bind(addr)).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        tracing::info!(%addr, "metrics and status by HTTP");
        let accepting = runtime.handle().spawn(accept(listener, Arc::new((hosts, pages))));
        Ok(HttpServer { addr, accepting })
    }

    /// Returns the address at which the server listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

async fn accept(listener: TcpListener, pages: Arc<(AllowedHosts, impl HttpPages)>) {
    let places = Arc::<Mutex<HttpConnectionCounts>>::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Probably the process had no free file descriptor, and will have some later.
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(place) = HttpPermit::take(&places, peer.ip()) else { continue };
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            // A failed connection has no effect on others.
            let _ended = timeout(CONNECTION_TIMEOUT, connection(stream, pages)).await;
            drop(place);
        });
    }
}

/// Number of open HTTP connections from each address.
#[derive(Debug, Default)]
struct HttpConnectionCounts(HashMap<IpAddr, usize>);

/// The permission for one connection. It is held while the connection lasts.
#[derive(Debug)]
struct HttpPermit(Arc<Mutex<HttpConnectionCounts>>, IpAddr);

impl HttpPermit {
    fn take(places: &Arc<Mutex<HttpConnectionCounts>>, peer: IpAddr) -> Option<HttpPermit> {
        let mut taken = places.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.0.values().sum();
        let own = taken.0.entry(peer).or_default();
        let is_free = all < MAX_CONNECTIONS && *own < MAX_PER_PEER;
        *own += usize::from(is_free);
        taken.0.retain(|_, connections| *connections > 0);
        is_free.then(|| HttpPermit(Arc::clone(places), peer))
    }
}

impl Drop for HttpPermit {
    fn drop(&mut self) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = taken.0.get_mut(&self.1) {
            *connections -= 1;
        }
        taken.0.retain(|_, connections| *connections > 0);
    }
}

async fn connection(
    stream: TcpStream,
    pages: Arc<(AllowedHosts, impl HttpPages)>,
) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: Request<Incoming>| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&pages.0, &pages.1, &request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(
    hosts: &AllowedHosts,
    pages: &impl HttpPages,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let page = if !hosts.is_allowed(request) {
        Some(HttpPage::text(
            StatusCode::MISDIRECTED_REQUEST,
            "this is another host: ask for its address, or name it as --http or --advertise does",
        ))
    } else if is_read {
        pages.get(request.uri().path()).await
    } else {
        Some(HttpPage::text(StatusCode::METHOD_NOT_ALLOWED, "there is nothing to change here"))
    };
    let page =
        page.unwrap_or_else(|| HttpPage::text(StatusCode::NOT_FOUND, "there is no such page"));
    let mut response = Response::new(Full::new(page.body));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if !is_read {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_to_others_and_all_together_are_bounded() {
        let places = Arc::<Mutex<HttpConnectionCounts>>::default();
        let peer = |n: u8| IpAddr::from([10, 0, 0, n]);
        let take = |n: u8| HttpPermit::take(&places, peer(n));
        let first: Vec<HttpPermit> = (0..MAX_PER_PEER).map(|_| take(1).unwrap()).collect();
        assert!(take(1).is_none());
        let others: Vec<Option<HttpPermit>> =
            (2..20).flat_map(|n| [n; MAX_PER_PEER]).map(take).collect();
        assert_eq!(first.len() + others.iter().flatten().count(), MAX_CONNECTIONS);
        assert!(take(100).is_none());
        drop(first);
        assert!(take(100).is_some() && take(1).is_some());
        drop(others);
        assert!(places.lock().unwrap().0.is_empty());
    }
}
