//! The checker against histories whose verdict is known: by hand, by construction, and by trying
//! every order.

use super::*;
use crate::Rng;

/// `(call, invoked, returned, answer)`.
fn history(operations: &[(Call, u64, u64, Answer)]) -> Vec<Operation> {
    let operation = |(call, invoked, returned, answer): &(Call, u64, u64, Answer)| Operation {
        call: *call,
        invoked: *invoked,
        returned: Some((*returned, *answer)),
    };
    operations.iter().map(operation).collect()
}

fn pending(call: Call, invoked: u64) -> Operation {
    Operation { call, invoked, returned: None }
}

#[test]
fn a_lost_update_is_found() {
    let lost = history(&[
        (Call::Insert(1), 1, 2, Answer::Done),
        (Call::Update(2), 3, 4, Answer::Done),
        (Call::Search, 5, 6, Answer::Found(1)),
    ]);
    assert_eq!(check(&lost), Err(Violation { operation: lost[2] }));
    let mut concurrent = lost;
    concurrent[2].invoked = 3;
    assert_eq!(check(&concurrent), Ok(()));
}

#[test]
fn a_stale_read_is_found() {
    let mut stale = history(&[
        (Call::Insert(1), 1, 2, Answer::Done),
        (Call::Update(2), 3, 9, Answer::Done),
        (Call::Search, 4, 5, Answer::Found(2)),
        (Call::Search, 6, 7, Answer::Found(1)),
    ]);
    assert_eq!(check(&stale), Err(Violation { operation: stale[3] }));
    stale.swap(2, 3);
    stale[2].invoked = 4;
    assert_eq!(check(&stale), Ok(()), "the two reads are concurrent");
}

#[test]
fn a_resurrected_key_is_found() {
    let risen = history(&[
        (Call::Insert(1), 1, 2, Answer::Done),
        (Call::Delete, 3, 4, Answer::Done),
        (Call::Search, 5, 6, Answer::Absent),
        (Call::Search, 7, 8, Answer::Found(1)),
    ]);
    assert_eq!(check(&risen), Err(Violation { operation: risen[3] }));
    let mut inserted_again = risen;
    inserted_again.push(pending(Call::Insert(1), 1));
    assert_eq!(check(&inserted_again), Ok(()));
}

#[test]
fn a_second_successful_insert_is_found() {
    let mut twice =
        history(&[(Call::Insert(1), 1, 4, Answer::Done), (Call::Insert(2), 2, 5, Answer::Done)]);
    assert_eq!(check(&twice), Err(Violation { operation: twice[1] }));
    twice.push(pending(Call::Delete, 5));
    assert_eq!(check(&twice), Ok(()), "somebody deletes between them");
    twice[2].invoked = 6;
    assert_eq!(check(&twice), Err(Violation { operation: twice[1] }), "too late");
}

#[test]
fn a_delete_acknowledged_twice_is_found() {
    let mut twice = history(&[
        (Call::Insert(1), 1, 2, Answer::Done),
        (Call::Delete, 3, 5, Answer::Done),
        (Call::Delete, 4, 6, Answer::Done),
    ]);
    assert_eq!(check(&twice), Err(Violation { operation: twice[2] }));
    twice[2].returned = Some((6, Answer::Absent));
    assert_eq!(check(&twice), Ok(()));
}

#[test]
fn an_answer_that_the_call_never_gives_is_found() {
    for (call, answer) in [
        (Call::Upsert(1), Answer::Absent),
        (Call::Update(1), Answer::Exists),
        (Call::Delete, Answer::Found(1)),
        (Call::Search, Answer::Done),
    ] {
        assert!(check(&history(&[(call, 1, 2, answer)])).is_err(), "{call:?} {answer:?}");
    }
}

/// What a key does, one operation after another: the definition that everything is held against.
fn execute(call: Call, key: &mut Option<Value>) -> Answer {
    match (call, *key) {
        (Call::Insert(_), Some(_)) => Answer::Exists,
        (Call::Update(_) | Call::Delete | Call::Search, None) => Answer::Absent,
        (Call::Search, Some(value)) => Answer::Found(value),
        (Call::Insert(value) | Call::Update(value) | Call::Upsert(value), _) => {
            *key = Some(value);
            Answer::Done
        }
        (Call::Delete, Some(_)) => {
            *key = None;
            Answer::Done
        }
    }
}

