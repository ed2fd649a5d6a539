//! `fusee config`: checks files of settings, and shows what is in force.
//!
//! Both know of a server's settings what its command line and its file know, and nothing else.

mod check;
mod show;

use clap::{Subcommand, ValueEnum};
use fusee_cli::failure::Failure;

use crate::server::settings::Settings;
use crate::server::{master, memory_node, switch};

/// What to do.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Check the file of a server: every mistake is named with its place
    Check(check::Args),
    /// Show the settings that a server would be started with, and where each comes from
    Show(show::Args),
}

/// Does it.
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

/// Something about the settings of whichever server.
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
