//! Tests of switches on the links: of the phases that they save, and that no result depends on their knowledge.

use fusee_core::stats::OpKind;
use fusee_core::store::{Hint, HintTrust};
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, RunOptions, Scenario, Sim, SimCluster, SimStore, Switches, run};
use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};

/// Makes a cluster of two nodes, each of which has a replica of everything.
fn cluster(index_replicas: u8, slots: usize) -> SimCluster {
    let geometry = Geometry {
        slots_per_bucket: 8,
        groups_per_subtable: 64,
        ..ClusterOptions::default().geometry
    };
    let options = ClusterOptions {
        memory_nodes: 2,
        index_replicas,
        data_replicas: 2,
        geometry,
        ..ClusterOptions::default()
    };
    let cluster = SimCluster::new(&Sim::new(1), &options);
    let switch = FuseeSwitch::new(FuseeSwitchOptions { slots, rounds: 0 });
    cluster.network().put_switches(Switches::one(Box::new(switch)));
    cluster
}

fn doubted(hint: Option<Hint>) -> Option<Hint> {
    hint.map(|hint| Hint { seen: HintTrust::LikelyStale, ..hint })
}

/// Counts the phases of successive operations of one kind.
struct PhaseCounter<'s> {
    store: &'s SimStore,
    kind: OpKind,
    before: u64,
}

impl PhaseCounter<'_> {
    fn of(store: &SimStore, kind: OpKind) -> PhaseCounter<'_> {
        PhaseCounter { store, kind, before: store.stats().kind(kind).phases }
    }

    fn next(&mut self) -> u64 {
        let now = self.store.stats().kind(self.kind).phases;
        now - std::mem::replace(&mut self.before, now)
    }
}

// Promise PHA-6: Steering saves doubted hints a phase, or costs none.
#[test]
fn a_doubted_hint_costs_one_phase_where_the_switch_knows_and_two_where_it_does_not() {
    for slots in [0, 1, 8] {
        let cluster = cluster(2, slots);
        let writer = cluster.client();
        let reader = cluster.client();
        cluster.block_on(reader.process, async {
            let mut phases = PhaseCounter::of(&reader, OpKind::Search);
            let first = writer.insert(b"key", b"1").await.unwrap().place;
            let mut place = first;
            for round in 0..3u8 {
                place = writer.update(b"key", &[round], place).await.unwrap().place;
                let found = reader.search(b"key", doubted(first)).await.unwrap();
                assert_eq!((found.value(), found.hint()), (Some(&[round][..]), place));
                // The switch does not steer the first READ, which only shows it that sessions read this slot.
                let expected = if slots == 0 || round == 0 { 2 } else { 1 };
                assert_eq!(phases.next(), expected, "round {round}, room for {slots}");
            }
            // An object that is longer than the hint's word says is not steered, so one more phase is needed.
            writer.update(b"key", &[9; 300], place).await.unwrap();
            let found = reader.search(b"key", doubted(first)).await.unwrap();
            assert_eq!(found.value(), Some(&[9; 300][..]));
            assert_eq!(phases.next(), 2);
            writer.delete(b"key", None).await.unwrap();
            assert_eq!(reader.search(b"key", doubted(first)).await.unwrap().value(), None);
            assert_eq!(phases.next(), 2, "the slot is empty: the buckets");
        });
        let steered = reader.stats().steered();
        assert_eq!((steered.tried, steered.right), (4, if slots == 0 { 0 } else { 2 }));
    }
}

#[test]
fn an_update_by_a_doubted_hint_takes_no_more_phases_than_by_one_that_is_right() {
    for (replicas, right, wrong) in [(1, 2, 3), (2, 3, 4)] {
        for slots in [0, 8] {
            let cluster = cluster(replicas, slots);
            let other = cluster.client();
            let writer = cluster.client();
            cluster.block_on(writer.process, async {
                let mut phases = PhaseCounter::of(&writer, OpKind::Update);
                let first = other.insert(b"key", b"1").await.unwrap().place;
                for round in 0..3u8 {
                    other.update(b"key", &[round], None).await.unwrap();
                    let written = writer.update(b"key", b"mine", doubted(first)).await.unwrap();
                    assert!(!written.hint_held);
                    let expected = if slots == 0 || round == 0 { wrong } else { right };
                    assert_eq!(phases.next(), expected, "round {round}, room for {slots}");
                    let found = other.search(b"key", None).await.unwrap();
                    assert_eq!(found.value(), Some(&b"mine"[..]));
                }
            });
        }
    }
}

#[test]
fn a_hint_that_is_doubted_and_right_counts_as_right() {
    let cluster = cluster(2, 8);
    let store = cluster.client();
    cluster.block_on(store.process, async {
        let place = store.insert(b"key", b"1").await.unwrap().place;
        for _ in 0..2 {
            store.search(b"key", doubted(place)).await.unwrap();
        }
        let place = store.update(b"key", b"2", place).await.unwrap().place;
        let written = store.update(b"key", b"3", doubted(place)).await.unwrap();
        assert!(written.hint_held);
    });
}

/// A session whose steered READs never succeed stops posting them, and tries again after a while.
#[test]
fn who_asks_in_vain_stops_asking() {
    let cluster = cluster(2, 0);
    let store = cluster.client();
    cluster.block_on(store.process, async {
        let place = store.insert(b"key", b"1").await.unwrap().place;
        let mut asked = 0;
        for _ in 0..3000 {
            if store.asks_switches() {
                asked += 1;
                store.search(b"key", doubted(place)).await.unwrap();
            }
        }
        assert!((128..256).contains(&asked), "{asked} of 3000");
    });
}

/// Every history is linearizable, whatever the switches forget and wherever they steer READs. In the test, switches
/// steer READs to right and to wrong places, forget, and hold verbs.
// Promise LIN-19: No result depends on a switch.
#[test]
fn nothing_rests_on_a_switch() {
    let mut sums = std::collections::BTreeMap::new();
    for scenario in [Scenario::Mixed, Scenario::Crashes, Scenario::Reuse, Scenario::Oriented] {
        for seed in 0..24 {
            let outcome = run(&RunOptions::new(scenario, seed));
            assert!(outcome.failure.is_none(), "{} {seed}: {:?}", scenario.name(), outcome.failure);
            for (name, count) in outcome.counts {
                *sums.entry(name).or_insert(0) += count;
            }
        }
    }
    for name in ["steered_reads", "steered_right", "steered_wrong", "forgotten", "held_verbs"] {
        println!("{name} {}", sums[name]);
        assert!(sums[name] > 100, "{name}: {}", sums[name]);
    }
}
