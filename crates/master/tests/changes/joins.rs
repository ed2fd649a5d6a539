//! Tests of nodes that join and never become members: their names become free, and they make room for others.

// Promise MST-6: Names of nodes that never were members come back.

use std::collections::BTreeSet;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeDescription, NodeReply, NodeRequest};
use fusee_control::rpc::Caller;
use fusee_core::verbs::MnId;
use fusee_master::logic::{MasterAction, MasterEvent};
use fusee_master::record::MasterRecord;

use super::alive;
use super::world::{LEASE_MS, TickCluster, logic_request, settings};

fn join(identity: u64, control: String) -> MasterRequest {
    let tcp = None;
    let shm = None;
    let verbs = None;
    MasterRequest::Join { identity, control, tcp, shm, verbs, pool_bytes: 1 << 20 }
}

/// Returns the description that a process gives of itself.
fn description(identity: u64) -> NodeDescription {
    NodeDescription { identity, pool_bytes: 1 << 20, tcp: None, shm: None, verbs: None }
}

/// Sends a request over a connection that stays open, and returns the reply.
fn ask(world: &mut TickCluster, request: MasterRequest) -> Option<MasterReply> {
    let token = world.send(7_777, request);
    world.replies.remove(&token)
}

fn name_of(reply: Option<MasterReply>) -> MnId {
    match reply {
        Some(MasterReply::Joined { node }) => node,
        other => panic!("unexpected {other:?}"),
    }
}

/// Returns the number of names that were ever given, as the store shows it.
fn given(world: &TickCluster) -> u16 {
    let Some(MasterRecord::NextNode(next)) = world.disk.get("next-node") else { return 0 };
    *next
}

fn members(world: &mut TickCluster) -> BTreeSet<MnId> {
    world.status().members.iter().map(|member| member.node).collect()
}

/// A process joins, ends, and is restarted by its supervisor, 30,000 times.
#[test]
fn names_of_nodes_that_never_were_members_come_back() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let before = members(&mut world);
    for round in 0..30_000u64 {
        let name = name_of(ask(&mut world, join(1_000 + round, "restless:1".into())));
        assert!(!before.contains(&name), "{name} is a member's");
        if round % 1_000 == 500 {
            world.restart_master();
        }
    }
    assert!(given(&world) < 3 + 80, "{} names were given", given(&world));
    assert_eq!(members(&mut world).len(), 4);
    world.pass(3 * LEASE_MS);
    assert_eq!(members(&mut world), before);
    assert!(
        !world
            .disk
            .keys()
            .any(|key| key > &"member/00002".to_owned() && key.starts_with("member/"))
    );
}

/// Processes join with a new address each time. Silent nodes are forgotten to make room, and no join is refused.
#[test]
fn joiners_that_are_silent_make_room() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let before = members(&mut world);
    for round in 0..5_000u64 {
        let name = name_of(ask(&mut world, join(1_000 + round, format!("stranger{round}:1"))));
        assert!(!before.contains(&name), "{name} is a member's");
    }
    assert!(members(&mut world).len() <= 1024);
    world.pass(3 * LEASE_MS);
    assert_eq!(members(&mut world), before);
    assert!(given(&world) < 1024 + 80, "{} names were given", given(&world));
}

/// A node that sends heartbeats is not forgotten.
#[test]
fn a_joiner_that_speaks_makes_no_room() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    // The node is known, but cannot become a member, because no process answers at its address.
    let name = name_of(ask(&mut world, join(999, "speaks:1".into())));
    let caller = Caller { connection: 77, ..Caller::default() };
    world.send_of(caller, alive(999));
    for round in 0..3_000u64 {
        name_of(ask(&mut world, join(1_000 + round, format!("stranger{round}:1"))));
    }
    assert!(members(&mut world).contains(&name));
}

