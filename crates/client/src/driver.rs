//! The thread that runs the async calls of a client.
//!
//! A driver has one session and runs many operations on it at once. When that session is lost, the client starts
//! another driver for further operations, and the old driver completes those that it has. A submitted operation is
//! driven to its end even if its caller no longer waits, because other clients could not tell an operation that is
//! dropped half-way from a crash in the middle of a write.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread::JoinHandle;

use fusee_core::FailedWriteOutcome;
use fusee_fabric::fork::OriginProcess;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use crate::context::ClientContext;
use crate::error::{ErrorFamily, WriteError};
use crate::logic::SessionGate;
use crate::session::Session;

/// Limit of operations that a driver runs at one time. Further operations wait in the driver's queue.
const MAX_RUNNING: usize = 256;

type OperationFuture = Pin<Box<dyn Future<Output = ()>>>;
type SubmittedOperation = Box<dyn FnOnce(Rc<Session>) -> OperationFuture + Send>;

/// A running driver. Its drop waits until all submitted operations have ended.
pub(crate) struct AsyncDriver {
    jobs: Option<mpsc::UnboundedSender<SubmittedOperation>>,
    thread: Option<JoinHandle<()>>,
    state: Arc<AsyncDriverState>,
}

#[derive(Default)]
struct AsyncDriverState {
    /// Whether the session is lost. If it is, submitted operations go on, but new operations need another driver.
    lost: AtomicBool,
    /// The gate of the driver's session, as soon as the session is open.
    gate: OnceLock<Arc<SessionGate>>,
    /// The reason why the driver's session could not be opened.
    failure: OnceLock<String>,
}

impl AsyncDriverState {
    fn no_session(&self) -> WriteError {
        let ended = || "the client's driver thread has ended".into();
        WriteError::NoSession { reason: self.failure.get().cloned().unwrap_or_else(ended) }
    }
}

impl AsyncDriver {
    /// Starts a driver. The driver's thread opens the session, because the caller is possibly an async thread, which
    /// must not block.
    pub fn start(shared: &Arc<ClientContext>) -> io::Result<AsyncDriver> {
        let shared = shared.clone();
        let state = Arc::<AsyncDriverState>::default();
        let (jobs, queue) = mpsc::unbounded_channel();
        let ours = state.clone();
        let thread = std::thread::Builder::new().name("fusee-driver".into()).spawn(move || {
            match Session::open(&shared, None) {
                Ok(session) => {
                    ours.gate.get_or_init(|| session.gate().clone());
                    serve(&shared, session, queue);
                }
                Err(error) => {
                    // The reason is set before the queue is dropped. Dropping the queue drops the submitted operations,
                    // which then report this reason.
                    ours.failure.get_or_init(|| error.to_string());
                    ours.lost.store(true, Ordering::Relaxed);
                    drop(queue);
                }
            }
        })?;
        Ok(AsyncDriver { jobs: Some(jobs), thread: Some(thread), state })
    }

    /// Returns whether the driver takes no new operations, so that they need another driver.
    pub fn is_over(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let expelled = || self.state.gate.get().is_some_and(|gate| gate.is_expelled());
        // Relaxed suffices: a call that does not see the flag yet goes to this driver, which fails the call or opens
        // another session for it.
        ended || self.state.lost.load(Ordering::Relaxed) || expelled()
    }

    /// Lets the driver complete the submitted operations, without waiting for them.
    pub fn detach(mut self) {
        drop(self.thread.take());
    }

    /// Submits an operation immediately. The returned future waits for the operation's result.
    pub fn submit<R: Send + 'static, E: ErrorFamily + Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Session) -> Result<R, E> + Send + 'static,
    ) -> impl Future<Output = Result<R, E>> + Send + 'static {
        let (sender, receiver) = oneshot::channel();
        let state = self.state.clone();
        #[cfg(feature = "telemetry")]
        let caller = tracing::Span::current();
        let job: SubmittedOperation = Box::new(move |session| {
            let operate = async move {
                let result = operation(&session).await;
                if session.is_lost() {
                    state.lost.store(true, Ordering::Relaxed);
                }
                drop(sender.send(result));
            };
            // The caller's span becomes the parent of the operation's span, which is opened on another thread.
            #[cfg(feature = "telemetry")]
            let operate = tracing::Instrument::instrument(operate, caller);
            Box::pin(operate)
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
        let state = self.state.clone();
        let origin = OriginProcess::here();
        let mut receiver = receiver;
        poll_fn(move |context| {
            if origin.is_here() {
                let answer = Pin::new(&mut receiver).poll(context);
                answer
                    .map(|answer| answer.unwrap_or_else(|_| Err(E::from_store(state.no_session()))))
            } else {
                // This process is a forked child. The operation goes on in the parent, so its outcome is unknown here.
                let outcome = FailedWriteOutcome::Unknown;
                Poll::Ready(Err(E::from_store(WriteError::Forked { outcome })))
            }
        })
    }
}

impl Drop for AsyncDriver {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs the submitted operations until all senders are dropped.
fn serve(
    shared: &Arc<ClientContext>,
    session: Session,
    mut queue: mpsc::UnboundedReceiver<SubmittedOperation>,
) {
    let mut session = Rc::new(session);
    let mut first = None;
    loop {
        let end = session.block_on(run(&session, first, &mut queue));
        // A lost session is dropped at once, because other sessions possibly wait for writes that it left half-way.
        drop(session);
        if matches!(end, SessionEndReason::Queue) {
            return;
        }
        // New calls use another driver by now. This driver still serves calls that chose it before its session was
        // lost.
        first = queue.blocking_recv();
        if first.is_none() {
            return;
        }
        match Session::open(shared, None) {
            Ok(another) => session = Rc::new(another),
            Err(error) => return tracing::warn!(%error, "an operation got no session"),
        }
    }
}

/// An event that the loop of [`run`] handles.
enum AsyncDriverEvent {
    Job(SubmittedOperation),
    /// An operation of the session has ended.
    Ended,
    End(SessionEndReason),
}

/// The reason why a session's work ends.
#[derive(Clone, Copy)]
enum SessionEndReason {
    /// All senders of operations have been dropped.
    Queue,
    /// The session is lost: it cannot be used any more.
    Session,
}

async fn run(
    session: &Rc<Session>,
    first: Option<SubmittedOperation>,
    queue: &mut mpsc::UnboundedReceiver<SubmittedOperation>,
) -> SessionEndReason {
    let mut running = FuturesUnordered::new();
    running.extend(first.map(|job| job(session.clone())));
    let end = loop {
        let next = poll_fn(|context| {
            // The stream is polled only while operations run, because an empty stream would report its end at once.
            if !running.is_empty() && running.poll_next_unpin(context).is_ready() {
                return Poll::Ready(AsyncDriverEvent::Ended);
            }
            if running.len() < MAX_RUNNING
                && let Poll::Ready(job) = queue.poll_recv(context)
            {
                return Poll::Ready(job.map_or(
                    AsyncDriverEvent::End(SessionEndReason::Queue),
                    AsyncDriverEvent::Job,
                ));
            }
            // Everything that expels the session also wakes its thread, which polls this function again.
            if running.is_empty() && session.is_lost() {
                Poll::Ready(AsyncDriverEvent::End(SessionEndReason::Session))
            } else {
                Poll::Pending
            }
        });
        match next.await {
            AsyncDriverEvent::Job(job) => running.push(job(session.clone())),
            AsyncDriverEvent::Ended => {}
            AsyncDriverEvent::End(end) => break end,
        }
    };
    while running.next().await.is_some() {}
    end
}
