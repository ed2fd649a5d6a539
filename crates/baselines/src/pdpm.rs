//! pDPM-Direct: a store of memory nodes and clients only, with updates in place under a lock for each key (Tsai, Shan
//! and Zhang, "Disaggregating Persistent Memory and Controlling Them Remotely", ATC '20).
//!
//! ```text
//! pool    header of the pool | copy 0 of places | copy 1 of places | ... | redo copy 0 | redo copy 1 | ...
//! place   lock: 8 bytes | state: 8 bytes | value | checksum: 8 bytes
//! redo                    state: 8 bytes | value | checksum: 8 bytes
//! ```
//!
//! Each key has a number, which determines its place: with n nodes, number n * i + j has place i of node j. The further
//! copies of a place are on the nodes that follow.
//!
//! | operation | phases |
//! |---|---|
//! | SEARCH | 1: READ the place, and repeat that while the lock is held or the checksum is wrong |
//! | UPDATE | 4: CAS the lock until it succeeds; WRITE redo copies; WRITE in place; WRITE the lock |
//! | INSERT, DELETE | the same as UPDATE |
//!
//! There is no backoff, neither for locks nor for checksums. The phase that takes the lock also READs the state.
//!
//! # Promise
//! Without crashes every operation is linearizable. A write takes effect when the last word of its WRITE in place, the
//! checksum, arrives on the first node. A search takes effect when it READs the checksum. If a client dies while it
//! holds a lock, the lock is never released. Redo copies are written and never used.
//!
//! # What is different here
//! * In the published system clients agree on places by a protocol that the published code lacks, because its keys are
//!   the numbers. Here a [`PdpmDirectory`] gives a key its number on request, at the key's first INSERT, and clients
//!   cache the numbers.
//! * The published code neither inserts nor deletes. Here a place has a state, which a DELETE clears. The deleted key
//!   keeps its place.
//! * The published checksum is a CRC-32.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use fusee_core::verbs::{Fabric, MnId, POOL_HEADER_BYTES, VerbBatch};

use crate::cache::BaselineCache;
use crate::{BaselineError, BaselineServer, BaselineSession, KeyNumber, Rpc, key_of, sum, word};

/// Values of the lock word.
const FREE: u64 = 0;
const HELD: u64 = 1;
/// Values of the state word. In a place that was never written, state and checksum are 0.
const ABSENT: u64 = 0;
const PRESENT: u64 = 1;

/// Offset of the image (state, value and checksum) in a place. A redo copy is an image without a lock. [`VALUE`] is the
/// offset of the value in the image.
const STATE: u64 = 8;
const VALUE: usize = 8;

/// Dimensions of a pDPM-Direct store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PdpmShape {
    /// Number of memory nodes.
    pub memory_nodes: usize,
    /// Number of copies of each key's place, which lie on different memory nodes.
    pub replicas: usize,
    /// Bytes of every value.
    pub value_bytes: u32,
    /// Number of keys for which the store has room.
    pub keys: u64,
}

impl PdpmShape {
    /// Returns the size of each memory node's pool.
    pub fn pool_bytes(&self) -> u64 {
        self.at(2 * self.replicas)
    }

    fn check(&self) {
        assert!(0 < self.replicas, "a place lies somewhere");
        assert!(self.replicas <= self.memory_nodes, "copies lie on different memory nodes");
    }

    /// Returns the length of an image: state, value and checksum.
    fn image_bytes(&self) -> u32 {
        8 + self.value_bytes.next_multiple_of(8) + 8
    }

    /// Returns the offset on each node at which the area for copies number `rank` begins. Redo copies are numbered
    /// after the other copies.
    fn at(&self, rank: usize) -> u64 {
        let image = u64::from(self.image_bytes());
        let places = rank.min(self.replicas);
        let redo = rank.saturating_sub(self.replicas);
        let each = self.keys.div_ceil(self.memory_nodes as u64);
        POOL_HEADER_BYTES + each * (places as u64 * (STATE + image) + redo as u64 * image)
    }

    fn node(&self, nodes: &[MnId], number: u32, replica: usize) -> MnId {
        nodes[(number as usize + replica) % nodes.len()]
    }

    /// Returns the node and offset of a copy of a key's place.
    fn place(&self, nodes: &[MnId], number: u32, replica: usize) -> (MnId, u64) {
        let index = u64::from(number) / nodes.len() as u64;
        let offset = self.at(replica) + index * (STATE + u64::from(self.image_bytes()));
        (self.node(nodes, number, replica), offset)
    }

