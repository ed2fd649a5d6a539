//! Tests of forbidden treatments of CASes by a switch, and of their effects on the store: random histories break a
//! promise, and for each treatment the shortest such history does. With a correct switch, the shortest histories break
//! no promise.

// Promise LIN-21: Each forbidden treatment of CASes by a switch breaks a promise.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use fusee_core::error::Error;
use fusee_core::layout::Slot;
use fusee_core::view::{Geometry, PoolPlace};
use fusee_sim::{ClusterOptions, RunOptions, Scenario, Switches, UnsoundCas, run};
use fusee_switch::{
    CasAnswer, ForgetScope, Switch, SwitchCounts, SwitchDecision, SwitchMemory, SwitchRequest,
    SwitchVerb,
};

use crate::support::scripted::generations::GenerationSession;
use crate::support::scripted::{ScriptedCluster, ScriptedStore, VALUE, poll_until, run as end};
use crate::support::{all_slots, lose_node, small};

/// The number of seeds, and below it the number of seeds that must break a promise.
const SEEDS: u64 = 24;
const ENOUGH: usize = 3;

/// With each forbidden treatment, random histories break a promise. `nothing_rests_on_a_switch` in `switches.rs` runs
/// these seeds with correct switches.
#[test]
fn random_histories_break_a_promise() {
    for unsound in
        [UnsoundCas::RewritesExpected, UnsoundCas::EarlyLossTrusted, UnsoundCas::CasToWrite]
    {
        let breaks = |seed: &u64| {
            let options = RunOptions::new(Scenario::Mixed, *seed);
            run(&RunOptions { unsound: Some(unsound), ..options }).failure.is_some()
        };
        let broken: Vec<u64> = (0..SEEDS).filter(breaks).take(ENOUGH).collect();
        println!("{unsound:?}: seeds {broken:?}");
        assert_eq!(broken.len(), ENOUGH, "{unsound:?} breaks a promise with seeds {broken:?} only");
    }
}

/// A switch that lets all verbs pass, and counts CASes.
struct CasCounter(Rc<Cell<usize>>);

impl Switch for CasCounter {
    fn request(&mut self, request: &SwitchRequest<'_>) -> SwitchDecision {
        self.0.set(self.0.get() + usize::from(matches!(request.verb, SwitchVerb::Cas { .. })));
        SwitchDecision::Forward
    }

    fn answer(&mut self, _: &CasAnswer) {}

    fn forget(&mut self, _: ForgetScope) {}

    fn counts(&self) -> SwitchCounts {
        SwitchCounts::default()
    }

    fn bytes(&self) -> SwitchMemory {
        SwitchMemory::default()
    }
}

const KEY: &[u8] = b"k";

fn value(n: u8) -> Vec<u8> {
    vec![n; VALUE.len()]
}

/// Makes memory nodes, each with a replica of everything, and one switch that all verbs pass. Also returns the counter
/// of the CASes that have passed.
fn stage(nodes: u8, unsound: Option<UnsoundCas>) -> (ScriptedCluster, Rc<Cell<usize>>) {
    let options = small(0, nodes);
    let geometry = Geometry { max_value_bytes: 1200, ..options.geometry };
    let options =
        ClusterOptions { memory_nodes: nodes.into(), data_replicas: nodes, geometry, ..options };
    let stage = ScriptedCluster::of(0, &options);
    let cases = Rc::new(Cell::new(0));
    let switches = Switches::one(Box::new(CasCounter(cases.clone()))).unsound(unsound);
    stage.cluster.network().put_switches(switches);
    (stage, cases)
}

/// Returns the value that a new reader finds.
fn found(stage: &ScriptedCluster) -> Option<Vec<u8>> {
    let (reader, _) = stage.open(0..0, None);
    let found = end(reader.search(KEY, None)).expect("a SEARCH never fails");
    found.value().map(<[u8]>::to_vec)
}

/// Returns the places of the only slot with an object, with the primary first.
fn places(stage: &ScriptedCluster) -> Vec<PoolPlace> {
    let view = stage.cluster.view();
    let network = stage.cluster.network();
    let is_live = |places: &Vec<PoolPlace>| !network.memories().word_at(places[0]).is_free();
    let mut all = all_slots(&view).map(|slot| view.slot_places(slot).collect());
    all.find(is_live).expect("there is one")
}

type Write<'s> = Pin<Box<dyn Future<Output = ()> + 's>>;

fn update(store: &ScriptedStore, n: u8) -> Write<'_> {
    Box::pin(async move {
        store.update(KEY, &value(n), None).await.expect("the key is there");
    })
}

