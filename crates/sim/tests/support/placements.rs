//! Writes whose pair gets another redundancy, or vanishes, while they choose the slab of their object.

use std::time::Duration;

use fusee_client::RedundancyRules;
use fusee_client::logic::LogicOptions;
use fusee_core::data::{Orientation, Redundancy};
use fusee_core::erasure::Coding;
use fusee_core::error::Error;
use fusee_core::store::{Hint, Transition, WriteRequest, WriteResult};
use fusee_core::verbs::ClientId;
use fusee_core::view::Geometry;
use fusee_sim::check::check_replicas_agree;
use fusee_sim::{ClusterOptions, Rng, Sim, SimCluster, SimStore};
use futures_util::future::{join, join3};

use super::moved_pairs::wait_for_repair;

const LEASE: Duration = Duration::from_millis(20);
const KEY: &[u8] = b"key";
/// Some days, in nanoseconds.
const FOR_GOOD: u64 = 1 << 50;
/// A value that can be erasure-coded.
const LONG: [u8; 900] = [1; 900];
/// A value that cannot be erasure-coded.
const SHORT: &[u8] = b"short";

fn coded() -> Redundancy {
    Redundancy::Coded(Coding::new(2, 1).expect("there is such a code"))
}

/// Runs a scenario with two sessions of one process, in a cluster of three memory nodes.
fn with_sessions(seed: u64, scenario: impl AsyncFnOnce(&SimCluster, &SimStore, &SimStore)) {
    let scenario = async |cluster: &SimCluster, _, a: &_, b: &_| scenario(cluster, a, b).await;
    with_named_sessions(seed, scenario);
}

/// Runs a scenario like [`with_sessions`], with the id of the first session.
fn with_named_sessions(
    seed: u64,
    scenario: impl AsyncFnOnce(&SimCluster, ClientId, &SimStore, &SimStore),
) {
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
        scenario(&cluster, a.id(), a.store(), b.store()).await;
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

/// Two values that are too short for the pair's code are written side by side, by different rules. The write that takes
/// effect last keeps the redundancy that the other one gave the pair.
pub fn loser_by_other_rule(seed: u64) {
    with_sessions(seed, async |cluster, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(coded());
        let hint = write(a, put).await.place.map(Hint::uncertain);
        // Now each session owns a block for its write.
        write(a, WriteRequest::insert(&b"a"[..], SHORT).placed(Redundancy::Replicated)).await;
        write(b, WriteRequest::insert(&b"b"[..], SHORT).placed(Redundancy::None)).await;
        let late = |name| cluster.sim().sleep(Rng::named(seed, name).below_u64(5_000));
        let replicated = async {
            late("replicated").await;
            let by_rule = RedundancyRules::replicated().placement(SHORT.len());
            let update = WriteRequest::update(KEY, &[2; SHORT.len()]).placed(by_rule);
            write(a, update.hinted(hint)).await
        };
        let alone = async {
            late("alone").await;
            let by_rule = RedundancyRules::from_length(0, Redundancy::None).placement(SHORT.len());
            let update = WriteRequest::update(KEY, &[3; SHORT.len()]).placed(by_rule);
            write(b, update.hinted(hint)).await
        };
        join(replicated, alone).await;
        let has = pair_of(a).await;
        let orders = [Some((Redundancy::Replicated, 3)), Some((Redundancy::None, 2))];
        assert!(orders.contains(&has), "{has:?}");
    });
}

/// A write names the redundancy that the pair has. Meanwhile the pair gets another redundancy, and then a write that
/// keeps it. If the pair still has its first value in between, the first write comes after the change.
pub fn named_as_it_was(seed: u64) {
    with_named_sessions(seed, async |cluster, id_of_a, a, b| {
        let put = WriteRequest::insert(KEY, &LONG).placed(Redundancy::None);
        let place = write(a, put).await.place.expect("it has taken effect");
        // Now `b` owns a block for its Move.
        write(b, WriteRequest::insert(&b"other"[..], &LONG).placed(coded())).await;
        let late = |name| cluster.sim().sleep(Rng::named(seed, name).below_u64(20_000));
        let named = async {
            late("named").await;
            let named = WriteRequest::update(KEY, &[2; LONG.len()]).placed(Redundancy::None);
            write(a, named.hinted(Some(place))).await
        };
        let others = async {
            late("others").await;
            b.set_redundancy(KEY, coded(), None).await.expect("it can be");
            let between = pair_of(b).await;
            let by_rule = RedundancyRules::replicated().placement(LONG.len());
            write(b, WriteRequest::update(KEY, &[3; LONG.len()]).placed(by_rule)).await;
            between
        };
        // The loser of the Move's round sees the primary's word late.
        let hold = async {
            late("hold").await;
            let primary = cluster.view().slot_places(place.slot).next().expect("a primary").node;
            cluster.network().links().hold(id_of_a, primary, 200_000);
        };
        let (_, between, ()) = join3(named, others, hold).await;
        let (has, value) = pair_of(a).await.expect("nothing deletes it");
        let is_first = between.is_some_and(|(_, value)| value == 1);
        assert!(!is_first || has == Redundancy::None, "{between:?}, then {has:?} and {value}");
    });
}

