//! Tests with damaged memory: objects are damaged on one replica, or on all.
//!
//! A failure of a random run prints its seed; `FUSEE_SIM_SEED=<seed>` runs only that seed again.

use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_core::error::Error;
use fusee_core::layout::{HEADER_BYTES, OVERHEAD_BYTES};
use fusee_core::stats::OpKind;
use fusee_core::store::{Hint, SearchKey};
use fusee_core::view::{Geometry, PoolPlace};
use fusee_sim::{ClusterOptions, NetworkOptions, Sim, SimClient, SimCluster};

use crate::support::changes::{damaged_moves, damaged_splits};
use crate::support::failures::for_all;
use crate::support::late_repairs::wait_for_all_replicas;
use crate::support::scenarios;
use crate::support::seeds::Seeds;

const KEY: &[u8] = b"a key";

/// A cluster with three replicas of each region, which holds one pair, and the places of the pair.
struct DamageFixture {
    cluster: SimCluster,
    store: SimClient,
    hint: Hint,
    replicas: Vec<PoolPlace>,
}

fn held(immediate: bool, key: &[u8], value: &[u8]) -> DamageFixture {
    let defaults = ClusterOptions::default();
    let geometry = Geometry {
        block_bytes: 1 << 14,
        max_key_bytes: 300,
        max_value_bytes: 4096,
        ..defaults.geometry
    };
    let data_replicas = 3;
    let index_replicas = 2;
    let pool_bytes = 1 << 20;
    let options =
        ClusterOptions { data_replicas, index_replicas, geometry, pool_bytes, ..defaults };
    let cluster = SimCluster::new(&Sim::new(1), &options);
    let network = cluster.network();
    network.set_options(NetworkOptions { immediate, ..network.options() });
    let store = cluster.client();
    let inserted = cluster.block_on(store.process, store.insert(key, value));
    let hint = inserted.unwrap().place.unwrap();
    let class = hint.word.class().unwrap().bytes();
    let replicas = cluster.view().object(hint.word.address(), class).unwrap().places().collect();
    DamageFixture { cluster, store, hint, replicas }
}

impl DamageFixture {
    /// Flips a bit of a word on one replica. A bit in the padding damages nothing.
    fn damage(&self, replica: usize, word: u64) {
        let PoolPlace { node, offset } = self.replicas[replica];
        self.cluster
            .network()
            .memories()
            .flip(PoolPlace { node, offset: offset + 8 * word }, 1 << (word % 64));
    }

    fn damaged(&self) -> usize {
        self.cluster.network().damage().replicas().len()
    }

    fn run<T>(&self, task: impl Future<Output = T>) -> T {
        self.cluster.block_on(self.store.process, task)
    }

    async fn get(&self, hint: Option<Hint>) -> Option<Vec<u8>> {
        let found = self.store.search(KEY, hint).await.expect("another replica is whole");
        found.value().map(<[u8]>::to_vec)
    }
}

/// Damages each word of the pair before each operation, on each set of replicas that leaves one whole. The answer is
/// the same as without damage, and every damaged replica that was read is repaired.
// Promise DMG-1
#[test]
fn an_operation_answers_from_a_replica_that_is_whole() {
    let value = [7; 40];
    let words = (OVERHEAD_BYTES - 1 + (KEY.len() + value.len()) as u64).div_ceil(8);
    for (word, immediate) in (0..words).flat_map(|w| [(w, false), (w, true)]) {
        for bad in [
            [true, false, false],
            [false, true, false],
            [false, false, true],
            [true, true, false],
            [true, false, true],
            [false, true, true],
        ] {
            for operation in 0..8 {
                let held = held(immediate, KEY, &value);
                for replica in (0..3).filter(|r| bad[*r]) {
                    held.damage(replica, word);
                }
                let hint = [None, Some(held.hint)][operation % 2];
                held.run(async {
                    let store = &held.store;
                    match operation {
                        0 | 1 => assert_eq!(held.get(hint).await.as_deref(), Some(&value[..])),
                        2 => {
                            let inserted = store.insert(KEY, b"twice").await;
                            assert_eq!(inserted, Err(Error::AlreadyExists));
                            assert_eq!(held.get(None).await.as_deref(), Some(&value[..]));
                        }
                        3 | 4 => {
                            store.update(KEY, b"new", hint).await.unwrap();
                            assert_eq!(held.get(None).await.as_deref(), Some(&b"new"[..]));
                        }
                        5 | 6 => {
                            store.delete(KEY, hint).await.unwrap();
                            assert_eq!(held.get(None).await, None);
                            store.insert(KEY, b"again").await.unwrap();
                        }
                        _ => {
                            let keys = [SearchKey { key: store.key(KEY), hint }];
                            let mut seen = None;
                            let found = |_, value: Option<&[u8]>, _| {
                                seen = value.map(<[u8]>::to_vec);
                            };
                            store.search_many(&keys, found).await.unwrap();
                            assert_eq!(seen.as_deref(), Some(&value[..]));
                        }
                    }
                });
                let repaired = held.store.stats().damage().repaired;
                assert!(held.damaged() == 0 || repaired == 0, "who looks at all repairs all");
                assert_eq!(held.cluster.checks().live_keys(), [KEY]);
            }
        }
    }
}

