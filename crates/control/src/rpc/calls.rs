//! The calls over one connection of a client.
//!
//! One task writes the requests and reads the answers. Each call has an id, sends its request, and waits for the answer
//! with the same id. If the connection ends, all its calls fail with [`RpcError::Closed`]. The connection is closed
//! when it and all its calls have been dropped, at the latest [`CLOSING`] later.
//!
//! One request is written at a time, and another one is queued. Further calls keep their requests until there is room.
//! So a peer that reads nothing costs no more memory than the calls that wait for it, until their deadlines. The peer
//! gets at most two requests whose callers have given up.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fusee_auth::FrameCodes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::RpcError;
use super::codec::{AnswerEnvelope, CallFailure, RequestEnvelope, encode, ms_left};
use super::frames::{FrameReader, send};

/// Limit of requests that are queued for writing.
const MAX_UNWRITTEN: usize = 1;
/// The time that the writing of queued messages can take after the connection and all its calls have been dropped.
const CLOSING: Duration = Duration::from_secs(1);

/// An open connection. Clones refer to the same connection.
pub(super) struct ClientConnection<R> {
    calls: Arc<PendingCalls<R>>,
    requests: mpsc::Sender<io::Result<Vec<u8>>>,
    /// Dropping the last clone tells the connection's task to end, even while the task waits for a peer that does not
    /// read.
    used: Arc<oneshot::Sender<Infallible>>,
}

impl<R> Clone for ClientConnection<R> {
    fn clone(&self) -> ClientConnection<R> {
        let ClientConnection { calls, requests, used } = self;
        ClientConnection {
            calls: Arc::clone(calls),
            requests: requests.clone(),
            used: Arc::clone(used),
        }
    }
}

/// The running calls of a connection.
struct PendingCalls<R> {
    /// Host and port of the peer, for error messages.
    addr: String,
    state: Mutex<PendingCallsState<R>>,
}

struct PendingCallsState<R> {
    /// The calls that wait for answers, by their ids; `None` after the end of the connection.
    waiting: Option<HashMap<u64, oneshot::Sender<Result<R, CallFailure>>>>,
    next_id: u64,
    /// The time at which the connection's last call ended.
    idle_since: Instant,
}

impl<R> PendingCalls<R> {
    fn state(&self) -> MutexGuard<'_, PendingCallsState<R>> {
        // A poisoned lock is accepted, because no code that holds the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a call. Returns the sender for the call's outcome, if the call was still waiting.
    fn end(&self, id: u64) -> Option<oneshot::Sender<Result<R, CallFailure>>> {
        let mut state = self.state();
        state.idle_since = Instant::now();
        state.waiting.as_mut()?.remove(&id)
    }
}

/// The calls of a running connection. When this value is dropped, all of them fail.
struct CallsInService<R>(Arc<PendingCalls<R>>);

impl<R> Drop for CallsInService<R> {
    fn drop(&mut self) {
        self.0.state().waiting = None;
    }
}

impl<R: DeserializeOwned + Send + 'static> ClientConnection<R> {
    /// Starts to carry messages over a stream, after the hello. Must be called on the runtime.
    pub(super) fn start(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        codes: Option<FrameCodes>,
        addr: String,
    ) -> ClientConnection<R> {
        let (requests, unwritten) = mpsc::channel(MAX_UNWRITTEN);
        let waiting = Some(HashMap::new());
        let state = PendingCallsState { waiting, next_id: 0, idle_since: Instant::now() };
        let calls = Arc::new(PendingCalls { addr, state: Mutex::new(state) });
        let (used, unused) = oneshot::channel();
        let in_service = CallsInService(Arc::clone(&calls));
        tokio::spawn(async move {
            // The stream is dropped before `in_service`. So the connection is closed before any caller sees its end and
            // connects again.
            let calls = in_service;
            if let Err(error) = carry(stream, codes, unwritten, unused, &calls.0).await {
                tracing::debug!(addr = %calls.0.addr, %error, "control connection broke");
            }
        });
        ClientConnection { calls, requests, used: Arc::new(used) }
    }

    /// Returns whether `other` is a clone of this connection.
    pub(super) fn is(&self, other: &ClientConnection<R>) -> bool {
        Arc::ptr_eq(&self.calls, &other.calls)
    }

    /// Begins a call. Returns `None` if the connection has ended, or has been idle for longer than `longest_idle`, so
    /// that the server is possibly about to close it.
    pub(super) fn begin(&self, longest_idle: Duration) -> Option<PendingCall<R>> {
        let mut state = self.calls.state();
        let id = state.next_id;
        let idle = state.idle_since.elapsed();
        let waiting = state.waiting.as_mut()?;
        if waiting.is_empty() && idle > longest_idle {
            return None;
        }
        let (sender, outcome) = oneshot::channel();
        waiting.insert(id, sender);
        state.next_id += 1;
        Some(PendingCall { connection: self.clone(), id, outcome })
    }
}

