//! Clover behind a switch that steers its CASes. With the published switch an update is lost; with a switch that waits
//! for answers, no update is lost.

// Promise LIN-20: Clover's published switch loses updates; one that waits does not.

use std::cell::{Cell, RefCell};
use std::panic::catch_unwind;
use std::rc::Rc;

use fusee_baselines::BaselineSession;
use fusee_baselines::InProcessRpc;
use fusee_baselines::clover::{CloverClient, CloverCosts, CloverShape, MetadataServer};
use fusee_linearizability::HistoryFindings;
use fusee_sim::{Executor, Rng, SwitchMistakes, Switches};
use fusee_switch::Switch;
use fusee_switch::clover::{ChainTrust, CloverSwitch as Steering};

use crate::support::{
    DelayedRpc, HistoryLoad, PHASE_NS, QuietRack, VALUE_BYTES, findings_on, key, value,
};

fn shape(keys: u64, spare: u64) -> CloverShape {
    CloverShape { memory_nodes: 1, replicas: 1, value_bytes: VALUE_BYTES as u32, keys, spare }
}

fn switch(shape: CloverShape, trust: ChainTrust, keys: usize) -> Box<dyn Switch> {
    Box::new(Steering::new(shape.chain_format().expect("one node"), trust, keys))
}

/// Runs random histories over two switches that forget. Some links bypass the switches.
fn attack(trust: ChainTrust, seed: u64) -> (HistoryFindings, fusee_switch::SwitchCounts) {
    let shape = shape(2, 1_500);
    let load = HistoryLoad {
        memory_nodes: 1,
        pool_bytes: shape.pool_bytes(),
        clients: 5,
        coroutines: 2,
        operations: 60,
        keys: 2,
        inserts: false,
        deletes: false,
    };
    let near = InProcessRpc::new(MetadataServer::new(shape, CloverCosts::FITTED));
    let room = Rng::named(seed, "room").pick(&[1, 2]);
    let all = vec![switch(shape, trust, room), switch(shape, trust, room)];
    let mistakes = SwitchMistakes { forgets_one_in: 200, errs_one_in: 0 };
    let switches = Switches::adversarial(all, mistakes, Rng::named(seed, "switches"));
    let counts = Rc::new(Cell::new(fusee_switch::SwitchCounts::default()));
    let findings = findings_on(
        seed,
        load,
        1_000_000,
        |network| network.put_switches(switches),
        |network| counts.set(network.switches().expect("they were put there").counts()),
        |fabric, nodes| CloverClient::new(fabric, DelayedRpc::new(seed, &near), nodes, shape),
    );
    (findings, counts.get())
}

#[test]
fn what_waits_for_answers_is_linearizable() {
    let mut steered = 0;
    let mut held = 0;
    for seed in 0..60 {
        let (findings, counts) = attack(ChainTrust::Answered, seed);
        assert!(findings.is_clean(), "seed {seed}: {findings:?}");
        (steered, held) = (steered + counts.steered, held + counts.held);
    }
    assert!(steered > 500 && held > 500, "{steered} steered, {held} held");
}

/// With the published switch some runs lose updates, and in others a client searches the end of a chain for ever.
#[test]
fn what_was_published_is_not() {
    let run = |seed| catch_unwind(|| attack(ChainTrust::Sent, seed).0.is_clean());
    let runs: Vec<_> = (0..30).map(run).collect();
    let broken = runs.iter().filter(|run| matches!(run, Ok(false))).count();
    let endless = runs.iter().filter(|run| run.is_err()).count();
    println!("of 30 seeds {broken} break the promise, and {endless} do not end");
    assert!(broken > 3 && endless > 3, "{broken} and {endless} of 30 seeds");
}

/// The shortest history of a lost update. Before the switch is in the path, the chain grows, so A's CAS will fail. The
/// published switch regards A's entry as the last one and steers B's CAS to it. That CAS succeeds, though A's entry is
/// in no chain. B's update is done, but a later search finds the value before it.
#[test]
fn an_update_that_was_done_is_not_found() {
    for trust in [ChainTrust::Sent, ChainTrust::Answered] {
        let shape = shape(1, 100);
        let quiet = QuietRack::new(1, shape.pool_bytes());
        let server = InProcessRpc::new(MetadataServer::new(shape, CloverCosts::FITTED));
        let session =
            || CloverClient::new(quiet.fabric(), server.clone(), quiet.rack.nodes(), shape);
        let [other, a, b, reader] = [(); 4].map(|()| session());
        quiet.phases(other.insert(&key(0), &value(1))).0.unwrap();
        [&a, &b, &reader].into_iter().for_each(|session| session.learn_from(&other));
        quiet.phases(other.update(&key(0), &value(2))).0.unwrap();
        quiet.rack.network().put_switches(Switches::one(switch(shape, trust, 1)));
        let sim = quiet.rack.sim();
        let found = RefCell::new(Vec::new());
        let process = sim.process("all");
        let mut executor = Executor::new(sim);
        executor.spawn(process, async {
            a.update(&key(0), &value(3)).await.unwrap();
        });
        executor.spawn(process, async {
            sim.sleep(PHASE_NS / 10).await;
            b.update(&key(0), &value(4)).await.unwrap();
            *found.borrow_mut() = reader.search(&key(0)).await.unwrap().expect("it is there");
        });
        executor.run(1_000_000, || ());
        drop(executor);
        let expected = if trust == ChainTrust::Sent { 2 } else { 4 };
        assert_eq!(found.take(), value(expected), "{trust:?}");
    }
}

/// A steered client does not know which entry its own entry follows. If two clients take turns, the entries of one
/// client are never freed.
#[test]
fn memory_is_lost_where_updates_are_steered() {
    for is_steered in [false, true] {
        let shape = shape(1, 300);
        let quiet = QuietRack::new(1, shape.pool_bytes());
        let server = Rc::new(RefCell::new(MetadataServer::new(shape, CloverCosts::FITTED)));
        let near = InProcessRpc::from(server.clone());
        let session = || CloverClient::new(quiet.fabric(), near.clone(), quiet.rack.nodes(), shape);
        let [first, second] = [(); 2].map(|()| session());
        if is_steered {
            let switch = switch(shape, ChainTrust::Answered, 1);
            quiet.rack.network().put_switches(Switches::one(switch));
        }
        quiet.phases(first.insert(&key(0), &value(1))).0.unwrap();
        for number in 0..100 {
            for session in [&first, &second] {
                quiet.phases(session.update(&key(0), &value(number))).0.unwrap();
                quiet.let_run(5, session.background());
            }
        }
        let expected = if is_steered { 100 } else { 200 };
        let reused = server.borrow().reused();
        assert!(reused.abs_diff(expected) < 5, "{reused} entries were given free");
    }
}
