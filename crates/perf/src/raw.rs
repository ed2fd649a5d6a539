//! The verbs that an operation cannot do without, on the same fabric, with no key-value store around
//! them: as many memory nodes, objects as large and as many, in random order.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fusee_core::layout::Object;
use fusee_core::verbs::{Batch, ClientId, Fabric, MnId};
use fusee_core::view::Member;
use fusee_fabric::{AnyFabric, FabricKind, NodeFabrics, NodeFabricsOptions, Pool, PoolOptions};

use crate::Failure;
use crate::load::{KEY_BYTES, NODES, Size};

/// Bytes of a slot.
const SLOT_BYTES: u64 = 8;

/// Memory nodes and one session with them.
pub struct Raw {
    fabric: AnyFabric,
    batch: Batch,
    size: Size,
    object_bytes: u32,
    // In the end.
    _nodes: Vec<NodeFabrics>,
}

/// A phase over shared memory is over at its first poll.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("shared memory needs no waiting"),
    }
}

impl Raw {
    pub fn new(size: &Size) -> Result<Raw, Failure> {
        let fabric = AnyFabric::new(FabricKind::Shm, ClientId(1))?;
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let identity: u64 = rand::random();
            let pool = Pool::new(PoolOptions { bytes: size.pool_bytes(), huge_pages: false })?;
            let pool_bytes = pool.bytes();
            let options = NodeFabricsOptions { pool, identity, tcp: None, shm: None };
            let started = NodeFabrics::start(options);
            nodes.push(started.map_err(|error| Failure::Verb(error.to_string()))?);
            let (node, control) = (MnId(node), String::new());
            let member = Member { node, identity, control, tcp: None, shm: None, pool_bytes };
            fabric.attach(&member).map_err(|error| Failure::Verb(error.to_string()))?;
        }
        let class = Object::class(KEY_BYTES, size.pair_bytes as usize - KEY_BYTES);
        let object_bytes = class.expect("values are not that large").bytes() as u32;
        let (batch, size) = (Batch::new(), *size);
        let mut raw = Raw { fabric, batch, size, object_bytes, _nodes: nodes };
        // So that no page is touched for the first time later.
        for number in 0..size.keys {
            raw.update(number)?;
        }
        Ok(raw)
    }

    fn slot(&self, number: u32) -> (MnId, u64) {
        (MnId((number % u32::from(NODES)) as u16), u64::from(number) * SLOT_BYTES)
    }

    fn object(&self, number: u32) -> u64 {
        let slots = (u64::from(self.size.keys) * SLOT_BYTES).next_multiple_of(4096);
        slots + u64::from(number) / 2 * u64::from(self.object_bytes)
    }

    fn phase(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        self.batch = at_once(self.fabric.execute(batch));
        self.batch.check().map_err(|failure| Failure::Verb(format!("{failure:?}")))
    }

    /// READ of the slot and of the object: one phase.
    pub fn get(&mut self, number: u32) -> Result<(), Failure> {
        self.batch.clear();
        let (node, slot) = self.slot(number);
        self.batch.read(node, slot, SLOT_BYTES as u32);
        let object = self.object(number);
        self.batch.read(MnId((number % 2) as u16), object, self.object_bytes);
        self.phase()
    }

    /// WRITE of the object to its replicas with READ of the slot; CAS of the backups; CAS of the
    /// primary.
    pub fn update(&mut self, number: u32) -> Result<(), Failure> {
        self.batch.clear();
        let object = self.object(number);
        let span = self.batch.stage(self.object_bytes);
        for replica in 0..u32::from(self.size.data_replicas) {
            let node = MnId(((number % 2 + replica) % u32::from(NODES)) as u16);
            self.batch.write(node, object, span);
        }
        let (primary, slot) = self.slot(number);
        let read = self.batch.read(primary, slot, SLOT_BYTES as u32);
        self.phase()?;
        let data = self.batch.data(read).expect("checked");
        let old = u64::from_le_bytes(data.try_into().expect("a slot has 8 bytes"));
        let backups = usize::from(self.size.index_replicas) - 1;
        if backups > 0 {
            self.batch.clear();
            for backup in 1..=backups as u16 {
                let node = MnId((primary.0 + backup) % NODES);
                self.batch.cas(node, slot, old, old + 1);
            }
            self.phase()?;
        }
        self.batch.clear();
        self.batch.cas(primary, slot, old, old + 1);
        self.phase()
    }
}
