//! Tests of the checker on histories whose verdict is known: histories made by hand, histories that are linearizable by
//! construction, and small histories for which every order is tried.

use std::collections::HashSet;
use std::time::Instant;

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Makes a history of `(call, invoked, returned, answer)`.
fn history(operations: &[(HistoryCall, u64, u64, HistoryAnswer)]) -> Vec<HistoryOperation> {
    let operation = |(call, invoked, returned, answer): &(HistoryCall, u64, u64, HistoryAnswer)| {
        HistoryOperation { call: *call, invoked: *invoked, returned: Some((*returned, *answer)) }
    };
    operations.iter().map(operation).collect()
}

fn pending(call: HistoryCall, invoked: u64) -> HistoryOperation {
    HistoryOperation { call, invoked, returned: None }
}

#[test]
fn a_lost_update_is_found() {
    let lost = history(&[
        (HistoryCall::Insert(1), 1, 2, HistoryAnswer::Done),
        (HistoryCall::Update(2), 3, 4, HistoryAnswer::Done),
        (HistoryCall::Search, 5, 6, HistoryAnswer::Found(1)),
    ]);
    assert_eq!(check(&lost), Err(Violation { operation: lost[2] }));
    let mut concurrent = lost;
    concurrent[2].invoked = 3;
    assert_eq!(check(&concurrent), Ok(()));
}

#[test]
fn a_stale_read_is_found() {
    let mut stale = history(&[
        (HistoryCall::Insert(1), 1, 2, HistoryAnswer::Done),
        (HistoryCall::Update(2), 3, 9, HistoryAnswer::Done),
        (HistoryCall::Search, 4, 5, HistoryAnswer::Found(2)),
        (HistoryCall::Search, 6, 7, HistoryAnswer::Found(1)),
    ]);
    assert_eq!(check(&stale), Err(Violation { operation: stale[3] }));
    stale.swap(2, 3);
    stale[2].invoked = 4;
    assert_eq!(check(&stale), Ok(()), "the two reads are concurrent");
}

#[test]
fn a_resurrected_key_is_found() {
    let risen = history(&[
        (HistoryCall::Insert(1), 1, 2, HistoryAnswer::Done),
        (HistoryCall::Delete, 3, 4, HistoryAnswer::Done),
        (HistoryCall::Search, 5, 6, HistoryAnswer::Absent),
        (HistoryCall::Search, 7, 8, HistoryAnswer::Found(1)),
    ]);
    assert_eq!(check(&risen), Err(Violation { operation: risen[3] }));
    let mut inserted_again = risen;
    inserted_again.push(pending(HistoryCall::Insert(1), 1));
    assert_eq!(check(&inserted_again), Ok(()));
}

#[test]
fn a_second_successful_insert_is_found() {
    let mut twice = history(&[
        (HistoryCall::Insert(1), 1, 4, HistoryAnswer::Done),
        (HistoryCall::Insert(2), 2, 5, HistoryAnswer::Done),
    ]);
    assert_eq!(check(&twice), Err(Violation { operation: twice[1] }));
    twice.push(pending(HistoryCall::Delete, 5));
    assert_eq!(check(&twice), Ok(()), "somebody deletes between them");
    twice[2].invoked = 6;
    assert_eq!(check(&twice), Err(Violation { operation: twice[1] }), "too late");
}

#[test]
fn a_delete_acknowledged_twice_is_found() {
    let mut twice = history(&[
        (HistoryCall::Insert(1), 1, 2, HistoryAnswer::Done),
        (HistoryCall::Delete, 3, 5, HistoryAnswer::Done),
        (HistoryCall::Delete, 4, 6, HistoryAnswer::Done),
    ]);
    assert_eq!(check(&twice), Err(Violation { operation: twice[2] }));
    twice[2].returned = Some((6, HistoryAnswer::Absent));
    assert_eq!(check(&twice), Ok(()));
}

