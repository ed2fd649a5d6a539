//! `fusee config`: checks files of settings, and shows the settings that a server would use.
//!
//! Both use the servers' own definitions of their settings, so they accept exactly what a server accepts.

mod check;
mod show;

use clap::{Subcommand, ValueEnum};
use fusee_cli::failure::Failure;

use crate::server::settings::ServerSettings;
use crate::server::{master, memory_node, switch};

/// Subcommands of `fusee config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Check a server's file of settings, and report every mistake with its place
    Check(check::ConfigCheckArgs),
    /// Show the settings that a server would start with, and the origin of each
    Show(show::ConfigShowArgs),
}

/// Runs `fusee config`.
pub fn run(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(args) => check::run(args),
        ConfigCommand::Show(args) => show::run(args),
    }
}

/// A server that has settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServerKind {
    /// `fusee master`
    Master,
    /// `fusee memory-node`
    MemoryNode,
    /// `fusee switch`
    Switch,
}

/// A question about the settings of a server, which can be any of the three.
trait SettingsQuery {
    type Answer;
    fn of<S: ServerSettings>(self) -> Self::Answer;
}

impl ServerKind {
    fn answer<A: SettingsQuery>(self, about: A) -> A::Answer {
        match self {
            ServerKind::Master => about.of::<master::MasterServerSettings>(),
            ServerKind::MemoryNode => about.of::<memory_node::MemoryNodeSettings>(),
            ServerKind::Switch => about.of::<switch::SwitchSettings>(),
        }
    }
}
