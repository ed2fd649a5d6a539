//! The report of `fusee-bench sweep`.

use std::fmt::Write as _;

use fusee_cli::quantity::count_with_noun;
use fusee_client::OpKind;
use serde::Serialize;

use super::axis::SweepAxis;
use crate::driver::PhaseResult;
use crate::report::{BenchFindings, BenchReport, ClusterReport};
use crate::spread::Spread;
use fusee_report::plot::{Chart, ChartLine, HorizontalAxis, Panel};
use fusee_workload::Distribution;

/// The settings of the sweep. The varied setting has its value at the first point.
#[derive(Debug, Serialize)]
pub struct SweepSettings {
    /// Number of keys.
    pub keys: u64,
    pub pair_bytes: usize,
    pub sessions: u16,
    pub coroutines: u16,
    pub distribution: Distribution,
    pub theta: f64,
    /// Number of index cache entries of a session for each key in the store.
    pub cache_per_key: u64,
    pub rounds: u32,
    pub round_s: f64,
    pub warm_up_s: f64,
    pub seed: u64,
}

/// The results of one share of updates at one point.
#[derive(Debug, Serialize)]
pub struct UpdateMixReport {
    pub updates_percent: u8,
    /// Number of rounds that ran to their end.
    pub rounds: usize,
    /// Operations per second of all sessions together. The time includes the benchmark's own work of making and
    /// checking values.
    pub ops_per_s: Spread,
    /// Medians of the rounds' median latencies, which do not include the making and checking of values.
    pub search_p50_us: Option<Spread>,
    pub update_p50_us: Option<Spread>,
}

impl UpdateMixReport {
    /// Builds the row; `None` if no round ran to its end.
    pub fn new(updates_percent: u8, rounds: &[&PhaseResult]) -> Option<UpdateMixReport> {
        let rate = |round: &&PhaseResult| {
            round.tally.operations() as f64 / round.duration.as_secs_f64().max(1e-9)
        };
        let p50 = |kind: OpKind| {
            let latencies = rounds.iter().filter_map(|round| round.tally.latencies(kind));
            Spread::of(latencies.map(|latencies| latencies.value_at_quantile(0.5) as f64 / 1000.0))
        };
        Some(UpdateMixReport {
            updates_percent,
            rounds: rounds.len(),
            ops_per_s: Spread::of(rounds.iter().map(rate))?,
            search_p50_us: p50(OpKind::Search),
            update_p50_us: p50(OpKind::Update),
        })
    }
}

/// The results at one point of the axis.
#[derive(Debug, Serialize)]
pub struct SweepPointReport {
    pub value: u64,
    pub cluster: ClusterReport,
    pub mixes: Vec<UpdateMixReport>,
}

/// The results.
#[derive(Debug, Serialize)]
pub struct SweepReport {
    pub axis: &'static str,
    #[serde(skip)]
    pub varied: SweepAxis,
    pub points: Vec<SweepPointReport>,
}

impl BenchFindings for SweepReport {
    type Settings = SweepSettings;

    fn title(report: &BenchReport<'_, SweepReport>) -> String {
        report.findings.fixed(report.settings, report.fabric())
    }

    fn summary(report: &BenchReport<'_, SweepReport>) -> String {
        let SweepSettings { rounds, round_s, .. } = report.settings;
        format!("{rounds} rounds of {round_s} s each, medians (least - most)\n")
    }

    fn rows(report: &BenchReport<'_, SweepReport>) -> String {
        report.findings.table()
    }

    fn chart(report: &BenchReport<'_, SweepReport>) -> Option<Chart> {
        Some(report.findings.chart(SweepReport::title(report)))
    }
}

impl SweepReport {
    /// Returns the settings that are the same at every point.
    fn fixed(&self, settings: &SweepSettings, fabric: &str) -> String {
        let SweepSettings { keys, pair_bytes, sessions, coroutines, .. } = *settings;
        let replicas = self.points.first().map(|point| &point.cluster);
        let replicas = replicas.map(|c| (c.index_replicas, c.data_replicas)).unwrap_or_default();
        let fixed = [
            (SweepAxis::Keys, format!("{keys} keys")),
            (SweepAxis::ValueBytes, format!("pairs of {pair_bytes} bytes")),
            (SweepAxis::Sessions, count_with_noun(sessions, "session")),
            (SweepAxis::IndexReplicas, format!("{} index", replicas.0)),
            (SweepAxis::DataReplicas, count_with_noun(replicas.1 as u64, "data replica")),
        ];
        let fixed = fixed.into_iter().filter(|(axis, _)| *axis != self.varied);
        let mut fixed: Vec<String> = fixed.map(|(_, text)| text).collect();
        if coroutines > 1 {
            fixed.push(format!("{coroutines} requests of each at a time"));
        }
        format!("{}, {fabric}", fixed.join(", "))
    }

