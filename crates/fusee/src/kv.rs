//! `fusee get`, `insert`, `update`, `put`, `delete`: one operation each.
//!
//! Values pass unchanged, byte by byte: `fusee get k > file` and `fusee put k --value-file file` are inverse. Only on a
//! terminal `get` adds a line break.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Read, stdin, stdout};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_client::{PutOptions, Redundancy, Transition, WriteError};

use crate::demote;

/// A key on the command line.
#[derive(Args, Clone, Debug)]
pub struct KeyArgs {
    /// The key, as text or any bytes that the shell passes
    key: OsString,

    /// Read the key as hexadecimal digits, like 00ff2a
    #[arg(long)]
    hex: bool,
}

impl KeyArgs {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        if !self.hex {
            return Ok(self.key.as_bytes().to_vec());
        }
        from_hex(&self.shown()).ok_or_else(|| {
            Failure::usage(format!("`{}` is no even number of hexadecimal digits", self.shown()))
        })
    }

    /// Returns the key as text, for messages.
    fn shown(&self) -> String {
        self.key.to_string_lossy().into_owned()
    }
}

/// Arguments of `fusee get`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  fusee get greeting\n  fusee get --hex 00ff2a > value.bin\n\n\
    Exit code 1 if there is no such key.")]
pub struct GetArgs {
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `fusee put`, `insert` and `update`.
#[derive(Args, Debug)]
#[command(after_help = "Examples (put, insert and update alike):\n  \
    fusee put greeting hello\n  \
    date | fusee put now -\n  \
    fusee put picture --value-file cat.jpg\n  \
    fusee put picture --value-file cat.jpg --redundancy ec:4+2\n\n\
    Exit code 1 if insert finds the key, or update does not.")]
pub struct WriteArgs {
    #[command(flatten)]
    key: KeyArgs,

    /// The value, as text; - reads it from standard input
    #[arg(required_unless_present = "value_file", allow_hyphen_values = true)]
    value: Option<String>,

    /// Read the value from this file
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    value_file: Option<PathBuf>,

