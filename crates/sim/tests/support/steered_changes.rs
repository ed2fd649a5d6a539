//! Steered view changes, which random schedules hardly ever reach: the clients that die and the nodes that are lost are
//! chosen so that the outcome of a conflict round on a slot is open at the critical time.
//!
//! The seed decides how far each task gets in the meantime, so the intended schedule does not occur in every run.

use std::cell::Cell;
use std::sync::Arc;

use fusee_control::node::Extent;
use fusee_core::stats::OpKind;
use fusee_core::view::View;
use fusee_core::view::change::{ChangeStage, NewReplica};
use fusee_sim::check::check_replicas_agree;
use fusee_sim::{ClusterOptions, Stepper};

use super::changes::{STEPS, ViewChanger, grown, room};
use super::crash::{ClientLife, idle};
use super::failures::{FailureCounts, FailureRun, PlanKind};
use super::{blocks_of, replicas_differ, small};

/// A writer dies between its CASes on the backups, and the primary is lost, so the outcome of the conflict round is
/// open until the backups are made equal. Meanwhile other clients read, one key or many. Then another node is lost,
/// mostly that of the first backup. There are 3 to 5 index replicas.
pub fn doubtful_backups(seed: u64) -> FailureCounts {
    // Two nodes can be lost, so there are three data replicas.
    let options = ClusterOptions { data_replicas: 3, ..small(seed, 3 + seed as u8 % 3) };
    let run = FailureRun::of(seed, &options, PlanKind::Mixed);
    let rng = &run.rng;
    let dies = ClientLife::new(Some(rng.below(6) as u64), || replicas_differ(&run.cluster));
    let forever = || ClientLife::new(None, || false);
    let clients = [(run.client(), dies), (run.client(), forever()), (run.client(), forever())];
    let [(writer, life), readers @ ..] = &clients;
    let reads = if (seed / 3).is_multiple_of(2) { OpKind::Search } else { OpKind::SearchMany };
    run.alone(run.workload.run(writer, OpKind::Insert, 0));
    run.alone(life.task(run.workload.run(writer, OpKind::Update, 0)));
    let leader =
        ViewChanger { run: &run, clients: &clients, is_done: Cell::new(false), losses_one_in: 20 };
    let mut stepper = Stepper::new(rng);
    for (reader, _) in readers {
        stepper.spawn(async {
            while !leader.is_done.get() {
                run.workload.run(reader, reads, 0).await;
            }
        });
    }
    stepper.spawn(leader.bury(writer, life));
    stepper.spawn(async {
        run.cluster.checks().stop_watching();
        let now = run.cluster.view().clone();
        let mut view = leader.take_step(without_replica(&run, &now, 0)).await;
        if view.change.as_ref().is_some_and(|change| change.stage == ChangeStage::Transforming) {
            leader.publish(&view).await;
            idle(rng.below(200)).await;
            let lost = if rng.one_in(4) { 1 } else { 0 };
            view = without_replica(&run, &view, lost);
        }
        leader.finish(view).await;
    });
    stepper.run(STEPS, || ());
    check_replicas_agree(&run.cluster);
    run.end()
}

/// A writer dies between its CASes on the backups. A change without a loss settles the slot, and the master dies
/// meanwhile, while other clients read. Then the primary and a backup are lost. There are 3 or 4 index replicas.
pub fn settler_dies(seed: u64) -> FailureCounts {
    // Two nodes are lost, so there are three data replicas.
    let data_replicas = 3;
    let pool_bytes = 3 << 18;
    let options = ClusterOptions { data_replicas, pool_bytes, ..small(seed, 3 + seed as u8 % 2) };
    let run = FailureRun::of(seed, &options, PlanKind::Mixed);
    let rng = &run.rng;
    let dies = ClientLife::new(Some(rng.below(3) as u64), || replicas_differ(&run.cluster));
    let forever = || ClientLife::new(None, || false);
    let clients = [(run.client(), dies), (run.client(), forever()), (run.client(), forever())];
    let [(writer, life), readers @ ..] = &clients;
    run.alone(run.workload.run(writer, OpKind::Insert, 0));
    run.alone(life.task(run.workload.run(writer, OpKind::Update, 0)));
    let leader = ViewChanger {
        run: &run,
        clients: &clients,
        is_done: Cell::new(false),
        losses_one_in: usize::MAX,
    };
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
        run.cluster.checks().stop_watching();
        let now = run.cluster.view().clone();
        let frozen = grown(&run, &now).expect("there is a node without a replica");
        let view = leader.take_step(frozen).await;
        leader.publish(&view).await;
        leader.transform_partly(&view, rng.below(60) as u64).await;
        idle(rng.below(200)).await;
        let replicas = now.subtables[run.workload.subtable_of(0, &now) as usize].replicas();
        let lost = [replicas[0].node, replicas[1].node];
        lost.iter().for_each(|node| run.cluster.nodes().crash(*node));
        leader.finish(view.without(&lost).expect("there are others")).await;
    });
    stepper.run(STEPS, || ());
    check_replicas_agree(&run.cluster);
    run.end()
}

