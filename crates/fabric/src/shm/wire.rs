//! The messages between a shared-memory client and a memory node on the Unix socket.
//!
//! ```text
//! hello, 16 bytes     | magic 8 | client 4 | layout 4 |
//! welcome, 24 bytes   | magic 8 | pool bytes 8 | status 4 | layout 4 |  + the memfd
//! goodbye, 1 byte     | 'b' |
//! fenced, 1 byte      | 'f' |                                              node to client
//! ```
//!
//! Before the first message, each end checks the process at the other end: the client checks the user of the node's
//! process, and the node checks whether it has permission to kill the client's process. Before the hello, both ends
//! prove that they know the node's key (`challenge`).
//!
//! Numbers are little-endian. The magic ends in the protocol's version; `layout` is the version of the pools'
//! layout. The memfd comes with a welcome of status 0, as ancillary data. The client sends goodbye when it has no
//! code left that could execute verbs of the session, and then closes the connection. The node can send fenced at
//! any time, even before its welcome, and then waits for goodbye.

use fusee_core::layout::{LAYOUT_VERSION, LAYOUTS};
use fusee_core::verbs::ClientId;
use fusee_core::version::ConnectionEnd;

use crate::bytes::{u32_at, u64_at};
use crate::version::{Protocol, ProtocolMismatch};

/// The magic of messages. Version 2 added the layout of pools, version 3 the proofs of the node's key.
pub(crate) const PROTOCOL: Protocol = Protocol::new("FUSEsm", "the shared-memory protocol", 3);
pub(crate) const HELLO_BYTES: usize = 16;
pub(crate) const WELCOME_BYTES: usize = 24;
pub(crate) const GOODBYE: u8 = b'b';
/// The message by which a node tells a client that it is fenced. No other message of a node begins with this byte.
pub(crate) const FENCED: u8 = b'f';

/// A node's decision about a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShmHelloStatus {
    Welcome,
    Fenced,
    NotFenceable,
    Full,
    /// The client has another version. The client notices the difference by the magic, before it reads the status.
    OtherVersion,
}

/// The message that a client sends with its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmHello {
    pub(crate) client: ClientId,
}

/// The node's answer to the hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmWelcome {
    pub(crate) pool_bytes: u64,
    pub(crate) status: ShmHelloStatus,
}

impl ShmHello {
    pub(crate) fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&PROTOCOL.magic());
        bytes[8..12].copy_from_slice(&self.client.0.to_le_bytes());
        bytes[12..].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<ShmHello, ProtocolMismatch> {
        PROTOCOL.check(ConnectionEnd::Server, bytes)?;
        let (Some(client), Some(layout)) = (u32_at(bytes, 8), u32_at(bytes, 12)) else {
            return Err(ProtocolMismatch::Stranger);
        };
        LAYOUTS.check(ConnectionEnd::Server, layout).map_err(ProtocolMismatch::Version)?;
        Ok(ShmHello { client: ClientId(client) })
    }
}

impl ShmWelcome {
    pub(crate) fn encode(self) -> [u8; WELCOME_BYTES] {
        let status = match self.status {
            ShmHelloStatus::Welcome => 0u32,
            ShmHelloStatus::Fenced => 1,
            ShmHelloStatus::NotFenceable => 2,
            ShmHelloStatus::Full => 3,
            ShmHelloStatus::OtherVersion => 4,
        };
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..8].copy_from_slice(&PROTOCOL.magic());
        bytes[8..16].copy_from_slice(&self.pool_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&status.to_le_bytes());
        bytes[20..].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; WELCOME_BYTES]) -> Result<ShmWelcome, ProtocolMismatch> {
        PROTOCOL.check(ConnectionEnd::Client, bytes)?;
        let fields = (u64_at(bytes, 8), u32_at(bytes, 16), u32_at(bytes, 20));
        let (Some(pool_bytes), Some(status), Some(layout)) = fields else {
            return Err(ProtocolMismatch::Stranger);
        };
        LAYOUTS.check(ConnectionEnd::Client, layout).map_err(ProtocolMismatch::Version)?;
        let status = match status {
            0 => ShmHelloStatus::Welcome,
            1 => ShmHelloStatus::Fenced,
            2 => ShmHelloStatus::NotFenceable,
            3 => ShmHelloStatus::Full,
            4 => ShmHelloStatus::OtherVersion,
            _ => return Err(ProtocolMismatch::Stranger),
        };
        Ok(ShmWelcome { pool_bytes, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_nothing_else_is_taken_for_one() {
        let hello = ShmHello { client: ClientId(7) };
        assert_eq!(ShmHello::decode(&hello.encode()), Ok(hello));
        let welcome = ShmWelcome { pool_bytes: 4096, status: ShmHelloStatus::NotFenceable };
        assert_eq!(ShmWelcome::decode(&welcome.encode()), Ok(welcome));
        for at in 0..8 {
            let mut bytes = hello.encode();
            bytes[at] ^= 1;
            assert!(ShmHello::decode(&bytes).is_err());
        }
        let mut bytes = welcome.encode();
        bytes[16] = 5;
        assert_eq!(ShmWelcome::decode(&bytes), Err(ProtocolMismatch::Stranger));
        let mut hello = hello.encode();
        let mut welcome = welcome.encode();
        (hello[12], welcome[20]) = (LAYOUT_VERSION as u8 + 1, LAYOUT_VERSION as u8 - 1);
        assert!(matches!(ShmHello::decode(&hello), Err(ProtocolMismatch::Version(_))));
        assert!(matches!(ShmWelcome::decode(&welcome), Err(ProtocolMismatch::Version(_))));
    }
}
