//! Tests of a data space that grows and shrinks: regions on demand, memory nodes that join, and memory nodes that are
//! drained. The master crashes at every possible step, and members are lost.

// Promise MEM-32

use super::*;

/// Asks for a region. If the reply names a call for memory, sets `call`, which the next request of this client has to
/// name.
fn more_room(world: &mut TickCluster, client: ClientId, call: &mut u64) -> MasterReply {
    more_room_for(world, Redundancy::Replicated, client, call)
}

fn more_room_for(
    world: &mut TickCluster,
    redundancy: Redundancy,
    client: ClientId,
    call: &mut u64,
) -> MasterReply {
    loop {
        let view = world.view().number;
        // The reply is `None` if the master crashed before it replied.
        match world.ask(MasterRequest::MoreRoom { redundancy, client, view, call: *call }) {
            Some(MasterReply::Called { call: next }) => {
                *call = next;
                return MasterReply::Done;
            }
            Some(reply) => return reply,
            None => {}
        }
    }
}

/// Adds regions until there is no room and a call on all sessions has brought no memory. Returns the numbers of regions
/// after each change, and the reason why no region can be added.
fn fill_up(world: &mut TickCluster, client: ClientId) -> (Vec<usize>, String) {
    let mut counts = vec![world.view().regions.len()];
    let mut call = 0;
    for _ in 0..1000 {
        match more_room(world, client, &mut call) {
            MasterReply::Refused { reason } => return (counts, reason),
            reply => assert_eq!(reply, MasterReply::Done),
        }
        world.step();
        let view = world.view();
        if view.change.is_none() && view.regions.len() > counts[counts.len() - 1] {
            counts.push(view.regions.len());
        }
    }
    panic!("it is never refused");
}

/// Checks that every replica is where the view says, and that nodes have reserved room for nothing else.
fn check_reserved(world: &TickCluster, view: &View) {
    let count =
        |places: &[PoolPlace], node| places.iter().filter(|p| p.node == node).count() as u64;
    for member in &view.members {
        let NodeReply::Usage(usage) = world.ask_node(member.node.0.into(), NodeRequest::Usage)
        else {
            panic!("no usage");
        };
        let subtables: u64 = view.subtables.iter().map(|s| count(s.replicas(), member.node)).sum();
        let regions: u64 = view.regions.iter().map(|r| count(r.places(), member.node)).sum();
        let bytes =
            subtables * view.geometry.subtable_bytes() + regions * view.geometry.region_bytes;
        assert_eq!(usage.reserved_bytes, bytes, "{}", member.node);
    }
}

#[test]
fn regions_come_when_clients_ask_until_the_pools_are_full() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    let client = world.open();
    let view = world.view();
    assert_eq!(view.regions.len(), 3, "one for each to lead");
    let late = MasterRequest::MoreRoom {
        redundancy: Redundancy::Replicated,
        client,
        view: view.number - 1,
        call: 0,
    };
    assert_eq!(world.ask(late), Some(MasterReply::Done));
    world.pass(LEASE_MS);
    assert_eq!(world.view(), view, "the asker has not seen the newest view");
    let (counts, reason) = fill_up(&mut world, client);
    // With the index, a pool of 1 MiB has room for 3 regions of 256 KiB; three nodes hold two replicas of each region.
    assert_eq!(counts, [3, 4]);
    assert!(reason.contains("start another memory node"), "{reason}");
    let view = world.view();
    assert!(view.regions.iter().all(|region| region.places().len() == 2));
    check_tables(&world, &view, client);
    check_reserved(&world, &view);
    assert!(world.sessions.iter().all(|session| !session.expelled));
}

#[test]
fn who_is_short_waits_until_all_sessions_have_handed_on_what_they_can_spare() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    let idle = world.open();
    let (_, reason) = fill_up(&mut world, client);
    assert!(reason.contains("fewer than that have as much left"), "{reason}");
    world.pass(100);
    // If a session does not learn of the call, the wait for it is short.
    world.sessions[1].renews = false;
    fill_up(&mut world, client);
    world.sessions[1].renews = true;
    world.pass(100);
    let before = world.sessions[1].acked;
    let mut call = 0;
    let mut late_call = 0;
    assert_eq!(more_room(&mut world, client, &mut call), MasterReply::Done);
    // A request during a call waits for the next call, because blocks that are handed on for the present call are
    // possibly taken before this client asks for them.
    assert_eq!(more_room(&mut world, client, &mut late_call), MasterReply::Done);
    assert!(late_call > call);
    world.pass(100);
    assert_eq!(world.sessions[1].acked, call);
    assert_ne!(call, before);

    let number = world.view().number;
    let class = SizeClass::from_code(4).unwrap();
    let block = block(1);
    let orphan = Orphan { block, owner: idle, class, first: 3, base: Some(0), marked: Some(1) };
    let hand_on =
        MasterRequest::HandOn { client: idle, serial: 1, orphans: vec![orphan], used: vec![] };
    assert_eq!(world.ask(hand_on.clone()), Some(MasterReply::Done));
    assert_eq!(world.ask(hand_on), Some(MasterReply::Done), "repeated");
    assert!(matches!(more_room(&mut world, client, &mut call), MasterReply::Refused { .. }));
    // A client that found a block, and is short of memory again, begins another call.
    let mut again = 0;
    assert_eq!(more_room(&mut world, client, &mut again), MasterReply::Done);
    assert!(again > call);
    world.pass(100);
    assert_eq!(more_room(&mut world, client, &mut again), MasterReply::Done);
    world.pass(100);
    assert_eq!(world.sessions[1].acked, again);
    let take = || MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        client,
        turn: 0,
        adopted: vec![],
        class: None,
        full: true,
        view: number,
    };
    let handed_on = MasterReply::Orphan { orphan: Some(orphan), owner_lives: true };
    assert_eq!(world.ask(take()), Some(handed_on));
    assert_eq!(world.ask(take()), Some(NO_ORPHAN));
}

/// Sessions hand on nothing for their own search. If two sessions are short, each possibly needs the blocks of the
/// other.
#[test]
fn a_call_spares_the_session_that_is_short_if_no_other_one_is() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    let other = world.open();
    fill_up(&mut world, client);
    // The numbers of the calls are forgotten, because the sessions begin new searches.
    world.pass(3_000);
    let (mut call, mut next) = (0, 0);
    assert_eq!(more_room(&mut world, client, &mut call), MasterReply::Done);
    world.pass(100);
    assert_eq!((world.sessions[1].acked, world.sessions[1].spared), (call, Some(client)));
    // The other session has to wait for the next call, and the first one wants another call, too.
    assert_eq!(more_room(&mut world, client, &mut 0), MasterReply::Done);
    assert_eq!(more_room(&mut world, other, &mut next), MasterReply::Done);
    world.pass(100);
    assert_eq!(more_room(&mut world, client, &mut 0), MasterReply::Done);
    world.pass(100);
    assert_eq!((world.sessions[0].acked, world.sessions[0].spared), (next, None));
}

