//! The report of `fusee-bench cache`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fusee_cli::quantity::count_with_noun;
use fusee_client::{FabricKind, KindStats, OpKind};
use serde::Serialize;

use super::{CacheArgs, CacheSetting, CacheThreshold};
use crate::driver::PhaseResult;
use crate::report::{BenchFindings, BenchReport, OperationReport, PhaseReport};
use crate::spread::Spread;
use fusee_report::plot::{Chart, ChartLine, HorizontalAxis, Panel};

/// The results.
#[derive(Serialize)]
pub struct CacheReport {
    /// The medians by fabric, workload and threshold, in the order of the arguments.
    pub results: Vec<CacheMedians>,
}

/// The results of one run.
pub struct CacheRunResult {
    setting: CacheSetting,
    phase: PhaseReport,
    counts: CacheMeanCosts,
}

/// Mean costs of an operation, which is a get or an update.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CacheMeanCosts {
    /// Round trips.
    phases_mean: f64,
    /// READs, WRITEs and atomics.
    verbs_mean: f64,
    /// Bytes moved.
    bytes_mean: f64,
    /// Objects that were read for nothing, because the hint was wrong.
    wasted_reads_mean: f64,
    /// Operations for which the cache was bypassed.
    bypassed_mean: f64,
    /// Operations on keys without a hint in the cache.
    unknown_mean: f64,
}

/// Medians of all runs of a setting.
#[derive(Serialize)]
pub struct CacheMedians {
    #[serde(flatten)]
    setting: CacheSetting,
    throughput_ops_per_s: f64,
    throughput_min_ops_per_s: f64,
    throughput_max_ops_per_s: f64,
    #[serde(flatten)]
    counts: CacheMeanCosts,
    /// Medians by kind of operation.
    per_operation: BTreeMap<&'static str, CacheOperationMedians>,
}

/// The medians of one kind of operation.
#[derive(Clone, Copy, Debug, Serialize)]
struct CacheOperationMedians {
    p50_us: f64,
    p99_us: f64,
    phases_mean: f64,
    bytes_mean: f64,
}

impl CacheRunResult {
    pub fn new(setting: CacheSetting, run: &PhaseResult) -> CacheRunResult {
        let kinds = [OpKind::Search, OpKind::Update].map(|kind| run.costs[kind as usize]);
        let sum = |of: fn(&KindStats) -> u64| kinds.iter().map(of).sum::<u64>();
        let operations = sum(|kind| kind.operations).max(1) as f64;
        let mean = |sum: u64| sum as f64 / operations;
        let cache = &run.cache;
        let counts = CacheMeanCosts {
            phases_mean: mean(sum(|kind| kind.phases)),
            verbs_mean: mean(sum(|kind| kind.verbs)),
            bytes_mean: mean(sum(|kind| kind.bytes)),
            wasted_reads_mean: mean(cache.wrong),
            bypassed_mean: mean(cache.bypassed),
            unknown_mean: mean(cache.accesses - cache.hints - cache.bypassed),
        };
        CacheRunResult { setting, phase: PhaseReport::new(run, false), counts }
    }
}

fn middle(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// Returns the medians of all runs of a setting; `None` if there were no runs.
pub fn median(runs: &[CacheRunResult]) -> Option<CacheMedians> {
    let first = runs.first()?;
    let throughput = Spread::of(runs.iter().map(|run| run.phase.throughput_ops_per_s))?;
    let of = |value: fn(&CacheMeanCosts) -> f64| middle(runs.iter().map(|run| value(&run.counts)));
    let kind = |name: &'static str| {
        let all = |value: fn(&OperationReport) -> f64| {
            middle(runs.iter().filter_map(|r| r.phase.per_operation.get(name)).map(value))
        };
        let kind = CacheOperationMedians {
            p50_us: all(|op| op.p50_us)?,
            p99_us: all(|op| op.p99_us)?,
            phases_mean: all(|op| op.phases_mean)?,
            bytes_mean: all(|op| op.bytes_mean)?,
        };
        Some((name, kind))
    };
    Some(CacheMedians {
        setting: first.setting,
        throughput_ops_per_s: throughput.median,
        throughput_min_ops_per_s: throughput.least,
        throughput_max_ops_per_s: throughput.most,
        counts: CacheMeanCosts {
            phases_mean: of(|counts| counts.phases_mean)?,
            verbs_mean: of(|counts| counts.verbs_mean)?,
            bytes_mean: of(|counts| counts.bytes_mean)?,
            wasted_reads_mean: of(|counts| counts.wasted_reads_mean)?,
            bypassed_mean: of(|counts| counts.bypassed_mean)?,
            unknown_mean: of(|counts| counts.unknown_mean)?,
        },
        per_operation: [OpKind::Search, OpKind::Update]
            .into_iter()
            .filter_map(|k| kind(k.name()))
            .collect(),
    })
}

impl BenchFindings for CacheReport {
    type Settings = CacheArgs;

