//! The command line: the definition of all commands, and the call of the chosen one.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use fusee_cli::failure::{EXIT_CODES, Failure};
use fusee_cli::logging::DefaultVerbosity;
use fusee_cli::manual::{CompletionsArgs, ManArgs, completions_examples, man_examples};
use fusee_cli::program::{self, CommonOptions, Conduct};

use crate::{backup, config, destroy, drain, events, form, kv, manual, server, shell, status, up};

const EXAMPLES: &str = "Examples:\n  \
    fusee up                          start a cluster on this machine to play with\n  \
    fusee put greeting hello          in another terminal\n  \
    fusee get greeting\n\n\
Benchmarks and the simulator are another program: fusee-bench.\n\n";

/// FUSEE: a key-value store whose memory nodes only lend memory
#[derive(Parser, Debug)]
#[command(name = "fusee", version, arg_required_else_help = true, propagate_version = true)]
// If a flag is repeated, its last value is used, so that aliases and scripts can set defaults.
#[command(args_override_self = true)]
#[command(after_help = format!("{EXAMPLES}{EXIT_CODES}"))]
pub struct FuseeCli {
    #[command(flatten)]
    pub options: CommonOptions,

    /// Command to run
    #[command(subcommand)]
    pub command: FuseeCommand,
}

/// Names of commands in other stores, each with the command's name here.
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

/// Commands of the program `fusee-bench`.
const OF_BENCHMARKS: [&str; 3] = ["bench", "lab", "sim"];

/// Returns the name of the command that other stores call `name`.
pub fn known_as(name: &str) -> Option<&'static str> {
    SYNONYMS.iter().find(|(other, _)| *other == name).map(|(_, known)| *known)
}

impl FuseeCli {
    /// Parses the command line of this process. If it is invalid, prints a message and ends the process.
    pub fn of_process() -> FuseeCli {
        program::parse(with_suggestion)
    }
}

/// Adds a suggestion to the error about an unknown command. If other stores have a command of this name, the suggestion
/// is our command with the same meaning, which clap does not find because the names differ too much. If the command is
/// one of `fusee-bench`, the suggestion is that program.
fn with_suggestion(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
    {
        if let Some(known) = known_as(name) {
            let known = ContextValue::Strings(vec![known.into()]);
            error.insert(ContextKind::SuggestedSubcommand, known);
        } else if OF_BENCHMARKS.contains(&name.as_str()) {
            let other = "benchmarks, lab and simulator are another program: fusee-bench --help";
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![other.into()]));
        }
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
    /// Print a shell completion script
    #[command(after_help = completions_examples("fusee"))]
    Completions(CompletionsArgs),
    /// Write manual pages, one for each command
    #[command(after_help = man_examples("fusee", "memory-node"))]
    Man(ManArgs),
}

impl FuseeCommand {
    /// Returns the command's properties for the code that runs it (see [`Conduct`]).
    pub fn conduct(&self) -> Conduct {
        let usual_log = match self {
            FuseeCommand::Master(_) | FuseeCommand::MemoryNode(_) | FuseeCommand::Switch(_) => {
                DefaultVerbosity::Everything
            }
            _ => DefaultVerbosity::Problems,
        };
        let serves = match self {
            FuseeCommand::Up(_)
            | FuseeCommand::Master(_)
            | FuseeCommand::MemoryNode(_)
            | FuseeCommand::Switch(_) => true,
            FuseeCommand::Export(args) => args.repeats(),
            _ => false,
        };
        Conduct { usual_log, serves, ends_on_panic: true }
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
            FuseeCommand::Completions(args) => manual::completions(&args),
            FuseeCommand::Man(args) => manual::man(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use fusee_testing::manual::expect_examples;

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
            let says = with_suggestion(error).to_string();
            assert!(says.contains(&format!("'{known}'")), "{says}");
        }
    }

    #[test]
    fn commands_of_the_other_program_lead_to_it() {
        for name in OF_BENCHMARKS {
            let error = FuseeCli::try_parse_from(["fusee", name, "x"]).unwrap_err();
            let says = with_suggestion(error).to_string();
            assert!(says.contains("fusee-bench"), "{says}");
        }
    }

    #[test]
    fn every_command_has_an_example() {
        expect_examples(&mut FuseeCli::command());
    }
}
