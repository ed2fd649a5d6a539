//! The report of `fusee-bench growth`.

use std::fmt::Write as _;
use std::time::Duration;

use fusee_client::View;
use serde::Serialize;

use super::GrowthArgs;
use super::watch::{GrowthChange, GrowthStageTimes, load_factor};
use crate::report::{BenchFindings, BenchReport};
use crate::series::{IntervalSample, LatencyByOperation, LatencySummary, operations, thinned};
use crate::worker::WorkerContext;
use fusee_report::plot::{Chart, ChartLine, ChartMark, HorizontalAxis, Panel};

/// Maximum number of rows of the time series in the table for people.
const ROWS: usize = 24;
/// Maximum number of splits that the chart marks. If there were more splits, it marks none.
const MARKS: usize = 50;
/// The kinds of operations in the load, in the order of the report.
const KINDS: [&str; 3] = ["insert", "search", "update"];

/// A row of the time series.
#[derive(Debug, Serialize)]
pub struct GrowthInterval {
    pub from_s: f64,
    pub to_s: f64,
    /// Number of keys at the end of the interval.
    pub keys: u64,
    /// Number of subtables at the end of the interval.
    pub subtables: usize,
    pub load_factor: f64,
    /// Operations that ended in the interval.
    pub operations: LatencyByOperation,
}

impl GrowthInterval {
    /// Builds the row of an interval that ends now.
    pub fn new(
        view: &View,
        board: &WorkerContext,
        from: Duration,
        to: Duration,
        sample: &IntervalSample,
    ) -> Self {
        let keys = board.frontier.acknowledged();
        let subtables = view.subtables.len();
        GrowthInterval {
            from_s: from.as_secs_f64(),
            to_s: to.as_secs_f64(),
            keys,
            subtables,
            load_factor: load_factor(keys, subtables, view),
            operations: operations(&sample.all(), (to - from).as_secs_f64()),
        }
    }
}

/// The results.
#[derive(Debug, Serialize)]
pub struct GrowthReport {
    /// The time until the last key was inserted, in seconds.
    pub duration_s: f64,
    pub slots_per_bucket: u8,
    pub subtable_slots: u64,
    pub subtables_at_start: usize,
    pub intervals: Vec<GrowthInterval>,
    /// The changes in which the index grew.
    pub growth: Vec<GrowthChange>,
    pub stages: GrowthStageTimes,
    /// Latencies of operations during which the view did not change. Their `per_s` refers to the whole run.
    pub calm: LatencyByOperation,
    /// Latencies of operations during which the view was changing.
    pub changing: LatencyByOperation,
}

impl BenchFindings for GrowthReport {
    type Settings = GrowthArgs;

    fn title(report: &BenchReport<'_, GrowthReport>) -> String {
        let found = &report.findings;
        let args = report.settings;
        format!(
            "growth of an index from {} subtables of {} slots, {} in a bucket: {} keys, pairs of {} \
             bytes,\nsessions: {} to insert, {} to read and {} to update {} times a second together",
            found.subtables_at_start,
            found.subtable_slots,
            found.slots_per_bucket,
            args.keys,
            args.pair_bytes,
            args.inserters,
            args.readers,
            args.writers,
            args.rate,
        )
    }

    fn summary(report: &BenchReport<'_, GrowthReport>) -> String {
        let mut text = String::new();
        report.findings.outcome(&mut text, report.ended_early());
        text
    }

    fn rows(report: &BenchReport<'_, GrowthReport>) -> String {
        let mut text = String::new();
        report.findings.latencies(&mut text);
        report.findings.series(&mut text);
        text
    }

    fn chart(report: &BenchReport<'_, GrowthReport>) -> Option<Chart> {
        let GrowthArgs { keys, pair_bytes, .. } = report.settings;
        let fabric = report.fabric();
        let title = format!("Growth: {keys} keys, pairs of {pair_bytes} bytes, {fabric}");
        Some(report.findings.chart(title))
    }
}

