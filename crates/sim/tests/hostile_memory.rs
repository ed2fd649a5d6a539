//! Memory nodes hold what other processes wrote. Whatever stands there, a client answers with a
//! value, an error or a retry; it does not panic, and a bad word does not hide good ones.

use std::cell::Cell;

use fusee_core::error::{Error, Outcome};
use fusee_core::layout::{Address, SizeClass, Slot};
use fusee_core::race::Buckets;
use fusee_core::store::{Hint, SearchKey};
use fusee_core::verbs::MnId;
use fusee_core::view::SlotRef;
use fusee_sim::{Cluster, ClusterOptions, Executor, Rng, SimStore};

const SLOTS: u32 = 12;

/// Runs a scenario on a cluster that holds `key`, in which every free slot of the index then
/// shows `word` with the key's fingerprint, on all replicas.
fn with_bad_words(word: u64, scenario: impl AsyncFnOnce(&SimStore, Hint)) {
    let rng = Rng::new(1);
    let cluster = Cluster::new(&rng, &ClusterOptions::default());
    let store = cluster.client();
    let hint = Cell::new(None);
    let mut executor = Executor::new(&rng);
    executor.spawn(async { hint.set(store.insert(b"key", b"value").await.unwrap().place) });
    executor.run(100_000, || ());
    let hint = hint.get().unwrap();
    let fingerprint = u64::from(Buckets::of(b"key", cluster.view()).fingerprint);
    for slot in (0..SLOTS).filter(|s| *s != hint.slot.slot) {
        for place in cluster.view().slot_places(SlotRef { subtable: 0, slot }) {
            cluster.overwrite(place, fingerprint << 56 | word);
        }
    }
    let finished = Cell::new(false);
    let mut executor = Executor::new(&rng);
    executor.spawn(async {
        scenario(&store, hint).await;
        finished.set(true);
    });
    executor.run(10_000_000, || ());
    assert!(finished.get());
}

/// Words that lead nowhere: an impossible class, an address outside of every region, an object of
/// 16 MiB inside one.
fn bad_words() -> [u64; 4] {
    let far = Address::new((1 << 48) - 64);
    let near = Address::new(1 << 16);
    let small = SizeClass::from_code(1).unwrap();
    [
        200 << 48 | Slot::empty_marker(near, 0).0,
        255 << 48 | Slot::empty_marker(far, 31).0,
        Slot::new(0, small, far, 0).0,
        Slot::new(0, SizeClass::MAX, near, 0).0,
    ]
}

#[test]
fn bad_words_do_not_hide_a_key() {
    for word in bad_words() {
        with_bad_words(word, async |store, hint| {
            for hint in [None, Some(hint)] {
                let found = store.search(b"key", hint).await.unwrap();
                assert_eq!(found.value(), Some(&b"value"[..]));
            }
            let keys = [SearchKey { key: b"key", hint: None }];
            let seen = Cell::new(false);
            let check = |_, value: Option<&[u8]>, _| seen.set(value == Some(b"value"));
            store.search_many(&keys, check).await.unwrap();
            assert!(seen.get());
            store.update(b"key", b"new", None).await.unwrap();
            store.delete(b"key", None).await.unwrap();
            // Now nothing says that the key is not behind one of the bad words.
            let absent = store.search(b"key", None).await.map(|found| found.hint());
            assert!(matches!(absent, Err(Error::Corrupt { .. })), "{absent:?}");
            let insert = store.insert(b"key", b"x").await;
            assert!(matches!(insert, Err(Error::Corrupt { .. })), "{insert:?}");
        });
    }
}

