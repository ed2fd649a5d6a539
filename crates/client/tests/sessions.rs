//! Sessions with a real master and real memory nodes: sessions end when they should, and a failed start leaves no
//! session open.

// Promise API-2

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{master, node};
use fusee_client::{BlockingClient, Client, FabricKind, MemorySurvey, Options, SurveyError};

const SOON: Duration = Duration::from_secs(20);

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the bytes of all blocks that have owners.
fn bytes_owned(client: &BlockingClient) -> u64 {
    client.admin().usage().into_iter().filter_map(|(_, u)| u.ok()).map(|u| u.led_bytes_owned).sum()
}

#[test]
fn sessions_of_all_threads_end_with_the_client_or_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let _nodes = [node(dir.path(), &master), node(dir.path(), &master)];
    master.wait_formed(SOON).unwrap();
    let addr = master.addr().unwrap().to_string();
    let watcher = Client::connect(&addr).unwrap().blocking();
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        for round in 0..5u32 {
            let options = Options::default().with_fabric(fabric);
            let client = Client::connect_with(&addr, options).unwrap().blocking();
            let (go, wait) = mpsc::channel::<()>();
            let (done, written) = mpsc::channel();
            let other = thread::spawn(move || {
                client.put(&round.to_le_bytes(), b"value").unwrap();
                done.send(client).unwrap();
                wait.recv().unwrap_err();
            });
            // This thread drops the last clone of the client. The session of the other thread ends a little later.
            drop(written.recv().unwrap());
            drop(go);
            other.join().unwrap();
            let open = || watcher.admin().status().unwrap().open_sessions;
            wait_until("the end of the sessions", || open() == 1);
        }
    }
    let smallest = watcher.view().geometry.frame_bytes();
    let owned = bytes_owned(&watcher);
    assert_eq!(owned, smallest, "each session went on with the block of the last one");
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
        let timeout = Duration::from_millis(200);
        let options = Options::default().with_fabric(fabric).with_connect_timeout(timeout);
        let error = Client::connect_with(&addr, options).unwrap_err().to_string();
        assert!(error.contains("cannot attach to memory node"), "{error}");
    }
    let status =
        || match master.client().call_blocking(fusee_control::master::MasterRequest::Status) {
            Ok(fusee_control::master::MasterReply::Status(status)) => *status,
            other => panic!("{other:?}"),
        };
    wait_until("the end of the sessions", || status().open_sessions == 0);
    assert!(status().sessions_opened >= 2, "the master's own take names as well");
}

/// When a backup's node dies, the view continues without it, and so do sessions that need a block.
#[test]
fn allocation_goes_on_beside_a_dead_backup() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let kept = node(dir.path(), &master);
    let lost = node(dir.path(), &master);
    master.wait_formed(SOON).unwrap();
    let client = Client::connect(&master.addr().unwrap().to_string()).unwrap().blocking();
    lost.stop();
    for i in 0..5u32 {
        client.put(&i.to_le_bytes(), b"value").unwrap();
    }
    assert!(bytes_owned(&client) > 0);
    kept.stop();
}

/// While surveys read regions, over shared memory and over TCP, the regions move to a memory node that joins.
#[test]
fn a_survey_counts_every_block_once_while_regions_move() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let _nodes = [node(dir.path(), &master), node(dir.path(), &master)];
    master.wait_formed(SOON).unwrap();
    let addr = master.addr().unwrap().to_string();
    let connect = |fabric| {
        let options = Options::default().with_fabric(fabric);
        Client::connect_with(&addr, options).unwrap().blocking()
    };
    let clients = [FabricKind::Shm, FabricKind::Tcp].map(connect);
    for i in 0..165u32 {
        clients[0].put(&i.to_le_bytes(), &[1; 60 << 10]).unwrap();
    }
    let first = clients[1].admin().survey_memory().unwrap();
    let in_classes = |survey: &MemorySurvey| {
        let classes = survey.classes.iter().map(|class| [class.blocks, class.bytes, class.objects]);
        classes.fold([0; 3], |sum, class| [0, 1, 2].map(|of| sum[of] + class[of]))
    };
    let written = in_classes(&first);
    assert!(written[0] >= 10 && written[2] >= 165, "{first:?}");
    let _third = node(dir.path(), &master);
    let mut views = std::collections::BTreeSet::from([first.view]);
    let mut has_all = false;
    wait_until("the new node has its share", || {
        for client in &clients {
            let survey = client.admin().survey_memory().unwrap();
            let classes = in_classes(&survey);
            let owners: u64 = survey.owners.iter().map(|owner| owner.blocks).sum();
            let led: u64 = survey.nodes.iter().map(|node| node.led_bytes).sum();
            let used = survey.blocks - survey.free_blocks;
            assert_eq!((classes[0] + survey.blank_blocks, owners), (used, used));
            let owned: u64 = survey.owners.iter().map(|owner| owner.bytes).sum();
            assert_eq!((owned, led), (led - survey.free_block_bytes, survey.led_bytes));
            assert_eq!(classes, written, "{survey:?}");
            assert!(survey.led_bytes >= first.led_bytes, "{survey:?}");
            assert_eq!((survey.unreadable_headers, survey.unreadable_owners), (0, 0));
            views.insert(survey.view);
            has_all = survey.nodes.len() == 3 && survey.nodes.iter().all(|node| node.led_bytes > 0);
        }
        has_all && !clients[0].admin().status().unwrap().rebalancing
    });
    assert!(views.len() > 1, "{views:?}");
}

#[test]
fn a_survey_outlives_a_memory_node_but_not_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let kept = node(dir.path(), &master);
    let lost = node(dir.path(), &master);
    master.wait_formed(SOON).unwrap();
    let fabric = FabricKind::Tcp;
    let options = Options::default().with_fabric(fabric).with_op_timeout(Duration::from_secs(2));
    let client =
        Client::connect_with(&master.addr().unwrap().to_string(), options).unwrap().blocking();
    client.put(b"key", b"value").unwrap();
    let before = client.admin().survey_memory().unwrap();
    lost.stop();
    let after = client.admin().survey_memory().unwrap();
    assert_eq!((before.nodes.len(), after.nodes.len()), (2, 1));
    assert_eq!((before.blocks, before.owners), (after.blocks, after.owners));
    kept.stop();
    let error = client.admin().survey_memory().unwrap_err();
    assert!(matches!(error, SurveyError::Unreachable { .. }), "{error}");
}
