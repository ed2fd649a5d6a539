//! Tests of a master that is stopped, starved or asleep, and of one that is told to end: no living process is harmed.

use fusee_control::master::{MasterReply, MasterRequest, MemberState};
use fusee_core::data::Redundancy;
use fusee_core::verbs::{ClientId, MnId};
use fusee_master::jobs::JobError;
use fusee_master::logic::MasterEvent;

use super::world::{HeldCall, LEASE_MS, TickCluster, settings};

// Promise SIL-9: A master that was away or starved fences no live session.
#[test]
fn nothing_expires_while_the_master_is_away() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(500);
    world.now_ms += 100 * LEASE_MS;
    world.feed(MasterEvent::Tick);
    assert_eq!((world.status().open_sessions, world.view().number), (1, 1));
    // While no master runs, nothing expires either.
    world.restart_master();
    world.now_ms += 100 * LEASE_MS;
    world.feed(MasterEvent::Tick);
    assert_eq!((world.status().open_sessions, world.view().number), (1, 1));
    // After the restart, a session that sends no heartbeat expires.
    world.sessions[0].renews = false;
    world.pass(LEASE_MS + 200);
    assert_eq!(world.status().open_sessions, 0);
    assert_eq!(world.view().number, 1, "the nodes came back");
}

// Promise CHG-29: Silence during a master's absence does not count.
#[test]
fn ends_of_connections_tell_nothing_to_a_master_that_was_away() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let comes = world.open();
    let gone = world.open();
    world.pass(500);
    // The master was stopped for long. Then it first reads the ends of connections that processes have closed
    // meanwhile, before it reads anything from the processes' new connections.
    world.now_ms += 8 * LEASE_MS;
    for connection in [1, 2, 1_000_000, 1_000_001, 1_000_002] {
        world.feed(MasterEvent::ConnectionClosed { connection });
    }
    world.feed(MasterEvent::Tick);
    world.now_ms += 100;
    world.feed(MasterEvent::Tick);
    assert_eq!((world.status().open_sessions, world.view().number), (2, 1), "{:#?}", world.log);
    world.sessions[1].renews = false;
    world.pass(LEASE_MS - 200);
    assert_eq!((world.status().open_sessions, world.view().number), (2, 1), "{:#?}", world.log);
    // After a lease, a session that has sent no heartbeat has expired.
    world.pass(200);
    assert!(world.said(&format!("{gone} has expired")), "{:#?}", world.log);
    assert!(!world.said(&format!("{comes} has expired")), "{:#?}", world.log);
    assert_eq!(world.view().number, 1, "the nodes came back");
}

// Promise SIL-9
#[test]
fn a_master_that_gets_little_time_takes_nobody_for_silent() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(500);
    // The master runs only for a moment in every 400 ms, and receives no message.
    for _ in 0..6 {
        world.now_ms += LEASE_MS * 4 / 10;
        world.feed(MasterEvent::Tick);
    }
    assert_eq!((world.status().open_sessions, world.view().number), (1, 1), "{:#?}", world.log);
    // Although the master gets little time, it notices silent processes.
    for _ in 0..10 {
        world.now_ms += LEASE_MS * 4 / 10;
        world.feed(MasterEvent::Tick);
    }
    assert_eq!(world.status().open_sessions, 0, "{:#?}", world.log);
}

#[test]
fn a_question_that_failed_while_the_master_was_away_is_asked_again() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.pass(500);
    world.holds_calls = true;
    world.ask(MasterRequest::Unreachable { node: MnId(1) });
    assert_eq!(world.held_calls.len(), 1);
    world.now_ms += 20 * LEASE_MS;
    world.holds_calls = false;
    let HeldCall { node, token, .. } = world.held_calls.remove(0);
    world.feed(MasterEvent::NodeAnswer { node, token, result: Err("no answer in time".into()) });
    world.feed(MasterEvent::Tick);
    world.pass(200);
    assert_eq!(world.view().number, 1, "{:#?}", world.log);
    assert!(!world.said("is lost"), "{:#?}", world.log);
}

