//! Tests that recover clients from arbitrary memory, as dead clients or worse processes could leave it. Recovery always
//! ends, and reports the contents that it could not interpret. Its cost is as documented.

// Promise REC-5: Recovery ends whatever bytes it finds, within its phases.

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::error::Error;
use fusee_core::layout::{
    Address, BlockHeader, BlockShape, GenerationBase, Identity, LOG_RECORDS, LogRecord,
    OVERHEAD_BYTES, Opcode, Pair, SizeClass, Slot, log_area_offset, log_record_offset,
};
use fusee_core::recovery::{
    BlockContent, BlockReport, BlockSpan, RecoveryError, RecoveryResult, recover,
};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Geometry, PoolPlace, SlotRef};
use fusee_sim::{ClusterOptions, Rng, SimCluster};

use crate::support::{alone, blocks_of, largest_block, log_areas_of, operator_fabric, stepwise};

fn recovered(
    rng: &Rng,
    cluster: &SimCluster,
    client: ClientId,
    blocks: &[BlockSpan],
) -> Result<RecoveryResult, RecoveryError> {
    let view = cluster.view().clone();
    let areas = log_areas_of(cluster, client);
    alone(rng, recover(&operator_fabric(cluster), &view, client, blocks, &areas))
}

/// Writes bytes at a global address, on all replicas or only on the replica with this number.
fn put(cluster: &SimCluster, at: Address, bytes: &[u8], replica: Option<usize>) {
    let view = cluster.view();
    let places = view.object(at, bytes.len() as u64).expect("inside of a region").places();
    for (_, place) in places.enumerate().filter(|(i, _)| replica.is_none_or(|only| only == *i)) {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let place = PoolPlace { offset: place.offset + 8 * i as u64, ..place };
            cluster
                .network()
                .memories()
                .overwrite(place, u64::from_le_bytes(word.try_into().unwrap()));
        }
    }
}

/// Writes plausible but wrong bytes: a block header, objects, and slot words that refer to these objects.
fn scribble(rng: &Rng, cluster: &SimCluster, client: ClientId, block: BlockSpan) {
    let BlockSpan { address: block, bytes: block_bytes } = block;
    let any = |values: &[u32]| values[rng.below(values.len())];
    let replica = || [None, Some(0), Some(1)][rng.below(3)];
    let code = any(&[1, 2, 6, 16, 17, 40, 64, 100, 127]) as u8;
    let header = BlockHeader {
        class: SizeClass::from_code(code).unwrap(),
        owner: [client, ClientId(99), ClientId::NOBODY][rng.below(3)],
        first: any(&[0, 1, 7, 63, 64, 1000, u32::MAX]),
        fresh: any(&[0, 1, 7, 63, 64, 1000, u32::MAX]),
        sealed: rng.below(4) == 0,
        base: GenerationBase {
            generation: any(&[0, 1, 500, 511]) as u16,
            is_wrapped: rng.below(2) == 0,
            not_before: any(&[0, 0, 1, u32::MAX]).into(),
        },
    };
    if rng.below(4) > 0 {
        put(cluster, block, &header.encode(), replica());
    }
    for _ in 0..rng.below(20) {
        let class = SizeClass::from_code(any(&[1, 1, 2, 6]) as u8).unwrap();
        let shape = BlockShape::new(block_bytes, class).unwrap();
        let object = rng.below(shape.objects as usize) as u32;
        let at = Address::new(block.bytes() + shape.offset(object));
        let mut bytes = vec![0; class.bytes() as usize];
        let key = vec![
            any(&[0, 1, 2]) as u8;
            rng.below(class.bytes() as usize - OVERHEAD_BYTES as usize + 1)
        ];
        assert!(key.len() as u64 + OVERHEAD_BYTES <= class.bytes());
        let generation = any(&[0, 0, 1, 31, 32, 511]) as u16;
        let opcode = [Opcode::Insert, Opcode::Update, Opcode::Delete, Opcode::Upsert][rng.below(4)];
        let named = [at, at, at, Address::new(at.bytes() ^ 64)][rng.below(4)];
        let identity = Identity::new(named, generation);
        Pair { key: &key, value: b"", identity, opcode }.encode(&mut bytes);
        let tail = bytes.len() - 1;
        bytes[tail] = any(&[bytes[tail].into(), bytes[tail].into(), 0x80, 0xff, 0]) as u8;
        put(cluster, at, &bytes, replica());
        let own = Slot::new(any(&[0, 0x2a]) as u8, class, at, generation);
        for _ in 0..rng.below(4) {
            let word = [own, own.tentative(), own.withdrawn(), own.withdrawn().tentative()];
            let word = Slot(word[rng.below(4)].0 ^ [0, 0, 1 << 48, 1 << 63][rng.below(4)]);
            let slot = SlotRef { subtable: 0, slot: rng.below(12) as u32 };
            let places: Vec<PoolPlace> = cluster.view().slot_places(slot).collect();
            cluster.network().memories().overwrite(places[rng.below(places.len())], word.0);
        }
    }
}

