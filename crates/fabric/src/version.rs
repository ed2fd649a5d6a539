//! The first eight bytes of the fabrics' hellos: the name of a protocol, then its version in digits.
//!
//! Programs of all versions read these bytes, so their number and the names never change. A memory node checks the
//! bytes as soon as they arrive, whatever follows, and answers a hello of another version with its own version.
//! Hello and welcome also name the layout of pools that their sender uses.

use fusee_core::version::{ConnectionEnd, VersionError, VersionRange};

/// The number of bytes at the start of a hello whose meaning is the same in all versions of a protocol.
pub(crate) const BEGIN_BYTES: usize = 8;

/// A fabric's protocol.
#[derive(Debug)]
pub(crate) struct Protocol {
    name: &'static str,
    versions: VersionRange,
}

/// Mismatches of the peer's protocol, found by the beginning of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolMismatch {
    /// The peer does not use this protocol.
    Stranger,
    /// The peer uses another version of the protocol.
    Version(VersionError),
}

impl Protocol {
    /// Makes a protocol with one version. The name and the version's digits must fit in the first eight bytes.
    pub(crate) const fn new(name: &'static str, what: &'static str, version: u32) -> Protocol {
        assert!(
            name.len() < BEGIN_BYTES && version < 10_u32.pow((BEGIN_BYTES - name.len()) as u32)
        );
        Protocol { name, versions: VersionRange::only(what, version) }
    }

    /// Returns the name, which all versions share.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the first eight bytes of the protocol's messages.
    pub(crate) const fn magic(&self) -> [u8; BEGIN_BYTES] {
        let mut bytes = [0; BEGIN_BYTES];
        let mut at = BEGIN_BYTES;
        let mut rest = self.versions.current;
        while at > 0 {
            at -= 1;
            if at < self.name.len() {
                bytes[at] = self.name.as_bytes()[at];
            } else {
                bytes[at] = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        bytes
    }

    /// Checks as many of the first eight bytes as have arrived. Returns whether all eight have arrived.
    pub(crate) fn check(&self, own: ConnectionEnd, bytes: &[u8]) -> Result<bool, ProtocolMismatch> {
        let named = bytes.len().min(self.name.len());
        if bytes[..named] != self.name.as_bytes()[..named] {
            return Err(ProtocolMismatch::Stranger);
        }
        let Some(digits) = bytes.get(self.name.len()..BEGIN_BYTES) else { return Ok(false) };
        let digit = |number: u32, byte: &u8| {
            byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0'))
        };
        let theirs = digits.iter().try_fold(0, digit).ok_or(ProtocolMismatch::Stranger)?;
        self.versions.check(own, theirs).map(|()| true).map_err(ProtocolMismatch::Version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: Protocol = Protocol::new("FUSEab", "protocol ab", 7);

    #[test]
    fn beginnings_are_understood_as_far_as_they_have_come() {
        assert_eq!(&EXAMPLE.magic(), b"FUSEab07");
        assert_eq!(&Protocol::new("FUSEabc", "", 3).magic(), b"FUSEabc3");
        for len in 0..8 {
            assert_eq!(EXAMPLE.check(ConnectionEnd::Client, &b"FUSEab07"[..len]), Ok(false));
        }
        assert_eq!(EXAMPLE.check(ConnectionEnd::Client, b"FUSEab07 and more"), Ok(true));
        for stranger in ["G", "FUSEx", "FUSEab0x", "FUSEac07"] {
            assert_eq!(
                EXAMPLE.check(ConnectionEnd::Client, stranger.as_bytes()),
                Err(ProtocolMismatch::Stranger)
            );
        }
    }

    /// A version before and a version after this one are both recognized.
    #[test]
    fn other_versions_are_told_apart_for_ever() {
        let what = "protocol ab";
        let own = ConnectionEnd::Server;
        let current = 7;
        for (bytes, theirs) in [(b"FUSEab06", 6), (b"FUSEab12", 12)] {
            let error = VersionError { what, own, current, theirs };
            assert_eq!(EXAMPLE.check(own, bytes), Err(ProtocolMismatch::Version(error)));
        }
    }
}