/// While some session will possibly free memory soon, a refused client is told that it can ask again; otherwise it is
/// told that asking is in vain.
// Promise MEM-17
#[test]
fn who_is_refused_hears_whether_anybody_may_soon_have_memory() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    let other = world.open();
    fill_up(&mut world, client);
    let refused = |world: &mut TickCluster| {
        // The pause after the last call for memory passes.
        world.pass(100);
        let mut call = 0;
        assert_eq!(more_room(world, client, &mut call), MasterReply::Done);
        world.pass(100);
        more_room(world, client, &mut call)
    };
    let perhaps = |reply: MasterReply| matches!(reply, MasterReply::Refused { .. });
    assert!(perhaps(refused(&mut world)), "both stir");
    world.sessions[0].stirs = false;
    assert!(perhaps(refused(&mut world)), "one stirs");
    world.sessions[1].stirs = false;
    assert_eq!(refused(&mut world), MasterReply::Exhausted);

    // After a block has been handed on, asking again can help, unless the block is known to be in use.
    let class = SizeClass::from_code(4).unwrap();
    let mut serial = 0;
    let mut hand_on = |world: &mut TickCluster, number: u32, is_used: bool| {
        serial += 1;
        let block = block(number);
        let orphan =
            Orphan { block, owner: other, class, first: 3, base: Some(0), marked: Some(1) };
        let used = if is_used { vec![block] } else { vec![] };
        let orphans = vec![orphan];
        let request = MasterRequest::HandOn { client: other, serial, orphans, used };
        assert_eq!(world.ask(request), Some(MasterReply::Done));
    };
    for (number, is_used) in [(1, true), (2, false)] {
        world.pass(100);
        let mut call = 0;
        assert_eq!(more_room(&mut world, client, &mut call), MasterReply::Done);
        hand_on(&mut world, number, is_used);
        world.pass(100);
        let reply = more_room(&mut world, client, &mut call);
        assert_eq!(reply == MasterReply::Exhausted, is_used, "{reply:?}");
    }
    // The replies are the same if the block is handed on after the call for memory has ended.
    world.pass(100);
    let mut call = 0;
    assert_eq!(more_room(&mut world, client, &mut call), MasterReply::Done);
    world.pass(100);
    hand_on(&mut world, 3, false);
    assert!(perhaps(more_room(&mut world, client, &mut call)));
    assert_eq!(refused(&mut world), MasterReply::Exhausted);

    // A session that does not learn of the call for memory possibly has unused memory.
    world.pass(100);
    world.sessions[1].renews = false;
    let mut call = 0;
    assert_eq!(more_room(&mut world, client, &mut call), MasterReply::Done);
    world.pass(LEASE_MS / 2 + 100);
    assert!(perhaps(more_room(&mut world, client, &mut call)), "one is silent");
}

/// The entry cannot be read on any replica. Other subtables are split, and the operator is told.
// Promise DMG-12: An unreadable entry prevents no other split.
#[test]
fn one_entry_that_nobody_can_read_keeps_no_other_subtable_from_being_split() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    // The next change serves all requests that name the newest view.
    let ask = |world: &mut TickCluster, subtable| {
        let view = world.view().number;
        world.ask(MasterRequest::Split { subtable, view })
    };
    let formed = world.view().subtables.len();
    (0..formed as u32).for_each(|subtable| assert!(ask(&mut world, subtable).is_some()));
    world.until("the splits", |w| {
        w.view().subtables.len() == 2 * formed && w.view().change.is_none()
    });
    let view = world.view();
    let damaged = 3;
    let before = view.subtables.len();
    let object = Address::new(block(0).address(&view.geometry).bytes() + 8192);
    let word = Slot::new(7, SizeClass::from_code(3).unwrap(), object, 0).0;
    let places = view.subtables[damaged].replicas().to_vec();
    places.iter().for_each(|place| write(&world, *place, 8 * 6, word));
    let depth = view.subtables[0].local_depth;
    let begun = world.now_ms;
    let mut refusals = BTreeSet::new();
    for _ in 0..20 {
        let view = world.view();
        let is_asked_for = |subtable: &u32| view.subtables[*subtable as usize].local_depth == depth;
        for subtable in (0..before as u32).filter(is_asked_for) {
            if let Some(MasterReply::Refused { reason }) = ask(&mut world, subtable) {
                refusals.insert((subtable, reason));
            }
        }
        world.pass(500);
        if world.view().subtables.len() == 2 * before - 1 {
            break;
        }
    }
    world.until("the end of the last split", |w| w.view().change.is_none());
    println!("all others are split after {} ms", world.now_ms - begun);
    let view = world.view();
    assert_eq!(view.subtables.len(), 2 * before - 1, "all but one: {:#?}", world.log);
    assert_eq!(view.subtables[damaged].local_depth, depth);
    let refusals = Vec::from_iter(refusals);
    let [(refused, reason)] = &refusals[..] else { panic!("{refusals:?}") };
    assert_eq!(*refused as usize, damaged);
    assert!(world.said("transforming, without that split"), "others were to be split with it");
    assert!(reason.contains("its slot 6") && reason.contains("formed anew"), "{reason}");
    assert_eq!(world.status().problem.as_ref(), Some(reason));
    assert!(world.said(reason), "it is an event");
    assert!(!world.sessions[0].expelled);
    // The unreadable entry is removed. Later the split is tried again, and succeeds.
    let view = world.view();
    let places = view.subtables[damaged].replicas().to_vec();
    places.iter().for_each(|place| write(&world, *place, 8 * 6, 0));
    world.pass(60_000);
    assert_eq!(world.status().problem, None);
    assert_eq!(ask(&mut world, damaged as u32), Some(MasterReply::Done));
    let now = world.view().subtables.len();
    world.until("the last one", |w| w.view().subtables.len() > now && w.view().change.is_none());
    check_tables(&world, &world.view(), client);
}

#[test]
fn no_subtable_is_split_where_its_sibling_would_have_fewer_replicas() {
    let mut world = TickCluster::formed(settings(4, 3, 2));
    world.open();
    let reason = 'full: {
        for turn in 0..1000 {
            let view = world.view();
            // The subtable that was split the fewest times.
            let depths = (0u32..).zip(&view.subtables).map(|(i, s)| (s.local_depth, i));
            let (_, subtable) = depths.min().unwrap();
            match world.ask(MasterRequest::Split { subtable, view: view.number }) {
                Some(MasterReply::Refused { reason }) => break 'full reason,
                Some(MasterReply::Done) => {}
                other => panic!("turn {turn}: {other:?}"),
            }
            world.until("the split", |w| {
                let now = w.view();
                now.change.is_none() && now.subtables.len() > view.subtables.len()
            });
        }
        panic!("the index grows without end");
    };
    assert!(reason.contains("no memory node has room for a larger index"), "{reason}");
    let view = world.view();
    assert!(view.subtables.len() > 50, "{}", view.subtables.len());
    assert!(view.subtables.iter().all(|subtable| subtable.replicas().len() == 3));
    check_reserved(&world, &view);
}

