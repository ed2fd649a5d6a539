//! Pictures of series over time or another quantity, and of sweeps over named points: panels one above the
//! other over one axis, in SVG.
//!
//! Lines over names have bars from the least to the most that was measured, if these are given. If all values
//! have the same place on the axis, each is a column, because a line of one point is invisible. Moments are
//! marked by vertical lines in all panels; their texts are in the first panel. A panel may have a logarithmic
//! axis, which leaves out values of zero. The JSON report has everything that is drawn.

mod draw;
mod legend;

use std::path::{Path, PathBuf};

use fusee_cli::failure::Failure;

use crate::machine::HostMachine;

/// A picture.
pub struct Chart {
    /// The title, above everything.
    pub title: String,
    /// The common axis, below all panels.
    pub x: HorizontalAxis,
    /// Panels, from top to bottom.
    pub panels: Vec<Panel>,
    /// Marks, in all panels.
    pub marks: Vec<ChartMark>,
    /// The name of the marks, for the legend.
    pub mark_name: &'static str,
}

/// The common horizontal axis.
pub enum HorizontalAxis {
    /// Time.
    Seconds,
    /// Numbers of something else, with its name.
    Numbers(String),
    /// Things side by side, the n-th at n.
    Names {
        /// The name of the axis.
        label: String,
        /// The names of the things, from left to right.
        names: Vec<String>,
    },
}

impl HorizontalAxis {
    fn label(&self) -> &str {
        match self {
            HorizontalAxis::Seconds => "seconds",
            HorizontalAxis::Numbers(label) | HorizontalAxis::Names { label, .. } => label,
        }
    }

    /// Returns the label of a tick.
    fn tick(&self, at: f64) -> String {
        match self {
            HorizontalAxis::Seconds | HorizontalAxis::Numbers(_) => number(at),
            HorizontalAxis::Names { names, .. } => {
                let is_one = at >= 0.0 && at.fract() == 0.0;
                let name = is_one.then(|| names.get(at as usize)).flatten();
                name.cloned().unwrap_or_default()
            }
        }
    }
}

/// Lines over the common axis.
pub struct Panel {
    /// The name of the vertical axis, with its unit.
    pub label: String,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
    /// The lines.
    pub lines: Vec<ChartLine>,
}

/// Values along the common axis.
pub struct ChartLine {
    /// The name in the legend.
    pub name: String,
    /// Places on the axis (the number of the name, if it has names), and values.
    pub points: Vec<(f64, f64)>,
    /// Places of some points, each with the least and the most.
    pub spreads: Vec<(f64, f64, f64)>,
}

impl ChartLine {
    /// Creates a line without bars.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> ChartLine {
        ChartLine { name: name.into(), points, spreads: Vec::new() }
    }
}

/// An event at a moment.
pub struct ChartMark {
    /// The time, in seconds.
    pub at_s: f64,
    /// The event; may be empty.
    pub text: String,
}

impl ChartMark {
    /// Creates a mark without a text.
    pub fn at(at_s: f64) -> ChartMark {
        ChartMark { at_s, text: String::new() }
    }
}

/// Checks that a picture can be written there, before a run of minutes and not after it. An existing file stays.
pub fn check(path: Option<&PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| {
        Failure::usage(format!("--plot: cannot write {}: {error}", path.display()))
    })?;
    if is_new {
        // If the file cannot be removed, the picture replaces it.
        drop(std::fs::remove_file(path));
    }
    Ok(())
}

/// The result of drawing.
pub type DrawResult<T> = Result<T, Box<dyn std::error::Error>>;

impl Chart {
    /// Writes the picture to a file.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::operation(format!("cannot write the plot {}: {error}", path.display()))
        };
        let svg = self.svg().map_err(|error| failed(&error))?;
        std::fs::write(path, svg).map_err(|error| failed(&error))
    }

    /// Returns the picture in SVG, with the machine that the numbers come from.
    pub fn svg(&self) -> DrawResult<String> {
        self.svg_of(&HostMachine::here().in_words())
    }
}

/// Formats a number with as few digits as an axis needs.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1e6 => format!("{}M", short(value / 1e6)),
        large if large >= 1e4 => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests;