#[test]
fn an_answer_that_the_call_never_gives_is_found() {
    for (call, answer) in [
        (HistoryCall::Upsert(1), HistoryAnswer::Absent),
        (HistoryCall::Update(1), HistoryAnswer::Exists),
        (HistoryCall::Delete, HistoryAnswer::Found(1)),
        (HistoryCall::Search, HistoryAnswer::Done),
    ] {
        assert!(check(&history(&[(call, 1, 2, answer)])).is_err(), "{call:?} {answer:?}");
    }
}

/// Executes a call on a key. This defines the answers with which the checker is compared.
fn execute(call: HistoryCall, key: &mut Option<HistoryValue>) -> HistoryAnswer {
    match (call, *key) {
        (HistoryCall::Insert(_), Some(_)) => HistoryAnswer::Exists,
        (HistoryCall::Update(_) | HistoryCall::Delete | HistoryCall::Search, None) => {
            HistoryAnswer::Absent
        }
        (HistoryCall::Search, Some(value)) => HistoryAnswer::Found(value),
        (
            HistoryCall::Insert(value) | HistoryCall::Update(value) | HistoryCall::Upsert(value),
            _,
        ) => {
            *key = Some(value);
            HistoryAnswer::Done
        }
        (HistoryCall::Delete, Some(_)) => {
            *key = None;
            HistoryAnswer::Done
        }
    }
}

/// Returns whether any order explains the operations, by trying every order.
fn brute_force(left: &[HistoryOperation], key: Option<HistoryValue>) -> bool {
    if left.iter().all(|o| o.returned.is_none()) {
        return true;
    }
    (0..left.len()).any(|i| {
        let returned = |o: &HistoryOperation| o.returned.map_or(u64::MAX, |(time, _)| time);
        let mut key = key;
        let may_be_next = left.iter().all(|o| returned(o) >= left[i].invoked);
        let answer = execute(left[i].call, &mut key);
        let explained = left[i].returned.is_none_or(|(_, given)| given == answer);
        let mut rest = left.to_vec();
        rest.remove(i);
        may_be_next && explained && brute_force(&rest, key)
    })
}

fn random_call(rng: &mut StdRng, values: usize) -> HistoryCall {
    let value = rng.random_range(0..values) as u64;
    match rng.random_range(0..6) {
        0 => HistoryCall::Insert(value),
        1 => HistoryCall::Update(value),
        2 => HistoryCall::Upsert(value),
        3 => HistoryCall::Delete,
        _ => HistoryCall::Search,
    }
}

fn any_key(rng: &mut StdRng) -> Option<HistoryValue> {
    [None, Some(0), Some(1), Some(2)][rng.random_range(0..4)]
}

/// Draws up to 6 operations with few values, some without an answer. The answers are those of an execution in half of
/// the histories, and arbitrary in the others. Then, in up to half of the histories, one answer is drawn again.
fn random_history(rng: &mut StdRng) -> Vec<HistoryOperation> {
    let mut operations: Vec<(u64, HistoryOperation)> = (0..1 + rng.random_range(0..6))
        .map(|_| {
            let invoked = rng.random_range(0..12) as u64;
            let instant = invoked + rng.random_range(0..4) as u64;
            let returned = Some((instant + rng.random_range(0..4) as u64, HistoryAnswer::Done));
            (instant, HistoryOperation { call: random_call(rng, 3), invoked, returned })
        })
        .collect();
    operations.sort_by_key(|(instant, _)| *instant);
    let mut key = None;
    let random = rng.random_range(0..2) == 0;
    for (_, operation) in &mut operations {
        let mut answer = execute(operation.call, &mut key);
        if random {
            answer = execute(operation.call, &mut any_key(rng));
        }
        operation.returned = operation.returned.map(|(time, _)| (time, answer));
        if rng.random_range(0..6) == 0 {
            operation.returned = None;
        }
    }
    let mut operations: Vec<HistoryOperation> = operations.into_iter().map(|(_, o)| o).collect();
    let i = rng.random_range(0..operations.len());
    let HistoryOperation { call, returned, .. } = &mut operations[i];
    if rng.random_range(0..2) == 0
        && let Some((_, answer)) = returned
    {
        *answer = execute(*call, &mut any_key(rng));
    }
    operations
}

