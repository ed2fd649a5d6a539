//! Backup reads while the master is silent: what they return, and that no session reads an older value afterwards.
//!
//! In most scenes an UPDATE is half-way: its word is on the backup, but not yet on the primary. Session `r` cannot
//! reach the primary, session `c` can.

use std::rc::Rc;
use std::time::Duration;

use fusee_client::logic::{Keeper, LogicOptions};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::error::Error;
use fusee_core::store::{SearchKey, WriteRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::PoolPlace;
use fusee_sim::{ClusterOptions, NetworkOptions, Sim, SimCluster, SimSession};
use futures_util::future::join;

const LEASE_MS: u64 = 20;
const MS: u64 = 1_000_000;
/// Some days, in nanoseconds.
const FOR_GOOD: u64 = 1 << 50;
const OLD: &[u8] = b"old";
const NEW: &[u8] = b"new";
const THIRD: &[u8] = b"third";

type Found = Result<Option<Vec<u8>>, Error>;

/// A cluster with one subtable, in which a key has the value `OLD`.
struct BarScene<'c> {
    cluster: &'c SimCluster,
    /// The places of the key's slot: on the primary, and on the backup.
    slot: [PoolPlace; 2],
    writer: SimSession,
}

async fn open(cluster: &SimCluster) -> SimSession {
    let process = cluster.client_process();
    let session = cluster.open(process, cluster.options().session).await;
    session.expect("the master opens sessions")
}

/// Opens a session without a valid lease.
async fn open_unheard(cluster: &SimCluster) -> SimSession {
    let process = cluster.client_process();
    let session = cluster.open_unheard(process, cluster.options().session).await;
    session.expect("the master opens sessions")
}

/// Opens a session whose keeper renews its lease.
async fn open_kept(cluster: &SimCluster) -> (SimSession, Rc<Keeper>) {
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, Duration::from_millis(LEASE_MS));
    let session = cluster.open(process, cluster.options().session).await;
    let session = session.expect("the master opens sessions");
    keeper.open(session.gate().clone());
    (session, keeper)
}

/// Makes the session get a block for its later writes, because without a master it possibly gets none.
async fn get_room(session: &SimSession) {
    session.store().insert(b"other", THIRD).await.unwrap();
}

async fn read(session: &SimSession) -> Found {
    let found = session.store().search(b"key", None).await;
    found.map(|found| found.value().map(<[u8]>::to_vec))
}

fn is(found: &Found, value: &[u8]) -> bool {
    matches!(found, Ok(Some(found)) if found == value)
}

impl<'c> BarScene<'c> {
    async fn new(cluster: &'c SimCluster) -> BarScene<'c> {
        let writer = open(cluster).await;
        writer.store().insert(b"key", OLD).await.unwrap();
        let hint = writer.store().search(b"key", None).await.unwrap().hint().unwrap();
        let places: Vec<PoolPlace> = cluster.view().slot_places(hint.slot).collect();
        BarScene { cluster, slot: [places[0], places[1]], writer }
    }

    fn primary(&self) -> MnId {
        self.slot[0].node
    }

    fn others(&self) -> Vec<MnId> {
        let members = self.cluster.view().members.clone();
        members.iter().map(|member| member.node).filter(|node| *node != self.primary()).collect()
    }

    /// Cuts a session off from the primary for good.
    fn cut(&self, session: &SimSession) {
        self.cluster.network().links().hold(session.id(), self.primary(), FOR_GOOD);
    }

    /// Stops the master for good, and waits until all leases have run out, also by the clocks of memory nodes.
    async fn lose_master(&self) {
        self.cluster.restart_master(FOR_GOOD);
        self.cluster.sim().sleep(2 * LEASE_MS * MS).await;
    }

    /// Makes the writer begin an UPDATE to `NEW`, and runs `then` while the UPDATE's word is only on the backup.
    async fn half_way<T>(&self, then: impl AsyncFnOnce() -> T) -> T {
        self.half_way_in(WriteRequest::update(b"key", NEW), then).await
    }

    /// Makes the writer begin a write, and runs `then` while the write's word is only on the backup.
    async fn half_way_in<T>(
        &self,
        write: WriteRequest<'_, &[u8; 3]>,
        then: impl AsyncFnOnce() -> T,
    ) -> T {
        let network = self.cluster.network();
        let options = network.options();
        // The writer's commit waits as long as necessary for an answer.
        network.set_options(NetworkOptions { verb_timeout_ns: FOR_GOOD, ..options });
        let writing = self.writer.store().write(write);
        let writing = async {
            let written = writing.await;
            assert!(!matches!(written, Err(Error::NotFound)), "{written:?}");
        };
        let rest = async {
            let word = |at: usize| network.memories().word_at(self.slot[at]);
            while word(0) == word(1) {
                self.cluster.sim().sleep(50).await;
            }
            self.cut(&self.writer);
            self.cluster.sim().sleep(MS).await;
            assert_ne!(word(0), word(1), "it is half-way");
            network.set_options(options);
            then().await
        };
        let mut writing = Box::pin(writing);
        match futures_util::future::select(&mut writing, Box::pin(rest)).await {
            futures_util::future::Either::Left(((), rest)) => rest.await,
            futures_util::future::Either::Right((done, _)) => done,
        }
    }
}

fn with_cluster(seed: u64, memory_nodes: u16, scene: impl AsyncFnOnce(&SimCluster)) {
    // Scenes with five memory nodes can lose two of them, so objects have three replicas.
    with_replicas(seed, memory_nodes, if memory_nodes > 3 { 3 } else { 2 }, scene);
}

fn with_replicas(
    seed: u64,
    memory_nodes: u16,
    data_replicas: u8,
    scene: impl AsyncFnOnce(&SimCluster),
) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let session = LogicOptions { op_timeout: Duration::from_millis(300), ..defaults.session };
    let lease_ms = Some(LEASE_MS);
    let options = ClusterOptions {
        memory_nodes,
        index_replicas: 2,
        data_replicas,
        session,
        lease_ms,
        ..defaults
    };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    cluster.block_on(process, scene(&cluster));
}

