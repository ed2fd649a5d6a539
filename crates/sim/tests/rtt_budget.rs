//! Tests of the number of phases of each operation without conflicts. A phase is one network round trip, so these
//! numbers determine the latency of the store (P §4.3, §4.6).

// Promise PHA-1: Operations keep to their phases.

use std::ops::RangeInclusive;
use std::time::Duration;

use fusee_core::data::{Orientation, Redundancy, RedundancyError, RedundancyRules};
use fusee_core::erasure::Coding;
use fusee_core::error::Error;
use fusee_core::race::IntoKey;
use fusee_core::stats::{OpKind, Stats};
use fusee_core::store::{Hint, ScanCursor, ScanLimits, Transition, WriteRequest, WriteResult};
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Sim, SimCluster, SimStore};

/// Returns options with so large an index that fingerprints hardly collide.
fn options(index_replicas: u8) -> ClusterOptions {
    let geometry = Geometry {
        slots_per_bucket: 8,
        groups_per_subtable: 64,
        ..ClusterOptions::default().geometry
    };
    ClusterOptions { memory_nodes: 5, index_replicas, geometry, ..ClusterOptions::default() }
}

fn run(index_replicas: u8, scenario: impl AsyncFnOnce(&SimStore)) -> Stats {
    let sim = Sim::new(1);
    let cluster = SimCluster::new(&sim, &options(index_replicas));
    let store = cluster.client();
    cluster.block_on(store.process, scenario(&store));
    store.stats()
}

async fn write<'k>(store: &SimStore, request: WriteRequest<'_, impl IntoKey<'k>>) -> WriteResult {
    store.write(request).await.expect("it can be written")
}

fn phases(stats: &Stats, kind: OpKind) -> u32 {
    let sums = stats.kind(kind);
    assert_eq!(sums.phases, u64::from(sums.max_phases) * sums.operations, "all the same");
    sums.max_phases
}

#[test]
fn search_takes_1_phase_on_a_hit_and_2_on_a_miss() {
    for replicas in 1..=5 {
        let stats = run(replicas, async |store| {
            store.insert(b"key", b"value").await.unwrap();
            assert_eq!(store.search(b"key", None).await.unwrap().value(), Some(&b"value"[..]));
        });
        assert_eq!(phases(&stats, OpKind::Search), 2);
        let stats = run(replicas, async |store| {
            let hint = store.insert(b"key", b"value").await.unwrap().place;
            assert!(hint.is_some());
            let found = store.search(b"key", hint).await.unwrap();
            assert_eq!(found.value(), Some(&b"value"[..]));
            assert_eq!(found.hint(), hint);
        });
        assert_eq!(phases(&stats, OpKind::Search), 1);
    }
}

#[test]
fn search_of_an_absent_key_takes_1_phase() {
    let stats = run(3, async |store| {
        assert_eq!(store.search(b"absent", None).await.unwrap().value(), None);
    });
    assert_eq!(phases(&stats, OpKind::Search), 1);
}

#[test]
fn a_piece_of_a_scan_takes_2_phases_and_1_where_nothing_is() {
    let stats = run(3, async |store| {
        store.insert(b"key", b"value").await.unwrap();
        let mut cursor = ScanCursor::start();
        let mut shown = 0;
        while !cursor.is_done() {
            assert_eq!(
                store.scan(&mut cursor, ScanLimits::of_slots(10_000), |_| shown += 1).await,
                Ok(0)
            );
        }
        assert_eq!(shown, 1);
    });
    let scan = stats.kind(OpKind::Scan);
    assert_eq!((scan.max_phases, scan.phases), (2, scan.operations + 1));
}

#[test]
fn a_stale_hint_is_followed() {
    let stats = run(3, async |store| {
        let old = store.insert(b"key", b"1").await.unwrap().place;
        let new = store.update(b"key", b"2", old).await.unwrap().place;
        let found = store.search(b"key", old).await.unwrap();
        assert_eq!((found.value(), found.hint()), (Some(&b"2"[..]), new));
        store.delete(b"key", old).await.unwrap();
        assert_eq!(store.search(b"key", new).await.unwrap().value(), None);
        assert_eq!(store.update(b"key", b"3", new).await, Err(Error::NotFound));
    });
    assert_eq!(stats.kind(OpKind::Search).phases, 2 + 2, "follow the slot; slot empty, buckets");
    assert_eq!(stats.kind(OpKind::Delete).max_phases, 4, "a stale hint costs what a miss costs");
}

#[test]
fn insert_takes_4_phases_with_its_duplicate_check() {
    for replicas in 2..=5 {
        let stats = run(replicas, async |store| {
            store.insert(b"key", b"value").await.unwrap();
            store.upsert(b"other", b"value", None).await.unwrap();
        });
        assert_eq!(phases(&stats, OpKind::Insert), 4, "{replicas} replicas");
        assert_eq!(phases(&stats, OpKind::Upsert), 4, "{replicas} replicas");
    }
}

