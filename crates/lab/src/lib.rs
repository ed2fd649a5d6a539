//! The lab: the papers' evaluations, repeated on modelled hardware in virtual time.
//!
//! A figure consists of setups, and of statements of the paper's text. A setup is a whole cluster with its clients on a
//! testbed ([`fusee_sim::Testbed`]); the cluster runs our store or another system. The lab measures nothing on
//! hardware, and every result says so. Equal arguments give equal bytes.
//!
//! Reading order: `setup` (setups and results), `subject` and `baselines` (the systems), `measure`, `figures`, `run`,
//! `report` and `page` (output).

mod baselines;
mod figures;
mod measure;
mod page;
mod report;
mod run;
mod setup;
mod subject;

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::Subcommand;
use fusee_cli::failure::Failure;
use fusee_cli::{interrupt, output};
use fusee_sim::Testbed;

pub use measure::{MeasurementError, measure};
use run::FigureOutcome;
pub use setup::{HardwareUse, LabLatency, LabLoad, LabResults, LabSetup, LabSystem};

/// Subcommands of `fusee-bench lab`.
#[derive(Subcommand, Debug)]
pub enum Lab {
    /// Repeat a figure of a paper
    #[command(after_help = "Examples:\n  \
        fusee-bench lab list\n  \
        fusee-bench lab figure 14\n  \
        fusee-bench lab figure 2 --paper elasticmem\n  \
        fusee-bench lab figure F18 --seeds 5 --json\n\n\
        Everything is simulated, in virtual time: the same arguments give the same bytes.")]
    Figure(LabFigureArgs),
    /// Repeat a table of a paper
    #[command(after_help = "Example:\n  \
        fusee-bench lab table 1 --paper elasticmem\n\n\
        Table 1 of FUSEE, the recovery of a client, is of a real machine: `fusee-bench recovery` measures it.\n\
        So are Tables 2 and 3 of ElasticMem: `fusee-bench correlated`.")]
    Table(LabFigureArgs),
    /// Repeat all figures
    All(LabOptions),
    /// Make a page of the figures in a folder, with the statements of the papers
    Report(LabReportArgs),
    /// List the figures
    #[command(after_help = "Example:\n  fusee-bench lab list")]
    List,
}

/// Options of runs, and of their output.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Example:\n  \
    fusee-bench lab all --json > lab.json\n\n\
    Everything is simulated, in virtual time: the same arguments give the same bytes.")]
pub struct LabOptions {
    /// Runs of every point, with different keys and operations; the result is their median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,

    /// Operations to count, of all clients of a point together [default: by figure]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    operations: Option<u64>,

    /// Hardware to model instead of the paper's; the paper's statements are not judged then
    #[arg(long, value_parser = testbed)]
    testbed: Option<&'static str>,

    /// Print one JSON object for each figure, a line each
    #[arg(long)]
    json: bool,

    /// Write each figure to this folder as well, as JSON and as a picture: `F12.json`, `F12.svg`
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Parses the name of a testbed.
fn testbed(name: &str) -> Result<&'static str, String> {
    let names = || Testbed::ALL.map(|testbed| testbed.name).join(", ");
    let found = Testbed::named(name).map(|testbed| testbed.name);
    found.ok_or_else(|| format!("there is no testbed {name}; there are {}", names()))
}

/// Arguments of `fusee-bench lab report`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Example:\n  \
    fusee-bench lab all --out lab && fusee-bench lab report lab\n\n\
    Writes lab/index.html, which needs no other file.")]
pub struct LabReportArgs {
    /// The folder that figures were written to with --out
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// A paper with figures.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabPaper {
    /// FUSEE (FAST '23)
    Fusee,
    /// ElasticMem
    Elasticmem,
    /// In-network contention resolution (WORDS '21)
    Switch,
}

