//! The thread that runs the async calls of a client over TCP.
//!
//! It has one session and runs many operations on it at once. When that session is lost, another
//! driver takes what comes, and this one ends with what it has. An operation that was submitted is
//! driven to its end whether or not its caller still waits: to drop it half-way would be, for all
//! other clients, a crash in the middle of a write.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as blocking;
use std::task::Poll;
use std::thread::JoinHandle;

use fusee_core::Error;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use crate::error::ConnectError;
use crate::logic::Gate;
use crate::session::Session;
use crate::shared::Shared;

/// Operations that run at once; more wait in the queue.
const MAX_RUNNING: usize = 256;

type Running = Pin<Box<dyn Future<Output = ()>>>;
type Job = Box<dyn FnOnce(Rc<Session>) -> Running + Send>;

/// A running driver. Dropping it waits until all submitted operations have ended.
pub(crate) struct Driver {
    jobs: Option<mpsc::UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The session does not do any more: what was submitted goes on, the rest needs another.
    lost: Arc<AtomicBool>,
    /// The session's.
    gate: Arc<Gate>,
}

impl Driver {
    pub fn start(shared: &Arc<Shared>) -> Result<Driver, ConnectError> {
        let shared = shared.clone();
        let (jobs, queue) = mpsc::unbounded_channel();
        let (started, start) = blocking::sync_channel(1);
        let thread = std::thread::Builder::new().name("fusee-driver".into()).spawn(move || {
            match Session::open(&shared, None) {
                Ok(session) => {
                    let _ = started.send(Ok(session.gate().clone()));
                    serve(&shared, session, queue);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
        let ended = |_| ConnectError::Io(std::io::Error::other("the driver thread ended"));
        let gate = start.recv().map_err(ended)??;
        Ok(Driver { jobs: Some(jobs), thread: Some(thread), lost: Arc::default(), gate })
    }

    /// Whether another driver is needed.
    pub fn is_over(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        // Relaxed: a call that does not see it yet fails as the one before it did.
        ended || self.lost.load(Ordering::Relaxed) || self.gate.is_expelled()
    }

    /// Lets it finish what was submitted, without waiting for it.
    pub fn detach(mut self) {
        drop(self.thread.take());
    }

    /// Hands an operation over. The answer fails only if the driver ends first.
    pub fn submit<R: Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Session) -> Result<R, Error> + Send + 'static,
    ) -> oneshot::Receiver<Result<R, Error>> {
        let (sender, receiver) = oneshot::channel();
        let lost = self.lost.clone();
        let job: Job = Box::new(move |session| {
            Box::pin(async move {
                let result = operation(&session).await;
                if session.is_lost() {
                    lost.store(true, Ordering::Relaxed);
                }
                drop(sender.send(result));
            })
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
        receiver
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs what is submitted.
fn serve(shared: &Arc<Shared>, session: Session, mut queue: mpsc::UnboundedReceiver<Job>) {
    let (mut session, mut first) = (Rc::new(session), None);
    loop {
        let end = session.block_on(run(&session, first, &mut queue));
        // At once: others may wait for what it left half-way.
        drop(session);
        if matches!(end, End::Queue) {
            return;
        }
        // By now others submit to another driver; this is for who had been about to.
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

/// What comes next for a session.
enum Next {
    Job(Job),
    /// An operation has ended.
    Ended,
    End(End),
}

/// Why a session's work ends.
#[derive(Clone, Copy)]
enum End {
    /// Nothing will be submitted any more.
    Queue,
    /// The session is lost.
    Session,
}

async fn run(
    session: &Rc<Session>,
    first: Option<Job>,
    queue: &mut mpsc::UnboundedReceiver<Job>,
) -> End {
    let mut running = FuturesUnordered::new();
    running.extend(first.map(|job| job(session.clone())));
    let end = loop {
        let next = poll_fn(|context| {
            // Without any it would say at once that none is left.
            if !running.is_empty() && running.poll_next_unpin(context).is_ready() {
                return Poll::Ready(Next::Ended);
            }
            if running.len() < MAX_RUNNING
                && let Poll::Ready(job) = queue.poll_recv(context)
            {
                return Poll::Ready(job.map_or(Next::End(End::Queue), Next::Job));
            }
            // Who shuts a session out wakes its thread, and so this.
            match running.is_empty() && session.is_lost() {
                true => Poll::Ready(Next::End(End::Session)),
                false => Poll::Pending,
            }
        });
        match next.await {
            Next::Job(job) => running.push(job(session.clone())),
            Next::Ended => {}
            Next::End(end) => break end,
        }
    };
    while running.next().await.is_some() {}
    end
}
