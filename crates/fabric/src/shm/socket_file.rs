//! The file of a server's Unix socket.
//!
//! A socket file outlives a process that was killed. A server that starts replaces such a file, but fails if
//! another process still listens there. The check and the replacement happen under a lock of the directory, so if
//! two nodes start at the same time, one of them gets the error.
//!
//! The file of a running server can be removed, for example by a cleaner of temporary files. New clients do not
//! find the server then. So the server checks whether its file still exists, and makes it again if not.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mio::net::{UnixListener, UnixStream};

use crate::error::ServeError;
use crate::sys;

/// A server's socket file, and what the server knows of it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    place: Mutex<SocketFileState>,
}

/// The server's knowledge of the file at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketFileState {
    /// The file was the server's own at the last check.
    Ours(SocketFileId),
    /// The server's own file did not exist at the last check, or counts as gone.
    Gone(SocketFileId),
    /// The server is ending, and makes no file any more.
    Ended,
}

/// The numbers of a file's device and inode, which identify the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketFileId {
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Listens at `path`. Replaces the file of a server that has died.
    pub(super) fn claim(path: &Path) -> Result<(UnixListener, SocketFile), ServeError> {
        let io = |source| ServeError::Io { at: path.display().to_string(), source };
        let lock = File::open(directory(path)).map_err(io)?;
        lock.lock().map_err(io)?;
        let (listener, id) = claim(path)?;
        Ok((
            listener,
            SocketFile { path: path.into(), place: Mutex::new(SocketFileState::Ours(id)) },
        ))
    }

    /// Returns whether the server's file existed at the last check.
    pub(super) fn is_there(&self) -> bool {
        !matches!(*self.place(), SocketFileState::Gone(_))
    }

    /// Checks whether the server's file still exists. If not, makes it again and returns the new listener.
    pub(super) fn restore(&self) -> Result<Option<UnixListener>, ServeError> {
        let mut place = self.place();
        let (SocketFileState::Ours(id) | SocketFileState::Gone(id)) = *place else {
            return Ok(None);
        };
        if identify(&self.path).is_ok_and(|found| found == id) {
            *place = SocketFileState::Ours(id);
            return Ok(None);
        }
        *place = SocketFileState::Gone(id);
        // The lock is taken without waiting, because any process of this host can hold it.
        let io = |source| ServeError::Io { at: self.path.display().to_string(), source };
        let lock = File::open(directory(&self.path)).map_err(io)?;
        lock.try_lock().map_err(|error| io(error.into()))?;
        let (listener, id) = claim(&self.path)?;
        *place = SocketFileState::Ours(id);
        Ok(Some(listener))
    }

    /// Marks the file as gone, because its listener cannot be used. The next check makes the file again.
    pub(super) fn count_as_gone(&self) {
        let mut place = self.place();
        if matches!(*place, SocketFileState::Ours(_)) {
            // No file has these numbers, so the next check replaces the file at the path, unless a process listens
            // there.
            *place = SocketFileState::Gone(SocketFileId { device: 0, inode: 0 });
        }
    }

    fn place(&self) -> MutexGuard<'_, SocketFileState> {
        // The state is valid at every step, also after a panic.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file for good, if it is still the server's own.
    pub(super) fn remove(&self) {
        // If the file is gone, or its directory is, nothing is left to remove.
        let SocketFileState::Ours(id) =
            std::mem::replace(&mut *self.place(), SocketFileState::Ended)
        else {
            return;
        };
        if let Err(error) = remove_own(&self.path, id)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket file");
        }
    }
}

/// Returns whether a process of this user is trusted to serve as a memory node at a path. The user must be root,
/// the user of this process, or the only user besides root that can make files in the path's directory.
pub(super) fn may_serve(path: &Path, uid: u32) -> bool {
    uid == 0 || uid == sys::own_uid() || is_owned_only_by(path, uid)
}

/// Returns whether a path's directory belongs to this user, and no other user besides root can replace the
/// directory or a file in it. Returns false if that cannot be found out.
fn is_owned_only_by(path: &Path, uid: u32) -> bool {
    let directory = protected_directory(path, uid).ok().flatten();
    let about = directory.and_then(|directory| fs::metadata(directory).ok());
    about.is_some_and(|about| about.uid() == uid)
}

/// Returns the directory of a path with all links resolved, or `None` if a user other than `uid` and root can
/// replace the directory or a file in it. For that, every directory and link on the way must belong to `uid` or
/// root, and no directory is allowed to be writable by group or others.
fn protected_directory(path: &Path, uid: u32) -> io::Result<Option<PathBuf>> {
    const OTHERS_WRITE: u32 = 0o022;
    const MOST_LINKS: usize = 40;
    let directory = std::path::absolute(directory(path))?;
    let mut at = PathBuf::new();
    let mut links = 0;
    let mut rest: Vec<PathBuf> = parts(&directory);
    while let Some(part) = rest.pop() {
        // The metadata of the component itself, which can be a link. `..` and the root are never links.
        let next = at.join(part);
        let about = fs::symlink_metadata(&next)?;
        if about.uid() != uid && about.uid() != 0 {
            return Ok(None);
        }
        if about.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Ok(None);
            }
            rest.extend(parts(&fs::read_link(&next)?));
        } else if about.mode() & OTHERS_WRITE == 0 {
            at = fs::canonicalize(next)?;
        } else {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// Returns the components of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn identify(path: &Path) -> io::Result<SocketFileId> {
    let metadata = fs::symlink_metadata(path)?;
    Ok(SocketFileId { device: metadata.dev(), inode: metadata.ino() })
}

/// Claims the path. The caller holds the directory's lock.
fn claim(path: &Path) -> Result<(UnixListener, SocketFileId), ServeError> {
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
            // A connection to a server with a full queue fails, too, but is not refused, so that server counts as
            // alive.
            _ => return Err(ServeError::AddressInUse { at: at() }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let listener = UnixListener::bind(path).map_err(io)?;
    let file = identify(path).map_err(io)?;
    Ok((listener, file))
}

fn remove_own(path: &Path, file: SocketFileId) -> io::Result<()> {
    let lock = File::open(directory(path))?;
    lock.lock()?;
    if identify(path)? == file { fs::remove_file(path) } else { Ok(()) }
}
