//! The decoding of frames for a switch, and the steering of a READ.
//!
//! ```text
//! Ethernet 14 | IPv4 20.. or IPv6 40 | UDP 8 | BTH 12 | RETH 16 or AtomicETH 28 or AETH 4 .. | .. | ICRC 4
//!
//! BTH        | opcode 1 | flags 1 | partition 2 | reserved 1 | queue pair 3 | acknowledge 1 | PSN 3 |
//! RETH       | address 8 | key 4 | length 4 |
//! AtomicETH  | address 8 | key 4 | swap or add 8 | compare 8 |
//! AETH       | syndrome 1 | MSN 3 |            then, of an atomic, what was found 8
//! ```
//!
//! Numbers are big-endian, except the ICRC. (IBTA vol. 1, chapter 9 and annex A17.) A frame can hold any bytes; an
//! incomplete one is [`FrameContents::Other`].

// Promise FAB-18: A switch on the wire steers READs; damaged packets stay damaged.

use super::icrc;

/// The UDP port of RoCE v2.
const ROCE_PORT: u16 = 4791;
const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
const BTH_BYTES: usize = 12;
const RETH_BYTES: usize = 16;
const ICRC_BYTES: usize = 4;

/// An IP address as NICs store it: an IPv4 address is mapped to IPv6.
pub(crate) type RawGid = [u8; 16];

/// A queue pair, and the address of its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoceEndpoint {
    pub(crate) gid: RawGid,
    pub(crate) queue_pair: u32,
}

/// The two ends of a TCP connection, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(crate) from: (RawGid, u16),
    pub(crate) to: (RawGid, u16),
}

impl Flow {
    /// Returns the flow of the other direction.
    pub(crate) fn back(self) -> Flow {
        Flow { from: self.to, to: self.from }
    }
}

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameContents<'b> {
    /// A request from one NIC to another.
    Request { to: RoceEndpoint, psn: u32, verb: RoceRequest<'b> },
    /// The answer to an atomic, with the word that was found.
    Found { to: RoceEndpoint, psn: u32, word: u64 },
    /// The refusal of a request, for another reason than that it came too early or out of order. The refusal ends
    /// the connection.
    Refused { to: RoceEndpoint },
    /// A segment of TCP.
    Segment { flow: Flow, bytes: &'b [u8], ends: bool },
    /// Any other frame.
    Other,
}

/// A NIC's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoceRequest<'b> {
    Read {
        address: u64,
        key: u32,
        len: u32,
    },
    /// The first or only packet of a WRITE, with the bytes that it carries.
    Write {
        address: u64,
        len: u32,
        start: &'b [u8],
    },
    Cas {
        address: u64,
        expected: u64,
        swap: u64,
    },
}

/// The IP packet in a frame.
struct IpPacket<'b> {
    from: RawGid,
    to: RawGid,
    protocol: u8,
    /// The payload of the IP packet. `at` is the payload's start in the frame.
    inside: &'b [u8],
    at: usize,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

fn u24_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
}

fn mapped(address: [u8; 4]) -> RawGid {
    std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

fn open(frame: &[u8]) -> Option<IpPacket<'_>> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    match u16_at(frame, 12)? {
        0x0800 => {
            let start = usize::from(packet.first()? & 15) * 4;
            let whole = u16_at(packet, 2)?;
            // Fragments of an IP packet are not reassembled, so a fragmented packet is not decoded.
            let is_whole = u16_at(packet, 6)? & 0x3fff == 0;
            if packet[0] >> 4 != 4 || start < 20 || !is_whole {
                return None;
            }
            let inside = packet.get(start..usize::from(whole))?;
            let from = mapped(array(packet, 12)?);
            let to = mapped(array(packet, 16)?);
            Some(IpPacket { from, to, protocol: packet[9], inside, at: ETHERNET_BYTES + start })
        }
        0x86dd => {
            let inside = packet.get(40..40 + usize::from(u16_at(packet, 4)?))?;
            let from = array(packet, 8)?;
            let to = array(packet, 24)?;
            Some(IpPacket { from, to, protocol: packet[6], inside, at: ETHERNET_BYTES + 40 })
        }
        _ => None,
    }
}