/// The master and a primary are lost. Sessions with and without a valid lease read all keys, one by one and together.
/// The sessions take no hints from these reads.
pub fn everything_is_read(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let keys: Vec<[u8; 1]> = (0..8).map(|key| [key]).collect();
        for key in &keys {
            scene.writer.store().insert(key, &[key[0]; 300]).await.unwrap();
        }
        let readers = [open(cluster).await, open_unheard(cluster).await];
        cluster.restart_master(FOR_GOOD);
        cluster.nodes().crash(scene.primary());
        for reader in &readers {
            for key in &keys {
                let found = reader.store().search(key, None).await.unwrap();
                assert_eq!(found.value(), Some(&[key[0]; 300][..]));
                assert_eq!(found.hint(), None, "nobody knows whether it is committed");
            }
            let asked =
                keys.iter().map(|key| SearchKey { key: reader.store().key(key), hint: None });
            let asked: Vec<_> = asked.collect();
            let mut found = 0;
            let many = reader.store().search_many(&asked, |_, value, hint| {
                assert_eq!(hint, None);
                found += usize::from(value.is_some());
            });
            many.await.unwrap();
            assert_eq!(found, keys.len());
            let absent = reader.store().search(b"absent", None).await.unwrap();
            assert_eq!(absent.value(), None);
        }
    });
}

/// One of two memory nodes is no majority, so there are no backup reads.
pub fn two_nodes_are_too_few(seed: u64) {
    with_cluster(seed, 2, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let reader = open_unheard(cluster).await;
        scene.lose_master().await;
        cluster.nodes().crash(scene.primary());
        assert!(read(&reader).await.is_err());
    });
    // A failed attempt to bar the primary does not keep another session from reading the primary.
    with_cluster(seed, 2, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        let c = open_unheard(cluster).await;
        scene.lose_master().await;
        scene.cut(&r);
        assert!(read(&r).await.is_err());
        assert!(is(&read(&c).await, OLD));
    });
}

/// Session `r` has read from the backups. A session without a valid lease that reaches the primary reads nothing older
/// there.
fn who_asks_sees_bars(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        let c = open_unheard(cluster).await;
        scene.lose_master().await;
        scene
            .half_way(async || {
                scene.cut(&r);
                assert!(is(&read(&r).await, NEW));
                let found = read(&c).await;
                assert!(is(&found, NEW), "{found:?} after the new value");
            })
            .await;
    });
}

/// One of the two members other than the primary does not bar the primary, so there are no backup reads.
fn half_is_not_enough(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        let c = open_unheard(cluster).await;
        scene.lose_master().await;
        let backup = scene.slot[1].node;
        let third = scene.others().into_iter().find(|node| *node != backup).unwrap();
        cluster.nodes().tell_lease(third, 1 << 30);
        scene
            .half_way(async || {
                scene.cut(&r);
                let first = read(&r).await;
                let found = read(&c).await;
                assert!(first.is_err() || !is(&found, OLD), "{found:?} after {first:?}");
            })
            .await;
    });
}