/// Writes plausible but wrong records of DELETEs to the client's log areas, and numbers to slots.
fn scribble_records(rng: &Rng, cluster: &SimCluster, client: ClientId) {
    let nodes: Vec<MnId> = cluster.view().members.iter().map(|member| member.node).collect();
    for node in nodes {
        let reply = cluster.peek_node(node, NodeRequest::LogArea { client, number: 0 });
        let Some(NodeReply::LogArea { area }) = reply else { panic!("no log area: {reply:?}") };
        for record in (0..LOG_RECORDS).filter(|_| rng.below(4) == 0) {
            let number = Slot::number([client, ClientId(99)][rng.below(2)], rng.below(3) as u32);
            let hash = [0, 1 << 63, u64::MAX][rng.below(3)];
            let mut bytes = LogRecord { hash, number }.encode();
            bytes[rng.below(bytes.len())] ^= [0, 0, 0, 1][rng.below(4)];
            let offset = log_area_offset(area) + log_record_offset(record);
            for (i, word) in (0u64..).zip(bytes.as_chunks().0) {
                let place = PoolPlace { node, offset: offset + 8 * i };
                cluster.network().memories().overwrite(place, u64::from_le_bytes(*word));
            }
            let slot = SlotRef { subtable: 0, slot: rng.below(12) as u32 };
            let places: Vec<PoolPlace> = cluster.view().slot_places(slot).collect();
            let place = places[rng.below(places.len())];
            cluster.network().memories().overwrite(place, number.0);
        }
    }
}

#[test]
fn whatever_stands_in_memory_recovery_ends() {
    let mut strange = 0;
    for seed in 0..6_000 {
        let options = ClusterOptions {
            memory_nodes: 5,
            index_replicas: 1 + seed as u8 % 5,
            geometry: Geometry {
                region_bytes: 1 << 15,
                block_bytes: 1 << 12,
                max_value_bytes: 512,
                ..ClusterOptions::default().geometry
            },
            ..ClusterOptions::default()
        };
        let (rng, cluster) = stepwise(seed, &options);
        cluster.checks().stop_watching();
        let store = cluster.client();
        alone(&rng, async {
            for key in 0..3 {
                store.insert(&[key], &vec![key; rng.below(300)]).await.map(drop).unwrap();
            }
        });
        let geometry = &options.geometry;
        let mut blocks = blocks_of(&cluster, store.client());
        blocks.extend([largest_block(geometry, 1, 3), largest_block(geometry, 1, 6)]);
        for block in &blocks {
            scribble(&rng, &cluster, store.client(), *block);
        }
        scribble_records(&rng, &cluster, store.client());
        let real = blocks.len();
        // Three of these addresses are not those of blocks, and one is there twice.
        let bytes = geometry.block_bytes;
        let nowhere = [Address::NONE, Address::new(64), Address::new((1 << 44) - 64)];
        blocks.extend(nowhere.map(|address| BlockSpan { address, bytes }));
        blocks.push(blocks[0]);
        for _ in 0..2 {
            let report = recovered(&rng, &cluster, store.client(), &blocks).unwrap();
            assert_eq!(report.blocks.len(), real + 3, "each once");
            let unreadable =
                report.blocks.iter().filter(|b| b.content == BlockContent::Unreadable).count();
            assert!(unreadable >= 3);
            for rest in report.blocks.iter().filter_map(BlockReport::remainder) {
                let shape = BlockShape::new(rest.bytes, rest.class).unwrap();
                assert!(rest.first <= shape.objects);
            }
            strange += report.strange;
        }
    }
    assert!(strange > 1_000, "{strange}");
}

