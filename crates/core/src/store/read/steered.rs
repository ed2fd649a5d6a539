//! Steered READs: a second READ of the slot of a *doubted* hint, which a switch on the way can redirect to the object
//! that the slot leads to.
//!
//! ```text
//! READ the slot on its primary; steered READ of that slot        (1 phase instead of 2)
//! ```
//!
//! A steered READ can return any bytes. The session uses them only if they are what the next phase would READ: the
//! whole object of the word that the same phase has shown, with this word's identity and a good CRC, with the wanted
//! key, in a region that has a replica on the slot's node. An object is written once, and while the operation is pinned
//! no other object gets its identity. No bytes are left of an earlier object with the same identity, because a node
//! zeroes the memory that it releases, and has only one extent of a region at a time. So the bytes are that object,
//! wherever and whenever they were read. If the READ returns anything else, the operation goes on as if it had only
//! READ the slot (`spec/Steered.tla`).
//!
//! A session uses steered READs as long as they are worth their cost. If too few of the latest ones brought the object,
//! the session uses none for a while, and treats doubted hints as it does without a switch.

use core::cell::Cell;

use super::target::HintTarget;
use crate::host::Host;
use crate::layout::{Object, Slot};
use crate::mutant::{Mutant, passes, removed};
use crate::race::Key;
use crate::store::{Hint, Store};
use crate::verbs::{Fabric, FailedVerb, Span, Ticket, VerbBatch, VerbError};
use crate::view::View;

/// The number of steered READs after which a session decides whether it goes on with them.
const ROUND: u32 = 64;
/// The smallest number of steered READs, of these [`ROUND`], that have to bring their object.
const WORTH: u32 = ROUND / 4;
/// The number of doubted hints for which a session uses no steered READ after fewer than [`WORTH`] brought their
/// object.
const WITHOUT: u32 = 16 * ROUND;

/// Counts of a session's steered READs.
#[derive(Debug, Default)]
pub(super) struct Steering {
    /// The number of steered READs since the latest decision whether to use them.
    tried: Cell<u32>,
    brought: Cell<u32>,
    /// The number of doubted hints for which the session still uses no steered READ.
    without: Cell<u32>,
}

impl Steering {
    /// Returns whether to use a steered READ for the next doubted hint. If not, counts the hint.
    fn takes_turn(&self) -> bool {
        let left = self.without.get();
        self.without.set(left.saturating_sub(1));
        left == 0
    }

    fn note(&self, brought: bool) {
        let tried = self.tried.get() + 1;
        self.brought.set(self.brought.get() + u32::from(brought));
        self.tried.set(tried);
        if tried == ROUND {
            if self.brought.get() < WORTH {
                self.without.set(WITHOUT);
            }
            self.tried.set(0);
            self.brought.set(0);
        }
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Returns whether the caller should pass a hint that is probably wrong to the next operation as [likely
    /// stale](crate::store::HintTrust::LikelyStale), so that the operation uses a steered READ.
    #[inline]
    pub fn asks_switches(&self) -> bool {
        self.fabric.may_steer() && self.reads.steering.takes_turn()
    }
}

/// A steered READ that was posted.
#[derive(Clone, Copy)]
pub(in crate::store) struct SteeredRead(Ticket);

impl SteeredRead {
    /// Posts a READ that begins at the hint's slot and has the size of the hint's object. A switch can redirect it to
    /// the object that the slot leads to.
    pub fn post(target: &HintTarget, batch: &mut VerbBatch) -> SteeredRead {
        SteeredRead(batch.steered(
            target.slot.node,
            target.slot.offset,
            target.class.bytes() as u32,
        ))
    }

    /// Returns the value that the READ has brought, if it has brought the whole object of the shown word, with this
    /// key.
    #[cold]
    pub fn value<F: Fabric, H: Host>(
        self,
        shown: Hint,
        key: Key<'_>,
        store: &Store<F, H>,
        view: &View,
        batch: &VerbBatch,
    ) -> Result<Option<Span>, FailedVerb> {
        let bytes = match batch.data_span(self.0) {
            Ok(span) => Some(span),
            // The READ would have gone beyond the end of the pool, from the address to which it was steered, or from
            // the slot's.
            Err(failure) if failure.error == VerbError::OutOfBounds => None,
            Err(failure) => return Err(failure),
        };
        let target = HintTarget::new(view, &store.silent, shown, key);
        // A switch can steer a READ only to an object that lies whole on the slot's node.
        let target = target.filter(|target| target.is_beside_its_slot());
        let brought = match (bytes, target) {
            (Some(bytes), Some(target)) => {
                let bytes_of = target.class.bytes() as u32;
                let whole = (bytes_of <= bytes.len).then(|| bytes.part(0, bytes_of));
                whole.and_then(|bytes| value_in(batch, bytes, shown.word, key))
            }
            _ => None,
        };
        store.reads.steering.note(brought.is_some());
        store.counters.add_steered(brought.is_some());
        Ok(brought)
    }
}

/// Returns the value of a key, if these bytes are the object of a word and have the key.
fn value_in(batch: &VerbBatch, at: Span, word: Slot, key: Key<'_>) -> Option<Span> {
    let bytes = batch.bytes(at);
    let object = if removed(Mutant::SteeredByItsKey) {
        Object::decode(bytes)
    } else {
        Object::decode_of(bytes, word.object_identity())
    };
    let object = object.ok()?;
    let is_of_key = passes(Mutant::KeysNotCompared, object.key() == &*key);
    is_of_key.then(|| at.part(object.value_offset() as u32, object.value().len() as u32))
}
