//! FUSEE, in this process: three memory nodes, and a session of each thread.

use fusee_client::{Client as Store, FabricKind, Session};
use futures_util::future::join_all;

use super::cpu::{self, Task};
use super::{Client, Contestant, Request, key};
use crate::Failure;
use crate::load::{Loaded, Size, last};

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
    pub fn new(size: &Size, fabric: FabricKind) -> Result<Own, Failure> {
        let Loaded { session, value, client } = Loaded::with_keys(size, fabric, key)?;
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
        // Over shared memory an operation is over at once: there is never more than one in flight.
        if depth == 1 || session.fabric() == FabricKind::Shm {
            return session.block_on(all(session, requests.iter(), value));
        }
        let each = |i: usize| all(session, requests.iter().skip(i).step_by(depth), value);
        session.block_on(join_all((0..depth).map(each))).into_iter().collect()
    }
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
