//! A pair changes its redundancy while other sessions write it. In some runs a memory node is lost meanwhile.
//!
//! A few operations on one key begin within one round trip, so that conflict rounds are contended in every way, and
//! most of them are open when a node is lost.

// Promise RED-7: Moves lose no write (rule L).

use std::rc::Rc;
use std::time::Duration;

use fusee_client::RedundancyRules;
use fusee_client::logic::LogicOptions;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_core::data::{Orientation, Redundancy, RedundancyError};
use fusee_core::erasure::{Coding, ReedSolomon};
use fusee_core::error::Error;
use fusee_core::layout::{BLOCK_HEADER_BYTES, Opcode, Pair, Slot, copy_of};
use fusee_core::stats::OpKind::{self, Delete, Move, Search, Update, Upsert};
use fusee_core::store::{Transition, WriteRequest};
use fusee_core::view::{Geometry, PoolPlace, SlotRef};
use fusee_sim::check::{check_quiescent, check_replicas_agree};
use fusee_sim::{ClusterOptions, NetworkOptions, Rng, Sim, SimCluster, SimSession, SimWorkload};
use futures_util::future::join_all;

use super::block_with;

const LEASE: Duration = Duration::from_millis(20);
/// Lengths of values, each long enough to be erasure-coded.
const FILLERS: [usize; 4] = [600, 700, 800, 900];
const KINDS: [OpKind; 10] =
    [Update, Update, Update, Upsert, Move, Move, Move, Delete, Search, Search];
const SESSIONS: usize = 4;
const BURSTS: usize = 8;
/// Time within which the cluster must be repaired, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// A time longer than the run, in nanoseconds.
const HELD_NS: u64 = 100_000_000_000;

/// A few sessions run bursts of operations on one key. If `is_lossy`, a memory node is lost in the middle of one burst.
pub fn moved_pairs(seed: u64, is_lossy: bool) {
    let redundancies = vec![Redundancy::Replicated, Redundancy::Coded(coding())];
    run(seed, is_lossy, redundancies, (&KINDS, 1));
}

/// All sessions act at once, mostly with Moves. The lost node has a backup, if possible one with the word that most
/// backups have.
pub fn moved_at_once(seed: u64) {
    let redundancies = vec![Redundancy::Replicated, Redundancy::Coded(coding())];
    run(seed, true, redundancies, (&[Update, Move, Move, Move, Move, Move], 16));
}

/// A pair becomes EC-oriented and erasure-coded alternately, in place if possible, while it is also written.
pub fn turned_pairs(seed: u64, is_lossy: bool) {
    let oriented =
        Redundancy::Oriented(Orientation::new(2, coding()).expect("so many replicas can be"));
    let redundancies = vec![oriented, Redundancy::Coded(coding()), oriented];
    let kinds = [Update, Move, Move, Move, Move, Move, Move, Search];
    run(seed, is_lossy, redundancies, (&kinds, 1));
}

fn coding() -> Coding {
    Coding::new(2, 1).expect("there is such a code")
}