    /// Redundancy of the value: `replicated`; `ec:K+M`, K data and M parity chunks on K + M memory nodes, any
    /// K of which restore the value; `eor:R:K+M`, K data chunks and R - 1 copies, which can become `ec:K+M`
    /// in place (R is 2 or 3, K at least R, M at least R - 1); or `none`, on one memory node, after whose
    /// loss the key no longer exists [default: that of the existing pair, else by the cluster's rules]
    #[arg(long, value_name = "REDUNDANCY")]
    redundancy: Option<Redundancy>,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Subcommands of `fusee redundancy`.
#[derive(Subcommand, Debug)]
pub enum RedundancyCommand {
    /// Print the redundancy of a key's value: `replicated`, `none`, or like `ec:4+2` or `eor:2:4+2`
    #[command(after_help = "Example:\n  fusee redundancy get picture\n\n\
        Exit code 1 if there is no such key.")]
    Get {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Change the redundancy of a key's value; the value stays
    #[command(after_help = "Examples:\n  fusee redundancy set picture ec:4+2\n  \
        fusee redundancy set picture eor:2:4+2\n  fusee redundancy set picture replicated\n\n\
        Prints what came of it: `moved`, `unchanged` where the value had it already, or `overtaken` where\n\
        somebody wrote the key meanwhile: it has the redundancy then that the other one chose.\n\
        Exit code 1 if there is no such key, or the value cannot have that redundancy.")]
    Set {
        #[command(flatten)]
        key: KeyArgs,
        /// `replicated`; `ec:K+M`, K data and M parity chunks on K + M memory nodes; `eor:R:K+M`, K data
        /// chunks and R - 1 copies, which can become `ec:K+M` in place (R is 2 or 3, K at least R, M at least
        /// R - 1); or `none`, on one memory node, after whose loss the key no longer exists
        redundancy: Redundancy,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Make many pairs erasure-coded, to save memory; the oldest first
    Demote(demote::DemoteArgs),
}

/// Shows or changes how values survive failures.
pub fn redundancy(command: &RedundancyCommand) -> Result<(), Failure> {
    match command {
        RedundancyCommand::Demote(args) => demote::run(args),
        RedundancyCommand::Get { key, connect } => {
            let found = connect.connect()?.redundancy_of(&key.bytes()?)?;
            let Some(redundancy) = found else { return Err(absent(&key.shown())) };
            output::line(&redundancy.to_string())
        }
        RedundancyCommand::Set { key, redundancy, connect } => {
            let bytes = key.bytes()?;
            let result = connect.connect()?.set_redundancy(&bytes, *redundancy);
            output::line(match result.map_err(|error| explain(&key.shown(), error))? {
                Transition::Moved => "moved",
                Transition::Unchanged => "unchanged",
                Transition::Overtaken => "overtaken",
            })
        }
    }
}

impl WriteArgs {
    /// Returns the source of the value. A file is opened here, so that a missing file is reported before the client
    /// connects.
    fn source(&self) -> Result<ValueInput<'_>, Failure> {
        if let Some(path) = &self.value_file {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|error| cannot_read(&name, &error))?;
            // The length of a pipe is unknown until the pipe has been read.
            let bytes = file.metadata().ok().filter(Metadata::is_file).map(|about| about.len());
            return Ok(ValueInput::Stream { name, bytes, reader: Box::new(file) });
        }
        Ok(match self.value.as_deref().unwrap_or_default() {
            "-" => {
                let name = "standard input".into();
                let reader = Box::new(stdin());
                ValueInput::Stream { name, bytes: None, reader }
            }
            text => ValueInput::Text(text),
        })
    }
}

/// The source of a value that has not been read yet.
enum ValueInput<'a> {
    Text(&'a str),
    Stream {
        name: String,
        /// The length, if it is known before the value is read.
        bytes: Option<u64>,
        reader: Box<dyn Read>,
    },
}

impl ValueInput<'_> {
    /// Reads the value, but at most one byte more than the maximum, because the input can be endless.
    fn read(self, max_bytes: usize) -> Result<Vec<u8>, Failure> {
        let (name, bytes, reader) = match self {
            ValueInput::Text(text) => return Ok(text.as_bytes().to_vec()),
            ValueInput::Stream { name, bytes, reader } => (name, bytes, reader),
        };
        if let Some(bytes) = bytes.and_then(|bytes| usize::try_from(bytes).ok())
            && bytes > max_bytes
        {
            return Err(WriteError::ValueTooLarge { bytes, max_bytes }.into());
        }
        let mut value = Vec::new();
        let read = reader.take(max_bytes as u64 + 1).read_to_end(&mut value);
        read.map_err(|error| cannot_read(&name, &error))?;
        if value.len() > max_bytes {
            return Err(Failure::operation(format!(
                "{name} has more than {max_bytes} bytes, the cluster's maximum for a value; nothing \
                 was written"
            )));
        }
        Ok(value)
    }
}

fn cannot_read(name: &str, error: &io::Error) -> Failure {
    Failure::operation(format!("cannot read {name}: {error}"))
}

/// Arguments of `fusee delete`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  fusee delete greeting\n\nExit code 1 if there is no such key.")]
pub struct DeleteArgs {
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// The key must not exist.
    Insert,
    /// The key must exist.
    Update,
    /// The key can exist or not.
    Put,
}

/// Prints a value.
pub fn get(args: &GetArgs) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    let client = args.connect.connect()?;
    let Some(mut value) = client.get(&key)? else { return Err(absent(&args.key.shown())) };
    if stdout().is_terminal() {
        value.push(b'\n');
    }
    output::raw(&value)
}

/// Writes a value.
pub fn write(how: WriteKind, args: &WriteArgs) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    let source = args.source()?;
    let client = args.connect.connect()?;
    let value = source.read(client.view().geometry.max_value_bytes as usize)?;
    let condition = match how {
        WriteKind::Insert => PutOptions::default().if_absent(),
        WriteKind::Update => PutOptions::default().if_present(),
        WriteKind::Put => PutOptions::default(),
    };
    let options = match args.redundancy {
        Some(redundancy) => condition.with_redundancy(redundancy),
        None => condition,
    };
    client.put_with(&key, &value, options).map_err(|error| explain(&args.key.shown(), error))
}

/// Removes a key.
pub fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    args.connect.connect()?.delete(&key).map_err(|error| explain(&args.key.shown(), error))
}

/// Returns the failure of an operation on a key. Its message names the next step.
pub fn explain(key: &str, error: WriteError) -> Failure {
    match error {
        WriteError::NotFound => absent(key),
        WriteError::AlreadyExists => Failure::operation(format!(
            "key `{key}` already exists; replace its value with update or put"
        )),
        error => Failure::from(error),
    }
}

/// Returns the failure for a key that does not exist.
pub fn absent(key: &str) -> Failure {
    Failure::operation(format!("key `{key}` not found"))
}

/// Returns the bytes of an even number of hexadecimal digits.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_keys_are_understood() {
        assert_eq!(from_hex("00ffA7"), Some(vec![0, 255, 0xa7]));
        assert_eq!(from_hex(""), Some(vec![]));
        assert_eq!((from_hex("0"), from_hex("0g"), from_hex("é0")), (None, None, None));
    }
}
