//! The durable records of the master: a map from [`MasterRecord::key`] to records.
//!
//! The store is one redb file, `master.redb` in the data directory. Transactions are atomic, and durable when they
//! return. The file is locked, so that two masters never continue from one state. Values are postcard bytes with a
//! checksum ([`entry_format`]). The key `format` holds the number of this format; a file with another number is refused
//! and stays unchanged.
//!
//! *Damage.* A store is used exactly as it was written, or not at all. When the file is opened, every page is checked,
//! first in an image of the file, so that a refused file stays as it was found. One kind of damage escapes these
//! checks: redb keeps the last two commits, and if the last one is damaged, redb goes back to the one before, as if a
//! crash had interrupted the last one. So each change is committed twice ([`MasterStore::settle`]): then both commits
//! hold the same.
//!
//! Embedded clusters, which end with their process, use [`MasterStore::memory`]. Several masters that elect a leader
//! keep their records in another store ([`RemoteStore`]), under the same keys and in the same bytes.

pub mod address;
pub mod entry_format;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
mod image;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fusee_fabric::Clock;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition, TableError,
};

use self::entry_format::{CONTENTS_KEY, FORMAT_KEY, StoreContents, StoreEntryError, StoreFormat};
use self::image::StoreImage;
use crate::record::{DESTROYED, MasterRecord, RecordWrite};

/// The name of the store's file in the data directory.
pub const FILE_NAME: &str = "master.redb";

const TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("fusee-master");
/// The limit on the number of records that one write removes when the store is cleared.
const TOGETHER: usize = 64;
/// The shortest time after which a change is committed a second time. A change of the view takes a few writes, one soon
/// after the other; these writes do not wait for second commits.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

type StoreEntries = BTreeMap<String, Vec<u8>>;

/// Reasons why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another master uses the store's file.
    #[error(
        "{} is in use by another process, probably another master; stop that one, or choose \
         another data_dir",
        path.display()
    )]
    Locked {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is damaged, or not a master's store.
    #[error(
        "{} is damaged, or no store of a FUSEE master ({cause}); restore it from a copy, or choose \
         another data_dir: over an empty one the master waits for `fusee form`",
        path.display()
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// A text that says what is wrong with the file.
        cause: String,
    },
    /// A record differs from what was written.
    #[error(
        "{store} is damaged: the record {record} is not as it was written ({cause}); restore the \
         store from a copy, or start the master over an empty one, where it waits for `fusee form`"
    )]
    DamagedRecord {
        /// The name of the store.
        store: String,
        /// The key of the damaged record.
        record: String,
        /// A text that says what is wrong with the record.
        cause: String,
    },
    /// The file was written by another version.
    #[error(
        "{} was written in the format {found:?}, this program knows {:?}; use the version that \
         wrote it",
        path.display(),
        entry_format::FORMAT
    )]
    OtherFormat {
        /// The path of the file.
        path: PathBuf,
        /// The name of the format that the file has.
        found: String,
    },
    /// The operating system refuses access to a file or directory.
    #[error("{}: {cause}; check that the directory can be written and has room", path.display())]
    Io {
        /// The path of the file or directory.
        path: PathBuf,
        /// The error text of the operating system.
        cause: String,
    },
    /// Another master leads, or is about to, so this master must not decide any more.
    #[error("{store}: this master does not lead any more ({cause})")]
    Deposed {
        /// The name of the store.
        store: String,
        /// A text that says how this master noticed it.
        cause: String,
    },
    /// A shared store does not answer, or refuses a request. A later attempt can succeed.
    #[error("{store} does not do as it is asked: {cause}")]
    Remote {
        /// The name of the store.
        store: String,
        /// The text of the store's error.
        cause: String,
    },
    /// The contents of a shared store are incomplete, or of another program or version.
    #[error("{store} cannot be used: {cause}")]
    Unusable {
        /// The name of the store.
        store: String,
        /// A text that says what was found, and gives the remedy.
        cause: String,
    },
}

