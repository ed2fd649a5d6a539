//! Failures of the published protocol that need no crash, each in its shortest history.

use std::cell::Cell;

use fusee_baselines::BaselineError;
use fusee_baselines::published::PublishedParameters;
use fusee_linearizability::{HistoryAnswer, HistoryCall, HistoryRecord, Refutation};

use super::parameters;
use super::scene::{Act, SteeredScene};

/// Time from the start of a phase at which its verbs have executed, but their answers have not arrived. A hold of a
/// link that begins then delays only the verbs of the next phase.
const EXECUTED_NS: u64 = 1_200;

/// Runs two calls on one key at the same time, after the calls of `before`, and then a SEARCH.
fn at_once(
    parameters: PublishedParameters,
    before: &[HistoryCall],
    calls: [HistoryCall; 2],
) -> Option<Refutation> {
    let scene = SteeredScene::new(parameters);
    let scene_ = &scene;
    scene.play(vec![Box::pin(async move {
        for call in before {
            scene_.act(0, 1, *call).await.unwrap();
        }
    })]);
    let act = |client, call| -> Act<'_> {
        Box::pin(async move {
            let _ = scene_.act(client, 1, call).await;
        })
    };
    scene.play(vec![act(0, calls[0]), act(1, calls[1])]);
    scene.play(vec![act(2, HistoryCall::Search)]);
    scene.refutation()
}

fn calls(refutation: &Refutation) -> Vec<HistoryCall> {
    refutation.explanation.iter().map(|record| record.operation.call).collect()
}

/// The loser of two INSERTs returns success as if its value had been overwritten, though a key can be inserted only
/// once.
#[test]
fn two_inserts_of_a_key_are_both_done() {
    for replicas in 1..=3 {
        let refutation =
            at_once(parameters(replicas), &[], [HistoryCall::Insert(1), HistoryCall::Insert(2)])
                .unwrap();
        assert_eq!(
            calls(&refutation),
            [HistoryCall::Insert(1), HistoryCall::Insert(2)],
            "{refutation}"
        );
        let one_by_one = parameters(replicas).one_by_one();
        assert_eq!(
            at_once(one_by_one, &[], [HistoryCall::Insert(1), HistoryCall::Insert(2)]),
            None
        );
    }
}

/// All DELETEs write 0, so each of two DELETEs sees its word on all backups.
#[test]
fn two_deletes_of_a_key_are_both_done() {
    for replicas in 1..=3 {
        let refutation =
            at_once(parameters(replicas), &[HistoryCall::Insert(1)], [HistoryCall::Delete; 2])
                .unwrap();
        assert_eq!(refutation.unexplained.operation.call, HistoryCall::Delete, "{refutation}");
        let one_by_one = parameters(replicas).one_by_one();
        assert_eq!(at_once(one_by_one, &[HistoryCall::Insert(1)], [HistoryCall::Delete; 2]), None);
    }
}

/// A DELETE that loses returns success as if its effect had been overwritten, though an UPDATE cannot follow a DELETE
/// of its key.
#[test]
fn a_delete_that_loses_to_an_update_has_deleted_nothing() {
    for replicas in 1..=2 {
        let both = [HistoryCall::Update(2), HistoryCall::Delete];
        let refutation = at_once(parameters(replicas), &[HistoryCall::Insert(1)], both).unwrap();
        assert_eq!(
            calls(&refutation)[1..],
            [HistoryCall::Update(2), HistoryCall::Delete, HistoryCall::Search],
            "{refutation}"
        );
        assert_eq!(
            at_once(parameters(replicas).one_by_one(), &[HistoryCall::Insert(1)], both),
            None
        );
    }
}

/// Two keys choose the same free slot. Some key below 50 does so together with key 1.
#[test]
fn an_insert_that_loses_to_another_key_has_inserted_nothing() {
    let lost = |parameters: PublishedParameters, other: u64| {
        let scene = SteeredScene::new(parameters);
        let scene_ = &scene;
        let insert = |client: usize, key: u64| -> Act<'_> {
            Box::pin(async move {
                let _ = scene_.act(client, key, HistoryCall::Insert(key)).await;
            })
        };
        scene.play(vec![insert(0, 1), insert(1, other)]);
        scene.play(vec![Box::pin(async move {
            for key in [1, other] {
                let _ = scene_.act(0, key, HistoryCall::Search).await;
            }
        })]);
        scene.refutation()
    };
    for replicas in 1..=3 {
        let refutation = (2..50).find_map(|other| lost(parameters(replicas), other)).unwrap();
        let [insert, search] = &refutation.explanation[..] else { panic!("{refutation}") };
        assert_eq!(insert.operation.returned.unwrap().1, HistoryAnswer::Done);
        assert_eq!(search.operation.returned.unwrap().1, HistoryAnswer::Absent);
        assert!((2..50).all(|other| lost(parameters(replicas).one_by_one(), other).is_none()));
    }
}

