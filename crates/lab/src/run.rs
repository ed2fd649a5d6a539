//! Runs figures: their points on all processors, for every seed, and judges what the papers state.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::figures::{Expected, Figure, Kind, Medians, Point};
use crate::measure::{Failed, measure};
use crate::setup::{Measured, Setup};

/// A point with what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which line it belongs to.
    pub series: String,
    /// Where it stands.
    pub x: f64,
    /// What is drawn: the median over the seeds.
    pub value: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// What was measured.
    pub setup: Setup,
    /// With each seed, beginning with the setup's.
    pub measured: Vec<Measured>,
}

/// What became of a statement.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// In our words.
    pub says: &'static str,
    /// Where it stands.
    pub section: &'static str,
    /// Whether it could have failed.
    pub kind: Kind,
    /// What it has to be.
    pub expected: Expected,
    /// What it is; `None` if it was not measured.
    pub value: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}

/// A figure with what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Which.
    pub figure: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// What its points differ in.
    pub x: &'static str,
    /// What is drawn.
    pub quantity: String,
    /// Where everything comes from: nothing is measured on hardware here.
    pub source: &'static str,
    /// Points.
    pub rows: Vec<Row>,
    /// Statements.
    pub statements: Vec<Judged>,
    /// What is missing, or unlike the paper.
    pub remarks: &'static [&'static str],
    /// A signal came: not all points are there.
    pub interrupted: bool,
}

/// Runs a figure. Points that are there when a signal comes are told.
pub fn run(figure: &Figure, seeds: u64, operations: Option<u64>) -> Result<Outcome, Failure> {
    let mut points = (figure.points)();
    if let Some(operations) = operations {
        points.iter_mut().for_each(|point| point.setup.operations = operations);
    }
    let bar = bar(figure.id, points.len() as u64 * seeds);
    let tasks: Vec<(usize, u64)> =
        (0..points.len()).flat_map(|point| (0..seeds).map(move |seed| (point, seed))).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, u64, Measured)>> = Mutex::default();
    let failed: Mutex<Option<String>> = Mutex::default();
    let is_over = || interrupt::requested() || failed.lock().expect("no panic in it").is_some();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tasks.len()) {
            scope.spawn(|| {
                while let Some((point, seed)) =
                    tasks.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !is_over())
                {
                    let setup = &points[*point].setup;
                    let setup = Setup { seed: setup.seed + seed, ..setup.clone() };
                    let result = catch_unwind(AssertUnwindSafe(|| measure(&setup, &is_over)));
                    let what = match result {
                        Ok(Ok(measured)) => {
                            done.lock().expect("no panic in it").push((*point, *seed, measured));
                            bar.inc(1);
                            continue;
                        }
                        Ok(Err(Failed::Stopped)) => return,
                        Ok(Err(Failed::Operation(what))) => what,
                        Err(_) => "the simulation panicked".into(),
                    };
                    let Point { series, x, .. } = &points[*point];
                    let what = format!("{} at {x}, seed {}: {what}", series, setup.seed);
                    failed.lock().expect("no panic in it").get_or_insert(what);
                }
            });
        }
    });
    bar.finish_and_clear();
    if let Some(failed) = failed.into_inner().expect("no panic in it") {
        return Err(Failure::operation(format!("{}: {failed}", figure.id)));
    }
    let mut done = done.into_inner().expect("no panic in it");
    done.sort_by_key(|(point, seed, _)| (*point, *seed));
    let is_whole = done.len() == tasks.len();
    let rows: Vec<Row> =
        done.chunk_by(|a, b| a.0 == b.0).filter_map(|of| row(&points, of)).collect();
    let medians = rows.iter().map(|row| (row.series.clone(), row.x, row.value));
    let statements = judge(figure, &Medians(medians.collect()));
    Ok(Outcome {
        figure: figure.id,
        about: figure.about,
        x: figure.x,
        quantity: quantity(&points),
        source: "simulated",
        rows,
        statements,
        remarks: figure.remarks,
        interrupted: !is_whole,
    })
}

fn quantity(points: &[Point]) -> String {
    let mut names: Vec<String> = points.iter().map(|point| point.quantity.name()).collect();
    names.dedup();
    names.sort();
    names.dedup();
    names.join("; ")
}

/// What came of one point, with all seeds.
fn row(points: &[Point], of: &[(usize, u64, Measured)]) -> Option<Row> {
    let point = &points[of.first()?.0];
    let values: Option<Vec<f64>> = of.iter().map(|(_, _, m)| point.quantity.of(m)).collect();
    let mut values = values?;
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    Some(Row {
        series: point.series.clone(),
        x: point.x,
        value: f64::midpoint(values[low], values[high]),
        least: values[0],
        most: values[values.len() - 1],
        setup: point.setup.clone(),
        measured: of.iter().map(|(_, _, measured)| measured.clone()).collect(),
    })
}

fn judge(figure: &Figure, medians: &Medians) -> Vec<Judged> {
    let judged = |statement: &crate::figures::Statement| {
        let value = (statement.value)(medians);
        let holds = value.is_some_and(|value| statement.expected.holds(value));
        let crate::figures::Statement { says, section, kind, expected, .. } = *statement;
        Judged { says, section, kind, expected, value, holds }
    };
    figure.statements.iter().map(judged).collect()
}

fn bar(name: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:4} {wide_bar} {pos}/{len} points");
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        .with_style(style.expect("the template is a constant"))
        .with_prefix(name.to_string())
}