/// A figure or table.
#[derive(clap::Args, Clone, Debug)]
pub struct LabFigureArgs {
    /// Number of the figure or table, or its name as in the list; for figures of ElasticMem, the experiment's number
    #[arg(value_name = "NUMBER")]
    number: String,

    /// Paper of the number
    #[arg(long, value_enum, default_value = "fusee")]
    paper: LabPaper,

    #[command(flatten)]
    options: LabOptions,
}

impl LabFigureArgs {
    /// Returns the figure with this number or name, or an error that lists all figures. `prefixes` are the first
    /// letters of the names, for each paper.
    fn find_figure(
        &self,
        kind: &str,
        prefixes: [&str; 3],
    ) -> Result<&'static figures::Figure, Failure> {
        let name = self.number.to_ascii_uppercase();
        let prefix = prefixes[self.paper as usize];
        let of = [format!("{prefix}{name}"), name];
        figures::all().find(|figure| of.iter().any(|id| figure.id == id)).ok_or_else(|| {
            let known = figures::all().map(|figure| figure.id).collect::<Vec<_>>().join(", ");
            Failure::usage(format!("there is no {kind} {} here; there are {known}", self.number))
        })
    }
}

impl Lab {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Lab::Figure(of) => run_all([of.find_figure("figure", ["F", "E", "S"])?], &of.options),
            Lab::Table(of) => run_all([of.find_figure("table", ["T", "ET", "ST"])?], &of.options),
            Lab::Report(LabReportArgs { folder }) => report_of(folder),
            Lab::All(options) => run_all(figures::all(), options),
            Lab::List => figures::all()
                .try_for_each(|figure| output::line(&format!("{:<5} {}", figure.id, figure.about))),
        }
    }
}

fn run_all(
    figures: impl IntoIterator<Item = &'static figures::Figure>,
    options: &LabOptions,
) -> Result<(), Failure> {
    interrupt::watch()?;
    if let Some(folder) = &options.out {
        fs::create_dir_all(folder).map_err(|error| cannot("make the folder", folder, &error))?;
    }
    for figure in figures {
        let outcome = run::run(figure, options)?;
        let json = serde_json::to_string(&outcome).expect("numbers and texts");
        // The outcome is printed before the files are written, because a full disk can make the writing fail.
        output::line(&if options.json { json.clone() } else { report::text(&outcome) })?;
        if let Some(folder) = &options.out {
            write(&folder.join(format!("{}.json", figure.id)), &json)?;
            write(&folder.join(format!("{}.svg", figure.id)), &drawn(&outcome)?)?;
        }
        if let Some(interrupted) = interrupt::failure() {
            return Err(interrupted);
        }
    }
    Ok(())
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::operation(format!("cannot {what} {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| cannot("write", path, &error))
}

fn drawn(outcome: &FigureOutcome) -> Result<String, Failure> {
    let failed = |error| Failure::operation(format!("cannot draw {}: {error}", outcome.figure));
    report::picture(outcome).map_err(failed)
}

/// Writes the page of all figures in a folder, in the order of `lab list`.
fn report_of(folder: &Path) -> Result<(), Failure> {
    let mut outcomes: Vec<FigureOutcome> = Vec::new();
    for figure in figures::all() {
        let path = folder.join(format!("{}.json", figure.id));
        match fs::read_to_string(&path) {
            Ok(text) => {
                let outcome = serde_json::from_str(&text);
                outcomes.push(outcome.map_err(|error| cannot("read", &path, &error))?);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot("read", &path, &error)),
        }
    }
    if outcomes.is_empty() {
        let folder = folder.display();
        return Err(Failure::usage(format!(
            "{folder} has no figure; `fusee-bench lab all --out {folder}` writes them"
        )));
    }
    let pictures: Vec<String> = outcomes.iter().map(drawn).collect::<Result<_, _>>()?;
    let path = folder.join("index.html");
    write(&path, &page::page(&outcomes, &pictures))?;
    output::line(&path.display().to_string())
}
