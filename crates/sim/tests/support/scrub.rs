//! A cluster in virtual time whose master scrubs, and memory that is damaged while no operation uses it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use fusee_core::layout::Slot;
use fusee_core::store::Hint;
use fusee_core::view::{Geometry, PoolPlace, SlotRef};
use fusee_sim::{ClusterOptions, Sim, SimCluster, SimSession};
use futures_util::future::join;

/// Number of milliseconds within which the scrubber has read all memory twice.
const PATIENCE_MS: u64 = 2_000;
pub const KEYS: usize = 12;
const LEASE: Duration = Duration::from_millis(20);

/// A cluster, its pairs, and the hints of the pairs.
pub struct ScrubFixture {
    pub cluster: SimCluster,
    pub store: Rc<SimSession>,
    pub hints: Vec<Hint>,
}

pub fn key(number: usize) -> String {
    format!("key {number}")
}

/// Runs a test on a cluster that is scrubbed and has some pairs. Other pairs have been deleted.
pub fn held(seed: u64, index_replicas: u8, test: impl AsyncFnOnce(&ScrubFixture)) {
    let defaults = ClusterOptions::default();
    let geometry = Geometry { groups_per_subtable: 8, slots_per_bucket: 4, ..defaults.geometry };
    let options = ClusterOptions {
        memory_nodes: 3,
        geometry,
        index_replicas,
        data_replicas: 3,
        scrub_bytes_per_s: 16 << 20,
        lease_ms: Some(LEASE.as_millis() as u64),
        ..defaults
    };
    let cluster = SimCluster::new(&Sim::new(seed), &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open(process, cluster.options().session).await;
        let store = Rc::new(session.expect("the master opens sessions"));
        keeper.open(store.gate().clone());
        let mut hints = Vec::new();
        for number in 0..2 * KEYS {
            let inserted = store.store().insert(key(number).as_bytes(), b"value").await;
            hints.push(inserted.unwrap().place.unwrap());
        }
        for number in KEYS..2 * KEYS {
            store.delete(key(number).as_bytes()).await.unwrap();
        }
        hints.truncate(KEYS);
        test(&ScrubFixture { cluster: cluster.clone(), store, hints }).await;
    });
}

impl ScrubFixture {
    /// Waits until `holds` returns true and the view is stable.
    pub async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let is_stable = || self.cluster.view().change.is_none();
        for _ in 0..PATIENCE_MS {
            if is_stable() && holds() {
                return;
            }
            self.cluster.sim().sleep(1_000_000).await;
        }
        panic!("{what}: not so after {PATIENCE_MS} ms, in view {}", self.cluster.view().number);
    }

    pub async fn rest(&self, milliseconds: u64) {
        self.cluster.sim().sleep(milliseconds * 1_000_000).await;
        self.until("stable", || true).await;
    }

    pub fn places(&self, slot: SlotRef) -> Vec<PoolPlace> {
        self.cluster.view().slot_places(slot).collect()
    }

    pub fn words(&self, slot: SlotRef) -> Vec<Slot> {
        self.places(slot)
            .into_iter()
            .map(|place| self.cluster.network().memories().word_at(place))
            .collect()
    }

    pub async fn all_are_there(&self) {
        for number in 0..2 * KEYS {
            let key = key(number);
            let found = self.store.get(key.as_bytes()).await.unwrap();
            assert_eq!(found.is_some(), number < KEYS, "{key}");
        }
    }
}

/// Overwrites the slot of each entry on one replica at a time with a free word that no writer has written: zeros, or a
/// word of another object. The entries remain.
pub fn free_words(seed: u64, replicas: u8) {
    held(seed, replicas, async |held| {
        held.cluster.checks().never_watch();
        for (number, hint) in held.hints.iter().enumerate() {
            let other = held.hints[(number + 1) % KEYS].word;
            let kinds = [Slot(0), other.withdrawn(), Slot::vacated(31)];
            for (kind, at) in kinds.into_iter().zip(held.places(hint.slot).into_iter().cycle()) {
                held.cluster.network().memories().flip(at, hint.word.0 ^ kind.0);
                let good = |word: &Slot| *word == hint.word;
                let what = format!("{kind:?} at {at:?} deletes nothing");
                held.until(&what, || held.words(hint.slot).iter().all(good)).await;
            }
        }
        held.all_are_there().await;
    });
}

/// Flips each bit of `bits` in the word of each replica of an entry, one at a time, and waits until the slot is settled
/// on its old word.
pub fn settles(seed: u64, replicas: u8, bits: impl Iterator<Item = usize>) {
    held(seed, replicas, async |held| {
        held.cluster.checks().never_watch();
        for bit in bits {
            let hint = held.hints[bit % KEYS];
            for at in held.places(hint.slot) {
                held.cluster.network().memories().flip(at, 1 << bit);
                let good = |word: &Slot| *word == hint.word;
                let what = format!("bit {bit} of {at:?} is as it was");
                held.until(&what, || held.words(hint.slot).iter().all(good)).await;
            }
        }
        held.all_are_there().await;
    });
}

/// Flips bits as [`settles`] does, but only on backups, while other slots of the subtable are written all the time.
/// Every write must be found later. (On a primary, a writer could treat a damaged slot as a free one.) Returns the
/// number of writes.
pub fn settles_beside_writes(seed: u64, replicas: u8, bits: impl Iterator<Item = usize>) -> usize {
    let written = Cell::new(0);
    held(seed, replicas, async |held| {
        held.cluster.checks().never_watch();
        let is_over = Cell::new(false);
        let writing = async {
            for n in 0.. {
                let key = format!("other {}", n % 5);
                let value = format!("value {n}");
                if is_over.get() && n % 5 == 0 {
                    return;
                }
                let found = held.store.get(key.as_bytes()).await.unwrap();
                assert_eq!(found.is_some(), n >= 5 && n % 7 != 5, "{key}, in step {n}");
                held.store.put(key.as_bytes(), value.as_bytes()).await.unwrap();
                let found = held.store.get(key.as_bytes()).await.unwrap();
                assert_eq!(found.as_deref(), Some(value.as_bytes()), "{key}, in step {n}");
                if n % 7 == 0 {
                    held.store.delete(key.as_bytes()).await.unwrap();
                }
                written.set(n);
            }
        };
        let damaging = async {
            for bit in bits {
                let hint = held.hints[bit % KEYS];
                for at in held.places(hint.slot).into_iter().skip(1) {
                    held.cluster.network().memories().flip(at, 1 << bit);
                    let good = |word: &Slot| *word == hint.word;
                    let what = format!("bit {bit} of {at:?} is as it was");
                    held.until(&what, || held.words(hint.slot).iter().all(good)).await;
                }
            }
            is_over.set(true);
        };
        join(writing, damaging).await;
        held.all_are_there().await;
    });
    written.get()
}
