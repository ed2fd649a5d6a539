//! The traces of an operation: what it may have changed, and which of its verbs may still execute.
//!
//! An operation whose traces are *in doubt* must not end like others: it stays pinned ([`pinned`](super::pinned)), and
//! its session is to be recovered.

use alloc::vec::Vec;

use crate::mutant::{Mutant, guard};
use crate::verbs::{MnId, Verb, VerbBatch, VerbError};
use crate::view::View;

/// The traces of an operation.
#[derive(Debug, Default)]
pub(in crate::store) struct OperationTraces {
    /// Whether this attempt has posted a CAS: from then on a failure may leave work behind that
    /// recovery can still finish.
    has_posted: bool,
    /// Whether a WRITE of the operation may still execute, since its answer has not come. It must not execute when
    /// the memory may be another owner's, or another object's.
    is_on_its_way: bool,
    /// Memory nodes that did not answer this operation.
    unanswered: Vec<MnId>,
}

/// The knowledge about an operation before a phase that may leave it in doubt.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct TracesBefore {
    has_posted: bool,
    is_on_its_way: bool,
}

impl OperationTraces {
    /// Returns whether a CAS of the operation may have had an effect that is not known.
    #[inline]
    pub fn has_posted(&self) -> bool {
        self.has_posted
    }

    /// Returns whether a WRITE of the operation may still execute.
    pub fn is_on_its_way(&self) -> bool {
        self.is_on_its_way
    }

    /// Returns whether the operation may have changed something, or may still do so.
    #[inline]
    pub fn is_in_doubt(&self) -> bool {
        self.has_posted || self.is_on_its_way
    }

    /// Notes that a batch is posted: from now on its CASes and FAAs may execute.
    #[inline]
    pub fn post(&mut self, batch: &VerbBatch) {
        self.has_posted |= batch.atomics() > 0;
    }

    /// Notes that the answers to a batch are awaited: the operation may be dropped before they come.
    pub fn begin_wait(&mut self, batch: &VerbBatch) -> TracesBefore {
        let before = self.before();
        self.is_on_its_way |= batch.has_write(|_| true);
        before
    }

    /// Notes the answers to a batch.
    pub fn end_wait(&mut self, before: TracesBefore, batch: &VerbBatch) {
        let is_silent = |verb: &Verb| verb.result == Err(VerbError::Unreachable);
        let is_late = guard(Mutant::LateObjectsForgotten, batch.has_write(is_silent));
        self.is_on_its_way = before.is_on_its_way || is_late;
    }

    /// Notes the nodes that did not answer: verbs that were posted to them may still execute.
    #[cold]
    pub fn note_unanswered(&mut self, batch: &VerbBatch) {
        for verb in batch.verbs() {
            let silent = verb.result == Err(VerbError::Unreachable);
            if silent && !self.unanswered.contains(&verb.node) {
                self.unanswered.push(verb.node);
            }
        }
    }

    /// Notes that the outcome of all posted CASes is known.
    #[inline]
    pub fn clear_posted(&mut self) {
        self.has_posted = false;
    }

    /// Notes that no WRITE can execute any more.
    pub fn clear_on_its_way(&mut self) {
        self.is_on_its_way = false;
    }

    /// Notes that each verb of the next phase counts as posted until its answer has come, also a WRITE.
    pub fn begin_sure_phase(&mut self) -> TracesBefore {
        let before = self.before();
        self.has_posted = true;
        before
    }

    /// Notes that no verb of a sure phase can execute any more, which may leave earlier ones.
    pub fn end_sure_phase(&mut self, before: TracesBefore) {
        self.has_posted = before.has_posted;
        self.is_on_its_way = before.is_on_its_way;
    }

    /// Notes that no verb of a sure phase can execute any more, nor any earlier one.
    pub fn end_all_phases(&mut self, before: TracesBefore) {
        self.has_posted = before.has_posted;
        self.is_on_its_way = false;
    }

    /// Notes that the WRITEs of a repair count as posted until they are answered, if they are `awaited`.
    pub fn begin_repair(&mut self, awaited: bool) -> TracesBefore {
        let before = self.before();
        self.has_posted = awaited;
        before
    }

    /// Notes that the WRITEs of a repair are answered.
    pub fn restore_posted(&mut self, before: TracesBefore) {
        self.has_posted = before.has_posted;
    }

    fn before(&self) -> TracesBefore {
        TracesBefore { has_posted: self.has_posted, is_on_its_way: self.is_on_its_way }
    }

    /// Returns the memory nodes that did not answer.
    pub fn unanswered(&self) -> &[MnId] {
        &self.unanswered
    }

    /// Notes that only READs had no answer: one that is still on its way does no harm.
    pub fn forgive_reads(&mut self) {
        self.unanswered.clear();
    }

    /// Does the same for nodes that came after the first `count`.
    pub fn forgive_reads_after(&mut self, count: usize) {
        self.unanswered.truncate(count);
    }

    /// Forgets the nodes that are no members of a view: they execute nothing any more. Returns whether all nodes that
    /// are left have answered.
    pub fn forget_nodes_outside(&mut self, view: &View) -> bool {
        self.unanswered.retain(|node| view.member(*node).is_some());
        self.unanswered.is_empty()
    }

    /// Notes which WRITEs may still execute by the newest view: those to its members that did not answer.
    pub fn follow(&mut self, newest: &View) {
        self.is_on_its_way = self.unanswered.iter().any(|node| newest.member(*node).is_some());
    }
}
