//! Tests that the checks at rest notice a difference on any replica.

// Promise CHK-5: The checker of replicas looks at every replica.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fusee_core::layout::HEADER_BYTES;
use fusee_core::view::PoolPlace;

use super::*;
use crate::cluster::ClusterOptions;
use crate::engine::Sim;

/// Returns the message of the failed check, or `None` if the check passes.
fn noticed(cluster: &SimCluster) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| check_replicas_agree(cluster))).err()?;
    panic.downcast_ref::<String>().cloned()
}

/// Returns the message of the failed check when one bit of the cluster's memory is flipped.
fn noticed_with(cluster: &SimCluster, place: PoolPlace, bit: u64) -> Option<String> {
    let word = cluster.network().memories().word_at(place).0;
    cluster.network().memories().overwrite(place, word ^ bit);
    let noticed = noticed(cluster);
    cluster.network().memories().overwrite(place, word);
    noticed
}

#[test]
fn every_replica_is_looked_at() {
    let options = ClusterOptions {
        memory_nodes: 5,
        index_replicas: 5,
        data_replicas: 4,
        ..ClusterOptions::default()
    };
    let cluster = SimCluster::new(&Sim::new(1), &options);
    let client = cluster.client();
    let written = cluster.block_on(client.process, client.insert(b"key", b"a value"));
    let hint = written.expect("all nodes answer").place.expect("it stands there");
    let view = cluster.view().clone();
    assert_eq!(noticed(&cluster), None);

    let slots: Vec<PoolPlace> = view.slot_places(hint.slot).collect();
    assert_eq!(slots.len(), 5);
    for place in slots {
        let what = noticed_with(&cluster, place, 1 << 60).expect("the words differ");
        assert!(what.contains("differs at rest"), "{what}");
    }
    let class = hint.word.class().expect("it leads to an object");
    let objects = view.object(hint.word.address(), class.bytes()).expect("in a region").places();
    let objects: Vec<PoolPlace> = objects.collect();
    assert_eq!(objects.len(), 4);
    for PoolPlace { node, offset } in objects {
        let value = PoolPlace { node, offset: offset + HEADER_BYTES };
        let what = noticed_with(&cluster, value, 1).expect("one of the objects is damaged");
        assert!(what.contains("leads to no object"), "{what}");
    }
    let (region, _) = view.region_of(hint.word.address()).expect("in a region");
    for (i, place) in region.places().iter().enumerate() {
        let bitmap = place.plus(view.geometry.bitmap_offset(hint.word.address()));
        let what = noticed_with(&cluster, bitmap, 1 << 9);
        assert_eq!(what.is_some_and(|what| what.contains("has marks")), i > 0);
    }
}
