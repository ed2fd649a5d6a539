//! The client threads of a contestant, which wait for work.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::{Contestant, Request};
use crate::Failure;

/// A part of the requests.
struct Job {
    requests: Arc<Vec<Request>>,
    part: Range<usize>,
    depth: usize,
}

struct Thread {
    jobs: Option<Sender<Job>>,
    done: Receiver<Result<(), Failure>>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.jobs = None;
        // If it panicked, it said so, and whoever waited for it failed.
        let _ended = self.handle.take().map(JoinHandle::join);
    }
}

/// A contestant with threads, each with a way of its own into the store.
pub struct Crew {
    threads: Vec<Thread>,
    // Ends after them.
    pub contestant: Arc<dyn Contestant>,
}

impl Crew {
    pub fn new(contestant: Arc<dyn Contestant>, threads: usize) -> Result<Crew, Failure> {
        let mut crew = Crew { threads: Vec::new(), contestant };
        for _ in 0..threads {
            let (jobs, work) = channel();
            let (report, done) = channel();
            let contestant = crew.contestant.clone();
            let handle = std::thread::spawn(move || serve(&*contestant, &work, &report));
            let thread = Thread { jobs: Some(jobs), done, handle: Some(handle) };
            thread.done.recv().unwrap_or(Err(Failure::Panicked))?;
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    /// Executes the requests: so many threads each a part, with so many in flight.
    pub fn run(
        &self,
        requests: &Arc<Vec<Request>>,
        threads: usize,
        depth: usize,
    ) -> Result<(), Failure> {
        let threads = &self.threads[..threads];
        let at = |number: usize| requests.len() * number / threads.len();
        for (number, thread) in threads.iter().enumerate() {
            let part = at(number)..at(number + 1);
            let job = Job { requests: requests.clone(), part, depth };
            let sent = thread.jobs.as_ref().map(|jobs| jobs.send(job));
            sent.and_then(Result::ok).ok_or(Failure::Panicked)?;
        }
        let done =
            threads.iter().map(|thread| thread.done.recv().unwrap_or(Err(Failure::Panicked)));
        done.collect::<Vec<_>>().into_iter().collect()
    }
}

fn serve(contestant: &dyn Contestant, work: &Receiver<Job>, done: &Sender<Result<(), Failure>>) {
    // Nobody hears it only if nobody waits for it.
    let tell = |result| done.send(result).unwrap_or_default();
    let mut client = match contestant.client() {
        Ok(client) => client,
        Err(failure) => return tell(Err(failure)),
    };
    tell(Ok(()));
    for Job { requests, part, depth } in work {
        tell(client.run(&requests[part], depth));
    }
}