    /// Returns the node and offset of a key's redo copy.
    fn redo(&self, nodes: &[MnId], number: u32, replica: usize) -> (MnId, u64) {
        let index = u64::from(number) / nodes.len() as u64;
        let offset = self.at(self.replicas + replica) + index * u64::from(self.image_bytes());
        (self.node(nodes, number, replica), offset)
    }
}

/// Requests to the directory, which numbers the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PdpmRequest {
    /// Asks for the number of a key, which possibly has none.
    Find(KeyNumber),
    /// Asks for the number of a key, which gets one if it has none. The reply is `None` if all numbers are in use.
    Take(KeyNumber),
}

/// The numbers of keys. The directory replaces the protocol by which the published system's clients agree on places.
pub struct PdpmDirectory {
    keys: u64,
    takes: Duration,
    numbers: HashMap<KeyNumber, u32>,
}

impl PdpmDirectory {
    /// The time of a request: *assumed*, equal to that of a query of [Clover](crate::clover)'s metadata server.
    pub const ASSUMED: Duration = Duration::from_nanos(1_500);

    /// Makes the directory of a store without keys. Each request occupies a core for `takes`.
    pub fn new(shape: PdpmShape, takes: Duration) -> PdpmDirectory {
        PdpmDirectory { keys: shape.keys, takes, numbers: HashMap::new() }
    }
}

impl BaselineServer for PdpmDirectory {
    type Request = PdpmRequest;
    type Reply = Option<u32>;

    fn service_time(&self, _: &PdpmRequest) -> Duration {
        self.takes
    }

    fn bytes(&self, _: &PdpmRequest) -> (u64, u64) {
        (8 + 16, 8 + 8)
    }

    fn serve(&mut self, request: PdpmRequest) -> Option<u32> {
        let next = self.numbers.len() as u64;
        match request {
            PdpmRequest::Find(key) => self.numbers.get(&key).copied(),
            PdpmRequest::Take(key) if next < self.keys => {
                Some(*self.numbers.entry(key).or_insert(next as u32))
            }
            PdpmRequest::Take(key) => self.numbers.get(&key).copied(),
        }
    }
}

/// A client session of a pDPM-Direct store.
pub struct PdpmClient<F, R> {
    fabric: F,
    rpc: R,
    nodes: Vec<MnId>,
    shape: PdpmShape,
    numbers: BaselineCache<KeyNumber, u32>,
    /// Empty [`VerbBatch`] values, kept for reuse in later phases.
    batches: RefCell<Vec<VerbBatch>>,
    spins: Cell<u64>,
}

impl<F: Fabric, R: Rpc<PdpmDirectory>> PdpmClient<F, R> {
    /// Opens the store on these nodes, with this directory.
    ///
    /// # Panics
    /// If the number of nodes is not the shape's, or the shape is impossible.
    pub fn new(fabric: F, rpc: R, nodes: &[MnId], shape: PdpmShape) -> PdpmClient<F, R> {
        shape.check();
        assert_eq!(nodes.len(), shape.memory_nodes, "the shape is of another store");
        PdpmClient {
            fabric,
            rpc,
            nodes: nodes.to_vec(),
            shape,
            numbers: BaselineCache::default(),
            batches: RefCell::default(),
            spins: Cell::new(0),
        }
    }

    /// Returns the number of phases that found a lock held or a write in progress.
    pub fn spins(&self) -> u64 {
        self.spins.get()
    }

    async fn ask(&self, key: KeyNumber, request: PdpmRequest) -> Option<u32> {
        if let Some(number) = self.numbers.get(key) {
            return Some(number);
        }
        let number = self.rpc.call(request).await?;
        self.numbers.put(key, number);
        Some(number)
    }

