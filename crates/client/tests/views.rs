//! Sessions that follow a master's views, and clients that continue after their sessions were fenced.

// Promise MST-10
// Promise API-2: Sessions follow views and end with their client; starts repeat.

mod common;

use std::future::poll_fn;
use std::net::TcpListener;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use common::fake::{FakeMaster, Forwarder, SOON, Script};
use fusee_client::{
    FabricKind, FailedWriteOutcome, MnId, OpKind, ReadError, Session, Stats, View, WriteError,
};
use fusee_master::MasterServer;
use fusee_memory_node::MemoryNode;
use futures_util::future::join_all;

/// A fake master, the real master behind it, and their memory nodes.
struct Cluster {
    fake: FakeMaster,
    view: View,
    _nodes: Vec<MemoryNode>,
    _real: MasterServer,
}

fn cluster(dir: &Path) -> Cluster {
    let real = common::master(dir, 3);
    let nodes = (0..3).map(|_| common::node(dir, &real)).collect();
    let view = real.wait_formed(SOON).unwrap();
    Cluster { fake: FakeMaster::start(real.client()), view, _nodes: nodes, _real: real }
}

impl Cluster {
    /// Returns the view that the fake master publishes.
    fn newest(&self) -> View {
        self.fake.script().view.clone().unwrap()
    }

    /// Returns the next view, which differs in its number only.
    fn next(&self) -> View {
        let view = self.newest();
        View { number: view.number + 1, ..view }
    }

    /// Publishes the views of the change that removes a memory node, each after all sessions have acknowledged the view
    /// before.
    fn lose(&self, node: MnId) {
        let mut view = self.newest().without(&[node]).unwrap();
        loop {
            self.fake.publish(view.clone());
            self.fake.wait_acknowledged();
            if view.change.is_none() {
                return;
            }
            view = view.advanced();
        }
    }

    /// Puts a forwarder in front of a memory node's TCP port.
    fn forward(&self, node: MnId) -> Forwarder {
        let address = self.view.member(node).unwrap().tcp.clone().unwrap();
        let forwarder = Forwarder::start(address);
        self.fake.script().moved.insert(node, forwarder.address.clone());
        forwarder
    }
}

/// A memory node that gets no processor time can close new connections, so a client has to try again.
#[test]
fn a_node_that_hangs_up_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let node = cluster.view.members[1].node;
    let forwarder = cluster.forward(node);
    forwarder.hang_up(3);
    let client = cluster.fake.connect(FabricKind::Tcp);
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// A session that is fenced while it connects has possibly just lacked processor time, so the client opens another
/// session.
#[test]
fn who_is_fenced_while_it_connects_tries_again() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let node = cluster.view.members[1].node;
    let forwarder = cluster.forward(node);
    forwarder.set_silent(true);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| cluster.fake.connect(FabricKind::Tcp));
        cluster.fake.wait("a session", |script| !script.heartbeats.is_empty());
        let first = cluster.fake.script().heartbeats[0].client;
        cluster.fake.script().expelled.push(first);
        cluster.fake.wait("its end", |script| script.closed.contains(&first));
        forwarder.set_silent(false);
        let client = connecting.join().unwrap();
        client.put(b"key", b"value").unwrap();
        assert_ne!(client.session().unwrap().id(), first);
    });
}

#[test]
fn idle_sessions_acknowledge_a_view_without_their_threads() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let dir = tempfile::tempdir().unwrap();
        let cluster = cluster(dir.path());
        let client = cluster.fake.connect(fabric);
        let idle = client.session().unwrap();
        client.put(b"key", b"value").unwrap();
        cluster.fake.wait("the first renewal", |script| script.heartbeats.len() == 2);
        let before = client.view().number;
        cluster.fake.publish(cluster.next());
        cluster.fake.wait_acknowledged();
        assert_eq!(client.view().number, before + 1);
        assert_eq!(idle.block_on(idle.get(b"key")).unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(client.admin().usage().len(), 3);

        let id = idle.id();
        drop(idle);
        let renewals = cluster.fake.script().renewals;
        cluster.fake.wait("a renewal without it", |script| {
            script.renewals > renewals && script.heartbeats.iter().all(|p| p.client != id)
        });
        assert!(cluster.fake.script().closed.contains(&id));
    }
}

