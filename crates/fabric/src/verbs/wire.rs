//! The messages that a session and a memory node exchange before the NICs take over.
//!
//! ```text
//! address, 28 bytes   | queue pair 4 | first packet 4 | lid 2 | mtu 1 | depth 1 | gid 16 |
//! hello, 52 bytes     | magic 8 | node 8 | client 4 | layout 4 | address 28 |
//! welcome, 80 bytes   | magic 8 | node 8 | pool bytes 8 | status 4 | layout 4 | key 4 |
//!                     | header key 4 | steered key 4 | base 8 | address 28 |
//! fenced, 1 byte      | 'f' |
//! ```
//!
//! Numbers are little-endian. The magic ends in the protocol's version; `layout` is the version of the pools'
//! layout. `mtu` is numbered as in libibverbs, from 1 for 256 bytes to 5 for 4096; `depth` is the number of READs
//! and atomics that the NIC can have in flight. Unless the status is 0, the pool bytes and all fields behind the
//! layout are zero.
//!
//! Before the hello, both ends prove that they know the node's key (`challenge`). The field `node` is the name of
//! that key. The hello has a packet of its own, because switches on the wire look for such packets.
//!
//! The connection stays open as long as the session, and is the session's lease. When it closes, the node destroys the
//! queue pair, and the session treats the node as lost.

use fusee_core::layout::{LAYOUT_VERSION, LAYOUTS};
use fusee_core::verbs::ClientId;
use fusee_core::version::ConnectionEnd;

use crate::bytes::{u32_at, u64_at};
use crate::version::{Protocol, ProtocolMismatch};

/// The magic of messages. Version 3 added the layout of pools, version 4 the proofs of the node's key.
pub(crate) const PROTOCOL: Protocol = Protocol::new("FUSErd", "the verbs protocol", 4);
pub(crate) const ADDRESS_BYTES: usize = 28;
pub(crate) const HELLO_BYTES: usize = 24 + ADDRESS_BYTES;
pub(crate) const WELCOME_BYTES: usize = 52 + ADDRESS_BYTES;
/// The message by which a node tells a session that it is fenced.
pub(crate) const FENCED: u8 = b'f';

/// The address of one end of a connection between queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueuePairAddress {
    pub(crate) queue_pair: u32,
    pub(crate) first_packet: u32,
    pub(crate) lid: u16,
    pub(crate) mtu: u8,
    pub(crate) depth: u8,
    pub(crate) gid: [u8; 16],
}

/// The message that a session sends with its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerbsHello {
    pub(crate) node: u64,
    pub(crate) client: ClientId,
    pub(crate) address: QueuePairAddress,
}

/// A node's decision about a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerbsHelloStatus {
    Welcome,
    Fenced,
    /// The node's NIC has no room for another queue pair, or does not accept the client's address.
    Unable,
    /// The node has no room for another session.
    Full,
    /// The session has another version. The session notices the difference by the magic, before it reads the
    /// status.
    OtherVersion,
}

/// The node's answer to the hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerbsWelcome {
    pub(crate) node: u64,
    pub(crate) pool_bytes: u64,
    pub(crate) status: VerbsHelloStatus,
    /// The RDMA key of the pool behind its header.
    pub(crate) key: u32,
    /// The RDMA key of the pool's header. It allows only READs.
    pub(crate) header_key: u32,
    /// The RDMA key for steered READs of the pool behind its header; 0 if there is none.
    pub(crate) steered_key: u32,
    /// The pool's start address, as the node's NIC uses it.
    pub(crate) base: u64,
    pub(crate) address: QueuePairAddress,
}