    /// Returns the table of the points.
    fn table(&self) -> String {
        let mut text = String::from("\n");
        let _ = writeln!(
            text,
            "{:<28} {:>8} {:>29} {:>23} {:>23}",
            self.varied.label(),
            "updates",
            "kops/s",
            "search p50 us",
            "update p50 us"
        );
        for point in &self.points {
            for mix in &point.mixes {
                let Spread { median, least, most } = mix.ops_per_s;
                let [median, least, most] = [median, least, most].map(|rate| rate / 1000.0);
                let rate = format!("{median:.1} ({least:.1} - {most:.1})");
                let _ = writeln!(
                    text,
                    "{:<28} {:>6} %{rate:>30} {:>23} {:>23}",
                    self.varied.tick(point.value),
                    mix.updates_percent,
                    in_us(mix.search_p50_us),
                    in_us(mix.update_p50_us)
                );
            }
        }
        text
    }

    /// Draws the chart.
    fn chart(&self, title: String) -> Chart {
        type Value<'a> = &'a dyn Fn(&UpdateMixReport) -> Option<Spread>;
        let names = self.points.iter().map(|point| self.varied.tick(point.value)).collect();
        let mut shares: Vec<u8> = self.mixes().map(|(_, mix)| mix.updates_percent).collect();
        shares.sort_unstable();
        shares.dedup();
        let is_one = self.varied == SweepAxis::Updates;
        let line = |name: String, share: Option<u8>, value: Value<'_>| {
            let mixes =
                self.mixes().filter(|(_, mix)| share.is_none_or(|s| s == mix.updates_percent));
            let values: Vec<(f64, Spread)> =
                mixes.filter_map(|(at, mix)| Some((at, value(mix)?))).collect();
            let points = values.iter().map(|(at, spread)| (*at, spread.median)).collect();
            let spreads = values.iter().map(|(at, s)| (*at, s.least, s.most)).collect();
            ChartLine { name, points, spreads }
        };
        let lines = |what: &str, value: Value<'_>| -> Vec<ChartLine> {
            let all = if is_one {
                vec![line(what.to_owned(), None, value)]
            } else {
                shares
                    .iter()
                    .map(|share| line(format!("{what}{share} % updates"), Some(*share), value))
                    .collect()
            };
            all.into_iter().filter(|line| !line.points.is_empty()).collect()
        };
        let thousands = |spread: Spread| Spread {
            median: spread.median / 1000.0,
            least: spread.least / 1000.0,
            most: spread.most / 1000.0,
        };
        let mut latencies = lines("search, ", &|mix| mix.search_p50_us);
        latencies.extend(lines("update, ", &|mix| mix.update_p50_us));
        Chart {
            title,
            x: HorizontalAxis::Names { label: self.varied.label().into(), names },
            panels: vec![
                Panel {
                    label: "1000 operations/s".into(),
                    logarithmic: false,
                    lines: lines("", &|mix| Some(thousands(mix.ops_per_s))),
                },
                Panel {
                    label: "microseconds, median".into(),
                    logarithmic: false,
                    lines: latencies,
                },
            ],
            marks: Vec::new(),
            mark_name: "",
        }
    }

    /// Returns the results of all shares of updates at all points, each with the number of its point.
    fn mixes(&self) -> impl Iterator<Item = (f64, &UpdateMixReport)> {
        let points = self.points.iter().enumerate();
        points.flat_map(|(number, point)| point.mixes.iter().map(move |mix| (number as f64, mix)))
    }
}

fn in_us(spread: Option<Spread>) -> String {
    let text = spread
        .map(|Spread { median, least, most }| format!("{median:.2} ({least:.2} - {most:.2})"));
    text.unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_round_there_is_nothing_to_tell() {
        assert!(UpdateMixReport::new(50, &[]).is_none());
    }
}