#[test]
fn a_held_renewal_is_not_repeated_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let client = cluster.fake.connect(FabricKind::Tcp);
    cluster.fake.wait("the first renewal", |script| script.heartbeats.len() == 1);
    let before = cluster.fake.script().renewals;
    let begun = Instant::now();
    // They take less than half of a block, so the session does not search for memory, which takes renewals.
    for i in 0..200u32 {
        client.put(&i.to_le_bytes(), b"value").unwrap();
    }
    thread::sleep(Duration::from_millis(500));
    let most = 2 + begun.elapsed().as_millis() / 250;
    let renewals = cluster.fake.script().renewals - before;
    assert!(renewals >= 1 && renewals as u128 <= most, "{renewals}, at most {most}");
}

/// Runs reads beside a silent memory node, which keeps its connections open, until a view without that node ends their
/// waits. Returns the counts of the reads.
fn reads_beside_a_silent_memory_node(
    read: impl AsyncFn(&Session, &[[u8; 4]]) -> Vec<Result<Option<Vec<u8>>, ReadError>> + Sync,
) -> Stats {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let lost = cluster.view.subtables[0].primary().node;
    let forwarder = cluster.forward(lost);
    let client = cluster.fake.connect(FabricKind::Tcp);
    let keys: Vec<[u8; 4]> = (0..64u32).map(u32::to_le_bytes).collect();
    for key in &keys {
        client.put(key, b"value").unwrap();
    }
    let stats = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let session = client.session().unwrap();
            forwarder.set_silent(true);
            let results = session.block_on(read(&session, &keys));
            (results, Instant::now(), session.stats())
        });
        thread::sleep(Duration::from_millis(300));
        assert!(!reading.is_finished(), "nobody waits for the silent node");
        let begun = Instant::now();
        cluster.lose(lost);
        let (results, ended, stats) = reading.join().unwrap();
        assert!(ended.duration_since(begun) < Duration::from_secs(3));
        assert_eq!(results.len(), keys.len());
        for result in results {
            assert_eq!(result.unwrap().as_deref(), Some(&b"value"[..]));
        }
        stats
    });
    for key in &keys {
        assert_eq!(client.get(key).unwrap().as_deref(), Some(&b"value"[..]));
    }
    assert!(client.view().member(lost).is_none());
    stats
}

#[test]
fn a_view_ends_the_wait_for_a_silent_memory_node() {
    let stats = reads_beside_a_silent_memory_node(async |session, keys| {
        join_all(keys.iter().map(|key| session.get(key))).await
    });
    assert_eq!(stats.kind(OpKind::Search).operations, 64);
}

/// A `get_many` with keys on the silent node waits for the view without that node. While a subtable has no primary, its
/// keys are looked up one by one; the other keys are read together afterwards.
#[test]
fn a_view_ends_the_wait_of_many_keys_for_a_silent_memory_node() {
    let stats = reads_beside_a_silent_memory_node(async |session, keys| {
        session.get_many(keys).await.unwrap().into_iter().map(Ok).collect()
    });
    let many = stats.kind(OpKind::SearchMany);
    let alone = stats.kind(OpKind::Search);
    assert_eq!(many.operations, 1);
    assert!((1..=64).contains(&alone.operations), "{alone:?}");
    assert!(many.phases <= 8, "{many:?}");
}

#[test]
fn a_client_starts_when_the_view_does_without_a_dead_memory_node() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let lost = cluster.view.subtables[0].primary().node;
    // No server listens at the address.
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    cluster.fake.script().moved.insert(lost, nowhere);
    let client = thread::scope(|scope| {
        scope.spawn(|| {
            cluster.fake.wait("the report", |script| script.unreachable.len() >= 2);
            assert!(cluster.fake.script().unreachable.iter().all(|node| *node == lost));
            cluster.lose(lost);
        });
        cluster.fake.connect(FabricKind::Tcp)
    });
    assert_eq!(client.get(b"key"), Ok(None));
    assert_eq!(
        client.admin().status().unwrap().sessions_opened,
        1,
        "the first session got through"
    );
    assert!(cluster.fake.script().unreachable.len() < 100, "it is told again and again");
}

