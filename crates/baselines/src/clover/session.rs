//! A client's operations and background work.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use fusee_core::verbs::{Fabric, MnId, Ticket, VerbBatch};

use super::server::{
    CloverChain, CloverOpenOutcome, CloverReply, CloverRequest, MetadataServer, RetiredEntry,
};
use super::shape::{CloverEntry, CloverNextWord, CloverShape};
use super::{BACKLOG, KEY, RETIRED_TOGETHER, SUM, VALUE};
use crate::cache::BaselineCache;
use crate::signal::Signal;
use crate::{BaselineError, BaselineSession, KeyNumber, Rpc, key_of, sum, word};

/// Number of requests without success after which a client regards the store as full.
const MOST_REQUESTS: usize = 1000;

/// A client session of a Clover store.
pub struct CloverClient<F, R> {
    fabric: F,
    rpc: R,
    nodes: Vec<MnId>,
    shape: CloverShape,
    /// The last known entry of each key's chain, which is the key's cursor.
    cursors: BaselineCache<KeyNumber, CloverChain>,
    /// Entries that the server has handed out and that no operation has used.
    entries: RefCell<Vec<CloverEntry>>,
    /// Background work that updates and inserts have left, in their order.
    left: RefCell<VecDeque<CloverChore>>,
    /// Notified when an operation leaves background work.
    work: Signal,
    /// Notified when some background work is done.
    done: Signal,
    /// Empty [`VerbBatch`] values, kept for reuse in later phases.
    batches: RefCell<Vec<VerbBatch>>,
    counts: Cell<CloverCounts>,
}

/// Events that make an operation cost more than its minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloverCounts {
    /// Phases of walks along chains after the first phase of each walk.
    pub hops: u64,
    /// CASes that failed because the entry was not the last one of its chain.
    pub lost: u64,
    /// Requests for the chain of a key.
    pub queries: u64,
    /// Requests to the metadata server for free entries.
    pub allocations: u64,
    /// READs during which the entry was reused.
    pub torn: u64,
}

/// Background work after an update or insert.
struct CloverChore {
    key: KeyNumber,
    shortcut: u32,
    new: CloverEntry,
    /// The entry that the new entry follows; `None` after an insert.
    old: Option<CloverEntry>,
}

/// The state of an entry that a walk along a chain has READ.
enum ChainWalkStep {
    /// The entry is the last one of the chain.
    Last,
    /// The entry is the last one of the chain until its follower is committed.
    Uncommitted,
    /// The entry is not the last one, or it has been reused. The walk continues at the entry that the shortcut names,
    /// or at the follower.
    To(CloverEntry),
    /// The entry has been reused, so it is no longer in the chain, and the shortcut names no other entry.
    Gone,
}

fn step(at: CloverEntry, next: CloverNextWord, shortcut: Option<CloverEntry>) -> ChainWalkStep {
    let is_it = next.version() == at.version();
    match (next.next(), shortcut.filter(|shortcut| *shortcut != at)) {
        (None, _) if is_it && next.is_uncommitted() => ChainWalkStep::Uncommitted,
        (None, _) if is_it => ChainWalkStep::Last,
        (_, Some(shortcut)) => ChainWalkStep::To(shortcut),
        (Some(_), None) if is_it && next.is_uncommitted() => ChainWalkStep::Uncommitted,
        (Some(next), None) if is_it => ChainWalkStep::To(next),
        _ => ChainWalkStep::Gone,
    }
}

impl<F: Fabric, R: Rpc<MetadataServer>> CloverClient<F, R> {
    /// Opens the store on these nodes, with this metadata server. The session's
    /// [background](BaselineSession::background) must run, because without it no memory is reused, and after
    /// [`BACKLOG`] updates the next one waits for ever.
    ///
    /// # Panics
    /// If the number of nodes is not the shape's, or the shape is impossible.
    pub fn new(fabric: F, rpc: R, nodes: &[MnId], shape: CloverShape) -> CloverClient<F, R> {
        shape.check();
        assert_eq!(nodes.len(), shape.memory_nodes, "the shape is of another store");
        CloverClient {
            fabric,
            rpc,
            nodes: nodes.to_vec(),
            shape,
            cursors: BaselineCache::default(),
            entries: RefCell::default(),
            left: RefCell::default(),
            work: Signal::default(),
            done: Signal::default(),
            batches: RefCell::default(),
            counts: Cell::default(),
        }
    }

    /// Returns the counts since the session was opened.
    pub fn counts(&self) -> CloverCounts {
        self.counts.get()
    }

    fn count(&self, what: impl FnOnce(&mut CloverCounts)) {
        let mut counts = self.counts.get();
        what(&mut counts);
        self.counts.set(counts);
    }