/// Decodes a frame.
pub(crate) fn look(frame: &[u8]) -> FrameContents<'_> {
    see(frame).unwrap_or(FrameContents::Other)
}

fn see(frame: &[u8]) -> Option<FrameContents<'_>> {
    let opened = open(frame)?;
    match opened.protocol {
        6 => segment(&opened),
        17 if u16_at(opened.inside, 2)? == ROCE_PORT => packet(&opened),
        _ => None,
    }
}

fn segment<'b>(opened: &IpPacket<'b>) -> Option<FrameContents<'b>> {
    let inside = opened.inside;
    let from = (opened.from, u16_at(inside, 0)?);
    let to = (opened.to, u16_at(inside, 2)?);
    let bytes = inside.get(usize::from(inside.get(12)? >> 4) * 4..)?;
    // The connection ends with FIN or RST.
    let ends = inside.get(13)? & 5 != 0;
    Some(FrameContents::Segment { flow: Flow { from, to }, bytes, ends })
}

fn packet<'b>(opened: &IpPacket<'b>) -> Option<FrameContents<'b>> {
    let whole = opened.inside.get(UDP_BYTES..usize::from(u16_at(opened.inside, 4)?))?;
    let body = whole.get(..whole.len().checked_sub(ICRC_BYTES)?)?;
    let to = RoceEndpoint { gid: opened.to, queue_pair: u24_at(body, 5)? };
    let psn = u24_at(body, 9)?;
    let rest = body.get(BTH_BYTES..)?;
    let request = |verb| Some(FrameContents::Request { to, psn, verb });
    let address = || u64_at(rest, 0);
    match body[0] {
        // The opcodes of a WRITE's first packet and of a WRITE in one packet.
        0x06 | 0x0a => {
            let padding = usize::from(body[1] >> 4 & 3);
            let start = rest.get(RETH_BYTES..rest.len().checked_sub(padding)?)?;
            request(RoceRequest::Write { address: address()?, len: u32_at(rest, 12)?, start })
        }
        // `icrc` relies on the fact that a READ request has no bytes behind its RETH.
        0x0c if rest.len() == RETH_BYTES => {
            let key = u32_at(rest, 8)?;
            let len = u32_at(rest, 12)?;
            request(RoceRequest::Read { address: address()?, key, len })
        }
        0x13 => {
            let swap = u64_at(rest, 12)?;
            let expected = u64_at(rest, 20)?;
            request(RoceRequest::Cas { address: address()?, expected, swap })
        }
        0x12 => Some(FrameContents::Found { to, psn, word: u64_at(rest, 4)? }),
        // NAK code 0 reports a missed packet, which is sent again, so the connection goes on.
        0x11 if rest.first()? >> 5 == 3 && rest[0] & 31 != 0 => Some(FrameContents::Refused { to }),
        _ => None,
    }
}

/// Redirects the READ in this frame to the address `to`.
pub(crate) fn steer(frame: &mut [u8], to: u64) -> Option<()> {
    let opened = open(frame)?;
    let udp = opened.at;
    let len = usize::from(u16_at(opened.inside, 4)?);
    let address = udp + UDP_BYTES + BTH_BYTES;
    let icrc = (udp + len).checked_sub(ICRC_BYTES)?;
    let from = u64_at(frame, address)?;
    replace(frame, udp, address, to.to_be_bytes())?;
    let checked = u32::from_le_bytes(array(frame, icrc)?) ^ icrc::change(from ^ to);
    replace(frame, udp, icrc, checked.to_le_bytes())
}

