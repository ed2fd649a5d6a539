//! Tests with damage that mostly only the scrubber finds: on replicas that no SEARCH reads, in slots on backups, and in
//! free bitmaps.

// Promise DMG-5: The scrubber finds and repairs damage that is not read.

use std::collections::BTreeSet;
use std::time::Duration;

use fusee_core::layout::{BLOCK_HEADER_BYTES, BlockHeader, Chunk, Object, Slot, copy_of};
use fusee_core::scrub::check_slots;
use fusee_core::store::{Transition, WriteRequest};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Geometry, PoolPlace, SlotRef};
use fusee_sim::{ClusterOptions, Sim, SimCluster};

use crate::support::block_with;
use crate::support::scrub::{KEYS, free_words, held, key, settles, settles_beside_writes};

#[test]
fn replicas_that_nobody_reads_are_written_anew() {
    held(1, 2, async |held| {
        for (number, hint) in held.hints.iter().enumerate() {
            let class = hint.word.class().unwrap().bytes();
            let places: Vec<PoolPlace> =
                held.cluster.view().object(hint.word.address(), class).unwrap().places().collect();
            for (i, place) in places.into_iter().enumerate().filter(|(i, _)| *i != number % 3) {
                let offset = place.offset + (number + i) as u64 % 3 * 8;
                held.cluster.network().memories().flip(PoolPlace { offset, ..place }, 1 << number);
            }
        }
        let damaged = || held.cluster.network().damage().replicas().len();
        assert_eq!(damaged(), 2 * KEYS);
        held.until("all replicas are whole", || damaged() == 0).await;
        assert_eq!(held.cluster.view().number, 1, "nothing had to be settled");
        held.all_are_there().await;
    });
}

/// Every data chunk of an EC-oriented object without parity is needed. A reader or the scrubber restores a damaged
/// chunk from the copy.
// Promise RED-12: A damaged chunk without parity is restored from a good copy.
#[test]
fn a_chunk_without_parity_is_made_of_the_copy() {
    chunks_are_made_of_copies("eor:2:3+2", &[]);
}

/// One of two copies is damaged as well as a chunk. The restored chunk names the same copies as before.
#[test]
fn chunks_without_parity_are_made_of_the_copy_that_is_left() {
    chunks_are_made_of_copies("eor:3:3+2", &[0]);
    chunks_are_made_of_copies("eor:3:3+2", &[1]);
}

/// The node of a data chunk is lost while the header of the copy's block is half written. The length of the copy
/// follows from the chunks, not from the header, so the value is readable, and parity is made from the copy.
#[test]
fn no_header_is_needed_to_find_a_copy() {
    for chunk in 0..3 {
        copies_are_found_without_headers(chunk);
    }
}

/// Runs the scene of `no_header_is_needed_to_find_a_copy` with the loss of the node of data chunk `chunk`.
fn copies_are_found_without_headers(chunk: usize) {
    let sim = Sim::new(1);
    let defaults = ClusterOptions::default();
    let geometry = Geometry { max_value_bytes: 2048, ..defaults.geometry };
    let options = ClusterOptions { memory_nodes: 4, geometry, index_replicas: 2, ..defaults };
    let options = ClusterOptions { lease_ms: Some(20), ..options };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, Duration::from_millis(20));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let value = [7; 1500];
        let redundancy: fusee_core::data::Redundancy = "eor:2:3+1".parse().unwrap();
        let hint = store
            .write(WriteRequest::insert(b"key", &value).placed(redundancy))
            .await
            .unwrap()
            .place
            .unwrap();
        let view = store.view();
        let object = view.object_of(hint.word).unwrap();
        let named =
            cluster.network().memories().word_at(object.copy_words(hint.word).next().unwrap());
        let copy = copy_of(object.identity_of(hint.word), 0, named.0).expect("it is named");
        let block = block_with(&cluster, copy.address());
        let header = view.block(block).unwrap().places().next().unwrap();
        let written = cluster.network().memories().bytes_at(header, BLOCK_HEADER_BYTES);
        assert!(BlockHeader::decode(written.first_chunk().unwrap()).is_some());
        // This leaves the header as a WRITE without its last word would.
        cluster.network().memories().flip(header.plus(BLOCK_HEADER_BYTES - 8), u64::MAX << 32);
        let left = cluster.network().memories().bytes_at(header, BLOCK_HEADER_BYTES);
        assert_eq!(BlockHeader::decode(left.first_chunk().unwrap()), None);
        cluster.nodes().crash(object.places().nth(chunk).unwrap().node);
        assert_eq!(store.search(b"key", None).await.unwrap().value(), Some(&value[..]));
        let repaired = || {
            let view = cluster.view();
            view.change.is_none() && view.members.len() == 3
        };
        for _ in 0..1_000 {
            if repaired() {
                break;
            }
            sim.sleep(1_000_000).await;
        }
        assert!(repaired(), "{:?}", *cluster.view());
        let view = cluster.view().clone();
        let left = view.object_of(hint.word).unwrap();
        assert!((0..4).all(|number| !left.may_lack(number)), "all parity is there");
        let chunks = left.columns().unwrap().chunks().iter().zip(left.places());
        for (number, place) in chunks {
            let bytes = cluster.network().memories().bytes_at(place, left.bytes());
            let coding = left.columns().unwrap().coding();
            Chunk::decode_of(&bytes, left.identity_of(hint.word), coding, (*number).into())
                .unwrap();
        }
        assert_eq!(store.search(b"key", None).await.unwrap().value(), Some(&value[..]));
    });
}

