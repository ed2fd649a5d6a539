//! The lab: the papers' evaluations, run again on modelled hardware in virtual time.
//!
//! A figure is a list of setups, each a whole cluster with its clients on a testbed ([`fusee_sim::Testbed`]), and of
//! statements of the paper's text. Nothing is measured on hardware here, and every result says so. Equal arguments give
//! equal bytes.
//!
//! Reading order: `setup` (what is measured), `measure` (how), `figures` (what for), `run`, `report`.

mod figures;
mod measure;
mod report;
mod run;
mod setup;

use clap::Subcommand;
use fusee_cli::failure::Failure;
use fusee_cli::{interrupt, output};

pub use measure::{Failed, measure};
pub use setup::{Latency, Measured, Setup, Use};

/// What to do in the lab.
#[derive(Subcommand, Debug)]
pub enum Lab {
    /// Run a figure of a paper again
    Figure(FigureArgs),
    /// Run all figures again
    All(Options),
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

    /// Print one JSON object for each figure, a line each
    #[arg(long)]
    json: bool,
}

/// Which figure.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    fusee lab list\n  \
    fusee lab figure 14\n  \
    fusee lab figure 18 --seeds 5 --json\n\n\
    Everything is simulated, in virtual time: the same arguments give the same bytes.")]
pub struct FigureArgs {
    /// Its number
    #[arg(value_name = "NUMBER")]
    figure: String,

    #[command(flatten)]
    options: Options,
}

impl Lab {
    /// Does it.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Lab::Figure(FigureArgs { figure, options }) => {
                let known = || figures::ALL.iter().map(|f| f.id).collect::<Vec<_>>().join(", ");
                let found = figures::named(figure).ok_or_else(|| {
                    Failure::usage(format!(
                        "there is no figure {figure} here; there are {}",
                        known()
                    ))
                })?;
                run_all(&[*found], options)
            }
            Lab::All(options) => run_all(figures::ALL, options),
            Lab::List => figures::ALL
                .iter()
                .try_for_each(|figure| output::line(&format!("{:<5} {}", figure.id, figure.about))),
        }
    }
}

fn run_all(figures: &[figures::Figure], options: &Options) -> Result<(), Failure> {
    interrupt::watch()?;
    for figure in figures {
        let outcome = run::run(figure, options.seeds, options.operations)?;
        match options.json {
            true => {
                let json = serde_json::to_string(&outcome);
                output::line(&json.expect("numbers and texts"))?;
            }
            false => output::line(&report::text(&outcome))?,
        }
        if let Some(interrupted) = interrupt::failure() {
            return Err(interrupted);
        }
    }
    Ok(())
}