impl QueuePairAddress {
    fn encode(self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.queue_pair.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.first_packet.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_le_bytes());
        (bytes[10], bytes[11]) = (self.mtu, self.depth);
        bytes[12..28].copy_from_slice(&self.gid);
    }

    /// Decodes an address. Returns `None` for one that no NIC can have: for example, queue pairs and packets have
    /// 24-bit numbers.
    fn decode(bytes: &[u8]) -> Option<QueuePairAddress> {
        let address = QueuePairAddress {
            queue_pair: u32_at(bytes, 0)?,
            first_packet: u32_at(bytes, 4)?,
            lid: u16::from_le_bytes(*bytes.get(8..)?.first_chunk()?),
            mtu: *bytes.get(10)?,
            depth: *bytes.get(11)?,
            gid: *bytes.get(12..)?.first_chunk()?,
        };
        let is_sound = address.queue_pair < 1 << 24
            && address.first_packet < 1 << 24
            && (1..=5).contains(&address.mtu)
            && address.depth > 0;
        is_sound.then_some(address)
    }
}

impl VerbsHello {
    pub(crate) fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&PROTOCOL.magic());
        bytes[8..16].copy_from_slice(&self.node.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.client.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        self.address.encode(&mut bytes[24..]);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<VerbsHello, ProtocolMismatch> {
        PROTOCOL.check(ConnectionEnd::Server, bytes)?;
        let layout = u32_at(bytes, 20).ok_or(ProtocolMismatch::Stranger)?;
        LAYOUTS.check(ConnectionEnd::Server, layout).map_err(ProtocolMismatch::Version)?;
        let hello = || {
            let client = ClientId(u32_at(bytes, 16)?);
            let node = u64_at(bytes, 8)?;
            let address = QueuePairAddress::decode(&bytes[24..])?;
            Some(VerbsHello { node, client, address })
        };
        hello().ok_or(ProtocolMismatch::Stranger)
    }
}

impl VerbsWelcome {
    /// Makes an answer that refuses the session: all fields but `node` and `status` are zero.
    pub(crate) fn refusal(node: u64, status: VerbsHelloStatus) -> VerbsWelcome {
        let address = QueuePairAddress::default();
        let key = 0;
        let header_key = 0;
        let steered_key = 0;
        let pool_bytes = 0;
        let base = 0;
        VerbsWelcome { node, pool_bytes, status, key, header_key, steered_key, base, address }
    }

