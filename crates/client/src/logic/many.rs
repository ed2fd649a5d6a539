//! Many writes in one call. Each has its own outcome, and takes effect by itself; those of one key take effect in their
//! order.
//!
//! * Where verbs travel they run side by side. What is posted between two turns of a session goes out together, so
//!   that phases of many take as long as one.
//! * Where a phase is a function call one comes after the other. What they will look at is fetched from memory for
//!   some of them together, before the first.

use std::collections::{HashMap, VecDeque};

use fusee_core::Error;
use fusee_core::race::Key;
use fusee_core::verbs::Fabric;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Environment, SessionLogic};

/// Writes that run side by side.
const SIDE_BY_SIDE: usize = 64;
/// Writes whose memory is fetched together.
const FETCHED_TOGETHER: usize = 16;

impl<F: Fabric, E: Environment> SessionLogic<F, E> {
    /// As [`SessionLogic::put`], of many.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let keys = pairs.iter().map(|(key, _)| key.as_ref());
        self.write_many(keys, |at| self.put(pairs[at].0.as_ref(), pairs[at].1.as_ref())).await
    }

    /// As [`SessionLogic::insert`], of many.
    pub async fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let keys = pairs.iter().map(|(key, _)| key.as_ref());
        self.write_many(keys, |at| self.insert(pairs[at].0.as_ref(), pairs[at].1.as_ref())).await
    }

    /// As [`SessionLogic::update`], of many.
    pub async fn update_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Vec<Result<(), Error>> {
        let keys = pairs.iter().map(|(key, _)| key.as_ref());
        self.write_many(keys, |at| self.update(pairs[at].0.as_ref(), pairs[at].1.as_ref())).await
    }

    /// As [`SessionLogic::delete`], of many.
    pub async fn delete_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<(), Error>> {
        self.write_many(keys.iter().map(K::as_ref), |at| self.delete(keys[at].as_ref())).await
    }

    async fn write_many<'k, W: Future<Output = Result<(), Error>>>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        write: impl Fn(usize) -> W,
    ) -> Vec<Result<(), Error>> {
        let keys: Vec<&[u8]> = keys.collect();
        match self.store.fabric().is_immediate() {
            true => self.one_by_one(&keys, write).await,
            false => side_by_side(&keys, write).await,
        }
    }

    async fn one_by_one<W: Future<Output = Result<(), Error>>>(
        &self,
        keys: &[&[u8]],
        write: impl Fn(usize) -> W,
    ) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(keys.len());
        for some in keys.chunks(FETCHED_TOGETHER) {
            let some = some.iter().map(|key| Key::new(key));
            some.clone().for_each(|key| self.cache.with(|cache| cache.prefetch(&key)));
            let hints = some.clone().filter_map(|key| self.cache.with(|cache| cache.peek(&key)));
            hints.for_each(|hint| self.store.prefetch(hint));
            for _ in some {
                outcomes.push(write(outcomes.len()).await);
            }
        }
        outcomes
    }
}

async fn side_by_side<W: Future<Output = Result<(), Error>>>(
    keys: &[&[u8]],
    write: impl Fn(usize) -> W,
) -> Vec<Result<(), Error>> {
    let mut outcomes: Vec<Result<(), Error>> = vec![Ok(()); keys.len()];
    // After each write, the next one of its key.
    let mut next = vec![None; keys.len()];
    let (mut latest, mut ready) = (HashMap::with_capacity(keys.len()), VecDeque::new());
    for (at, key) in keys.iter().enumerate() {
        match latest.insert(key, at) {
            None => ready.push_back(at),
            Some(before) => next[before] = Some(at),
        }
    }
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < SIDE_BY_SIDE
            && let Some(at) = ready.pop_front()
        {
            let writing = write(at);
            running.push(async move { (at, writing.await) });
        }
        let Some((at, outcome)) = running.next().await else { return outcomes };
        outcomes[at] = outcome;
        if let Some(next) = next[at] {
            ready.push_front(next);
        }
    }
}