    fn take_batch(&self) -> VerbBatch {
        let mut batch = self.batches.borrow_mut().pop().unwrap_or_default();
        batch.clear();
        batch
    }

    fn give_back(&self, batch: VerbBatch) {
        self.batches.borrow_mut().push(batch);
    }

    async fn query(&self, key: KeyNumber) -> Option<CloverChain> {
        self.count(|counts| counts.queries += 1);
        let CloverReply::Chain(chain) = self.rpc.call(CloverRequest::Query(key)).await else {
            unreachable!("a query was asked");
        };
        if let Some(chain) = chain {
            self.cursors.put(key, chain);
        }
        chain
    }

    async fn cursor(&self, key: KeyNumber) -> Option<CloverChain> {
        match self.cursors.get(key) {
            Some(cursor) => Some(cursor),
            None => self.query(key).await,
        }
    }

    /// Returns an unused entry, which is in no chain.
    async fn new_entry(&self) -> Result<CloverEntry, BaselineError> {
        for _ in 0..MOST_REQUESTS {
            if let Some(entry) = self.entries.borrow_mut().pop() {
                return Ok(entry);
            }
            self.count(|counts| counts.allocations += 1);
            let CloverReply::Entries(entries) = self.rpc.call(CloverRequest::Allocate).await else {
                unreachable!("entries were asked for");
            };
            // The session's background work possibly frees entries that the session has retired itself.
            let left = self.left.borrow().len();
            if entries.is_empty() && left > 0 {
                self.done.wait_while(|| self.left.borrow().len() >= left).await;
            }
            self.entries.borrow_mut().extend(entries);
        }
        Err(BaselineError::Full)
    }

    /// Posts WRITEs of a whole entry without a follower, to all replicas of the entry.
    fn write(&self, batch: &mut VerbBatch, key: KeyNumber, entry: CloverEntry, value: &[u8]) {
        let span = batch.stage(self.shape.entry_bytes());
        let bytes = batch.bytes_mut(span);
        bytes[..SUM as usize].copy_from_slice(&CloverNextWord::none(entry).word().to_le_bytes());
        let sum = sum(key, entry.word(), value);
        bytes[SUM as usize..KEY as usize].copy_from_slice(&sum.to_le_bytes());
        bytes[KEY as usize..VALUE as usize].copy_from_slice(&key.to_le_bytes());
        bytes[VALUE as usize..][..value.len()].copy_from_slice(value);
        for replica in 0..self.shape.replicas {
            let (node, offset) = self.shape.entry(&self.nodes, entry, replica);
            batch.write(node, offset, span);
        }
    }

    /// Posts a CAS that makes `new` the first word of `last`, if `last` is the end of the chain.
    fn cas(&self, batch: &mut VerbBatch, last: CloverEntry, new: CloverNextWord) -> Ticket {
        let (node, offset) = self.shape.entry(&self.nodes, last, 0);
        batch.cas(node, offset, CloverNextWord::none(last).word(), new.word())
    }

    /// WRITEs the first word of an entry on all replicas.
    async fn write_next_word(
        &self,
        mut batch: VerbBatch,
        of: CloverEntry,
        next: CloverNextWord,
    ) -> Result<VerbBatch, BaselineError> {
        batch.clear();
        let span = batch.stage(8);
        batch.bytes_mut(span).copy_from_slice(&next.word().to_le_bytes());
        for replica in 0..self.shape.replicas {
            let (node, offset) = self.shape.entry(&self.nodes, of, replica);
            batch.write(node, offset, span);
        }
        let batch = self.fabric.execute(batch).await;
        batch.check()?;
        Ok(batch)
    }

    /// Executes one phase of a walk: READs `bytes` bytes of an entry, and in the first phase also the shortcut.
    async fn look(
        &self,
        mut batch: VerbBatch,
        at: CloverChain,
        bytes: u32,
        is_first: bool,
    ) -> Result<(VerbBatch, Ticket, ChainWalkStep), BaselineError> {
        batch.clear();
        let (node, offset) = self.shape.entry(&self.nodes, at.head, 0);
        let entry = batch.read(node, offset, bytes);
        let shortcut = is_first.then(|| {
            let (node, offset) = self.shape.shortcut(&self.nodes, at.shortcut);
            batch.read(node, offset, 8)
        });
        let batch = self.fabric.execute(batch).await;
        let next = CloverNextWord::from_word(word(batch.data(entry)?));
        let shortcut = match shortcut {
            Some(shortcut) => CloverEntry::from_word(word(batch.data(shortcut)?)),
            None => None,
        };
        let step = step(at.head, next, shortcut);
        Ok((batch, entry, step))
    }

