//! Tests of stores that were changed from outside, for example by flipped bits on a disk or lost sectors.
//!
//! Whatever has happened to the file, a master either reads from it exactly what it has written, or refuses it and
//! names the damage and the remedy. A refused file stays as it is, for a later inspection.

// Promise DMG-8: A damaged store is refused by name, or read as written.

use std::time::Duration;

use fusee_control::master::Orphan;
use fusee_control::node::BlockId;
use fusee_core::data::Region;
use fusee_core::layout::SizeClass;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::{Geometry, Member, PoolPlace, Subtable, View};
use fusee_master::config::MasterConfig;
use fusee_master::record::{MasterRecord, RecordWrite};
use fusee_master::server::{MasterServer, MasterStartError};
use fusee_master::store::{FILE_NAME, MasterStore, StoreError, entry_format};
use proptest::prelude::*;
use proptest::sample;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const CLUSTER: ClusterId = ClusterId::from_word(9).unwrap();

fn member(node: u16) -> Member {
    Member {
        node: MnId(node),
        identity: 0x1234_5678_9abc_def0 ^ u64::from(node),
        control: format!("host{node}:1"),
        tcp: Some(format!("host{node}:2")),
        shm: None,
        verbs: None,
        pool_bytes: 1 << 30,
    }
}

fn view() -> View {
    let places =
        |at: u64| vec![0, 1].into_iter().map(move |n| PoolPlace { node: MnId(n), offset: at });
    let region = |at: u64| Region::replicated(places(at << 28).collect(), 1);
    let subtable = |at: u64| Subtable::new(6, places((2 << 20) + (at << 20)).collect());
    View {
        number: 7,
        cluster: CLUSTER,
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry::default(),
        members: vec![member(0), member(1)],
        regions: (1..3).map(region).collect(),
        directory: (0..64).collect(),
        subtables: (0..64).map(subtable).collect(),
        change: None,
    }
}

/// Returns the writes of a master from its start, as several transactions.
fn history() -> Vec<Vec<RecordWrite>> {
    let class = SizeClass::from_code(3).unwrap();
    let put =
        |records: Vec<MasterRecord>| records.into_iter().map(RecordWrite::Put).collect::<Vec<_>>();
    let session =
        |client| MasterRecord::Session { client: ClientId(client), expired: false, handed_on: 3 };
    let orphan = |number: u32| {
        let order = Geometry::default().max_order();
        let block = BlockId { region: 1, frame: number << order, order };
        let (owner, base, marked) = (ClientId(5), Some(0), Some(1));
        MasterRecord::Orphan(Orphan { block, owner, class, first: 9, base, marked })
    };
    vec![
        put(vec![
            MasterRecord::Cluster(CLUSTER),
            MasterRecord::Attempt(1),
            MasterRecord::NextNode(2),
        ]),
        put(vec![
            MasterRecord::Member(member(0)),
            MasterRecord::Member(member(1)),
            MasterRecord::View(view()),
        ]),
        put((1..40).map(session).collect()),
        put((0..60).map(orphan).collect()),
        vec![RecordWrite::Remove(session(7).key()), RecordWrite::Remove(orphan(9).key())],
        put(vec![MasterRecord::ClientIds { end: 129 }, MasterRecord::Epochs { end: 1 << 40 }]),
    ]
}

/// Returns the bytes of a store and its records. The store was closed, or its master was killed (`is_killed`) some time
/// after the last write.
fn store(is_killed: bool) -> (Vec<u8>, Vec<MasterRecord>) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = MasterStore::open(dir.path()).unwrap();
    history().into_iter().for_each(|writes| store.persist(writes).unwrap());
    let records = store.load().unwrap();
    let path = dir.path().join(FILE_NAME);
    if !is_killed {
        drop(store);
        return (std::fs::read(&path).unwrap(), records);
    }
    let before = std::fs::read(&path).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    store.settle().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes != before, "it was settled");
    (bytes, records)
}