#[test]
fn a_hint_that_makes_no_sense_is_ignored() {
    with_bad_words(0, async |store, hint| {
        let slots =
            [SlotRef { subtable: 7, slot: 0 }, SlotRef { subtable: 0, slot: u32::MAX }, hint.slot];
        for slot in slots {
            for word in bad_words() {
                let hint = Hint { slot, word: Slot(word) };
                let found = store.search(b"key", Some(hint)).await.unwrap();
                assert_eq!(found.value(), Some(&b"value"[..]));
                drop(found);
                store.update(b"key", b"value", Some(hint)).await.unwrap();
                let keys = [SearchKey { key: b"key", hint: Some(hint) }];
                let mut found = 0;
                let count = |_, value: Option<&[u8]>, _| found += usize::from(value.is_some());
                store.search_many(&keys, count).await.unwrap();
                assert_eq!(found, 1);
            }
        }
    });
}

/// A slot that leads to an object which is not there is looked at again, and then reported.
#[test]
fn a_dangling_slot_is_an_error() {
    let missing = Slot::new(0, SizeClass::from_code(1).unwrap(), Address::new(1 << 19), 3);
    with_bad_words(missing.0, async |store, _| {
        assert!(store.search(b"key", None).await.unwrap().value().is_some());
        store.delete(b"key", None).await.unwrap();
        let absent = store.search(b"key", None).await.map(|found| found.hint());
        assert!(matches!(absent, Err(Error::Corrupt { .. })), "{absent:?}");
    });
}

/// Which slot the first INSERT of the key takes.
fn slot_of_first_insert(options: &ClusterOptions) -> SlotRef {
    let rng = Rng::new(3);
    let cluster = Cluster::new(&rng, options);
    let store = cluster.client();
    let place = Cell::new(None);
    let mut executor = Executor::new(&rng);
    executor.spawn(async { place.set(store.insert(b"key", b"x").await.unwrap().place) });
    executor.run(100_000, || ());
    place.get().unwrap().slot
}

/// An INSERT whose look fails half-way takes its entry back.
#[test]
fn an_insert_that_cannot_look_withdraws() {
    for index_replicas in [1, 3] {
        let rng = Rng::new(2);
        // Region 0 lies on nodes 0 and 1, region 1 on 1 and 2; index on 0, or on 0..=2.
        let options = ClusterOptions {
            memory_nodes: 5,
            index_replicas,
            data_replicas: 1,
            regions: 5,
            ..ClusterOptions::default()
        };
        let chosen = slot_of_first_insert(&options);
        let cluster = Cluster::new(&rng, &options);
        let store = cluster.client();
        let fingerprint = Buckets::of(b"key", cluster.view()).fingerprint;
        // A twin of the fingerprint whose object lies on node 4, which is gone. The primary does
        // not show it yet at first; with one replica it stands there as tentative.
        let address = Address::new(4 * options.geometry.region_bytes + (1 << 16));
        let twin = Slot::new(fingerprint, SizeClass::from_code(1).unwrap(), address, 0);
        let buckets = Buckets::of(b"key", cluster.view());
        let reads = (0..SLOTS).map(|slot| SlotRef { subtable: 0, slot });
        let mut places = 0;
        for slot in reads.filter(|s| buckets.covers(*s) && *s != chosen) {
            for (i, place) in cluster.view().slot_places(slot).enumerate() {
                match (index_replicas, i) {
                    (1, _) => cluster.overwrite(place, twin.tentative().0),
                    (_, 0) => {}
                    (_, _) => cluster.overwrite(place, twin.0),
                }
            }
            places += 1;
        }
        assert!(places > 0);
        cluster.kill(MnId(4));
        let result = Cell::new(None);
        let mut executor = Executor::new(&rng);
        executor.spawn(async { result.set(Some(store.insert(b"key", b"x").await)) });
        executor.run(1_000_000, || ());
        let error = result.into_inner().unwrap().unwrap_err();
        let Error::Unreachable { node, outcome, .. } = error else { panic!("{error}") };
        assert_eq!((node, outcome), (MnId(4), Outcome::NotApplied));
        for slot in 0..SLOTS {
            let mut places = cluster.view().slot_places(SlotRef { subtable: 0, slot });
            let word = cluster.word_at(places.next().unwrap());
            assert!(word.is_free() || word == twin.tentative(), "{word:?}");
        }
    }
}
