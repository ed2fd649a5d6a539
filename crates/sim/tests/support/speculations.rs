//! Updates and deletes that begin with a speculative write, under random schedules and steered by hand.
//!
//! The scenarios are those of [`failures`](super::failures), [`changes`](super::changes) and
//! [`reuse`](super::reuse), in clusters where speculative writes hold: of as many memory nodes as slots have
//! replicas, or a few more, so that some objects lie beside all backups of a slot and others do
//! not. All operations get hints, nobody shares memory. The network lets any part of a batch arrive late or,
//! when its client dies, never: a WRITE here and the CAS behind it there.

use std::cell::Cell;

use fusee_control::node::Extent;
use fusee_core::change::Gain;
use fusee_core::race::Buckets;
use fusee_core::store::{Hint, Sight};
use fusee_sim::check::replicas_agree;
use fusee_sim::{Client, ClusterOptions, Nanos, NetworkOptions, Stepper};

use super::changes::{Leader, STEPS, room};
use super::crash::{Life, idle};
use super::failures::{Events, Plans, Run};
use super::reuse::tight;
use super::workload::Workload;
use super::{
    MAX_STEPS, alone, blocks_of, changes, clients_in_order, failures, replicas_differ, reuse,
    small, stepwise,
};

/// Longer than anything takes where no time passes.
const HELD_NS: Nanos = 1 << 60;

/// Memory nodes, index replicas, data replicas.
const SHAPES: [(u16, u8, u8); 8] =
    [(2, 2, 2), (3, 3, 3), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 4, 3), (5, 3, 2), (4, 2, 2)];

fn shape(seed: u64) -> ClusterOptions {
    let (memory_nodes, index_replicas, data_replicas) = SHAPES[seed as usize % SHAPES.len()];
    ClusterOptions { memory_nodes, data_replicas, ..small(seed, index_replicas) }
}

/// A run whose writes speculate where they can.
fn speculating(run: Run) -> Run {
    let network = run.cluster.network();
    network.set_options(NetworkOptions { immediate: false, ..network.options() });
    run.workload.use_hints();
    run
}

fn plans(seed: u64) -> Plans {
    if (seed / 8).is_multiple_of(3) { Plans::Fights } else { Plans::Mixed }
}

/// Clients die beside living ones and are recovered.
pub fn crash(seed: u64) -> Events {
    failures::crash_and_recover(speculating(Run::of(seed, &shape(seed), plans(seed))))
}

/// All clients die at once, and a node of the index is lost.
pub fn index_loss(seed: u64) -> Events {
    failures::all_die_and_a_node(speculating(Run::of(seed, &shape(seed), Plans::Mixed)))
}

/// Memory nodes are lost beside working clients, of which some die.
pub fn loss(seed: u64) -> Events {
    changes::lose_nodes(speculating(Run::of(seed, &shape(seed), plans(seed))))
}

/// Replicas of subtables and regions move beside working clients, of which some die.
pub fn moves(seed: u64) -> Events {
    let options = ClusterOptions { pool_bytes: 3 << 18, ..shape(seed) };
    changes::move_replicas(speculating(Run::of(seed, &options, plans(seed))))
}

/// Memory is short and used again.
pub fn used_again(seed: u64) -> Events {
    reuse::use_again(speculating(tight(seed, shape(seed))))
}