/// Writes requests and reads answers until the connection ends.
async fn carry<R: DeserializeOwned>(
    stream: impl AsyncRead + AsyncWrite,
    codes: Option<FrameCodes>,
    requests: mpsc::Receiver<io::Result<Vec<u8>>>,
    unused: oneshot::Receiver<Infallible>,
    calls: &PendingCalls<R>,
) -> io::Result<()> {
    let (input, output) = tokio::io::split(stream);
    let (sent, received) = codes.map(|codes| (codes.sent, codes.received)).unzip();
    let mut frames = FrameReader::new(BufReader::new(input), None, received);
    let receive = async {
        while let Some(AnswerEnvelope { id, outcome }) = frames.next().await? {
            if let Some(call) = calls.end(id) {
                // A call whose future has just been dropped does not receive its outcome.
                let _dropped = call.send(outcome);
            }
        }
        Ok(())
    };
    let closing = async {
        let _dropped = unused.await;
        tokio::time::sleep(CLOSING).await;
        Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read"))
    };
    // Answers that have arrived are taken before an error of a write ends the connection. A peer that answers all the
    // time does not keep the connection open.
    tokio::select! {
        biased;
        ended = closing => ended,
        ended = receive => ended,
        ended = send(output, sent, requests) => ended,
    }
}

/// A running call. Dropping this value gives the call up.
pub(super) struct PendingCall<R> {
    connection: ClientConnection<R>,
    id: u64,
    outcome: oneshot::Receiver<Result<R, CallFailure>>,
}

impl<R> Drop for PendingCall<R> {
    fn drop(&mut self) {
        self.connection.calls.end(self.id);
    }
}

impl<R> PendingCall<R> {
    pub(super) fn connection(&self) -> &ClientConnection<R> {
        &self.connection
    }

