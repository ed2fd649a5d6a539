//! Versions of protocols and layouts.
//!
//! A hello names the version that its sender wants to speak, in bytes that programs of every version find and
//! understand. A receiver that understands this version continues with it; otherwise it answers with its own version
//! and closes the connection. If the sender is newer and also understands that version, it can connect again with it.
//!
//! So two programs understand each other if their [`VersionRange`]s overlap. Messages have no optional parts yet, so
//! every range contains one version today.

use core::fmt;

/// The versions of a protocol or layout that this program understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The name of the protocol or layout, for messages.
    pub what: &'static str,
    /// The oldest version that this program understands.
    pub oldest: u32,
    /// The newest version, which this program tries first.
    pub current: u32,
}

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The end that opens the connection.
    Client,
    /// The end that accepts the connection.
    Server,
}

/// The mismatch of two programs that do not understand each other. The error's text says which program is too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionError {
    /// The name of the protocol or layout.
    pub what: &'static str,
    /// The end of the connection at which this program is.
    pub own: ConnectionEnd,
    /// The newest version of the protocol or layout that this program understands.
    pub current: u32,
    /// The version that the other program speaks.
    pub theirs: u32,
}

impl VersionRange {
    /// Returns the range of a protocol or layout that has one version.
    pub const fn only(what: &'static str, version: u32) -> VersionRange {
        VersionRange { what, oldest: version, current: version }
    }

    /// Checks the version of a peer's hello, as seen from this end.
    pub fn check(&self, own: ConnectionEnd, theirs: u32) -> Result<(), VersionError> {
        if (self.oldest..=self.current).contains(&theirs) {
            Ok(())
        } else {
            Err(VersionError { what: self.what, own, current: self.current, theirs })
        }
    }
}

impl fmt::Display for VersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VersionError { what, own, current, theirs } = self;
        let (own, other) = match own {
            ConnectionEnd::Client => ("client", "server"),
            ConnectionEnd::Server => ("server", "client"),
        };
        let old = if theirs < current { other } else { own };
        write!(f, "this {own} speaks {what} {current}, the {other} {theirs}: upgrade the {old}")
    }
}

impl core::error::Error for VersionError {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn versions_of_the_range_are_understood_and_others_name_who_is_too_old() {
        let versions = VersionRange { what: "protocol", oldest: 3, current: 5 };
        for theirs in 3..=5 {
            assert_eq!(versions.check(ConnectionEnd::Client, theirs), Ok(()));
        }
        let says = |own, theirs| versions.check(own, theirs).unwrap_err().to_string();
        for (own, theirs, text) in [
            (
                ConnectionEnd::Client,
                2,
                "this client speaks protocol 5, the server 2: upgrade the server",
            ),
            (
                ConnectionEnd::Client,
                6,
                "this client speaks protocol 5, the server 6: upgrade the client",
            ),
            (
                ConnectionEnd::Server,
                2,
                "this server speaks protocol 5, the client 2: upgrade the client",
            ),
            (
                ConnectionEnd::Server,
                6,
                "this server speaks protocol 5, the client 6: upgrade the server",
            ),
        ] {
            assert_eq!(says(own, theirs), text);
        }
        let only = VersionRange::only("layout", 4);
        assert!(
            only.check(ConnectionEnd::Server, 4).is_ok()
                && only.check(ConnectionEnd::Server, 3).is_err()
        );
    }
}