/// A speculative write has possibly left its word on any replica. Therefore recovery fails unless every node of the
/// view answers, and a lost node must first be taken out of the view.
#[test]
fn recovery_needs_every_node_that_the_view_names() {
    let options =
        ClusterOptions { memory_nodes: 4, index_replicas: 1, ..ClusterOptions::default() };
    for loses_the_index in [false, true] {
        let (rng, cluster) = stepwise(1, &options);
        let store = cluster.client();
        alone(&rng, async {
            // Three size classes need three blocks, each with its primary on another memory node.
            for len in [1, 100, 300] {
                store.upsert(b"key", &vec![7; len], None).await.map(drop).unwrap();
            }
        });
        let blocks = blocks_of(&cluster, store.client());
        assert_eq!(blocks.len(), 3);
        let report = recovered(&rng, &cluster, store.client(), &blocks).unwrap();
        assert_eq!((report.examined, report.on_primary, report.nowhere), (3, 1, 2));
        let view = cluster.view().clone();
        let index = view.subtables[0].primary().node;
        let nodes_of = |block: &BlockSpan| -> Vec<MnId> {
            view.object(block.address, 64)
                .expect("a region")
                .places()
                .map(|place| place.node)
                .collect()
        };
        let beside = blocks.iter().map(nodes_of).find(|nodes| !nodes.contains(&index));
        let beside = beside.expect("one node is in two of four pairs")[0];
        let lost = if loses_the_index { index } else { beside };
        cluster.nodes().crash(lost);
        let RecoveryError::Unreachable(failure) =
            recovered(&rng, &cluster, store.client(), &blocks).unwrap_err();
        assert_eq!(failure.node, lost);
    }
}

/// The recovery of an idle client takes one phase for all headers, one for each block, and two for every 64 objects, of
/// which the second is needed only if the primary lacks some objects.
#[test]
fn recovery_takes_as_many_phases_as_it_says() {
    let geometry = Geometry { block_bytes: 1 << 14, ..ClusterOptions::default().geometry };
    let options = ClusterOptions { geometry, ..ClusterOptions::default() };
    let (rng, cluster) = stepwise(2, &options);
    let store = cluster.client();
    alone(&rng, async {
        store.insert(b"key", b"0").await.map(drop).unwrap();
        for _ in 0..299 {
            store.update(b"key", b"1", None).await.map(drop).unwrap();
        }
        assert_eq!(store.insert(b"key", b"2").await, Err(Error::AlreadyExists));
    });
    let blocks = blocks_of(&cluster, store.client());
    let report = recovered(&rng, &cluster, store.client(), &blocks).unwrap();
    // Each block has as many bytes as all blocks before it together. The first two were sealed when they were used up.
    let bytes: Vec<u64> = blocks.iter().map(|block| block.bytes).collect();
    assert_eq!((bytes.len(), bytes.iter().sum::<u64>()), (4, 1 << 15));
    let sealed = 2 * BlockShape::new(1 << 12, SizeClass::from_code(1).unwrap()).unwrap().objects;
    let left = u64::from(301 - sealed);
    assert_eq!((report.walked, report.examined), (left, left), "also one that was given back");
    assert_eq!((report.on_primary, report.nowhere), (1, left - 1));
    assert_eq!(report.cost.phases, 1 + 2 + 2 * (left as u32).div_ceil(64));
    assert_eq!(report.cost.atomics, 0);
    let class = SizeClass::from_code(1).unwrap();
    let objects = |bytes: u64| BlockShape::new(bytes, class).unwrap().objects;
    let mut firsts = Vec::new();
    for block in &report.blocks {
        let BlockContent::Objects { class: of_block, first } = block.content else {
            panic!("{block:?}");
        };
        assert_eq!(of_block, class);
        let rest = block.remainder().map(|rest| rest.first);
        assert_eq!(rest, Some(first));
        firsts.push(first);
    }
    firsts.sort_unstable();
    let small = objects(1 << 12);
    let rest = 301 - 2 * small - objects(1 << 13);
    assert_eq!(firsts, [rest, small, small, objects(1 << 13)]);
}