#[test]
fn insert_takes_3_phases_with_one_index_replica() {
    let stats = run(1, async |store| {
        store.insert(b"key", b"value").await.unwrap();
    });
    assert_eq!(phases(&stats, OpKind::Insert), 3);
}

#[test]
fn update_and_delete_take_3_phases_on_a_hit_and_4_on_a_miss() {
    for (replicas, hit, miss) in [(1, 2, 3), (2, 3, 4), (3, 3, 4), (4, 3, 4), (5, 3, 4)] {
        let stats = run(replicas, async |store| {
            let hint = store.insert(b"key", b"1").await.unwrap().place;
            let hint = store.update(b"key", b"2", hint).await.unwrap().place;
            let hint = store.upsert(b"key", b"3", hint).await.unwrap().place;
            store.delete(b"key", hint.map(Hint::uncertain)).await.unwrap();
        });
        for kind in [OpKind::Update, OpKind::Upsert, OpKind::Delete] {
            assert_eq!(phases(&stats, kind), hit, "{kind:?}, {replicas} replicas");
        }
        // A DELETE has no object, so with a certain hint it is speculative wherever memory lies.
        let stats = run(replicas, async |store| {
            let hint = store.insert(b"key", b"1").await.unwrap().place;
            store.delete(b"key", hint).await.unwrap();
        });
        assert_eq!(phases(&stats, OpKind::Delete), 2, "{replicas} replicas");
        let stats = run(replicas, async |store| {
            store.insert(b"key", b"1").await.unwrap();
            store.update(b"key", b"2", None).await.unwrap();
            store.upsert(b"key", b"3", None).await.unwrap();
            store.delete(b"key", None).await.unwrap();
        });
        for kind in [OpKind::Update, OpKind::Upsert, OpKind::Delete] {
            assert_eq!(phases(&stats, kind), miss, "{kind:?}, {replicas} replicas");
        }
    }
}

/// Returns options with only as many memory nodes as a slot or an object has replicas, so that every object is on the
/// nodes of every slot.
fn beside(index_replicas: u8, data_replicas: u8) -> ClusterOptions {
    let memory_nodes = index_replicas.max(data_replicas).into();
    ClusterOptions { memory_nodes, data_replicas, ..options(index_replicas) }
}

fn run_beside(replicas: (u8, u8), scenario: impl AsyncFnOnce(&SimStore)) -> Stats {
    let sim = Sim::new(1);
    let cluster = SimCluster::new(&sim, &beside(replicas.0, replicas.1));
    let store = cluster.client();
    cluster.block_on(store.process, scenario(&store));
    store.stats()
}

#[test]
fn a_speculation_that_is_right_takes_2_phases() {
    for replicas in [(2, 2), (3, 3), (4, 4), (5, 5)] {
        let stats = run_beside(replicas, async |store| {
            let hint = store.insert(b"key", b"1").await.unwrap().place;
            let hint = store.update(b"key", b"2", hint).await.unwrap().place;
            let found = store.search(b"key", hint).await.unwrap();
            assert_eq!(found.value(), Some(&b"2"[..]));
            let hint = store.upsert(b"key", b"3", found.hint()).await.unwrap().place;
            store.delete(b"key", hint).await.unwrap();
            assert_eq!(store.search(b"key", hint).await.unwrap().value(), None);
        });
        for kind in [OpKind::Update, OpKind::Upsert, OpKind::Delete] {
            assert_eq!(phases(&stats, kind), 2, "{kind:?}, {replicas:?} replicas");
        }
    }
}

/// With more memory nodes than replicas, after a few writes each object is on the nodes of its slot's backups, if a
/// region is there.
// Promise PHA-8: With spare memory nodes, objects move to their slots' backups.
#[test]
fn objects_come_to_lie_beside_the_backups_of_their_slots() {
    let mut lying_there = 0;
    for (memory_nodes, index_replicas, data_replicas) in
        [(3, 2, 2), (4, 2, 2), (5, 2, 2), (4, 3, 2), (4, 3, 3), (5, 3, 3)]
    {
        let options = ClusterOptions { memory_nodes, data_replicas, ..options(index_replicas) };
        let sim = Sim::new(1);
        let cluster = SimCluster::new(&sim, &options);
        let store = cluster.client();
        let keys: Vec<Vec<u8>> = (0..20).map(|n: u32| format!("key {n}").into_bytes()).collect();
        let (hints, phases) = cluster.block_on(store.process, async {
            let mut hints = Vec::new();
            for key in &keys {
                hints.push(store.insert(&key[..], b"1").await.unwrap().place);
            }
            let mut phases = Vec::new();
            for _ in 0..6 {
                let before = store.stats().kind(OpKind::Update).phases;
                for (key, hint) in keys.iter().zip(&mut hints) {
                    *hint = store.update(&key[..], b"2", *hint).await.unwrap().place;
                }
                phases.push(store.stats().kind(OpKind::Update).phases - before);
            }
            (hints, phases)
        });
        let view = cluster.view();
        let may_lie_there = |hint: &Option<Hint>| {
            let subtable = hint.expect("nobody is in the way").slot.subtable;
            view.regions.iter().any(|r| r.lies_beside(&view.subtables[subtable as usize]))
        };
        let beside = hints.iter().filter(|hint| may_lie_there(hint)).count();
        lying_there += usize::from(beside > 0);
        let least = 3 * keys.len() as u64 - beside as u64;
        // One write possibly finds the block beside the backups used up, and takes one phase more. The session gets the
        // next block there after that write.
        let is_so = phases[1..].iter().all(|phases| (least..=least + 1).contains(phases));
        assert!(is_so, "{memory_nodes} memory nodes: {phases:?}, at least {least}");
    }
    assert!(lying_there >= 3, "a region lay there in {lying_there} clusters");
}

