//! LMDB as a peer, in this process: each operation is a transaction, and nothing is ever synced to a disk.

use fusee_cli::failure::Failure;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::cpu::ProcessThread;
use super::error::PeerError;
use super::{PeerSettings, PeerStore, PeerValues};
use crate::loaded_cluster::{LoadedClusterArgs, last_byte};
use crate::store::{BenchSession, BenchStore, PipelinedRequest, PipelinedSession, poll_to_end};
use crate::temporary::TemporaryHandle;
use fusee_workload::key_bytes;

pub struct Lmdb {
    env: Env,
    database: Database<Bytes, Bytes>,
    // Declared last, so that the directory is removed after the store has been closed.
    _directory: TemporaryHandle,
}

impl Lmdb {
    /// Opens a store without pairs.
    fn empty(size: &LoadedClusterArgs) -> Result<Lmdb, PeerError> {
        let directory = TemporaryHandle::directory()?;
        let bytes = u64::from(size.keys) * (u64::from(size.pair_bytes) + 4096) + (64 << 20);
        let mut options = EnvOpenOptions::new();
        options.map_size(bytes.next_multiple_of(1 << 20) as usize);
        let env = open(options, &directory)?;
        let mut transaction = env.write_txn()?;
        let database = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Lmdb { env, database, _directory: directory })
    }

    fn load(way: &PeerSettings) -> Result<Lmdb, PeerError> {
        let size = &way.size;
        let values = way.values();
        let lmdb = Lmdb::empty(size)?;
        let mut transaction = lmdb.env.write_txn()?;
        for number in 0..size.keys {
            let key = key_bytes(number.into());
            lmdb.database.put(&mut transaction, &key, values.of(&key))?;
        }
        transaction.commit()?;
        Ok(lmdb)
    }

    pub fn new(way: &PeerSettings) -> Result<Lmdb, Failure> {
        Lmdb::load(way).map_err(|error| Failure::operation(error.to_string()))
    }
}

#[allow(unsafe_code)]
fn open(mut options: EnvOpenOptions, directory: &TemporaryHandle) -> Result<Env, heed::Error> {
    // SAFETY: LMDB requires that nothing else opens or changes its files while they are mapped. The directory is new
    // and no other code knows it, and this call opens the files once. With these flags a crash of the system can damage
    // the files, which are not needed after that.
    unsafe {
        options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP);
        options.open(directory.path())
    }
}

impl BenchStore for Lmdb {
    type Session = LmdbSession;

    fn open(&self) -> Result<LmdbSession, PeerError> {
        Ok(LmdbSession { env: self.env.clone(), database: self.database })
    }
}

impl PeerStore for Lmdb {
    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure> {
        Ok(Vec::new())
    }
}

/// A thread's access to the store.
pub struct LmdbSession {
    env: Env,
    database: Database<Bytes, Bytes>,
}

impl LmdbSession {
    /// Writes a key; `is_there` tells whether the key has to exist, or must not exist.
    fn write(&self, key: &[u8], value: &[u8], is_there: bool) -> Result<(), PeerError> {
        let mut transaction = self.env.write_txn()?;
        match (self.database.get(&transaction, key)?.is_some(), is_there) {
            (true, false) => return Err(PeerError::Exists),
            (false, true) => return Err(PeerError::Absent),
            _ => self.database.put(&mut transaction, key, value)?,
        }
        Ok(transaction.commit()?)
    }
}

impl BenchSession for LmdbSession {
    type Error = PeerError;

    fn block_on<T>(&self, operations: impl Future<Output = T>) -> T {
        poll_to_end(operations)
    }

    async fn get_with<R>(
        &self,
        key: &[u8],
        found: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, PeerError> {
        let transaction = self.env.read_txn()?;
        Ok(found(self.database.get(&transaction, key)?))
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        self.write(key, value, false)
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        self.write(key, value, true)
    }

    async fn delete(&self, key: &[u8]) -> Result<(), PeerError> {
        let mut transaction = self.env.write_txn()?;
        if !self.database.delete(&mut transaction, key)? {
            return Err(PeerError::Absent);
        }
        Ok(transaction.commit()?)
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

impl PipelinedSession for LmdbSession {
    /// Executes one request at a time, because each request ends at once.
    fn run(
        &self,
        requests: &[PipelinedRequest],
        values: &PeerValues,
        _depth: usize,
    ) -> Result<(), PeerError> {
        for request in requests {
            match request {
                PipelinedRequest::Get(key) => {
                    let transaction = self.env.read_txn()?;
                    let found = self.database.get(&transaction, key)?.expect("every key is there");
                    let value = values.of(key);
                    assert_eq!((found.len(), last_byte(found)), (value.len(), last_byte(value)));
                }
                PipelinedRequest::Update(key) => {
                    let mut transaction = self.env.write_txn()?;
                    self.database.put(&mut transaction, key, values.of(key))?;
                    transaction.commit()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::peers::tests::small;

    #[test]
    fn a_workload_on_lmdb_is_verified_like_one_on_fusee() {
        crate::driver::tests::drive(&Lmdb::empty(&small()).unwrap());
    }
}
