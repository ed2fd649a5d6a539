//! Standard output. If its reader or terminal is closed, for example by `fusee status | head -1`, that is no failure.

use std::io::{ErrorKind, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// The error code of a write to a closed terminal.
const EIO: Option<i32> = Some(5);

/// Whether standard output still has a reader, as far as known.
static READ: AtomicBool = AtomicBool::new(true);

/// Writes bytes to standard output unchanged.
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

/// Returns whether standard output still has a reader. A command that would run for ever ends if it has none.
pub fn is_read() -> bool {
    READ.load(Ordering::Relaxed)
}

/// Writes text that contains its own line breaks.
pub fn text(text: &str) -> Result<(), Failure> {
    raw(text.as_bytes())
}

/// Writes a line to standard output.
pub fn line(line: &str) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}
