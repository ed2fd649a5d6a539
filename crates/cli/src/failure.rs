//! Failures of commands: a message for people, and an exit code for scripts.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the operation failed, or had nothing to find |
//! | 2 | the command line, a configuration file or the environment makes no sense |
//! | 3 | the cluster cannot be reached |
//! | 130 | interrupted; 128 and the number of the signal |
//!
//! A message goes to standard error, and names the cause and the next step.

use std::fmt;
use std::io;
use std::process::ExitCode;

use fusee_client::{ConnectError, ReadError, ScanError, WriteError};

/// The exit codes, for `--help`.
pub const EXIT_CODES: &str = "Exit codes: 0 done; 1 the operation failed or found nothing; \
2 wrong usage or configuration; 3 the cluster cannot be reached; 130 interrupted.";

/// The failure of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Returns the failure of an operation.
    pub fn operation(message: impl Into<String>) -> Failure {
        Failure { code: 1, message: message.into() }
    }

    /// Returns the failure of a command that was used wrongly.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { code: 2, message: message.into() }
    }

    /// Returns the failure of a command that cannot reach the cluster.
    pub fn unreachable(message: impl Into<String>) -> Failure {
        Failure { code: 3, message: message.into() }
    }

    /// Returns the failure of a command that a signal interrupted, with this exit code.
    pub fn interrupted(code: u8) -> Failure {
        Failure { code, message: "interrupted".into() }
    }

    /// Returns the failure of a command, with the exit code of a process that it started.
    pub fn of(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// Returns the exit code as a number.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Returns the exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::operation(error.to_string())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        Failure::unreachable(error.to_string())
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        let message = error.to_string();
        let is_unreachable = matches!(error, ReadError::NoSession { .. });
        if is_unreachable { Failure::unreachable(message) } else { Failure::operation(message) }
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Failure {
        let message = error.to_string();
        let is_unreachable = matches!(error, WriteError::NoSession { .. });
        if is_unreachable { Failure::unreachable(message) } else { Failure::operation(message) }
    }
}

impl From<ScanError> for Failure {
    fn from(error: ScanError) -> Failure {
        let message = error.to_string();
        let is_unreachable = matches!(error, ScanError::NoSession { .. });
        if is_unreachable { Failure::unreachable(message) } else { Failure::operation(message) }
    }
}