/// Runs operations of these kinds, whose starts are `haste` times closer together than usual.
fn run(seed: u64, is_lossy: bool, redundancies: Vec<Redundancy>, (kinds, haste): (&[OpKind], u64)) {
    let sim = Sim::new(seed);
    let rng = Rng::named(seed, "moved pairs");
    let defaults = ClusterOptions::default();
    let turns = redundancies.iter().find(|r| matches!(r, Redundancy::Oriented(_)));
    let rules = turns.map_or(RedundancyRules::replicated(), |oriented| {
        RedundancyRules::from_length(0, *oriented)
    });
    let turns = turns.is_some();
    let geometry = Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry };
    let options = ClusterOptions {
        memory_nodes: 6,
        // With three or four backups, a writer can lose its conflict round while its word is still on a minority of the
        // backups.
        index_replicas: if haste > 1 { 4 + seed as u8 % 2 } else { 2 + seed as u8 % 4 },
        geometry,
        lease_ms: Some(LEASE.as_millis() as u64),
        session: LogicOptions { redundancy: Some(rules), ..defaults.session },
        ..defaults
    };
    let cluster = SimCluster::new(&sim, &options);
    let keys = SimWorkload::keys(&cluster.view(), 1, 0);
    let workload = SimWorkload::new(keys, FILLERS, redundancies);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            let session = cluster.open_kept(process, &keeper).await;
            sessions.push(Rc::new(session));
        }
        // With EC-oriented pairs, two sessions run two operations each at one time, so that two Moves of one session
        // overlap.
        let twice = sessions.iter().take(2).flat_map(|session| [session.clone(), session.clone()]);
        let acting = if turns { twice.collect() } else { sessions.clone() };
        // The regions for both redundancies are added for the first pairs that need them.
        workload.run(&rng, &sessions[0], Upsert, 0).await;
        for _ in 0..4 {
            workload.run(&rng, &sessions[0], Move, 0).await;
        }
        let fatal = is_lossy.then(|| rng.below(BURSTS));
        for number in 0..BURSTS {
            let loss = async {
                match fatal == Some(number) {
                    false => {}
                    true if haste > 1 => lose_of_majority(&cluster, &rng).await,
                    true => {
                        sim.sleep(rng.below_u64(40_000)).await;
                        let view = cluster.view().clone();
                        cluster.nodes().crash(rng.pick(view.subtables[0].replicas()).node);
                    }
                }
            };
            futures_util::future::join(burst(&sim, &rng, &workload, &acting, (kinds, haste)), loss)
                .await;
        }
        wait_for_repair(&cluster).await;
        workload.run(&rng, &sessions[0], Search, 0).await;
        for session in sessions {
            let Some(leaving) = session.leave().await else { continue };
            keeper.close(session.id());
            assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
        }
    });
    check_replicas_agree(&cluster);
    let findings = workload.check();
    if let Some(refutation) = findings.refutation {
        panic!("the operations have no order: {}", refutation.render(|value| value.to_string()));
    }
    check_quiescent(&cluster, &cluster.take_orphans());
}

/// Waits until the conflict round is contended, and a little longer. Then loses a backup with the most frequent word,
/// whose writer has possibly won with this majority. If no round becomes contended, loses any backup.
async fn lose_of_majority(cluster: &SimCluster, rng: &Rng) {
    let sim = cluster.sim();
    let view = cluster.view().clone();
    let words = |slot| -> Vec<(PoolPlace, Slot)> {
        view.slot_places(slot)
            .map(|place| (place, cluster.network().memories().word_at(place)))
            .collect()
    };
    let slots = 0..view.geometry.subtable_slots() as u32;
    let mut slots = slots.map(|slot| SlotRef { subtable: 0, slot });
    let slot = slots.find(|slot| words(*slot).iter().any(|(_, word)| !word.is_free()));
    let slot = slot.expect("the pair is there");
    let until = sim.now() + 10_000;
    let lost = loop {
        let words = words(slot);
        let old = words[0].1;
        let backups = &words[1..];
        let has = |word: Slot| backups.iter().filter(|(_, other)| *other == word).count();
        let most = backups.iter().max_by_key(|(_, word)| has(*word)).expect("there are backups");
        let is_contended = most.1 != old && has(most.1) < backups.len() && has(old) == 0;
        if is_contended || sim.now() > until {
            break most.0.node;
        }
        sim.sleep(50).await;
    };
    sim.sleep(rng.below_u64(3000)).await;
    cluster.nodes().crash(lost);
}

/// Runs one operation for each session, or three if `kinds` have no UPSERT, all at about one time. Then some sessions
/// run a SEARCH.
async fn burst(
    sim: &Sim,
    rng: &Rng,
    workload: &SimWorkload,
    sessions: &[Rc<SimSession>],
    (kinds, haste): (&[OpKind], u64),
) {
    let turns = !kinds.contains(&Upsert);
    let one = async |session: &Rc<SimSession>| {
        for _ in 0..if turns { 3 } else { 1 } {
            let kind = rng.pick(kinds);
            sim.sleep(rng.below_u64(8_000 / haste)).await;
            workload.run(rng, session, kind, 0).await;
        }
        if rng.one_in(2) {
            workload.run(rng, session, Search, 0).await;
        }
    };
    join_all(sessions.iter().map(one)).await;
    if !turns || rng.one_in(3) {
        workload.run(rng, &sessions[0], Upsert, 0).await;
    }
}

