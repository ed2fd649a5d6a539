//! The command line: which commands there are, and who carries them out.

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use fusee_cli::failure::{EXIT_CODES, Failure};
use fusee_cli::{secret, tls};

use crate::logging::Usual;
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
// The last of several counts, so that aliases and scripts can set defaults.
#[command(args_override_self = true)]
#[command(after_help = format!("{EXAMPLES}{BENCH_EXAMPLE}\n{EXIT_CODES}"))]
pub struct Cli {
    /// Log more; twice for even more. RUST_LOG, if set, decides instead
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// The file of the cluster's secret, or of a key of it (`fusee secret`); servers need the secret itself
    #[arg(long, global = true, env = secret::VARIABLE, value_name = "FILE")]
    pub secret: Option<PathBuf>,

    /// Speak TLS: the file of the certificates of the authorities (PEM) that servers' certificates have to be of
    #[arg(long, global = true, env = tls::CA, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// For servers: the file of their certificate (PEM), and of those between that and its authority's
    #[arg(long, global = true, env = tls::CERT, value_name = "FILE", hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,

    /// For servers: the file of the key of that certificate (PEM)
    #[arg(long, global = true, env = tls::KEY, value_name = "FILE", hide_short_help = true)]
    pub tls_key: Option<PathBuf>,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What other stores call commands.
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

/// What a command is called here that other stores call so.
pub fn known_as(name: &str) -> Option<&'static str> {
    SYNONYMS.iter().find(|(other, _)| *other == name).map(|(_, known)| *known)
}

impl Cli {
    /// Of this process. What makes no sense ends it, with a message.
    pub fn of_process() -> Cli {
        let matches = without_empty_variables(Cli::command()).try_get_matches();
        let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
        cli.unwrap_or_else(|error| with_synonym(error).exit())
    }
}

/// A variable that is set to nothing says nothing, whichever it is.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    let command =
        command.mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg });
    command.mut_subcommands(without_empty_variables)
}

/// Names the command that was meant, where its name is like no other.
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

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a master and memory nodes on this machine, to play with, until Ctrl-C
    Up(up::Args),
    /// Run a master
    Master(Box<server::master::Args>),
    /// Run a memory node
    MemoryNode(server::memory_node::Args),
    /// Run a switch in the path from clients to memory nodes
    Switch(server::switch::Args),
    /// Check the settings of a server, or show them
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Form a new cluster: once, after its master was started over an empty store
    Form(form::Args),
    /// Make the secret of a cluster, or a key of it
    #[command(subcommand)]
    Secret(crate::secret::SecretCommand),
    /// Give a cluster up, with all that it holds; shows what that is, unless it is told more
    Destroy(destroy::Args),
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
    /// Say how values survive failures, or change it
    #[command(subcommand)]
    Redundancy(kv::RedundancyCommand),
    /// Print all keys, or those with a prefix
    Keys(backup::keys::KeysArgs),
    /// Count all pairs, or those with a prefix
    Count(backup::keys::CountArgs),
    /// Write all pairs into a file, while others read and write
    Export(backup::export::Args),
    /// Read the pairs of an export into this cluster
    Import(backup::import::Args),
    /// Form a cluster after a stop of everything, with the pairs of an export
    Restore(backup::restore::Args),
    /// Type commands, one a line
    Shell(shell::Args),
    /// Show the cluster's memory nodes, addresses, usage and sessions
    Status(status::Args),
    /// Show what happened to the cluster: joins, losses, repairs, drains, splits, expired sessions
    Events(events::Args),
    /// Take a memory node out of the cluster: what it holds moves to others first
    Drain(drain::Args),
    /// Measure, and verify every value on the way
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(fusee_bench::Benchmark),
    /// Run the papers' evaluations again, on modelled hardware in virtual time
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(fusee_lab::Lab),
    /// Attack the protocol: whole clusters under simulated faults, from one seed each
    #[cfg(feature = "sim")]
    Sim(crate::sim::Args),
    /// Print a script that has a shell complete these commands
    Completions(manual::CompletionsArgs),
    /// Write manual pages, one for each command
    Man(manual::ManArgs),
}

impl Command {
    /// What it logs by itself.
    pub fn usual_log(&self) -> Usual {
        match self {
            Command::Master(_) | Command::MemoryNode(_) | Command::Switch(_) => Usual::Everything,
            #[cfg(feature = "lab")]
            Command::Lab(_) => Usual::Nothing,
            #[cfg(feature = "sim")]
            Command::Sim(_) => Usual::Nothing,
            _ => Usual::Problems,
        }
    }

    /// Whether it runs until it is told to stop, and others need it.
    pub fn serves(&self) -> bool {
        match self {
            Command::Up(_) | Command::Master(_) | Command::MemoryNode(_) | Command::Switch(_) => {
                true
            }
            Command::Export(args) => args.repeats(),
            _ => false,
        }
    }

    /// Whether a panic in one of its threads ends it. Tools that run the store inside of themselves look at panics.
    pub fn ends_with_its_parts(&self) -> bool {
        match self {
            #[cfg(feature = "bench")]
            Command::Bench(_) => false,
            #[cfg(feature = "lab")]
            Command::Lab(_) => false,
            #[cfg(feature = "sim")]
            Command::Sim(_) => false,
            _ => true,
        }
    }

    /// Does it.
    pub fn run(self, verbose: u8) -> Result<(), Failure> {
        match self {
            Command::Up(args) => up::run(&args, verbose),
            Command::Master(args) => server::master::run(*args),
            Command::MemoryNode(args) => server::memory_node::run(args),
            Command::Switch(args) => server::switch::run(args),
            Command::Config(command) => config::run(&command),
            Command::Form(args) => form::run(&args),
            Command::Secret(command) => crate::secret::run(&command),
            Command::Destroy(args) => destroy::run(&args),
            Command::Get(args) => kv::get(&args),
            Command::Insert(args) => kv::write(kv::Write::Insert, &args),
            Command::Update(args) => kv::write(kv::Write::Update, &args),
            Command::Put(args) => kv::write(kv::Write::Put, &args),
            Command::Delete(args) => kv::delete(&args),
            Command::Redundancy(command) => kv::redundancy(&command),
            Command::Keys(args) => backup::keys::keys(&args),
            Command::Count(args) => backup::keys::count(&args),
            Command::Export(args) => backup::export::run(&args),
            Command::Import(args) => backup::import::run(&args),
            Command::Restore(args) => backup::restore::run(&args),
            Command::Shell(args) => shell::run(&args),
            Command::Status(args) => status::run(&args),
            Command::Events(args) => events::run(&args),
            Command::Drain(args) => drain::run(&args),
            #[cfg(feature = "bench")]
            Command::Bench(benchmark) => benchmark.run(),
            #[cfg(feature = "lab")]
            Command::Lab(lab) => lab.run(),
            #[cfg(feature = "sim")]
            Command::Sim(args) => crate::sim::run(&args),
            Command::Completions(args) => manual::completions(&args),
            Command::Man(args) => manual::man(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_of_other_stores_lead_to_commands() {
        let commands: Vec<String> =
            Cli::command().get_subcommands().map(|command| command.get_name().into()).collect();
        for (other, known) in SYNONYMS {
            assert!(commands.iter().any(|name| name == known), "{known}");
            assert!(commands.iter().all(|name| name != other), "{other}");
            let error = Cli::try_parse_from(["fusee", other, "x"]).unwrap_err();
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
        check(&mut Cli::command());
    }
}