#[test]
fn a_block_that_somebody_saw_in_use_is_for_its_own_size_class_for_a_while() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    let other = world.open();
    let view = world.view().number;
    let class = SizeClass::from_code(4).unwrap();
    let block = block(1);
    let orphan = Orphan { block, owner: other, class, first: 3, base: Some(0), marked: Some(1) };
    let hand_on = |serial| {
        let orphans = vec![orphan];
        let used = vec![block];
        MasterRequest::HandOn { client: other, serial, orphans, used }
    };
    let take = |class| MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        client,
        turn: 0,
        adopted: vec![],
        class,
        full: true,
        view,
    };
    let handed_on = MasterReply::Orphan { orphan: Some(orphan), owner_lives: true };
    assert_eq!(world.ask(hand_on(1)), Some(MasterReply::Done));
    assert_eq!(world.ask(take(None)), Some(NO_ORPHAN));
    assert_eq!(world.ask(take(SizeClass::from_code(5))), Some(NO_ORPHAN));
    assert_eq!(world.ask(take(Some(class))), Some(handed_on.clone()));
    assert_eq!(world.ask(hand_on(2)), Some(MasterReply::Done));
    world.pass(2_000);
    assert_eq!(world.ask(take(None)), Some(handed_on), "it may have become free since");
}

#[test]
fn what_was_handed_on_is_not_handed_on_again_by_a_repetition() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    let owner = world.open();
    let view = world.view().number;
    let class = SizeClass::from_code(4).unwrap();
    let block = block(1);
    let orphan = Orphan { block, owner, class, first: 3, base: Some(0), marked: Some(1) };
    let hand_on = |serial| {
        let orphans = vec![orphan];
        MasterRequest::HandOn { client: owner, serial, orphans, used: vec![] }
    };
    let take = || {
        let adopted = vec![];
        MasterRequest::TakeOrphan {
            redundancy: Redundancy::Replicated,
            client,
            turn: 0,
            adopted,
            class: None,
            full: true,
            view,
        }
    };
    let handed_on = MasterReply::Orphan { orphan: Some(orphan), owner_lives: true };
    assert_eq!(world.ask(hand_on(1)), Some(MasterReply::Done));
    assert_eq!(world.ask(take()), Some(handed_on.clone()));
    // By now the owner has possibly got the block again, from the pool, so a repeated hand-over must change nothing.
    assert_eq!(world.ask(hand_on(1)), Some(MasterReply::Done));
    assert_eq!(world.ask(take()), Some(NO_ORPHAN));
    world.restart_master();
    world.until("sessions", |w| w.status().open_sessions == 2);
    assert_eq!(world.ask(hand_on(1)), Some(MasterReply::Done));
    assert_eq!(world.ask(take()), Some(NO_ORPHAN));
    assert_eq!(world.ask(hand_on(2)), Some(MasterReply::Done));
    assert_eq!(world.ask(take()), Some(handed_on));
}

/// A session was given the same block twice, because the owner had got it again from the pool and handed it on again.
/// The session's report that it took the block over can be about the first time, and come late. Such a report does not
/// tell whether the session took the block over the second time.
// Promise MEM-10: A late report about a block does not affect its next owner.
#[test]
fn who_has_taken_over_a_block_says_when_it_was_given_that() {
    for is_late in [false, true] {
        let mut world = TickCluster::formed(settings(3, 2, 2));
        let owner = world.open();
        let taker = world.open();
        let client = world.open();
        let view = world.view().number;
        let class = SizeClass::from_code(4).unwrap();
        let block = block(1);
        let orphan = Orphan { block, owner, class, first: 3, base: Some(0), marked: Some(1) };
        let hand_on = |serial| {
            let orphans = vec![orphan];
            MasterRequest::HandOn { client: owner, serial, orphans, used: vec![] }
        };
        let take = |client, turn, adopted| MasterRequest::TakeOrphan {
            redundancy: Redundancy::Replicated,
            client,
            turn,
            adopted,
            class: None,
            full: true,
            view,
        };
        let handed_on =
            |owner_lives| Some(MasterReply::Orphan { orphan: Some(orphan), owner_lives });
        assert_eq!(world.ask(hand_on(1)), Some(MasterReply::Done));
        assert_eq!(world.ask(take(taker, 1, vec![])), handed_on(true));
        assert_eq!(world.ask(hand_on(2)), Some(MasterReply::Done));
        assert_eq!(world.ask(take(taker, 3, vec![])), handed_on(true));
        let (turn, adopted) = if is_late { (2, 1) } else { (4, 3) };
        let told = world.ask(take(taker, turn, vec![(block, adopted)]));
        assert_eq!(told, Some(NO_ORPHAN));
        for client in [taker, owner] {
            world.ask(MasterRequest::Close { client, orphans: vec![], work: Default::default() });
        }
        let left = if is_late { handed_on(false) } else { Some(NO_ORPHAN) };
        assert_eq!(world.ask(take(client, 0, vec![])), left);
    }
}

#[test]
fn who_comes_back_late_has_the_others_called_upon_again() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    fill_up(&mut world, client);
    for (away_ms, is_late) in [(200, false), (4_000, true)] {
        world.pass(200);
        let mut call = 0;
        assert_eq!(more_room(&mut world, client, &mut call), MasterReply::Done);
        let waited_for = call;
        // All sessions acknowledge the call meanwhile, and no client asks for memory.
        world.pass(away_ms);
        let reply = more_room(&mut world, client, &mut call);
        assert_eq!(matches!(reply, MasterReply::Refused { .. }), !is_late, "{reply:?}");
        assert_eq!(call > waited_for, is_late);
    }
}

#[test]
fn what_a_session_has_handed_on_again_is_not_offered_as_it_once_was() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let owner = world.open();
    let first = world.open();
    let second = world.open();
    let last = world.open();
    let view = world.view().number;
    let class = SizeClass::from_code(4).unwrap();
    let block = block(1);
    let left =
        |objects| Orphan { block, owner, class, first: objects, base: Some(0), marked: Some(1) };
    let hand_on = |serial, left| {
        let orphans = vec![left];
        MasterRequest::HandOn { client: owner, serial, orphans, used: vec![] }
    };
    let take = |client| {
        let adopted = vec![];
        MasterRequest::TakeOrphan {
            redundancy: Redundancy::Replicated,
            client,
            turn: 0,
            adopted,
            class: None,
            full: true,
            view,
        }
    };
    let handed_on =
        |owner_lives, orphan| Some(MasterReply::Orphan { orphan: Some(orphan), owner_lives });
    let close = |client| MasterRequest::Close { client, orphans: vec![], work: Default::default() };
    assert_eq!(world.ask(hand_on(1, left(3))), Some(MasterReply::Done));
    assert_eq!(world.ask(take(first)), handed_on(true, left(3)));
    // The first taker has given the block back to the pool, and the owner has got it again from there.
    assert_eq!(world.ask(hand_on(2, left(9))), Some(MasterReply::Done));
    assert_eq!(world.ask(take(second)), handed_on(true, left(9)));
    for client in [first, owner] {
        assert_eq!(world.ask(close(client)), Some(MasterReply::Done));
        assert_eq!(world.ask(take(last)), Some(NO_ORPHAN));
    }
    assert_eq!(world.ask(close(second)), Some(MasterReply::Done));
    assert_eq!(world.ask(take(last)), handed_on(false, left(9)));
}

