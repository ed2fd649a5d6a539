//! The requests of one connection of a server.
//!
//! One task reads the requests and writes the answers. Each request takes one of [`MAX_REQUESTS_PER_CONNECTION`] places
//! until its answer is being written. While no place is free, nothing is read, so the number of answers that a peer
//! does not read is bounded, too. So are their bytes ([`RpcConnection::hold_answer`]).
//!
//! ```text
//! place free → request read → handler runs ── ends ──→ answer waits → answer written, place free
//!                               └── deadline, cancelled, or connection ended: place free; the handler runs on
//! ```
//!
//! A handler that has started runs to its end, so the state machines behind it never see half of a request.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use fusee_auth::{FrameCodes, PeerKind};
use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::codec::{AnswerEnvelope, CallFailure, RequestEnvelope, deadline, encode};
use super::connections::{RpcAnswerMemory, RpcConnection, RpcRequestMemory};
use super::frames::{FrameReader, send};
use super::times::RequestTimes;
use super::{Caller, MAX_REQUESTS_PER_CONNECTION, Service, Stamped};

/// The reply that a handler is computing.
type FutureReply<S> = BoxFuture<'static, <S as Service>::Reply>;

/// The handler of a service, and the times that its answers take.
pub(super) struct RequestHandler<S: Service> {
    handle: Box<dyn Fn(Caller, S::Request) -> FutureReply<S> + Send + Sync>,
    times: RequestTimes,
}

impl<S: Service> RequestHandler<S> {
    pub(super) fn new<F>(
        handler: impl Fn(Caller, S::Request) -> F + Send + Sync + 'static,
    ) -> Arc<RequestHandler<S>>
    where
        F: Future<Output = S::Reply> + Send + 'static,
    {
        let handle = Box::new(move |caller, request| -> FutureReply<S> {
            Box::pin(handler(caller, request))
        });
        Arc::new(RequestHandler { handle, times: RequestTimes::default() })
    }

    pub(super) fn times(&self) -> RequestTimes {
        self.times.clone()
    }

    /// Starts to handle a request. The returned future waits for the outcome; the handler runs to its end even if that
    /// future is dropped. `held` is dropped when the handler has ended.
    fn start(
        &self,
        caller: Caller,
        request: S::Request,
        held: Option<RpcRequestMemory>,
    ) -> impl Future<Output = Result<S::Reply, CallFailure>> + use<S> {
        let name = S::name(&request);
        let times = self.times();
        let begun = Instant::now();
        let handling = (self.handle)(caller, request);
        let running = tokio::spawn(async move {
            let reply = handling.await;
            times.add(name, begun.elapsed());
            drop(held);
            reply
        });
        async move {
            running.await.map_err(|error| {
                tracing::error!(%error, "a control request's handler failed");
                CallFailure::Handler("the handler failed; see its log".into())
            })
        }
    }
}

/// Answers the requests over a stream, after the hello, until the connection ends. The error is the reason for that.
pub(super) async fn answer<S: Service>(
    stream: impl AsyncRead + AsyncWrite,
    codes: Option<FrameCodes>,
    handler: Arc<RequestHandler<S>>,
    from: Caller,
    guest: Option<RpcConnection>,
) -> io::Result<()> {
    let (input, output) = tokio::io::split(stream);
    let (sent, received) = codes.map(|codes| (codes.sent, codes.received)).unzip();
    let frames = FrameReader::new(BufReader::new(input), guest.clone(), received);
    let (answers, finished) =
        mpsc::channel::<io::Result<CountedAnswer>>(MAX_REQUESTS_PER_CONNECTION);
    let requests = RequestReader { handler, from, guest, answers, underway: HashMap::new() };
    tokio::select! {
        ended = requests.receive(frames) => ended,
        ended = send(output, sent, finished) => ended,
    }
}

/// An encoded answer, and its part of the memory that unread answers can take.
struct CountedAnswer {
    bytes: Vec<u8>,
    _held: Option<RpcAnswerMemory>,
}

