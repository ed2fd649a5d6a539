//! The question whether a larger index would have a free slot for a new key that finds none.
//!
//! A split leaves a key together with the keys whose next hash bit is the same: as a rule half of the keys in its
//! buckets go. If none of them would go, even at the largest depth that the view allows
//! ([`View::deepest`](crate::view::View::deepest)), a split takes memory and room in the directory for nothing, and
//! so does the next one. So a writer that finds no free slot looks at the keys in its buckets before it asks for a
//! split. Without the cluster's hash key, an attacker cannot choose keys that collide in this way
//! ([`HashKey`](crate::race::HashKey)).
//!
//! An object that cannot be read may have any key. Then the writer asks for a split, and only the master's own bound
//! limits it. The same holds for entries of this very key: they belong to INSERTs under way, and prove nothing.

use alloc::vec::Vec;

use crate::data::{KeyReadResult, ObjectReads};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{BucketWords, Key};
use crate::store::StoreOp;
use crate::verbs::{Fabric, FailedVerb};

/// Bytes of each object that are read first: most keys are shorter.
const PREFIX_BYTES: u64 = 128;

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Returns the error of a write for whose key no slot of `words` is free. Takes one or two phases.
    pub(super) async fn full_buckets_error(&mut self, key: Key<'_>, words: &BucketWords) -> Error {
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

    /// Reads keys, in one phase. Returns the words whose keys take more bytes to read, with the number of these
    /// bytes. `None` if one of the other words leads to the key itself, to a key that a larger index separates from
    /// it, or to nothing that can be read.
    async fn longer_than_read(
        &mut self,
        key: Key<'_>,
        asked: &[(Slot, u64)],
    ) -> Result<Option<Vec<(Slot, u64)>>, FailedVerb> {
        self.batch.clear();
        let mut reads: Vec<(Slot, bool, ObjectReads)> = Vec::with_capacity(asked.len());
        for (word, bytes) in asked {
            let Some(object) = self.view.object_of(*word) else { return Ok(None) };
            let (bytes, whole) = ((*bytes).min(object.bytes()), object.bytes());
            reads.push((*word, bytes == whole, object.read_starts(&mut self.batch, bytes)));
        }
        self.phase().await;
        let mut longer = Vec::new();
        for (word, is_whole, starts) in reads {
            match starts.key(&self.batch, word, is_whole)? {
                KeyReadResult::Key(other) => {
                    let is_same = other == &key[..];
                    let other = self.store.key(other);
                    if is_same || key.common_bits(&other) < self.view.deepest() {
                        return Ok(None);
                    }
                }
                KeyReadResult::Longer(bytes) => longer.push((word, bytes)),
                KeyReadResult::Nothing => return Ok(None),
            }
        }
        Ok(Some(longer))
    }
}
