//! The figures: measurements, and statements of the papers' text about them.
//!
//! A figure's points are [`LabSetup`]s. Its statements are sentences of the paper's text. Each sentence becomes a
//! condition on a number that the lab measures. If a parameter of the testbed was fitted to meet a statement, that
//! statement proves nothing, and is marked as calibrated.

mod elasticmem;
mod fusee;
mod switch;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::setup::{LabResults, LabSetup};

/// The quantity that a figure draws at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Millions of operations per second.
    Throughput,
    /// The median latency of one kind of operation, in microseconds.
    Median(&'static str),
    /// The 99th percentile of the latency of one kind of operation, in microseconds.
    Tail(&'static str),
    /// Millions of operations per second in one window of the timeline.
    Window(usize),
    /// Mean number of phases of one kind of operation.
    Phases(&'static str),
    /// Thousands of bytes of the switch's state.
    SwitchBytes,
    /// Bytes of pools that a Move touches, divided by this length of the value in bytes.
    Lengths(usize),
}

impl Quantity {
    /// Returns the quantity's name, with the unit.
    pub fn name(self) -> String {
        match self {
            Quantity::Throughput | Quantity::Window(_) => "million operations a second".into(),
            Quantity::Phases(_) => "phases of an operation".into(),
            Quantity::SwitchBytes => "kB".into(),
            Quantity::Lengths(_) => "bytes read and written, in lengths of the value".into(),
            Quantity::Median(_) | Quantity::Tail(_) => "latency, us".into(),
        }
    }

    /// Returns the quantity in one measurement; `None` if no operation of that kind was counted.
    pub fn of(self, measured: &LabResults) -> Option<f64> {
        match self {
            Quantity::Throughput => Some(measured.ops_per_s / 1e6),
            Quantity::Lengths(bytes) => {
                measured.latency("move").and_then(|of| of.bytes).map(|of| of / bytes as f64)
            }
            Quantity::Phases(kind) => measured.latency(kind).and_then(|of| of.phases),
            Quantity::SwitchBytes => measured.switch.map(|of| of.bytes as f64 / 1e3),
            Quantity::Window(window) => measured.timeline.get(window).map(|of| of / 1e6),
            Quantity::Median(kind) => measured.latency(kind).map(|of| of.p50_ns as f64 / 1e3),
            Quantity::Tail(kind) => measured.latency(kind).map(|of| of.p99_ns as f64 / 1e3),
        }
    }
}

/// A point of a figure: a setup, and the quantity to draw.
#[derive(Clone, Debug)]
pub struct FigurePoint {
    /// Name of the line that the point belongs to.
    pub series: String,
    /// Position on the horizontal axis.
    pub x: f64,
    /// The setup to measure.
    pub setup: LabSetup,
    /// The quantity to draw.
    pub quantity: Quantity,
}

/// Kinds of statements. They differ in whether the model could refute the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatementKind {
    /// The model can confirm or refute the statement.
    Predicted,
    /// A parameter was fitted to meet the statement, so the statement proves nothing.
    Calibrated,
}

/// A condition on a number. The statement holds if the number meets it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatementCondition {
    /// The number differs from the given one by at most a quarter of the given one.
    About(f64),
    /// The number is at least the given one.
    AtLeast(f64),
    /// The number is at most the given one.
    AtMost(f64),
}

impl StatementCondition {
    /// Returns whether a number meets the condition.
    pub fn holds(self, value: f64) -> bool {
        match self {
            StatementCondition::About(expected) => (value / expected - 1.0).abs() <= TOLERANCE,
            StatementCondition::AtLeast(least) => value >= least,
            StatementCondition::AtMost(most) => value <= most,
        }
    }

    /// Returns the condition in words.
    pub fn in_words(self) -> String {
        match self {
            StatementCondition::About(expected) => format!("about {expected:.3}"),
            StatementCondition::AtLeast(least) => format!("at least {least:.3}"),
            StatementCondition::AtMost(most) => format!("at most {most:.3}"),
        }
    }
}

/// Largest relative difference between a measured number and the paper's that [`StatementCondition::About`] accepts.
const TOLERANCE: f64 = 0.25;

/// A statement of a paper's text.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The statement, in our words.
    pub says: &'static str,
    /// The section of the paper that makes the statement.
    pub section: &'static str,
    /// Whether the model could refute the statement.
    pub kind: StatementKind,
    /// The systems for which the statement is judged, each separately.
    pub of: &'static [&'static str],
    /// Returns the number that the statement is about, for one system; `None` if the number was not measured.
    pub value: fn(&Medians, &str) -> Option<f64>,
    /// The condition that the statement puts on its number.
    pub expected: StatementCondition,
}

/// Medians over the seeds, each with its series and its horizontal position.
#[derive(Clone, Debug, Default)]
pub struct Medians(pub Vec<(String, f64, f64)>);

impl Medians {
    /// Returns the median of a series at a position.
    pub fn at(&self, series: &str, x: f64) -> Option<f64> {
        let found = self.0.iter().find(|(name, at, _)| name == series && *at == x);
        found.map(|(_, _, value)| *value)
    }

    /// Returns the median of a series at `x` divided by that at `over`.
    pub fn ratio(&self, series: &str, x: f64, over: f64) -> Option<f64> {
        Some(self.at(series, x)? / self.at(series, over)?)
    }

    /// Returns the mean of a series over the positions in `of`, divided by the mean over the positions in `over`.
    pub fn mean_ratio(&self, series: &str, of: Range<f64>, over: Range<f64>) -> Option<f64> {
        let mean = |range: Range<f64>| {
            let points = self.0.iter().filter(|(name, x, _)| name == series && range.contains(x));
            let values: Vec<f64> = points.map(|(_, _, value)| *value).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        Some(mean(of)? / mean(over)?)
    }
}

/// A figure of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The figure's id: letters for the paper or kind, and the number there.
    pub id: &'static str,
    /// The figure's subject.
    pub about: &'static str,
    /// The name of the horizontal axis.
    pub x: &'static str,
    /// Returns the figure's points.
    pub points: fn() -> Vec<FigurePoint>,
    /// The paper's statements about the figure.
    pub statements: &'static [Statement],
    /// Gaps of the measurement, and differences from the paper's.
    pub remarks: &'static [&'static str],
}

/// Returns all figures, in the papers' order.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    [fusee::ALL, elasticmem::ALL, switch::ALL].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_names_of_their_own() {
        let mut names: Vec<&str> = all().map(|figure| figure.id).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_statement_is_about_points_that_are_measured() {
        for figure in all() {
            let points = (figure.points)();
            let medians = points.iter().map(|point| (point.series.clone(), point.x, 1.0));
            let medians = Medians(medians.collect());
            for statement in figure.statements {
                for system in statement.of {
                    let value = (statement.value)(&medians, system);
                    assert!(value.is_some(), "{}: {} {system}", figure.id, statement.says);
                }
            }
        }
    }

    #[test]
    fn statements_can_fail() {
        assert!(
            StatementCondition::About(4.0).holds(5.0) && !StatementCondition::About(4.0).holds(5.1)
        );
        assert!(
            StatementCondition::AtLeast(4.0).holds(4.0)
                && !StatementCondition::AtLeast(4.0).holds(3.9)
        );
        assert!(
            StatementCondition::AtMost(4.0).holds(4.0)
                && !StatementCondition::AtMost(4.0).holds(4.1)
        );
    }
}
