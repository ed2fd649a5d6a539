use super::*;
use crate::layout::{SizeClass, Slot};
use crate::view::change::LeavingFrom;
use crate::view::tests::small;

fn place(node: u16, offset: u64) -> PoolPlace {
    PoolPlace { node: MnId(node), offset }
}

fn gain(of: u32, joining: PoolPlace) -> NewReplica {
    NewReplica { of, joining, leaving: None }
}

/// Returns the change that is under way in a view.
fn changing(view: &View) -> &ViewChange {
    view.change.as_ref().expect("a change is under way")
}

/// Returns a view whose subtables and regions all lie on nodes 0 and 1; node 2 holds nothing.
fn three() -> View {
    let mut view = small();
    view.members.push(Member { node: MnId(2), ..view.members[0].clone() });
    view
}

#[test]
fn a_replica_moves_at_the_switch_and_its_room_is_given_back_after_it() {
    let view = three();
    let old = view.regions[0].primary();
    let new = place(2, 1 << 20);
    let region = NewReplica { of: 0, joining: new, leaving: Some(old) };
    let moved = view.subtables[1].backups()[0];
    let subtable = NewReplica { of: 1, joining: place(2, 0), leaving: Some(moved) };
    let frozen = view.growing(&[subtable], &[region]);
    frozen.check().unwrap();
    assert_eq!(frozen.regions, view.regions);
    let switched = frozen.advanced().advanced();
    switched.check().unwrap();
    assert_eq!(switched.regions[0].places(), [new, view.regions[0].backups()[0]]);
    assert_eq!(switched.regions[0].primary_since(), switched.number, "the bitmaps are others");
    assert_eq!(switched.regions[1].primary_since(), 1);
    assert_eq!(switched.subtables[1].replicas(), [view.subtables[1].primary(), place(2, 0)]);
    assert!(switched.is_region_frozen(0), "who reads at the old place sees no new object");
    let leaving: Vec<PoolPlace> = changing(&switched).leaving().map(|(_, place)| place).collect();
    assert_eq!(leaving, [moved, old]);
    let mut again = switched.clone();
    let at = Vec::from([old, view.regions[1].backups()[0]]);
    again.regions[1] = Region::replicated(at, 1);
    assert!(again.check().is_err(), "the room is not free yet");
    let stable = switched.advanced();
    stable.check().unwrap();
    assert!(!stable.is_region_frozen(0) && stable.change.is_none());
    again = stable.clone();
    let mut at = again.regions[0].places().to_vec();
    at.push(place(0, old.offset));
    again.regions[0] = Region::replicated(at, 1);
    again.check().unwrap();
}

#[test]
fn what_disagrees_is_settled_where_it_is() {
    let view = three();
    let frozen = view.settling(&[1], &[0]);
    frozen.check().unwrap();
    assert_eq!(frozen.stage_of(1), Some(ChangeStage::Frozen));
    assert!(frozen.is_region_frozen(0) && !frozen.is_region_frozen(1));
    let switched = frozen.advanced().advanced();
    switched.check().unwrap();
    assert_eq!(switched.subtables, view.subtables);
    assert_eq!(switched.regions[0].places(), view.regions[0].places());
    assert_eq!(switched.regions[0].primary_since(), switched.number, "the bitmaps are others");
    assert_eq!(switched.regions[1].primary_since(), 1);
    assert!(!switched.is_region_frozen(0), "every replica stays");
    switched.advanced().check().unwrap();
    // A loss begins the whole change again, and the bitmaps are still renewed: they possibly contain zeros already.
    let lost = frozen.advanced().without(&[MnId(2)]).unwrap();
    lost.check().unwrap();
    assert_eq!(lost.stage_of(1), Some(ChangeStage::Frozen));
    assert!(lost.is_region_frozen(0));
    let switched = lost.advanced().advanced();
    assert_eq!(switched.regions[0].primary_since(), switched.number, "the bitmaps are others");
}

