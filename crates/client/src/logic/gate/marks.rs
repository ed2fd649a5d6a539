//! Marks of a session, and the keeper's heartbeats to the master, whose answers tell that marks have passed.
//!
//! The keeper numbers its heartbeats. A *mark* is the number of the last heartbeat that it had sent at some moment. The
//! answer to a later heartbeat contains an epoch; when all operations of this and earlier epochs have ended in all
//! sessions, all operations that had begun before the mark have ended.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

/// The numbers of the keeper's heartbeats: of the last one, of those for which the session waits, and of those that
/// have passed.
#[derive(Debug)]
pub struct SessionMarks {
    /// The number of the keeper's last heartbeat to the master.
    asked: AtomicU64,
    /// The numbers of the heartbeats for which the session waits: until all operations that began before the heartbeat
    /// have ended (`awaits`), or until, in addition, the free bits of all objects that they freed are set, except for
    /// bits that will never be set (`awaits_settled`).
    awaits: AtomicU64,
    awaits_settled: AtomicU64,
    /// The number of the latest heartbeat such that all operations of all sessions that had begun before it have ended
    /// (`passed`); and of the latest one such that, in addition, the free bits of all objects that they freed are set,
    /// except for bits that will never be set (`settled`).
    passed: AtomicU64,
    settled: AtomicU64,
    /// An epoch before which no operation of any session runs any more.
    passed_epoch: AtomicU64,
}

impl SessionMarks {
    pub(super) fn new() -> SessionMarks {
        SessionMarks {
            asked: AtomicU64::new(0),
            awaits: AtomicU64::new(0),
            awaits_settled: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            passed_epoch: AtomicU64::new(0),
        }
    }

    /// Returns, to the session, a mark of this moment. From now on the session waits for an answer to a later
    /// heartbeat.
    pub(super) fn mark(&self) -> u64 {
        let mark = self.asked.load(SeqCst);
        self.awaits.fetch_max(mark + 1, SeqCst);
        mark
    }

    /// Returns, to the session, whether all operations that had begun before a mark have ended, in all sessions.
    pub fn has_passed(&self, mark: u64) -> bool {
        self.passed.load(SeqCst) > mark
    }

    /// Returns, to the session, whether all operations that had begun before a mark have ended, and the free bits of
    /// all objects that they freed are set, except for bits that will never be set.
    pub fn is_settled(&self, mark: u64) -> bool {
        self.awaits_settled.fetch_max(mark + 1, SeqCst);
        self.settled.load(SeqCst) > mark
    }

    /// Records, on behalf of the keeper, that it is about to send heartbeat `number` to the master.
    pub fn asks(&self, number: u64) {
        self.asked.store(number, SeqCst);
    }

    /// Records, on behalf of the keeper, the latest heartbeat before which all operations have ended (`passed`), and
    /// the latest one before which they are settled, too.
    pub fn tell_passed(&self, passed: u64, settled: u64) {
        self.passed.fetch_max(passed, SeqCst);
        self.settled.fetch_max(settled, SeqCst);
    }

    /// Returns, to the session, an epoch before which no operation of any session runs any more.
    pub fn passed_epoch(&self) -> u64 {
        self.passed_epoch.load(SeqCst)
    }

    /// Records, on behalf of the keeper, that all operations that were pinned in an earlier epoch have ended.
    pub fn tell_passed_epoch(&self, epoch: u64) {
        self.passed_epoch.fetch_max(epoch, SeqCst);
    }

    /// Returns, to the keeper, whether the session waits for operations to end or to be settled.
    pub fn are_awaited(&self) -> bool {
        self.awaits.load(SeqCst) > self.passed.load(SeqCst)
            || self.awaits_settled.load(SeqCst) > self.settled.load(SeqCst)
    }

    /// Returns, to the keeper, whether the session waits for a heartbeat that has not been sent yet.
    pub fn are_wanted(&self) -> bool {
        self.awaits.load(SeqCst) > self.asked.load(SeqCst)
    }
}
