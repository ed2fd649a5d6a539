//! The verbs that an operation cannot do without, on the same fabric, but without a key-value store around them. They
//! access the slots and objects of a cluster that was loaded like the cluster under comparison.
//!
//! `fusee-bench compare` compares these verbs with operations, and single verbs with other projects' transports.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use fusee_cli::failure::Failure;
use fusee_client::{FabricKind, View};
use fusee_core::layout::{Object, Slot};
use fusee_core::race::Buckets;
use fusee_core::verbs::{ClientId, Fabric, VerbBatch};
use fusee_core::view::{PoolPlace, SlotRef};
use fusee_fabric::AnyFabric;

use crate::loaded_cluster::{LoadedCluster, LoadedClusterArgs, NODES, key, last_byte};
use fusee_workload::KEY_BYTES;

/// Bytes of a slot.
const SLOT_BYTES: u32 = 8;
/// A client id that no session gets.
const CLIENT: ClientId = ClientId(u32::MAX);

/// A loaded cluster, and an access to its memory that knows nothing of keys.
pub struct RawCluster {
    fabric: AnyFabric,
    batch: VerbBatch,
    pairs: Vec<RawPair>,
    object_bytes: u32,
    /// Objects without a pair; WRITEs to them damage no pair.
    free: Vec<RawPlaces>,
    /// The index of the free object that the next update writes. Updates take one after the other, as a slab hands them
    /// out.
    next: usize,
    // Declared last, so that it is dropped last.
    loaded: LoadedCluster,
}

/// The places of a pair's slot and object on the memory nodes.
#[derive(Clone, Copy, Debug)]
pub struct RawPair {
    word: Slot,
    /// The slot's replicas: the primary, then the backups.
    slots: RawPlaces,
    /// The object's replicas. The first one is read.
    objects: RawPlaces,
}

#[derive(Clone, Copy, Debug)]
struct RawPlaces {
    places: [PoolPlace; NODES as usize],
    count: u8,
}

impl RawPlaces {
    fn new(from: impl ExactSizeIterator<Item = PoolPlace>) -> RawPlaces {
        let mut places = [PoolPlace { node: fusee_client::MnId(0), offset: 0 }; NODES as usize];
        let count = from.len() as u8;
        places.iter_mut().zip(from).for_each(|(place, from)| *place = from);
        RawPlaces { places, count }
    }

    fn get(&self) -> &[PoolPlace] {
        &self.places[..usize::from(self.count)]
    }
}

fn failed(what: impl Display) -> Failure {
    Failure::operation(format!("a raw verb failed: {what}"))
}

/// Waits until a phase has ended. Over shared memory a phase ends at its first poll.
fn wait<T>(fabric: &AnyFabric, future: impl Future<Output = T>) -> T {
    let waker = fabric.waker();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => fabric.turn(None),
        }
    }
}

impl RawCluster {
    pub fn over(size: &LoadedClusterArgs, fabric: FabricKind) -> Result<RawCluster, Failure> {
        let loaded = LoadedCluster::with_keys(size, fabric, NODES, key)?;
        let view = loaded.client.view();
        let fabric = AnyFabric::new(fabric, CLIENT)?;
        for member in &view.members {
            fabric.attach(member).map_err(failed)?;
        }
        let class = Object::class(KEY_BYTES, size.pair_bytes as usize - KEY_BYTES);
        let object_bytes = class.expect("values are not that large").bytes() as u32;
        let batch = VerbBatch::new();
        let pairs = Vec::new();
        let free = Vec::new();
        let mut raw = RawCluster { fabric, batch, pairs, object_bytes, free, next: 0, loaded };
        let numbers: Vec<u32> = (0..size.keys).collect();
        // An update leaves the old object of the pair free.
        let before = raw.find_all(&numbers, &view)?;
        raw.loaded.updates(&numbers)?;
        raw.pairs = raw.find_all(&numbers, &view)?;
        let name = |objects: &RawPlaces| (objects.places[0].node, objects.places[0].offset);
        let kept: BTreeSet<_> = raw.pairs.iter().map(|pair| name(&pair.objects)).collect();
        let left = before.iter().map(|pair| pair.objects);
        raw.free = left.filter(|objects| !kept.contains(&name(objects))).collect();
        if raw.free.is_empty() {
            Err(failed("no object is free: use more --keys"))
        } else {
            Ok(raw)
        }
    }

    fn find_all(&mut self, numbers: &[u32], view: &View) -> Result<Vec<RawPair>, Failure> {
        numbers.iter().map(|number| self.find(&key(*number), view)).collect()
    }

