//! FUSEE and the stores that a user might choose instead, with YCSB A (half of the requests are updates), B (one in
//! twenty), C (none) or another share of updates.
//!
//! Each store executes the sequence of a round in one thread or divided among several threads. Memcached and Redis run
//! in processes of their own, started here, without persistence. LMDB runs in this process, on files that it never
//! syncs. By default FUSEE keeps three replicas of the index and two of the data; the other stores keep one copy. FUSEE
//! over shared memory and LMDB have no server.

pub mod cpu;
mod fusee_peer;
mod lmdb;
mod server;
mod values;
mod wire;
mod workers;

use fusee_cli::failure::Failure;

use super::rounds::{CompareRound, CompareSample, StartedSubject};
use super::task::CompareSubject;
use crate::loaded_cluster::LoadedClusterArgs;
use crate::size_distribution::SizeDistribution;
use cpu::ProcessThread;
use fusee_peer::FuseePeer;
use lmdb::Lmdb;
use server::{Memcached, Redis};
pub use values::{PeerKey, PeerValues};
use workers::PeerWorkerPool;

/// A store that takes part. Once a value of this type exists, all pairs have been put, and every session that it opens
/// knows where all pairs are.
pub trait PeerStore: Send + Sync + 'static {
    /// A thread's access to the store.
    type Session: PeerSession;

    /// Opens a session for the thread that calls this.
    fn open_session(&self) -> Result<Self::Session, Failure>;

    /// Returns the threads of the store's server; none if it has no server.
    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure> {
        Ok(Vec::new())
    }
}

/// A session that sends several requests before it waits for answers, in the way that suits the store best.
pub trait PeerSession {
    /// Executes requests on keys that exist, with `depth` requests in flight. Every update writes the key's value, and
    /// every get has to find a value of the same length and with the same end.
    ///
    /// # Panics
    /// Panics if a key does not exist, or has another value.
    fn run(
        &self,
        requests: &[PipelinedRequest],
        values: &PeerValues,
        depth: usize,
    ) -> Result<(), Failure>;
}

/// A request on a key that exists.
#[derive(Clone, Copy, Debug)]
pub enum PipelinedRequest {
    /// Read the key.
    Get(PeerKey),
    /// Replace the value of the key.
    Update(PeerKey),
}

/// The settings with which peers are started.
#[derive(Clone, Copy)]
pub struct PeerSettings {
    pub size: LoadedClusterArgs,
    pub values: SizeDistribution,
    pub memory_nodes: u16,
    /// Connections of each client thread to a peer with one server.
    pub connections: u16,
}

impl PeerSettings {
    fn values(&self) -> PeerValues {
        PeerValues::new(self.values)
    }

    /// Starts the client threads of a peer.
    fn crew<P: PeerStore>(
        &self,
        peer: Result<P, Failure>,
        threads: u16,
    ) -> Result<PeerWorkerPool, Failure> {
        PeerWorkerPool::new(peer?, self.values(), threads.into())
    }
}

/// Starts a store with this number of client threads, and loads all pairs.
pub fn start(
    way: &PeerSettings,
    subject: CompareSubject,
    threads: u16,
) -> Result<PeerWorkerPool, Failure> {
    if let Some(fabric) = subject.fabric() {
        return way.crew(FuseePeer::new(way, fabric), threads);
    }
    match subject {
        CompareSubject::MemcachedUnix => way.crew(Memcached::unix(way)?.load(way), threads),
        CompareSubject::MemcachedTcp => way.crew(Memcached::tcp(way)?.load(way), threads),
        CompareSubject::RedisUnix => way.crew(Redis::unix(way)?.load(way), threads),
        CompareSubject::RedisTcp => way.crew(Redis::tcp(way)?.load(way), threads),
        _ => way.crew(Lmdb::new(way), threads),
    }
}

impl StartedSubject for PeerWorkerPool {
    fn run(&mut self, round: &CompareRound) -> Result<CompareSample, Failure> {
        super::operations::time(round.operations, || {
            let threads = round.load.threads.into();
            self.run_requests(&round.requests, threads, round.load.depth.into())
        })
    }

    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure> {
        self.threads_of_server()
    }
}
