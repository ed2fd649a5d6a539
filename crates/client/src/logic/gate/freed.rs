//! What operations have freed and nobody has set free yet.
//!
//! It holds up only those who must know that all of it is set free: a session that does nothing would
//! hold them up for ever. So after some epochs the keeper *revokes* what waits to be set free: it
//! never will be, and is found by a comparison with the index.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

/// Nothing waits to be set free.
const IDLE: u64 = u64::MAX;
/// What waited to be set free is revoked.
const REVOKED: u64 = u64::MAX - 1;
/// With a local epoch: what was freed since is being set free.
const MARKING: u64 = 1 << 63;

/// The local epoch since which freed objects wait to be set free, `IDLE` or `REVOKED`.
#[derive(Debug)]
pub struct Freed(AtomicU64);

/// What waits, as the keeper has seen it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits(u64);

impl Waits {
    /// The local epoch since which something waits.
    pub fn since(self) -> Option<u64> {
        (self.0 < REVOKED).then_some(self.0 & !MARKING)
    }
}

impl Freed {
    pub(super) fn new() -> Freed {
        Freed(AtomicU64::new(IDLE))
    }

    /// From the session: since when something waits to be set free.
    pub fn publish(&self, since: Option<u64>) {
        self.0.store(since.unwrap_or(IDLE), SeqCst);
    }

    /// From the session: something was freed by an operation that is pinned in that local epoch. It waits to be marked,
    /// unless what waits was revoked: then all of it is.
    pub fn publish_older(&self, since: u64) {
        let older = |waits: u64| match waits {
            IDLE => Some(since),
            REVOKED => None,
            _ => Some((waits & !MARKING).min(since) | (waits & MARKING)),
        };
        let _revoked = self.0.fetch_update(SeqCst, SeqCst, older);
    }

    /// To the session: whether what waits may be set free now.
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

    /// To the keeper: what waits.
    pub(super) fn waits(&self) -> Waits {
        Waits(self.0.load(SeqCst))
    }

    /// From the keeper: what waits never will be set free; unless it is being set free, or the session has
    /// told something else since.
    pub(super) fn revoke(&self, seen: Waits) -> bool {
        let revoke = || self.0.compare_exchange(seen.0, REVOKED, SeqCst, SeqCst).is_ok();
        seen.0 & MARKING == 0 && revoke()
    }
}