/// This history has two index replicas: the primary and one backup.
///
/// 1. A's CAS takes the backup. B's CAS comes next: the switch makes it expect A's word, so B's CAS replaces A's word.
///    The answer to B's CAS shows A's word, so B has lost.
/// 2. A commits, and is done. B sees A's word on the primary, and is done, because A has overwritten B's value.
/// 3. Readers find A's value. Then the primary is lost, and readers find B's value, although B has freed its object.
#[test]
fn with_another_expected_word_a_value_that_was_overwritten_comes_back() {
    for unsound in [None, Some(UnsoundCas::RewritesExpected)] {
        let (stage, _) = stage(2, unsound);
        let [(a, _), (b, its)] = [0, 1].map(|block| stage.open(block..block + 1, None));
        end(a.insert(KEY, &value(1))).expect("there is room");
        let places = places(&stage);
        let on = |i: usize| stage.cluster.network().memories().word_at(places[i]);
        let old = on(1);
        let mut first = update(&a, 2);
        assert!(poll_until(&mut first, || on(1) != old).is_none());
        let waits = Rc::new(Cell::new(false));
        its.then({
            let waits = waits.clone();
            move || waits.set(true)
        });
        let mut second = update(&b, 3);
        assert!(poll_until(&mut second, || waits.get()).is_none(), "it waits for the end of A's");
        end(first);
        end(second);
        assert_eq!(found(&stage), Some(value(2)));
        lose_node(stage.cluster.sim().rng(), &stage.cluster, places[0].node);
        let comes_back = if unsound.is_some() { 3 } else { 2 };
        assert_eq!(found(&stage), Some(value(comes_back)), "{unsound:?}");
    }
}

/// This history has one index replica.
///
/// 1. A's CAS replaces the slot's word. From now on the switch treats any other CAS from that word as too late.
/// 2. The key is updated until that word recurs. It is allowed to recur, because all operations that knew it have
///    ended.
/// 3. B reads the word. The switch answers B's CAS as if A had been earlier. B is done, but its value was never in the
///    slot.
///
/// With a backup, B waits for the end of a conflict round that has no winner.
#[test]
fn with_an_early_answer_an_update_that_was_done_is_not_found() {
    let both =
        [None, Some(UnsoundCas::EarlyLossTrusted)].map(|unsound| [(1, unsound), (2, unsound)]);
    for (nodes, unsound) in both.into_iter().flatten() {
        let lives = GenerationSession::of(stage(nodes, unsound).0);
        end(lives.store.insert(KEY, &VALUE)).expect("there is room");
        let places = places(&lives.stage);
        let shows = || lives.stage.cluster.network().memories().word_at(places[0]);
        let old = shows();
        lives.update(KEY);
        let mut updates = 1;
        while shows() != old {
            lives.update(KEY);
            updates += 1;
        }
        assert!(updates >= usize::from(Slot::GENERATIONS), "{updates} updates");
        let (b, its) = lives.stage.open(2..3, None);
        its.follow(&lives.script);
        let written = end(b.update(KEY, &value(3), None));
        let waits = matches!(written, Err(Error::GaveUp { .. }));
        let is_stuck = nodes == 2 && unsound.is_some();
        assert_eq!((written.is_ok(), waits), (!is_stuck, is_stuck), "{unsound:?}: {written:?}");
        let expected = if unsound.is_some() { VALUE.to_vec() } else { value(3) };
        assert_eq!(found(&lives.stage), Some(expected), "{unsound:?}");
    }
}

/// This history has one index replica.
///
/// 1. The switch knows the slot's word, which B reads. B's CAS becomes a WRITE, which is delayed for long.
/// 2. A deletes the key. The slot shows A's word, and A is done.
/// 3. The WRITE executes, and B is done. The deleted key is present again.
#[test]
fn with_a_write_instead_of_a_cas_a_key_that_was_deleted_is_found() {
    for unsound in [None, Some(UnsoundCas::CasToWrite)] {
        let (stage, cases) = stage(1, unsound);
        let [(a, _), (b, _)] = [0, 1].map(|block| stage.open(block..block + 1, None));
        end(a.insert(KEY, &value(1))).expect("there is room");
        let mut second = update(&b, 3);
        let before = cases.get();
        assert!(poll_until(&mut second, || cases.get() > before).is_none(), "it has passed");
        end(a.delete(KEY, None)).expect("the key is there");
        assert_eq!(found(&stage), None);
        end(second);
        let resurrected = unsound.map(|_| value(3));
        assert_eq!(found(&stage), resurrected, "{unsound:?}");
    }
}
