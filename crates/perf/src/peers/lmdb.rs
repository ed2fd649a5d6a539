//! LMDB, in this process: a transaction for each operation, and nothing is ever synced.

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::cpu::Task;
use super::{Client, Contestant, Request, key};
use crate::Failure;
use crate::load::{KEY_BYTES, Size, last};
use crate::processes::Temporary;

pub struct Lmdb {
    env: Env,
    database: Database<Bytes, Bytes>,
    value: Vec<u8>,
    // In the end.
    _directory: Temporary,
}

impl Lmdb {
    pub fn new(size: &Size) -> Result<Lmdb, Failure> {
        let directory = Temporary::directory()?;
        let bytes = u64::from(size.keys) * (u64::from(size.pair_bytes) + 4096) + (64 << 20);
        let mut options = EnvOpenOptions::new();
        options.map_size(bytes.next_multiple_of(1 << 20) as usize);
        let env = open(options, &directory)?;
        let mut transaction = env.write_txn()?;
        let database = env.create_database(&mut transaction, None)?;
        let value = vec![7u8; size.pair_bytes as usize - KEY_BYTES];
        for number in 0..size.keys {
            database.put(&mut transaction, key(number).as_slice(), value.as_slice())?;
        }
        transaction.commit()?;
        Ok(Lmdb { env, database, value, _directory: directory })
    }
}

#[allow(unsafe_code)]
fn open(mut options: EnvOpenOptions, directory: &Temporary) -> Result<Env, Failure> {
    // SAFETY: the directory is new, and nobody else knows of it: the files are opened once. What the flags
    // give up, that they outlive the system, is not wanted.
    unsafe {
        options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP);
        Ok(options.open(directory.path())?)
    }
}

impl Contestant for Lmdb {
    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        let (env, value) = (self.env.clone(), self.value.clone());
        Ok(Box::new(Handle { env, database: self.database, value }))
    }

    fn server(&self) -> Result<Vec<Task>, Failure> {
        Ok(Vec::new())
    }
}

/// Of one thread.
struct Handle {
    env: Env,
    database: Database<Bytes, Bytes>,
    value: Vec<u8>,
}

impl Client for Handle {
    fn run(&mut self, requests: &[Request], _depth: usize) -> Result<(), Failure> {
        for request in requests {
            match request {
                Request::Get(key) => {
                    let transaction = self.env.read_txn()?;
                    let value = self.database.get(&transaction, key)?.expect("every key is there");
                    assert_eq!((value.len(), last(value)), (self.value.len(), last(&self.value)));
                }
                Request::Update(key) => {
                    let mut transaction = self.env.write_txn()?;
                    self.database.put(&mut transaction, key, &self.value)?;
                    transaction.commit()?;
                }
            }
        }
        Ok(())
    }
}