#[test]
fn what_a_dead_session_was_given_waits_for_an_owner_that_lives() {
    for has_it_again in [false, true] {
        for ends_in_order in [false, true] {
            let mut world = TickCluster::formed(settings(3, 2, 2));
            let owner = world.open();
            let taker = world.open();
            let client = world.open();
            let view = world.view().number;
            let class = SizeClass::from_code(4).unwrap();
            let block = block(1);
            let orphan = Orphan { block, owner, class, first: 3, base: Some(0), marked: Some(1) };
            let hand_on = MasterRequest::HandOn {
                client: owner,
                serial: 1,
                orphans: vec![orphan],
                used: vec![],
            };
            let take = |client| {
                let adopted = vec![];
                MasterRequest::TakeOrphan {
                    redundancy: Redundancy::Replicated,
                    client,
                    turn: 0,
                    adopted,
                    class: None,
                    full: true,
                    view,
                }
            };
            let handed_on = |owner_lives, orphan| {
                Some(MasterReply::Orphan { orphan: Some(orphan), owner_lives })
            };
            assert_eq!(world.ask(hand_on), Some(MasterReply::Done));
            assert_eq!(world.ask(take(taker)), handed_on(true, orphan));
            if ends_in_order {
                let close = MasterRequest::Close {
                    client: taker,
                    orphans: vec![],
                    work: Default::default(),
                };
                assert_eq!(world.ask(close), Some(MasterReply::Done));
            } else {
                world.ask(MasterRequest::Abandon { client: taker });
                world.until("the recovery", TickCluster::is_whole);
            }
            // The taker has possibly given the block back to the pool, and the owner has possibly got it again from
            // there.
            assert_eq!(world.ask(take(client)), Some(NO_ORPHAN));
            let now = Orphan { first: 5, ..orphan };
            let orphans = if has_it_again { vec![now] } else { vec![] };
            world.ask(MasterRequest::Close { client: owner, orphans, work: Default::default() });
            let left = if has_it_again { now } else { orphan };
            assert_eq!(world.ask(take(client)), handed_on(false, left));
            assert_eq!(world.ask(take(client)), Some(NO_ORPHAN));
        }
    }
}

#[test]
fn what_a_session_handed_on_is_nobodys_while_it_is_recovered() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    let dies = world.open();
    let number = world.view().number;
    let class = SizeClass::from_code(4).unwrap();
    let block = block(1);
    let orphan = Orphan { block, owner: dies, class, first: 3, base: Some(0), marked: Some(1) };
    let hand_on =
        MasterRequest::HandOn { client: dies, serial: 1, orphans: vec![orphan], used: vec![] };
    assert_eq!(world.ask(hand_on.clone()), Some(MasterReply::Done));
    world.recoveries_fail = true;
    world.ask(MasterRequest::Abandon { client: dies });
    let take = || MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        client,
        turn: 0,
        adopted: vec![],
        class: Some(class),
        full: false,
        view: number,
    };
    assert_eq!(world.ask(take()), Some(NO_ORPHAN));
    assert!(matches!(world.ask(hand_on), Some(MasterReply::Refused { .. })));
    world.recoveries_fail = false;
    world.until("the recovery", TickCluster::is_whole);
    let left = MasterReply::Orphan { orphan: Some(orphan), owner_lives: false };
    assert_eq!(world.ask(take()), Some(left));
}

/// A block was given to a session (the taker). The taker has possibly given it back to the pool, and its former owner
/// has possibly got it again from there and written to objects that were never allocated before.
// Promise MEM-9: No block is offered under an owner that could get it again.
#[test]
fn what_was_given_is_left_to_the_recovery_of_an_owner_that_has_died() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let dies = world.open();
    let taker = world.open();
    let client = world.open();
    let view = world.view().number;
    let class = SizeClass::from_code(4).unwrap();
    let block = block(1);
    let orphan = Orphan { block, owner: dies, class, first: 0, base: Some(0), marked: Some(1) };
    let hand_on =
        MasterRequest::HandOn { client: dies, serial: 1, orphans: vec![orphan], used: vec![] };
    let take = |client| MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        client,
        turn: 0,
        adopted: vec![],
        class: None,
        full: true,
        view,
    };
    assert_eq!(world.ask(hand_on), Some(MasterReply::Done));
    let given = MasterReply::Orphan { orphan: Some(orphan), owner_lives: true };
    assert_eq!(world.ask(take(taker)), Some(given));
    world.recoveries_fail = true;
    world.ask(MasterRequest::Abandon { client: dies });
    let close = MasterRequest::Close { client: taker, orphans: vec![], work: Default::default() };
    assert_eq!(world.ask(close), Some(MasterReply::Done));
    world.recoveries_fail = false;
    // In this test no table names the dead session as the owner of the block.
    world.until("the recovery", TickCluster::is_whole);
    assert_eq!(world.ask(take(client)), Some(NO_ORPHAN));
}

/// The owner had got the block back from the pool. Its recovery found the block empty, or a header that cannot be read.
// Promise MEM-9
#[test]
fn what_a_recovery_has_looked_at_is_not_recorded_as_it_was_given() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let dies = world.open();
    let taker = world.open();
    let client = world.open();
    let view = world.view().number;
    let class = SizeClass::from_code(4).unwrap();
    let block = give_block(&world, dies, true);
    let orphan = Orphan { block, owner: dies, class, first: 3, base: Some(0), marked: Some(1) };
    let hand_on =
        MasterRequest::HandOn { client: dies, serial: 1, orphans: vec![orphan], used: vec![] };
    let take = |client| MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        client,
        turn: 0,
        adopted: vec![],
        class: None,
        full: true,
        view,
    };
    assert_eq!(world.ask(hand_on), Some(MasterReply::Done));
    let given = MasterReply::Orphan { orphan: Some(orphan), owner_lives: true };
    assert_eq!(world.ask(take(taker)), Some(given));
    world.ask(MasterRequest::Abandon { client: dies });
    world.until("the recovery", TickCluster::is_whole);
    let close = MasterRequest::Close { client: taker, orphans: vec![], work: Default::default() };
    assert_eq!(world.ask(close), Some(MasterReply::Done));
    assert_eq!(world.ask(take(client)), Some(NO_ORPHAN));
}

