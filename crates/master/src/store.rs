//! What the master remembers, durably: a map from [`Record::key`] to records.
//!
//! One redb file, `master.redb` in the data directory: transactions are atomic and durable when
//! they return, and the file is locked, so that two masters never go on from one state. Values
//! are postcard bytes with a checksum ([`sealed`]). The key `format` holds the number of this layout; another
//! number is somebody else's file and is left alone.
//!
//! *Damage.* A store is used as it was written, or not at all. Every page is checked when the file is
//! opened, first in an image of it, so that a file that is refused stays as it was found. There is
//! one thing that checks of a file cannot see: redb keeps the last two commits, and where the last one is
//! damaged it goes back to the one before, as if a crash had cut the last one off. So what is written is
//! committed twice ([`Store::settle`]): then both hold the same.
//!
//! Embedded clusters, which end with their process, use [`Store::memory`]. Several masters that
//! elect a leader keep their records elsewhere ([`Remote`]), under the same keys and in the same
//! bytes.

pub mod address;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
mod image;
pub mod sealed;

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

use self::image::Image;
use self::sealed::{CONTENTS_KEY, Contents, FORMAT_KEY, Format, Unsound};
use crate::record::{DESTROYED, Record, Write};

/// The file's name in the data directory.
pub const FILE_NAME: &str = "master.redb";

const TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("fusee-master");
/// Records that are removed by one change, where many are.
const TOGETHER: usize = 64;
/// How long what was written stands in one commit only, at least: a change of the view takes a few writes,
/// one soon after the other, and is not to wait for the second commits.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

type Entries = BTreeMap<String, Vec<u8>>;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another master uses the file.
    #[error(
        "{} is in use by another process, probably another master; stop that one, or choose \
         another data_dir",
        path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged or no store at all.
    #[error(
        "{} is damaged, or no store of a FUSEE master ({cause}); restore it from a copy, or choose \
         another data_dir: over an empty one the master waits for `fusee form`",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        cause: String,
    },
    /// A record is not what was written.
    #[error(
        "{store} is damaged: the record {record} is not as it was written ({cause}); restore the \
         store from a copy, or start the master over an empty one, where it waits for `fusee form`"
    )]
    DamagedRecord {
        /// The store.
        store: String,
        /// The record's key.
        record: String,
        /// What was found.
        cause: String,
    },
    /// The file is another version's.
    #[error(
        "{} was written in the format {found:?}, this program knows {:?}; use the version that \
         wrote it",
        path.display(),
        sealed::FORMAT
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The format's name in the file.
        found: String,
    },
    /// The system refuses.
    #[error("{}: {cause}; check that the directory can be written and has room", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system says.
        cause: String,
    },
    /// Another master leads, or is about to: this one must not decide any more.
    #[error("{store}: this master does not lead any more ({cause})")]
    Deposed {
        /// The store.
        store: String,
        /// How it was found out.
        cause: String,
    },
    /// A shared store does not answer, or refuses; it may do better later.
    #[error("{store} does not do as it is asked: {cause}")]
    Remote {
        /// The store.
        store: String,
        /// What it says.
        cause: String,
    },
    /// A shared store holds something else, or nothing whole.
    #[error("{store} cannot be used: {cause}")]
    Unusable {
        /// The store.
        store: String,
        /// What was found, and what to do.
        cause: String,
    },
}

/// Records that are kept outside of this process, by a store that several masters share.
///
/// A value of this type is a term of office: it is made for the master that has been elected, and
/// a write that comes after another master's election changes nothing and fails with
/// [`StoreError::Deposed`].
pub trait Remote: std::fmt::Debug + Send {
    /// What people know it by.
    fn name(&self) -> String;

