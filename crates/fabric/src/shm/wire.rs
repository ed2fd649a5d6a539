//! What a shared-memory client and a memory node say to each other on the Unix socket.
//!
//! ```text
//! hello, 24 bytes     | magic 8 | identity 8 | client 4 | zero 4 |
//! welcome, 32 bytes   | magic 8 | identity 8 | pool bytes 8 | status 4 | zero 4 |  + the memfd
//! goodbye, 1 byte     | 'b' |
//! ```
//!
//! Numbers are little-endian. The magic ends in the version. The memfd comes with a welcome of
//! status 0, as ancillary data. The client sends goodbye when no code is left in it that could
//! execute verbs of the session; then it closes the connection.

use fusee_core::verbs::ClientId;

use crate::bytes::{u32_at, u64_at};

/// Tells this protocol and version from others.
pub(crate) const MAGIC: [u8; 8] = *b"FUSEsm01";
pub(crate) const HELLO_BYTES: usize = 24;
pub(crate) const WELCOME_BYTES: usize = 32;
pub(crate) const GOODBYE: u8 = b'b';

/// What a node says to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Welcome,
    WrongIdentity,
    Fenced,
    NotFenceable,
    Full,
}

/// A client's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) identity: u64,
    pub(crate) client: ClientId,
}

/// The node's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) identity: u64,
    pub(crate) pool_bytes: u64,
    pub(crate) status: Status,
}

impl Hello {
    pub(crate) fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.identity.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.client.0.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Hello> {
        let hello = Hello { identity: u64_at(bytes, 8)?, client: ClientId(u32_at(bytes, 16)?) };
        (bytes.starts_with(&MAGIC) && u32_at(bytes, 20)? == 0).then_some(hello)
    }
}

impl Welcome {
    pub(crate) fn encode(self) -> [u8; WELCOME_BYTES] {
        let status = match self.status {
            Status::Welcome => 0u32,
            Status::WrongIdentity => 1,
            Status::Fenced => 2,
            Status::NotFenceable => 3,
            Status::Full => 4,
        };
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.identity.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.pool_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&status.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Welcome> {
        let bytes = bytes.get(..WELCOME_BYTES)?;
        let status = match u32_at(bytes, 24)? {
            0 => Status::Welcome,
            1 => Status::WrongIdentity,
            2 => Status::Fenced,
            3 => Status::NotFenceable,
            4 => Status::Full,
            _ => return None,
        };
        let (identity, pool_bytes) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        bytes.starts_with(&MAGIC).then_some(Welcome { identity, pool_bytes, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_nothing_else_is_taken_for_one() {
        let hello = Hello { identity: u64::MAX - 1, client: ClientId(7) };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let welcome = Welcome { identity: 3, pool_bytes: 4096, status: Status::NotFenceable };
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        for at in 0..8 {
            let mut bytes = hello.encode();
            bytes[at] ^= 1;
            assert_eq!(Hello::decode(&bytes), None);
        }
        assert_eq!(Hello::decode(&hello.encode()[..23]), None);
        let mut bytes = welcome.encode();
        bytes[24] = 5;
        assert_eq!(Welcome::decode(&bytes), None);
    }
}
