//! Runs of figures. All processors measure the points with every seed; then the papers' statements are judged.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_cli::progress::ProgressLines;
use fusee_report::machine;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::LabOptions;
use crate::figures::{Figure, FigurePoint, Medians, Statement, StatementCondition, StatementKind};
use crate::measure::{MeasurementError, measure};
use crate::setup::{HardwareUse, LabResults, LabSetup, LabSystem};

/// A point of a figure with its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FigureRow {
    /// Name of the line that the point belongs to.
    pub series: String,
    /// Position on the horizontal axis.
    pub x: f64,
    /// The value that is drawn: the median over the seeds.
    pub value: f64,
    /// The smallest value that any seed gave.
    pub least: f64,
    /// The largest value that any seed gave.
    pub most: f64,
    /// The busiest part of the hardware, and the share of the time in which it was busy.
    pub busiest: String,
    /// Index of the point's measurement in [`FigureOutcome::measurements`].
    pub measurement: usize,
}

/// A setup with its results for all seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// The setup that was measured.
    pub setup: LabSetup,
    /// Results for each seed. The first seed is the setup's.
    pub measured: Vec<LabResults>,
}

/// A statement with its verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JudgedStatement {
    /// The system for which the statement is judged.
    pub of: String,
    /// The statement, in our words.
    pub says: String,
    /// The section of the paper that makes the statement.
    pub section: String,
    /// Whether the model could refute the statement.
    pub kind: StatementKind,
    /// The condition on the statement's number.
    pub expected: StatementCondition,
    /// The statement's number; `None` if it was not measured.
    pub value: Option<f64>,
    /// Whether the number meets the condition.
    pub holds: bool,
}

/// A figure with its results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FigureOutcome {
    /// Id of the figure.
    pub figure: String,
    /// The figure's subject.
    pub about: String,
    /// The name of the horizontal axis.
    pub x: String,
    /// The quantities that are drawn.
    pub quantity: String,
    /// Origin of the numbers: a model, not hardware.
    pub source: String,
    /// The commit of the source from which this program was built; `None` if unknown.
    pub commit: Option<String>,
    /// Number of measurements of each point.
    pub seeds: u64,
    /// The points that are drawn.
    pub rows: Vec<FigureRow>,
    /// The measurements, which several points can share.
    #[serde(skip_deserializing)]
    pub measurements: Vec<Measurement>,
    /// The statements with their verdicts.
    pub statements: Vec<JudgedStatement>,
    /// Gaps of the measurement, and differences from the paper's.
    pub remarks: Vec<String>,
    /// Whether a signal has interrupted the run, so that points are missing.
    pub interrupted: bool,
}

