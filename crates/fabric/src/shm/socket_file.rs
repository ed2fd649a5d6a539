//! The file of a listening Unix socket.
//!
//! A socket file outlives a process that was killed. A server that starts replaces such a file, but fails if another
//! process still listens at it. The check and the replacement happen under a lock of the directory, so that of two
//! nodes that start at the same time, one gets the error.
//!
//! A file may be removed under a running server, for example by a cleaner of temporary files. New clients do not find
//! the server then, so it checks whether its file is still there, and makes it again.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mio::net::{UnixListener, UnixStream};

use crate::error::ServeError;
use crate::sys;

/// The socket file of a server.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    place: Mutex<SocketFileState>,
}

/// The server's knowledge about the file at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketFileState {
    /// The file was ours at the last check.
    Ours(SocketFileId),
    /// Our file was not there at the last check.
    Gone(SocketFileId),
    /// The server ends, and makes no file any more.
    Ended,
}

/// The numbers by which a file differs from every other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketFileId {
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Listens at `path`, in place of a server that has died.
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

    /// Returns whether the file was there at the last check.
    pub(super) fn is_there(&self) -> bool {
        !matches!(*self.place(), SocketFileState::Gone(_))
    }

    /// Checks whether the file is still there. If not, makes it again, and returns the new listener.
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
        // Without waiting: any process of this host may hold the lock.
        let io = |source| ServeError::Io { at: self.path.display().to_string(), source };
        let lock = File::open(directory(&self.path)).map_err(io)?;
        lock.try_lock().map_err(|error| io(error.into()))?;
        let (listener, id) = claim(&self.path)?;
        *place = SocketFileState::Ours(id);
        Ok(Some(listener))
    }

    /// Makes the file count as gone, because its listener cannot be used. The next check makes it again.
    pub(super) fn count_as_gone(&self) {
        let mut place = self.place();
        if matches!(*place, SocketFileState::Ours(_)) {
            // No file has these numbers. A file at the path is replaced, if no process listens at it.
            *place = SocketFileState::Gone(SocketFileId { device: 0, inode: 0 });
        }
    }

    fn place(&self) -> MutexGuard<'_, SocketFileState> {
        // The state is valid at every step, after a panic too.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file for good, if it is still ours.
    pub(super) fn remove(&self) {
        // If the directory has gone before, so has the file.
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

/// Returns whether a process of this user is trusted to serve as a memory node at a path. The user must be root, the
/// user of this process, or the only user besides root that can make files there.
pub(super) fn may_serve(path: &Path, uid: u32) -> bool {
    uid == 0 || uid == sys::own_uid() || is_owned_only_by(path, uid)
}

/// Returns whether a path's directory belongs to this user, and no other user besides root can replace it or a file in
/// it. If that cannot be found out, the answer is no.
fn is_owned_only_by(path: &Path, uid: u32) -> bool {
    let directory = protected_directory(path, uid).ok().flatten();
    let about = directory.and_then(|directory| fs::metadata(directory).ok());
    about.is_some_and(|about| about.uid() == uid)
}

/// Returns the directory of a path without links, or `None` if a user besides this one and root can replace it or a
/// file in it. So every directory and link on the way there must belong to this user or root, and no directory may be
/// writable by group or others.
fn protected_directory(path: &Path, uid: u32) -> io::Result<Option<PathBuf>> {
    const OTHERS_WRITE: u32 = 0o022;
    const MOST_LINKS: usize = 40;
    let directory = std::path::absolute(directory(path))?;
    let mut at = PathBuf::new();
    let mut links = 0;
    let mut rest: Vec<PathBuf> = parts(&directory);
    while let Some(part) = rest.pop() {
        // Metadata of the part itself, which may be a link. `..` and the root are no links.
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

/// Claims the path while the caller holds the directory's lock.
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
            // A server with a full backlog lives as well.
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
