//! Series over time or something else, and sweeps over named points, as a picture: panels above each
//! other over one axis, in SVG.
//!
//! Lines over names have bars from the least to the most that was measured, if they are told. Where all
//! values stand at one place of the axis each is a column: a line of one point is none. Moments are
//! marked by vertical lines in all panels; those with a text bear it in the first. A
//! panel may have a logarithmic axis, then values of zero are left out. What is drawn is what the
//! JSON report has; the picture is for looking.

mod draw;
mod legend;

use std::path::{Path, PathBuf};

use fusee_cli::failure::Failure;

use crate::machine::Machine;

/// A picture.
pub struct Chart {
    /// Above everything.
    pub title: String,
    /// Below all panels.
    pub x: Horizontal,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// In all panels.
    pub marks: Vec<Mark>,
    /// What the marks are, for the legend.
    pub mark_name: &'static str,
}

/// What the panels have in common.
pub enum Horizontal {
    /// Time.
    Seconds,
    /// Numbers of something else: what they are.
    Numbers(String),
    /// Things side by side: the n-th stands at n.
    Names {
        /// What they are.
        label: String,
        /// From left to right.
        names: Vec<String>,
    },
}

impl Horizontal {
    fn label(&self) -> &str {
        match self {
            Horizontal::Seconds => "seconds",
            Horizontal::Numbers(label) | Horizontal::Names { label, .. } => label,
        }
    }

    /// What stands at a tick.
    fn tick(&self, at: f64) -> String {
        match self {
            Horizontal::Seconds | Horizontal::Numbers(_) => number(at),
            Horizontal::Names { names, .. } => {
                let is_one = at >= 0.0 && at.fract() == 0.0;
                let name = is_one.then(|| names.get(at as usize)).flatten();
                name.cloned().unwrap_or_default()
            }
        }
    }
}

/// Lines over the common axis.
pub struct Panel {
    /// What the axis counts, with its unit.
    pub label: String,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
    /// What is drawn.
    pub lines: Vec<Line>,
}

/// Values along the common axis.
pub struct Line {
    /// In the legend.
    pub name: String,
    /// Where on the axis (the number of the name, if it has names), and the value.
    pub points: Vec<(f64, f64)>,
    /// The least and the most at some of them.
    pub spreads: Vec<(f64, f64, f64)>,
}

impl Line {
    /// Without bars.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, spreads: Vec::new() }
    }
}

/// Something happened.
pub struct Mark {
    /// When, in seconds.
    pub at_s: f64,
    /// What; may be empty.
    pub text: String,
}

impl Mark {
    /// Without a text.
    pub fn at(at_s: f64) -> Mark {
        Mark { at_s, text: String::new() }
    }
}

/// Whether a picture can be written there: before a run of minutes, not after it. What is there stays.
pub fn check(path: Option<&PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| {
        Failure::usage(format!("--plot: cannot write {}: {error}", path.display()))
    })?;
    if is_new {
        // Should it stay, the picture replaces it.
        drop(std::fs::remove_file(path));
    }
    Ok(())
}

/// What became of drawing.
pub type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

impl Chart {
    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::operation(format!("cannot write the plot {}: {error}", path.display()))
        };
        let svg = self.svg().map_err(|error| failed(&error))?;
        std::fs::write(path, svg).map_err(|error| failed(&error))
    }

    /// As SVG, with the machine that the numbers are of.
    pub fn svg(&self) -> Drawn<String> {
        self.svg_of(&Machine::here().in_words())
    }
}

/// A number with as few digits as an axis needs.
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
