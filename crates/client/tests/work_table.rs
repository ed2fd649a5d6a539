//! A work table in a real process: threads that share one, async calls, and a fabric that has none.

mod common;

use std::thread;

use fusee_client::{BlockingClient, Client, ConnectError, FabricKind, Options, WorkTable};
use futures_util::future::{FutureExt, join_all};

fn client(fabric: FabricKind, work_table: WorkTable) -> Result<BlockingClient, ConnectError> {
    let options = Options::default().with_work_table(work_table);
    Ok(Client::embedded(common::options(fabric).with_client(options))?.blocking())
}

#[test]
fn there_is_none_over_shared_memory() {
    for work_table in [WorkTable::Strict, WorkTable::Relaxed] {
        let refused = client(FabricKind::Shm, work_table).unwrap_err();
        assert!(matches!(refused, ConnectError::WorkTableOverShm), "{refused}");
        assert!(refused.to_string().contains("choose another fabric"), "{refused}");
    }
    let without = client(FabricKind::Shm, WorkTable::Off).unwrap();
    assert!(without.metrics().work_table.is_none());
}

/// One thread puts growing numbers, and gets each of them back. No other thread gets a smaller number than it has got
/// before. (`fusee-bench ycsb --check --work-table strict` judges whole histories.)
#[test]
fn threads_that_share_a_strict_table_see_each_others_writes() {
    let client = client(FabricKind::Tcp, WorkTable::Strict).unwrap();
    client.insert(b"key", &0u64.to_le_bytes()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=300u64 {
                client.update(b"key", &number.to_le_bytes()).unwrap();
                let found = client.get(b"key").unwrap().unwrap();
                assert_eq!(found, number.to_le_bytes());
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = 0;
                for _ in 0..600 {
                    let found = client.get(b"key").unwrap().unwrap();
                    let number = u64::from_le_bytes(found.try_into().unwrap());
                    assert!(number >= last, "{number} after {last}");
                    last = number;
                }
            });
        }
    });
    let stats = client.metrics().work_table.unwrap();
    assert!(stats.rides + stats.compared > 0, "{stats:?}");
}

/// Async calls whose futures are dropped go on, and delay no other call.
#[tokio::test]
async fn calls_that_are_dropped_hold_nobody_up() {
    let client = client(FabricKind::Tcp, WorkTable::Strict).unwrap();
    client.client().put(b"key", b"0").await.unwrap();
    for _ in 0..20 {
        // The future is polled once, and then dropped.
        drop(client.client().put(b"key", b"1").now_or_never());
        let puts = (0..5).map(|_| client.client().put(b"key", b"2"));
        for put in join_all(puts).await {
            put.unwrap();
        }
        // On a stalled machine, the dropped put possibly still runs when the other puts run, and takes effect last.
        let found = client.client().get(b"key").await.unwrap().unwrap();
        assert!(found == b"1" || found == b"2", "{found:?}");
    }
    assert!(client.metrics().work_table.unwrap().absorbed > 0);
}
