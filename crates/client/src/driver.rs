//! The thread that runs the async calls of a client over TCP.
//!
//! It has one session and runs many operations on it at once. An operation that was submitted is
//! driven to its end whether or not its caller still waits: to drop it half-way would be, for all
//! other clients, a crash in the middle of a write.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as blocking;
use std::thread::JoinHandle;

use fusee_core::Error;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use crate::error::ConnectError;
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
    /// The session has lost a memory node: what was submitted goes on, the rest needs another.
    lost: Arc<AtomicBool>,
}

impl Driver {
    pub fn start(shared: &Arc<Shared>) -> Result<Driver, ConnectError> {
        let shared = shared.clone();
        let (jobs, queue) = mpsc::unbounded_channel();
        let (started, start) = blocking::sync_channel(1);
        let thread = std::thread::Builder::new().name("fusee-driver".into()).spawn(move || {
            match Session::open(&shared, None) {
                Ok(session) => {
                    let _ = started.send(Ok(()));
                    let session = Rc::new(session);
                    session.block_on(run(session.clone(), queue));
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
        let ended = |_| ConnectError::Io(std::io::Error::other("the driver thread ended"));
        start.recv().map_err(ended)??;
        Ok(Driver { jobs: Some(jobs), thread: Some(thread), lost: Arc::default() })
    }

    /// Whether another driver is needed.
    pub fn is_over(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        // Relaxed: a call that does not see it yet fails as the one before it did.
        ended || self.lost.load(Ordering::Relaxed)
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
                if matches!(result, Err(Error::Unreachable { .. })) {
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

async fn run(session: Rc<Session>, mut queue: mpsc::UnboundedReceiver<Job>) {
    let mut running = FuturesUnordered::new();
    loop {
        if running.len() == MAX_RUNNING {
            running.next().await;
            continue;
        }
        let next = std::pin::pin!(queue.recv());
        let job = if running.is_empty() {
            next.await
        } else {
            match select(next, running.next()).await {
                Either::Left((job, _)) => job,
                Either::Right(_) => continue,
            }
        };
        match job {
            Some(job) => running.push(job(session.clone())),
            None => break,
        }
    }
    while running.next().await.is_some() {}
}
