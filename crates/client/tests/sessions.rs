//! Sessions with a real master and real memory nodes: they end when they should, and a failed
//! start leaves nothing open.

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{master, node};
use fusee_client::{Client, FabricChoice, FabricKind, Options};

const SOON: Duration = Duration::from_secs(20);

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

fn blocks_owned(client: &Client) -> u64 {
    client.usage().into_iter().filter_map(|(_, u)| u.ok()).map(|u| u.primary_blocks_owned).sum()
}

#[test]
fn sessions_of_all_threads_end_with_the_client_or_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let _nodes = [node(dir.path(), &master), node(dir.path(), &master)];
    master.wait_formed(SOON).unwrap();
    let addr = master.addr().unwrap().to_string();
    let watcher = Client::connect(&addr).unwrap();
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        for round in 0..5u32 {
            let options = Options { fabric: FabricChoice::Only(fabric), ..Options::default() };
            let client = Client::connect_with(&addr, options).unwrap();
            let (go, wait) = mpsc::channel::<()>();
            let (done, written) = mpsc::channel();
            let other = thread::spawn(move || {
                client.put(&round.to_le_bytes(), b"value").unwrap();
                done.send(client).unwrap();
                wait.recv().unwrap_err();
            });
            // The last clone goes on this thread, the other thread's session a little later.
            drop(written.recv().unwrap());
            drop(go);
            other.join().unwrap();
            let open = || watcher.status().unwrap().open_sessions;
            wait_until("the end of the sessions", || open() == 1);
        }
    }
    assert_eq!(blocks_owned(&watcher), 1, "each session went on with the block of the last one");
}

#[test]
fn a_session_that_cannot_start_is_not_left_open() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let kept = node(dir.path(), &master);
    let lost = node(dir.path(), &master);
    master.wait_formed(SOON).unwrap();
    let addr = master.addr().unwrap().to_string();
    lost.stop();
    kept.stop();
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let (fabric, connect_timeout) = (FabricChoice::Only(fabric), Duration::from_millis(200));
        let options = Options { fabric, connect_timeout, ..Options::default() };
        let error = Client::connect_with(&addr, options).unwrap_err().to_string();
        assert!(error.contains("cannot attach to memory node"), "{error}");
    }
    let status =
        || match master.client().call_blocking(fusee_control::master::MasterRequest::Status) {
            Ok(fusee_control::master::MasterReply::Status(status)) => status,
            other => panic!("{other:?}"),
        };
    wait_until("the end of the sessions", || status().open_sessions == 0);
    assert!(status().sessions_opened >= 2, "the master's own take names as well");
}

/// The view goes on without a dead node, and so do sessions that need a block.
#[test]
fn allocation_goes_on_beside_a_dead_backup() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let kept = node(dir.path(), &master);
    let lost = node(dir.path(), &master);
    master.wait_formed(SOON).unwrap();
    let client = Client::connect(&master.addr().unwrap().to_string()).unwrap();
    lost.stop();
    for i in 0..5u32 {
        client.put(&i.to_le_bytes(), b"value").unwrap();
    }
    assert!(blocks_owned(&client) >= 1);
    kept.stop();
}
