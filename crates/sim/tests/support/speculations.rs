//! UPDATEs and DELETEs that begin with a speculative write, under random schedules and in steered histories.
//!
//! The scenarios are those of [`failures`](super::failures), [`changes`](super::changes) and [`reuse`](super::reuse),
//! in clusters where speculative writes are possible: with as many memory nodes as slots have replicas, or a few more,
//! so that some objects are on the nodes of all backups of a slot and others are not. Most operations get hints, and no
//! cluster shares its memory. The network can deliver any part of a batch late or, if its client dies, never: for
//! example a WRITE to one node and the CAS behind it to another node.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::Extent;
use fusee_core::data::{Orientation, Redundancy};
use fusee_core::erasure::Coding;
use fusee_core::error::Error;
use fusee_core::race::Buckets;
use fusee_core::slab::WINDOW_EPOCHS;
use fusee_core::store::{Hint, HintTrust, WriteRequest};
use fusee_core::view::Geometry;
use fusee_core::view::change::NewReplica;
use fusee_sim::check::check_replicas_agree;
use fusee_sim::{ClusterOptions, Nanos, NetworkOptions, Rng, Sim, SimClient, SimCluster, Stepper};
use futures_util::future::{Either, join, select};

use super::changes::{STEPS, ViewChanger, room};
use super::crash::{ClientLife, idle};
use super::failures::{FailureCounts, FailureRun, PlanKind};
use super::reuse::tight;
use super::workload::StepWorkload;
use super::{
    MAX_STEPS, alone, blocks_of, changes, clients_in_order, failures, replicas_differ, reuse,
    small, stepwise,
};

/// A time longer than anything takes in a stepwise cluster.
const HELD_NS: Nanos = 1 << 60;
const LEASE: Duration = Duration::from_millis(20);

/// Numbers of memory nodes, of index replicas, and of data replicas.
const SHAPES: [(u16, u8, u8); 8] =
    [(2, 2, 2), (3, 3, 3), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 4, 3), (5, 3, 2), (4, 2, 2)];

fn shape(seed: u64) -> ClusterOptions {
    let (memory_nodes, index_replicas, data_replicas) = SHAPES[seed as usize % SHAPES.len()];
    ClusterOptions { memory_nodes, data_replicas, ..small(seed, index_replicas) }
}

/// Makes a run's writes speculative where this is possible.
fn speculating(run: FailureRun) -> FailureRun {
    let network = run.cluster.network();
    network.set_options(NetworkOptions { immediate: false, ..network.options() });
    run.workload.use_hints();
    run
}

fn plans(seed: u64) -> PlanKind {
    if (seed / 8).is_multiple_of(3) { PlanKind::Fights } else { PlanKind::Mixed }
}

/// Clients die while other clients run, and are recovered.
pub fn crash(seed: u64) -> FailureCounts {
    failures::crash_and_recover(speculating(FailureRun::of(seed, &shape(seed), plans(seed))))
}

/// All clients die at once, and a memory node with index replicas is lost.
pub fn index_loss(seed: u64) -> FailureCounts {
    failures::all_die_and_a_node(speculating(FailureRun::of(seed, &shape(seed), PlanKind::Mixed)))
}

/// Memory nodes are lost while clients work. Some clients die.
pub fn loss(seed: u64) -> FailureCounts {
    changes::lose_nodes(speculating(FailureRun::of(seed, &shape(seed), plans(seed))))
}

/// Replicas of subtables and regions move while clients work. Some clients die.
pub fn moves(seed: u64) -> FailureCounts {
    let options = ClusterOptions { pool_bytes: 3 << 18, ..shape(seed) };
    changes::move_replicas(speculating(FailureRun::of(seed, &options, plans(seed))))
}

/// Clients work while memory is short and reused.
pub fn used_again(seed: u64) -> FailureCounts {
    reuse::use_again(speculating(tight(seed, shape(seed))))
}

