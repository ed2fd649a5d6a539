//! Tests of clients in conflict, under the interleavings of a thousand runs: 200 seeds for each number of index
//! replicas. The index is so small that clients compete for its slots.
//!
//! At every change of a primary's slot, the cluster itself checks that no key is live twice and that every live entry
//! leads to a complete object.

// Promise LIN-7: Index replicas agree when nothing runs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::error::Error;
use fusee_core::store::Hint;
use fusee_core::view::Geometry;
use fusee_sim::check::check_quiescent;
use fusee_sim::{ClusterOptions, Executor, Sim, SimClient, SimCluster};

const SEEDS: u64 = 200;
const MAX_EVENTS: u64 = 2_000_000;

/// Runs `scenario` for every number of index replicas from 1 to 5, and for many seeds.
fn for_all(mut scenario: impl FnMut(&Sim, &SimCluster)) {
    for index_replicas in 1..=5 {
        let options =
            ClusterOptions { memory_nodes: 5, index_replicas, ..ClusterOptions::default() };
        for seed in 0..SEEDS {
            let sim = Sim::new(seed);
            let cluster = SimCluster::new(&sim, &options);
            let run = std::panic::AssertUnwindSafe(|| scenario(&sim, &cluster));
            if let Err(panic) = std::panic::catch_unwind(run) {
                eprintln!("failed with seed {seed}, {index_replicas} index replicas");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn clients(cluster: &SimCluster, n: usize) -> Vec<SimClient> {
    (0..n).map(|_| cluster.client()).collect()
}

/// Runs all tasks to their ends. Then checks that the replicas agree, that every entry leads into a block with an
/// owner, and that the keys in memory are those that the observed changes have left.
fn run(mut executor: Executor<'_>, cluster: &SimCluster) {
    executor.run(MAX_EVENTS, || ());
    drop(executor);
    check_quiescent(cluster, &BTreeMap::new());
    cluster.checks().live_keys();
}

/// Returns the bytes of blocks that sessions own.
fn bytes_granted(cluster: &SimCluster) -> u64 {
    let granted = |node| match cluster.peek_node(node, NodeRequest::Usage) {
        Some(NodeReply::Usage(usage)) => usage.led_bytes_owned,
        other => panic!("{node} answers {other:?}"),
    };
    cluster.nodes().processes().into_iter().map(|(node, _)| granted(node)).sum()
}

// Promise LIN-4: Exactly one of a key's rival INSERTs wins.
#[test]
fn of_concurrent_inserts_of_one_key_exactly_one_succeeds() {
    for_all(|sim, cluster| {
        let stores = clients(cluster, 4);
        let results = RefCell::new(Vec::new());
        let mut executor = Executor::new(sim);
        for (i, store) in stores.iter().enumerate() {
            let results = &results;
            executor.spawn(store.process, async move {
                let result = store.insert(b"key", &[i as u8]).await;
                results.borrow_mut().push((i, result.map(drop)));
            });
        }
        run(executor, cluster);
        let results = results.into_inner();
        let winners: Vec<_> = results.iter().filter(|(_, r)| r.is_ok()).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        let lost = results.iter().filter(|(_, r)| *r == Err(Error::AlreadyExists)).count();
        assert_eq!(lost, 3, "{results:?}");
        assert_eq!(cluster.checks().live_keys(), [b"key"]);
        let value = Cell::new(None);
        let mut executor = Executor::new(sim);
        executor.spawn(stores[0].process, async {
            let found = stores[0].search(b"key", None).await.unwrap();
            value.set(found.value().map(|v| v[0]));
        });
        run(executor, cluster);
        assert_eq!(value.get(), Some(winners[0].0 as u8));
    });
}

// Promise LIN-5: Of concurrent DELETEs exactly one reports success.
#[test]
fn of_concurrent_deletes_exactly_one_reports_success() {
    for_all(|sim, cluster| {
        let stores = clients(cluster, 3);
        let hint = Cell::new(None);
        let mut executor = Executor::new(sim);
        executor.spawn(stores[0].process, async {
            let place = stores[0].insert(b"key", b"value").await.unwrap().place;
            hint.set(place.map(Hint::uncertain))
        });
        run(executor, cluster);
        let results = RefCell::new(Vec::new());
        let mut executor = Executor::new(sim);
        for (i, store) in stores.iter().enumerate() {
            let results = &results;
            let hint = hint.get().filter(|_| i > 0);
            executor.spawn(store.process, async move {
                let result = store.delete(b"key", hint).await;
                results.borrow_mut().push(result);
            });
        }
        run(executor, cluster);
        let results = results.into_inner();
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1, "{results:?}");
        assert_eq!(results.iter().filter(|r| **r == Err(Error::NotFound)).count(), 2);
        assert!(cluster.checks().live_keys().is_empty());
    });
}

/// Clients insert keys that compete for the same few slots, and delete some of these keys again. No other key is lost.
// Promise LIN-6: No key that races for a slot is lost.
#[test]
fn of_different_keys_racing_for_one_slot_none_is_lost() {
    for_all(|sim, cluster| {
        let stores = clients(cluster, 4);
        let mut executor = Executor::new(sim);
        for (i, store) in stores.iter().enumerate() {
            executor.spawn(store.process, async move {
                let kept = [b'k', i as u8];
                let gone = [b'g', i as u8];
                store.insert(&gone, b"x").await.unwrap();
                store.insert(&kept, b"x").await.unwrap();
                store.delete(&gone, None).await.unwrap();
            });
        }
        run(executor, cluster);
        let mut keys = cluster.checks().live_keys();
        keys.sort();
        assert_eq!(keys, (0..4).map(|i| vec![b'k', i]).collect::<Vec<_>>());
    });
}

/// UPDATEs and a DELETE of one key run concurrently. No UPDATE undoes the DELETE or brings the key back, so the results
/// fit one order.
#[test]
fn updates_and_deletes_of_one_key_have_an_order() {
    for_all(|sim, cluster| {
        let stores = clients(cluster, 4);
        let mut executor = Executor::new(sim);
        executor.spawn(stores[3].process, async {
            stores[3].insert(b"key", b"0").await.map(drop).unwrap()
        });
        run(executor, cluster);
        let results = RefCell::new(BTreeMap::new());
        let mut executor = Executor::new(sim);
        for (i, store) in stores.iter().take(3).enumerate() {
            let results = &results;
            executor.spawn(store.process, async move {
                let result = match i {
                    0 => store.delete(b"key", None).await.map(drop),
                    _ => store.update(b"key", &[b'0' + i as u8], None).await.map(drop),
                };
                results.borrow_mut().insert(i, result);
            });
        }
        run(executor, cluster);
        let results = results.into_inner();
        // No INSERT follows, so the DELETE succeeds, and every successful UPDATE came before it.
        assert_eq!(results[&0], Ok(()));
        assert!(cluster.checks().live_keys().is_empty(), "{results:?}");
        for i in [1, 2] {
            assert!(matches!(results[&i], Ok(()) | Err(Error::NotFound)), "{results:?}");
        }
    });
}

/// For each key, the number of acknowledged INSERTs minus that of acknowledged DELETEs is 1 if the key is live, else 0.
#[test]
fn inserts_and_deletes_alternate_on_every_key() {
    for_all(|sim, cluster| {
        let stores = clients(cluster, 3);
        let balance = RefCell::new(BTreeMap::<Vec<u8>, i64>::new());
        let mut executor = Executor::new(sim);
        for store in &stores {
            let balance = &balance;
            executor.spawn(store.process, async move {
                for _ in 0..6 {
                    let key = vec![b'a' + sim.rng().below(2) as u8];
                    let (result, change) = match sim.rng().below(4) {
                        0 | 1 => (store.insert(&key, b"x").await.map(drop), 1),
                        2 => (store.delete(&key, None).await.map(drop), -1),
                        _ => (store.update(&key, b"y", None).await.map(drop), 0),
                    };
                    match result {
                        Ok(()) => *balance.borrow_mut().entry(key).or_default() += change,
                        Err(Error::AlreadyExists | Error::NotFound) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        run(executor, cluster);
        let live = cluster.checks().live_keys();
        for (key, balance) in balance.into_inner() {
            assert_eq!(balance, i64::from(live.contains(&key)), "{key:?}");
        }
    });
}

/// Readers of a key that is updated all the time never find it absent, and never see its versions decrease.
#[test]
fn readers_see_every_update_in_order() {
    for_all(|sim, cluster| {
        let stores = clients(cluster, 3);
        let done = Cell::new(false);
        let mut executor = Executor::new(sim);
        executor.spawn(stores[0].process, async {
            stores[0].insert(b"key", &[0; 100]).await.map(drop).unwrap()
        });
        run(executor, cluster);
        let mut executor = Executor::new(sim);
        executor.spawn(stores[0].process, async {
            for version in 1..=20u8 {
                stores[0].update(b"key", &[version; 100], None).await.unwrap();
            }
            done.set(true);
        });
        for store in &stores[1..] {
            let done = &done;
            executor.spawn(store.process, async move {
                let mut last = 0;
                let mut hint = None;
                while !done.get() {
                    let found = store.search(b"key", hint).await.unwrap();
                    let value = found.value().expect("the key is never absent");
                    assert!(value.len() == 100 && value.iter().all(|b| *b == value[0]), "torn");
                    assert!(value[0] >= last, "version {} after {last}", value[0]);
                    (last, hint) = (value[0], found.hint());
                }
            });
        }
        run(executor, cluster);
    });
}

/// UPSERTs and DELETEs of one key run concurrently. Every UPSERT succeeds.
#[test]
fn upserts_never_fail() {
    for_all(|sim, cluster| {
        let stores = clients(cluster, 4);
        let mut executor = Executor::new(sim);
        for (i, store) in stores.iter().enumerate() {
            executor.spawn(store.process, async move {
                for n in 0..4 {
                    if i == 0 {
                        let _ = store.delete(b"key", None).await;
                    } else {
                        store.upsert(b"key", &[n], None).await.unwrap();
                    }
                }
            });
        }
        run(executor, cluster);
    });
}

// Promise MEM-23: Full pool, full index: typed errors, nothing lost.
#[test]
fn a_full_index_is_an_error_and_loses_nothing() {
    for_all(|sim, cluster| {
        let store = cluster.client();
        let inserted = RefCell::new(Vec::new());
        let mut executor = Executor::new(sim);
        executor.spawn(store.process, async {
            for i in 0..40u8 {
                match store.insert(&[i], &[i]).await {
                    Ok(_) => inserted.borrow_mut().push(vec![i]),
                    // No keeper runs here, so the session does not learn of a larger index.
                    Err(Error::IndexFull | Error::GaveUp { waiting_for: "a larger index", .. }) => {
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let keys = inserted.borrow().clone();
            for key in &keys {
                assert_eq!(store.search(key, None).await.unwrap().value(), Some(&key[..]));
            }
        });
        run(executor, cluster);
        let mut live = cluster.checks().live_keys();
        live.sort();
        assert!(live.len() >= 8 && live.len() <= 12);
        assert_eq!(live, inserted.into_inner());
    });
}

#[test]
fn a_full_pool_is_an_error_and_loses_nothing() {
    for index_replicas in [1, 3] {
        let geometry = Geometry {
            region_bytes: 1 << 16,
            block_bytes: 1 << 14,
            groups_per_subtable: 64,
            ..ClusterOptions::default().geometry
        };
        // Each node has room for one region and the index, so all nodes together have room for one replicated region.
        let pool_bytes = geometry.region_bytes + (1 << 13);
        let options =
            ClusterOptions { index_replicas, geometry, pool_bytes, ..ClusterOptions::default() };
        let sim = Sim::new(7);
        let cluster = SimCluster::new(&sim, &options);
        assert_eq!(cluster.view().regions.len(), 1);
        let store = cluster.client();
        let mut executor = Executor::new(&sim);
        executor.spawn(store.process, async {
            let mut n = 0u32;
            let error = loop {
                match store.insert(&n.to_le_bytes(), &[n as u8; 980]).await {
                    Ok(_) => n += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error, Error::OutOfMemory);
            // 3 blocks of 16 KiB, one of 8 KiB and one of 4 KiB, with objects of 1024 bytes.
            assert_eq!(n, 3 * 15 + 7 + 3);
            for i in 0..n {
                let found = store.search(&i.to_le_bytes(), None).await.unwrap();
                assert_eq!(found.value(), Some(&[i as u8; 980][..]));
            }
            assert_eq!(store.update(b"\0\0\0\0", &[1; 980], None).await, Err(Error::OutOfMemory));
            assert_eq!(store.search(b"\0\0\0\0", None).await.unwrap().value(), Some(&[0; 980][..]));
        });
        run(executor, &cluster);
    }
}

/// The first of several concurrent operations of a session asks for a block, and the other operations use the same
/// block.
#[test]
fn operations_side_by_side_take_one_block() {
    let sim = Sim::new(9);
    let geometry = Geometry { groups_per_subtable: 64, ..ClusterOptions::default().geometry };
    let cluster = SimCluster::new(&sim, &ClusterOptions { geometry, ..ClusterOptions::default() });
    let store = cluster.client();
    let mut executor = Executor::new(&sim);
    for i in 0..50u8 {
        let store = &store;
        executor
            .spawn(store.process, async move { store.insert(&[i], b"x").await.map(drop).unwrap() });
    }
    run(executor, &cluster);
    assert_eq!(bytes_granted(&cluster), 1 << 12);
}

/// UPDATEs and INSERTs that fail use up no memory: their objects were never visible, and are reused after an epoch.
#[test]
fn operations_that_find_nothing_to_do_leak_nothing() {
    let sim = Sim::new(3);
    let geometry = Geometry {
        block_bytes: 1 << 14,
        max_value_bytes: 4096,
        ..ClusterOptions::default().geometry
    };
    let cluster = SimCluster::new(&sim, &ClusterOptions { geometry, ..ClusterOptions::default() });
    let store = cluster.client();
    let mut executor = Executor::new(&sim);
    executor.spawn(store.process, async {
        store.insert(b"there", &[1; 4000]).await.unwrap();
        // Acts like a keeper whose heartbeats the master answers at once: all operations so far have ended everywhere.
        let pass = |number| {
            store.session.gate().questions.asks(number);
            store.session.gate().questions.tell_passed(number, number);
        };
        for n in 1..1000 {
            pass(2 * n);
            let missing = store.update(b"missing", &[1; 4000], None).await;
            assert_eq!(missing, Err(Error::NotFound));
            pass(2 * n + 1);
            let existing = store.insert(b"there", &[2; 4000]).await;
            assert_eq!(existing, Err(Error::AlreadyExists));
        }
        assert_eq!(store.search(b"there", None).await.unwrap().value(), Some(&[1; 4000][..]));
    });
    run(executor, &cluster);
    assert_eq!(
        bytes_granted(&cluster),
        1 << 14,
        "one object stays, two are written again and again"
    );
}

#[test]
fn a_dead_memory_node_is_a_typed_error() {
    let sim = Sim::new(5);
    let cluster = SimCluster::new(&sim, &ClusterOptions::default());
    let store = cluster.client();
    let mut executor = Executor::new(&sim);
    executor
        .spawn(store.process, async { store.insert(b"key", b"value").await.map(drop).unwrap() });
    run(executor, &cluster);
    let primary = cluster.view().subtables[0].primary().node;
    cluster.nodes().crash(primary);
    let mut executor = Executor::new(&sim);
    executor.spawn(store.process, async {
        let error = store.search(b"key", None).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        let error = store.update(b"key", b"2", None).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    });
    executor.run(MAX_EVENTS, || ());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run_once = |seed| {
        let sim = Sim::new(seed);
        let cluster = SimCluster::new(&sim, &ClusterOptions::default());
        let stores = clients(&cluster, 4);
        let mut executor = Executor::new(&sim);
        for (i, store) in stores.iter().enumerate() {
            executor.spawn(store.process, async move {
                drop(store.insert(b"key", &[i as u8]).await);
            });
        }
        (executor.run(MAX_EVENTS, || ()), sim.now(), sim.trace().digest())
    };
    assert_eq!(run_once(11), run_once(11));
    assert!((0..20).filter(|seed| *seed != 11).all(|seed| run_once(seed) != run_once(11)));
}
