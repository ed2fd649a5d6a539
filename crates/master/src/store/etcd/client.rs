//! The calls of etcd that the store and the election use, over gRPC.
//!
//! No call has a time limit, and none is repeated: callers know how long an answer is worth waiting for, and which
//! calls can be repeated safely.

use std::sync::Arc;

use fusee_tls::{ReloadedValue, TlsError};
use futures_util::stream::{self, StreamExt};
use prost::Message;
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::ATTEMPT;
use super::messages::*;
use crate::store::address::{StoreAddress, StoreTls};

/// The limit on an answer in bytes: a page of records, one of which is the view.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Reasons why etcd gave no answer to a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EtcdError {
    #[error("no TLS with etcd: {0}")]
    Tls(#[from] TlsError),
    #[error("no connection to etcd: {}", causes(.0))]
    Transport(#[from] tonic::transport::Error),
    /// etcd refused the call, or the connection failed. The text is that of gRPC.
    #[error("gRPC: {0}")]
    Status(#[from] Status),
    #[error("the lease is gone")]
    LeaseGone,
    #[error("etcd ended a stream without an answer")]
    Ended,
}

impl EtcdError {
    /// Returns whether etcd would refuse the request however often it is sent. A refusal because of a lack of room is
    /// one only if the request itself is too large.
    pub fn is_hopeless(&self) -> bool {
        let EtcdError::Status(status) = self else { return false };
        match status.code() {
            Code::InvalidArgument => true,
            Code::ResourceExhausted => status.message().contains("larger than max"),
            _ => false,
        }
    }
}

/// Returns the text of a tonic error with its causes, because its own text alone says nothing.
fn causes(error: &tonic::transport::Error) -> String {
    let below = std::iter::successors(std::error::Error::source(error), |error| error.source());
    below.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}

/// Connections to the members of an etcd cluster. Each connection is made when it is needed, and again after it has
/// broken. Clones share the connections.
#[derive(Clone)]
pub(crate) struct EtcdClient {
    /// Replaced when the files for TLS have changed; calls under way end on the old connections.
    connections: Arc<ReloadedValue<Grpc<Channel>, EtcdError>>,
}

impl EtcdClient {
    /// Makes the client, without contacting etcd yet. Has to be called on a runtime.
    pub fn new(address: &StoreAddress) -> Result<EtcdClient, EtcdError> {
        let files = match &address.tls {
            None => Vec::new(),
            Some(StoreTls { ca, identity: None }) => vec![ca.clone()],
            Some(StoreTls { ca, identity: Some((cert, key)) }) => {
                vec![ca.clone(), cert.clone(), key.clone()]
            }
        };
        let address = address.clone();
        let connections = ReloadedValue::new(files, move |_| connections(&address))?;
        Ok(EtcdClient { connections: Arc::new(connections) })
    }

    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.call("/etcdserverpb.KV/Txn", request).await
    }

    pub async fn grant(&self, ttl_s: i64) -> Result<LeaseGrantResponse, EtcdError> {
        self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl_s }).await
    }

    /// Renews a lease, on a new stream, so that remainders of a broken connection do not matter.
    pub async fn keep_alive(&self, id: i64) -> Result<(), EtcdError> {
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let mut stream = self.stream(path, LeaseKeepAliveRequest { id }).await?;
        let answer: LeaseKeepAliveResponse = stream.next().await?.ok_or(EtcdError::Ended)?;
        if answer.ttl_s > 0 { Ok(()) } else { Err(EtcdError::LeaseGone) }
    }

    /// Ends a lease. Succeeds, too, if the lease has ended already.
    pub async fn revoke(&self, id: i64) -> Result<(), EtcdError> {
        let path = "/etcdserverpb.Lease/LeaseRevoke";
        match self.call(path, LeaseRevokeRequest { id }).await {
            Err(EtcdError::Status(status)) if status.code() == Code::NotFound => Ok(()),
            ended => ended.map(|LeaseRevokeResponse {}| ()),
        }
    }

    /// Waits until a key with the prefix has changed since a revision, or etcd ends the watch.
    pub async fn changed(&self, prefix: String, since: i64) -> Result<(), EtcdError> {
        let create = WatchCreateRequest {
            range_end: end_of(&prefix),
            key: prefix.into_bytes(),
            start_revision: since + 1,
        };
        let request = WatchRequest { create: Some(create) };
        let mut stream = self.stream("/etcdserverpb.Watch/Watch", request).await?;
        while let Some(message) = stream.next().await? {
            let WatchResponse { created, canceled } = message;
            if !created || canceled {
                break;
            }
        }
        Ok(())
    }

    async fn call<Q, A>(&self, path: &str, request: Q) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = path.parse().expect("a path");
        let codec = ProstCodec::<Q, A>::default();
        Ok(self.ready().await?.unary(led(request), path, codec).await?.into_inner())
    }

    /// Opens a stream in each direction, and sends one request.
    async fn stream<Q, A>(&self, path: &str, request: Q) -> Result<EtcdResponseStream<A>, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = path.parse().expect("a path");
        let codec = ProstCodec::<Q, A>::default();
        let (open, ended) = oneshot::channel();
        let requests = led(stream::iter([request]).chain(stream::pending()).take_until(ended));
        let answers = self.ready().await?.streaming(requests, path, codec).await?.into_inner();
        Ok(EtcdResponseStream { answers, _open: open })
    }

    /// Returns a connection that is ready for a request.
    async fn ready(&self) -> Result<Grpc<Channel>, EtcdError> {
        let mut grpc = Grpc::clone(&self.connections.current());
        grpc.ready().await?;
        Ok(grpc)
    }
}

