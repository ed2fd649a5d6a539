//! Parts of every program: the options of all commands, the log, and the exit code.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, FromArgMatches};

use crate::failure::Failure;
use crate::logging::{self, DefaultVerbosity};
use crate::tls::TlsFiles;
use crate::{secret, stderr, tls};

/// Options of all commands.
#[derive(clap::Args, Debug)]
pub struct CommonOptions {
    /// Log more; twice for even more. RUST_LOG, if set, overrides it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// File of the cluster's secret, or of a key derived from it (`fusee secret`); servers need the secret itself
    #[arg(long, global = true, env = secret::VARIABLE, value_name = "FILE")]
    secret: Option<PathBuf>,

    /// Use TLS; PEM file of the CA certificates that sign servers
    #[arg(long, global = true, env = tls::CA, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// For servers: PEM file of their certificate, followed by any intermediate certificates
    #[arg(long, global = true, env = tls::CERT, value_name = "FILE", hide_short_help = true)]
    tls_cert: Option<PathBuf>,

    /// For servers: PEM file of the certificate's private key
    #[arg(long, global = true, env = tls::KEY, value_name = "FILE", hide_short_help = true)]
    tls_key: Option<PathBuf>,
}

/// The properties of a command: what it logs, whether it is a server, and whether a panic ends its process.
#[derive(Clone, Copy, Debug)]
pub struct Conduct {
    /// The lines that the command logs by default.
    pub usual_log: DefaultVerbosity,
    /// Whether the command is a server: it runs until it is stopped, and other processes depend on it.
    pub serves: bool,
    /// Whether a panic in any thread ends the process. Tools that run servers inside their own process handle panics.
    pub ends_on_panic: bool,
}

/// Parses the command line of this process. If it is invalid, prints a message and ends the process. `explained` adds
/// what the program knows about the mistake.
pub fn parse<C>(explained: impl FnOnce(clap::Error) -> clap::Error) -> C
where
    C: CommandFactory + FromArgMatches,
{
    let matches = without_empty_variables(C::command()).try_get_matches();
    let parsed = matches.and_then(|matches| C::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| explained(error).exit())
}

/// Makes all subcommands ignore environment variables with empty values.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    let command =
        command.mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg });
    command.mut_subcommands(without_empty_variables)
}

/// Runs the command of this process and returns the exit code.
pub fn run(
    options: CommonOptions,
    conduct: Conduct,
    command: impl FnOnce() -> Result<(), Failure>,
) -> ExitCode {
    let CommonOptions { verbose, secret, tls_ca, tls_cert, tls_key } = options;
    if let Some(file) = secret {
        secret::set(file);
    }
    tls::set(TlsFiles { ca: tls_ca, cert: tls_cert, key: tls_key });
    logging::start(verbose, conduct.usual_log, conduct.serves);
    if conduct.ends_on_panic {
        logging::panics::exit_on_panic();
    }
    let went = command();
    logging::end();
    match went {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            stderr::tell(&format!("error: {failure}"));
            failure.exit_code()
        }
    }
}
