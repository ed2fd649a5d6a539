//! Marks of a session, and the keeper's questions to the master, by which the session learns that marks have passed.
//!
//! A *mark* is the number of the last question that the keeper had asked at some moment. The answer to a later question
//! contains an epoch; when all operations up to that epoch have ended everywhere, all operations that had begun before
//! the mark have ended.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

/// The keeper's questions to the master, and the questions for which the session waits.
#[derive(Debug)]
pub struct SessionMarks {
    /// The number of the keeper's last question to the master.
    asked: AtomicU64,
    /// The numbers of the questions for which the session waits: until all operations that began before the question
    /// have ended (`awaits`), or until, in addition, the free bits of all objects that they freed are set, except for
    /// those that never will be (`awaits_settled`).
    awaits: AtomicU64,
    awaits_settled: AtomicU64,
    /// The number of the question before which all operations that had begun have ended, in all sessions (`passed`);
    /// and for which, in addition, the free bits of all objects that they freed are set, except for those that never
    /// will be (`settled`).
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

    /// Returns, to the session, a mark of this moment. From now on the session waits for an answer to a later question.
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
    /// all objects that they freed are set, except for those that never will be.
    pub fn is_settled(&self, mark: u64) -> bool {
        self.awaits_settled.fetch_max(mark + 1, SeqCst);
        self.settled.load(SeqCst) > mark
    }

    /// Records, for the keeper, that it is about to ask the master question `number`.
    pub fn asks(&self, number: u64) {
        self.asked.store(number, SeqCst);
    }

    /// Records, for the keeper, the question before which all operations have ended, and the one before which they are
    /// settled.
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

    /// Returns, to the keeper, whether the session waits for operations to end or to be settled.
    pub fn are_awaited(&self) -> bool {
        self.awaits.load(SeqCst) > self.passed.load(SeqCst)
            || self.awaits_settled.load(SeqCst) > self.settled.load(SeqCst)
    }

    /// Returns, to the keeper, whether the session waits for a question that has not been asked yet.
    pub fn are_wanted(&self) -> bool {
        self.awaits.load(SeqCst) > self.asked.load(SeqCst)
    }
}
