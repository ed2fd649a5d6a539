//! Tests of differences between views, with arbitrary views and differences.

// Promise CHG-17: Differences between views lead to the right view.

use fusee_core::data::Region;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::change::{ChangeStage, SplitProgress, SubtableChange, ViewChange};
use fusee_core::view::update::{DirectoryRun, ViewDifference};
use fusee_core::view::{Geometry, Member, PoolPlace, Subtable, View};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn member(n: u16, identity: u64) -> Member {
    Member {
        node: MnId(n),
        identity,
        control: format!("host:{n}"),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: 1 << 40,
    }
}

/// Generates numbers, most of which are indices into the generated lists.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0u32..12, 1 => any::<u32>()]
}

fn places() -> impl Strategy<Value = Vec<PoolPlace>> {
    let place = (0u16..4, prop_oneof![0u64..8, any::<u64>()])
        .prop_map(|(n, at)| PoolPlace { node: MnId(n), offset: at.wrapping_mul(1 << 20) });
    vec(place, 0..4)
}

fn subtable() -> impl Strategy<Value = Subtable> {
    (0u8..5, places()).prop_map(|(local_depth, places)| Subtable::new(local_depth, places))
}

fn region() -> impl Strategy<Value = Region> {
    (places(), any::<u64>())
        .prop_map(|(places, primary_since)| Region::replicated(places, primary_since))
}

fn change() -> impl Strategy<Value = Option<ViewChange>> {
    let split = prop_oneof![
        places().prop_map(|places| Some(SplitProgress::Filling(places))),
        number().prop_map(|sibling| Some(SplitProgress::Clearing(sibling))),
        Just(None),
    ];
    let subtable =
        (number(), any::<bool>(), split).prop_map(|(subtable, without_primary, split)| {
            SubtableChange { subtable, without_primary, joining: None, leaving: None, split }
        });
    let stage = prop_oneof![
        Just(ChangeStage::Frozen),
        Just(ChangeStage::Transforming),
        Just(ChangeStage::Switched)
    ];
    let change =
        (stage, any::<bool>(), vec(subtable, 0..3)).prop_map(|(stage, data_lost, subtables)| {
            let regions = Vec::new();
            let lost_pairs = Vec::new();
            ViewChange { stage, data_lost, lost: 0, subtables, regions, lost_pairs, new_regions: 0 }
        });
    option::of(change)
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    vec((0u16..4, 0u64..3).prop_map(|(n, identity)| member(n, identity)), 0..4)
}

/// Generates views of cluster 1, few of which are valid.
fn view() -> impl Strategy<Value = View> {
    let lists = (vec(region(), 0..4), vec(subtable(), 0..8), members());
    (1u64..6, 0u32..5, lists, change(), vec(number(), 16)).prop_map(
        |(number, depth, (regions, subtables, members), change, entries)| View {
            number,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry: Geometry::default(),
            members,
            regions,
            directory: entries[..1 << depth.min(4)].to_vec(),
            subtables,
            change,
        },
    )
}

fn difference() -> impl Strategy<Value = ViewDifference> {
    let run = (number(), number(), number());
    let run = run.prop_map(|(first, count, subtable)| DirectoryRun { first, count, subtable });
    let lists =
        (vec((number(), region()), 0..4), vec((number(), subtable()), 0..4), vec(run, 0..4));
    let depth = prop_oneof![8 => 0u8..6, 1 => any::<u8>()];
    (0u64..4, 0u64..6, depth, option::of(members()), lists, change()).prop_map(
        |(from, to, depth, members, (regions, subtables, runs), change)| ViewDifference {
            cluster: ClusterId::from_word(1).unwrap(),
            from,
            to,
            members,
            regions,
            subtables,
            depth,
            runs,
            change,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_difference_leads_to_the_view_that_it_was_made_of(from in view(), to in view()) {
        let is_possible = to.number > from.number
            && to.regions.len() >= from.regions.len()
            && to.subtables.len() >= from.subtables.len()
            && to.directory.len() >= from.directory.len();
        let difference = ViewDifference::between(&from, &to);
        prop_assert_eq!(difference.is_some(), is_possible);
        if let Some(difference) = difference {
            prop_assert_eq!(difference.apply(&from), Ok(to));
        }
    }

    /// A faulty master can send anything. A difference is refused, or leads to a view that [`View::check`] judges.
    #[test]
    fn no_difference_does_harm(from in view(), difference in difference()) {
        let to = difference.to;
        if let Ok(view) = difference.apply(&from) {
            prop_assert_eq!((view.number, view.cluster), (to, from.cluster));
            prop_assert!(view.directory.len() <= 1 << 24);
            let _judged = view.check();
        }
    }
}
