//! Phases of each operation, on a network where a phase takes 1,600 ns and everything else takes no time.

use std::cell::{Cell, RefCell};

use fusee_baselines::BaselineSession;
use fusee_baselines::published::PublishedParameters;
use fusee_linearizability::{HistoryAnswer, HistoryCall};
use fusee_sim::{Executor, NetworkOptions, Rack, Sim, Testbed};

use super::scene::SteeredScene;
use super::{open, parameters};
use crate::support::{key, value};

const NODES: u16 = 3;
const PHASE_NS: u64 = 1_600;

/// Returns the phases of six operations: a search with a hint, a search by another client without a hint, a search for
/// an absent key, an insert, an update, and a delete.
fn phases(parameters: PublishedParameters) -> [u64; 6] {
    let sim = Sim::steady();
    let network = NetworkOptions {
        testbed: Some(Testbed::UNLIMITED),
        delays: false,
        tearing: false,
        ..NetworkOptions::default()
    };
    let rack = Rack::new(&sim, network, NODES, parameters.pool_bytes(NODES.into()));
    let mut open = open(parameters);
    let [(process, one), (_, other)] = [(); 2].map(|()| {
        let (process, fabric) = rack.client_on(rack.network().hardware().machine());
        (process, open(fabric, rack.nodes()))
    });
    let took = RefCell::new(Vec::new());
    let mut executor = Executor::new(&sim);
    executor.spawn(process, async {
        let mut last = sim.now();
        let mut note = || {
            let now = sim.now();
            took.borrow_mut().push((now - std::mem::replace(&mut last, now)) / PHASE_NS);
        };
        let (key, absent) = (key(1), key(2));
        assert_eq!(one.insert(&key, &value(1)).await, Ok(true));
        note();
        assert_eq!(one.search(&key).await, Ok(Some(value(1))));
        note();
        assert_eq!(other.search(&key).await, Ok(Some(value(1))));
        note();
        assert_eq!(one.search(&absent).await, Ok(None));
        note();
        assert_eq!(one.update(&key, &value(2)).await, Ok(true));
        note();
        assert_eq!(one.delete(&key).await, Ok(true));
        note();
        assert_eq!(one.search(&key).await, Ok(None));
    });
    executor.run(1_000_000, || ());
    drop(executor);
    let [insert, hit, miss, absent, update, delete] = took.into_inner().try_into().unwrap();
    [hit, miss, absent, insert, update, delete]
}

#[test]
fn a_write_commits_its_log_in_a_phase_of_its_own() {
    assert_eq!(phases(parameters(2)), [1, 2, 1, 4, 4, 4]);
    assert_eq!(phases(parameters(3)), [1, 2, 1, 4, 4, 4]);
}

#[test]
fn with_one_index_replica_no_log_is_committed() {
    assert_eq!(phases(parameters(1)), [1, 2, 1, 2, 2, 2]);
}

#[test]
fn one_by_one_each_index_replica_takes_a_phase() {
    assert_eq!(phases(parameters(1).one_by_one()), [1, 2, 1, 2, 2, 2]);
    assert_eq!(phases(parameters(2).one_by_one()), [1, 2, 1, 3, 3, 3]);
    assert_eq!(phases(parameters(3).one_by_one()), [1, 2, 1, 4, 4, 4]);
}

/// Without a cache an UPDATE READs the buckets in the phase of its WRITE, and the pair in another phase, to compare the
/// key.
#[test]
fn without_the_cache_search_update_and_delete_take_one_more() {
    assert_eq!(phases(parameters(1).without_cache()), [2, 2, 1, 2, 3, 3]);
    assert_eq!(phases(parameters(2).without_cache()), [2, 2, 1, 4, 5, 5]);
    assert_eq!(phases(parameters(3).without_cache()), [2, 2, 1, 4, 5, 5]);
}

/// The allocators of this test take no time, so neither do the additional requests to them.
#[test]
fn who_allocates_changes_no_phase() {
    assert_eq!(phases(parameters(2).allocated_by_nodes()), [1, 2, 1, 4, 4, 4]);
}

/// Returns the phases of an INSERT during another INSERT whose CAS has reached the slot's first backup only.
fn phases_beside_another(replicas: usize) -> u64 {
    let scene = SteeredScene::new(parameters(replicas));
    let phases = Cell::new(0);
    let scene_ = &scene;
    let phases_ = &phases;
    scene.play(vec![
        Box::pin(async move {
            // Client 1 READs the slot, and then its CAS reaches the first backup only.
            scene_.sleep(PHASE_NS * 3 / 4).await;
            (2..replicas as u16).for_each(|node| scene_.hold(1, node));
            scene_.sleep(PHASE_NS).await;
            let begun = scene_.now();
            assert_eq!(scene_.act(0, 1, HistoryCall::Insert(1)).await, Ok(HistoryAnswer::Done));
            phases_.set((scene_.now() - begun) / PHASE_NS);
            (2..replicas as u16).for_each(|node| scene_.release(1, node));
        }),
        Box::pin(async move {
            assert_eq!(scene_.act(1, 1, HistoryCall::Insert(2)).await, Ok(HistoryAnswer::Done))
        }),
    ]);
    phases.get()
}

/// Client 0's word is the smaller one, because its object lies in an earlier region.
#[test]
fn rule_2_takes_one_more_and_rule_3_two() {
    assert_eq!(phases_beside_another(4), 5);
    assert_eq!(phases_beside_another(3), 6);
}
