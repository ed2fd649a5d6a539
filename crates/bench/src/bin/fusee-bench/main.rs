//! The program `fusee-bench`: benchmarks, lab and simulator.
//!
//! The benchmarks are in `fusee_bench`, the lab is in `fusee-lab`, and the simulator is in `fusee-sim`; this program is
//! their command line. Servers that a benchmark starts run the program `fusee`, which lies in the same directory.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // These macros panic if the output is closed.

mod cli;
mod sim;

use std::process::ExitCode;

use fusee_cli::program;

fn main() -> ExitCode {
    let cli::BenchCli { options, command } = program::parse(|error| error);
    program::run(options, command.conduct(), || command.run())
}