/// After a SEARCH has repaired a replica, the pair survives the loss of the other replicas.
#[test]
fn what_was_repaired_is_whole() {
    for immediate in [false, true] {
        let mut met = 0;
        for whole in 0..3 {
            let held = held(immediate, KEY, b"value");
            (0..3).filter(|replica| *replica != whole).for_each(|replica| held.damage(replica, 2));
            assert_eq!(held.damaged(), 2);
            assert_eq!(held.run(held.get(None)).as_deref(), Some(&b"value"[..]));
            // If the SEARCH happened to read the whole replica, it has repaired nothing.
            if held.store.stats().damage().repaired > 0 {
                assert_eq!((held.damaged(), held.store.stats().damage().repaired), (0, 2));
                held.damage(whole, 2);
                assert_eq!(held.run(held.get(Some(held.hint))).as_deref(), Some(&b"value"[..]));
                met += 1;
            }
        }
        assert_eq!(met, 2);
    }
}

/// One replica of a pair is damaged, and the node of the other replica dies. The pair is lost: every operation on it
/// fails with an error, both before and after the cluster goes on without the node. The key never seems absent, and
/// cannot be inserted again. Other keys are readable.
// Promise DMG-3: Without a whole replica every operation fails with an error.
#[test]
fn what_the_loss_of_a_node_leaves_damaged_is_an_error() {
    let value = [7; 40];
    let words = (OVERHEAD_BYTES - 1 + (KEY.len() + value.len()) as u64).div_ceil(8);
    for (word, damaged) in (0..words).flat_map(|word| [(word, 0), (word, 1)]) {
        let sim = Sim::new(2 * word + damaged);
        let defaults = ClusterOptions::default();
        let lease = Duration::from_millis(20);
        let memory_nodes = 4;
        let index_replicas = 2;
        let data_replicas = 2;
        let session = LogicOptions { op_timeout: 5 * lease, ..defaults.session };
        let options = ClusterOptions {
            memory_nodes,
            index_replicas,
            data_replicas,
            session,
            lease_ms: Some(lease.as_millis() as u64),
            ..defaults
        };
        let cluster = SimCluster::new(&sim, &options);
        let process = cluster.client_process();
        let keeper = cluster.keeper(process, lease);
        let open = async || {
            let session = cluster.open(process, session).await.expect("a master leads");
            keeper.open(session.gate().clone());
            session
        };
        cluster.block_on(process, async {
            let session = open().await;
            session.insert(b"another key", b"there").await.unwrap();
            let written = session.store().insert(KEY, &value).await.unwrap().place.unwrap();
            let class = written.word.class().unwrap().bytes();
            let view = cluster.view().clone();
            let replicas = view.object(written.word.address(), class).unwrap().places();
            let replicas: Vec<PoolPlace> = replicas.collect();
            let PoolPlace { node, offset } = replicas[damaged as usize];
            let at = PoolPlace { node, offset: offset + 8 * word };
            cluster.checks().never_watch();
            cluster.network().memories().flip(at, 1 << (word % 64));
            cluster.nodes().crash(replicas[1 - damaged as usize].node);
            assert!(session.get(KEY).await.is_err());
            wait_for_all_replicas(&cluster).await;
            let session = open().await;
            let is_corrupt = |error: Error| matches!(error, Error::Corrupt { .. });
            for _ in 0..2 {
                assert!(session.get(KEY).await.is_err_and(is_corrupt));
                assert!(session.insert(KEY, b"twice").await.is_err_and(is_corrupt));
                assert!(session.update(KEY, b"new").await.is_err_and(is_corrupt));
                assert!(session.put(KEY, b"new").await.is_err_and(is_corrupt));
                assert!(session.delete(KEY).await.is_err_and(is_corrupt));
                assert!(session.get_many(&[KEY]).await.is_err_and(is_corrupt));
                let other = session.get(b"another key").await.expect("it is on two replicas");
                assert_eq!(other.as_deref(), Some(&b"there"[..]));
            }
        });
    }
}

