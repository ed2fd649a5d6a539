//! Watches, for all sessions of a client process, whether their memory nodes still live.
//!
//! Mapped memory does not fail when the node that lent it dies. One thread for the process waits
//! for the ends of the sessions' connections, and shuts the gate of a session whose node has
//! gone. So the path of a verb needs no system call to notice. A child, which has no such thread, has
//! one of its own as soon as it has a session of its own.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Registry, Token};

use super::gate::{Gate, Shut};
use super::wire::GOODBYE;
use crate::fork::PerProcess;

static MONITOR: PerProcess<Place> = PerProcess::new();

/// Where the monitor of a process is.
#[derive(Default)]
struct Place {
    start: Mutex<()>,
    monitor: OnceLock<Monitor>,
}

struct Monitor {
    registry: Registry,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: usize,
    sessions: HashMap<Token, (UnixStream, Arc<Gate>)>,
}

/// A connection under watch. Dropping it says goodbye to the node: by then the session must be
/// unable to execute verbs.
#[derive(Debug)]
pub(super) struct Watch(Token);

/// Watches a connection; shuts the gate when the memory node closes it.
pub(super) fn watch(mut socket: UnixStream, gate: Arc<Gate>) -> io::Result<Watch> {
    let monitor = monitor()?;
    let mut watched = monitor.watched();
    let token = Token(watched.next);
    watched.next += 1;
    monitor.registry.register(&mut socket, token, Interest::READABLE)?;
    watched.sessions.insert(token, (socket, gate));
    Ok(Watch(token))
}

impl Watch {
    /// Says goodbye; gives the connection, which the node closes once it has heard that.
    pub(super) fn part(self) -> Option<StdStream> {
        self.end().map(StdStream::from)
    }

    fn end(&self) -> Option<UnixStream> {
        let (mut socket, _) = MONITOR.get().monitor.get()?.watched().sessions.remove(&self.0)?;
        // If the node has gone, nobody needs the goodbye.
        socket.write_all(&[GOODBYE]).ok()?;
        Some(socket)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

fn monitor() -> io::Result<&'static Monitor> {
    let place = MONITOR.get();
    let _one_at_a_time = place.start.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(monitor) = place.monitor.get() {
        return Ok(monitor);
    }
    let poll = Poll::new()?;
    let monitor = Monitor { registry: poll.registry().try_clone()?, watched: Mutex::default() };
    std::thread::Builder::new()
        .name("fusee-monitor".into())
        .spawn(move || run(poll, place.monitor.wait()))?;
    Ok(place.monitor.get_or_init(|| monitor))
}

fn run(mut poll: Poll, monitor: &Monitor) {
    let mut events = Events::with_capacity(64);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Without the monitor nobody would learn of the loss of a node: shut all.
            Err(error) => {
                tracing::error!(%error, "cannot watch memory nodes any more");
                monitor.watched().sessions.values().for_each(|(_, gate)| gate.shut(Shut::Gone));
                return;
            }
            Ok(()) => {}
        }
        let mut watched = monitor.watched();
        for event in &events {
            let Some((socket, gate)) = watched.sessions.get_mut(&event.token()) else { continue };
            if ended(socket) {
                // One of many sessions, perhaps, and nothing to do with them at the end of a node: whose verbs
                // fail says so.
                tracing::debug!("a memory node has closed its shared-memory session");
                gate.shut(Shut::Gone);
                watched.sessions.remove(&event.token());
            }
        }
    }
}

/// Whether the connection has ended. The node sends nothing on it, so bytes mean that, too.
fn ended(socket: &mut UnixStream) -> bool {
    match socket.read(&mut [0]) {
        Ok(0 | 1..) => true,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}

impl Monitor {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
