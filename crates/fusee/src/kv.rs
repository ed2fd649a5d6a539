//! `fusee get`, `insert`, `update`, `put`, `delete`: one operation each.
//!
//! Values go through as they are, byte by byte: `fusee get k > file` and
//! `fusee put k --value-file file` are inverse. Only on a terminal a line end follows the value.

use std::io::{IsTerminal, Read, stdin, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use fusee_client::Error;

use crate::connect::ConnectArgs;
use crate::failure::Failure;
use crate::output;

/// A key on the command line.
#[derive(Args, Clone, Debug)]
struct KeyArgs {
    /// The key, as text
    key: String,

    /// The key is given in hexadecimal digits, like 00ff2a
    #[arg(long)]
    hex: bool,
}

impl KeyArgs {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        if !self.hex {
            return Ok(self.key.clone().into_bytes());
        }
        from_hex(&self.key).ok_or_else(|| {
            Failure::usage(format!("`{}` is no even number of hexadecimal digits", self.key))
        })
    }
}

/// Which key to print.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  fusee get greeting\n  fusee get --hex 00ff2a > value.bin\n\n\
    Exit code 1 if there is no such key.")]
pub struct GetArgs {
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What to write.
#[derive(Args, Debug)]
#[command(after_help = "Examples (put, insert and update alike):\n  \
    fusee put greeting hello\n  \
    date | fusee put now -\n  \
    fusee put picture --value-file cat.jpg\n\n\
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

    #[command(flatten)]
    connect: ConnectArgs,
}

impl WriteArgs {
    fn value(&self) -> Result<Vec<u8>, Failure> {
        if let Some(path) = &self.value_file {
            return read_file(path);
        }
        match self.value.as_deref().unwrap_or_default() {
            "-" => {
                let mut value = Vec::new();
                stdin().lock().read_to_end(&mut value).map_err(|error| {
                    Failure::operation(format!("cannot read standard input: {error}"))
                })?;
                Ok(value)
            }
            text => Ok(text.as_bytes().to_vec()),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::operation(format!("cannot read {}: {error}", path.display())))
}

/// What to remove.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  fusee delete greeting\n\nExit code 1 if there is no such key.")]
pub struct DeleteArgs {
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The key must not exist.
    Insert,
    /// The key must exist.
    Update,
    /// Either.
    Put,
}

/// Prints a value.
pub fn get(args: &GetArgs) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    let client = args.connect.connect()?;
    let Some(mut value) = client.get(&key)? else { return Err(absent(&args.key.key)) };
    if stdout().is_terminal() {
        value.push(b'\n');
    }
    output::raw(&value)
}

/// Writes a value.
pub fn write(how: Write, args: &WriteArgs) -> Result<(), Failure> {
    let (key, value) = (args.key.bytes()?, args.value()?);
    let client = args.connect.connect()?;
    let result = match how {
        Write::Insert => client.insert(&key, &value),
        Write::Update => client.update(&key, &value),
        Write::Put => client.put(&key, &value),
    };
    result.map_err(|error| explain(&args.key.key, error))
}

/// Removes a key.
pub fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    args.connect.connect()?.delete(&key).map_err(|error| explain(&args.key.key, error))
}

/// A failed operation on a key, with the next step.
pub fn explain(key: &str, error: Error) -> Failure {
    match error {
        Error::NotFound => absent(key),
        Error::AlreadyExists => Failure::operation(format!(
            "key `{key}` already exists; replace its value with update or put"
        )),
        error => Failure::from(error),
    }
}

/// There is no such key.
pub fn absent(key: &str) -> Failure {
    Failure::operation(format!("key `{key}` not found"))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
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