/// Records outside of this process, in a store that several masters share.
///
/// A value of this type belongs to one term: it is made for the master that has been elected. A write after another
/// master's election changes nothing and fails with [`StoreError::Deposed`].
pub trait RemoteStore: std::fmt::Debug + Send {
    /// Returns the store's name for operators.
    fn name(&self) -> String;

    /// Returns all records in the store, by their keys.
    fn read(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError>;

    /// Puts and removes (`None`) entries; either all changes take effect, or none. They are durable when this returns.
    fn write(&mut self, entries: Vec<(String, Option<Vec<u8>>)>) -> Result<(), StoreError>;

    /// Returns whether this master still leads, as far as its own clock can tell. A master that does not lead any more
    /// but finds `true` here still cannot write; this function keeps it from giving outdated answers.
    fn holds(&self) -> bool;
}

/// The durable records of a master.
#[derive(Debug)]
pub struct MasterStore {
    kept: StoreBackend,
}

#[derive(Debug)]
enum StoreBackend {
    Memory(BTreeMap<String, MasterRecord>),
    File(StoreFile),
    Remote { remote: Box<dyn RemoteStore>, contents: StoreContents },
}

#[derive(Debug)]
struct StoreFile {
    path: PathBuf,
    database: Database,
    contents: StoreContents,
    /// The time of the earliest write after which no second commit has been made.
    unsettled: Option<Duration>,
}

/// Makes a file private, in case it was restored from a copy with other permissions.
fn keep_private(path: &Path, file: &File) -> std::io::Result<()> {
    if file.metadata()?.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    let what = "and who reads it can reach all memory";
    match file.set_permissions(Permissions::from_mode(0o600)) {
        Ok(()) => tracing::warn!("others could read {}, {what}: now they cannot", path.display()),
        Err(error) => {
            tracing::warn!(%error, "others can read {}, {what}: `chmod 600` it", path.display());
        }
    }
    Ok(())
}

impl MasterStore {
    /// Returns a store in memory, which is lost when the process ends.
    pub fn memory() -> MasterStore {
        MasterStore { kept: StoreBackend::Memory(BTreeMap::new()) }
    }

    /// Returns a store outside of this process, for one term of this master.
    pub fn remote(remote: Box<dyn RemoteStore>) -> Result<MasterStore, StoreError> {
        let (_, contents) = check(&remote.name(), &remote.read()?)?;
        Ok(MasterStore { kept: StoreBackend::Remote { remote, contents } })
    }

    /// Returns whether this master is still allowed to decide; see [`RemoteStore::holds`].
    pub fn holds(&self) -> bool {
        match &self.kept {
            StoreBackend::Remote { remote, .. } => remote.holds(),
            _ => true,
        }
    }

    /// Returns the store's name for operators.
    pub fn name(&self) -> String {
        match &self.kept {
            StoreBackend::Memory(_) => "memory".into(),
            StoreBackend::File(file) => file.path.display().to_string(),
            StoreBackend::Remote { remote, .. } => remote.name(),
        }
    }

    /// Opens the store in a directory. Creates directory and store if they do not exist, readable only by this user.
    pub fn open(dir: &Path) -> Result<MasterStore, StoreError> {
        let path = dir.join(FILE_NAME);
        let io = |path: &Path, error: std::io::Error| StoreError::Io {
            path: path.to_owned(),
            cause: error.to_string(),
        };
        // Messages about the path must not depend on the working directory.
        let path = std::path::absolute(&path).map_err(|error| io(&path, error))?;
        let mut directory = DirBuilder::new();
        directory.recursive(true).mode(0o700);
        directory.create(dir).map_err(|error| io(dir, error))?;
        // redb accepts an empty file as a new database.
        let mut private = File::options();
        private.read(true).write(true).create(true).truncate(false).mode(0o600);
        let open = || {
            let file = private.open(&path).map_err(|error| io(&path, error))?;
            keep_private(&path, &file).map_err(|error| io(&path, error))?;
            FileBackend::new(file).map_err(|error| failed(&path, error))
        };
        // The first check opens an image of the file, so that it changes nothing in the file.
        let image = open_database(&path, StoreImage::new(open()?))?;
        let (_, contents) = check_file(&path, &image)?;
        drop(image);
        let database = open_database(&path, open()?)?;
        let mut file = StoreFile { path, database, contents, unsettled: None };
        if file.read()?.is_empty() {
            file.write(BTreeMap::from([(FORMAT_KEY.into(), Some(entry_format::format()))]))?;
        }
        Ok(MasterStore { kept: StoreBackend::File(file) })
    }