/// When the master returns, it first gets the result of a failed job, and therefore asks a node whether it still runs.
#[test]
fn a_question_has_its_time_from_the_return_of_a_master_that_was_away() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.pass(500);
    world.holds_calls = true;
    world.ask(MasterRequest::Unreachable { node: MnId(1) });
    assert_eq!(world.held_calls.len(), 1);
    for _ in 0..10 {
        world.now_ms += 20 * LEASE_MS;
        world.feed(MasterEvent::Tick);
    }
    assert_eq!(world.view().number, 1, "{:#?}", world.log);
    // While the master runs all the time, the silence of nodes is counted.
    for _ in 0..10 {
        world.now_ms += LEASE_MS / 10;
        world.feed(MasterEvent::Tick);
    }
    assert!(world.said("is lost: it does not answer"), "{:#?}", world.log);
}

/// A member has not answered in time, and has sent heartbeats since. Then the call that asked it fails.
#[test]
fn a_question_that_fails_late_tells_nothing_about_a_member_that_was_heard_since() {
    // The view cannot do without any of the members.
    let mut world = TickCluster::formed(settings(3, 1, 1));
    world.pass(500);
    world.holds_calls = true;
    world.ask(MasterRequest::Unreachable { node: MnId(1) });
    world.until("the loss", |world| world.said("mn1 is lost: it does not answer"));
    let state = |world: &mut TickCluster| world.status().members[1].state;
    world.until("the heartbeat", |world| state(world) == MemberState::InView);
    let HeldCall { node, token, .. } = world.held_calls.remove(0);
    world.feed(MasterEvent::NodeAnswer { node, token, result: Err("no answer in time".into()) });
    assert_eq!(state(&mut world), MemberState::InView, "{:#?}", world.log);
}

/// The ends of jobs alone do not count as time in which the master listens, because no message comes from outside.
#[test]
fn the_end_of_a_job_is_no_word_from_outside() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    world.pass(500);
    for token in 0..20 {
        world.now_ms += LEASE_MS / 10;
        let what = "nobody waits for it".to_owned();
        let result = Err(JobError { may_linger: false, ..JobError::new(None, what) });
        world.feed(MasterEvent::JobDone { token: 1_000_000 + token, result });
    }
    world.feed(MasterEvent::ConnectionClosed { connection: 1 });
    world.now_ms += 50;
    world.feed(MasterEvent::Tick);
    assert_eq!(world.status().open_sessions, 1, "{:#?}", world.log);
}

/// A master that is told to end completes its change and begins no other; the next master continues.
// Promise CHG-19: A master told to end ends its change first.
#[test]
fn a_master_that_is_told_to_end_ends_its_change_and_begins_no_other() {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    world.open();
    world.pass(500);
    assert!(world.master.is_at_rest());
    world.holds_jobs = true;
    world.kill(3);
    world.until("the change", |world| world.jobs() == 1);
    assert!(!world.master.is_at_rest());
    world.master.finish();
    world.pass(500);
    assert!(!world.master.is_at_rest(), "the job takes long");
    world.end_jobs();
    world.until("the end of the change", |world| world.master.is_at_rest());
    let view = world.view();
    assert!(view.change.is_none() && view.members.len() == 3);
    assert!(world.sessions[0].view == view.number, "the session knows");
    // Replicas are missing, and a node has joined that could hold them.
    world.add_node();
    world.pass(2 * LEASE_MS);
    assert_eq!(world.view(), view);
    assert!(world.master.is_at_rest() && world.status().missing_replicas > 0);
    world.restart_master();
    world.until("the next master", TickCluster::is_whole);
    assert_eq!(world.view().members.len(), 4);
}

/// Members have been asked for room, and answer after the master was told to end.
#[test]
fn a_master_that_is_told_to_end_uses_no_room_that_it_has_asked_for() {
    let requests = |client: ClientId, view: u64| {
        let redundancy = Redundancy::Replicated;
        [
            MasterRequest::Split { subtable: 0, view },
            MasterRequest::MoreRoom { redundancy, client, view, call: 0 },
            MasterRequest::Drain { node: MnId(1), cancel: false },
        ]
    };
    for (at, finishes) in (0..3).flat_map(|at| [(at, false), (at, true)]) {
        let mut world = TickCluster::formed(settings(4, 2, 2));
        let client = world.open();
        world.pass(500);
        let before = world.view().number;
        world.holds_calls = true;
        let request = requests(client, before)[at].clone();
        assert_eq!(world.ask(request), Some(MasterReply::Done));
        assert!(!world.held_calls.is_empty(), "{at}: {:#?}", world.log);
        if finishes {
            world.master.finish();
        }
        world.answer_calls();
        world.pass(LEASE_MS);
        assert_eq!(world.view().number == before, finishes, "{at}: {:#?}", world.log);
    }
}
