//! Objects that operations have freed, and whose bits in the free bitmaps are not set yet.
//!
//! Only comparisons with the index, which need all free bits, wait for them; for an idle session
//! they would wait for ever. So after some epochs the keeper *revokes* the waiting objects: their
//! bits are never set then, and a comparison with the index finds the objects.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

/// No object waits for its free bit to be set.
const IDLE: u64 = u64::MAX;
/// The waiting objects are revoked.
const REVOKED: u64 = u64::MAX - 1;
/// With a local epoch: the bits of the objects freed since then are being set.
const MARKING: u64 = 1 << 63;

/// The local epoch since which freed objects wait for their bits to be set, `IDLE` or `REVOKED`.
#[derive(Debug)]
pub struct PendingFrees(AtomicU64);

/// The waiting objects, as the keeper has seen them.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFreesSnapshot(u64);

impl PendingFreesSnapshot {
    /// Returns the local epoch since which some object waits.
    pub fn since(self) -> Option<u64> {
        (self.0 < REVOKED).then_some(self.0 & !MARKING)
    }
}

impl PendingFrees {
    pub(super) fn new() -> PendingFrees {
        PendingFrees(AtomicU64::new(IDLE))
    }

    /// Publishes, for the session, since when some object waits for its bit to be set.
    pub fn publish(&self, since: Option<u64>) {
        self.0.store(since.unwrap_or(IDLE), SeqCst);
    }

    /// Publishes, for the session, that an operation pinned in local epoch `since` has freed an
    /// object. The object waits for its bit to be set, unless the waiting objects are revoked:
    /// then it is revoked, too.
    pub fn publish_older(&self, since: u64) {
        let older = |waits: u64| match waits {
            IDLE => Some(since),
            REVOKED => None,
            _ => Some((waits & !MARKING).min(since) | (waits & MARKING)),
        };
        let _revoked = self.0.fetch_update(SeqCst, SeqCst, older);
    }

    /// Returns, to the session, whether the bits of the waiting objects may be set now. If so, the
    /// objects cannot be revoked meanwhile. If they were revoked, the session begins anew without
    /// waiting objects.
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

    /// Returns the waiting objects, to the keeper.
    pub(super) fn waits(&self) -> PendingFreesSnapshot {
        PendingFreesSnapshot(self.0.load(SeqCst))
    }

    /// Revokes the waiting objects, for the keeper: their bits will never be set. Fails if the
    /// bits are being set, or if the session has published something else since `seen`.
    pub(super) fn revoke(&self, seen: PendingFreesSnapshot) -> bool {
        let revoke = || self.0.compare_exchange(seen.0, REVOKED, SeqCst, SeqCst).is_ok();
        seen.0 & MARKING == 0 && revoke()
    }
}
