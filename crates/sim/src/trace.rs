//! The trace of a run: a digest of all events, and their text if it was asked for.

use std::fmt;

/// The events of a run, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimTrace {
    digest: u64,
    events: u64,
    text: Option<String>,
}

impl SimTrace {
    pub(crate) fn record(&mut self) {
        self.text.get_or_insert_default();
    }

    pub(crate) fn note(&mut self, now: u64, words: &[u64], text: impl FnOnce() -> String) {
        self.events += 1;
        // A variant of FNV-1a on whole words. The digest need not withstand an attacker; it only distinguishes runs.
        for word in std::iter::once(&now).chain(words) {
            self.digest = (self.digest ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        if let Some(all) = &mut self.text {
            use fmt::Write;
            writeln!(all, "{now:>12} {}", text()).expect("a String takes everything");
        }
    }

    /// Returns the digest. Runs with different traces almost certainly have different digests.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the text, with one line per event, if it was recorded.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}
