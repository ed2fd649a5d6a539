//! What the master remembers, durably: a map from [`Record::key`] to records.
//!
//! One redb file, `master.redb` in the data directory: transactions are atomic and durable when
//! they return, and the file is locked, so that two masters never go on from one state. Values
//! are postcard bytes. The key `format` holds the number of this layout; another number is
//! somebody else's file and is left alone.
//!
//! Embedded clusters, which end with their process, use [`Store::memory`]. Several masters that
//! elect a leader keep their records elsewhere ([`Remote`]), under the same keys and in the same
//! bytes.

pub mod address;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};

use crate::record::{DESTROYED, Record, Write};

/// The file's name in the data directory.
pub const FILE_NAME: &str = "master.redb";

const TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("fusee-master");
/// Records that are removed by one change, where many are.
const TOGETHER: usize = 64;
const FORMAT_KEY: &str = "format";
pub(crate) const FORMAT: &[u8] = b"fusee-master 6";

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
    /// The file is another version's.
    #[error(
        "{} was written in the format {found:?}, this program knows {:?}; use the version that \
         wrote it",
        path.display(),
        String::from_utf8_lossy(FORMAT)
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
    File { path: PathBuf, database: Database },
    Remote(Box<dyn Remote>),
}

impl Store {
    /// A store that is lost with the process.
    pub fn memory() -> Store {
        Store { kept: Kept::Memory(BTreeMap::new()) }
    }

    /// A store outside of this process, for one term of office.
    pub fn remote(remote: Box<dyn Remote>) -> Store {
        Store { kept: Kept::Remote(remote) }
    }

    /// Whether this master may still decide; see [`Remote::holds`].
    pub fn holds(&self) -> bool {
        match &self.kept {
            Kept::Remote(remote) => remote.holds(),
            _ => true,
        }
    }

    /// What people know it by.
    pub fn name(&self) -> String {
        match &self.kept {
            Kept::Memory(_) => "memory".into(),
            Kept::File { path, .. } => path.display().to_string(),
            Kept::Remote(remote) => remote.name(),
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
        std::fs::create_dir_all(dir).map_err(|error| io(dir, error))?;
        // The database makes an empty file its own.
        let mut private = File::options();
        private.read(true).write(true).create(true).truncate(false).mode(0o600);
        drop(private.open(&path).map_err(|error| io(&path, error))?);
        let store = Store::open_file(&path)?;
        store.check_format()?;
        Ok(store)
    }

    fn open_file(path: &Path) -> Result<Store, StoreError> {
        let path = path.to_owned();
        let database = Database::create(&path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path: path.clone() },
            DatabaseError::UpgradeRequired(version) => StoreError::OtherFormat {
                path: path.clone(),
                found: format!("redb file format {version}"),
            },
            error => failed(&path, error),
        })?;
        Ok(Store { kept: Kept::File { path, database } })
    }

    /// Makes an empty file this format's; refuses another's.
    fn check_format(&self) -> Result<(), StoreError> {
        let Kept::File { path, database } = &self.kept else { return Ok(()) };
        let failed = |error: redb::Error| failed(path, error);
        let found = read(database).map_err(failed)?;
        match found.get(FORMAT_KEY).map(Vec::as_slice) {
            Some(FORMAT) => Ok(()),
            None if found.is_empty() => {
                write(database, [(FORMAT_KEY, Some(FORMAT.to_vec()))]).map_err(failed)
            }
            other => Err(StoreError::OtherFormat {
                path: path.clone(),
                found: String::from_utf8_lossy(other.unwrap_or_default()).into_owned(),
            }),
        }
    }

    /// All records.
    pub fn load(&self) -> Result<Vec<Record>, StoreError> {
        let entries = match &self.kept {
            Kept::Memory(records) => return Ok(records.values().cloned().collect()),
            Kept::File { path, database } => read(database).map_err(|error| failed(path, error))?,
            Kept::Remote(remote) => remote.read()?,
        };
        let records = entries.into_iter().filter(|(key, _)| key != FORMAT_KEY);
        records.map(|(key, bytes)| self.decode(&key, &bytes)).collect()
    }

    fn decode(&self, key: &str, bytes: &[u8]) -> Result<Record, StoreError> {
        let damaged = |cause| match &self.kept {
            Kept::Remote(remote) => StoreError::Unusable {
                store: remote.name(),
                cause: format!("it is damaged, or of another version: {cause}"),
            },
            Kept::File { path, .. } => StoreError::Damaged { path: path.clone(), cause },
            Kept::Memory(_) => unreachable!("records in memory are not encoded"),
        };
        match postcard::from_bytes::<Record>(bytes) {
            Ok(record) if record.key() == key => Ok(record),
            Ok(record) => Err(damaged(format!("{key} holds {}", record.key()))),
            Err(error) => Err(damaged(format!("{key}: {error}"))),
        }
    }

    /// Removes all but the names of destroyed clusters, some at a time: a shared store takes only so many
    /// changes together.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        let keys = match &self.kept {
            Kept::Memory(records) => records.keys().cloned().collect(),
            Kept::File { path, database } => {
                let entries = read(database).map_err(|error| failed(path, error))?;
                entries.into_keys().collect::<Vec<_>>()
            }
            Kept::Remote(remote) => remote.read()?.into_keys().collect(),
        };
        let goes = |key: &String| key != FORMAT_KEY && !key.starts_with(DESTROYED);
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
            Kept::File { path, database } => {
                write(database, writes.into_iter().map(entry)).map_err(|error| failed(path, error))
            }
            Kept::Remote(remote) => remote.write(writes.into_iter().map(entry).collect()),
        }
    }
}

/// The key of a change, and the bytes that it puts there.
fn entry(change: Write) -> (String, Option<Vec<u8>>) {
    match change {
        Write::Put(record) => {
            let bytes = postcard::to_stdvec(&record).expect("records are plain data");
            (record.key(), Some(bytes))
        }
        Write::Remove(key) => (key, None),
    }
}

fn read(database: &Database) -> Result<BTreeMap<String, Vec<u8>>, redb::Error> {
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

fn write<K: AsRef<str>>(
    database: &Database,
    entries: impl IntoIterator<Item = (K, Option<Vec<u8>>)>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for (key, bytes) in entries {
            match bytes {
                Some(bytes) => table.insert(key.as_ref(), bytes.as_slice())?,
                None => table.remove(key.as_ref())?,
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
