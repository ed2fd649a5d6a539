//! The report of `fusee-bench redundancy`, next to ElasticMem's figures.

use std::fmt::Write as _;

use fusee_cli::quantity::ByteSize;
use serde::Serialize;

use super::RedundancyRunSettings;
use super::measure::{AccessSamples, RedundancyMeasurements, TransitionSamples};
use super::set::RedundancySet;
use crate::report::{BenchFindings, BenchReport};
use crate::samples::RoundSamples;
use crate::spread::Spread;
use fusee_report::plot::{Chart, ChartLine, HorizontalAxis, Panel};

/// Result of ElasticMem's experiment 1 (Fig. 8, (k, m, r) = (4, 2, 3)).
const EXPERIMENT_1: &str = "\
ElasticMem, Fig. 8, EC(4,2) beside Rep(3): with growing values reads of EC come to outperform those of\n\
Rep, as they are done in parallel, and writes of EC are notably faster, as they write half as much.\n";
/// Results of ElasticMem's experiment 2 (Fig. 9) and Table 1.
const EXPERIMENT_2: &str = "\
ElasticMem, Table 1, times the value's length: Rep -> EC (2k+m)/k, EC -> Rep r+1. With its EC-oriented\n\
replication (k+m)/k and r, which takes 8 to 35 % less time to EC and 3 to 26 % less back (Fig. 9).\n";

/// Reads and writes with one redundancy, of values of one length.
#[derive(Debug, Serialize)]
pub struct AccessReport {
    redundancy: String,
    read_us: Spread,
    write_us: Spread,
    /// Times divided by the times of the first redundancy of the set, in the same round.
    read_ratio: Spread,
    write_ratio: Spread,
}

/// Transitions from one redundancy to another, of values of one length.
#[derive(Debug, Serialize)]
pub struct TransitionCostReport {
    from: String,
    to: String,
    time_us: Spread,
    transitions: u64,
    phases_max: u32,
    /// Mean bytes that a transition reads and writes.
    bytes_mean: f64,
    /// Mean bytes divided by the length of a value.
    lengths: f64,
    /// Bytes divided by the length of a value, as computed from the size classes of what is read and written.
    lengths_by_class: f64,
    /// Bytes divided by the length of a value, as computed from ElasticMem's Table 1, which does not know size classes.
    lengths_by_table_1: Option<f64>,
}

/// The measurements with values of one length.
#[derive(Debug, Serialize)]
pub struct ValueLengthReport {
    set: String,
    data_replicas: u8,
    value_bytes: u64,
    accesses: Vec<AccessReport>,
    transitions: Vec<TransitionCostReport>,
}

/// The results.
#[derive(Debug, Default, Serialize)]
pub struct RedundancyReport {
    /// The measurements, by set of redundancies and length of values.
    pub sized: Vec<ValueLengthReport>,
    /// Redundancies that values of some length cannot have.
    pub refused: Vec<String>,
}

impl AccessReport {
    fn new(
        set: &RedundancySet,
        access: &AccessSamples,
        first: &AccessSamples,
    ) -> Option<AccessReport> {
        let over = |samples: &RoundSamples, first: &RoundSamples| samples.over(first).try_spread();
        Some(AccessReport {
            redundancy: set.name(access.redundancy),
            read_us: access.read.try_spread()?,
            write_us: access.write.try_spread()?,
            read_ratio: over(&access.read, &first.read)?,
            write_ratio: over(&access.write, &first.write)?,
        })
    }
}

impl TransitionCostReport {
    fn new(
        set: &RedundancySet,
        value_bytes: u64,
        way: &TransitionSamples,
    ) -> Option<TransitionCostReport> {
        let bytes_mean = way.bytes as f64 / way.transitions.max(1) as f64;
        Some(TransitionCostReport {
            from: set.name(way.from),
            to: set.name(way.to),
            time_us: way.time.try_spread()?,
            transitions: way.transitions,
            phases_max: way.phases,
            bytes_mean,
            lengths: bytes_mean / value_bytes as f64,
            lengths_by_class: set.by_class(way.from, way.to, value_bytes)?,
            lengths_by_table_1: set.table_1(way.from, way.to),
        })
    }
}

impl ValueLengthReport {
    /// Builds the report; `None` if no round ran to its end.
    pub fn new(
        set: &RedundancySet,
        value_bytes: u64,
        measured: &RedundancyMeasurements,
    ) -> Option<ValueLengthReport> {
        let first = measured.accesses.first()?;
        let accesses = measured.accesses.iter().map(|access| AccessReport::new(set, access, first));
        let ways = measured
            .ways
            .iter()
            .flatten()
            .map(|way| TransitionCostReport::new(set, value_bytes, way));
        Some(ValueLengthReport {
            set: set.to_string(),
            data_replicas: set.data_replicas,
            value_bytes,
            accesses: accesses.collect::<Option<_>>()?,
            transitions: ways.collect::<Option<_>>()?,
        })
    }
}

impl BenchFindings for RedundancyReport {
    type Settings = RedundancyRunSettings;

    fn title(report: &BenchReport<'_, RedundancyReport>) -> String {
        let RedundancyRunSettings { rounds, operations, .. } = report.settings;
        format!(
            "one operation at a time over {}, {rounds} rounds of {operations} of each kind{}: medians of \
             the rounds'\nmedians (least - most)",
            report.fabric(),
            report.ended_early()
        )
    }