/// Returns the result of a SEARCH after two INSERTs of a key and a DELETE. One INSERT READ its slots while another key
/// had a slot; the other INSERT READ them when that slot was free again.
fn inserted_twice(
    parameters: PublishedParameters,
    other: u64,
) -> (Option<HistoryAnswer>, Option<Refutation>) {
    let scene = SteeredScene::new(parameters);
    let last = Cell::new(None);
    let scene_ = &scene;
    let last_ = &last;
    scene.play(vec![
        Box::pin(async move {
            scene_.act(0, other, HistoryCall::Insert(0)).await.unwrap();
            scene_.sleep(EXECUTED_NS).await;
            (0..3).for_each(|node| scene_.hold(1, node));
            scene_.act(0, other, HistoryCall::Delete).await.unwrap();
            scene_.act(0, 1, HistoryCall::Insert(1)).await.unwrap();
            (0..3).for_each(|node| scene_.release(1, node));
            scene_.sleep(100_000).await;
            scene_.act(0, 1, HistoryCall::Delete).await.unwrap();
            last_.set(scene_.act(2, 1, HistoryCall::Search).await.ok());
        }),
        Box::pin(async move {
            // Waits until the other key is inserted.
            let phases = scene_.phases_of_a_write();
            scene_.sleep(phases * 1_600).await;
            scene_.act(1, 1, HistoryCall::Insert(2)).await.unwrap();
        }),
    ]);
    (last.get(), scene.refutation())
}

/// SNAPSHOT decides on one slot only, and does not look for the key in other slots.
#[test]
fn a_key_is_inserted_twice_and_comes_back_after_its_delete() {
    for parameters in [parameters(1), parameters(2), parameters(2).one_by_one()] {
        let twice = |other| match inserted_twice(parameters.clone(), other) {
            (Some(HistoryAnswer::Found(2)), refutation) => refutation,
            _ => None,
        };
        assert!((2..50).find_map(twice).is_some());
    }
}

/// Steers client 1's INSERT during another INSERT of the key. Client 1 has its word on one backup only. The other
/// INSERT wins by Rule 3, and its key is deleted, so all replicas of the slot show 0 again, as at the beginning. Then
/// client 1 continues, because its links are released. Returns the results of its INSERT and of a later UPDATE.
fn beside_a_whole_life(
    held_first: u16,
    held_then: u16,
) -> [Result<HistoryAnswer, BaselineError>; 2] {
    let scene = SteeredScene::new(parameters(3));
    let answers = Cell::new([Ok(HistoryAnswer::Absent); 2]);
    let scene_ = &scene;
    let answers_ = &answers;
    let set = |i: usize, answer| {
        let mut all = answers_.get();
        all[i] = answer;
        answers_.set(all);
    };
    scene.play(vec![
        Box::pin(async move {
            scene_.sleep(EXECUTED_NS).await;
            scene_.hold(1, held_first);
            scene_.sleep(1_600).await;
            // Client 1 has CASed the first backup, but not yet the second.
            scene_.act(0, 1, HistoryCall::Insert(1)).await.unwrap();
            scene_.act(0, 1, HistoryCall::Delete).await.unwrap();
            scene_.release(1, held_then);
            scene_.sleep(100_000).await;
            set(1, scene_.act(2, 1, HistoryCall::Update(3)).await);
        }),
        Box::pin(async move { set(0, scene_.act(1, 1, HistoryCall::Insert(2)).await) }),
        Box::pin(async move {
            // By now client 0 has CASed the backups.
            scene_.sleep(EXECUTED_NS + 1_600 + 4_000).await;
            if held_first != held_then {
                scene_.hold(1, held_then);
                scene_.release(1, held_first);
            }
        }),
    ]);
    answers.get()
}

