//! The messages of a shared-memory client and a memory node on the Unix socket.
//!
//! ```text
//! hello, 16 bytes     | magic 8 | client 4 | layout 4 |
//! welcome, 24 bytes   | magic 8 | pool bytes 8 | status 4 | layout 4 |  + the memfd
//! goodbye, 1 byte     | 'b' |
//! fenced, 1 byte      | 'f' |                                              node to client
//! ```
//!
//! Before the first message each end checks the process at the other end: the client checks the user of the node's
//! process, and the node checks whether it may kill the client's. Before the hello both prove that they know the node's
//! key (`challenge`).
//!
//! Numbers are little-endian. The magic ends in the protocol's version; `layout` is the version of the pools'
//! layout. The memfd comes with a welcome of status 0, as ancillary data. The client sends goodbye when it has no
//! code left that could execute verbs of the session; then it closes the connection. The node may send fenced at any
//! time, also before its welcome, and then waits for goodbye.

use fusee_core::layout::{LAYOUT_VERSION, LAYOUTS};
use fusee_core::verbs::ClientId;
use fusee_core::version::End;

use crate::bytes::{u32_at, u64_at};
use crate::version::{Foreign, Protocol};

/// The beginning of messages. Version 2 added the layout of pools, version 3 the proofs of the node's key.
pub(crate) const PROTOCOL: Protocol = Protocol::new("FUSEsm", "the shared-memory protocol", 3);
pub(crate) const HELLO_BYTES: usize = 16;
pub(crate) const WELCOME_BYTES: usize = 24;
pub(crate) const GOODBYE: u8 = b'b';
/// No other message of a node begins with this byte.
pub(crate) const FENCED: u8 = b'f';

/// A node's decision about a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Welcome,
    Fenced,
    NotFenceable,
    Full,
    /// The client has another version. The client notices that from the magic, before it reads the status.
    OtherVersion,
}

/// The message of a client after its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) client: ClientId,
}

/// The node's answer to the hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) pool_bytes: u64,
    pub(crate) status: Status,
}

impl Hello {
    pub(crate) fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&PROTOCOL.begin());
        bytes[8..12].copy_from_slice(&self.client.0.to_le_bytes());
        bytes[12..].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, Foreign> {
        PROTOCOL.check(End::Server, bytes)?;
        let (Some(client), Some(layout)) = (u32_at(bytes, 8), u32_at(bytes, 12)) else {
            return Err(Foreign::Stranger);
        };
        LAYOUTS.check(End::Server, layout).map_err(Foreign::Version)?;
        Ok(Hello { client: ClientId(client) })
    }
}

impl Welcome {
    pub(crate) fn encode(self) -> [u8; WELCOME_BYTES] {
        let status = match self.status {
            Status::Welcome => 0u32,
            Status::Fenced => 1,
            Status::NotFenceable => 2,
            Status::Full => 3,
            Status::OtherVersion => 4,
        };
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..8].copy_from_slice(&PROTOCOL.begin());
        bytes[8..16].copy_from_slice(&self.pool_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&status.to_le_bytes());
        bytes[20..].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; WELCOME_BYTES]) -> Result<Welcome, Foreign> {
        PROTOCOL.check(End::Client, bytes)?;
        let fields = (u64_at(bytes, 8), u32_at(bytes, 16), u32_at(bytes, 20));
        let (Some(pool_bytes), Some(status), Some(layout)) = fields else {
            return Err(Foreign::Stranger);
        };
        LAYOUTS.check(End::Client, layout).map_err(Foreign::Version)?;
        let status = match status {
            0 => Status::Welcome,
            1 => Status::Fenced,
            2 => Status::NotFenceable,
            3 => Status::Full,
            4 => Status::OtherVersion,
            _ => return Err(Foreign::Stranger),
        };
        Ok(Welcome { pool_bytes, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_nothing_else_is_taken_for_one() {
        let hello = Hello { client: ClientId(7) };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let welcome = Welcome { pool_bytes: 4096, status: Status::NotFenceable };
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        for at in 0..8 {
            let mut bytes = hello.encode();
            bytes[at] ^= 1;
            assert!(Hello::decode(&bytes).is_err());
        }
        let mut bytes = welcome.encode();
        bytes[16] = 5;
        assert_eq!(Welcome::decode(&bytes), Err(Foreign::Stranger));
        let mut hello = hello.encode();
        let mut welcome = welcome.encode();
        (hello[12], welcome[20]) = (LAYOUT_VERSION as u8 + 1, LAYOUT_VERSION as u8 - 1);
        assert!(matches!(Hello::decode(&hello), Err(Foreign::Version(_))));
        assert!(matches!(Welcome::decode(&welcome), Err(Foreign::Version(_))));
    }
}