#[derive(Debug, Default)]
struct DamageOutcomes {
    refused: usize,
    harmless: usize,
}

/// Reads a store whose bytes were changed, and counts the outcome.
fn judge(what: &str, damaged: &[u8], records: &[MasterRecord], seen: &mut DamageOutcomes) {
    match MasterStore::read_image(damaged) {
        Ok(found) => {
            assert!(found == records, "{what}: another state was read");
            seen.harmless += 1;
        }
        Err(error) => {
            let named = matches!(
                error,
                StoreError::Damaged { .. }
                    | StoreError::DamagedRecord { .. }
                    | StoreError::OtherFormat { .. }
            );
            assert!(named, "{what}: {error:?}");
            seen.refused += 1;
        }
    }
}

/// Returns the positions in the file to which redb has written.
fn written(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).filter(|at| bytes[*at] != 0).collect()
}

/// The length of redb's header, which describes its commits; no checksum covers its first part.
const HEADER_BYTES: usize = 320;

#[test]
fn a_flipped_bit_is_refused_or_changes_nothing() {
    for is_killed in [false, true] {
        let (mut bytes, records) = store(is_killed);
        assert!(MasterStore::read_image(&bytes).unwrap() == records);
        let places = written(&bytes);
        let mut in_header = DamageOutcomes::default();
        let mut behind = DamageOutcomes::default();
        let mut flip = |at: usize, bit: u32, seen: &mut DamageOutcomes| {
            bytes[at] ^= 1 << bit;
            judge(&format!("bit {bit} of byte {at}"), &bytes, &records, seen);
            bytes[at] ^= 1 << bit;
        };
        // Flips every bit of the byte with the flags, and one bit of each other byte.
        for at in 0..HEADER_BYTES {
            (0..8).filter(|bit| at == 9 || *bit == at as u32 % 8).for_each(|bit| {
                flip(at, bit, &mut in_header);
            });
        }
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..300 {
            let at = places[random.random_range(0..places.len())];
            flip(at, random.random_range(0..8), &mut behind);
        }
        println!("killed: {is_killed}; header: {in_header:?}, behind it: {behind:?}");
        assert!(in_header.refused > 10 && behind.refused > 3);
    }
}

#[test]
fn lost_bytes_sectors_and_pages_are_refused_or_change_nothing() {
    for is_killed in [false, true] {
        let (bytes, records) = store(is_killed);
        let mut random = StdRng::seed_from_u64(2);
        let mut seen = DamageOutcomes::default();
        let places = written(&bytes);
        for length in [1, 8, 512, 4096] {
            for _ in 0..25 {
                let at = places[random.random_range(0..places.len())] / length * length;
                for filled in [0, 0xff, random.random()] {
                    let mut damaged = bytes.clone();
                    damaged[at..][..length].fill(filled);
                    let what = format!("{length} bytes at {at} are {filled}");
                    judge(&what, &damaged, &records, &mut seen);
                }
            }
        }
        for length in (0..bytes.len()).step_by(bytes.len() / 61 + 1).skip(1) {
            judge(&format!("{length} bytes"), &bytes[..length], &records, &mut seen);
        }
        println!("killed: {is_killed}; {seen:?}");
        assert!(seen.refused > 10);
    }
}

#[test]
fn what_is_refused_stays_as_it_is_and_no_master_starts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let (bytes, records) = store(true);
    let places = written(&bytes);
    let mut random = StdRng::seed_from_u64(3);
    let mut refused = 0;
    while refused < 5 {
        let mut damaged = bytes.clone();
        damaged[places[random.random_range(0..places.len())]] ^= 1 << random.random_range(0..8);
        std::fs::write(&path, &damaged).unwrap();
        match MasterStore::open(dir.path()) {
            // The damage was harmless: the file still has all records.
            Ok(store) => assert!(store.load().unwrap() == records),
            Err(error) => {
                refused += 1;
                assert!(std::fs::read(&path).unwrap() == damaged, "it was changed: {error}");
                let text = error.to_string();
                assert!(text.contains(path.to_str().unwrap()), "{text}");
                assert!(text.contains("from a copy") || text.contains("the version"), "{text}");
                let config = MasterConfig {
                    listen: "127.0.0.1:0".into(),
                    data_dir: dir.path().into(),
                    ..MasterConfig::default()
                };
                let started = MasterServer::start(config);
                assert!(matches!(started, Err(MasterStartError::Store(_))), "{started:?}");
            }
        }
    }
}

