//! The private directory of one cluster.
//!
//! The directory holds the sockets, the master's store, and a file that the directory's owner keeps locked. Dropping
//! the value removes the directory. If the owner is killed, the directory remains with an unlocked file, and the next
//! process that creates such a directory removes it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fusee_cli::failure::Failure;

const PREFIX: &str = "fusee-up-";
const LOCK: &str = "lock";

/// A private directory. Dropping the value removes it.
pub struct ClusterDirectory {
    path: PathBuf,
    /// The open file that keeps the directory locked. Closing it unlocks the directory.
    _lock: File,
}

impl ClusterDirectory {
    /// Creates a directory in the user's runtime directory or, if there is none, in the directory for temporary files.
    pub fn create() -> Result<ClusterDirectory, Failure> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = runtime.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir);
        sweep(&base);
        ClusterDirectory::create_in(&base, std::process::id()).map_err(|error| {
            Failure::operation(format!("cannot make a directory in {}: {error}", base.display()))
        })
    }

    fn create_in(base: &Path, number: u32) -> io::Result<ClusterDirectory> {
        let path = base.join(format!("{PREFIX}{number}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(ClusterDirectory { path, _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ClusterDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot be removed");
        }
    }
}

/// Removes the directories of processes that have died.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // A directory without a lock file is not of this program, or its owner is just creating it.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_directories_are_swept_and_others_stay() {
        let base = std::env::temp_dir().join(format!("fusee-test-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let alive = ClusterDirectory::create_in(&base, 1).unwrap();
        let abandoned = base.join("fusee-up-2");
        fs::create_dir(&abandoned).unwrap();
        File::create(abandoned.join(LOCK)).unwrap();
        fs::create_dir(base.join("other")).unwrap();
        sweep(&base);
        assert!(alive.path().exists() && base.join("other").exists());
        assert!(!abandoned.exists());
        let path = alive.path().to_path_buf();
        drop(alive);
        assert!(!path.exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