    /// Returns the records in the bytes of a store's file, as [`MasterStore::open`] would read them.
    pub fn read_image(bytes: &[u8]) -> Result<Vec<MasterRecord>, StoreError> {
        let path = Path::new("the image of a store");
        let memory = image::in_memory(bytes).map_err(|error| failed(path, error))?;
        Ok(check_file(path, &open_database(path, memory)?)?.0)
    }

    /// Returns all records in the store.
    pub fn load(&self) -> Result<Vec<MasterRecord>, StoreError> {
        let (records, _) = match &self.kept {
            StoreBackend::Memory(records) => return Ok(records.values().cloned().collect()),
            StoreBackend::File(file) => check_file(&file.path, &file.database)?,
            StoreBackend::Remote { remote, .. } => check(&remote.name(), &remote.read()?)?,
        };
        Ok(records)
    }

    /// Removes all records but those of destroyed clusters. This takes several writes, because a shared store limits
    /// the changes in one write.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        let keys: Vec<String> = match &self.kept {
            StoreBackend::Memory(records) => records.keys().cloned().collect(),
            StoreBackend::File(file) => file.read()?.into_keys().collect(),
            StoreBackend::Remote { remote, .. } => remote.read()?.into_keys().collect(),
        };
        let goes = |key: &String| !entry_format::is_own(key) && !key.starts_with(DESTROYED);
        let writes: Vec<RecordWrite> =
            keys.into_iter().filter(goes).map(RecordWrite::Remove).collect();
        writes.chunks(TOGETHER).try_for_each(|some| self.persist(some.to_vec()))
    }

    /// Applies all changes of records, or none. The changes are durable when this returns.
    pub fn persist(&mut self, writes: Vec<RecordWrite>) -> Result<(), StoreError> {
        match &mut self.kept {
            StoreBackend::Memory(kept) => {
                for change in writes {
                    match change {
                        RecordWrite::Put(record) => drop(kept.insert(record.key(), record)),
                        RecordWrite::Remove(key) => drop(kept.remove(&key)),
                    }
                }
                Ok(())
            }
            StoreBackend::File(file) => file.write(writes.into_iter().map(entry).collect()),
            StoreBackend::Remote { remote, contents } => {
                let entries = writes.into_iter().map(entry).collect();
                with_contents(contents, entries, |entries| {
                    remote.write(entries.into_iter().collect())
                })
            }
        }
    }

    /// Commits those changes once more that were committed only once, some time ago; to be called regularly. The
    /// contents stay the same. But if the last commit is damaged and the file was not closed, redb goes back to the
    /// commit before. So that commit must also hold everything that other processes possibly know.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        match &mut self.kept {
            StoreBackend::File(file)
                if file.unsettled.is_some_and(|at| Clock::Precise.now() >= at + SETTLED_AFTER) =>
            {
                file.settle()
            }
            _ => Ok(()),
        }
    }
}

impl StoreFile {
    fn read(&self) -> Result<StoreEntries, StoreError> {
        read(&self.database).map_err(|error| failed(&self.path, error))
    }

    fn write(&mut self, entries: BTreeMap<String, Option<Vec<u8>>>) -> Result<(), StoreError> {
        let StoreFile { path, database, contents, unsettled } = self;
        with_contents(contents, entries, |entries| {
            write(database, entries).map_err(|error| failed(path, error))
        })?;
        unsettled.get_or_insert_with(|| Clock::Precise.now());
        Ok(())
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        let same = BTreeMap::from([(CONTENTS_KEY.to_owned(), Some(self.contents.encode()))]);
        write(&self.database, same).map_err(|error| failed(&self.path, error))?;
        self.unsettled = None;
        Ok(())
    }
}

