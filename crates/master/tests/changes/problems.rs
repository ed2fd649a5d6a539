//! Tests of the problem in the status: it is shown as long as it lasts, and no longer.

use super::*;

fn says(world: &mut TickCluster, text: &str) -> bool {
    world.status().problem.is_some_and(|problem| problem.contains(text))
}

#[test]
fn the_problem_of_a_lost_member_ends_when_the_view_can_do_without_it() {
    let mut world = TickCluster::formed(settings(3, 1, 1));
    world.open();
    let node = MnId(1);
    world.holds_reports = true;
    assert_eq!(world.ask(MasterRequest::Drain { node, cancel: false }), Some(MasterReply::Done));
    // The last region on the member has been copied, and the master does not know it yet.
    world.until("the last copy", |world| {
        let view = world.view();
        let stage = view.change.as_ref().map(|change| change.stage);
        let is_last = (view.subtables_on(node), view.regions_on(node)) == (0, 1);
        let has_copied = world.reports() > 0 && stage == Some(ChangeStage::Transforming);
        if is_last && has_copied {
            return true;
        }
        world.report();
        world.holds_reports = true;
        false
    });
    world.kill(1);
    world.until("the problem", |world| says(world, "mn1 is lost, and without it"));
    world.report();
    world.until("the view without it", |world| {
        world.view().member(node).is_none() && world.is_whole()
    });
    assert_eq!(world.status().problem, None, "{:#?}", world.log);
}

#[test]
fn missing_replicas_are_told_again_after_a_member_was_taken_for_lost() {
    let mut world = TickCluster::formed(settings(2, 2, 2));
    world.kill(1);
    world.until("the missing replicas", |world| says(world, "missing"));
    // The member that is left does not answer in time, but its heartbeats come.
    world.holds_calls = true;
    world.ask(MasterRequest::Unreachable { node: MnId(0) });
    world.until("the loss", |world| says(world, "mn0 is lost"));
    world.until("the heartbeat", |world| !says(world, "mn0 is lost"));
    world.pass(LEASE_MS);
    assert!(says(&mut world, "missing"), "{:#?}", world.log);
}