#[test]
fn missing_replicas_come_before_new_regions() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    let gone = world.open();
    assert_eq!(world.view().regions.len(), 3);
    // Recovery of clients comes before new replicas; it fails here, so that replicas remain missing.
    world.recoveries_fail = true;
    world.ask(MasterRequest::Abandon { client: gone });
    // Two nodes have room for 6 replicas of regions: enough for 3 regions, not for 4.
    world.kill(0);
    world.until("the loss", |w| w.view().members.len() == 2 && w.view().change.is_none());
    assert!(world.status().missing_replicas > 0);
    assert_eq!(more_room(&mut world, client, &mut 0), MasterReply::Done);
    world.pass(LEASE_MS);
    world.recoveries_fail = false;
    world.until("all replicas", TickCluster::is_whole);
    assert_eq!(world.view().regions.len(), 3);
}

/// Returns settings with small regions, so that regions with all of their replicas take a quarter of the pools.
fn roomy() -> ClusterSettings {
    let geometry = Geometry { region_bytes: 64 << 10, ..settings(3, 2, 2).geometry };
    ClusterSettings { geometry, ..settings(3, 2, 2) }
}

/// Asks for regions until the view has `regions` regions. Each request names the newest view, as sessions do. Returns
/// the number of steps and of views that this took.
fn ask_until_there_are(world: &mut TickCluster, client: ClientId, regions: usize) -> (usize, u64) {
    let begun = world.view().number;
    for steps in 0..600 {
        let view = world.view();
        // A region is of use when sessions know it and its primary hands out its blocks.
        let leads = view.change.as_ref().is_none_or(|change| change.stage == ChangeStage::Switched);
        if view.regions.len() >= regions && leads {
            return (steps, view.number - begun);
        }
        assert_eq!(more_room(world, client, &mut 0), MasterReply::Done);
        world.step();
    }
    panic!("no region comes: {:#?}", world.log);
}

/// The next copy of a region begins in the same step in which a change ends. Requests for regions that come during the
/// change are remembered, so that they come first.
// Promise CHG-24: A requested region comes before moves and between repairs.
#[test]
fn a_region_comes_between_two_copies_where_room_stays_for_the_others() {
    let mut world = TickCluster::formed(roomy());
    let client = world.open();
    world.add_node();
    world.until("the share of the fourth", |w| w.view().members.len() == 4 && w.is_whole());
    let more = world.view().regions.len() + 8;
    ask_until_there_are(&mut world, client, more);
    world.until("rest", TickCluster::is_whole);
    world.kill(0);
    world.until("a copy", |w| {
        let change = w.view().change;
        change.is_some_and(|change| change.regions.iter().any(|region| region.joining.is_some()))
    });
    let missing = world.status().missing_replicas;
    assert!(missing >= 4, "{missing} replicas are missing");
    let regions = world.view().regions.len() + 1;
    let (steps, views) = ask_until_there_are(&mut world, client, regions);
    println!(
        "{missing} replicas are missing; a region is there after {steps} steps, {views} views"
    );
    assert!(views <= 7, "the copy under way, and the region: {views} views, {steps} steps");
    assert!(world.status().missing_replicas > 1, "others are still to come");
    // The missing replicas are added, although a client asks for regions all the time.
    for _ in 0..300 {
        let _ = more_room(&mut world, client, &mut 0);
        world.step();
        if world.status().missing_replicas == 0 {
            break;
        }
    }
    world.until("all replicas", TickCluster::is_whole);
    check_reserved(&world, &world.view());
}

// Promise CHG-24
#[test]
fn a_region_comes_before_replicas_move() {
    let mut world = TickCluster::formed(roomy());
    let client = world.open();
    let more = world.view().regions.len() + 8;
    ask_until_there_are(&mut world, client, more);
    world.until("rest", TickCluster::is_whole);
    world.add_node();
    world.until("a move", |w| {
        w.view().change.iter().any(|change| change.leaving().next().is_some())
    });
    let regions = world.view().regions.len() + 1;
    let (steps, views) = ask_until_there_are(&mut world, client, regions);
    println!("a region is there after {steps} steps, {views} views");
    assert!(views <= 7, "the move under way, and the region: {views} views, {steps} steps");
    assert!(world.status().rebalancing, "others are still to move");
    world.until("rest", TickCluster::is_whole);
}

#[test]
fn all_who_ask_during_a_change_are_served_by_one_whatever_redundancies_they_want() {
    let mut world = TickCluster::formed(roomy());
    let client = world.open();
    let other = world.open();
    world.sessions[1].follows = false;
    let view = world.view().number;
    world.ask(MasterRequest::Split { subtable: 0, view });
    world.until("a split", |w| w.view().change.is_some());
    let coded = Redundancy::Coded(Coding::new(2, 1).unwrap());
    for redundancy in [coded, Redundancy::None, Redundancy::Replicated] {
        for asker in [client, other] {
            let reply = more_room_for(&mut world, redundancy, asker, &mut 0);
            assert_eq!(reply, MasterReply::Done);
        }
    }
    let before = world.view().regions.len();
    world.sessions[1].follows = true;
    world.until("regions", |w| w.view().regions.len() > before);
    let view = world.view();
    let new = &view.regions[before..];
    for redundancy in [coded, Redundancy::None, Redundancy::Replicated] {
        assert!(new.iter().any(|region| region.redundancy() == redundancy), "{new:?}");
    }
    assert_eq!(view.change.as_ref().map(|change| change.new_regions), Some(new.len() as u32));
    world.until("rest", TickCluster::is_whole);
    check_reserved(&world, &world.view());
}

/// Regions and splits take turns, so that neither keeps the other waiting.
// Promise CHG-28: Regions and splits take turns; each request is served once.
#[test]
fn splits_that_are_always_wanted_keep_no_region_away() {
    let mut world = TickCluster::formed(roomy());
    let client = world.open();
    world.pass(100);
    let before = world.view();
    let split = |world: &mut TickCluster| {
        let (view, subtables) = (world.view().number, world.view().subtables.len() as u32);
        (0..subtables).for_each(|subtable| {
            world.ask(MasterRequest::Split { subtable, view });
        });
    };
    split(&mut world);
    world.until("a split", |w| w.view().subtables.len() > before.subtables.len());
    let splits = world.view().subtables.len();
    assert_eq!(more_room(&mut world, client, &mut 0), MasterReply::Done);
    split(&mut world);
    world.until("the next change", |w| {
        let view = w.view();
        view.regions.len() > before.regions.len() || view.subtables.len() > splits
    });
    assert!(world.view().regions.len() > before.regions.len(), "{:#?}", world.log);
    world.until("the splits", |w| w.view().subtables.len() > splits);
}

/// The replacement of a lost primary makes no room, so it does not fulfil a request for a region.
#[test]
fn a_region_that_is_asked_for_while_a_primary_is_replaced_comes() {
    let mut world = TickCluster::formed(roomy());
    let client = world.open();
    let _ = world.open();
    world.sessions[1].follows = false;
    world.pass(100);
    let view = world.view().number;
    world.kill(2);
    world.until("the loss", |world| world.view().change.is_some());
    let before = world.view().regions.len();
    let redundancy = Redundancy::Replicated;
    let reply = world.ask(MasterRequest::MoreRoom { redundancy, client, view, call: 0 });
    assert_eq!(reply, Some(MasterReply::Done));
    world.sessions[1].follows = true;
    world.until("the region", |world| world.view().regions.len() > before);
}

