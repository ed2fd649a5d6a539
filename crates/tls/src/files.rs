//! Values that are made from files, and made anew when the files change.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::LOOK;

/// The inode of a file, and when its content or permissions last changed. Another file at the same path has another
/// stamp. `None`: the file cannot be examined.
type FileStamp = Option<(u64, i64, i64)>;

/// The function that makes a value from its files.
type FileLoader<T, E> = Box<dyn Fn(&[PathBuf]) -> Result<T, E> + Send + Sync>;

/// A value made from files of certificates and keys. It is made anew when the files change.
pub struct ReloadedValue<T, E> {
    files: Vec<PathBuf>,
    make: FileLoader<T, E>,
    state: Mutex<ReloadState<T>>,
}

struct ReloadState<T> {
    made: Arc<T>,
    looked: Instant,
    marks: Vec<FileStamp>,
    /// The error of the last attempt to make the value, if that attempt failed.
    wrong: Option<String>,
}

impl<T, E> fmt::Debug for ReloadedValue<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.files).finish()
    }
}

impl<T, E: fmt::Display> ReloadedValue<T, E> {
    /// Makes the value, or fails as `make` does. `make` gets the paths `files` each time.
    pub fn new(
        files: Vec<PathBuf>,
        make: impl Fn(&[PathBuf]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<ReloadedValue<T, E>, E> {
        // The stamps are taken before the files are read, so that the next check notices a change that happens
        // meanwhile.
        let marks = marks(&files);
        let made = Arc::new(make(&files)?);
        let state = Mutex::new(ReloadState { made, looked: Instant::now(), marks, wrong: None });
        Ok(ReloadedValue { files, make: Box::new(make), state })
    }

    /// Returns the value made from the files as they are now. If no value can be made from the files, returns the last
    /// good value, and logs the reason. The files are checked at most once per [`LOOK`].
    pub fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK {
            state.looked = Instant::now();
            let marks = marks(&self.files);
            // After a failure the files are tried again even if unchanged, because the failure possibly had another
            // cause, such as too few file descriptors.
            if marks != state.marks || state.wrong.is_some() {
                state.marks = marks;
                let error = match (self.make)(&self.files) {
                    Ok(made) => {
                        tracing::info!(files = ?self.files, "certificates were read again");
                        state.made = Arc::new(made);
                        None
                    }
                    // One possible cause is that only one of two files has been replaced so far.
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

fn marks(files: &[PathBuf]) -> Vec<FileStamp> {
    let mark = |file: &PathBuf| {
        let about = fs::metadata(file).ok()?;
        Some((about.ino(), about.ctime(), about.ctime_nsec()))
    };
    files.iter().map(mark).collect()
}