#[test]
fn a_loss_keeps_the_replica_that_was_to_leave() {
    let view = three();
    let [first, second] = [view.regions[0].primary(), view.regions[0].backups()[0]];
    let new = place(2, 1 << 20);
    let moving = NewReplica { of: 0, joining: new, leaving: Some(second) };
    let frozen = view.growing(&[], &[moving]);
    let switched = |view: View| view.advanced().advanced();
    let without = |node, from: &View| from.without(&[MnId(node)]).unwrap();
    // The replica that stays is lost.
    let after = switched(without(0, &frozen.advanced()));
    after.check().unwrap();
    assert_eq!(after.regions[0].places(), [second, new]);
    // The joining replica is lost.
    let after = switched(without(2, &frozen));
    assert_eq!(after.regions[0].places(), [first, second]);
    assert!(!changing(&after).is_to_be_cleared());
    // The leaving replica is lost.
    let after = switched(without(1, &frozen));
    assert_eq!(after.regions[0].places(), [first, new]);
    assert!(!changing(&after).is_to_be_cleared());
    // A replica that has left does not come back, and its room is still given back.
    let after = without(2, &switched(frozen));
    after.check().unwrap();
    assert_eq!(after.regions[0].places(), [first]);
    let after = switched(after);
    assert_eq!(changing(&after).leaving().next(), Some((LeavingFrom::Region(0), second)));
    after.check().unwrap();
}

#[test]
fn members_come_and_go_with_nothing_on_them() {
    let view = small();
    let member = Member { node: MnId(2), ..view.members[0].clone() };
    let more = view.with_member(member);
    more.check().unwrap();
    assert_eq!((more.number, more.members.len()), (2, 3));
    let less = more.without_member(MnId(2));
    less.check().unwrap();
    assert_eq!((less.number, less.members), (3, view.members));
}

#[test]
fn a_lost_primary_leaves_a_primaryless_subtable_until_the_switch() {
    let view = small();
    let frozen = view.without(&[MnId(0)]).unwrap();
    frozen.check().unwrap();
    assert_eq!((frozen.number, frozen.members.len()), (2, 1));
    assert_eq!(frozen.stage_of(0), Some(ChangeStage::Frozen));
    assert!(frozen.is_without_primary(0) && frozen.is_without_primary(1));
    assert!(!frozen.uses(MnId(0)) && frozen.uses(MnId(1)));
    assert!(!frozen.is_region_frozen(0), "objects go to the replica that is left");
    let transforming = frozen.advanced();
    assert_eq!(transforming.stage_of(1), Some(ChangeStage::Transforming));
    let switched = transforming.advanced();
    assert!(!switched.is_without_primary(0));
    assert_eq!(switched.stage_of(0), Some(ChangeStage::Switched));
    let stable = switched.advanced();
    assert_eq!((stable.number, &stable.change), (5, &None));
    for view in [transforming, switched, stable] {
        view.check().unwrap();
    }
}

#[test]
fn who_loses_everything_is_told() {
    let view = small();
    let both = [MnId(0), MnId(1)];
    assert_eq!(view.without(&both), Err(UnsurvivableLoss::Subtable(0)));
}

#[test]
fn replicas_join_at_the_switch() {
    let half = small().without(&[MnId(0)]).unwrap().advanced().advanced().advanced();
    let mut half = half;
    half.members.push(Member { node: MnId(2), ..half.members[0].clone() });
    let growing = half.growing(&[gain(1, place(2, 0))], &[gain(0, place(2, 1 << 20))]);
    growing.check().unwrap();
    assert_eq!(growing.stage_of(0), None);
    assert!(growing.is_region_frozen(0) && !growing.is_region_frozen(1));
    let switched = growing.advanced().advanced();
    switched.check().unwrap();
    assert_eq!(switched.subtables[1].replicas(), [place(1, 1 << 16), place(2, 0)]);
    assert_eq!(switched.regions[0].places().len(), 2);
    assert!(!switched.is_region_frozen(0));
}