/// A pair gets another redundancy while a write that keeps it has found it with its first one.
pub fn moved_meanwhile(seed: u64) {
    with_sessions(seed, async |cluster, a, b| {
        // Now `a` owns blocks of both redundancies, and `b` owns none.
        write(a, WriteRequest::insert(&b"other"[..], &LONG).placed(coded())).await;
        write(a, WriteRequest::insert(KEY, &LONG).placed(Redundancy::None)).await;
        let by_rule = RedundancyRules::replicated().placement(LONG.len());
        let change = async {
            cluster.sim().sleep(Rng::named(seed, "change").below_u64(500_000)).await;
            a.set_redundancy(KEY, coded(), None).await.expect("it can be")
        };
        let keeps = WriteRequest::update(KEY, &[2; LONG.len()]).placed(by_rule);
        let (_, (change, _)) = join(write(b, keeps), change).await;
        let redundancy = if change == Transition::Moved { coded() } else { Redundancy::None };
        assert_eq!(pair_of(a).await, Some((redundancy, 2)));
    });
}

/// A session that has not operated since the cluster got more memory nodes writes a pair of a redundancy that was
/// impossible before.
pub fn grown_cluster(seed: u64) {
    let wide = Redundancy::Coded(Coding::new(3, 1).expect("there is such a code"));
    with_sessions(seed, async |cluster, a, b| {
        let value = [2; LONG.len()];
        let put = WriteRequest::upsert(KEY, &value).placed(wide);
        assert!(matches!(b.write(put).await, Err(Error::Redundancy(_))));
        cluster.start_node();
        wait_for_repair(cluster).await;
        let request = WriteRequest::upsert(KEY, &value).placed(wide);
        write(b, request).await;
        assert_eq!(pair_of(a).await, Some((wide, 2)));
    });
}

/// While the master is silent, a session that cannot reach a pair's primary writes the pair. The pair keeps its
/// redundancy, so that it is no reason to refuse the write that a new pair could not have the redundancy of the rules.
pub fn barred_primary(seed: u64) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let session = LogicOptions { op_timeout: Duration::from_millis(300), ..defaults.session };
    let lease_ms = Some(LEASE.as_millis() as u64);
    let cluster = SimCluster::new(&sim, &ClusterOptions { session, lease_ms, ..defaults });
    let process = cluster.client_process();
    cluster.block_on(process, async {
        let writer = cluster.open(process, session).await.expect("a master leads");
        write(writer.store(), WriteRequest::insert(KEY, &LONG)).await;
        let cut_off = cluster.open_unheard(process, session).await.expect("a master leads");
        let slot = writer.store().search(KEY, None).await.expect("it is there").hint();
        let slot = slot.expect("the primary answers").slot;
        let primary = cluster.view().slot_places(slot).next().expect("a primary").node;
        cluster.network().links().hold(cut_off.id(), primary, FOR_GOOD);
        cluster.restart_master(FOR_GOOD);
        cluster.sim().sleep(2 * LEASE.as_nanos() as u64).await;
        let too_wide = Redundancy::Coded(Coding::new(3, 1).expect("there is such a code"));
        let by_rule = RedundancyRules::from_length(0, too_wide).placement(LONG.len());
        let update = WriteRequest::update(KEY, &[2; LONG.len()]).placed(by_rule);
        let result = cut_off.store().write(update).await;
        assert!(matches!(result, Err(Error::GaveUp { .. })), "{result:?}");
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
