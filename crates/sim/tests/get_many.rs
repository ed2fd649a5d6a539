//! Tests of the costs and answers of `get_many`. All keys of a call share phases, whichever memory nodes they are on,
//! and every answer is the one that `get` would give.

use fusee_client::BatchWrite;
use fusee_core::layout::Object;
use fusee_core::stats::{KindStats, OpKind, Stats};
use fusee_core::view::Geometry;
use fusee_core::{Error, FailedWriteOutcome};
use fusee_sim::{ClusterOptions, Sim, SimClient, SimCluster};
use futures_util::future::join;

/// Number of keys with small objects that share a phase: half of the verbs of a batch.
const TOGETHER: u32 = 512;
/// Number of bytes of objects that share a phase.
const TOGETHER_BYTES: u64 = 2 << 20;

/// Makes a cluster of five memory nodes, with room for some hundred keys in a few subtables.
fn cluster() -> SimCluster {
    let mut options = ClusterOptions { memory_nodes: 5, index_keys: 6_000, ..Default::default() };
    options.geometry = Geometry {
        region_bytes: 8 << 20,
        block_bytes: 1 << 18,
        slots_per_bucket: 8,
        groups_per_subtable: 64,
        max_value_bytes: 128 << 10,
        ..options.geometry
    };
    options.pool_bytes = 64 << 20;
    options.session.cache_entries = 10_000;
    SimCluster::new(&Sim::new(1), &options)
}

/// Runs a scenario with one client, while no other client works.
fn on<T>(
    cluster: &SimCluster,
    client: &SimClient,
    scenario: impl AsyncFnOnce(&SimClient) -> T,
) -> T {
    cluster.block_on(client.process, scenario(client))
}

fn keys(n: u32) -> Vec<[u8; 4]> {
    (0..n).map(u32::to_le_bytes).collect()
}

async fn insert_all(client: &SimClient, keys: &[[u8; 4]], value: &[u8]) {
    for key in keys {
        client.session.insert(key, value).await.unwrap();
    }
}

/// Runs one `get_many`, asserts its answers, and returns its cost, as counted by the session.
async fn ask(client: &SimClient, keys: &[[u8; 4]], expected: &[Option<&[u8]>]) -> KindStats {
    let before = client.session.stats();
    let found = client.session.get_many(keys).await.unwrap();
    let found: Vec<Option<&[u8]>> = found.iter().map(Option::as_deref).collect();
    assert!(found == expected, "one of {} answers is wrong", keys.len());
    let after = client.session.stats();
    assert_eq!(alone(&after), alone(&before), "no key is looked up alone");
    let after = after.kind(OpKind::SearchMany);
    let before = before.kind(OpKind::SearchMany);
    assert_eq!(after.operations - before.operations, 1);
    KindStats {
        operations: 1,
        phases: after.phases - before.phases,
        max_phases: 0,
        verbs: after.verbs - before.verbs,
        atomics: after.atomics - before.atomics,
        bytes: after.bytes - before.bytes,
    }
}

fn alone(stats: &Stats) -> u64 {
    stats.kind(OpKind::Search).operations
}

// Promise PHA-2: `get_many` of 512 cached keys takes one phase.
#[test]
fn cached_keys_share_one_phase_on_all_memory_nodes() {
    let cluster = cluster();
    let client = cluster.client();
    let view = cluster.view().clone();
    let primaries = view.subtables.iter().map(|s| s.primary().node);
    let primaries: std::collections::BTreeSet<_> = primaries.collect();
    assert!(primaries.len() > 2, "keys are on several sets of replicas");
    on(&cluster, &client, async |client| {
        let keys = keys(2 * TOGETHER + 1);
        insert_all(client, &keys, b"value").await;
        let value = Some(&b"value"[..]);
        for (n, phases) in [(1, 1), (2, 1), (100, 1), (512, 1), (513, 2), (1024, 2), (1025, 3)] {
            let cost = ask(client, &keys[..n], &vec![value; n]).await;
            assert_eq!((cost.phases, cost.verbs), (phases, 2 * n as u64), "{n} keys");
            assert_eq!((cost.atomics, cost.bytes), (0, (8 + 64) * n as u64), "{n} keys");
        }
        assert_eq!(ask(client, &[], &[]).await.phases, 0);
    });
}