fn connections(address: &StoreAddress) -> Result<Grpc<Channel>, EtcdError> {
    let endpoints = address.endpoints.iter().map(|endpoint| {
        let endpoint = match &address.tls {
            None => Endpoint::from_shared(format!("http://{endpoint}"))?,
            Some(files) => with_tls(Endpoint::from_shared(format!("https://{endpoint}"))?, files)?,
        };
        Ok(endpoint
            .connect_timeout(ATTEMPT)
            .http2_keep_alive_interval(ATTEMPT)
            .keep_alive_timeout(ATTEMPT)
            .keep_alive_while_idle(true))
    });
    let endpoints = endpoints.collect::<Result<Vec<_>, EtcdError>>()?;
    // Each request goes to one of the members. If that member is down, the request fails; the next one can go to
    // another.
    let channel = Channel::balance_list(endpoints.into_iter());
    Ok(Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// The answers on a stream. The direction of the requests is closed together with it. If that closed earlier, etcd
/// would end a watch; if later, the stream would remain for ever.
struct EtcdResponseStream<A> {
    answers: Streaming<A>,
    _open: oneshot::Sender<()>,
}

impl<A> EtcdResponseStream<A> {
    async fn next(&mut self) -> Result<Option<A>, EtcdError> {
        Ok(self.answers.message().await?)
    }
}

/// Makes a request that a member of etcd refuses if it knows no leader: a member of etcd that is cut off from the other
/// members must not be trusted with leases.
fn led<Q>(request: Q) -> Request<Q> {
    let mut request = Request::new(request);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

/// Returns the first key behind all keys that begin with a prefix. The prefix is ASCII.
pub(crate) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("a prefix") += 1;
    end
}

#[cfg(feature = "tls")]
fn with_tls(endpoint: Endpoint, files: &StoreTls) -> Result<Endpoint, EtcdError> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};
    // This finds errors in the files, and names the file; tonic accepts some files that hold nothing.
    match &files.identity {
        None => fusee_tls::TlsSettings::of_client(&files.ca)?,
        Some((cert, key)) => fusee_tls::TlsSettings::of_server(&files.ca, cert, key)?,
    };
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| TlsError::File { path: path.into(), error })
    };
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&files.ca)?));
    let tls = match &files.identity {
        None => tls,
        Some((cert, key)) => tls.identity(Identity::from_pem(read(cert)?, read(key)?)),
    };
    Ok(endpoint.tls_config(tls)?)
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: Endpoint, _: &StoreTls) -> Result<Endpoint, EtcdError> {
    Err(TlsError::NotBuilt.into())
}
