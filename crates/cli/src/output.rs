//! Standard output. A closed reader, as in `fusee status | head -1`, or a closed terminal is no failure.

use std::io::{ErrorKind, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// The error of a closed terminal.
const EIO: Option<i32> = Some(5);

/// Whether standard output still has a reader.
static READ: AtomicBool = AtomicBool::new(true);

/// Writes bytes as they are.
pub fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe || error.raw_os_error() == EIO => {
            READ.store(false, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(Failure::operation(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Returns whether output still reaches a reader: a command that runs on and on should end when it does not.
pub fn is_read() -> bool {
    READ.load(Ordering::Relaxed)
}

/// Writes text that ends its own lines.
pub fn text(text: &str) -> Result<(), Failure> {
    raw(text.as_bytes())
}

/// Writes a line.
pub fn line(line: &str) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}
