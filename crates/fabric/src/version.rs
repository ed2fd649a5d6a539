//! How hellos of fabrics begin: eight bytes, a name and a version behind it in digits.
//!
//! Programs of every version read these bytes, so their length and their names never change. A memory
//! node looks at them as soon as they are there, whatever may follow, and answers those of another
//! version with its own. The hello and the welcome also say which layout of pools is meant.

use fusee_core::version::{End, VersionError, Versions};

/// Bytes that are the same in every version.
pub(crate) const BEGIN_BYTES: usize = 8;

/// A protocol of a fabric.
#[derive(Debug)]
pub(crate) struct Protocol {
    name: &'static str,
    versions: Versions,
}

/// Who else has said hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// Somebody who does not speak this protocol.
    Stranger,
    /// Somebody who speaks another version of it.
    Version(VersionError),
}

impl Protocol {
    /// With one version; name and version fill the beginning of a hello.
    pub(crate) const fn new(name: &'static str, what: &'static str, version: u32) -> Protocol {
        assert!(
            name.len() < BEGIN_BYTES && version < 10_u32.pow((BEGIN_BYTES - name.len()) as u32)
        );
        Protocol { name, versions: Versions::only(what, version) }
    }

    /// Its name, which versions have in common.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The beginning of its hellos.
    pub(crate) const fn begin(&self) -> [u8; BEGIN_BYTES] {
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

    /// Checks as much of the beginning as has come; whether that is all of it.
    pub(crate) fn check(&self, own: End, bytes: &[u8]) -> Result<bool, Foreign> {
        let named = bytes.len().min(self.name.len());
        if bytes[..named] != self.name.as_bytes()[..named] {
            return Err(Foreign::Stranger);
        }
        let Some(digits) = bytes.get(self.name.len()..BEGIN_BYTES) else { return Ok(false) };
        let digit = |number: u32, byte: &u8| {
            byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0'))
        };
        let theirs = digits.iter().try_fold(0, digit).ok_or(Foreign::Stranger)?;
        self.versions.check(own, theirs).map(|()| true).map_err(Foreign::Version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: Protocol = Protocol::new("FUSEab", "protocol ab", 7);

    #[test]
    fn beginnings_are_understood_as_far_as_they_have_come() {
        assert_eq!(&EXAMPLE.begin(), b"FUSEab07");
        assert_eq!(&Protocol::new("FUSEabc", "", 3).begin(), b"FUSEabc3");
        for len in 0..8 {
            assert_eq!(EXAMPLE.check(End::Client, &b"FUSEab07"[..len]), Ok(false));
        }
        assert_eq!(EXAMPLE.check(End::Client, b"FUSEab07 and more"), Ok(true));
        for stranger in ["G", "FUSEx", "FUSEab0x", "FUSEac07"] {
            assert_eq!(EXAMPLE.check(End::Client, stranger.as_bytes()), Err(Foreign::Stranger));
        }
    }

    /// Hellos of other versions that have ever been, or may come.
    #[test]
    fn other_versions_are_told_apart_for_ever() {
        let what = "protocol ab";
        let own = End::Server;
        let current = 7;
        for (bytes, theirs) in [(b"FUSEab06", 6), (b"FUSEab12", 12)] {
            let error = VersionError { what, own, current, theirs };
            assert_eq!(EXAMPLE.check(own, bytes), Err(Foreign::Version(error)));
        }
    }
}