/// Damages chunks of a pair one after the other, while the copies with these numbers are damaged as well.
fn chunks_are_made_of_copies(redundancy: &str, rotten: &[usize]) {
    let sim = Sim::new(1);
    let geometry = Geometry { max_value_bytes: 2048, ..ClusterOptions::default().geometry };
    let options = ClusterOptions { memory_nodes: 5, geometry, ..ClusterOptions::default() };
    let options = ClusterOptions { lease_ms: Some(1_000), ..options };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, Duration::from_secs(1));
    let redundancy: fusee_core::data::Redundancy = redundancy.parse().unwrap();
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let value = [7; 1500];
        let hint = store
            .write(WriteRequest::insert(b"key", &value).placed(redundancy))
            .await
            .unwrap()
            .place
            .unwrap();
        let view = store.view();
        let object = view.object_of(hint.word).unwrap();
        let words: Vec<PoolPlace> = object.copy_words(hint.word).take(3).collect();
        let named = || {
            let word = |place: &PoolPlace| cluster.network().memories().bytes_at(*place, 16);
            let named: Vec<_> = words.iter().map(word).collect();
            assert!(named.iter().all(|words| *words == named[0]), "chunks name other copies");
            let words = named[0].as_chunks().0.iter().copied().enumerate();
            let identity = object.identity_of(hint.word);
            let copy = |(number, word)| copy_of(identity, number, u64::from_le_bytes(word));
            words.filter_map(copy).collect::<Vec<_>>()
        };
        let copies = named();
        assert_eq!(copies.len(), object.copies());
        for number in rotten {
            let copy = view.object(copies[*number].address(), 64).unwrap().places().next().unwrap();
            cluster.network().memories().flip(copy.plus(64), 1);
        }
        let is_whole = || {
            let places = object.places().take(3);
            let of =
                |place: PoolPlace| cluster.network().memories().bytes_at(place, object.bytes());
            assert_eq!(named(), copies);
            places.map(of).all(|bytes| Object::decode(&bytes).is_ok())
        };
        for (scrubs, chunk) in [(false, 0), (true, 1), (false, 2), (true, 0)] {
            let place = object.places().nth(chunk).unwrap();
            cluster
                .network()
                .memories()
                .flip(PoolPlace { offset: place.offset + 8 * chunk as u64, ..place }, 2);
            assert!(!is_whole());
            if scrubs {
                let slots = view.geometry.subtable_slots();
                let looked = check_slots(store.fabric(), &view, 0, 0, slots, u64::MAX).await;
                let looked = looked.unwrap();
                assert_eq!((looked.damage.found, looked.damage.repaired), (1, 1));
                assert_eq!(looked.lost, []);
            } else {
                let found = store.search(b"key", Some(hint)).await.unwrap();
                assert_eq!(found.value(), Some(&value[..]));
            }
            assert!(is_whole());
        }
        let (went, _) =
            store.set_redundancy(b"key", "ec:3+2".parse().unwrap(), None).await.unwrap();
        assert_eq!(went, Transition::Moved);
        assert_eq!(store.search(b"key", None).await.unwrap().value(), Some(&value[..]));
    });
}

