//! Tests of the master's store: stored records are there again, and no other bytes are accepted as records.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use fusee_core::layout::crc32c;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::Member;
use fusee_master::record::{MasterRecord, RecordWrite, member_key};
use fusee_master::store::{FILE_NAME, MasterStore, StoreError, entry_format};

const CLUSTER: ClusterId = ClusterId::from_word(9).unwrap();

fn member(node: u16) -> Member {
    Member {
        node: MnId(node),
        identity: 7 << 60,
        control: "host:1".into(),
        tcp: Some("host:2".into()),
        shm: None,
        verbs: None,
        pool_bytes: 1 << 40,
    }
}

fn puts(records: &[MasterRecord]) -> Vec<RecordWrite> {
    records.iter().cloned().map(RecordWrite::Put).collect()
}

fn sorted(mut records: Vec<MasterRecord>) -> Vec<MasterRecord> {
    records.sort_by_key(MasterRecord::key);
    records
}

#[test]
fn records_come_back_newest_first_removed_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let before = [
        MasterRecord::Cluster(CLUSTER),
        MasterRecord::NextNode(2),
        MasterRecord::Member(member(0)),
        MasterRecord::Member(member(1)),
        MasterRecord::ClientIds { end: 65 },
    ];
    for mut store in [MasterStore::open(dir.path()).unwrap(), MasterStore::memory()] {
        assert_eq!(store.load().unwrap(), []);
        store.persist(puts(&before)).unwrap();
        let later = RecordWrite::Put(MasterRecord::ClientIds { end: 129 });
        store.persist(vec![RecordWrite::Remove(member_key(MnId(0))), later]).unwrap();
        let now = vec![
            MasterRecord::Cluster(CLUSTER),
            MasterRecord::NextNode(2),
            MasterRecord::Member(member(1)),
            MasterRecord::ClientIds { end: 129 },
        ];
        assert_eq!(sorted(store.load().unwrap()), sorted(now));
    }
    let again = MasterStore::open(dir.path()).unwrap();
    assert_eq!(again.load().unwrap().len(), 4);
}

#[test]
fn a_store_is_its_users_own_and_is_known_by_its_whole_path() {
    let dir = tempfile::tempdir().unwrap();
    let store = MasterStore::open(&dir.path().join("new")).unwrap();
    let path = dir.path().join("new").join(FILE_NAME);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(dir.path().join("new")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(store.name(), path.to_str().unwrap());
    drop(store);
    // The file can have these permissions if it was copied, for instance.
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    drop(MasterStore::open(&dir.path().join("new")).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    // A file without contents is an empty store, not an error.
    std::fs::File::create(&path).unwrap();
    assert_eq!(MasterStore::open(&dir.path().join("new")).unwrap().load().unwrap(), []);
}

#[test]
fn the_bytes_of_records_stay_readable() {
    // The first version wrote these bytes. If a later version cannot read them any more, it needs another format
    // number.
    let bytes = [
        &[3, 1][..],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x70],
        b"\x06host:1\x01\x06host:2\x00\x00",
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x20],
    ]
    .concat();
    let record: MasterRecord = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(record, MasterRecord::Member(member(1)));
    assert_eq!(
        postcard::from_bytes::<MasterRecord>(b"\x06\x41").unwrap(),
        MasterRecord::ClientIds { end: 65 }
    );
    // The stored bytes end with the checksum: the CRC-32C of the bytes 06 41 and of the record's key.
    let ids = MasterRecord::ClientIds { end: 65 };
    let bytes = [&b"\x06\x41"[..], &crc32c(b"\x06\x41client-ids").to_le_bytes()].concat();
    assert_eq!(entry_format::encode(&ids), ("client-ids".into(), bytes));
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn a_second_master_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = MasterStore::open(dir.path()).unwrap();
    first.persist(puts(&[MasterRecord::Cluster(CLUSTER)])).unwrap();
    let error = MasterStore::open(dir.path()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("another master"));
    drop(first);
    assert_eq!(
        MasterStore::open(dir.path()).unwrap().load().unwrap(),
        [MasterRecord::Cluster(CLUSTER)]
    );
}

fn file(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join(FILE_NAME)
}

#[test]
fn a_file_that_is_no_store_is_left_alone() {
    let junk = vec![0x5a; 100_000];
    let short = b"not a database".to_vec();
    for bytes in [junk, short] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(file(&dir), &bytes).unwrap();
        let error = MasterStore::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(std::fs::read(file(&dir)).unwrap(), bytes, "it was changed");
    }
}

#[test]
fn a_truncated_store_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = MasterStore::open(dir.path()).unwrap();
    store.persist(puts(&[MasterRecord::Member(member(1))])).unwrap();
    drop(store);
    let whole = std::fs::read(file(&dir)).unwrap();
    std::fs::File::create(file(&dir)).unwrap().write_all(&whole[..whole.len() / 3]).unwrap();
    let opened = MasterStore::open(dir.path()).and_then(|store| store.load());
    assert!(matches!(opened, Err(StoreError::Damaged { .. })), "{opened:?}");
}

#[test]
fn another_format_and_undecodable_records_are_named() {
    const TABLE: redb::TableDefinition<&str, &[u8]> = redb::TableDefinition::new("fusee-master");
    let overwrite = |dir: &tempfile::TempDir, key: &str, value: &[u8]| {
        let database = redb::Database::create(file(dir)).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(TABLE).unwrap().insert(key, value).unwrap();
        transaction.commit().unwrap();
    };
    let dir = tempfile::tempdir().unwrap();
    drop(MasterStore::open(dir.path()).unwrap());
    let refused = |text: &str| {
        let error = MasterStore::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        error
    };
    for bytes in [b"\xff\xff".to_vec(), entry_format::seal("client-ids", vec![0xff])] {
        overwrite(&dir, "client-ids", &bytes);
        let error = refused("the record client-ids is not as it was written");
        assert!(matches!(error, StoreError::DamagedRecord { .. }), "{error}");
    }
    overwrite(&dir, "client-ids", &entry_format::seal("client-ids", b"\x00\x09".to_vec()));
    refused("it is a record of cluster");
    overwrite(&dir, "client-ids", &entry_format::seal("client-ids", b"\x06\x41\x00".to_vec()));
    refused("1 bytes too many");
    // The formats of this version, of one without checksums, and of a future one.
    overwrite(&dir, "format", b"fusee-master 12");
    assert!(matches!(refused("fusee-master 12"), StoreError::OtherFormat { .. }));
    overwrite(&dir, "format", b"fusee-master 6");
    assert!(matches!(refused("fusee-master 6"), StoreError::OtherFormat { .. }));
    overwrite(&dir, "format", &entry_format::seal("format", b"fusee-master 99".to_vec()));
    assert!(matches!(refused("fusee-master 99"), StoreError::OtherFormat { .. }));
}
