//! Changes of the view that random schedules hardly ever come to, steered by hand: who dies, and
//! which nodes are lost, is chosen so that something is in doubt when it matters.
//!
//! How far everybody comes in between is drawn from the seed, so not every run goes the intended
//! way.

use std::cell::Cell;

use fusee_core::change::Stage;
use fusee_core::stats::OpKind;
use fusee_core::view::View;
use fusee_sim::Stepper;
use fusee_sim::check::replicas_agree;

use super::changes::{Leader, STEPS};
use super::crash::{Life, idle};
use super::failures::{Events, Plans, Run};
use super::replicas_differ;

/// A writer dies between its CASes on the backups, and the primary is lost: what the backups come
/// to is open until they are made equal. Others read meanwhile; then another node is lost, mostly
/// that of the first backup. 3 to 5 index replicas.
pub fn doubtful_backups(seed: u64) -> Events {
    let run = Run::new(seed, 3 + seed as u8 % 3, Plans::Mixed);
    let rng = &run.rng;
    let dies = Life::new(Some(rng.below(6) as u64), || replicas_differ(&run.cluster));
    let forever = || Life::new(None, || false);
    let clients = [(run.client(), dies), (run.client(), forever()), (run.client(), forever())];
    let [(writer, life), readers @ ..] = &clients;
    run.alone(run.workload.run(writer, OpKind::Insert, 0));
    run.alone(life.task(run.workload.run(writer, OpKind::Update, 0)));
    let leader =
        Leader { run: &run, clients: &clients, is_done: Cell::new(false), losses_one_in: 20 };
    let mut stepper = Stepper::new(rng);
    for (reader, _) in readers {
        stepper.spawn(async {
            while !leader.is_done.get() {
                run.workload.run(reader, OpKind::Search, 0).await;
            }
        });
    }
    stepper.spawn(leader.bury(writer, life));
    stepper.spawn(async {
        run.cluster.stop_watching();
        let now = run.cluster.view().clone();
        let mut view = leader.take_step(without_replica(&run, &now, 0)).await;
        if view.change.as_ref().is_some_and(|change| change.stage == Stage::Transforming) {
            leader.publish(&view).await;
            idle(rng.below(200)).await;
            let lost = if rng.one_in(4) { 1 } else { 0 };
            view = without_replica(&run, &view, lost);
        }
        leader.finish(view).await;
    });
    stepper.run(STEPS, || ());
    replicas_agree(&run.cluster);
    run.end()
}

/// The view without the node that holds this replica of key 0's subtable. There must be others.
fn without_replica(run: &Run, view: &View, replica: usize) -> View {
    let subtable = run.workload.subtable_of(0, view);
    let lost = view.subtables[subtable as usize].places[replica].node;
    if run.rng.below(2) == 0 {
        run.cluster.crash_node(lost);
    }
    view.without(&[lost]).expect("there are others")
}