// Promise CHK-2: The checker of histories agrees with brute force.
#[test]
fn the_verdict_is_that_of_trying_every_order() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut good = 0;
    let mut bad = 0;
    let mut good_with_pending = 0;
    let mut bad_with_pending = 0;
    for _ in 0..60_000 {
        let history = random_history(&mut rng);
        let expected = brute_force(&history, None);
        assert_eq!(check(&history).is_ok(), expected, "{history:#?}");
        match (expected, history.iter().any(|o| o.returned.is_none())) {
            (true, false) => good += 1,
            (false, false) => bad += 1,
            (true, true) => good_with_pending += 1,
            (false, true) => bad_with_pending += 1,
        }
    }
    let counts = [good, bad, good_with_pending, bad_with_pending];
    assert!(counts.iter().all(|n| *n > 5_000), "too few of a kind: {counts:?}");
}

/// Draws a linearizable history of `clients` clients, which nearly always have an operation open.
fn long_history(
    rng: &mut StdRng,
    clients: usize,
    operations: u64,
    reads: usize,
) -> Vec<HistoryOperation> {
    let mut key = None;
    let mut open: Vec<Option<(HistoryOperation, Option<HistoryAnswer>)>> = vec![None; clients];
    let mut history = Vec::new();
    let mut now = 0;
    let mut value = 0;
    while (history.len() as u64) < operations {
        now += 1;
        value += 1;
        let client = &mut open[rng.random_range(0..clients)];
        match client {
            None => {
                let write = [
                    HistoryCall::Insert(value),
                    HistoryCall::Update(value),
                    HistoryCall::Upsert(value),
                    HistoryCall::Upsert(value),
                    HistoryCall::Delete,
                ][rng.random_range(0..5)];
                let call =
                    if rng.random_range(0..100) < reads { HistoryCall::Search } else { write };
                *client = Some((HistoryOperation { call, invoked: now, returned: None }, None));
            }
            Some((operation, answer @ None)) => *answer = Some(execute(operation.call, &mut key)),
            Some((operation, Some(answer))) => {
                history.push(HistoryOperation { returned: Some((now, *answer)), ..*operation });
                *client = None;
            }
        }
    }
    let open = open.into_iter().flatten().map(|(operation, _)| operation);
    history.extend(open);
    history
}

/// Thousands of operations of 16 clients without pauses are checked in a moment. An outdated answer among them is
/// found.
#[test]
fn long_histories_of_many_clients_are_checked() {
    for reads in [0, 10, 50, 90] {
        let mut rng = StdRng::seed_from_u64(reads as u64);
        let mut history = long_history(&mut rng, 16, 3_000, reads);
        assert_eq!(check(&history), Ok(()), "{reads} % reads");
        let of_old =
            |o: &&HistoryOperation| matches!(o.returned, Some((_, HistoryAnswer::Found(_))));
        let Some(old) = history.iter().find(of_old).and_then(|o| o.returned) else {
            assert_eq!(reads, 0);
            continue;
        };
        let late =
            history.iter_mut().filter(|o| o.call == HistoryCall::Search && o.returned.is_some());
        let late = late.last().expect("there are reads");
        let (time, _) = late.returned.expect("it returned");
        late.returned = Some((time, old.1));
        let operation = *late;
        assert_eq!(check(&history), Err(Violation { operation }));
    }
}

/// Returns the same as [`brute_force`], but fast enough for longer histories, because no set of operations is tried
/// twice in one state.
fn any_order(
    history: &[HistoryOperation],
    had: u32,
    key: Option<HistoryValue>,
    seen: &mut HashSet<(u32, Option<HistoryValue>)>,
) -> bool {
    let left = || (0..history.len()).filter(|i| had >> i & 1 == 0);
    if left().all(|i| history[i].returned.is_none()) {
        return true;
    }
    if !seen.insert((had, key)) {
        return false;
    }
    left().any(|i| {
        let returned = |i: usize| history[i].returned.map_or(u64::MAX, |(time, _)| time);
        let mut key = key;
        let may_be_next = left().all(|j| returned(j) >= history[i].invoked);
        let answer = execute(history[i].call, &mut key);
        let explained = history[i].returned.is_none_or(|(_, given)| given == answer);
        may_be_next && explained && any_order(history, had | 1 << i, key, seen)
    })
}