#[test]
fn slots_that_differ_are_settled_on_the_word_that_leads_to_something() {
    settles(1, 2, 0..64);
    settles(1, 3, (0..64).step_by(7));
}

#[test]
fn slots_are_settled_beside_others_that_are_written() {
    for (seed, replicas) in [(1, 2), (2, 3)] {
        let written = settles_beside_writes(seed, replicas, (0..64).step_by(5));
        assert!(written > 500, "{written} writes");
    }
}

#[test]
fn free_words_that_nobody_wrote_delete_nothing() {
    free_words(1, 2);
    free_words(1, 3);
}

/// A DELETE that was not committed has its number on all backups. No member bars the primary, so no session has
/// answered that the key does not exist, and the pair stays.
#[test]
fn a_number_does_not_count_against_the_primary_alone() {
    held(1, 3, async |held| {
        held.cluster.checks().never_watch();
        for (number, hint) in held.hints.iter().enumerate() {
            let half_done = Slot::number(ClientId(1 << 30), number as u32);
            for backup in &held.places(hint.slot)[1..] {
                held.cluster.network().memories().flip(*backup, half_done.0 ^ hint.word.0);
            }
            let is_settled = || held.words(hint.slot).iter().all(|word| *word == hint.word);
            held.until("the pair stays", is_settled).await;
        }
        held.all_are_there().await;
    });
}

#[test]
fn free_slots_that_differ_are_made_equal() {
    held(1, 3, async |held| {
        held.cluster.checks().never_watch();
        let used: BTreeSet<u32> = held.hints.iter().map(|hint| hint.slot.slot).collect();
        let slots = held.cluster.view().geometry.subtable_slots() as u32;
        let free = (0..slots).filter(|slot| !used.contains(slot)).take(8);
        for (n, slot) in free.enumerate() {
            let slot = SlotRef { subtable: 0, slot };
            for at in held.places(slot) {
                held.cluster.network().memories().flip(at, 0x81 << (7 * n));
                let agree =
                    |words: Vec<Slot>| words.iter().all(|word| *word == words[0] && word.is_free());
                let what = "the replicas of a free slot agree";
                held.until(what, || agree(held.words(slot))).await;
            }
        }
        held.all_are_there().await;
    });
}

/// A set free bit marks an object in use as free: a session that believed the bit would write another pair there. The
/// bitmap is replaced.
#[test]
fn a_bitmap_that_contradicts_the_index_begins_anew() {
    held(1, 2, async |held| {
        for hint in &held.hints {
            let (at, bit, primary_since) = {
                let view = held.cluster.view();
                let (at, bit) = view.free_bit(hint.word.address()).unwrap();
                let (region, _) = view.region_of(hint.word.address()).unwrap();
                (at, bit, region.primary_since())
            };
            let is_set = || held.cluster.network().memories().word_at(at).0 & bit != 0;
            assert!(!is_set());
            held.cluster.network().memories().flip(at, bit);
            let begun_anew = || {
                let view = held.cluster.view();
                let (region, _) = view.region_of(hint.word.address()).unwrap();
                region.primary_since() > primary_since && !is_set()
            };
            held.until("the bitmap begins anew", begun_anew).await;
        }
        held.all_are_there().await;
        // All memory except that of the objects in use is reused again and again.
        for round in 0..400 {
            let key = key(KEYS + round % 3);
            held.store.put(key.as_bytes(), b"another").await.unwrap();
        }
        for number in 0..3 {
            held.store.delete(key(KEYS + number).as_bytes()).await.unwrap();
        }
        held.all_are_there().await;
    });
}

// Promise DMG-7: Where nothing is damaged, nothing is found.
#[test]
fn where_nothing_is_damaged_nothing_is_settled() {
    held(1, 3, async |held| {
        held.rest(400).await;
        assert_eq!(held.cluster.view().number, 1);
        held.cluster.nodes().crash(MnId(0));
        held.until("it goes on", || held.cluster.view().members.len() == 2).await;
        let number = held.cluster.view().number;
        held.rest(400).await;
        assert_eq!(held.cluster.view().number, number);
        held.all_are_there().await;
    });
}
