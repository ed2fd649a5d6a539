//! Callbacks that use the client: every call that takes a callback, with nested calls of every kind, including those
//! that wait for all sessions (so also for the session of the outer call). No operation waits for a callback to return;
//! where that cannot be avoided, nested calls fail at once.

// Promise API-27: Callbacks may use the client, or are refused at once.

mod common;

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use common::on_every_fabric;
use fusee_client::{
    BlockingClient, FabricKind, ReadError, Redundancy, ScanCursor, Session, WriteError,
};
use futures_util::future::join;

/// Longest time that a nested call is allowed to take. A call that waits for itself takes `op_timeout`, 5 s; all others
/// take far less.
const SOON: Duration = Duration::from_secs(4);

/// Number of values to write. They do not fit into the first regions of a cluster, so writing them changes the view,
/// and every session has to acknowledge the new view.
const VALUES: usize = 150;
const VALUE_BYTES: usize = 400 << 10;

/// Makes calls of every kind, each of which could wait for something that the outer call holds.
fn uses_all(client: &BlockingClient, turn: &Cell<u32>) {
    let begun = Instant::now();
    let tag = turn.replace(turn.get() + 1);
    let key = format!("key {tag}");
    let key = key.as_bytes();
    client.insert(key, b"1").unwrap();
    client.update(key, b"2").unwrap();
    client.put(key, b"3").unwrap();
    client.put_from(key, 1, |value| value[0] = b'4').unwrap();
    assert_eq!(client.get(key).unwrap().as_deref(), Some(&b"4"[..]));
    assert_eq!(client.get_with(key, |value| value.map(<[u8]>::len)), Ok(Some(1)));
    assert_eq!(client.get_many(&[key]).unwrap(), [Some(b"4".to_vec())]);
    client.set_redundancy(key, Redundancy::Replicated).unwrap();
    client.scan(&mut ScanCursor::start(), |_| ()).unwrap();
    client.delete(key).unwrap();
    assert!(
        client.admin().status().is_ok()
            && client.admin().usage().iter().all(|(_, usage)| usage.is_ok())
    );
    // These calls are executed by the driver thread.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(client.client().put(key, b"5")).unwrap();
    assert_eq!(runtime.block_on(client.client().get(key)).unwrap().as_deref(), Some(&b"5"[..]));
    // The call is made by another thread, for which this thread waits.
    thread::scope(|scope| scope.spawn(|| client.put(key, b"6").unwrap()).join().unwrap());
    let session = client.session().unwrap();
    session.block_on(session.put(key, b"7")).unwrap();
    assert!(begun.elapsed() < SOON, "a call has waited for the one that called back");
}

/// Writes large values until the view has changed.
fn changes_the_view(client: &BlockingClient, turn: &Cell<u32>) {
    let begun = Instant::now();
    let view = client.view().number;
    let tag = turn.replace(turn.get() + 1);
    for i in 0..VALUES {
        client.put(format!("large {tag} {i}").as_bytes(), &[1; VALUE_BYTES]).unwrap();
        if client.view().number > view {
            break;
        }
    }
    assert!(client.view().number > view, "it was to change");
    assert!(begun.elapsed() < SOON, "a change of the view has waited for who waits for it");
    for i in 0..VALUES {
        let _ = client.delete(format!("large {tag} {i}").as_bytes());
    }
}

/// Calls `nested` once inside each call that takes a callback.
fn within_each(client: &BlockingClient, session: &Session, nested: &dyn Fn()) {
    let once = Cell::new(true);
    let nested = || {
        if once.replace(false) {
            nested();
        }
    };
    let again = |what: &str| {
        assert!(!once.replace(true), "{what} has not called back");
    };
    client.get_with(b"a", |_| nested()).unwrap();
    again("get_with");
    client.get_with(b"absent", |_| nested()).unwrap();
    again("get_with of nothing");
    client.put_from(b"b", 3000, |_| nested()).unwrap();
    again("put_from");
    let mut cursor = ScanCursor::start();
    while !cursor.is_done() {
        client.scan(&mut cursor, |_| nested()).unwrap();
    }
    again("scan");
    client
        .admin()
        .find_pairs(|_| {
            nested();
            true
        })
        .unwrap();
    again("find_pairs");
    let keys = ["a", "absent", "b"];
    session.block_on(session.get_many_with(&keys, |_, _| nested())).unwrap();
    again("get_many_with");
    session.block_on(session.get_with(b"a", |_| nested())).unwrap();
    again("a session's get_with");
    session.block_on(session.put_from(b"b", 10, |_| nested())).unwrap();
    again("a session's put_from");
    let mut cursor = ScanCursor::start();
    while !cursor.is_done() {
        session.block_on(session.scan(&mut cursor, |_| nested())).unwrap();
    }
    again("a session's scan");
}

