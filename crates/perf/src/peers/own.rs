//! FUSEE, in this process: three memory nodes and one session.

use fusee_client::{FabricKind, Session};
use futures_util::future::join_all;

use super::{Contestant, Request, key};
use crate::Failure;
use crate::load::{Loaded, Size, last};

pub struct Own(Loaded);

impl Own {
    pub fn shm(size: &Size) -> Result<Own, Failure> {
        Ok(Own(Loaded::with_keys(size, FabricKind::Shm, key)?))
    }

    pub fn tcp(size: &Size) -> Result<Own, Failure> {
        Ok(Own(Loaded::with_keys(size, FabricKind::Tcp, key)?))
    }
}

impl Contestant for Own {
    fn run(&mut self, requests: &[Request], depth: usize) -> Result<(), Failure> {
        let Own(loaded) = self;
        let session = &loaded.session;
        // Over shared memory an operation is over at once: there is never more than one in flight.
        if depth == 1 || session.fabric() == FabricKind::Shm {
            return session.block_on(all(session, requests.iter(), &loaded.value));
        }
        let each = |i: usize| all(session, requests.iter().skip(i).step_by(depth), &loaded.value);
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