/// Replaces bytes of a UDP datagram, and updates the datagram's checksum if it has one (RFC 1624).
fn replace<const N: usize>(frame: &mut [u8], udp: usize, at: usize, bytes: [u8; N]) -> Option<()> {
    let checksum = u16_at(frame, udp + 6)?;
    let before: [u8; N] = array(frame, at)?;
    frame[at..at + N].copy_from_slice(&bytes);
    if checksum == 0 {
        return Some(());
    }
    let words = |bytes: [u8; N]| {
        let pairs = bytes.into_iter().enumerate();
        pairs.fold(0u32, |sum, (at, byte)| {
            sum + (u32::from(byte) << if at % 2 == 0 { 8 } else { 0 })
        })
    };
    let less = before.map(|byte| !byte);
    let mut sum = u32::from(!checksum) + words(less) + words(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // A checksum of zero would mean that the datagram has no checksum.
    let checksum = if sum == 0xffff { 0xffff } else { !(sum as u16) };
    frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

#[cfg(test)]
pub(super) mod made {
    //! Frames as NICs make them, for tests.

    use super::*;

    pub(crate) fn end(host: u8, queue_pair: u32) -> RoceEndpoint {
        RoceEndpoint { gid: mapped([10, 0, 0, host]), queue_pair }
    }

    fn ip(protocol: u8, from: RawGid, to: RawGid, inside: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        let v4 = |gid: RawGid| std::net::Ipv6Addr::from(gid).to_ipv4_mapped().map(|ip| ip.octets());
        let len = inside.len() as u16;
        match (v4(from), v4(to)) {
            (Some(from), Some(to)) => {
                frame.extend([0x08, 0x00, 0x45, 0]);
                frame.extend((20 + len).to_be_bytes());
                frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
                frame.extend(from);
                frame.extend(to);
            }
            _ => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(len.to_be_bytes());
                frame.extend([protocol, 64]);
                frame.extend(from);
                frame.extend(to);
            }
        }
        frame.extend(inside);
        frame
    }

    /// Makes a packet of a NIC from opcode, PSN, and the bytes between BTH and ICRC.
    pub(crate) fn packet(
        opcode: u8,
        from: RawGid,
        to: RoceEndpoint,
        psn: u32,
        rest: &[u8],
    ) -> Vec<u8> {
        let mut udp = vec![0xc0, 0, 0x12, 0xb7, 0, 0, 0, 0, opcode, 0, 0xff, 0xff, 0];
        udp.extend(&to.queue_pair.to_be_bytes()[1..]);
        udp.extend(psn.to_be_bytes());
        udp.extend(rest);
        udp.extend([0; ICRC_BYTES]);
        let len = udp.len() as u16;
        udp[4..6].copy_from_slice(&len.to_be_bytes());
        let mut frame = ip(17, from, to.gid, &udp);
        let at = frame.len() - ICRC_BYTES;
        let checked = checked(&frame);
        frame[at..].copy_from_slice(&checked.to_le_bytes());
        frame
    }

    /// Returns the ICRC that a packet should have.
    pub(crate) fn checked(frame: &[u8]) -> u32 {
        let mut masked = frame[ETHERNET_BYTES..frame.len() - ICRC_BYTES].to_vec();
        let is_v4 = masked[0] >> 4 == 4;
        // The bytes that routers change: class, label and hop limit of IPv6; class, time to live and checksum of
        // IPv4.
        let (header, changing): (_, &[usize]) =
            if is_v4 { (20, &[1, 8, 10, 11]) } else { (40, &[1, 2, 3, 7]) };
        changing.iter().for_each(|at| masked[*at] = 0xff);
        if !is_v4 {
            masked[0] |= 0x0f;
        }
        // Bytes 6 and 7 are UDP's checksum, byte 12 is the reserved byte of the BTH.
        [6, 7, 12].iter().for_each(|at| masked[header + at] = 0xff);
        icrc::whole(&masked)
    }

    pub(crate) fn icrc_of(frame: &[u8]) -> u32 {
        u32::from_le_bytes(*frame.last_chunk().unwrap())
    }

    /// Gives a packet a UDP checksum.
    pub(crate) fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
        let at = open(&frame).unwrap().at + 6;
        frame[at..at + 2].fill(0);
        let checksum = !sum(&frame);
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    /// Returns the sum that the UDP checksum covers; all ones if the checksum is right.
    pub(crate) fn sum(frame: &[u8]) -> u16 {
        let opened = open(frame).unwrap();
        let from = opened.from;
        let to = opened.to;
        let len = opened.inside.len() as u32;
        let rest = [17, len].map(u32::to_be_bytes).concat();
        let all: Vec<u8> = [&from[..], &to[..], &rest, opened.inside].concat();
        let words =
            all.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0)));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    pub(crate) fn read(
        from: RawGid,
        to: RoceEndpoint,
        psn: u32,
        address: u64,
        key: u32,
        len: u32,
    ) -> Vec<u8> {
        let address = address.to_be_bytes();
        let rest = [key, len].map(u32::to_be_bytes).concat();
        packet(0x0c, from, to, psn, &[&address[..], &rest].concat())
    }

    pub(crate) fn write(
        from: RawGid,
        to: RoceEndpoint,
        psn: u32,
        address: u64,
        bytes: &[u8],
    ) -> Vec<u8> {
        let reth = [7, bytes.len() as u32].map(u32::to_be_bytes).concat();
        packet(0x0a, from, to, psn, &[&address.to_be_bytes()[..], &reth, bytes].concat())
    }

    pub(crate) fn cas(
        from: RawGid,
        to: RoceEndpoint,
        psn: u32,
        address: u64,
        words: [u64; 2],
    ) -> Vec<u8> {
        let [expected, swap] = words.map(u64::to_be_bytes);
        let rest = [&address.to_be_bytes()[..], &[0; 4], &swap, &expected].concat();
        packet(0x13, from, to, psn, &rest)
    }

    pub(crate) fn found(from: RawGid, to: RoceEndpoint, psn: u32, word: u64) -> Vec<u8> {
        packet(0x12, from, to, psn, &[&[0; 4][..], &word.to_be_bytes()].concat())
    }

    pub(crate) fn refused(from: RawGid, to: RoceEndpoint, psn: u32, why: u8) -> Vec<u8> {
        packet(0x11, from, to, psn, &[0x60 | why, 0, 0, 0])
    }

    pub(crate) fn segment(flow: Flow, bytes: &[u8], ends: bool) -> Vec<u8> {
        let mut tcp = [flow.from.1.to_be_bytes(), flow.to.1.to_be_bytes()].concat();
        tcp.extend([0; 8]);
        tcp.extend([0x50, if ends { 1 } else { 0x10 }, 0, 0, 0, 0, 0, 0]);
        tcp.extend(bytes);
        ip(6, flow.from.0, flow.to.0, &tcp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V6: [RawGid; 2] = [
        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    ];

    #[test]
    fn what_is_steered_has_the_checksums_that_it_should_have() {
        let v4 = made::end(2, 0x1234);
        let v6 = RoceEndpoint { gid: V6[1], queue_pair: 9 };
        for (from, to) in [(made::end(1, 0).gid, v4), (V6[0], v6)] {
            for (before, after) in
                [(4096, 8192), (u64::MAX, 0), (0x7f00_1234_5678, 0x7f00_8765_4321)]
            {
                let plain = made::read(from, to, 77, before, 5, 64);
                assert_eq!(made::icrc_of(&plain), made::checked(&plain));
                for mut frame in [plain.clone(), made::with_checksum(plain)] {
                    let has_checksum = made::sum(&frame) == 0xffff;
                    steer(&mut frame, after).unwrap();
                    let verb = RoceRequest::Read { address: after, key: 5, len: 64 };
                    assert_eq!(look(&frame), FrameContents::Request { to, psn: 77, verb });
                    assert_eq!(made::icrc_of(&frame), made::checked(&frame));
                    assert_eq!(made::sum(&frame) == 0xffff, has_checksum);
                }
            }
        }
    }

    /// If a bit of a packet is wrong on arrival, the packet's checksum is wrong in the same way when it leaves.
    #[test]
    fn a_corrupt_packet_stays_corrupt() {
        let whole = made::read(made::end(1, 0).gid, made::end(2, 3), 77, 4096, 5, 64);
        // Only bits from the BTH on are changed, because the bytes before decide whether the frame is a NIC's
        // packet at all.
        for bit in (ETHERNET_BYTES + 20 + UDP_BYTES) * 8..whole.len() * 8 {
            let mut frame = whole.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let wrong = made::icrc_of(&frame) ^ made::checked(&frame);
            if let FrameContents::Request { verb: RoceRequest::Read { .. }, .. } = look(&frame) {
                steer(&mut frame, 1 << 20).unwrap();
            }
            assert_eq!(made::icrc_of(&frame) ^ made::checked(&frame), wrong, "bit {bit}");
        }
    }
}
