//! A new key finds no free slot: would a larger index have one?
//!
//! A split leaves a key with those whose next hash bit is the same. As a rule half of the keys in its
//! buckets go. If none would go, however deep the index may become by the view
//! ([`View::deepest`](crate::view::View::deepest)), a split takes memory and room in the directory for
//! nothing, and so does the next one. So whoever finds no free slot looks at the keys that are there before it
//! asks for a split. Without the cluster's secret nobody can choose keys for which that matters
//! ([`HashKey`](crate::race::HashKey)).
//!
//! What cannot be read may be any key: then a split is asked for, and the master's own bound has to do. So it is with
//! entries of this very key, which are of INSERTs that are under way: they prove nothing.

use alloc::vec::Vec;

use super::Op;
use crate::data::{Reads, ShownKey};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{Key, Words};
use crate::verbs::{Fabric, FailedVerb};

/// Bytes of each object that are read first: most keys are shorter.
const PREFIX_BYTES: u64 = 128;

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// No slot of `words` is free for a key: why it cannot be written. One or two phases.
    pub(super) async fn no_room(&mut self, key: Key<'_>, words: &Words) -> Error {
        if removed(Mutant::SplitsSeparateNothing) {
            return Error::IndexFull;
        }
        let mut asked: Vec<(Slot, u64)> =
            words.iter().map(|(_, word)| (word, PREFIX_BYTES)).collect();
        while !asked.is_empty() {
            match self.longer_than_read(key, &asked).await {
                Ok(Some(longer)) => asked = longer,
                Ok(None) => return Error::IndexFull,
                Err(failed) => return self.failed(failed),
            }
        }
        Error::KeysHashAlike
    }

    /// One phase: the words whose keys take more bytes to read, and how many. `None` if one of the others
    /// leads to a key that the index separates from this one if it grows, or to nothing that can be read.
    async fn longer_than_read(
        &mut self,
        key: Key<'_>,
        asked: &[(Slot, u64)],
    ) -> Result<Option<Vec<(Slot, u64)>>, FailedVerb> {
        self.batch.clear();
        let mut reads: Vec<(Slot, bool, Reads)> = Vec::with_capacity(asked.len());
        for (word, bytes) in asked {
            let Some(object) = self.view.object_of(*word) else { return Ok(None) };
            let (bytes, whole) = ((*bytes).min(object.bytes()), object.bytes());
            reads.push((*word, bytes == whole, object.read_starts(&mut self.batch, bytes)));
        }
        self.phase().await;
        let mut longer = Vec::new();
        for (word, is_whole, starts) in reads {
            match starts.key(&self.batch, word, is_whole)? {
                ShownKey::Key(other) => {
                    let is_same = other == &key[..];
                    let other = self.store.key(other);
                    if is_same || key.common_bits(&other) < self.view.deepest() {
                        return Ok(None);
                    }
                }
                ShownKey::Longer(bytes) => longer.push((word, bytes)),
                ShownKey::Nothing => return Ok(None),
            }
        }
        Ok(Some(longer))
    }
}