/// A slot word that a session saw a window of epochs ago recurs, and is on a backup while its writer has not committed
/// it yet. If the session still trusted its hint of that word, it would take over the backup, as if the conflict round
/// that replaces the word had begun.
///
/// The run skips the uses of the object in between: the word is learnt from an earlier run of the seed, and the hint is
/// made up. Returns whether the word was on the backup, and not on the primary, when the operation with the old hint
/// began.
pub fn recurring_word(seed: u64) -> bool {
    let options = ClusterOptions { memory_nodes: 2, data_replicas: 2, ..small(seed, 2) };
    let prepared = || {
        let (rng, cluster) = stepwise(seed, &options);
        let clients: [SimClient; 2] = clients_in_order(&rng, &cluster);
        let keys = StepWorkload::keys(&cluster.view(), 1, 0);
        alone(&rng, clients[0].insert(&keys[0], b"first")).unwrap();
        (rng, cluster, clients, keys)
    };
    let again = {
        let (rng, _cluster, [writer, _], keys) = prepared();
        alone(&rng, writer.update(&keys[0], b"second", None)).unwrap().place.unwrap()
    };
    let (rng, cluster, [writer, other], keys) = prepared();
    other.session.gate().publish_epoch(WINDOW_EPOCHS);
    let before = Hint { seen: HintTrust::FreshSince(1), ..again };
    let places: Vec<_> = cluster.view().slot_places(again.slot).collect();
    let word = |i: usize| cluster.network().memories().word_at(places[i]);
    let steered = Cell::new(false);
    let mut stepper = Stepper::new(&rng);
    stepper.spawn(async {
        writer.update(&keys[0], b"second", None).await.map(drop).unwrap();
    });
    stepper.spawn(async {
        while word(1) != again.word {
            idle(1).await;
        }
        steered.set(word(0) != again.word);
        other.update(&keys[0], b"third", Some(before)).await.map(drop).unwrap();
    });
    stepper.run(MAX_STEPS, || ());
    check_replicas_agree(&cluster);
    let found = alone(&rng, writer.search(&keys[0], None)).unwrap();
    // If the UPDATE with the old hint lost its conflict round, it has possibly taken effect before the writer's UPDATE.
    assert!(
        found.value().is_some_and(|value| value != b"first"),
        "{found:?}",
        found = found.value()
    );
    steered.get()
}

/// Returns options for a cluster with three memory nodes and with this number of replicas of each subtable and region.
fn timed(replicas: u8) -> ClusterOptions {
    let defaults = ClusterOptions::default();
    ClusterOptions {
        memory_nodes: 3,
        index_replicas: replicas,
        data_replicas: replicas,
        geometry: Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry },
        lease_ms: Some(LEASE.as_millis() as u64),
        ..defaults
    }
}

/// A word of an EC-oriented pair, written by a Move in place, recurs as in [`recurring_word`]. Here the session saw the
/// word only half a window of epochs ago, which suffices because each object has several words. The run takes virtual
/// time.
pub fn recurring_turn(seed: u64) {
    turned(seed, turned(seed, None));
}

/// Makes a pair erasure-coded in place. If `again` is the hint of the resulting word, another session meanwhile
/// overwrites the pair with this hint. Returns the word of the Move.
fn turned(seed: u64, again: Option<Hint>) -> Option<Hint> {
    const KEY: &[u8] = b"key";
    let again = again.map(|again| Hint { seen: HintTrust::FreshSince(1), ..again });
    let sim = Sim::new(seed);
    let rng = Rng::named(seed, "recurring turn");
    let coding = Coding::new(2, 1).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    let options = timed(3);
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let turned = cluster.block_on(process, async {
        let open = || cluster.open_kept(process, &keeper);
        let writer = open().await;
        let other = open().await;
        let put = writer.store().write(WriteRequest::upsert(KEY, &[1; 700]).placed(oriented)).await;
        put.expect("there is room");
        // This write gives the other session a block for its later write.
        let put = other
            .store()
            .write(WriteRequest::upsert(b"other", &[2; 700]).placed(Redundancy::Replicated))
            .await;
        put.expect("there is room");
        let turn = writer.store().set_redundancy(KEY, Redundancy::Coded(coding), None);
        let overwrite = async {
            if again.is_some() {
                other.gate().publish_epoch(WINDOW_EPOCHS / 2);
                sim.sleep(rng.below_u64(20_000)).await;
                let replicated = Redundancy::Replicated;
                let put = other
                    .store()
                    .write(WriteRequest::upsert(KEY, &[3; 700]).placed(replicated).hinted(again))
                    .await;
                put.expect("it is written");
            }
        };
        let (turned, ()) = join(turn, overwrite).await;
        turned.expect("it can be").1.place
    });
    check_replicas_agree(&cluster);
    let found = cluster.block_on(process, async {
        let reader = cluster.open(process, options.session).await.expect("a master leads");
        let found = reader.store().search(KEY, None).await.expect("it is there");
        found.value().map(<[u8]>::to_vec)
    });
    assert_eq!(found, Some(vec![if again.is_some() { 3 } else { 1 }; 700]));
    turned
}

