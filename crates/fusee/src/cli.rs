//! The command line: all commands, and their dispatch.

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use fusee_cli::failure::{EXIT_CODES, Failure};
use fusee_cli::{secret, tls};

use crate::logging::DefaultVerbosity;
use crate::{backup, config, destroy, drain, events, form, kv, manual, server, shell, status, up};

const EXAMPLES: &str = "Examples:\n  \
    fusee up                          start a cluster on this machine to play with\n  \
    fusee put greeting hello          in another terminal\n  \
    fusee get greeting\n";
const BENCH_EXAMPLE: &str = if cfg!(feature = "bench") {
    "  fusee bench ycsb --workload a     measure, without any server\n"
} else {
    ""
};

/// FUSEE: a key-value store whose memory nodes only lend memory
#[derive(Parser, Debug)]
#[command(name = "fusee", version, arg_required_else_help = true, propagate_version = true)]
// The last of repeated flags counts, so that aliases and scripts can set defaults.
#[command(args_override_self = true)]
#[command(after_help = format!("{EXAMPLES}{BENCH_EXAMPLE}\n{EXIT_CODES}"))]
pub struct FuseeCli {
    /// Log more; twice for even more. RUST_LOG, if set, overrides it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// File of the cluster's secret, or of a key derived from it (`fusee secret`); servers need the secret itself
    #[arg(long, global = true, env = secret::VARIABLE, value_name = "FILE")]
    pub secret: Option<PathBuf>,

    /// Use TLS; PEM file of the CA certificates that sign servers
    #[arg(long, global = true, env = tls::CA, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// For servers: PEM file of their certificate, followed by any intermediate certificates
    #[arg(long, global = true, env = tls::CERT, value_name = "FILE", hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,

    /// For servers: PEM file of the certificate's private key
    #[arg(long, global = true, env = tls::KEY, value_name = "FILE", hide_short_help = true)]
    pub tls_key: Option<PathBuf>,

    /// Command to run
    #[command(subcommand)]
    pub command: FuseeCommand,
}

/// Names that other stores give to commands, with the names here.
const SYNONYMS: [(&str, &str); 11] = [
    ("set", "put"),
    ("add", "insert"),
    ("del", "delete"),
    ("remove", "delete"),
    ("rm", "delete"),
    ("scan", "keys"),
    ("ls", "keys"),
    ("stats", "status"),
    ("info", "status"),
    ("start", "up"),
    ("backup", "export"),
];

/// Returns the command that other stores call `name`.
pub fn known_as(name: &str) -> Option<&'static str> {
    SYNONYMS.iter().find(|(other, _)| *other == name).map(|(_, known)| *known)
}

impl FuseeCli {
    /// Parses the command line of this process. An invalid one ends the process with a message.
    pub fn of_process() -> FuseeCli {
        let matches = without_empty_variables(FuseeCli::command()).try_get_matches();
        let cli = matches.and_then(|matches| FuseeCli::from_arg_matches(&matches));
        cli.unwrap_or_else(|error| with_synonym(error).exit())
    }
}

/// Ignores environment variables with empty values, in all subcommands.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    let command =
        command.mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg });
    command.mut_subcommands(without_empty_variables)
}

/// Suggests the command for a name of another store, which is too unlike ours for clap to suggest it.
fn with_synonym(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(known) = known_as(name)
    {
        let known = ContextValue::Strings(vec![known.into()]);
        error.insert(ContextKind::SuggestedSubcommand, known);
    }
    error
}

/// Commands of the program.
#[derive(Subcommand, Debug)]
pub enum FuseeCommand {
    /// Start a master and memory nodes on this machine, to play with, until Ctrl-C
    Up(up::UpArgs),
    /// Run a master
    Master(Box<server::master::MasterArgs>),
    /// Run a memory node
    MemoryNode(server::memory_node::MemoryNodeArgs),
    /// Run a switch in the path from clients to memory nodes
    Switch(server::switch::SwitchArgs),
    /// Check the settings of a server, or show them
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Form a new cluster, once, after its master was started with an empty store
    Form(form::FormArgs),
    /// Create the secret of a cluster, or a key derived from it
    #[command(subcommand)]
    Secret(crate::secret::SecretCommand),
    /// Destroy a cluster with all its data; without options only show what would be lost
    Destroy(destroy::DestroyArgs),
    /// Print the value of a key
    Get(kv::GetArgs),
    /// Add a key that does not exist
    Insert(kv::WriteArgs),
    /// Replace the value of a key that exists
    Update(kv::WriteArgs),
    /// Add a key, or replace its value
    Put(kv::WriteArgs),
    /// Remove a key that exists
    Delete(kv::DeleteArgs),
    /// Show or change how values survive failures
    #[command(subcommand)]
    Redundancy(kv::RedundancyCommand),
    /// Print all keys, or those with a prefix
    Keys(backup::keys::KeysArgs),
    /// Count all pairs, or those with a prefix
    Count(backup::keys::CountArgs),
    /// Write all pairs to a file, while clients read and write
    Export(backup::export::ExportArgs),
    /// Write the pairs of an export into this cluster
    Import(backup::import::ImportArgs),
    /// Form a new cluster from an export, after everything has stopped
    Restore(backup::restore::RestoreArgs),
    /// Run commands from a prompt, one a line
    Shell(shell::ShellArgs),
    /// Show the cluster's memory nodes, addresses, usage and sessions
    Status(status::StatusArgs),
    /// Show what happened to the cluster: joins, losses, repairs, drains, splits, expired sessions
    Events(events::EventsArgs),
    /// Take a memory node out of the cluster, after its data has moved to others
    Drain(drain::DrainArgs),
    /// Run benchmarks, which verify every value
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(fusee_bench::Benchmark),
    /// Repeat the papers' evaluations, on modelled hardware in virtual time
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(fusee_lab::Lab),
    /// Test the protocol: simulate whole clusters under faults, each from one seed
    #[cfg(feature = "sim")]
    Sim(crate::sim::SimArgs),
    /// Print a shell completion script
    Completions(manual::CompletionsArgs),
    /// Write manual pages, one for each command
    Man(manual::ManArgs),
}

