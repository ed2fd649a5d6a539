//! Something made of files, and made again when they change.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::{LOOK, TlsError};

/// What tells a file from the one that was there before: its number, length and time.
type Mark = Option<(u64, u64, i64, i64)>;

/// How something is made of files.
pub(crate) type Make<T> = fn(&[PathBuf]) -> Result<T, TlsError>;

/// Something made of files.
pub(crate) struct Watched<T> {
    files: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    made: Arc<T>,
    looked: Instant,
    marks: Vec<Mark>,
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.files).finish()
    }
}

impl<T> Watched<T> {
    pub(crate) fn new(files: Vec<PathBuf>, make: Make<T>) -> Result<Watched<T>, TlsError> {
        // Before they are read: what changes meanwhile is seen by the next look.
        let marks = marks(&files);
        let made = Arc::new(make(&files)?);
        let state = Mutex::new(State { made, looked: Instant::now(), marks });
        Ok(Watched { files, make, state })
    }

    /// What the files make by now.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            let marks = marks(&self.files);
            if marks != state.marks {
                state.marks = marks;
                match (self.make)(&self.files) {
                    Ok(made) => {
                        tracing::info!(files = ?self.files, "certificates were read again");
                        state.made = Arc::new(made);
                    }
                    // Perhaps one of two files is still to come: then there is another change.
                    Err(error) => {
                        tracing::warn!(%error, "new certificates cannot be used, the old ones stay");
                    }
                }
            }
        }
        state.made.clone()
    }
}

fn marks(files: &[PathBuf]) -> Vec<Mark> {
    let mark = |file: &PathBuf| {
        let about = fs::metadata(file).ok()?;
        Some((about.ino(), about.len(), about.mtime(), about.mtime_nsec()))
    };
    files.iter().map(mark).collect()
}