/// A pair without redundancy is lost with its memory node, and a session has found the key absent. A session with an
/// earlier hint must find the key absent as well, whatever its operation. The run takes virtual time.
pub fn lost_single(seed: u64) {
    const KEY: &[u8] = b"key";
    let sim = Sim::new(seed);
    let options = timed(2);
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let open = || cluster.open_kept(process, &keeper);
        let writer = open().await;
        let other = open().await;
        let store = writer.store();
        let put = store.write(WriteRequest::upsert(KEY, &[1; 100]).placed(Redundancy::None)).await;
        let hint = put.expect("there is room").place.expect("it is there");
        // This write gives the session a block for its later writes.
        let put = store
            .write(WriteRequest::upsert(b"other", &[2; 100]).placed(Redundancy::Replicated))
            .await;
        put.expect("there is room");
        let object = cluster.view().object_of(hint.word).expect("it leads there").places().next();
        cluster.nodes().crash(object.expect("a place").node);
        let until = sim.now() + 2_000_000_000;
        loop {
            let found = other.store().search(KEY, None).await.expect("a search waits");
            if found.value().is_none() {
                break;
            }
            assert!(sim.now() < until, "the key is still there");
            sim.sleep(1_000_000).await;
        }
        assert!(matches!(hint.seen, HintTrust::FreshSince(_)), "{hint:?}");
        let updated = store.update(KEY, &[3; 100], Some(hint)).await.map(drop);
        assert_eq!(updated, Err(Error::NotFound), "an update");
        let deleted = store.delete(KEY, Some(hint)).await.map(drop);
        assert_eq!(deleted, Err(Error::NotFound), "a delete");
        let found = other.store().search(KEY, None).await.expect("a search waits");
        assert_eq!(found.value(), None);
    });
    check_replicas_agree(&cluster);
}

/// A writer dies within its speculative write when its word is on a backup, and its object is complete only on one
/// node, because the link to the other node was held. Then the replica of the region moves away from the node with the
/// complete object, and the new replica is filled from the other one. There are three index and two data replicas, and
/// the backups of the key's slot are on the region's nodes.
pub fn half_moved(seed: u64) -> FailureCounts {
    let options = ClusterOptions {
        memory_nodes: 3,
        data_replicas: 2,
        index_keys: 100,
        pool_bytes: 3 << 18,
        ..small(seed, 3)
    };
    let run = speculating(FailureRun::of(seed, &options, PlanKind::Mixed));
    let rng = &run.rng;
    let cluster = &run.cluster;
    let dies = ClientLife::new(Some(rng.below(3) as u64), || replicas_differ(cluster));
    let clients = [(run.client(), dies), (run.client(), ClientLife::new(None, || false))];
    let [(writer, life), (reader, _)] = &clients;
    run.alone(writer.insert(b"the first", b"first")).unwrap();
    let now = cluster.view().clone();
    let (region, _) =
        now.geometry.frame_at(blocks_of(cluster, writer.client())[0].address).unwrap();
    let places = now.regions[region as usize].places();
    let lies_beside = |key: &Vec<u8>| {
        let subtable = Buckets::of(key, &now).subtable;
        places.iter().all(|place| place.node != now.subtables[subtable as usize].primary().node)
    };
    let key = (0..100).map(|i| format!("key {i}").into_bytes()).find(lies_beside);
    if let Some(key) = &key {
        let hint = run.alone(writer.insert(key, b"first")).unwrap().place.unwrap();
        let held = (writer.client(), places[0].node);
        cluster.network().links().hold(held.0, held.1, HELD_NS);
        let written = async { drop(writer.update(key, b"second", Some(hint)).await) };
        run.alone(life.task(written));
        assert!(life.crashed(), "the speculative write has come to one of two nodes");
        cluster.network().links().release(held.0, held.1);
        let joining = room(&run, &now, Extent::Region { region, primary: false }, places, 1)[0];
        let gain = NewReplica { of: region, joining, leaving: Some(places[1]) };
        let is_done = Cell::new(false);
        let losses_one_in = 1 << 30;
        let leader = ViewChanger { run: &run, clients: &clients, is_done, losses_one_in };
        let mut stepper = Stepper::new(rng);
        stepper.spawn(leader.bury(writer, life));
        stepper.spawn(async {
            cluster.checks().stop_watching();
            leader.finish(now.growing(&[], &[gain])).await;
        });
        stepper.run(STEPS, || ());
    }
    check_replicas_agree(cluster);
    if let Some(key) = &key {
        let found = run.alone(reader.search(key, None)).unwrap();
        assert!(found.value() == Some(b"first") || found.value() == Some(b"second"));
    }
    run.leave_all(&clients);
    run.end()
}

