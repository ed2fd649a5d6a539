//! Exports while clients write and a memory node dies, and a restore after all servers have stopped.

// Promise API-16

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use fusee_client::{BlockingClient, Client, FabricChoice, Options, PutOptions, WriteError};
use fusee_export::Exporter;
use fusee_export::format::{ExportBlock, ExportHead, ExportPart, ExportReader};

use super::cluster::{ClusterShape, FaultyCluster};

const WRITERS: u32 = 4;
/// Number of keys that always exist. In addition each writer inserts and deletes `LOOSE_KEYS` keys again and again.
const KEYS: u32 = 4_000;
const LOOSE_KEYS: u32 = 200;

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u32, version: u32) -> Vec<u8> {
    let mut value = [n.to_le_bytes(), version.to_le_bytes()].concat();
    value.resize(8 + (n % 300) as usize, n as u8);
    value
}

fn four_nodes() -> FaultyCluster {
    FaultyCluster::of(ClusterShape {
        nodes: 4,
        index_replicas: 2,
        data_replicas: 2,
        ..ClusterShape::default()
    })
}

fn connect(cluster: &FaultyCluster) -> BlockingClient {
    let fabric: FabricChoice = cluster.fabric().parse().unwrap();
    Client::connect_with(cluster.address(), Options::default().with_fabric(fabric))
        .unwrap()
        .blocking()
}

/// Updates a writer's own keys, and inserts and deletes other keys, until `stop` is set. If a session is lost with the
/// memory node, the client replaces it.
fn write(client: &BlockingClient, writer: u32, versions: &[AtomicU32], stop: &AtomicBool) {
    let mut round = 0_u32;
    let again = |result: Result<(), WriteError>| match result {
        Ok(()) | Err(WriteError::AlreadyExists | WriteError::NotFound) => true,
        Err(
            WriteError::Unreachable { .. }
            | WriteError::Expelled { .. }
            | WriteError::GaveUp { .. },
        ) => false,
        Err(error) => panic!("{error}"),
    };
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let n = (round.wrapping_mul(2_654_435_761) % (KEYS / WRITERS)) * WRITERS + writer;
        let version = versions[n as usize].load(Ordering::Relaxed) + 1;
        // The version is stored before the update, because readers can see it from the update on.
        versions[n as usize].store(version, Ordering::SeqCst);
        while !again(client.update(&key(n), &value(n, version))) {}
        let loose = format!("loose {writer} {}", round % LOOSE_KEYS).into_bytes();
        let write = match round / LOOSE_KEYS % 2 {
            0 => client.insert(&loose, b"loose"),
            _ => client.delete(&loose),
        };
        again(write);
    }
}

#[test]
fn an_export_beside_writers_has_every_pair_once_though_a_memory_node_dies() {
    let mut cluster = four_nodes();
    let client = connect(&cluster);
    let versions: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
    for n in 0..KEYS {
        client.put(&key(n), &value(n, 0)).unwrap();
    }
    let stop = AtomicBool::new(false);
    let (before, file) = thread::scope(|scope| {
        for writer in 0..WRITERS {
            let client = client.clone();
            let versions = &versions;
            let stop = &stop;
            scope.spawn(move || write(&client, writer, versions, stop));
        }
        let before: Vec<u32> = versions.iter().map(|v| v.load(Ordering::SeqCst)).collect();
        let cluster_id = client.view().cluster.word();
        let head = ExportHead { cluster: cluster_id, begun: 1, number: 0 };
        let mut export = Exporter::begin(Vec::new(), &head).unwrap();
        let mut victim = Some(cluster.nodes.remove(0));
        while export.step(&client).unwrap() {
            if export.progress() > 0.4
                && let Some(mut victim) = victim.take()
            {
                victim.kill();
            }
        }
        assert!(victim.is_none(), "it died meanwhile");
        let (file, _) = export.end(1).unwrap();
        stop.store(true, Ordering::Relaxed);
        (before, file)
    });
    let mut reader = ExportReader::begin(&file[..]).unwrap();
    let mut block = ExportBlock::default();
    let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    while let ExportPart::Block(_) = reader.next(&mut block).unwrap() {
        for pair in block.iter().filter(|pair| pair.key.starts_with(b"key ")) {
            let twice = found.insert(pair.key.to_vec(), pair.value.to_vec());
            assert_eq!(twice, None, "{}", pair.key.escape_ascii());
        }
    }
    assert_eq!(found.len(), KEYS as usize);
    for n in 0..KEYS {
        let found = &found[&key(n)];
        let version = u32::from_le_bytes(found[4..8].try_into().unwrap());
        assert_eq!(*found, value(n, version), "key {n}");
        // The last update possibly had not taken effect when the export began.
        let least = before[n as usize].saturating_sub(1);
        let most = versions[n as usize].load(Ordering::SeqCst);
        assert!((least..=most).contains(&version), "key {n}: {least} <= {version} <= {most}");
    }
    drop(client);
    cluster.until_stable(3, false);
}

#[test]
fn after_a_stop_of_everything_one_command_restores_the_last_export() {
    let mut cluster = four_nodes();
    let client = connect(&cluster);
    for n in 0..300 {
        client.put(&key(n), &value(n, 7)).unwrap();
    }
    let coded = PutOptions::default().with_redundancy("ec:2+1".parse().unwrap());
    client.put_with(b"picture", &[9; 40_000], coded).unwrap();
    let directory = cluster.path("exports").display().to_string();
    cluster.run(&["export", "--dir", &directory, "--keep", "1"]).expect_code(0);
    cluster.run(&["restore", &directory]).expect_error(1, "the master has a cluster");
    // The memory nodes hold data, so `restore` refuses to destroy the cluster.
    let refused = cluster.run(&["restore", &directory, "--destroy-data"]);
    refused.expect_error(1, "fusee import");
    assert_eq!(client.get(&key(5)).unwrap(), Some(value(5, 7)), "nothing was touched");
    drop(client);

    cluster.nodes.clear();
    cluster.kill_master();
    cluster.restart_master();
    // The new cluster has one memory node more, and its nodes have other names.
    (0..5).for_each(|_| cluster.start_node());
    let restored = cluster.run(&["restore", &directory, "--destroy-data"]).expect_code(0);
    assert!(restored.text().contains("301 of 301 pairs written"), "{}", restored.text());
    let client = connect(&cluster);
    for n in 0..300 {
        assert_eq!(client.get(&key(n)).unwrap(), Some(value(n, 7)), "key {n}");
    }
    assert_eq!(client.get(b"picture").unwrap(), Some(vec![9; 40_000]));
    assert_eq!(client.redundancy_of(b"picture").unwrap().unwrap().to_string(), "ec:2+1");
    let counted = cluster.run(&["count", "--prefix", "key ", "--json"]).expect_code(0).json();
    assert_eq!(counted["pairs"], 300);
}
