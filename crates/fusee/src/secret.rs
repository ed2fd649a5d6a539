//! `fusee secret`: makes the secret of a cluster, and keys of it.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use fusee_auth::{Secret, Who};
use fusee_cli::failure::Failure;
use fusee_cli::{output, secret};

/// What to make.
#[derive(Subcommand, Debug)]
pub enum SecretCommand {
    /// Make a secret, once for a cluster: its masters and memory nodes have it
    #[command(after_help = "Example:\n  fusee secret new /etc/fusee/secret\n\n\
        The file is readable for its user only; whoever has it may do everything.\n\n\
        Exit codes: 0 done; 1 the file is there already, or cannot be written; 2 wrong usage.")]
    New {
        /// The file, which must not be there yet
        file: PathBuf,
    },
    /// Make a key of the secret, for programs and tools: it opens less than the secret
    #[command(after_help = "Examples:\n  \
        fusee secret key client app.key --secret /etc/fusee/secret\n  \
        fusee secret key admin operator.key --secret /etc/fusee/secret\n\n\
        With a client's key one can get, put, export and import, and see the status; with an administrator's\n\
        also form, drain, restore and destroy. Servers need the secret itself. A key stays good as long as the\n\
        secret: to take one back, make a new secret.\n\n\
        Exit codes: 0 done; 1 the file is there already, or cannot be written; 2 wrong usage.")]
    Key {
        /// Whose
        of: Of,
        /// The file, which must not be there yet
        file: PathBuf,
    },
}

/// Whose key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Of {
    /// Of programs that use the store
    Client,
    /// Of whoever forms, drains and gives up clusters
    Admin,
}

/// Makes it.
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
                Of::Client => Who::Client,
                Of::Admin => Who::Admin,
            };
            let secret = Secret::read(from).map_err(|error| Failure::usage(error.to_string()))?;
            secret.write_key(who, file).map_err(failed)?;
            output::text(&format!("{}: a key for `{who}`\n", file.display()))
        }
    }
}