/// Parameters of a distribution of histories.
struct HistoryShape {
    operations: usize,
    /// Number of values; `None`: every write has a value of its own.
    values: Option<usize>,
    duration: usize,
    /// Percentage of operations that never return.
    pending: usize,
    /// Percentage of SEARCHes.
    reads: usize,
}

/// Draws a linearizable history. In up to half of the histories one answer is then drawn again.
fn shaped_history(rng: &mut StdRng, shape: &HistoryShape) -> Vec<HistoryOperation> {
    let mut operations: Vec<(u64, HistoryOperation)> = (0..2 + rng
        .random_range(0..shape.operations - 1))
        .map(|i| {
            let invoked = rng.random_range(0..2 * shape.operations) as u64;
            let instant = invoked + rng.random_range(0..shape.duration) as u64;
            let returned =
                Some((instant + rng.random_range(0..shape.duration) as u64, HistoryAnswer::Done));
            let value = shape.values.map_or(i, |values| rng.random_range(0..values)) as u64;
            let call = match rng.random_range(0..5) {
                _ if rng.random_range(0..100) < shape.reads => HistoryCall::Search,
                0 => HistoryCall::Insert(value),
                1 | 2 => HistoryCall::Update(value),
                3 => HistoryCall::Upsert(value),
                _ => HistoryCall::Delete,
            };
            (instant, HistoryOperation { call, invoked, returned })
        })
        .collect();
    operations.sort_by_key(|(instant, _)| *instant);
    let mut key = None;
    let mut values = vec![None];
    for (_, operation) in &mut operations {
        // A pending operation has no answer, and half of the pending operations have no effect.
        let pending = rng.random_range(0..100) < shape.pending;
        if pending && rng.random_range(0..2) == 0 {
            operation.returned = None;
            continue;
        }
        let answer = execute(operation.call, &mut key);
        values.push(key);
        operation.returned = operation.returned.map(|(time, _)| (time, answer));
        if pending {
            operation.returned = None;
        }
    }
    let mut operations: Vec<HistoryOperation> = operations.into_iter().map(|(_, o)| o).collect();
    let i = rng.random_range(0..operations.len());
    let HistoryOperation { call, returned, .. } = &mut operations[i];
    if rng.random_range(0..2) == 0
        && let Some((_, answer)) = returned
    {
        *answer = execute(*call, &mut values[rng.random_range(0..values.len())].clone());
    }
    operations
}

#[test]
fn the_verdict_is_right_for_many_pending_operations_and_for_values_of_their_own() {
    let shape = |values, pending, reads| HistoryShape {
        operations: 12,
        values,
        duration: 6,
        pending,
        reads,
    };
    let shapes = [
        shape(None, 0, 40),
        shape(None, 60, 20),
        shape(Some(2), 60, 30),
        shape(Some(6), 30, 40),
        HistoryShape { duration: 30, ..shape(None, 40, 30) },
    ];
    for (number, shape) in shapes.iter().enumerate() {
        let mut rng = StdRng::seed_from_u64(number as u64);
        let mut counts = [0, 0];
        for _ in 0..6_000 {
            let history = shaped_history(&mut rng, shape);
            let expected = any_order(&history, 0, None, &mut HashSet::new());
            let found = search::search(&history, usize::MAX).verdict;
            assert_eq!(found == search::SearchVerdict::Explained, expected, "{history:#?}");
            assert_eq!(search::search_without_limit_of_places(&history), found, "{history:#?}");
            if !expected {
                let mut until = history.clone();
                let first = explain::first_unexplained(&history);
                let end = history[first].returned.expect("it returned");
                until.retain(|o| o.invoked <= end.0);
                for operation in &mut until {
                    operation.returned = operation.returned.filter(|(time, _)| *time < end.0);
                }
                let before = any_order(&until, 0, None, &mut HashSet::new());
                assert!(before, "{:?} is not the first: {history:#?}", history[first]);
            }
            counts[usize::from(expected)] += 1;
        }
        assert!(counts.iter().all(|n| *n > 50), "too few of a kind: {counts:?}");
    }
}