/// If the slot's word has changed since the hint was seen, or the pair was deleted, a speculative write takes no more
/// phases than a write with an uncertain hint.
#[test]
fn a_speculation_that_is_wrong_costs_what_a_wrong_hint_costs() {
    for doubted in [false, true] {
        let stats = run_beside((3, 3), async |store| {
            let hint = |hint: Option<Hint>| if doubted { hint.map(Hint::uncertain) } else { hint };
            let old = store.insert(b"key", b"1").await.unwrap().place;
            let new = store.upsert(b"key", b"2", None).await.unwrap().place;
            let written = store.update(b"key", b"3", hint(old)).await.unwrap();
            assert!(!written.hint_held && written.place.is_some());
            store.delete(b"key", hint(new)).await.unwrap();
            assert_eq!(store.update(b"key", b"4", hint(new)).await, Err(Error::NotFound));
        });
        assert_eq!(stats.kind(OpKind::Update).phases, 4 + 2, "follow the slot; nothing there");
        assert_eq!(stats.kind(OpKind::Delete).phases, 4, "follow the slot");
    }
}

/// Without certainty there is no speculative write: not with a hint that is older than a window of epochs, and not if
/// the object is not on the nodes of the backups.
#[test]
fn what_is_not_certain_is_not_speculated() {
    let sim = Sim::new(1);
    let cluster = SimCluster::new(&sim, &beside(2, 2));
    let store = cluster.client();
    cluster.block_on(store.process, async {
        let hint = store.insert(b"key", b"1").await.unwrap().place;
        store.session.gate().publish_epoch(1 << 20);
        let hint = store.update(b"key", b"2", hint).await.unwrap().place;
        store.delete(b"key", hint).await.unwrap();
    });
    assert_eq!(phases(&store.stats(), OpKind::Update), 3, "the window is over");
    assert_eq!(phases(&store.stats(), OpKind::Delete), 2, "and here it is not");
    let stats = run_beside((3, 1), async |store| {
        let hint = store.insert(b"key", b"1").await.unwrap().place;
        store.update(b"key", b"2", hint).await.unwrap();
    });
    assert_eq!(phases(&stats, OpKind::Update), 3, "one replica cannot lie beside two backups");
}

/// A speculative UPDATE posts a WRITE of the object for every data replica, a CAS for each backup and a READ of the
/// slot, and then the CAS on the primary.
#[test]
fn a_speculation_posts_the_verbs_that_it_must() {
    let stats = run_beside((3, 3), async |store| {
        let hint = store.insert(b"key", b"1").await.unwrap().place;
        store.update(b"key", b"2", hint).await.unwrap();
    });
    let update = stats.kind(OpKind::Update);
    assert_eq!((update.verbs, update.atomics), ((3 + 2 + 1) + 1, 2 + 1));
    assert_eq!(update.bytes, (3 * 64 + 2 * 8 + 8) + 8);
}

#[test]
fn many_keys_share_their_phases() {
    let stats = run(3, async |store| {
        let mut keys = Vec::new();
        for i in 0..50u32 {
            let key = i.to_le_bytes();
            let hint = store.insert(&key, &key).await.unwrap().place;
            keys.push((key, hint.filter(|_| i % 2 == 0)));
        }
        keys.push((99u32.to_le_bytes(), None));
        let wanted: Vec<_> = keys
            .iter()
            .map(|(key, hint)| fusee_core::store::SearchKey { key: store.key(key), hint: *hint })
            .collect();
        let mut answers = vec![0; keys.len()];
        let mut check = |i: usize, value: Option<&[u8]>, _| {
            answers[i] += 1;
            assert_eq!(value, (i < 50).then_some(&keys[i].0[..]));
        };
        store.search_many(&wanted, &mut check).await.unwrap();
        assert!(answers.iter().all(|n| *n == 1));
    });
    assert_eq!(phases(&stats, OpKind::SearchMany), 2);
}

