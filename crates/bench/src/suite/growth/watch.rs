//! The growth of the index, and the durations of the stages of the changes.
//!
//! Growth is observed in the views of the load's sessions, by frequent looks; on a busy machine a change is possibly
//! seen late. The durations of the stages are the master's figures in whole milliseconds. Each request to the master
//! adds the changes since the previous request.

use std::sync::Arc;
use std::time::Instant;

use fusee_client::{BlockingClient, Status, View};
use serde::Serialize;

use crate::worker::WorkerContext;

/// Number of views in a change: frozen, transforming, switched, stable.
const VIEWS: u64 = 4;

/// A change of the view in which the index grew.
#[derive(Clone, Debug, Serialize)]
pub struct GrowthChange {
    /// The time at which the change was first seen, in seconds.
    pub at_s: f64,
    /// The time at which the end of the change was first seen, in seconds.
    pub ended_s: f64,
    /// Number of keys at the beginning of the change.
    pub keys: u64,
    /// Number of subtables before the change.
    pub subtables: usize,
    /// Number of subtables after the change.
    pub subtables_after: usize,
    /// The load factor at the beginning of the change, 0 to 1.
    pub load_factor: f64,
}

/// Returns the load factor of an index with this number of keys.
pub fn load_factor(keys: u64, subtables: usize, view: &View) -> f64 {
    keys as f64 / (subtables as u64 * view.geometry.subtable_slots()) as f64
}

/// Observes the view.
pub struct GrowthMonitor<'a> {
    client: &'a BlockingClient,
    board: &'a WorkerContext,
    start: Instant,
    seen: Arc<View>,
    /// The number of the first view of the change that is under way, and the change so far.
    under_way: Option<(u64, GrowthChange)>,
    /// The ended changes in which the index grew.
    pub growth: Vec<GrowthChange>,
}

impl<'a> GrowthMonitor<'a> {
    /// Starts to observe.
    pub fn start(
        client: &'a BlockingClient,
        board: &'a WorkerContext,
        start: Instant,
    ) -> GrowthMonitor<'a> {
        let seen = client.view();
        GrowthMonitor { client, board, start, seen, under_way: None, growth: Vec::new() }
    }

    /// Looks at the view once.
    pub fn look(&mut self) {
        let view = self.client.view();
        if view.number == self.seen.number {
            return;
        }
        let at_s = self.start.elapsed().as_secs_f64();
        let keys = self.board.frontier.acknowledged();
        self.note_view(view, at_s, keys);
    }

    /// Notes a new view.
    fn note_view(&mut self, view: Arc<View>, at_s: f64, keys: u64) {
        if self.under_way.as_ref().is_some_and(|(first, _)| view.number >= first + VIEWS) {
            self.end(&view, at_s);
        }
        if self.under_way.is_none() {
            let subtables = self.seen.subtables.len();
            let growth = GrowthChange {
                at_s,
                ended_s: at_s,
                keys,
                subtables,
                subtables_after: subtables,
                load_factor: load_factor(keys, subtables, &view),
            };
            // The first views of this change were possibly missed, so the number of its first view is computed from the
            // stage.
            let stages = view.change.as_ref().map_or(VIEWS - 1, |change| change.stage as u64);
            self.under_way = Some((view.number - stages.min(view.number), growth));
        }
        if view.change.is_none() {
            self.end(&view, at_s);
        }
        self.seen = view;
    }

    fn end(&mut self, view: &View, at_s: f64) {
        let Some((_, growth)) = self.under_way.take() else { return };
        let subtables_after = view.subtables.len();
        if subtables_after > growth.subtables {
            self.growth.push(GrowthChange { ended_s: at_s, subtables_after, ..growth });
        }
    }
}

/// The durations of the stages of all changes since the beginning, added up, in milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GrowthStageTimes {
    /// Number of changes of the view.
    pub changes: u64,
    /// Number of changes whose durations the master reported. The sums below are of these changes.
    pub timed: u64,
    /// The time until all sessions had stopped their writes in the scope of the change.
    pub frozen_ms: u64,
    /// The time until the new subtables were filled.
    pub transforming_ms: u64,
    /// The time until all sessions had learned the outcome, and the slots whose contents had moved were cleared.
    pub switched_ms: u64,
    /// Number of changes that were complete at the last request to the master.
    #[serde(skip)]
    seen: u64,
}

impl GrowthStageTimes {
    /// Starts with this status of the master: only changes that are completed later are added up.
    pub fn start(status: &Status) -> GrowthStageTimes {
        GrowthStageTimes { seen: status.reconfigurations, ..GrowthStageTimes::default() }
    }

    /// Adds the changes that have been completed since the last call.
    pub fn add(&mut self, status: &Status) {
        let new = status.reconfigurations.saturating_sub(self.seen);
        self.seen = status.reconfigurations;
        self.changes += new;
        let is_under_way = status.view.as_ref().is_some_and(|view| view.change.is_some());
        let last = status.last_reconfigurations.iter().rev().skip(usize::from(is_under_way));
        for change in last.take(usize::try_from(new).unwrap_or(usize::MAX)) {
            self.timed += 1;
            self.frozen_ms += change.frozen_ms;
            self.transforming_ms += change.transforming_ms;
            self.switched_ms += change.switched_ms;
        }
    }
}