/// Hundreds of clients crash during a write of one key, and some of their values appear later. This does not slow the
/// check down.
#[test]
fn what_crashed_clients_leave_behind_costs_nothing() {
    for crashed in [20, 200, 2_000] {
        let mut rng = StdRng::seed_from_u64(crashed);
        let mut history = long_history(&mut rng, 8, 20_000, 50);
        let end = history.iter().map(|o| o.invoked).max().expect("not empty");
        for i in 0..crashed {
            let value = 1_000_000 + i;
            let calls = [
                HistoryCall::Insert(value),
                HistoryCall::Update(value),
                HistoryCall::Upsert(value),
                HistoryCall::Delete,
                HistoryCall::Search,
            ];
            history.push(pending(
                calls[rng.random_range(0..5)],
                rng.random_range(0..end as usize) as u64,
            ));
        }
        // Two of the crashed writes take effect after the other operations have ended, one after the other.
        history.push(pending(HistoryCall::Upsert(2_000_000), 1));
        history.push(pending(HistoryCall::Upsert(2_000_001), 1));
        for (at, value) in [(1, 2_000_000), (3, 2_000_001), (5, 2_000_001)] {
            let returned = Some((end + at + 1, HistoryAnswer::Found(value)));
            history.push(HistoryOperation {
                call: HistoryCall::Search,
                invoked: end + at,
                returned,
            });
        }
        let start = Instant::now();
        let found = search::search(&history, 1 << 20);
        assert_eq!(found.verdict, search::SearchVerdict::Explained);
        assert!(found.peak_frontier < 1_000, "{found:?}");
        assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
        let returned = Some((end + 8, HistoryAnswer::Found(2_000_000)));
        let back = HistoryOperation { call: HistoryCall::Search, invoked: end + 7, returned };
        history.push(back);
        assert_eq!(check(&history), Err(Violation { operation: back }));
    }
}

#[test]
fn more_than_128_operations_may_be_open_and_return() {
    let open = 300;
    let mut history: Vec<HistoryOperation> = (0..open)
        .map(|i| HistoryOperation {
            call: if i % 3 == 0 { HistoryCall::Update(i) } else { HistoryCall::Search },
            invoked: 10 + i,
            returned: Some((1_000 + i, HistoryAnswer::Done)),
        })
        .collect();
    for (i, operation) in history.iter_mut().enumerate() {
        if operation.call == HistoryCall::Search {
            operation.returned = Some((1_000 + i as u64, HistoryAnswer::Found(i as u64 / 3 * 3)));
        }
    }
    history.push(HistoryOperation {
        call: HistoryCall::Insert(9_999),
        invoked: 1,
        returned: Some((2, HistoryAnswer::Done)),
    });
    assert_eq!(check(&history), Ok(()));
    // After all operations have returned, two SEARCHes return different values, but only one value was written last.
    let returned = Some((3_001, HistoryAnswer::Found(0)));
    history.push(HistoryOperation { call: HistoryCall::Search, invoked: 3_000, returned });
    assert_eq!(check(&history), Ok(()), "it may have been the last");
    let returned = Some((3_003, HistoryAnswer::Found(3)));
    let other = HistoryOperation { call: HistoryCall::Search, invoked: 3_002, returned };
    history.push(other);
    assert_eq!(check(&history), Err(Violation { operation: other }));
}

fn record(client: u32, key: u64, operation: HistoryOperation) -> HistoryRecord {
    HistoryRecord { key, client, operation }
}