/// Waits until no view change has run for 20 milliseconds.
pub async fn wait_for_repair(cluster: &SimCluster) {
    let until = cluster.sim().now() + PATIENCE_NS;
    let is_whole = || {
        let view = cluster.view();
        let nodes = cluster.nodes().processes();
        let lives = |node| nodes.iter().any(|(living, _)| *living == node);
        view.change.is_none() && view.members.iter().all(|member| lives(member.node))
    };
    let mut calm = 0;
    while calm < 20 {
        assert!(cluster.sim().now() < until, "not put right: {:?}", *cluster.view());
        calm = if is_whole() { calm + 1 } else { 0 };
        cluster.sim().sleep(1_000_000).await;
    }
}

/// One session fills a small pool with EC-oriented pairs until there is no room, again and again. As a last resort, the
/// session compares its blocks with the index, and reuses objects that no word keeps.
pub fn copies_compared(seed: u64) {
    let sim = Sim::new(seed);
    let rng = Rng::named(seed, "copies compared");
    let defaults = ClusterOptions::default();
    let geometry = Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry };
    let options = ClusterOptions {
        memory_nodes: 4,
        geometry,
        pool_bytes: 11 << 16,
        lease_ms: Some(LEASE.as_millis() as u64),
        ..defaults
    };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let oriented = Redundancy::Oriented(Orientation::new(2, coding()).expect("it can be"));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let mut kept = std::collections::BTreeMap::new();
        for number in 0..400u64 {
            let key = format!("key {}", rng.below(200));
            let value = vec![number as u8; 600 + rng.below(300)];
            match session
                .store()
                .write(WriteRequest::upsert(key.as_bytes(), &value).placed(oriented))
                .await
            {
                Ok(_) => drop(kept.insert(key, value)),
                Err(Error::OutOfMemory | Error::IndexFull) => {
                    let gone = kept.keys().nth(rng.below(kept.len().max(1))).cloned();
                    let gone = gone.expect("something must have found room");
                    session.store().delete(gone.as_bytes(), None).await.expect("it is there");
                    kept.remove(&gone);
                }
                Err(error) => panic!("{error}"),
            }
        }
        for (key, value) in kept {
            let found = session.store().search(key.as_bytes(), None).await.expect("it is there");
            assert_eq!(found.value(), Some(&value[..]), "{key}");
        }
    });
    check_replicas_agree(&cluster);
}

