//! Tests with arbitrary words in the memory of memory nodes. Whatever memory contains, a client answers with a value or
//! an error, or tries again. The client never panics, and a bad word does not hide good ones.

// Promise DMG-9: No contents of memory make a client panic.

use std::cell::Cell;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::error::{Error, FailedWriteOutcome};
use fusee_core::layout::{Address, Identity, SizeClass, Slot};
use fusee_core::race::Buckets;
use fusee_core::store::{Hint, HintTrust, SearchKey};
use fusee_core::verbs::MnId;
use fusee_core::view::{SlotRef, View};
use fusee_sim::{ClusterOptions, Sim, SimClient, SimCluster, SimStore};

const SLOTS: u32 = 12;

/// Runs `scenario` on a cluster that holds the key `key`. Every free slot of the index, on all replicas, was set to
/// `word` with the key's fingerprint.
fn with_bad_words(word: u64, scenario: impl AsyncFnOnce(&SimStore, Hint)) {
    let sim = Sim::new(1);
    let cluster = SimCluster::new(&sim, &ClusterOptions::default());
    let store = cluster.client();
    let inserted = cluster.block_on(store.process, store.insert(b"key", b"value"));
    let hint = inserted.unwrap().place.unwrap();
    let view = cluster.view().clone();
    let fingerprint = u64::from(Buckets::of(b"key", &view).fingerprint);
    assert_eq!(view.geometry.subtable_slots(), u64::from(SLOTS));
    for slot in (0..SLOTS).filter(|s| *s != hint.slot.slot) {
        for place in view.slot_places(SlotRef { subtable: 0, slot }) {
            cluster.network().memories().overwrite(place, fingerprint << 56 | word);
        }
    }
    cluster.block_on(store.process, scenario(&store, hint));
}

/// Returns words that lead nowhere: two with an impossible size class, one with an address outside of every region, and
/// one with an object of the largest class inside a region.
fn bad_words() -> [u64; 4] {
    let far = Address::new((1 << 44) - 64);
    let near = Address::new(1 << 16);
    let small = SizeClass::from_code(1).unwrap();
    [
        200 << 48 | Slot::withdrawal(Identity::new(near, 0)).0,
        255 << 48 | Slot::withdrawal(Identity::new(far, 31)).0,
        Slot::new(0, small, far, 0).0,
        Slot::new(0, SizeClass::MAX, near, 0).0,
    ]
}

// Promise DMG-10: A damaged slot word hides no other slot.
#[test]
fn bad_words_do_not_hide_a_key() {
    for word in bad_words() {
        with_bad_words(word, async |store, hint| {
            for hint in [None, Some(hint)] {
                let found = store.search(b"key", hint).await.unwrap();
                assert_eq!(found.value(), Some(&b"value"[..]));
            }
            let keys = [SearchKey { key: store.key(b"key"), hint: None }];
            let seen = Cell::new(false);
            let check = |_, value: Option<&[u8]>, _| seen.set(value == Some(b"value"));
            store.search_many(&keys, check).await.unwrap();
            assert!(seen.get());
            store.update(b"key", b"new", None).await.unwrap();
            store.delete(b"key", None).await.unwrap();
            // The DELETE has removed the only slot that shows the key. Now any of the bad words could lead to the key,
            // so it is not certain that the key is absent.
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
                let hint = Hint { slot, word: Slot(word), seen: HintTrust::Unverified };
                let found = store.search(b"key", Some(hint)).await.unwrap();
                assert_eq!(found.value(), Some(&b"value"[..]));
                drop(found);
                store.update(b"key", b"value", Some(hint)).await.unwrap();
                let keys = [SearchKey { key: store.key(b"key"), hint: Some(hint) }];
                let mut found = 0;
                let count = |_, value: Option<&[u8]>, _| found += usize::from(value.is_some());
                store.search_many(&keys, count).await.unwrap();
                assert_eq!(found, 1);
            }
        }
    });
}