/// An answer to a call of the old node is not used for the new node of the same name.
#[test]
fn what_comes_late_under_a_name_counts_for_nobody() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.pass(100);
    let mut calls = Vec::new();
    let mut join = |world: &mut TickCluster, identity: u64| {
        let now_ms = world.now_ms;
        let token = world.token();
        let request = join(identity, "restless:1".into());
        let caller = Caller { connection: 50_000 + identity, ..Caller::default() };
        let event = MasterEvent::Request { token, caller, request: logic_request(request) };
        let mut name = None;
        for action in world.master.handle(now_ms, event) {
            match action {
                // No process answers the master's calls to the node yet.
                MasterAction::Call { node, token, control, .. } if control == "restless:1" => {
                    calls.push((identity, node, token));
                }
                MasterAction::Reply { reply, .. } => name = Some(name_of(Some(reply))),
                _ => {}
            }
        }
        name.expect("it is answered")
    };
    let first = join(&mut world, 1_000);
    let again = (1_001..2_000).find(|identity| join(&mut world, *identity) == first);
    let identity = again.expect("the name comes back");
    assert!(calls.iter().any(|call| call.0 == 1_000), "the first is asked to become a member");
    let view = world.view();
    let of_first = calls.iter().filter(|(identity, ..)| *identity == 1_000);
    for (_, node, token) in of_first.copied() {
        assert_eq!(node, first);
        for answer in [NodeReply::Done, NodeReply::Description(description(identity))] {
            world.feed(MasterEvent::NodeAnswer { node, token, result: Ok(answer) });
        }
    }
    assert_eq!(world.view(), view, "nobody has become a member");
    let late = ask(&mut world, alive(1_000));
    assert_eq!(late, Some(MasterReply::Unknown));
}

/// The process that joined answers the first call, and another process at its address the second call.
#[test]
fn a_process_that_answers_the_second_question_in_anothers_place_is_not_admitted() {
    for (found, is_admitted) in [(2_000, false), (2_001, true)] {
        let mut world = TickCluster::formed(settings(3, 2, 2));
        world.pass(100);
        let joiner = 2_001;
        let before = world.view();
        let mut asked = Vec::new();
        let event = MasterEvent::Request {
            token: world.token(),
            caller: Caller { connection: 50_000, ..Caller::default() },
            request: logic_request(join(joiner, "fickle:1".into())),
        };
        let mut events = vec![event];
        let name = loop {
            let event = events.pop().expect("it is asked twice");
            let mut name = None;
            for action in world.master.handle(world.now_ms, event) {
                let MasterAction::Call { node, token, control, request } = action else { continue };
                if control != "fickle:1" {
                    continue;
                }
                let answer = match &request {
                    NodeRequest::Format { .. } => NodeReply::Done,
                    NodeRequest::Describe => NodeReply::Description(description(found)),
                    other => panic!("{other:?}"),
                };
                asked.push(request);
                if asked.len() == 2 {
                    name = Some((node, token, answer));
                } else {
                    events.push(MasterEvent::NodeAnswer { node, token, result: Ok(answer) });
                }
            }
            if let Some(name) = name {
                break name;
            }
            // If there is no event, time has to pass before the master makes its next call.
            if events.is_empty() {
                world.now_ms += 10;
                events.push(MasterEvent::Tick);
            }
        };
        let (node, token, answer) = name;
        world.feed(MasterEvent::NodeAnswer { node, token, result: Ok(answer) });
        // Later events do not matter, because no process runs at the member's address.
        let was_member = world.said(&format!("{node} is a member"));
        assert_eq!((was_member, world.view() != before), (is_admitted, is_admitted), "{found}");
        assert_eq!(world.said("does not become a member"), !is_admitted);
    }
}

/// A node announces another node's address by mistake, and is restarted again and again.
#[test]
fn a_member_is_asked_before_another_takes_its_place() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let names = |world: &TickCluster| -> Vec<MnId> {
        world.view().members.iter().map(|member| member.node).collect()
    };
    let before = names(&world);
    let address = world.view().members[0].control.clone();
    for round in 0..4 {
        name_of(ask(&mut world, join(1_000 + round, address.clone())));
        world.pass(2 * LEASE_MS);
        assert_eq!(names(&world), before, "it answers, so it is there");
    }
    // The member has ended, and a new process has its address.
    world.kill(0);
    name_of(ask(&mut world, join(2_000, address)));
    world.until("it is lost", |world| !names(world).contains(&before[0]));
}
