//! Reports of benchmarks: a table for people or one JSON object for programs, and possibly a chart.
//!
//! Each benchmark brings its arguments, its run, and its results ([`BenchFindings`]). This module has what is the same
//! for all benchmarks: the description of machine, commit, command and cluster, the verdict, the order of the table,
//! `--json`, `--plot`, and the exit code.
//!
//! The names of fields contain their units: `_us` microseconds, `_s` seconds, `_bytes` bytes. Operations have the
//! paper's names: search, insert, update, delete.

mod operations;
mod setup;
mod verdict;

use std::path::PathBuf;

use fusee_cli::failure::Failure;
use fusee_cli::{interrupt, output};
use serde::Serialize;

use fusee_report::machine::{HostMachine, commit};
use fusee_report::plot::{self, Chart};
pub use operations::{OperationReport, PhaseReport, operations_table};
pub use setup::{ClusterReport, MeasuredSetup};
pub use verdict::{BenchVerdict, ErrorCounts, attempt};

/// The form of the report.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct BenchOutputArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl BenchOutputArgs {
    /// Returns whether the report is one JSON object.
    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// The form of a report that can be drawn.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct BenchPlotArgs {
    /// Draw the results into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    output: BenchOutputArgs,
}

/// The results of a benchmark.
pub trait BenchFindings: Serialize + Sized {
    /// The settings of the run, usually the arguments.
    type Settings: Serialize;

    /// Returns the first line of the table.
    fn title(report: &BenchReport<'_, Self>) -> String;

    /// Returns the lines of the table between the cluster and the verdict.
    fn summary(_report: &BenchReport<'_, Self>) -> String {
        String::new()
    }

    /// Returns the rows of the table below the verdict.
    fn rows(_report: &BenchReport<'_, Self>) -> String {
        String::new()
    }

    /// Returns the chart, if the results can be drawn.
    fn chart(_report: &BenchReport<'_, Self>) -> Option<Chart> {
        None
    }

    /// Returns whether the user of another process ended the run early.
    fn was_interrupted(&self) -> bool {
        false
    }

    /// Returns why the run fails, in addition to the reasons in the verdict.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The results of a benchmark, with the circumstances that a reader has to know. The fields are those of the JSON
/// object.
#[derive(Serialize)]
pub struct BenchReport<'a, F: BenchFindings> {
    benchmark: &'static str,
    version: &'static str,
    /// The commit, in a release build.
    commit: Option<&'static str>,
    command: String,
    pub settings: &'a F::Settings,
    pub machine: HostMachine,
    #[serde(flatten)]
    pub setup: Option<MeasuredSetup>,
    /// Whether the user ended the run early.
    pub interrupted: bool,
    #[serde(flatten)]
    pub findings: F,
    #[serde(flatten)]
    verdict: Option<BenchVerdict>,
}

/// A benchmark that has begun.
pub struct BenchInvocation {
    name: &'static str,
    drawing: BenchPlotArgs,
    pub machine: HostMachine,
}

impl BenchInvocation {
    /// Begins a benchmark.
    pub fn begin(name: &'static str, output: &BenchOutputArgs) -> BenchInvocation {
        let drawing = BenchPlotArgs { plot: None, output: output.clone() };
        BenchInvocation { name, drawing, machine: HostMachine::here() }
    }

    /// Begins a benchmark whose results can be drawn. Fails at once if the chart cannot be written, so that the user
    /// does not learn of it only after the run.
    pub fn begin_drawing(
        name: &'static str,
        drawing: &BenchPlotArgs,
    ) -> Result<BenchInvocation, Failure> {
        plot::check(drawing.plot.as_ref())?;
        Ok(BenchInvocation {
            drawing: drawing.clone(),
            ..BenchInvocation::begin(name, &drawing.output)
        })
    }

    /// Returns the bytes of available memory, if the system reports them.
    pub fn available(&self) -> Option<u64> {
        self.machine.available_memory_bytes
    }

    /// Draws and prints the results, with the cluster and the verdict. Fails if anything was wrong, or if the run is
    /// not complete.
    pub fn print_results<F: BenchFindings>(
        self,
        settings: &F::Settings,
        setup: Option<MeasuredSetup>,
        findings: F,
        verdict: Option<BenchVerdict>,
    ) -> Result<(), Failure> {
        let report = BenchReport {
            benchmark: self.name,
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            command: command(),
            settings,
            machine: self.machine,
            setup,
            interrupted: interrupt::is_requested() || findings.was_interrupted(),
            findings,
            verdict,
        };
        if let Some(path) = &self.drawing.plot
            && let Some(mut chart) = F::chart(&report)
        {
            if !chart.title.contains(report.ended_early()) {
                chart.title += report.ended_early();
            }
            chart.write(path)?;
        }
        if self.drawing.output.json {
            let json = serde_json::to_string_pretty(&report);
            let json = json
                .map_err(|error| Failure::operation(format!("cannot write the report: {error}")))?;
            output::line(&json)?;
        } else {
            output::text(&report.table())?;
        }
        report.judge()
    }
}

impl<F: BenchFindings> BenchReport<'_, F> {
    /// Returns the name of the fabric, or an empty string if there is no cluster.
    pub fn fabric(&self) -> &str {
        self.setup.as_ref().map_or("", |setup| &setup.fabric)
    }

    /// Returns an addition to the title that says whether the user ended the run early.
    pub fn ended_early(&self) -> &'static str {
        if self.interrupted { ", INTERRUPTED" } else { "" }
    }

    /// Returns the table for people.
    fn table(&self) -> String {
        let cluster = self.setup.as_ref().map(MeasuredSetup::line).unwrap_or_default();
        let verdict = self.verdict.as_ref().map(BenchVerdict::table).unwrap_or_default();
        let HostMachine { cores, cpu, .. } = &self.machine;
        let commit = self.commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
        format!(
            "{}\n\n{cluster}machine     {cores} cores, {cpu}\n\
             command     {} ({}{commit})\n{}{verdict}{}",
            F::title(self),
            self.command,
            self.version,
            F::summary(self),
            F::rows(self),
        )
    }

    fn judge(&self) -> Result<(), Failure> {
        let mut wrong = self.verdict.as_ref().map(BenchVerdict::problems).unwrap_or_default();
        wrong.extend(self.findings.problems());
        match interrupt::failure() {
            _ if !wrong.is_empty() => {
                Err(Failure::operation(format!("the benchmark failed: {}", wrong.join("; "))))
            }
            Some(interrupted) => Err(interrupted),
            None => Ok(()),
        }
    }
}

/// Returns the command line of this process.
fn command() -> String {
    let arguments = std::env::args().skip(1);
    std::iter::once("fusee-bench".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}