/// Pairs have two copies. Some have become erasure-coded in place, and some of these EC-oriented again. Any two memory
/// nodes are lost at once, with or without a spare node. Other nodes join later.
// Promise RED-10: EC-oriented pairs survive the loss of r - 1 nodes at once.
pub fn two_nodes_lost(seed: u64) {
    const PAIRS: usize = 8;
    let sim = Sim::new(seed);
    let rng = Rng::named(seed, "two nodes lost");
    let defaults = ClusterOptions::default();
    let coding = Coding::new(3, 2).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(3, coding).expect("it can be"));
    let session = LogicOptions {
        redundancy: Some(RedundancyRules::from_length(0, oriented)),
        ..defaults.session
    };
    let options = ClusterOptions {
        memory_nodes: 5 + rng.below(2) as u16,
        index_replicas: 3,
        data_replicas: 3,
        geometry: Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry },
        lease_ms: Some(LEASE.as_millis() as u64),
        session,
        ..defaults
    };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open(process, session).await.expect("a master leads");
        keeper.open(session.gate().clone());
        let store = session.store();
        let key = |number: usize| format!("key {number}").into_bytes();
        let value = |number: usize, version: u8| vec![version; 768 + 16 * number];
        let mut versions = [0; PAIRS];
        let put_all = async |versions: &mut [u8; PAIRS], version: u8| {
            for (number, known) in versions.iter_mut().enumerate() {
                *known = version;
                let key = key(number);
                let value = value(number, version);
                let put = store.write(WriteRequest::upsert(&key[..], &value).placed(oriented));
                put.await.expect("there is room");
                for turn in 0..rng.below(3) {
                    let to = if turn % 2 == 0 { Redundancy::Coded(coding) } else { oriented };
                    let moved = store.set_redundancy(&key[..], to, None).await;
                    assert_eq!(moved.expect("it can be").0, Transition::Moved);
                }
            }
        };
        let check = async |versions: &[u8; PAIRS]| {
            for (number, version) in versions.iter().enumerate() {
                let found = store.search(&key(number)[..], None).await.expect("enough is left");
                assert_eq!(found.value(), Some(&value(number, *version)[..]), "key {number}");
            }
        };
        put_all(&mut versions, 1).await;
        let mut nodes: Vec<_> = cluster.view().members.iter().map(|member| member.node).collect();
        for _ in 0..2 {
            cluster.nodes().crash(nodes.remove(rng.below(nodes.len())));
        }
        check(&versions).await;
        wait_for_repair(&cluster).await;
        check(&versions).await;
        // Pairs get fewer copies if there are too few nodes. A write is refused if no node can have a copy, or if the
        // write needs a new block and there are too few nodes for it.
        for number in (0..PAIRS).step_by(2) {
            let put = store
                .write(WriteRequest::upsert(&key(number)[..], &value(number, 2)).placed(oriented))
                .await;
            match put {
                Ok(_) => versions[number] = 2,
                Err(Error::Redundancy(RedundancyError::TooFewNodes { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
        check(&versions).await;
        for _ in 0..2 {
            cluster.start_node();
        }
        let until = cluster.sim().now() + PATIENCE_NS;
        while cluster
            .view()
            .regions
            .iter()
            .any(|region| region.columns().is_some_and(|c| c.chunks().len() < coding.chunks()))
        {
            assert!(cluster.sim().now() < until, "no new columns: {:?}", *cluster.view());
            cluster.sim().sleep(1_000_000).await;
        }
        wait_for_repair(&cluster).await;
        check(&versions).await;
        put_all(&mut versions, 9).await;
        check(&versions).await;
        if let Some(leaving) = session.leave().await {
            keeper.close(session.id());
            assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
        }
    });
    check_replicas_agree(&cluster);
    check_quiescent(&cluster, &cluster.take_orphans());
}

/// The places of an EC-oriented pair's future parity hold parity of another value with an equal identity, as if the
/// address had been used 128 times since. A data chunk is damaged. The copy decides the value, however many parity
/// chunks agree with each other.
pub fn older_parity(seed: u64) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let geometry = Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry };
    let options = ClusterOptions { memory_nodes: 4, geometry, ..defaults };
    let options = ClusterOptions { lease_ms: Some(LEASE.as_millis() as u64), ..options };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let coding = Coding::new(2, 2).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let value = [7; 900];
        let written = store
            .write(WriteRequest::insert(b"key", &value).placed(oriented))
            .await
            .expect("there is room");
        let hint = written.place.expect("it has been put somewhere");
        leave_older_parity(&cluster, b"key", hint.word);
        let view = store.view();
        let object = view.object_of(hint.word).expect("it leads there");
        let damaged = object.places().nth(seed as usize % coding.k()).expect("a data chunk");
        cluster.network().memories().flip(damaged.plus(8 * (seed % 5)), 1 << (seed % 64));
        let found = store.search(b"key", Some(hint)).await.expect("the copy is left");
        assert_eq!(found.value(), Some(&value[..]));
    });
}

/// Puts parity of another value of the key where the parity of this word's pair belongs.
fn leave_older_parity(cluster: &SimCluster, key: &[u8], word: Slot) {
    // The checkers are off, because they do not allow the leftovers of an older object with an equal identity: in other
    // runs no client ever meets leftovers of this kind.
    cluster.checks().never_watch();
    let view = cluster.view();
    let object = view.object_of(word).expect("it leads there");
    let coding = object.columns().expect("it has chunks").coding();
    let mut chunks = vec![vec![0; object.bytes() as usize]; coding.chunks()];
    let identity = object.identity_of(word);
    let pair = Pair { key, value: &[8; 900], identity, opcode: Opcode::Insert };
    let mut of_stripe: Vec<&mut [u8]> = chunks.iter_mut().map(|chunk| &mut chunk[..]).collect();
    pair.encode_chunks(&ReedSolomon::new(coding), &mut of_stripe);
    for (place, chunk) in object.places().zip(&chunks).skip(coding.k()) {
        for (word, belongs) in (0..).zip(chunk.as_chunks().0) {
            let place = place.plus(8 * word);
            let stands = cluster.network().memories().word_at(place).0;
            cluster.network().memories().flip(place, stands ^ u64::from_le_bytes(*belongs));
        }
    }
}