    pub(crate) fn encode(self) -> [u8; WELCOME_BYTES] {
        let status = match self.status {
            VerbsHelloStatus::Welcome => 0u32,
            VerbsHelloStatus::Fenced => 1,
            VerbsHelloStatus::Unable => 2,
            VerbsHelloStatus::Full => 3,
            VerbsHelloStatus::OtherVersion => 4,
        };
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..8].copy_from_slice(&PROTOCOL.magic());
        bytes[8..16].copy_from_slice(&self.node.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.pool_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&status.to_le_bytes());
        bytes[28..32].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.key.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.header_key.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.steered_key.to_le_bytes());
        bytes[44..52].copy_from_slice(&self.base.to_le_bytes());
        self.address.encode(&mut bytes[52..]);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; WELCOME_BYTES]) -> Result<VerbsWelcome, ProtocolMismatch> {
        PROTOCOL.check(ConnectionEnd::Client, bytes)?;
        let layout = u32_at(bytes, 28).ok_or(ProtocolMismatch::Stranger)?;
        LAYOUTS.check(ConnectionEnd::Client, layout).map_err(ProtocolMismatch::Version)?;
        VerbsWelcome::fields(bytes).ok_or(ProtocolMismatch::Stranger)
    }

    /// Decodes the fields behind the magic.
    fn fields(bytes: &[u8; WELCOME_BYTES]) -> Option<VerbsWelcome> {
        let node = u64_at(bytes, 8)?;
        let pool_bytes = u64_at(bytes, 16)?;
        let status = match u32_at(bytes, 24)? {
            0 => VerbsHelloStatus::Welcome,
            1 => VerbsHelloStatus::Fenced,
            2 => VerbsHelloStatus::Unable,
            3 => VerbsHelloStatus::Full,
            4 => VerbsHelloStatus::OtherVersion,
            _ => return None,
        };
        if status != VerbsHelloStatus::Welcome {
            return Some(VerbsWelcome::refusal(node, status));
        }
        let key = u32_at(bytes, 32)?;
        let header_key = u32_at(bytes, 36)?;
        let steered_key = u32_at(bytes, 40)?;
        let base = u64_at(bytes, 44)?;
        // The check ensures that addresses inside the pool do not overflow.
        base.checked_add(pool_bytes)?;
        let address = QueuePairAddress::decode(&bytes[52..])?;
        let pool = VerbsWelcome { pool_bytes, base, ..VerbsWelcome::refusal(node, status) };
        Some(VerbsWelcome { key, header_key, steered_key, address, ..pool })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_nothing_else_is_taken_for_one() {
        let address = QueuePairAddress {
            queue_pair: 0xab_cdef,
            first_packet: 5,
            lid: 0x1234,
            mtu: 5,
            depth: 16,
            gid: std::array::from_fn(|i| i as u8),
        };
        let hello = VerbsHello { node: u64::MAX - 1, client: ClientId(7), address };
        assert_eq!(VerbsHello::decode(&hello.encode()), Ok(hello));
        let key = 9;
        let header_key = 10;
        let steered_key = 11;
        let base = 1 << 40;
        let node = 3;
        let pool_bytes = 4096;
        let status = VerbsHelloStatus::Welcome;
        let pool = VerbsWelcome { pool_bytes, base, ..VerbsWelcome::refusal(node, status) };
        let welcome = VerbsWelcome { key, header_key, steered_key, address, ..pool };
        assert_eq!(VerbsWelcome::decode(&welcome.encode()), Ok(welcome));
        for status in [VerbsHelloStatus::Fenced, VerbsHelloStatus::Unable, VerbsHelloStatus::Full] {
            let refusal = VerbsWelcome::refusal(3, status);
            assert_eq!(VerbsWelcome::decode(&refusal.encode()), Ok(refusal));
        }
        let mut other = hello.encode();
        let mut another = welcome.encode();
        (other[20], another[28]) = (LAYOUT_VERSION as u8 + 1, LAYOUT_VERSION as u8 - 1);
        assert!(matches!(VerbsHello::decode(&other), Err(ProtocolMismatch::Version(_))));
        assert!(matches!(VerbsWelcome::decode(&another), Err(ProtocolMismatch::Version(_))));
        for at in 0..8 {
            let mut first = hello.encode();
            let mut second = welcome.encode();
            (first[at], second[at]) = (first[at] ^ 1, second[at] ^ 1);
            assert!(VerbsHello::decode(&first).is_err() && VerbsWelcome::decode(&second).is_err());
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let good = QueuePairAddress {
            queue_pair: 1,
            first_packet: 1,
            lid: 0,
            mtu: 3,
            depth: 1,
            gid: [0; 16],
        };
        for address in [
            QueuePairAddress { queue_pair: 1 << 24, ..good },
            QueuePairAddress { first_packet: 1 << 24, ..good },
            QueuePairAddress { mtu: 0, ..good },
            QueuePairAddress { mtu: 6, ..good },
            QueuePairAddress { depth: 0, ..good },
        ] {
            let hello = VerbsHello { node: 1, client: ClientId(1), address };
            assert_eq!(
                VerbsHello::decode(&hello.encode()),
                Err(ProtocolMismatch::Stranger),
                "{address:?}"
            );
        }
        let node = 1;
        let pool_bytes = 4096;
        let status = VerbsHelloStatus::Welcome;
        let base = u64::MAX - 4095;
        let pool = VerbsWelcome { pool_bytes, base, ..VerbsWelcome::refusal(node, status) };
        let welcome = VerbsWelcome { key: 1, header_key: 2, address: good, ..pool };
        let beyond = VerbsWelcome::decode(&welcome.encode());
        assert_eq!(beyond, Err(ProtocolMismatch::Stranger), "a pool beyond the end of memory");
        let mut unknown = VerbsWelcome { base: 0, ..welcome }.encode();
        unknown[24] = 6;
        assert_eq!(VerbsWelcome::decode(&unknown), Err(ProtocolMismatch::Stranger));
    }
}