/// This damage leaves redb's checksums right, but each record has a checksum of its own.
#[test]
fn the_record_that_is_damaged_is_named() {
    const TABLE: redb::TableDefinition<&str, &[u8]> = redb::TableDefinition::new("fusee-master");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let (whole, records) = store(false);
    std::fs::write(&path, &whole).unwrap();
    let change = |key: &str, value: Option<&[u8]>| {
        let database = redb::Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut table = transaction.open_table(TABLE).unwrap();
        let before = match value {
            Some(value) => table.insert(key, value).unwrap().map(|found| found.value().to_vec()),
            None => table.remove(key).unwrap().map(|found| found.value().to_vec()),
        };
        drop(table);
        transaction.commit().unwrap();
        before
    };
    let named = || match MasterStore::open(dir.path()) {
        Err(StoreError::DamagedRecord { store, record, .. }) => {
            assert_eq!(store, path.to_str().unwrap());
            record
        }
        other => panic!("unexpected {other:?}"),
    };
    let keys = records.iter().map(MasterRecord::key).chain(["contents".into(), "format".into()]);
    for (nth, key) in keys.enumerate().filter(|(nth, _)| nth % 7 == 0 || *nth > 100) {
        let bytes = change(&key, None).unwrap();
        let missing = match key.as_str() {
            "format" => MasterStore::open(dir.path()).unwrap_err().to_string(),
            _ => named(),
        };
        let expected = if key == "format" { "written in the format" } else { "contents" };
        assert!(missing.contains(expected), "{key}: {missing}");
        let mut flipped = bytes.clone();
        flipped[nth % bytes.len()] ^= 1 << (nth % 8);
        change(&key, Some(&flipped));
        assert_eq!(named(), key);
        change(&key, Some(&bytes));
        assert!(MasterStore::open(dir.path()).unwrap().load().unwrap() == records);
    }
    // An older version of a record, which is intact by itself.
    let (_, older) = entry_format::encode(&MasterRecord::ClientIds { end: 65 });
    change("client-ids", Some(&older));
    assert_eq!(named(), "contents");
}

proptest! {
    #[test]
    fn records_come_back_and_one_flipped_bit_is_noticed(
        nth in 0usize..100,
        at: sample::Index,
        bit in 0u32..8,
    ) {
        let records: Vec<MasterRecord> = history().into_iter().flatten().filter_map(|write| match write {
            RecordWrite::Put(record) => Some(record),
            RecordWrite::Remove(_) => None,
        }).collect();
        let record = &records[nth % records.len()];
        let (key, mut bytes) = entry_format::encode(record);
        prop_assert_eq!(entry_format::decode(&key, &bytes), Ok(record.clone()));
        prop_assert!(entry_format::decode("member/00009", &bytes).is_err());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(entry_format::decode(&key, &bytes).is_err());
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(key in "[a-z/0-9-]{0,20}", bytes: Vec<u8>) {
        let _ = entry_format::read_format(&bytes);
        prop_assert!(entry_format::decode(&key, &bytes).is_err(), "its checksum would be right");
        // The same bytes are decoded with a right checksum.
        let sealed = entry_format::seal(&key, bytes);
        if let Ok(record) = entry_format::decode(&key, &sealed) {
            prop_assert_eq!(record.key(), key);
        }
    }
}
