//! A session runs two Moves in place of one pair. The second Move has read the slot before the first one commits, and
//! continues after the first one has ended.

// Promise RED-17: No turn of an object is used twice.

use std::time::Duration;

use fusee_control::master::MasterReply;
use fusee_core::data::{Orientation, Redundancy};
use fusee_core::erasure::Coding;
use fusee_core::store::{Hint, Transition, WriteRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::PoolPlace;
use fusee_sim::check::{check_quiescent, check_replicas_agree};
use fusee_sim::{ClusterOptions, NetworkOptions, Sim, SimCluster, SimSession};
use futures_util::future::join3;

const LEASE: Duration = Duration::from_millis(20);
/// A time longer than everything else takes, in nanoseconds.
const HELD_NS: u64 = 10_000_000;
const VALUE: [u8; 900] = [1; 900];

/// The second Move has READ the slot and all chunks but one, which is on a node without the slot and answers late. Then
/// the second Move finds the word of the first Move in the slot, and must not mistake that word for its own.
pub fn stale_move(seed: u64) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let options = ClusterOptions {
        memory_nodes: 9,
        index_replicas: 2 + seed as u8 % 3,
        lease_ms: Some(LEASE.as_millis() as u64),
        ..defaults
    };
    let verb_timeout_ns = HELD_NS / 2;
    let network = NetworkOptions {
        delays: false,
        tearing: false,
        verb_timeout_ns,
        ..NetworkOptions::default()
    };
    let cluster = SimCluster::with_network(&sim, &options, network);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let coding = Coding::new(2, 1).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    // The first Move is to parity, and the next one back to copies.
    let ways = [Redundancy::Coded(coding), oriented];
    let begun = seed as usize / 3 % 2;
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let (key, mut hint, held) = pair_apart(&cluster, &session, oriented).await;
        for way in &ways[..begun] {
            let moved = session.store().set_redundancy(&key[..], *way, Some(hint)).await;
            hint = moved.expect("nothing is in the way").1.place.expect("it is there");
        }
        let net = cluster.network();
        let to = ways[begun];
        let slots: Vec<PoolPlace> = session.store().view().slot_places(hint.slot).collect();
        let shows = async |at: usize| {
            while net.memories().word_at(slots[at]) == hint.word {
                sim.sleep(50).await;
            }
        };
        let first = session.store().set_redundancy(&key[..], to, Some(hint));
        let second = async {
            shows(1).await;
            net.links().hold(session.id(), held, HELD_NS);
            session.store().set_redundancy(&key[..], to, Some(hint.uncertain())).await
        };
        let director = async {
            shows(0).await;
            sim.sleep(20_000).await;
            net.links().release(session.id(), held);
        };
        let (first, second, ()) = join3(first, second, director).await;
        assert_eq!(first.expect("it was there first").0, Transition::Moved);
        assert_eq!(second.expect("nothing fails").0, Transition::Unchanged);
        let found = session.store().search(&key[..], None).await.expect("it is there");
        assert_eq!((found.value(), found.redundancy()), (Some(&VALUE[..]), Some(to)));
        drop(found);
        let leaving = session.leave().await.expect("nothing is half-way");
        keeper.close(session.id());
        assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
    });
    check_replicas_agree(&cluster);
    check_quiescent(&cluster, &cluster.take_orphans());
}

/// Makes a pair with a data chunk on a node that has no replica of the pair's slot. Returns the key, the hint, and that
/// node.
pub async fn pair_apart(
    cluster: &SimCluster,
    session: &SimSession,
    redundancy: Redundancy,
) -> (Vec<u8>, Hint, MnId) {
    for number in 0..60 {
        let key = format!("key {number}").into_bytes();
        let put = session
            .store()
            .write(WriteRequest::insert(&key[..], &VALUE).placed(redundancy))
            .await
            .expect("there is room");
        // The first pair makes the master add regions.
        cluster.sim().sleep(20_000_000).await;
        assert!(cluster.view().change.is_none());
        let hint = put.place.expect("it is there");
        let view = session.store().view();
        let object = view.object_of(hint.word).expect("it is there");
        let chunks = object.columns().expect("it has chunks").chunks().iter();
        let mut data = object.places().zip(chunks).filter(|(_, chunk)| **chunk < 2);
        let apart =
            data.find(|(place, _)| view.slot_places(hint.slot).all(|at| at.node != place.node));
        if let Some((place, _)) = apart {
            return (key, hint, place.node);
        }
    }
    panic!("there is none on so many nodes");
}