/// A session knows a new region, but no memory node hands out its blocks yet. The session's request adds no other
/// region.
// Promise CHG-28
#[test]
fn a_region_that_comes_is_not_asked_for_again() {
    let mut world = TickCluster::formed(roomy());
    let client = world.open();
    let _ = world.open();
    world.sessions[1].follows = false;
    world.pass(100);
    let before = world.view().regions.len();
    assert_eq!(more_room(&mut world, client, &mut 0), MasterReply::Done);
    world.until("a new region", |world| world.view().regions.len() > before);
    let there = world.view().regions.len();
    assert!(world.view().change.is_some());
    assert_eq!(more_room(&mut world, client, &mut 0), MasterReply::Done);
    world.sessions[1].follows = true;
    world.until("the rest", TickCluster::is_whole);
    world.pass(2 * LEASE_MS);
    assert_eq!((world.view().regions.len(), world.view().change), (there, None));
}

#[test]
fn nobody_hands_out_blocks_of_a_region_that_not_everybody_knows() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    let client = world.open();
    world.open();
    world.sessions[1].follows = false;
    world.pass(100);
    assert_eq!(more_room(&mut world, client, &mut 0), MasterReply::Done);
    world.pass(LEASE_MS / 2);
    let view = world.view();
    assert_eq!((view.regions.len(), view.change.unwrap().stage), (4, ChangeStage::Frozen));
    let led_bytes = |world: &TickCluster| -> u64 {
        let usage = |node| match world.ask_node(node, NodeRequest::Usage) {
            NodeReply::Usage(usage) => usage.led_bytes,
            other => panic!("unexpected {other:?}"),
        };
        (0..3).map(usage).sum()
    };
    let frames = u64::from(view.geometry.frames_per_region());
    let per_region = frames * view.geometry.frame_bytes();
    assert_eq!(led_bytes(&world), 3 * per_region);
    world.sessions[1].follows = true;
    world.until("the new region", |world| world.view().change.is_none());
    assert_eq!(led_bytes(&world), 4 * per_region);
    assert!(!world.sessions[1].expelled);
}

/// Adds a region. After `crash_after` ticks the master crashes, or after `dies_after` ticks node 2 dies.
fn add_a_region(crash_after: Option<usize>, dies_after: Option<usize>) -> (TickCluster, usize) {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    fill(&world, MnId(2));
    let client = world.open();
    world.pass(100);
    let begun = world.ticks.get();
    world.crash_after.set(crash_after.map(|ticks| begun + ticks));
    world.dies_after = dies_after.map(|ticks| (begun + ticks, 2));
    for _ in 0..600 {
        let view = world.view();
        if view.regions.len() > 3 && view.change.is_none() {
            break;
        }
        if view.change.is_none() {
            let reply = more_room(&mut world, client, &mut 0);
            if world.view().members.len() == 2 && reply != MasterReply::Done {
                break;
            }
        }
        world.step();
    }
    let ticks = world.ticks.get() - begun;
    world.until("rest", |world| {
        let died = !world.nodes.borrow()[2].alive;
        world.view().change.is_none() && died == world.view().member(MnId(2)).is_none()
    });
    let view = world.view();
    view.check().unwrap();
    check_tables(&world, &view, ClientId(4000));
    assert!(!world.sessions[0].expelled);
    (world, ticks)
}

// Promise CHG-10: Regions and nodes come, whenever the master crashes.
#[test]
fn a_master_that_crashes_while_a_region_comes_goes_on() {
    let (_, ticks) = add_a_region(None, None);
    for crash_after in 0..ticks {
        let (world, _) = add_a_region(Some(crash_after), None);
        let view = world.view();
        assert_eq!((world.crashes, view.regions.len()), (1, 4), "{crash_after}");
        check_reserved(&world, &view);
    }
    assert!(ticks > 15, "{ticks}");
}

#[test]
fn a_member_that_is_lost_while_a_region_comes_takes_nothing_along() {
    let (_, ticks) = add_a_region(None, None);
    for dies_after in 0..ticks {
        let (world, _) = add_a_region(None, Some(dies_after));
        let view = world.view();
        assert!(view.regions.iter().all(|region| !region.places().is_empty()), "{dies_after}");
    }
}

/// Returns for each member the numbers of its replicas of subtables, its replicas of regions, and its primaries of
/// subtables.
fn shares(view: &View) -> Vec<[u64; 3]> {
    let share = |node| {
        let led = view.subtables.iter().filter(|subtable| subtable.primary().node == node);
        [view.subtables_on(node), view.regions_on(node), led.count() as u64]
    };
    view.members.iter().map(|member| share(member.node)).collect()
}

fn check_even(view: &View) {
    let shares = shares(view);
    for kind in 0..2 {
        let counts: Vec<u64> = shares.iter().map(|share| share[kind]).collect();
        let least = counts.iter().min().unwrap();
        let most = counts.iter().max().unwrap();
        assert!(most - least <= 1, "{counts:?}");
    }
}

fn check_all(world: &TickCluster, view: &View) {
    view.check().unwrap();
    check_contents(world, view);
    check_tables(world, view, ClientId(4000));
    check_reserved(world, view);
    assert!(world.sessions.iter().all(|session| !session.expelled), "{:#?}", world.log);
}

/// Runs three full nodes and a session; then a fourth node joins.
fn join(crash_after: Option<usize>, dies_after: Option<(usize, usize)>) -> (TickCluster, usize) {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    fill(&world, MnId(9));
    world.open();
    world.pass(100);
    let begun = world.ticks.get();
    world.crash_after.set(crash_after.map(|ticks| begun + ticks));
    world.dies_after = dies_after.map(|(ticks, node)| (begun + ticks, node));
    world.add_node();
    world.until("the fourth to have its share", |world| {
        let view = world.view();
        let dead = |at: u16| !world.nodes.borrow()[usize::from(at)].alive;
        let gone = (0..4).filter(|at| dead(*at)).all(|at| view.member(MnId(at)).is_none());
        let is_there = dead(3) || view.member(MnId(3)).is_some();
        is_there && gone && world.is_whole()
    });
    let ticks = world.ticks.get() - begun;
    (world, ticks)
}

#[test]
fn a_node_that_joins_is_a_member_at_once_and_gets_its_share() {
    let (mut world, _) = join(None, None);
    let view = world.view();
    check_all(&world, &view);
    check_even(&view);
    let shares = shares(&view);
    assert!(shares[3][0] >= 2 && shares[3][2] >= 1, "primaries too: {shares:?}");
    let status = world.status();
    assert_eq!(status.members[3].state, MemberState::InView);
    assert!(status.last_reconfigurations.iter().any(|change| change.moved > 0));
    world.pass(2 * LEASE_MS);
    assert_eq!(world.view(), view, "and then it rests");
}

