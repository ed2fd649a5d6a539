//! The command line: all commands, and their dispatch.

use clap::{CommandFactory, Parser, Subcommand};
use fusee_bench::Benchmark;
use fusee_cli::failure::{EXIT_CODES, Failure};
use fusee_cli::logging::DefaultVerbosity;
use fusee_cli::manual::{self, CompletionsArgs, ManArgs, completions_examples, man_examples};
use fusee_cli::output;
use fusee_cli::program::{CommonOptions, Conduct};
use fusee_lab::Lab;

use crate::sim;

const EXAMPLES: &str = "Examples:\n  \
    fusee-bench ycsb --workload a     measure, without any server\n  \
    fusee-bench sim --seeds 1000      test the protocol\n  \
    fusee-bench lab list              figures of the papers\n\n";

/// Benchmarks of FUSEE, which verify every value; its simulator, and the papers' evaluations in virtual time
#[derive(Parser, Debug)]
#[command(name = "fusee-bench", version, arg_required_else_help = true, propagate_version = true)]
// If a flag is repeated, its last value applies, so that aliases and scripts can set defaults.
#[command(args_override_self = true)]
#[command(after_help = format!("{EXAMPLES}{EXIT_CODES}"))]
pub struct BenchCli {
    #[command(flatten)]
    pub options: CommonOptions,

    /// Command to run
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// Commands of the program.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    #[command(flatten)]
    Benchmark(Box<Benchmark>),
    /// Repeat the papers' evaluations, on modelled hardware in virtual time
    #[command(subcommand)]
    Lab(Lab),
    /// Test the protocol: simulate whole clusters under faults, each from one seed
    Sim(sim::SimArgs),
    /// Print a shell completion script
    #[command(after_help = completions_examples("fusee-bench"))]
    Completions(CompletionsArgs),
    /// Write manual pages, one for each command
    #[command(after_help = man_examples("fusee-bench", "ycsb"))]
    Man(ManArgs),
}

impl BenchCommand {
    /// Returns the default verbosity of the command's log, and whether a panic ends the process.
    pub fn conduct(&self) -> Conduct {
        let (usual_log, ends_on_panic) = match self {
            BenchCommand::Benchmark(_) => (DefaultVerbosity::Problems, false),
            // Simulated clusters report problems all the time, because the simulator injects faults.
            BenchCommand::Lab(_) | BenchCommand::Sim(_) => (DefaultVerbosity::Nothing, false),
            BenchCommand::Completions(_) | BenchCommand::Man(_) => {
                (DefaultVerbosity::Problems, true)
            }
        };
        Conduct { usual_log, serves: false, ends_on_panic }
    }

    /// Runs the command.
    pub fn run(self) -> Result<(), Failure> {
        match self {
            BenchCommand::Benchmark(benchmark) => benchmark.run(),
            BenchCommand::Lab(lab) => lab.run(),
            BenchCommand::Sim(args) => sim::run(&args),
            BenchCommand::Completions(args) => {
                output::text(&manual::completions(args.shell, BenchCli::command()))
            }
            BenchCommand::Man(args) => manual::man(BenchCli::command(), &args),
        }
    }
}

#[cfg(test)]
mod tests {
    use fusee_testing::manual::expect_examples;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        BenchCli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        expect_examples(&mut BenchCli::command());
    }
}
