//! An earlier owner of a block has left a copy word in only one chunk of an object. The next Move finds it.

use std::time::Duration;

use fusee_control::master::MasterReply;
use fusee_core::data::{Orientation, Redundancy};
use fusee_core::erasure::Coding;
use fusee_core::layout::{Identity, copy_of};
use fusee_core::store::{Transition, WriteRequest};
use fusee_core::view::PoolPlace;
use fusee_sim::check::{check_quiescent, check_replicas_agree};
use fusee_sim::{ClusterOptions, Sim, SimCluster};

const LEASE: Duration = Duration::from_millis(20);
const VALUE: [u8; 900] = [1; 900];

/// The owner began to give an erasure-coded object copies in place, and died when one data chunk had the copy word. The
/// next Move finds this word, whichever chunk has it, and is done out of place, because otherwise the chunks would name
/// different copies.
pub fn left_copy_word(seed: u64) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let lease_ms = Some(LEASE.as_millis() as u64);
    let options = ClusterOptions { memory_nodes: 6, lease_ms, ..defaults };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let coding = Coding::new(3, 1).expect("there is such a code");
    let oriented = Redundancy::Oriented(Orientation::new(2, coding).expect("it can be"));
    cluster.block_on(process, async {
        let session = cluster.open_kept(process, &keeper).await;
        let store = session.store();
        let put = store
            .write(WriteRequest::insert(b"key".as_slice(), &VALUE).placed(oriented))
            .await
            .expect("there is room");
        sim.sleep(20_000_000).await;
        let first = put.place.expect("it is there").word;
        let to_coded = store.set_redundancy(b"key".as_slice(), Redundancy::Coded(coding), None);
        let (moved, coded) = to_coded.await.expect("nothing is in the way");
        let coded = coded.place.expect("it is there").word;
        assert!(moved == Transition::Moved && coded.address() == first.address(), "in place");
        let view = store.view();
        let object = view.object_of(coded).expect("it is there");
        let columns = object.columns().expect("it has chunks");
        let next = coded.at_turn(coded.turn() + 1);
        let words = object.copy_words(next).zip(columns.chunks());
        let data: Vec<PoolPlace> = words
            .filter(|(_, chunk)| usize::from(**chunk) < coding.k())
            .map(|(at, _)| at)
            .collect();
        let at = data[seed as usize % data.len()];
        let left = word_of_another(object.identity_of(next));
        cluster.network().memories().overwrite(at, left);
        let moved = store.set_redundancy(b"key".as_slice(), oriented, None).await;
        let (moved, again) = moved.expect("nothing is in the way");
        let again = again.place.expect("it is there").word;
        assert!(moved == Transition::Moved && again.address() != coded.address(), "out of place");
        let leaving = session.leave().await.expect("nothing is half-way");
        keeper.close(session.id());
        assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
    });
    check_replicas_agree(&cluster);
    check_quiescent(&cluster, &cluster.take_orphans());
}

/// Returns a copy word that would be valid as word 0 of this object.
fn word_of_another(object: Identity) -> u64 {
    let names_one = |word: &u64| copy_of(object, 0, *word).is_some();
    (1..).find(names_one).expect("some word does")
}