#[test]
fn callbacks_may_use_the_client() {
    on_every_fabric(|client| {
        let session = client.session().unwrap();
        let turn = Cell::new(0);
        client.put(b"a", b"value").unwrap();
        client.put(b"b", b"value").unwrap();
        within_each(&client, &session, &|| uses_all(&client, &turn));
        within_each(&client, &session, &|| {
            session.block_on(session.put(b"own", b"session")).unwrap();
        });
        assert!(!session.is_lost() && client.admin().status().unwrap().expired_sessions == 0);
    });
}

#[test]
fn callbacks_may_wait_for_a_change_of_the_view() {
    for call in 0..3 {
        on_every_fabric(|client| {
            let session = client.session().unwrap();
            let turn = Cell::new(0);
            client.put(b"a", b"value").unwrap();
            let nested = || changes_the_view(&client, &turn);
            let mut is_first = true;
            let mut once = || {
                if std::mem::take(&mut is_first) {
                    nested();
                }
            };
            match call {
                0 => client.put_from(b"b", 3000, |_| once()).unwrap(),
                1 => session
                    .block_on(session.get_many_with(&["a", "absent"], |_, _| once()))
                    .unwrap(),
                _ => client.get_with(b"a", |_| once()).unwrap(),
            }
            assert!(!is_first && !session.is_lost());
        });
    }
}

/// Returns the name of an error of any family.
fn name<T, E: std::fmt::Debug>(result: Result<T, E>) -> String {
    result.err().map(|error| format!("{error:?}")).unwrap_or_default()
}

/// While a callback runs on the driver thread, all other async calls wait for it, so a call by the callback must fail
/// at once.
#[test]
fn callbacks_of_async_calls_are_told_to_wait() {
    on_every_fabric(|client| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        client.put(b"a", b"value").unwrap();
        let own = client.clone();
        let nested = move |_: Option<&[u8]>| {
            let blocking = [name(own.put(b"a", b"x")), name(own.get(b"a"))];
            let others = [name(own.session()), name(own.scan(&mut ScanCursor::start(), |_| ()))];
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let awaited = [
                name(runtime.block_on(own.client().put(b"a", b"x"))),
                name(runtime.block_on(own.client().get(b"a"))),
            ];
            [blocking, others, awaited].concat()
        };
        let begun = Instant::now();
        let refused = runtime.block_on(client.client().get_with(b"a", nested)).unwrap();
        assert_eq!(refused, vec!["WithinCallback"; 6]);
        assert!(begun.elapsed() < SOON);
        // After the callback has returned, calls work as before.
        runtime.block_on(client.client().put(b"a", b"y")).unwrap();
        assert_eq!(client.get(b"a").unwrap().as_deref(), Some(&b"y"[..]));
        let panics =
            || runtime.block_on(client.client().get_with(b"a", |_| panic!("in the middle")));
        let panics = std::panic::AssertUnwindSafe(panics);
        let panicked: Result<Result<(), ReadError>, _> = std::panic::catch_unwind(panics);
        panicked.expect_err("it panics where it is awaited");
        runtime.block_on(client.client().put(b"a", b"z")).unwrap();
    });
}

/// A callback runs while another operation of its session is under way, which cannot go on before the callback has
/// returned.
#[test]
fn callbacks_beside_operations_under_way_are_told_to_wait() {
    on_every_fabric(|client| {
        let session = client.session().unwrap();
        session.block_on(session.put(b"a", b"value")).unwrap();
        session.block_on(session.put(b"b", b"value")).unwrap();
        let nested = |_: Option<&[u8]>| session.block_on(session.put(b"c", b"value"));
        let beside = session.put(b"b", b"again");
        let (nested, beside) = session.block_on(join(session.get_with(b"a", nested), beside));
        let is_immediate = client.fabric() == FabricKind::Shm;
        // Over shared memory each operation ends before the next one begins, so none is under way.
        let expected = if is_immediate { Ok(()) } else { Err(WriteError::WithinCallback) };
        assert_eq!((nested, beside), (Ok(expected), Ok(())));
        session.block_on(session.put(b"c", b"value")).unwrap();
        assert!(!session.is_lost());
    });
}