/// Clocks of memory nodes are not trusted: a session waits by its own clock until the leases of other sessions have run
/// out.
fn bars_wait_for_leases(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        scene
            .half_way(async || {
                let (c, _keeper) = open_kept(cluster).await;
                cluster.restart_master(FOR_GOOD);
                scene
                    .others()
                    .into_iter()
                    .for_each(|node| cluster.nodes().jump_clock(node, 1 << 20));
                scene.cut(&r);
                assert!(is(&read(&r).await, NEW));
                let found = read(&c).await;
                assert!(!is(&found, OLD), "{found:?} after the new value");
            })
            .await;
    });
}

/// A master that receives messages from only a minority of the members grants no lease.
fn leases_rest_on_a_majority(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let process = cluster.client_process();
        let keeper = cluster.keeper(process, Duration::from_millis(LEASE_MS));
        let c = cluster.open(process, cluster.options().session).await.unwrap();
        keeper.open(c.gate().clone());
        cluster.sim().sleep(LEASE_MS * MS).await;
        assert!(c.gate().lease.is_valid(cluster.sim().clock_of(process)));
        scene.others().into_iter().for_each(|node| cluster.nodes().cut_off(node));
        for _ in 0..4 {
            cluster.sim().sleep(LEASE_MS * MS).await;
        }
        assert!(!c.gate().lease.is_valid(cluster.sim().clock_of(process)), "by whom?");
    });
}

/// A master that has slept grants no lease because of messages from before its sleep.
// Promise SIL-10: Lease clocks count sleep; a master that slept grants nothing old.
pub fn a_sleep_ends_contact(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let (c, _keeper) = open_kept(cluster).await;
        let r = open_unheard(cluster).await;
        cluster.sim().sleep(LEASE_MS / 4 * MS).await;
        assert!(is(&read(&c).await, OLD));
        cluster.stop_master();
        cluster.sim().sleep(2 * LEASE_MS * MS).await;
        scene
            .half_way(async || {
                scene.cut(&r);
                assert!(is(&read(&r).await, NEW));
                cluster.resume_master();
                for _ in 0..LEASE_MS / 2 {
                    let found = read(&c).await;
                    assert!(!is(&found, OLD), "{found:?} after the new value");
                    cluster.sim().sleep(MS).await;
                }
            })
            .await;
    });
}

/// An UPDATE loses its conflict round to a word that was read before the UPDATE began. The UPDATE does not end with
/// this loss, but starts again.
fn losers_ask(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        let c = open_unheard(cluster).await;
        get_room(&c).await;
        scene.lose_master().await;
        scene
            .half_way(async || {
                scene.cut(&r);
                assert!(is(&read(&r).await, NEW));
                let release = async {
                    cluster.sim().sleep(5 * MS).await;
                    cluster.network().links().release(scene.writer.id(), scene.primary());
                };
                let (done, ()) = join(c.store().update(b"key", THIRD, None), release).await;
                let found = read(&r).await;
                assert!(is(&found, THIRD), "{found:?} after {done:?}");
                assert!(done.is_ok(), "{done:?}");
            })
            .await;
    });
}

/// An UPDATE loses its conflict round to a word that was read before the UPDATE began, and then the master comes back
/// and a change stops the UPDATE. The change settles the word that was read, and then the bars are withdrawn.
pub fn the_master_settles(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let (c, _keeper) = open_kept(cluster).await;
        get_room(&c).await;
        let r = open_unheard(cluster).await;
        scene.lose_master().await;
        scene
            .half_way(async || {
                scene.cut(&r);
                assert!(is(&read(&r).await, NEW));
                let back = async {
                    cluster.sim().sleep(5 * MS).await;
                    cluster.restart_master(0);
                };
                let (done, ()) = join(c.store().update(b"key", THIRD, None), back).await;
                let last = if done.is_ok() { THIRD } else { NEW };
                for _ in 0..20 {
                    cluster.sim().sleep(LEASE_MS * MS).await;
                }
                let reader = open(cluster).await;
                let found = read(&reader).await;
                assert!(is(&found, last), "{found:?} after {done:?}");
                assert!(done.is_ok(), "{done:?}");
                for node in cluster.view().members.iter().map(|member| member.node) {
                    let stand = NodeRequest::StandAt { cluster: cluster.view().cluster, view: 0 };
                    let Some(NodeReply::Bars(told)) = cluster.peek_node(node, stand) else {
                        panic!("{node} does not say whom it bars");
                    };
                    assert_eq!(told.bars, [], "{node}");
                }
            })
            .await;
    });
}