impl AsRef<[u8]> for CountedAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The reserved place in the queue of answers for one request's answer.
struct AnswerPlace {
    /// The id of the request.
    id: u64,
    queue: mpsc::OwnedPermit<io::Result<CountedAnswer>>,
    guest: Option<RpcConnection>,
}

impl AnswerPlace {
    /// Queues the outcome of the request. If the connection's unread answers take too much memory, it ends instead.
    fn send(self, outcome: Result<impl Serialize, CallFailure>) {
        let AnswerPlace { id, queue, guest } = self;
        let encoded = encode(&AnswerEnvelope { id, outcome }).or_else(|error| {
            // An answer that is too long ends its call, not the connection.
            tracing::error!(%error, "the answer to a control request cannot be sent");
            let failure = CallFailure::Handler(error.to_string());
            encode(&AnswerEnvelope { id, outcome: Err::<(), CallFailure>(failure) })
        });
        let counted = encoded.and_then(|bytes| {
            let held = guest.map(|guest| guest.hold_answer(bytes.len())).transpose()?;
            Ok(CountedAnswer { bytes, _held: held })
        });
        drop(queue.send(counted));
    }
}

/// The receiving side of a server's connection, which starts the handlers of requests.
struct RequestReader<S: Service> {
    handler: Arc<RequestHandler<S>>,
    from: Caller,
    /// The server's entry of the connection; `None` for a connection inside the process.
    guest: Option<RpcConnection>,
    /// The queue of answers. Its capacity limits the number of requests that the connection handles at a time.
    answers: mpsc::Sender<io::Result<CountedAnswer>>,
    /// The requests that are not answered yet, and some that have ended, by their ids. Dropping a request's sender
    /// makes the request give up its place.
    underway: HashMap<u64, oneshot::Sender<Infallible>>,
}