    fn rows(report: &BenchReport<'_, RedundancyReport>) -> String {
        let found = &report.findings;
        let refused: String =
            found.refused.iter().map(|why| format!("left out: {why}\n")).collect();
        format!(
            "{}\n{EXPERIMENT_1}{}\n{EXPERIMENT_2}{refused}",
            found.accesses_table(),
            found.transitions_table()
        )
    }

    fn chart(report: &BenchReport<'_, RedundancyReport>) -> Option<Chart> {
        Some(report.findings.chart(report.settings, RedundancyReport::title(report)))
    }
}

impl RedundancyReport {
    fn accesses_table(&self) -> String {
        let mut text = format!(
            "\n{:<9} {:<16} {:>29} {:>23} {:>29} {:>23}\n",
            "value", "redundancy", "read us", "x", "write us", "x"
        );
        for sized in &self.sized {
            for access in &sized.accesses {
                let _ = writeln!(
                    text,
                    "{:<9} {:<16} {:>29} {:>23} {:>29} {:>23}",
                    ByteSize(sized.value_bytes).to_string(),
                    access.redundancy,
                    shown(access.read_us, 0),
                    shown(access.read_ratio, 2),
                    shown(access.write_us, 0),
                    shown(access.write_ratio, 2)
                );
            }
        }
        text
    }

    fn transitions_table(&self) -> String {
        let mut text = format!(
            "\n{:<9} {:<15} {:<16} {:>29} {:>7} {:>11} {:>9} {:>11} {:>9}\n",
            "value", "from", "to", "us", "phases", "bytes", "lengths", "by classes", "Table 1"
        );
        for sized in &self.sized {
            for way in &sized.transitions {
                let table_1 = way.lengths_by_table_1.map_or("-".into(), |x| format!("{x:.3}"));
                let _ = writeln!(
                    text,
                    "{:<9} {:<15} {:<16} {:>29} {:>7} {:>11.0} {:>9.3} {:>11.3} {table_1:>9}",
                    ByteSize(sized.value_bytes).to_string(),
                    way.from,
                    way.to,
                    shown(way.time_us, 0),
                    way.phases_max,
                    way.bytes_mean,
                    way.lengths,
                    way.lengths_by_class
                );
            }
        }
        text
    }

    fn chart(&self, settings: &RedundancyRunSettings, title: String) -> Chart {
        let names = settings.value_bytes.iter().map(|bytes| ByteSize(*bytes).to_string()).collect();
        let position = |bytes: u64| {
            let at = settings.value_bytes.iter().position(|known| *known == bytes);
            at.unwrap_or_default() as f64
        };
        let panel =
            |label: &str, logarithmic, lines| Panel { label: label.into(), logarithmic, lines };
        let accesses = |value: &dyn Fn(&AccessReport) -> Spread| {
            let all = self.sized.iter().flat_map(|sized| {
                let at = position(sized.value_bytes);
                let named = |access: &AccessReport| (access.redundancy.clone(), at, value(access));
                sized.accesses.iter().map(named).collect::<Vec<_>>()
            });
            lines(all)
        };
        let ways = |value: &dyn Fn(&TransitionCostReport) -> Spread| {
            let all = self.sized.iter().flat_map(|sized| {
                let at = position(sized.value_bytes);
                let named = |way: &TransitionCostReport| {
                    (format!("{} to {}", way.from, way.to), at, value(way))
                };
                sized.transitions.iter().map(named).collect::<Vec<_>>()
            });
            lines(all)
        };
        let one = |value: f64| Spread { median: value, least: value, most: value };
        Chart {
            title: title.replace('\n', " "),
            x: HorizontalAxis::Names { label: "value".into(), names },
            panels: vec![
                panel("read, microseconds", true, accesses(&|access| access.read_us)),
                panel("write, microseconds", true, accesses(&|access| access.write_us)),
                panel("transition, microseconds", true, ways(&|way| way.time_us)),
                panel("bytes / value", false, ways(&|way| one(way.lengths))),
            ],
            marks: Vec::new(),
            mark_name: "",
        }
    }
}

/// Returns the lines of a chart. Values of one name make a line, in the order in which the names first occur. If
/// several sets have a line of the same name, it is drawn once, for the first of these sets.
fn lines(values: impl Iterator<Item = (String, f64, Spread)>) -> Vec<ChartLine> {
    let mut lines: Vec<ChartLine> = Vec::new();
    for (name, at, spread) in values {
        let known = lines.iter().position(|line| line.name == name);
        let line = known.unwrap_or_else(|| {
            lines.push(ChartLine::new(name, Vec::new()));
            lines.len() - 1
        });
        if lines[line].points.iter().any(|(known, _)| *known == at) {
            continue;
        }
        lines[line].points.push((at, spread.median));
        lines[line].spreads.push((at, spread.least, spread.most));
    }
    lines
}

fn shown(Spread { median, least, most }: Spread, digits: usize) -> String {
    format!("{median:.digits$} ({least:.digits$} - {most:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_sets_have_is_drawn_once() {
        let value = |name: &str, at, median| {
            (name.to_owned(), at, Spread { median, least: median, most: median })
        };
        let values = [value("a", 0.0, 1.0), value("b", 0.0, 2.0), value("a", 1.0, 3.0)];
        let again = [value("a", 0.0, 9.0), value("a", 2.0, 4.0)];
        let lines = lines(values.into_iter().chain(again));
        let points: Vec<_> = lines.iter().map(|line| (&*line.name, &line.points[..])).collect();
        assert_eq!(
            points,
            [("a", &[(0.0, 1.0), (1.0, 3.0), (2.0, 4.0)][..]), ("b", &[(0.0, 2.0)])]
        );
    }
}