// Promise CHG-10
#[test]
fn a_master_that_crashes_while_a_node_gets_its_share_goes_on() {
    let (_, ticks) = join(None, None);
    let mut crashed = 0;
    for crash_after in 0..ticks {
        let (world, _) = join(Some(crash_after), None);
        let view = world.view();
        check_all(&world, &view);
        check_even(&view);
        crashed += world.crashes;
    }
    assert!(ticks > 60 && crashed == ticks, "{crashed} of {ticks}");
}

#[test]
fn a_member_may_be_lost_while_a_node_gets_its_share() {
    let (_, ticks) = join(None, None);
    for dies in [1, 3] {
        for dies_after in 0..ticks {
            let (world, _) = join(None, Some((dies_after, dies)));
            let view = world.view();
            view.check().unwrap();
            check_contents(&world, &view);
            check_tables(&world, &view, ClientId(4000));
            check_even(&view);
            assert!(!world.sessions[0].expelled);
        }
    }
}

fn ask_to_drain(world: &mut TickCluster, node: u16, cancel: bool) -> MasterReply {
    loop {
        if let Some(reply) = world.ask(MasterRequest::Drain { node: MnId(node), cancel }) {
            return reply;
        }
    }
}

/// Runs four nodes and a session; then node 1 is drained.
fn drain(crash_after: Option<usize>, dies_after: Option<(usize, usize)>) -> (TickCluster, usize) {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    fill(&world, MnId(9));
    world.open();
    world.pass(100);
    let begun = world.ticks.get();
    world.crash_after.set(crash_after.map(|ticks| begun + ticks));
    world.dies_after = dies_after.map(|(ticks, node)| (begun + ticks, node));
    assert_eq!(ask_to_drain(&mut world, 1, false), MasterReply::Done);
    world.until("the drain", |world| {
        let stuck = world.status().problem.is_some_and(|text| text.contains("start another"));
        if stuck && world.nodes.borrow().len() == 4 {
            world.add_node();
        }
        let view = world.view();
        let lost = |at: usize| !world.nodes.borrow()[at].alive;
        let gone = (0..4).filter(|at| lost(*at)).all(|at| view.member(MnId(at as u16)).is_none());
        gone && view.member(MnId(1)).is_none() && world.is_whole()
    });
    let ticks = world.ticks.get() - begun;
    (world, ticks)
}

#[test]
fn a_drained_node_serves_until_it_is_empty_and_then_ends() {
    let (mut world, _) = drain(None, None);
    let view = world.view();
    check_all(&world, &view);
    world.pass(LEASE_MS);
    assert!(world.nodes.borrow()[1].drained, "it is told");
    let NodeReply::Usage(usage) = world.ask_node(1, NodeRequest::Usage) else { panic!() };
    assert_eq!((usage.reserved_bytes, usage.led_bytes), (0, 0));
    assert_eq!(world.status().members[1].state, MemberState::Drained);
    assert_eq!(ask_to_drain(&mut world, 1, false), MasterReply::Done, "repeated");
    assert!(!world.disk.keys().any(|key| key.starts_with("draining")));
    world.restart_master();
    assert_eq!(world.status().members[1].state, MemberState::Drained);
    world.pass(2 * LEASE_MS);
    assert_eq!(world.view(), view);
}

// Promise CHG-10
#[test]
fn a_master_that_crashes_while_a_node_is_drained_goes_on() {
    let (_, ticks) = drain(None, None);
    let mut crashed = 0;
    for crash_after in 0..ticks {
        let (mut world, _) = drain(Some(crash_after), None);
        check_all(&world, &world.view());
        crashed += world.crashes;
        world.pass(LEASE_MS);
        assert!(world.nodes.borrow()[1].drained, "{crash_after}");
    }
    assert!(ticks > 60 && crashed == ticks, "{crashed} of {ticks}");
}

#[test]
fn members_may_be_lost_while_one_is_drained() {
    let (_, ticks) = drain(None, None);
    // Node 1 is the drained node; node 2 receives replicas.
    for dies in [1, 2] {
        for dies_after in 0..ticks {
            let (mut world, _) = drain(None, Some((dies_after, dies)));
            let view = world.view();
            view.check().unwrap();
            check_contents(&world, &view);
            check_tables(&world, &view, ClientId(4000));
            assert!(!world.disk.keys().any(|key| key.starts_with("draining")));
            assert!(!world.sessions[0].expelled);
            world.pass(LEASE_MS);
        }
    }
}

/// Drains one of five nodes, which holds pairs without redundancy. After `crash_after` ticks the master crashes; or
/// after `dies.0` ticks the drained node (if `dies.1` is true) or the next node dies. Returns the drained node's name
/// and the number of ticks.
fn drain_single(
    crash_after: Option<usize>,
    dies: Option<(usize, bool)>,
) -> (TickCluster, MnId, usize) {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    let client = world.open();
    let single = |view: &View| {
        view.regions.iter().filter(|region| region.redundancy() == Redundancy::None).count()
    };
    world.until("regions without redundancy", |world| {
        let view = world.view();
        if view.change.is_none() && single(&view) == 0 {
            more_room_for(world, Redundancy::None, client, &mut 0);
        }
        view.change.is_none() && single(&view) == 2
    });
    // The fifth node has room for the drained replicas.
    world.add_node();
    world.until("the fifth", |world| {
        let is_moving = world.status().rebalancing;
        !is_moving && world.view().members.len() == 5 && world.is_whole()
    });
    let view = world.view();
    let mut singles = view.regions.iter().filter(|r| r.redundancy() == Redundancy::None);
    let node = singles.next().expect("they are there").primary().node;
    let begun = world.ticks.get();
    world.crash_after.set(crash_after.map(|ticks| begun + ticks));
    // The node that dies is the drained node, or the node behind it.
    let name = |it: bool| if it { node.0 } else { (node.0 + 1) % 5 };
    world.dies_after = dies.map(|(ticks, it)| (begun + ticks, name(it).into()));
    assert_eq!(ask_to_drain(&mut world, node.0, false), MasterReply::Done);
    world.until("the drain", |world| {
        let stuck = world.status().problem.is_some_and(|text| text.contains("start another"));
        if stuck && world.nodes.borrow().len() == 5 {
            world.add_node();
        }
        let view = world.view();
        let lost = |at: usize| !world.nodes.borrow()[at].alive;
        let gone = (0..5).filter(|at| lost(*at)).all(|at| view.member(MnId(at as u16)).is_none());
        gone && view.member(node).is_none() && world.is_whole()
    });
    let ticks = world.ticks.get() - begun;
    let view = world.view();
    view.check().unwrap();
    assert!(!world.sessions[0].expelled);
    (world, node, ticks)
}

#[test]
fn pairs_without_redundancy_move_off_a_node_that_is_drained() {
    let (_, _, ticks) = drain_single(None, None);
    for crash_after in 0..ticks {
        let (world, _, _) = drain_single(Some(crash_after), None);
        let view = world.view();
        check_reserved(&world, &view);
        assert!(view.lost_pairs().is_empty(), "{crash_after}: nothing is lost");
        assert!(view.regions.iter().all(|region| region.is_there()), "{crash_after}");
    }
}