/// An UPDATE with a right hint posts READs of the slot and of the first bytes of the hint's object, and a WRITE of the
/// object for every data replica; then a CAS for each backup; then the CAS on the primary.
#[test]
fn an_update_on_a_hit_posts_the_verbs_that_it_must() {
    let stats = run(3, async |store| {
        let hint = store.insert(b"key", b"1").await.unwrap().place;
        store.update(b"key", b"2", hint).await.unwrap();
    });
    let update = stats.kind(OpKind::Update);
    assert_eq!(update.verbs, (2 + 2) + 2 + 1);
    assert_eq!(update.atomics, 2 + 1);
    assert_eq!(update.bytes, (2 * 64 + 8 + 64) + 2 * 8 + 8);
}

const CODING: (u8, u8) = (3, 2);

/// Runs a scenario in a cluster with regions for coded values. Returns the stats of the session.
fn run_coded(index_replicas: u8, scenario: impl AsyncFnOnce(&SimStore)) -> Stats {
    run_coded_with(options(index_replicas), CODING, scenario)
}

/// Runs a scenario like [`run_coded`], with this code and this number of data replicas, and with room for values of 12
/// KiB.
fn run_large(
    index_replicas: u8,
    (code, data_replicas): ((u8, u8), u8),
    scenario: impl AsyncFnOnce(&SimStore),
) -> Stats {
    let options = options(index_replicas);
    let geometry = Geometry {
        max_value_bytes: 16 << 10,
        block_bytes: 1 << 17,
        region_bytes: 1 << 20,
        ..options.geometry
    };
    let memory_nodes = u16::from(code.0 + code.1);
    let options = ClusterOptions { geometry, data_replicas, memory_nodes, ..options };
    run_coded_with(ClusterOptions { pool_bytes: 1 << 24, ..options }, code, scenario)
}

fn run_coded_with(
    options: ClusterOptions,
    code: (u8, u8),
    scenario: impl AsyncFnOnce(&SimStore),
) -> Stats {
    let sim = Sim::new(1);
    let options = ClusterOptions { lease_ms: Some(1_000), ..options };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, Duration::from_secs(1));
    let open = || cluster.open_kept(process, &keeper);
    let redundancy = Redundancy::Coded(Coding::try_from(code).unwrap());
    let scenario = async {
        // This write waits until there is a region for coded values.
        open()
            .await
            .store()
            .write(WriteRequest::insert(b"first", &[7; 1024]).placed(redundancy))
            .await
            .unwrap();
        let session = open().await;
        scenario(session.store()).await;
        session.stats()
    };
    cluster.block_on(process, scenario)
}

/// Erasure-coded values take as many phases as replicated values, except that they have no speculative writes.
// Promise RED-5: Coded values take replicated ones' phases, and their chunks' bytes.
#[test]
fn coded_values_take_the_same_phases() {
    let value = vec![7; 1000];
    let coding = Coding::try_from(CODING).unwrap();
    let redundancy = Redundancy::Coded(coding);
    for replicas in 1..=5 {
        let stats = run_coded(replicas, async |store| {
            let written =
                write(store, WriteRequest::insert(b"key", &value).placed(redundancy)).await;
            let found = store.search(b"key", None).await.unwrap();
            assert_eq!(found.value(), Some(&value[..]));
            drop(found);
            write(
                store,
                WriteRequest::update(b"key", &value).placed(redundancy).hinted(written.place),
            )
            .await;
        });
        assert_eq!(phases(&stats, OpKind::Search), 2);
        let fewer = u32::from(replicas == 1);
        assert_eq!(phases(&stats, OpKind::Insert), 4 - fewer);
        assert_eq!(phases(&stats, OpKind::Update), 3 - fewer);
        let stats = run_coded(replicas, async |store| {
            let hint =
                write(store, WriteRequest::upsert(b"key", &value).placed(redundancy)).await.place;
            let found = store.search(b"key", hint).await.unwrap();
            assert_eq!(found.value(), Some(&value[..]));
            assert_eq!(found.hint(), hint);
            drop(found);
            store.delete(b"key", hint).await.unwrap();
            assert_eq!(store.search(b"key", None).await.unwrap().value(), None);
        });
        assert_eq!(stats.kind(OpKind::Search).phases, 1 + 1, "a hit, and a miss");
    }
}

