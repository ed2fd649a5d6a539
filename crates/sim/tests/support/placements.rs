//! Writes whose pair gets another redundancy, or vanishes, while they choose the slab of their object.

use std::time::Duration;

use fusee_client::RedundancyRules;
use fusee_core::data::{Orientation, Redundancy};
use fusee_core::erasure::Coding;
use fusee_core::error::Error;
use fusee_core::store::{Hint, WriteRequest, WriteResult};
use fusee_core::view::Geometry;
use fusee_sim::check::check_replicas_agree;
use fusee_sim::{ClusterOptions, Rng, Sim, SimCluster, SimStore};
use futures_util::future::join;

use super::moved_pairs::wait_for_repair;

const LEASE: Duration = Duration::from_millis(20);
const KEY: &[u8] = b"key";
/// A value that can be erasure-coded.
const LONG: [u8; 900] = [1; 900];
/// A value that cannot be erasure-coded.
const SHORT: &[u8] = b"short";

fn coded() -> Redundancy {
    Redundancy::Coded(Coding::new(2, 1).expect("there is such a code"))
}

/// Runs a scenario with two sessions of one process, in a cluster of three memory nodes.
fn with_sessions(seed: u64, scenario: impl AsyncFnOnce(&SimCluster, &SimStore, &SimStore)) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let geometry = Geometry { block_bytes: 1 << 13, max_value_bytes: 1024, ..defaults.geometry };
    let lease_ms = Some(LEASE.as_millis() as u64);
    let options = ClusterOptions { geometry, lease_ms, ..defaults };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let a = cluster.open(process, options.session).await.expect("a master leads");
        let b = cluster.open(process, options.session).await.expect("a master leads");
        keeper.open(a.gate().clone());
        keeper.open(b.gate().clone());
        scenario(&cluster, a.store(), b.store()).await;
    });
    check_replicas_agree(&cluster);
}

async fn write(store: &SimStore, request: WriteRequest<'_, &[u8]>) -> WriteResult {
    store.write(request).await.expect("there is room")
}

/// Returns the redundancy and the first byte of the pair; `None` if the key does not exist.
async fn pair_of(store: &SimStore) -> Option<(Redundancy, u8)> {
    let found = store.search(KEY, None).await.expect("nothing is lost");
    Some((found.redundancy()?, found.value()?[0]))
}

/// A session has not operated since the region of a pair was added. The session's first write has the pair's hint, and
/// keeps the pair's redundancy.
pub fn newer_view(seed: u64) {
    with_sessions(seed, async |_, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(coded());
        let hint = write(a, put).await.place.map(Hint::uncertain);
        let default =
            if seed.is_multiple_of(2) { Redundancy::Replicated } else { Redundancy::None };
        let by_rule = RedundancyRules::from_length(0, default).placement(LONG.len());
        let value = [2; LONG.len()];
        write(b, WriteRequest::update(KEY, &value).placed(by_rule).hinted(hint)).await;
        assert_eq!(pair_of(a).await, Some((coded(), 2)));
    });
}

/// A pair is deleted while it is written. There are too few memory nodes for the redundancy that a new pair would get,
/// so the write does not add a pair.
pub fn vanishing_pair(seed: u64) {
    let too_wide = Redundancy::Coded(Coding::new(3, 1).expect("there is such a code"));
    with_sessions(seed, async |cluster, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(Redundancy::Replicated);
        write(a, put).await;
        let by_rule = RedundancyRules::from_length(0, too_wide).placement(LONG.len());
        let delete = async {
            cluster.sim().sleep(Rng::named(seed, "delete").below_u64(30_000)).await;
            b.delete(KEY, None).await.expect("nothing else deletes the key");
        };
        let put = a.write(WriteRequest::upsert(KEY, &[2; LONG.len()]).placed(by_rule));
        let (put, ()) = join(put, delete).await;
        assert!(matches!(put, Ok(_) | Err(Error::Redundancy(_))), "{put:?}");
        assert_eq!(pair_of(b).await, None);
    });
}