/// Returns the view without the node that has this replica of key 0's subtable. The view must have other replicas.
fn without_replica(run: &FailureRun, view: &View, replica: usize) -> View {
    let subtable = run.workload.subtable_of(0, view);
    let lost = view.subtables[subtable as usize].replicas()[replica].node;
    if run.rng.below(2) == 0 {
        run.cluster.nodes().crash(lost);
    }
    view.without(&[lost]).expect("there are others")
}

/// A region moves away from its first place. In stage *switched*, the writer learns of the new view much sooner than
/// the reader. There are 2 to 4 index replicas.
pub fn left_behind(seed: u64) -> FailureCounts {
    let data_replicas = 1 + seed as u8 % 2;
    let options =
        ClusterOptions { data_replicas, pool_bytes: 3 << 18, ..small(seed, 2 + seed as u8 % 3) };
    let run = FailureRun::of(seed, &options, PlanKind::Mixed);
    let rng = &run.rng;
    let forever = || ClientLife::new(None, || false);
    let clients = [(run.client(), forever()), (run.client(), forever())];
    let [(writer, _), (reader, _)] = &clients;
    run.alone(run.workload.run(writer, OpKind::Insert, 0));
    let now = run.cluster.view().clone();
    let (region, _) =
        now.geometry.frame_at(blocks_of(&run.cluster, writer.client())[0].address).unwrap();
    let places = now.regions[region as usize].places();
    let joining = room(&run, &now, Extent::Region { region, primary: false }, places, 1)[0];
    let gain = NewReplica { of: region, joining, leaving: Some(places[0]) };
    let leader = ViewChanger {
        run: &run,
        clients: &clients,
        is_done: Cell::new(false),
        losses_one_in: 1 << 30,
    };
    let switched = Cell::new(false);
    let mut stepper = Stepper::new(rng);
    stepper.spawn(async {
        while !leader.is_done.get() {
            if switched.get() {
                run.workload.run(reader, OpKind::Search, 0).await
            } else {
                idle(1).await
            }
        }
    });
    stepper.spawn(async {
        while !switched.get() {
            idle(1).await;
        }
        idle(rng.below(40)).await;
        run.workload.run(writer, OpKind::Update, 0).await;
    });
    stepper.spawn(async {
        run.cluster.checks().stop_watching();
        let mut view = now.growing(&[], &[gain]);
        while view.change.as_ref().is_some_and(|change| change.stage != ChangeStage::Switched) {
            view = leader.take_step(view).await;
        }
        run.cluster.checks().follow(&view);
        switched.set(true);
        idle(rng.below(20)).await;
        writer.session.gate().publish_view(&Arc::new(view.clone()));
        idle(rng.below(400)).await;
        leader.finish(view).await;
    });
    stepper.run(STEPS, || ());
    check_replicas_agree(&run.cluster);
    run.end()
}

/// The master loses a replica of a region that clients still reach, because the replica's node is only cut off. The
/// writer learns of the loss much sooner than the reader, which also reads the lost replica. There are two index
/// replicas, and 2 or 3 data replicas. Returns whether, with this seed, some data replica is on a node without the
/// slot, so that this node can be lost.
pub fn beside_lost_replica(seed: u64) -> bool {
    let options = ClusterOptions { data_replicas: 2 + seed as u8 % 2, ..small(seed, 2) };
    let run = FailureRun::of(seed, &options, PlanKind::Mixed);
    let rng = &run.rng;
    let forever = || ClientLife::new(None, || false);
    let clients = [(run.client(), forever()), (run.client(), forever())];
    let [(writer, _), (reader, _)] = &clients;
    run.alone(run.workload.run(writer, OpKind::Insert, 0));
    let now = run.cluster.view().clone();
    let (region, _) =
        now.geometry.frame_at(blocks_of(&run.cluster, writer.client())[0].address).unwrap();
    let subtable = run.workload.subtable_of(0, &now);
    let slots = now.subtables[subtable as usize].replicas();
    let mut lost = now.regions[region as usize].places().iter().map(|place| place.node);
    let lost = lost.find(|node| slots.iter().all(|place| place.node != *node));
    let leader = ViewChanger {
        run: &run,
        clients: &clients,
        is_done: Cell::new(false),
        losses_one_in: 1 << 30,
    };
    if let Some(lost) = lost {
        let mut stepper = Stepper::new(rng);
        stepper.spawn(async {
            while !leader.is_done.get() {
                run.workload.run(reader, OpKind::Search, 0).await;
            }
        });
        stepper.spawn(async {
            run.cluster.checks().stop_watching();
            let view = now.without(&[lost]).expect("there is another replica");
            writer.session.gate().publish_view(&Arc::new(view.clone()));
            run.workload.run(writer, OpKind::Update, 0).await;
        });
        stepper.spawn(async {
            idle(rng.below(200)).await;
            leader.finish(now.without(&[lost]).expect("there is another replica")).await;
        });
        stepper.run(STEPS, || ());
    }
    check_replicas_agree(&run.cluster);
    run.leave_all(&clients);
    run.end();
    lost.is_some()
}