    /// Sends the request, and waits for the answer.
    pub(super) async fn answer(
        &mut self,
        request: impl Serialize,
        deadline: Instant,
    ) -> Result<R, RpcError> {
        let id = self.id;
        let ClientConnection { calls, requests, .. } = &self.connection;
        let addr = || calls.addr.clone();
        let answered = async {
            let closed = || RpcError::Closed { addr: addr() };
            let protocol = |what| RpcError::Protocol { addr: addr(), what };
            let place = requests.reserve().await.map_err(|_| closed())?;
            let call = encode(&RequestEnvelope::Call { id, ms_left: ms_left(deadline), request });
            place.send(Ok(call.map_err(|error| protocol(error.to_string()))?));
            let outcome = (&mut self.outcome).await.map_err(|_| closed())?;
            outcome.map_err(|failure| match failure {
                CallFailure::Handler(what) => protocol(what),
                CallFailure::Denied(what) => RpcError::Keys { addr: addr(), what },
            })
        };
        timeout_at(deadline, answered).await.unwrap_or_else(|_| {
            // The server knows the deadline, so this message is not necessary, and is left out if the queue is full.
            let _full = requests.try_send(encode(&RequestEnvelope::<()>::Cancel { id }));
            Err(RpcError::TimedOut { addr: addr() })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf};

    use super::*;
    use crate::rpc::MAX_FRAME_BYTES;

    /// The server's end of a connection.
    struct ServerEnd {
        requests: FrameReader<BufReader<ReadHalf<DuplexStream>>>,
        answers: mpsc::Sender<io::Result<Vec<u8>>>,
    }

    impl ServerEnd {
        /// Returns the id of the next request; `None` if the next message is a cancellation.
        async fn asked(&mut self) -> Option<u64> {
            match self.requests.next::<RequestEnvelope<Vec<u8>>>().await.unwrap().unwrap() {
                RequestEnvelope::Call { id, .. } => Some(id),
                RequestEnvelope::Cancel { .. } => None,
            }
        }

        async fn answer(&self, id: u64, outcome: Result<u32, CallFailure>) {
            self.answers.send(encode(&AnswerEnvelope { id, outcome })).await.unwrap();
        }
    }

    /// The number of written bytes that the connection of these tests keeps until they are read.
    const SOCKET_BYTES: usize = 1 << 10;

    fn connected() -> (ClientConnection<u32>, ServerEnd) {
        let (near, far) = tokio::io::duplex(SOCKET_BYTES);
        let (input, output) = tokio::io::split(far);
        let requests = FrameReader::new(BufReader::new(input), None, None);
        let (answers, unwritten) = mpsc::channel(1);
        tokio::spawn(send(output, None, unwritten));
        let server = ServerEnd { requests, answers };
        (ClientConnection::start(near, None, "there".into()), server)
    }

    fn at_once() -> Instant {
        Instant::now() + Duration::from_millis(5)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn answers_find_their_calls_in_any_order() {
        let (connection, mut server) = connected();
        let mut calls = [(); 3].map(|()| connection.begin(Duration::MAX).unwrap());
        let asks = calls.each_mut().map(|call| call.answer(vec![7u8], soon()));
        let serves = async {
            for _ in 0..3 {
                server.asked().await.unwrap();
            }
            server.answer(1, Ok(10)).await;
            server.answer(99, Ok(1)).await;
            server.answer(0, Err(CallFailure::Denied("no".into()))).await;
            server.answer(2, Err(CallFailure::Handler("ill".into()))).await;
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(asks), serves);
        let addr = || "there".to_owned();
        let denied = RpcError::Keys { addr: addr(), what: "no".into() };
        let failed = RpcError::Protocol { addr: addr(), what: "ill".into() };
        assert_eq!(answers, [Err(denied), Ok(10), Err(failed)]);
    }

    #[tokio::test]
    async fn a_request_that_is_too_long_and_one_without_an_answer_end_only_their_calls() {
        let (connection, mut server) = connected();
        let mut call = connection.begin(Duration::MAX).unwrap();
        let answer = call.answer(vec![0u8; MAX_FRAME_BYTES + 1], soon()).await;
        assert!(matches!(answer, Err(RpcError::Protocol { .. })), "{answer:?}");
        let mut call = connection.begin(Duration::MAX).unwrap();
        let answer = call.answer(vec![7u8], at_once()).await;
        assert_eq!(answer, Err(RpcError::TimedOut { addr: "there".into() }));
        assert_eq!(server.asked().await, Some(1));
        assert_eq!(server.asked().await, None);
        let mut call = connection.begin(Duration::MAX).unwrap();
        let serves = async {
            assert_eq!(server.asked().await, Some(2));
            server.answer(2, Ok(5)).await;
        };
        assert_eq!(tokio::join!(call.answer(vec![7u8], soon()), serves).0, Ok(5));
    }

    #[tokio::test]
    async fn a_connection_is_idle_only_without_calls() {
        let (connection, _server) = connected();
        let call = connection.begin(Duration::MAX);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(connection.begin(Duration::ZERO).is_some());
        drop(call);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(connection.begin(Duration::ZERO).is_none());
    }

    #[tokio::test]
    async fn the_end_of_a_connection_ends_all_its_calls() {
        let (connection, mut server) = connected();
        let count = 3 * MAX_UNWRITTEN;
        let mut calls: Vec<_> =
            (0..count).map(|_| connection.begin(Duration::MAX).unwrap()).collect();
        // Most of these requests fit neither into the socket nor into the queue of unwritten requests.
        let asks = calls.iter_mut().map(|call| call.answer(vec![7u8; 1 << 10], soon()));
        let ends = async {
            server.asked().await.unwrap();
            drop(server);
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(asks), ends);
        let closed = RpcError::Closed { addr: "there".into() };
        assert_eq!(answers, vec![Err(closed); count]);
        assert!(connection.begin(Duration::MAX).is_none());
    }

    #[tokio::test]
    async fn a_connection_that_was_given_up_is_closed_even_if_its_peer_reads_nothing() {
        let (near, mut far) = tokio::io::duplex(SOCKET_BYTES);
        let connection = ClientConnection::<u32>::start(near, None, "there".into());
        let mut call = connection.begin(Duration::MAX).unwrap();
        let answer = call.answer(vec![7u8; 1 << 20], at_once()).await;
        assert_eq!(answer, Err(RpcError::TimedOut { addr: "there".into() }));
        drop((call, connection));
        // The connection's task reads, too: it waits for the rest of a long frame.
        far.write_all(&[0, 0xff, 0xff, 0xff]).await.unwrap();
        let closed = async {
            while far.write_all(&[0]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), closed).await.unwrap();
    }

    /// The peer starts to read after the callers of several requests have given up.
    #[tokio::test]
    async fn few_requests_are_sent_whose_callers_have_given_up() {
        let (connection, mut server) = connected();
        let mut calls: Vec<_> = (0..20).map(|_| connection.begin(Duration::MAX).unwrap()).collect();
        let asks = calls.iter_mut().map(|call| call.answer(vec![7u8; 1 << 11], at_once()));
        let answers = futures_util::future::join_all(asks).await;
        assert!(answers.iter().all(|answer| matches!(answer, Err(RpcError::TimedOut { .. }))));
        let mut call = connection.begin(Duration::MAX).unwrap();
        let serves = async {
            let mut late = 0;
            loop {
                match server.asked().await {
                    Some(20) => break server.answer(20, Ok(5)).await,
                    Some(_) => late += 1,
                    None => {}
                }
            }
            assert!(late <= 1 + MAX_UNWRITTEN, "{late} late requests");
        };
        assert_eq!(tokio::join!(call.answer(vec![7u8], soon()), serves).0, Ok(5));
    }

    #[tokio::test]
    async fn a_connection_that_was_given_up_is_closed_even_if_its_peer_answers_all_the_time() {
        // One write takes longer to read than one poll of the connection's task may.
        let (near, mut far) = tokio::io::duplex(4 << 20);
        let connection = ClientConnection::<u32>::start(near, None, "there".into());
        drop(connection);
        let answer = encode(&AnswerEnvelope { id: 99, outcome: Ok::<u32, CallFailure>(5) });
        let answer = answer.unwrap();
        let frame = [&(answer.len() as u32).to_be_bytes(), &answer[..]].concat();
        let frames = frame.repeat(1 << 20);
        let answering = async { while far.write_all(&frames).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(60), answering).await.unwrap();
    }

    /// A stream whose writes fail, and whose reads give these bytes. Further reads wait, or panic.
    struct BrokenStream {
        bytes: io::Cursor<Vec<u8>>,
        panics: bool,
    }

    impl AsyncRead for BrokenStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.bytes.position() == self.bytes.get_ref().len() as u64 {
                assert!(!self.panics, "asked to");
                return Poll::Pending;
            }
            Pin::new(&mut self.bytes).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for BrokenStream {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn answers_that_have_arrived_count_although_a_write_fails() {
        for _ in 0..100 {
            let answer = encode(&AnswerEnvelope { id: 0, outcome: Ok::<u32, CallFailure>(5) });
            let answer = answer.unwrap();
            let frame = [&(answer.len() as u32).to_be_bytes(), &answer[..]].concat();
            let stream = BrokenStream { bytes: io::Cursor::new(frame), panics: false };
            let connection = ClientConnection::<u32>::start(stream, None, "there".into());
            let mut call = connection.begin(Duration::MAX).unwrap();
            // The request is queued before the task of the connection runs for the first time.
            assert_eq!(call.answer(vec![7u8], soon()).await, Ok(5));
            tokio::task::yield_now().await;
            assert!(connection.begin(Duration::MAX).is_none());
        }
    }

    #[tokio::test]
    async fn a_panic_of_a_connection_ends_its_calls() {
        let stream = BrokenStream { bytes: io::Cursor::default(), panics: true };
        let connection = ClientConnection::<u32>::start(stream, None, "there".into());
        let mut call = connection.begin(Duration::MAX).unwrap();
        let answer = call.answer(vec![7u8], soon()).await;
        assert_eq!(answer, Err(RpcError::Closed { addr: "there".into() }));
        assert!(connection.begin(Duration::MAX).is_none());
    }

    #[tokio::test]
    async fn a_connection_without_calls_and_handles_is_closed() {
        let (connection, mut server) = connected();
        let mut call = connection.begin(Duration::MAX).unwrap();
        drop(connection);
        let serves = async {
            assert_eq!(server.asked().await, Some(0));
            server.answer(0, Ok(5)).await;
        };
        assert_eq!(tokio::join!(call.answer(vec![7u8], soon()), serves).0, Ok(5));
        drop(call);
        assert!(server.requests.next::<RequestEnvelope<Vec<u8>>>().await.unwrap().is_none());
    }
}
