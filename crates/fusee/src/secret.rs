//! `fusee secret`: creates the secret of a cluster, and keys derived from it.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use fusee_auth::{PeerKind, Secret};
use fusee_cli::failure::Failure;
use fusee_cli::{output, secret};

/// Subcommands of `fusee secret`.
#[derive(Subcommand, Debug)]
pub enum SecretCommand {
    /// Create a secret, once for a cluster; its masters and memory nodes need it
    #[command(after_help = "Example:\n  fusee secret new /etc/fusee/secret\n\n\
        The file is readable for its user only; whoever has it may do everything.\n\n\
        Exit codes: 0 done; 1 the file is there already, or cannot be written; 2 wrong usage.")]
    New {
        /// File to write, which must not exist
        file: PathBuf,
    },
    /// Derive a key from the secret, with fewer rights, for programs and tools
    #[command(after_help = "Examples:\n  \
        fusee secret key client app.key --secret /etc/fusee/secret\n  \
        fusee secret key admin operator.key --secret /etc/fusee/secret\n\n\
        With a client's key one can get, put, export and import, and see the status; with an administrator's\n\
        also form, drain, restore and destroy. Servers need the secret itself. A key stays good as long as the\n\
        secret: to take one back, make a new secret.\n\n\
        Exit codes: 0 done; 1 the file is there already, or cannot be written; 2 wrong usage.")]
    Key {
        /// Kind of key
        of: DerivedKeyKind,
        /// File to write, which must not exist
        file: PathBuf,
    },
}

/// Kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DerivedKeyKind {
    /// For programs that use the store
    Client,
    /// For operators: it also allows forming, draining and destroying clusters
    Admin,
}

/// Runs `fusee secret`.
pub fn run(command: &SecretCommand) -> Result<(), Failure> {
    let failed = |error: fusee_auth::KeyError| Failure::operation(error.to_string());
    match command {
        SecretCommand::New { file } => {
            Secret::random().and_then(|secret| secret.write(file)).map_err(failed)?;
            output::text(&format!(
                "{}: a new secret; name it to every server with --secret, or FUSEE_SECRET\n",
                file.display()
            ))
        }
        SecretCommand::Key { of, file } => {
            let Some(from) = secret::file() else {
                return Err(Failure::usage("name the file of the secret with --secret"));
            };
            let who = match of {
                DerivedKeyKind::Client => PeerKind::Client,
                DerivedKeyKind::Admin => PeerKind::Admin,
            };
            let secret = Secret::read(from).map_err(|error| Failure::usage(error.to_string()))?;
            secret.write_key(who, file).map_err(failed)?;
            output::text(&format!("{}: a key for `{who}`\n", file.display()))
        }
    }
}