/// No replica of the pair is whole. Every operation soon fails with an error, and none treats the key as absent or as
/// another key.
// Promise DMG-2: Damage of all replicas is an error at once.
#[test]
fn damage_on_all_replicas_is_an_error_at_once() {
    for immediate in [false, true] {
        let held = held(immediate, KEY, b"value");
        (0..3).for_each(|replica| held.damage(replica, 1));
        let begun = held.cluster.sim().now();
        held.run(async {
            let store = &held.store;
            for hint in [None, Some(held.hint)] {
                let is_corrupt = |error: &Error| matches!(error, Error::Corrupt { .. });
                let found = store.search(KEY, hint).await.map(|found| found.hint());
                assert!(found.as_ref().is_err_and(is_corrupt), "{found:?}");
                let inserted = store.insert(KEY, b"x").await;
                assert!(inserted.as_ref().is_err_and(is_corrupt), "{inserted:?}");
            }
            let updated = store.update(KEY, b"x", None).await;
            assert!(matches!(updated, Err(Error::Corrupt { .. })), "{updated:?}");
            let deleted = store.delete(KEY, None).await;
            assert!(matches!(deleted, Err(Error::Corrupt { .. })), "{deleted:?}");
        });
        let took = held.cluster.sim().now() - begun;
        assert!(took < 1_000_000, "{took} ns: nothing is waited for");
        assert_eq!(held.store.stats().damage().repaired, 0);
    }
}

/// The first bytes of a damaged object that is too large to be read whole are believed only if they show the wanted
/// key. If they show another key, the object can still be that of the wanted key.
#[test]
fn the_start_of_a_large_object_does_not_make_it_anothers() {
    let value = vec![9; 3_000];
    for word in 0..(HEADER_BYTES + KEY.len() as u64).div_ceil(8) {
        for replica in 0..3 {
            let held = held(false, KEY, &value);
            held.damage(replica, word);
            held.run(async {
                let inserted = held.store.insert(KEY, b"twice").await;
                assert_eq!(inserted, Err(Error::AlreadyExists), "word {word} of {replica}");
                held.store.update(KEY, &value, None).await.unwrap();
                assert_eq!(held.get(None).await.as_deref(), Some(&value[..]));
            });
        }
    }
}

/// A slot of another key with an equal fingerprint costs a re-read only if its object is large.
#[test]
fn a_second_look_is_rare() {
    let held = held(false, KEY, b"value");
    held.run(async {
        for i in 0..300_u32 {
            let key = i.to_le_bytes();
            let _ = held.store.upsert(&key, b"x", None).await;
            let _ = held.store.update(&key, b"y", None).await;
        }
    });
    assert_eq!(held.store.stats().kind(OpKind::Update).max_phases, 4);
}

/// Operations of all kinds run while objects are damaged.
#[test]
fn operations_beside_damage_are_linearizable() {
    Seeds::of(3_000).for_each(scenarios::damage);
}

/// The index grows while objects are damaged. No entry moves to a subtable in which its key is not looked for, however
/// long the key is.
// Promise DMG-4: Splits and copies of regions beside damage lose nothing.
#[test]
fn splits_beside_damage_lose_nothing() {
    let Some(events) = for_all(1_000, damaged_splits) else { return };
    assert!(events.damaged > 3_000 && events.moved > 500, "{events:?}");
}

/// Replicas move while objects are damaged. The damage is not copied.
// Promise DMG-4
#[test]
fn moves_beside_damage_lose_nothing() {
    let Some(events) = for_all(1_000, damaged_moves) else { return };
    assert!(events.damaged > 3_000 && events.moved > 500, "{events:?}");
}