    fn take_batch(&self) -> VerbBatch {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes the lock of a key. Returns the state, which only the holder of the lock changes.
    async fn lock(
        &self,
        mut batch: VerbBatch,
        number: u32,
    ) -> Result<(VerbBatch, u64), BaselineError> {
        let (node, offset) = self.shape.place(&self.nodes, number, 0);
        loop {
            batch.clear();
            let lock = batch.cas(node, offset, FREE, HELD);
            let state = batch.read(node, offset + STATE, 8);
            batch = self.fabric.execute(batch).await;
            if batch.found(lock)? == FREE {
                let state = word(batch.data(state)?);
                return Ok((batch, state));
            }
            self.spins.set(self.spins.get() + 1);
        }
    }

    async fn unlock(&self, mut batch: VerbBatch, number: u32) -> Result<(), BaselineError> {
        let (node, offset) = self.shape.place(&self.nodes, number, 0);
        batch.clear();
        let span = batch.stage(8);
        batch.bytes_mut(span).copy_from_slice(&FREE.to_le_bytes());
        batch.write(node, offset, span);
        let batch = self.fabric.execute(batch).await;
        batch.check()?;
        self.batches.borrow_mut().push(batch);
        Ok(())
    }

    /// WRITEs a key's new image to the redo copies, then to the key's place. The caller holds the lock.
    async fn put(
        &self,
        mut batch: VerbBatch,
        key: KeyNumber,
        number: u32,
        value: Option<&[u8]>,
    ) -> Result<VerbBatch, BaselineError> {
        batch.clear();
        let span = batch.stage(STATE as u32 + self.shape.image_bytes());
        let bytes = batch.bytes_mut(span);
        bytes[..8].copy_from_slice(&HELD.to_le_bytes());
        let image = &mut bytes[8..];
        let sum_at = image.len() - 8;
        image[..sum_at].fill(0);
        if let Some(value) = value {
            image[..8].copy_from_slice(&PRESENT.to_le_bytes());
            image[VALUE..][..value.len()].copy_from_slice(value);
        }
        let sum = sum(key, 0, &image[..sum_at]);
        image[sum_at..].copy_from_slice(&sum.to_le_bytes());
        for replica in 0..self.shape.replicas {
            let (node, offset) = self.shape.redo(&self.nodes, number, replica);
            batch.write(node, offset, span.part(8, span.len - 8));
        }
        batch = self.fabric.execute(batch).await;
        batch.check()?;
        batch.next_phase();
        for replica in 0..self.shape.replicas {
            let (node, offset) = self.shape.place(&self.nodes, number, replica);
            batch.write(node, offset, span);
        }
        batch = self.fabric.execute(batch).await;
        batch.check()?;
        Ok(batch)
    }

    /// Writes the key if it is in the state `if_state`. Returns whether it was.
    async fn write(
        &self,
        key: KeyNumber,
        number: u32,
        if_state: u64,
        value: Option<&[u8]>,
    ) -> Result<bool, BaselineError> {
        let (mut batch, state) = self.lock(self.take_batch(), number).await?;
        if state == if_state {
            batch = self.put(batch, key, number, value).await?;
        }
        self.unlock(batch, number).await?;
        Ok(state == if_state)
    }

    fn check_value(&self, value: &[u8]) -> Result<(), BaselineError> {
        let fits = value.len() == self.shape.value_bytes as usize;
        if fits { Ok(()) } else { Err(BaselineError::Length("value")) }
    }
}

impl<F: Fabric, R: Rpc<PdpmDirectory>> BaselineSession for PdpmClient<F, R> {
    async fn search(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BaselineError> {
        let key = key_of(key)?;
        let Some(number) = self.ask(key, PdpmRequest::Find(key)).await else { return Ok(None) };
        let (node, offset) = self.shape.place(&self.nodes, number, 0);
        let mut batch = self.take_batch();
        loop {
            batch.clear();
            let place = batch.read(node, offset, STATE as u32 + self.shape.image_bytes());
            batch = self.fabric.execute(batch).await;
            let bytes = batch.data(place)?;
            let (image, found) = bytes[8..].split_at(bytes.len() - 16);
            let is_new = word(found) == 0;
            if word(bytes) == FREE && (is_new || word(found) == sum(key, 0, image)) {
                let is_there = !is_new && word(image) == PRESENT;
                let value = &image[VALUE..][..self.shape.value_bytes as usize];
                let value = is_there.then(|| value.to_vec());
                self.batches.borrow_mut().push(batch);
                return Ok(value);
            }
            self.spins.set(self.spins.get() + 1);
        }
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        let key = key_of(key)?;
        self.check_value(value)?;
        let Some(number) = self.ask(key, PdpmRequest::Find(key)).await else { return Ok(false) };
        self.write(key, number, PRESENT, Some(value)).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        let key = key_of(key)?;
        self.check_value(value)?;
        let Some(number) = self.ask(key, PdpmRequest::Take(key)).await else {
            return Err(BaselineError::Full);
        };
        self.write(key, number, ABSENT, Some(value)).await
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, BaselineError> {
        let key = key_of(key)?;
        let Some(number) = self.ask(key, PdpmRequest::Find(key)).await else { return Ok(false) };
        self.write(key, number, PRESENT, None).await
    }

    fn learn_from(&self, other: &Self) {
        self.numbers.learn_from(&other.numbers);
    }
}
