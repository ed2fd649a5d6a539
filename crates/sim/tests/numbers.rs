//! Tests of what DELETEs use: numbers, places for records, and log areas.

use std::collections::BTreeSet;
use std::time::Duration;

use fusee_control::master::MasterReply;
use fusee_sim::{ClusterOptions, Sim, SimCluster};
use futures_util::future::join_all;

const LEASE: Duration = Duration::from_millis(20);

fn options() -> ClusterOptions {
    let lease_ms = Some(LEASE.as_millis() as u64);
    ClusterOptions { memory_nodes: 3, index_replicas: 3, lease_ms, ..ClusterOptions::default() }
}

/// A session that has used all numbers with its own client id goes on with another client id, and every number is new.
#[test]
fn a_session_without_numbers_gets_further_ones() {
    let sim = Sim::new(1);
    let cluster = SimCluster::new(&sim, &options());
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let mut words = BTreeSet::new();
        let mut clients = BTreeSet::new();
        for round in 0..3 {
            store.skip_numbers(2);
            for number in 0..4 {
                store.insert(b"key", b"value").await.expect("there is room");
                let hint = store.search(b"key", None).await.expect("it is there").hint();
                store.delete(b"key", hint).await.expect("it is there");
                let slot = hint.expect("it was found").slot;
                let places: Vec<_> = cluster.view().slot_places(slot).collect();
                let left = cluster.network().memories().word_at(places[0]);
                assert!(words.insert(left.0), "round {round}, DELETE {number}: {left:?}");
                clients.insert(left.numbered_by().expect("a number"));
            }
        }
        assert_eq!(clients.len(), 4, "its own id, and one for each round: {clients:?}");
        assert!(clients.contains(&session.id()));
    });
}

/// A session runs more DELETEs at once than its log areas have records.
#[test]
fn more_deletes_than_records_wait_for_each_other() {
    const KEYS: u32 = 100;
    for seed in 0..5 {
        let sim = Sim::new(seed);
        let cluster = SimCluster::new(&sim, &options());
        let process = cluster.client_process();
        let keeper = cluster.keeper(process, LEASE);
        cluster.block_on(process, async {
            let session = cluster.open_kept(process, &keeper).await;
            for key in 0..KEYS {
                session.insert(&key.to_be_bytes(), b"value").await.expect("there is room");
            }
            let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_be_bytes).collect();
            let deleted = join_all(keys.iter().map(|key| session.delete(key))).await;
            assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
        });
    }
}

/// Many more sessions delete, one after the other, than the pools have log areas.
#[test]
fn log_areas_of_ended_sessions_are_lent_again() {
    const SESSIONS: u32 = 600;
    let sim = Sim::new(1);
    let options = ClusterOptions { pool_bytes: 1 << 20, ..options() };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        for number in 0..SESSIONS {
            let session = cluster.open_kept(process, &keeper).await;
            session.insert(b"key", b"value").await.expect("there is room");
            let deleted = session.delete(b"key").await;
            deleted.unwrap_or_else(|error| panic!("session {number}: {error}"));
            let leaving = session.leave().await.expect("nothing is left half-way");
            keeper.close(session.id());
            assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
            sim.sleep(1_000_000).await;
        }
    });
}
