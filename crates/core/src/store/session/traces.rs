//! The traces of an operation: the effects that it has possibly had, and its verbs that can still execute.
//!
//! An operation whose traces are *in doubt* must not end like others: it stays pinned ([`pinned`](super::pinned)), and
//! its session has to be recovered.

use alloc::vec::Vec;

use crate::mutant::{Mutant, guard};
use crate::verbs::{MnId, Verb, VerbBatch, VerbError};
use crate::view::View;

/// The doubts that an operation leaves because verbs were not answered.
#[derive(Debug, Default)]
pub(in crate::store) struct OperationTraces {
    /// Whether the operation has posted CASes or FAAs whose outcome is not known. If the operation ends in this state,
    /// it possibly leaves a write half-way, which recovery has to finish.
    has_posted: bool,
    /// Whether a WRITE of the operation can still execute, because it has not been answered. The WRITE must not execute
    /// later, when the memory possibly has another owner or holds another object.
    is_on_its_way: bool,
    /// Memory nodes that did not answer this operation.
    unanswered: Vec<MnId>,
}

/// The traces of an operation before a phase that possibly leaves the operation in doubt.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct TracesBefore {
    has_posted: bool,
    is_on_its_way: bool,
}

impl OperationTraces {
    /// Returns whether a CAS or FAA of the operation has possibly had an effect that is not known.
    #[inline]
    pub fn has_posted(&self) -> bool {
        self.has_posted
    }

    /// Returns whether a WRITE of the operation can still execute.
    pub fn is_on_its_way(&self) -> bool {
        self.is_on_its_way
    }

    /// Returns whether the operation has possibly had an effect that is not known, or can still have one.
    #[inline]
    pub fn is_in_doubt(&self) -> bool {
        self.has_posted || self.is_on_its_way
    }

    /// Notes that a batch is posted: from now on its CASes and FAAs can execute.
    #[inline]
    pub fn post(&mut self, batch: &VerbBatch) {
        self.has_posted |= batch.atomics() > 0;
    }

    /// Notes that the answers to a batch are awaited: from now on the operation can be dropped before they come.
    pub fn begin_wait(&mut self, batch: &VerbBatch) -> TracesBefore {
        let before = self.before();
        self.is_on_its_way |= batch.any_write(|_| true);
        before
    }

    /// Notes which verbs of a batch were answered.
    pub fn end_wait(&mut self, before: TracesBefore, batch: &VerbBatch) {
        let is_silent = |verb: &Verb| verb.result == Err(VerbError::Unreachable);
        let is_late = guard(Mutant::LateObjectsForgotten, batch.any_write(is_silent));
        self.is_on_its_way = before.is_on_its_way || is_late;
    }

    /// Notes the nodes that did not answer: verbs that were posted to them can still execute.
    #[cold]
    pub fn note_unanswered(&mut self, batch: &VerbBatch) {
        for verb in batch.verbs() {
            let silent = verb.result == Err(VerbError::Unreachable);
            if silent && !self.unanswered.contains(&verb.node) {
                self.unanswered.push(verb.node);
            }
        }
    }

    /// Notes that the outcomes of all CASes and FAAs that the operation has posted are known.
    #[inline]
    pub fn clear_posted(&mut self) {
        self.has_posted = false;
    }

    /// Notes that no WRITE of the operation can execute any more.
    pub fn clear_on_its_way(&mut self) {
        self.is_on_its_way = false;
    }

    /// Begins a *sure* phase, of which every verb, also a WRITE, counts as posted until it is answered. Returns the
    /// traces before it.
    pub fn begin_sure_phase(&mut self) -> TracesBefore {
        let before = self.before();
        self.has_posted = true;
        before
    }

    /// Ends a sure phase none of whose verbs can execute any more. Verbs of earlier phases possibly still can.
    pub fn end_sure_phase(&mut self, before: TracesBefore) {
        self.has_posted = before.has_posted;
        self.is_on_its_way = before.is_on_its_way;
    }

    /// Ends a sure phase, when neither its verbs nor those of earlier phases can execute any more.
    pub fn end_all_phases(&mut self, before: TracesBefore) {
        self.has_posted = before.has_posted;
        self.is_on_its_way = false;
    }

    /// Begins a repair, whose WRITEs count as posted until they are answered. Without `awaited`, as for a mutant, they
    /// do not.
    pub fn begin_repair(&mut self, awaited: bool) -> TracesBefore {
        let before = self.before();
        self.has_posted = awaited;
        before
    }

    /// Notes that the WRITEs of a repair are answered, so that they leave no doubt.
    pub fn restore_posted(&mut self, before: TracesBefore) {
        self.has_posted = before.has_posted;
    }

    fn before(&self) -> TracesBefore {
        TracesBefore { has_posted: self.has_posted, is_on_its_way: self.is_on_its_way }
    }

    /// Returns the memory nodes that did not answer this operation.
    pub fn unanswered(&self) -> &[MnId] {
        &self.unanswered
    }

    /// Forgets the nodes that did not answer: only READs were unanswered, and a READ that executes late does no harm.
    pub fn forgive_reads(&mut self) {
        self.unanswered.clear();
    }

    /// Forgets, of the nodes that did not answer, all after the first `count`. Only READs to them were unanswered.
    pub fn forgive_reads_after(&mut self, count: usize) {
        self.unanswered.truncate(count);
    }

    /// Forgets the nodes that are not members of a view, because they execute no verbs of this session any more.
    /// Returns whether all remaining nodes have answered.
    pub fn forget_nodes_outside(&mut self, view: &View) -> bool {
        self.unanswered.retain(|node| view.member(*node).is_some());
        self.unanswered.is_empty()
    }

    /// Notes whether a WRITE can still execute: only if a node that did not answer is a member of the newest view.
    pub fn follow(&mut self, newest: &View) {
        self.is_on_its_way = self.unanswered.iter().any(|node| newest.member(*node).is_some());
    }
}