/// An UPDATE that names no redundancy keeps that of the pair. This costs nothing if the hint shows the redundancy or
/// the rules ask for the same one. Otherwise it costs one more phase.
// Promise RED-15
#[test]
fn a_write_keeps_the_redundancy_of_the_pair() {
    let value = vec![7; 1000];
    let coded = Redundancy::Coded(Coding::try_from(CODING).unwrap());
    let rules = |redundancy| RedundancyRules::from_length(0, redundancy);
    for (has, says) in [(coded, Redundancy::Replicated), (Redundancy::Replicated, coded)] {
        let wanted = rules(says).placement(value.len());
        let keeps = async |store: &SimStore, written: WriteResult| {
            let found = store.search(b"key", None).await.unwrap();
            assert_eq!((found.redundancy(), found.hint()), (Some(has), written.place));
        };
        let stats = run_coded(3, async |store| {
            let hint = write(store, WriteRequest::insert(b"key", &value).placed(has)).await.place;
            let hint = hint.map(Hint::uncertain);
            let written =
                write(store, WriteRequest::update(b"key", &value).placed(wanted).hinted(hint))
                    .await;
            assert!(written.hint_held);
            keeps(store, written).await;
        });
        assert_eq!(phases(&stats, OpKind::Update), 3, "{has}");
        let stats = run_coded(3, async |store| {
            write(store, WriteRequest::insert(b"foo", &value).placed(says)).await;
            write(store, WriteRequest::insert(b"key", &value).placed(has)).await;
            let written = write(store, WriteRequest::update(b"key", &value).placed(wanted)).await;
            keeps(store, written).await;
            let wanted = rules(has).placement(value.len());
            let written = write(store, WriteRequest::upsert(b"key", &value).placed(wanted)).await;
            keeps(store, written).await;
        });
        assert_eq!(phases(&stats, OpKind::Update), 4 + 1, "{has}");
        assert_eq!(phases(&stats, OpKind::Upsert), 4, "{has}");
        // A write that names a redundancy gets it. If the redundancy of the pair cannot be kept, the rules decide.
        run_coded(3, async |store| {
            let hint = write(store, WriteRequest::insert(b"key", &value).placed(has)).await.place;
            let named = rules(has).exactly(says);
            let hint =
                write(store, WriteRequest::upsert(b"key", &value).placed(named).hinted(hint))
                    .await
                    .place;
            let found = store.search(b"key", hint).await.unwrap();
            assert_eq!(found.redundancy(), Some(says));
            drop(found);
            let gone = write(store, WriteRequest::insert(b"gone", &value).placed(has)).await.place;
            store.delete(b"gone", gone).await.unwrap();
            let gone = gone.map(Hint::uncertain);
            write(store, WriteRequest::upsert(b"gone", &value).placed(wanted).hinted(gone)).await;
            let found = store.search(b"gone", None).await.unwrap();
            assert_eq!(found.redundancy(), Some(says), "a new pair has nothing to keep");
            drop(found);
            let wanted = rules(coded).placement(5);
            let hint =
                write(store, WriteRequest::upsert(b"key", b"short").placed(wanted).hinted(hint))
                    .await
                    .place;
            let found = store.search(b"key", hint).await.unwrap();
            assert_eq!(found.redundancy(), Some(Redundancy::Replicated));
        });
    }
}

// Promise RED-5
#[test]
fn coded_reads_and_writes_move_no_more_bytes_than_they_must() {
    let value = vec![7; 1000];
    let coding = Coding::try_from(CODING).unwrap();
    let redundancy = Redundancy::Coded(coding);
    let chunk = redundancy.class(3, value.len()).unwrap().bytes();
    let stats = run_coded(3, async |store| {
        let hint =
            write(store, WriteRequest::insert(b"key", &value).placed(redundancy)).await.place;
        let hint =
            write(store, WriteRequest::update(b"key", &value).placed(redundancy).hinted(hint))
                .await
                .place;
        assert!(store.search(b"key", hint).await.unwrap().value().is_some());
    });
    assert_eq!(stats.kind(OpKind::Search).bytes, 8 + 3 * chunk);
    let update = stats.kind(OpKind::Update).bytes;
    assert!(update >= 5 * chunk && update < 6 * chunk + 200, "{update} bytes, chunks of {chunk}");
}

/// A Move takes 4 phases with a hint and 5 without one, and no more bytes than in Table 1 of the ElasticMem paper: it
/// READs the value once, and WRITEs it once in its new redundancy.
// Promise RED-8: A Move takes 4 or 5 phases; it copies the value once.
#[test]
fn moves_take_4_phases_and_the_bytes_of_the_value() {
    moves_take_the_bytes_of_the_value(CODING, 2, 1..=5);
    moves_take_the_bytes_of_the_value((4, 2), 3, 3..=3);
}