/// Runs a figure. If a signal interrupts the run, the outcome has the points that were measured before the signal.
pub fn run(figure: &Figure, options: &LabOptions) -> Result<FigureOutcome, Failure> {
    let LabOptions { seeds, operations, testbed, .. } = *options;
    let mut points = (figure.points)();
    for FigurePoint { setup, .. } in &mut points {
        setup.operations = operations.unwrap_or(setup.operations);
        setup.testbed = testbed.unwrap_or(setup.testbed);
    }
    // Points with equal setups share one measurement.
    let mut setups: Vec<LabSetup> = Vec::new();
    for point in &points {
        if !setups.contains(&point.setup) {
            setups.push(point.setup.clone());
        }
    }
    let bar = bar(figure.id, setups.len() as u64 * seeds);
    let lines = ProgressLines::begin();
    let tasks: Vec<(usize, u64)> =
        (0..setups.len()).flat_map(|setup| (0..seeds).map(move |seed| (setup, seed))).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, u64, LabResults)>> = Mutex::default();
    let failed: Mutex<Option<String>> = Mutex::default();
    let is_over = || interrupt::is_requested() || failed.lock().expect("no panic in it").is_some();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tasks.len()) {
            scope.spawn(|| {
                while let Some((number, seed)) =
                    tasks.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !is_over())
                {
                    let setup = &setups[*number];
                    let setup = LabSetup { seed: setup.seed + seed, ..setup.clone() };
                    let result = catch_unwind(AssertUnwindSafe(|| measure(&setup, &is_over)));
                    let what = match result {
                        Ok(Ok(measured)) => {
                            let mut done = done.lock().expect("no panic in it");
                            done.push((*number, *seed, measured));
                            bar.inc(1);
                            lines.tell(|| {
                                format!("{}: {} of {} points", figure.id, done.len(), tasks.len())
                            });
                            continue;
                        }
                        Ok(Err(MeasurementError::Stopped)) => return,
                        Ok(Err(MeasurementError::Operation(what))) => what,
                        Err(_) => "the simulation panicked".into(),
                    };
                    let of = points.iter().find(|point| point.setup == setups[*number]);
                    let FigurePoint { series, x, .. } = of.expect("a setup is some point's");
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
    done.sort_by_key(|(number, seed, _)| (*number, *seed));
    let is_whole = done.len() == tasks.len();
    let measurements: Vec<Measurement> = done
        .chunk_by(|a, b| a.0 == b.0)
        .map(|of| Measurement {
            setup: setups[of[0].0].clone(),
            measured: of.iter().map(|(_, _, measured)| measured.clone()).collect(),
        })
        .collect();
    let rows: Vec<FigureRow> =
        points.iter().filter_map(|point| row(point, &measurements)).collect();
    let medians = rows.iter().map(|row| (row.series.clone(), row.x, row.value));
    let medians = Medians(medians.collect());
    let statements = if testbed.is_some() { Vec::new() } else { judge(figure, &medians) };
    Ok(FigureOutcome {
        figure: figure.id.into(),
        about: figure.about.into(),
        x: figure.x.into(),
        quantity: quantity(&points),
        source: "simulated".into(),
        commit: machine::commit().map(String::from),
        seeds,
        rows,
        measurements,
        statements,
        remarks: figure.remarks.iter().map(|remark| (*remark).into()).collect(),
        interrupted: !is_whole,
    })
}

fn quantity(points: &[FigurePoint]) -> String {
    let names: BTreeSet<String> = points.iter().map(|point| point.quantity.name()).collect();
    names.into_iter().collect::<Vec<_>>().join("; ")
}

/// Returns the result of one point over all seeds; `None` if a seed lacks a measurement.
fn row(point: &FigurePoint, measurements: &[Measurement]) -> Option<FigureRow> {
    let measurement = measurements.iter().position(|of| of.setup == point.setup)?;
    let measured = &measurements[measurement].measured;
    let values: Option<Vec<f64>> = measured.iter().map(|m| point.quantity.of(m)).collect();
    let mut values = values?;
    values.sort_by(f64::total_cmp);
    let low = (values.len() - 1) / 2;
    let high = values.len() / 2;
    Some(FigureRow {
        series: point.series.clone(),
        x: point.x,
        value: f64::midpoint(values[low], values[high]),
        least: values[0],
        most: values[values.len() - 1],
        busiest: busiest(measured),
        measurement,
    })
}

/// Returns the busiest part of the hardware in the measurement with the first seed.
fn busiest(measured: &[LabResults]) -> String {
    let busiest = measured.first().map(|measured| &measured.busiest);
    let words =
        |of: &HardwareUse| format!("{} of {}, {:.0} %", of.part, of.machine, of.share * 100.0);
    busiest.map(words).unwrap_or_default()
}

fn judge(figure: &Figure, medians: &Medians) -> Vec<JudgedStatement> {
    let judged = |statement: &Statement, of: &str| {
        let value = (statement.value)(medians, of);
        let holds = value.is_some_and(|value| statement.expected.holds(value));
        let Statement { says, section, expected, .. } = *statement;
        // Parameters are fitted on FUSEE as published only. For our store every statement is a prediction.
        let kind =
            if of == LabSystem::Fusee.name() { StatementKind::Predicted } else { statement.kind };
        let of = of.into();
        let says = says.into();
        let section = section.into();
        JudgedStatement { of, says, section, kind, expected, value, holds }
    };
    let of_all =
        |statement: &'static Statement| statement.of.iter().map(move |of| judged(statement, of));
    figure.statements.iter().flat_map(of_all).collect()
}

fn bar(name: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:4} {wide_bar} {pos}/{len} points");
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        .with_style(style.expect("the template is a constant"))
        .with_prefix(name.to_string())
}
