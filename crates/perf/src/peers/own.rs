//! FUSEE, in this process: its memory nodes, and a session of each thread.

use fusee_client::{Client as Store, FabricKind, Session};
use futures_util::future::join_all;

use super::cpu::{self, Task};
use super::{Client, Contestant, Request, Way, key};
use crate::Failure;
use crate::load::{Loaded, last};

/// Requests in flight while a session learns where the keys are.
const LEARNED_TOGETHER: usize = 16;
/// The threads that take the network card's place.
const SERVERS: &str = "fusee-tcp";

pub struct Own {
    client: Store,
    value: Vec<u8>,
    keys: u32,
    fabric: FabricKind,
}

impl Own {
    pub fn new(way: &Way, fabric: FabricKind) -> Result<Own, Failure> {
        let Way { size, memory_nodes, .. } = way;
        let Loaded { session, value, client } =
            Loaded::with_keys(size, fabric, *memory_nodes, key)?;
        drop(session);
        Ok(Own { client, value, keys: size.keys, fabric })
    }
}

impl Contestant for Own {
    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        let session = self.client.session()?;
        let mut client = Thread { session, value: self.value.clone() };
        let all: Vec<Request> = (0..self.keys).map(|number| Request::Get(key(number))).collect();
        client.run(&all, LEARNED_TOGETHER)?;
        Ok(Box::new(client))
    }

    fn server(&self) -> Result<Vec<Task>, Failure> {
        match self.fabric {
            FabricKind::Tcp => Ok(cpu::tasks(std::process::id(), Some(SERVERS))?),
            _ => Ok(Vec::new()),
        }
    }
}

struct Thread {
    session: Session,
    value: Vec<u8>,
}

impl Client for Thread {
    fn run(&mut self, requests: &[Request], depth: usize) -> Result<(), Failure> {
        let Thread { session, value } = self;
        if depth == 1 {
            return session.block_on(all(session, requests.iter(), value));
        }
        if session.fabric() == FabricKind::Shm {
            return session.block_on(by_batches(session, requests, depth, value));
        }
        let each = |i: usize| all(session, requests.iter().skip(i).step_by(depth), value);
        session.block_on(join_all((0..depth).map(each))).into_iter().collect()
    }
}

/// Over shared memory an operation is over at once, so that there is never more than one in flight. But
/// those who have several requests can hand them over together: reads one behind the other do not wait for
/// memory each by itself. (Updates of a batch come before its reads.)
async fn by_batches(
    session: &Session,
    requests: &[Request],
    depth: usize,
    value: &[u8],
) -> Result<(), Failure> {
    let mut keys = Vec::with_capacity(depth);
    for batch in requests.chunks(depth) {
        keys.clear();
        for request in batch {
            match request {
                Request::Get(key) => keys.push(key),
                Request::Update(key) => session.update(key, value).await?,
            }
        }
        let mut found = 0;
        let is_right = |found: &[u8]| (found.len(), last(found)) == (value.len(), last(value));
        let count = |_, value: Option<&[u8]>| found += usize::from(value.is_some_and(is_right));
        session.get_many_with(&keys, count).await?;
        assert_eq!(found, keys.len(), "every key is there");
    }
    Ok(())
}

async fn all<'r>(
    session: &Session,
    requests: impl Iterator<Item = &'r Request>,
    value: &[u8],
) -> Result<(), Failure> {
    for request in requests {
        match request {
            Request::Get(key) => {
                let found = |found: Option<&[u8]>| found.map(|value| (value.len(), last(value)));
                let found = session.get_with(key, found).await?;
                assert_eq!(found, Some((value.len(), last(value))), "every key is there");
            }
            Request::Update(key) => session.update(key, value).await?,
        }
    }
    Ok(())
}