/// A DELETE has its number only on the backup, and a session has read there that the key does not exist. The deleter
/// dies, and the master and the primary come back. The key still does not exist.
pub fn a_delete_is_settled(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let (_, _keeper) = open_kept(cluster).await;
        // With this DELETE the writer gets its log areas.
        scene.writer.store().insert(b"other", THIRD).await.unwrap();
        scene.writer.store().delete(b"other", None).await.unwrap();
        let r = open_unheard(cluster).await;
        scene.lose_master().await;
        scene
            .half_way_in(WriteRequest::delete(b"key"), async || {
                scene.cut(&r);
                assert_eq!(read(&r).await, Ok(None));
                cluster.restart_master(0);
                for _ in 0..20 {
                    cluster.sim().sleep(LEASE_MS * MS).await;
                }
                let found = read(&open(cluster).await).await;
                assert_eq!(found, Ok(None), "it did not exist before");
            })
            .await;
    });
}

/// A member that knows of the change that settles the slots still bars the primary.
fn bars_stand_until_all_is_settled(seed: u64) {
    with_cluster(seed, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        let c = open_unheard(cluster).await;
        scene.lose_master().await;
        scene
            .half_way(async || {
                scene.cut(&r);
                assert!(is(&read(&r).await, NEW));
                let next = cluster.view().settling(&[0], &[]);
                for member in &next.members {
                    let stand = NodeRequest::StandAt { cluster: next.cluster, view: next.number };
                    cluster.peek_node(member.node, stand);
                }
                c.gate().publish_view(&next.into());
                let found = read(&c).await;
                assert!(found.is_err(), "{found:?} after the new value");
            })
            .await;
    });
}

/// The cluster loses the only backup. A session that makes backup reads still reaches the backup, because the session
/// was not fenced there. The session reads nothing old.
fn the_only_backup_is_lost(seed: u64) {
    // With three nodes and three data replicas, each node has a replica of every object.
    with_replicas(seed, 3, 3, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        scene.lose_master().await;
        scene.cut(&r);
        assert!(is(&read(&r).await, OLD));
        let backup = scene.slot[1].node;
        let third = scene.others().into_iter().find(|node| *node != backup).unwrap();
        cluster.network().links().hold(r.id(), third, FOR_GOOD);
        cluster.nodes().cut_off(backup);
        cluster.restart_master(0);
        let is_lost = || {
            let view = cluster.view();
            view.member(backup).is_none() && view.change.is_none()
        };
        while !is_lost() {
            cluster.sim().sleep(MS).await;
        }
        let (c, _keeper) = open_kept(cluster).await;
        c.store().update(b"key", NEW, None).await.unwrap();
        assert!(is(&read(&c).await, NEW));
        let found = read(&r).await;
        assert!(!is(&found, OLD), "{found:?} after the new value");
    });
}

/// Two of the three members that bar the primary are lost, so that two of the three remaining members do not bar it.
fn lost_members_have_barred(seed: u64) {
    with_cluster(seed, 5, async |cluster| {
        let scene = BarScene::new(cluster).await;
        let r = open_unheard(cluster).await;
        let c = open_unheard(cluster).await;
        scene.lose_master().await;
        let backup = scene.slot[1].node;
        let rest: Vec<MnId> = scene.others().into_iter().filter(|node| *node != backup).collect();
        cluster.nodes().tell_lease(rest[0], 1 << 30);
        scene
            .half_way(async || {
                scene.cut(&r);
                assert!(is(&read(&r).await, NEW));
                let next = cluster.view().without(&rest[1..]).unwrap();
                c.gate().publish_view(&next.into());
                let found = read(&c).await;
                assert!(!is(&found, OLD), "{found:?} after the new value");
            })
            .await;
    });
}

/// Runs one of the scenes of this module. The seed chooses the scene.
pub fn bars(seed: u64) {
    let scenes = [
        who_asks_sees_bars,
        half_is_not_enough,
        bars_wait_for_leases,
        leases_rest_on_a_majority,
        a_sleep_ends_contact,
        losers_ask,
        the_master_settles,
        bars_stand_until_all_is_settled,
        everything_is_read,
        two_nodes_are_too_few,
        the_only_backup_is_lost,
        lost_members_have_barred,
    ];
    scenes[seed as usize % scenes.len()](seed);
}