#[test]
fn a_history_is_checked_key_by_key() {
    let good = history(&[
        (HistoryCall::Insert(1), 1, 2, HistoryAnswer::Done),
        (HistoryCall::Update(2), 3, 4, HistoryAnswer::Done),
        (HistoryCall::Search, 5, 6, HistoryAnswer::Found(2)),
    ]);
    let mut records: Vec<HistoryRecord> =
        (0..9).map(|i| record(i as u32, i % 3, good[i as usize / 3])).collect();
    records.push(record(7, 1, pending(HistoryCall::Delete, 6)));
    records.reverse();
    let mut all: OperationHistory = records.iter().copied().collect();
    let findings = all.check();
    assert!(findings.is_clean(), "{findings:?}");
    assert_eq!((findings.operations, findings.keys, findings.pending), (10, 3, 1));
    // The DELETE began at the time when the SEARCH returned.
    assert_eq!(findings.overlapping, 1);
    // Key 1 is absent at time 8, because the pending DELETE can have had its instant since time 6.
    let returned = Some((9, HistoryAnswer::Absent));
    all.push(record(8, 1, HistoryOperation { call: HistoryCall::Search, invoked: 8, returned }));
    assert!(all.check().is_clean());
    all.push(record(8, 2, HistoryOperation { call: HistoryCall::Search, invoked: 8, returned }));
    let findings = all.check();
    let refutation = findings.refutation.expect("key 2 is gone");
    assert_eq!((findings.violations, refutation.key, refutation.operations), (1, 2, 4));
}