    fn title(report: &BenchReport<'_, CacheReport>) -> String {
        let CacheArgs { keys, pair_bytes, threads, coroutines, theta, operations, rounds, .. } =
            report.settings;
        format!(
            "index cache: {keys} keys, pairs of {pair_bytes} bytes, {threads} threads x {coroutines} \
             coroutines, theta {theta}, {operations} operations a run, {rounds} rounds{}",
            report.ended_early(),
        )
    }

    fn rows(report: &BenchReport<'_, CacheReport>) -> String {
        report.findings.table()
    }

    fn chart(report: &BenchReport<'_, CacheReport>) -> Option<Chart> {
        let CacheArgs { threads, keys, pair_bytes, .. } = report.settings;
        let sessions = count_with_noun(*threads, "session");
        let title = format!("Index cache: {sessions} on {keys} keys of {pair_bytes} bytes");
        Some(report.findings.chart(title))
    }
}

impl CacheReport {
    /// Returns the rows of the table, by fabric and workload.
    fn table(&self) -> String {
        let mut text = String::new();
        for group in self.groups() {
            let _ = write!(
                text,
                "\n{}, workload {}\n{:>9} {:>9} {:>15} {:>9} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9}\n",
                group[0].setting.fabric,
                group[0].setting.workload,
                "threshold",
                "kops/s",
                "min-max",
                "get us",
                "update us",
                "phases",
                "verbs",
                "bytes",
                "wasted",
                "bypassed"
            );
            for row in group {
                let p50 = |name| {
                    let kind = row.per_operation.get(name);
                    kind.map_or("-".into(), |kind: &CacheOperationMedians| {
                        format!("{:.2}", kind.p50_us)
                    })
                };
                let spread = format!(
                    "{:.1}-{:.1}",
                    row.throughput_min_ops_per_s / 1000.0,
                    row.throughput_max_ops_per_s / 1000.0
                );
                let CacheMeanCosts { phases_mean, verbs_mean, bytes_mean, .. } = row.counts;
                let _ = writeln!(
                    text,
                    "{:>9} {:>9.1} {spread:>15} {:>9} {:>9} {phases_mean:>7.3} {verbs_mean:>8.2} \
                     {bytes_mean:>8.0} {:>8.3} {:>9.3}",
                    row.setting.threshold.to_string(),
                    row.throughput_ops_per_s / 1000.0,
                    p50("search"),
                    p50("update"),
                    row.counts.wasted_reads_mean,
                    row.counts.bypassed_mean,
                );
            }
        }
        text
    }

    /// Returns the rows in groups of one fabric and workload each.
    fn groups(&self) -> Vec<&[CacheMedians]> {
        let of = |row: &CacheMedians| (row.setting.fabric, row.setting.workload);
        self.results.chunk_by(|a, b| of(a) == of(b)).collect()
    }

    /// Draws the chart. The threshold is the horizontal axis; runs without a cache are horizontal lines.
    fn chart(&self, title: String) -> Chart {
        let panel = |label: &str, of: &dyn Fn(&CacheMedians) -> f64, fabric: Option<FabricKind>| {
            let shown =
                |row: &CacheMedians| fabric.is_none_or(|fabric| row.setting.fabric == fabric);
            let mut lines = Vec::new();
            for group in self.groups().into_iter().filter(|group| shown(&group[0])) {
                let CacheSetting { fabric, workload, .. } = group[0].setting;
                let name = format!("{fabric} {workload}");
                let (off, on): (Vec<_>, Vec<_>) =
                    group.iter().partition(|row| row.setting.threshold == CacheThreshold::Off);
                let points =
                    on.iter().filter_map(|row| Some((row.setting.threshold.ratio()?, of(row))));
                lines.push(ChartLine::new(name.clone(), points.collect()));
                for row in off {
                    let points = vec![(0.0, of(row)), (1.0, of(row))];
                    lines.push(ChartLine::new(format!("{name}, no cache"), points));
                }
            }
            Panel { label: label.into(), logarithmic: false, lines }
        };
        let kops = |row: &CacheMedians| row.throughput_ops_per_s / 1000.0;
        let has = |fabric| self.results.iter().any(|row| row.setting.fabric == fabric);
        let mut panels = Vec::new();
        for (fabric, label) in [(FabricKind::Shm, "kops/s, shm"), (FabricKind::Tcp, "kops/s, tcp")]
        {
            if has(fabric) {
                panels.push(panel(label, &kops, Some(fabric)));
            }
        }
        panels.push(panel("phases per operation", &|row| row.counts.phases_mean, None));
        panels.push(panel("bytes per operation", &|row| row.counts.bytes_mean, None));
        panels.push(panel("wasted reads", &|row| row.counts.wasted_reads_mean, None));
        Chart {
            title,
            x: HorizontalAxis::Numbers("threshold".into()),
            panels,
            marks: Vec::new(),
            mark_name: "",
        }
    }
}
