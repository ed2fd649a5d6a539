//! Tests of the store through its public calls, over every fabric.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;

use common::{fabrics, on_every_fabric, options};
use fusee_client::{
    BatchWrite, BlockingClient, Client, FabricKind, Geometry, OpKind, Options, PutOptions,
    ReadError, ScanCursor, ScannedPair, WriteError,
};
use futures_util::future::join_all;

#[test]
fn every_operation_does_what_it_says() {
    on_every_fabric(|client| {
        assert_eq!(client.get(b"key"), Ok(None));
        assert_eq!(client.update(b"key", b"x"), Err(WriteError::NotFound));
        assert_eq!(client.delete(b"key"), Err(WriteError::NotFound));
        assert_eq!(client.insert(b"key", b"1"), Ok(()));
        assert_eq!(client.insert(b"key", b"2"), Err(WriteError::AlreadyExists));
        assert_eq!(client.get(b"key"), Ok(Some(b"1".to_vec())));
        assert_eq!(client.update(b"key", b""), Ok(()));
        assert_eq!(client.get(b"key"), Ok(Some(vec![])));
        assert_eq!(client.put(b"key", b"3"), Ok(()));
        assert_eq!(client.put(b"new", b"4"), Ok(()));
        let many = client.get_many(&["key", "absent", "new"]);
        assert_eq!(many, Ok(vec![Some(b"3".to_vec()), None, Some(b"4".to_vec())]));
        let absent = PutOptions::default().if_absent();
        let present = PutOptions::default().if_present();
        let exists = Err(WriteError::AlreadyExists);
        assert_eq!(client.put_with(b"key", b"x", absent.clone()), exists);
        assert_eq!(client.put_with(b"none", b"x", present.clone()), Err(WriteError::NotFound));
        assert_eq!(client.put_with(b"key", b"5", present), Ok(()));
        assert_eq!(client.put_with(b"third", b"6", absent), Ok(()));
        assert_eq!(client.put_with(b"new", b"7", PutOptions::default()), Ok(()));
        let many = client.get_many(&["key", "third", "new", "none"]);
        assert_eq!(
            many,
            Ok(["5", "6", "7"].map(|v| Some(v.into())).into_iter().chain([None]).collect())
        );
        assert_eq!(client.delete(b"key"), Ok(()));
        assert_eq!(client.get(b"key"), Ok(None));
        assert_eq!(client.insert(b"key", b"5"), Ok(()));
        assert_eq!(client.get(b"key"), Ok(Some(b"5".to_vec())));
    });
}

#[test]
fn a_value_is_shown_where_it_was_fetched_and_copied_into_memory_that_is_there() {
    on_every_fabric(|client| {
        client.put(b"key", b"value").unwrap();
        client.put(b"other", b"another").unwrap();
        assert_eq!(client.get_with(b"key", |value| value.map(<[u8]>::len)), Ok(Some(5)));
        assert_eq!(client.get_with(b"absent", |value| value.is_none()), Ok(true));
        // Within the callback of an operation, another operation begins and ends.
        let both = client.get_with(b"key", |value| {
            let other = client.get_with(b"other", |other| other.map(<[u8]>::to_vec));
            client.put(b"key", b"changed").unwrap();
            (value.map(<[u8]>::to_vec), other.unwrap())
        });
        assert_eq!(both, Ok((Some(b"value".to_vec()), Some(b"another".to_vec()))));
        let mut value = Vec::with_capacity(100);
        let memory = value.as_ptr();
        let get_into = |key: &[u8], value: &mut Vec<u8>| {
            client.get_with(key, |found| {
                value.clear();
                value.extend_from_slice(found.unwrap_or_default());
                found.is_some()
            })
        };
        assert_eq!(get_into(b"key", &mut value), Ok(true));
        assert_eq!((&value[..], value.as_ptr()), (&b"changed"[..], memory));
        assert_eq!(get_into(b"", &mut value), Err(ReadError::KeyEmpty));
        assert_eq!(value, b"changed", "an error leaves what was there");
        assert_eq!(get_into(b"absent", &mut value), Ok(false));
        assert!(value.is_empty() && value.as_ptr() == memory);
    });
}