/// `write_many` runs its writes concurrently: all of them together take about as long as one write.
// Promise PHA-7: `write_many` of 64 updates takes less than four updates' time.
#[test]
fn many_writes_share_the_time_of_their_phases() {
    let cluster = cluster();
    let client = cluster.client();
    on(&cluster, &client, async |client| {
        let keys = keys(64);
        let values: [&[u8]; 2] = [b"1", b"3"];
        let puts: Vec<_> = keys.iter().map(|key| BatchWrite::put(key, values[0])).collect();
        let updates: Vec<_> = keys.iter().map(|key| BatchWrite::update(key, values[1])).collect();
        let now = || cluster.sim().now();
        assert_eq!(client.session.write_many(&puts).await, vec![Ok(()); 64]);
        // The longest of a few writes is taken, because the time of a write depends on the place of its object.
        let mut one = 0;
        for key in &keys[..8] {
            let begun = now();
            client.session.update(key, b"2").await.unwrap();
            one = one.max(now() - begun);
        }
        let begun = now();
        assert_eq!(client.session.write_many(&updates).await, vec![Ok(()); 64]);
        let many = now() - begun;
        assert!(many < 4 * one, "one takes {one} ns, 64 take {many}");
        let values = client.session.get_many(&keys).await.unwrap();
        assert_eq!(values, vec![Some(b"3".to_vec()); 64]);
    });
}

/// A session is fenced during `put_many`. Writes that have begun are answered, and the other writes are never begun.
#[test]
fn a_session_that_is_fenced_begins_no_more_of_many_writes() {
    let cluster = cluster();
    let client = cluster.client();
    on(&cluster, &client, async |client| {
        let keys = keys(500);
        let puts: Vec<_> = keys.iter().map(|key| BatchWrite::put(key, b"value")).collect();
        let fence = async {
            while client.session.stats().kind(OpKind::Upsert).operations < 50 {
                cluster.sim().sleep(1_000).await;
            }
            client.session.gate().expel();
        };
        let (outcomes, ()) = join(client.session.write_many(&puts), fence).await;
        let expelled = Err(Error::Expelled { outcome: FailedWriteOutcome::NotApplied });
        let not_begun = outcomes.iter().filter(|outcome| **outcome == expelled).count();
        let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!(done > 20 && not_begun > 20, "{done} are done, {not_begun} are not begun");
        let began = client.session.stats().kind(OpKind::Upsert).operations;
        assert!(began + not_begun as u64 <= 500, "{began} began");
    });
}

#[test]
fn large_values_are_split_by_their_bytes() {
    let cluster = cluster();
    let client = cluster.client();
    on(&cluster, &client, async |client| {
        let value = vec![7; 100 << 10];
        let object = Object::class(4, value.len()).unwrap().bytes();
        let together = (TOGETHER_BYTES / (object + 64)) as usize;
        let keys = keys(3 * together as u32);
        insert_all(client, &keys, &value).await;
        let expected = vec![Some(&value[..]); keys.len()];
        for (n, phases) in [(together, 1), (together + 1, 2), (3 * together, 3)] {
            let cost = ask(client, &keys[..n], &expected[..n]).await;
            assert_eq!((cost.phases, cost.verbs), (phases, 2 * n as u64), "{n} keys");
        }
    });
    // Without hints, the first phase READs all buckets, and the second phase READs as many objects as have room. The
    // words of the buckets become hints for the other keys.
    let fresh = cluster.client();
    on(&cluster, &fresh, async |client| {
        let value = vec![7; 100 << 10];
        let object = Object::class(4, value.len()).unwrap().bytes();
        let together = (TOGETHER_BYTES / object) as usize;
        let keys = keys(2 * together as u32);
        let cost = ask(client, &keys, &vec![Some(&value[..]); keys.len()]).await;
        assert!((3..=4).contains(&cost.phases), "{cost:?}");
    });
}

