//! Files that a package ships beside a program: completions and manual pages.
//!
//! They are generated from the definition of the command line, so they match the program.

use std::io;
use std::path::PathBuf;

use clap::Command;
pub use clap_complete::Shell;

use crate::failure::Failure;

/// Arguments of `completions`.
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// The shell that completes commands
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// An existing directory; files of the same names are replaced
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Returns the examples of `completions` for a program.
pub fn completions_examples(program: &str) -> String {
    format!(
        "Examples:\n  \
        {program} completions bash > ~/.local/share/bash-completion/completions/{program}\n  \
        {program} completions zsh > ~/.zfunc/_{program}\n  \
        {program} completions fish > ~/.config/fish/completions/{program}.fish"
    )
}

/// Returns the examples of `man` for a program and one of its commands.
pub fn man_examples(program: &str, command: &str) -> String {
    format!(
        "Examples:\n  \
        {program} man ~/.local/share/man/man1\n  \
        {program} man . && man ./{program}-{command}.1"
    )
}

/// Returns a script that completes the commands of a program.
pub fn completions(shell: Shell, mut program: Command) -> String {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a manual page for every command of a program.
pub fn man(program: Command, args: &ManArgs) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::operation(format!("cannot write into {}: {error}", args.directory.display()))
    };
    clap_mangen::generate_to(whole(program), &args.directory).map_err(failed)
}

/// Unhides all options: one that `-h` leaves out would have no text in its manual page.
fn whole(command: Command) -> Command {
    command.mut_args(|arg| arg.hide_short_help(false)).mut_subcommands(whole)
}
