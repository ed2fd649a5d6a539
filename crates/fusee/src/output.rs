//! Standard output. A reader that has gone, as in `fusee status | head -1`, is no failure.

use std::io::{ErrorKind, Write, stdout};

use crate::failure::Failure;

/// Writes bytes as they are.
pub fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::operation(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes text that ends its own lines.
pub fn text(text: &str) -> Result<(), Failure> {
    raw(text.as_bytes())
}

/// Writes a line.
pub fn line(line: &str) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}
