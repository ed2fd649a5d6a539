//! FUSEE as a peer: memory nodes in this process, and a session for each client thread.

use fusee_cli::failure::Failure;
use fusee_client::{BatchWrite, BlockingClient, FabricKind, Session, WriteError};
use futures_util::future::join_all;

use super::cpu::{self, ProcessThread};
use super::{PeerSession, PeerSettings, PeerStore, PeerValues, PipelinedRequest};
use crate::loaded_cluster::{LoadedCluster, last_byte};
use fusee_workload::key_bytes;

/// Number of requests in flight while a session fills its index cache.
const LEARNED_TOGETHER: usize = 16;
/// The name of the threads that execute verbs over TCP, in place of a NIC.
const SERVERS: &str = "fusee-tcp";

pub struct FuseePeer {
    client: BlockingClient,
    values: PeerValues,
    keys: u32,
    fabric: FabricKind,
}

impl FuseePeer {
    pub fn new(way: &PeerSettings, fabric: FabricKind) -> Result<FuseePeer, Failure> {
        let PeerSettings { size, memory_nodes, .. } = way;
        let key = |number: u32| key_bytes(number.into());
        let LoadedCluster { session, client, .. } =
            LoadedCluster::with_keys(size, fabric, *memory_nodes, key)?;
        let values = way.values();
        session.block_on(async {
            for number in 0..size.keys {
                session.update(&key(number), values.of(&key(number))).await?;
            }
            Ok::<(), Failure>(())
        })?;
        drop(session);
        Ok(FuseePeer { client, values, keys: size.keys, fabric })
    }
}

impl PeerStore for FuseePeer {
    type Session = Session;

    /// Opens a session that has every key in its index cache.
    fn open_session(&self) -> Result<Session, Failure> {
        let session = self.client.session()?;
        let all = (0..self.keys).map(|number| PipelinedRequest::Get(key_bytes(number.into())));
        let all: Vec<PipelinedRequest> = all.collect();
        session.run(&all, &self.values, LEARNED_TOGETHER)?;
        Ok(session)
    }

    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure> {
        match self.fabric {
            FabricKind::Tcp => Ok(cpu::process_threads(std::process::id(), Some(SERVERS))?),
            _ => Ok(Vec::new()),
        }
    }
}

impl PeerSession for Session {
    fn run(
        &self,
        requests: &[PipelinedRequest],
        values: &PeerValues,
        depth: usize,
    ) -> Result<(), Failure> {
        if depth == 1 {
            return Ok(self.block_on(run_sequentially(self, requests.iter(), values))?);
        }
        if self.fabric() == FabricKind::Shm {
            return Ok(self.block_on(run_in_batches(self, requests, depth, values))?);
        }
        let each =
            |i: usize| run_sequentially(self, requests.iter().skip(i).step_by(depth), values);
        let all = self.block_on(join_all((0..depth).map(each)));
        Ok(all.into_iter().collect::<Result<(), WriteError>>()?)
    }
}

/// Over shared memory an operation ends at once, so there is never more than one in flight. But a caller with several
/// requests can hand them over as a batch: then the reads of the batch wait for memory together, and so do its updates.
/// (The updates of a batch run before its reads.)
async fn run_in_batches(
    session: &Session,
    requests: &[PipelinedRequest],
    depth: usize,
    values: &PeerValues,
) -> Result<(), WriteError> {
    let mut keys = Vec::with_capacity(depth);
    let mut updates = Vec::with_capacity(depth);
    for batch in requests.chunks(depth) {
        keys.clear();
        updates.clear();
        for request in batch {
            match request {
                PipelinedRequest::Get(key) => keys.push(key),
                PipelinedRequest::Update(key) => {
                    updates.push(BatchWrite::update(key, values.of(key)))
                }
            }
        }
        session.write_many(&updates).await.into_iter().collect::<Result<(), WriteError>>()?;
        let mut found = 0;
        let count = |i: usize, value: Option<&[u8]>| {
            let wanted: &[u8] = values.of(keys[i]);
            let is_right =
                |found: &[u8]| (found.len(), last_byte(found)) == (wanted.len(), last_byte(wanted));
            found += usize::from(value.is_some_and(is_right));
        };
        session.get_many_with(&keys, count).await?;
        assert_eq!(found, keys.len(), "every key is there");
    }
    Ok(())
}

async fn run_sequentially<'r>(
    session: &Session,
    requests: impl Iterator<Item = &'r PipelinedRequest>,
    values: &PeerValues,
) -> Result<(), WriteError> {
    for request in requests {
        match request {
            PipelinedRequest::Get(key) => {
                let found =
                    |found: Option<&[u8]>| found.map(|value| (value.len(), last_byte(value)));
                let found = session.get_with(key, found).await?;
                let value = values.of(key);
                assert_eq!(found, Some((value.len(), last_byte(value))), "every key is there");
            }
            PipelinedRequest::Update(key) => session.update(key, values.of(key)).await?,
        }
    }
    Ok(())
}