#[test]
fn who_was_fenced_comes_back() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let dir = tempfile::tempdir().unwrap();
        let cluster = cluster(dir.path());
        let client = cluster.fake.connect(fabric);
        client.put(b"key", b"value").unwrap();
        let session = client.session().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(client.client().put(b"async", b"value")).unwrap();
        // The three sessions are the client's session of this thread, the session of its driver thread, and the session
        // opened explicitly.
        let all = 3;
        cluster.fake.wait("the first renewal", |script| script.heartbeats.len() == all);
        session.block_on(session.put(b"key", b"by hand")).unwrap();
        let old: Vec<_> = cluster.fake.script().heartbeats.iter().map(|p| p.client).collect();
        cluster.fake.script().expelled.clone_from(&old);
        let expelled = WriteError::Expelled { outcome: FailedWriteOutcome::NotApplied };
        let end = Instant::now() + SOON;
        while session.block_on(session.get(b"key")).is_ok() {
            assert!(Instant::now() < end, "the session is not fenced");
        }
        assert_eq!(session.block_on(session.get(b"key")), Err(ReadError::Expelled));
        assert_eq!(session.block_on(session.insert(b"other", b"1")), Err(expelled));
        // The program need not notice that the client's own sessions were fenced, because they were idle.
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"by hand"[..]));
        let read = runtime.block_on(client.client().get(b"async"));
        assert_eq!(read.unwrap().as_deref(), Some(&b"value"[..]));
        drop(session);
        let abandoned = |id| move |script: &Script| script.abandoned.contains(id);
        old.iter().for_each(|id| cluster.fake.wait("the end", abandoned(id)));
        cluster.fake.wait("new sessions", |script| {
            script.heartbeats.len() == all - 1
                && script.heartbeats.iter().all(|p| !old.contains(&p.client))
        });
        assert!(cluster.fake.script().closed.is_empty());
    }
}

/// A session whose write was dropped half-way does not end in order, because its slot has to be recovered. A session
/// whose write no other session can have seen ends in order.
#[test]
fn a_session_with_a_write_half_way_is_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let client = cluster.fake.connect(FabricKind::Tcp);
    let mut closed = 0;
    let mut abandoned = 0;
    for polls in 1u32.. {
        let session = client.session().unwrap();
        let id = session.id();
        let key = polls.to_le_bytes();
        let done = session.block_on(poll_times(polls, session.insert(&key, b"value")));
        drop(session);
        let script = cluster.fake.script();
        let ends = (script.closed.contains(&id), script.abandoned.contains(&id));
        assert!(ends.0 != ends.1, "{ends:?}");
        if let Some(result) = done {
            result.unwrap();
            assert!(ends.0);
            break;
        }
        closed += u32::from(ends.0);
        abandoned += u32::from(ends.1);
    }
    assert!(abandoned > 0, "no INSERT was dropped behind its first CAS");
    assert!(closed > 0, "the first ones were dropped before it");
}

/// Polls a future at most `left` times, and then drops it. Returns the result if the future became ready.
async fn poll_times<T>(mut left: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match (future.as_mut().poll(context), left) {
        (Poll::Ready(result), _) => Poll::Ready(Some(result)),
        (Poll::Pending, 1) => Poll::Ready(None),
        (Poll::Pending, _) => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

#[test]
fn a_running_operation_holds_the_acknowledgement_back() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let slow = cluster.view.subtables[0].primary().node;
    let forwarder = cluster.forward(slow);
    let client = cluster.fake.connect(FabricKind::Tcp);
    client.put(b"key", b"value").unwrap();
    cluster.fake.wait("the first renewal", |script| script.heartbeats.len() == 1);
    thread::scope(|scope| {
        let session = client.session().unwrap();
        forwarder.set_silent(true);
        // After the first poll of this get, the operation has begun under the old view.
        let begun = pin!(session.get(b"key"));
        let publishing = scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            let view = cluster.next();
            let number = view.number;
            cluster.fake.publish(view);
            cluster.fake.wait("the view", |script| script.has_view == number);
            thread::sleep(Duration::from_millis(300));
            let held = !cluster.fake.is_acknowledged();
            forwarder.set_silent(false);
            held
        });
        let value = session.block_on(begun).unwrap();
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
        assert!(publishing.join().unwrap(), "it was acknowledged too early");
        cluster.fake.wait_acknowledged();
    });
}

/// A client that has seen newer views gets no session from a master that has lost some of these views.
#[test]
fn a_client_follows_no_master_back() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(dir.path());
    let client = cluster.fake.connect(FabricKind::Tcp);
    client.put(b"key", b"value").unwrap();
    cluster.fake.publish(cluster.next());
    cluster.fake.wait_acknowledged();
    // An older view, and a view with the same number but other members.
    let newest = cluster.newest();
    let mut other = newest.clone();
    other.members[0].identity ^= 1;
    for view in [cluster.view.clone(), other] {
        cluster.fake.script().view = Some(view);
        let Err(error) = client.session() else { panic!("it has one") };
        let reason = error.to_string();
        assert!(reason.contains("was started on an old copy"), "{reason}");
    }
    cluster.fake.script().view = Some(newest);
    client.session().unwrap();
}
