//! Marks of a session, and the keeper's questions to the master by which marks pass.
//!
//! A session names a moment by the number of the keeper's last question (a *mark*). When all operations up to
//! the epoch in the answer to a later question have ended everywhere, all that had begun before the mark have
//! ended.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

/// The keeper's questions, and those that the session waits for.
#[derive(Debug)]
pub struct SessionMarks {
    /// The number of the keeper's last question to the master.
    asked: AtomicU64,
    /// The question that the session waits for: until all operations that began before it have ended, or
    /// (`awaits_settled`) the free bits of all objects that they freed are set, as far as they will ever be.
    awaits: AtomicU64,
    awaits_settled: AtomicU64,
    /// All operations of all sessions that had begun before the question of this number have ended; and
    /// (`settled`) the free bits of all objects that they freed are set, as far as they will ever be.
    passed: AtomicU64,
    settled: AtomicU64,
    /// No operation of an earlier epoch runs any more.
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

    /// Returns, to the session, a mark of this moment. The session waits for a later question from now on.
    pub(super) fn mark(&self) -> u64 {
        let mark = self.asked.load(SeqCst);
        self.awaits.fetch_max(mark + 1, SeqCst);
        mark
    }

    /// Returns, to the session, whether all operations that had begun before a mark have ended.
    pub fn has_passed(&self, mark: u64) -> bool {
        self.passed.load(SeqCst) > mark
    }

    /// Returns, to the session, whether in addition the free bits of all objects that they freed are
    /// set, as far as they will ever be.
    pub fn is_settled(&self, mark: u64) -> bool {
        self.awaits_settled.fetch_max(mark + 1, SeqCst);
        self.settled.load(SeqCst) > mark
    }

    /// Records, for the keeper, that it is about to ask the master question `number`.
    pub fn asks(&self, number: u64) {
        self.asked.store(number, SeqCst);
    }

    /// Records, for the keeper, the questions up to which earlier operations have ended, or are settled.
    pub fn tell_passed(&self, passed: u64, settled: u64) {
        self.passed.fetch_max(passed, SeqCst);
        self.settled.fetch_max(settled, SeqCst);
    }

    /// Returns, to the session, an epoch before which no operation of any session runs any more.
    pub fn passed_epoch(&self) -> u64 {
        self.passed_epoch.load(SeqCst)
    }

    /// Records, for the keeper, that all operations that were pinned in an earlier epoch have ended.
    pub fn tell_passed_epoch(&self, epoch: u64) {
        self.passed_epoch.fetch_max(epoch, SeqCst);
    }

    /// Returns, to the keeper, whether the session waits for the outcome of a question.
    pub fn are_awaited(&self) -> bool {
        self.awaits.load(SeqCst) > self.passed.load(SeqCst)
            || self.awaits_settled.load(SeqCst) > self.settled.load(SeqCst)
    }

    /// Returns, to the keeper, whether the session waits for a question that has not been asked yet.
    pub fn are_wanted(&self) -> bool {
        self.awaits.load(SeqCst) > self.asked.load(SeqCst)
    }
}
