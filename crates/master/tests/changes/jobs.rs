//! Tests of the steps of a change that wait for jobs of the master, and of the order of a job's requests.

// Promise MEM-14
// Promise CHG-5: No change transforms during jobs; late reports end no stage.

use super::*;

/// The running job uses an older view, so its verbs would mix with the verbs of the view change.
#[test]
fn a_change_does_not_begin_to_transform_beside_a_job() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let _ = world.open();
    let dead = world.open();
    world.pass(100);
    world.sessions[1].renews = false;
    world.holds_jobs = true;
    world.ask(MasterRequest::Abandon { client: dead });
    world.until("the recovery has begun", |world| world.jobs() == 1);
    world.kill(1);
    world.pass(3 * LEASE_MS);
    let stage = world.view().change.map(|change| change.stage);
    assert_eq!((stage, world.jobs()), (Some(ChangeStage::Frozen), 1), "{:#?}", world.log);
    assert_eq!(world.end_jobs(), 1);
    world.until("redundancy", TickCluster::is_whole);
}

/// A job's report comes after the view has changed again. Not all sessions have acknowledged the newer view yet, so the
/// report must not end the newer view's stage.
#[test]
fn a_report_about_an_older_view_ends_no_stage() {
    let mut world = TickCluster::formed(settings(4, 3, 3));
    world.open();
    world.pass(100);
    world.holds_reports = true;
    world.kill(1);
    world.until("the replicas are equal", |world| world.reports() == 1);
    let stage = |world: &TickCluster| world.view().change.map(|change| change.stage);
    assert_eq!(stage(&world), Some(ChangeStage::Transforming));
    world.sessions[0].follows = false;
    world.kill(2);
    world.pass(100);
    assert_eq!(stage(&world), Some(ChangeStage::Frozen));
    assert_eq!(world.report(), 1);
    assert_eq!(stage(&world), Some(ChangeStage::Frozen), "a session has not left the older view");
    world.sessions[0].follows = true;
    world.until("the end of the change", |world| stage(world).is_none());
}

/// The primary hands a block out as soon as the block is free there, so by then no backup must name an owner.
#[test]
fn recovery_frees_blocks_on_their_backups_first() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let dead = world.open();
    let blocks = [give_block(&world, dead, true), give_block(&world, dead, false)];
    world.ask(MasterRequest::Abandon { client: dead });
    world.until("the recovery", TickCluster::is_whole);
    let view = world.view();
    let orders = world.orders.borrow();
    for block in blocks {
        let freed: Vec<MnId> = orders
            .iter()
            .filter_map(|(node, request)| match request {
                NodeRequest::OfJob { request, .. } => {
                    let frees = match request {
                        JobRequest::Free { block: of, .. } => *of == block,
                        JobRequest::TakeBack { block: of, to, .. } => {
                            *of == block && *to == ClientId::NOBODY
                        }
                        _ => false,
                    };
                    frees.then_some(*node)
                }
                _ => None,
            })
            .collect();
        let primary = view.regions[block.region as usize].primary().node;
        let last = freed.iter().rposition(|node| *node != primary);
        let first = freed.iter().position(|node| *node == primary).expect("it is freed there");
        assert!(last.is_none_or(|last| last < first), "{block:?} is led by {primary}: {freed:?}");
    }
}
