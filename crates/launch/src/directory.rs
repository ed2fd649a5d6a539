//! The private directory of one cluster.
//!
//! It holds the sockets and the master's store, and a file that is locked as long as its owner
//! lives. Dropping it removes it. If the owner is killed it stays, but its lock does not: the next
//! owner finds it unlocked and removes it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fusee_cli::failure::Failure;

const PREFIX: &str = "fusee-up-";
const LOCK: &str = "lock";

/// A directory that is gone with its value.
pub struct Directory {
    path: PathBuf,
    /// Locked; closing it unlocks it.
    _lock: File,
}

impl Directory {
    /// Makes one, in the user's runtime directory or in that for temporary files.
    pub fn create() -> Result<Directory, Failure> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = runtime.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir);
        sweep(&base);
        Directory::create_in(&base, std::process::id()).map_err(|error| {
            Failure::operation(format!("cannot make a directory in {}: {error}", base.display()))
        })
    }

    fn create_in(base: &Path, number: u32) -> io::Result<Directory> {
        let path = base.join(format!("{PREFIX}{number}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Directory { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot be removed");
        }
    }
}

/// Removes directories whose owner is gone.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // Without a lock file it is somebody's who has just begun, or nobody's business.
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
        let alive = Directory::create_in(&base, 1).unwrap();
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
