//! A cache of job results, with async calls under tokio: all tasks that need the result of a job get the same one, even
//! if several of them have computed it.
//!
//! `cargo run -p fusee-client --example job_results`

mod support;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fusee_client::{Client, WriteError};

const TASKS: u32 = 400;
const JOBS: u32 = 40;

/// The results of jobs. The key of a result is the name of its job.
struct JobResults {
    client: Client,
    computed: AtomicU32,
}

impl JobResults {
    /// Returns the result of a job, and computes it if the store does not have it.
    async fn result(&self, job: u32) -> Result<u64, fusee_client::Error> {
        let key = format!("job/{job}");
        if let Some(result) = self.client.get(key.as_bytes()).await? {
            return Ok(number(&result));
        }
        let result = self.compute(job).await;
        match self.client.insert(key.as_bytes(), &result.to_le_bytes()).await {
            Ok(()) => Ok(result),
            // Another task, or another process, has stored its result first, so that result is used.
            Err(WriteError::AlreadyExists) => {
                let theirs = self.client.get(key.as_bytes()).await?;
                Ok(theirs.map_or(result, |theirs| number(&theirs)))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn compute(&self, job: u32) -> u64 {
        self.computed.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        (1..=u64::from(job)).sum()
    }
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let results = Arc::new(JobResults { client: support::client()?, computed: AtomicU32::new(0) });
    // The calls of all tasks run concurrently on the client's driver thread, so no worker thread of tokio is blocked.
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let results = results.clone();
            tokio::spawn(async move { results.result(task % JOBS).await })
        })
        .collect();
    for (task, result) in (0..TASKS).zip(tasks) {
        let job = u64::from(task % JOBS);
        assert_eq!(result.await??, job * (job + 1) / 2);
    }
    let computed = results.computed.load(Ordering::Relaxed);
    println!("{TASKS} tasks needed {JOBS} results, which were computed {computed} times");
    Ok(())
}