#[test]
fn a_value_is_written_where_it_goes() {
    on_every_fabric(|client| {
        // The earlier write leaves more bytes in the send buffer than these values have, and none of them must appear.
        client.put(b"other", &[0xff; 900]).unwrap();
        for bytes in [0, 1, 900, 100_000] {
            client.put_from(b"key", bytes, |value| assert_eq!(value, vec![0; bytes])).unwrap();
            assert_eq!(client.get(b"key"), Ok(Some(vec![0; bytes])));
        }
        let numbers = |value: &mut [u8]| (1..).zip(value).for_each(|(n, byte)| *byte = n);
        client.put_from(b"key", 100, numbers).unwrap();
        assert_eq!(client.get(b"key"), Ok(Some((1..=100).collect())));
        // Within `fill`, another operation on the same key begins and ends, so the outer operation's hint is outdated.
        let mut calls = 0;
        client
            .put_from(b"key", 1, |value| {
                calls += 1;
                if calls == 1 {
                    client.put_from(b"key", 1, |inner| inner[0] = 7).unwrap();
                }
                value[0] = calls;
            })
            .unwrap();
        assert_eq!(client.get(b"key"), Ok(Some(vec![calls])));
        let too_many = client.view().geometry.max_value_bytes as usize + 1;
        let never = |_: &mut [u8]| panic!("it is not called");
        let refused = client.put_from(b"key", too_many, never);
        assert!(matches!(refused, Err(WriteError::ValueTooLarge { .. })), "{refused:?}");
        assert_eq!(client.put_from(b"", 1, never), Err(WriteError::KeyEmpty));
        let refused = client.put_from(b"key", usize::MAX, never);
        assert!(matches!(refused, Err(WriteError::ValueTooLarge { .. })), "{refused:?}");
    });
}

/// After a panic of `fill` the session is given up, and no reader sees a part of the value.
#[test]
fn a_panic_while_a_value_is_written_loses_nothing() {
    on_every_fabric(|client| {
        client.put(b"key", b"value").unwrap();
        for turn in 0..20 {
            let write = || client.put_from(b"key", 8, |_| panic!("in the middle"));
            catch_unwind(AssertUnwindSafe(write)).expect_err("it panics");
            assert_eq!(client.get(b"key"), Ok(Some(b"value".to_vec())), "{turn}");
        }
        client.put(b"key", b"another").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let shown =
            runtime.block_on(client.client().get_with(b"key", |value| value.map(<[u8]>::len)));
        assert_eq!(shown, Ok(Some(7)));
        let panics =
            || runtime.block_on(client.client().get_with(b"key", |_| panic!("in the middle")));
        let panicked: Result<Result<(), ReadError>, _> = catch_unwind(AssertUnwindSafe(panics));
        panicked.expect_err("it panics where it is awaited");
        assert_eq!(runtime.block_on(client.client().get(b"key")), Ok(Some(b"another".to_vec())));
    });
}

#[test]
fn many_writes_have_an_outcome_each_and_those_of_one_key_take_effect_in_their_order() {
    on_every_fabric(|client| {
        let names: Vec<String> = (0..300).map(|n| format!("key {n}")).collect();
        let puts = |value: &'static str| -> Vec<BatchWrite<'_>> {
            names.iter().map(|name| BatchWrite::put(name, value)).collect()
        };
        let inserts = |value: &'static str| -> Vec<BatchWrite<'_>> {
            names.iter().map(|name| BatchWrite::insert(name, value)).collect()
        };
        let updates = |value: &'static str| -> Vec<BatchWrite<'_>> {
            names.iter().map(|name| BatchWrite::update(name, value)).collect()
        };
        let deletes: Vec<BatchWrite<'_>> = names.iter().map(BatchWrite::delete).collect();
        let values = |client: &BlockingClient| client.get_many(&names).unwrap();
        let all = |value: &str| vec![Some(value.as_bytes().to_vec()); names.len()];
        assert_eq!(client.write_many(&inserts("1")[..200]), vec![Ok(()); 200]);
        let inserted = client.write_many(&inserts("2"));
        assert!(inserted[..200].iter().all(|outcome| *outcome == Err(WriteError::AlreadyExists)));
        assert!(inserted[200..].iter().all(Result::is_ok));
        assert_eq!(client.write_many(&puts("3")), vec![Ok(()); 300]);
        assert_eq!(values(&client), all("3"));
        assert_eq!(client.write_many(&deletes[100..]), vec![Ok(()); 200]);
        let updated = client.write_many(&updates("4"));
        assert!(updated[..100].iter().all(Result::is_ok));
        assert!(updated[100..].iter().all(|outcome| *outcome == Err(WriteError::NotFound)));
        let deleted = client.write_many(&deletes[..101]);
        assert_eq!(deleted[100], Err(WriteError::NotFound));
        assert!(deleted[..100].iter().all(Result::is_ok));
        assert_eq!(values(&client), vec![None; 300]);

        // A write that is impossible does not stop the other writes of the batch.
        let some =
            [("a", "1"), ("", "2"), ("b", "3")].map(|(key, value)| BatchWrite::put(key, value));
        assert_eq!(client.write_many(&some), [Ok(()), Err(WriteError::KeyEmpty), Ok(())]);
        // Writes of all kinds in one batch; those of one key take effect in their order.
        let mixed = [
            BatchWrite::insert("mixed", "1"),
            BatchWrite::insert("mixed", "2"),
            BatchWrite::update("mixed", "3"),
            BatchWrite::delete("a"),
            BatchWrite::delete("mixed"),
            BatchWrite::update("mixed", "4"),
            BatchWrite::put("mixed", "5"),
        ];
        let exists = Err(WriteError::AlreadyExists);
        let absent = Err(WriteError::NotFound);
        let expected = [Ok(()), exists, Ok(()), Ok(()), Ok(()), absent, Ok(())];
        assert_eq!(client.write_many(&mixed), expected);
        assert_eq!(client.get_many(&["mixed", "a"]), Ok(vec![Some(b"5".to_vec()), None]));
        let values_of_same: Vec<String> = (0..200).map(|n| n.to_string()).collect();
        let same: Vec<BatchWrite<'_>> =
            values_of_same.iter().map(|value| BatchWrite::put("same", value)).collect();
        assert_eq!(client.write_many(&same), vec![Ok(()); 200]);
        assert_eq!(client.get(b"same"), Ok(Some(b"199".to_vec())));
        assert_eq!(client.write_many(&[]), []);

        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert_eq!(client.client().write_many(&puts("5")).await, vec![Ok(()); 300]);
            assert_eq!(client.client().write_many(&updates("6")).await, vec![Ok(()); 300]);
            assert_eq!(values(&client), all("6"));
            assert_eq!(client.client().write_many(&deletes).await, vec![Ok(()); 300]);
            assert_eq!(client.client().write_many(&inserts("7")).await, vec![Ok(()); 300]);
            assert_eq!(values(&client), all("7"));
        });
    });
}