#[test]
fn keys_that_are_missing_or_not_cached_share_two_phases() {
    let cluster = cluster();
    let writer = cluster.client();
    let reader = cluster.client();
    let keys = keys(200);
    on(&cluster, &writer, async |writer| insert_all(writer, &keys[..150], b"value").await);
    on(&cluster, &reader, async |reader| {
        let mut expected = vec![Some(&b"value"[..]); 150];
        expected.resize(200, None);
        assert_eq!(ask(reader, &keys, &expected).await.phases, 2);
        // Now the cache has the places of the 150 keys. Missing keys are not cached.
        assert_eq!(ask(reader, &keys[..150], &expected[..150]).await.phases, 1);
        // This takes one phase, and a second one if a slot has the fingerprint of a missing key.
        let missing = ask(reader, &keys[150..], &expected[150..]).await;
        assert!((1..=2).contains(&missing.phases), "{missing:?}");
    });
}

#[test]
fn keys_that_occur_twice_are_answered_twice() {
    let cluster = cluster();
    let client = cluster.client();
    on(&cluster, &client, async |client| {
        let [a, b, missing] = [1u32, 2, 3].map(u32::to_le_bytes);
        client.session.insert(&a, b"a").await.unwrap();
        client.session.insert(&b, b"b").await.unwrap();
        let va = Some(&b"a"[..]);
        let vb = Some(&b"b"[..]);
        let keys = [a, missing, a, b, missing, a];
        let cost = ask(client, &keys, &[va, None, va, vb, None, va]).await;
        assert_eq!(cost.phases, 1, "no slot is like the missing one's");
    });
}

#[test]
fn slots_that_others_changed_are_followed_together() {
    let cluster = cluster();
    let writer = cluster.client();
    let reader = cluster.client();
    let keys = keys(300);
    on(&cluster, &writer, async |writer| insert_all(writer, &keys, b"old").await);
    on(&cluster, &reader, async |reader| {
        ask(reader, &keys, &[Some(&b"old"[..]); 300]).await;
    });
    on(&cluster, &writer, async |writer| {
        for key in &keys[..100] {
            writer.session.update(key, b"new").await.unwrap();
        }
        for key in &keys[100..200] {
            writer.session.delete(key).await.unwrap();
        }
    });
    on(&cluster, &reader, async |reader| {
        let mut expected = vec![Some(&b"new"[..]); 100];
        expected.resize(200, None);
        expected.resize(300, Some(b"old"));
        // The second phase READs the objects of the changed slots. The keys of the empty slots are looked up in a third
        // phase, and in a fourth one if a slot has the fingerprint of any of them.
        let cost = ask(reader, &keys, &expected).await;
        assert!((3..=4).contains(&cost.phases), "{cost:?}");
        assert_eq!(ask(reader, &keys[..100], &expected[..100]).await.phases, 1);
    });
}

#[test]
fn hints_whose_slots_went_to_other_keys_are_given_up_together() {
    let cluster = cluster();
    let writer = cluster.client();
    let reader = cluster.client();
    let keys = keys(300);
    on(&cluster, &writer, async |writer| insert_all(writer, &keys[..100], b"old").await);
    on(&cluster, &reader, async |reader| {
        ask(reader, &keys[..100], &[Some(&b"old"[..]); 100]).await;
    });
    on(&cluster, &writer, async |writer| {
        for key in &keys[..100] {
            writer.session.delete(key).await.unwrap();
        }
        // Other keys take the slots of the deleted keys, and the deleted keys come back in other slots.
        insert_all(writer, &keys[100..], b"other").await;
        insert_all(writer, &keys[..100], b"new").await;
    });
    on(&cluster, &reader, async |reader| {
        let cost = ask(reader, &keys[..100], &[Some(&b"new"[..]); 100]).await;
        assert!((3..=4).contains(&cost.phases), "{cost:?}");
        assert_eq!(ask(reader, &keys[..100], &[Some(&b"new"[..]); 100]).await.phases, 1);
    });
}

#[test]
fn one_bad_key_is_an_error_before_anything_is_posted() {
    let cluster = cluster();
    let client = cluster.client();
    on(&cluster, &client, async |client| {
        client.session.insert(b"key", b"value").await.unwrap();
        let found = client.session.get_many(&[&b"key"[..], b""]).await;
        assert_eq!(found, Err(Error::KeyEmpty));
        let long = vec![1; 65];
        let found = client.session.get_many(&[&b"key"[..], &long]).await;
        assert_eq!(found, Err(Error::KeyTooLarge { bytes: 65, max_bytes: 64 }));
        assert_eq!(client.session.stats().kind(OpKind::SearchMany).operations, 0);
    });
}