/// A session dies within its speculative DELETE when its number is on the first backup only. With every other seed, the
/// primary is lost as well. Then the slot is settled on the entry, which the other backup shows; otherwise the
/// session's recovery commits the number. The run takes virtual time.
pub fn half_deleted(seed: u64) {
    let sim = Sim::new(seed);
    let options = ClusterOptions { data_replicas: 2, index_keys: 100, ..timed(3) };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let loses_primary = seed.is_multiple_of(2);
    cluster.block_on(process, async {
        let deleter = cluster.open(process, options.session).await.expect("a master leads");
        keeper.open(deleter.gate().clone());
        let store = deleter.store();
        let network = cluster.network();
        let view = cluster.view().clone();
        for key in [&b"first"[..], b"key"] {
            store.insert(key, b"value").await.expect("there is room");
        }
        // With this DELETE the session gets its log areas.
        store.delete(b"first", None).await.expect("it is there");
        let found = store.search(b"key", None).await.expect("all nodes answer");
        let hint = found.hint().expect("it is there");
        drop(found);
        let backups: Vec<_> = view.slot_on_backups(hint.slot).collect();
        let primary = view.slot_on_primary(hint.slot).node;
        network.links().hold(deleter.id(), backups[1].node, HELD_NS);
        let word = || network.memories().word_at(backups[0]);
        let stands = async {
            while !word().is_free() {
                sim.sleep(100).await;
            }
        };
        let deletes = Box::pin(store.delete(b"key", Some(hint)));
        let Either::Right(((), deletes)) = select(deletes, pin!(stands)).await else {
            panic!("a node does not answer");
        };
        let number = word();
        assert_eq!(network.memories().word_at(backups[1]), hint.word, "it is half-way");
        drop(deletes);
        keeper.close(deleter.id());
        if loses_primary {
            cluster.nodes().crash(primary);
        }
        let until = sim.now() + 2_000_000_000;
        let is_over = || {
            let Some(MasterReply::Status(status)) = cluster.peek_master(MasterRequest::Status)
            else {
                return false;
            };
            let view = cluster.view();
            let is_stable =
                view.change.is_none() && view.member(primary).is_some() != loses_primary;
            is_stable && status.open_sessions + status.expired_sessions == 0
        };
        while !is_over() {
            assert!(sim.now() < until, "the session is recovered");
            sim.sleep(1_000_000).await;
        }
        let settled = if loses_primary { hint.word } else { number };
        let words = cluster.view().slot_places(hint.slot).collect::<Vec<_>>();
        let words: Vec<_> = words.iter().map(|at| network.memories().word_at(*at)).collect();
        assert!(words.iter().all(|word| *word == settled), "{words:?}, not {settled:?}");
    });
    check_replicas_agree(&cluster);
}