#[test]
fn keys_and_values_of_every_size_come_back() {
    on_every_fabric(|client| {
        let sizes = [1usize, 7, 8, 24, 25, 63, 64, 1000, 4096, 65_536, 200_000, 512 << 10];
        for size in sizes {
            let value: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
            let key = format!("key-{size}");
            client.insert(key.as_bytes(), &value).unwrap();
            assert_eq!(client.get(key.as_bytes()).unwrap(), Some(value));
        }
        for size in [1usize, 255, 4096, 64 << 10] {
            let key: Vec<u8> = (0..size).map(|i| (255 - i % 256) as u8).collect();
            client.insert(&key, b"of a long binary key").unwrap();
            assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"of a long binary key"[..]));
        }
    });
}

#[test]
fn bad_input_is_a_typed_error_and_loses_nothing() {
    on_every_fabric(|client| {
        client.insert(b"key", b"value").unwrap();
        let max_key = 64 << 10;
        let max_value = 512 << 10;
        let large_key = vec![1; max_key + 1];
        let key_error = WriteError::KeyTooLarge { bytes: max_key + 1, max_bytes: max_key };
        let read_error = ReadError::KeyTooLarge { bytes: max_key + 1, max_bytes: max_key };
        let large_value = vec![1; max_value + 1];
        let value_error = WriteError::ValueTooLarge { bytes: max_value + 1, max_bytes: max_value };
        assert_eq!(client.get(b""), Err(ReadError::KeyEmpty));
        assert_eq!(client.insert(b"", b"x"), Err(WriteError::KeyEmpty));
        assert_eq!(client.put(b"", b"x"), Err(WriteError::KeyEmpty));
        assert_eq!(client.get_many(&["key", ""]), Err(ReadError::KeyEmpty));
        assert_eq!(client.get(&large_key), Err(read_error));
        assert_eq!(client.delete(&large_key), Err(key_error.clone()));
        assert_eq!(client.put(&large_key, b"x"), Err(key_error));
        assert_eq!(client.update(b"key", &large_value), Err(value_error.clone()));
        assert_eq!(client.put(b"new", &large_value), Err(value_error));
        assert_eq!(client.get(b"key"), Ok(Some(b"value".to_vec())));
        assert_eq!(client.get(b"new"), Ok(None));
    });
}

