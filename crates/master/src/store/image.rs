//! An image of a store's file, for a check that changes nothing.
//!
//! Opening a database sometimes repairs it, and then a refused file would differ from the file that was found. So the
//! file is first opened as an *image* in memory, with all checks of redb and of this store. The file is locked
//! meanwhile, so no other process writes to it. The lock also shows that another master runs, before its unfinished
//! write would look like damage.

use std::io;
use std::ops::Bound;
use std::sync::OnceLock;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{BackendError, StorageBackend};

/// A store's file, which is only locked and read, and a copy of its bytes to work on.
#[derive(Debug)]
pub(super) struct StoreImage {
    file: FileBackend,
    copy: OnceLock<InMemoryBackend>,
}

impl StoreImage {
    pub(super) fn new(file: FileBackend) -> StoreImage {
        StoreImage { file, copy: OnceLock::new() }
    }

    /// Returns the copy of the file, which is made at the first access, when redb has locked the file.
    fn copy(&self) -> io::Result<&InMemoryBackend> {
        if let Some(copy) = self.copy.get() {
            return Ok(copy);
        }
        let mut bytes = vec![0; usize::try_from(self.file.len()?).map_err(io::Error::other)?];
        self.file.read(0, &mut bytes)?;
        let copy = in_memory(&bytes)?;
        Ok(self.copy.get_or_init(|| copy))
    }
}

/// Returns storage that holds these bytes.
pub(super) fn in_memory(bytes: &[u8]) -> io::Result<InMemoryBackend> {
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64)?;
    copy.write(0, bytes)?;
    Ok(copy)
}

impl StorageBackend for StoreImage {
    fn len(&self) -> io::Result<u64> {
        self.copy()?.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.copy()?.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.copy()?.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.copy()?.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