/// Of thousands of operations, an explanation keeps only the few that show the violation.
#[test]
fn an_explanation_is_short_and_readable() {
    for reads in [20, 80] {
        let mut rng = StdRng::seed_from_u64(reads as u64);
        let clients = 8;
        let mut records: Vec<HistoryRecord> = long_history(&mut rng, clients, 4_000, reads)
            .into_iter()
            .map(|operation| record(3, 5, operation))
            .collect();
        let end = 2 + records.iter().map(|r| r.operation.invoked).max().expect("not empty");
        // These three operations are a violation by themselves, whatever effects the open operations have.
        let last = history(&[
            (HistoryCall::Upsert(1_000_001), end, end + 1, HistoryAnswer::Done),
            (HistoryCall::Update(1_000_002), end + 2, end + 3, HistoryAnswer::Done),
            (HistoryCall::Search, end + 4, end + 9, HistoryAnswer::Found(1_000_001)),
        ]);
        records.extend(last.iter().map(|operation| record(4, 5, *operation)));
        let mut all: OperationHistory = records.into_iter().collect();
        let refutation = all.check().refutation.expect("an update is lost");
        assert_eq!(refutation.unexplained.operation, last[2]);
        let kept: Vec<HistoryOperation> =
            refutation.explanation.iter().map(|r| r.operation).collect();
        assert_eq!(kept, last, "{refutation}");
        let text = refutation.render(|value| format!("v{}", value - 1_000_000));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for (line, parts) in lines.iter().zip([
            ["client 4", "from          0 to          1", "UPSERT v1", "-> done"],
            ["client 4", "from          2 to          3", "UPDATE v2", "-> done"],
            ["client 4", "from          4 to          9", "SEARCH", "-> v1   <- cannot be"],
        ]) {
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
        assert!(refutation.to_string().starts_with("key 5 is not linearizable; of its 4"));
    }
}

/// An explanation keeps the operations that make its other operations possible, and no others.
#[test]
fn an_explanation_does_not_blame_others() {
    let mut churn = Vec::new();
    for turn in 0..40 {
        let at = turn * 10;
        churn.push((HistoryCall::Insert(turn), at + 1, at + 2, HistoryAnswer::Done));
        churn.push((HistoryCall::Search, at + 3, at + 4, HistoryAnswer::Found(turn)));
        churn.push((HistoryCall::Delete, at + 5, at + 6, HistoryAnswer::Done));
    }
    churn.push((HistoryCall::Insert(100), 500, 501, HistoryAnswer::Done));
    churn.push((HistoryCall::Insert(101), 502, 503, HistoryAnswer::Done));
    let all: Vec<HistoryOperation> = history(&churn);
    let mut all: OperationHistory =
        all.into_iter().map(|operation| record(1, 1, operation)).collect();
    let refutation = all.check().refutation.expect("inserted twice");
    let kept: Vec<HistoryCall> = refutation.explanation.iter().map(|r| r.operation.call).collect();
    assert_eq!(kept, [HistoryCall::Insert(100), HistoryCall::Insert(101)], "{refutation}");
}

/// Draws operations of 32 clients on keys with Zipfian popularity. The history is linearizable by construction. Now and
/// then a client crashes and leaves its operation without an answer.
fn zipfian_history(
    rng: &mut StdRng,
    operations: usize,
    keys: usize,
    reads: usize,
) -> OperationHistory {
    let mut sum = 0.0;
    let weights = (1..=keys).map(|i| 1.0 / (i as f64).powf(0.99));
    let weights: Vec<f64> = weights
        .map(|w| {
            sum += w;
            sum
        })
        .collect();
    let mut state = vec![None; keys];
    let mut open: Vec<Option<(HistoryRecord, Option<HistoryAnswer>)>> = vec![None; 32];
    let mut all = OperationHistory::new();
    let mut now = 0;
    let mut value = 0;
    while all.len() < operations {
        now += 1;
        value += 1;
        let client = rng.random_range(0..open.len());
        let slot = &mut open[client];
        match slot {
            None => {
                let at = rng.random_range(0..1 << 30) as f64 / (1 << 30) as f64 * sum;
                let key = weights.partition_point(|w| *w < at).min(keys - 1);
                let writes = [
                    HistoryCall::Insert(value),
                    HistoryCall::Update(value),
                    HistoryCall::Update(value),
                    HistoryCall::Upsert(value),
                    HistoryCall::Delete,
                ];
                let write = writes[rng.random_range(0..5)];
                let call =
                    if rng.random_range(0..100) < reads { HistoryCall::Search } else { write };
                let operation = HistoryOperation { call, invoked: now, returned: None };
                *slot = Some((record(client as u32, key as u64, operation), None));
            }
            Some((record, _)) if rng.random_range(0..5_000) == 0 => {
                all.push(*record);
                *slot = None;
            }
            Some((record, answer @ None)) => {
                *answer = Some(execute(record.operation.call, &mut state[record.key as usize]));
            }
            Some((record, Some(answer))) => {
                record.operation.returned = Some((now, *answer));
                all.push(*record);
                *slot = None;
            }
        }
    }
    all.extend(open.into_iter().flatten().map(|(record, _)| record));
    all
}

fn time_a_check(operations: usize, keys: usize, reads: usize) {
    let mut all = zipfian_history(&mut StdRng::seed_from_u64(1), operations, keys, reads);
    let start = Instant::now();
    let findings = all.check();
    println!("{keys} keys, {reads} % reads: {:?}, {findings:?}", start.elapsed());
    assert!(findings.is_clean() && findings.operations >= operations as u64, "{findings:?}");
    assert!(findings.pending > operations as u64 / 10_000, "{findings:?}");
}

// Promise CHK-3: The checker judges long histories quickly.
#[test]
fn histories_of_many_keys_are_checked_in_little_time() {
    for (keys, reads) in [(1, 50), (1000, 50), (1000, 0)] {
        time_a_check(20_000, keys, reads);
    }
}

/// Run by `cargo test --release -p fusee-linearizability --lib -- --ignored --nocapture a_million`.
#[test]
#[ignore = "takes seconds, and is for the figures"]
fn a_million_operations_are_checked_in_seconds() {
    for (keys, reads) in [(100_000, 50), (1000, 50), (1000, 95), (10, 50), (1, 90)] {
        time_a_check(1_000_000, keys, reads);
    }
    // In the hardest case, 32 clients always have an operation open on one key.
    for reads in [50, 0] {
        time_a_check(100_000, 1, reads);
    }
}
