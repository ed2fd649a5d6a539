//! The update of a RoCE v2 packet's checksum (ICRC) when the address in a READ request, eight bytes, changes.
//!
//! The ICRC is the CRC-32 of Ethernet, which is linear: the change of the checksum depends on the change of the
//! bytes and on the number of bytes behind them, not on the rest of the packet. So a packet that arrived corrupt
//! stays corrupt. A checksum that is computed from the whole packet would make a corrupt packet valid.

/// The number of bytes between the address in a READ request and the checksum: RDMA key and length.
const BEHIND: usize = 8;

/// The change of the checksum for each change of each byte of the address, by position and by changed bits.
static CHANGES: [[u32; 256]; 8] = changes();

/// Returns the CRC register after one more byte, without the initial and final inversions.
const fn advance(register: u32, byte: u8) -> u32 {
    let mut register = register ^ byte as u32;
    let mut bit = 0;
    while bit < 8 {
        register = register >> 1 ^ if register & 1 == 1 { 0xedb8_8320 } else { 0 };
        bit += 1;
    }
    register
}

const fn changes() -> [[u32; 256]; 8] {
    let mut changes = [[0; 256]; 8];
    let mut at = 0;
    while at < 8 {
        let mut byte = 0;
        while byte < 256 {
            let mut register = advance(0, byte as u8);
            let mut left = 7 - at + BEHIND;
            while left > 0 {
                register = advance(register, 0);
                left -= 1;
            }
            changes[at][byte] = register;
            byte += 1;
        }
        at += 1;
    }
    changes
}

/// Returns the change of a READ request's checksum when these bits of the request's address change.
pub(super) fn change(address: u64) -> u32 {
    let bytes = address.to_be_bytes();
    bytes.iter().zip(&CHANGES).fold(0, |change, (byte, of)| change ^ of[usize::from(*byte)])
}

/// Returns the checksum of a whole packet, from its IP header to the byte before the checksum. The fields that
/// routers change must be all ones in `masked`.
#[cfg(test)]
pub(super) fn whole(masked: &[u8]) -> u32 {
    // Eight bytes of ones stand for the header that InfiniBand has and RoCE has not.
    let all = [0xff; 8].iter().chain(masked);
    !all.fold(u32::MAX, |register, byte| advance(register, *byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_ethernet() {
        let of =
            |bytes: &[u8]| !bytes.iter().fold(u32::MAX, |register, byte| advance(register, *byte));
        assert_eq!(of(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn the_change_is_that_of_the_whole() {
        let mut packet: Vec<u8> = (0..48).map(|at| (at * 37 + 11) as u8).collect();
        for (before, after) in
            [(0, 1), (1, u64::MAX), (0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321)]
        {
            let at = packet.len() - BEHIND - 8;
            let mut put = |address: u64| {
                packet[at..at + 8].copy_from_slice(&address.to_be_bytes());
                whole(&packet)
            };
            assert_eq!(put(before) ^ put(after), change(before ^ after));
        }
    }
}
