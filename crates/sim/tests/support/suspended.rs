//! The CAS of a write on the primary executes, but has no answer before the primary is lost. Some session must free the
//! replaced object, exactly once.

// Promise MEM-25: The object that a suspended write replaced is freed once.

use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_control::master::MasterReply;
use fusee_core::store::Hint;
use fusee_core::view::{Geometry, PoolPlace, View};
use fusee_sim::check::{check_quiescent, check_replicas_agree, lost_objects};
use fusee_sim::{ClusterOptions, NetworkOptions, Rng, Sim, SimCluster, SimSession};
use futures_util::future::join;

use super::late_repairs::wait_for_all_replicas;

const LEASE: Duration = Duration::from_millis(20);
const VALUE: [u8; 900] = [1; 900];

/// The replaced object is in a block of another session, so its bit is set in that block's bitmap, once.
pub fn suspended_commit(seed: u64) {
    let sim = Sim::new(seed);
    let rng = Rng::named(seed, "suspended");
    let defaults = ClusterOptions::default();
    let session = LogicOptions { op_timeout: Duration::from_millis(400), ..defaults.session };
    let geometry = Geometry { region_bytes: 1 << 15, ..defaults.geometry };
    let options = ClusterOptions {
        memory_nodes: 4,
        index_replicas: 2,
        geometry,
        lease_ms: Some(LEASE.as_millis() as u64),
        session,
        ..defaults
    };
    let cluster = SimCluster::with_network(&sim, &options, NetworkOptions::default());
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let [writer, owner] = [(); 2].map(|()| cluster.open(process, session));
        let writer = writer.await.expect("a master leads");
        let owner = owner.await.expect("it does");
        keeper.open(writer.gate().clone());
        keeper.open(owner.gate().clone());
        let (key, hint) = pair_apart(&owner).await;
        let slots: Vec<PoolPlace> = owner.store().view().slot_places(hint.slot).collect();
        let [primary, backup] = slots[..] else { panic!("there are two") };
        let net = cluster.network();
        let writing = async {
            let written = writer.store().update(&key[..], &[2; 900], Some(hint.uncertain())).await;
            written.expect("it is resolved");
        };
        let loss = async {
            while net.memories().word_at(backup) == hint.word {
                sim.sleep(50).await;
            }
            net.links().mute(writer.id(), primary.node);
            while net.memories().word_at(primary) == hint.word {
                sim.sleep(50).await;
            }
            sim.sleep(rng.below_u64(60_000_000)).await;
            cluster.nodes().crash(primary.node);
        };
        join(writing, loss).await;
        cluster.start_node();
        wait_for_all_replicas(&cluster).await;
        let found = owner.store().search(&key[..], None).await.expect("it is there");
        assert_eq!(found.value(), Some(&[2; 900][..]));
        drop(found);
        for session in [writer, owner] {
            let leaving = session.leave().await.expect("nothing is half-way");
            keeper.close(session.id());
            assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
        }
    });
    check_replicas_agree(&cluster);
    let orphans = cluster.take_orphans();
    check_quiescent(&cluster, &orphans);
    assert_eq!(lost_objects(&cluster, &orphans), []);
}

/// Makes a pair for which neither the object nor its free bit is on the node of the slot's primary. Returns the key and
/// the hint.
async fn pair_apart(owner: &SimSession) -> (Vec<u8>, Hint) {
    let is_apart = |view: &View, hint: Hint| {
        let primary = view.slot_on_primary(hint.slot).node;
        let object = view.object_of(hint.word).expect("it is there");
        let bits = view.free_bit(hint.word.address()).expect("it has one").0.node;
        bits != primary && object.places().all(|place| place.node != primary)
    };
    for number in 0..60 {
        let key = format!("key {number}").into_bytes();
        let put = owner.store().insert(&key[..], &VALUE).await.expect("there is room");
        let hint = put.place.expect("it is there");
        if is_apart(&owner.store().view(), hint) {
            return (key, hint);
        }
        owner.store().delete(&key[..], None).await.expect("it is there");
    }
    panic!("there is none on so many nodes");
}
