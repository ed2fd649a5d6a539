//! A small cluster: memory, a view over it, and as many client sessions as a test wants.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use fusee_core::Store;
use fusee_core::error::Error;
use fusee_core::host::{BlockGrant, GiveUp, Host};
use fusee_core::layout::{Address, Object, SizeClass, Slot};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Geometry, Member, Place, Region, Scheme, SlotRef, Subtable, View};

use crate::executor::Rng;
use crate::fabric::{Pools, SimFabric};

/// A session under simulation.
pub type SimStore = Store<SimFabric, SimHost>;

/// What the cluster looks like. The defaults make conflicts the common case.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    /// 1..=5.
    pub memory_nodes: u16,
    /// 1..=memory_nodes.
    pub index_replicas: usize,
    /// 1..=memory_nodes.
    pub data_replicas: usize,
    /// Sizes. Small: a key's two buckets are half of the index.
    pub geometry: Geometry,
    /// Regions.
    pub regions: u32,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            memory_nodes: 3,
            index_replicas: 3,
            data_replicas: 2,
            geometry: Geometry {
                region_bytes: 1 << 20,
                block_bytes: 1 << 14,
                slots_per_bucket: 2,
                groups_per_subtable: 2,
                max_key_bytes: 64,
                max_value_bytes: 4096,
            },
            regions: 2,
        }
    }
}

/// Memory nodes and what every client knows of them.
pub struct Cluster {
    pub(crate) rng: Rng,
    pools: Pools,
    pub(crate) view: View,
    next_block: Rc<Cell<u32>>,
    next_client: Cell<u32>,
    /// The index of the primary as it was when it was last checked for duplicates.
    checked: RefCell<Vec<u8>>,
}

impl Cluster {
    /// A formatted, empty cluster.
    pub fn new(rng: &Rng, options: &ClusterOptions) -> Cluster {
        let geometry = options.geometry;
        let pool_bytes =
            geometry.subtable_bytes() + u64::from(options.regions) * geometry.region_bytes;
        let node = |i: usize| MnId(i as u16 % options.memory_nodes);
        let subtable_room = geometry.subtable_bytes().next_multiple_of(4096);
        let pool_bytes = pool_bytes + subtable_room;
        let places = |start: usize, replicas: usize, offset: u64| -> Vec<Place> {
            (start..start + replicas).map(|i| Place { node: node(i), offset }).collect()
        };
        let view = View {
            number: 1,
            cluster: 1,
            geometry,
            members: (0..options.memory_nodes)
                .map(|i| Member {
                    node: MnId(i),
                    identity: u64::from(i),
                    control: String::new(),
                    tcp: None,
                    shm: None,
                    pool_bytes,
                })
                .collect(),
            regions: (0..options.regions as usize)
                .map(|i| Region {
                    scheme: Scheme::Replicated,
                    places: places(
                        i,
                        options.data_replicas,
                        subtable_room + i as u64 * geometry.region_bytes,
                    ),
                })
                .collect(),
            directory: vec![0],
            subtables: vec![Subtable {
                local_depth: 0,
                places: places(0, options.index_replicas, 0),
            }],
        };
        view.check().expect("the simulated view is valid");
        let pools = view.members.iter().map(|m| (m.node, vec![0; pool_bytes as usize])).collect();
        Cluster {
            rng: rng.clone(),
            pools: Rc::new(RefCell::new(pools)),
            view,
            next_block: Rc::new(Cell::new(0)),
            next_client: Cell::new(1),
            checked: RefCell::default(),
        }
    }

    /// A new client session.
    pub fn client(&self) -> SimStore {
        let id = self.next_client.get();
        self.next_client.set(id + 1);
        let host = SimHost {
            rng: self.rng.clone(),
            next_block: self.next_block.clone(),
            geometry: self.view.geometry,
            blocks: self.view.regions.len() as u32 * self.view.geometry.blocks_per_region(),
        };
        Store::new(SimFabric::new(&self.rng, &self.pools), host, ClientId(id), self.view.clone())
    }

    /// Blocks that clients were given so far.
    pub fn blocks_granted(&self) -> u32 {
        self.next_block.get()
    }

