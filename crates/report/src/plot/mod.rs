//! Pictures in SVG. They show series over time or another quantity, or values of named things, in panels one above the
//! other with a common horizontal axis.
//!
//! A line can have bars from the smallest to the largest measured value. If all values have the same horizontal
//! position, each value is a column, because a line with one point would be invisible. Events are marked by vertical
//! lines in all panels, with their texts in the first panel. A panel can have a logarithmic axis, which leaves out
//! values of zero. The JSON report contains everything that is drawn.

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
    /// The panels, from top to bottom.
    pub panels: Vec<Panel>,
    /// Marks of events, in all panels.
    pub marks: Vec<ChartMark>,
    /// The legend's name for the marks.
    pub mark_name: &'static str,
}

/// The common horizontal axis.
pub enum HorizontalAxis {
    /// Time in seconds.
    Seconds,
    /// Numbers of another quantity, with the name of the axis.
    Numbers(String),
    /// Named things side by side. The n-th name is at position n, counted from 0.
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

/// Lines over the common horizontal axis.
pub struct Panel {
    /// The name of the vertical axis, with its unit.
    pub label: String,
    /// Whether the vertical axis is logarithmic.
    pub logarithmic: bool,
    /// The lines of the panel.
    pub lines: Vec<ChartLine>,
}

/// Values along the common horizontal axis.
pub struct ChartLine {
    /// The line's name in the legend.
    pub name: String,
    /// Horizontal positions (on an axis of names, the index of the name), and values.
    pub points: Vec<(f64, f64)>,
    /// Horizontal positions, each with the smallest and the largest value there.
    pub spreads: Vec<(f64, f64, f64)>,
}

impl ChartLine {
    /// Creates a line without bars.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> ChartLine {
        ChartLine { name: name.into(), points, spreads: Vec::new() }
    }
}

/// An event, which is marked by a vertical line.
pub struct ChartMark {
    /// Time of the event, in seconds.
    pub at_s: f64,
    /// The event in words; can be empty.
    pub text: String,
}

impl ChartMark {
    /// Creates a mark without a text.
    pub fn at(at_s: f64) -> ChartMark {
        ChartMark { at_s, text: String::new() }
    }
}

/// Checks that a picture can be written to this path, before a run of minutes instead of after it. An existing file
/// remains.
pub fn check(path: Option<&PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| {
        Failure::usage(format!("--plot: cannot write {}: {error}", path.display()))
    })?;
    if is_new {
        // If the new file cannot be removed, the picture replaces it.
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

    /// Returns the picture in SVG. A text below names the machine on which the numbers were measured.
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
