//! `fusee config`: checks files of settings, and shows the settings in force.
//!
//! Both use the servers' own declarations of their settings, so they accept exactly what a server accepts.

mod check;
mod show;

use clap::{Subcommand, ValueEnum};
use fusee_cli::failure::Failure;

use crate::server::settings::Settings;
use crate::server::{master, memory_node, switch};

/// Subcommands of `fusee config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Check a server's file of settings, and report every mistake with its place
    Check(check::Args),
    /// Show the settings that a server would start with, and the origin of each
    Show(show::Args),
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
enum Server {
    /// `fusee master`
    Master,
    /// `fusee memory-node`
    MemoryNode,
    /// `fusee switch`
    Switch,
}

/// A question about the settings of any server.
trait About {
    type Answer;
    fn of<S: Settings>(self) -> Self::Answer;
}

impl Server {
    fn answer<A: About>(self, about: A) -> A::Answer {
        match self {
            Server::Master => about.of::<master::Settings>(),
            Server::MemoryNode => about.of::<memory_node::Settings>(),
            Server::Switch => about.of::<switch::Settings>(),
        }
    }
}