#[test]
fn pairs_without_redundancy_go_with_their_node_while_they_move_and_nothing_waits() {
    let (_, _, ticks) = drain_single(None, None);
    let mut lost = 0;
    for (dies_after, it) in (0..ticks).flat_map(|ticks| [(ticks, true), (ticks, false)]) {
        let (world, node, _) = drain_single(None, Some((dies_after, it)));
        let view = world.view();
        let others = view.regions.iter().filter(|region| region.redundancy() != Redundancy::None);
        assert!(others.into_iter().all(|region| region.places().len() == 2), "{dies_after}");
        lost += view.lost_pairs().values().sum::<u64>();
        assert!(!(it && view.lost_pairs().keys().any(|lost| *lost != node)), "{dies_after}");
        let is_known = |region: &Region| region.is_there() || region.lost_with().is_some();
        assert!(view.regions.iter().all(is_known), "{dies_after}");
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn members_that_are_drained_together_leave_one_after_the_other() {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    world.open();
    for members in [5, 6] {
        world.add_node();
        world.until("the next member", |world| {
            world.view().members.len() == members && world.is_whole()
        });
    }
    for node in [1, 2] {
        assert_eq!(ask_to_drain(&mut world, node, false), MasterReply::Done);
    }
    world.until("both drains", |world| {
        let view = world.view();
        [MnId(1), MnId(2)].iter().all(|node| view.member(*node).is_none())
    });
    assert!(!world.said("cannot be emptied"), "{:#?}", world.log);
}

#[test]
fn a_drain_is_not_told_to_be_over_before_it_is() {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    fill(&world, MnId(9));
    assert_eq!(ask_to_drain(&mut world, 1, false), MasterReply::Done);
    world.until("the drain", |world| {
        assert!(!world.said("is drained") || world.view().member(MnId(1)).is_none());
        world.view().member(MnId(1)).is_none()
    });
    assert!(world.said("mn1 is to leave") && world.said("without mn1, which is drained"));
}

#[test]
fn a_node_that_dies_before_it_is_a_member_is_forgotten() {
    let mut world = TickCluster::formed(settings(3, 2, 2));
    world.open();
    // The node dies right after it has asked to join.
    world.add_node();
    world.nodes.borrow_mut()[3].alive = false;
    let identity = 103;
    let control = "node3:1".to_owned();
    let tcp = None;
    let shm = None;
    let verbs = None;
    let pool_bytes = 1 << 20;
    let join = MasterRequest::Join { identity, control, tcp, shm, verbs, pool_bytes };
    world.send(7_777, join);
    assert_eq!(world.status().members.len(), 4);
    world.pass(3 * LEASE_MS);
    let status = world.status();
    assert_eq!(status.members.len(), 3, "{:?} {:#?}", status.members, world.log);
    assert!(!world.disk.keys().any(|key| key == "member/00003"));
    // The next node that joins is not affected.
    world.add_node();
    world.until("the next", |world| world.view().members.len() == 4 && world.is_whole());
    world.restart_master();
    world.pass(3 * LEASE_MS);
    assert_eq!(world.status().members.len(), 4);
}

#[test]
fn a_drain_that_cannot_be_is_refused_with_what_to_do() {
    let mut world = TickCluster::formed(settings(3, 3, 2));
    let says = |world: &mut TickCluster, node, cancel, text: &str| {
        let reply = ask_to_drain(world, node, cancel);
        let MasterReply::Refused { reason } = reply else { panic!("{reply:?}") };
        assert!(reason.contains(text), "{reason}");
    };
    says(&mut world, 1, false, "there would be 2 memory nodes, and index_replicas is 3");
    says(&mut world, 7, false, "mn7 is no member of the cluster; there are mn0, mn1, mn2");
    says(&mut world, 1, true, "is not being drained");
    // There are enough nodes, but they have no room.
    let mut world = TickCluster::formed(settings(4, 2, 2));
    let client = world.open();
    fill_up(&mut world, client);
    says(&mut world, 1, false, "have no room for");
    world.add_node();
    world.until("the fifth", TickCluster::is_whole);
    assert_eq!(ask_to_drain(&mut world, 1, false), MasterReply::Done);
    world.until("the drain", |world| world.view().member(MnId(1)).is_none());
}

#[test]
fn what_leaves_keeps_the_room_that_it_was_promised() {
    let mut slow = settings(4, 2, 2);
    slow.move_bytes_per_s = 1 << 18;
    let mut world = TickCluster::formed(slow);
    let client = world.open();
    assert_eq!(ask_to_drain(&mut world, 1, false), MasterReply::Done);
    // The other nodes have room for this drain, but not for another drain, nor for regions that are requested
    // meanwhile.
    let reply = ask_to_drain(&mut world, 2, false);
    let MasterReply::Refused { reason } = reply else { panic!("{reply:?}") };
    assert!(reason.contains("and on those that are leaving already; start another"), "{reason}");
    let (regions, reason) = fill_up(&mut world, client);
    assert_eq!(regions, [4], "{reason}");
    world.add_node();
    world.until("the drain", |world| world.view().member(MnId(1)).is_none());
    let (regions, _) = fill_up(&mut world, client);
    assert!(regions.len() > 1, "it is for who leaves alone");
}

#[test]
fn a_drain_may_be_taken_back() {
    let mut slow = settings(4, 2, 2);
    slow.move_bytes_per_s = 1 << 10;
    let mut world = TickCluster::formed(slow);
    fill(&world, MnId(9));
    world.open();
    assert_eq!(ask_to_drain(&mut world, 1, false), MasterReply::Done);
    world.pass(500);
    let status = world.status();
    assert_eq!(status.members[1].state, MemberState::Draining);
    assert!(status.rebalancing, "the pace holds it up");
    world.restart_master();
    world.pass(500);
    assert_eq!(world.status().members[1].state, MemberState::Draining, "it is recorded");
    assert_eq!(ask_to_drain(&mut world, 1, true), MasterReply::Done);
    world.pass(500);
    assert_eq!(world.status().members[1].state, MemberState::InView);
    let view = world.view();
    check_contents(&world, &view);
    assert!(!world.disk.keys().any(|key| key.starts_with("draining")));
}

#[test]
fn what_moves_waits_for_what_matters_more() {
    let mut world = TickCluster::formed(settings(4, 2, 2));
    fill(&world, MnId(2));
    world.open();
    world.pass(100);
    world.kill(2);
    assert_eq!(ask_to_drain(&mut world, 1, false), MasterReply::Done);
    world.add_node();
    world.until("both", |world| world.view().members.len() == 3 && world.is_whole());
    let at = |text: &str| world.log.iter().position(|line| line.contains(text));
    let lost = at("without mn2").unwrap();
    let drained = at("without mn1").unwrap();
    let first = |text: &str| {
        world.log.iter().skip(lost).position(|line| line.contains(text)).unwrap() + lost
    };
    assert!(lost < drained && first("stable") < drained, "{:#?}", world.log);
    check_contents(&world, &world.view());
}
