//! The one binary: servers, tools, benchmarks and simulator of FUSEE.
//!
//! This crate parses, connects, prints and counts. The protocol is in `fusee-core`, programs import
//! `fusee-client`, the servers are `fusee-master` and `fusee-memory-node`. The benchmarks (`fusee-bench`), the
//! simulator (`fusee-sim`), the lab (`fusee-lab`) and TLS are features, on by default.
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
mod logging;
mod manual;
mod secret;
mod server;
mod shell;
#[cfg(feature = "sim")]
mod sim;
mod status;
mod up;

use std::process::ExitCode;

use fusee_cli::stderr;
use fusee_cli::tls::TlsFiles;

fn main() -> ExitCode {
    let cli = cli::FuseeCli::of_process();
    if let Some(file) = cli.secret {
        fusee_cli::secret::set(file);
    }
    fusee_cli::tls::set(TlsFiles { ca: cli.tls_ca, cert: cli.tls_cert, key: cli.tls_key });
    logging::start(cli.verbose, cli.command.default_verbosity(), cli.command.serves());
    if cli.command.ends_on_panic() {
        logging::panics::exit_on_panic();
    }
    let went = cli.command.run(cli.verbose);
    logging::end();
    match went {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            stderr::tell(&format!("error: {failure}"));
            failure.exit_code()
        }
    }
}
