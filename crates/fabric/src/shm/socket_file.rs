//! The file of a listening Unix socket.
//!
//! A socket file outlives a process that was killed. Starting on such a file replaces it; a file
//! at which somebody still listens is an error. The check and the replacement happen under a lock
//! of the directory, so that of two nodes that start at once, one gets the error.
//!
//! A file may be removed under a living server, by a cleaner of temporary files say. Then nobody finds the server any
//! more: it looks whether its file is still there, and makes it again.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mio::net::{UnixListener, UnixStream};

use crate::error::ServeError;
use crate::sys;

/// A socket file of ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    place: Mutex<Place>,
}

/// What is at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Our file, by device and inode: there may be another one in its place by now.
    Ours((u64, u64)),
    /// Not ours, which was this one, when it was looked at last.
    Gone((u64, u64)),
    /// The server ends, and wants no file any more.
    Ended,
}

impl SocketFile {
    /// Listens at `path`, in place of a server that has died.
    pub(super) fn claim(path: &Path) -> Result<(UnixListener, SocketFile), ServeError> {
        let io = |source| ServeError::Io { at: path.display().to_string(), source };
        let lock = File::open(directory(path)).map_err(io)?;
        lock.lock().map_err(io)?;
        let (listener, id) = claim(path)?;
        Ok((listener, SocketFile { path: path.into(), place: Mutex::new(Place::Ours(id)) }))
    }

    /// Whether it was there when it was looked for last.
    pub(super) fn is_there(&self) -> bool {
        !matches!(*self.place(), Place::Gone(_))
    }

    /// Looks whether it is still there; if not, makes it again, and gives who listens there now.
    pub(super) fn restore(&self) -> Result<Option<UnixListener>, ServeError> {
        let mut place = self.place();
        let (Place::Ours(id) | Place::Gone(id)) = *place else { return Ok(None) };
        if identify(&self.path).is_ok_and(|found| found == id) {
            *place = Place::Ours(id);
            return Ok(None);
        }
        *place = Place::Gone(id);
        // Without waiting: who holds the lock may be any process of this host.
        let io = |source| ServeError::Io { at: self.path.display().to_string(), source };
        let lock = File::open(directory(&self.path)).map_err(io)?;
        lock.try_lock().map_err(|error| io(error.into()))?;
        let (listener, id) = claim(&self.path)?;
        *place = Place::Ours(id);
        Ok(Some(listener))
    }

    /// What was made is of no use: it counts as gone, and is made again.
    pub(super) fn count_as_gone(&self) {
        let mut place = self.place();
        if matches!(*place, Place::Ours(_)) {
            // No file has these numbers: whatever is there is replaced, if nobody listens.
            *place = Place::Gone((0, 0));
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        // Valid at every step.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it for good, if it is still ours.
    pub(super) fn remove(&self) {
        // Its directory may have gone before us: that is as good.
        let Place::Ours(id) = std::mem::replace(&mut *self.place(), Place::Ended) else { return };
        if let Err(error) = remove_own(&self.path, id)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket file");
        }
    }
}

/// Whether a process of this user may stand for a memory node at a path: of root, of the user of this process, or of
/// the only user, but root, that may make files there.
pub(super) fn may_serve(path: &Path, uid: u32) -> bool {
    uid == 0 || uid == sys::own_uid() || is_kept_by(path, uid).unwrap_or(false)
}

/// Whether a path's directory is this user's, and no other user, but root, can put another one or a file in its place:
/// not in any directory on the way there, links included.
fn is_kept_by(path: &Path, uid: u32) -> io::Result<bool> {
    const OTHERS_WRITE: u32 = 0o022;
    const MOST_LINKS: usize = 40;
    let directory = std::path::absolute(directory(path))?;
    let mut at = PathBuf::new();
    let mut links = 0;
    let mut rest: Vec<PathBuf> = parts(&directory);
    while let Some(part) = rest.pop() {
        // The part itself, which may be a link: `..` and the root are none.
        let next = at.join(part);
        let about = fs::symlink_metadata(&next)?;
        if about.uid() != uid && about.uid() != 0 {
            return Ok(false);
        }
        if about.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Ok(false);
            }
            rest.extend(parts(&fs::read_link(&next)?));
        } else if about.mode() & OTHERS_WRITE == 0 {
            at = fs::canonicalize(next)?;
        } else {
            return Ok(false);
        }
    }
    Ok(fs::metadata(at)?.uid() == uid)
}

/// The components of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn identify(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Under the directory's lock.
fn claim(path: &Path) -> Result<(UnixListener, (u64, u64)), ServeError> {
    let at = || path.display().to_string();
    let io = |source| ServeError::Io { at: at(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServeError::NotASocket { at: at() });
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                tracing::info!(path = %path.display(), "replacing the socket of a dead server");
                fs::remove_file(path).map_err(io)?;
            }
            // A full backlog, too, is the mark of somebody who lives.
            _ => return Err(ServeError::AddressInUse { at: at() }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let listener = UnixListener::bind(path).map_err(io)?;
    let file = identify(path).map_err(io)?;
    Ok((listener, file))
}

fn remove_own(path: &Path, file: (u64, u64)) -> io::Result<()> {
    let lock = File::open(directory(path))?;
    lock.lock()?;
    if identify(path)? == file { fs::remove_file(path) } else { Ok(()) }
}