fn moves_take_the_bytes_of_the_value(
    code: (u8, u8),
    data_replicas: u8,
    index_replicas: RangeInclusive<u8>,
) {
    let coded = Redundancy::Coded(Coding::try_from(code).unwrap());
    let k = u64::from(code.0);
    let m = u64::from(code.1);
    let r = u64::from(data_replicas);
    let bytes_of = |value: usize| -> (u64, u64) {
        [coded, Redundancy::Replicated].map(|r| r.class(3, value).unwrap().bytes()).into()
    };
    // This is the longest value that fills its size class in both redundancies.
    let fills = |value: &usize| {
        let (chunk, object) = bytes_of(*value);
        (k * chunk).max(object) as f64 <= 1.025 * *value as f64
    };
    let value = vec![7; (1 << 12..=16 << 10).rev().find(fills).expect("there is one")];
    let (chunk, object) = bytes_of(value.len());
    for replicas in index_replicas {
        for (first, then) in [(Redundancy::Replicated, coded), (coded, Redundancy::Replicated)] {
            let fewer = u32::from(replicas == 1);
            for hinted in [true, false] {
                let stats = run_large(replicas, (code, data_replicas), async |store| {
                    // From now on the session has blocks for both redundancies.
                    write(store, WriteRequest::insert(b"foo", &value).placed(then)).await;
                    let written =
                        write(store, WriteRequest::insert(b"key", &value).placed(first)).await;
                    let hint = written.place.filter(|_| hinted);
                    let (went, moved) = store.set_redundancy(b"key", then, hint).await.unwrap();
                    assert_eq!((went, moved.hint_held), (Transition::Moved, hinted));
                    assert!(moved.place.unwrap().word.is_moved());
                    let found = store.search(b"key", moved.place).await.unwrap();
                    assert_eq!(found.value(), Some(&value[..]));
                    assert_eq!(found.redundancy(), Some(then));
                    assert_eq!(found.hint(), moved.place);
                });
                let phases = phases(&stats, OpKind::Move);
                assert_eq!(phases, if hinted { 4 } else { 5 } - fewer);
                let (read, written) =
                    if then == coded { (object, (k + m) * chunk) } else { (k * chunk, r * object) };
                // The other bytes of the Move are the slot or both buckets, the CASes, and block headers.
                let rest = stats.kind(OpKind::Move).bytes - read - written;
                assert!(rest < 1000, "{rest} bytes more");
                let to_coded = (2 * k + m) as f64 / k as f64;
                let paper = if then == coded { to_coded } else { r as f64 + 1.0 };
                let ratio = (read + written) as f64 / value.len() as f64 / paper;
                assert!((0.97..1.03).contains(&ratio), "{ratio}");
            }
        }
    }
}

/// Values without redundancy take as many phases as replicated values, and one WRITE of the object instead of one for
/// each replica.
// Promise RED-14: Values without redundancy take replicated ones' phases, and one WRITE.
#[test]
fn values_without_redundancy_take_the_same_phases_and_fewer_writes() {
    let value = vec![7; 1000];
    for replicas in 1..=5 {
        let [single, replicated] = [Redundancy::None, Redundancy::Replicated].map(|redundancy| {
            let value = &value;
            run_large(replicas, ((4, 1), 2), async move |store| {
                // From now on the session has a block, whose header is written.
                write(store, WriteRequest::insert(b"foo", value).placed(redundancy)).await;
                let hint = write(store, WriteRequest::insert(b"key", value).placed(redundancy))
                    .await
                    .place;
                let found = store.search(b"key", hint).await.unwrap();
                assert_eq!(
                    (found.value(), found.redundancy()),
                    (Some(&value[..]), Some(redundancy))
                );
                drop(found);
                assert!(store.search(b"key", None).await.unwrap().value().is_some());
                let hint = write(
                    store,
                    WriteRequest::update(b"key", value).placed(redundancy).hinted(hint),
                )
                .await
                .place;
                store.delete(b"key", hint.map(Hint::uncertain)).await.unwrap();
                assert_eq!(store.search(b"key", None).await.unwrap().value(), None);
            })
        });
        let fewer = u32::from(replicas == 1);
        assert_eq!(single.kind(OpKind::Search).phases, 1 + 2 + 1, "a hit, a miss, no key");
        assert_eq!(phases(&single, OpKind::Insert), 4 - fewer);
        assert_eq!(phases(&single, OpKind::Update), 3 - fewer);
        assert_eq!(phases(&single, OpKind::Delete), 3 - fewer);
        let verbs = |stats: &Stats, kind| stats.kind(kind).verbs;
        for kind in [OpKind::Search, OpKind::Delete] {
            assert_eq!(verbs(&single, kind), verbs(&replicated, kind), "{kind:?}");
        }
        let others = u64::from(ClusterOptions::default().data_replicas) - 1;
        assert_eq!(verbs(&replicated, OpKind::Update) - verbs(&single, OpKind::Update), others);
        // For each further replica, the INSERTs WRITE two objects and the header of their block.
        assert_eq!(verbs(&replicated, OpKind::Insert) - verbs(&single, OpKind::Insert), 3 * others);
    }
}