/// A word that was seen in an earlier local epoch comes back, and stands on a backup when its writer has not
/// committed it yet. Who knows it from then takes the backup over, as if the round of that word had begun.
///
/// The thirty-two lives of the object are not lived: the word is learnt from a run that went the
/// same way, and the hint is made up. Returns whether the word stood on a backup, and not on the
/// primary, when the operation with the old hint began.
pub fn recurring_word(seed: u64) -> bool {
    let options = ClusterOptions { memory_nodes: 2, data_replicas: 2, ..small(seed, 2) };
    let prepared = || {
        let (rng, cluster) = stepwise(seed, &options);
        let clients: [Client; 2] = clients_in_order(&rng, &cluster);
        let keys = Workload::keys(&cluster.view(), 1, 0);
        alone(&rng, clients[0].insert(&keys[0], b"first")).unwrap();
        (rng, cluster, clients, keys)
    };
    let again = {
        let (rng, _cluster, [writer, _], keys) = prepared();
        alone(&rng, writer.update(&keys[0], b"second", None)).unwrap().place.unwrap()
    };
    let (rng, cluster, [writer, other], keys) = prepared();
    other.session.gate().publish_epoch(1);
    let now = other.session.gate().local_epoch();
    let before = Hint { seen: Sight::In(now - 1), ..again };
    let places: Vec<_> = cluster.view().slot_places(again.slot).collect();
    let word = |i: usize| cluster.network().word_at(places[i]);
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
    replicas_agree(&cluster);
    let found = alone(&rng, writer.search(&keys[0], None)).unwrap();
    // As a loser it may have taken effect before the other one.
    assert!(
        found.value().is_some_and(|value| value != b"first"),
        "{found:?}",
        found = found.value()
    );
    steered.get()
}

/// A writer dies within its speculative write when the word stands on a backup, and its object is complete on
/// that node only: the link to the other one was held. Then just that replica of the region moves
/// away, filled from the other one. Three index and two data replicas, and a key whose slot has its
/// backups on the region's nodes.
pub fn half_moved(seed: u64) -> Events {
    let options = ClusterOptions {
        memory_nodes: 3,
        data_replicas: 2,
        index_keys: 100,
        pool_bytes: 3 << 18,
        ..small(seed, 3)
    };
    let run = speculating(Run::of(seed, &options, Plans::Mixed));
    let (rng, cluster) = (&run.rng, &run.cluster);
    let dies = Life::new(Some(rng.below(3) as u64), || replicas_differ(cluster));
    let clients = [(run.client(), dies), (run.client(), Life::new(None, || false))];
    let [(writer, life), (reader, _)] = &clients;
    run.alone(writer.insert(b"the first", b"first")).unwrap();
    let now = cluster.view().clone();
    let (region, _) = now.geometry.block_at(blocks_of(cluster, writer.client())[0]).unwrap();
    let places = now.regions[region as usize].places();
    let lies_beside = |key: &Vec<u8>| {
        let subtable = Buckets::of(key, &now).subtable;
        places.iter().all(|place| place.node != now.subtables[subtable as usize].primary().node)
    };
    let key = (0..100).map(|i| format!("key {i}").into_bytes()).find(lies_beside);
    if let Some(key) = &key {
        let hint = run.alone(writer.insert(key, b"first")).unwrap().place.unwrap();
        let held = (writer.client(), places[0].node);
        cluster.network().hold(held.0, held.1, HELD_NS);
        let written = async { drop(writer.update(key, b"second", Some(hint)).await) };
        run.alone(life.task(written));
        assert!(life.crashed(), "the speculative write has come to one of two nodes");
        cluster.network().release(held.0, held.1);
        let joining = room(&run, &now, Extent::Region { region, primary: false }, places, 1)[0];
        let gain = Gain { of: region, joining, leaving: Some(places[1]) };
        let (is_done, losses_one_in) = (Cell::new(false), 1 << 30);
        let leader = Leader { run: &run, clients: &clients, is_done, losses_one_in };
        let mut stepper = Stepper::new(rng);
        stepper.spawn(leader.bury(writer, life));
        stepper.spawn(async {
            cluster.stop_watching();
            leader.finish(now.growing(&[], &[gain])).await;
        });
        stepper.run(STEPS, || ());
    }
    replicas_agree(cluster);
    if let Some(key) = &key {
        let found = run.alone(reader.search(key, None)).unwrap();
        assert!(found.value() == Some(b"first") || found.value() == Some(b"second"));
    }
    run.leave_all(&clients);
    run.end()
}
