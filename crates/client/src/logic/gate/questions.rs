//! What has passed since the session freed something, by the keeper's questions to the master.
//!
//! A session names a moment by the number of the keeper's last question (a *mark*). When the answer
//! to a later question is over everywhere, so is all that had begun before the mark.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

/// The keeper's questions, and how far the session waits for them.
#[derive(Debug)]
pub struct Questions {
    /// The number of the keeper's last question to the master.
    asked: AtomicU64,
    /// The session waits for the outcome of the question of this number: until what began before it
    /// has ended, or is settled.
    awaits: AtomicU64,
    awaits_settled: AtomicU64,
    /// All operations of all sessions have ended that had begun before the question of this number;
    /// and all that they freed is set free.
    passed: AtomicU64,
    settled: AtomicU64,
    /// Before this epoch no operation runs any more.
    passed_epoch: AtomicU64,
}

impl Questions {
    pub(super) fn new() -> Questions {
        Questions {
            asked: AtomicU64::new(0),
            awaits: AtomicU64::new(0),
            awaits_settled: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            passed_epoch: AtomicU64::new(0),
        }
    }

    /// To the session: the name of this moment. It waits for a later question from now on.
    pub(super) fn mark(&self) -> u64 {
        let mark = self.asked.load(SeqCst);
        self.awaits.fetch_max(mark + 1, SeqCst);
        mark
    }

    /// To the session: whether all operations have ended that had begun before a mark.
    pub fn has_passed(&self, mark: u64) -> bool {
        self.passed.load(SeqCst) > mark
    }

    /// To the session: whether, besides, all that they freed is set free.
    pub fn is_settled(&self, mark: u64) -> bool {
        self.awaits_settled.fetch_max(mark + 1, SeqCst);
        self.settled.load(SeqCst) > mark
    }

    /// From the keeper: it is about to ask the master for the so many-th time.
    pub fn asks(&self, number: u64) {
        self.asked.store(number, SeqCst);
    }

    /// From the keeper: what had begun before these questions has ended, or is settled.
    pub fn tell_passed(&self, passed: u64, settled: u64) {
        self.passed.fetch_max(passed, SeqCst);
        self.settled.fetch_max(settled, SeqCst);
    }

    /// To the session: before this epoch no operation of any session runs any more.
    pub fn passed_epoch(&self) -> u64 {
        self.passed_epoch.load(SeqCst)
    }

    /// From the keeper: all operations have ended that were pinned in an earlier epoch.
    pub fn tell_passed_epoch(&self, epoch: u64) {
        self.passed_epoch.fetch_max(epoch, SeqCst);
    }

    /// To the keeper: whether the session waits for the outcome of a question.
    pub fn are_awaited(&self) -> bool {
        self.awaits.load(SeqCst) > self.passed.load(SeqCst)
            || self.awaits_settled.load(SeqCst) > self.settled.load(SeqCst)
    }

    /// To the keeper: whether it waits for a question that has not been asked.
    pub fn are_wanted(&self) -> bool {
        self.awaits.load(SeqCst) > self.asked.load(SeqCst)
    }
}