impl<S: Service> RequestReader<S> {
    async fn receive(
        mut self,
        mut frames: FrameReader<impl AsyncBufRead + Unpin>,
    ) -> io::Result<()> {
        // The sending half ends only with an error, which it reports itself.
        while let Ok(place) = self.answers.clone().reserve_owned().await {
            match frames.next().await? {
                Some(RequestEnvelope::Call { id, ms_left, request }) => {
                    let place = AnswerPlace { id, queue: place, guest: self.guest.clone() };
                    self.start(id, deadline(ms_left), request, place)?;
                }
                Some(RequestEnvelope::Cancel { id }) => drop(self.underway.remove(&id)),
                None => break,
            }
            // The frames of requests that run are counted elsewhere now. No other frame takes memory any more.
            self.guest.iter().for_each(RpcConnection::end_frame);
        }
        // The connection ends now; otherwise it would end only when the last answer is sent, which can take long.
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Starts to handle a request that has arrived. Fails if the server has no room for it.
    fn start(
        &mut self,
        id: u64,
        deadline: Instant,
        request: Stamped<S::Request>,
        place: AnswerPlace,
    ) -> io::Result<()> {
        if self.underway.len() >= 2 * MAX_REQUESTS_PER_CONNECTION {
            self.underway.retain(|_, request| !request.is_closed());
        }
        if self.underway.get(&id).is_some_and(|request| !request.is_closed()) {
            // A second request with a running request's id is ignored, because two answers would have that id.
            return Ok(());
        }
        let (asking, held) =
            self.guest.as_ref().map(RpcConnection::begin_request).transpose()?.unzip();
        let Stamped { cluster, request } = request;
        let needs = S::required_peer(&request);
        if self.from.who.is_some_and(|who| !who.has_rights_of(needs)) {
            place.send(Err::<S::Reply, _>(denied(needs)));
            return Ok(());
        }
        let handling = self.handler.start(Caller { cluster, ..self.from }, request, held.flatten());
        let (wanted, unwanted) = oneshot::channel();
        self.underway.insert(id, wanted);
        tokio::spawn(async move {
            // The connection is counted as busy until the answer is ready, or not wanted any more.
            let _asking = asking;
            tokio::select! {
                outcome = handling => place.send(outcome),
                _ = unwanted => {}
                () = sleep_until(deadline) => {}
            }
        });
        Ok(())
    }
}

/// Returns the failure of a request whose sender lacks the key that the request needs.
fn denied(needs: PeerKind) -> CallFailure {
    CallFailure::Denied(format!("the request needs the secret's key for `{needs}`, or the secret"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{DuplexStream, ReadHalf};

    use super::*;
    use crate::node::{NodeReply, NodeRequest};
    use crate::rpc::NodeService;

    /// A client's end of a connection. Its server answers `Usage` requests, and never answers any other.
    struct ClientEnd {
        requests: mpsc::Sender<io::Result<Vec<u8>>>,
        answers: FrameReader<BufReader<ReadHalf<DuplexStream>>>,
        handled: Arc<AtomicUsize>,
    }

    impl ClientEnd {
        fn start() -> ClientEnd {
            let (near, far) = tokio::io::duplex(1 << 10);
            let (input, output) = tokio::io::split(near);
            let handled = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&handled);
            let handler = RequestHandler::<NodeService>::new(move |_, request| {
                count.fetch_add(1, Ordering::Relaxed);
                async move {
                    match request {
                        NodeRequest::Usage => NodeReply::Done,
                        _ => std::future::pending().await,
                    }
                }
            });
            tokio::spawn(answer(far, None, handler, Caller::default(), None));
            let (requests, unwritten) = mpsc::channel(1);
            tokio::spawn(send(output, None, unwritten));
            let answers = FrameReader::new(BufReader::new(input), None, None);
            ClientEnd { requests, answers, handled }
        }

        async fn send(&self, message: RequestEnvelope<Stamped<NodeRequest>>) {
            self.requests.send(encode(&message)).await.unwrap();
        }

        async fn call(&self, id: u64, ms_left: u32, request: NodeRequest) {
            self.send(RequestEnvelope::Call {
                id,
                ms_left,
                request: Stamped { cluster: None, request },
            })
            .await;
        }

        /// Waits for the next answer, and returns the id of its call.
        async fn answered(&mut self) -> u64 {
            let answer: Option<AnswerEnvelope<NodeReply>> = self.answers.next().await.unwrap();
            answer.unwrap().id
        }
    }

    const LONG: u32 = 60_000;
    const MANY: u64 = 3 * MAX_REQUESTS_PER_CONNECTION as u64;

    #[tokio::test]
    async fn cancelled_requests_give_up_their_places() {
        let mut client = ClientEnd::start();
        for id in 0..MANY {
            client.call(id, LONG, NodeRequest::Describe).await;
            client.send(RequestEnvelope::Cancel { id }).await;
        }
        client.call(MANY, LONG, NodeRequest::Usage).await;
        assert_eq!(client.answered().await, MANY);
    }

    #[tokio::test]
    async fn requests_give_up_their_places_at_their_deadlines_and_are_begun_even_so() {
        let mut client = ClientEnd::start();
        for id in 0..MANY {
            client.call(id, (id % 3) as u32, NodeRequest::Describe).await;
        }
        client.call(MANY, LONG, NodeRequest::Usage).await;
        assert_eq!(client.answered().await, MANY);
        assert_eq!(client.handled.load(Ordering::Relaxed), MANY as usize + 1);
    }

    #[tokio::test]
    async fn a_request_with_the_id_of_another_one_is_ignored() {
        let mut client = ClientEnd::start();
        client.call(7, LONG, NodeRequest::Describe).await;
        client.call(7, LONG, NodeRequest::Usage).await;
        client.call(8, LONG, NodeRequest::Usage).await;
        assert_eq!(client.answered().await, 8);
        assert_eq!(client.handled.load(Ordering::Relaxed), 2);
        // The id of an answered request can be used again.
        client.call(8, LONG, NodeRequest::Usage).await;
        assert_eq!(client.answered().await, 8);
    }
}