#[test]
fn a_loss_during_a_change_starts_it_again_with_all_that_was_frozen() {
    let half = small().without(&[MnId(0)]).unwrap().advanced().advanced().advanced();
    let mut half = half;
    half.members.push(Member { node: MnId(2), ..half.members[0].clone() });
    let growing = half.growing(&[gain(1, place(2, 0))], &[gain(0, place(2, 1 << 20))]).advanced();
    let again = growing.without(&[MnId(2)]).unwrap();
    again.check().unwrap();
    assert_eq!(again.stage_of(1), Some(ChangeStage::Frozen));
    let change = again.change.clone().unwrap();
    assert_eq!(change.subtables[0].joining, None, "it is not coming");
    assert!(change.regions.is_empty());
    let switched = growing.advanced().without(&[MnId(1)]);
    assert_eq!(switched, Err(UnsurvivableLoss::Subtable(0)));
}

#[test]
fn bad_changes_are_refused() {
    let growing = || {
        let mut view = small();
        view.members.push(Member { node: MnId(2), ..view.members[0].clone() });
        view.growing(&[gain(0, place(2, 0))], &[gain(1, place(2, 1 << 20))])
    };
    let bad = |what: &str, spoil: fn(&mut ViewChange)| {
        let mut view = growing();
        spoil(view.change.as_mut().unwrap());
        let error = view.check().unwrap_err();
        assert!(error.what.contains(what), "{what}: {error}");
    };
    bad("in order", |c| c.subtables.push(c.subtables[0].clone()));
    bad("unknown subtable", |c| c.subtables[0].subtable = 9);
    bad("unknown subtable or region", |c| c.regions[0].region = 9);
    bad("unfinished", |c| c.stage = ChangeStage::Switched);
    bad("exceeds", |c| c.regions[0].joining = Some(place(2, 6 << 20)));
    bad("on one memory node", |c| c.subtables[0].joining = Some(place(1, 0)));
    bad("overlap", |c| c.regions[0].joining = Some(place(2, 0)));
    bad("unknown memory node", |c| c.regions[0].leaving = Some(place(7, 0)));
}

#[test]
fn a_subtable_that_cannot_be_split_stays_in_the_scope_and_those_before_it_go_on() {
    let view = small();
    let at = |offset: u64| Vec::from([place(0, offset << 20), place(1, offset << 20)]);
    let frozen = view.splitting(&[(0, at(3)), (1, at(4))]);
    assert_eq!(frozen.without_split(1), None, "nobody has tried");
    let transforming = frozen.advanced();
    assert_eq!(transforming.without_split(2), None);
    let splits = |view: &View| -> Vec<bool> {
        let change = view.change.as_ref().unwrap();
        assert_eq!(
            (change.stage, view.number),
            (ChangeStage::Transforming, transforming.number + 1)
        );
        change.subtables.iter().map(|s| s.split.is_some()).collect()
    };
    let less = transforming.without_split(1).unwrap();
    less.check().unwrap();
    assert_eq!(splits(&less), [true, false]);
    assert_eq!(less.without_split(1), None);
    let switched = less.advanced();
    switched.check().unwrap();
    assert_eq!(switched.subtables.len(), view.subtables.len() + 1);
    assert_eq!(switched.subtables.last().unwrap().replicas(), at(3));
    let none = transforming.without_split(0).unwrap();
    assert_eq!(splits(&none), [false, false], "their numbers follow from each other");
    assert_eq!(none.advanced().subtables.len(), view.subtables.len());
}

