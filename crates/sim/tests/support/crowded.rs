//! Keys that hash alike, as an attacker with the cluster's hash key would choose them.
//!
//! There are more such keys than slots for them, and no split of the index separates them. INSERTs of the last ones are
//! refused with an error of their own, and no other write is refused. If sessions ask for splits nevertheless, the
//! master bounds the depth of the index.

use std::collections::BTreeMap;
use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_core::error::Error;
use fusee_core::race::{Buckets, Key};
use fusee_core::view::{Geometry, UNEVEN_BITS, View};
use fusee_sim::{ClusterOptions, ProcessId, Sim, SimCluster};

use super::late_repairs::wait_for_all_replicas;

/// Number of slots for a key: two combined buckets, each of two buckets of two slots.
const SLOTS: usize = 8;
/// Number of keys that hash alike, which is more than fit.
const ALIKE: usize = SLOTS + 3;
/// Number of other keys, so many that the index must grow.
const OTHERS: u32 = 40;
/// Number of directory bits in which the keys that hash alike agree, which is more than the index uses here.
const COMMON_BITS: u32 = 11;
/// Length of a long key, longer than the part of an object that is READ first.
const LONG_KEY_BYTES: usize = 300;
const LEASE: Duration = Duration::from_millis(50);

/// Returns keys that share all their slots, however deep the index becomes. Some of the keys are long.
fn alike(view: &View) -> Vec<Vec<u8>> {
    let first = Key::new(b"first", &view.hash_key);
    let buckets = Buckets::of(first, view);
    let mut found = vec![b"first".to_vec()];
    for number in 0u64.. {
        let mut key = number.to_le_bytes().to_vec();
        if number % 3 == 0 {
            key.resize(LONG_KEY_BYTES, 7);
        }
        let hashed = Key::new(&key, &view.hash_key);
        if hashed.common_bits(&first) >= COMMON_BITS {
            let other = Buckets::of(hashed, view);
            let same = (0..view.geometry.subtable_slots() as u32)
                .all(|slot| view_covers(&buckets, slot) == view_covers(&other, slot));
            if same {
                found.push(key);
            }
        }
        if found.len() == ALIKE {
            break;
        }
    }
    found
}

fn view_covers(buckets: &Buckets, slot: u32) -> bool {
    buckets.covers(fusee_core::view::SlotRef { subtable: buckets.subtable, slot })
}

fn options() -> ClusterOptions {
    let defaults = ClusterOptions::default();
    let session = LogicOptions { op_timeout: Duration::from_millis(500), ..defaults.session };
    let geometry = Geometry { max_key_bytes: 512, ..defaults.geometry };
    let lease_ms = Some(LEASE.as_millis() as u64);
    ClusterOptions { geometry, lease_ms, session, ..defaults }
}

/// A session inserts keys that hash alike, and other keys. The keys that hash alike are refused once their slots are
/// full.
pub fn crowded(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let before = cluster.view().clone();
        let keys = alike(&before);
        let mut kept = BTreeMap::new();
        for key in &keys {
            match session.insert(key, key).await {
                Ok(()) => drop(kept.insert(key.clone(), key.clone())),
                Err(error) => assert_eq!(error, Error::KeysHashAlike),
            }
        }
        assert_eq!(kept.len(), SLOTS, "what fits is taken");
        let refused = keys.iter().find(|key| !kept.contains_key(*key)).expect("more than fit");
        assert_eq!(session.put(refused, b"again").await, Err(Error::KeysHashAlike));
        assert_eq!(cluster.view().number, before.number, "a split that separates nothing");
        for number in 0..OTHERS {
            let key = format!("other {number}").into_bytes();
            session.put(&key, b"value").await.expect("the index grows");
            kept.insert(key, b"value".to_vec());
        }
        assert!(cluster.view().subtables.len() > before.subtables.len(), "it has grown");
        check_depth(&cluster.view());
        // After one of the keys is deleted, another key fits.
        session.delete(&keys[0]).await.expect("it is there");
        kept.remove(&keys[0]);
        session.put(refused, b"fits").await.expect("a slot is free");
        kept.insert(refused.clone(), b"fits".to_vec());
        cluster.restart_master(1_000_000);
        reads_all(&cluster, process, &kept).await;
        let leaving = session.leave().await.expect("nothing is left half-way");
        keeper.close(session.id());
        assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
        wait_for_all_replicas(&cluster).await;
        reads_all(&cluster, process, &kept).await;
    });
}

/// Opens a new session, and asserts that it finds all pairs.
async fn reads_all(cluster: &SimCluster, process: ProcessId, kept: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let session = loop {
        match cluster.open(process, cluster.options().session).await {
            Ok(session) => break session,
            Err(_) => cluster.sim().sleep(1_000_000).await,
        }
    };
    for (key, value) in kept {
        let found = session.get(key).await.expect("all nodes answer");
        assert_eq!(found.as_deref(), Some(&value[..]), "of {key:?}");
    }
    let leaving = session.leave().await.expect("nothing is left half-way");
    assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
}

fn check_depth(view: &View) {
    let deepest = view.subtables.len().ilog2() + UNEVEN_BITS;
    assert!(view.depth() <= deepest, "{} bits, {} subtables", view.depth(), view.subtables.len());
}

/// A session asks for splits of one subtable again and again, until the master refuses.
pub fn asks_too_much(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &options());
    let process = cluster.client_process();
    cluster.block_on(process, async {
        let mut splits = 0;
        loop {
            let view = cluster.view().clone();
            // Directory entry 0 always leads to one half of the subtable that was split last.
            let request = MasterRequest::Split { subtable: view.directory[0], view: view.number };
            match cluster.peek_master(request) {
                Some(MasterReply::Done) => {}
                Some(MasterReply::TooDeep) => break,
                other => panic!("{other:?}"),
            }
            while cluster.view().number == view.number || cluster.view().change.is_some() {
                sim.sleep(1_000_000).await;
            }
            splits += 1;
            check_depth(&cluster.view());
        }
        // Each split adds a subtable, so the master's bound on the depth of the index grows with the logarithm of the
        // number of splits.
        assert!((UNEVEN_BITS..UNEVEN_BITS + 6).contains(&splits), "{splits}");
        let session = cluster.open(process, options().session).await.expect("a master leads");
        session.put(b"key", b"value").await.expect("the cluster goes on");
        let leaving = session.leave().await.expect("nothing is left half-way");
        assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
    });
}