/// As in [`older_parity`], but the nodes of both data chunks do not answer a reader. Parity chunks alone do not decide
/// the value, whether or not the reader has a hint.
pub fn unread_data(seed: u64) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let geometry = Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry };
    let lease_ms = Some(LEASE.as_millis() as u64);
    let options = ClusterOptions { memory_nodes: 6, geometry, lease_ms, ..defaults };
    let network = NetworkOptions { verb_timeout_ns: 100_000, ..NetworkOptions::default() };
    let cluster = SimCluster::with_network(&sim, &options, network);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let coding = Coding::new(2, 2).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let mut number = 0;
        let (key, hint, data) = loop {
            let key = format!("key {number}").into_bytes();
            let put = WriteRequest::insert(&key[..], &[7; 900]).placed(oriented);
            let place = store.write(put).await.expect("there is room").place;
            let hint = place.expect("it has been put somewhere");
            let view = store.view();
            let object = view.object_of(hint.word).expect("it leads there");
            let data: Vec<_> = object.places().take(coding.k()).map(|place| place.node).collect();
            if !data.contains(&view.slot_on_primary(hint.slot).node) {
                break (key, hint, data);
            }
            number += 1;
            assert!(number < 60, "there is none on so many nodes");
        };
        leave_older_parity(&cluster, &key, hint.word);
        data.iter().for_each(|node| cluster.network().links().hold(session.id(), *node, HELD_NS));
        for hint in [Some(hint), None] {
            match store.search(&key[..], hint).await {
                Err(Error::Unreachable { node, .. }) => assert!(data.contains(&node)),
                other => panic!("{:?}", other.map(|found| found.value().map(<[u8]>::to_vec))),
            }
        }
    });
}

/// A client has died while it rewrote the header of a block, so that no column has a whole header. One node is lost,
/// and after its chunks are restored on a spare node, another node is lost. The live objects of the block remain
/// readable.
pub fn torn_headers(seed: u64) {
    let sim = Sim::new(seed);
    let rng = Rng::named(seed, "torn headers");
    let defaults = ClusterOptions::default();
    let geometry = Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry };
    let options = ClusterOptions { memory_nodes: 4, index_replicas: 2, geometry, ..defaults };
    let options = ClusterOptions { lease_ms: Some(LEASE.as_millis() as u64), ..options };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let oriented = Redundancy::Oriented(Orientation::new(2, coding()).expect("it can be"));
    let redundancy = rng.pick(&[Redundancy::Coded(coding()), oriented]);
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let value = [7; 900];
        let written = store
            .write(WriteRequest::insert(b"key", &value).placed(redundancy))
            .await
            .expect("there is room");
        let word = written.place.expect("it has been put somewhere").word;
        let view = store.view();
        let block = block_with(&cluster, word.address());
        for header in view.block(block).expect("it is in a region").places() {
            // This leaves the header as a WRITE without its last word would, which contains the CRC.
            cluster.network().memories().flip(header.plus(BLOCK_HEADER_BYTES - 8), u64::MAX << 32);
        }
        let columns = || {
            let view = cluster.view();
            let places = view.object_of(word).expect("its region is there").places();
            places.map(|place| place.node).collect::<Vec<_>>()
        };
        for left in [3, 2] {
            let lost = rng.pick(&columns());
            cluster.nodes().crash(lost);
            let until = sim.now() + PATIENCE_NS;
            while columns().contains(&lost) || columns().len() < left {
                assert!(sim.now() < until, "not put right: {:?}", *cluster.view());
                sim.sleep(1_000_000).await;
            }
            wait_for_repair(&cluster).await;
        }
        let found = store.search(b"key", None).await.expect("enough is left");
        assert_eq!(found.value(), Some(&value[..]));
    });
    check_replicas_agree(&cluster);
}

