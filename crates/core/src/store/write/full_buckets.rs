//! The check whether a larger index would have a free slot for a new key that has found none.
//!
//! A split separates a key from the keys whose next hash bit differs, usually from half of the keys in its buckets. If
//! no key in its buckets would be separated, even at the largest depth that the view allows
//! ([`View::deepest`](crate::view::View::deepest)), a split takes memory and room in the directory for nothing, and so
//! does each further split. So a writer that finds no free slot reads the keys in its buckets before it asks for a
//! split. Without the cluster's hash key, an attacker cannot choose keys that collide in this way
//! ([`HashKey`](crate::race::HashKey)).
//!
//! An object that cannot be read possibly has a key that a split separates. Then the writer asks for a split, which
//! only the master's own limit can refuse. The writer also asks if an entry has the new key itself: such an entry
//! belongs to an INSERT under way, and proves nothing.

use alloc::vec::Vec;

use crate::data::{KeyReadResult, ObjectReads};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{BucketWords, Key};
use crate::store::StoreOp;
use crate::verbs::{Fabric, FailedVerb};

/// The number of bytes that are read first of each object, which is enough for most keys.
const PREFIX_BYTES: u64 = 128;

/// Returns the error of a write for whose key no slot of `words` is free: [`Error::IndexFull`] if splits can help,
/// [`Error::KeysHashAlike`] if not. Takes one or two phases.
pub(super) async fn full_buckets_error<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    key: Key<'_>,
    words: &BucketWords,
) -> Error {
    if removed(Mutant::SplitsSeparateNothing) {
        return Error::IndexFull;
    }
    let mut asked: Vec<(Slot, u64)> = words.iter().map(|(_, word)| (word, PREFIX_BYTES)).collect();
    while !asked.is_empty() {
        match longer_than_read(op, key, &asked).await {
            Ok(Some(longer)) => asked = longer,
            Ok(None) => return Error::IndexFull,
            Err(failed) => return op.failed(failed),
        }
    }
    Error::KeysHashAlike
}

/// Reads the keys of these words, in one phase, with the given number of bytes for each. Returns the words whose
/// keys need more bytes, with that number. Returns `None` if a split can help, because one of the other words leads
/// to the key itself, to a key that a larger index separates from it, or to nothing that can be read.
async fn longer_than_read<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    key: Key<'_>,
    asked: &[(Slot, u64)],
) -> Result<Option<Vec<(Slot, u64)>>, FailedVerb> {
    op.batch.clear();
    let mut reads: Vec<(Slot, bool, ObjectReads)> = Vec::with_capacity(asked.len());
    for (word, bytes) in asked {
        let Some(object) = op.view.object_of(*word) else { return Ok(None) };
        let (bytes, whole) = ((*bytes).min(object.bytes()), object.bytes());
        reads.push((*word, bytes == whole, object.read_starts(&mut op.batch, bytes)));
    }
    op.phase().await;
    let mut longer = Vec::new();
    for (word, is_whole, starts) in reads {
        match starts.key(&op.batch, word, is_whole)? {
            KeyReadResult::Key(other) => {
                let is_same = other == &key[..];
                let other = op.store.key(other);
                if is_same || key.common_bits(&other) < op.view.deepest() {
                    return Ok(None);
                }
            }
            KeyReadResult::Longer(bytes) => longer.push((word, bytes)),
            KeyReadResult::Nothing => return Ok(None),
        }
    }
    Ok(Some(longer))
}
