//! The survivor: a thread with a session that writes every key once when it is told to.
//!
//! All writes of a pass run concurrently, so that a write that has to wait for a dead client does not delay other
//! writes. A pass that does not end in time shows that a key is blocked.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_client::{BlockingClient, OpKind, Session, WriteError};
use futures_util::future::join_all;

use crate::tally::OperationTally;
use crate::value::ValueOrigin;
use crate::verify::{Mismatch, self_check};
use fusee_workload::key_bytes;

/// The writer number of the survivor.
pub const SURVIVOR: u64 = 0;
/// A time limit longer than a blocked write waits before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

enum SurvivorOrder {
    /// Insert every key.
    Load,
    /// Write every key.
    Pass,
    /// Read every key. One key is allowed to hold a value of this writer.
    Check { dead: u64 },
}

/// The result of a pass.
#[derive(Debug, Default)]
pub struct SurvivorPassResult {
    /// The time at which the last write ended.
    pub last: Option<Instant>,
    /// Errors and wrong values.
    pub tally: OperationTally,
}

/// The handle of the thread.
pub struct SurvivorThread {
    orders: Option<Sender<SurvivorOrder>>,
    done: Receiver<Result<SurvivorPassResult, Failure>>,
    thread: Option<JoinHandle<()>>,
}

impl SurvivorThread {
    /// Starts the thread.
    pub fn start(client: BlockingClient, keys: u64, value_bytes: usize) -> SurvivorThread {
        let (orders, ordered) = channel();
        let (tell, done) = channel();
        let thread = std::thread::spawn(move || {
            let session = match client.session() {
                Ok(session) => session,
                Err(error) => return drop(tell.send(Err(error.into()))),
            };
            let mut passes = SurvivorSession { session, keys, value_bytes, number: 0 };
            while let Ok(order) = ordered.recv() {
                if tell.send(Ok(passes.carry_out(&order))).is_err() {
                    return;
                }
            }
        });
        SurvivorThread { orders: Some(orders), done, thread: Some(thread) }
    }

    /// Inserts all keys.
    pub fn load(&self) -> Result<SurvivorPassResult, Failure> {
        self.order(SurvivorOrder::Load);
        self.finish()
    }

    /// Begins to write all keys.
    pub fn begin(&self) {
        self.order(SurvivorOrder::Pass);
    }

    /// Reads all keys back: each must hold the value of the last pass. One key is allowed to hold the value that the
    /// dead client had begun to write, because that write can take effect at any time until the client is recovered.
    pub fn check(&self, dead: u64) -> Result<SurvivorPassResult, Failure> {
        self.order(SurvivorOrder::Check { dead });
        self.finish()
    }

    fn order(&self, order: SurvivorOrder) {
        if let Some(orders) = &self.orders {
            // Sending fails only if the thread has ended; then there is no answer either.
            let _ended = orders.send(order);
        }
    }

    /// Returns the result of the pass if the pass ends within this time.
    pub fn finish_within(&self, time: Duration) -> Result<Option<SurvivorPassResult>, Failure> {
        match self.done.recv_timeout(time) {
            Ok(done) => done.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::operation("the thread that writes has ended"))
            }
        }
    }

    /// Waits for the end of the pass, and returns its result.
    pub fn finish(&self) -> Result<SurvivorPassResult, Failure> {
        let done = self.finish_within(PATIENCE)?;
        done.ok_or_else(|| Failure::operation(format!("writes did not end within {PATIENCE:?}")))
    }
}

impl Drop for SurvivorThread {
    fn drop(&mut self) {
        self.orders.take();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, it gave no answer, and that has been reported.
            let _panicked = thread.join();
        }
    }
}

struct SurvivorSession {
    session: Session,
    keys: u64,
    value_bytes: usize,
    /// The number of the last pass, which is the sequence number in all values that the pass writes.
    number: u64,
}

impl SurvivorSession {
    fn carry_out(&mut self, order: &SurvivorOrder) -> SurvivorPassResult {
        match order {
            SurvivorOrder::Load => self.write(OpKind::Insert),
            SurvivorOrder::Pass => {
                self.number += 1;
                self.write(OpKind::Update)
            }
            SurvivorOrder::Check { dead } => self.read(*dead),
        }
    }

    fn write(&self, kind: OpKind) -> SurvivorPassResult {
        let done = RefCell::new(SurvivorPassResult::default());
        let write = async |key: u64| -> Result<(), WriteError> {
            let mut value = vec![0; self.value_bytes];
            ValueOrigin { key, writer: SURVIVOR, sequence: self.number }.encode(&mut value);
            match kind {
                OpKind::Insert => self.session.insert(&key_bytes(key), &value).await,
                _ => self.session.update(&key_bytes(key), &value).await,
            }
        };
        let all = (0..self.keys).map(async |key| {
            let result = write(key).await;
            let mut done = done.borrow_mut();
            done.last = Some(Instant::now());
            if let Err(error) = result {
                done.tally.error(kind, key, &error);
            }
        });
        self.session.block_on(join_all(all));
        done.into_inner()
    }

    fn read(&self, dead: u64) -> SurvivorPassResult {
        let mut done = SurvivorPassResult::default();
        let mut of_the_dead = 0;
        for key in 0..self.keys {
            let found = self.session.block_on(self.session.get(&key_bytes(key)));
            let origin = match found {
                Ok(Some(value)) => self_check(key, &value, self.value_bytes),
                Ok(None) => Err(Mismatch::Missing),
                Err(error) => {
                    done.tally.error(OpKind::Search, key, &WriteError::from(error));
                    continue;
                }
            };
            match origin {
                Ok(ValueOrigin { writer: SURVIVOR, sequence, .. }) if sequence == self.number => {}
                Ok(ValueOrigin { writer, .. }) if writer == dead && of_the_dead == 0 => {
                    of_the_dead = 1
                }
                Ok(ValueOrigin { writer, sequence, .. }) => {
                    done.tally.mismatch(key, &Mismatch::Overwritten { writer, sequence });
                }
                Err(mismatch) => done.tally.mismatch(key, &mismatch),
            }
        }
        done
    }
}
