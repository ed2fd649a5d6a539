//! A client process at the memory node's socket. A fence asks it to stop a session, or kills it.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};

use super::wire::FENCED;
use crate::sys::Process;

/// A client process, and the connection over which it says goodbye.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Process,
    socket: UnixStream,
}

impl Peer {
    /// Returns the process that connected, if that process still lives. Messages on the connection cause events
    /// with this token.
    pub(super) fn of(mut socket: UnixStream, at: &Registry, token: Token) -> io::Result<Peer> {
        let process = Process::of_peer(&socket)?;
        at.register(&mut socket, token, Interest::READABLE)?;
        Ok(Peer { process, socket })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Returns whether this node has permission to kill the process.
    pub(super) fn killable(&self) -> bool {
        self.process.killable()
    }

    /// Tells the process that the client is fenced. The process then shuts the session's gate, and says goodbye
    /// when no verb is inside.
    pub(crate) fn tell_fenced(&self) {
        // Best effort: a process that does not get the message is killed.
        if let Err(error) = (&self.socket).write(&[FENCED]) {
            tracing::debug!(%error, pid = self.pid(), "a fenced client cannot be told");
        }
    }

    /// Kills the process. Succeeds if the process is dead already.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Waits until all threads of the process have ended, for at most `wait`. Returns whether they have ended.
    pub(crate) fn ended(&self, wait: Duration) -> io::Result<bool> {
        self.process.ended(wait)
    }

    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(into)
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Closes the connection, also while a fence still holds this value.
    pub(super) fn close(&self) {
        // The call fails if the connection is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Returns the descriptor of the process, not of the connection.
impl AsRawFd for Peer {
    fn as_raw_fd(&self) -> RawFd {
        self.process.as_raw_fd()
    }
}