/// Tries every order.
fn brute_force(left: &[Operation], key: Option<Value>) -> bool {
    if left.iter().all(|o| o.returned.is_none()) {
        return true;
    }
    (0..left.len()).any(|i| {
        let returned = |o: &Operation| o.returned.map_or(u64::MAX, |(time, _)| time);
        let mut key = key;
        let may_be_next = left.iter().all(|o| returned(o) >= left[i].invoked);
        let answer = execute(left[i].call, &mut key);
        let explained = left[i].returned.is_none_or(|(_, given)| given == answer);
        let mut rest = left.to_vec();
        rest.remove(i);
        may_be_next && explained && brute_force(&rest, key)
    })
}

fn random_call(rng: &Rng, values: usize) -> Call {
    let value = rng.below(values) as u64;
    match rng.below(6) {
        0 => Call::Insert(value),
        1 => Call::Update(value),
        2 => Call::Upsert(value),
        3 => Call::Delete,
        _ => Call::Search,
    }
}

fn any_key(rng: &Rng) -> Option<Value> {
    [None, Some(0), Some(1), Some(2)][rng.below(4)]
}

/// Up to 6 operations with few values, some without an answer. Half of the histories are
/// linearizable by construction and then get, half of them, one other answer.
fn random_history(rng: &Rng) -> Vec<Operation> {
    let mut operations: Vec<(u64, Operation)> = (0..1 + rng.below(6))
        .map(|_| {
            let invoked = rng.below(12) as u64;
            let instant = invoked + rng.below(4) as u64;
            let returned = Some((instant + rng.below(4) as u64, Answer::Done));
            (instant, Operation { call: random_call(rng, 3), invoked, returned })
        })
        .collect();
    operations.sort_by_key(|(instant, _)| *instant);
    let mut key = None;
    let random = rng.below(2) == 0;
    for (_, operation) in &mut operations {
        let mut answer = execute(operation.call, &mut key);
        if random {
            answer = execute(operation.call, &mut any_key(rng));
        }
        operation.returned = operation.returned.map(|(time, _)| (time, answer));
        if rng.below(6) == 0 {
            operation.returned = None;
        }
    }
    let mut operations: Vec<Operation> = operations.into_iter().map(|(_, o)| o).collect();
    let i = rng.below(operations.len());
    let Operation { call, returned, .. } = &mut operations[i];
    if rng.below(2) == 0
        && let Some((_, answer)) = returned
    {
        *answer = execute(*call, &mut any_key(rng));
    }
    operations
}

#[test]
fn the_verdict_is_that_of_trying_every_order() {
    let rng = Rng::new(1);
    let (mut good, mut bad, mut good_with_pending, mut bad_with_pending) = (0, 0, 0, 0);
    for _ in 0..60_000 {
        let history = random_history(&rng);
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

/// `clients` that always have an operation open, with instants, so that it is linearizable.
fn long_history(rng: &Rng, clients: usize, operations: u64, reads: usize) -> Vec<Operation> {
    let mut key = None;
    let mut open: Vec<Option<(Operation, Option<Answer>)>> = vec![None; clients];
    let (mut history, mut now, mut value) = (Vec::new(), 0, 0);
    while (history.len() as u64) < operations {
        now += 1;
        value += 1;
        let client = &mut open[rng.below(clients)];
        match client {
            None => {
                let write = [
                    Call::Insert(value),
                    Call::Update(value),
                    Call::Upsert(value),
                    Call::Upsert(value),
                    Call::Delete,
                ][rng.below(5)];
                let call = if rng.below(100) < reads { Call::Search } else { write };
                *client = Some((Operation { call, invoked: now, returned: None }, None));
            }
            Some((operation, answer @ None)) => *answer = Some(execute(operation.call, &mut key)),
            Some((operation, Some(answer))) => {
                history.push(Operation { returned: Some((now, *answer)), ..*operation });
                *client = None;
            }
        }
    }
    let open = open.into_iter().flatten().map(|(operation, _)| operation);
    history.extend(open);
    history
}

/// Thousands of operations by 16 clients that never rest take a moment, not for ever; one answer
/// that is out of date is found among them.
#[test]
fn long_histories_of_many_clients_are_checked() {
    for reads in [0, 10, 50, 90] {
        let rng = Rng::new(reads as u64);
        let mut history = long_history(&rng, 16, 3_000, reads);
        assert_eq!(check(&history), Ok(()), "{reads} % reads");
        let of_old = |o: &&Operation| matches!(o.returned, Some((_, Answer::Found(_))));
        let Some(old) = history.iter().find(of_old).and_then(|o| o.returned) else {
            assert_eq!(reads, 0);
            continue;
        };
        let late = history.iter_mut().filter(|o| o.call == Call::Search && o.returned.is_some());
        let late = late.last().expect("there are reads");
        let (time, _) = late.returned.expect("it returned");
        late.returned = Some((time, old.1));
        let operation = *late;
        assert_eq!(check(&history), Err(Violation { operation }));
    }
}