/// The slot shows 0 again, as in the middle of the round, so the loser waits for a winner that has already finished.
#[test]
fn an_insert_that_lost_waits_for_ever_at_a_slot_that_is_free_again() {
    assert_eq!(beside_a_whole_life(2, 0)[0], Err(BaselineError::Stuck));
}

/// The slot shows 0 again, so a late CAS succeeds, and its writer regards itself as the last writer of a round that is
/// over. The backups differ then, and only a writer with the smallest word can win there.
#[test]
fn a_late_cas_wins_a_round_that_is_over_and_leaves_the_slot_stuck() {
    assert_eq!(beside_a_whole_life(2, 2), [Ok(HistoryAnswer::Done), Err(BaselineError::Stuck)]);
}

/// Steers client 1's SEARCH. It READs the slot of key 1, and READs the object only after the object's owner, client 0,
/// has written key 1 once and key `updated` more than `updates` times. The last of these UPDATEs has not yet CASed its
/// slot.
fn reads_late(parameters: PublishedParameters, updated: u64, updates: u64) -> Option<Refutation> {
    let scene = SteeredScene::new(parameters);
    let scene_ = &scene;
    scene.play(vec![
        Box::pin(async move {
            scene_.act(0, 1, HistoryCall::Insert(0)).await.unwrap();
            scene_.act(0, 2, HistoryCall::Insert(0)).await.unwrap();
            scene_.sleep(10_000 + EXECUTED_NS).await;
            (0..3).for_each(|node| scene_.hold(1, node));
            scene_.act(0, 1, HistoryCall::Update(1)).await.unwrap();
            for number in 0..updates {
                scene_.act(0, updated, HistoryCall::Update(number + 2)).await.unwrap();
            }
            scene_.act(0, updated, HistoryCall::Update(updates + 2)).await.unwrap();
        }),
        Box::pin(async move {
            let before = 2 * scene_.phases_of_a_write();
            scene_.sleep(10_000 + before * 1_600).await;
            scene_.act(1, 1, HistoryCall::Search).await.unwrap();
            scene_.act(2, 1, HistoryCall::Search).await.unwrap();
            scene_.release(0, 0);
        }),
        Box::pin(async move {
            let phases = scene_.phases_of_a_write();
            let before = (2 * phases + phases * (updates + 1)) * 1_600 + 10_000 + EXECUTED_NS;
            scene_.sleep(before + EXECUTED_NS).await;
            scene_.hold(0, 0);
            (0..3).for_each(|node| scene_.release(1, node));
        }),
    ]);
    scene.refutation()
}

/// The object is reused for the same key between the SEARCH's READs of slot and object. Key and CRC are right, but the
/// slot does not yet show the new use. A later SEARCH finds the earlier value.
#[test]
fn a_search_reads_an_object_that_is_used_again_and_not_yet_committed() {
    for parameters in variants() {
        let late = |updates| reads_late(parameters.clone(), 1, updates);
        let refutation = (0..200).find_map(late).unwrap();
        let [.., first, pending, last] = &refutation.explanation[..] else {
            panic!("{refutation}")
        };
        let found = |record: &HistoryRecord| record.operation.returned.map(|(_, answer)| answer);
        assert_eq!(found(pending), None, "{refutation}");
        assert!(matches!(found(last), Some(HistoryAnswer::Found(_))), "{refutation}");
        assert_eq!(found(first), Some(HistoryAnswer::Done), "{refutation}");
    }
}

/// The object is reused for another key between the SEARCH's READs of slot and object. The SEARCH regards the object as
/// that of a key with the same fingerprint.
#[test]
fn a_search_misses_a_key_whose_object_is_used_again_for_another_one() {
    for parameters in variants() {
        let late = |updates| reads_late(parameters.clone(), 2, updates);
        let refutation = (0..200).find_map(late).unwrap();
        let last = refutation.explanation.last().unwrap().operation;
        assert_eq!(last.returned.unwrap().1, HistoryAnswer::Absent, "{refutation}");
    }
}

/// Returns the variants whose UPDATE takes two phases with one replica of the index.
fn variants() -> [PublishedParameters; 3] {
    let published = PublishedParameters { patience: 1_000, ..parameters(1) };
    [published.clone(), published.clone().one_by_one(), published.allocated_by_nodes()]
}
