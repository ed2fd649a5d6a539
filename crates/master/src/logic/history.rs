//! What the master did, for people: how long the changes and the recoveries took.
//!
//! Only of this process, and only the last ones; the totals count all. Times are milliseconds.

use std::collections::VecDeque;

use fusee_control::master::{Reconfiguration, Recovery};
use fusee_core::change::Stage;
use fusee_core::verbs::MnId;
use fusee_core::view::View;

/// Entries of each kind that are kept.
const KEPT: usize = 100;

/// What was done.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Since when the view is in force, or known.
    since_ms: u64,
    recoveries: u64,
    last_recoveries: VecDeque<Recovery>,
    reconfigurations: u64,
    last_reconfigurations: VecDeque<Reconfiguration>,
    /// Losses that the next view brings.
    lost: Vec<MnId>,
    /// Since when replicas are missing because of a loss; counts the entries that wait for them.
    degraded_since_ms: Option<u64>,
}

impl History {
    /// Since when the view is in force, or this process knows it.
    pub fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// A view is in force now.
    pub fn view_since(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
    }

    /// Members are lost; the view without them follows.
    pub fn lost(&mut self, now_ms: u64, lost: &[MnId]) {
        self.lost.extend_from_slice(lost);
        self.degraded_since_ms.get_or_insert(now_ms);
    }

    /// A view takes the place of another one.
    pub fn view_changes(&mut self, now_ms: u64, old: &View, new: &View) {
        let passed = now_ms.saturating_sub(self.since_ms);
        self.since_ms = now_ms;
        let was = old.change.as_ref();
        if was.is_none() && new.change.is_none() {
            // A member more, or less: nothing else.
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
            Some(Stage::Frozen) => entry.frozen_ms += passed,
            Some(Stage::Transforming) => entry.transforming_ms += passed,
            Some(Stage::Switched) => entry.switched_ms += passed,
            None => {}
        }
        entry.lost.append(&mut self.lost);
        match &new.change {
            Some(change) if change.stage == Stage::Frozen => {
                let subtables = change.subtables.iter().filter(|s| s.joining.is_some());
                let regions = change.regions.iter().filter(|r| r.joining.is_some());
                let joined = (subtables.count() + regions.count()) as u64;
                entry.moved = new.leaving().count() as u64;
                entry.subtables = change.subtables.len() as u64;
                entry.joined = joined.saturating_sub(entry.moved);
                entry.new_regions = change.new_regions.into();
            }
            Some(_) => {}
            None => self.reconfigurations += 1,
        }
    }

    /// Nothing lacks a replica.
    pub fn whole(&mut self, now_ms: u64) {
        let Some(since_ms) = self.degraded_since_ms.take() else { return };
        let waiting = self.last_reconfigurations.iter_mut();
        for entry in waiting.filter(|e| !e.lost.is_empty() && e.whole_after_ms.is_none()) {
            entry.whole_after_ms = Some(now_ms.saturating_sub(since_ms));
        }
    }

    /// A client is recovered.
    pub fn recovered(&mut self, recovery: Recovery) {
        self.recoveries += 1;
        if self.last_recoveries.len() == KEPT {
            self.last_recoveries.pop_front();
        }
        self.last_recoveries.push_back(recovery);
    }

    /// Clients recovered, and the last of them.
    pub fn recoveries(&self) -> (u64, Vec<Recovery>) {
        (self.recoveries, self.last_recoveries.iter().copied().collect())
    }

    /// Changes of the view that came to their end, and the last that began.
    pub fn reconfigurations(&self) -> (u64, Vec<Reconfiguration>) {
        (self.reconfigurations, self.last_reconfigurations.iter().cloned().collect())
    }
}
