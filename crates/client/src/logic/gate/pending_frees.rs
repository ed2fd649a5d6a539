//! Objects that operations have freed, and whose bits in the free bitmaps are not set yet.
//!
//! Only comparisons with the index, which need all free bits, wait until these bits are set; for an idle session they
//! would wait for ever. So after some epochs the keeper *revokes* the waiting objects: their bits are never set then,
//! and a comparison with the index finds the objects instead.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

/// State: no object waits for its free bit to be set.
const IDLE: u64 = u64::MAX;
/// State: the keeper has revoked the waiting objects, so that their free bits are never set.
const REVOKED: u64 = u64::MAX - 1;
/// Flag that is added to a local epoch: the session is setting the bits of the waiting objects.
const MARKING: u64 = 1 << 63;

/// The local epoch in which the oldest waiting object was freed, possibly with `MARKING`; or `IDLE`, or `REVOKED`.
#[derive(Debug)]
pub struct PendingFrees(AtomicU64);

/// The state of the waiting objects at the time when the keeper read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFreesSnapshot(u64);

impl PendingFreesSnapshot {
    /// Returns the local epoch in which the oldest waiting object was freed; `None` if no object waits.
    pub fn since(self) -> Option<u64> {
        (self.0 < REVOKED).then_some(self.0 & !MARKING)
    }
}

impl PendingFrees {
    pub(super) fn new() -> PendingFrees {
        PendingFrees(AtomicU64::new(IDLE))
    }

    /// Publishes, on behalf of the session, the local epoch in which the oldest waiting object was freed; `None` if no
    /// object waits.
    pub fn publish(&self, since: Option<u64>) {
        self.0.store(since.unwrap_or(IDLE), SeqCst);
    }

    /// Publishes, on behalf of the session, that an operation pinned in local epoch `since` has freed an object. The
    /// object waits for its bit to be set, unless the waiting objects are revoked: then this object is revoked, too.
    pub fn publish_older(&self, since: u64) {
        let older = |waits: u64| match waits {
            IDLE => Some(since),
            REVOKED => None,
            _ => Some((waits & !MARKING).min(since) | (waits & MARKING)),
        };
        let _revoked = self.0.fetch_update(SeqCst, SeqCst, older);
    }

    /// Returns, to the session, whether it is allowed to set the bits of the waiting objects now. If so, the objects
    /// cannot be revoked until it has done that. If they were revoked, the session starts again without waiting
    /// objects.
    pub fn may_set_free(&self) -> bool {
        let waits = self.0.load(SeqCst);
        let begun =
            |waits: u64| self.0.compare_exchange(waits, waits | MARKING, SeqCst, SeqCst).is_ok();
        if waits != REVOKED && begun(waits) {
            return true;
        }
        self.0.store(IDLE, SeqCst);
        false
    }

    /// Returns the state of the waiting objects, to the keeper.
    pub(super) fn waits(&self) -> PendingFreesSnapshot {
        PendingFreesSnapshot(self.0.load(SeqCst))
    }

    /// Revokes the waiting objects, on behalf of the keeper, so that their bits will never be set. Fails if the session
    /// is setting the bits, or has published another state after `seen` was read.
    pub(super) fn revoke(&self, seen: PendingFreesSnapshot) -> bool {
        let revoke = || self.0.compare_exchange(seen.0, REVOKED, SeqCst, SeqCst).is_ok();
        seen.0 & MARKING == 0 && revoke()
    }
}
