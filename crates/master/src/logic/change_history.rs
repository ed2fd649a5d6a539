//! The durations of changes and recoveries, for operators.
//!
//! Only the latest changes and recoveries of this master process are kept; the totals count all of them. Times are in
//! milliseconds.

use std::collections::VecDeque;

use fusee_control::master::{ClientRecovery, Reconfiguration};
use fusee_core::verbs::MnId;
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;

/// The number of past changes, and of past recoveries, that are kept.
const KEPT: usize = 100;

/// The past view changes and recoveries of this master process.
#[derive(Debug, Default)]
pub(super) struct ChangeHistory {
    /// The time at which the view came into force, or became known to this process.
    since_ms: u64,
    recoveries: u64,
    last_recoveries: VecDeque<ClientRecovery>,
    reconfigurations: u64,
    last_reconfigurations: VecDeque<Reconfiguration>,
    /// Members whose loss is in the next view, but not yet in an entry of `last_reconfigurations`.
    lost: Vec<MnId>,
    /// The time since which replicas are missing because of a loss. The entries of these losses get their
    /// `whole_after_ms` when no replica is missing any more.
    degraded_since_ms: Option<u64>,
}

impl ChangeHistory {
    /// Returns the time at which the view came into force, or this process learned of it.
    pub fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Records that a view is in force now.
    pub fn view_since(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
    }

    /// Records that members are lost; the view without them follows.
    pub fn lost(&mut self, now_ms: u64, lost: &[MnId]) {
        self.lost.extend_from_slice(lost);
        self.degraded_since_ms.get_or_insert(now_ms);
    }

    /// Records that a view replaces another one.
    pub fn view_changes(&mut self, now_ms: u64, old: &View, new: &View) {
        let passed = now_ms.saturating_sub(self.since_ms);
        self.since_ms = now_ms;
        let was = old.change.as_ref();
        if was.is_none() && new.change.is_none() {
            // Nothing was moved: only a member was added, or has left.
            return;
        }
        if was.is_none() || self.last_reconfigurations.is_empty() {
            if self.last_reconfigurations.len() == KEPT {
                self.last_reconfigurations.pop_front();
            }
            self.last_reconfigurations.push_back(Reconfiguration::default());
        }
        let entry = self.last_reconfigurations.back_mut().expect("there is one");
        match was.map(|change| change.stage) {
            Some(ChangeStage::Frozen) => entry.frozen_ms += passed,
            Some(ChangeStage::Transforming) => entry.transforming_ms += passed,
            Some(ChangeStage::Switched) => entry.switched_ms += passed,
            None => {}
        }
        entry.lost.append(&mut self.lost);
        match &new.change {
            Some(change) if change.stage == ChangeStage::Frozen => {
                let subtables = change.subtables.iter().filter(|s| s.joining.is_some());
                let regions = change.regions.iter().filter(|r| r.joining.is_some());
                let joined = (subtables.count() + regions.count()) as u64;
                entry.moved = change.leaving().count() as u64;
                entry.subtables = change.subtables.len() as u64;
                entry.joined = joined.saturating_sub(entry.moved);
                entry.new_regions = change.new_regions.into();
            }
            Some(_) => {}
            None => self.reconfigurations += 1,
        }
    }

    /// Records that no replica is missing any more.
    pub fn whole(&mut self, now_ms: u64) {
        let Some(since_ms) = self.degraded_since_ms.take() else { return };
        let waiting = self.last_reconfigurations.iter_mut();
        for entry in waiting.filter(|e| !e.lost.is_empty() && e.whole_after_ms.is_none()) {
            entry.whole_after_ms = Some(now_ms.saturating_sub(since_ms));
        }
    }

    /// Adds the recovery of a client.
    pub fn recovered(&mut self, recovery: ClientRecovery) {
        self.recoveries += 1;
        if self.last_recoveries.len() == KEPT {
            self.last_recoveries.pop_front();
        }
        self.last_recoveries.push_back(recovery);
    }

    /// Returns the number of recoveries so far, and the latest recoveries.
    pub fn recoveries(&self) -> (u64, Vec<ClientRecovery>) {
        (self.recoveries, self.last_recoveries.iter().copied().collect())
    }

    /// Returns the number of completed changes of the view, and the latest changes that began.
    pub fn reconfigurations(&self) -> (u64, Vec<Reconfiguration>) {
        (self.reconfigurations, self.last_reconfigurations.iter().cloned().collect())
    }
}