/// The old header of a block says that its owner allocated objects from number 9 on; the new header says from number 5
/// on. The owner dies in its first speculative write after that: the new header and object 5 have reached only one
/// memory node, and the slot word only the backup. Recovery commits the write.
#[test]
fn what_a_speculation_left_beside_a_newer_header_is_found() {
    let options =
        ClusterOptions { memory_nodes: 2, index_replicas: 2, ..ClusterOptions::default() };
    for replica in [0, 1] {
        let (rng, cluster) = stepwise(3, &options);
        let living = cluster.client();
        let dead = cluster.client();
        let place = alone(&rng, async {
            dead.insert(b"other", b"1").await.map(drop).unwrap();
            living.insert(b"key", b"old").await.unwrap().place.expect("nobody is in the way")
        });
        let class = SizeClass::from_code(1).unwrap();
        let blocks = blocks_of(&cluster, dead.client());
        let shape = BlockShape::new(blocks[0].bytes, class).unwrap();
        let header = |first| {
            let owner = dead.client();
            let fresh = 0;
            let base = GenerationBase::default();
            BlockHeader { class, owner, first, fresh, sealed: false, base }.encode()
        };
        let block = blocks[0].address;
        put(&cluster, block, &header(9), None);
        put(&cluster, block, &header(5), Some(replica));
        let at = Address::new(block.bytes() + shape.offset(5));
        let mut bytes = vec![0; class.bytes() as usize];
        let identity = Identity::new(at, 3);
        Pair { key: b"key", value: b"new", identity, opcode: Opcode::Update }.encode(&mut bytes);
        put(&cluster, at, &bytes, Some(replica));
        let own = Slot::new(place.word.fingerprint(), class, at, 3);
        let backup = cluster.view().slot_on_backups(place.slot).next().expect("a backup");
        cluster.network().memories().overwrite(backup, own.0);
        let report = recovered(&rng, &cluster, dead.client(), &blocks).unwrap();
        assert_eq!(report.committed, 1, "{report:?}");
        // This also checks that all index replicas are equal.
        let keys: Vec<Vec<u8>> =
            cluster.checks().live_keys().iter().map(|key| key.to_vec()).collect();
        assert_eq!(keys, [b"key".to_vec(), b"other".to_vec()]);
        let found = alone(&rng, async {
            let found = living.search(b"key", None).await.unwrap();
            found.value().map(<[u8]>::to_vec)
        });
        assert_eq!(found.as_deref(), Some(&b"new"[..]));
    }
}

/// A client died while it sealed a block: one replica has the new header, the other replica still has an earlier one.
/// Recovery must not treat an object as never allocated if the header on any replica shows it as allocated.
#[test]
fn of_headers_at_rest_the_one_that_leaves_least_as_new_counts() {
    let options =
        ClusterOptions { memory_nodes: 2, index_replicas: 2, ..ClusterOptions::default() };
    for replica in [0, 1] {
        let (rng, cluster) = stepwise(3, &options);
        let dead = cluster.client();
        alone(&rng, async { dead.insert(b"key", b"1").await.map(drop).unwrap() });
        let class = SizeClass::from_code(1).unwrap();
        let blocks = blocks_of(&cluster, dead.client());
        let header = |fresh| {
            let owner = dead.client();
            let first = fresh;
            let base = GenerationBase::default();
            BlockHeader { class, owner, first, fresh, sealed: true, base }.encode()
        };
        put(&cluster, blocks[0].address, &header(5), None);
        put(&cluster, blocks[0].address, &header(9), Some(replica));
        let report = recovered(&rng, &cluster, dead.client(), &blocks).unwrap();
        let rest = report.blocks[0].content;
        assert_eq!(rest, BlockContent::Objects { class, first: 9 }, "replica {replica}");
    }
}