fn oriented(replicas: u8, code: (u8, u8)) -> Redundancy {
    let coding = Coding::try_from(code).unwrap();
    Redundancy::Oriented(Orientation::new(replicas, coding).unwrap())
}

/// EC-oriented values take as many phases as coded values, because copies are written together with the chunks, and are
/// looked up only when the whole value is freed.
#[test]
fn ec_oriented_values_take_the_same_phases() {
    let value = vec![7; 1000];
    for (replicas, copies) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (1, 2), (3, 2)] {
        let oriented = oriented(1 + copies, CODING);
        let stats = run_coded(replicas, async |store| {
            write(store, WriteRequest::insert(b"foo", &value).placed(oriented)).await;
            let hint =
                write(store, WriteRequest::insert(b"key", &value).placed(oriented)).await.place;
            let found = store.search(b"key", hint).await.unwrap();
            assert_eq!((found.value(), found.redundancy()), (Some(&value[..]), Some(oriented)));
            drop(found);
            let hint =
                write(store, WriteRequest::update(b"key", &value).placed(oriented).hinted(hint))
                    .await
                    .place;
            // With a certain hint this DELETE would be speculative.
            store.delete(b"key", hint.map(Hint::uncertain)).await.unwrap();
            assert_eq!(store.search(b"key", None).await.unwrap().value(), None);
        });
        let fewer = u32::from(replicas == 1);
        assert_eq!(stats.kind(OpKind::Search).phases, 1 + 1, "a hit, and a miss");
        assert_eq!(phases(&stats, OpKind::Insert), 4 - fewer);
        assert_eq!(phases(&stats, OpKind::Update), 3 - fewer);
        assert_eq!(phases(&stats, OpKind::Delete), 3 - fewer);
    }
}

/// A Move in place takes as many phases as any other Move, and the bytes of Table 1 of the ElasticMem paper. A Move to
/// the erasure code READs the value and WRITEs the parity. A Move back READs the value and WRITEs r - 1 copies. After
/// the last turn, the next Move is out of place.
// Promise RED-11: Moves in place take the bytes of ElasticMem's Table 1.
#[test]
fn moves_in_place_take_4_phases_and_fewer_bytes() {
    moves_in_place_take_fewer_bytes(CODING, 2, 1..=5);
    moves_in_place_take_fewer_bytes((4, 2), 3, 3..=3);
}

fn moves_in_place_take_fewer_bytes(code: (u8, u8), r: u8, index_replicas: RangeInclusive<u8>) {
    let coded = Redundancy::Coded(Coding::try_from(code).unwrap());
    let oriented = oriented(r, code);
    let k = u64::from(code.0);
    let m = u64::from(code.1);
    let copies = u64::from(r) - 1;
    let bytes_of = |value: usize| -> (u64, u64) {
        [coded, Redundancy::Replicated].map(|r| r.class(3, value).unwrap().bytes()).into()
    };
    let fills = |value: &usize| {
        let (chunk, object) = bytes_of(*value);
        (k * chunk).max(object) as f64 <= 1.025 * *value as f64
    };
    let value = vec![7; (1 << 12..=16 << 10).rev().find(fills).expect("there is one")];
    let (chunk, object) = bytes_of(value.len());
    let to_coded = (k * chunk, m * chunk, (k + m) as f64 / k as f64);
    let to_oriented = (k * chunk, copies * object, f64::from(r));
    let out_of_place = (k * chunk, k * chunk + copies * object, f64::from(r) + 1.0);
    let turns = [to_coded, to_oriented, to_coded, out_of_place, to_coded];
    for replicas in index_replicas {
        let fewer = u32::from(replicas == 1);
        for measured in 1..=turns.len() {
            let moved = |turns: usize| {
                let value = &value;
                run_large(replicas, (code, r), async move |store| {
                    // From now on there are blocks for the stripe and its copies, and for the next objects, because a
                    // Move that waits for a block READs its slot again.
                    for other in [b"foo0", b"foo1", b"foo2", b"foo3"] {
                        write(store, WriteRequest::insert(other, value).placed(oriented)).await;
                    }
                    let mut hint =
                        write(store, WriteRequest::insert(b"key", value).placed(oriented))
                            .await
                            .place;
                    for turn in 0..turns {
                        let then = if turn % 2 == 0 { coded } else { oriented };
                        let before = hint.unwrap().word.address();
                        let (went, written) =
                            store.set_redundancy(b"key", then, hint).await.unwrap();
                        assert_eq!((went, written.hint_held), (Transition::Moved, true));
                        hint = written.place;
                        let is_in_place = hint.unwrap().word.address() == before;
                        assert_eq!(is_in_place, turn != 3, "turn {turn}");
                        let found = store.search(b"key", hint).await.unwrap();
                        assert_eq!(found.value(), Some(&value[..]));
                        assert_eq!(found.redundancy(), Some(then));
                        assert!(found.hint().unwrap().leads_like(&hint.unwrap()));
                    }
                })
            };
            let stats = moved(measured);
            assert_eq!(phases(&stats, OpKind::Move), 4 - fewer);
            let before = moved(measured - 1).kind(OpKind::Move).bytes;
            let (read, written, paper) = turns[measured - 1];
            let rest = stats.kind(OpKind::Move).bytes - before - read - written;
            assert!(rest < 1000, "{rest} bytes more in turn {measured}");
            let ratio = (read + written) as f64 / value.len() as f64 / paper;
            assert!((0.97..1.03).contains(&ratio), "{ratio} in turn {measured}");
        }
    }
}

