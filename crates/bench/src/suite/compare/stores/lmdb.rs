//! LMDB as a peer, in this process: each operation is a transaction, and nothing is ever synced to a disk.

use fusee_cli::failure::Failure;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::{PeerSession, PeerSettings, PeerStore, PeerValues, PipelinedRequest};
use crate::loaded_cluster::last_byte;
use crate::temporary::TemporaryHandle;
use fusee_workload::key_bytes;

pub struct Lmdb {
    env: Env,
    database: Database<Bytes, Bytes>,
    // Declared last, so that the directory is removed after the store has been closed.
    _directory: TemporaryHandle,
}

impl Lmdb {
    pub fn new(way: &PeerSettings) -> Result<Lmdb, Failure> {
        let directory = TemporaryHandle::directory()?;
        Lmdb::load(way, directory).map_err(failed)
    }

    fn load(way: &PeerSettings, directory: TemporaryHandle) -> Result<Lmdb, heed::Error> {
        let PeerSettings { size, .. } = way;
        let bytes = u64::from(size.keys) * (u64::from(size.pair_bytes) + 4096) + (64 << 20);
        let mut options = EnvOpenOptions::new();
        options.map_size(bytes.next_multiple_of(1 << 20) as usize);
        let env = open(options, &directory)?;
        let values = way.values();
        let mut transaction = env.write_txn()?;
        let database: Database<Bytes, Bytes> = env.create_database(&mut transaction, None)?;
        for number in 0..size.keys {
            let key = key_bytes(number.into());
            database.put(&mut transaction, &key, values.of(&key))?;
        }
        transaction.commit()?;
        Ok(Lmdb { env, database, _directory: directory })
    }
}

fn failed(error: heed::Error) -> Failure {
    Failure::operation(format!("LMDB: {error}"))
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

impl PeerStore for Lmdb {
    type Session = LmdbSession;

    fn open_session(&self) -> Result<LmdbSession, Failure> {
        Ok(LmdbSession { env: self.env.clone(), database: self.database })
    }
}

/// A thread's access to the store.
pub struct LmdbSession {
    env: Env,
    database: Database<Bytes, Bytes>,
}

impl LmdbSession {
    fn execute(&self, request: &PipelinedRequest, values: &PeerValues) -> Result<(), heed::Error> {
        match request {
            PipelinedRequest::Get(key) => {
                let transaction = self.env.read_txn()?;
                let found = self.database.get(&transaction, key)?.expect("every key is there");
                let value = values.of(key);
                assert_eq!((found.len(), last_byte(found)), (value.len(), last_byte(value)));
                Ok(())
            }
            PipelinedRequest::Update(key) => {
                let mut transaction = self.env.write_txn()?;
                self.database.put(&mut transaction, key, values.of(key))?;
                transaction.commit()
            }
        }
    }
}

impl PeerSession for LmdbSession {
    /// Executes one request at a time, because each request ends at once.
    fn run(
        &self,
        requests: &[PipelinedRequest],
        values: &PeerValues,
        _depth: usize,
    ) -> Result<(), Failure> {
        requests.iter().try_for_each(|request| self.execute(request, values)).map_err(failed)
    }
}