impl GrowthReport {
    fn outcome(&self, text: &mut String, ended: &str) {
        if let Some(last) = self.intervals.last() {
            let _ = writeln!(
                text,
                "inserted    {} keys in {:.2} s: {:.1} kops/s{ended}\n\
                 index       {} subtables after {} splits; load factor {:.3}",
                last.keys,
                self.duration_s,
                last.keys as f64 / self.duration_s / 1000.0,
                last.subtables,
                last.subtables.saturating_sub(self.subtables_at_start),
                last.load_factor
            );
        }
        let mut factors: Vec<f64> = self.growth.iter().map(|growth| growth.load_factor).collect();
        factors.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (factors.first(), factors.last()) {
            let seconds: f64 = self.growth.iter().map(|g| g.ended_s - g.at_s).sum();
            let _ = writeln!(
                text,
                "when it grew  load factor {least:.3} to {most:.3}, median {:.3}; {} times, under way \
                 for {:.1} % of the time",
                factors[factors.len() / 2],
                factors.len(),
                100.0 * seconds / self.duration_s
            );
        }
        let stages = &self.stages;
        let mean = |ms: u64| ms as f64 / stages.timed.max(1) as f64;
        let _ = writeln!(
            text,
            "a change    frozen {:.1} ms, transforming {:.1} ms, switched {:.1} ms on average of {}",
            mean(stages.frozen_ms),
            mean(stages.transforming_ms),
            mean(stages.switched_ms),
            stages.timed
        );
    }

    fn latencies(&self, text: &mut String) {
        let _ = writeln!(text, "\n{:<25} {}", "", LatencySummary::HEADER);
        for kind in KINDS {
            for (name, operations) in [("no change", &self.calm), ("changing", &self.changing)] {
                if let Some(latency) = operations.get(kind) {
                    let _ = writeln!(text, "{:<25} {}", format!("{kind}, {name}"), latency.row());
                }
            }
        }
    }

    fn series(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n{:>9} {:>11} {:>10} {:>6} {:>10} {:>10} {:>10} {:>14} {:>12}",
            "s",
            "keys",
            "subtables",
            "load",
            "inserts/s",
            "gets/s",
            "updates/s",
            "insert p99 us",
            "get p99 us"
        );
        for row in thinned(&self.intervals, ROWS) {
            let rate = |kind| row.operations.get(kind).map_or(0.0, |latency| latency.per_s);
            let p99 = |kind| row.operations.get(kind).map_or(0.0, |latency| latency.p99_us);
            let _ = writeln!(
                text,
                "{:>9.2} {:>11} {:>10} {:>6.3} {:>10.0} {:>10.0} {:>10.0} {:>14.1} {:>12.1}",
                row.to_s,
                row.keys,
                row.subtables,
                row.load_factor,
                rate("insert"),
                rate("search"),
                rate("update"),
                p99("insert"),
                p99("search")
            );
        }
    }

    /// Draws the time series.
    fn chart(&self, title: String) -> Chart {
        let line = |name: &str, value: &dyn Fn(&GrowthInterval) -> Option<f64>| {
            let points = self.intervals.iter().filter_map(|i| Some((i.to_s, value(i)?)));
            ChartLine::new(name, points.collect())
        };
        let by_kind = |what: &str, value: &dyn Fn(&LatencySummary) -> f64| -> Vec<ChartLine> {
            let of = |kind: &'static str| {
                line(&format!("{kind}{what}"), &|i| i.operations.get(kind).map(value))
            };
            KINDS.into_iter().map(of).collect()
        };
        let panel =
            |label: &str, logarithmic, lines| Panel { label: label.into(), logarithmic, lines };
        let load = line("load factor", &|i| Some(i.load_factor));
        let grew = self.growth.iter().map(|g| (g.at_s, g.load_factor));
        let when_it_grew = ChartLine::new("when it grew", grew.collect());
        let subtables = line("subtables", &|i| Some(i.subtables as f64));
        Chart {
            title,
            x: HorizontalAxis::Seconds,
            panels: vec![
                panel("operations/s", true, by_kind("", &|latency| latency.per_s)),
                panel("microseconds", true, by_kind(" p99", &|latency| latency.p99_us)),
                panel("keys / slots", false, vec![load, when_it_grew]),
                panel("subtables", false, vec![subtables]),
            ],
            // More marks would hide the lines of the chart.
            mark_name: "splits of the index",
            marks: match self.growth.len() {
                0..=MARKS => self.growth.iter().map(|g| ChartMark::at(g.at_s)).collect(),
                _ => Vec::new(),
            },
        }
    }
}