impl FuseeCommand {
    /// Returns what the command logs by default.
    pub fn default_verbosity(&self) -> DefaultVerbosity {
        match self {
            FuseeCommand::Master(_) | FuseeCommand::MemoryNode(_) | FuseeCommand::Switch(_) => {
                DefaultVerbosity::Everything
            }
            #[cfg(feature = "lab")]
            FuseeCommand::Lab(_) => DefaultVerbosity::Nothing,
            #[cfg(feature = "sim")]
            FuseeCommand::Sim(_) => DefaultVerbosity::Nothing,
            _ => DefaultVerbosity::Problems,
        }
    }

    /// Whether the command runs until it is stopped, and other processes depend on it.
    pub fn serves(&self) -> bool {
        match self {
            FuseeCommand::Up(_)
            | FuseeCommand::Master(_)
            | FuseeCommand::MemoryNode(_)
            | FuseeCommand::Switch(_) => true,
            FuseeCommand::Export(args) => args.repeats(),
            _ => false,
        }
    }

    /// Whether a panic in any thread ends the process. Tools that run the store inside themselves handle panics.
    pub fn ends_on_panic(&self) -> bool {
        match self {
            #[cfg(feature = "bench")]
            FuseeCommand::Bench(_) => false,
            #[cfg(feature = "lab")]
            FuseeCommand::Lab(_) => false,
            #[cfg(feature = "sim")]
            FuseeCommand::Sim(_) => false,
            _ => true,
        }
    }

    /// Runs the command.
    pub fn run(self, verbose: u8) -> Result<(), Failure> {
        match self {
            FuseeCommand::Up(args) => up::run(&args, verbose),
            FuseeCommand::Master(args) => server::master::run(*args),
            FuseeCommand::MemoryNode(args) => server::memory_node::run(args),
            FuseeCommand::Switch(args) => server::switch::run(args),
            FuseeCommand::Config(command) => config::run(&command),
            FuseeCommand::Form(args) => form::run(&args),
            FuseeCommand::Secret(command) => crate::secret::run(&command),
            FuseeCommand::Destroy(args) => destroy::run(&args),
            FuseeCommand::Get(args) => kv::get(&args),
            FuseeCommand::Insert(args) => kv::write(kv::WriteKind::Insert, &args),
            FuseeCommand::Update(args) => kv::write(kv::WriteKind::Update, &args),
            FuseeCommand::Put(args) => kv::write(kv::WriteKind::Put, &args),
            FuseeCommand::Delete(args) => kv::delete(&args),
            FuseeCommand::Redundancy(command) => kv::redundancy(&command),
            FuseeCommand::Keys(args) => backup::keys::keys(&args),
            FuseeCommand::Count(args) => backup::keys::count(&args),
            FuseeCommand::Export(args) => backup::export::run(&args),
            FuseeCommand::Import(args) => backup::import::run(&args),
            FuseeCommand::Restore(args) => backup::restore::run(&args),
            FuseeCommand::Shell(args) => shell::run(&args),
            FuseeCommand::Status(args) => status::run(&args),
            FuseeCommand::Events(args) => events::run(&args),
            FuseeCommand::Drain(args) => drain::run(&args),
            #[cfg(feature = "bench")]
            FuseeCommand::Bench(benchmark) => benchmark.run(),
            #[cfg(feature = "lab")]
            FuseeCommand::Lab(lab) => lab.run(),
            #[cfg(feature = "sim")]
            FuseeCommand::Sim(args) => crate::sim::run(&args),
            FuseeCommand::Completions(args) => manual::completions(&args),
            FuseeCommand::Man(args) => manual::man(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        FuseeCli::command().debug_assert();
    }

    #[test]
    fn names_of_other_stores_lead_to_commands() {
        let commands: Vec<String> = FuseeCli::command()
            .get_subcommands()
            .map(|command| command.get_name().into())
            .collect();
        for (other, known) in SYNONYMS {
            assert!(commands.iter().any(|name| name == known), "{known}");
            assert!(commands.iter().all(|name| name != other), "{other}");
            let error = FuseeCli::try_parse_from(["fusee", other, "x"]).unwrap_err();
            let says = with_synonym(error).to_string();
            assert!(says.contains(&format!("'{known}'")), "{says}");
        }
    }

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &mut clap::Command) {
            if command.get_subcommands().next().is_none() {
                let help = command.render_long_help().to_string();
                assert!(help.contains("Example"), "{}", command.get_name());
            }
            command.get_subcommands_mut().for_each(check);
        }
        check(&mut FuseeCli::command());
    }
}
