//! Many writes in one call. Each write has its own result and takes effect separately; writes of one key take effect in
//! their order.
//!
//! * Over a network the writes run concurrently. The session sends together what all of them have posted, so that a
//!   phase of many writes takes as long as a phase of one.
//! * Over shared memory, where a phase takes no longer than a function call, the writes run one after the other. The
//!   memory that a group of writes will read is prefetched before the first of them.

use std::collections::{HashMap, VecDeque};

use fusee_core::verbs::Fabric;
use fusee_core::{Error, FailedWriteOutcome};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Environment, SessionLogic};
use crate::writes::BatchWrite;

/// Limit of writes of one call that run concurrently.
const SIDE_BY_SIDE: usize = 64;
/// Limit of the total bytes of the values of concurrent writes, except that a single longer value is allowed.
const SIDE_BY_SIDE_BYTES: usize = 2 << 20;
/// Number of writes whose memory (cache entries, slots and objects) is prefetched together.
const FETCHED_TOGETHER: usize = 16;

impl<F: Fabric, E: Environment> SessionLogic<F, E> {
    /// Runs many writes. Returns one result per write, in the order of the writes.
    pub async fn write_many(&self, writes: &[BatchWrite<'_>]) -> Vec<Result<(), Error>> {
        let write = async |write: &BatchWrite<'_>| {
            self.check_may_begin()?;
            match write {
                BatchWrite::Put { key, value, options } => self.put_with(key, value, options).await,
                BatchWrite::Delete { key } => self.delete(key).await,
            }
        };
        if self.store().fabric().is_immediate() {
            self.one_by_one(writes, write).await
        } else {
            side_by_side(writes, write).await
        }
    }

    /// Checks whether the next one of many writes is allowed to begin. A fenced session begins nothing. Nor does a
    /// session that has left a write half-way, because other sessions possibly wait for that write: the session is to
    /// be dropped, and then fenced, as soon as the call has ended.
    fn check_may_begin(&self) -> Result<(), Error> {
        if self.gate().is_expelled() || self.store().needs_recovery() {
            Err(Error::Expelled { outcome: FailedWriteOutcome::NotApplied })
        } else {
            Ok(())
        }
    }

    async fn one_by_one<'w>(
        &self,
        writes: &'w [BatchWrite<'w>],
        write: impl AsyncFn(&'w BatchWrite<'w>) -> Result<(), Error>,
    ) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(writes.len());
        for some in writes.chunks(FETCHED_TOGETHER) {
            let keys = some.iter().map(|write| self.store().key(write.key()));
            keys.clone().for_each(|key| self.cached().cache().with(|cache| cache.prefetch(&key)));
            let hints = keys.filter_map(|key| self.cached().cache().with(|cache| cache.peek(&key)));
            hints.for_each(|hint| self.store().prefetch(hint));
            for one in some {
                outcomes.push(write(one).await);
            }
        }
        outcomes
    }
}

async fn side_by_side<'w>(
    writes: &'w [BatchWrite<'w>],
    write: impl AsyncFn(&'w BatchWrite<'w>) -> Result<(), Error>,
) -> Vec<Result<(), Error>> {
    let mut outcomes: Vec<Result<(), Error>> = vec![Ok(()); writes.len()];
    // For each write, the position of the next write of the same key.
    let mut next = vec![None; writes.len()];
    let mut latest = HashMap::with_capacity(writes.len());
    let mut ready = VecDeque::new();
    for (at, one) in writes.iter().enumerate() {
        match latest.insert(one.key(), at) {
            None => ready.push_back(at),
            Some(before) => next[before] = Some(at),
        }
    }
    let mut running = FuturesUnordered::new();
    let mut bytes = 0;
    loop {
        while let Some(at) = ready.front().copied()
            && running.len() < SIDE_BY_SIDE
            && (running.is_empty() || bytes + writes[at].value_bytes() <= SIDE_BY_SIDE_BYTES)
        {
            ready.pop_front();
            bytes += writes[at].value_bytes();
            let writing = write(&writes[at]);
            running.push(async move { (at, writing.await) });
        }
        let Some((at, outcome)) = running.next().await else { return outcomes };
        bytes -= writes[at].value_bytes();
        outcomes[at] = outcome;
        if let Some(next) = next[at] {
            ready.push_front(next);
        }
    }
}
