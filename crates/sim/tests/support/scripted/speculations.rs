//! Scripts of slot words that are not committed, and whose objects are possibly not yet on all their nodes.

use fusee_core::data::Region;
use fusee_core::layout::{Address, BlockShape, Identity, Object, Opcode, Pair, Slot};
use fusee_core::stats::Damage;
use fusee_core::view::{Geometry, PoolPlace};
use fusee_sim::ClusterOptions;

use super::super::workload::StepWorkload;
use super::super::{largest_block, small};
use super::{ScriptedCluster, run};

/// A value so large that only the first bytes of its object are read to compare its key.
const VALUE: [u8; 3000] = [1; 3000];

/// A client has died within its speculative write: its word is on the backup, and its object is only on the backup's
/// node. An INSERT of another key with an equal fingerprint reads the object whole on all replicas. The incomplete
/// replica is no damage and must not be repaired, because only a session or job that continues the conflict round
/// completes it.
pub fn half_written(seed: u64) {
    let options = small(seed, 2);
    let geometry = Geometry { max_value_bytes: 3200, region_bytes: 1 << 15, ..options.geometry };
    let stage = ScriptedCluster::of(seed, &ClusterOptions { memory_nodes: 2, geometry, ..options });
    let view = stage.cluster.view().clone();
    let keys = StepWorkload::keys(&view, 2, 0);
    let class = Object::class(keys[0].len(), VALUE.len()).expect("there is such a class");
    let primary_since = Some(view.regions[0].primary_since());
    let (store, script) = stage.open_for(class, 0..3, primary_since);
    let written = run(store.insert(&keys[0][..], &VALUE)).expect("there is room");
    let hint = written.place.expect("nobody is in the way");
    stage.cluster.checks().stop_watching();

    let backup = view.slot_on_backups(hint.slot).next().expect("a backup");
    let shape = BlockShape::new(view.geometry.block_bytes, class).expect("one fits");
    let block = largest_block(&view.geometry, 0, 5).address;
    let at = Address::new(block.bytes() + shape.offset(0));
    let mut bytes = vec![0; class.bytes() as usize];
    let identity = Identity::new(at, 0);
    let pair = Pair { key: &keys[0], value: &VALUE, identity, opcode: Opcode::Update };
    pair.encode(&mut bytes);
    let places: Vec<PoolPlace> =
        view.object(at, class.bytes()).expect("it fits").places().collect();
    let beside = places.iter().find(|place| place.node == backup.node).expect("of two nodes");
    for (i, word) in (0u64..).zip(bytes.as_chunks::<8>().0) {
        let place = PoolPlace { offset: beside.offset + 8 * i, ..*beside };
        stage.cluster.network().memories().overwrite(place, u64::from_le_bytes(*word));
    }
    let own = Slot::new(hint.word.fingerprint(), class, at, 0);
    stage.cluster.network().memories().overwrite(backup, own.0);

    run(store.insert(&keys[1][..], &VALUE)).expect("there is another slot");
    assert_eq!(script.damage(), Damage::default(), "nothing was damaged");
    for place in places.iter().filter(|place| place.node != backup.node) {
        assert_eq!(
            stage.cluster.network().memories().word_at(*place).0,
            0,
            "it is left to recovery"
        );
    }
}

/// A speculative write of a session with a newer view is running: its word is on the backup, and its object is whole on
/// the backup's node. Another session, which inserts a key with an equal fingerprint, has an older view, in which the
/// object has no replica on that node; the replica in that view is not written yet. This session reads again until the
/// conflict round is over, and reports no damage.
pub fn of_a_newer_view(seed: u64) {
    let options = ClusterOptions { memory_nodes: 2, data_replicas: 1, ..small(seed, 2) };
    let stage = ScriptedCluster::of(seed, &options);
    let view = stage.cluster.view().clone();
    let keys = StepWorkload::keys(&view, 2, 0);
    let class = Object::class(keys[0].len(), 100).expect("there is such a class");
    let (store, script) = stage.open_for(class, 0..3, Some(view.regions[0].primary_since()));
    let written = run(store.insert(&keys[0][..], &[1; 100])).expect("there is room");
    let hint = written.place.expect("nobody is in the way");
    stage.cluster.checks().stop_watching();

    let backup = view.slot_on_backups(hint.slot).next().expect("a backup");
    let is_elsewhere = |region: &Region| region.places().iter().all(|at| at.node != backup.node);
    let region = view.regions.iter().position(is_elsewhere).expect("one on the other node");
    let shape = BlockShape::new(view.geometry.block_bytes, class).expect("one fits");
    let block = largest_block(&view.geometry, region as u32, 5).address;
    let at = Address::new(block.bytes() + shape.offset(0));
    let own = Slot::new(hint.word.fingerprint(), class, at, 0);
    stage.cluster.network().memories().overwrite(backup, own.0);
    let cluster = stage.cluster.clone();
    script.then(move || cluster.network().memories().overwrite(backup, hint.word.0));

    run(store.insert(&keys[1][..], &[1; 100])).expect("there is another slot");
    assert_eq!(script.damage(), Damage::default(), "nothing was damaged");
}