#[test]
fn new_regions_are_known_before_they_can_be_used() {
    let at = |offset| Vec::from([place(1, offset), place(0, offset)]);
    let mut view = small();
    view.members.iter_mut().for_each(|member| member.pool_bytes = 8 << 20);
    let regions = [at(3 << 20), Vec::from([place(1, 4 << 20)])];
    let frozen = view.with_new_regions(&regions.map(|places| (Redundancy::Replicated, places)));
    frozen.check().unwrap();
    assert_eq!(frozen.regions.len(), 4, "everybody is to learn of them");
    let transforming = frozen.advanced();
    assert_eq!(transforming.change.as_ref().unwrap().new_regions, 0);
    let stable = transforming.advanced().advanced();
    assert_eq!((stable.regions.len(), &stable.change), (4, &None));
    // Node 1 has one of the two new regions. If node 1 is lost before any session can use that region, the region is
    // dropped; the other one stays.
    let without = frozen.without(&[MnId(1)]).unwrap();
    without.check().unwrap();
    assert_eq!(without.regions.len(), 3);
    assert_eq!(without.change.as_ref().unwrap().new_regions, 1);
    assert_eq!(without.regions[2].places(), [place(0, 3 << 20)]);
    // After *frozen* the new region possibly holds objects, so its loss cannot be survived.
    let lost = transforming.without(&[MnId(1)]);
    assert_eq!(lost, Err(UnsurvivableLoss::Region(3)));
}

#[test]
fn a_split_takes_half_of_the_directory_entries() {
    let view = small();
    let sibling = Vec::from([place(1, 1 << 17), place(0, 1 << 17)]);
    let frozen = view.splitting(&[(1, sibling.clone())]);
    frozen.check().unwrap();
    assert_eq!((frozen.stage_of(0), frozen.stage_of(1)), (None, Some(ChangeStage::Frozen)));
    let transforming = frozen.advanced();
    assert_eq!(transforming.subtables, view.subtables, "nobody knows of it yet");
    let switched = transforming.advanced();
    switched.check().unwrap();
    assert_eq!(switched.directory, [0, 0, 1, 2]);
    assert_eq!(switched.subtables[2], Subtable::new(2, sibling));
    assert_eq!((switched.subtables[0].local_depth, switched.subtables[1].local_depth), (1, 2));
    assert_eq!(switched.stage_of(2), Some(ChangeStage::Switched), "writes to it wait");
    assert!(changing(&switched).has_moved_entries());
    let stable = switched.advanced();
    stable.check().unwrap();
    assert!(stable.change.is_none());
    // The other subtable is split, too: the directory has room for its sibling.
    let again = stable.splitting(&[(0, Vec::from([place(0, 3 << 16)]))]);
    let again = again.advanced().advanced().advanced();
    again.check().unwrap();
    assert_eq!(again.directory, [0, 3, 1, 2]);
}

#[test]
fn a_split_outlives_the_loss_of_a_node() {
    let view = small();
    let sibling = Vec::from([place(1, 1 << 17), place(0, 1 << 17)]);
    let frozen = view.splitting(&[(1, sibling)]);
    let without = frozen.without(&[MnId(1)]).unwrap();
    without.check().unwrap();
    let switched = without.advanced().advanced();
    switched.check().unwrap();
    assert_eq!(switched.subtables[2].replicas(), [place(0, 1 << 17)]);
    // If the sibling's primary is lost before the moved entries are cleared, the change still clears them.
    let view = frozen.advanced().advanced().without(&[MnId(1)]).unwrap();
    view.check().unwrap();
    assert!(changing(&view).has_moved_entries() && view.is_without_primary(2));
    // A sibling that has lost its only place is not made.
    let alone = small().splitting(&[(0, Vec::from([place(1, 1 << 17)]))]);
    let without = alone.without(&[MnId(1)]).unwrap().advanced().advanced();
    without.check().unwrap();
    assert_eq!(without.subtables.len(), 2);
}

/// Returns a view with a region 2, of pairs without redundancy, on node 2.
fn with_single_pairs() -> View {
    let mut view = three();
    view.regions.push(Region::new(Redundancy::None, Vec::from([place(2, 1 << 20)]), 1));
    view.check().unwrap();
    view
}

fn word_into(view: &View, region: u32) -> Slot {
    let class = SizeClass::from_code(1).unwrap();
    Slot::new(1, class, view.geometry.frame_address(region, 1), 0)
}

