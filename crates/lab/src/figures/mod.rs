//! The figures: what is measured for each, and what the paper's text says of it.
//!
//! A figure's points are [`Setup`]s; its statements are sentences of the paper's text, each turned into a number that
//! ours is compared with. A statement that a parameter of the testbed was fitted on proves nothing, and is told apart.

mod elasticmem;
mod fusee;
mod switch;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::setup::{Measured, Setup};

/// What is drawn of each point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Millions of operations a second.
    Throughput,
    /// The median latency of one kind of operation, in microseconds.
    Median(&'static str),
    /// What one of a hundred of them exceeds, in microseconds.
    Tail(&'static str),
    /// Millions of operations a second in one window of the timeline.
    Window(usize),
    /// Phases of one kind of operation, on average.
    Phases(&'static str),
    /// Thousands of bytes that the switch takes for what it knows.
    SwitchBytes,
    /// Bytes of pools that a Move touches, in lengths of its value of so many bytes.
    Lengths(usize),
}

impl Quantity {
    /// With its unit.
    pub fn name(self) -> String {
        match self {
            Quantity::Throughput | Quantity::Window(_) => "million operations a second".into(),
            Quantity::Phases(_) => "phases of an operation".into(),
            Quantity::SwitchBytes => "kB".into(),
            Quantity::Lengths(_) => "bytes read and written, in lengths of the value".into(),
            Quantity::Median(_) | Quantity::Tail(_) => "latency, us".into(),
        }
    }

    /// Of one measurement; `None` if there was no such operation.
    pub fn of(self, measured: &Measured) -> Option<f64> {
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

/// What is measured once, or once for each seed.
#[derive(Clone, Debug)]
pub struct Point {
    /// Which line it belongs to.
    pub series: String,
    /// Where it stands.
    pub x: f64,
    /// What is measured.
    pub setup: Setup,
    /// What of it is drawn.
    pub quantity: Quantity,
}

/// Whether a statement can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It follows from the model, or it does not.
    Predicted,
    /// A parameter was fitted on it.
    Calibrated,
}

/// What the number has to be for the statement to hold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// This, give or take a quarter.
    About(f64),
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Expected {
    /// Whether a number is what was expected.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Expected::About(expected) => (value / expected - 1.0).abs() <= TOLERANCE,
            Expected::AtLeast(least) => value >= least,
            Expected::AtMost(most) => value <= most,
        }
    }

    /// In words.
    pub fn in_words(self) -> String {
        match self {
            Expected::About(expected) => format!("about {expected:.3}"),
            Expected::AtLeast(least) => format!("at least {least:.3}"),
            Expected::AtMost(most) => format!("at most {most:.3}"),
        }
    }
}

/// So far a number may be from what a paper states.
const TOLERANCE: f64 = 0.25;

/// What the text of a paper says.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// In our words.
    pub says: &'static str,
    /// Where it stands.
    pub section: &'static str,
    /// Whether it can be wrong.
    pub kind: Kind,
    /// The systems that it is judged for, each by itself.
    pub of: &'static [&'static str],
    /// The number that it is about, of a system; `None` if it was not measured.
    pub value: fn(&Medians, &str) -> Option<f64>,
    /// What that has to be.
    pub expected: Expected,
}

/// Medians over the seeds, by series and place.
#[derive(Clone, Debug, Default)]
pub struct Medians(pub Vec<(String, f64, f64)>);

impl Medians {
    /// That of a point.
    pub fn at(&self, series: &str, x: f64) -> Option<f64> {
        let found = self.0.iter().find(|(name, at, _)| name == series && *at == x);
        found.map(|(_, _, value)| *value)
    }

    /// One point over another one of the same series.
    pub fn ratio(&self, series: &str, x: f64, over: f64) -> Option<f64> {
        Some(self.at(series, x)? / self.at(series, over)?)
    }

    /// The mean of some points over that of some others of the same series.
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
    /// How it is called here: the paper's letter and its number.
    pub id: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// What its points differ in.
    pub x: &'static str,
    /// What is measured.
    pub points: fn() -> Vec<Point>,
    /// What the text says of it.
    pub statements: &'static [Statement],
    /// What is missing, or unlike the paper.
    pub remarks: &'static [&'static str],
}

/// All figures, in the papers' order.
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
        assert!(Expected::About(4.0).holds(5.0) && !Expected::About(4.0).holds(5.1));
        assert!(Expected::AtLeast(4.0).holds(4.0) && !Expected::AtLeast(4.0).holds(3.9));
        assert!(Expected::AtMost(4.0).holds(4.0) && !Expected::AtMost(4.0).holds(4.1));
    }
}
