//! Many writes in one call. Each has its own result and takes effect by itself; writes of one key take effect
//! in their order.
//!
//! * Over a network they run concurrently. All that is posted between two turns of a session is sent
//!   together, so that phases of many writes take as long as one.
//! * Over shared memory, where a phase is a function call, they run one after the other. The memory that they
//!   will look at is prefetched for a group of them, before the first.

use std::collections::{HashMap, VecDeque};

use fusee_core::verbs::Fabric;
use fusee_core::{Error, FailedWriteOutcome};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Environment, SessionLogic};

/// Limit of writes that run concurrently.
const SIDE_BY_SIDE: usize = 64;
/// Limit of their values' bytes together, unless a single value is longer.
const SIDE_BY_SIDE_BYTES: usize = 2 << 20;
/// Writes whose memory is prefetched together.
const FETCHED_TOGETHER: usize = 16;

/// A key with its value, which is empty for DELETEs.
type PairSlices<'p> = (&'p [u8], &'p [u8]);

impl<F: Fabric, E: Environment> SessionLogic<F, E> {
    /// Puts many pairs; see [`SessionLogic::put`].
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        self.write_many(slices(pairs), |(key, value)| self.put(key, value)).await
    }

    /// Inserts many pairs; see [`SessionLogic::insert`].
    pub async fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        self.write_many(slices(pairs), |(key, value)| self.insert(key, value)).await
    }

    /// Updates many pairs; see [`SessionLogic::update`].
    pub async fn update_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        self.write_many(slices(pairs), |(key, value)| self.update(key, value)).await
    }

    /// Deletes many keys; see [`SessionLogic::delete`].
    pub async fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), Error>> {
        let pairs = keys.iter().map(|key| (key.as_ref(), &[][..])).collect();
        self.write_many(pairs, |(key, _)| self.delete(key)).await
    }

    async fn write_many<'p, W: Future<Output = Result<(), Error>>>(
        &self,
        pairs: Vec<PairSlices<'p>>,
        write: impl Fn(PairSlices<'p>) -> W,
    ) -> Vec<Result<(), Error>> {
        let write = async |pair| {
            self.check_may_begin()?;
            write(pair).await
        };
        if self.store.fabric().is_immediate() {
            self.one_by_one(&pairs, write).await
        } else {
            side_by_side(&pairs, write).await
        }
    }

    /// Checks that another one of many writes may begin. A fenced session begins nothing. Nor does one that
    /// left a write half-way, for which other sessions may wait: it is to be given up, and then fenced, as soon
    /// as the call has ended.
    fn check_may_begin(&self) -> Result<(), Error> {
        if self.gate().is_expelled() || self.store.needs_recovery() {
            Err(Error::Expelled { outcome: FailedWriteOutcome::NotApplied })
        } else {
            Ok(())
        }
    }

    async fn one_by_one<'p>(
        &self,
        pairs: &[PairSlices<'p>],
        write: impl AsyncFn(PairSlices<'p>) -> Result<(), Error>,
    ) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(pairs.len());
        for some in pairs.chunks(FETCHED_TOGETHER) {
            let keys = some.iter().map(|(key, _)| self.store.key(key));
            keys.clone().for_each(|key| self.cache.with(|cache| cache.prefetch(&key)));
            let hints = keys.filter_map(|key| self.cache.with(|cache| cache.peek(&key)));
            hints.for_each(|hint| self.store.prefetch(hint));
            for pair in some {
                outcomes.push(write(*pair).await);
            }
        }
        outcomes
    }
}

fn slices<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: &[(K, V)]) -> Vec<PairSlices<'_>> {
    pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect()
}

async fn side_by_side<'p>(
    pairs: &[PairSlices<'p>],
    write: impl AsyncFn(PairSlices<'p>) -> Result<(), Error>,
) -> Vec<Result<(), Error>> {
    let mut outcomes: Vec<Result<(), Error>> = vec![Ok(()); pairs.len()];
    // For each write, the next one of the same key.
    let mut next = vec![None; pairs.len()];
    let mut latest = HashMap::with_capacity(pairs.len());
    let mut ready = VecDeque::new();
    for (at, (key, _)) in pairs.iter().enumerate() {
        match latest.insert(*key, at) {
            None => ready.push_back(at),
            Some(before) => next[before] = Some(at),
        }
    }
    let mut running = FuturesUnordered::new();
    let mut bytes = 0;
    loop {
        while let Some(at) = ready.front().copied()
            && running.len() < SIDE_BY_SIDE
            && (running.is_empty() || bytes + pairs[at].1.len() <= SIDE_BY_SIDE_BYTES)
        {
            ready.pop_front();
            bytes += pairs[at].1.len();
            let writing = write(pairs[at]);
            running.push(async move { (at, writing.await) });
        }
        let Some((at, outcome)) = running.next().await else { return outcomes };
        bytes -= pairs[at].1.len();
        outcomes[at] = outcome;
        if let Some(next) = next[at] {
            ready.push_front(next);
        }
    }
}
