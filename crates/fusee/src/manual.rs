//! `fusee completions` and `fusee man`: what a package ships beside the program.
//!
//! Both are made from the command line itself, so they say what this build knows and nothing else.

use std::io;
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use fusee_cli::failure::Failure;
use fusee_cli::output;

use crate::cli::Cli;

/// For which shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee completions bash > ~/.local/share/bash-completion/completions/fusee\n  \
    fusee completions zsh > ~/.zfunc/_fusee\n  \
    fusee completions fish > ~/.config/fish/completions/fusee.fish")]
pub struct CompletionsArgs {
    /// The shell that completes commands
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Where manual pages go.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee man ~/.local/share/man/man1\n  \
    fusee man . && man ./fusee-memory-node.1")]
pub struct ManArgs {
    /// An existing directory; files of the same names are replaced
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints a script that completes commands.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fusee", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for every command.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::operation(format!("cannot write into {}: {error}", args.directory.display()))
    };
    clap_mangen::generate_to(whole(Cli::command()), &args.directory).map_err(failed)
}

/// What `-h` leaves out has a text in a page, which would lack it.
fn whole(command: Command) -> Command {
    command.mut_args(|arg| arg.hide_short_help(false)).mut_subcommands(whole)
}