/// One write names a redundancy. Another write keeps the redundancy that the pair has. In either order the pair has the
/// redundancy that the first write names in the end.
pub fn named_loser(seed: u64) {
    with_sessions(seed, async |cluster, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(Redundancy::None);
        let hint = write(a, put).await.place.map(Hint::uncertain);
        // Now `b` knows the region of the pair, and keeps the redundancy that the hint shows.
        pair_of(b).await;
        let named = WriteRequest::update(KEY, &[2; LONG.len()]).placed(Redundancy::Replicated);
        let by_rule = RedundancyRules::replicated().placement(LONG.len());
        let keeps = WriteRequest::update(KEY, &[3; LONG.len()]).placed(by_rule);
        let late = async {
            cluster.sim().sleep(Rng::named(seed, "late").below_u64(5_000)).await;
            write(a, named.hinted(hint)).await
        };
        join(late, write(b, keeps.hinted(hint))).await;
        let has = pair_of(a).await.map(|(redundancy, _)| redundancy);
        assert_eq!(has, Some(Redundancy::Replicated));
    });
}

/// The node of a region's parity is lost, and no other node can have the copies of the region's EC-oriented pairs. If
/// the rules ask for such pairs, a write of a replicated pair leaves it replicated. If the rules ask for replicated
/// pairs, a write of an EC-oriented pair makes it replicated.
pub fn lost_column(seed: u64) {
    let coding = Coding::new(2, 1).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    with_sessions(seed, async |cluster, a, _| {
        let put = WriteRequest::insert(&b"other"[..], &LONG).placed(oriented);
        let word = write(a, put).await.place.expect("it is there").word;
        let [has, says] = match seed % 2 {
            0 => [oriented, Redundancy::Replicated],
            _ => [Redundancy::Replicated, oriented],
        };
        let hint = write(a, WriteRequest::insert(KEY, &LONG).placed(has)).await.place;
        let parity = cluster.view().object_of(word).expect("it leads there").places().nth(2);
        cluster.nodes().crash(parity.expect("the last column").node);
        wait_for_repair(cluster).await;
        let by_rule = RedundancyRules::from_length(0, says).placement(LONG.len());
        let value = [2; LONG.len()];
        let hint = hint.filter(|_| seed % 4 / 2 == 0).map(Hint::uncertain);
        write(a, WriteRequest::update(KEY, &value).placed(by_rule).hinted(hint)).await;
        assert_eq!(pair_of(a).await, Some((Redundancy::Replicated, 2)));
        let absent = a.write(WriteRequest::update(&b"absent"[..], &value).placed(by_rule)).await;
        assert_eq!(absent, Err(Error::NotFound));
    });
}

/// As in [`lost_column`], a write has the hint of an EC-oriented pair, for which there is no room any more. Meanwhile
/// the pair has become replicated, and it stays so.
pub fn wrong_hint(seed: u64) {
    let coding = Coding::new(2, 1).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    with_sessions(seed, async |cluster, a, _| {
        let place = write(a, WriteRequest::insert(KEY, &LONG).placed(oriented)).await.place;
        let word = place.expect("it is there").word;
        a.set_redundancy(KEY, Redundancy::Replicated, None).await.expect("it can be");
        let parity = cluster.view().object_of(word).expect("it leads there").places().nth(2);
        cluster.nodes().crash(parity.expect("the last column").node);
        wait_for_repair(cluster).await;
        let says = if seed.is_multiple_of(2) { oriented } else { Redundancy::None };
        let by_rule = RedundancyRules::from_length(0, says).placement(LONG.len());
        let hint = place.map(Hint::uncertain);
        let value = [2; LONG.len()];
        write(a, WriteRequest::update(KEY, &value).placed(by_rule).hinted(hint)).await;
        assert_eq!(pair_of(a).await, Some((Redundancy::Replicated, 2)));
        let absent = WriteRequest::update(&b"absent"[..], &value).placed(by_rule).hinted(hint);
        assert_eq!(a.write(absent).await, Err(Error::NotFound));
    });
}