    /// Returns the entry at which a walk continues after this step.
    async fn go(&self, key: KeyNumber, from: CloverChain, step: ChainWalkStep) -> CloverChain {
        self.count(|counts| counts.hops += 1);
        match step {
            ChainWalkStep::To(head) => CloverChain { head, ..from },
            ChainWalkStep::Last | ChainWalkStep::Uncommitted => from,
            // Keys are never deleted, so the query finds the chain.
            ChainWalkStep::Gone => self.query(key).await.unwrap_or(from),
        }
    }

    /// Walks to the last entry, and waits until that entry has no uncommitted follower.
    async fn walk(
        &self,
        mut batch: VerbBatch,
        key: KeyNumber,
        from: CloverChain,
    ) -> Result<(VerbBatch, CloverChain), BaselineError> {
        let mut at = from;
        let mut is_first = true;
        loop {
            let looked = self.look(batch, at, 8, is_first).await?;
            batch = looked.0;
            if let ChainWalkStep::Last = looked.2 {
                return Ok((batch, at));
            }
            (at, is_first) = (self.go(key, at, looked.2).await, false);
        }
    }

    /// Returns the value of the last entry, and the position of that entry.
    async fn read(
        &self,
        mut batch: VerbBatch,
        key: KeyNumber,
        from: CloverChain,
    ) -> Result<(VerbBatch, CloverChain, Vec<u8>), BaselineError> {
        let bytes = VALUE + self.shape.value_bytes;
        let mut at = from;
        let mut is_first = true;
        loop {
            let (back, entry, mut step) = self.look(batch, at, bytes, is_first).await?;
            batch = back;
            if let ChainWalkStep::Last | ChainWalkStep::Uncommitted = step {
                let data = batch.data(entry)?;
                let value = &data[VALUE as usize..];
                if word(&data[SUM as usize..]) == sum(key, at.head.word(), value) {
                    let value = value.to_vec();
                    return Ok((batch, at, value));
                }
                // The first word was READ before the entry was reused, and the other words after that.
                self.count(|counts| counts.torn += 1);
                step = ChainWalkStep::Gone;
            }
            (at, is_first) = (self.go(key, at, step).await, false);
        }
    }

    /// Appends an entry to a chain, and returns the entry that it follows.
    async fn append(
        &self,
        key: KeyNumber,
        cursor: CloverChain,
        new: CloverEntry,
        value: &[u8],
    ) -> Result<CloverEntry, BaselineError> {
        let is_one = self.shape.replicas == 1;
        let follows = |last: CloverEntry| {
            if is_one {
                CloverNextWord::some(last, new)
            } else {
                CloverNextWord::none(last).uncommitted()
            }
        };
        let mut at = cursor;
        let mut batch = self.take_batch();
        self.write(&mut batch, key, new, value);
        if is_one {
            // The entry has to be complete before a reader can reach it.
            batch = self.fabric.execute(batch).await;
            batch.check()?;
            batch.clear();
        }
        loop {
            let cas = self.cas(&mut batch, at.head, follows(at.head));
            batch = self.fabric.execute(batch).await;
            batch.check()?;
            if batch.found(cas)? == CloverNextWord::none(at.head).word() {
                break;
            }
            self.count(|counts| counts.lost += 1);
            (batch, at) = self.walk(batch, key, at).await?;
            batch.clear();
        }
        if !is_one {
            let next = CloverNextWord::some(at.head, new);
            batch = self.write_next_word(batch, at.head, next.uncommitted()).await?;
            batch = self.write_next_word(batch, at.head, next).await?;
        }
        self.give_back(batch);
        Ok(at.head)
    }

    fn leave(&self, left: CloverChore) {
        self.left.borrow_mut().push_back(left);
        self.work.notify();
    }

    fn check_value(&self, value: &[u8]) -> Result<(), BaselineError> {
        let fits = value.len() == self.shape.value_bytes as usize;
        if fits { Ok(()) } else { Err(BaselineError::Length("value")) }
    }

    /// Posts WRITEs of shortcuts for the oldest pending updates, and collects the entries that these updates replaced.
    /// Returns the number of updates.
    fn turn(&self, batch: &mut VerbBatch, retired: &mut Vec<RetiredEntry>) -> usize {
        let left = self.left.borrow();
        let count = left.len().min(RETIRED_TOGETHER);
        for (i, CloverChore { key, shortcut, new, old }) in left.iter().take(count).enumerate() {
            retired.extend(old.map(|old| RetiredEntry { key: *key, old, new: *new }));
            let is_latest = left.iter().take(count).skip(i + 1).all(|later| later.key != *key);
            if is_latest {
                let span = batch.stage(8);
                batch.bytes_mut(span).copy_from_slice(&new.word().to_le_bytes());
                let (node, offset) = self.shape.shortcut(&self.nodes, *shortcut);
                batch.write(node, offset, span);
            }
        }
        count
    }
}