#[test]
fn pairs_without_redundancy_go_with_their_node_and_everything_is_settled() {
    let view = with_single_pairs();
    let word = word_into(&view, 2);
    let other = word_into(&view, 1);
    let frozen = view.without(&[MnId(2)]).unwrap();
    frozen.check().unwrap();
    assert_eq!(frozen.change.as_ref().unwrap().subtables.len(), frozen.subtables.len());
    assert_eq!(frozen.regions.len(), 3, "its number stays its own");
    assert_eq!(frozen.regions[2].lost_with(), Some(MnId(2)));
    let transforming = frozen.advanced();
    // After a second loss, the change still has the pairs that were lost first, whatever its stage was.
    let again = transforming.without(&[MnId(1)]).unwrap();
    for view in [&frozen, &transforming, &again] {
        assert!(view.is_being_lost(word) && !view.is_gone(word) && view.leads_to_lost(word));
        assert!(!view.leads_to_lost(other) && !view.leads_to_lost(word.withdrawn()));
        assert!(view.object_of(word).is_none());
    }
    let switched = transforming.advanced();
    let stable = switched.advanced();
    for view in [&switched, &stable] {
        view.check().unwrap();
        assert!(view.is_gone(word) && !view.is_being_lost(word) && !view.is_gone(other));
    }
    let again = switched.without(&[MnId(1)]).unwrap();
    assert!(again.is_gone(word), "others have been told");
    let few = stable.without(&[MnId(1)]).unwrap();
    few.check().unwrap();
    assert_eq!(few.change.unwrap().lost_pairs, [], "it loses no pairs");
    assert_eq!(stable.lost_pairs().into_iter().collect::<Vec<_>>(), [(MnId(2), 1)]);
}

#[test]
fn pairs_that_are_lost_while_they_move_leave_no_room_behind() {
    let view = with_single_pairs();
    let old = place(2, 1 << 20);
    let new = place(1, 3 << 20);
    let moving = view.growing(&[], &[NewReplica { of: 2, joining: new, leaving: Some(old) }]);
    for view in [moving.clone(), moving.advanced()] {
        let lost = view.without(&[MnId(2)]).unwrap();
        lost.check().unwrap();
        assert!(!lost.regions[2].is_there());
        let switched = lost.advanced().advanced();
        switched.check().unwrap();
        let leaving: Vec<_> = changing(&switched).leaving().collect();
        assert_eq!(leaving, [(LeavingFrom::Region(2), new)], "it is given back");
        switched.advanced().check().unwrap();
        // If the joining place is lost, the region stays at its old place.
        let stays = view.without(&[MnId(1)]).unwrap();
        stays.check().unwrap();
        assert_eq!(stays.regions[2].places(), [old]);
        assert!(stays.change.unwrap().lost_pairs.is_empty());
    }
    let moved = moving.advanced().advanced();
    let lost = moved.without(&[MnId(1)]).unwrap();
    lost.check().unwrap();
    assert_eq!(lost.regions[2].lost_with(), Some(MnId(1)));
    assert_eq!(changing(&lost).leaving().count(), 1, "where it was before is given back");
    // A lost region whose bitmaps were to begin anew leaves the scope of the change.
    let renewed = view.settling(&[], &[2]).without(&[MnId(2)]).unwrap();
    renewed.check().unwrap();
    assert!(!renewed.change.unwrap().has_region(2));
}

#[test]
fn new_regions_for_pairs_without_redundancy_do_not_come_without_their_node() {
    let view = three();
    let places = [Vec::from([place(0, 3 << 20)]), Vec::from([place(2, 3 << 20)])];
    let new = view.with_new_regions(&places.map(|places| (Redundancy::None, places)));
    new.check().unwrap();
    let lost = new.without(&[MnId(2)]).unwrap();
    lost.check().unwrap();
    assert_eq!((lost.regions.len(), lost.change.clone().unwrap().new_regions), (3, 1));
    assert!(lost.change.unwrap().lost_pairs.is_empty());
    let late = new.advanced().without(&[MnId(2)]).unwrap();
    assert_eq!(late.change.unwrap().lost_pairs, [3]);
}