/// A SEARCH that finds a slot whose object is missing reads the slot again, and then fails with an error.
#[test]
fn a_dangling_slot_is_an_error() {
    // The address is in the last block of region 0, which has no owner.
    let geometry = ClusterOptions::default().geometry;
    let address = Address::new(geometry.region_bytes - geometry.block_bytes);
    let missing = Slot::new(0, SizeClass::from_code(1).unwrap(), address, 3);
    with_bad_words(missing.0, async |store, _| {
        assert!(store.search(b"key", None).await.unwrap().value().is_some());
        store.delete(b"key", None).await.unwrap();
        let absent = store.search(b"key", None).await.map(|found| found.hint());
        assert!(matches!(absent, Err(Error::Corrupt { .. })), "{absent:?}");
    });
}

/// Returns the slot that the first INSERT of the key takes.
fn slot_of_first_insert(options: &ClusterOptions) -> SlotRef {
    let cluster = SimCluster::new(&Sim::new(3), options);
    let store = cluster.client();
    let inserted = cluster.block_on(store.process, store.insert(b"key", b"x"));
    inserted.unwrap().place.unwrap().slot
}

/// Returns a region whose only replica is on a node with neither the index nor the session's block, and returns that
/// node.
fn region_out_of_the_way(cluster: &SimCluster, view: &View, store: &SimClient) -> (u64, MnId) {
    let has_block = |node| {
        let blocks =
            cluster.peek_node(node, NodeRequest::BlocksOf { clients: vec![store.client()] });
        !matches!(blocks, Some(NodeReply::Blocks(blocks)) if blocks.is_empty())
    };
    let has_index = |node| view.subtables[0].lies_on(node);
    let mut regions = (0u64..).zip(&view.regions).map(|(number, r)| (number, r.primary().node));
    let found = regions.find(|(_, node)| !has_index(*node) && !has_block(*node));
    found.expect("two nodes are without an index, and one of them without the block")
}

/// An INSERT that cannot finish its look for duplicates withdraws its entry.
#[test]
fn an_insert_that_cannot_look_withdraws() {
    for index_replicas in [1, 3] {
        let options = ClusterOptions {
            memory_nodes: 5,
            index_replicas,
            data_replicas: 1,
            ..ClusterOptions::default()
        };
        let chosen = slot_of_first_insert(&options);
        let sim = Sim::new(2);
        let cluster = SimCluster::new(&sim, &options);
        let store = cluster.client();
        let view = cluster.view().clone();
        // This write allocates the block that the INSERT will need.
        let nothing = cluster.block_on(store.process, store.update(b"none", b"x", None));
        assert_eq!(nothing, Err(Error::NotFound));
        let (region, lost) = region_out_of_the_way(&cluster, &view, &store);
        let buckets = Buckets::of(b"key", &view);
        // Slots get the word of a twin: an entry with the key's fingerprint whose object is on a lost node. At first
        // the primary does not show the twin; with one index replica it shows the twin as tentative.
        let address = Address::new((region + 1) * options.geometry.region_bytes - (1 << 12));
        let class = SizeClass::from_code(1).unwrap();
        let twin = Slot::new(buckets.fingerprint, class, address, 0);
        let slots = (0..SLOTS).map(|slot| SlotRef { subtable: 0, slot });
        let mut places = 0;
        for slot in slots.filter(|s| buckets.covers(*s) && *s != chosen) {
            for (i, place) in view.slot_places(slot).enumerate() {
                match (index_replicas, i) {
                    (1, _) => cluster.network().memories().overwrite(place, twin.tentative().0),
                    (_, 0) => {}
                    (_, _) => cluster.network().memories().overwrite(place, twin.0),
                }
            }
            places += 1;
        }
        assert!(places > 0);
        cluster.nodes().crash(lost);
        let result = cluster.block_on(store.process, store.insert(b"key", b"x"));
        let error = result.unwrap_err();
        let Error::Unreachable { node, outcome, .. } = error else { panic!("{error}") };
        assert_eq!((node, outcome), (lost, FailedWriteOutcome::NotApplied));
        for slot in 0..SLOTS {
            let mut places = view.slot_places(SlotRef { subtable: 0, slot });
            let word = cluster.network().memories().word_at(places.next().unwrap());
            assert!(word.is_free() || word == twin.tentative(), "{word:?}");
        }
    }
}
