//! The program `fusee`: servers and tools.
//!
//! This crate parses, connects, prints and counts. The protocol is in `fusee-core`. Programs that use the store import
//! `fusee-client`. The servers are in `fusee-master` and `fusee-memory-node`. Benchmarks, lab and simulator are another
//! program, `fusee-bench`. TLS is a Cargo feature that is on by default.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // These macros panic if the output is closed.

mod backup;
mod cli;
mod config;
mod demote;
mod destroy;
mod drain;
mod events;
mod form;
mod http;
mod kv;
mod manual;
mod secret;
mod server;
mod shell;
mod status;
mod up;

use std::process::ExitCode;

use fusee_cli::program;

fn main() -> ExitCode {
    let cli::FuseeCli { options, command } = cli::FuseeCli::of_process();
    let verbose = options.verbose;
    program::run(options, command.conduct(), || command.run(verbose))
}