/// A pair is deleted while it is written by an outdated hint. If the write adds a pair, the pair has the redundancy of
/// the rules.
pub fn vanishing_found(seed: u64) {
    with_sessions(seed, async |cluster, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(Redundancy::None);
        let hint = write(a, put).await.place.map(Hint::uncertain);
        b.set_redundancy(KEY, coded(), None).await.expect("it can be");
        let by_rule = RedundancyRules::replicated().placement(LONG.len());
        let delete = async {
            cluster.sim().sleep(Rng::named(seed, "delete").below_u64(30_000)).await;
            b.delete(KEY, None).await.expect("nothing else deletes the key");
        };
        let value = [2; LONG.len()];
        let put = WriteRequest::upsert(KEY, &value).placed(by_rule).hinted(hint);
        join(write(a, put), delete).await;
        let has = pair_of(b).await;
        assert!(has.is_none_or(|has| has == (Redundancy::Replicated, 2)), "{has:?}");
    });
}

/// A value that is too short for the pair's code is written beside a long one. The rules decide for the short one, and
/// the long one keeps what it finds, so in either order the pair is replicated in the end.
pub fn short_loser(seed: u64) {
    with_sessions(seed, async |cluster, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(coded());
        let hint = write(a, put).await.place.map(Hint::uncertain);
        // Now `b` knows the region of the pair, and keeps the redundancy that the hint shows.
        pair_of(b).await;
        let rules = RedundancyRules::replicated();
        let short = WriteRequest::update(KEY, SHORT).placed(rules.placement(SHORT.len()));
        let value = [3; LONG.len()];
        let long = WriteRequest::update(KEY, &value).placed(rules.placement(LONG.len()));
        let late = async {
            cluster.sim().sleep(Rng::named(seed, "late").below_u64(5_000)).await;
            write(a, short.hinted(hint)).await
        };
        join(late, write(b, long.hinted(hint))).await;
        let has = pair_of(a).await.map(|(redundancy, _)| redundancy);
        assert_eq!(has, Some(Redundancy::Replicated));
    });
}

/// An INSERT ignores its hint, and a DELETE ignores the redundancy that it names.
pub fn ignored_options(seed: u64) {
    with_sessions(seed, async |_, a, b| {
        let hint = write(a, WriteRequest::insert(KEY, &LONG)).await.place;
        for hint in [hint, hint.map(Hint::uncertain)] {
            let again = b.write(WriteRequest::insert(KEY, SHORT).hinted(hint)).await;
            assert_eq!(again, Err(Error::AlreadyExists));
        }
        write(b, WriteRequest::delete(KEY).placed(coded()).hinted(hint)).await;
        assert_eq!(pair_of(a).await, None);
    });
}

/// A pair without redundancy becomes erasure-coded. Then a write has the pair's old hint and a value that is too short
/// for the code. The rules decide the new redundancy.
pub fn stale_hint(seed: u64) {
    with_sessions(seed, async |_, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(Redundancy::None);
        let hint = write(a, put).await.place;
        let hint = if seed.is_multiple_of(2) { hint } else { hint.map(Hint::uncertain) };
        b.set_redundancy(KEY, coded(), None).await.expect("it can be");
        let by_rule = RedundancyRules::replicated().placement(SHORT.len());
        write(a, WriteRequest::upsert(KEY, SHORT).placed(by_rule).hinted(hint)).await;
        assert_eq!(pair_of(b).await, Some((Redundancy::Replicated, SHORT[0])));
    });
}

/// A write finds its pair deleted, and a new pair cannot have the redundancy that the rules ask for. A session without
/// a valid lease asks the members to vouch before it refuses the write.
pub fn unheard_refusal(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = SimCluster::new(&sim, &ClusterOptions::default());
    let client = cluster.client();
    let cut_off = cluster.unheard_client();
    let hint = cluster.block_on(client.process, async {
        let hint = write(&client, WriteRequest::insert(KEY, SHORT)).await.place;
        write(&client, WriteRequest::delete(KEY).hinted(hint)).await;
        hint.map(Hint::uncertain)
    });
    let too_wide = Redundancy::Coded(Coding::new(3, 1).expect("there is such a code"));
    let by_rule = RedundancyRules::from_length(0, too_wide).placement(LONG.len());
    let put = WriteRequest::upsert(KEY, &LONG).placed(by_rule).hinted(hint);
    let asked = sim.counts().views_asked.get();
    let result = cluster.block_on(cut_off.process, async { cut_off.write(put).await });
    assert!(matches!(result, Err(Error::Redundancy(_))), "{result:?}");
    assert!(sim.counts().views_asked.get() > asked, "{result:?} without asking");
}
