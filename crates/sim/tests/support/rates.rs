//! Checks of the rates of Moves that sessions make for their policy, and of the counters of moved values.
//!
//! A rate bounds the bytes in any period, not only on average. Therefore these runs, in virtual time, compare the
//! session's own count with the bound again and again.

use std::time::Duration;

use fusee_client::{Demotion, Policy, PromotedRedundancy, Promotion, RedundancyRules};
use fusee_core::data::Redundancy;
use fusee_core::stats::SessionWork;
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Sim, SimCluster};

use super::scripted::generations::GenerationSession;
use super::scripted::{VALUE, run};

const VALUE_BYTES: usize = 3_000;
const BYTES_PER_S: u64 = 20_000;
/// Number of seconds for which an unused rate accumulates.
const SAVED_S: f64 = 1.0;
const KEYS: u32 = 60;

fn key(n: u32) -> [u8; 4] {
    n.to_le_bytes()
}

fn redundancy(text: &str) -> Redundancy {
    text.parse().expect("it is one")
}

/// Makes a cluster with this policy, whose sessions write values with the redundancy `written`.
fn cluster(sim: &Sim, policy: Policy, written: &str) -> SimCluster {
    let defaults = ClusterOptions::default();
    let geometry = Geometry {
        region_bytes: 1 << 17,
        block_bytes: 1 << 14,
        slots_per_bucket: 7,
        max_value_bytes: VALUE_BYTES as u32,
        ..defaults.geometry
    };
    let session = fusee_client::logic::LogicOptions {
        redundancy: Some(RedundancyRules::from_length(0, redundancy(written))),
        ..defaults.session
    };
    let pool_bytes = 8 << 20;
    let lease_ms = Some(1_000);
    let options = ClusterOptions {
        geometry,
        session,
        pool_bytes,
        policy,
        index_keys: 500,
        lease_ms,
        ..defaults
    };
    SimCluster::new(sim, &options)
}

/// Returns the greatest number of bytes that a session is allowed to have moved after this time.
fn most(seconds: f64) -> u64 {
    (BYTES_PER_S as f64 * (seconds + SAVED_S)) as u64 + VALUE_BYTES as u64
}

/// Memory is short during successive writes, each of which would demote some pairs.
pub fn demotion(seed: u64) {
    let sim = Sim::new(seed);
    let demotion = Some(Demotion { above_percent: 1, bytes_per_s: BYTES_PER_S });
    let policy = Policy { demotion, ..Policy::default() };
    let cluster = cluster(&sim, policy, "eor:2:2+1");
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, Duration::from_secs(1));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        for n in 0..KEYS {
            session.insert(&key(n), &[1; VALUE_BYTES]).await.expect("there is room");
        }
        let begun = sim.now();
        let before = session.gate().transitions().demoted_bytes;
        for n in 0..600 {
            session.gate().tell_short(true);
            session.update(&key(n % KEYS), &[2; VALUE_BYTES]).await.expect("there is room");
            sim.sleep(5_000_000).await;
            let seconds = (sim.now() - begun) as f64 / 1e9;
            let demoted = session.gate().transitions().demoted_bytes - before;
            assert!(demoted <= most(seconds), "{demoted} bytes after {seconds} s");
        }
        let demoted = session.gate().transitions().demoted_bytes - before;
        assert!(demoted >= BYTES_PER_S, "nothing was to be seen: {demoted} bytes");
    });
}

/// Many coded pairs are read, each of them often enough for a promotion.
pub fn promotion(seed: u64) {
    let sim = Sim::new(seed);
    let promotion = Some(Promotion {
        after_reads: 2,
        window_ms: 60_000,
        to: PromotedRedundancy::Replicated,
        bytes_per_s: BYTES_PER_S,
    });
    let policy = Policy { promotion, ..Policy::default() };
    let cluster = cluster(&sim, policy, "ec:2+1");
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, Duration::from_secs(1));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        for n in 0..KEYS {
            session.insert(&key(n), &[1; VALUE_BYTES]).await.expect("there is room");
        }
        let begun = sim.now();
        for n in 0..20 * KEYS {
            session.get(&key(n % KEYS)).await.expect("it is there");
            sim.sleep(2_000_000).await;
            let seconds = (sim.now() - begun) as f64 / 1e9;
            let promoted = session.gate().transitions().promoted_bytes;
            assert!(promoted <= most(seconds), "{promoted} bytes after {seconds} s");
        }
        let promoted = session.gate().transitions().promoted_bytes;
        assert!(promoted >= BYTES_PER_S, "nothing was to be seen: {promoted} bytes");
    });
}

/// The counters of a session's operations equal the traffic of its fabric.
pub fn counters(seed: u64) {
    let lives = GenerationSession::new(seed);
    let store = &lives.store;
    let script = &lives.script;
    run(store.insert(b"a", &VALUE)).expect("there is room");
    for n in 0..40 {
        lives.update(b"a");
        let found = run(store.search(b"a", None)).expect("a SEARCH never fails");
        assert_eq!(found.value().map(<[u8]>::len), Some(VALUE.len()), "{n}");
    }
    lives.delete(b"a");
    assert_eq!(run(store.search(b"a", None)).expect("nor does this one").value(), None);
    let work = SessionWork::from(&store.stats());
    let phases: u64 = work.phases.iter().sum();
    assert_eq!([phases, work.verbs, work.bytes], script.moved());
    let pairs = (40 * 2 + 40) * VALUE.len() as u64;
    assert!(
        (pairs..2 * pairs).contains(&work.bytes),
        "{} bytes, and {pairs} of values",
        work.bytes
    );
}