    /// All records, by their keys.
    fn read(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError>;

    /// Puts and removes (`None`), all or none. Durable when this returns.
    fn write(&mut self, entries: Vec<(String, Option<Vec<u8>>)>) -> Result<(), StoreError>;

    /// Whether this master still leads, as far as its own clock can tell. Not what keeps a deposed
    /// master from writing; it keeps it from telling others what is not so any more.
    fn holds(&self) -> bool;
}

/// Durable records.
#[derive(Debug)]
pub struct Store {
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Memory(BTreeMap<String, Record>),
    File(StoreFile),
    Remote { remote: Box<dyn Remote>, contents: Contents },
}

#[derive(Debug)]
struct StoreFile {
    path: PathBuf,
    database: Database,
    contents: Contents,
    /// When something was written that stands in one commit only.
    unsettled: Option<Duration>,
}

/// A file that was put back from a copy may have come with other rights than it was made with.
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

impl Store {
    /// A store that is lost with the process.
    pub fn memory() -> Store {
        Store { kept: Kept::Memory(BTreeMap::new()) }
    }

    /// A store outside of this process, for one term of office.
    pub fn remote(remote: Box<dyn Remote>) -> Result<Store, StoreError> {
        let (_, contents) = check(&remote.name(), &remote.read()?)?;
        Ok(Store { kept: Kept::Remote { remote, contents } })
    }

    /// Whether this master may still decide; see [`Remote::holds`].
    pub fn holds(&self) -> bool {
        match &self.kept {
            Kept::Remote { remote, .. } => remote.holds(),
            _ => true,
        }
    }

    /// What people know it by.
    pub fn name(&self) -> String {
        match &self.kept {
            Kept::Memory(_) => "memory".into(),
            Kept::File(file) => file.path.display().to_string(),
            Kept::Remote { remote, .. } => remote.name(),
        }
    }

    /// Opens the store in a directory, or makes both, for nobody but this user to read.
    pub fn open(dir: &Path) -> Result<Store, StoreError> {
        let path = dir.join(FILE_NAME);
        let io = |path: &Path, error: std::io::Error| StoreError::Io {
            path: path.to_owned(),
            cause: error.to_string(),
        };
        // Whatever is said of it should not depend on where this process happens to be.
        let path = std::path::absolute(&path).map_err(|error| io(&path, error))?;
        let mut directory = DirBuilder::new();
        directory.recursive(true).mode(0o700);
        directory.create(dir).map_err(|error| io(dir, error))?;
        // The database makes an empty file its own.
        let mut private = File::options();
        private.read(true).write(true).create(true).truncate(false).mode(0o600);
        let open = || {
            let file = private.open(&path).map_err(|error| io(&path, error))?;
            keep_private(&path, &file).map_err(|error| io(&path, error))?;
            FileBackend::new(file).map_err(|error| failed(&path, error))
        };
        // First a look that changes nothing.
        let image = open_database(&path, Image::new(open()?))?;
        let (_, contents) = check_file(&path, &image)?;
        drop(image);
        let database = open_database(&path, open()?)?;
        let mut file = StoreFile { path, database, contents, unsettled: None };
        if file.read()?.is_empty() {
            file.write(BTreeMap::from([(FORMAT_KEY.into(), Some(sealed::format()))]))?;
        }
        Ok(Store { kept: Kept::File(file) })
    }

    /// The records in the bytes of a store's file, read as [`Store::open`] would.
    pub fn read_image(bytes: &[u8]) -> Result<Vec<Record>, StoreError> {
        let path = Path::new("the image of a store");
        let memory = image::in_memory(bytes).map_err(|error| failed(path, error))?;
        Ok(check_file(path, &open_database(path, memory)?)?.0)
    }

    /// All records.
    pub fn load(&self) -> Result<Vec<Record>, StoreError> {
        let (records, _) = match &self.kept {
            Kept::Memory(records) => return Ok(records.values().cloned().collect()),
            Kept::File(file) => check_file(&file.path, &file.database)?,
            Kept::Remote { remote, .. } => check(&remote.name(), &remote.read()?)?,
        };
        Ok(records)
    }