#[test]
fn threads_and_tasks_share_a_client() {
    on_every_fabric(|client| {
        thread::scope(|scope| {
            for t in 0..4u32 {
                let client = client.clone();
                scope.spawn(move || {
                    for i in 0..200u32 {
                        let key = format!("{t}-{i}");
                        client.insert(key.as_bytes(), key.as_bytes()).unwrap();
                    }
                });
            }
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
        runtime.unwrap().block_on(async {
            let tasks: Vec<_> = (0..20u32)
                .map(|n| {
                    let client = client.clone();
                    tokio::spawn(async move {
                        for i in 0..10u32 {
                            let key = format!("{}-{}", n % 4, n * 10 + i);
                            let value = client.client().get(key.as_bytes()).await.unwrap();
                            assert_eq!(value.as_deref(), Some(key.as_bytes()));
                            client.client().put(key.as_bytes(), b"seen").await.unwrap();
                            let many = client.client().get_many(&[&key]).await.unwrap();
                            assert_eq!(many, [Some(b"seen".to_vec())]);
                            client.client().delete(key.as_bytes()).await.unwrap();
                            client.client().insert(key.as_bytes(), b"1").await.unwrap();
                            client.client().update(key.as_bytes(), b"2").await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

/// If a caller drops its future, the write still ends; the client does not stop in the middle of it.
#[test]
fn dropped_async_calls_still_finish() {
    let client = Client::embedded(options(FabricKind::Tcp)).unwrap().blocking();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        client.client().put(b"hot", b"0").await.unwrap();
        for i in 0..200u32 {
            let value = i.to_le_bytes();
            let write = client.client().put(b"hot", &value);
            tokio::select! { biased; _ = write => {} _ = tokio::task::yield_now() => {} }
        }
    });
    // If a dropped write had stopped half-way, its slot would be blocked, and this update would time out. The update
    // can take effect before or after the last of the dropped writes, because their results were not awaited.
    client.update(b"hot", b"last").unwrap();
    assert!(client.get(b"hot").unwrap().is_some());
}

// Promise LIN-4
#[test]
fn of_threads_inserting_one_key_exactly_one_succeeds_and_deletes_alike() {
    on_every_fabric(|client| {
        for round in 0..40u32 {
            let key = round.to_le_bytes();
            let barrier = Barrier::new(4);
            let race = |operation: &(dyn Fn() -> Result<(), WriteError> + Sync)| {
                thread::scope(|scope| {
                    let run = || {
                        barrier.wait();
                        operation()
                    };
                    let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
                    let results = threads.into_iter().map(|t| t.join().unwrap());
                    results.collect::<Vec<Result<(), WriteError>>>()
                })
            };
            let inserted = race(&|| client.insert(&key, b"x"));
            assert_eq!(inserted.iter().filter(|r| r.is_ok()).count(), 1, "{inserted:?}");
            let lost = inserted.iter().filter(|r| **r == Err(WriteError::AlreadyExists)).count();
            assert_eq!(lost, 3, "{inserted:?}");
            let deleted = race(&|| client.delete(&key));
            assert_eq!(deleted.iter().filter(|r| r.is_ok()).count(), 1, "{deleted:?}");
            let lost = deleted.iter().filter(|r| **r == Err(WriteError::NotFound)).count();
            assert_eq!(lost, 3, "{deleted:?}");
            assert_eq!(client.get(&key), Ok(None));
        }
    });
}

/// Writes of different keys compete for the few slots of a tiny index, and no key is lost.
#[test]
fn keys_racing_for_slots_are_not_lost() {
    for fabric in fabrics() {
        let mut options = options(fabric);
        options.geometry =
            Geometry { slots_per_bucket: 2, groups_per_subtable: 16, ..options.geometry };
        options.index_keys = 1;
        let client = Client::embedded(options).unwrap().blocking();
        let kept: Vec<Vec<u8>> = thread::scope(|scope| {
            let insert = |t: u8| {
                let client = client.clone();
                move || {
                    let mut kept = Vec::new();
                    for i in 0..12u8 {
                        match client.insert(&[t, i], &[t, i]) {
                            Ok(()) if i % 3 == 0 => client.delete(&[t, i]).unwrap(),
                            Ok(()) => kept.push(vec![t, i]),
                            Err(error) => assert_eq!(error, WriteError::IndexFull),
                        }
                    }
                    kept
                }
            };
            let threads: Vec<_> = (0..4).map(|t| scope.spawn(insert(t))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert!(kept.len() > 16);
        for key in kept {
            assert_eq!(client.get(&key).unwrap().as_ref(), Some(&key));
        }
    }
}

/// An index of one small subtable grows to thousands of keys, while they are read and changed.
// Promise CHG-8: The index grows on real fabrics.
#[test]
fn the_index_grows_with_its_keys() {
    const THREADS: u32 = 4;
    const KEYS: u32 = 1_500;
    for fabric in fabrics() {
        let mut options = options(fabric);
        options.geometry =
            Geometry { slots_per_bucket: 4, groups_per_subtable: 16, ..options.geometry };
        options.index_keys = 1;
        options.pool_bytes = 48 << 20;
        let client = Client::embedded(options).unwrap().blocking();
        assert_eq!(client.view().subtables.len(), 1);
        let key = |t: u32, i: u32| (u64::from(t) << 32 | u64::from(i)).to_le_bytes();
        thread::scope(|scope| {
            for t in 0..THREADS {
                let client = client.clone();
                scope.spawn(move || {
                    for i in 0..KEYS {
                        client.insert(&key(t, i), &i.to_le_bytes()).unwrap();
                        let old = i / 2;
                        let new = i.reverse_bits();
                        assert!(client.get(&key(t, old)).unwrap().is_some(), "{old} is there");
                        client.update(&key(t, i), &new.to_le_bytes()).unwrap();
                    }
                });
            }
        });
        for (t, i) in (0..THREADS).flat_map(|t| (0..KEYS).map(move |i| (t, i))) {
            let value = i.reverse_bits().to_le_bytes().to_vec();
            assert_eq!(client.get(&key(t, i)).unwrap(), Some(value));
        }
        let view = client.view();
        let slots = view.subtables.len() as u64 * view.geometry.subtable_slots();
        let load = f64::from(THREADS * KEYS) / slots as f64;
        println!("{fabric}: {} subtables, load factor {load:.2}", view.subtables.len());
        assert!(view.subtables.len() > 16 && load > 0.4, "load factor {load:.2}");
    }
}

/// Round trips per operation on real fabrics, with concurrent operations but without conflicts. (The simulator asserts
/// what they consist of.)
// Promise PHA-1
#[test]
fn phases_are_within_the_budget() {
    // Each session has its own cache, so that no session profits from hints of another.
    let apart = Options::default().with_cache_per_session(true);
    for fabric in fabrics() {
        let client =
            Client::embedded(options(fabric).with_client(apart.clone())).unwrap().blocking();
        let session = client.session().unwrap();
        let keys: Vec<String> = (0..100).map(|i| format!("key {i}")).collect();
        let each = async |op: OpKind, key: &String| match op {
            OpKind::Insert => session.insert(key.as_bytes(), b"1").await.unwrap(),
            OpKind::Update => session.update(key.as_bytes(), b"2").await.unwrap(),
            OpKind::Delete => session.delete(key.as_bytes()).await.unwrap(),
            _ => assert!(session.get(key.as_bytes()).await.unwrap().is_some()),
        };
        for op in [OpKind::Insert, OpKind::Search, OpKind::Update, OpKind::Delete] {
            session.block_on(join_all(keys.iter().map(|key| each(op, key))));
        }
        let stats = session.stats();
        let phases = |kind| {
            let sums = stats.kind(kind);
            (sums.phases as f64 / sums.operations as f64, sums.max_phases)
        };
        assert_eq!(phases(OpKind::Search), (1.0, 1));
        // Over a network, an update that is speculative takes two phases, otherwise three. All deletes are speculative.
        let (mean, most) = phases(OpKind::Update);
        assert!(most == 3 && (2.0..=3.0).contains(&mean), "update: {mean}, {most}");
        let deletes = if fabric == FabricKind::Shm { 3 } else { 2 };
        assert_eq!(phases(OpKind::Delete), (deletes.into(), deletes));
        let many = session.block_on(session.get_many(&keys)).unwrap();
        assert_eq!(many, vec![None; 100]);
        // Two concurrent inserts can choose the same free slot; then the loser waits for the winner, in further phases.
        let (mean, _) = phases(OpKind::Insert);
        assert!(mean >= 4.0, "{mean}");

        let fresh = client.session().unwrap();
        fresh.block_on(async {
            for key in &keys {
                fresh.insert(key.as_bytes(), b"1").await.unwrap();
            }
        });
        // An insert takes one more phase if the key has the same fingerprint as a neighbouring key, which is rare with
        // 100 keys in 24,576 slots.
        let inserts = *fresh.stats().kind(OpKind::Insert);
        let mean = inserts.phases as f64 / inserts.operations as f64;
        assert!((4.0..4.3).contains(&mean), "{mean}");
        let found = fresh.block_on(fresh.get_many(&keys)).unwrap();
        assert_eq!(found, vec![Some(b"1".to_vec()); 100]);
        assert_eq!(fresh.stats().kind(OpKind::SearchMany).phases, 1, "all keys in one");
        let other = client.session().unwrap();
        let found = other.block_on(other.get_many(&keys[25..75])).unwrap();
        assert_eq!(found, vec![Some(b"1".to_vec()); 50]);
        assert_eq!(other.stats().kind(OpKind::SearchMany).phases, 2, "not cached: two");
        let other = client.session().unwrap();
        other.block_on(async {
            for key in &keys[..50] {
                other.get(key.as_bytes()).await.unwrap();
            }
            for key in &keys[50..75] {
                other.update(key.as_bytes(), b"2").await.unwrap();
            }
            for key in &keys[75..] {
                other.delete(key.as_bytes()).await.unwrap();
            }
        });
        let stats = other.stats();
        assert_eq!(stats.kind(OpKind::Search).max_phases, 2);
        assert_eq!(stats.kind(OpKind::Update).max_phases, 4);
        assert_eq!(stats.kind(OpKind::Delete).max_phases, 4);
    }
}

/// Over a network, a session uses hints of everything that other sessions of its client have seen and written.
#[test]
fn sessions_of_a_client_share_an_index_cache_over_a_network() {
    on_every_fabric(|client| {
        let keys: Vec<String> = (0..50).map(|i| format!("key {i}")).collect();
        let writer = client.session().unwrap();
        let reader = client.session().unwrap();
        for round in 0..3u8 {
            writer.block_on(async {
                for key in &keys {
                    writer.put(key.as_bytes(), &[round]).await.unwrap();
                }
            });
            let found = reader.block_on(reader.get_many(&keys)).unwrap();
            assert_eq!(found, vec![Some(vec![round]); 50]);
        }
        // Over shared memory each session has its own cache, so the writer has changed keys that the reader had cached.
        let expected = if client.fabric() == FabricKind::Shm { 6 } else { 3 };
        assert_eq!(reader.stats().kind(OpKind::SearchMany).phases, expected);
        assert_eq!((writer.cache_stats().wrong, writer.cache_stats().accesses), (0, 150));
    });
}

/// Over a network, with as many memory nodes as replicas of slots and of objects, a session takes two phases to update
/// or delete a key that it has just seen.
// Promise PHA-3: Speculative writes take two phases over a network.
#[test]
fn speculations_take_two_phases_over_a_network() {
    for (fabric, expected) in [(FabricKind::Tcp, 2), (FabricKind::Shm, 3)] {
        let options = options(fabric).with_data_replicas(3);
        let client = Client::embedded(options).unwrap().blocking();
        let session = client.session().unwrap();
        session.block_on(async {
            for i in 0..20u32 {
                let key = i.to_le_bytes();
                session.insert(&key, b"1").await.unwrap();
                session.update(&key, b"2").await.unwrap();
                assert_eq!(session.get(&key).await.unwrap(), Some(b"2".to_vec()));
                session.put(&key, b"3").await.unwrap();
                session.delete(&key).await.unwrap();
                assert_eq!(session.get(&key).await.unwrap(), None);
            }
        });
        let stats = session.stats();
        // A new view or epoch between two operations costs additional phases; both are rare.
        for kind in [OpKind::Update, OpKind::Upsert, OpKind::Delete] {
            let sums = stats.kind(kind);
            assert!(sums.phases.abs_diff(20 * expected) <= 4, "{fabric:?}, {kind:?}: {sums:?}");
        }
    }
}

/// Sessions are opened and closed one after the other; later sessions get the memory that earlier ones did not use.
/// Their values are so large that each session takes one of the largest blocks, as long as there are any.
#[test]
fn short_sessions_do_not_eat_the_pool() {
    let mut options = options(FabricKind::Shm);
    options.pool_bytes = 18 << 20;
    let client = Client::embedded(options).unwrap().blocking();
    let value = vec![7; 100 << 10];
    let usage = client.admin().usage();
    let bytes: u64 = usage.into_iter().map(|(_, usage)| usage.unwrap().led_bytes).sum();
    let blocks = bytes / client.view().geometry.block_bytes;
    for i in 0..3 * blocks {
        let session = client.session().unwrap();
        session.block_on(session.put(&i.to_le_bytes(), &value)).unwrap();
    }
    for i in 0..3 * blocks {
        assert_eq!(client.get(&i.to_le_bytes()).unwrap().as_ref(), Some(&value));
    }
}

// Promise MEM-23
#[test]
fn a_full_pool_is_a_typed_error_and_loses_nothing() {
    on_every_fabric(|client| {
        let value = vec![7; 400 << 10];
        let mut n = 0u32;
        let error = loop {
            match client.insert(&n.to_le_bytes(), &value) {
                Ok(()) => n += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error, WriteError::OutOfMemory);
        assert!(n > 50, "{n}");
        for i in 0..n {
            assert_eq!(client.get(&i.to_le_bytes()).unwrap().as_ref(), Some(&value));
        }
        assert_eq!(client.update(&0u32.to_le_bytes(), &value), Err(WriteError::OutOfMemory));
        assert_eq!(client.get(&0u32.to_le_bytes()).unwrap().as_ref(), Some(&value));
    });
}

#[test]
fn deletes_make_room_in_a_full_pool() {
    on_every_fabric(|client| {
        let value = vec![7; 100 << 10];
        let name = |i: u32| i.to_le_bytes();
        let mut live = std::collections::BTreeSet::new();
        let mut next = 0u32;
        let mut fitted = Vec::new();
        for _ in 0..5 {
            let full = loop {
                match client.insert(&name(next), &value) {
                    Ok(()) => live.insert(next),
                    Err(error) => break error,
                };
                next += 1;
            };
            assert_eq!(full, WriteError::OutOfMemory);
            fitted.push(live.len());
            let first = *live.first().unwrap();
            assert_eq!(client.insert(&name(first), &value), Err(WriteError::AlreadyExists));
            assert_eq!(client.update(&name(next), &value), Err(WriteError::NotFound));
            assert_eq!(client.delete(&name(next)), Err(WriteError::NotFound));
            // Another session runs the deletes. It has no memory at all yet.
            let session = client.session().unwrap();
            for i in live.iter().copied().step_by(2) {
                session.block_on(session.delete(&name(i))).unwrap();
            }
            let deleted: Vec<u32> = live.iter().copied().step_by(2).collect();
            deleted.iter().for_each(|i| assert!(live.remove(i)));
            for i in &live {
                assert_eq!(client.get(&name(*i)).unwrap().as_ref(), Some(&value));
            }
        }
        let least = *fitted.iter().min().unwrap();
        assert!(fitted[0] > 200 && least * 10 >= fitted[0] * 9, "{fitted:?}");
    });
}

// Promise MEM-21: Idle sessions hand on memory that they do not need.
#[test]
fn an_idle_session_hands_on_what_it_does_not_need() {
    on_every_fabric(|client| {
        let value = vec![7; 100 << 10];
        let first = client.session().unwrap();
        let second = client.session().unwrap();
        let fill = |session: &fusee_client::Session, from: u32| {
            let all = (from..).take_while(|i| {
                let result = session.block_on(session.insert(&i.to_le_bytes(), &value));
                assert!(matches!(result, Ok(()) | Err(WriteError::OutOfMemory)), "{result:?}");
                result.is_ok()
            });
            all.count() as u32
        };
        let fitted = fill(&first, 0);
        assert!(fitted > 200);
        for i in 0..fitted {
            second.block_on(second.delete(&i.to_le_bytes())).unwrap();
        }
        // The second session gets this memory from the first session, which is open and idle.
        let again = fill(&second, fitted);
        assert!(again * 10 >= fitted * 9, "{again} of {fitted}");
        for i in 0..fitted + again {
            let expected = (i >= fitted).then_some(&value);
            assert_eq!(client.get(&i.to_le_bytes()).unwrap().as_ref(), expected);
        }
        // The first session continues with the memory that it still has.
        assert_eq!(first.block_on(first.delete(&fitted.to_le_bytes())), Ok(()));
        for i in fitted + 1..fitted + 100 {
            second.block_on(second.delete(&i.to_le_bytes())).unwrap();
        }
        assert_eq!(first.block_on(first.insert(b"more", &value)), Ok(()));
    });
}

#[test]
fn every_replication_factor_works() {
    for replicas in 1..=5 {
        let options = options(FabricKind::Shm)
            .with_memory_nodes(5)
            .with_index_replicas(replicas)
            .with_data_replicas(6 - replicas);
        let client = Client::embedded(options).unwrap().blocking();
        for i in 0..500u32 {
            client.put(&i.to_le_bytes(), &i.to_be_bytes()).unwrap();
        }
        for i in 0..500u32 {
            assert_eq!(client.get(&i.to_le_bytes()).unwrap(), Some(i.to_be_bytes().to_vec()));
        }
    }
}

#[test]
fn impossible_clusters_are_refused() {
    let too_many = options(FabricKind::Shm).with_memory_nodes(2);
    let error = Client::embedded(too_many).unwrap_err().to_string();
    assert!(error.contains("replica"), "{error}");
    let too_small = options(FabricKind::Shm).with_pool_bytes(1 << 20);
    let error = Client::embedded(too_small).unwrap_err().to_string();
    assert!(error.contains("pool"), "{error}");
    let unreachable = Client::connect("127.0.0.1:1").unwrap_err().to_string();
    assert!(unreachable.contains("127.0.0.1:1"), "{unreachable}");
}

/// Doorbell batching: a phase takes one doorbell, one signal and one completion for each memory node that it uses, and
/// no verb has to wait for another one.
// Promise FAB-9: A phase over verbs costs each node one doorbell, signal and completion.
#[test]
fn a_phase_over_verbs_is_one_doorbell_for_each_memory_node() {
    if !fabrics().contains(&FabricKind::Verbs) {
        return;
    }
    const KEYS: u64 = 50;
    // With three replicas on three nodes, every node has a replica of each slot and of each object.
    let replicas = options(FabricKind::Verbs).with_data_replicas(3);
    let client = Client::embedded(replicas).unwrap().blocking();
    let nodes = client.view().members.len() as u64;
    let session = client.session().unwrap();
    let key = |i: u64| i.to_le_bytes();
    let phases = || OpKind::ALL.iter().map(|kind| session.stats().kind(*kind).phases).sum::<u64>();
    for op in [OpKind::Insert, OpKind::Search, OpKind::Update, OpKind::Delete] {
        let counts_before = session.card_counts().unwrap();
        let phases_before = phases();
        session.block_on(async {
            for i in 0..KEYS {
                match op {
                    OpKind::Insert => session.insert(&key(i), &[1; 500]).await.unwrap(),
                    OpKind::Update => session.update(&key(i), &[2; 500]).await.unwrap(),
                    OpKind::Delete => session.delete(&key(i)).await.unwrap(),
                    _ => assert!(session.get(&key(i)).await.unwrap().is_some()),
                }
            }
        });
        let counts = session.card_counts().unwrap();
        let phases = phases() - phases_before;
        let posts = counts.posts - counts_before.posts;
        println!("{op:?}: {phases} phases, {posts} doorbells");
        assert_eq!(counts.signals - counts_before.signals, posts, "{op:?}");
        assert_eq!(counts.completions - counts_before.completions, posts, "{op:?}");
        // Only a search for memory, which reads bitmaps and seals blocks in one phase, has WRITEs that must not pass
        // its READs.
        let searching = session.stats().kind(OpKind::Reclaim).phases;
        assert!(counts.waits <= searching * nodes, "{op:?}: {} verbs held back", counts.waits);
        if op == OpKind::Search {
            assert_eq!((phases, posts), (KEYS, KEYS), "a hint: one phase, at one node");
        } else {
            assert!(posts > phases && posts <= phases * nodes, "{op:?}: {posts}, {phases}");
        }
    }
}

fn scanned(
    client: &BlockingClient,
    cursor: &mut ScanCursor,
    pieces: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    for _ in 0..pieces {
        if cursor.is_done() {
            break;
        }
        let show = |pair: ScannedPair<'_>| pairs.push((pair.key.to_vec(), pair.value.to_vec()));
        assert_eq!(client.scan(cursor, show), Ok(0), "nothing is damaged");
    }
    pairs
}

#[test]
fn a_scan_that_one_session_begins_another_one_ends() {
    on_every_fabric(|client| {
        let all: Vec<(Vec<u8>, Vec<u8>)> = (0..2000_u32)
            .map(|n| (format!("key {n}").into_bytes(), vec![n as u8; (n % 700) as usize]))
            .collect();
        let puts: Vec<BatchWrite<'_>> =
            all.iter().map(|(key, value)| BatchWrite::put(key, value)).collect();
        for outcome in client.write_many(&puts) {
            outcome.unwrap();
        }
        let mut cursor = ScanCursor::start();
        let mut found = scanned(&client, &mut cursor, 3);
        assert!(!found.is_empty() && found.len() < all.len());
        let written = cursor.to_string();
        let others = thread::spawn({
            let client = client.clone();
            move || scanned(&client, &mut written.parse().unwrap(), usize::MAX)
        });
        found.extend(others.join().unwrap());
        found.sort();
        let mut all = all;
        all.sort();
        assert!(found == all, "each pair once: {} of {}", found.len(), all.len());
        assert_eq!(scanned(&client, &mut ScanCursor::start(), usize::MAX).len(), all.len());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut found = Vec::new();
        let mut cursor = ScanCursor::start();
        runtime.block_on(async {
            while !cursor.is_done() {
                let show =
                    |pair: ScannedPair<'_>| found.push((pair.key.to_vec(), pair.value.to_vec()));
                assert_eq!(client.client().scan(&mut cursor, show).await, Ok(0));
            }
        });
        found.sort();
        assert!(found == all, "async scans show the same: {} of {}", found.len(), all.len());
    });
}

/// A program that spends time on a scanned pair does not delay anything that waits for all sessions, such as the split
/// of a full index.
#[test]
fn who_looks_at_scanned_pairs_does_not_hold_up_the_cluster() {
    let mut options = options(FabricKind::Shm);
    options.index_keys = 1;
    let client = Client::embedded(options).unwrap().blocking();
    client.put(b"first", b"value").unwrap();
    let mut cursor = ScanCursor::start();
    let mut written = 0;
    while !cursor.is_done() {
        let show = |_: ScannedPair<'_>| {
            let keys = if written == 0 { 0..60_000_u32 } else { 0..0 };
            for n in keys {
                client.insert(&n.to_le_bytes(), b"x").unwrap();
                written += 1;
            }
        };
        client.scan(&mut cursor, show).unwrap();
    }
    assert_eq!(written, 60_000);
    assert!(client.view().subtables.len() > 1, "it has grown");
}

/// Returns a key of 64 bytes; the keys of all numbers have the same xxh3-128 hash with seed 0, which the index once
/// used. Such keys can be computed, because the parts of that hash cancel out.
fn of_one_xxh3(number: u64) -> Vec<u8> {
    // Returns a word of the hash's secret, with which a key of 64 bytes is combined.
    let word = |at: usize| {
        const SECRET: [u8; 64] = [
            0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21,
            0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4,
            0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a,
            0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e,
            0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
        ];
        u64::from_le_bytes(SECRET[at..at + 8].try_into().unwrap())
    };
    let low = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let high = number;
    let fourth = (word(48).wrapping_add(high) ^ 0x1234_5678_9abc_def0).wrapping_sub(word(16));
    let second = (word(32).wrapping_add(low) ^ 0x0fed_cba9_8765_4321).wrapping_sub(word(0));
    let words = [word(0), second, word(32), low, word(48), high, word(16), fourth];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

// Promise SEC-20: Strangers choose no colliding keys; the hash key stays secret.
#[test]
fn keys_of_one_xxh3_hash_are_keys_like_any_others() {
    let hash = |key: &[u8]| twox_hash::XxHash3_128::oneshot(key);
    let keys: Vec<Vec<u8>> = (0..200).map(of_one_xxh3).collect();
    assert!(keys.iter().all(|key| hash(key) == hash(&keys[0])), "they are no test of anything");
    let client = Client::embedded(options(FabricKind::Shm)).unwrap().blocking();
    let before = client.view();
    for key in &keys {
        client.insert(key, &key[..8]).unwrap();
    }
    assert!(keys.iter().all(|key| client.get(key) == Ok(Some(key[..8].to_vec()))));
    assert_eq!(client.view().number, before.number, "the index has not grown for them");
    let other = Client::embedded(options(FabricKind::Shm)).unwrap().blocking();
    assert_ne!(other.view().hash_key, before.hash_key, "another cluster has another secret");
}