    /// The view that all clients follow.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Writes a word behind everybody's back, as a faulty or hostile process could.
    pub fn overwrite(&self, place: Place, word: u64) {
        let mut pools = self.pools.borrow_mut();
        let pool = pools.get_mut(&place.node).expect("a living node");
        pool[place.offset as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }

    /// Takes a memory node away: its verbs fail from now on.
    pub fn kill(&self, node: MnId) {
        self.pools.borrow_mut().remove(&node);
    }

    /// The slot that stands at a place.
    pub fn word_at(&self, place: Place) -> Slot {
        let pools = self.pools.borrow();
        let at = place.offset as usize;
        let bytes = &pools[&place.node][at..at + 8];
        Slot(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    pub(crate) fn all_slots(&self) -> impl Iterator<Item = SlotRef> + '_ {
        let slots = self.view.geometry.subtable_slots() as u32;
        (0..self.view.subtables.len() as u32)
            .flat_map(move |subtable| (0..slots).map(move |slot| SlotRef { subtable, slot }))
    }

    /// The key of the object that a slot refers to.
    fn key_of(&self, word: Slot) -> Vec<u8> {
        let bytes = word.class().expect("a live slot has a class").bytes();
        let place = self.view.object_places(word.address(), bytes).expect("inside").next();
        let place = place.expect("at least one replica");
        let pools = self.pools.borrow();
        let object = &pools[&place.node][place.offset as usize..][..bytes as usize];
        Object::decode_generation(object, word.generation())
            .expect("a live slot refers to a complete object")
            .key()
            .to_vec()
    }

    /// The keys that a reader of the primary could find now, one entry per live slot. Tentative
    /// slots do not count.
    pub fn live_keys(&self) -> Vec<Vec<u8>> {
        let primary = |s| self.word_at(self.view.slot_places(s).next().expect("a primary"));
        self.all_slots()
            .map(primary)
            .filter(|w| !w.is_free() && !w.is_tentative())
            .map(|w| self.key_of(w))
            .collect()
    }

    /// Checks, at any moment, that no key is live twice. Cheap when no slot of the primary has
    /// changed since the last time, since the objects of live slots never change.
    ///
    /// # Panics
    /// If one is.
    pub fn assert_no_duplicates(&self) {
        if self.primary_is_as_checked() {
            return;
        }
        let mut keys = self.live_keys();
        let n = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), n, "a key is live in two slots of the primary");
    }

    /// Compares the primary's index with its state of the last check, and keeps it for the next.
    fn primary_is_as_checked(&self) -> bool {
        let pools = self.pools.borrow();
        let bytes = self.view.geometry.subtable_bytes() as usize;
        let mut checked = self.checked.borrow_mut();
        let room = bytes * self.view.subtables.len();
        let mut same = checked.len() == room;
        checked.resize(room, 0);
        for (old, subtable) in checked.chunks_mut(bytes).zip(&self.view.subtables) {
            let place = subtable.places[0];
            let new = &pools[&place.node][place.offset as usize..][..bytes];
            if old != new {
                old.copy_from_slice(new);
                same = false;
            }
        }
        same
    }

    /// Checks, when no operation runs, that every slot holds the same word on all replicas and
    /// none is tentative.
    ///
    /// # Panics
    /// If not.
    pub fn assert_replicas_agree(&self) {
        for slot in self.all_slots() {
            let words: Vec<Slot> = self.view.slot_places(slot).map(|p| self.word_at(p)).collect();
            assert!(words.iter().all(|w| *w == words[0]), "{slot:?} differs: {words:?}");
            assert!(words[0].is_free() || !words[0].is_tentative(), "{slot:?}: {words:?}");
        }
    }
}

/// Waiting as a random number of steps, blocks from a counter.
pub struct SimHost {
    rng: Rng,
    next_block: Rc<Cell<u32>>,
    geometry: Geometry,
    blocks: u32,
}

/// Far more waits than any schedule of a test needs.
const MAX_ATTEMPTS: u32 = 100_000;

impl Host for SimHost {
    async fn pause(&self, attempt: u32) -> Result<(), GiveUp> {
        if attempt >= MAX_ATTEMPTS {
            return Err(GiveUp);
        }
        let mut steps = self.rng.below(8 << attempt.min(4));
        poll_fn(|_| match steps {
            0 => Poll::Ready(()),
            _ => {
                steps -= 1;
                Poll::Pending
            }
        })
        .await;
        Ok(())
    }

    async fn alloc_block(&self, _: SizeClass) -> Result<BlockGrant, Error> {
        // It takes a while, as an RPC does.
        let _ = self.pause(0).await;
        let block = self.next_block.get();
        if block == self.blocks {
            return Err(Error::OutOfMemory);
        }
        self.next_block.set(block + 1);
        let per_region = self.geometry.blocks_per_region();
        let address: Address = self.geometry.block_address(block / per_region, block % per_region);
        Ok(BlockGrant { address, first: 0 })
    }
}