    /// Fails if a pair does not have the value that was put, because raw verbs must leave the store unchanged.
    pub fn verify_pairs(&self) -> Result<(), Failure> {
        let LoadedCluster { session, value, .. } = &self.loaded;
        session.block_on(async {
            for number in 0..self.pairs.len() as u32 {
                let found =
                    session.get_with(&key(number), |found| found == Some(&value[..])).await?;
                if !found {
                    return Err(failed(format!("it has damaged pair {number}")));
                }
            }
            Ok(())
        })
    }

    /// Looks a key up, as an operation without a hint would.
    fn find(&mut self, key: &[u8], view: &View) -> Result<RawPair, Failure> {
        let buckets = Buckets::of(key, view);
        let primary = view.subtables[buckets.subtable as usize].primary();
        self.batch.clear();
        let tickets = buckets.read(&mut self.batch, primary);
        self.phase()?;
        let words = buckets.words(&self.batch, tickets).expect("checked");
        for (slot, word) in words.matching() {
            let pair = self.pair(slot, word, view);
            let at = pair.objects.get()[0];
            self.batch.clear();
            let ticket = self.batch.read(at.node, at.offset, self.object_bytes);
            self.phase()?;
            let bytes = self.batch.data(ticket).expect("checked");
            if Object::decode(bytes).is_ok_and(|object| object.key() == key) {
                return Ok(pair);
            }
        }
        Err(failed("a key is not where it was put"))
    }

    fn pair(&self, slot: SlotRef, word: Slot, view: &View) -> RawPair {
        let slots = RawPlaces::new(view.slot_places(slot));
        let object = view.object(word.address(), self.object_bytes.into());
        let mut objects = RawPlaces::new(object.expect("an object is in a region").places());
        let primary = slots.get()[0].node;
        if let Some(near) = objects.get().iter().position(|place| place.node == primary) {
            objects.places.swap(0, near);
        }
        RawPair { word, slots, objects }
    }

    /// Returns the pairs of these keys, in this order.
    pub fn pairs(&self, numbers: &[u32]) -> Vec<RawPair> {
        numbers.iter().map(|number| self.pairs[*number as usize]).collect()
    }

    fn phase(&mut self) -> Result<(), Failure> {
        if !self.fabric.execute_now(&mut self.batch) {
            let batch = std::mem::take(&mut self.batch);
            self.batch = wait(&self.fabric, self.fabric.execute(batch));
        }
        self.batch.check().map_err(|failure| failed(format!("{failure:?}")))
    }

    /// READs the slot and the object in one phase. Returns the last byte of the object, so that the next operation can
    /// depend on it.
    pub fn get(&mut self, pair: &RawPair) -> Result<u8, Failure> {
        self.batch.clear();
        let slot = pair.slots.places[0];
        let object = pair.objects.places[0];
        self.batch.read(slot.node, slot.offset, SLOT_BYTES);
        let object = self.batch.read(object.node, object.offset, self.object_bytes);
        self.phase()?;
        Ok(last_byte(self.batch.data(object).expect("checked")))
    }

    /// WRITEs a free object to its replicas and READs the slot; then CASes the backups; then CASes the primary. The
    /// slot words stay the same.
    pub fn update(&mut self, pair: &RawPair) -> Result<(), Failure> {
        self.batch.clear();
        let span = self.batch.stage(self.object_bytes);
        let written = self.free[self.next];
        self.next = (self.next + 1) % self.free.len();
        for place in written.get() {
            self.batch.write(place.node, place.offset, span);
        }
        let primary = pair.slots.places[0];
        let word = pair.word.0;
        self.batch.read(primary.node, primary.offset, SLOT_BYTES);
        self.phase()?;
        let backups = &pair.slots.get()[1..];
        if !backups.is_empty() {
            self.batch.clear();
            for backup in backups {
                self.batch.cas(backup.node, backup.offset, word, word);
            }
            self.phase()?;
        }
        self.batch.clear();
        self.batch.cas(primary.node, primary.offset, word, word);
        self.phase()
    }

    /// Executes one verb on the first pair.
    pub fn verb(&mut self, verb: RawVerb) -> Result<(), Failure> {
        let RawPair { word, slots, objects } = self.pairs[0];
        let slot = slots.places[0];
        let object = objects.places[0];
        let free = self.free[0].places[0];
        self.batch.clear();
        match verb {
            RawVerb::Read(bytes) => {
                self.batch.read(object.node, object.offset, bytes);
            }
            RawVerb::Write(bytes) => {
                let span = self.batch.stage(bytes);
                self.batch.write(free.node, free.offset, span);
            }
            RawVerb::Cas => {
                self.batch.cas(slot.node, slot.offset, word.0, word.0);
            }
            RawVerb::Faa => {
                self.batch.faa(slot.node, slot.offset, 0);
            }
        }
        self.phase()
    }
}

/// A verb, with its length in bytes. It does not change the slot word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RawVerb {
    Read(u32),
    Write(u32),
    Cas,
    Faa,
}