/// A session moves a pair in place in a block whose header says that it is no longer in use. The session dies in the
/// middle. Recovery still finds all parts of the new word.
pub fn resting_block(seed: u64) {
    let sim = Sim::new(seed);
    let rng = Rng::named(seed, "resting block");
    let defaults = ClusterOptions::default();
    let geometry = Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry };
    let options = ClusterOptions {
        memory_nodes: 4,
        index_replicas: 3,
        geometry,
        lease_ms: Some(LEASE.as_millis() as u64),
        ..defaults
    };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let oriented = Redundancy::Oriented(Orientation::new(2, coding()).expect("it can be"));
    cluster.block_on(process, async {
        let [mover, reader] = [(); 2].map(|()| cluster.open(process, options.session));
        let (mover, reader) = futures_util::future::join(mover, reader).await;
        let mover = mover.expect("a master leads");
        let reader = reader.expect("a master leads");
        keeper.open(mover.gate().clone());
        keeper.open(reader.gate().clone());
        let value = vec![1; 900];
        let put = async |key: &[u8], value: &[u8]| {
            mover
                .store()
                .write(WriteRequest::upsert(key, value).placed(oriented))
                .await
                .expect("there is room");
        };
        put(b"moved", &value).await;
        for number in 0..60u8 {
            put(&[b'k', number % 5], &[number; 900]).await;
        }
        let to = Redundancy::Coded(coding());
        let moves = std::pin::pin!(mover.store().set_redundancy(&b"moved"[..], to, None));
        let dies = std::pin::pin!(sim.sleep(rng.below_u64(30_000)));
        drop(futures_util::future::select(moves, dies).await);
        keeper.close(mover.id());
        let until = cluster.sim().now() + PATIENCE_NS;
        loop {
            let status = cluster.peek_master(MasterRequest::Status);
            if let Some(MasterReply::Status(status)) = status
                && (status.open_sessions, status.expired_sessions) == (1, 0)
            {
                break;
            }
            assert!(cluster.sim().now() < until, "it is not recovered");
            cluster.sim().sleep(1_000_000).await;
        }
        let found = reader.store().search(&b"moved"[..], None).await.expect("it is there");
        assert_eq!(found.value(), Some(&value[..]));
    });
    check_replicas_agree(&cluster);
}

/// A chunk and the copy of a pair without parity are damaged, and the node of another chunk does not answer a reader.
/// This must not count as damage of the pair, because another session is possibly able to read it.
pub fn silent_chunk(seed: u64) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let geometry = Geometry { max_value_bytes: 1024, ..defaults.geometry };
    let lease_ms = Some(LEASE.as_millis() as u64);
    let options = ClusterOptions { memory_nodes: 5, geometry, lease_ms, ..defaults };
    let network = NetworkOptions { verb_timeout_ns: 100_000, ..NetworkOptions::default() };
    let cluster = SimCluster::with_network(&sim, &options, network);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let coding = Coding::new(3, 1).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let put = store
            .write(WriteRequest::insert(b"key", &[7; 900]).placed(oriented))
            .await
            .expect("there is room");
        // The regions of the pair are new. This waits until the change that adds the regions has ended, because that
        // change checks their contents.
        sim.sleep(PATIENCE_NS / 4).await;
        assert!(cluster.view().change.is_none());
        let word = put.place.expect("it is there").word;
        let view = store.view();
        let object = view.object_of(word).expect("it is there");
        let [damaged, silent] = [0, 1].map(|chunk| object.places().nth(chunk).expect("a chunk"));
        let named =
            cluster.network().memories().word_at(object.copy_words(word).next().expect("one"));
        let copy = copy_of(object.identity_of(word), 0, named.0).expect("it is named");
        let copy = view.object(copy.address(), 64).expect("it is there").places().next();
        let damage = [damaged, copy.expect("one place")].map(|place| place.plus(64));
        damage.into_iter().for_each(|place| cluster.network().memories().flip(place, 1));
        cluster.network().links().hold(session.id(), silent.node, PATIENCE_NS);
        match store.search(b"key", None).await {
            Err(Error::Unreachable { node, .. }) => assert_eq!(node, silent.node),
            other => panic!("{:?}", other.map(|found| found.value().map(<[u8]>::len))),
        }
        damage.into_iter().for_each(|place| cluster.network().memories().flip(place, 1));
    });
}
