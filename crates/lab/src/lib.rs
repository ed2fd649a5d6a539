//! The lab: the papers' evaluations, run again on modelled hardware in virtual time.
//!
//! A figure is a list of setups, each a whole cluster of ours or of another system with its clients, on a testbed
//! ([`fusee_sim::Testbed`]), and of statements of the paper's text. Nothing is measured on hardware here, and every
//! result says so. Equal arguments give equal bytes.
//!
//! Reading order: `setup` (what is measured), `subject` and `theirs` (whose clients), `measure` (how), `figures` (what
//! for), `run`, `report` and `page` (how it is told).

mod figures;
mod measure;
mod page;
mod report;
mod run;
mod setup;
mod subject;
mod theirs;

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::Subcommand;
use fusee_cli::failure::Failure;
use fusee_cli::{interrupt, output};
use fusee_sim::Testbed;

pub use measure::{Failed, measure};
use run::Outcome;
pub use setup::{Latency, Load, Measured, Setup, System, Use};

/// What to do in the lab.
#[derive(Subcommand, Debug)]
pub enum Lab {
    /// Run a figure of a paper again
    #[command(after_help = "Examples:\n  \
        fusee lab list\n  \
        fusee lab figure 14\n  \
        fusee lab figure 2 --paper elasticmem\n  \
        fusee lab figure F18 --seeds 5 --json\n\n\
        Everything is simulated, in virtual time: the same arguments give the same bytes.")]
    Figure(Numbered),
    /// Run a table of a paper again
    #[command(after_help = "Example:\n  \
        fusee lab table 1 --paper elasticmem\n\n\
        Table 1 of FUSEE, the recovery of a client, is of a real machine: `fusee bench recovery` measures it.\n\
        So are Tables 2 and 3 of ElasticMem: `fusee bench correlated`.")]
    Table(Numbered),
    /// Run all figures again
    All(Options),
    /// Make one page of the figures in a folder, each beside what the papers say of it
    Report(ReportArgs),
    /// Say which figures there are
    #[command(after_help = "Example:\n  fusee lab list")]
    List,
}

/// How figures are run and told.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Example:\n  \
    fusee lab all --json > lab.json\n\n\
    Everything is simulated, in virtual time: the same arguments give the same bytes.")]
pub struct Options {
    /// Runs of every point, with different keys and operations; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,

    /// Operations that are counted, of all clients of a point together [default: as the figure says]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    operations: Option<u64>,

    /// Hardware to run on, other than the paper's; then its sentences are not judged
    #[arg(long, value_parser = testbed)]
    testbed: Option<&'static str>,

    /// Print one JSON object for each figure, a line each
    #[arg(long)]
    json: bool,

    /// Write each figure to this folder as well, as JSON and as a picture: `F12.json`, `F12.svg`
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// The name of a testbed, if it is one.
fn testbed(name: &str) -> Result<&'static str, String> {
    let names = || Testbed::ALL.map(|testbed| testbed.name).join(", ");
    let found = Testbed::named(name).map(|testbed| testbed.name);
    found.ok_or_else(|| format!("there is no testbed {name}; there are {}", names()))
}

/// Which page.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Example:\n  \
    fusee lab all --out lab && fusee lab report lab\n\n\
    Writes lab/index.html, which needs no other file.")]
pub struct ReportArgs {
    /// The folder that figures were written to with --out
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Which paper a number is of.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// FUSEE (FAST '23)
    Fusee,
    /// ElasticMem
    Elasticmem,
    /// In-network contention resolution (WORDS '21)
    Switch,
}

/// Which figure or table.
#[derive(clap::Args, Clone, Debug)]
pub struct Numbered {
    /// Its number, or its name as in the list; of ElasticMem's figures, the experiment's number
    #[arg(value_name = "NUMBER")]
    number: String,

    /// Which paper the number is of
    #[arg(long, value_enum, default_value = "fusee")]
    paper: Paper,

    #[command(flatten)]
    options: Options,
}

impl Numbered {
    /// What the number names, or what to ask instead. By paper, names begin with one of `prefixes`.
    fn found(&self, kind: &str, prefixes: [&str; 3]) -> Result<&'static figures::Figure, Failure> {
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
    /// Does it.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Lab::Figure(of) => run_all([of.found("figure", ["F", "E", "S"])?], &of.options),
            Lab::Table(of) => run_all([of.found("table", ["T", "ET", "ST"])?], &of.options),
            Lab::Report(ReportArgs { folder }) => report_of(folder),
            Lab::All(options) => run_all(figures::all(), options),
            Lab::List => figures::all()
                .try_for_each(|figure| output::line(&format!("{:<5} {}", figure.id, figure.about))),
        }
    }
}

fn run_all(
    figures: impl IntoIterator<Item = &'static figures::Figure>,
    options: &Options,
) -> Result<(), Failure> {
    interrupt::watch()?;
    if let Some(folder) = &options.out {
        fs::create_dir_all(folder).map_err(|error| cannot("make the folder", folder, &error))?;
    }
    for figure in figures {
        let outcome = run::run(figure, options)?;
        let json = serde_json::to_string(&outcome).expect("numbers and texts");
        // First: what a full disk does not take is told all the same.
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

fn drawn(outcome: &Outcome) -> Result<String, Failure> {
    let failed = |error| Failure::operation(format!("cannot draw {}: {error}", outcome.figure));
    report::picture(outcome).map_err(failed)
}

/// Makes the page of the figures in a folder, in their order here.
fn report_of(folder: &Path) -> Result<(), Failure> {
    let mut outcomes: Vec<Outcome> = Vec::new();
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
            "{folder} has no figure; `fusee lab all --out {folder}` writes them"
        )));
    }
    let pictures: Vec<String> = outcomes.iter().map(drawn).collect::<Result<_, _>>()?;
    let path = folder.join("index.html");
    write(&path, &page::page(&outcomes, &pictures))?;
    output::line(&path.display().to_string())
}
