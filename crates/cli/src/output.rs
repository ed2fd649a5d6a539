//! Standard output. A reader that has gone, as in `fusee status | head -1`, is no failure; nor is a terminal that has.

use std::io::{ErrorKind, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// The terminal has gone.
const EIO: Option<i32> = Some(5);

/// Whether somebody still reads standard output.
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

/// Whether what is written still reaches somebody: a command that goes on and on should end when
/// it does not.
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
