//! A client process at the memory node's socket: asked to stop its sessions, and killed if it does not.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};

use super::wire::FENCED;
use crate::sys::Process;

/// A process, and the connection over which it says goodbye.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Process,
    socket: UnixStream,
}

impl Peer {
    /// Who connected, if it still lives. Its messages make events under this token.
    pub(super) fn of(mut socket: UnixStream, at: &Registry, token: Token) -> io::Result<Peer> {
        let process = Process::of_peer(&socket)?;
        at.register(&mut socket, token, Interest::READABLE)?;
        Ok(Peer { process, socket })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Whether we may kill it.
    pub(super) fn killable(&self) -> bool {
        self.process.killable()
    }

    /// Tells it that the client is fenced: it shuts the session's gate, and says goodbye when no verb is inside.
    pub(crate) fn tell_fenced(&self) {
        // Best effort: who does not hear it is killed.
        if let Err(error) = (&self.socket).write(&[FENCED]) {
            tracing::debug!(%error, pid = self.pid(), "a fenced client cannot be told");
        }
    }

    /// Kills it; fine if it is dead already.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.process.kill()
    }

    /// Waits for the end of all its threads; whether it has come.
    pub(crate) fn ended(&self, wait: Duration) -> io::Result<bool> {
        self.process.ended(wait)
    }

    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(into)
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Closes the connection, though a fence may still know of it.
    pub(super) fn close(&self) {
        // A failure means that it is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// The process, not the connection.
impl AsRawFd for Peer {
    fn as_raw_fd(&self) -> RawFd {
        self.process.as_raw_fd()
    }
}