/// Writes entries together with the list of contents. If the write fails, the list stays as it was.
fn with_contents(
    contents: &mut StoreContents,
    mut entries: BTreeMap<String, Option<Vec<u8>>>,
    write: impl FnOnce(BTreeMap<String, Option<Vec<u8>>>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut before = Vec::with_capacity(entries.len());
    for (key, bytes) in entries.iter().filter(|(key, _)| !entry_format::is_own(key)) {
        let crc = bytes.as_ref().map(|bytes| entry_format::unseal(key, bytes));
        let crc = crc.map(|unsealed| unsealed.expect("it was sealed for this").1);
        before.push((key.clone(), contents.set(key, crc)));
    }
    entries.insert(CONTENTS_KEY.into(), Some(contents.encode()));
    let written = write(entries);
    if written.is_err() {
        for (key, crc) in before {
            contents.set(&key, crc);
        }
    }
    written
}

/// Decodes all records of a store, and checks them against the list of contents.
fn check(
    store: &str,
    entries: &StoreEntries,
) -> Result<(Vec<MasterRecord>, StoreContents), StoreError> {
    entry_format::decode_all(entries).map_err(|unsound| damaged(store, unsound))
}

fn damaged(store: &str, StoreEntryError { record, cause }: StoreEntryError) -> StoreError {
    StoreError::DamagedRecord { store: store.into(), record, cause }
}

/// Decodes all records of a database, which must be empty or have this program's format.
fn check_file(
    path: &Path,
    database: &Database,
) -> Result<(Vec<MasterRecord>, StoreContents), StoreError> {
    let entries = read(database).map_err(|error| failed(path, error))?;
    let name = path.display().to_string();
    let format = match entries.get(FORMAT_KEY) {
        Some(bytes) => {
            entry_format::read_format(bytes).map_err(|unsound| damaged(&name, unsound))?
        }
        None if entries.is_empty() => StoreFormat::This,
        None => StoreFormat::Other(String::new()),
    };
    match format {
        StoreFormat::This => check(&name, &entries),
        StoreFormat::Other(found) => Err(StoreError::OtherFormat { path: path.into(), found }),
    }
}

fn open_database(path: &Path, backend: impl StorageBackend) -> Result<Database, StoreError> {
    let path = path.to_owned();
    let opened = Builder::new().set_check_integrity_on_open(true).create_with_backend(backend);
    opened.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path },
        DatabaseError::UpgradeRequired(version) => {
            StoreError::OtherFormat { path, found: format!("redb file format {version}") }
        }
        error => failed(&path, error),
    })
}

/// Returns the key that a change concerns, and the new bytes; `None` if the record is removed.
fn entry(change: RecordWrite) -> (String, Option<Vec<u8>>) {
    match change {
        RecordWrite::Put(record) => {
            let (key, bytes) = entry_format::encode(&record);
            (key, Some(bytes))
        }
        RecordWrite::Remove(key) => (key, None),
    }
}

fn read(database: &Database) -> Result<StoreEntries, redb::Error> {
    let table = match database.begin_read()?.open_table(TABLE) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        table => table?,
    };
    let mut entries = BTreeMap::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        entries.insert(key.value().to_owned(), value.value().to_vec());
    }
    Ok(entries)
}

fn write(
    database: &Database,
    entries: BTreeMap<String, Option<Vec<u8>>>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for (key, bytes) in entries {
            match bytes {
                Some(bytes) => table.insert(key.as_str(), bytes.as_slice())?,
                None => table.remove(key.as_str())?,
            };
        }
    }
    // With the default durability, a commit is on the disk when this returns.
    Ok(transaction.commit()?)
}

fn failed(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
            StoreError::Io { path, cause: error.to_string() }
        }
        error => StoreError::Damaged { path, cause: error.to_string() },
    }
}