impl<F: Fabric, R: Rpc<MetadataServer>> BaselineSession for CloverClient<F, R> {
    async fn search(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BaselineError> {
        let key = key_of(key)?;
        let Some(cursor) = self.cursor(key).await else { return Ok(None) };
        let (batch, at, value) = self.read(self.take_batch(), key, cursor).await?;
        self.give_back(batch);
        if at != cursor {
            self.cursors.put(key, at);
        }
        Ok(Some(value))
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        let key = key_of(key)?;
        self.check_value(value)?;
        if self.cursor(key).await.is_none() {
            return Ok(false);
        }
        self.done.wait_while(|| self.left.borrow().len() >= BACKLOG).await;
        let new = self.new_entry().await?;
        // Other operations of this session possibly have moved the cursor.
        let Some(cursor) = self.cursor(key).await else { return Ok(false) };
        let old = self.append(key, cursor, new, value).await?;
        self.cursors.put(key, CloverChain { head: new, ..cursor });
        self.leave(CloverChore { key, shortcut: cursor.shortcut, new, old: Some(old) });
        Ok(true)
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        let key = key_of(key)?;
        self.check_value(value)?;
        if self.cursors.get(key).is_some() {
            return Ok(false);
        }
        let new = self.new_entry().await?;
        let mut batch = self.take_batch();
        self.write(&mut batch, key, new, value);
        batch = self.fabric.execute(batch).await;
        batch.check()?;
        self.give_back(batch);
        let CloverReply::Opened(opened) = self.rpc.call(CloverRequest::Open(key, new)).await else {
            unreachable!("a key was to be opened");
        };
        if let CloverOpenOutcome::Now(shortcut) = opened {
            self.cursors.put(key, CloverChain { head: new, shortcut });
            self.leave(CloverChore { key, shortcut, new, old: None });
            return Ok(true);
        }
        // No other client has seen the entry, so this session can use it again.
        self.entries.borrow_mut().push(new);
        if opened == CloverOpenOutcome::Full { Err(BaselineError::Full) } else { Ok(false) }
    }

    async fn delete(&self, _: &[u8]) -> Result<bool, BaselineError> {
        Err(BaselineError::Unsupported("DELETE"))
    }

    fn learn_from(&self, other: &Self) {
        self.cursors.learn_from(&other.cursors);
    }

    /// Writes shortcuts and retires entries. If this task is dropped in the middle, the next one repeats the unfinished
    /// work.
    async fn background(&self) {
        let mut batch = VerbBatch::new();
        loop {
            self.work.wait_while(|| self.left.borrow().is_empty()).await;
            batch.clear();
            let mut retired = Vec::with_capacity(RETIRED_TOGETHER);
            let count = self.turn(&mut batch, &mut retired);
            // The result is not checked, because an old shortcut only costs time.
            batch = self.fabric.execute(batch).await;
            if !retired.is_empty() {
                self.rpc.call(CloverRequest::Retire(retired)).await;
            }
            self.left.borrow_mut().drain(..count);
            self.done.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_leaves_what_it_does_not_know() {
        let at = CloverEntry::first(7).again().expect("it has lives");
        let [before, follower, shortcut] = [7, 8, 9].map(CloverEntry::first);
        let word = |step: ChainWalkStep| match step {
            ChainWalkStep::Last => "last".into(),
            ChainWalkStep::Uncommitted => "uncommitted".into(),
            ChainWalkStep::To(entry) => format!("{entry:?}"),
            ChainWalkStep::Gone => "gone".into(),
        };
        let look = |next, shortcut| word(step(at, next, shortcut));
        let to = |entry| word(ChainWalkStep::To(entry));
        for known in [None, Some(at), Some(shortcut)] {
            assert_eq!(look(CloverNextWord::none(at), known), "last");
            assert_eq!(look(CloverNextWord::none(at).uncommitted(), known), "uncommitted");
        }
        for none in [None, Some(at)] {
            assert_eq!(look(CloverNextWord::some(at, follower), none), to(follower));
            assert_eq!(look(CloverNextWord::some(at, follower).uncommitted(), none), "uncommitted");
            // The entry has another version, so its follower is possibly in the chain of another key.
            assert_eq!(look(CloverNextWord::none(before), none), "gone");
            assert_eq!(look(CloverNextWord::some(before, follower), none), "gone");
            assert_eq!(look(CloverNextWord::none(before).uncommitted(), none), "gone");
        }
        for next in [
            CloverNextWord::some(at, follower),
            CloverNextWord::none(before),
            CloverNextWord::some(before, follower),
        ] {
            assert_eq!(look(next, Some(shortcut)), to(shortcut));
        }
    }
}
