//! Tests of the work table: costs and answers of correlated requests, and the order in which requests wait for each
//! other.

// Promise LIN-18

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use fusee_client::PutOptions;
use fusee_client::logic::RequestTable;
use fusee_client::logic::work_table::{SetKind, SetRole};
use fusee_core::Error;
use fusee_core::data::Redundancy;
use fusee_core::layout::Opcode;
use fusee_core::stats::OpKind;
use fusee_sim::{ClusterOptions, RunOptions, Scenario, Sim, SimCluster, SimSession, run};
use futures_util::future::{join, join_all, join3};

/// Opens sessions of one process that share a work table, in a cluster in which the key `key` has the value `old`.
async fn sessions(
    cluster: &SimCluster,
    table: &Arc<RequestTable>,
    count: usize,
) -> Vec<Rc<SimSession>> {
    let process = cluster.client_process();
    let mut sessions = Vec::new();
    for _ in 0..count {
        let session = cluster.open(process, cluster.options().session).await.unwrap();
        sessions.push(Rc::new(session.with_work_table(Some(table.clone()))));
    }
    sessions[0].put(b"key", b"old").await.unwrap();
    for session in &sessions {
        assert_eq!(session.get(b"key").await.unwrap().as_deref(), Some(&b"old"[..]));
    }
    sessions
}

fn with_sessions<T>(
    is_relaxed: bool,
    count: usize,
    scenario: impl AsyncFnOnce(&[Rc<SimSession>], &RequestTable) -> T,
) -> T {
    let sim = Sim::new(1);
    let cluster = SimCluster::new(&sim, &ClusterOptions::default());
    let table = Arc::new(RequestTable::new(is_relaxed));
    let process = cluster.client_process();
    cluster.block_on(process, async {
        let sessions = sessions(&cluster, &table, count).await;
        scenario(&sessions, &table).await
    })
}

/// Returns the numbers of verbs and bytes of a session's SEARCHes so far.
fn searched(session: &SimSession) -> (u64, u64) {
    let stats = session.stats();
    let search = stats.kind(OpKind::Search);
    (search.verbs, search.bytes)
}

async fn value(session: &SimSession) -> Vec<u8> {
    session.get(b"key").await.unwrap().unwrap()
}

#[test]
fn a_get_after_a_get_reads_8_bytes() {
    with_sessions(false, 3, async |sessions, table| {
        let before: Vec<(u64, u64)> = sessions.iter().map(|s| searched(s)).collect();
        let values = join_all(sessions.iter().map(|s| value(s))).await;
        assert!(values.iter().all(|value| value == b"old"));
        for (session, (verbs, bytes)) in sessions[1..].iter().zip(&before[1..]) {
            assert_eq!(searched(session), (verbs + 1, bytes + 8));
        }
        assert_eq!(table.stats().compared, 2);
    });
}

#[test]
fn a_get_after_a_set_posts_nothing() {
    with_sessions(false, 2, async |sessions, table| {
        let before = searched(&sessions[1]);
        let (put, found) = join(sessions[0].put(b"key", b"new"), value(&sessions[1])).await;
        put.unwrap();
        assert_eq!((found, searched(&sessions[1])), (b"new".to_vec(), before));
        assert_eq!(table.stats().rides, 1);
    });
}

#[test]
fn sets_that_wait_are_absorbed_by_the_last() {
    with_sessions(false, 5, async |sessions, table| {
        let written = |session: &SimSession| session.stats().kind(OpKind::Upsert).operations;
        let before: Vec<u64> = sessions.iter().map(|s| written(s)).collect();
        let puts = sessions
            .iter()
            .enumerate()
            .map(|(i, s)| async move { s.put(b"key", format!("value {i}").as_bytes()).await });
        join_all(puts).await.into_iter().for_each(|put| put.unwrap());
        let wrote: Vec<u64> = sessions.iter().zip(before).map(|(s, b)| written(s) - b).collect();
        assert_eq!(wrote, [1, 0, 0, 0, 1]);
        assert_eq!(value(&sessions[1]).await, b"value 4");
        assert_eq!((table.stats().absorbed, table.stats().waited), (3, 1));
    });
}

/// A set is absorbed (acknowledged together with a later set) only if both sets are of the same kind. So an absorbed
/// set gives the answer that it would have given alone.
#[test]
fn sets_are_absorbed_by_their_like_only() {
    with_sessions(false, 4, async |sessions, table| {
        let absent = |session: Rc<SimSession>| async move { session.update(b"none", b"1").await };
        let updates = join_all(sessions.iter().cloned().map(absent)).await;
        assert!(updates.iter().all(|update| *update == Err(Error::NotFound)), "{updates:?}");
        assert_eq!(table.stats().absorbed, 2);
        let long = vec![0; 2048];
        let puts = [&b"1"[..], &long, b"2"].into_iter().zip(sessions);
        let puts = join_all(puts.map(|(value, s)| s.put(b"key", value))).await;
        assert!(matches!(puts[..], [Ok(()), Err(Error::ValueTooLarge { .. }), Ok(())]));
        // The first put runs and the second one waits. The third one, which names no redundancy, must not absorb the
        // second one.
        let named = PutOptions::default().with_redundancy(Redundancy::Replicated);
        let puts = async |s: &SimSession, options| s.put_with(b"key", b"3", options).await.unwrap();
        let unnamed = PutOptions::default();
        let before = table.stats().absorbed;
        let first = puts(&sessions[0], &unnamed);
        join3(first, puts(&sessions[1], &named), puts(&sessions[2], &unnamed)).await;
        assert_eq!(table.stats().absorbed, before);
    });
}

