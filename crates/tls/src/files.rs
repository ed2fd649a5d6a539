//! Something made of files, and made again when they change.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::LOOK;

/// What tells a file from the one that was there before: its number, and when it or who may read it was changed.
type Mark = Option<(u64, i64, i64)>;

/// How something is made of files.
type Make<T, E> = Box<dyn Fn(&[PathBuf]) -> Result<T, E> + Send + Sync>;

/// Something made of files of certificates and keys, and made again when they have changed.
pub struct Watched<T, E> {
    files: Vec<PathBuf>,
    make: Make<T, E>,
    state: Mutex<State<T>>,
}

struct State<T> {
    made: Arc<T>,
    looked: Instant,
    marks: Vec<Mark>,
    /// Why the files make nothing.
    wrong: Option<String>,
}

impl<T, E> fmt::Debug for Watched<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.files).finish()
    }
}

impl<T, E: fmt::Display> Watched<T, E> {
    /// Makes it, or fails as `make` does, which is given the same files each time.
    pub fn new(
        files: Vec<PathBuf>,
        make: impl Fn(&[PathBuf]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Watched<T, E>, E> {
        // Before they are read: what changes meanwhile is seen by the next look.
        let marks = marks(&files);
        let made = Arc::new(make(&files)?);
        let state = Mutex::new(State { made, looked: Instant::now(), marks, wrong: None });
        Ok(Watched { files, make: Box::new(make), state })
    }

    /// What the files make by now; where they make nothing, what they made before, and the log says why. They are
    /// looked at no more often than [`LOOK`] says.
    pub fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            let marks = marks(&self.files);
            // What was wrong need not have been the files: a process may have no descriptor left.
            if marks != state.marks || state.wrong.is_some() {
                state.marks = marks;
                let error = match (self.make)(&self.files) {
                    Ok(made) => {
                        tracing::info!(files = ?self.files, "certificates were read again");
                        state.made = Arc::new(made);
                        None
                    }
                    // Perhaps one of two files is still to come.
                    Err(error) => Some(error.to_string()),
                };
                if let Some(error) = error.as_ref().filter(|_| error != state.wrong) {
                    tracing::warn!(%error, "new certificates cannot be used, the old ones stay");
                }
                state.wrong = error;
            }
        }
        state.made.clone()
    }
}

fn marks(files: &[PathBuf]) -> Vec<Mark> {
    let mark = |file: &PathBuf| {
        let about = fs::metadata(file).ok()?;
        Some((about.ino(), about.ctime(), about.ctime_nsec()))
    };
    files.iter().map(mark).collect()
}