    /// Removes all but the names of destroyed clusters, some at a time: a shared store takes only so many
    /// changes together.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        let keys: Vec<String> = match &self.kept {
            Kept::Memory(records) => records.keys().cloned().collect(),
            Kept::File(file) => file.read()?.into_keys().collect(),
            Kept::Remote { remote, .. } => remote.read()?.into_keys().collect(),
        };
        let goes = |key: &String| !sealed::is_own(key) && !key.starts_with(DESTROYED);
        let writes: Vec<Write> = keys.into_iter().filter(goes).map(Write::Remove).collect();
        writes.chunks(TOGETHER).try_for_each(|some| self.persist(some.to_vec()))
    }

    /// Changes what it remembers: all of these, or none. They are durable when this returns.
    pub fn persist(&mut self, writes: Vec<Write>) -> Result<(), StoreError> {
        match &mut self.kept {
            Kept::Memory(kept) => {
                for change in writes {
                    match change {
                        Write::Put(record) => drop(kept.insert(record.key(), record)),
                        Write::Remove(key) => drop(kept.remove(&key)),
                    }
                }
                Ok(())
            }
            Kept::File(file) => file.write(writes.into_iter().map(entry).collect()),
            Kept::Remote { remote, contents } => {
                let entries = writes.into_iter().map(entry).collect();
                with_contents(contents, entries, |entries| {
                    remote.write(entries.into_iter().collect())
                })
            }
        }
    }

    /// Commits once more what was written some time ago, if it was committed once only; to be called
    /// now and then. It changes nothing. But redb goes back to its last commit but one where the last one is
    /// damaged and the file was not closed; and what others may have been told of must stand there, too.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        match &mut self.kept {
            Kept::File(file)
                if file.unsettled.is_some_and(|at| Clock::Precise.now() >= at + SETTLED_AFTER) =>
            {
                file.settle()
            }
            _ => Ok(()),
        }
    }
}

impl StoreFile {
    fn read(&self) -> Result<Entries, StoreError> {
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

/// Writes entries, and what there is with them. Where that fails there is what there was.
fn with_contents(
    contents: &mut Contents,
    mut entries: BTreeMap<String, Option<Vec<u8>>>,
    write: impl FnOnce(BTreeMap<String, Option<Vec<u8>>>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut before = Vec::with_capacity(entries.len());
    for (key, bytes) in entries.iter().filter(|(key, _)| !sealed::is_own(key)) {
        let crc = bytes.as_ref().map(|bytes| sealed::unseal(key, bytes));
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

/// Reads all records, and which there are.
fn check(store: &str, entries: &Entries) -> Result<(Vec<Record>, Contents), StoreError> {
    sealed::decode_all(entries).map_err(|unsound| damaged(store, unsound))
}

fn damaged(store: &str, Unsound { record, cause }: Unsound) -> StoreError {
    StoreError::DamagedRecord { store: store.into(), record, cause }
}

/// The same, of a database that is this program's, or nobody's yet.
fn check_file(path: &Path, database: &Database) -> Result<(Vec<Record>, Contents), StoreError> {
    let entries = read(database).map_err(|error| failed(path, error))?;
    let name = path.display().to_string();
    let format = match entries.get(FORMAT_KEY) {
        Some(bytes) => sealed::read_format(bytes).map_err(|unsound| damaged(&name, unsound))?,
        None if entries.is_empty() => Format::This,
        None => Format::Other(String::new()),
    };
    match format {
        Format::This => check(&name, &entries),
        Format::Other(found) => Err(StoreError::OtherFormat { path: path.into(), found }),
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

/// The key of a change, and the bytes that it puts there.
fn entry(change: Write) -> (String, Option<Vec<u8>>) {
    match change {
        Write::Put(record) => {
            let (key, bytes) = sealed::encode(&record);
            (key, Some(bytes))
        }
        Write::Remove(key) => (key, None),
    }
}

fn read(database: &Database) -> Result<Entries, redb::Error> {
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
    // The default durability of a commit: it is on the disk when this returns.
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