#[test]
fn moves_that_cannot_be_change_nothing() {
    let coding = Coding::try_from(CODING).unwrap();
    let coded = Redundancy::Coded(coding);
    let stats = run_coded(3, async |store| {
        let error = store.set_redundancy(b"none", coded, None).await.unwrap_err();
        assert_eq!(error, Error::NotFound);
        store.insert(b"short", b"value").await.unwrap();
        let error = store.set_redundancy(b"short", coded, None).await.unwrap_err();
        let refused = RedundancyError::ValueTooSmall { coding, bytes: 5, min_bytes: 3 * 256 };
        assert_eq!(error, Error::Redundancy(refused));
        assert_eq!(store.search(b"short", None).await.unwrap().value(), Some(&b"value"[..]));
        let place =
            write(store, WriteRequest::insert(b"key", &[7; 1024]).placed(coded)).await.place;
        let (went, written) = store.set_redundancy(b"key", coded, place).await.unwrap();
        assert_eq!((went, written.place), (Transition::Unchanged, place));
        let wide = Redundancy::Coded(Coding::new(4, 2).unwrap());
        let error = store.set_redundancy(b"key", wide, None).await.unwrap_err();
        assert!(matches!(error, Error::Redundancy(RedundancyError::TooFewNodes { .. })));
        assert_eq!(store.search(b"key", None).await.unwrap().redundancy(), Some(coded));
    });
    assert_eq!(stats.kind(OpKind::Move).atomics, 0, "nobody is asked to change anything");
}

/// A session without a valid lease asks the members to vouch before it gives an answer that depends only on a READ,
/// because the value has possibly changed.
#[test]
fn a_move_that_is_not_heard_asks_before_it_refuses() {
    let sim = Sim::new(1);
    let options = options(3);
    let cluster = SimCluster::new(&sim, &options);
    let client = cluster.client();
    let cut_off = cluster.unheard_client();
    cluster.block_on(client.process, async { client.insert(b"key", b"value").await.unwrap() });
    let coded = Redundancy::Coded(Coding::try_from(CODING).unwrap());
    let asked = || sim.counts().views_asked.get();
    for (key, redundancy) in
        [(b"key", coded), (b"key", Redundancy::Replicated), (b"foo", Redundancy::Replicated)]
    {
        let before = asked();
        let moving = async { cut_off.set_redundancy(key, redundancy, None).await };
        let result = cluster.block_on(cut_off.process, moving).map(|(went, _)| went);
        assert!(asked() > before, "{redundancy}: {result:?} without asking anybody");
    }
}

// Promise RED-6: Pairs that cannot be coded are refused; nothing changes.
#[test]
fn pairs_that_cannot_be_coded_are_refused_and_nothing_changes() {
    let coding = Coding::try_from(CODING).unwrap();
    let redundancy = Redundancy::Coded(coding);
    let stats = run_coded(3, async |store| {
        let error = store
            .write(WriteRequest::insert(b"key", b"short").placed(redundancy))
            .await
            .unwrap_err();
        let refused = RedundancyError::ValueTooSmall { coding, bytes: 5, min_bytes: 3 * 256 };
        assert_eq!(error, Error::Redundancy(refused));
        let error = store
            .write(WriteRequest::insert(&[b'k'; 64][..], &[7; 1000]).placed(redundancy))
            .await
            .unwrap_err();
        let refused = RedundancyError::KeyTooLarge { coding, bytes: 64, max_bytes: 336 / 8 };
        assert_eq!(error, Error::Redundancy(refused));
        let wide = Coding::new(4, 2).unwrap();
        let error = store
            .write(WriteRequest::insert(b"key", &[7; 1024]).placed(Redundancy::Coded(wide)))
            .await
            .unwrap_err();
        let refused = RedundancyError::TooFewNodes { coding: wide, members: 5 };
        assert_eq!(error, Error::Redundancy(refused));
        assert_eq!(store.search(b"key", None).await.unwrap().value(), None);
    });
    assert_eq!(stats.kind(OpKind::Insert).operations, 0, "nobody is asked for anything");
}
