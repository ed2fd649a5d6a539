//! The client threads of a peer, which wait for jobs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fusee_cli::failure::Failure;

use super::cpu::ProcessThread;
use super::{PeerSession, PeerStore, PeerValues, PipelinedRequest};

/// The part of a round's requests that one thread executes.
struct PeerJob {
    requests: Arc<Vec<PipelinedRequest>>,
    part: Range<usize>,
    depth: usize,
}

struct PeerThread {
    jobs: Option<Sender<PeerJob>>,
    done: Receiver<Result<(), Failure>>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for PeerThread {
    fn drop(&mut self) {
        self.jobs = None;
        // If the thread panicked, it has reported that, and the caller that waited for it has failed.
        let _ended = self.handle.take().map(JoinHandle::join);
    }
}

/// A peer with threads, each with a session of its own.
pub struct PeerWorkerPool {
    threads: Vec<PeerThread>,
    // Keeps the peer alive. Declared last, so that the peer ends after the threads.
    server: Box<dyn Fn() -> Result<Vec<ProcessThread>, Failure>>,
}

impl PeerWorkerPool {
    /// Starts the threads. `values` are the values of the peer's pairs.
    pub fn new<P: PeerStore>(
        peer: P,
        values: PeerValues,
        threads: usize,
    ) -> Result<PeerWorkerPool, Failure> {
        let peer = Arc::new(peer);
        let served = peer.clone();
        let server = Box::new(move || served.server_threads());
        let mut crew = PeerWorkerPool { threads: Vec::new(), server };
        for _ in 0..threads {
            let (jobs, work) = channel();
            let (report, done) = channel();
            let peer = peer.clone();
            let values = values.clone();
            let handle = std::thread::spawn(move || serve(&*peer, &values, &work, &report));
            let thread = PeerThread { jobs: Some(jobs), done, handle: Some(handle) };
            thread.done.recv().unwrap_or_else(|_| Err(panicked()))?;
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    /// Returns the threads of the peer's server.
    pub fn threads_of_server(&self) -> Result<Vec<ProcessThread>, Failure> {
        (self.server)()
    }

    /// Executes the requests in `threads` threads: each executes a part, with `depth` requests in flight.
    pub fn run_requests(
        &self,
        requests: &Arc<Vec<PipelinedRequest>>,
        threads: usize,
        depth: usize,
    ) -> Result<(), Failure> {
        let threads = &self.threads[..threads];
        let at = |number: usize| requests.len() * number / threads.len();
        for (number, thread) in threads.iter().enumerate() {
            let part = at(number)..at(number + 1);
            let job = PeerJob { requests: requests.clone(), part, depth };
            let sent = thread.jobs.as_ref().map(|jobs| jobs.send(job));
            sent.and_then(Result::ok).ok_or_else(panicked)?;
        }
        let done =
            threads.iter().map(|thread| thread.done.recv().unwrap_or_else(|_| Err(panicked())));
        done.collect::<Vec<_>>().into_iter().collect()
    }
}

fn panicked() -> Failure {
    Failure::operation("a thread of a peer ended")
}

fn serve<P: PeerStore>(
    peer: &P,
    values: &PeerValues,
    work: &Receiver<PeerJob>,
    done: &Sender<Result<(), Failure>>,
) {
    // The send fails only if no caller waits for the result.
    let tell = |result| done.send(result).unwrap_or_default();
    let session = match peer.open_session() {
        Ok(session) => session,
        Err(failure) => return tell(Err(failure)),
    };
    tell(Ok(()));
    for PeerJob { requests, part, depth } in work {
        tell(session.run(&requests[part], values, depth));
    }
}