/// A value can be too short for the pair's code. Then the rules decide the redundancy, which a longer value would keep.
#[test]
fn sets_whose_redundancy_depends_on_the_length_are_absorbed_by_equal_lengths_only() {
    let table = Arc::new(RequestTable::new(false));
    let set = |value_bytes| {
        let kind = SetKind { opcode: Opcode::Update, placement: None, value_bytes };
        table.set(kind, b"key", Some(b"value"), None, 1)
    };
    let leads = set(Some(900));
    assert!(matches!(leads, SetRole::Lead(..)));
    let waits = set(Some(5));
    assert!(matches!(waits, SetRole::Wait(..)));
    assert!(matches!(set(Some(900)), SetRole::Alone));
    assert!(matches!(set(Some(5)), SetRole::Wait(..)));
}

/// The request that leads others is dropped half-way, or is no longer polled. No follower waits for the leader for
/// ever.
#[test]
fn followers_of_a_leader_that_stops_go_alone() {
    for is_dropped in [true, false] {
        with_sessions(false, 3, async |sessions, table| {
            let mut leads = Box::pin(value(&sessions[0]));
            let mut puts = Box::pin(sessions[0].put(b"key", b"new"));
            let mut context = Context::from_waker(Waker::noop());
            assert!(leads.as_mut().poll(&mut context).is_pending());
            if is_dropped {
                let follows = async {
                    drop(leads);
                    value(&sessions[1]).await
                };
                assert_eq!(follows.await, b"old");
                return;
            }
            assert_eq!(value(&sessions[1]).await, b"old");
            assert_eq!(table.stats().misses, 1);
            // From now on no request follows this leader.
            assert_eq!(value(&sessions[2]).await, b"old");
            assert_eq!(table.stats().misses, 1);
            assert!(puts.as_mut().poll(&mut context).is_pending());
            assert_eq!(value(&sessions[1]).await, b"old");
            sessions[2].update(b"key", b"newer").await.unwrap();
            assert_eq!(value(&sessions[1]).await, b"newer");
            // The delayed put takes effect at some time, possibly just before the write that other sessions have seen.
            join(pin!(leads), pin!(puts)).await.1.unwrap();
        });
    }
}

#[test]
fn relaxed_gets_believe_what_is_under_way_and_later_writes_fail() {
    with_sessions(true, 2, async |sessions, table| {
        let mut puts = Box::pin(sessions[0].put(b"key", b"new"));
        let mut context = Context::from_waker(Waker::noop());
        assert!(puts.as_mut().poll(&mut context).is_pending());
        let before = searched(&sessions[1]);
        assert_eq!((value(&sessions[1]).await, searched(&sessions[1])), (b"new".to_vec(), before));
        let refused = Err(Error::WriteUnderWay);
        assert_eq!(sessions[1].update(b"key", b"newer").await, refused);
        assert_eq!(sessions[1].delete(b"key").await, refused);
        puts.await.unwrap();
        sessions[1].update(b"key", b"newer").await.unwrap();
        let (first, second) = join(value(&sessions[0]), value(&sessions[1])).await;
        assert_eq!((&first[..], &second[..]), (&b"newer"[..], &b"newer"[..]));
        assert_eq!(searched(&sessions[1]), before, "it joins what is posted");
        assert_eq!((table.stats().rides, table.stats().refused), (2, 2));
    });
}

/// Random requests run on a few keys, under faults. Every history is linearizable, and every way in which requests
/// follow others occurs.
#[test]
fn correlated_requests_are_linearizable() {
    let seeds = std::env::var("FUSEE_SIM_SEEDS").map_or(30, |n| n.parse().expect("a number"));
    let first = std::env::var("FUSEE_SIM_SEED").map_or(0, |n| n.parse().expect("a number"));
    let mut happened = [0; 4];
    for seed in first..first + seeds {
        let outcome = run(&RunOptions::new(Scenario::Correlated, seed));
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
        let names = ["rides", "compared_words", "followed_in_vain", "absorbed_sets"];
        for (sum, name) in happened.iter_mut().zip(names) {
            *sum += outcome.counts.iter().find(|(n, _)| *n == name).expect("it is counted").1;
        }
    }
    println!("rides, compared, in vain, absorbed: {happened:?}");
    assert!(happened.iter().all(|n| *n > 0), "{happened:?}");
}
